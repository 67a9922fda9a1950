"""Makes the golden database of this format: a small database with every kind of view, and a list of its rows.

`python -m scripts.golden` writes `tests/golden/<format>.tar.xz` unless it exists: an archive of `db`, the files of the
database, and `content.json`, the rows of each relation. The archive of a format is made once, by the first release with
that format, and never again; `tests/unit/store/test_golden.py` opens all of them with the present release.

`python -m scripts.golden fills` writes `tests/golden/fills/<format>.tar.xz`: the files of databases whose process ended
in the middle of a fill, one for each of `FILLS`.
"""

from __future__ import annotations

import io
import json
import shutil
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Final

import watersmeet
from watersmeet.store.layout import DATABASE_FORMAT_VERSION

ARCHIVES: Final = Path(__file__).resolve().parents[1] / "tests" / "golden"

TABLES: Final = (
    "CREATE TABLE items (item int PRIMARY KEY, name varchar)",
    "CREATE TABLE orders (id int PRIMARY KEY, item int, amount numeric(10,2), at timestamp, tags varchar[], doc jsonb)",
    "CREATE TABLE log (ts timestamp, item int, v bigint, WATERMARK FOR ts AS ts - INTERVAL '5 seconds') APPEND ONLY",
)

#: The views, by name. Those over whole tables are compared with the batch answer of their query.
VIEWS: Final = {
    "joined": "SELECT o.id, i.name, o.amount FROM orders o LEFT JOIN items i ON o.item = i.item",
    "sums": "SELECT name, count(*) AS n, sum(amount)::numeric(10, 2) AS amount FROM joined GROUP BY name",
    "top": "SELECT id, amount FROM orders ORDER BY amount DESC, id LIMIT 3",
    "nearest": "SELECT o.id, l.v FROM orders o ASOF LEFT JOIN log l ON o.item = l.item AND o.at >= l.ts",
    "missing": "SELECT item, name FROM items WHERE NOT EXISTS (SELECT 1 FROM orders WHERE orders.item = items.item)",
    "ranked": "SELECT id, item, row_number() OVER (PARTITION BY item ORDER BY amount DESC, id) AS r FROM orders",
    "windows": "SELECT window_start, item, count(*) AS n, sum(v) AS v FROM TUMBLE(log, ts, INTERVAL '1 minute') "
    "GROUP BY window_start, item",
    "near": "SELECT l.ts, l.v, o.id FROM log l JOIN orders o ON l.item = o.item "
    "AND o.at BETWEEN l.ts - INTERVAL '1 minute' AND l.ts",
}

ROWS: Final = (
    "INSERT INTO items SELECT g, 'name ' || g FROM generate_series(1, 8) AS g(g)",
    """INSERT INTO orders SELECT g, g % 10, (g * 7 % 13)::numeric(10, 2), timestamp '2026-01-01 00:00:00' +
    g * interval '10 seconds', ARRAY['a', g::varchar], '{"a": 1}' FROM generate_series(1, 60) AS g(g)""",
    """INSERT INTO log SELECT timestamp '2026-01-01 00:00:00' + g * interval '7 seconds', g % 10, g
    FROM generate_series(1, 60) AS g(g)""",
    "FLUSH",
    "DELETE FROM orders WHERE id % 7 = 0",
    "UPDATE items SET name = 'new' WHERE item = 3",
    "INSERT INTO items VALUES (9, 'nine')",
    "FLUSH",
)

OTHERS: Final = (
    "CREATE VIEW plain AS SELECT count(*) AS n FROM orders",
    "CREATE SUBSCRIPTION changes FROM sums WITH (retention = '1 day')",
    "CREATE FUNCTION twice(x int) RETURNS int LANGUAGE sql AS $$ SELECT x * 2 $$",
    "CREATE USER ann PASSWORD 'change-me' SUPERUSER",
)

