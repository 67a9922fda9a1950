"""Late rows are kept: `late_rows(s)` has exactly the rows that the status counts as late, once, whatever was killed.

Law: the rows of an input are those that its views have read and those in `late_rows`, as bags; both readers agree on
which are which, also where the scans of the views read only some of the columns.
"""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

import watersmeet
from tests.thorough import mostly_slow
from watersmeet.maintenance import maintaining
from watersmeet.runtime import inprocess

START = dt.datetime(2024, 1, 1)
DELAY = 20


def statement(kind: str, folder: Path) -> str:
    watermark = "WATERMARK FOR ts AS ts - INTERVAL '20' SECOND"
    columns = f"k int, ts timestamp, v varchar, {watermark}"
    files = f"WITH (connector = 'file', path = '{folder}') FORMAT PLAIN ENCODE JSON"
    if kind == "table":
        return f"CREATE TABLE e ({columns}) APPEND ONLY"
    made, appends = ("SOURCE", "") if kind == "source" else ("TABLE", "APPEND ONLY ")
    return f"CREATE {made} e ({columns}) {appends}{files}"


def late_of(batches: list[list[tuple[Any, ...]]]) -> Counter[tuple[Any, ...]]:
    """The rule by hand: a row is late below the watermark of the earlier epochs."""
    greatest, found = None, Counter[tuple[Any, ...]]()
    for rows in batches:
        bound = None if greatest is None else greatest - dt.timedelta(seconds=DELAY)
        found.update(r for r in rows if bound is not None and r[1] is not None and r[1] < bound)
        times = [r[1] for r in rows if r[1] is not None]
        greatest = max([*times, *([] if greatest is None else [greatest])], default=None)
    return found


@pytest.mark.parametrize("kind", ["table", "source", "files"])
@pytest.mark.parametrize("seed", mostly_slow(range(6), 1))
def test_late_rows_are_those_that_are_counted(tmp_path: Path, kind: str, seed: int) -> None:
    random = Random(f"{kind} {seed}")
    folder, parallelism = tmp_path / "files", 1 + seed % 3
    folder.mkdir()

    def connect() -> watersmeet.Connection:
        return watersmeet.connect(tmp_path / "db", runtime="inprocess", parallelism=parallelism)

    connection = connect()
    connection.execute(statement(kind, folder))
    if seed % 2:
        connection.execute("CREATE MATERIALIZED VIEW whole AS SELECT k, ts, v FROM e")
    connection.execute("CREATE MATERIALIZED VIEW n AS SELECT k, count(*) AS n FROM e GROUP BY k")  # reads no v
    batches: list[list[tuple[Any, ...]]] = []
    for number in range(10):
        rows: list[tuple[Any, ...]] = []
        for _ in range(random.randrange(6)):
            time = None if random.random() < 0.1 else START + dt.timedelta(seconds=random.randrange(-100, 100))
            rows.append((random.randrange(3), time, random.choice([None, "a", "b"])))
        rows += rows[:1]
        if rows and kind == "table":
            connection.cursor().executemany("INSERT INTO e VALUES (?, ?, ?)", rows)
        elif rows:
            lines = [json.dumps({"k": k, "ts": None if t is None else str(t), "v": v}) for k, t, v in rows]
            (folder / f"{number:03}.json").write_text("\n".join(lines) + "\n")
        connection.execute("FLUSH")
        batches.append(rows)
        if random.random() < 0.25:
            connection.close()
            connection = connect()
        expected = late_of(batches)
        kept = connection.execute("SELECT k, ts, v FROM late_rows(e)").fetchall()
        assert Counter(kept) == expected
        shown = connection.execute("SHOW LATE ROWS").fetchall()
        assert [(r[0], r[1], r[2]) for r in shown] == [("e", expected.total(), expected.total())]
        assert (shown[0][4] is None) == (not expected)
        if seed % 2:
            read = Counter(connection.execute("SELECT k, ts, v FROM whole").fetchall())
            assert read + expected == Counter(r for some in batches for r in some)
    counted = dict(connection.execute("SELECT k, n FROM n").fetchall())
    everything = Counter(k for some in batches for k, *_ in some)
    everything.subtract(k for k, *_ in expected.elements())
    assert counted == {k: n for k, n in everything.items() if n}
    connection.execute("CREATE TABLE again (k int, ts timestamp, v varchar)")
    connection.execute("INSERT INTO again SELECT k, ts, v FROM late_rows(e) WHERE late_below > ts; FLUSH")
    assert Counter(connection.execute("SELECT * FROM again").fetchall()) == expected
    connection.close()


