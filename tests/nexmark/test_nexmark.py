"""Nexmark's queries as materialised views: equal to DuckDB's answers on the same events after every micro-batch."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import benchmarks.nexmarkconnector  # noqa: F401 -- registers the connector
import duckdb
import numpy as np
import pytest
from benchmarks.nexmarkevents import KINDS, Settings, events_of

import watersmeet
from tests.harness import Harness, connect_without_connectors
from tests.property.oracle import AVERAGE
from watersmeet.testing import written

EXAMPLES = Path(__file__).parents[2] / "examples" / "nexmark"
SOURCES = (EXAMPLES / "sources.sql").read_text(encoding="utf-8")
QUERIES = {int(path.stem[1:]): path.read_text(encoding="utf-8") for path in sorted(EXAMPLES.glob("q*.sql"))}
#: Its answer depends on when the events come: it has a test of its own.
BY_CLOCK = 12
VIEWS = [n for n in QUERIES if n != BY_CLOCK]
#: RisingWave's functions as DuckDB spells them.
_SPELLINGS = (
    (
        r"tumble\((\w+), date_time, INTERVAL '10' SECOND\)",
        (
            r"(SELECT *, make_timestamp(epoch_us(date_time) // 10000000 * 10000000) AS window_start, "
            r"window_start + INTERVAL 10 SECOND AS window_end FROM \1)"
        ),
    ),
    (
        r"hop\((\w+), date_time, INTERVAL '2' SECOND, INTERVAL '10' SECOND\)",
        (
            r"(SELECT t.*, make_timestamp((epoch_us(date_time) // 2000000 - i) * 2000000) AS window_start FROM "
            r"\1 AS t, range(5) AS g(i))"
        ),
    ),
    (
        (
            r"first_value\(date_time\) OVER\s+\(PARTITION BY bidder ORDER BY date_time "
            r"SESSION WITH GAP INTERVAL '10' SECOND\) AS starttime\s+FROM bid"
        ),
        (
            r"max(begun) OVER (PARTITION BY bidder ORDER BY date_time) AS starttime FROM "
            r"(SELECT *, CASE WHEN date_time < before + INTERVAL 10 SECOND THEN NULL ELSE date_time END AS begun FROM "
            r"(SELECT *, lag(date_time) OVER (PARTITION BY bidder ORDER BY date_time) AS before FROM bid))"
        ),
    ),
    (r"(?i)to_char\(date_time, 'yyyy-mm-dd'\)", "strftime(date_time, '%Y-%m-%d')"),
    (r"(?i)to_char\(date_time, 'hh24:mi'\)", "strftime(date_time, '%H:%M')"),
    (
        r"\(regexp_match\(url, '\(&\|\^\)channel_id=\(\[\^&\]\*\)'\)\)\[2\]",
        "CASE WHEN regexp_matches(url, '(&|^)channel_id=') THEN regexp_extract(url, '(&|^)channel_id=([^&]*)', 2) END",
    ),
    # The side input does not change, so as of when it is read makes no difference.
    (r" FOR SYSTEM_TIME AS OF PROCTIME\(\)", ""),
    (r"avg\(([\w.]+)\) OVER \(([^()]*)\)", r"exact_avg(sum(\1) OVER (\2), count(\1) OVER (\2))"),
    (r"(?<!_)avg\(([\w.]+)\)(?! OVER)", r"exact_avg(sum(\1), count(\1))"),
)


class Judge:
    """The events in DuckDB."""

    def __init__(self) -> None:
        self.connection = duckdb.connect(config={"threads": 1})
        self.connection.execute(AVERAGE)
        self.connection.execute(
            "CREATE TABLE side_input AS SELECT i AS key, 'value ' || i AS value FROM range(10000) AS g(i)"
        )

    def add(self, kind: str, rows) -> None:
        self.connection.register("incoming", rows)
        self.connection.execute(f"CREATE TABLE IF NOT EXISTS {kind} AS FROM incoming LIMIT 0")
        self.connection.execute(f"INSERT INTO {kind} FROM incoming")
        self.connection.unregister("incoming")

    def answer(self, number: int) -> Counter:
        return counted(self.connection.execute(spelled(number)).fetchall())


def spelled(number: int) -> str:
    """The query as DuckDB spells it."""
    query = QUERIES[number]
    for pattern, other in _SPELLINGS:
        query = re.sub(pattern, other, query)
    return query


def counted(rows) -> Counter:
    return Counter(tuple(map(written, row)) for row in rows)


def compare(connection, judge: Judge) -> None:
    for number in VIEWS:
        expected = judge.answer(number)
        real = counted(connection.execute(f"SELECT * FROM q{number:02d}").fetchall())
        assert real == expected, f"q{number}\nmissing {expected - real}\nsurplus {real - expected}"


def run(events: int, batches: int, **options) -> None:
    """Events come in batches, half of the views before the first, the others after half of them."""
    judge, settings = Judge(), Settings(seed=7, first_event_rate=100)  # several windows
    numbers = np.arange(events)
    kinds = settings.kinds(numbers)
    with connect_without_connectors(**options) as connection:
        connection.execute(SOURCES)
        for number in VIEWS[::2]:
            connection.execute(f"CREATE MATERIALIZED VIEW q{number:02d} AS {QUERIES[number]}")
        for batch in range(batches):
            if batch == batches // 2:
                for number in VIEWS[1::2]:
                    connection.execute(f"CREATE MATERIALIZED VIEW q{number:02d} AS {QUERIES[number]}")
            inside = (numbers >= events * batch // batches) & (numbers < events * (batch + 1) // batches)
            for place, kind in enumerate(KINDS):
                rows = events_of(kind, numbers[inside & (kinds == place)], settings)
                judge.add(kind, rows)
                Harness(connection).inject(kind, rows)
            connection.execute("FLUSH")
        compare(connection, judge)


@pytest.mark.slow
def test_all_in_process() -> None:
    run(2500, 3, runtime="inprocess", parallelism=2)


@pytest.mark.slow
def test_more_in_process() -> None:
    run(30_000, 7, runtime="inprocess", parallelism=3)


@pytest.mark.slow
@pytest.mark.spark
def test_all_on_spark() -> None:
    run(20_000, 3, parallelism=2)


@pytest.mark.slow
def test_the_connector_gives_these_events() -> None:
    judge, settings = Judge(), Settings()
    numbers = np.arange(3000)
    for place, kind in enumerate(KINDS):
        judge.add(kind, events_of(kind, numbers[settings.kinds(numbers) == place], settings))
    with watersmeet.connect(runtime="inprocess", parallelism=2) as connection:
        connection.execute(SOURCES.replace("= 20000", "= 3000, nexmark.min.event.gap.in.ns = 0"))
        for number in VIEWS:
            connection.execute(f"CREATE MATERIALIZED VIEW q{number:02d} AS {QUERIES[number]}")
        connection.execute("FLUSH")
        compare(connection, judge)


def test_windows_of_processing_time() -> None:
    """q12: rows are in the window of the clock in which they came."""
    settings, kinds = Settings(seed=7), Settings(seed=7).kinds(np.arange(600))
    start_us, expected = 1_714_564_803_000_000, Counter()
    with connect_without_connectors(runtime="inprocess", parallelism=2) as connection:
        Harness(connection).set_clock(start_us)
        connection.execute(SOURCES)
        connection.execute(f"CREATE MATERIALIZED VIEW v AS {QUERIES[BY_CLOCK]}")
        for batch in range(6):
            Harness(connection).set_clock(start_us + 4_000_000 * batch)
            numbers = np.arange(100 * batch, 100 * batch + 100)
            rows = events_of("bid", numbers[kinds[numbers] == KINDS.index("bid")], settings)
            Harness(connection).inject("arriving_bid", rows.select(["auction", "bidder", "price", "date_time"]))
            second = 3 + 4 * batch
            expected.update((bidder, second // 10 * 10) for bidder in rows.column("bidder").to_pylist())
        connection.execute("FLUSH")
        found = connection.execute("SELECT bidder, starttime, bid_count FROM v").fetchall()
        assert Counter({(b, start.second): n for b, start, n in found}) == expected


def test_the_connector_says_when_its_events_came() -> None:
    with watersmeet.connect(runtime="inprocess", parallelism=2) as connection:
        Harness(connection).set_clock(1_714_564_803_000_000)
        connection.execute(SOURCES.replace("= 20000", "= 3000, nexmark.min.event.gap.in.ns = 0"))
        connection.execute(f"CREATE MATERIALIZED VIEW v AS {QUERIES[BY_CLOCK]}")
        connection.execute("FLUSH")
        ((least, greatest, count),) = connection.execute(
            "SELECT min(starttime), max(endtime), sum(bid_count) FROM v"
        ).fetchall()
        assert (least.second, greatest.second, count) == (0, 10, 2760)
