"""ALTER MATERIALIZED VIEW … AS and CREATE OR REPLACE under readers: what follows, what is refused, and what stays."""

from __future__ import annotations

import pytest

import watersmeet
from watersmeet.errors import Error

SCRIPT = """
CREATE TABLE t (k int PRIMARY KEY, g int, x int);
CREATE TABLE u (g int PRIMARY KEY, y int);
CREATE MATERIALIZED VIEW v AS SELECT t.k, t.g, t.x, u.y FROM t JOIN u ON t.g = u.g;
CREATE MATERIALIZED VIEW sums AS SELECT g, sum(x) AS s FROM v GROUP BY g;
INSERT INTO t VALUES (1, 1, 1), (2, 1, 2), (3, 2, 3);
INSERT INTO u VALUES (1, 10), (2, 20);
FLUSH;
"""


@pytest.fixture
def connection(tmp_path):
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as opened:
        opened.execute(SCRIPT)
        yield opened


def rows(connection, query):
    return sorted(connection.execute(query).fetchall())


def refused(connection, sql):
    before = connection._session.database.catalog
    with pytest.raises(Error) as caught:
        connection.execute(sql)
    assert connection._session.database.catalog.relations == before.relations
    return caught.value


def test_what_belongs_to_a_view_stays(connection):
    connection.execute(
        "CREATE ROLE ann LOGIN; GRANT SELECT ON v TO ann; CREATE INDEX by_g ON v(g) INCLUDE (x); "
        "COMMENT ON MATERIALIZED VIEW v IS 'ours'; COMMENT ON COLUMN v.y IS 'gone'; COMMENT ON COLUMN v.x IS 'kept'"
    )
    database = connection._session.database
    before = {r.shown: r.id for r in database.catalog.relations.values()}
    cursor = connection.execute("ALTER MATERIALIZED VIEW v AS SELECT t.k, t.g, t.x * 2 AS x FROM t")
    assert list(cursor.notices) == ['materialized view "sums" was computed again']
    found = database.catalog.by_name("v")
    assert {r.shown: r.id for r in database.catalog.relations.values()} == before
    assert (found.comment, found.comments) == ("ours", {"x": "kept"})
    assert found.id in database.catalog.roles["ann"].grants
    assert database.catalog.by_name("by_g").columns == found.columns
    assert rows(connection, "SELECT * FROM v") == [(1, 1, 2), (2, 1, 4), (3, 2, 6)]
    assert rows(connection, "SELECT * FROM sums") == [(1, 6), (2, 6)]
    sql = connection.execute("SHOW CREATE MATERIALIZED VIEW v").fetchall()[0][1]
    assert sql == "CREATE MATERIALIZED VIEW v AS SELECT t.k, t.g, t.x * 2 AS x FROM t"


def test_operators_that_stay_the_same_keep_their_state(connection):
    circuit = connection._session.database.engine.circuit
    joins = {o.id for o in circuit.operators if "join" in o.kind}
    assert joins
    connection.execute("ALTER MATERIALIZED VIEW v AS SELECT t.k, t.g, t.x + 1 AS x, u.y FROM t JOIN u ON t.g = u.g")
    now = connection._session.database.engine.circuit
    shared = {o.id for o in now.operators} & {o.id for o in circuit.operators}
    assert {o.kind for o in circuit.operators if o.id in shared} >= {"scan", "arrange"}
    assert rows(connection, "SELECT * FROM sums") == [(1, 5), (2, 4)]


