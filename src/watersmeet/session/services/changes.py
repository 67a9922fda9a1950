"""The changes of a view, commit by commit."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from watersmeet.database.opened import OpenDatabase
from watersmeet.session.services.emissions import Change, added_up
from watersmeet.store.changes import decode_change
from watersmeet.store.manifests import Commit
from watersmeet.store.readers import Reader


class Changes:
    """Which views changed in each commit from now on. Keeps the commits until they are taken."""

    def __init__(self, database: OpenDatabase, since: int | None = None) -> None:
        """since: the commit after which to begin; None: the newest one."""
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
        """The last commit that was taken."""
        return self._taken

    def take(self, relation_id: str, upto: int | None = None) -> list[Change]:
        """The changes of a view since the last call, by commit; none is empty. Never waits. upto: the last commit to
        read.

        History that a new view reads in several epochs is one change, once all of it is read: the view never showed the
        steps.
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
        """Gives the changes after `commit` again. It must not be before the last call."""
        self._taken = commit
        self._reader.hold(commit)

    def close(self) -> None:
        """Releases the commits. May be called again."""
        self._reader.close()


def _goes_on(commit: Commit) -> bool:
    """Whether new views still have history to read after the commit. Transactions in between make no difference."""
    return commit.kind == "transaction" or (commit.frontier is not None and commit.frontier.backfill is not None)
