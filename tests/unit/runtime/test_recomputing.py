"""The rule that decides which epochs compute views again, its setting, and where it is reported."""

from __future__ import annotations

from collections import Counter

import pytest

import watersmeet
from watersmeet.circuit.epochs import Recompute
from watersmeet.errors import Error
from watersmeet.runtime import coordinator, recomputing
from watersmeet.runtime.recomputing import beginning_again

ROWS = 30_000
FILL = f"INSERT INTO t SELECT i, i % 1000, i FROM generate_series(1, {ROWS}) AS s(i)"


@pytest.fixture(params=[1, 3])
def connection(request, tmp_path):
    with watersmeet.connect(tmp_path / "db", runtime="inprocess", parallelism=request.param) as found:
        found.execute("CREATE TABLE t(k int, g int, x int)")
        found.execute("CREATE TABLE u(g int, y int)")
        found.execute("INSERT INTO u SELECT i, i FROM generate_series(0, 999) AS s(i)")
        found.execute(FILL)
        found.execute("CREATE MATERIALIZED VIEW v AS SELECT t.k, t.x, u.y FROM t JOIN u ON t.g = u.g")
        found.execute("FLUSH")
        yield found


def transaction(connection, *statements):
    for sql in ("BEGIN", *statements, "COMMIT", "FLUSH"):
        connection.execute(sql)


def recomputed(connection, view: str = "v") -> int:
    """The number of epochs that computed a view again."""
    (found,) = [v for v in connection._session.database.engine.status().views if v.name == view]
    return found.recomputed


def check(connection, view: str = "v") -> None:
    query = "SELECT t.k, t.x, u.y FROM t JOIN u ON t.g = u.g"
    assert Counter(connection.execute(f"SELECT * FROM {view}").fetchall()) == Counter(
        connection.execute(query).fetchall()
    )


def test_a_rewritten_table_is_computed_again(connection):
    transaction(connection, "DELETE FROM t", FILL.replace("i % 1000, i", "i % 999, i + 1"))
    assert recomputed(connection) == 1
    check(connection)
    assert connection.execute("SHOW COMMITS FROM v LIMIT 1").fetchone()[-1] == "v"
    transaction(connection, "INSERT INTO t VALUES (1, 1, 1)")
    assert recomputed(connection) == 1
    check(connection)
    assert connection.execute("SHOW COMMITS FROM v LIMIT 1").fetchone()[-1] is None


def test_a_truncated_table_is_computed_again(connection):
    connection.execute("TRUNCATE t")
    connection.execute("FLUSH")
    assert recomputed(connection) == 1
    assert connection.execute("SELECT count(*) FROM v").fetchone() == (0,)
    connection.execute(FILL)
    connection.execute("FLUSH")
    check(connection)


def test_a_small_part_is_processed_as_changes(connection):
    transaction(connection, "UPDATE t SET x = x + 1 WHERE k <= 3000")
    transaction(connection, f"DELETE FROM t WHERE k > {ROWS // 2}")
    assert recomputed(connection) == 0
    check(connection)


def test_most_rows_are_computed_again(connection):
    transaction(connection, f"UPDATE t SET x = x + 1 WHERE k > {ROWS // 20}")
    assert recomputed(connection) == 1
    check(connection)


def test_insertions_are_processed_as_changes(connection):
    connection.execute(FILL)
    connection.execute("FLUSH")
    assert recomputed(connection) == 0
    check(connection)


def test_the_option_forces_and_forbids(connection):
    query = "SELECT t.k, t.x, u.y FROM t JOIN u ON t.g = u.g"
    connection.execute(f"CREATE MATERIALIZED VIEW w WITH (recompute = 'never') AS {query}")
    # Both views have the same operators, which begin again together or not at all.
    transaction(connection, "DELETE FROM t", FILL)
    transaction(connection, "DELETE FROM t", FILL.replace("i % 1000, i", "i % 999, i + 1"))
    assert recomputed(connection) == recomputed(connection, "w") == 0
    connection.execute("DROP MATERIALIZED VIEW w")
    connection.execute("SET recompute = 'always'")
    connection.execute("CREATE MATERIALIZED VIEW w AS SELECT g, count(*) AS n FROM u GROUP BY g")
    transaction(connection, "INSERT INTO u VALUES (1, 1)")
    assert recomputed(connection, "w") == 1
    assert connection.execute("SELECT n FROM w WHERE g = 1").fetchone() == (2,)
    check(connection)


def test_the_option_can_be_changed(connection):
    rewrite = f"UPDATE t SET x = x + 1 WHERE k > {ROWS // 20}"
    connection.execute("ALTER MATERIALIZED VIEW v SET RECOMPUTE = never")
    transaction(connection, rewrite)
    assert recomputed(connection) == 0
    connection.execute("ALTER MATERIALIZED VIEW v SET RECOMPUTE TO 'always'")
    transaction(connection, "UPDATE t SET x = x + 1 WHERE k <= 3000")
    assert recomputed(connection) == 1
    connection.execute("ALTER MATERIALIZED VIEW v SET RECOMPUTE = DEFAULT")
    transaction(connection, "UPDATE t SET x = x + 1 WHERE k <= 3000")
    assert recomputed(connection) == 1
    transaction(connection, rewrite)
    assert recomputed(connection) == 2
    check(connection)
    with pytest.raises(Error, match='recompute can\'t be "sometimes"') as caught:
        connection.execute("ALTER MATERIALIZED VIEW v SET RECOMPUTE = sometimes")
    assert caught.value.sql[caught.value.span.start : caught.value.span.end] == "RECOMPUTE = sometimes"


