"""Hashes: equal values, slices, pinned values, bijectivity, spread."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests import reference
from tests.thorough import examples
from tests.unit.kernel.test_delta import NAN, VALUES

from watersmeet.errors import Error
from watersmeet.kernel.arrays.hashing import (
    EMPTY_HASH,
    NULL_HASH,
    bucket_of,
    bucket_start,
    hash_columns,
    is_bijective,
    positions_by_hash,
    row_hash,
)
from watersmeet.kernel.runs.delta import Delta
from watersmeet.kernel.runs.run import arrange
from watersmeet.values.types import VARCHAR


@pytest.mark.parametrize("kind", list(VALUES), ids=lambda k: k.sql)
def test_equal_values_and_only_they_have_equal_hashes(kind):
    values = VALUES[kind]
    hashes = hash_columns([pa.array(values, kind.arrow)], as_key=False)
    for a, x in zip(values, hashes, strict=True):
        for b, y in zip(values, hashes, strict=True):
            assert (x == y) == (reference.norm(a) == reference.norm(b)), (a, b)
    assert hashes[values.index(None)] == NULL_HASH


@pytest.mark.parametrize("kind", list(VALUES), ids=lambda k: k.sql)
def test_slices_and_chunks_do_not_matter(kind):
    values = VALUES[kind]
    whole = hash_columns([pa.array(values, kind.arrow)])
    padded = pa.array([values[-1], *values, values[0]], kind.arrow).slice(1, len(values))
    assert (hash_columns([padded]) == whole).all()
    chunked = pa.chunked_array([padded.slice(0, 1), padded.slice(1)])
    assert (hash_columns([chunked]) == whole).all()
    assert hash_columns([padded.slice(0, 0)]).tolist() == []
    twice = hash_columns([padded, chunked])
    assert (twice == hash_columns([pa.array(values, kind.arrow)] * 2)).all()


def test_integers_of_all_widths_and_times_hash_alike():
    values = [0, 1, -1, 100]
    expected = hash_columns([pa.array(values, pa.int64())])
    for kind in (
        pa.int8(),
        pa.int16(),
        pa.int32(),
        pa.timestamp("us"),
        pa.timestamp("us", tz="UTC"),
        pa.duration("us"),
    ):
        if is_bijective(kind):
            assert (hash_columns([pa.array(values, pa.int64()).cast(kind)]) == expected).all()
    assert (hash_columns([pa.array([1.5, NAN], pa.float32())]) == hash_columns([pa.array([1.5, NAN])])).all()


def test_a_month_is_thirty_days_as_a_key_but_not_as_a_row():
    intervals = pa.array(
        [pa.MonthDayNano([1, 0, 0]), pa.MonthDayNano([0, 30, 0]), pa.MonthDayNano([0, 29, 86_400 * 10**9])]
    )
    assert len(set(hash_columns([intervals]).tolist())) == 1
    assert len(set(row_hash(pa.table([intervals], ["c0"])).tolist())) == 3


def test_pinned_values():
    """Stored state depends on these: a change needs a new STATE_FORMAT_VERSION."""
    found = {
        "int": hash_columns([pa.array([0, 42, -1])]),
        "float": hash_columns([pa.array([0.0, 1.5, NAN])]),
        "string": hash_columns([pa.array(["", "a", "watersmeet", "x" * 1000])]),
        "bytes": hash_columns([pa.array([b"watersmeet"])]),
        "decimal": hash_columns([pa.array(["1.50"]).cast(pa.decimal128(38, 10))]),
        "list": hash_columns([pa.array([[], [1], [1, None]], pa.list_(pa.int32()))]),
        "struct": hash_columns([pa.array([{"x": 1, "y": "a"}])]),
        "interval": hash_columns([pa.array([pa.MonthDayNano([1, 2, 3])])]),
        "two": hash_columns([pa.array([1]), pa.array(["a"])]),
        "none": hash_columns([], 1),
    }
    assert {k: [f"{int(h):016x}" for h in v] for k, v in found.items()} == PINNED


PINNED = {
    "int": ["e220a8397b1dcdaf", "bdd732262feb6e95", "e4d971771b652c20"],
    "float": ["e220a8397b1dcdaf", "d6dab18e1392608a", "c72971d82e15bb46"],
    "string": ["e220a8397b1dcdaf", "cc7c4a0bfcd0306d", "d671adc03de9b0c1", "7a7ef7b0f11edd79"],
    "bytes": ["d671adc03de9b0c1"],
    "decimal": ["872bbf2a8adea60b"],
    "list": ["9a7c87362523bcd0", "a57c63def8ad17a7", "f87cc25ee6ffd966"],
    "struct": ["a4b529db956c136a"],
    "interval": ["181c8d425d8b4f4c"],
    "two": ["418c39e4e2940fd9"],
    "none": ["1d8e4e27c47d124f"],
}


def test_no_columns():
    assert hash_columns([], 2).tolist() == [int(EMPTY_HASH)] * 2
    assert hash_columns([]).tolist() == []


def test_bijective_types_have_no_collisions_near_each_other():
    values = pa.array(np.arange(-500_000, 500_000))
    assert len(np.unique(hash_columns([values]))) == 1_000_000


def test_strings_of_all_lengths_and_places():
    """Every length up to 100 and permutations of one word: all different, and the same one by one."""
    values = ["x" * n for n in range(100)] + ["y" * n + "x" + "y" * (60 - n) for n in range(60)]
    whole = hash_columns([pa.array(values)])
    assert len(set(whole.tolist())) == len(values)
    alone = np.concatenate([hash_columns([pa.array([v])]) for v in values])
    assert (alone == whole).all()


def test_a_huge_string_next_to_small_ones():
    values = ["a", "b" * 20_000_000, "c"]
    assert (hash_columns([pa.array(values)])[[0, 2]] == hash_columns([pa.array(["a", "c"])])).all()


HASH = st.integers(0, 2**64 - 1) | st.sampled_from([0, 1, 2**32 - 1, 2**32, 2**63, 2**64 - 2**32, 2**64 - 1])
BUCKETS = st.integers(1, 300) | st.integers(1, 2**31)


@examples(600)
@given(st.lists(HASH, min_size=1), BUCKETS)
@example([2**64 - 1], 2**31)
def test_a_bucket_is_the_high_word_of_a_product(hashes, buckets):
    """Stored state depends on it: a change needs a new STATE_FORMAT_VERSION."""
    assert bucket_of(np.array(hashes, np.uint64), buckets).tolist() == [h * buckets >> 64 for h in hashes]


@examples(300)
@given(HASH, BUCKETS)
def test_a_bucket_begins_at_its_least_hash(h, buckets):
    bucket = h * buckets >> 64
    assert bucket_start(bucket, buckets) <= h < bucket_start(bucket + 1, buckets)
    assert bucket_start(0, buckets) == 0
    assert bucket_start(buckets, buckets) == 2**64


@examples(300)
@given(st.lists(st.integers(0, 50) | st.integers()), st.integers(1, 100), st.integers(1, 100))
def test_a_bucket_is_one_slice_of_a_run_for_any_number_of_buckets(values, before, after):
    """A run that was made for one number of buckets is cut into those of another without sorting it."""
    table = pa.table([pa.array([v % 2**63 for v in values], pa.int64())], ["c0"])
    whole = arrange(Delta(table, np.ones(len(values), np.int64)), (0,))
    assert (np.diff(bucket_of(whole.hash, before)) >= 0).all()
    for bucket in range(before):
        inside = bucket_of(whole.hash, before) == bucket
        run = whole.take(np.flatnonzero(inside))
        buckets = bucket_of(run.hash, after)
        starts = [bucket_start(b, after) for b in range(after)]
        places = [*np.searchsorted(run.hash, np.array(starts, np.uint64)).tolist(), run.num_rows]
        for b, (start, stop) in enumerate(pairwise(places)):
            assert buckets[start:stop].tolist() == [b] * int((buckets == b).sum())


def test_buckets_are_even():
    for column in (pa.array(range(10_000)), pa.array([f"key-{i}" for i in range(10_000)])):
        counts = np.bincount(bucket_of(hash_columns([column]), 7))
        assert counts.min() > 1250


def test_unknown_type_is_refused():
    with pytest.raises(Error, match="FEATURE_NOT_SUPPORTED"):
        hash_columns([pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))])


def test_dictionaries_hash_as_their_values():
    plain = pa.array(["a", "b", "a", None], VARCHAR.arrow)
    assert (hash_columns([plain.dictionary_encode()]) == hash_columns([plain])).all()


@pytest.mark.parametrize("count", [0, 1, 1023, 1024, 5000])
@pytest.mark.parametrize("distinct", [1, 40, 1 << 20, 1 << 63])
def test_positions_by_hash_sort_stably(count, distinct):
    """Also hashes that differ in their low bits alone, where the positions are during the sort."""
    random = np.random.default_rng(count)
    hashes = random.integers(0, distinct, count).astype(np.uint64)
    for some in (hashes, hashes << np.uint64(1), hashes ^ np.uint64(1 << 63)):
        assert positions_by_hash(some).tolist() == np.argsort(some, kind="stable").tolist()
