"""PROMOTE: a database becomes its fork in one commit, with the difference for all readers; OR REPLACE in a fork."""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter

import pytest
from tests.memorystore import MemoryStore, use
from tests.thorough import some
from tests.unit.session.test_forks import connect, contents, path_of, rows
from tests.unit.store.faults import FaultyOs, Killed

from watersmeet.errors import Error
from watersmeet.system import files

SETUP = """
CREATE TABLE a (id int PRIMARY KEY, v int);
CREATE TABLE b (id int, w int);
CREATE SOURCE s (id int, x int) WITH (connector = 'file', path = '{folder}', format = 'json', settle_ms = 0);
CREATE MATERIALIZED VIEW j AS SELECT a.id, v + w AS t FROM a JOIN b ON a.id = b.id;
CREATE MATERIALIZED VIEW k AS SELECT id, count(*) AS n, sum(t) AS t FROM j GROUP BY id;
CREATE MATERIALIZED VIEW c AS SELECT s.id, count(*) AS n, sum(a.v) AS v FROM s JOIN a ON s.id = a.id GROUP BY s.id;
"""
#: Definitions that views get in forks. Those of j and c keep the columns.
CHANGES = (
    ("j", "SELECT a.id, v * w AS t FROM a JOIN b ON a.id = b.id"),
    ("j", "SELECT a.id, v - w AS t FROM a JOIN b ON a.id = b.id + 1"),
    ("j", "SELECT a.id, v + w AS t FROM a JOIN b ON a.id = b.id AND w > 40"),
    ("c", "SELECT s.id, count(*) AS n, sum(a.v) AS v FROM s JOIN a ON s.id = a.id + 1 GROUP BY s.id"),
    ("c", "SELECT s.id, count(*) AS n, sum(a.v) AS v FROM s JOIN a ON s.id = a.id WHERE x > 0 GROUP BY s.id"),
    ("n1", "SELECT id, max(t) AS t FROM j GROUP BY id"),
    ("n2", "SELECT c.id, n, w FROM c JOIN b ON c.id = b.id"),
)


def script(connection, text):
    for _ in connection.execute_script(text):
        pass


class Twins:
    """The same random history of two databases, of which only one has forks."""

    def __init__(self, place, folder, seed):
        self.random, self.folder, self.files = random.Random(seed), folder, 0
        self.main, self.twin = connect(place), connect(None)
        self.views = ["a", "b", "j", "k", "c"]
        for one in (self.main, self.twin):
            script(one, SETUP.format(folder=folder))

    def both(self, statement):
        self.main.execute(statement)
        self.twin.execute(statement)

    def steps(self, most):
        for _ in range(self.random.randrange(most)):
            pick, number = self.random.random(), self.random.randrange(8)
            if pick < 0.3:
                self.both(f"INSERT INTO a VALUES ({number}, {self.random.randrange(100)})")
            elif pick < 0.6:
                self.both(f"INSERT INTO b VALUES ({number}, {self.random.randrange(100)})")
            elif pick < 0.7:
                self.both(f"DELETE FROM b WHERE id = {number}; UPDATE a SET v = v + 1 WHERE id < {number}")
            elif pick < 0.85:
                self.files += 1
                lines = [json.dumps({"id": self.random.randrange(8), "x": i}) for i in range(3)]
                (self.folder / f"{self.files:03}.json").write_text("".join(f"{line}\n" for line in lines))
            else:
                self.both("FLUSH")
                if pick > 0.95:
                    self.main.opened._compactor.run()

    def change(self, connection, name, query):
        verb = "CREATE OR REPLACE" if name in self.views else "CREATE"
        connection.execute(f"{verb} MATERIALIZED VIEW {name} AS {query}")

    def redefine(self, name, query):
        """The same change without a fork, where a view that others read is dropped with them and created again."""
        others = [(n, q) for n, q in self.definitions.items() if n != name]
        self.twin.execute(f"DROP MATERIALIZED VIEW IF EXISTS {name} CASCADE")
        self.definitions[name] = query
        self.twin.execute(f"CREATE MATERIALIZED VIEW {name} AS {query}")
        there = {r.name for r in self.twin.opened.catalog.relations.values()}
        for other, text in others:
            if other not in there:
                self.twin.execute(f"CREATE MATERIALIZED VIEW {other} AS {text}")

    def check(self):
        self.both("FLUSH")
        assert contents(self.main, self.views) == contents(self.twin, self.views)


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "in"
    made.mkdir()
    return made