def test_other_values_are_refused(connection):
    for sql in (
        "CREATE MATERIALIZED VIEW w WITH (recompute = 'sometimes') AS SELECT g FROM u",
        "SET recompute = 'sometimes'",
    ):
        with pytest.raises(Error) as raised:
            connection.execute(sql)
        assert raised.value.condition == "INVALID_PARAMETER"
        assert "sometimes" in raised.value.message


@pytest.mark.parametrize(
    "view",
    [
        "CREATE MATERIALIZED VIEW w WITH (recompute = 'always', max_join_amplification_rows = 9) AS SELECT k FROM t",
        "CREATE MATERIALIZED VIEW w WITH (recompute = 'always') AS SELECT e.k FROM e JOIN u ON e.k = u.g",
        "CREATE MATERIALIZED VIEW w WITH (recompute = 'always') AS SELECT k FROM n WHERE at > now() - INTERVAL '1 day'",
    ],
)
def test_views_that_depend_on_more_than_present_rows_process_changes(connection, view):
    connection.execute("CREATE TABLE e(k int, at timestamp, WATERMARK FOR at AS at - INTERVAL '1 day') APPEND ONLY")
    connection.execute("CREATE TABLE n(k int, at timestamp)")
    connection.execute(view)
    for sql in ("INSERT INTO e VALUES (1, '2020-01-01')", "INSERT INTO u VALUES (1, 7)", "DELETE FROM t WHERE k > 9"):
        connection.execute(sql)
    connection.execute("FLUSH")
    connection.execute("INSERT INTO n VALUES (1, '2020-01-01')")
    connection.execute("FLUSH")
    assert recomputed(connection, "w") == 0


def test_what_does_not_fit_is_processed_as_changes(connection, monkeypatch):
    monkeypatch.setattr(recomputing, "MOST_READ", 0)
    monkeypatch.setattr("watersmeet.runtime.workers.MAX_ROWS", ROWS)
    transaction(connection, "DELETE FROM t", FILL.replace("i % 1000, i", "i % 999, i + 1"))
    assert recomputed(connection) == 0
    check(connection)


def test_arrangements_of_other_tables_stay(connection):
    planned = []

    def plan(*arguments):
        planned.append(plan_recompute(*arguments))
        return planned[-1]

    plan_recompute = coordinator.plan_recompute
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coordinator, "plan_recompute", plan)
        transaction(connection, "DELETE FROM t", FILL.replace("i % 1000, i", "i % 999, i + 1"))
    (found,) = [p for p in planned if p is not None]
    assert isinstance(found.mode, Recompute)
    circuit = connection._session.database.engine.circuit
    table = {s.relation_id: s.id for s in circuit.scans}
    again = set(found.mode.operators)
    names = {r.name: r.id for r in connection._session.catalog.shown}
    assert table[names["t"]] in again
    assert table[names["u"]] not in again
    assert found.mode.emptied == (names["t"],)
    assert again == beginning_again(circuit, [table[names["t"]]])


def test_a_preserved_side_is_read_again(connection):
    connection.execute("DROP MATERIALIZED VIEW v")
    connection.execute("CREATE MATERIALIZED VIEW v AS SELECT t.k, u.y FROM t RIGHT JOIN u ON t.g = u.g")
    circuit = connection._session.database.engine.circuit
    table = {s.relation_id: s.id for s in circuit.scans}
    names = {r.name: r.id for r in connection._session.catalog.shown}
    assert table[names["u"]] in beginning_again(circuit, [table[names["t"]]])
    assert table[names["t"]] not in beginning_again(circuit, [table[names["u"]]])


def test_subscribers_and_sinks_get_only_the_rows_that_changed(connection):
    """All rows of the table are replaced, but only the sum of one group changes."""
    for sql in (
        "CREATE MATERIALIZED VIEW sums AS SELECT g, sum(x) AS s FROM t GROUP BY g",
        "CREATE TABLE copy(g int PRIMARY KEY, s bigint)",
        "CREATE SINK into_copy INTO copy AS SELECT g, s FROM sums WITH (type = 'upsert')",
        "FLUSH",
    ):
        connection.execute(sql)
    connection._session.database._compactor.run()
    before = connection.execute("SELECT s FROM sums WHERE g = 7").fetchone()[0]
    after = connection.execute("SHOW COMMITS LIMIT 1").fetchone()[0]
    transaction(
        connection, "DELETE FROM t", FILL.replace("SELECT i, i % 1000, i", "SELECT -i, i % 1000, i + (i = 7)::int")
    )
    assert recomputed(connection, "sums") == 1
    connection.execute("FLUSH")
    for relation in ("sums", "copy"):
        upto = connection.execute("SHOW COMMITS LIMIT 1").fetchone()[0]
        found = Counter[tuple[int, ...]]()
        for update in connection.subscribe(relation, after=after, up_to=upto):
            for batch in update.batches:
                for row in zip(*batch.rows.to_pydict().values(), batch.diffs.tolist(), strict=True):
                    found[row[:-1]] += row[-1]
        assert found == {(7, before): -1, (7, before + 1): 1}, relation
    assert connection.execute("SELECT s FROM copy WHERE g = 7").fetchone() == (before + 1,)
