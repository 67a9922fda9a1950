"""An error in an operator of one view stops that view by name; all other views go on, also after opening again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import duckdb
import pyarrow as pa
import pytest
from tests.faultysteps import FAULTS, Step, raising
from tests.harness import Harness
from tests.thorough import mostly_slow

import watersmeet
from watersmeet import Error
from watersmeet.connectors import registry
from watersmeet.errors import error
from watersmeet.kernel import executor
from watersmeet.kernel.evaluation import expressions
from watersmeet.kernel.operators import STEPS
from watersmeet.runtime import slices


@dataclass(frozen=True)
class Case:
    """Statements that create a view with an operator, and statements that give the operator rows.

    {n}: the number of the view. stopped: the relation that stops, if its name is not v{n}.
    """

    dialect: str
    setup: str
    make: str
    rows: str
    stopped: str = "v{n}"


_TABLES = "CREATE TABLE l (i int, k int, ts timestamp); CREATE TABLE r (j int, k int)"
_GROWING = "CREATE TABLE l (i int, k int, ts timestamp) APPEND ONLY; CREATE TABLE r (j int, k int) APPEND ONLY"
_ROWS = "INSERT INTO l VALUES ({n}, 1, '2024-01-01 00:00:00'); INSERT INTO r VALUES ({n}, 1)"
_VIEW = "CREATE MATERIALIZED VIEW v{n} AS "
_TIMED = (
    "CREATE TABLE l (i int, k int, ts timestamp, WATERMARK FOR ts AS ts) APPEND ONLY; "
    "CREATE TABLE r (k int PRIMARY KEY, ts timestamp, j int, WATERMARK FOR ts AS ts)"
)
_STREAMS = "CREATE STREAM l (i int, k string); CREATE STREAM r (j int, k string)"
_STREAM_ROWS = "INSERT INTO l(i, k) VALUES ({n}, 'a'); INSERT INTO r(j, k) VALUES ({n} + 10, 'a')"
_TOPICS = (
    "SET defaults.topic.autocreate=true; CREATE TABLE l (_key int, x string NULL) FORMAT (INT, JSON); "
    "CREATE TABLE r (_key int, y string NULL) FORMAT (INT, JSON)"
)
_TOPIC_ROWS = "INSERT INTO l(_key, x) VALUES ({n}, 'a'); INSERT INTO r(_key, y) VALUES ({n}, 'b')"


def _tables(query: str, rows: str = _ROWS) -> Case:
    return Case("risingwave", _TABLES, _VIEW + query, rows)


CASES = {
    "aggregate": _tables("SELECT k, sum(i) AS s FROM l GROUP BY k"),
    "arrange": _tables("SELECT l.i, r.j FROM l JOIN r ON l.k = r.k"),
    "arrivalasof": Case(
        "risingwave",
        _GROWING,
        _VIEW + "SELECT l.i, r.j FROM l ASOF LEFT JOIN r ON l.k = r.k AND l.i >= r.j EMIT ON ARRIVAL",
        _ROWS,
    ),
    "arrivaljoin": Case(
        "risingwave", _GROWING, _VIEW + "SELECT l.i, r.j FROM l LEFT JOIN r ON l.k = r.k EMIT ON ARRIVAL", _ROWS
    ),
    "arrivals": Case("timeplus", _STREAMS, _VIEW + "SELECT k, latest(i) AS last FROM l GROUP BY k", _STREAM_ROWS),
    "asof": _tables("SELECT l.i, r.j FROM l ASOF JOIN r ON l.k = r.k AND l.i >= r.j"),
    "changelog": _tables("WITH s AS CHANGELOG FROM l SELECT i, changelog_op AS op FROM s"),
    "changes": Case(
        "lenses",
        _TOPICS,
        "INSERT INTO v{n} SELECT TABLE l.x, r.y FROM l LEFT JOIN r ON l._key = r._key; "
        "INSERT INTO w{n} SELECT STREAM v{n}.x, r.y FROM v{n} JOIN r ON v{n}._key = r._key WITHIN 2s",
        _TOPIC_ROWS,
    ),
    "cut": Case(
        "sqlstream",
        "CREATE STREAM l (i INTEGER, k INTEGER); CREATE TABLE r (j INTEGER, k INTEGER)",
        'CREATE MATERIALIZED VIEW "v{n}" AS SELECT STREAM l.i, r.j FROM l JOIN r ON l.k = r.k',
        "INSERT INTO r VALUES ({n}, 1); INSERT INTO l(i, k) VALUES ({n}, 1)",
    ),
    "dynamicfilter": _tables("SELECT i FROM l WHERE i >= (SELECT max(j) FROM r)"),
    "groupjoin": _tables("SELECT l.k, sum(r.j) AS s FROM l JOIN r ON l.k = r.k GROUP BY l.k"),
    "join": _tables("SELECT l.i, r.j FROM l JOIN r ON l.k = r.k"),
    "laterowfilter": Case(
        "timeplus",
        _STREAMS,
        _VIEW + "SELECT a.i AS ai, b.i AS bi FROM l AS a JOIN l AS b ON a.k = b.k "
        "AND date_diff_within(1h, a._tp_time, b._tp_time) AND a.i < b.i",
        _STREAM_ROWS,
    ),
    "map": _tables("SELECT i + 1 AS i FROM l"),
    "multijoin": _tables("SELECT l.i, r.j, o.i AS oi FROM l JOIN r ON l.k = r.k JOIN l AS o ON o.k = l.k"),
    "records": Case(
        "lenses",
        _TOPICS,
        "INSERT INTO v{n} SELECT STREAM l.x, r.y FROM l LEFT JOIN (SELECT TABLE * FROM r) AS r ON l._key = r._key",
        _TOPIC_ROWS,
    ),
    "repeat": _tables("SELECT k FROM l EXCEPT ALL SELECT j FROM r"),
    "scan": _tables("SELECT i FROM l"),
    "sink": _tables("SELECT i FROM l"),
    "session": Case(
        "timeplus",
        "CREATE STREAM l (i int, k int)",
        _VIEW + "SELECT k, count() AS n FROM session(l, 5s) GROUP BY k, window_start",
        "INSERT INTO l (i, k) VALUES ({n}, 1)",
    ),
    "sliding": Case(
        "sqlstream",
        "CREATE STREAM l (i INTEGER, k INTEGER)",
        'CREATE MATERIALIZED VIEW "v{n}" AS SELECT STREAM l.i, SUM(l.i) OVER (PARTITION BY l.k ROWS 5 PRECEDING) AS s '
        "FROM l",
        "INSERT INTO l(i, k) VALUES ({n}, 1)",
    ),
    "temporal": Case(
        "risingwave",
        "CREATE TABLE l (i int, k int) APPEND ONLY; CREATE TABLE r (k int PRIMARY KEY, j int)",
        _VIEW + "SELECT l.i, r.j FROM l LEFT JOIN r FOR SYSTEM_TIME AS OF PROCTIME() ON l.k = r.k",
        "INSERT INTO r VALUES ({n}, 1); INSERT INTO l VALUES ({n}, {n})",
    ),
    "timefilter": _tables("SELECT i FROM l WHERE ts > now() - INTERVAL '1 hour' - {n} * INTERVAL '1 hour'"),
    "topn": _tables("SELECT i FROM l ORDER BY i LIMIT 2"),
    "union": _tables("SELECT i FROM l UNION ALL SELECT j FROM r"),
    "unnest": _tables("SELECT i, unnest(ARRAY[i, k]) AS u FROM l"),
    "upsert": Case("lenses", _TOPICS, "INSERT INTO v{n} SELECT TABLE x FROM l WHERE x <> 'v{n}'", _TOPIC_ROWS),
    "versions": Case(
        "risingwave",
        _TIMED,
        _VIEW + "SELECT l.i, r.j FROM l JOIN r FOR SYSTEM_TIME AS OF l.ts ON l.k = r.k",
        "INSERT INTO r VALUES (1, '2024-01-01 00:00:00', {n}); INSERT INTO l VALUES ({n}, 1, '2024-01-01 01:00:00')",
    ),
    "window": _tables("SELECT i, row_number() OVER (PARTITION BY k ORDER BY i) AS n FROM l"),
}


@contextmanager
def planted(kind: str, fault: Callable[[Step], Step]) -> Iterator[None]:
    """All operators of a kind fail; of scans and sinks only those of other relations than `ok` and `good`."""
    if kind in STEPS:
        with mock.patch.dict(STEPS, {kind: fault(STEPS[kind])}):
            yield
        return
    name = {"scan": "_read", "sink": "_shown"}[kind]
    step = getattr(executor, name)

    def chosen(op: Any, *arguments: Any, **named: Any) -> Any:
        return (step if op.relation_id in spared else fault(step))(op, *arguments, **named)

    spared = planted.spared
    with mock.patch.object(executor, name, chosen):
        yield


def errors(connection: watersmeet.Connection) -> dict[str, Any]:
    return {v["name"]: v["error"] for v in connection.status()["views"]}


def test_every_kind_of_operator_has_a_case() -> None:
    """`constant` has rows only when its view is created, `sort` is only in pumps that merge into another system."""
    assert CASES.keys() == STEPS.keys() - {"constant", "sort"} | {"scan", "sink"}


@pytest.mark.parametrize("kind", mostly_slow(list(CASES), 9, len(CASES)))
def test_an_operator_that_fails_stops_its_views_alone(kind: str, tmp_path: Path) -> None:
    case = CASES[kind]
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        connection.execute("CREATE TABLE ok (x int); CREATE MATERIALIZED VIEW good AS SELECT x FROM ok")
    found: dict[str, Any] = {}
    with watersmeet.connect(tmp_path / "db", case.dialect, runtime="inprocess") as connection:
        catalog = connection._session.catalog
        planted.spared = {catalog.by_name(name).id for name in ("ok", "good")}
        connection.execute(case.setup)
        for n, (name, fault) in enumerate(FAULTS.items()):
            view = case.stopped.format(n=n)
            connection.execute(case.make.format(n=n))
            connection.execute(case.rows.format(n=n))
            connection.execute("FLUSH")
            plans = connection._session.database.plans
            assert kind in {o.kind for o in plans.producers[connection._session.catalog.by_name(view).id]}
            assert errors(connection)[view] is None, name
            with planted(kind, fault):
                connection.execute(case.rows.format(n=n + 10))
                Harness(connection).deliver("ok", [[str(n)]], None)
                connection.execute("FLUSH")
            found = errors(connection)
            assert found[view]["condition"] == "VIEW_FAILED", name
            assert view in found[view]["message"], name
            assert f"kind {kind}" in str(found[view]), name
            assert found["good"] is None, name
            assert connection.status()["state"] == "running", name
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        assert errors(connection) == found
        connection.execute("INSERT INTO ok VALUES (3); FLUSH")
        assert connection.execute("SELECT x FROM good ORDER BY x").fetchall() == [(0,), (1,), (2,), (3,)]
        assert errors(connection) == found
        shown = str(connection.execute("SHOW ERRORS").fetchall())
        assert all(case.stopped.format(n=n) in shown for n in range(len(FAULTS)))


TWO_VIEWS = (
    "CREATE TABLE ok (x int); CREATE MATERIALIZED VIEW good AS SELECT x FROM ok; CREATE TABLE l (i int, k int); "
    "CREATE MATERIALIZED VIEW sums AS SELECT k, sum(i) AS s FROM l GROUP BY k; "
    "CREATE MATERIALIZED VIEW large AS SELECT k FROM sums WHERE s > 0; "
    "CREATE MATERIALIZED VIEW same AS SELECT k, sum(i) AS s FROM l GROUP BY k"
)
CAUSES: dict[str, Callable[[], Exception]] = {
    "TypeError": lambda: TypeError("planted"),
    "AssertionError": AssertionError,
    "RecursionError": lambda: RecursionError("planted"),
    "MemoryError": lambda: MemoryError("planted"),
    "ArrowInvalid": lambda: pa.ArrowInvalid("planted"),
    "InternalException": lambda: duckdb.InternalException("planted"),
    "INTERNAL_ERROR": lambda: error("INTERNAL_ERROR", "planted"),
    "STATE_DAMAGED": lambda: error("STATE_DAMAGED", "planted"),
}


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[watersmeet.Connection]:
    with watersmeet.connect(tmp_path / "db", runtime="inprocess", parallelism=2) as opened:
        opened.execute(TWO_VIEWS)
        yield opened


def planted_aggregate(step: Step) -> Any:
    return mock.patch.dict(STEPS, {"aggregate": step})


@pytest.mark.parametrize("name", CAUSES)
def test_an_error_of_any_class_stops_all_views_that_read_the_operator(
    name: str, connection: watersmeet.Connection
) -> None:
    with planted_aggregate(partial(raising, CAUSES[name])):
        connection.execute("INSERT INTO l VALUES (1, 1); INSERT INTO ok VALUES (1); FLUSH")
    found = errors(connection)
    for view in ("sums", "same"):  # both have the same operator
        text = str(found[view])
        assert f'"{view}" was stopped: ' in text
        assert "planted" in text or name in text
    expected = {"MemoryError": "OUT_OF_MEMORY", "STATE_DAMAGED": "STATE_DAMAGED"}.get(name, "VIEW_FAILED")
    assert found["sums"]["condition"] == expected
    assert "which it reads, was stopped" in found["large"]["message"]
    assert found["good"] is None
    assert connection.execute("SELECT x FROM good").fetchall() == [(1,)]
    with pytest.raises(Error, match='"sums" was stopped'):
        connection.execute("SELECT * FROM sums")
    connection.execute(
        "DROP MATERIALIZED VIEW same; DROP MATERIALIZED VIEW large; DROP MATERIALIZED VIEW sums; "
        "CREATE MATERIALIZED VIEW sums AS SELECT k, sum(i) AS s FROM l GROUP BY k"
    )
    assert connection.execute("SELECT * FROM sums").fetchall() == [(1, 1)]


def test_a_lack_of_memory_that_passes_stops_no_view(connection: watersmeet.Connection) -> None:
    step, attempts = STEPS["aggregate"], []

    def once(*arguments: Any) -> Any:
        attempts.append(arguments)
        if len(attempts) == 1:
            raise MemoryError
        return step(*arguments)

    with planted_aggregate(once):
        connection.execute("INSERT INTO l VALUES (1, 1); FLUSH")
    assert len(attempts) > 1
    assert set(errors(connection).values()) == {None}
    assert connection.execute("SELECT * FROM sums").fetchall() == [(1, 1)]


def test_an_error_of_the_machine_stops_no_view(connection: watersmeet.Connection) -> None:
    """The engine stops as a whole: the same epoch runs again at the next FLUSH."""
    with planted_aggregate(partial(raising, lambda: OSError(5, "planted"))):
        with pytest.raises(Error, match="planted"):
            connection.execute("INSERT INTO l VALUES (1, 1); FLUSH")
        assert connection.status()["state"] == "failed"
    connection.execute("FLUSH")
    assert set(errors(connection).values()) == {None}
    assert connection.execute("SELECT * FROM large").fetchall() == [(1,)]


def test_an_operator_that_fails_while_a_view_is_filled_fails_the_statement(connection: watersmeet.Connection) -> None:
    connection.execute("INSERT INTO ok VALUES (1)")
    step = {"constant": partial(raising, lambda: KeyError("planted"))}
    with mock.patch.dict(STEPS, step), pytest.raises(Error, match="planted"):
        connection.execute("CREATE MATERIALIZED VIEW v AS SELECT * FROM (VALUES (1), (2)) AS w(x)")
    connection.execute("FLUSH")
    assert errors(connection).keys() == {"good", "sums", "large", "same"}
    assert connection.execute("SELECT x FROM good").fetchall() == [(1,)]


def test_rows_of_a_table_that_cannot_be_read_stop_the_views_over_it(connection: watersmeet.Connection) -> None:
    with mock.patch.object(slices, "fitted", partial(raising, lambda: KeyError("planted"))):
        connection.execute("INSERT INTO l VALUES (1, 1); FLUSH")
    found = errors(connection)
    assert "kind scan" in found["sums"]["detail"]
    assert found["good"] is None
    connection.execute("INSERT INTO ok VALUES (1); FLUSH")
    assert connection.execute("SELECT x FROM good").fetchall() == [(1,)]


def test_rows_of_a_source_that_cannot_be_read_stop_the_source(
    connection: watersmeet.Connection, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.json").write_text('{"a": 1}\n')
    connection.execute(
        f"CREATE SOURCE s (a int) WITH (connector = 'file', path = '{tmp_path}/in', format = 'json', settle_ms = 0); "
        "CREATE MATERIALIZED VIEW v AS SELECT a FROM s; FLUSH"
    )
    (tmp_path / "in/b.json").write_text('{"a": 2}\n')
    with mock.patch.object(registry, "read_slice", partial(raising, lambda: KeyError("planted"))):
        connection.execute("INSERT INTO ok VALUES (1); FLUSH")
        assert connection.execute("SELECT x FROM good").fetchall() == [(1,)]
        assert "planted" in str(connection.execute("SHOW ERRORS").fetchall())
    assert set(errors(connection).values()) == {None}
    connection.execute("FLUSH")
    assert connection.execute("SELECT a FROM v ORDER BY a").fetchall() == [(1,), (2,)]


def test_expressions_go_on_after_an_internal_error_of_duckdb(connection: watersmeet.Connection) -> None:
    broken = partial(raising, lambda: duckdb.InternalException("planted"))
    with mock.patch.object(expressions.Evaluator, "_compute", broken):
        before = expressions.EVALUATOR._connection()
        connection.execute("INSERT INTO l VALUES (1, 1); FLUSH")
    assert errors(connection)["large"] is not None
    assert expressions.EVALUATOR._connection() is not before


def test_an_operator_that_returns_no_changes_is_named(connection: watersmeet.Connection) -> None:
    with planted_aggregate(lambda *_: None):
        connection.execute("INSERT INTO l VALUES (1, 1); FLUSH")
    assert "an operator of kind aggregate returned NoneType" in errors(connection)["sums"]["message"]


def test_a_clock_that_was_ahead_is_an_error_until_the_machine_has_caught_up(
    connection: watersmeet.Connection, tmp_path: Path
) -> None:
    now_us = time.time_ns() // 1000
    harness = Harness(connection)
    harness.set_clock(now_us + 3_600_000_000)
    connection.execute("INSERT INTO ok VALUES (1); FLUSH")
    assert connection.execute("SHOW ERRORS").fetchall() == []
    connection.close()
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as reopened:
        ((relation, kind, _, _, reason),) = reopened.execute("SHOW ERRORS").fetchall()
        assert (relation, kind) == (None, "clock")
        assert "ahead of the machine's clock" in reason
