"""The changes of a view as commits bring them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from watersmeet.database.opened import OpenDatabase
from watersmeet.session.services.emissions import Change, added_up
from watersmeet.store.changes import decode_change
from watersmeet.store.manifests import Commit
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

    def take(self, relation_id: str, upto: int | None = None) -> list[Change]:
        """The changes of a view since the last call, by commit; none is empty. Never waits. upto: the last commit that
        is read.

        History that is read for a view in several epochs is one change, once all of it was read: what the pieces show
        was never so.
        """
        head = self._log.head() if upto is None else upto
        found: list[Change] = []
        pieces: list[Commit] = []  # read when all are there
        before = head
        for number in range(self._taken + 1, head + 1):
            commit = self._log.read(number)
            if relation_id in commit.relations:
                before = before if pieces else number - 1
                pieces.append(commit)
            if pieces and not _goes_on(commit):
                found += self._whole(pieces, relation_id)
                pieces = []
        self._taken = before if pieces else head
        self._reader.hold(self._taken)
        return found

    def _whole(self, pieces: list[Commit], relation_id: str) -> list[Change]:
        changes = [change for commit in pieces if (change := self._of(commit, relation_id)) is not None]
        whole = added_up(changes) if len(changes) > 1 else changes[0] if changes else None
        return [whole] if whole is not None and len(whole.diff) else []

    def _of(self, commit: Commit, relation_id: str) -> Change | None:
        parts = [
            decode_change(self._packs.read_blob(b, "DATABASE_DAMAGED")) for b in commit.relations[relation_id].blobs
        ]
        diff = np.concatenate([np.zeros(0, np.int64), *(d for _, d in parts)])
        if not len(diff):
            return None
        return Change(commit.moment_us, pa.concat_tables([t for t, _ in parts]), diff, commit.number)

    def back(self, commit: int) -> None:
        """Give what came after `commit`, which is not before the last call, once more."""
        self._taken = commit
        self._reader.hold(commit)

    def close(self) -> None:
        """Let go of the commits. May be called again."""
        self._reader.close()


def _goes_on(commit: Commit) -> bool:
    """Whether history of new views is left to be read after it. Transactions that come in between end nothing."""
    return commit.kind == "transaction" or (commit.frontier is not None and commit.frontier.backfill is not None)
