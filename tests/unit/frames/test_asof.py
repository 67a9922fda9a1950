"""ASOF joins of DataFrames beside pandas.merge_asof: random micro-batches, in each direction, times and numbers."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from typing import Any, get_args

import pandas as pd
import pytest
from tests.thorough import some
from tests.unit.frames.query import Query, at, given

from watersmeet.errors import Error
from watersmeet.frames.building import Direction, Options, asof
from watersmeet.values.types import BIGINT, BOOLEAN, DATE, DOUBLE, INTEGER, REAL, SMALLINT, TIMESTAMP, VARCHAR, SqlType

DIRECTIONS = get_args(Direction)


@dataclass(frozen=True)
class Measure:
    """A type of the columns that are matched. step: one unit of it, in the join and for pandas."""

    type: SqlType
    of: Any
    tolerance: Any
    pandas: Any
    pandas_tolerance: Any


def whole(kind: SqlType) -> Measure:
    return Measure(kind, lambda n: n, 2.5, lambda n: n, 2)


MEASURES = {
    "timestamp": Measure(TIMESTAMP, at, "2 seconds", at, pd.Timedelta(seconds=2)),
    "date": Measure(
        DATE,
        lambda n: date(2026, 1, 1) + timedelta(n),
        timedelta(days=2),
        lambda n: at(86_400 * n),
        pd.Timedelta(days=2),
    ),
    "smallint": whole(SMALLINT),
    "integer": whole(INTEGER),
    "bigint": whole(BIGINT),
    "double": Measure(DOUBLE, lambda n: n / 4, 0.5, lambda n: n / 4, 0.5),
    "real": Measure(REAL, lambda n: n / 4, 0.5, lambda n: n / 4, 0.5),
    "decimal": Measure(SqlType("numeric", 38, 2), lambda n: Decimal(n).scaleb(-2), Decimal("0.029"), lambda n: n, 2),
}


def rows(rng: random.Random, count: int, tag: str) -> list[tuple]:
    return [
        (rng.choice([None, 1, 2, 3, 4]), rng.choice([None, *range(-3, 12)]), rng.choice([None, tag, tag + "2"]))
        for _ in range(count)
    ]


def merged(
    left: list[tuple],
    right: list[tuple],
    how: str,
    *,
    measure: Measure = MEASURES["integer"],
    tolerance: bool = False,
    **options: Any,
) -> Counter:
    """What pandas gives; of rows with equal values it only gets the one that is first by its columns."""
    first: dict[tuple, tuple] = {}
    for row in sorted(right, key=lambda r: (r[2] is None, r[2] or "")):
        if None not in row[:2]:
            first.setdefault(row[:2], row)
    found = Counter({(*r, None, None): n for r, n in Counter(left).items() if None in r[:2]} if how == "left" else {})
    asking = sorted((r for r in left if None not in r[:2]), key=lambda r: r[1])
    there = sorted(first.values(), key=lambda r: r[1])
    if not asking or not there:
        found.update((*r, None, None) for r in asking if how == "left")
        return found
    frames = [
        pd.DataFrame({"k": [r[0] for r in some], "x": [measure.pandas(r[1]) for r in some], name: range(len(some))})
        for some, name in ((asking, "i"), (there, "j"))
    ]
    bound = measure.pandas_tolerance if tolerance else None
    for i, j in pd.merge_asof(*frames, on="x", by="k", tolerance=bound, **options)[["i", "j"]].itertuples(index=False):
        if not pd.isna(j):
            found[asking[i] + there[int(j)][1:]] += 1
        elif how == "left":
            found[(*asking[i], None, None)] += 1
    return found


def measured(measure: Measure, found: list[tuple]) -> list[tuple]:
    """The rows with values of the type."""
    return [(r[0], None if r[1] is None else measure.of(r[1]), *r[2:]) for r in found]


def values(measure: Measure, content: Counter) -> Counter:
    """The expected result with values of the type."""
    return Counter(
        {
            tuple(measure.of(v) if i in (1, 3) and v is not None else v for i, v in enumerate(row)): n
            for row, n in content.items()
        }
    )


def query(measure: Measure, options: dict[str, Any], *, signed: bool = False, **others: Any) -> Query:
    side = given(("k", INTEGER), ("x", measure.type), ("v", VARCHAR), signed=signed)
    return Query(Options(on="k", match=asof("x", "x", **options), **others), side, side)


@pytest.mark.parametrize("tolerance", [False, True])
@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", MEASURES)
def test_every_type_is_matched_as_pandas_does(name, direction, exact, tolerance):
    measure = MEASURES[name]
    options = {"direction": direction, "allow_exact_matches": exact}
    for seed in some(range(6)):
        rng = random.Random(seed)
        how = rng.choice(["inner", "left"])
        joined = query(measure, {**options, "tolerance": measure.tolerance if tolerance else None}, how=how)
        left: list[tuple] = []
        right: list[tuple] = []
        for _ in range(5):
            new = rows(rng, rng.choice([0, 1, 9]), "l"), rows(rng, rng.choice([0, 1, 9]), "r")
            left += new[0]
            right += new[1]
            joined.batch(*(measured(measure, n) for n in new), rng=rng)
            expected = merged(left, right, how, measure=measure, tolerance=tolerance, **options)
            assert joined.content == values(measure, expected)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("how", ["inner", "left"])
def test_rows_that_are_taken_back(how, direction):
    measure = MEASURES["integer"]
    for seed in some(range(12)):
        rng = random.Random(seed)
        options = {"direction": direction, "allow_exact_matches": rng.random() < 0.5}
        tolerance = rng.random() < 0.5
        joined = query(measure, {**options, "tolerance": 2 if tolerance else None}, how=how, signed=True)
        content: list[Counter] = [Counter(), Counter()]
        for _ in range(10):
            changes: list[list[tuple]] = [[], []]
            for side, tag in enumerate("lr"):
                gone = rng.sample(list(content[side].elements()), min(3, content[side].total()))
                changes[side] = [(*r, 1) for r in rows(rng, rng.choice([0, 6]), tag)] + [(*r, -1) for r in gone]
                for row in changes[side]:
                    content[side][row[:-1]] += row[-1]
            joined.batch(*changes, rng=rng)
            left, right = (list(c.elements()) for c in content)
            assert joined.content == merged(left, right, how, measure=measure, tolerance=tolerance, **options)


def test_the_ends_of_the_ranges_of_numbers():
    """Differences that the type itself has no room for."""
    least, most = -(1 << 63), (1 << 63) - 1
    for kind, tolerance, met in (
        (BIGINT, (1 << 64) - 2, False),
        (BIGINT, (1 << 64) - 1, True),
        (DOUBLE, 1e19, False),
        (DOUBLE, 1.9e19, True),
    ):
        ends = (least, most) if kind == BIGINT else (float(least), float(most))
        side = given(("k", INTEGER), ("x", kind), ("v", VARCHAR))
        joined = Query(Options(on="k", match=asof("x", "x", tolerance=tolerance)), side, side)
        joined.batch([(1, ends[1], "l")], [(1, ends[0], "r")])
        assert bool(joined.content) == met
    digits = Decimal("9" * 38)
    side = given(("k", INTEGER), ("x", SqlType("numeric", 38, 0)), ("v", VARCHAR))
    joined = Query(Options(on="k", match=asof("x", "x", tolerance=digits)), side, side)
    joined.batch([(1, digits, "l"), (2, digits, "l")], [(1, digits.copy_negate(), "r"), (2, Decimal(0), "r")])
    assert joined.content == Counter([(2, digits, "l", Decimal(0), "r")])


def test_infinities_and_not_a_number():
    """NaN is the greatest of all numbers and equal to itself."""
    nan, inf = float("nan"), float("inf")
    side = given(("k", INTEGER), ("x", DOUBLE), ("v", VARCHAR))
    joined = Query(Options(on="k", match=asof("x", "x", tolerance=1)), side, side)
    joined.batch([(1, inf, "a"), (2, nan, "b"), (3, nan, "c")], [(1, inf, "r"), (2, nan, "r"), (3, inf, "r")])
    assert {(r[0], r[2]) for r in joined.content} == {(1, "a"), (2, "b")}


@pytest.mark.parametrize(
    ("name", "tolerance", "text"),
    [
        ("integer", "2 seconds", "a tolerance of '2 seconds' between values of type integer"),
        ("integer", timedelta(1), "between values of type integer"),
        ("integer", True, "a tolerance of True"),
        ("integer", -1, "at least 0"),
        ("double", float("nan"), "a finite number"),
        ("double", float("inf"), "a finite number"),
        ("decimal", Decimal("1e38"), "greater than any such value"),
        ("bigint", 1e300, "greater than any such value"),
        ("timestamp", 5, "a tolerance of 5 between values of type timestamp"),
        ("timestamp", "-1 second", "at least 0"),
        ("date", Decimal(1), "between values of type date"),
    ],
)
def test_a_tolerance_is_of_the_kind_of_the_columns(name, tolerance, text):
    with pytest.raises(Error) as caught:
        query(MEASURES[name], {"tolerance": tolerance})
    assert caught.value.condition == "INVALID_PARAMETER"
    assert text in str(caught.value)


def test_numbers_have_no_watermark():
    with pytest.raises(Error, match=r"asof\(…\) of columns of type integer") as caught:
        query(MEASURES["integer"], {"tolerance": 3}, emit="final")
    assert caught.value.condition == "EMIT_NOT_POSSIBLE"


def test_of_equally_near_rows_the_one_before_counts():
    """As pandas has it, in whatever order they come."""
    joined = query(MEASURES["integer"], {"direction": "nearest"}, how="left")
    joined.batch([(1, 10, "l")], [(1, 13, "after")])
    assert list(joined.content) == [(1, 10, "l", 13, "after")]
    joined.batch([], [(1, 7, "before")])
    assert list(joined.content) == [(1, 10, "l", 7, "before")]
    joined.batch([], [(1, 12, "nearer")])
    assert list(joined.content) == [(1, 10, "l", 12, "nearer")]
    joined.batch([], [(1, 8, "as near")])
    assert list(joined.content) == [(1, 10, "l", 8, "as near")]


@pytest.mark.parametrize("kind", [VARCHAR, BOOLEAN])
def test_the_nearest_needs_a_distance(kind):
    side = given(("k", INTEGER), ("x", kind))
    with pytest.raises(Error, match='direction "nearest" of asof between values of type') as caught:
        Query(Options(on="k", match=asof("x", "x", direction="nearest")), side, side)
    assert caught.value.condition == "INVALID_PARAMETER"


def test_another_direction_is_refused():
    with pytest.raises(Error, match='"backward", "forward" or "nearest"'):
        asof("x", "x", direction="sideways")