def test_columns_come_go_widen_and_come_again(connection):
    def alter(query):
        connection.execute(f"ALTER MATERIALIZED VIEW v AS {query}")
        connection.execute("INSERT INTO t VALUES (9, 1, 9); FLUSH; DELETE FROM t WHERE k = 9; FLUSH")
        found = rows(connection, "SELECT * FROM v")
        names = [c[0] for c in connection.execute("SELECT * FROM v").description]
        return names, found

    assert alter("SELECT g, x, 1 AS one FROM t") == (["g", "x", "one"], [(1, 1, 1), (1, 2, 1), (2, 3, 1)])
    assert alter("SELECT g, x::bigint AS x FROM t WHERE k > 1") == (["g", "x"], [(1, 2), (2, 3)])
    assert alter("SELECT 'a' AS one2, g, x::bigint AS x, k AS one FROM t") == (
        ["one2", "g", "x", "one"],
        [("a", 1, 1, 1), ("a", 1, 2, 2), ("a", 2, 3, 3)],
    )
    assert rows(connection, "SELECT * FROM sums") == [(1, 3), (2, 3)]


def test_a_plain_view_is_replaced_under_materialized_views(connection):
    connection.execute(
        "CREATE VIEW p AS SELECT k, g FROM v; CREATE MATERIALIZED VIEW n AS SELECT g, count(*) FROM p GROUP BY g"
    )
    connection.execute("CREATE OR REPLACE VIEW p AS SELECT k, g, x FROM v WHERE x > 1")
    assert rows(connection, "SELECT * FROM n") == [(1, 1), (2, 1)]
    error = refused(connection, "BEGIN; CREATE OR REPLACE VIEW p AS SELECT k, g, x FROM v")
    assert (error.condition, error.detail) == ("DEPENDENT_OBJECTS", 'Materialized view "n" was filled through it.')
    connection.execute("ROLLBACK")
    error = refused(connection, "CREATE OR REPLACE VIEW p AS SELECT k FROM v")
    assert error.condition == "DATATYPE_MISMATCH"


def test_every_reader_that_cannot_follow_is_named(connection):
    connection.execute(
        "CREATE VIEW all_of AS SELECT * FROM v; CREATE INDEX by_y ON v(y); "
        "CREATE SUBSCRIPTION sub FROM v WITH (retention = '1D'); "
        "CREATE MATERIALIZED VIEW over AS SELECT s FROM sums; "
        "CREATE MATERIALIZED VIEW ys AS SELECT max(y) AS m FROM v"
    )
    error = refused(connection, "ALTER MATERIALIZED VIEW v AS SELECT k, g, x::numeric AS x FROM t")
    assert error.condition == "DEPENDENT_OBJECTS"
    assert error.sql[error.span.start : error.span.end] == "v"
    for part in (
        'index "by_y" reads the column "y"',
        'view "all_of" would lose its column "y"',
        'subscription "sub" receives the column "x" of type integer',
        'materialized view "ys" can\'t be planned again: column "y" does not exist',
    ):
        assert part in error.detail[0].lower() + error.detail[1:]
    assert "sums" not in error.detail


@pytest.mark.parametrize(
    ("sql", "condition", "place"),
    [
        ("ALTER MATERIALIZED VIEW v AS SELECT k, nope FROM t", "UNDEFINED_COLUMN", "nope"),
        ("ALTER MATERIALIZED VIEW v AS SELECT k, FROM t WHERE", "SYNTAX_ERROR", None),
        ("ALTER MATERIALIZED VIEW v AS", "SYNTAX_ERROR", None),
        ("ALTER MATERIALIZED VIEW t AS SELECT 1", "CATALOG_TYPE_MISMATCH", "t"),
        ("ALTER MATERIALIZED VIEW w AS SELECT 1", "UNDEFINED_RELATION", "w"),
        ("ALTER MATERIALIZED VIEW v AS SELECT g AS k, g, s AS x, s AS y FROM sums", "INVALID_NAME", "v"),
        ("ALTER MATERIALIZED VIEW v AS SELECT g, k, x::varchar AS x FROM t", "FEATURE_NOT_SUPPORTED", "v"),
        ("BEGIN; ALTER MATERIALIZED VIEW v AS SELECT k, g, x, y FROM v", "TRANSACTION_STATE", None),
    ],
)
def test_errors_show_their_place(connection, sql, condition, place):
    with pytest.raises(Error) as caught:
        connection.execute(sql)
    assert caught.value.condition == condition
    if place is not None:
        span = caught.value.span
        assert (caught.value.sql or sql)[span.start : span.end] == place


