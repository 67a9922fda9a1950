"""Forks of databases whose views write streams, tables and topics: pumps, processors, INTO, sinks into tables."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from dataclasses import dataclass

import pytest
from tests.memorystore import MemoryStore, use
from tests.thorough import some
from tests.unit.session.test_dictionaries import source as replaced
from tests.unit.session.test_external_topics import produce, stream
from tests.unit.session.test_forks import connect
from tests.unit.session.test_written_tables import content, delivered, table
from tests.unit.store.faults import FaultyOs, Killed

from watersmeet.errors import Error
from watersmeet.sinkwriters.writers import SinkWriters
from watersmeet.system import files


@dataclass
class Written:
    """A database of a dialect. contents: a query for each compared relation. changes: statements that change a writer.
    inserts: statements with {id}, {v} and {n}, which increases.
    """

    dialect: str
    setup: tuple[str, ...]
    contents: dict[str, str]
    changes: tuple[tuple[str, ...], ...]
    inserts: tuple[str, ...]

    def open(self, place):
        return connect(place, dialect=self.dialect)

    def rows(self, connection):
        return {name: sorted(connection.execute(q).fetchall(), key=repr) for name, q in self.contents.items()}


TIMEPLUS = Written(
    "timeplus",
    (
        "CREATE STREAM i (id int, v int)",
        "CREATE STREAM s (id int, v int)",
        "CREATE STREAM s2 (id int, v int)",
        "CREATE MUTABLE STREAM m (id int, v int) PRIMARY KEY id",
        "CREATE MATERIALIZED VIEW w INTO s AS SELECT id, v * 2 AS v FROM i",
        "CREATE MATERIALIZED VIEW x INTO m AS SELECT id, v + 100 AS v FROM s",
        "CREATE MATERIALIZED VIEW y INTO s2 AS SELECT id, v FROM s WHERE v > 20",
        "CREATE MATERIALIZED VIEW t AS SELECT id, count() AS n, max(v) AS v FROM s GROUP BY id",
        "CREATE MATERIALIZED VIEW u AS SELECT s2.id, s2.v, i.v AS w FROM s2 JOIN i ON s2.id = i.id",
    ),
    {
        "i": "SELECT id, v FROM table(i)",
        "s": "SELECT id, v FROM table(s)",
        "s2": "SELECT id, v FROM table(s2)",
        "m": "SELECT id, v FROM table(m)",
        "t": "SELECT id, n, v FROM table(t)",
        "u": "SELECT id, v, w FROM table(u)",
    },
    (
        ("CREATE OR REPLACE MATERIALIZED VIEW w INTO s AS SELECT id, v * 3 AS v FROM i",),
        ("CREATE OR REPLACE MATERIALIZED VIEW w INTO s AS SELECT id, v FROM i WHERE v > 10",),
        ("DROP VIEW x", "CREATE MATERIALIZED VIEW x INTO m AS SELECT id, v FROM s"),
        ("CREATE OR REPLACE MATERIALIZED VIEW y INTO s2 AS SELECT id + 1 AS id, v FROM s",),
        ("DROP VIEW y",),
        ("CREATE MATERIALIZED VIEW z INTO s2 AS SELECT id, v FROM i WHERE id = 1",),
    ),
    (
        "INSERT INTO i (id, v) VALUES ({id}, {v})",
        "INSERT INTO i (id, v) VALUES ({id}, {v}), ({v}, {id})",
        "INSERT INTO s (id, v) VALUES ({id}, {v})",
        "INSERT INTO m (id, v) VALUES ({id}, {v})",
        "DELETE FROM m WHERE id = {id}",
    ),
)
HOUR = "OVER (RANGE INTERVAL '1' HOUR PRECEDING)"
SQLSTREAM = Written(
    "sqlstream",
    (
        "CREATE STREAM i (id INTEGER, v INTEGER)",
        "CREATE STREAM s (id INTEGER, v INTEGER)",
        "CREATE STREAM s2 (id INTEGER, v INTEGER)",
        "CREATE PUMP w STARTED AS INSERT INTO s (ROWTIME, id, v) SELECT STREAM ROWTIME, id, v * 2 FROM i",
        "CREATE PUMP y STARTED AS INSERT INTO s2 (ROWTIME, id, v) SELECT STREAM ROWTIME, id, v FROM s WHERE v > 20",
        f"CREATE MATERIALIZED VIEW t AS SELECT STREAM s.id, s.v, r.v AS w FROM s {HOUR} JOIN s2 {HOUR} r USING (id)",
    ),
    {
        "i": "SELECT id, v FROM i",
        "s": "SELECT id, v FROM s",
        "s2": "SELECT id, v FROM s2",
        "t": "SELECT id, v, w FROM t",
    },
    (
        ("CREATE OR REPLACE PUMP w STARTED AS INSERT INTO s (ROWTIME, id, v) SELECT STREAM ROWTIME, id, v * 3 FROM i",),
        ("ALTER PUMP y STOP",),
        (
            "DROP PUMP y",
            "CREATE PUMP y STARTED AS INSERT INTO s2 (ROWTIME, id, v) SELECT STREAM ROWTIME, id, v + 1 FROM i",
        ),
    ),
    (
        "INSERT INTO i (ROWTIME, id, v) VALUES (TIMESTAMP '2024-01-01 00:{n}', {id}, {v})",
        "INSERT INTO s (ROWTIME, id, v) VALUES (TIMESTAMP '2024-01-01 00:{n}', {id}, {v})",
    ),
)
LENSES = Written(
    "lenses",
    (
        "CREATE TABLE i (_key int, v int) FORMAT (int, avro)",
        "CREATE TABLE s (_key int, v int NULL) FORMAT (int, avro)",
        "SET defaults.topic.autocreate = true",
        "INSERT INTO s SELECT STREAM v * 2 AS v FROM i WHERE v > 5",
        "INSERT INTO s SELECT STREAM v FROM i WHERE v < 50",
        "INSERT INTO t SELECT STREAM s.v AS v, i.v AS w FROM s JOIN i ON s._key = i._key WITHIN 1h",
    ),
    {"i": "SELECT _key, v FROM i", "s": "SELECT _key, v FROM s", "t": "SELECT _key, v, w FROM t"},
    (
        ("STOP PROCESSOR s", "INSERT INTO s SELECT STREAM v * 3 AS v FROM i"),
        ("STOP PROCESSOR s_2",),
        ("INSERT INTO s SELECT STREAM v + 1 AS v FROM i",),
    ),
    ("INSERT INTO i (_key, v) VALUES ({id}, {v})", "INSERT INTO s (_key, v) VALUES ({id}, {v})"),
)
RISINGWAVE = Written(
    "risingwave",
    (
        "CREATE TABLE i (id int, v int)",
        "CREATE TABLE s (id int PRIMARY KEY, v int)",
        "CREATE TABLE g (id int, v int)",
        "CREATE MATERIALIZED VIEW w AS SELECT id, sum(v) AS v FROM i GROUP BY id",
        "CREATE SINK into_s INTO s AS SELECT id, v::int AS v FROM w WITH (type = 'upsert')",
        "CREATE SINK into_g INTO g AS SELECT id, v FROM i WITH (type = 'append-only', force_append_only = 'true')",
        "CREATE MATERIALIZED VIEW t AS SELECT s.id, s.v, g.v AS w FROM s JOIN g ON s.id = g.id",
    ),
    {n: f"SELECT * FROM {n}" for n in "i s g w t".split()},
    (
        ("CREATE OR REPLACE MATERIALIZED VIEW w AS SELECT id, sum(v * 2) AS v FROM i GROUP BY id",),
        ("CREATE OR REPLACE MATERIALIZED VIEW w AS SELECT id, sum(v) AS v FROM i WHERE v > 10 GROUP BY id",),
    ),
    (
        "INSERT INTO i VALUES ({id}, {v})",
        "INSERT INTO g VALUES ({id}, {v})",
        "INSERT INTO s VALUES ({id}, {v})",
        "DELETE FROM i WHERE id = {id}",
        "DELETE FROM g WHERE id = {id}",
        "DELETE FROM s WHERE id = {id}",
    ),
)
DATABASES = pytest.mark.parametrize(
    "kind", [TIMEPLUS, SQLSTREAM, LENSES, RISINGWAVE], ids=["timeplus", "sqlstream", "lenses", "risingwave"]
)


class Twins:
    """The same random history of two databases, of which only one has forks."""

    def __init__(self, kind, place, seed):
        self.random, self.kind, self.number = random.Random(seed), kind, 0
        self.main, self.twin = kind.open(place), kind.open(None)
        self.both(*kind.setup)

    def both(self, *statements):
        for statement in statements:
            self.main.execute(statement)
            self.twin.execute(statement)

    def steps(self, most):
        for _ in range(self.random.randrange(most)):
            if self.random.random() < 0.3:
                self.both("FLUSH")
            else:
                self.number += 1
                n = f"{self.number // 60:02}:{self.number % 60:02}"
                values = {"id": self.random.randrange(6), "v": self.random.randrange(60), "n": n}
                self.both(self.random.choice(self.kind.inserts).format(**values))
            if self.random.random() < 0.05:
                self.main.opened._compactor.run()

    def check(self, connection=None):
        assert self.kind.rows(connection or self.main) == self.kind.rows(self.twin)

    def close(self):
        self.twin.close()
        self.main.close()


def path_of(main, name):
    return next(path for fork, *_, path in main.execute("SHOW FORKS").fetchall() if fork.lower() == name)


def head_of(connection):
    return connection.opened.log.head()


def is_forked(main, fork):
    """False if the state of the commit was deleted, and its views can't be filled as they were."""
    try:
        main.execute(f"CREATE FORK {fork}")
    except Error as refused:
        assert "can't be rebuilt" in refused.message
        return False
    return True


