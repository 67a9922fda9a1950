"""Forks in SQL: CREATE FORK, SHOW FORKS, REPLAY, DROP FORK."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from tests import captures
from tests.memorystore import MemoryStore, use
from tests.thorough import some

import watersmeet
from watersmeet.errors import Error
from watersmeet.sinkwriters.writers import SinkWriters
from watersmeet.store import retention

SETUP = """
CREATE TABLE a (id int PRIMARY KEY, v int);
CREATE TABLE b (id int, w int);
CREATE SOURCE s (id int, x int) WITH (connector = 'file', path = '{folder}', format = 'json', settle_ms = 0);
CREATE MATERIALIZED VIEW j AS SELECT a.id, v, w FROM a LEFT JOIN b ON a.id = b.id;
CREATE MATERIALIZED VIEW c AS SELECT s.id, count(*) AS n, sum(a.v) AS v FROM s JOIN a ON s.id = a.id GROUP BY s.id;
CREATE MATERIALIZED VIEW d AS SELECT c.id, n, w FROM c JOIN b ON c.id = b.id;
"""
VIEWS = ("a", "b", "j", "c", "d")


def connect(path, **options):
    return watersmeet.connect(path, runtime="inprocess", **options)


def rows(connection, sql):
    return sorted(connection.execute(sql).fetchall(), key=repr)


def contents(connection, views=VIEWS):
    return {view: rows(connection, f"SELECT * FROM {view}") for view in views}


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "in"
    made.mkdir()
    return made


@pytest.fixture(params=["directory", "objects"])
def place(request, tmp_path, monkeypatch):
    if request.param == "directory":
        return str(tmp_path / "db")
    use(monkeypatch, MemoryStore(), tmp_path / "cache")
    return "s3://memory/db"


@pytest.fixture
def main(place, folder):
    with connect(place) as connection:
        for _ in connection.execute_script(SETUP.format(folder=folder)):
            pass
        yield connection


class History:
    """Random changes of the inputs of a database."""

    def __init__(self, main, folder, seed):
        self.random, self.main, self.folder, self.files = random.Random(seed), main, folder, 0

    def step(self):
        pick, number = self.random.random(), self.random.randrange(8)
        if pick < 0.3:
            self.main.execute(f"INSERT INTO a VALUES ({number}, {self.random.randrange(100)})")
        elif pick < 0.5:
            self.main.execute(f"INSERT INTO b VALUES ({number}, {self.random.randrange(100)})")
        elif pick < 0.6:
            self.main.execute(f"DELETE FROM b WHERE id = {number}; UPDATE a SET v = v + 1 WHERE id < {number}")
        elif pick < 0.8:
            self.files += 1
            lines = "".join(f'{{"id": {self.random.randrange(8)}, "x": {i}}}\n' for i in range(3))
            (self.folder / f"{self.files:03}.json").write_text(lines)
        elif pick < 0.95:
            self.main.execute("FLUSH")
        else:
            self.main.execute("FLUSH")
            self.main.opened._compactor.run()

    def steps(self, most):
        for _ in range(self.random.randrange(most)):
            self.step()


def path_of(main, name):
    return next(path for fork, *_, path in main.execute("SHOW FORKS").fetchall() if fork == name)


@pytest.mark.parametrize("seed", some(range(24)))
def test_a_replayed_fork_equals_its_database(main, folder, seed):
    """Also one that was closed, or whose replay failed after any commit."""
    history = History(main, folder, seed)
    history.steps(12)
    main.execute("CREATE FORK f")
    path = path_of(main, "f")
    began = contents(main)
    history.steps(12)
    with connect(path) as fork:
        assert contents(fork) == began, "a fork follows no commit of its database by itself"
        fork.execute("FLUSH")
        assert contents(fork) == began
    for _ in range(3):
        history.steps(10)
        with connect(path) as fork:
            commit, left = fork.opened.commit, history.random.randrange(8)

            def failing(*args, commit=commit, **options):
                nonlocal left
                left -= 1
                if left == 0:
                    raise Error("DISK_FULL", "planted")
                return commit(*args, **options)

            fork.opened.commit = failing
            try:
                fork.execute("REPLAY")
            except Error as planted:
                assert planted.condition == "DISK_FULL"
    main.execute("FLUSH")
    with connect(path) as fork:
        fork.execute("REPLAY")
        assert contents(fork) == contents(main)
        assert diff_of(main, "f") == diff_of(fork, "f") == {view: ("same", 0, 0) for view in VIEWS}
        replayed = next(row[3] for row in main.execute("SHOW FORKS").fetchall())
        assert replayed == main.opened.log.head()
        fork.execute("REPLAY")
        assert contents(fork) == contents(main)


def diff_of(connection, fork):
    found = rows(connection, f"SHOW DIFF BETWEEN {fork} AND main")
    return {view: tuple(found) for view, _, *found in found}


def expected_diff(fork, main, view):
    ours, theirs = Counter(rows(fork, f"SELECT * FROM {view}")), Counter(rows(main, f"SELECT * FROM {view}"))
    only = [(*r, "f", n) for r, n in (ours - theirs).items()] + [(*r, "main", n) for r, n in (theirs - ours).items()]
    return sorted(only, key=repr)


@pytest.mark.parametrize("seed", some(range(24)))
def test_differences_are_those_of_the_contents(main, folder, seed):
    """After random changes of definitions and rows of a fork, and of its database, before and after compactions."""
    history = History(main, folder, seed)
    history.steps(12)
    main.execute("CREATE FORK f")
    with connect(path_of(main, "f")) as fork:
        fork.execute("DROP MATERIALIZED VIEW d; DROP MATERIALIZED VIEW c")
        join = "s JOIN a ON s.id = a.id + 1"
        fork.execute(
            f"CREATE MATERIALIZED VIEW c AS SELECT s.id, count(*) AS n, sum(a.v) AS v FROM {join} GROUP BY s.id"
        )
        for _ in range(3):
            history.steps(10)
            main.execute("FLUSH")
            fork.execute("REPLAY")
            if history.random.random() < 0.5:
                fork.execute(f"INSERT INTO b VALUES ({history.random.randrange(8)}, 7), (9, 9); FLUSH")
            if history.random.random() < 0.3:
                fork.opened._compactor.run()
            found = diff_of(main, "f")
            assert found.pop("d") == ("only in main", None, None)
            for view, (definition, ours, theirs) in found.items():
                assert definition == ("differs" if view == "c" else "same")
                expected = expected_diff(fork, main, view)
                assert rows(main, f"DIFF VIEW {view} BETWEEN f AND main") == expected
                assert rows(fork, f"DIFF VIEW {view} BETWEEN main AND f") == expected
                assert (ours, theirs) == tuple(sum(r[-1] for r in expected if r[-2] == s) for s in ("f", "main"))
                some_rows = main.execute(f"DIFF VIEW {view} LIMIT 1").fetchall()
                assert len(some_rows) == min(1, len(expected))
                assert {*some_rows} <= {*expected}
            history.steps(6)
            before = contents(main, ("j",))
            main.execute("FLUSH")
            if contents(main, ("j",)) != before:
                (row,) = main.execute("SHOW FORKS").fetchall()
                notices = main.execute("DIFF VIEW j").notices
                assert f"main is compared as of commit {row[3]}: f has not replayed" in str(notices)


def test_definitions_of_a_fork_are_its_own(main, folder):
    main.execute("INSERT INTO a VALUES (1, 1), (2, 2); INSERT INTO b VALUES (1, 10), (2, 20); FLUSH")
    main.execute("CREATE FORK f")
    with connect(path_of(main, "f")) as fork:
        fork.execute("DROP MATERIALIZED VIEW d; DROP MATERIALIZED VIEW j")
        fork.execute("CREATE MATERIALIZED VIEW j AS SELECT a.id, v + w AS total FROM a JOIN b ON a.id = b.id")
        main.execute("INSERT INTO a VALUES (3, 3); INSERT INTO b VALUES (3, 30); FLUSH")
        (folder / "1.json").write_text('{"id": 3, "x": 0}\n')
        main.execute("FLUSH")
        fork.execute("REPLAY")
        assert rows(fork, "SELECT * FROM j") == [(1, 11), (2, 22), (3, 33)]
        assert rows(fork, "SELECT * FROM c") == rows(main, "SELECT * FROM c") == [(3, 1, 3)]
        assert rows(main, "SELECT * FROM d") == [(3, 1, 30)]


def test_a_fork_delivers_nothing(main, tmp_path):
    form = "FORMAT PLAIN ENCODE JSON (force_append_only = 'true')"
    main.execute(f"CREATE SINK k FROM j WITH (connector = 'file', path = '{tmp_path}/out') {form}")
    main.execute("INSERT INTO a VALUES (1, 1); FLUSH; CREATE FORK f")
    sink = main.opened.catalog.by_name("k")
    assert main.opened.service(SinkWriters).wait(sink.id, 60)
    sent = [p.read_text() for p in (tmp_path / "out").glob("*.*") if p.is_file()]
    with connect(path_of(main, "f")) as fork:
        fork.execute("INSERT INTO a VALUES (2, 2); FLUSH")
        assert rows(fork, "SELECT * FROM j") == [(1, 1, None), (2, 2, None)]
    assert sent
    assert [p.read_text() for p in (tmp_path / "out").glob("*.*") if p.is_file()] == sent


@pytest.mark.parametrize(
    ("statement", "condition", "message"),
    [
        ("CREATE FORK f", "DUPLICATE_OBJECT", 'fork "f" already exists'),
        ("CREATE FORK main", "INVALID_NAME", "a fork can't be called 'main'"),
        ('CREATE FORK "a/b"', "INVALID_NAME", "a fork can't be called 'a/b'"),
        ("DROP FORK g", "UNDEFINED_OBJECT", 'fork "g" does not exist'),
        ("REPLAY", "FEATURE_NOT_SUPPORTED", "the main database replays nothing"),
        ("DIFF VIEW x", "UNDEFINED_RELATION", 'relation "x" does not exist'),
        ("DIFF VIEW j BETWEEN g AND main", "UNDEFINED_OBJECT", 'fork "g" does not exist'),
        ("DIFF VIEW j BETWEEN f AND g", "FEATURE_NOT_SUPPORTED", "DIFF of two forks is not supported"),
        ("BEGIN; CREATE FORK g", "TRANSACTION_STATE", "CREATE FORK is not possible inside a transaction"),
    ],
)
def test_refused_in_the_main_database(main, statement, condition, message):
    main.execute("CREATE FORK f")
    with pytest.raises(Error) as refused:
        main.execute(statement)
    assert (refused.value.condition, refused.value.message) == (condition, message)


@pytest.mark.parametrize(
    ("statement", "condition", "message"),
    [
        ("CREATE FORK g", "FEATURE_NOT_SUPPORTED", "a fork can't be forked"),
        (
            "CREATE SINK k FROM j WITH (connector = 'blackhole')",
            "FEATURE_NOT_SUPPORTED",
            "a sink can't be created in a fork",
        ),
        (
            "CREATE SOURCE z (id int) WITH (connector = 'datagen', rows_per_second = 1)",
            "FEATURE_NOT_SUPPORTED",
            "a source can't be created in a fork",
        ),
        ("CREATE SEQUENCE q", "FEATURE_NOT_SUPPORTED", "a sequence can't be created in a fork"),
        ("REPLAY TO COMMIT 1", "INVALID_PARAMETER", "commit 1 can't be replayed"),
        ("REPLAY TO COMMIT 99999", "INVALID_PARAMETER", "commit 99999 can't be replayed"),
    ],
)
def test_refused_in_a_fork(main, statement, condition, message):
    main.execute("CREATE FORK f")
    with connect(path_of(main, "f")) as fork:
        with pytest.raises(Error) as refused:
            fork.execute(statement)
        assert (refused.value.condition, refused.value.message) == (condition, message)


def test_rows_that_other_systems_send_are_replayed(tmp_path):
    """They are transactions of the main database; a fork receives none by itself."""
    with connect(tmp_path / "db") as main:
        script = """CREATE TABLE w (id int, v varchar) WITH (connector = 'webhook');
        CREATE DOMAIN small AS int CHECK (VALUE < 100); CREATE TABLE d (id int, s small); CREATE SEQUENCE q;
        CREATE MATERIALIZED VIEW m AS SELECT w.id, w.v, d.s FROM w JOIN d ON w.id = d.id;
        CREATE SUBSCRIPTION sub FROM m WITH (retention = '1D');
        INSERT INTO w VALUES (1, 'a'); INSERT INTO d VALUES (1, nextval('q')); FLUSH"""
        for _ in main.execute_script(script):
            pass
        number = main.opened.log.head()
        other = "SELECT w.id, upper(w.v) AS v, d.s FROM w JOIN d ON w.id = d.id"
        main.execute("CREATE FORK f; INSERT INTO w VALUES (1, 'b'); INSERT INTO d VALUES (2, nextval('q')); FLUSH")
        main.execute("ALTER SYSTEM SET retention = '1 day'")
        main.execute(f"CREATE FORK g AT COMMIT {number}")
        for name in ("f", "g"):
            with connect(path_of(main, name)) as fork:
                assert rows(fork, "SELECT * FROM m") == [(1, "a", 1)]
                fork.execute("CREATE DOMAIN other AS int; CREATE TABLE o (x other)")
                fork.execute("REPLAY")
                assert rows(fork, "SELECT * FROM m") == [(1, "a", 1), (1, "b", 1)]
                assert rows(fork, "SELECT * FROM d") == [(1, 1), (2, 2)]
                fork.execute(f"CREATE OR REPLACE MATERIALIZED VIEW m AS {other}")
        main.execute("DROP FORK f")
        main.execute("CREATE FORK h")
        with connect(path_of(main, "h")) as fork:
            fork.execute(f"CREATE OR REPLACE MATERIALIZED VIEW m AS {other}")
        main.execute("PROMOTE h")
        assert rows(main, "SELECT * FROM m") == [(1, "A", 1), (1, "B", 1)]
        main.execute("INSERT INTO w VALUES (2, 'c'); INSERT INTO d VALUES (3, nextval('q')); FLUSH")
        assert rows(main, "SELECT * FROM m") == [(1, "A", 1), (1, "B", 1), (2, "C", 2)]
        assert rows(main, "SELECT * FROM d") == [(1, 1), (2, 2), (3, 3)]
        main.execute("DECLARE c SUBSCRIPTION CURSOR FOR sub FULL")
        found = main.execute("FETCH 100 FROM c").fetchall()
        assert len(found) == 3


def test_temporary_tables_stay_with_their_session(tmp_path):
    with connect(tmp_path / "db") as main:
        main.execute("CREATE TABLE t (a int); CREATE MATERIALIZED VIEW m AS SELECT a FROM t")
        main.execute("CREATE TEMP TABLE own (a int); INSERT INTO own VALUES (1); INSERT INTO t VALUES (1); FLUSH")
        main.execute("CREATE FORK f")
        with connect(path_of(main, "f")) as fork:
            fork.execute("CREATE OR REPLACE MATERIALIZED VIEW m AS SELECT a + 1 AS a FROM t")
            with pytest.raises(Error, match='relation "own" does not exist'):
                fork.execute("SELECT * FROM own")
        main.execute("CREATE TEMP TABLE later (a int); INSERT INTO later VALUES (2)")
        main.execute("PROMOTE f")
        assert rows(main, "SELECT * FROM m") == [(2,)]
        assert rows(main, "SELECT * FROM own UNION ALL SELECT * FROM later") == [(1,), (2,)]
        main.execute("INSERT INTO own VALUES (3); DROP TABLE later; FLUSH")
        assert rows(main, "SELECT * FROM own") == [(1,), (3,)]


def test_captured_tables_are_replayed(tmp_path, postgres):
    with connect(tmp_path / "db") as main:
        postgres.execute("CREATE TABLE t (i int PRIMARY KEY, n int); INSERT INTO t VALUES (1, 10)")
        captures.source(main, postgres)
        main.execute("CREATE TABLE t (*) FROM there TABLE 'public.t'")
        main.execute("CREATE MATERIALIZED VIEW m AS SELECT sum(n) AS n FROM t")
        assert captures.rows(main, "SELECT * FROM m") == [(10,)]
        main.execute("CREATE FORK f")
        postgres.execute("UPDATE t SET n = 11; INSERT INTO t VALUES (2, 5)")
        assert captures.rows(main, "SELECT * FROM m") == [(16,)]
        with connect(path_of(main, "f")) as fork:
            fork.execute("FLUSH")
            assert rows(fork, "SELECT * FROM m") == [(10,)], "a fork captures nothing by itself"
            fork.execute("CREATE OR REPLACE MATERIALIZED VIEW m AS SELECT max(n)::bigint AS n FROM t; REPLAY")
            assert rows(fork, "SELECT * FROM m") == [(11,)]
            with pytest.raises(Error, match="can't be created in a fork"):
                captures.source(fork, postgres)
        main.execute("PROMOTE f")
        postgres.execute("UPDATE t SET n = 99 WHERE i = 2")
        assert captures.rows(main, "SELECT * FROM m") == [(99,)]


def test_a_fork_in_use_is_neither_dropped_nor_promoted(tmp_path, folder):
    with connect(tmp_path / "db") as main:
        main.execute("CREATE TABLE t (a int); CREATE FORK f")
        with connect(tmp_path / "db/forks/f"):
            for statement in ("DROP FORK f", "DROP FORK IF EXISTS f", "PROMOTE f"):
                with pytest.raises(Error, match='fork "f" is in use') as used:
                    main.execute(statement)
                assert (used.value.condition, used.value.hint) == ("DATABASE_IN_USE", "Close its connections.")
        main.execute("DROP FORK f; CREATE FORK f; DROP FORK IF EXISTS f")
        (notice,) = main.execute("DROP FORK IF EXISTS f").notices
        assert 'fork "f" does not exist, skipping' in str(notice)


def test_a_fork_that_does_not_exist_is_not_created_as_a_database(main, place):
    with pytest.raises(Error, match=r'fork "f" of the database at .*db does not exist') as missing:
        connect(f"{place}/forks/f")
    assert missing.value.condition == "UNDEFINED_OBJECT"
    main.execute("CREATE FORK f")
    with connect(f"{place}/forks/f") as fork:
        assert contents(fork) == contents(main)


def test_a_later_fork_with_the_same_name_shares_other_files(main):
    for number in range(3):
        main.execute(f"INSERT INTO a VALUES ({number}, 1); INSERT INTO b VALUES ({number}, 1); FLUSH; CREATE FORK f")
        main.execute(f"INSERT INTO a VALUES ({number}, 2); INSERT INTO b VALUES ({number}, 2); FLUSH")
        with connect(path_of(main, "f")) as fork:
            fork.execute("REPLAY")
            assert contents(fork) == contents(main)
        main.execute("DROP FORK f")


def test_history_that_a_fork_needs_is_kept(main, monkeypatch):
    main.execute("ALTER SYSTEM SET retention = 0; CREATE FORK f")
    for number in range(5):
        main.execute(f"INSERT INTO a VALUES ({number}, 1); FLUSH")
        main.opened._compactor.run()
    with connect(path_of(main, "f")) as fork:
        fork.execute("REPLAY")
        assert contents(fork) == contents(main)


def test_history_beyond_the_limits_is_gone(tmp_path, folder, monkeypatch):
    monkeypatch.setattr(retention, "DELIVERY_COMMITS", 3)
    with connect(tmp_path / "db") as main:
        main.execute("CREATE TABLE t (a int); ALTER SYSTEM SET retention = 0; CREATE FORK f")
        for number in range(9):
            main.execute(f"INSERT INTO t VALUES ({number}); FLUSH")
            main.opened._compactor.run()
        with connect(tmp_path / "db/forks/f") as fork, pytest.raises(Error) as gone:
            fork.execute("REPLAY")
        assert gone.value.condition == "HISTORY_GONE"
