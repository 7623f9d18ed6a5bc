"""What `torchsplit profile` tells of points that were kept."""

from dataclasses import replace

import pytest

from tests.support.app.graphs import encoder, timed
from torchsplit_core import workflow

OLD = "points kept for this device and software are old (measured under the earlier architecture hash)"


@pytest.mark.parametrize("old", [0, 3])
def test_old_points_are_told_where_there_are_any(old, tmp_path, monkeypatch, stderr_of):
    graph = encoder(2)
    found = timed(graph)
    told = replace(found, environment={**found.environment, **({"old_points": old} if old else {})})

    def profile(*given, **named):
        return graph, told

    monkeypatch.setattr(workflow, "profile", profile)
    monkeypatch.setenv("TORCHSPLIT_HOME", str(tmp_path))
    said = stderr_of("profile", "sample:diamond", "-o", tmp_path / "p.json", code=0)
    assert (f"{old} {OLD}: they stay stored and are never taken over." in said) == bool(old)
    assert (OLD in said) == bool(old)
