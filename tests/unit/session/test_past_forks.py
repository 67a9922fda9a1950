"""CREATE FORK … AT COMMIT: forks of earlier commits, with and without the state of the commit."""

from __future__ import annotations

import json
import random
import shutil

import pytest
from tests.memorystore import MemoryStore, use
from tests.thorough import some
from tests.unit.session.test_forks import SETUP, VIEWS, connect, contents, diff_of, path_of, rows
from tests.unit.session.test_promotion import head_of, script
from tests.unit.store.faults import FaultyOs, Killed

from watersmeet.database.replaying import PastFork
from watersmeet.errors import Error
from watersmeet.system import files


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


def past(connection, number, views=VIEWS):
    """The content of views as of a commit."""
    return {v: rows(connection, f"SELECT * FROM {v} FOR SYSTEM_TIME AS OF COMMIT {number}") for v in views}


class History:
    """Random changes of the inputs of a database, with compactions and restarts."""

    def __init__(self, place, folder, seed):
        self.random, self.place, self.folder, self.files = random.Random(seed), place, folder, 0
        self.main = connect(place)
        script(self.main, SETUP.format(folder=folder))
        self.main.execute("ALTER SYSTEM SET retention = '1 day'")

    def step(self):
        pick, number = self.random.random(), self.random.randrange(8)
        if pick < 0.25:
            self.main.execute(f"INSERT INTO a VALUES ({number}, {self.random.randrange(100)})")
        elif pick < 0.45:
            self.main.execute(f"INSERT INTO b VALUES ({number}, {self.random.randrange(100)})")
        elif pick < 0.55:
            self.main.execute(f"DELETE FROM b WHERE id = {number}; UPDATE a SET v = v + 1 WHERE id < {number}")
        elif pick < 0.75:
            self.files += self.random.random() < 0.6 or not self.files
            lines = [json.dumps({"id": self.random.randrange(8), "x": i}) for i in range(3)]
            with (self.folder / f"{self.files:03}.json").open("a") as file:  # a new file, or more lines of the last one
                file.write("".join(f"{line}\n" for line in lines))
        elif pick < 0.93:
            self.main.execute("FLUSH")
        elif pick < 0.97:
            self.main.opened._compactor.run()
        else:
            self.main.close()
            self.main = connect(self.place)

    def steps(self, number):
        for _ in range(number):
            self.step()


@pytest.mark.parametrize("seed", some(range(40)))
def test_a_fork_of_any_kept_commit_is_as_the_database_was(place, folder, monkeypatch, seed):
    if seed // 6 % 2:
        monkeypatch.setattr(PastFork, "_state", lambda *_: None)
    history = History(place, folder, seed)
    first = head_of(history.main)
    history.steps(30)
    main = history.main
    for turn in range(3):
        number = history.random.randrange(first, head_of(main) + 1)
        before = past(main, number)
        main.execute(f"CREATE FORK f{turn} AT COMMIT {number}")
        fork, commit, _, replayed, views, path = next(r for r in main.execute("SHOW FORKS") if r[0] == f"f{turn}")
        assert (commit, replayed) == (number, number)
        assert views == "filled" or not seed // 6 % 2
        with connect(path) as opened:
            assert contents(opened) == before
            assert diff_of(main, fork) == {view: ("same", 0, 0) for view in VIEWS}
            later = history.random.randrange(number, head_of(main) + 1)
            opened.execute(f"REPLAY TO COMMIT {later}")
            assert contents(opened) == past(main, later)
            opened.execute("CREATE MATERIALIZED VIEW e AS SELECT id, sum(x) AS x FROM s GROUP BY id")
            counted = {i: n for i, n, _ in contents(opened, ("c",))["c"]}
            assert counted.keys() <= {i for i, _ in contents(opened, ("e",))["e"]}, "its sources know what they read"
            opened.execute("DROP MATERIALIZED VIEW e")
            if history.random.random() < 0.5:
                opened.opened._compactor.run()
        history.steps(5)
        main = history.main
    main.execute("FLUSH")
    for turn in range(3):
        with connect(path_of(main, f"f{turn}")) as opened:
            opened.execute("REPLAY")
            assert contents(opened) == contents(main)
            opened.opened._compactor.run()
            assert diff_of(main, f"f{turn}") == {view: ("same", 0, 0) for view in VIEWS}
        main.execute(f"PROMOTE f{turn}" if turn == 2 else f"DROP FORK f{turn}")
    history.steps(5)
    history.main.execute("FLUSH")
    history.main.close()


def test_views_are_filled_if_the_state_or_the_definitions_are_others(place, folder):
    with connect(place) as main:
        script(main, SETUP.format(folder=folder))
        main.execute("ALTER SYSTEM SET retention = '1 day'")
        (folder / "1.json").write_text('{"id": 1, "x": 1}\n')
        main.execute("INSERT INTO a VALUES (1, 1); INSERT INTO b VALUES (1, 10); FLUSH")
        number, before = head_of(main), contents(main)
        (folder / "2.json").write_text('{"id": 1, "x": 2}\n')
        main.execute("INSERT INTO b VALUES (1, 20); FLUSH")
        main.execute(f"CREATE FORK same AT COMMIT {number}")
        main.execute("CREATE TABLE t (id int); INSERT INTO t VALUES (1)")
        main.execute("CREATE MATERIALIZED VIEW m AS SELECT b.id, w FROM b JOIN t ON b.id = t.id")
        main.execute(f"CREATE FORK other AT COMMIT {number}")
        shown = {row[0]: row for row in main.execute("SHOW FORKS").fetchall()}
        assert {name: row[4] for name, row in shown.items()} == {"same": "shared", "other": "filled"}
        with connect(shown["same"][5]) as fork:
            assert contents(fork) == before
            with pytest.raises(Error, match='"m" does not exist'):
                fork.execute("SELECT * FROM m")
        with connect(shown["other"][5]) as fork:
            assert contents(fork) == before
            assert rows(fork, "SELECT * FROM t") == rows(fork, "SELECT * FROM m") == []
            fork.execute("REPLAY")
            assert contents(fork, (*VIEWS, "t", "m")) == contents(main, (*VIEWS, "t", "m"))
        main.execute("PROMOTE other")
        main.execute("INSERT INTO t VALUES (1); FLUSH")
        assert rows(main, "SELECT * FROM m") == [(1, 10), (1, 10), (1, 20), (1, 20)]


