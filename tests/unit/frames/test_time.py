"""Watermarks: what is late, what is final when, and what is kept; random out-of-order histories beside plain Python."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta
from typing import get_args

import pandas as pd
import pytest
from tests.thorough import mostly_slow, some
from tests.unit.frames.query import Query, at, given
from tests.unit.frames.test_asof import MEASURES, merged
from tests.unit.frames.test_regular import joined, nearest

from watersmeet.errors import Error
from watersmeet.frames.building import Direction, Options, asof, latest
from watersmeet.frames.circuits import result_watermark
from watersmeet.values.types import INTEGER, TIMESTAMP
from watersmeet.values.watermarks import value

DELAYS = (3, 6)


def batch_query(how: str, low: float, high: float):
    def meets(a: tuple, b: tuple) -> bool:
        return None not in (a[1], b[1]) and low <= (b[1] - a[1]).total_seconds() <= high

    return lambda left, right: joined(left, right, how, meets)


def windowed(how: str):
    def expected(left, right):
        def start(row):
            return None if row[1] is None else (row[1] - at(0)).total_seconds() // 5

        found: Counter[tuple] = Counter()
        for row, n in joined(left, right, how, lambda a, b: start(a) is not None and start(a) == start(b)).items():
            first = start(row) if row[1] is not None or len(row) == 3 else start((0, row[3]))
            found[(*row, None if first is None else (at(first * 5), at(first * 5 + 5)))] += n
        return found

    return expected


def cases():
    for how in ("inner", "left", "right", "full", "semi", "anti"):
        yield f"interval-{how}", Options(on="k", how=how, within=("-2 seconds", "4 seconds")), batch_query(how, -2, 4)
        yield f"window-{how}", Options(on="k", how=how, window="5 seconds"), windowed(how)
    for how in ("inner", "left"):
        yield (
            f"asof-{how}",
            Options(on="k", how=how, match=asof("ts", "ts")),
            lambda a, b, how=how: nearest(a, b, how, "backward", True, None),
        )
        yield (
            f"before-{how}",
            Options(on="k", how=how, match=asof("ts", "ts", allow_exact_matches=False, tolerance="3 seconds")),
            lambda a, b, how=how: nearest(a, b, how, "backward", False, 3),
        )
        yield (
            f"forward-{how}",
            Options(on="k", how=how, match=asof("ts", "ts", direction="forward", tolerance="3 seconds")),
            lambda a, b, how=how: nearest(a, b, how, "forward", True, 3),
        )
        for exact in (True, False):
            yield (
                f"nearest-{how}-{exact}",
                Options(
                    on="k",
                    how=how,
                    match=asof("ts", "ts", direction="nearest", allow_exact_matches=exact, tolerance="3 seconds"),
                ),
                lambda a, b, how=how, exact=exact: merged(
                    a, b, how, measure=TIMES, tolerance=True, direction="nearest", allow_exact_matches=exact
                ),
            )


#: The histories here have times, and a tolerance of three seconds.
TIMES = replace(MEASURES["timestamp"], pandas=lambda time: time, pandas_tolerance=pd.Timedelta(seconds=3))
CASES = {name: (options, expected) for name, options, expected in cases()}


#: The column of the result with the time of each side.
TIME_COLUMNS = (1, 3)


class History:
    """Random rows whose times rise, out of order, some of them late; `old` are those that were not late.

    No row of the result is below the watermark that the result had. marked: how many rows of the result had one.
    """

    def __init__(self, query: Query, rng: random.Random) -> None:
        self.query = query
        self.rng = rng
        self.old: tuple[list, list] = ([], [])
        self.tops: list[float | None] = [None, None]
        self.late = [0, 0]
        self.marked = [0, 0]

    def step(self, now: float) -> Counter:
        new: list[list[tuple]] = [[], []]
        marks = [None if t is None else t - d for t, d in zip(self.tops, DELAYS, strict=True)]
        late = [0, 0]
        for side, tag in enumerate("lr"):
            for _ in range(self.rng.choice([0, 2, 6])):
                seconds = self.rng.choice([None, *(now - self.rng.randrange(14) for _ in range(8))])
                row = (self.rng.choice([None, 1, 2, 3]), at(seconds), self.rng.choice([None, tag]))
                new[side].append(row)
                if seconds is not None and marks[side] is not None and seconds < marks[side]:
                    late[side] += 1
                else:
                    self.old[side].append(row)
                if seconds is not None:
                    self.tops[side] = max(seconds, self.tops[side] if self.tops[side] is not None else seconds)
        before = [value(result_watermark(self.query.shape, i), self.query.watermarks) for i in range(2)]
        found = self.query.batch(*new, rng=self.rng)
        assert self.query.late == late
        for side, mark_us in enumerate(before):
            if mark_us is not None and self.query.shape.how not in ("semi", "anti")[: 2 * side]:
                mark = datetime(1970, 1, 1) + timedelta(microseconds=mark_us)
                times = [row[TIME_COLUMNS[side]] for row in found if row[TIME_COLUMNS[side]] is not None]
                self.marked[side] += len(times)
                assert all(time >= mark for time in times), (side, mark)
        self.late = [a + b for a, b in zip(self.late, late, strict=True)]
        return found

    def end(self) -> Counter:
        """Rows of one key of its own, far later: all others are decided."""
        for seconds in (10_000, 20_000):
            for side, tag in enumerate("lr"):
                row = (9, at(seconds + side * 100), tag)
                self.old[side].append(row)
                self.query.batch(*([row] if i == side else [] for i in range(2)))
        return self.query.content


def timed(options: Options, emit: str) -> Query:
    sides = [given(watermark=("ts", d)) for d in DELAYS]
    return Query(Options(**{**options.__dict__, "emit": emit}), *sides, buckets=2)


@pytest.mark.parametrize("name", mostly_slow(list(CASES), len(CASES)))
def test_changes_follow_rows_that_were_not_late(name):
    options, expected = CASES[name]
    for seed in some(range(6)):
        history = History(timed(options, "changes"), random.Random(seed))
        for now in range(0, 60, 5):
            history.step(now)
            assert history.query.content == expected(*history.old), (seed, now)
        assert history.marked[0] > 0
        assert (history.marked[1] > 0) == (options.match is None and options.how not in ("semi", "anti"))


def test_some_rows_of_these_histories_are_late():
    options, _ = CASES["interval-inner"]
    late = 0
    for seed in range(4):
        history = History(timed(options, "changes"), random.Random(seed))
        for now in range(0, 60, 5):
            history.step(now)
        late += sum(history.late)
    assert late > 5


@pytest.mark.parametrize("name", mostly_slow(list(CASES), len(CASES)))
def test_final_rows_come_once_and_are_the_batch_result(name):
    options, expected = CASES[name]
    came = all_rows = 0
    for seed in some(range(6)):
        history = History(timed(options, "final"), random.Random(100 + seed))
        assert history.query.appends
        for now in range(0, 60, 5):
            history.step(now)
        before = Counter(history.query.content)
        content = history.end()
        early = Counter({r: n for r, n in expected(*history.old).items() if r[0] != 9})
        assert Counter({r: n for r, n in content.items() if r[0] != 9}) == early
        assert not before - early
        came, all_rows = came + sum(before.values()), all_rows + sum(early.values())
    assert came >= all_rows / 3


def arrived(options: Options, history: list[tuple[list, list]], expected) -> Counter:
    """What was there when rows came: of joins that decide left rows, each by the right rows of its batch and before."""
    found: Counter[tuple] = Counter()
    left: list[tuple] = []
    right: list[tuple] = []
    for new_left, new_right in history:
        if options.match is not None or options.how in ("semi", "anti"):
            right += new_right
            found.update(expected(new_left, right))
            continue
        pairs = expected(left + new_left, right + new_right) - expected(left, right)
        left, right = left + new_left, right + new_right
        found.update(pairs)
    return found


@pytest.mark.parametrize("name", mostly_slow(list(CASES), len(CASES)))
def test_rows_decided_on_arrival(name):
    options, expected = CASES[name]
    for seed in some(range(6)):
        history = History(timed(options, "arrival"), random.Random(200 + seed))
        assert history.query.appends
        batches = []
        for now in range(0, 60, 5):
            sizes = [len(o) for o in history.old]
            history.step(now)
            batches.append(tuple(o[n:] for o, n in zip(history.old, sizes, strict=True)))
        assert history.query.content == arrived(options, batches, expected)


@pytest.mark.parametrize("exact", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("direction", get_args(Direction))
@pytest.mark.parametrize("emit", ["changes", "arrival"])
def test_state_is_never_cleaned_of_rows_that_are_still_asked_for(emit, direction, exact):
    """Without a tolerance a left row may look back, or ahead, however far."""
    wanted = {"direction": direction, "allow_exact_matches": exact}
    options = Options(on="k", how="left", match=asof("ts", "ts", **wanted))
    for seed in some(range(12)):
        history = History(timed(options, emit), random.Random(300 + seed))
        batches = []
        for now in range(0, 100, 5):
            sizes = [len(o) for o in history.old]
            history.step(now)
            batches.append(tuple(o[n:] for o, n in zip(history.old, sizes, strict=True)))
        if emit == "changes":
            assert history.query.content == merged(*history.old, "left", measure=TIMES, **wanted)
        else:
            expected = arrived(options, batches, lambda a, b: merged(a, b, "left", measure=TIMES, **wanted))
            assert history.query.content == expected
            kept, all_rows = history.query.state[0], len(history.old[1])
            assert kept < all_rows / 2  # of what has passed, the newest of each key


def on_time(**options) -> Query:
    """An ASOF join with a tolerance of three seconds whose watermarks are the greatest times."""
    side = given(watermark=("ts", 0))
    match = asof("ts", "ts", tolerance="3 seconds", direction=options.pop("direction"))
    return Query(Options(on="k", how="left", match=match, **options), side, side)


@pytest.mark.parametrize("direction", ["forward", "nearest"])
def test_a_row_is_final_when_the_watermark_has_passed_the_tolerance(direction):
    query = on_time(direction=direction, emit="final")
    query.batch([(1, at(10), "a"), (2, at(10), "b")], [(9, at(12.9), "r")])
    query.batch([], [(9, at(13), "r")])
    query.batch([], [(1, at(13), "just in time")])
    assert not query.content
    query.batch([], [(9, at(13.1), "r")])
    assert query.content == Counter([(1, at(10), "a", at(13), "just in time"), (2, at(10), "b", None, None)])
    query.batch([(9, at(99), "l")], [(9, at(99), "r")])
    assert query.state[0] <= 3  # of the key 9: a row of each side, and a result that waits


@pytest.mark.parametrize("emit", ["changes", "final", "arrival"])
@pytest.mark.parametrize("direction", ["backward", "nearest"])
def test_a_right_row_is_kept_as_long_as_the_tolerance_reaches_it(direction, emit):
    query = on_time(direction=direction, emit=emit)
    query.batch([(9, at(10), "l")], [(1, at(7), "old"), (1, at(6.9), "too old"), (9, at(20), "r")])
    query.batch([(1, at(10), "a")], [])
    assert query.content[1, at(10), "a", at(7), "old"] == 1
    query.batch([(9, at(99), "l")], [(9, at(99), "r")])
    assert query.state[0] <= 3  # of the key 9: a row of each side, and a result that waits


@pytest.mark.parametrize("direction", ["backward", "nearest"])
def test_a_right_row_is_kept_for_left_rows_that_are_not_decided(direction):
    """The left watermark has passed it, but a left row has it for its partner until a nearer row comes."""
    for emit in ("changes", "final"):
        query = on_time(direction=direction, emit=emit)
        query.batch([(1, at(10), "a"), (9, at(50), "l")], [(1, at(7), "old")])
        query.batch([(9, at(60), "l")], [(9, at(9), "r")])
        query.batch([], [(1, at(9), "nearer")])
        query.batch([], [(9, at(99), "r")])
        assert {r: n for r, n in query.content.items() if r[0] == 1} == {(1, at(10), "a", at(9), "nearer"): 1}


@pytest.mark.parametrize("emit", mostly_slow(["final", "changes", "arrival"], 1))
@pytest.mark.parametrize("name", mostly_slow(list(CASES), len(CASES)))
def test_the_state_is_empty_when_all_is_decided(name, emit):
    options, _ = CASES[name]
    history = History(timed(options, emit), random.Random(5))
    most = 0
    for now in range(0, 100, 5):
        history.step(now)
        most = max(most, history.query.state[0])
    assert 0 < most < 120
    history.end()
    history.query.batch([], [])
    # Of the last rows, of the key 9, nobody knows more yet; of a key the newest row to look back to stays.
    assert history.query.state[0] <= (12 if name.startswith("asof") else 6)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"how": "left"}, "needs a bound between the times"),
        ({"how": "anti", "within": (None, "1 second")}, None),
        ({"how": "anti", "within": ("1 second", None)}, "never become final"),
        ({"how": "left", "match": asof("ts", "ts", direction="forward")}, "without a tolerance"),
        (
            {"how": "left", "match": asof("ts", "ts", direction="nearest")},
            'direction="nearest") and without a tolerance',
        ),
        ({"how": "left", "match": latest()}, 'emit="final" with latest()'),
    ],
)
def test_what_can_never_be_final_is_refused(options, text):
    made = Options(on="k", **options)
    if text is None:
        timed(made, "final")
        return
    with pytest.raises(Error) as caught:
        timed(made, "final")
    assert text in str(caught.value)


def test_final_needs_the_other_sides_watermark():
    options = Options(on="k", how="left", match=asof("ts", "ts"), emit="final")
    with pytest.raises(Error, match="needs a watermark on the right column") as caught:
        Query(options, given(watermark=("ts", 1)), given())
    assert caught.value.condition == "EMIT_NOT_POSSIBLE"
    Query(options, given(), given(watermark=("ts", 1)))


def test_the_newest_row_when_a_row_comes():
    query = Query(Options(on="k", how="left", match=latest("ts")), buckets=2)
    query.batch([(1, at(0), "early")], [])
    query.batch([(1, at(1), "same batch")], [(1, at(9), "a"), (1, at(5), "b"), (2, at(5), "c")])
    query.batch([], [(1, at(3), "newer")])
    query.batch([(1, at(2), "later"), (None, at(2), "no key"), (2, at(0), "other")], [])
    assert query.content == Counter(
        [
            (1, at(0), "early", None, None),
            (1, at(1), "same batch", at(9), "a"),
            (1, at(2), "later", at(3), "newer"),
            (None, at(2), "no key", None, None),
            (2, at(0), "other", at(5), "c"),
        ]
    )
    assert query.state[0] <= 8
    with pytest.raises(Error) as caught:
        Query(Options(on="k", how="right", match=latest()))
    assert caught.value.condition == "TEMPORAL_KIND"


def test_a_result_has_a_watermark_only_if_one_is_known():
    marked = given(("k", INTEGER), ("ts", TIMESTAMP), ("other", TIMESTAMP), watermark=("ts", 5))
    within = {"within": "1 second", "time": "ts"}

    def known(left=marked, right=marked, **options) -> list[bool]:
        shape = Query(Options(on="k", **options), left, right).shape
        return [result_watermark(shape, side) != () for side in range(2)]

    assert known(**within) == [True, True]
    assert known(right=given(), **within) == [False, False]
    assert known() == [False, False]
    assert known(match=asof("ts", "ts")) == [True, False]
    assert known(match=asof("other", "ts")) == [False, False]
    assert known(match=latest()) == [True, False]
    assert known(how="semi", emit="arrival") == [True, False]
    assert known(how="left", emit="arrival") == [False, False]
