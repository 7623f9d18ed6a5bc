"""Run a function in a confined child process that ends with all it started.

For work that executes foreign code (a user's model) or may take any time or memory. The child has a private empty
working directory, an environment of a few names, and limits on time, memory, files, processes. What else holds it
is the best that the machine offers, see `level`: namespaces, Landlock, or the limits alone;
docs/reference/security.md has what each promises.

    run         call a function and listen      level       which isolation there is, in words
    launch      start the child                 access      which paths it may reach
    child       its start: confined, called     supervisor  above it: counts, and ends all of it
    namespaces, landlock, calls, limits         what holds (`kernel` has what it takes)
    watch       what all of it uses             inside      what a confined process knows of it
    forms       the form of an answer
    rooms       private temporary folders       faults      what is told of its end
    probe       namespaces tried                cost        how long setting up takes
    forked      a worker of our own code, not confined: it ends with its parent

The answer crosses as JSON and is never unpickled, so a child cannot make its parent run code. Foreign code shares the
child with the protocol, so it can answer what it likes: a result is as true as the code that gave it.
Protocol: the request on the child's standard input (see `launch`); the answers as JSON lines on a pipe, each one of
`progress`, `part`, `result`, `fault`, `out_of_memory`, `error`, `unconfined`; what limit was passed on another pipe
that the foreign code does not have.

The names load their module when first used: the child needs few of them, and starts with every point measured.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchsplit_core.on_demand import on_demand

if TYPE_CHECKING:
    from torchsplit_core.isolation.answer_schema import AnswerSchema, schema_reader
    from torchsplit_core.isolation.faults import ChildFault, printable
    from torchsplit_core.isolation.limits import Limits, default_memory_bytes, is_out_of_memory
    from torchsplit_core.isolation.run import run_limited
    from torchsplit_core.isolation.sandbox.current_sandbox import remedy_for
    from torchsplit_core.isolation.sandbox.level import IsolationLevel, available_levels, isolation_level
    from torchsplit_core.isolation.sandbox.temp_dirs import private_temp_dir, remove_stale_temp_dirs
    from torchsplit_core.isolation.trust_policy import execution_refused, require_execution_allowed

__all__ = [
    "AnswerSchema",
    "ChildFault",
    "IsolationLevel",
    "Limits",
    "available_levels",
    "default_memory_bytes",
    "execution_refused",
    "is_out_of_memory",
    "isolation_level",
    "printable",
    "private_temp_dir",
    "remedy_for",
    "remove_stale_temp_dirs",
    "require_execution_allowed",
    "run_limited",
    "schema_reader",
]

__getattr__ = on_demand(
    __name__,
    {
        "sandbox.current_sandbox": "remedy_for",
        "sandbox.level": "IsolationLevel available_levels isolation_level",
        "sandbox.temp_dirs": "private_temp_dir remove_stale_temp_dirs",
        "trust_policy": "execution_refused require_execution_allowed",
        "faults": "ChildFault printable",
        "answer_schema": "AnswerSchema schema_reader",
        "limits": "Limits default_memory_bytes is_out_of_memory",
        "run": "run_limited",
    },
)
