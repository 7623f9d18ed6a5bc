"""The door itself: formats, plans that are none, the README, and files on the disk."""

import errno
from dataclasses import replace

import pytest

from tests.support.deployment.asked import asked
from tests.support.deployment.helpers import MIXED, plan_of, planned_gpu, tenant
from torchsplit_core.deployment import (
    FORMATS,
    REMOVES,
    WORKLOAD_FORMATS,
    DeploymentFile,
    deploy,
    write_deployment,
)
from torchsplit_core.values import InputFault, InternalFault, PlanOutcome


def readme(plan: PlanOutcome, *formats: str) -> str:
    return asked(plan).texts(*(formats or FORMATS))["README.md"]


def test_all_formats_together_and_the_same_twice(mixed_plan):
    deployment = asked(mixed_plan)
    files = tuple(deployment.files(*FORMATS).values())
    names = [file.name for file in files]
    assert names[:4] == ["README.md", "mig-parted.yaml", "apply-mig-node0.sh", "apply-mig-node1.sh"]
    assert len(set(names)) == len(names)
    assert {name.partition("/")[0] for name in names[4:]} == {*WORKLOAD_FORMATS, "image"}
    assert tuple(deployment.files(*reversed(FORMATS), *FORMATS).values()) == files
    assert all(file.text.endswith("\n") for file in files)
    quiet = (
        "mig-config.yaml", ".json", ".env", ".conf", ".target", ".txt", ".dockerignore", "/README",
        "ray_application.py",
    )  # fmt: skip
    assert all("ested on hardware" in file.text for file in files if not file.name.endswith(quiet))


@pytest.mark.parametrize("name", WORKLOAD_FORMATS)
def test_every_workload_has_the_image_and_only_its_own_files(name, mixed_plan):
    names = set(asked(mixed_plan).files(name))
    assert {name.partition("/")[0] for name in names} == {"README.md", "image", name}
    assert {
        "image/Dockerfile", "image/.dockerignore", "image/entrypoint.sh", "image/requirements.txt",
    } <= names  # fmt: skip


@pytest.mark.parametrize("formats", [["helm"], ["mig-parted", "Kubernetes"], []])
def test_an_unknown_format_names_the_known_ones(mixed_plan, formats):
    with pytest.raises(InputFault, match="Did you mean kubernetes" if formats[1:] else ", ".join(FORMATS)):
        deploy(mixed_plan, formats)


@pytest.mark.parametrize("status", ["infeasible", "timeout"])
def test_what_is_no_plan_is_refused(mixed_plan, status):
    with pytest.raises(InputFault, match=status):
        deploy(replace(mixed_plan, status=status), ["mig-parted"])


def test_a_plan_without_slices_or_with_broken_ids_is_refused():
    with pytest.raises(InputFault, match="no GPU of 1 has a slice"):
        deploy(plan_of(planned_gpu("gpu0", "A100-80GB", ())), FORMATS)
    twice = planned_gpu("gpu0", "A100-80GB", MIXED)
    with pytest.raises(InputFault, match="is given twice"):
        deploy(plan_of(twice, twice), FORMATS)
    for broken in ("/gpu0", "node0/", " /gpu0"):
        with pytest.raises(InputFault, match="HOST/GPU"):
            deploy(plan_of(planned_gpu(broken, "A100-80GB", MIXED)), FORMATS)
    with pytest.raises(InputFault, match="A100-80GB"):
        deploy(plan_of(planned_gpu("gpu0", "A100", MIXED)), FORMATS)


