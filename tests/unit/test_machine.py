"""What a process may use."""

from __future__ import annotations

import os

import pytest

from watersmeet import machine


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system has no affinity")
def test_cores_are_those_of_the_process():
    mine = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(mine)})
        assert machine.cores() == 1
    finally:
        os.sched_setaffinity(0, mine)
    assert machine.cores() == len(mine)


@pytest.mark.parametrize(("limit", "share"), [("1000000\n", 1_000_000), ("max\n", None), ("", None)])
def test_memory_is_that_of_the_container(tmp_path, monkeypatch, limit, share):
    path = tmp_path / "memory.max"
    monkeypatch.setattr(machine, "_CGROUPS", (tmp_path / "none", path))
    without = machine.memory_bytes()
    path.write_text(limit)
    assert machine.memory_bytes() == (share or without) <= without
