"""Columns that are added, dropped and renamed while rows change: tables and views against dicts."""

from __future__ import annotations

import random

import pytest

import watersmeet


class Model:
    """A table as a list of columns, and of rows by their key; views as the columns that they read when created."""

    def __init__(self) -> None:
        self.columns = ["k", "a"]
        self.defaults: dict[str, int | None] = {}
        self.rows: dict[int, dict[str, int | None]] = {}
        self.views: dict[str, list[str]] = {}

    def content(self, columns: list[str]) -> list[tuple]:
        return sorted((tuple(row[c] for c in columns) for row in self.rows.values()), key=str)


class Run:
    """One random history."""

    def __init__(self, seed: int, path) -> None:
        self.rng, self.path, self.model = random.Random(seed), path, Model()
        self.made = 0
        self.connection = self.open()
        self.connection.execute("CREATE TABLE t (k int PRIMARY KEY, a int)")

    def open(self):
        connection = watersmeet.connect(self.path, runtime="inprocess", parallelism=2)
        connection.show_own_writes()
        return connection

    def step(self) -> None:
        rng, model = self.rng, self.model
        others = [c for c in model.columns if c != "k"]
        kind = rng.choice(["insert", "insert", "update", "delete", "add", "drop", "drop", "rename", "view", "store"])
        if kind == "insert":
            key, some = rng.randrange(6), rng.sample(others, rng.randint(0, len(others)))
            given = {c: rng.choice([None, 1, 2]) for c in some}
            shown = ", ".join("NULL" if v is None else str(v) for v in (key, *given.values()))
            self.connection.execute(f"INSERT INTO t ({', '.join(('k', *given))}) VALUES ({shown})")
            model.rows[key] = {c: given.get(c, model.defaults.get(c)) for c in others} | {"k": key}
        elif kind == "update" and others:
            column = rng.choice(others)
            self.connection.execute(f"UPDATE t SET {column} = 7 WHERE k % 2 = 0")
            for key, row in model.rows.items():
                row[column] = 7 if key % 2 == 0 else row[column]
        elif kind == "delete":
            key = rng.randrange(6)
            self.connection.execute(f"DELETE FROM t WHERE k = {key}")
            model.rows.pop(key, None)
        elif kind == "add":
            name = next(n for n in "abcdefghijklmnopqrst" if n not in (*model.columns, "k"))
            default = rng.choice([None, 5])
            written = "" if default is None else " DEFAULT 2 + 3"
            self.connection.execute(f"ALTER TABLE t ADD COLUMN {name} int{written}")
            model.columns.append(name)
            model.defaults[name] = default
            for row in model.rows.values():
                row[name] = default
        elif kind == "drop" and others:
            self.drop(rng.choice(others))
        elif kind == "rename" and others:
            self.rename(rng.choice(others))
        elif kind == "view" and others:
            read = ["k", *rng.sample(others, rng.randint(1, len(others)))]
            name, self.made = f"v{self.made}", self.made + 1
            self.connection.execute(f"CREATE MATERIALIZED VIEW {name} AS SELECT {', '.join(read)} FROM t")
            model.views[name] = read
        elif kind == "store":
            self.connection._session.database._compactor.run()
            self.connection.close()
            self.connection = self.open()

    def drop(self, column: str) -> None:
        if any(column in read for read in self.model.views.values()):
            with pytest.raises(watersmeet.Error, match="other objects depend on it"):
                self.connection.execute(f"ALTER TABLE t DROP COLUMN {column}")
            if self.rng.random() < 0.7:
                return
            for name in [n for n, read in self.model.views.items() if column in read]:
                self.connection.execute(f"DROP MATERIALIZED VIEW {name}")
                del self.model.views[name]
        self.connection.execute(f"ALTER TABLE t DROP COLUMN {column}")
        self.model.columns.remove(column)
        self.model.defaults.pop(column, None)
        for row in self.model.rows.values():
            del row[column]

    def rename(self, column: str) -> None:
        new = f"{column}x"
        if new in self.model.columns:
            return
        self.connection.execute(f"ALTER TABLE t RENAME COLUMN {column} TO {new}")
        names = {column: new}
        self.model.columns = [names.get(c, c) for c in self.model.columns]
        self.model.defaults = {names.get(c, c): v for c, v in self.model.defaults.items()}
        self.model.views = {n: [names.get(c, c) for c in read] for n, read in self.model.views.items()}
        self.model.rows = {k: {names.get(c, c): v for c, v in row.items()} for k, row in self.model.rows.items()}

    def check(self) -> None:
        self.connection.flush()
        assert sorted(self.connection.execute("SELECT * FROM t").fetchall(), key=str) == self.model.content(
            self.model.columns
        )
        for name, read in self.model.views.items():
            found = sorted(self.connection.execute(f"SELECT * FROM {name}").fetchall(), key=str)
            assert found == self.model.content(read)


@pytest.mark.parametrize(("seed", "steps"), [(1, 25), *(pytest.param(n, 100, marks=pytest.mark.slow) for n in (2, 3))])
def test_the_table_and_its_views_are_those_of_dicts(seed, steps, tmp_path):
    run = Run(seed, tmp_path / "db")
    for _ in range(steps):
        run.step()
        run.check()
    run.connection.close()