@DATABASES
@pytest.mark.parametrize("seed", some(range(16)))
def test_an_unchanged_fork_shows_the_same(tmp_path, kind, seed):
    """After it has begun at a random commit, and after REPLAY of random parts."""
    twins = Twins(kind, str(tmp_path / "db"), seed)
    main = twins.main
    main.execute("ALTER SYSTEM SET retention = '1 day'")
    if kind is TIMEPLUS and not seed % 2:  # its rows depend on when others arrive
        twins.both("CREATE MATERIALIZED VIEW arrived AS SELECT s2.id, m.v AS w FROM s2 JOIN m ON s2.id = m.id")
    first = head_of(main)
    twins.steps(12)
    at = f" AT COMMIT {twins.random.randrange(first, head_of(main) + 1)}" if seed % 2 else ""
    if not is_forked(main, f"f{at}"):
        return
    for _ in range(3):
        twins.steps(12)
        with kind.open(path_of(main, "f")) as fork:
            fork.execute("REPLAY")
            if twins.random.random() < 0.5:
                fork.execute("FLUSH")
    main.execute("FLUSH")
    with kind.open(path_of(main, "f")) as fork:
        fork.execute("REPLAY")
        assert kind.rows(fork) == kind.rows(main)
        different = [r for r in fork.execute("SHOW DIFF").fetchall() if r[2] != "same" or r[3] or r[4]]
        assert different == []
    main.execute("PROMOTE f")
    twins.steps(12)
    twins.both("FLUSH")
    twins.check()
    twins.close()


