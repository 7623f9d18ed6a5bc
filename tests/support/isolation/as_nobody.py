"""Profile, export and run a small model at each level that holds files, as a user without any right.

Run as `python as_nobody.py FOLDER`. Started by root it becomes user 65534 first, in mounts of its own in
which that user reaches the interpreter: root's may lie below a folder of root's alone.
"""

import ctypes
import os
import stat
import sys
from pathlib import Path

from tests.support.paths import ROOT

NOBODY = 65534
NEW_MOUNTS, BIND, RECURSIVE, PRIVATE = 0x00020000, 4096, 16384, 1 << 18


def open_the_way(folders: list[Path]) -> None:
    """Where others may not pass, put a folder in its place that holds these alone."""
    libc = ctypes.CDLL(None, use_errno=True)

    def call(result: int, what: str) -> None:
        if result:
            raise OSError(ctypes.get_errno(), what)

    call(libc.unshare(NEW_MOUNTS), "unshare")
    call(libc.mount(None, b"/", None, RECURSIVE | PRIVATE, None), "private")
    for folder in folders:
        for above in reversed(folder.parents):
            if above.stat().st_mode & stat.S_IXOTH:
                continue
            inside = {place: os.open(place, os.O_PATH) for place in folders if above in place.parents}
            call(libc.mount(b"tmpfs", str(above).encode(), b"tmpfs", 0, b"mode=0755"), str(above))
            for place, descriptor in inside.items():
                place.mkdir(parents=True)
                call(
                    libc.mount(f"/proc/self/fd/{descriptor}".encode(), str(place).encode(), None, BIND, None),
                    str(place),
                )


def become_nobody(folder: Path) -> None:
    """Leave root for good; the folder becomes nobody's."""
    import torch

    root = ROOT
    libraries = Path(torch.__file__).resolve().parents[1]
    open_the_way([Path(sys.base_prefix).resolve(), Path(sys.prefix).resolve(), libraries, root])
    os.chown(folder, NOBODY, NOBODY)
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)


def main(folder: Path) -> None:
    """Everything that executes a model, at each level; a word for each on standard output."""
    if os.geteuid() == 0:
        become_nobody(folder)
    os.environ |= {"HOME": str(folder), "TMPDIR": str(folder), "TORCHSPLIT_HOME": str(folder / "store")}
    import torch

    from tests.support.serving.stages import run_stage
    from torchsplit_core import workflow
    from torchsplit_core.isolation import available_levels, isolation_level
    from torchsplit_core.profiling import MeasurementSettings
    from torchsplit_core.stages import export_stages

    print("uid", os.getuid(), flush=True)
    for name in available_levels():
        os.environ["TORCHSPLIT_ISOLATION"] = name
        assert isolation_level().name == name
        if name == "limits":
            continue
        graph, profile = workflow.profile(
            "sample:diamond", device="cpu", batch_sizes=(1,), gpu_types=("A100-80GB",),
            settings=MeasurementSettings(point_budget_s=0.02),
        )  # fmt: skip
        print(name, "measured", sum(row.basis == "measured" for row in profile.rows), flush=True)
        cuts = workflow.partition("sample:diamond", profile, graph=graph, stages=1)
        parts = folder / f"parts-{name}"
        export_stages("sample:diamond", cuts.candidates[0], parts, architecture_hash=graph.architecture_hash)
        result = run_stage(parts, "sample:diamond", [torch.ones(16).numpy().tobytes()] * 2)
        print(name, "ran", *result.shapes, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
