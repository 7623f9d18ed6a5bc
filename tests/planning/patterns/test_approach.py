"""Where the next plan near a bound is sought."""

from itertools import pairwise

from torchsplit_core.planning.patterns.leximin_levels import FIRST_STEP, MOST_FAILURES, NEAREST, Approach


def test_plans_are_sought_ever_nearer_to_the_bound():
    near, left = Approach(), 0.3
    steps = []
    while (step := near.next_step(left)) is not None:
        steps.append(step)
        near.take(reached=True)
        left = step
    assert steps[0] == FIRST_STEP and left <= NEAREST
    assert all(after < before for before, after in pairwise(steps))


def test_failures_step_back_but_never_behind_the_plan_and_end_the_search():
    near, left = Approach(), 0.02
    steps = []
    while (step := near.next_step(left)) is not None:
        steps.append(step)
        near.take(reached=False)
    assert len(steps) == MOST_FAILURES and steps[1] > steps[0]
    assert all(0 < step < left for step in steps)
