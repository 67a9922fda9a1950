"""The changes of a relation as commits bring them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from watersmeet.session.database import OpenDatabase
from watersmeet.session.emissions import Change
from watersmeet.store.changes import decode_change
from watersmeet.store.readers import Reader


class Changes:
    """What commits change from now on. Holds them until they are taken."""

    def __init__(self, database: OpenDatabase, since: int | None = None) -> None:
        """since: the commit after which they begin, None: the newest one."""
        self._log, self._packs = database.log, database.packs
        self._reader = Reader(database.layout)
        self._taken = database.log.head() if since is None else since
        self._reader.hold(self._taken)
        database.at_close(self._reader.close)

    @property
    def any(self) -> bool:
        """Whether there is a commit that was not taken."""
        return self._log.head() > self._taken

    @property
    def taken(self) -> int:
        """The commit up to which they were taken."""
        return self._taken

    def take(self, relation_id: str) -> list[Change]:
        """The changes of a relation since the last call, by commit; none is empty. Never waits."""
        head = self._log.head()
        found = []
        for number in range(self._taken + 1, head + 1):
            commit = self._log.read(number)
            if relation_id in commit.relations:
                parts = [decode_change(self._packs.read_blob(b, "DATABASE_DAMAGED")) for b in commit.relations[relation_id].blobs]
                diff = np.concatenate([np.zeros(0, np.int64), *(d for _, d in parts)])
                if len(diff):
                    found.append(Change(int(commit.metrics.get("time_us", commit.time_us)), pa.concat_tables([t for t, _ in parts]), diff))
        self._taken = head
        self._reader.hold(head)
        return found

    def back(self, commit: int) -> None:
        """Give what came after `commit`, which is not before the last call, once more."""
        self._taken = commit
        self._reader.hold(commit)

    def close(self) -> None:
        """Let go of the commits. May be called again."""
        self._reader.close()