@DATABASES
@pytest.mark.parametrize("place", ["directory", "objects"])
@pytest.mark.parametrize("seed", some(range(16)))
def test_histories_with_forks_equal_those_without(tmp_path, monkeypatch, kind, place, seed):
    if place == "objects":
        use(monkeypatch, MemoryStore(), tmp_path / "cache")
    twins = Twins(kind, str(tmp_path / "db") if place == "directory" else "s3://memory/db", seed)
    main = twins.main
    main.execute("ALTER SYSTEM SET retention = '1 day'")
    changes = twins.random.sample(kind.changes, min(2, len(kind.changes)))
    for number, change in enumerate(changes):
        twins.steps(12)
        twins.both("FLUSH")
        commit = head_of(main)
        past = twins.random.random() < 0.5
        if not past:
            main.execute(f"CREATE FORK f{number}")
        for statement in change:
            twins.twin.execute(statement)
        twins.steps(12)
        if past and not is_forked(main, f"f{number} AT COMMIT {commit}"):
            return
        with kind.open(path_of(main, f"f{number}")) as fork:
            for statement in change:
                fork.execute(statement)
            for _ in range(2):
                twins.steps(8)
                twins.both("FLUSH")
                fork.execute("REPLAY")
                twins.check(fork)
            if twins.random.random() < 0.3:
                fork.opened._compactor.run()
        twins.steps(6)
        main.execute(f"PROMOTE f{number}")
        twins.both("FLUSH")
        twins.check()
        twins.steps(8)
        twins.both("FLUSH")
        twins.check()
    main.opened._compactor.run()
    twins.check()
    main.close()
    twins.main = main = kind.open(str(tmp_path / "db") if place == "directory" else "s3://memory/db")
    twins.steps(8)
    twins.both("FLUSH")
    twins.check()
    twins.close()