@pytest.mark.slow
def test_the_readme_says_what_is_disrupted_and_lists_every_file_and_slice(mixed_plan):
    text = readme(mixed_plan)
    assert "do not survive a reboot" in text
    assert REMOVES in text and "own GPU pods" not in readme(mixed_plan, "mig-parted")
    assert "restarts its own GPU pods" in readme(mixed_plan, "kubernetes")
    assert "`node0/gpu1`" in text
    for name in asked(mixed_plan).files("mig-parted", "nvidia-smi", "kubernetes"):
        assert name == "README.md" or f"| `{name}` |" in readme(
            mixed_plan, "mig-parted", "nvidia-smi", "kubernetes"
        )
    assert "| node0 | 2 | A100-80GB | 3g.40gb | 4 | clip whole, batch 8, 1 process |" in text
    assert "| node0 | 0 | A100-80GB | 1g.10gb | 1 | free |" in text
    assert "proven optimal" in text
    assert "proven optimal" not in readme(replace(mixed_plan, status="feasible"))


def test_the_readme_tells_only_of_the_formats_asked_for(mixed_plan):
    text = readme(mixed_plan, "mig-parted")
    assert "nvidia-mig-parted apply" in text
    assert "kubectl" not in text
    assert "--apply" not in text


def test_hostile_names_do_not_leave_their_cell():
    plan = plan_of(planned_gpu("`a|b`/gpu0", "A100-80GB", [("7g.80gb", 0, "<script>|x|\n# [a](b)")]))
    text = deploy(plan, ["mig-parted", "nvidia-smi"])[0].text
    rows = [line for line in text.splitlines() if "script&gt;" in line]
    assert len(rows) == 2
    assert all("<script>" not in row and "\\|x\\|" in row and "\\[a\\]" in row for row in rows)


def test_files_are_written_whole_with_their_mode_and_replace_older_ones(tmp_path, mixed_plan):
    target = tmp_path / "new" / "out"
    write_deployment([DeploymentFile("mig-parted.yaml", "old")], target)
    files = tuple(asked(mixed_plan).files(*FORMATS).values())
    paths = write_deployment(files, target)
    for file, path in zip(files, paths, strict=True):
        assert path.read_text(encoding="utf-8") == file.text
        assert bool(path.stat().st_mode & 0o111) == file.executable
    assert sorted(p for p in target.rglob("*") if p.is_file()) == sorted(paths)


def test_a_write_that_fails_leaves_the_old_file_and_no_rest(tmp_path, monkeypatch):
    write_deployment([DeploymentFile("a.txt", "old")], tmp_path)

    def full(_descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(InputFault, match="no space left"):
        write_deployment([DeploymentFile("a.txt", "new")], tmp_path)
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("a.txt", "old")]


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x", ""])
def test_a_name_cannot_lead_outside(tmp_path, name):
    with pytest.raises(InternalFault):
        write_deployment([DeploymentFile(name, "")], tmp_path)


def test_every_format_says_basis_and_interval():
    known = tenant("bert", basis="estimated", low_rps=95.0, high_rps=140.0)
    half = tenant("ocr", share=0.5, throughput_rps=30.0, basis="measured", low_rps=58.0, high_rps=61.0)
    plan = plan_of(planned_gpu("gpu0", "A100-80GB", [("3g.40gb", 0, known), ("3g.40gb", 4, half)]))
    models = (
        replace(plan.models[0], low_rps=95.0, high_rps=140.0, basis="estimated"),
        replace(plan.models[1], throughput_rps=30.0, low_rps=29.0, high_rps=30.5, basis="measured"),
    )
    files = asked(replace(plan, models=models)).texts(*FORMATS)
    bert = "120 requests/s (90 % interval 95 to 140, estimated)"
    ocr = "30 requests/s (90 % interval 29 to 30.5, measured)"
    for name, text in files.items():
        if name.startswith(("README", "mig-parted", "apply-mig", "kubernetes/deployments")):
            flat = " ".join(text.split())
            assert bert in flat and ocr in flat, name
    assert f"| bert | whole | {bert} |" in files["README.md"]
    assert f'# "bert": throughput {bert}' in files["mig-parted.yaml"]


def test_a_plan_of_before_intervals_says_that_they_are_unknown(mixed_plan):
    assert "120 requests/s (interval n/a, basis n/a)" in readme(mixed_plan)
