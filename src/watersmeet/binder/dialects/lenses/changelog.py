"""The topic that a query writes: its changes as records. Lenses, "Joins", "Join types"; ruling D-004-05."""

from __future__ import annotations

from watersmeet.algebra.nodes import Column, Node, Project, Records, Scan
from watersmeet.algebra.trees import exactly, read, walk
from watersmeet.binder.context.binding import BoundQuery
from watersmeet.binder.dialects.lenses.change_times import changes_of
from watersmeet.binder.dialects.lenses.extensions import records_in
from watersmeet.binder.dialects.lenses.records import key_parts
from watersmeet.catalog import KEY_COLUMN, RECORD_NUMBER, RECORD_TIME, TOMBSTONE
from watersmeet.types import BIGINT, BOOLEAN
from watersmeet.watermarks import Watermark, both


def records_of(query: BoundQuery) -> Node:
    """The changes of a query as records. For a table: by key, a value or, if the row is deleted, a tombstone."""
    tree = query.tree
    metadata = {c.name: c for c in tree.columns if c.name in (KEY_COLUMN, RECORD_TIME)}
    made = (
        Column("@deleted", TOMBSTONE, BOOLEAN, nullable=False),
        Column("@offset", RECORD_NUMBER, BIGINT, nullable=False),
    )
    kept = tuple(c.id for c in metadata.values())
    own = records_in(query)
    assert own is not None, "a query over records"
    if own.nature == "stream":
        return Records(tree, None, kept, made)
    key = metadata.get(KEY_COLUMN)
    parts = [] if key is None else key_parts(read(key))
    columns = tuple(Column(f"@key{i}", f"key{i}", p.type, p.nullable) for i, p in enumerate(parts))
    keys, changed = tuple(c.id for c in columns), changes_of(tree)
    added = (changed.went, changed.at)
    below = Project(
        changed.rows, (*tree.columns, *columns, *added), (*map(read, tree.columns), *parts, *map(read, added))
    )
    records = Records(below, keys, (*kept, *keys), made, metadata[RECORD_TIME].id, _clock(tree))
    return exactly(records, [c for c in records.columns if c not in columns])


def _clock(tree: Node) -> Watermark:
    """How far the times of changes have come: as far as those of all topics read. None if one of them has no clock."""
    times = [[w for _, w in node.watermarks] for node in walk(tree) if isinstance(node, Scan)]
    return both(*[w[0] if w else () for w in times])