PROMOTED = {"s": [(1, 30), (2, 60), (3, 90)], "t": [(1, 1, 30), (2, 1, 60), (3, 1, 90)]}
BEFORE = {"s": [(1, 20), (2, 40), (3, 60)], "t": [(1, 1, 20), (2, 1, 40), (3, 1, 60)]}


def seen(connection):
    return {n: sorted(connection.execute(TIMEPLUS.contents[n]).fetchall()) for n in PROMOTED}


def forked(place):
    """A fork from before all rows of a stream, with another writer of it."""
    with TIMEPLUS.open(place) as main:
        for statement in TIMEPLUS.setup:
            main.execute(statement)
        main.execute("ALTER SYSTEM SET retention = '1 day'; FLUSH")
        commit = head_of(main)
        main.execute("INSERT INTO i (id, v) VALUES (1, 10), (2, 20); FLUSH")
        main.execute(f"CREATE FORK f AT COMMIT {commit}")
        with TIMEPLUS.open(path_of(main, "f")) as fork:
            fork.execute("CREATE OR REPLACE MATERIALIZED VIEW w INTO s AS SELECT id, v * 3 AS v FROM i; REPLAY")
            assert seen(fork) == {n: rows[:2] for n, rows in PROMOTED.items()}
        main.execute("INSERT INTO i (id, v) VALUES (3, 30); FLUSH")
        assert seen(main) == BEFORE


def check_whole(place):
    """Whether the database is its fork; it works in both cases, and new views read its history."""
    with TIMEPLUS.open(place) as main:
        found = seen(main)
        assert found in (BEFORE, PROMOTED)
        if found == BEFORE:
            main.execute("PROMOTE f")
            assert seen(main) == PROMOTED
        main.execute("INSERT INTO i (id, v) VALUES (4, 1); FLUSH")
        assert seen(main)["s"] == [*PROMOTED["s"], (4, 3)]
    with TIMEPLUS.open(place) as main:
        main.execute(
            "CREATE MATERIALIZED VIEW most AS SELECT id, max(v) AS v FROM s WHERE _tp_time > earliest_ts() GROUP BY id"
        )
        main.execute("INSERT INTO i (id, v) VALUES (4, 2); FLUSH")
        assert sorted(main.execute("SELECT id, v FROM table(most)").fetchall()) == [*PROMOTED["s"], (4, 6)]
        main.opened._compactor.run()
        assert seen(main)["s"] == [*PROMOTED["s"], (4, 3), (4, 6)]
    return found == PROMOTED


@pytest.mark.slow
def test_a_kill_at_every_step_of_promote(tmp_path, monkeypatch):
    forked(tmp_path / "db")
    abandoned = []

    def run(root, at=None):
        main = TIMEPLUS.open(root)
        faulty = FaultyOs(at)
        with monkeypatch.context() as patched:
            patched.setattr(files, "os", faulty)
            try:
                main.execute("PROMOTE f")
            finally:
                abandoned.append(main)
        return faulty.calls

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


