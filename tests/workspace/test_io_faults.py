"""Calls of the store to its disk fail in turn, or end with kill -9: nothing acknowledged is lost, nothing is left."""

import pytest

from tests.support.workspace.io_faults import OPERATIONS, run

pytestmark = [pytest.mark.slow, pytest.mark.repeated]


def test_every_operation_is_done_or_refused_whichever_call_fails(tmp_path):
    """One error at two of three calls that write, a kill at every fifth; all of them in `benchmarks.reliability`."""
    found = run(tmp_path, "few")
    assert found is not None, "there is no C compiler here: apt-get install gcc libc6-dev"
    assert [row["name"] for row in found] == [operation.name for operation in OPERATIONS]
    failures = [failure for row in found for failure in row["failures"]]
    assert not failures, "\n".join(failures[:5])
    for row in found:
        assert row["calls"] >= 5 and sum(row["tries"].values()) >= 1, row
    told = {kind: sum(row["tries"].get(kind, 0) for row in found) for kind in ("done", "refused", "killed")}
    # The library reaches Python's calls and SQLite's, and its faults arrive.
    assert told["refused"] > 200 and told["killed"] > 100 and told["done"] > 100, told
