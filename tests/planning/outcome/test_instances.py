"""The join of a plan with its request: every tenant with the stage that it runs and the point that it runs at."""

from dataclasses import replace

import pytest

from tests.support.planning.requests import published
from torchsplit_core.planning import plan
from torchsplit_core.planning.outcome.instances import planned_instances, point_key, point_table
from torchsplit_core.planning.verification.claims import find_point
from torchsplit_core.values import InputFault, PlanOutcome, Tenant, point_type, tenants_on

REQUEST = published(2, sharing="fractional")


@pytest.fixture(scope="module")
def outcome():
    return plan(REQUEST)


def test_every_tenant_has_the_point_that_the_checker_finds(outcome):
    table = point_table(REQUEST)
    tenants = list(tenants_on(outcome.gpus))
    assert len(tenants) == sum(len(item.tenants) for gpu in outcome.gpus for item in gpu.slices) > 2
    for gpu, item, tenant in tenants:
        model = next(model for model in REQUEST.models if model.name == tenant.model)
        point = find_point(model, point_type(gpu.type), item.profile, tenant)
        assert point is not None and table[point_key(gpu.type, item.profile, tenant)] == point
    assert len(table) == sum(len(model.variants[0].stages[0].points) for model in REQUEST.models)


def test_every_instance_has_what_its_tenant_names(outcome):
    instances = planned_instances(outcome.gpus, REQUEST)
    assert [(instance.gpu, instance.slice, instance.tenant) for instance in instances] == list(
        tenants_on(outcome.gpus)
    )
    for instance in instances:
        assert instance.model in REQUEST.models
        assert instance.variant in instance.model.variants
        assert instance.stage in instance.variant.stages
        names = (instance.model.name, instance.variant.name, instance.stage.name)
        assert names == (instance.tenant.model, instance.tenant.variant, instance.tenant.stage)


def _with_first_tenant(outcome: PlanOutcome, **changes: str) -> tuple[PlanOutcome, Tenant]:
    """The plan with its first tenant changed."""
    first = next(tenant for *_, tenant in tenants_on(outcome.gpus))
    changed = replace(first, **changes)
    gpus = tuple(
        replace(
            gpu,
            slices=tuple(
                replace(
                    item, tenants=tuple(changed if tenant is first else tenant for tenant in item.tenants)
                )
                for item in gpu.slices
            ),
        )
        for gpu in outcome.gpus
    )
    return replace(outcome, gpus=gpus), changed


@pytest.mark.parametrize("field", ["model", "variant", "stage"])
def test_a_tenant_of_another_request_is_refused_by_name(outcome, field):
    changed, tenant = _with_first_tenant(outcome, **{field: "strange"})
    with pytest.raises(InputFault) as refused:
        planned_instances(changed.gpus, REQUEST)
    assert refused.value.problem == (
        f"runs {tenant.model} / {tenant.variant} / {tenant.stage}, which the request does not have"
    )
