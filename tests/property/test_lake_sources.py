"""Whatever becomes of a table of Delta Lake, however reading is cut, and whenever the process is killed: views have the
rows of the table, as its own library reads them.

Appends of several partitions, compactions, checkpoints, new columns, vacuums; of a table with a key also deletes,
updates, merges and overwrites, with and without the feed of changes.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from unittest import mock

import pyarrow as pa
import pytest
from deltalake import DeltaTable, WriterProperties, write_deltalake

import watersmeet
from tests.thorough import mostly_slow
from tests.unit.store.faults import FaultyOs, Killed
from watersmeet import files
from watersmeet.runtime.budget import Budget

SEEDS = mostly_slow(range(40), 2)
STEPS = 25


class History:
    """A table and a database that reads it. keyed: rows have a key and are changed; else they only come."""

    def __init__(self, seed: int, folder, *, keyed: bool) -> None:
        self.random = random.Random(seed)
        self.keyed = keyed
        self.lake = folder / "lake"
        self.path = folder / "db"
        self.options = {"runtime": "inprocess", "parallelism": self.random.choice([1, 3])}
        self.views = 1
        self.kills = 0
        self.next_id = 0
        self.more = False
        self.parts = self.random.choice([[], ["p"], ["p", "q"]])
        feed = str(keyed and self.random.random() < 0.5).lower()
        write_deltalake(
            self.lake, self.rows(), partition_by=self.parts, configuration={"delta.enableChangeDataFeed": feed}
        )
        self.connection = watersmeet.connect(self.path, **self.options)
        where = f"connector = 'deltalake', location = '{self.lake}'"
        if keyed:
            self.connection.execute(f"CREATE TABLE s (*, PRIMARY KEY (id)) WITH ({where}, on_delete = 'follow')")
        else:
            self.connection.execute(f"CREATE SOURCE s WITH ({where})")
        self.connection.execute("CREATE MATERIALIZED VIEW v0 AS SELECT * FROM s")

    def rows(self) -> pa.Table:
        count = self.random.randint(0, 12)
        ids = range(self.next_id, self.next_id + count)
        self.next_id += count
        made = {
            "id": pa.array(ids, pa.int64()),
            "p": pa.array([self.random.choice(["a", "b c", "é/", None]) for _ in ids], pa.string()),
            "q": pa.array([self.random.choice([1, 2, None]) for _ in ids], pa.int32()),
            "x": pa.array([self.random.choice([1.5, None]) for _ in ids], pa.float64()),
        }
        if self.more:
            made["more"] = pa.array([f"m{i}" for i in ids], pa.string())
        return pa.table(made)

    @property
    def table(self) -> DeltaTable:
        return DeltaTable(self.lake)

    def content(self) -> Counter:
        table = pa.table(self.table.to_pyarrow_table()).select(["id", "p", "q", "x"])
        return Counter(zip(*(column.to_pylist() for column in table.columns), strict=True))

    def step(self) -> None:
        steps = [self.append] * 4 + [self.compact, self.checkpoint, self.widen] + [self.check] * 2 + [self.kill] * 2
        steps += [self.restart, self.fill]
        if self.keyed:
            steps += [self.delete, self.update, self.merge] * 2 + [self.overwrite]
        self.random.choice(steps)()

    def append(self) -> None:
        groups = WriterProperties(max_row_group_size=self.random.choice([2, 5, 100]))
        write_deltalake(self.lake, self.rows(), mode="append", schema_mode="merge", writer_properties=groups)

    def compact(self) -> None:
        self.table.optimize.compact()

    def checkpoint(self) -> None:
        self.table.create_checkpoint()

    def widen(self) -> None:
        self.more = True
        self.append()

    def condition(self) -> str:
        return self.random.choice(
            [f"id % {self.random.randint(2, 5)} = 0", "p = 'a'", "q IS NULL", f"id < {self.random.randint(0, 20)}"]
        )

    def delete(self) -> None:
        self.table.delete(self.condition())

    def update(self) -> None:
        column, value = self.random.choice([("p", "'a'"), ("q", "CAST(2 AS INT)"), ("x", "2.5")])
        self.table.update(updates={column: value}, predicate=self.condition())

    def merge(self) -> None:
        first = max(0, self.next_id - self.random.randint(0, 9))
        rows = self.rows()
        rows = rows.set_column(0, "id", pa.array(range(first, first + len(rows)), pa.int64()))
        self.next_id = max(self.next_id, first + len(rows))
        if len(rows):
            merge = self.table.merge(rows, "t.id = s.id", source_alias="s", target_alias="t")
            merge.when_matched_update_all().when_not_matched_insert_all().execute()

    def overwrite(self) -> None:
        write_deltalake(self.lake, self.rows(), mode="overwrite", schema_mode="merge")

    def check(self) -> None:
        self.connection.execute("FLUSH")
        expected = self.content()
        for view in range(self.views):
            found = Counter(self.connection.execute(f"SELECT id, p, q, x FROM v{view}").fetchall())
            assert found == expected
        if self.random.random() < 0.5:
            self.table.vacuum(0, dry_run=False, enforce_retention_duration=False)

    def kill(self) -> None:
        faulty = FaultyOs(self.random.choice([1, 2, 3, 5, 8, 13, 21, 34]), torn=self.random.random() < 0.3)
        with mock.patch.object(files, "os", faulty):
            try:
                self.connection.execute("FLUSH")
            except Killed:
                self.kills += 1
            with contextlib.suppress(Killed):
                self.connection.close()
        self.connection = watersmeet.connect(self.path, **self.options)

    def restart(self) -> None:
        self.connection.close()
        self.connection = watersmeet.connect(self.path, **self.options)

    def fill(self) -> None:
        self.check()
        self.connection.execute(f"CREATE MATERIALIZED VIEW v{self.views} AS SELECT * FROM s")
        self.views += 1


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("keyed", [False, True], ids=["rows", "keys"])
def test_views_have_the_rows_of_the_table(tmp_path, monkeypatch, seed, keyed):
    cuts = random.Random(~seed)
    monkeypatch.setattr(Budget, "rows", property(lambda _: cuts.choice([1, 3, 10, 1_000_000])))
    history = History(seed, tmp_path, keyed=keyed)
    for _ in range(STEPS):
        history.step()
    history.check()
    history.connection.close()
