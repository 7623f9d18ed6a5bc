"""The two kinds of fault: of the input, which the user can correct, and of the program."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from difflib import get_close_matches

LONGEST_QUOTE = 120
"""Characters of a value that a message shows."""
MOST_NAMED = 12
"""Names that a message lists where none is near."""


class InputFault(ValueError):
    """The input is at fault: one message that says where, what is wrong in the indicative, and the remedy.

    `problem` is a clause that is true of this very input and names the value: "unknown GPU type 'A100'",
    "cannot be read: no such file", "is -3, below the least value 0". It never states the rule as if it held.
    `remedy` says what to do, in whole sentences. `where` is the file, field or option; "" if the problem names it.

    The command line turns it into exit code 2, a page into one red line.
    """

    def __init__(self, where: str, problem: str, remedy: str) -> None:
        self.where = where
        self.problem = problem
        self.remedy = remedy
        super().__init__(_message(where, problem, self.remedy))

    @property
    def parts(self) -> tuple[str, str, str]:
        """(where, problem, remedy), as they cross from process to process: `InputFault(*parts)` is the same fault."""
        return self.where, self.problem, self.remedy

    def within(self, origin: str) -> InputFault:
        """The same fault, found in `origin` (a file, a model, an option)."""
        return InputFault(f"{origin}: {self.where}" if self.where else origin, self.problem, self.remedy)

    def __reduce__(self) -> tuple[object, ...]:
        return (InputFault, self.parts)


def _message(where: str, problem: str, remedy: str) -> str:
    # A problem may end in somebody else's sentence.
    stop = "" if problem.endswith((".", "!", "?", "…")) else "."
    text = f"{where}: {problem}{stop} {remedy}".removeprefix(": ").rstrip()
    return text if text.isprintable() else "".join(map(_harmless, text))


def _harmless(letter: str) -> str:
    """The letter, unless it steers a terminal or a log (control, direction of writing, half a surrogate pair)."""
    steers = letter != "\n" and unicodedata.category(letter) in ("Cc", "Cf", "Cs")
    return repr(letter)[1:-1] if steers else letter


def quoted(value: object) -> str:
    """The value as a message shows it: its repr, cut to LONGEST_QUOTE characters."""
    try:
        shown = repr(value)
    except ValueError:  # an integer of more digits than Python writes
        return "a number of thousands of digits"
    return shown if len(shown) <= LONGEST_QUOTE else shown[: LONGEST_QUOTE - 3] + "…"


def json_words(value: object) -> str:
    """The value as JSON calls it: "null", "true", "a list", "an object", a number or a text in quotes."""
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "a list"
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return quoted(value)


def system_reason(error: OSError) -> str:
    """Why the system refused a file or a call, as a clause: "no such file", "permission denied"."""
    if isinstance(error, FileNotFoundError):
        return "no such file"
    reason = error.strerror or str(error) or "no reason given"
    return reason[:1].lower() + reason[1:]


def suggestion(name: object, known: Iterable[str], kind: str = "names") -> str:
    """The remedy for an unknown name: the nearest known ones, or where none is near the list of all.

    `kind` is the plural that introduces the list ("GPU types"). A name that a known one begins with is near it,
    and case does not count.
    """
    names = tuple(dict.fromkeys(known))
    text = str(name).strip().lower()
    by_lower = {candidate.lower(): candidate for candidate in reversed(names)}
    prefixed = [candidate for lower, candidate in by_lower.items() if text and lower.startswith(text)][::-1]
    near = prefixed[:3] or [
        by_lower[candidate] for candidate in get_close_matches(text, by_lower, n=3, cutoff=0.6)
    ]
    if near:
        return f"Did you mean {_either(near)}?"
    if not names:
        return f"There are no {kind}."
    listed = ", ".join(names[:MOST_NAMED])
    return (
        f"Known {kind}: {listed}{f' and {len(names) - MOST_NAMED} more' if len(names) > MOST_NAMED else ''}."
    )


def _either(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def last_cause(error: BaseException) -> BaseException:
    """The end of the chain of causes of an exception: what went wrong, not what failed because of it."""
    seen = {id(error)}
    while (
        cause := error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    ) is not None:
        if id(cause) in seen:
            break
        seen.add(id(cause))
        error = cause
    return error


class InternalFault(RuntimeError):
    """A promise of our own was broken (a plan that fails its check, say). Exit code 1."""