#: The query of a live view, `live`, and that of the view `filled`, which has other rows, so that only operators are
#: shared. The moment at which rows arrive decides the second result.
FILLS: Final = {
    "join": (
        "SELECT o.id, i.name, l.v FROM orders o JOIN items i ON o.item = i.item JOIN log l ON o.item = l.item",
        """SELECT i.name, count(*) AS n, sum(l.v) AS v FROM orders o JOIN items i ON o.item = i.item
        JOIN log l ON o.item = l.item GROUP BY i.name""",
    ),
    "look-up": (
        "SELECT l.v, i.name FROM log l LEFT JOIN items FOR SYSTEM_TIME AS OF PROCTIME() AS i ON l.item = i.item",
        """SELECT l.v + 1 AS v, i.name FROM log l LEFT JOIN items FOR SYSTEM_TIME AS OF PROCTIME() AS i
        ON l.item = i.item""",
    ),
}

#: The changes of other sessions while the view is filled.
MEANWHILE: Final = (
    "INSERT INTO orders SELECT g, g % 10, 1, NULL, NULL, NULL FROM generate_series(61, 80) AS g(g)",
    "UPDATE items SET name = 'newer' WHERE item = 4",
    "DELETE FROM orders WHERE id % 7 = 1",
    """INSERT INTO log SELECT timestamp '2026-01-01 00:08:00' + g * interval '7 seconds', g % 10, g
    FROM generate_series(61, 80) AS g(g)""",
)

#: The relations whose rows the archive lists.
RELATIONS: Final = ("items", "orders", "log", "plain", *VIEWS)


def statements() -> list[str]:
    """The statements that make the database."""
    views = [f"CREATE MATERIALIZED VIEW {name} AS {query}" for name, query in VIEWS.items()]
    return [*TABLES, *views, *OTHERS, *ROWS]


def content(connection: watersmeet.Connection, names: tuple[str, ...] = RELATIONS) -> dict[str, list[list[str]]]:
    """The rows of relations in ascending order, their values as text."""
    return {
        name: sorted([str(v) for v in row] for row in connection.execute(f"SELECT * FROM {name}").fetchall())
        for name in names
    }


def begin_fill(path: Path, live: str, filled: str) -> None:
    """Makes a database whose process ends after a part of the history of a view."""
    with watersmeet.connect(path, runtime="inprocess", parallelism=2) as connection:
        for text in (*TABLES, *ROWS, f"CREATE MATERIALIZED VIEW live AS {live}", "FLUSH", "SET background_ddl = true"):
            connection.execute(text)
        connection.execute(f"CREATE MATERIALIZED VIEW filled WITH (backfill_rate_limit = 30) AS {filled}")
        while not fill_progress(connection):
            time.sleep(0.01)
        connection.execute("ALTER MATERIALIZED VIEW filled SET BACKFILL_RATE_LIMIT = 0")
        for text in MEANWHILE:
            connection.execute(text)
            connection.execute("FLUSH")
        if not fill_progress(connection):
            raise RuntimeError("the view was filled before the limit became 0")


def fill_progress(connection: watersmeet.Connection) -> float:
    """The part of the history of the view `filled` that was read."""
    row = connection.execute("SHOW JOBS LIKE 'filled'").fetchone()
    return float((row and row[-1]) or 0)


def make_fills() -> int:
    """Writes the archive of databases in which a view is being filled."""
    archive = ARCHIVES / "fills" / f"{DATABASE_FORMAT_VERSION}.tar.xz"
    archive.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, tarfile.open(archive, "w:xz") as written:
        for name, (live, filled) in FILLS.items():
            begin_fill(Path(folder, name), live, filled)
            written.add(Path(folder, name), name)
    print(f"{archive.name}: {archive.stat().st_size:,} bytes")
    return 0


def main() -> int:
    """Writes the archive of this release's format."""
    folder = Path(tempfile.mkdtemp())
    try:
        with watersmeet.connect(folder / "db", runtime="inprocess", parallelism=2) as connection:
            for text in statements():
                connection.execute(text)
            rows = json.dumps(content(connection)).encode()
        number = json.loads((folder / "db" / "FORMAT").read_text())["format"]
        archive = ARCHIVES / f"{number}.tar.xz"
        if archive.exists():
            print(f"{archive.name} exists already")
            return 1
        with tarfile.open(archive, "w:xz") as written:
            written.add(folder / "db", "db")
            entry = tarfile.TarInfo("content.json")
            entry.size = len(rows)
            written.addfile(entry, io.BytesIO(rows))
        print(f"{archive.name}: {archive.stat().st_size:,} bytes")
    finally:
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(make_fills() if sys.argv[1:] == ["fills"] else main())