@pytest.mark.parametrize(
    ("statement", "condition", "message"),
    [
        ("CREATE FORK f AT COMMIT 0", "INVALID_PARAMETER", "there is no commit 0"),
        ("CREATE FORK f AT COMMIT 9999", "INVALID_PARAMETER", "there is no commit 9999"),
        ("CREATE FORK f AT COMMIT 3", "HISTORY_GONE", "the history since commit 3 is no longer kept"),
    ],
)
def test_refused(tmp_path, statement, condition, message):
    with connect(tmp_path / "db") as main:
        main.execute("CREATE TABLE t (a int); ALTER SYSTEM SET retention = 0")
        for number in range(4):
            main.execute(f"INSERT INTO t VALUES ({number}); FLUSH")
            main.opened._compactor.run()
        with pytest.raises(Error) as refused:
            main.execute(statement)
        assert (refused.value.condition, refused.value.message) == (condition, message)
        assert main.execute("SHOW FORKS").fetchall() == []
        main.execute("CREATE FORK f")


def test_what_depends_on_arrival_needs_the_state(tmp_path):
    with connect(tmp_path / "db") as main:
        main.execute("ALTER SYSTEM SET retention = '1 day'")
        script(
            main,
            """CREATE TABLE p (id int PRIMARY KEY, v int);
            CREATE TABLE o (id int) APPEND ONLY;
            CREATE MATERIALIZED VIEW m AS
                SELECT o.id, v FROM o LEFT JOIN p FOR SYSTEM_TIME AS OF PROCTIME() ON o.id = p.id;
            INSERT INTO p VALUES (1, 1); FLUSH; INSERT INTO o VALUES (1); FLUSH""",
        )
        number = head_of(main)
        main.execute("UPDATE p SET v = 2; FLUSH; INSERT INTO o VALUES (1); FLUSH")
        main.execute(f"CREATE FORK f AT COMMIT {number}")
        with connect(path_of(main, "f")) as fork:
            assert rows(fork, "SELECT * FROM m") == [(1, 1)]
            fork.execute("REPLAY")
            assert rows(fork, "SELECT * FROM m") == rows(main, "SELECT * FROM m") == [(1, 1), (1, 2)]
        main.execute("CREATE MATERIALIZED VIEW n AS SELECT count(*) AS n FROM o")
        with pytest.raises(Error) as refused:
            main.execute(f"CREATE FORK g AT COMMIT {number}")
        assert refused.value.condition == "FEATURE_NOT_SUPPORTED"
        assert refused.value.message == (
            f"a fork can't begin with commit {number}: the state of a view with a temporal join can't be rebuilt"
        )
        assert [row[0] for row in main.execute("SHOW FORKS").fetchall()] == ["f"]


@pytest.mark.slow
@pytest.mark.parametrize("filled", [False, True])
def test_a_kill_at_every_step(tmp_path, folder, monkeypatch, filled):
    """The fork is there and whole, or not at all; its database works in both cases."""
    if filled:
        monkeypatch.setattr(PastFork, "_state", lambda *_: None)
    with connect(tmp_path / "db") as main:
        script(main, SETUP.format(folder=folder))
        (folder / "1.json").write_text('{"id": 1, "x": 1}\n')
        main.execute("INSERT INTO a VALUES (1, 1); INSERT INTO b VALUES (1, 10); FLUSH")
        number, before = head_of(main), contents(main)
        main.execute("INSERT INTO b VALUES (1, 20); FLUSH")
        after = contents(main)

    def run(root, at=None):
        main = connect(root)
        faulty = FaultyOs(at)
        with monkeypatch.context() as patched:
            patched.setattr(files, "os", faulty)
            try:
                main.execute(f"CREATE FORK f AT COMMIT {number}")
            finally:
                abandoned.append(main)
        return faulty.calls

    abandoned = []
    shutil.copytree(tmp_path / "db", tmp_path / "count")
    calls = run(tmp_path / "count")
    there = set()
    for at in some(range(1, calls + 1)):
        shutil.copytree(tmp_path / "db", tmp_path / "killed")
        with pytest.raises(Killed):
            run(tmp_path / "killed", at)
        shutil.copytree(tmp_path / "killed", tmp_path / "found")
        with connect(tmp_path / "found") as main:
            assert contents(main) == after
            found = [row[0] for row in main.execute("SHOW FORKS").fetchall()]
            there.add(tuple(found))
            if not found:
                assert list((tmp_path / "found" / "forks").iterdir()) == []
                main.execute(f"CREATE FORK f AT COMMIT {number}")
            with connect(path_of(main, "f")) as fork:
                assert contents(fork) == before
                fork.execute("REPLAY")
                assert contents(fork) == after
            main.execute("PROMOTE f; INSERT INTO b VALUES (1, 30); FLUSH")
            assert len(contents(main)["j"]) == 3
        for path in ("killed", "found"):
            shutil.rmtree(tmp_path / path)
    assert () in there
