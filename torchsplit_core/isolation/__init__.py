"""Run a function in a limited child process that is killed as a group.

For work that executes foreign code (a user's model) or may take any time or memory. The child
has a session and process group of its own, a private empty working directory, an environment
of a few names, and the kernel's limits on memory, processor time, file size and open files.
That bounds accidents; it is not a sandbox against malice: the child runs as the same user.

The answer crosses as JSON and is never unpickled, so a child cannot make its parent run code.
Protocol: the request on the child's standard input, `{"target", "arguments", "limits"}`; the
answers as JSON lines on a pipe, each one of `progress`, `part`, `result`, `fault`, `out_of_memory`, `error`.
"""

from torchsplit_core.isolation.memory import default_memory_bytes, is_out_of_memory
from torchsplit_core.isolation.run import ChildFault, Limits, run_limited

__all__ = ["ChildFault", "Limits", "default_memory_bytes", "is_out_of_memory", "run_limited"]
