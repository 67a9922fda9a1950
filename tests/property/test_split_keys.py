"""Hot keys that are split: whichever keys, whenever they begin and end to be, every view equals the batch result.

Keys count as hot with a few rows, and other ones become hot as time goes on. Views come and go, of which some let keys
be split and others don't; buckets change in number, and epochs are killed.
"""

from __future__ import annotations

import contextlib
import random
import tempfile
from unittest import mock

import duckdb
import pytest

import watersmeet
from tests.property import test_timed_joins as timed
from tests.property.oracle import rows
from tests.thorough import mostly_slow
from tests.unit.store.faults import FaultyOs, Killed
from watersmeet.kernel import metrics
from watersmeet.kernel.runs import shares
from watersmeet.runtime import committer, splitting
from watersmeet.system import files

TABLES = {"a": "k int, x int", "b": "k int, y int", "c": "k int, z int, PRIMARY KEY (k)"}
PAIRS = "FROM a JOIN b ON a.k = b.k"
VIEWS = {
    "inner": f"SELECT a.k, a.x, b.y {PAIRS}",
    "condition": f"SELECT a.x, b.y {PAIRS} AND a.x < b.y",
    "filtered": f"SELECT a.k, a.x + b.y AS s {PAIRS} WHERE b.y > 3",
    "left": "SELECT a.k, a.x, b.y FROM a LEFT JOIN b ON a.k = b.k",
    "left_condition": "SELECT a.k, a.x, b.y FROM a LEFT JOIN b ON a.k = b.k AND a.x < b.y",
    "right": "SELECT b.k, a.x, b.y FROM a RIGHT JOIN b ON a.k = b.k",
    "semi": "SELECT a.k, a.x FROM a WHERE EXISTS (SELECT 1 FROM b WHERE b.k = a.k AND b.y <> a.x)",
    "anti": "SELECT a.k, a.x FROM a WHERE NOT EXISTS (SELECT 1 FROM b WHERE b.k = a.k)",
    "three": f"SELECT a.x, b.y, c.z {PAIRS} JOIN c ON c.k = a.k",
    "two_keys": "SELECT a.k, a.x FROM a JOIN b ON a.k = b.k AND a.x = b.y",
    "looked_up": "SELECT a.k, a.x, c.z FROM a LEFT JOIN c ON c.k = a.k",
    "full": "SELECT a.k, a.x, b.y FROM a FULL JOIN b ON a.k = b.k",
    "counted": f"SELECT a.k, count(*) AS n, max(b.y) AS m {PAIRS} GROUP BY a.k",
    "further": f"SELECT a.k, b.y, c.z {PAIRS} JOIN c ON c.z = b.y",
}


@contextlib.contextmanager
def forced(least: int = 4):
    """Inside, keys are hot with so few rows. Gives a list of how many keys each change splits."""
    made, split_segments = [], committer.split_segments

    def counting(db, before, circuit, epoch, split):
        made.append(sum(map(len, split.values())))
        return split_segments(db, before, circuit, epoch, split)

    with (
        mock.patch.object(shares, "LEAST_ROWS", 2),
        mock.patch.object(metrics, "LEAST_ROWS", 2),
        mock.patch.multiple(splitting, SEARCH_ROWS=1, LEAST_ROWS=least, PART=6),
        mock.patch.object(committer, "split_segments", counting),
    ):
        yield made


