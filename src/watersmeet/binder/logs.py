"""The topic that a query writes: its changes as records. Document 004, "Join types"; ruling D-004-05."""

from __future__ import annotations

from watersmeet.algebra.relations import Column, Project, Records, Relation
from watersmeet.algebra.trees import exactly, read
from watersmeet.binder.query import BoundQuery
from watersmeet.binder.records import key_parts
from watersmeet.catalog import KEY_COLUMN, RECORD_NUMBER, RECORD_TIME, TOMBSTONE
from watersmeet.types import BIGINT, BOOLEAN


def records_of(query: BoundQuery) -> Relation:
    """The changes of a query as records: of a table by its key, each a value or, where that is gone, none."""
    tree = query.tree
    facets = {c.name: c for c in tree.columns if c.name in (KEY_COLUMN, RECORD_TIME)}
    made = Column("@deleted", TOMBSTONE, BOOLEAN, nullable=False), Column("@offset", RECORD_NUMBER, BIGINT, nullable=False)
    kept = tuple(c.id for c in facets.values())
    if query.nature == "stream":
        return Records(tree, None, kept, made)
    key = facets.get(KEY_COLUMN)
    parts = [] if key is None else key_parts(read(key))
    columns = tuple(Column(f"@key{i}", f"key{i}", p.type, p.nullable) for i, p in enumerate(parts))
    below = Project(tree, (*tree.columns, *columns), (*map(read, tree.columns), *parts))
    records = Records(below, tuple(c.id for c in columns), (*kept, *(c.id for c in columns)), made)
    return exactly(records, [c for c in records.columns if c not in columns])