@pytest.mark.parametrize("place", ["directory", "objects"])
@pytest.mark.parametrize("seed", some(range(24)))
def test_histories_with_forks_equal_those_without(tmp_path, folder, monkeypatch, place, seed):
    if place == "objects":
        use(monkeypatch, MemoryStore(), tmp_path / "cache")
    twins = Twins(str(tmp_path / "db") if place == "directory" else "s3://memory/db", folder, seed)
    twins.definitions = {
        "j": "SELECT a.id, v + w AS t FROM a JOIN b ON a.id = b.id",
        "k": "SELECT id, count(*) AS n, sum(t) AS t FROM j GROUP BY id",
        "c": "SELECT s.id, count(*) AS n, sum(a.v) AS v FROM s JOIN a ON s.id = a.id GROUP BY s.id",
    }
    main = twins.main
    main.execute("ALTER SYSTEM SET retention = '1 day'")
    for number in range(3):
        first = head_of(main)
        twins.steps(12)
        commit = twins.random.randrange(first, head_of(main) + 1)
        at = f" AT COMMIT {commit}" if twins.random.random() < 0.6 else ""
        main.execute(f"CREATE FORK f{number}{at}")
        twins.steps(8)
        name, query = twins.random.choice(CHANGES)
        with connect(path_of(main, f"f{number}")) as fork:
            if twins.random.random() < 0.5:
                fork.execute("REPLAY")
            twins.change(fork, name, query)
            if number == 1:
                other = twins.random.choice([c for c in CHANGES if c[0] in ("j", "c") and c[0] != name])
                twins.change(fork, *other)
            twins.steps(8)
            if twins.random.random() < 0.5:
                fork.execute("REPLAY")
                fork.opened._compactor.run()
        main.execute("FLUSH")
        after, before = head_of(main), contents(main, ("j", "k", "c"))
        main.execute(f"PROMOTE f{number}")
        for view, content in before.items():
            assert changed(main, view, content, after) == rows(main, f"SELECT * FROM {view}"), "the difference"
        twins.redefine(name, query)
        if number == 1:
            twins.redefine(*other)
        twins.views = [*twins.views, *({name} - {*twins.views})]
        twins.check()
        twins.steps(8)
        twins.check()
    main.opened._compactor.run()
    twins.check()
    assert main.execute("SHOW FORKS").fetchall() == []
    twins.twin.close()
    main.close()


def head_of(connection):
    return connection.execute("SHOW COMMITS LIMIT 1").fetchone()[0]


def changed(connection, view, before, after):
    """The rows of a view for a subscriber that had `before` as of commit `after`."""
    found = Counter(before)
    for update in connection.subscribe(view, after=after, up_to=head_of(connection)):
        for batch in update.batches:
            for row, diff in zip(batch.rows.to_pylist(), batch.diffs.tolist(), strict=True):
                found[tuple(row.values())] += diff
    assert min(found.values(), default=0) >= 0
    return sorted(found.elements(), key=repr)


#: The content of j and k before and after the promotion of the tests below.
OLD = {"j": [(1, 11), (2, 22)], "k": [(1, 1, 11), (2, 1, 22)]}
NEW = {"j": [(1, 10), (2, 40)], "k": [(1, 1, 10), (2, 1, 40)]}


def forked(place, folder):
    """A database with a fork that has another view j."""
    with connect(place) as main:
        script(main, SETUP.format(folder=folder))
        main.execute("INSERT INTO a VALUES (1, 1), (2, 2); INSERT INTO b VALUES (1, 10); FLUSH; CREATE FORK f")
        with connect(path_of(main, "f")) as fork:
            fork.execute(f"CREATE OR REPLACE MATERIALIZED VIEW j AS {CHANGES[0][1]}")
        main.execute("INSERT INTO b VALUES (2, 20); FLUSH")
        assert contents(main, OLD) == OLD