class History:
    """A database and a model of it, in random steps."""

    def __init__(self, seed: int, path: str) -> None:
        self.random = random.Random(seed)
        self.path = path
        self.seed = seed
        self.kills = 0
        self.done: list[str] = []
        self.model = duckdb.connect(config={"threads": 1})
        self.made: set[str] = set()
        # Few views at a time, as some of them keep the keys of others from being split.
        self.wanted = self.random.sample(sorted(VIEWS), self.random.choice([1, 2, 2, 3]))
        self.hot = [0]
        self.open()
        for name, columns in TABLES.items():
            self.both(f"CREATE TABLE {name} ({columns})")

    def open(self) -> None:
        self.connection = watersmeet.connect(
            self.path, runtime="inprocess", parallelism=self.random.choice([2, 3, 4, None])
        )
        self.done.append("-- opened")

    def both(self, statement: str) -> None:
        if statement.startswith("INSERT INTO c"):
            self.model.execute(statement.replace("INSERT", "INSERT OR REPLACE"))
        else:
            self.model.execute(statement)
        self.run(statement)

    def run(self, statement: str) -> None:
        self.done.append(statement)
        self.connection.execute(statement)

    def change(self) -> None:
        r = self.random
        if r.random() < 0.3:
            self.hot = r.sample(range(12), r.choice([1, 2]))

        def key() -> int | None:
            return r.choice(self.hot) if r.random() < 0.6 else r.choice([*range(12), None])

        for name in r.sample("aabbc", r.choice([1, 2])):
            count = r.choice([1, 8, 20])
            if name == "c":
                given = {r.randrange(12): r.randrange(9) for _ in range(count)}
                values = ", ".join(f"({k}, {z})" for k, z in given.items())
            else:
                values = ", ".join(f"({'NULL' if (k := key()) is None else k}, {r.randrange(9)})" for _ in range(count))
            self.both(f"INSERT INTO {name} VALUES {values}")
        if r.random() < 0.4:
            name, column = r.choice([("a", "x"), ("b", "y"), ("c", "z")])
            self.both(f"DELETE FROM {name} WHERE {column} = {r.randrange(9)}")
        if r.random() < 0.1:
            self.both(f"DELETE FROM {r.choice('ab')} WHERE k = {r.choice(self.hot)}")

    def view(self) -> None:
        name = self.random.choice(self.wanted)
        if name in self.made and self.random.random() < 0.4:
            self.run(f"DROP MATERIALIZED VIEW v_{name}")
            self.made.discard(name)
        elif name not in self.made:
            self.run(f"CREATE MATERIALIZED VIEW v_{name} AS {VIEWS[name]}")
            self.made.add(name)

    def flush(self) -> None:
        while self.random.random() < 0.15:
            faulty = FaultyOs(self.random.choice([1, 2, 3, 4, 6, 8, 12, 20]), torn=self.random.random() < 0.3)
            with mock.patch.object(files, "os", faulty):
                try:
                    self.connection.execute("FLUSH")
                    break
                except (Killed, watersmeet.Error):
                    self.kills += 1
                    with contextlib.suppress(Killed):
                        self.connection.close()
            self.open()
        self.run("FLUSH")

    def check(self) -> None:
        for name in sorted(self.made):
            real = rows(self.connection.execute(f"SELECT * FROM v_{name}").fetchall())
            expected = rows(self.model.execute(VIEWS[name]).fetchall())
            assert real == expected, (
                f"seed {self.seed}, {name}: missing {expected - real}, surplus {real - expected}\n"
                + ";\n".join(self.done)
            )

    def step(self) -> None:
        what = self.random.random()
        if what < 0.6:
            self.change()
        elif what < 0.85:
            self.flush()
            self.check()
        elif what < 0.94:
            self.view()
        elif what < 0.97:
            self.run(f"ALTER DATABASE SET parallelism = {self.random.choice([1, 2, 3, 5])}")
        else:
            self.connection.close()
            self.open()


def history(seed: int) -> tuple[int, int]:
    """(changes that split keys, epochs that were killed)."""
    with tempfile.TemporaryDirectory() as directory, forced() as made:
        case = History(seed, f"{directory}/db")
        try:
            for _ in range(2):
                case.view()
            for _ in range(40):
                case.step()
            case.flush()
            case.check()
        finally:
            case.connection.close()
        return sum(map(bool, made)), case.kills


@pytest.mark.slow
def test_histories() -> None:
    found = [history(seed) for seed in (2, 3)]
    assert all(sum(counts) > 3 for counts in zip(*found, strict=True)), found


@pytest.mark.parametrize("seed", mostly_slow([0, 1, *range(100, 400)], 0, 5))
def test_more_histories(seed: int) -> None:
    history(seed)


@pytest.mark.parametrize("seed", mostly_slow(range(5000, 5100), 1, 2))
def test_timed_joins(seed: int, tmp_path, monkeypatch) -> None:
    """Joins by time, of which watermarks remove rows."""
    chosen = ["i", "ils", "iln", "r", "ir"][seed % 5]
    views = timed.Case.views
    monkeypatch.setattr(timed.Case, "views", lambda case: [v for v in views(case) if v[0] in chosen])
    with forced(least=2):
        timed.run(seed, tmp_path / "db", parallelism=3)
