"""Writing a file whole: what is there already is replaced, but for what is no file."""

import os
import threading

from torchsplit_core.files.atomic_write import replace_file


def test_a_file_is_replaced_and_nothing_is_left_beside_it(tmp_path):
    path = tmp_path / "new" / "plan.json"
    replace_file(path, "first")
    replace_file(path, "second")
    assert path.read_text() == "second" and [*path.parent.iterdir()] == [path]


def test_a_pipe_is_written_to_and_stays_one(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    reader.start()
    replace_file(pipe, "plan")
    reader.join(60)
    assert read == ["plan"] and pipe.is_fifo()
