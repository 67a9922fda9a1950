"""What goes on beside the views: dictionaries follow their sources, and what their caches lack is written to them.

Where epochs run in the background a thread sees to it once in a while; without, it is done when views are brought up to
date.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Final

import pyarrow as pa

from watersmeet.catalog import Relation
from watersmeet.errors import Error
from watersmeet.session.access.context import Session
from watersmeet.session.access.keys import last_of_each_key, rows_with_keys
from watersmeet.session.services.changes import Changes
from watersmeet.session.services.copying import changes_of, copy
from watersmeet.session.services.delivery import inject
from watersmeet.session.services.refreshing import refresh
from watersmeet.session.statements.dml import rows_without

_PAUSE_S: Final = 1.0
_STOP_S: Final = 10.0


class DictionaryUpkeep:
    """Keeps dictionaries and their cache streams. Safe for several threads.

    A cache stream is written by transactions of its own, so that it is a stream as any other; between an epoch that
    found a row in the
    source and that transaction, the source is asked again. A row that is there already stays (ruling D-003-10: missing
    keys are written).
    """

    def __init__(self, session: Session) -> None:
        """session: of its own, without transactions. Starts its thread if epochs run in the background."""
        self._session = session
        self._following: dict[str, Changes] = {}
        self._lock = threading.RLock()
        self._wrote = False
        self._problems = session.database.unwritten
        self._ended = threading.Event()
        self.follow()
        session.database.upkeep = self
        if session.database.runtime != "inprocess":
            thread = threading.Thread(target=self._run, name="watersmeet-dictionaries", daemon=True)
            session.database.at_close(lambda: thread.join(_STOP_S))
            session.database.at_close(self._ended.set)
            thread.start()

    def before(self) -> None:
        """Bring in what dictionaries' sources have. One that can't be read keeps what it has: SHOW ERRORS says so."""
        for relation in self._relations():
            if relation.dictionary is not None and relation.external is not None and relation.kind == "table":
                with contextlib.suppress(Error):
                    refresh(self._session, relation)

    def after(self) -> bool:
        """Write what was found in sources to the caches that lack it, and what views give to their streams; whether
        there was any since the last call.

        What a stream does not take is in the database's `unwritten`; the next round tries again; other views are
        written nevertheless.
        """
        with self._lock:
            self._write_found()
            wrote, self._wrote = self._wrote, False
            return wrote

    def _write_found(self) -> None:
        with self._lock:
            self.follow()
            known = self._session.catalog.relations
            for relation_id, changes in list(self._following.items()):
                if relation_id not in known:
                    self._following.pop(relation_id).close()
                    self._problems.pop(relation_id)
                    continue
                view = known[relation_id]
                if not view.owner:
                    self._wrote |= view.feeds in known and self._copy(view, known[view.feeds], changes)
                    continue
                came = [c.rows.filter(pa.array(c.diff > 0)) for c in changes.take(relation_id)]
                if came and view.feeds in known:
                    self._wrote |= self._write(known[view.feeds], pa.concat_tables(came))

    def _copy(self, view: Relation, stream: Relation, changes: Changes) -> bool:
        try:
            wrote = copy(self._session, view, stream, changes)
        except Error as problem:
            self._problems[view.id] = problem
            return False
        self._problems.pop(view.id)
        return wrote

    def follow(self) -> None:
        """From now on what new hidden views give is written to the streams that they feed."""
        with self._lock:
            for relation in self._relations():
                if (
                    relation.feeds
                    and relation.ready
                    and not self._is_staged(relation)
                    and relation.kind == "materialized view"
                    and relation.id not in self._following
                ):
                    database = self._session.database
                    self._following[relation.id] = (
                        Changes(database) if relation.owner else changes_of(database, relation)
                    )

    def _is_staged(self, relation: Relation) -> bool:
        """Whether a transaction that may not commit has made it: nothing is written for it yet."""
        owner = self._session.catalog.relations.get(relation.owner, relation)
        return owner.staged

    def _write(self, stream: Relation, rows: pa.Table) -> bool:
        session = self._session
        with session.database.guard:
            last = last_of_each_key(session, stream, rows)
            there = rows_with_keys(session, stream, _padded(last, stream))
            lacking = rows_without(session, stream, last, there)
            if lacking.num_rows:
                inject(session, stream.shown, lacking)
            return bool(lacking.num_rows)

    def _relations(self) -> list[Relation]:
        return list(self._session.catalog.relations.values())

    def _run(self) -> None:
        database = self._session.database
        while not self._ended.wait(_PAUSE_S):
            if any(r.dictionary is not None or r.feeds for r in self._relations()):
                try:
                    self.before()
                    self._write_found()
                except Error:
                    continue  # the next round tries again; statements tell the user what is wrong
                except Exception:
                    if database.is_closed:
                        return
                    raise


def _padded(rows: pa.Table, stream: Relation) -> pa.Table:
    """The rows with all columns of the stream, NULL where they have none: only keys matter."""
    arrays = [
        rows.column(c.name) if c.name in rows.column_names else pa.nulls(rows.num_rows, c.type.arrow)
        for c in stream.columns
    ]
    return pa.Table.from_arrays(arrays, names=[c.name for c in stream.columns])
