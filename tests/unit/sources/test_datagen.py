"""Datagen: RisingWave's options; rows are functions of their numbers (RW-36)."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.thorough import examples
from tests.unit.sources.helpers import T0, Driver, S, relation, stored

import watersmeet
from watersmeet.connectors.base.deadletters import DeadLetterWriter
from watersmeet.connectors.base.sources import Source
from watersmeet.connectors.datagen import DatagenSpec, duration_us
from watersmeet.connectors.registry import open_source, read_slice
from watersmeet.errors import Error
from watersmeet.values import types as t
from watersmeet.values.types import Field, SqlType

POINT = SqlType("struct", fields=(("x", t.INTEGER), ("name", t.VARCHAR)))
ALL = (
    Field("i", t.INTEGER),
    Field("b", t.BIGINT),
    Field("s", t.SMALLINT),
    Field("d", t.DOUBLE),
    Field("r", t.REAL),
    Field("n", SqlType("numeric", 12, 3)),
    Field("v", t.VARCHAR),
    Field("y", t.BYTEA),
    Field("o", t.BOOLEAN),
    Field("da", t.DATE),
    Field("ti", t.TIME),
    Field("ts", t.TIMESTAMP),
    Field("tz", t.TIMESTAMPTZ),
    Field("p", POINT),
    Field("a", SqlType("array", element=t.INTEGER)),
)


def datagen(columns: Any = (Field("v", t.INTEGER),), **options: str) -> Source:
    return open_source(relation(columns, connector="datagen", **options))


def values(sql: SqlType, rows: int = 5, **options: str) -> list[Any]:
    named = {f"fields__v__{name}": value for name, value in options.items()}
    source = datagen((Field("v", sql),), datagen__rows__per__second="1000000", **named)
    source.poll(None, 1, 1, T0)
    return [v for (v,) in Driver(source).once(T0 + rows)][:rows]


def table(source: Source, cuts: list[int], until: int, now_us: int = T0 + 10 * S) -> pa.Table:
    """The rows up to `until`, made in slices that end at the cuts."""
    source.poll(None, 1, 1, T0)
    position, parts = None, []
    spec = source.spec()
    assert isinstance(spec, DatagenSpec)
    for end in [*sorted({c for c in cuts if c < until}), until]:
        start = 0 if position is None else position["rows"]
        if end == start:
            continue
        poll = source.poll(position, end - start, 1 << 40, now_us)
        source.accept(poll.slices)
        position = poll.position
        parts += [read_slice(p, spec, spec.columns, DeadLetterWriter(None)).table for p in poll.slices]
    return pa.concat_tables(parts).combine_chunks()


OPTIONS = {
    "datagen__rows__per__second": "1000",
    "fields__b__kind": "sequence",
    "fields__b__start": "5",
    "fields__ts__max_past": "10 minutes",
    "fields__ts__max_past_mode": "relative",
    "fields__a__length": "3",
    "fields__a_____kind": "sequence",
    "fields__p__x__max": "9",
    "fields__i__seed": "7",
}
OPTIONS["fields__a_____kind"] = "sequence"


def with_dots(options: dict[str, str]) -> dict[str, str]:
    return {("fields.a._.kind" if n == "fields__a_____kind" else n): v for n, v in options.items()}


@examples(40)
@given(st.lists(st.integers(1, 199), max_size=6))
def test_rows_do_not_depend_on_how_ranges_are_cut(cuts: list[int]) -> None:
    assert table(datagen(ALL, **with_dots(OPTIONS)), cuts, 200).equals(
        table(datagen(ALL, **with_dots(OPTIONS)), [], 200)
    )


def test_each_type_has_values_of_its_kind() -> None:
    rows = table(datagen(ALL, **with_dots(OPTIONS)), [], 100).to_pylist()
    assert [r["b"] for r in rows[:3]] == [5, 6, 7]
    assert [r["a"] for r in rows[:2]] == [[0, 1, 2], [3, 4, 5]]
    assert all(0 <= r["i"] <= 32767 and 0 <= r["p"]["x"] <= 9 and 0 <= r["d"] <= 32767 for r in rows)
    assert len({r["v"] for r in rows}) == 100
    assert all(len(r["v"]) == len(r["y"]) == 10 and r["v"].isalnum() for r in rows)
    assert {r["o"] for r in rows} == {True, False}
    base = dt.datetime.fromtimestamp(T0 / S, dt.UTC)
    assert all(base - dt.timedelta(days=1) <= r["tz"] <= base for r in rows)
    for k, row in enumerate(rows):
        made = base.replace(tzinfo=None) + dt.timedelta(milliseconds=k)
        assert made - dt.timedelta(minutes=10) <= row["ts"] <= made


@pytest.mark.parametrize(
    ("kind", "options", "expected"),
    [
        (t.INTEGER, {"kind": "sequence"}, [0, 1, 2]),
        (t.INTEGER, {"kind": "sequence", "start": "-1"}, [-1, 0, 1]),
        (t.DOUBLE, {"kind": "sequence", "start": "1.56"}, [1.56, 2.56, 3.56]),
        (
            SqlType("numeric", 6, 2),
            {"kind": "sequence", "start": "1.56"},
            [Decimal("1.56"), Decimal("2.56"), Decimal("3.56")],
        ),
        (t.BIGINT, {"min": str(2**63 - 1), "max": str(2**63 - 1)}, [2**63 - 1] * 3),
        (t.VARCHAR, {"length": "0"}, [""] * 3),
        (t.INTEGER, {"kind": "sequence", "start": "4", "end": "5"}, [4, 5]),
        (
            t.TIMESTAMP,
            {"kind": "sequence", "start": "2024-01-01", "interval": "1 minute"},
            [dt.datetime(2024, 1, 1, 0, m) for m in range(3)],
        ),
        (t.TIMESTAMP, {"max_past": "0s", "basetime": "2024-01-01T00:00:00Z"}, [dt.datetime(2024, 1, 1)] * 3),
    ],
)
def test_options(kind: SqlType, options: dict[str, str], expected: list[Any]) -> None:
    assert values(kind, 3, **options) == expected


def test_the_whole_range_of_bigint() -> None:
    made = values(t.BIGINT, 1000, min=str(-(2**63)), max=str(2**63 - 1))
    assert min(made) < -(2**62) < 2**62 < max(made)
    numbers = values(SqlType("numeric", 18, 4), 100, min="-5.5", max="5.5")
    assert min(numbers) < 0 < max(numbers)
    assert all(abs(n) <= Decimal("5.5") for n in numbers)


def test_columns_differ_unless_the_seed_is_the_same() -> None:
    columns = (Field("a", t.INTEGER), Field("b", t.INTEGER), Field("c", t.INTEGER))
    made = table(datagen(columns, fields__b__seed="1", fields__c__seed="1"), [], 50).to_pydict()
    assert made["a"] != made["b"] == made["c"]


def test_the_rate_and_the_end() -> None:
    driver = Driver(datagen(datagen__rows__per__second="100", datagen__max__rows="150"))
    assert len(driver.all(T0)) == 1
    assert driver.last.next_us == T0 + S // 100
    assert len(driver.all(T0 + S // 2)) == 50
    assert (len(driver.all(T0 + 10 * S)), driver.last.finished, driver.last.next_us) == (99, True, None)
    assert (driver.all(T0 + 20 * S), driver.last.finished) == ([], True)
    assert driver.source.status()["rows_planned"] == 150


def test_the_shortest_sequence_ends_the_source() -> None:
    columns = (Field("a", t.INTEGER), Field("b", SqlType("array", element=t.INTEGER)))
    options = {
        "fields.a.kind": "sequence",
        "fields.b.length": "2",
        "fields.b._.kind": "sequence",
        "fields.b._.end": "9",
        "datagen.rows.per.second": "1000000",
    }
    driver = Driver(open_source(relation(columns, connector="datagen", **options)))
    driver.all(T0)
    rows = driver.all(T0 + S)
    assert rows[-1] == (4, [8, 9])
    assert driver.last.finished


def test_restart_goes_on_with_the_next_row_and_history_repeats_all(tmp_path: Path) -> None:
    columns = (Field("v", t.INTEGER), Field("ts", t.TIMESTAMP))
    options = {
        "fields__ts__max_past_mode": "relative",
        "fields__ts__max_past": "0s",
        "datagen__split__num": "3",
        "datagen__rows__per__second": "50000",
    }
    first = Driver(datagen(columns, **options))
    rows = first.all(T0) + first.all(T0 + S)
    assert len(first.slices) > 2
    first.source.save(tmp_path / "seen.json")
    later = first.all(T0 + S + S // 50)
    again = Driver(datagen(columns, **options))
    again.source.load(tmp_path / "seen.json")
    again.source.accept(stored(first.slices))
    again.position = first.position
    after = again.all(T0 + 3600 * S)
    assert after[0][1] == dt.datetime.fromtimestamp(T0 / S + 3600, dt.UTC).replace(tzinfo=None)
    assert len(after) == 1
    assert again.history() == again.history(budget_rows=777) == rows + later + after


def test_a_wrong_position_is_damage() -> None:
    driver = Driver(datagen())
    driver.all(T0)
    with pytest.raises(Error, match="DATABASE_DAMAGED"):
        datagen().poll(driver.position, 1, 1, T0)


@pytest.mark.parametrize(
    ("column", "options", "message"),
    [
        (t.INTEGER, {"fields__w__kind": "random"}, 'no option "fields.w.kind"'),
        (t.INTEGER, {"fields__v__mim": "1"}, 'no option "fields.v.mim"'),
        (t.INTEGER, {"fields__v__min": "x"}, "can't be"),
        (t.INTEGER, {"fields__v__min": "9", "fields__v__max": "1"}, "greater"),
        (t.SMALLINT, {"fields__v__max": "40000"}, "can't be 40000"),
        (t.INTEGER, {"fields__v__min": "0.5"}, "can't be 0.5"),
        (t.VARCHAR, {"fields__v__kind": "sequence"}, "can't be"),
        (t.JSONB, {}, "of type jsonb"),
        (t.TIMESTAMP, {"fields__v__max_past": "often"}, "can't be"),
        (t.INTEGER, {"datagen__rows": "1"}, "no option"),
        (t.TIMESTAMP, {"fields__v__max_past_mode": "both"}, "can't be"),
        (POINT, {"fields__v__z__min": "1"}, "no option"),
    ],
)
def test_options_that_can_not_work_are_refused(column: SqlType, options: dict[str, str], message: str) -> None:
    with pytest.raises(Error, match="CONNECTOR_OPTION") as caught:
        datagen((Field("v", column),), **options)
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1h 30m", 5400 * S),
        ("2 days", 172800 * S),
        ("500ms", S // 2),
        ("1 hour", 3600 * S),
        ("10s", 10 * S),
        ("1w", 604800 * S),
        ("3 minutes", 180 * S),
        ("7us", 7),
    ],
)
def test_durations(text: str, expected: int) -> None:
    assert duration_us(text, "x") == expected


def test_random_values_are_spread() -> None:
    made = np.array(values(t.INTEGER, 20000, max="9"))
    assert (np.abs(np.bincount(made) - 2000) < 200).all()


def test_a_query_reads_all_rows_of_a_generator_that_ends():
    with watersmeet.connect(runtime="inprocess", parallelism=1) as connection:
        connection.execute(
            "CREATE SOURCE s (id int, v int) WITH (connector = 'datagen', fields.id.kind = 'sequence',"
            " fields.id.start = '1', fields.id.end = '2500', fields.v.min = '3', fields.v.max = '3',"
            " datagen.rows.per.second = '1')"
        )
        for _ in range(2):
            assert connection.execute("SELECT count(*), min(id), max(id), avg(v) FROM s").fetchall() == [
                (2500, 1, 2500, 3)
            ]
        connection.execute("CREATE SOURCE endless (id int) WITH (connector = 'datagen')")
        with pytest.raises(watersmeet.Error, match="it has no end"):
            connection.execute("SELECT * FROM endless LIMIT 1")


def test_withdrawn_slices_are_generated_again(tmp_path: Path) -> None:
    source = datagen(datagen__rows__per__second="1000")
    source.poll(None, 1, 1, T0)
    polls = []
    for number in range(1, 4):
        polls.append(source.poll(polls[-1].position if polls else None, 1 << 20, 1 << 40, T0 + number * S))
        source.accept(polls[-1].slices)
    for _ in range(2):
        source.withdraw([piece for poll in polls[1:] for piece in poll.slices])
    assert sum(piece.rows for piece in source.history(None, 1 << 20, 1 << 40).slices) == polls[0].rows
    again = source.poll(polls[0].position, polls[1].rows, 1 << 40, T0 + 9 * S)
    assert again.slices[0].begin == polls[0].position["rows"]
