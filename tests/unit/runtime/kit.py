"""A small database with tables and views from SQL, without a session; a model of its content in DuckDB."""

from __future__ import annotations

from dataclasses import replace

import duckdb
import numpy as np
import pyarrow as pa
from tests.unit.runtime import trees

from watersmeet.catalog import Catalog, MaterializedView, Table
from watersmeet.planner import assemble, compile_view
from watersmeet.runtime.engine import Database
from watersmeet.runtime.inprocess import InProcessEngine
from watersmeet.store.commits import CommitLog, write_transaction
from watersmeet.store.content import Content
from watersmeet.store.layout import Layout
from watersmeet.store.retention import clean_at_start
from watersmeet.store.segmentfiles import SegmentFiles
from watersmeet.values.types import BIGINT, VARCHAR, Field, arrow_schema


class Kit:
    """An open database. `model`: DuckDB with the same tables. Reopen with `Kit(path)` after `crash()`."""

    def __init__(self, path, *, buckets=1, make_engine=InProcessEngine, before=None, durable=False):
        self.path = path
        self.buckets = buckets
        self.make_engine = make_engine
        self.layout = Layout(path, durable=durable)
        self.log = CommitLog(self.layout, writer=True)
        self.segments = SegmentFiles(self.layout.segments)
        clean_at_start(self.layout, self.log, self.segments)
        self.catalog = before.catalog if before else Catalog()
        self.views = dict(before.views) if before else {}
        self.model = before.model if before else duckdb.connect(config={"threads": 1})
        self.db = Database(self.layout, self.log, self.segments, lambda: self.catalog)
        self.engine = make_engine(self.db)
        self.content = Content(self.layout, self.log, self.segments)

    def table(self, name, **columns):
        fields = tuple(Field(n, t) for n, t in columns.items())
        relation = Table(self.catalog.new_id(Table), name, fields)
        self.catalog = self.catalog.with_relation(relation)
        self.model.execute(f"CREATE TABLE {name} ({', '.join(f'{f.name} {f.type.duckdb}' for f in fields)})")
        return relation

    def relation(self, relation):
        self.catalog = self.catalog.with_relation(relation)
        return relation

    def change(self, **changes):
        """One transaction: by table, rows with a last value that is their diff."""
        found = {}
        for name, rows in changes.items():
            relation = self.catalog.by_name(name)
            schema = arrow_schema(relation.columns, positional=False)
            data = [pa.array([r[i] for r in rows], f.type) for i, f in enumerate(schema)]
            found[relation.id] = (pa.Table.from_arrays(data, schema=schema), np.array([r[-1] for r in rows], np.int64))
            for *row, diff in rows:
                if diff > 0:
                    marks = ", ".join("?" for _ in row)
                    for _ in range(diff):
                        self.model.execute(f"INSERT INTO {name} VALUES ({marks})", row)
                else:
                    same = " AND ".join(f"{f.name} IS NOT DISTINCT FROM ?" for f in relation.columns)
                    self.model.execute(
                        f"DELETE FROM {name} WHERE rowid IN (SELECT rowid FROM {name} WHERE {same} LIMIT {-diff})", row
                    )
        commit = write_transaction(self.layout, self.log, found)
        self.engine.notify()
        return commit

    def view(self, name, tree, sql, *, install=True):
        """tree: a function of this kit that gives the tree of the algebra that means `sql`."""
        tree = tree(self)
        columns = tuple(Field(c.name, c.type, c.nullable) for c in tree.columns)
        relation = MaterializedView(self.catalog.new_id(MaterializedView), name, columns, sql=sql, ready=False)
        self.views[relation.id] = compile_view(tree, relation, self.views)
        self.catalog = self.catalog.with_relation(relation)
        self.model.execute(f"CREATE VIEW {name} AS {sql}")
        if install:
            self.install()
        return relation

    def scan(self, name):
        return trees.scan(self.catalog.by_name(name))

    def circuit(self):
        return assemble(self.views.values(), self.buckets)

    def install(self, check=lambda: None):
        new = [i for i in self.views if not self.catalog.relations[i].ready]
        self.engine.install(self.circuit(), new, check)
        self.mark_ready()

    def limit(self, relation_id, rate):
        """The limit of rows per second of a view's fill."""
        view = replace(self.catalog.relations[relation_id], fill_rate=rate)
        self.catalog = self.catalog.with_relation(view)

    def mark_ready(self):
        for i in self.views:
            if not self.catalog.relations[i].ready:
                self.catalog = self.catalog.with_relation(replace(self.catalog.relations[i], ready=True))

    def drop(self, name):
        relation = self.catalog.by_name(name)
        self.views.pop(relation.id, None)
        self.catalog = self.catalog.without({relation.id})
        self.model.execute(f"DROP VIEW {name}")
        self.install()

    def rows(self, name):
        self.content.refresh(self.catalog, [self.catalog.by_name(name).id])
        return sorted(map(str, self.content.query(f'SELECT * FROM "{name}"').to_pylist()))

    def expected(self, name):
        return sorted(map(str, self.model.execute(f"SELECT * FROM {name}").to_arrow_table().to_pylist()))

    def check_by_content(self):
        """Every view equals its query over the tables (and views) as they are read at the same moment."""
        known = self.catalog.relations
        self.content.refresh(self.catalog, [i for i in known if known[i].is_stored and known[i].ready])
        for i in self.views:
            if known[i].ready:
                expected = self.content.query(known[i].sql).to_pylist()
                assert sorted(map(str, self.content.query(f'SELECT * FROM "{known[i].name}"').to_pylist())) == sorted(
                    map(str, expected)
                )

    def check(self, *names):
        for name in names or [self.catalog.relations[i].name for i in self.views]:
            assert self.rows(name) == self.expected(name), name

    def close(self):
        self.engine.stop()
        self.crash()

    def crash(self):
        """As if the process was gone, as far as files can tell."""
        self.content.close()
        self.segments.close()

    def reopen(self):
        return Kit(self.path, buckets=self.buckets, make_engine=self.make_engine, before=self)


JOINED = (
    lambda kit: trees.join(kit.scan("a"), kit.scan("b"), "left", "k", (0, "k"), (0, "x"), (1, "y")),
    "SELECT a.k, a.x, b.y FROM a LEFT JOIN b ON a.k = b.k",
)
GROUPED = (
    lambda kit: trees.group(kit.scan("joined"), ["k"], ("n", "count", None), ("s", "sum", "y")),
    "SELECT k, count(*) AS n, sum(y)::DECIMAL(38,10) AS s FROM joined GROUP BY k",
)
TOTAL = (lambda kit: trees.group(kit.scan("a"), [], ("n", "count", None)), "SELECT count(*) AS n FROM a")


def two_tables(kit):
    kit.table("a", k=BIGINT, x=VARCHAR)
    kit.table("b", k=BIGINT, y=BIGINT)
