"""Slices: each kind is read as it was written, and a new kind is a class."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import pytest
from benchmarks.nexmarkconnector import NexmarkSpec
from benchmarks.nexmarkevents import Settings

from watersmeet.connectors.base.deadletters import DeadLetterWriter
from watersmeet.connectors.registry import read_slice
from watersmeet.errors import Error
from watersmeet.values.serialization import from_json, to_json
from watersmeet.values.slices import (
    KINDS,
    AsideSlice,
    ChangeSlice,
    EventSlice,
    FileSlice,
    FileVersion,
    JumpSlice,
    LakeFile,
    LakeSlice,
    LogSlice,
    MessageSlice,
    RenamingSlice,
    Slice,
    SourceSlice,
    VersionSlice,
)

FILE = FileSlice(
    relation="s1",
    rows=3,
    size_bytes=30,
    seq=4,
    ordinal=7,
    path="a\udce9.csv",
    version=FileVersion(90, 5, 17),
    begin=30,
    end=60,
    line=4,
    lines=3,
    head=(60, "a" * 16),
    tail=(60, "b" * 16),
    header=("x", "y"),
    lacks=("z",),
    unterminated=True,
)
DATA = LakeFile("p=a/x.parquet", 90, (("p", "a"), ("q", None)))
SLICES = [
    ChangeSlice(relation="t1", rows=5, size_bytes=100, seq=1, file="t3-1-ab.segment", offset_bytes=64, first=2),
    FILE,
    replace(FILE, total=3, header=None, lacks=(), unterminated=False, long=True),
    AsideSlice(relation="s1", ordinal=1, path="b", version=FileVersion(9, 5, 0), reason="vanished", lost_bytes=9),
    RenamingSlice(relation="s1", ordinal=2, names=(("a", "b"), ("b", "a"))),
    EventSlice(relation="s2", rows=9, ordinal=3, begin=1, end=10, started_us=5, segments=((0, 5), (4, 90))),
    EventSlice(relation="s3", rows=9, begin=1, end=10, started_us=5, segments=()),
    MessageSlice(relation="s4", rows=9, topic="t", topic_id="a-b", partition=3, begin=1, end=10),
    JumpSlice(relation="s4", topic="t", topic_id="a-b", reason="expired", offsets=((0, 1, 5), (2, 3, 4))),
    LogSlice(relation="s4", rows=9, stream="t", stream_id="2026", shard=3, after="", upto="12"),
    LakeSlice(relation="s5", rows=9, version=7, print="ab", role="added", file=DATA, begin=1, end=2, total=3, line=10),
    VersionSlice(relation="s5", version=7, print="ab", left=("y.parquet",), came=(DATA,), skipped=True),
]


def test_all_kinds_are_here():
    assert {s.kind for s in SLICES} == set(KINDS)


@pytest.mark.parametrize("piece", SLICES, ids=lambda s: s.kind)
def test_a_slice_is_read_as_it_was_written(piece):
    value = json.loads(json.dumps(to_json(piece)))
    assert value["kind"] == piece.kind
    again = from_json(Slice, value)
    assert again == piece
    assert type(again) is type(piece)


def test_what_the_database_stores_is_no_slice_of_a_source():
    assert from_json(SourceSlice, to_json(FILE)) == FILE
    with pytest.raises(ValueError, match="a change is no SourceSlice"):
        from_json(SourceSlice, to_json(SLICES[0]))


@pytest.mark.parametrize("change", [{"size": 1}, {"kind": "files"}, {"begin": "x"}, {"version": [1, 2]}])
def test_what_is_no_slice_is_refused(change):
    with pytest.raises(ValueError, match="not the JSON form of Slice"):
        from_json(Slice, {**to_json(FILE), **change})


def test_a_new_kind_is_a_class():
    try:

        @dataclass(frozen=True, kw_only=True)
        class TapeSlice(SourceSlice):
            kind = "tape"
            offset: int

        piece = TapeSlice(relation="s4", offset=3)
        assert from_json(tuple[Slice, ...], to_json((piece, FILE))) == (piece, FILE)
        with pytest.raises(Error, match="there is no reader for slices of kind tape of a nexmark source"):
            read_slice(piece, NexmarkSpec(None, Settings()), (), DeadLetterWriter(None))
        with pytest.raises(AssertionError, match="two kinds of slices are called tape"):

            @dataclass(frozen=True, kw_only=True)
            class Another(SourceSlice):
                kind = "tape"

    finally:
        KINDS.pop("tape", None)
