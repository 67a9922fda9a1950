"""Whatever becomes of a table of Delta Lake or Iceberg, however reading is cut, and whenever the process is killed:
views have the rows of the table, as its own library reads them.

Appends of several partitions, compactions, checkpoints, new columns, vacuums; of tables that follow also deletes,
updates, merges and overwrites, of Delta with and without the feed of changes; of Iceberg also columns that are renamed,
other partitions, and snapshots that expire.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pytest
from deltalake import DeltaTable, WriterProperties, write_deltalake
from pyiceberg.table import Table
from pyiceberg.types import StringType

import watersmeet
from tests.lakes import compact_iceberg, sql_catalog
from tests.thorough import mostly_slow
from tests.unit.store.faults import FaultyOs, Killed
from watersmeet.runtime.workers import Budget
from watersmeet.system import files


class History:
    """A table and a database that reads it. form: what reads it: a source, of which rows only come; a table with a key,
    or without one.
    """

    steps = 25

    def __init__(self, seed: int, folder: Path, form: str) -> None:
        self.random = random.Random(seed)
        self.form = form
        self.lake = folder / "lake"
        self.path = folder / "db"
        self.options = {"runtime": "inprocess", "parallelism": self.random.choice([1, 3])}
        self.views = 1
        self.kills = 0
        self.next_id = 0
        self.more = False
        self.parts = self.random.choice([[], ["p"], ["p", "q"]])
        where = self.make()
        self.connection = watersmeet.connect(self.path, **self.options)
        if form == "source":
            self.connection.execute(f"CREATE SOURCE s WITH ({where})")
        else:
            columns = "(*, PRIMARY KEY (id))" if form == "keys" else ""
            self.connection.execute(f"CREATE TABLE s {columns} WITH ({where}, on_delete = 'follow')")
        self.connection.execute("CREATE MATERIALIZED VIEW v0 AS SELECT * FROM s")

    def make(self) -> str:
        """Makes the table. The options of its source."""
        raise NotImplementedError

    def content(self) -> Counter:
        """The rows of the table."""
        raise NotImplementedError

    def changes(self) -> list[Callable[[], None]]:
        """What can become of the table."""
        raise NotImplementedError

    def tidy(self) -> None:
        """What nobody needs who has read all goes."""
        raise NotImplementedError

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

    def rows_with_keys(self) -> pa.Table:
        """Rows of which some have keys that are there."""
        first = max(0, self.next_id - self.random.randint(0, 9))
        rows = self.rows()
        rows = rows.set_column(0, "id", pa.array(range(first, first + len(rows)), pa.int64()))
        self.next_id = max(self.next_id, first + len(rows))
        return rows

    def step(self) -> None:
        own = [self.check] * 2 + [self.kill] * 2 + [self.restart, self.fill]
        self.random.choice([*self.changes(), *own])()

    def check(self) -> None:
        self.connection.execute("FLUSH")
        expected = self.content()
        for view in range(self.views):
            found = Counter(self.connection.execute(f"SELECT id, p, q, x FROM v{view}").fetchall())
            assert found == expected
        if self.random.random() < 0.5:
            self.tidy()

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


class DeltaHistory(History):
    """Of a table of Delta Lake."""

    def make(self) -> str:
        feed = str(self.form != "source" and self.random.random() < 0.5).lower()
        configuration = {"delta.enableChangeDataFeed": feed}
        write_deltalake(self.lake, self.rows(), partition_by=self.parts, configuration=configuration)
        return f"connector = 'deltalake', location = '{self.lake}'"

    @property
    def table(self) -> DeltaTable:
        return DeltaTable(self.lake)

    def content(self) -> Counter:
        table = pa.table(self.table.to_pyarrow_table()).select(["id", "p", "q", "x"])
        return Counter(zip(*(column.to_pylist() for column in table.columns), strict=True))

    def changes(self) -> list[Callable[[], None]]:
        found = [self.append] * 4 + [self.compact, self.checkpoint, self.widen]
        if self.form != "source":
            found += [self.delete, self.update, self.merge] * 2 + [self.overwrite]
        return found

    def tidy(self) -> None:
        self.table.vacuum(0, dry_run=False, enforce_retention_duration=False)

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
        rows = self.rows_with_keys()
        if len(rows):
            merge = self.table.merge(rows, "t.id = s.id", source_alias="s", target_alias="t")
            merge.when_matched_update_all().when_not_matched_insert_all().execute()

    def overwrite(self) -> None:
        write_deltalake(self.lake, self.rows(), mode="overwrite", schema_mode="merge")


class IcebergHistory(History):
    """Of a table of Iceberg. x: what column x is called now."""

    steps = 15

    def make(self) -> str:
        self.x = "x"
        self.lake.mkdir()
        catalog = sql_catalog(self.lake)
        catalog.create_namespace("n")
        groups = str(self.random.choice([2, 5, 100]))
        catalog.create_table("n.t", self.rows().schema, properties={"write.parquet.row-group-limit": groups})
        with self.table.update_spec() as spec:
            for name in self.parts:
                spec.add_identity(name)
        if self.random.random() < 0.7:
            self.append()
        return (
            f"connector = 'iceberg', catalog.type = 'jdbc', catalog.uri = 'jdbc:sqlite:{self.lake}/catalog.db', "
            f"catalog.name = 'lake', warehouse.path = 'file://{self.lake}/warehouse', database.name = 'n', "
            "table.name = 't'"
        )

    @property
    def table(self) -> Table:
        return sql_catalog(self.lake).load_table("n.t")

    def rows(self) -> pa.Table:
        rows = super().rows()
        return rows.rename_columns([self.x if name == "x" else name for name in rows.column_names])

    def content(self) -> Counter:
        table = self.table.scan().to_arrow().select(["id", "p", "q", self.x])
        return Counter(zip(*(column.to_pylist() for column in table.columns), strict=True))

    def changes(self) -> list[Callable[[], None]]:
        found = [self.append] * 4 + [self.compact, self.widen, self.rename, self.repartition]
        if self.form != "source":
            found += [self.delete, self.merge] * 2 + [self.overwrite]
        return found

    def tidy(self) -> None:
        """What was read last may be gone when that which follows it is read."""
        if self.random.random() < 0.5:
            self.append()
        table = self.table
        newest = table.current_snapshot()
        old = [s.snapshot_id for s in table.metadata.snapshots if s != newest]
        if old:
            table.maintenance.expire_snapshots().by_ids(old).commit()

    def append(self) -> None:
        self.table.append(self.rows())

    def compact(self) -> None:
        compact_iceberg(self.table, self.random.choice([2, None]))

    def widen(self) -> None:
        if not self.more:
            self.more = True
            with self.table.update_schema() as schema:
                schema.add_column("more", StringType())

    def rename(self) -> None:
        old, self.x = self.x, f"x{self.random.randint(0, 999)}"
        with self.table.update_schema() as schema:
            schema.rename_column(old, self.x)

    def repartition(self) -> None:
        with self.table.update_spec() as spec:
            if "p" in self.parts:
                spec.remove_field("p")
                self.parts.remove("p")
            else:
                spec.add_identity("p")
                self.parts.append("p")

    def delete(self) -> None:
        some = ", ".join(str(self.random.randint(0, self.next_id)) for _ in range(3))
        self.table.delete(self.random.choice([f"id in ({some})", "p = 'a'", "q is null", f"id < {self.next_id // 3}"]))

    def merge(self) -> None:
        rows = self.rows_with_keys()
        if len(rows):
            self.table.append(rows.slice(0, 0))  # the library merges into rows with the columns of the newest snapshot
            self.table.upsert(rows, ["id"])

    def overwrite(self) -> None:
        self.table.overwrite(self.rows())


@pytest.mark.filterwarnings("ignore:Delete operation did not match any records")
@pytest.mark.parametrize("seed", mostly_slow(range(30), 1))
@pytest.mark.parametrize("form", ["source", "keys", "rows"])
@pytest.mark.parametrize("kind", [DeltaHistory, IcebergHistory], ids=["delta", "iceberg"])
def test_views_have_the_rows_of_the_table(tmp_path, monkeypatch, kind, seed, form):
    cuts = random.Random(~seed)
    monkeypatch.setattr(Budget, "rows", property(lambda _: cuts.choice([1, 3, 10, 1_000_000])))
    history = kind(seed, tmp_path, form)
    for _ in range(kind.steps):
        history.step()
    history.check()
    history.connection.close()
