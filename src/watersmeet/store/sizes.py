"""How many rows and bytes each stored relation has, from checkpoints and manifests alone."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from watersmeet.store.checkpoints import newest_checkpoint
from watersmeet.store.commits import CommitLog
from watersmeet.store.layout import Layout
from watersmeet.store.readers import Reader


@dataclass(frozen=True, slots=True)
class RelationSize:
    """rows: of the content, duplicates counted. size_bytes: of its snapshot and the changes since, on disk."""

    rows: int = 0
    size_bytes: int = 0


class RelationSizes:
    """The sizes of all relations at the newest commit. Safe for several threads; a call costs the new commits."""

    def __init__(self, layout: Layout, log: CommitLog) -> None:
        self._layout = layout
        self._log = log
        self._lock = threading.Lock()
        self._reader = Reader(layout)
        self._counted: int | None = None
        self._sizes: dict[str, RelationSize] = {}

    def read(self) -> dict[str, RelationSize]:
        """By relation id; relations without a change are not in it."""
        with self._lock:
            if self._counted is None or not self._reader.hold(self._counted):
                self._start()
            assert self._counted is not None
            head = self._log.head()
            for number in range(self._counted + 1, head + 1):
                for relation_id, change in self._log.read(number).relations.items():
                    self._add(relation_id, change.inserted_rows - change.deleted_rows, change.size_bytes)
            self._counted = head
            self._reader.rest(head)
            return dict(self._sizes)

    def close(self) -> None:
        """Takes the reader off the list. May be called again."""
        self._reader.close()

    def _start(self) -> None:
        while True:
            checkpoint = newest_checkpoint(self._layout, self._log)
            if self._reader.hold(checkpoint.moment.transaction):
                break
        self._sizes = {i: RelationSize(s.rows, s.size_bytes) for i, s in checkpoint.relations.items()}
        self._counted = checkpoint.moment.head
        # Snapshots of tables end at the transaction, those of views at the head.
        for number in range(checkpoint.moment.transaction + 1, checkpoint.moment.head + 1):
            for relation_id, change in self._log.read(number).relations.items():
                if number > checkpoint.relations[relation_id].upto if relation_id in checkpoint.relations else True:
                    self._add(relation_id, change.inserted_rows - change.deleted_rows, change.size_bytes)

    def _add(self, relation_id: str, rows: int, size_bytes: int) -> None:
        before = self._sizes.get(relation_id, RelationSize())
        self._sizes[relation_id] = RelationSize(before.rows + rows, before.size_bytes + size_bytes)
