"""Commands run in the test's own process."""

from collections.abc import Callable

import pytest

from torchsplit_core.cli.command import main


@pytest.fixture
def stderr_of(capsys) -> Callable[..., str]:
    """Run a command, which ends with this code: by itself that of bad input."""

    def run(*words, code=2):
        capsys.readouterr()
        assert main([str(word) for word in words]) == code
        return capsys.readouterr().err

    return run
