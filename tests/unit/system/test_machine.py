"""What a process may use."""

from __future__ import annotations

import os

import pytest

from watersmeet.system import process


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system has no affinity")
def test_cores_are_those_of_the_process():
    mine = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(mine)})
        assert process.cores() == 1
    finally:
        os.sched_setaffinity(0, mine)
    assert process.cores() == len(mine)


V1, V2 = "memory.limit_in_bytes", "memory.max"


@pytest.mark.parametrize(
    ("own", "limits", "least"),
    [
        ("0::/\n", {}, None),
        ("0::/\n", {V2: "1000000\n"}, 1_000_000),
        ("0::/pod/one\n", {f"pod/one/{V2}": "max\n", f"pod/{V2}": "2000000\n", V2: "3000000\n"}, 2_000_000),
        ("0::/pod/one\n", {f"pod/one/{V2}": "1500000\n", f"pod/{V2}": "2000000\n"}, 1_500_000),
        ("0::/pod\n", {f"pod/{V2}": "max\n", f"beside/{V2}": "1000\n"}, None),
        ("0::/pod\n", {f"pod/{V2}": f"{1 << 62}\n"}, None),
        ("0::/pod\n", {f"pod/{V2}": ""}, None),
        ("3:cpu:/pod\n4:memory:/pod\n0::/\n", {f"memory/pod/{V1}": "1000000\n"}, 1_000_000),
        # Seen by the container as the top, though it is told the machine's name of it.
        ("4:memory:/docker/a1b2\n", {f"memory/{V1}": "1000000\n"}, 1_000_000),
        ("4:memory:/pod\n", {f"memory/pod/{V1}": "9223372036854771712\n"}, None),
        ("3:cpu:/pod\n", {f"memory/pod/{V1}": "1000000\n", V2: "1000000\n"}, None),
    ],
)
def test_memory_is_that_of_the_container(tmp_path, monkeypatch, own, limits, least):
    monkeypatch.setattr(process, "_OWN", tmp_path / "own")
    monkeypatch.setattr(process, "_CGROUPS", tmp_path / "fs")
    assert process.container_bytes() is None  # not Linux
    without = process.memory_bytes()
    (tmp_path / "own").write_text(own)
    for name, text in limits.items():
        path = tmp_path / "fs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert process.container_bytes() == least
    assert process.memory_bytes() == (least or without) <= without