def test_external_content_is_that_of_the_main_database(tmp_path):
    """What views of the main database read is replayed; a table that only queries read is read by the fork itself."""
    place, other = tmp_path / "names.csv", tmp_path / "other.csv"
    replaced(place, "1,a\n2,b\n")
    replaced(other, "1,x\n")
    with TIMEPLUS.open(str(tmp_path / "db")) as main:
        for name, path in (("e", place), ("o", other)):
            settings = f"type = 'file', path = '{path}', format = 'CSV'"
            main.execute(f"CREATE EXTERNAL TABLE {name} (k int, v string) SETTINGS {settings}")
        clauses = f"SOURCE(FILE(path '{place}' format 'CSV')) LAYOUT(FLAT()) LIFETIME(1)"
        main.execute(f"CREATE DICTIONARY d (k int, v string) PRIMARY KEY k {clauses}")
        main.execute("CREATE STREAM i (k int); CREATE STREAM s (k int, v string, w string)")
        query = "SELECT i.k, e.v, dict_get('d', 'v', i.k) AS w FROM i JOIN e ON i.k = e.k"
        main.execute(f"CREATE MATERIALIZED VIEW j INTO s AS {query}")
        main.execute("INSERT INTO i (k) VALUES (1); FLUSH; CREATE FORK f")
        replaced(place, "1,a\n2,c\n")
        replaced(other, "1,y\n2,z\n")
        with TIMEPLUS.open(path_of(main, "f")) as fork:
            fork.execute("FLUSH")
            assert sorted(fork.execute("SELECT k, v FROM e").fetchall()) == [(1, "a"), (2, "b")]
            assert sorted(fork.execute("SELECT k, v FROM o").fetchall()) == [(1, "y"), (2, "z")]
            assert fork.execute("SELECT dict_get('d', 'v', 2)").fetchall() == [("b",)]
            assert sorted(main.execute("SELECT k, v FROM e").fetchall()) == [(1, "a"), (2, "c")]
            main.execute("INSERT INTO i (k) VALUES (2); FLUSH")
            fork.execute("REPLAY")
            assert sorted(fork.execute("SELECT k, v FROM e").fetchall()) == [(1, "a"), (2, "c")]
            written = sorted(main.execute("SELECT k, v, w FROM table(s)").fetchall())
            assert sorted(fork.execute("SELECT k, v, w FROM table(s)").fetchall()) == written
            assert len(written) == 2
            fork.execute(f"CREATE OR REPLACE MATERIALIZED VIEW j INTO s AS {query} WHERE i.k > 1")
            main.execute("INSERT INTO i (k) VALUES (1), (2); FLUSH")
        main.execute("PROMOTE f")
        assert sorted(main.execute("SELECT k, v, w FROM table(s)").fetchall()) == [*written, (2, "c", "c")]


def test_outside_targets_get_the_difference(tmp_path, postgres):
    """Views INTO an external table: off in the fork; what stays continues where it is."""
    postgres.execute("CREATE TABLE kept (k int, v int); CREATE TABLE changed (k int, v int); CREATE TABLE n (k int)")
    with TIMEPLUS.open(str(tmp_path / "db")) as main:
        main.execute("CREATE STREAM i (k int, v int)")
        for name in ("kept", "changed"):
            main.execute(table(postgres, name))
            main.execute(f"CREATE MATERIALIZED VIEW to_{name} INTO {name} AS SELECT k, v FROM i")
        main.execute(table(postgres, "n"))
        main.execute("INSERT INTO i (k, v) VALUES (1, 1)")
        delivered(main)
        main.execute("CREATE FORK f; INSERT INTO i (k, v) VALUES (2, 2); FLUSH")
        with TIMEPLUS.open(path_of(main, "f")) as fork:
            fork.execute("CREATE OR REPLACE MATERIALIZED VIEW to_changed INTO changed AS SELECT k, v * 10 AS v FROM i")
            fork.execute("CREATE MATERIALIZED VIEW to_n INTO n AS SELECT k FROM i")
            fork.execute("REPLAY; FLUSH")
            with pytest.raises(Error) as refused:
                fork.execute("INSERT INTO kept VALUES (9, 9)")
            assert refused.value.message == 'external table "kept" can\'t be written in a fork'
        main.execute("INSERT INTO i (k, v) VALUES (3, 3)")
        delivered(main)
        (notice,) = main.execute("PROMOTE f").notices
        assert notice.startswith('3 delivered rows that materialized view "to_changed" does not have stay')
        main.execute("INSERT INTO i (k, v) VALUES (4, 4)")
        delivered(main)
        rows = "SELECT k, v FROM {} ORDER BY k, v"
        assert content(postgres, rows.format("kept")) == [(1, 1), (2, 2), (3, 3), (4, 4)]
        assert content(postgres, rows.format("changed")) == [(1, 1), (2, 2), (2, 20), (3, 3), (3, 30), (4, 40)]
        assert content(postgres, "SELECT k FROM n ORDER BY k") == [(2,), (3,), (4,)], "it has no predecessor"


