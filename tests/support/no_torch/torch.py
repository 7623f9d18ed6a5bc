"""Found instead of torch by what a test starts that is not marked: see tests/conftest.py."""

raise AssertionError("a test without the mark `torch` starts a process that imports torch: mark it")
