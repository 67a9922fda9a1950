"""The changes of views whose content becomes that of hidden views which were filled for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing

import pyarrow as pa

from watersmeet.catalog import Relation
from watersmeet.runtime.database import Database
from watersmeet.store.changes import ChangeWriter, Diff, RelationChange, fitted, merged
from watersmeet.store.checkpoints import newest_checkpoint
from watersmeet.store.packs import PackWriter, epoch_prefix
from watersmeet.store.readers import Reader
from watersmeet.values.types import arrow_schema


def differences(db: Database, epoch: int, made: Mapping[str, str]) -> dict[str, RelationChange]:
    """By view, the change after which it has the content of the hidden view that was filled for it.

    Written into a pack of the epoch. made: the hidden views, by view. DATABASE_DAMAGED if content can't be read.
    """
    if not made:
        return {}
    known = db.catalog().relations
    writer = PackWriter(db.layout.packs, epoch_prefix(epoch, db.log.writer), durable=db.layout.durable)
    changes = {}
    with closing(Reader(db.layout)) as reader:
        reader.keep(0)
        for view, hidden in made.items():
            written = ChangeWriter(writer, unread=False)
            for table, diff in _difference(db, known[view], hidden):
                written.add(table, diff)
            changes[view] = written.finish()
    pack = writer.finish()
    return {view: change.within(pack) for view, change in changes.items() if change.blobs}


def deletes(db: Database, view: str, hidden: str) -> bool:
    """Whether the difference between a view and the hidden view that was filled for it deletes rows."""
    with closing(Reader(db.layout)) as reader:
        reader.keep(0)
        return any(bool((diff < 0).any()) for _, diff in _difference(db, db.catalog().relations[view], hidden))


def _difference(db: Database, view: Relation, hidden: str) -> Iterator[tuple[pa.Table, Diff]]:
    return merged(_both(db, view, hidden), _schema(view))


def _both(db: Database, view: Relation, hidden: str) -> Iterator[tuple[pa.Table, Diff]]:
    for table, diff in _rows(db, view, view.id):
        yield table, -diff
    yield from _rows(db, view, hidden)


def _rows(db: Database, view: Relation, relation_id: str) -> Iterator[tuple[pa.Table, Diff]]:
    """The content of a relation, which has the columns of `view`, as all changes that made it."""
    checkpoint = newest_checkpoint(db.layout, db.log)
    snapshot = checkpoint.relations.get(relation_id)
    blobs = [] if snapshot is None else snapshot.blobs
    first = checkpoint.moment.transaction if snapshot is None else snapshot.upto
    for number in range(first + 1, db.log.head() + 1):
        change = db.log.read(number).relations.get(relation_id)
        blobs += [] if change is None else change.blobs
    schema = _schema(view)
    for blob in blobs:
        table, diff = db.packs.read_change(blob)
        yield fitted(table, schema, view.fills).cast(schema), diff


def _schema(view: Relation) -> pa.Schema:
    return arrow_schema(view.columns, positional=False)
