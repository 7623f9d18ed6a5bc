"""An argument parser that raises InputFault, like all other checks of the input."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from typing import Any

from torchsplit_core.values import InputFault
from torchsplit_core.values.errors import quoted, suggestion

ALIASES = {"k8s": ("kubernetes", "jobset")}
"""Common wrong names, and the choices that they mean but that `suggestion` cannot guess from the spelling."""
_KINDS = {int: "a whole number", float: "a number"}
_MISSING = "the following arguments are required: "


def check_choice(where: str, value: object, choices: Iterable[object], kind: str = "choice") -> None:
    """Raises InputFault, which suggests the nearest choices, if the value is not one of them."""
    known = list(choices)
    if value not in known:
        names = [str(choice) for choice in known]
        meant = next((name for name in ALIASES.get(str(value), ()) if name in names), value)
        raise InputFault(where, f"unknown {kind} {quoted(value)}", suggestion(meant, names, f"{kind}s"))


class Parser(argparse.ArgumentParser):
    """Raises InputFault where argparse would print its usage and exit; so do the parsers of its commands.

    `declare` adds the arguments when parsing starts, so that the parsers of other commands need not load any.
    """

    def __init__(self, *, declare: Callable[[], None] | None = None, **options: Any) -> None:
        super().__init__(exit_on_error=False, **options)
        self._declare = declare

    @property
    def command(self) -> str:
        """The command that it parses; "" for the program itself."""
        return self.prog.partition(" ")[2]

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if self._declare is not None:
            self._declare()
        try:
            parsed, unknown = super().parse_known_args(args, namespace)
        except argparse.ArgumentError as error:
            raise InputFault(
                error.argument_name or self.command, _describe_argument_error(error.message), self._help
            ) from None
        if unknown:
            raise self._unknown(unknown[0])
        return parsed, unknown

    def error(self, message: str) -> Any:
        missing = message.removeprefix(_MISSING)
        if missing == message:
            raise InputFault(self.command, message, self._help)
        verb = "are" if ", " in missing else "is"
        raise InputFault(self.command, f"{missing} {verb} missing", self._help)

    @property
    def _help(self) -> str:
        return f"See {self.prog} --help."

    def _unknown(self, text: str) -> InputFault:
        if not text.startswith("-"):
            return InputFault(self.command, f"unexpected argument {quoted(text)}", self._help)
        name = text.partition("=")[0]
        options = [option for option in self._option_string_actions if option.startswith("--")]
        near = suggestion(name, options, "options")
        return InputFault(self.command, f"unknown option {quoted(name)}", near)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None:
            return
        if isinstance(action, argparse._SubParsersAction):
            check_choice("", value, action.choices, "command")
        else:
            check_choice(_argument_name(action), value, action.choices)

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        try:
            return super()._get_value(action, arg_string)
        except argparse.ArgumentError:
            kind = _KINDS[action.type]  # type: ignore[index]
            raise InputFault(
                _argument_name(action), f"is {quoted(arg_string)}, not {kind}", f"Give {kind}."
            ) from None


def _describe_argument_error(message: str) -> str:
    """argparse's message on an option with too few or too many values, as the problem clause of an InputFault."""
    if message.startswith("expected "):
        return "is given without a value"
    given = message.removeprefix("ignored explicit argument ")
    return message if given == message else f"is given the value {given}, and takes none"


def _argument_name(action: argparse.Action) -> str:
    """The name of an argument for users: the longest spelling of an option, the metavar of a positional."""
    if action.option_strings:
        return max(action.option_strings, key=len)
    return action.metavar if isinstance(action.metavar, str) else action.dest
