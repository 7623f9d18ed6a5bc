"""The form of messages: what is wrong in the indicative, where, then the remedy; every one that the code can make."""

import pickle
import re

import pytest

from tools.list_messages import Made, messages
from torchsplit_core.values import InputFault, quoted, suggestion

A_RULE = re.compile(
    r"^(it|they|this|each|every|only|at (least|most)|use|give|write)\b|^(an?|the|one) .*\b(is|are) (an?|one)\b"
    r"|^(an?|the|one) .*\bhas (at|an?)\b|\b(must|should)\b|\. ?$| — ",
    re.IGNORECASE,
)
"""How a sentence begins that is true when the input is right, or tells what to do where it should tell what is wrong;
a full stop is set by the fault."""

A_REMEDY = re.compile(r"^$|^[A-Z{-].*[.?!}…]$", re.DOTALL)
"""Sentences, or an expression that gives them."""


def complaint(made: Made) -> str | None:
    """What is wrong with the form of a message, or None."""
    if made.arguments != 3:
        return f"{made.arguments} arguments, not where, problem, remedy"
    if not made.problem:
        return "no problem"
    if found := A_RULE.search(made.problem):
        return f"states a rule or a remedy as the problem: {found[0]!r}"
    return None if A_REMEDY.search(made.remedy) else "the remedy is no sentence"


def test_every_message_says_what_is_wrong_and_then_the_remedy():
    found = list(messages())
    assert len(found) > 500
    faults = [
        f"{made.place} {made.problem!r}, {made.remedy!r}: {told}"
        for made in found
        if (told := complaint(made))
    ]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(("problem", "remedy"), [
    ("it is a name of the catalogue", "Choose one."),
    ("a request has at least one model", "Add one."),
    ("the file must be text", "Check the path."),
    ("is -3.", "Give 0 or more."),
    ("is -3", "0 or more"),
    ("is -3", "give 0."),
])  # fmt: skip
def test_a_message_of_another_form_is_found(problem, remedy):
    assert complaint(Made("here.py:1", "demand_rps", problem, remedy, 3))


def test_a_fault_reads_as_sentences():
    fault = InputFault("r.json", "cannot be read: no such file", "Check the path.")
    assert str(fault) == "r.json: cannot be read: no such file. Check the path."
    assert str(InputFault("", "unknown command 'plna'", "Did you mean plan?")).startswith(
        "unknown command 'plna'. Did"
    )
    assert str(InputFault("m.py", "raised ValueError: No!", "")) == "m.py: raised ValueError: No!"
    assert str(fault.within("a.zip")) == "a.zip: r.json: cannot be read: no such file. Check the path."


def test_a_message_steers_no_terminal_whatever_it_quotes():
    fault = InputFault("a\x1b[2J.json", "holds \u202e\ud800\r\n  line 2", "Mend “it” – 1\u202f%.")
    assert str(fault) == "a\\x1b[2J.json: holds \\u202e\\ud800\\r\n  line 2. Mend “it” – 1\u202f%."


def test_a_fault_crosses_processes_whole():
    fault = InputFault("gpus[0].type", "unknown GPU type 'A100'", "Did you mean A100-80GB or A100-40GB?")
    again = pickle.loads(pickle.dumps(fault))
    assert (
        (again.parts, str(again)) == (fault.parts, str(fault)) == (InputFault(*fault.parts).parts, str(fault))
    )


@pytest.mark.parametrize(("name", "told"), [
    ("plna", "Did you mean plan?"),
    ("PLAN", "Did you mean plan?"),
    ("pro", "Did you mean profile?"),
    ("xyzzy", "Known commands: plan, profile, partition."),
])  # fmt: skip
def test_the_nearest_name_is_offered(name, told):
    assert suggestion(name, ["plan", "profile", "partition"], "commands") == told
    assert suggestion(name, [], "commands") == "There are no commands."


def test_a_long_value_is_cut():
    assert len(quoted("x" * 1000)) < 130 and quoted(10**5000) == "a number of thousands of digits"
