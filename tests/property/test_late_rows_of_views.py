"""Rows that operators of views drop as late are kept: `late_rows(view [, number])`.

Law: the content of a view is the batch result over its inputs without exactly the rows in `late_rows`, after each
epoch, for any order of rows, restarts, and numbers of buckets; and as many rows are counted.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import duckdb
import numpy as np
import pytest

import watersmeet
from tests.harness import Harness
from tests.thorough import mostly_slow
from tests.unit.store.faults import FaultyOs, Killed
from watersmeet.errors import error
from watersmeet.kernel.operators import STEPS
from watersmeet.maintenance import maintaining
from watersmeet.runtime import inprocess
from watersmeet.session.features import viewrefresh
from watersmeet.system import files

START = dt.datetime(2024, 1, 1, 10)
_WINDOW = "time_bucket(INTERVAL 10 SECOND, _tp_time) AS window_start"
_HOPS = (
    "unnest([time_bucket(INTERVAL 5 SECOND, _tp_time), time_bucket(INTERVAL 5 SECOND, _tp_time) - INTERVAL 5 SECOND])"
)
_NEAR = "l.k = r.k AND abs(epoch(l._tp_time) - epoch(r._tp_time)) <= 20"
_NAMED = "n, k, _tp_time"

#: For each view: its query; the batch query over a0, a1, …, its inputs without late rows; and for each input the stream
#: and the columns that the view reads. The table `clock` has the greatest time of each k, and that of all (NULL).
VIEWS: dict[str, tuple[str, str, list[tuple[str, str]]]] = {
    "joined": (
        "SELECT l.n AS n, r.n AS m FROM l JOIN r ON l.k = r.k AND date_diff_within(20s)",
        f"SELECT l.n, r.n FROM a0 AS l JOIN a1 AS r ON {_NEAR}",
        [("l", _NAMED), ("r", _NAMED)],
    ),
    "or_not": (
        "SELECT l.n AS n, r.n AS m FROM l LEFT JOIN r ON l.k = r.k AND date_diff_within(20s) WHERE l.n > 5",
        f"SELECT l.n, r.n FROM a0 AS l LEFT JOIN a1 AS r ON {_NEAR} WHERE l.n > 5",
        [("l", _NAMED), ("r", _NAMED)],
    ),
    "with_itself": (
        "SELECT l.n AS n, r.n AS m FROM l JOIN l AS r ON l.k = r.k AND date_diff_within(20s)",
        f"SELECT l.n, r.n FROM a0 AS l JOIN a0 AS r ON {_NEAR}",
        [("l", _NAMED)],
    ),
    "fixed": (
        "SELECT window_start, k, count() AS c FROM tumble(l, 10s) GROUP BY window_start, k",
        (
            "SELECT window_start, k, count(*) FROM a0 GROUP BY ALL "
            "HAVING window_start + INTERVAL 10 SECOND <= (SELECT newest FROM clock WHERE k IS NULL)"
        ),
        [("l", f"k, {_WINDOW}")],
    ),
    "waiting": (
        (
            "SELECT window_start, sum(n) AS c FROM tumble(l, 10s) GROUP BY window_start "
            "EMIT AFTER WINDOW CLOSE WITH DELAY 15s"
        ),
        (
            "SELECT window_start, sum(n) FROM a0 GROUP BY ALL "
            "HAVING window_start + INTERVAL 25 SECOND <= (SELECT newest FROM clock WHERE k IS NULL)"
        ),
        [("l", f"n, {_WINDOW}")],
    ),
    "hops": (
        "SELECT window_start, count() AS c FROM hop(l, 5s, 10s) GROUP BY window_start",
        (
            "SELECT window_start, count(*) FROM a0 GROUP BY ALL "
            "HAVING window_start + INTERVAL 10 SECOND <= (SELECT newest FROM clock WHERE k IS NULL)"
        ),
        [("l", f"{_HOPS} AS window_start")],
    ),
    "substreams": (
        "SELECT window_start, k, count() AS c FROM tumble(l, 10s) PARTITION BY k GROUP BY window_start, k",
        (
            "SELECT window_start, a0.k, count(*) FROM a0 JOIN clock ON a0.k = clock.k "
            "WHERE window_start + INTERVAL 10 SECOND <= newest GROUP BY ALL"
        ),
        [("l", f"k, {_WINDOW}")],
    ),
}


NOT_PROVEN = "its windows depend on the order in which rows arrived"


def proofs(connection: watersmeet.Connection) -> dict[str, str]:
    """The result of VERIFY for each view, or why there is none."""
    return {
        name: reason if result == "not provable" else result
        for name, _, result, _, _, reason, *_ in connection.execute("VERIFY").fetchall()
    }


def reference(view: str, rows: dict[str, list[tuple[Any, ...]]], late: list[list[tuple[Any, ...]]]) -> Counter[Any]:
    """The batch result over the rows of streams without the late rows of each input. All late rows must be rows."""
    _, query, inputs = VIEWS[view]
    with duckdb.connect() as batch:
        for name, found in rows.items():
            batch.execute(f"CREATE TABLE {name} (n int, k int, _tp_time timestamp)")
            if found:
                batch.executemany(f"INSERT INTO {name} VALUES (?, ?, ?)", found)
        batch.execute("CREATE TABLE clock AS SELECT k, max(_tp_time) AS newest FROM l GROUP BY ROLLUP (k)")
        for number, ((name, columns), dropped) in enumerate(zip(inputs, late, strict=True)):
            batch.execute(f"CREATE TABLE every AS SELECT {columns} FROM {name}")
            batch.execute("CREATE TABLE late AS FROM every WITH NO DATA")
            if dropped:
                batch.executemany(f"INSERT INTO late VALUES ({', '.join('?' * len(dropped[0]))})", dropped)
            assert batch.execute("FROM late EXCEPT ALL FROM every").fetchall() == []
            batch.execute(
                f"CREATE TABLE a{number} AS FROM every EXCEPT ALL FROM late; DROP TABLE every; DROP TABLE late"
            )
        return Counter(batch.execute(query).fetchall())


@pytest.mark.parametrize("seed", mostly_slow(range(12), 3))
def test_views_have_the_batch_result_without_late_rows(tmp_path: Path, seed: int) -> None:
    random = Random(seed)

    def connect() -> watersmeet.Connection:
        return watersmeet.connect(tmp_path / "db", "timeplus", runtime="inprocess", parallelism=1 + seed % 3)

    connection = connect()
    connection.execute("CREATE STREAM l(n int, k int); CREATE STREAM r(n int, k int)")
    for name, (query, _, _) in VIEWS.items():
        connection.execute(f"CREATE MATERIALIZED VIEW {name} AS {query}")
    rows: dict[str, list[tuple[Any, ...]]] = {"l": [], "r": []}
    clock, late = 0, dict.fromkeys(VIEWS, 0)
    for _ in range(random.randint(8, 16)):
        clock += random.choice([0, 3, 10, 30])
        for name in random.sample("lr", random.randint(1, 2)):
            made = [
                (random.randrange(9), random.randrange(3), START + dt.timedelta(seconds=clock - random.choice(behind)))
                for behind in [(0, 2, 15, 40, 90)] * random.randint(1, 5)
            ]
            values = ", ".join(f"({n}, {k}, '{time}')" for n, k, time in made)
            connection.execute(f"INSERT INTO {name}(n, k, _tp_time) VALUES {values}")
            rows[name] += made
        connection.execute("FLUSH")
        if random.random() < 0.15:
            connection.close()
            connection = connect()
    for name, (_, _, inputs) in VIEWS.items():
        kept = []
        for number, (_, columns) in enumerate(inputs, 1):
            names = duckdb.sql(f"SELECT {columns} FROM (SELECT 1 AS n, 1 AS k, now()::timestamp AS _tp_time)").columns
            found = connection.execute(f"SELECT {', '.join(names)} FROM late_rows({name}, {number})").fetchall()
            kept.append(found)
        content = Counter(connection.execute(f"SELECT * FROM table({name})").fetchall())
        assert content == reference(name, rows, kept), name
        shown = connection.execute(f"SHOW LATE ROWS FROM {name}").fetchall()
        assert [(r[1], r[2]) for r in shown] == [(len(found), len(found)) for found in kept]
        late[name] = sum(map(len, kept))
    assert connection.execute("SELECT count(*) FROM late_rows(joined, 1) WHERE _tp_time >= late_below").fetchone() == (
        0,
    )
    assert proofs(connection) == {**dict.fromkeys(VIEWS, "proven"), "substreams": NOT_PROVEN}
    counted = {v["name"]: v["late"] for v in connection.status()["views"]}
    assert {**counted, "substreams": late["substreams"]} == late
    connection.close()


_LATE = "SELECT n, k FROM late_rows(joined, 1) ORDER BY n"


def joined(path: Path, **options: Any) -> watersmeet.Connection:
    """A database with the view `joined` and two rows that moved its clocks; n = 1 is later than the others."""
    connection = watersmeet.connect(path, "timeplus", runtime="inprocess", **options)
    connection.execute("CREATE STREAM l(n int, k int); CREATE STREAM r(n int, k int)")
    connection.execute(f"CREATE MATERIALIZED VIEW joined AS {VIEWS['joined'][0]}")
    connection.execute("INSERT INTO l(n, k, _tp_time) VALUES (1, 1, '2024-01-01 10:05:00')")
    connection.execute("INSERT INTO r(n, k, _tp_time) VALUES (1, 1, '2024-01-01 10:05:00'); FLUSH")
    return connection


def late_row(connection: watersmeet.Connection, n: int) -> None:
    connection.execute(f"INSERT INTO l(n, k, _tp_time) VALUES ({n}, 1, '2024-01-01 10:00:00'); FLUSH")


@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_late_row_is_kept_once_if_its_epoch_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parallelism: int
) -> None:
    connection = joined(tmp_path / "db", parallelism=parallelism)
    commit, failed = inprocess.commit_epoch, []

    def failing(*args: Any, **options: Any) -> Any:
        if len(failed) < 2:
            failed.append(1)
            raise OSError("no space left on device")
        return commit(*args, **options)

    monkeypatch.setattr(inprocess, "commit_epoch", failing)
    connection.execute("INSERT INTO l(n, k, _tp_time) VALUES (2, 1, '2024-01-01 10:00:00')")
    for _ in range(3):
        try:
            connection.execute("FLUSH")
        except watersmeet.Error:
            connection.close()
            connection = watersmeet.connect(tmp_path / "db", "timeplus", runtime="inprocess", parallelism=parallelism)
    assert len(failed) == 2
    assert connection.execute(_LATE).fetchall() == [(2, 1)]
    assert [(r[1], r[2]) for r in connection.execute("SHOW LATE ROWS FROM joined").fetchall()] == [(1, 1), (0, 0)]
    connection.close()


def test_a_late_row_is_kept_once_whatever_is_killed(tmp_path: Path) -> None:
    """At each step of the file system work of its epoch, and while the database is opened again."""
    step, ended = 0, False
    while not ended:
        step += 1
        path = tmp_path / str(step)
        connection = joined(path, parallelism=2)
        connection.execute("INSERT INTO l(n, k, _tp_time) VALUES (2, 1, '2024-01-01 10:00:00')")
        with mock.patch.object(files, "os", FaultyOs(step, torn=step % 2 == 1)):
            try:
                connection.execute("FLUSH")
                ended = True
            except Killed:
                pass
            with contextlib.suppress(Killed):
                connection.close()
        with mock.patch.object(files, "os", FaultyOs(1 + step % 5)), contextlib.suppress(Killed):
            watersmeet.connect(path, "timeplus", runtime="inprocess").close()
        with watersmeet.connect(path, "timeplus", runtime="inprocess") as connection:
            connection.execute("FLUSH")
            assert connection.execute(_LATE).fetchall() == [(2, 1)], step
            shown = connection.execute("SHOW LATE ROWS FROM joined").fetchall()
            assert [(r[1], r[2]) for r in shown] == [(1, 1), (0, 0)], step
            assert proofs(connection) == {"joined": "proven"}, step
    assert step > 3


def test_late_rows_go_when_they_are_too_many_or_too_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintaining, "LATE_ROWS", 3)
    monkeypatch.setattr(maintaining, "_LATE_SLACK", 0)
    with joined(tmp_path / "db") as connection:
        for n in range(2, 7):
            late_row(connection, n)
        connection.execute("FLUSH")
        assert connection.execute(_LATE).fetchall() == [(4, 1), (5, 1), (6, 1)]
        connection.execute("ALTER SYSTEM SET late_rows_retention = 0")
        monkeypatch.setattr(maintaining, "_LATE_S", 0.0)
        late_row(connection, 7)
        connection.execute("FLUSH")
        assert connection.execute(_LATE).fetchall() == []
        shown = connection.execute("SHOW LATE ROWS FROM joined").fetchall()
        assert [(r[1], r[2], *r[6:]) for r in shown] == [
            (6, 0, 1, 'stream "l"', "_tp_time"),
            (0, 0, 2, 'stream "r"', "_tp_time"),
        ]


def test_late_rows_follow_their_view(tmp_path: Path) -> None:
    with joined(tmp_path / "db") as connection:
        late_row(connection, 2)
        connection.execute("SYSTEM PAUSE MATERIALIZED VIEW joined")
        late_row(connection, 3)
        assert connection.execute(_LATE).fetchall() == [(2, 1), (3, 1)]
        connection.execute("SYSTEM RESUME MATERIALIZED VIEW joined")
        late_row(connection, 4)
        assert connection.execute(_LATE).fetchall() == [(2, 1), (3, 1), (4, 1)]
        connection.execute("INSERT INTO l(n, k, _tp_time) SELECT n + 10, k, late_below FROM late_rows(joined, 1)")
        connection.execute("FLUSH")
        assert connection.execute("SELECT n FROM table(joined) ORDER BY n").fetchall() == [(1,), (12,), (13,), (14,)]
        for query, message in (
            ("SELECT * FROM late_rows(joined)", 'materialized view "joined" drops late rows in 2 places'),
            ("SELECT * FROM late_rows(joined, 3)", 'materialized view "joined" has no place number 3'),
            ("SELECT * FROM late_rows(joined, 'l')", "the argument of late_rows must be the name"),
            ("SELECT * FROM late_rows(l)", 'stream "l" has no late rows'),
        ):
            with pytest.raises(watersmeet.Error, match=message):
                connection.execute(query)
        connection.execute("DROP VIEW joined; DROP STREAM l; DROP STREAM r")
        assert not connection._session.catalog.relations


@pytest.mark.parametrize("kept", ["COMMIT", "ROLLBACK"])
def test_a_view_of_a_transaction(tmp_path: Path, kept: str) -> None:
    with watersmeet.connect(tmp_path / "db", "timeplus", runtime="inprocess") as connection:
        connection.execute("CREATE STREAM l(n int, k int); CREATE STREAM r(n int, k int)")
        connection.execute(f"BEGIN; CREATE MATERIALIZED VIEW joined AS {VIEWS['joined'][0]}; {kept}")
        shown = connection.execute("SHOW LATE ROWS").fetchall()
        assert [r[0] for r in shown] == (["joined", "joined"] if kept == "COMMIT" else [])
        assert len(connection._session.catalog.relations) == (5 if kept == "COMMIT" else 2)


def test_a_view_that_is_filled_again_lacks_no_row(tmp_path: Path) -> None:
    with joined(tmp_path / "db") as connection:
        late_row(connection, 2)
        session = connection._session
        (view,) = (r for r in session.catalog.relations.values() if r.name == "joined")
        session.database.engine.stop_views({view.id: error("INTERNAL_ERROR", "stopped").to_json()})
        connection.execute("FLUSH")
        assert connection.execute(_LATE).fetchall() == [(2, 1)]
        viewrefresh.refresh(session, {view.id: view})
        assert connection.execute(_LATE).fetchall() == []
        assert [(r[1], r[2]) for r in connection.execute("SHOW LATE ROWS").fetchall()] == [(0, 0), (0, 0)]
        for name in "lr":  # the view begins again, and so do its clocks
            connection.execute(f"INSERT INTO {name}(n, k, _tp_time) VALUES (3, 1, '2024-01-01 11:00:00'); FLUSH")
        late_row(connection, 4)
        assert connection.execute(_LATE).fetchall() == [(4, 1)]
        assert [(r[1], r[2]) for r in connection.execute("SHOW LATE ROWS").fetchall()] == [(1, 1), (0, 0)]


def test_a_lost_row_is_found_in_a_view_with_late_rows(tmp_path: Path) -> None:
    with joined(tmp_path / "db") as connection:
        late_row(connection, 2)
        assert proofs(connection) == {"joined": "proven"}
        step = STEPS["laterowfilter"]
        with mock.patch.dict(STEPS, {"laterowfilter": lambda *given: step(*given).take(np.zeros(0, np.int64))}):
            connection.execute("INSERT INTO l(n, k, _tp_time) VALUES (3, 1, '2024-01-01 10:05:10'); FLUSH")
        assert proofs(connection) == {"joined": "differs"}


def test_what_is_not_known_is_not_proven(tmp_path: Path) -> None:
    with joined(tmp_path / "db") as connection:
        late_row(connection, 2)
        query = "SELECT window_start, count() AS c FROM tumble(l, 10s) GROUP BY window_start"
        connection.execute(f"CREATE MATERIALIZED VIEW later AS {query}")
        assert proofs(connection) == {"joined": "proven", "later": "it depends on when the query was started"}
        connection.execute("ALTER SYSTEM SET late_rows_retention = 0")
        late_row(connection, 3)
        assert proofs(connection)["joined"] == (
            'it is not known which of the late rows of materialized view "joined" it has: 2'
        )


def test_joins_and_windows_of_records() -> None:
    """Lenses: a late record of a preserved side is output without a partner, and is kept as well."""
    with watersmeet.connect(None, "lenses", runtime="inprocess", parallelism=2) as connection:
        run = connection.execute
        run("SET defaults.topic.autocreate=true")
        for name, value in (("a", "x"), ("b", "y")):
            run(f"CREATE TABLE {name} (_key int, k int, {value} string) FORMAT (INT, AVRO) PROPERTIES (partitions=1)")
        run("INSERT INTO i SELECT STREAM a.x, b.y FROM a JOIN b ON a.k = b.k WITHIN 5s GRACE PERIOD 0s")
        run("INSERT INTO o SELECT STREAM a.x, b.y FROM a OUTER JOIN b ON a.k = b.k WITHIN 5s GRACE PERIOD 0s")
        run("INSERT INTO w SELECT STREAM x, COUNT(*) AS n FROM a WINDOW BY TUMBLE 10s GRACE BY 0s GROUP BY x")
        for name, value, second in [("a", "x", 20), ("b", "y", 20), ("a", "x", 9), ("b", "y", 14), ("a", "x", 15)]:
            row = ["1", "1", f"{value}{second}", f"1970-01-01 00:00:{second:02}"]
            Harness(connection).deliver(name, [row], ["_key", "k", value, "@time"])
            run("FLUSH")
        assert run("SELECT x FROM late_rows(i, 1)").fetchall() == [("x9",)]
        assert run("SELECT y FROM late_rows(i, 2)").fetchall() == [("y14",)]
        assert run("SELECT x FROM late_rows(o, 1)").fetchall() == [("x9",)]
        assert run("SELECT x FROM late_rows(w)").fetchall() == [("x9",), ("x15",)]
        inner, outer = (run(f"SELECT x, y FROM {topic}").fetchall() for topic in "io")
        assert ("x15", "y20") in inner
        assert ("x9", None) in outer
        assert not {("x9", None), ("x9", "y14")} & {*inner}
        assert [r[:3] for r in run("SHOW LATE ROWS FROM o").fetchall()] == [("o", 1, 1), ("o", 1, 1)]


def test_computed_rowtimes() -> None:
    """SQLstream: a row is late if an earlier one has a later ROWTIME; each has its own watermark."""
    with watersmeet.connect(None, "sqlstream", runtime="inprocess") as connection:
        connection.execute("CREATE STREAM raw (ts TIMESTAMP, v INTEGER); CREATE STREAM ev (v INTEGER)")
        connection.execute(
            "CREATE PUMP p STARTED AS INSERT INTO ev (ROWTIME, v) SELECT STREAM ts, v FROM raw WHERE v <> 4"
        )
        connection.execute("INSERT INTO raw VALUES (NULL, 9)")  # there is no watermark yet
        for v, second in enumerate((10, 5, 12, 11, 11)):
            connection.execute(f"INSERT INTO raw VALUES (TIMESTAMP '2024-01-01 10:00:{second:02}', {v})")
        connection.execute("FLUSH")
        connection.execute("FLUSH")
        assert sorted(connection.execute("SELECT v FROM ev").fetchall()) == [(0,), (2,)]
        late = connection.execute("SELECT v, EXTRACT(SECOND FROM LATE_BELOW) FROM LATE_ROWS(p) ORDER BY v").fetchall()
        assert late == [(1, 10), (3, 12), (9, None)]
        connection.execute("CREATE STREAM again (v INTEGER); INSERT INTO again SELECT v FROM LATE_ROWS(p)")
        (notice,) = connection.execute("ALTER PUMP p STOP").notices
        assert notice.startswith('3 late rows of pump "P" are deleted')
        with pytest.raises(watersmeet.Error, match="P"):
            connection.execute("SELECT v FROM LATE_ROWS(p)")
        connection.execute("INSERT INTO raw VALUES (TIMESTAMP '2024-01-01 10:00:01', 20); ALTER PUMP p START")
        for v, second in ((21, 13), (22, 2)):
            connection.execute(f"INSERT INTO raw VALUES (TIMESTAMP '2024-01-01 10:00:{second:02}', {v})")
            connection.execute("FLUSH")
        assert sorted(connection.execute("SELECT v FROM ev").fetchall()) == [(0,), (2,), (21,)]
        assert connection.execute("SELECT v FROM LATE_ROWS(p)").fetchall() == [(22,)]
        assert sorted(connection.execute("SELECT v FROM again").fetchall()) == [(1,), (3,), (9,)]
        assert connection.execute("ALTER PUMP p STOP").notices == (notice.replace("3 late", "1 late"),)


def test_late_rows_of_a_running_query_are_counted(tmp_path: Path) -> None:
    with joined(tmp_path / "db") as connection:
        connection.execute("DROP VIEW joined")
        query = "SELECT l.n AS n, r.n AS m FROM l JOIN r ON l.k = r.k AND date_diff_within(20s)"
        running = connection.cursor()
        running.execute(query)
        for second in ("01:00", "05:00", "00:00"):
            connection.execute(f"INSERT INTO l(n, k, _tp_time) VALUES (1, 1, '2024-01-01 10:{second}'); FLUSH")
            connection.execute(f"INSERT INTO r(n, k, _tp_time) VALUES (2, 1, '2024-01-01 10:{second}'); FLUSH")
        (shown,) = connection.execute("SHOW LATE ROWS").fetchall()
        assert shown[1] > 0
        assert shown[2:5] == (0, 0, None)
        running.close()


def test_whole_rows_are_in_the_input(tmp_path: Path) -> None:
    with watersmeet.connect(tmp_path / "db", "timeplus", runtime="inprocess") as connection:
        connection.execute("CREATE STREAM l(n int, k int, text string); CREATE STREAM r(n int, k int)")
        query = "SELECT l.n AS n, r.n AS m FROM l JOIN r ON l.k = r.k AND date_diff_within(20s)"
        connection.execute(f"CREATE MATERIALIZED VIEW v AS {query}; CREATE STREAM again(n int, k int, text string)")
        for number, second in enumerate(("01:00", "05:00", "00:00")):
            connection.execute(
                f"INSERT INTO l(n, k, text, _tp_time) VALUES ({number}, 1, 'a{number}', '2024-01-01 10:{second}')"
            )
            connection.execute(f"INSERT INTO r(n, k, _tp_time) VALUES ({number}, 1, '2024-01-01 10:{second}'); FLUSH")
        connection.execute(
            "INSERT INTO again (n, k, text) SELECT s.n, s.k, s.text FROM table(l) AS s "
            "JOIN late_rows(v, 1) AS d ON s.n = d.n AND s._tp_time = d._tp_time; FLUSH"
        )
        assert connection.execute("SELECT n, k, text FROM table(again)").fetchall() == [(2, 1, "a2")]
