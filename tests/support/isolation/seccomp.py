"""A kernel that refuses: system calls of this process and its children fail as they do in a container.

Run as `python seccomp.py CALL=ERROR,… CODE`: forbids the calls, then executes the code.
"""

import ctypes
import errno
import platform
import struct
import sys

NUMBERS = {"x86_64": {"unshare": 272, "mount": 165}, "aarch64": {"unshare": 97, "mount": 40}}[
    platform.machine()
] | {"mount_setattr": 442, "landlock_create_ruleset": 444}
# linux/bpf_common.h, linux/seccomp.h, linux/prctl.h
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, FAIL = 0x7FFF0000, 0x00050000
SET_SECCOMP, FILTER, NO_NEW_PRIVS = 22, 2, 38


class Program(ctypes.Structure):
    """`struct sock_fprog`."""

    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_char_p)]


def forbid(calls: dict[str, int]) -> None:
    """From now on these calls fail with these error numbers."""
    steps = [(LOAD, 0, 0, 0)]  # the call's number
    for name, number in calls.items():
        steps += [(JUMP_IF_EQUAL, 0, 1, NUMBERS[name]), (RETURN, 0, 0, FAIL | number)]
    code = b"".join(struct.pack("HBBI", *step) for step in [*steps, (RETURN, 0, 0, ALLOW)])
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    program = Program(len(code) // 8, code)
    assert libc.prctl(SET_SECCOMP, FILTER, ctypes.byref(program), 0, 0) == 0


if __name__ == "__main__":
    pairs = (pair.split("=") for pair in sys.argv[1].split(","))
    forbid({name: getattr(errno, value) for name, value in pairs})
    exec(sys.argv[2])
