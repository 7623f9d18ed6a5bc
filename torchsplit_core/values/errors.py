"""The two kinds of fault a person can meet: theirs, said clearly, and ours."""

from __future__ import annotations


class InputFault(ValueError):
    """The input is at fault: one message that says where, which value, which rule, how to mend it.

    The command line turns it into exit code 2, a page into one red line.
    """

    def __init__(self, where: str, value: object, rule: str, remedy: str) -> None:
        try:
            shown = repr(value)
        except ValueError:  # an integer of more digits than Python writes
            shown = "a number of thousands of digits"
        self.where = where
        self.value = shown if len(shown) <= 120 else shown[:117] + "…"
        self.rule = rule
        self.remedy = remedy
        super().__init__(f"{where}: {self.value} — {rule}. {remedy}")

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (self.where, self.value, self.rule, self.remedy))


def _rebuild(where: str, shown: str, rule: str, remedy: str) -> InputFault:
    """Unpickle across a process boundary without quoting the value twice."""
    fault = InputFault(where, "", rule, remedy)
    fault.value = shown
    fault.args = (f"{where}: {shown} — {rule}. {remedy}",)
    return fault


class InternalFault(RuntimeError):
    """A promise of our own was broken (a plan that fails its check, say). Exit code 1."""