def check_whole(place):
    """Whether the database is its fork; it works in both cases."""
    with connect(place) as main:
        found = contents(main, OLD)
        assert found in (OLD, NEW)
        if found == OLD:
            main.execute("PROMOTE f")
            assert contents(main, NEW) == NEW
        main.execute("INSERT INTO b VALUES (1, 3); FLUSH")
        assert rows(main, "SELECT * FROM k") == [(1, 2, 13), (2, 1, 40)]
        main.opened._compactor.run()
    with connect(place) as main:
        main.execute("INSERT INTO b VALUES (2, 4); FLUSH")
        assert rows(main, "SELECT * FROM k") == [(1, 2, 13), (2, 2, 48)]
    return found == NEW


@pytest.mark.slow
def test_a_kill_at_every_step(tmp_path, folder, monkeypatch):
    forked(tmp_path / "db", folder)

    def run(root, at=None):
        main = connect(root)
        faulty = FaultyOs(at)
        with monkeypatch.context() as patched:
            patched.setattr(files, "os", faulty)
            try:
                main.execute("PROMOTE f")
            finally:
                abandoned.append(main)
        return faulty.calls

    abandoned = []
    shutil.copytree(tmp_path / "db", tmp_path / "count")
    calls = run(tmp_path / "count")
    there = []
    for at in some(range(1, calls + 1, 3)):
        shutil.copytree(tmp_path / "db", tmp_path / "killed")
        with pytest.raises(Killed):
            run(tmp_path / "killed", at)
        shutil.copytree(tmp_path / "killed", tmp_path / "found")
        there.append(check_whole(tmp_path / "found"))
        for path in ("killed", "found"):
            shutil.rmtree(tmp_path / path)
    assert there == sorted(there)


@pytest.mark.slow
def test_a_kill_at_every_request_of_an_object_store(tmp_path, folder, monkeypatch):
    root = "s3://memory/db"
    store = use(monkeypatch, MemoryStore(), tmp_path / "cache")
    forked(root, folder)
    saved = dict(store.objects)
    left = [0]

    def dying(kind, name):
        del name
        if kind not in ("list", "stat", "get", "range"):
            left[0] -= 1
            if left[0] <= 0:
                raise Killed

    def run(requests):
        store.objects.clear()
        store.objects.update(saved)
        main = connect(root)
        left[0] = requests
        store.before = dying
        try:
            main.execute("PROMOTE f")
        finally:
            store.before = lambda kind, name: None
            abandoned.append(main)
        return requests - left[0]

    abandoned = []
    requests = run(10_000)
    there = []
    for at in some(range(1, requests + 1)):
        with pytest.raises(Killed):
            run(at)
        there.append(check_whole(root))
    assert there == sorted(there)


@pytest.fixture
def main(tmp_path, folder):
    forked(tmp_path / "db", folder)
    with connect(tmp_path / "db") as connection:
        yield connection


def test_sinks_receive_the_difference(tmp_path, folder):
    with connect(tmp_path / "db") as main:
        script(main, SETUP.format(folder=folder))
        main.execute("INSERT INTO a VALUES (1, 1), (2, 2); INSERT INTO b VALUES (1, 10), (2, 0); FLUSH")
        main.execute("CREATE TABLE received (id int, n bigint, t bigint)")
        main.execute("CREATE FORK f")
        with connect(path_of(main, "f")) as fork:
            fork.execute(f"CREATE OR REPLACE MATERIALIZED VIEW j AS {CHANGES[0][1]}")
        after = head_of(main)
        before = rows(main, "SELECT * FROM k")
        main.execute("PROMOTE f")
        assert changed(main, "k", before, after) == rows(main, "SELECT * FROM k") == [(1, 1, 10), (2, 1, 0)]
        unchanged = [c for c in main.execute("SHOW COMMITS FROM c").fetchall() if c[0] > after]
        assert unchanged == [], "views with equal content get no change"


