"""The changes of a view, commit by commit."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from watersmeet.database.opened import OpenDatabase
from watersmeet.session.services.emissions import Change, added_up
from watersmeet.store.manifests import Commit
from watersmeet.store.readers import ACTIVE, Reader


class Changes:
    """Which views changed in each commit from now on. Keeps the commits until they are taken."""

    def __init__(self, database: OpenDatabase, since: int | None = None, held: str = ACTIVE) -> None:
        """since: the commit after which to begin; None: the newest one. held: how the commits are (`store.readers`)."""
        self._log, self._packs = database.log, database.packs
        self._reader = Reader(database.layout)
        self._taken = database.log.head() if since is None else since
        self._held = held
        self._reader.keep(self._taken, held)
        if held == ACTIVE:
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
        found = []
        while (change := self._next(relation_id, head)) is not None:
            found.append(change)
        self._reader.keep(self._taken, self._held)
        return found

    def take_next(self, relation_id: str, *, by_transaction: bool = False) -> Change | None:
        """The next change of a relation, which ends with the commit `taken`; None if there is none yet. Never waits.

        by_transaction: each transaction is a change of its own: of a table that the circuit does not write.
        """
        found = self._next(relation_id, self._log.head(), by_transaction=by_transaction)
        self._reader.keep(self._taken, self._held)
        return found

    def _next(self, relation_id: str, head: int, *, by_transaction: bool = False) -> Change | None:
        pieces: list[Commit] = []  # read when all are there
        before = head
        for number in range(self._taken + 1, head + 1):
            commit = self._log.read(number)
            if relation_id in commit.relations:
                before = before if pieces else number - 1
                pieces.append(commit)
            if pieces and (by_transaction or not _goes_on(commit)):
                whole = self._whole(pieces, relation_id)
                pieces, before = [], head
                if whole is not None:
                    self._taken = number
                    return whole
        self._taken = max(self._taken, before)
        return None

    def _whole(self, pieces: list[Commit], relation_id: str) -> Change | None:
        changes = [change for commit in pieces if (change := self._of(commit, relation_id)) is not None]
        whole = added_up(changes) if len(changes) > 1 else changes[0] if changes else None
        return whole if whole is not None and len(whole.diff) else None

    def _of(self, commit: Commit, relation_id: str) -> Change | None:
        parts = [self._packs.read_change(b) for b in commit.relations[relation_id].blobs]
        diff = np.concatenate([np.zeros(0, np.int64), *(d for _, d in parts)])
        if not len(diff):
            return None
        return Change(commit.moment_us, pa.concat_tables([t for t, _ in parts]), diff, commit.number)

    def back(self, commit: int) -> None:
        """Gives the changes after `commit` again. It must not be before the last call."""
        self._taken = commit
        self._reader.keep(commit, self._held)

    def close(self) -> None:
        """Releases the commits. May be called again."""
        self._reader.close()


def _goes_on(commit: Commit) -> bool:
    """Whether new views still have history to read after the commit. Transactions in between make no difference."""
    return commit.kind == "transaction" or (commit.frontier is not None and commit.frontier.backfill is not None)
