"""Across dialects: what one dialect makes another reads, by its own rules of names, and one meaning is one circuit."""

from __future__ import annotations

import re

import pytest

import watersmeet

#: What every dialect finds: tables that keep the last row of each key, and streams of two dialects.
SCHEMA = """
CREATE TABLE companies (symbol varchar PRIMARY KEY, name varchar);
CREATE TABLE sectors (symbol varchar PRIMARY KEY, sector varchar);
CREATE TABLE trades (symbol varchar, price int) APPEND ONLY;
SET dialect = 'timeplus';
CREATE STREAM ticks (symbol string, price int);
SET dialect = 'sqlstream';
CREATE STREAM bids (symbol VARCHAR(10), price INTEGER);
SET dialect = 'risingwave';
"""

LEFT = "SELECT c.name, s.sector FROM companies AS c LEFT JOIN sectors AS s ON c.symbol = s.symbol"
GROUPED = (
    "SELECT s.sector, count(*) AS n FROM companies AS c JOIN sectors AS s ON c.symbol = s.symbol WHERE c.name <> "
    "'x' GROUP BY s.sector"
)
UNION = "SELECT symbol FROM companies WHERE symbol > 'b' UNION ALL SELECT sector FROM sectors"
FULL = "SELECT c.name, s.sector FROM companies AS c FULL JOIN sectors AS s ON c.symbol = s.symbol"


@pytest.fixture(scope="module")
def connection():
    with watersmeet.connect(runtime="inprocess", parallelism=2) as made:
        made.execute(SCHEMA)
        yield made


def explained(connection, dialect, query):
    """The plan of a view: without what is only its name, in one case, as the names of columns are the reader's."""
    connection.execute(f"SET dialect = '{dialect}'")
    lines = [
        row[0] for row in connection.execute(f"EXPLAIN (VERBOSE) CREATE MATERIALIZED VIEW v AS {query}").fetchall()
    ]
    connection.execute("SET dialect = 'risingwave'")
    return re.sub(r"sink-[0-9a-f]+", "sink", "\n".join(lines)).lower()


@pytest.mark.parametrize("query", [LEFT, GROUPED, UNION, FULL], ids=["left", "grouped", "union", "full"])
@pytest.mark.parametrize("dialect", ["timeplus", "sqlstream"])
def test_one_meaning_is_one_circuit(connection, dialect, query):
    plan = explained(connection, "risingwave", query)
    assert "streammaterialize" in plan
    assert explained(connection, dialect, query) == plan


def test_a_look_up_is_the_same_operator_whoever_asks(connection):
    """RisingWave says so with FOR SYSTEM_TIME AS OF PROCTIME(), in Timeplus the sides say it; what came before it
    started is left out there.
    """
    ours = explained(
        connection,
        "risingwave",
        "SELECT t.price, c.name FROM trades t JOIN companies FOR SYSTEM_TIME AS OF PROCTIME() c ON t.symbol = c.symbol",
    )
    theirs = explained(
        connection, "timeplus", "SELECT t.price, c.name FROM trades AS t JOIN companies AS c ON t.symbol = c.symbol"
    )

    def operators(plan):
        return [line.strip(" │├└─").split(" {")[0] for line in plan.split("stages:")[0].splitlines() if line.strip()]

    assert [o for o in operators(theirs) if o != "streamcut"] == operators(ours)
    assert "streamtemporaljoin" in ours


def test_operators_of_views_of_two_dialects_are_shared(connection):
    connection.execute(
        f"CREATE MATERIALIZED VIEW ours AS {LEFT}; SET dialect = 'timeplus'; CREATE MATERIALIZED VIEW theirs AS {LEFT};"
        "SET dialect = 'risingwave'"
    )
    found = {r.name: r.id for r in connection._session.catalog.relations.values()}
    ours, theirs = (connection._session.database.plans.producers[found[n]] for n in ("ours", "theirs"))
    assert [o.id for o in ours[:-1]] == [o.id for o in theirs[:-1]]
    connection.execute("DROP MATERIALIZED VIEW ours; DROP MATERIALIZED VIEW theirs")


