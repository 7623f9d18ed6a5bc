"""Run a function in a confined child process that is ended together with every process it started.

For work that executes foreign code (a user's model) or may take any time or memory. The child has a private empty
working directory, a minimal environment, and limits on time, memory, files, processes. What else confines it
is the best that the machine offers, see `sandbox.level`: namespaces, Landlock, or the limits alone;
docs/reference/security.md says what each guarantees.

    run             call a function, read its answers   sandbox/level        the levels that this machine offers
    launch          start the child                     sandbox/access       the paths that a child may reach
    child           the child's side of the protocol    sandbox/supervisor   the process above: limits, ends the child
    limits          what a child may use                sandbox/namespaces, landlock, seccomp, kernel   confinement
    usage_monitor   what all its processes use          sandbox/current_sandbox   the level inside a child
    answer_schema   the schema of an answer             sandbox/temp_dirs    private temporary folders
    faults          why a child ended                   sandbox/probe        tries the namespaces
    cost            how long setting up takes           trust_policy         whether uploads may be executed
    fork_worker     a worker for our own code, not confined: it ends with its parent

The answer is sent as JSON and never unpickled, so a child cannot make its parent run code. Foreign code shares the
child with the protocol, so it can send any answer: a result is only as trustworthy as the code that produced it.
Protocol: the request on the child's standard input (see `launch`); the answers as JSON lines on a pipe, each one of
`progress`, `part`, `result`, `fault`, `out_of_memory`, `error`, `unconfined`; an exceeded limit on another pipe
that the foreign code does not have.

Names load their module on first use: a child needs few of them, and one starts for every measured point.
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
