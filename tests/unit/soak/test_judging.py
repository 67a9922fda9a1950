"""The soak's judgement: growth is seen, swings are not taken for it."""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
from dataclasses import replace

import pytest
from tests.soak.judging import trends
from tests.soak.measuring import Sample, mapped_bytes, read_samples, write_samples
from tests.soak.picture import draw

FLAT = Sample(
    seconds=0.0,
    life=1,
    main_bytes=150 << 20,
    main_mapped_bytes=40 << 20,
    workers_bytes=400 << 20,
    workers_mapped_bytes=30 << 20,
    workers=8,
    java_bytes=500 << 20,
    descriptors=16,
    threads=15,
    files=600,
    directory_bytes=12 << 20,
    read_files_bytes=1 << 20,
    objects=300_000,
    arrow_bytes=4 << 20,
    malloc_bytes=100 << 20,
    epochs=60,
    main_processor_ms=30.0,
    workers_processor_ms=40.0,
    java_processor_ms=20.0,
    epoch_ms=90.0,
    flush_ms=100,
    select_ms=30,
)


def samples(**changing):
    """One each ten seconds for half an hour; changing: by name, a function of the number of the sample."""
    made = [replace(FLAT, seconds=10.0 * i) for i in range(180)]
    return [replace(s, **{n: f(i) for n, f in changing.items()}) for i, s in enumerate(made)]


def growing(found):
    return [t.name for t in found if t.grows]


def test_what_is_flat_does_not_grow():
    assert growing(trends(samples(), warm_up_s=600)) == []


def test_what_grows_before_the_warm_up_is_over_does_not_count():
    rising = samples(main_bytes=lambda i: (100 << 20) + min(i, 60) * (1 << 20))
    assert growing(trends(rising, warm_up_s=600)) == []
    assert growing(trends(rising, warm_up_s=0)) == ["main_bytes"]


@pytest.mark.parametrize("name", ["main_mapped_bytes", "files", "epoch_ms"])
def test_steady_growth_is_seen(name):
    start = getattr(FLAT, name)
    found = trends(samples(**{name: lambda i: start * (1 + i / 180)}), warm_up_s=600)
    assert growing(found) == [name]
    assert all(25 < t.percent < 35 for t in found if t.grows)


def test_swings_are_not_taken_for_growth():
    """Files rise until the clean-up, whose rhythm fits no third."""
    assert growing(trends(samples(files=lambda i: 300 + 97 * (i % 11)), warm_up_s=600)) == []


def test_too_little_to_judge():
    with pytest.raises(ValueError, match="too few"):
        trends(samples()[:70], warm_up_s=640)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc alone says what is mapped")
def test_mapped_files_of_the_database_are_counted_also_when_they_are_deleted(tmp_path):
    size_bytes = 64 * mmap.PAGESIZE
    for directory in ("db", "db2"):
        (tmp_path / directory).mkdir()
        (tmp_path / directory / "segment").write_bytes(bytes(size_bytes))
    with contextlib.ExitStack() as opened:
        for directory in ("db", "db2"):
            file = opened.enter_context((tmp_path / directory / "segment").open("rb"))
            mapped = opened.enter_context(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
            assert not any(mapped[:])
        assert mapped_bytes([os.getpid()], tmp_path / "db") == size_bytes
        (tmp_path / "db" / "segment").unlink()
        assert mapped_bytes([os.getpid()], tmp_path / "db") == size_bytes
    assert mapped_bytes([os.getpid()], tmp_path / "db") == 0


def test_samples_survive_their_file_and_are_drawn(tmp_path):
    write_samples(tmp_path / "soak.csv", samples())
    assert read_samples(tmp_path / "soak.csv") == samples()
    pytest.importorskip("matplotlib")
    draw(samples(), tmp_path / "soak.svg", "a soak")
    assert "<svg" in (tmp_path / "soak.svg").read_text(encoding="utf-8")