@pytest.mark.parametrize(
    ("dialect", "query"),
    [
        ("risingwave", "SELECT Symbol, PRICE FROM Bids"),
        ("risingwave", 'SELECT "SYMBOL", price FROM "BIDS"'),
        ("sqlstream", "SELECT symbol, price FROM bids"),
        ("sqlstream", "SELECT b.symbol FROM public.bids AS b"),
        ("sqlstream", 'SELECT "symbol" FROM "companies"'),
        ("sqlstream", "SELECT Symbol FROM Companies"),
        ("timeplus", "SELECT SYMBOL, PRICE FROM table(BIDS)"),
        ("timeplus", "SELECT SYMBOL FROM table(default.BIDS)"),
    ],
)
def test_names_that_are_found(connection, dialect, query):
    connection.execute(f"SET dialect = '{dialect}'")
    assert connection.execute(query).fetchall() == []
    connection.execute("SET dialect = 'risingwave'")


@pytest.mark.parametrize(
    ("dialect", "query", "hint"),
    [
        ("risingwave", 'SELECT * FROM "bids"', 'Did you mean "BIDS"?'),
        ("timeplus", "SELECT * FROM table(bids)", 'Did you mean "BIDS"?'),
        ("sqlstream", 'SELECT * FROM "Companies"', 'Did you mean "companies"?'),
        ("timeplus", "SELECT symbol FROM table(BIDS)", 'Did you mean "SYMBOL"?'),
    ],
)
def test_names_that_are_not(connection, dialect, query, hint):
    connection.execute(f"SET dialect = '{dialect}'")
    with pytest.raises(watersmeet.Error) as found:
        connection.execute(query)
    connection.execute("SET dialect = 'risingwave'")
    assert (found.value.condition in ("UNDEFINED_RELATION", "UNDEFINED_COLUMN"), found.value.hint) == (True, hint)


@pytest.mark.parametrize(
    "text",
    [
        "CREATE TABLE Bids (a int)",
        "SET dialect = 'timeplus'; CREATE STREAM bids (a int)",
        "SET dialect = 'sqlstream'; CREATE STREAM companies (a INTEGER)",
        "SET dialect = 'lenses'; CREATE TABLE BIDS (_key int, a int) FORMAT (INT, AVRO)",
    ],
)
def test_no_two_names_differ_in_case_alone(connection, text):
    with pytest.raises(watersmeet.Error, match="already exists"):
        connection.execute(text)
    connection.execute("SET dialect = 'risingwave'")


def test_history_is_what_the_reader_s_dialect_says():
    """SQLstream and Timeplus begin with what comes after a view was made, SQLstream's only where there is a ROWTIME."""
    with watersmeet.connect(runtime="inprocess") as connection:
        connection.execute("""CREATE TABLE log (a int) APPEND ONLY; INSERT INTO log VALUES (1);
                              SET dialect = 'sqlstream'; CREATE STREAM s (a INTEGER); INSERT INTO s (a) VALUES (1);
                              FLUSH;
                              CREATE MATERIALIZED VIEW of_log AS SELECT a FROM log; CREATE MATERIALIZED VIEW of_s AS
                                  SELECT STREAM a FROM s;
                              SET dialect = 'timeplus'; CREATE MATERIALIZED VIEW tp_log AS SELECT a FROM log;
                              SET dialect = 'risingwave'; CREATE MATERIALIZED VIEW rw_s AS SELECT a FROM s;
                              INSERT INTO log VALUES (2); INSERT INTO s (a) VALUES (2); FLUSH""")
        found = {
            n: sorted(r[0] for r in connection.execute(f"SELECT a FROM {n}").fetchall())
            for n in ("of_log", "of_s", "tp_log", "rw_s")
        }
        assert found == {"of_log": [1, 2], "of_s": [2], "tp_log": [2], "rw_s": [1, 2]}


def test_views_keep_their_dialect_over_a_restart(tmp_path):
    with watersmeet.connect(tmp_path / "db", runtime="inprocess", parallelism=2) as connection:
        connection.execute(SCHEMA)
        connection.execute(
            "SET dialect = 'timeplus'; CREATE VIEW half AS SELECT price / 2 AS h FROM ticks; SET dialect = "
            "'risingwave';"
            "CREATE MATERIALIZED VIEW halves AS SELECT h FROM half"
        )
    for rebuild in (False, True):
        with watersmeet.connect(tmp_path / "db", runtime="inprocess", rebuild=rebuild) as connection:
            connection.execute("INSERT INTO ticks (symbol, price) VALUES ('a', 3); FLUSH")
            assert {r[0] for r in connection.execute("SELECT h FROM halves").fetchall()} == {1.5}
            assert {r[0] for r in connection.execute("SELECT h FROM half").fetchall()} == {1.5}
