"""Pumps go on after a restart, and start again where they were."""

from __future__ import annotations

from itertools import permutations

import pytest

import watersmeet


def open_(path, **options):
    return watersmeet.connect(path, "sqlstream", runtime="inprocess", **options)


def insert(connection, second, n):
    connection.execute(f"INSERT INTO s (rowtime, n) VALUES (TIMESTAMP '2019-03-30 05:00:{second:02}', {n})")
    connection.execute("FLUSH")


def content(connection):
    connection.execute("FLUSH")
    return [n for (n,) in connection.execute("SELECT n FROM d ORDER BY rowtime").fetchall()]


def test_a_pump_goes_on_after_a_restart_and_writes_each_row_once(tmp_path):
    with open_(tmp_path / "db") as connection:
        connection.execute("CREATE STREAM s (n INTEGER)")
        connection.execute("CREATE STREAM d (n INTEGER)")
        connection.execute("CREATE PUMP p STARTED AS INSERT INTO d SELECT STREAM n * 10 FROM s")
        connection.execute("CREATE PUMP q AS INSERT INTO d SELECT STREAM n * 100 FROM s")
        insert(connection, 1, 1)
        assert content(connection) == [10]
    with open_(tmp_path / "db") as connection:
        insert(connection, 2, 2)
        assert content(connection) == [10, 20]
        connection.execute("ALTER PUMP p STOP")
        insert(connection, 3, 3)
    with open_(tmp_path / "db") as connection:
        insert(connection, 4, 4)
        assert content(connection) == [10, 20]
        connection.execute("ALTER PUMP q START")
        insert(connection, 5, 5)
        assert content(connection) == [10, 20, 500]


def test_rows_of_a_pump_that_are_before_others_are_rejected_once(tmp_path):
    with open_(tmp_path / "db") as connection:
        connection.execute("CREATE STREAM s (n INTEGER)")
        connection.execute("CREATE STREAM d (n INTEGER)")
        connection.execute("CREATE MATERIALIZED VIEW v AS SELECT STREAM n FROM d")
        connection.execute("CREATE PUMP p STARTED AS INSERT INTO d SELECT STREAM n FROM s")
        connection.execute("INSERT INTO d (rowtime, n) VALUES (TIMESTAMP '2019-03-30 05:00:10', 0)")
        insert(connection, 9, 1)
    with open_(tmp_path / "db") as connection:  # that the row was read is known, though nothing came of it
        insert(connection, 11, 2)
        assert content(connection) == [0, 2]
        assert {s["name"]: s["late"] for s in connection.status()["sources"]} == {"S": 0, "D": 1}


@pytest.mark.parametrize("names", ["p, q, r", "r, p, q", "public.*"])
def test_a_chain_that_is_started_loses_no_row(tmp_path, names):
    """START of one pump commits what its source already has, so the pumps that read it have to run by then."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "rows.csv").write_text("".join(f"{n}\n" for n in range(20)))
    options = f"DIRECTORY '{tmp_path}/in', FILENAME_PATTERN '.*csv', PARSER 'CSV', CHARACTER_ENCODING 'UTF-8'"
    with open_(tmp_path / "db") as connection:
        connection.execute(f"CREATE FOREIGN STREAM f (n INTEGER) SERVER FILE_SERVER OPTIONS ({options})")
        for stream in ("s", "t", "d"):
            connection.execute(f"CREATE STREAM {stream} (n INTEGER)")
        connection.execute("CREATE PUMP p STOPPED AS INSERT INTO s SELECT STREAM n FROM f")
        connection.execute("CREATE VIEW even AS SELECT STREAM n FROM t WHERE MOD(n, 2) = 0")
        connection.execute("CREATE PUMP q STOPPED AS INSERT INTO t SELECT STREAM n FROM s")
        connection.execute("CREATE PUMP r STOPPED AS INSERT INTO d SELECT STREAM n FROM even")
        connection.execute(f"ALTER PUMP {names} START")
        assert sorted(content(connection)) == list(range(0, 20, 2))
        connection.execute("INSERT INTO s (n) VALUES (20)")
        connection.execute(f"ALTER PUMP {names} STOP")
        assert sorted(content(connection)) == list(range(0, 21, 2))


@pytest.mark.parametrize(("places", "named"), [(p, n) for n, p in enumerate(permutations(range(3)))])
def test_pumps_start_in_the_order_of_their_data_flow_whatever_their_names(tmp_path, places, named):
    """The three pumps of a chain have all orders of names, and are named in all ways."""
    (tmp_path / "rows.csv").write_text("".join(f"{n}\n" for n in range(9)))
    names = [f'"{place} pump"' for place in places]
    every = ('"B".*', "*.*", ", ".join(names), ", ".join(reversed(names)), f'{names[1]}, "B".*', f"{names[2]}, b.*")
    options = f"DIRECTORY '{tmp_path}', FILENAME_PATTERN 'rows.csv', PARSER 'CSV', STATIC_FILES 'true'"
    made = [
        "CREATE SCHEMA b; SET SCHEMA 'b'",
        f"CREATE FOREIGN STREAM f (n INTEGER) SERVER FILE_SERVER OPTIONS ({options})",
        *(f"CREATE STREAM s{n} (n INTEGER)" for n in range(3)),
        *(f"CREATE PUMP {p} STOPPED AS INSERT INTO s{n} SELECT STREAM n FROM {f's{n - 1}' if n else 'f'}"
          for n, p in enumerate(names)),
        f"ALTER PUMP {every[named]} START",
    ]  # fmt: skip
    with open_(tmp_path / "db") as connection:
        list(connection.execute_script(";\n".join(made)))
        connection.execute("FLUSH")
        assert connection.execute("SELECT n FROM s2 ORDER BY n").fetchall() == [(n,) for n in range(9)]


def test_reset_of_a_stream_lets_its_clock_begin_anew(tmp_path):
    with open_(tmp_path / "db") as connection:
        connection.execute("CREATE STREAM s (n INTEGER); CREATE STREAM other (n INTEGER)")
        insert(connection, 5, 1)
        insert(connection, 4, 2)  # it is rejected, because it is earlier
        assert connection.execute("ALTER STREAM s, public.* RESET").notices == (
            'the rows of stream "S" are deleted, so that its clock begins anew',
        )
        insert(connection, 3, 3)
        assert connection.execute("SELECT n FROM s").fetchall() == [(3,)]
        connection.execute("CREATE VIEW v AS SELECT STREAM n FROM s")
        with pytest.raises(watersmeet.Error, match="cannot reset"):
            connection.execute("ALTER STREAM s RESET")
        connection.execute("CREATE VIEW w AS SELECT STREAM n FROM other")
        assert connection.execute("ALTER STREAM other RESET").notices == ()  # it has no rows
