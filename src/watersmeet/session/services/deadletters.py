"""The dead letters of a topic, in portions that a delivery takes to another topic, commit by commit."""

from __future__ import annotations

import base64
from collections.abc import Generator, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from watersmeet.connectors.base.deadletters import letters_of_slice
from watersmeet.connectors.base.targets import Delivery, Place, Portion
from watersmeet.database.opened import OpenDatabase
from watersmeet.session.services.portions import PORTION_BYTES, PORTION_ROWS, placed, whole
from watersmeet.store.changes import Diff
from watersmeet.store.commits import Commit
from watersmeet.store.positions import Delivered
from watersmeet.types import arrow_schema


class DeadLetterPortions:
    """The messages that each commit has set aside, in the order in which they were read. One thread.

    Which they are follows from the commit: a slice that is read again sets the same messages aside. Ranges of lost
    messages are left out, as there is nothing to deliver.
    """

    def __init__(self, database: OpenDatabase, delivery: Delivery, position: Delivered) -> None:
        """position: where to begin."""
        self._database = database
        self._delivery = delivery
        self._schema = arrow_schema(delivery.columns, positional=False)
        self.since = position.since
        """All commits above it are needed to go on behind the last portion that was given in full."""

    def content(self, after: Place | None) -> Iterator[Portion]:
        """Nothing: it begins with the topic."""
        del after
        return iter(())

    def changes(self, after: Place | None) -> Generator[Portion | None]:
        """The portions behind place `after`; None where there are no more yet. Never ends."""
        log = self._database.log
        if after is not None:
            self.since = max(self.since, after.commit - (not after.last))
        while True:
            if self.since >= log.head():
                yield None
                continue
            commit = log.read(self.since + 1)
            skipped = after.rows if after is not None and after.commit == commit.number else 0
            if commit.epoch is not None:
                generation, pieces = self._delivery.generation, self._batches(commit)
                yield from placed(pieces, generation, commit.number, skipped, commit.time_us, whole)
            self.since = commit.number

    def _batches(self, commit: Commit) -> Iterator[tuple[pa.Table, Diff]]:
        relation_id = self._delivery.relation
        directory = self._database.layout.dead(relation_id)
        batch: list[dict[str, Any]] = []
        size_bytes = 0
        assert commit.epoch is not None
        for piece in commit.progress.taken.get(relation_id, ()):
            for letter in letters_of_slice(directory, commit.epoch, piece.ordinal):
                if "rows" in letter:
                    continue
                row = _row(letter)
                batch.append(row)
                size_bytes += len(row["key"] or b"") + len(row["value"] or b"")
                if len(batch) >= PORTION_ROWS or size_bytes >= PORTION_BYTES:
                    yield self._inserted(batch)
                    batch, size_bytes = [], 0
        if batch:
            yield self._inserted(batch)

    def _inserted(self, batch: list[dict[str, Any]]) -> tuple[pa.Table, Diff]:
        return pa.Table.from_pylist(batch, schema=self._schema), np.ones(len(batch), np.int64)


def _row(letter: dict[str, Any]) -> dict[str, Any]:
    """A letter with the columns of `connectors.base.deliveries.dead_letter_delivery`."""
    key, value = (base64.b64decode(letter[part]) if part in letter else None for part in ("key", "value"))
    said = {name: str(letter[name]) for name in ("topic", "partition", "offset", "reason")}
    return {"key": key, "value": value, **said}
