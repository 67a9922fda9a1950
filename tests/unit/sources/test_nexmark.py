"""Nexmark's events: functions of their numbers, in the benchmark's proportions, with RisingWave's options."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.nexmarkconnector import CONNECTOR
from benchmarks.nexmarkevents import COLUMNS, KINDS, Settings, events_of
from tests.unit.sources.helpers import T0, Driver, S, relation, stored

from watersmeet.connectors.registry import open_source, register_source
from watersmeet.errors import Error
from watersmeet.values import types as t
from watersmeet.values.types import Field, SqlType


def columns(kind: str) -> tuple[Field, ...]:
    return tuple(Field(name, sql) for name, sql in COLUMNS[kind])


STRUCTS = tuple(Field(kind, SqlType("struct", fields=COLUMNS[kind])) for kind in KINDS)


def nexmark(fields: Any = columns("bid"), **options: str) -> Any:
    return open_source(relation(fields, connector="nexmark", **options))


def rows(driver: Driver, fields: Any = columns("bid"), now_us: int = T0) -> list[tuple[Any, ...]]:
    found = driver.once(now_us, columns=fields)
    while driver.last.more:
        found += driver.once(now_us, columns=fields)
    return found


def fast(kind: str, events: int, **options: str) -> dict[str, str]:
    return {
        "nexmark__table__type": kind.title(),
        "nexmark__event__num": str(events),
        "nexmark__min__event__gap__in__ns": "0",
        **options,
    }


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("budget", [7, 100, 1 << 40])
def test_events_do_not_depend_on_how_they_are_cut(kind: str, budget: int) -> None:
    driver = Driver(nexmark(columns(kind), **fast(kind, 2003, nexmark__split__num="3")), budget_rows=budget)
    found = rows(driver, columns(kind))
    numbers = np.arange(2003)
    whole = events_of(kind, numbers[Settings().kinds(numbers) == KINDS.index(kind)], Settings())
    assert found == list(zip(*(c.to_pylist() for c in whole.columns), strict=True))
    assert all(piece.rows <= max(budget, 50) for piece in driver.slices)
    assert sum(piece.rows for piece in driver.slices) == len(found)
    assert driver.last.finished


def test_proportions_and_ids() -> None:
    settings = Settings()
    numbers = np.arange(100_000)
    counts = np.bincount(settings.kinds(numbers))
    assert counts.tolist() == [2000, 6000, 92_000]
    for place, kind in enumerate(KINDS):
        own = numbers[settings.kinds(numbers) == place]
        assert (settings.count(kind, own) == np.arange(len(own))).all()
    people = events_of("person", numbers[settings.kinds(numbers) == 0], settings)
    auctions = events_of("auction", numbers[settings.kinds(numbers) == 1], settings)
    bids = events_of("bid", numbers[settings.kinds(numbers) == 2], settings)
    assert people["id"].to_pylist() == list(range(1000, 3000))
    assert auctions["id"].to_pylist() == list(range(1000, 7000))
    assert np.isin(auctions["seller"].to_numpy(), people["id"].to_numpy()).mean() > 0.99
    assert np.isin(bids["auction"].to_numpy(), auctions["id"].to_numpy()).mean() > 0.99
    hot = np.bincount(bids["auction"].to_numpy())
    assert np.sort(hot)[-60:].sum() > 0.4 * len(bids)
    assert (auctions["expires"].to_numpy() > auctions["date_time"].to_numpy()).all()
    assert (auctions["reserve"].to_numpy() > auctions["initial_bid"].to_numpy()).all()
    assert (np.diff(bids["date_time"].to_numpy().astype(np.int64)) >= 0).all()


def test_all_kinds_in_one_source() -> None:
    fields = (Field("event_type", t.BIGINT), *STRUCTS)
    driver = Driver(nexmark(fields, nexmark__event__num="100", nexmark__min__event__gap__in__ns="0"))
    found = rows(driver, fields)
    assert [row[0] for row in found] == ([0] + [1] * 3 + [2] * 46) * 2
    assert all([value is not None for value in row[1:]] == [row[0] == place for place in range(3)] for row in found)
    own = Driver(nexmark(**fast("bid", 100)))
    assert [tuple(row[3].values()) for row in found if row[0] == 2] == rows(own)


def test_another_seed_gives_other_values() -> None:
    assert rows(Driver(nexmark(**fast("bid", 50)))) != rows(Driver(nexmark(**fast("bid", 50, nexmark__seed="1"))))


def test_the_pace_and_the_end() -> None:
    driver = Driver(
        nexmark(nexmark__table__type="BID", nexmark__event__num="1000", nexmark__min__event__gap__in__ns="1000000")
    )
    assert rows(driver) == []
    assert driver.last.next_us == T0 + S // 1000
    assert len(rows(driver, now_us=T0 + S // 10)) == 2 * 46
    rows(driver, now_us=T0 + S)
    assert (driver.last.finished, driver.last.next_us) == (True, None)


def test_history_repeats_all_and_a_restart_goes_on(tmp_path) -> None:
    first = Driver(nexmark(**fast("bid", 500)), budget_rows=99)
    found = first.once(columns=columns("bid"))
    first.source.save(tmp_path / "seen.json")
    found += first.once(columns=columns("bid"))
    again = Driver(nexmark(**fast("bid", 500)))
    again.source.load(tmp_path / "seen.json")
    again.source.accept(stored(first.slices))
    again.position = first.position
    history = [
        row for piece in (again.source.history(None, 50, 1 << 40),) for row in again.read(piece.slices, columns("bid"))
    ]
    assert history == found[: len(history)]
    assert len(found + rows(again)) == 460


@pytest.mark.parametrize(
    ("fields", "options", "message"),
    [
        (columns("bid"), {"nexmark__table__type": "Seller"}, 'can\'t be "Seller"'),
        (columns("bid"), {"nexmark__table__type": "Person"}, 'no column "auction" for person events'),
        (columns("bid"), {}, "can't be bigint"),
        ((Field("price", t.INTEGER),), {"nexmark__table__type": "Bid"}, "can't be integer"),
        (columns("bid"), {"nexmark__table__type": "Bid", "nexmark__event__rate": "1"}, "no option"),
        (columns("bid"), {"nexmark__table__type": "Bid", "nexmark__event__num": "-1"}, "can't be -1"),
        (columns("bid"), {"nexmark__table__type": "Bid", "nexmark__hot__bidder__ratio": "0"}, "can't be 0"),
    ],
)
def test_options_that_can_not_work_are_refused(fields, options, message) -> None:
    with pytest.raises(Error, match="CONNECTOR_OPTION") as caught:
        nexmark(fields, **options)
    assert message in caught.value.message


def test_a_name_is_registered_once() -> None:
    with pytest.raises(Error, match='there is a connector "nexmark" already') as refused:
        register_source("nexmark", CONNECTOR)
    assert refused.value.condition == "INVALID_PARAMETER"


def test_a_process_imports_the_connectors_of_its_environment(tmp_path: Path) -> None:
    script = tmp_path / "bids.sql"
    script.write_text(
        "CREATE SOURCE bid (auction bigint) WITH (connector = 'nexmark', nexmark.table.type = 'Bid', "
        "nexmark.event.num = 100, nexmark.min.event.gap.in.ns = 0);"
        "CREATE MATERIALIZED VIEW v AS SELECT count(*) AS n FROM bid; FLUSH; SELECT n FROM v;"
    )
    command = [sys.executable, "-c", RUN, str(tmp_path / "db"), str(script)]
    for modules in ("", "benchmarks.nexmarkconnector"):
        done = subprocess.run(
            command, env={**os.environ, "WATERSMEET_CONNECTORS": modules}, capture_output=True, text=True, check=False
        )
        if modules:
            assert done.stdout.strip() == "[(92,)]", done.stderr
        else:
            assert 'there is no connector "nexmark"' in done.stderr


RUN = """
import sys, watersmeet
with watersmeet.connect(sys.argv[1], runtime="inprocess") as connection:
    print(connection.execute(open(sys.argv[2]).read()).fetchall())
"""
