import pytest

from torchsplit_core.values import last_cause, system_reason


def test_the_last_cause_is_the_end_of_the_chain_however_it_was_linked():
    first = KeyError("weight")
    try:
        try:
            try:
                raise first
            except KeyError as error:
                raise ValueError("no such layer") from error
        except ValueError:
            raise RuntimeError("the export failed")  # noqa: B904 - linked by its context alone
    except RuntimeError as error:
        assert last_cause(error) is first


def test_a_cause_that_was_left_out_is_not_told_and_a_ring_of_causes_ends():
    try:
        try:
            raise KeyError("weight")
        except KeyError:
            raise ValueError("no such layer") from None
    except ValueError as error:
        assert last_cause(error) is error
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    assert last_cause(one) is other


@pytest.mark.parametrize(("error", "reason"), [
    (FileNotFoundError(2, "No such file or directory"), "no such file"),
    (PermissionError(13, "Permission denied"), "permission denied"),
    (OSError("closed"), "closed"),
])  # fmt: skip
def test_a_refusal_of_the_system_is_a_clause(error, reason):
    assert system_reason(error) == reason
