"""A stream joined with rows that don't change, without Spark."""

from __future__ import annotations

import random
import uuid
from collections import Counter

import pyarrow as pa
import pytest
from tests.unit.frames.query import COLUMNS, Query, given
from tests.unit.frames.test_asof import merged
from tests.unit.frames.test_regular import joined, nearest, rows
from tests.unit.frames.test_time import TIMES

from watersmeet.errors import Error
from watersmeet.frames.building import Options, asof, latest
from watersmeet.frames.tasks import LookUp, static_rows


def table(found: list[tuple]) -> pa.Table:
    return pa.table(
        [pa.array([r[i] for r in found], f.type.arrow) for i, f in enumerate(COLUMNS)], names=[f.name for f in COLUMNS]
    )


def look_up(options: Options, static: str, stream: list[list[tuple]], still: list[tuple]) -> Counter:
    sides = {"left": given(streaming=static != "left"), "right": given(streaming=static != "right")}
    query = Query(options, sides["left"], sides["right"])
    assert query.appends
    task = LookUp(query.shape, static_rows(query.shape, table(still)), uuid.uuid4().hex, query.decoder)
    found: Counter[tuple] = Counter()
    for part in stream:
        for batch in task(table(part).to_batches()):
            found.update(tuple(r.values()) for r in batch.to_pylist())
    return found


@pytest.mark.parametrize("how", ["inner", "left", "semi", "anti"])
def test_static_right(how):
    rng = random.Random(1)
    still, stream = rows(rng, 9, "r"), [rows(rng, 20, "l") for _ in range(3)]
    expected = joined([r for part in stream for r in part], still, how, lambda a, b: True)
    assert look_up(Options(on="k", how=how), "right", stream, still) == expected


@pytest.mark.parametrize("how", ["inner", "right"])
def test_static_left(how):
    rng = random.Random(2)
    still, stream = rows(rng, 9, "l"), [rows(rng, 20, "r") for _ in range(3)]
    expected = joined(still, [r for part in stream for r in part], how, lambda a, b: True)
    assert look_up(Options(on="k", how=how), "left", stream, still) == expected


@pytest.mark.parametrize("how", ["inner", "left"])
def test_asof_with_a_static_right_side(how):
    rng = random.Random(3)
    still, stream = rows(rng, 30, "r"), [rows(rng, 20, "l") for _ in range(3)]
    expected = nearest([r for part in stream for r in part], still, how, "backward", True, 4)
    match = asof("ts", "ts", tolerance="4 seconds")
    assert look_up(Options(on="k", how=how, match=match), "right", stream, still) == expected


@pytest.mark.parametrize("tolerance", [False, True])
@pytest.mark.parametrize("exact", [True, False])
def test_the_nearest_row_of_a_static_side(exact, tolerance):
    rng = random.Random(4)
    still, stream = rows(rng, 30, "r"), [rows(rng, 20, "l") for _ in range(3)]
    wanted = {"direction": "nearest", "allow_exact_matches": exact}
    expected = merged([r for part in stream for r in part], still, "left", measure=TIMES, tolerance=tolerance, **wanted)
    match = asof("ts", "ts", tolerance="3 seconds" if tolerance else None, **wanted)
    assert look_up(Options(on="k", how="left", match=match), "right", stream, still) == expected


@pytest.mark.parametrize(
    ("static", "options", "text"),
    [
        ("right", {"how": "full"}, 'how="full" with a static right side'),
        ("left", {"how": "left"}, 'how="left" with a static left side'),
        ("left", {"match": asof("ts", "ts")}, "with asof"),
        ("right", {"match": latest()}, "latest() with a static side"),
        ("right", {"emit": "final"}, 'emit="final" with a static side'),
    ],
)
def test_refusals(static, options, text):
    with pytest.raises(Error) as caught:
        look_up(Options(on="k", **options), static, [], [])
    assert text in str(caught.value)