def test_a_view_with_other_columns_delivers_rows_after_promote(tmp_path, postgres):
    postgres.execute("CREATE TABLE o (k int, v int, w int)")
    with TIMEPLUS.open(str(tmp_path / "db")) as main:
        main.execute("CREATE STREAM i (k int, v int)")
        main.execute(table(postgres, "o"))
        main.execute("CREATE MATERIALIZED VIEW a INTO o AS SELECT k, v FROM i")
        main.execute("CREATE FORK f")
        with TIMEPLUS.open(path_of(main, "f")) as fork:
            fork.execute("DROP VIEW a; CREATE MATERIALIZED VIEW b INTO o AS SELECT k, v AS w FROM i")
        main.execute("INSERT INTO i (k, v) VALUES (1, 1)")
        delivered(main)
        (notice,) = main.execute("PROMOTE f").notices
        assert notice.startswith('materialized view "b" delivers only rows after PROMOTE: materialized view "a"')
        main.execute("INSERT INTO i (k, v) VALUES (2, 2)")
        delivered(main)
        assert content(postgres, "SELECT * FROM o ORDER BY k") == [(1, 1, None), (2, None, 2)]


#: Queries of a view INTO an external table, and what they make of a value; None: no row.
DELIVERED = (
    ("v", lambda v: v),
    ("v * 2", lambda v: v * 2),
    ("v % 3", lambda v: v % 3),
    ("v WHERE v > 4", lambda v: v if v > 4 else None),
)


@pytest.mark.parametrize("seed", some(range(12)))
def test_random_histories_of_a_view_into_an_outside_target(tmp_path, postgres, seed):
    """The target has what the earlier views had delivered, the rows of each later view that its predecessor lacked, and
    later rows, each once: also if deliveries are behind, and after a restart.
    """
    rng, place = random.Random(seed), str(tmp_path / "db")
    postgres.execute("CREATE TABLE o (v int)")
    main = TIMEPLUS.open(place)
    main.execute("ALTER SYSTEM SET retention = '1 day'; CREATE STREAM i (v int)")
    main.execute(table(postgres, "o"))
    query, makes = DELIVERED[0]
    main.execute(f"CREATE MATERIALIZED VIEW w INTO o AS SELECT {query} FROM i")
    expected, present, behind = Counter(), Counter(), []

    def steps(most):
        for _ in range(rng.randrange(most)):
            value = rng.randrange(10)
            main.execute(f"INSERT INTO i (v) VALUES ({value})")
            behind.append(value)
            if rng.random() < 0.4:
                main.execute("FLUSH")
            if rng.random() < 0.2:
                writers = main.opened.service(SinkWriters)
                writers.stop([r.id for r in main.opened.catalog.relations.values()])

    for number in range(3):
        steps(8)
        main.execute("FLUSH")
        made = Counter(x for v in behind if (x := makes(v)) is not None)
        expected, present, commit = expected + made, present + made, head_of(main)
        behind.clear()
        past = rng.random() < 0.5
        if not past:
            main.execute(f"CREATE FORK f{number}")
        steps(8)
        if past:
            main.execute(f"CREATE FORK f{number} AT COMMIT {commit}")
        wanted, makes_then = rng.choice(DELIVERED)
        with TIMEPLUS.open(path_of(main, f"f{number}")) as fork:
            what, _, where = wanted.partition(" WHERE ")
            text = f"SELECT {what} AS v FROM i" + (f" WHERE {where}" if where else "")
            if rng.random() < 0.5:
                fork.execute(f"CREATE OR REPLACE MATERIALIZED VIEW {writer_of(fork)} INTO o AS {text}")
            else:
                fork.execute(f"DROP VIEW {writer_of(fork)}; CREATE MATERIALIZED VIEW w{number} INTO o AS {text}")
            if rng.random() < 0.5:
                fork.execute("REPLAY")
        steps(4)
        main.execute(f"PROMOTE f{number}")
        made = Counter(x for v in behind if (x := makes(v)) is not None)
        present, before = Counter(x for v in behind if (x := makes_then(v)) is not None), present + made
        expected, makes = expected + made + (present - before), makes_then
        behind.clear()
        if rng.random() < 0.4:
            main.close()
            main = TIMEPLUS.open(place)
        if rng.random() < 0.6:
            delivered(main)
            assert Counter(v for (v,) in content(postgres, "SELECT v FROM o")) == expected
    steps(8)
    main.execute("FLUSH")
    expected += Counter(x for v in behind if (x := makes(v)) is not None)
    main.close()
    main = TIMEPLUS.open(place)
    delivered(main)
    assert Counter(v for (v,) in content(postgres, "SELECT v FROM o")) == expected
    main.close()