@pytest.mark.parametrize(
    ("statements", "condition", "message"),
    [
        ("CREATE VIEW x AS SELECT * FROM a", "FEATURE_NOT_SUPPORTED", "definitions of the main database have changed"),
        ("DROP MATERIALIZED VIEW c", "FEATURE_NOT_SUPPORTED", "definitions of the main database have changed"),
    ],
)
def test_refused_after_changes_of_the_database(main, statements, condition, message):
    main.execute(statements)
    with pytest.raises(Error) as refused:
        main.execute("PROMOTE f")
    assert refused.value.condition == condition
    assert message in refused.value.message
    assert contents(main, OLD) == OLD


@pytest.mark.parametrize(
    ("statements", "message"),
    [
        ("INSERT INTO b VALUES (7, 7); FLUSH", 'table "b" has other rows in the fork'),
        ("CREATE TABLE x (a int); INSERT INTO x VALUES (1); FLUSH", 'table "x" has other rows in the fork'),
        ("ALTER TABLE b ADD COLUMN more int", 'table "b" has other columns in the fork'),
    ],
)
def test_refused_after_changes_of_the_fork(main, statements, message):
    with connect(path_of(main, "f")) as fork:
        fork.execute(statements)
    with pytest.raises(Error) as refused:
        main.execute("PROMOTE f")
    assert (refused.value.condition, refused.value.message) == ("FEATURE_NOT_SUPPORTED", message)
    assert contents(main, OLD) == OLD
    main.execute("INSERT INTO b VALUES (1, 1); FLUSH")
    assert len(rows(main, "SELECT * FROM j")) == 3, "the database goes on"


def test_other_refusals(main):
    with pytest.raises(Error, match='fork "g" does not exist'):
        main.execute("PROMOTE g")
    with connect(path_of(main, "f")) as fork, pytest.raises(Error, match="a fork has no forks"):
        fork.execute("PROMOTE f")
    with connect(path_of(main, "f")), pytest.raises(Error) as used:
        main.execute("PROMOTE f")
    assert used.value.condition == "DATABASE_IN_USE"
    main.execute("CREATE FORK g; PROMOTE f")
    with connect(path_of(main, "g")) as other, pytest.raises(Error, match='became fork "f" at commit'):
        other.execute("REPLAY")
    with pytest.raises(Error, match="definitions of the main database have changed"):
        main.execute("PROMOTE g")


def test_a_view_that_would_read_itself(main):
    with connect(path_of(main, "f")) as fork:
        with pytest.raises(Error) as refused:
            fork.execute("CREATE OR REPLACE MATERIALIZED VIEW j AS SELECT id, t::int AS t FROM k")
        assert refused.value.condition == "INVALID_NAME"
        assert rows(fork, "SELECT * FROM j") == [(1, 10)]


def test_a_function_of_a_fork(tmp_path):
    with connect(tmp_path / "db") as main:
        script(
            main,
            """CREATE TABLE t (a int); CREATE FUNCTION f(x int) RETURNS int LANGUAGE SQL RETURN x + 1;
            CREATE MATERIALIZED VIEW k AS SELECT f(a) AS y FROM t; CREATE VIEW v AS SELECT f(a) AS z FROM t;
            INSERT INTO t VALUES (1); FLUSH; CREATE FORK f""",
        )
        with connect(path_of(main, "f")) as fork:
            fork.execute("CREATE OR REPLACE FUNCTION f(x int) RETURNS int LANGUAGE SQL RETURN x + 10")
            assert rows(fork, "SHOW DIFF") == [
                ("k", "materialized view", "differs", 1, 1),
                ("t", "table", "same", 0, 0),
                ("v", "view", "differs", None, None),
            ]
        main.execute("PROMOTE f; INSERT INTO t VALUES (5); FLUSH")
        assert rows(main, "SELECT * FROM k") == rows(main, "SELECT * FROM v") == [(11,), (15,)]
        assert rows(main, "SELECT f(1)") == [(11,)]