def test_views_that_cannot_be_computed_again_stand_in_the_way(connection):
    connection.execute(
        "CREATE TABLE events (k int, g int) APPEND ONLY; CREATE MATERIALIZED VIEW e AS SELECT k, g FROM events; "
        "CREATE MATERIALIZED VIEW looked AS SELECT e.k, s.s FROM e JOIN sums FOR SYSTEM_TIME AS OF PROCTIME() AS s "
        "ON e.g = s.g"
    )
    with pytest.raises(Error) as caught:
        connection.execute("ALTER MATERIALIZED VIEW e AS SELECT k, g FROM events WHERE k > 1")
    assert caught.value.condition == "FEATURE_NOT_SUPPORTED"
    assert "temporal join" in caught.value.message


def test_if_exists_and_a_script_that_runs_twice(tmp_path):
    script = """
    CREATE TABLE t (k int PRIMARY KEY, x int);
    CREATE MATERIALIZED VIEW v AS SELECT k, x FROM t;
    CREATE MATERIALIZED VIEW w AS SELECT x FROM v;
    ALTER MATERIALIZED VIEW v AS SELECT k, x + 1 AS x FROM t;
    ALTER MATERIALIZED VIEW IF EXISTS nope AS SELECT 1;
    INSERT INTO t VALUES (1, 1);
    FLUSH
    """
    for _ in range(2):
        with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
            list(connection.execute_script(script, name="s.sql"))
            assert rows(connection, "SELECT * FROM w") == [(2,)]


def test_a_stopped_view_gets_a_query_that_works(connection):
    connection.execute(
        "CREATE MATERIALIZED VIEW d AS SELECT k, x FROM t; CREATE MATERIALIZED VIEW dd AS SELECT x FROM d"
    )
    stopped = connection._session.database.engine
    stopped.stop_views(
        {connection._session.catalog.by_name("d").id: {"condition": "VIEW_FAILED", "message": "planted"}}
    )
    connection.execute("INSERT INTO t VALUES (7, 7, 7)")
    connection.execute("ALTER MATERIALIZED VIEW d AS SELECT k, x + 100 AS x FROM t")
    connection.execute("INSERT INTO t VALUES (8, 8, 8); FLUSH")
    assert (107,) in rows(connection, "SELECT x FROM d")
    assert rows(connection, "SELECT x FROM dd") == rows(connection, "SELECT x FROM d")
    assert connection.execute("SHOW ERRORS").fetchall() == []


def test_streams_of_timeplus_are_refused_by_name(tmp_path):
    with watersmeet.connect(tmp_path / "db", "timeplus", runtime="inprocess") as connection:
        connection.execute("CREATE STREAM s (k string, v int); CREATE MATERIALIZED VIEW v AS SELECT k, v FROM s")
        with pytest.raises(Error) as caught:
            connection.execute("ALTER VIEW v MODIFY QUERY SELECT k, v + 1 AS v FROM s")
        assert caught.value.condition == "FEATURE_NOT_SUPPORTED"
        assert "whose rows depend on the moment" in caught.value.message
        connection.execute(
            "CREATE MUTABLE STREAM m (k string, v int) PRIMARY KEY k; INSERT INTO m(k, v) VALUES ('a', 1); "
            "CREATE MATERIALIZED VIEW c AS SELECT k, v FROM m"
        )
        connection.execute("ALTER VIEW c MODIFY QUERY SELECT k, v + 1 AS v FROM m")
        connection.execute("FLUSH")
        assert rows(connection, "SELECT k, v FROM table(c)") == [("a", 2)]