def writer_of(connection):
    """The name of the only view that writes outside."""
    return next(v for v in connection.opened.catalog.relations.values() if v.feeds).name


def test_external_streams_are_replayed(tmp_path, broker, topic):
    with TIMEPLUS.open(str(tmp_path / "db")) as main:
        name = topic()
        produce(broker, name, {"n": 0, "text": "z"})
        main.execute(stream(broker, name))
        main.execute("CREATE STREAM t (n int, text string); CREATE STREAM u (n int)")
        main.execute("CREATE MATERIALIZED VIEW v INTO t AS SELECT n, text FROM s")
        main.execute("CREATE MATERIALIZED VIEW w INTO u AS SELECT n FROM t")
        produce(broker, name, {"n": 1, "text": "a"})
        main.execute("FLUSH; CREATE FORK f")
        produce(broker, name, {"n": 2, "text": "b"})
        main.execute("FLUSH")
        with TIMEPLUS.open(path_of(main, "f")) as fork:
            fork.execute("FLUSH")
            assert fork.execute("SELECT n, text FROM table(t)").fetchall() == [(1, "a")]
            fork.execute("CREATE OR REPLACE MATERIALIZED VIEW w INTO u AS SELECT n * 10 AS n FROM t; REPLAY")
            assert sorted(fork.execute("SELECT n, text FROM table(t)").fetchall()) == [(1, "a"), (2, "b")]
            assert sorted(fork.execute("SELECT n FROM table(u)").fetchall()) == [(1,), (20,)]
            with pytest.raises(Error, match="another view over source"):
                fork.execute("CREATE MATERIALIZED VIEW x AS SELECT n FROM s")
            with pytest.raises(Error, match="can't be written in a fork"):
                fork.execute("INSERT INTO s (n, text) VALUES (9, 'x')")
        produce(broker, name, {"n": 3, "text": "c"})
        main.execute("FLUSH; PROMOTE f")
        produce(broker, name, {"n": 4, "text": "d"})
        main.execute("FLUSH")
        assert sorted(main.execute("SELECT n FROM table(u)").fetchall()) == [(1,), (20,), (30,), (40,)]


@DATABASES
def test_a_fix_is_replayed_over_a_week_compared_and_promoted(tmp_path, kind):
    """As `examples/fork/fix.py`, with a writer that is wrong."""
    with kind.open(str(tmp_path / "db")) as main:
        for statement in kind.setup:
            main.execute(statement)
        main.execute("ALTER SYSTEM SET retention = '7 days'")
        main.execute("FLUSH")
        commit = head_of(main)
        for day in range(3):
            for number in range(4):
                main.execute(kind.inserts[0].format(id=number, v=20 + day, n=f"0{day}:0{number}"))
            main.execute("FLUSH")
        main.execute(f"CREATE FORK f AT COMMIT {commit}")
        with kind.open(path_of(main, "f")) as fork:
            assert set(map(len, kind.rows(fork).values())) == {0}
            for statement in kind.changes[0]:
                fork.execute(statement)
            fork.execute(f"REPLAY TO COMMIT {(commit + head_of(main)) // 2}")
            fork.execute("REPLAY")
            expected = kind.rows(fork)
            found = {r[0].lower(): r for r in fork.execute("SHOW DIFF").fetchall()}
            assert found["i"][2:] == ("same", 0, 0)
            assert found["s"][3] > 0 < found["s"][4]
            assert len(fork.execute("DIFF TABLE s").fetchall()) == sum(found["s"][3:])
        assert kind.rows(main) != expected
        main.execute("PROMOTE f")
        assert kind.rows(main) == expected
        assert main.execute("SHOW FORKS").fetchall() == []
