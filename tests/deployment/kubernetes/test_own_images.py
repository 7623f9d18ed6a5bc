"""Pods of the user's own images: valid manifests that their Services select."""

from tests.support.deployment.asked import asked
from tests.support.deployment.helpers import plan_of, planned_gpu
from tests.support.deployment.kubernetes import checked
from torchsplit_core.deployment import custom_images, deploy


def test_pods_of_an_own_image_are_valid_and_found_by_their_service():
    slices = [("1g.10gb", 0, "a"), ("1g.10gb", 1, "a"), ("2g.20gb", 2, "b")]
    found = asked(plan_of(planned_gpu("gpu0", "A100-80GB", slices)))
    own = custom_images(found.request, {"a": "me/a:1"}, {"a": "serve --fast"})
    made = deploy(found.plan, ["kubernetes"], found.request, found.manifests, own)
    manifests = checked(
        *(file.text for file in made if file.name.endswith(".yaml") and "/dra/" not in file.name)
    )
    (deployment,) = (
        manifest
        for manifest in manifests
        if manifest["metadata"].get("labels", {}).get("app.kubernetes.io/component") == "own-image"
    )
    assert deployment["spec"]["replicas"] == 2
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"].items() <= labels.items()
    (service,) = (manifest for manifest in manifests if manifest["metadata"]["name"] == "model-a")
    assert service["spec"]["selector"].items() <= labels.items()
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "me/a:1" and container["args"] == ["serve", "--fast"]
