"""Views that consecutive statements create are filled in one step; what a user sees is as if each were alone."""

from __future__ import annotations

from unittest import mock

import pytest

import watersmeet
from watersmeet.runtime.inprocess import InProcessEngine

TABLES = """
CREATE TABLE t (id bigint PRIMARY KEY, part bigint, amount bigint);
CREATE TABLE p (id bigint PRIMARY KEY, name varchar);
INSERT INTO t VALUES (1, 1, 10), (2, 1, 20), (3, 2, 0);
INSERT INTO p VALUES (1, 'one'), (2, 'two');
"""
VIEWS = """
CREATE MATERIALIZED VIEW joined AS SELECT t.id, t.amount, p.name FROM t JOIN p ON t.part = p.id;
CREATE MATERIALIZED VIEW sums AS SELECT name, sum(amount) AS total FROM joined GROUP BY name;
CREATE MATERIALIZED VIEW IF NOT EXISTS sums AS SELECT 1 AS other;
CREATE MATERIALIZED VIEW best AS SELECT max(total) AS most FROM sums;
CREATE MATERIALIZED VIEW same AS SELECT t.id, t.amount, p.name FROM t JOIN p ON t.part = p.id WHERE amount > 5;
"""


@pytest.fixture
def installs():
    """The relations of each install."""
    found = []
    install = InProcessEngine.install

    def noted(self, circuit, new_views=(), *check):
        found.append(tuple(new_views))
        return install(self, circuit, new_views, *check)

    with mock.patch.object(InProcessEngine, "install", noted):
        yield found


def content(run):
    return {v: sorted(run(f"SELECT * FROM {v}")) for v in ("joined", "sums", "best", "same")}


FIRST = {
    "joined": [(1, 10, "one"), (2, 20, "one"), (3, 0, "two")],
    "sums": [("one", 30), ("two", 0)],
    "best": [(30,)],
    "same": [(1, 10, "one"), (2, 20, "one")],
}


@pytest.mark.parametrize("whole", [False, True])
def test_views_over_each_other_are_filled_in_one_step_and_follow_changes(connection, run, installs, whole):
    run(TABLES)
    notices = [n for c in connection.execute_script(VIEWS, transaction=whole) for n in c.notices]
    assert [len(i) for i in installs] == [4]
    assert notices == ['relation "sums" already exists, skipping']
    assert content(run) == FIRST
    run("UPDATE t SET amount = 100 WHERE id = 3; DELETE FROM t WHERE id = 2; INSERT INTO t VALUES (4, 9, 1); FLUSH")
    assert content(run) == {
        "joined": [(1, 10, "one"), (3, 100, "two")],
        "sums": [("one", 10), ("two", 100)],
        "best": [(100,)],
        "same": [(1, 10, "one"), (3, 100, "two")],
    }


def test_a_statement_that_cannot_be_bound_keeps_the_views_before_it(connection, run, installs):
    run(TABLES)
    with pytest.raises(watersmeet.Error, match='column "nix"') as found:
        connection.execute(VIEWS + "CREATE MATERIALIZED VIEW bad AS SELECT nix FROM best; CREATE TABLE later (a int)")
    assert found.value.span is not None
    assert [len(i) for i in installs] == [4]
    assert content(run) == FIRST
    assert run("SHOW MATERIALIZED VIEWS") is not None
    assert "later" not in [n for n, _ in run("SHOW RELATIONS")]


def test_a_view_that_fails_while_it_is_filled_fails_alone(connection, run, installs):
    run(TABLES)
    limited = "CREATE MATERIALIZED VIEW bad WITH (max_join_rows = 1) AS SELECT t.id FROM t JOIN p ON t.part = p.id;"
    with pytest.raises(watersmeet.Error) as alone:
        connection.execute(limited)
    with pytest.raises(watersmeet.Error) as found:
        connection.execute(VIEWS + limited + "CREATE MATERIALIZED VIEW later AS SELECT id FROM t;")
    assert (found.value.condition, found.value.message) == (alone.value.condition, alone.value.message)
    assert content(run) == FIRST
    assert sorted(n for n, _ in run("SHOW RELATIONS")) == ["best", "joined", "p", "same", "sums", "t"]
    run("CREATE MATERIALIZED VIEW later AS SELECT id FROM t; INSERT INTO t VALUES (4, 1, 1); FLUSH")
    assert len(run("SELECT * FROM later")) == 4


def test_a_failing_view_undoes_a_script_that_is_one_transaction(connection, run):
    run(TABLES)
    limited = "CREATE MATERIALIZED VIEW bad WITH (max_join_rows = 1) AS SELECT t.id FROM t JOIN p ON t.part = p.id;"
    with pytest.raises(watersmeet.Error, match="rows"):
        list(connection.execute_script("CREATE TABLE u (a int);" + VIEWS + limited, transaction=True))
    assert sorted(n for n, _ in run("SHOW RELATIONS")) == ["p", "t"]
    list(connection.execute_script(VIEWS, transaction=True))
    assert content(run) == FIRST


def test_rows_of_the_same_transaction_are_seen_after_commit(connection, run):
    run(TABLES)
    run("BEGIN; DELETE FROM p WHERE id = 2;" + VIEWS + "COMMIT; FLUSH")
    assert content(run)["sums"] == [("one", 30)]
    views = [f"CREATE MATERIALIZED VIEW x{i} AS SELECT id, amount + {i} AS a FROM joined;" for i in range(3)]
    run(f"BEGIN; {''.join(views)} ROLLBACK")
    assert sorted(n for n, _ in run("SHOW RELATIONS")) == ["best", "joined", "p", "same", "sums", "t"]


def test_an_interrupted_filling_leaves_nothing(connection, run):
    run(TABLES)
    stopped = mock.patch.object(InProcessEngine, "install", side_effect=KeyboardInterrupt)
    with stopped, pytest.raises(KeyboardInterrupt):
        connection.execute(VIEWS)
    assert sorted(n for n, _ in run("SHOW RELATIONS")) == ["p", "t"]
    connection.execute(VIEWS)
    assert content(run) == FIRST


def test_views_are_there_after_reopening(tmp_path):
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as made:
        made.execute(TABLES + VIEWS)
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as found:
        assert content(lambda sql: found.execute(sql).fetchall()) == FIRST
        found.execute("INSERT INTO t VALUES (7, 2, 7); FLUSH")
        assert found.execute("SELECT total FROM sums WHERE name = 'two'").fetchall() == [(7,)]


def test_named_scripts_record_what_they_ran(tmp_path):
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as made:
        list(made.execute_script(TABLES + VIEWS, transaction=True, name="shop.sql"))
        notices = [n for c in made.execute_script(TABLES + VIEWS, transaction=True, name="shop.sql") for n in c.notices]
        assert any("skipped" in n for n in notices)
        assert made.execute("SELECT count(*) FROM t").fetchall() == [(3,)]