def test_a_late_row_is_kept_once_if_its_epoch_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = watersmeet.connect(tmp_path / "db", runtime="inprocess", parallelism=2)
    connection.execute(statement("table", tmp_path))
    connection.execute("CREATE MATERIALIZED VIEW n AS SELECT k, count(*) AS n FROM e GROUP BY k")
    connection.execute("INSERT INTO e VALUES (1, '2024-01-01 00:01:00', 'a'); FLUSH")
    commit, failed = inprocess.commit_epoch, []

    def failing(*args: Any, **options: Any) -> Any:
        if len(failed) < 2:
            failed.append(1)
            raise OSError("no space left on device")
        return commit(*args, **options)

    monkeypatch.setattr(inprocess, "commit_epoch", failing)
    connection.execute("INSERT INTO e VALUES (2, '2024-01-01 00:00:00', 'late'), (3, '2024-01-01 00:01:00', 'b')")
    for _ in range(3):
        try:
            connection.execute("FLUSH")
        except watersmeet.Error:
            connection.close()
            connection = watersmeet.connect(tmp_path / "db", runtime="inprocess", parallelism=2)
    assert failed
    assert connection.execute("SELECT k, v FROM late_rows(e)").fetchall() == [(2, "late")]
    assert [r[:3] for r in connection.execute("SHOW LATE ROWS FROM e").fetchall()] == [("e", 1, 1)]
    connection.close()


def test_late_rows_go_when_they_are_too_many_or_too_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintaining, "LATE_ROWS", 3)
    monkeypatch.setattr(maintaining, "_LATE_SLACK", 0)
    with watersmeet.connect(tmp_path / "db", runtime="inprocess", parallelism=1) as connection:
        connection.execute(statement("table", tmp_path))
        connection.execute("CREATE MATERIALIZED VIEW n AS SELECT count(*) AS n FROM e")
        connection.execute("INSERT INTO e VALUES (0, '2024-01-01 00:01:00', 'a'); FLUSH")
        for k in range(1, 6):
            connection.execute(f"INSERT INTO e VALUES ({k}, '2024-01-01', 'late'); FLUSH")
        connection.execute("FLUSH")
        assert sorted(connection.execute("SELECT k FROM late_rows(e)").fetchall()) == [(3,), (4,), (5,)]
        assert [r[:3] for r in connection.execute("SHOW LATE ROWS").fetchall()] == [("e", 5, 3)]
        connection.execute("ALTER SYSTEM SET late_rows_retention = 0")
        monkeypatch.setattr(maintaining, "_LATE_S", 0.0)
        connection.execute("INSERT INTO e VALUES (6, '2024-01-01', 'late'); FLUSH")
        connection.execute("FLUSH")
        assert connection.execute("SELECT k FROM late_rows(e)").fetchall() == []
        assert [r[:3] for r in connection.execute("SHOW LATE ROWS").fetchall()] == [("e", 6, 0)]
        connection.execute("ALTER SYSTEM SET late_rows_retention = '1 hour'")
        connection.execute("INSERT INTO e VALUES (7, '2024-01-01', 'late'); FLUSH")
        assert connection.execute("SELECT k FROM late_rows(e)").fetchall() == [(7,)]


def test_late_rows_follow_their_table(tmp_path: Path) -> None:
    with watersmeet.connect(tmp_path / "db", runtime="inprocess", parallelism=1) as connection:
        connection.execute(
            "CREATE TABLE e (late_at int, ts timestamp, WATERMARK FOR ts AS ts - INTERVAL '20' SECOND) APPEND ONLY"
        )
        connection.execute("CREATE MATERIALIZED VIEW n AS SELECT count(*) AS n FROM e")
        connection.execute("INSERT INTO e VALUES (0, '2024-01-01 00:01:00'); FLUSH")
        connection.execute("INSERT INTO e VALUES (1, '2024-01-01'); FLUSH")
        connection.execute("ALTER TABLE e ADD COLUMN later varchar; ALTER TABLE e RENAME COLUMN late_at TO k")
        connection.execute("INSERT INTO e VALUES (2, '2024-01-01', 'x'); FLUSH")
        rows = connection.execute("SELECT k, later FROM late_rows(e) ORDER BY k")
        assert rows.fetchall() == [(1, None), (2, "x")]
        assert connection.execute("SELECT a.k, n FROM late_rows(e) AS a CROSS JOIN n ORDER BY 1").fetchall() == [
            (1, 1),
            (2, 1),
        ]
        for query, message in (
            ("SELECT * FROM late_rows(n)", 'materialized view "n" has no late rows'),
            ("CREATE MATERIALIZED VIEW w AS SELECT * FROM late_rows(e)", "late_rows in a view is not supported"),
            ("SELECT * FROM late_rows(nothing)", 'relation "nothing" does not exist'),
            ("SELECT * FROM late_rows(1)", "the argument of late_rows must be the name"),
            ("SELECT * FROM late_rows(e, 2)", r"(?s)no place number 2 .*Write late_rows\(e\)\."),
        ):
            with pytest.raises(watersmeet.Error, match=message):
                connection.execute(query)
        connection.execute("DROP MATERIALIZED VIEW n; DROP TABLE e")
        assert not connection._session.catalog.relations
