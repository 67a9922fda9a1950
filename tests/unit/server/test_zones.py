"""Sessions in time zones other than UTC over the wire: texts, COPY, parameters and small statements."""

from __future__ import annotations

import datetime as dt

import psycopg
import pytest
from tests.servers import PostgresDatabase

SCRIPT = "CREATE TABLE t (id INT PRIMARY KEY, tz TIMESTAMPTZ, ts TIMESTAMP)"
ROWS = """INSERT INTO t VALUES (1, '2024-07-01 12:00', '2024-07-01 12:00'), (2, '2024-10-27 00:30+00', NULL),
    (3, '2024-10-27 01:30+00', NULL), (4, '1880-01-01 00:00+00', NULL), (5, 'infinity', NULL), (6, NULL, NULL)"""
QUERIES = (
    "SELECT id, tz, ARRAY[tz] AS a, tz::text AS x, ts::timestamptz AS m FROM t ORDER BY id",
    "SELECT tz FROM t WHERE id = 3",
    "SELECT count(*) FROM t WHERE tz = '2024-07-01 12:00'",
    "SHOW timezone",
)


def _texts(client: psycopg.Connection, query: str) -> list[tuple[bytes | None, ...]]:
    """The rows as the server writes them."""
    with client.cursor() as cursor:
        cursor.execute(query)
        result = cursor.pgresult
        assert result is not None
        return [tuple(result.get_value(r, c) for c in range(result.nfields)) for r in range(result.ntuples)]


@pytest.mark.parametrize("zone", ["Europe/Berlin", "Asia/Kolkata", "UTC"])
def test_texts_over_the_wire_are_those_of_postgresql(serving, postgres: PostgresDatabase, zone) -> None:
    served = serving(SCRIPT)
    with served.connect(options=f"-c timezone={zone}", autocommit=True) as ours, postgres.connect() as theirs:
        theirs.execute(f"SET timezone TO '{zone}'")
        theirs.execute(SCRIPT)
        for client in (ours, theirs):
            client.execute(ROWS)
        for query in QUERIES:
            assert _texts(ours, query) == _texts(theirs, query), query
        copied = []
        for client in (ours, theirs):
            with client.cursor().copy("COPY (SELECT id, tz FROM t ORDER BY id) TO STDOUT") as copy:
                copied.append(b"".join(map(bytes, copy)))
        assert copied[0] == copied[1]
        assert ours.info.parameter_status("TimeZone") == zone
        for binary in (False, True):
            (found,) = ours.cursor(binary=binary).execute("SELECT tz FROM t WHERE id = 1").fetchone()
            assert found == theirs.execute("SELECT tz FROM t WHERE id = 1").fetchone()[0]


def test_sessions_share_no_plan_across_zones(serving) -> None:
    served = serving(SCRIPT)
    with (
        served.connect(autocommit=True, prepare_threshold=0) as utc,
        served.connect(options="-c timezone=Europe/Berlin", autocommit=True, prepare_threshold=0) as berlin,
    ):
        for n, client in enumerate((utc, berlin, utc, berlin)):
            client.execute("INSERT INTO t (id, tz) VALUES (%s, %s)", (n, "2024-07-01 12:00"))
        for client in (utc, berlin):
            for n in range(4):
                found = client.execute("SELECT tz FROM t WHERE id = %s", (n,)).fetchone()[0]
                assert found == dt.datetime(2024, 7, 1, 10 if n % 2 else 12, tzinfo=dt.UTC)
                assert found.utcoffset() == dt.timedelta(hours=2 if client is berlin else 0)
        berlin.execute("SET timezone TO 'UTC'")
        assert berlin.execute("SELECT tz FROM t WHERE id = 0").fetchone()[0].utcoffset() == dt.timedelta()
