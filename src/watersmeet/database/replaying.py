"""REPLAY: a fork reads the inputs that its main database has read since. CREATE FORK AT COMMIT; PROMOTE makes the main
database its fork.

The epochs of the main database are repeated in their order. For each, the transactions that it is the first to reflect
are committed to the fork's tables; then the fork reads the same slices of sources by itself, at the same time. So a
fork that has not been changed shows what the main database showed at that commit. Each commit is replayed once, also
after a crash: a transaction of the fork names the position in the same step (`Commit.captured`), and slices are known
by the position of their source that follows them.

Rows that views write to streams, tables and topics are transactions of the main database, and replayed like others, if
the fork has the same writers with the same inputs. Otherwise the fork's views write the relation by themselves
(`store.backup.Own`), and rows that statements have written are applied to the content that it has in the fork.
"""

from __future__ import annotations

import bisect
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa

from watersmeet.catalog import (
    Catalog,
    MaterializedView,
    NamedSubscription,
    Query,
    Relation,
    Sink,
    Table,
    is_temporary,
)
from watersmeet.connectors.base.targets import Delivery, deliveries
from watersmeet.database.comparing import Comparison, Pair, Successors, side_of
from watersmeet.database.opened import OpenDatabase
from watersmeet.database.transaction import Change
from watersmeet.errors import Error, again, error
from watersmeet.objectstores import storage
from watersmeet.runtime.inputs import save_past
from watersmeet.runtime.plans import check_rebuild, check_whole, load_circuit, save_circuit, store_parallelism
from watersmeet.store.backup import (
    MAIN,
    Position,
    begin_fork,
    digests_of,
    first_commit,
    fork_named,
    note_replayed,
    position_of,
    remove_fork,
    reserve_fork,
    root_of,
    with_own_ids,
    write_first,
    writers_of,
    written_upto,
)
from watersmeet.store.changes import ChangeWriter, fitted
from watersmeet.store.checkpoints import (
    Moment,
    Snapshot,
    pin_past,
)
from watersmeet.store.commits import Commit, CommitLog, stored_catalog
from watersmeet.store.compaction import past_snapshots
from watersmeet.store.layout import Layout
from watersmeet.store.manifests import Frontier, RelationChange
from watersmeet.store.positions import Delivered
from watersmeet.store.readers import Fork, Reader, low_water_number, record_fork
from watersmeet.store.segmentfiles import SegmentFiles
from watersmeet.store.segments import SegmentWriter, epoch_prefix
from watersmeet.values.types import arrow_schema

#: PROMOTE replays up to so often while the main database continues, until there are few commits left.
_ROUNDS: Final = 8
_FEW: Final = 16

#: The files of the main database stay for this many commits after the newest replayed one was noted.
_NOTED: Final = 64


def replay(fork: OpenDatabase, upto: int | None = None) -> int:
    """Replays the commits of the main database up to `upto`, by default its newest. Returns the last one.

    Raises INVALID_PARAMETER for a commit that doesn't exist or was replayed, HISTORY_GONE.
    """
    main = Layout(fork.layout.main, create=False, serves=False, older=True)
    log = CommitLog(main)
    position, head = position_of(fork.layout, fork.log), log.head()
    last = head if upto is None else upto
    if not position.epoch <= last <= head:
        raise error(
            "INVALID_PARAMETER",
            f"commit {last} can't be replayed",
            detail=f"The fork has the inputs up to commit {position.epoch}; the newest commit of the main database is "
            f"{head}.",
        )
    with closing(Reader(main)) as reader, closing(SegmentFiles(main.segments)) as segments:
        if not reader.try_pin(min(position)):
            raise error(
                "HISTORY_GONE",
                f"the commits of the main database after {min(position)} are no longer kept",
                detail=f"Those up to {low_water_number(main)} may have been deleted.",
                hint="DROP FORK, and create another one.",
            )
        Replay(fork, log, segments, position).run(last)
    return last


class Replay:
    """One replay. log, segments: those of the main database. position: where it begins."""

    def __init__(self, fork: OpenDatabase, log: CommitLog, segments: SegmentFiles, position: Position) -> None:
        assert fork.feed is not None
        self._fork, self._log, self._segments = fork, log, segments
        self._feed = fork.feed
        self._position = self._marked = self._noted = position
        self._own = fork.own
        self._writes = bool(writers_of(fork.catalog))
        self._changed = self._own.written | own_changes(fork)
        self._marks: list[tuple[int, int]] = []
        """(epoch of the main database, commit of the fork after it)."""

    def run(self, last: int) -> None:
        """Replays the commits up to `last`."""
        with self._fork.replaying():
            self._run(last)
        note_replayed(self._fork.layout, *self._position)

    def _run(self, last: int) -> None:
        for number in range(self._position.epoch + 1, last + 1):
            commit = self._log.read(number)
            if commit.promoted:
                raise error(
                    "FEATURE_NOT_SUPPORTED",
                    f'the main database became fork "{commit.promoted}" at commit {number}, which can\'t be replayed',
                    hint="DROP FORK, and create another one.",
                )
            if commit.kind == "epoch" and commit.frontier is not None:
                self._transactions(commit.frontier.transaction)
                self._epoch(commit, commit.frontier)
        if last and not self._log.read(last).follows:
            self._transactions(last)  # without views, tables are shown as they are
            self._fork.flush()
        if self._marked != (self._position.transaction, last):
            self._mark({}, self._position._replace(epoch=last))

    def _transactions(self, last: int) -> None:
        """Replays the transactions up to `last`."""
        for number in range(self._position.transaction + 1, last + 1):
            commit = self._log.read(number)
            if commit.kind != "transaction":
                continue
            known = self._fork.catalog.relations
            changed, rejected = {}, {}
            for relation_id, change in commit.relations.items():
                relation = known.get(relation_id)
                if relation is not None and self._takes(relation, commit):
                    made = self._change(relation, change)
                    if relation_id in self._changed:
                        made, rejected[relation_id] = self._fork.applied(relation, made)
                    changed[relation_id] = made
            writers = {v: upto for v, upto in commit.copied.items() if v in known and known[v].feeds in changed}
            copied = {v: max(self._reached(upto), self._upto(v)) for v, upto in writers.items()}
            self._mark(changed, self._position._replace(transaction=number), copied, rejected)

    def _takes(self, relation: Relation, commit: Commit) -> bool:
        """Whether the rows of a transaction are replayed. Those that views have written to a relation that the fork
        writes by itself are not, except rows from before its beginning.
        """
        if relation.is_fed_by_circuit or relation.id in self._own.external:
            return False
        if relation.id not in self._own.written:
            return True
        began = self._own.fork.commit
        views = {**self._own.main.relations, **self._fork.catalog.relations}
        writers = {v: upto for v, upto in commit.copied.items() if v in views and views[v].feeds == relation.id}
        if not self._own.fork.is_past:
            return all(v not in self._fork.catalog.relations and upto <= began for v, upto in writers.items())
        return all(upto <= began or self._upto(v) < began for v, upto in writers.items())

    def _upto(self, view_id: str) -> int:
        """The commit of the fork up to which a view's rows are written."""
        if view_id not in self._fork.catalog.relations:
            return self._own.fork.commit
        return written_upto(self._fork.log, self._fork.layout, view_id)

    def _reached(self, number: int) -> int:
        """The commit of the fork with the content that the main database had at a commit."""
        began = self._own.fork.commit
        if number <= began:
            return began if self._own.fork.is_past else number
        place = bisect.bisect_right(self._marks, (number, self._fork.log.head()))
        if place:
            return self._marks[place - 1][1]
        known = ((c.captured[MAIN][1], c.number) for c in own_commits(self._fork) if MAIN in c.captured)
        reached = [(epoch, -commit) for epoch, commit in known if epoch <= number]
        return -max(reached)[1] if reached else began

    def _epoch(self, commit: Commit, frontier: Frontier) -> None:
        known, taken = self._fork.catalog.relations, commit.progress.taken
        given = {i: (slices, frontier.sources[i]) for i, slices in taken.items() if i in known}
        self._feed.give(given, commit.epoch or 0)
        self._fork.clock.set(max(commit.progress.time_us, self._fork.clock.now_us()))
        self._fork.flush()
        if taken or self._writes:
            self._mark({}, self._position._replace(epoch=commit.number))
        else:
            self._position = self._position._replace(epoch=commit.number)

    def _change(self, relation: Relation, change: RelationChange) -> Change:
        stored = relation.as_stored
        schema = arrow_schema(stored.columns, positional=False)
        parts = [self._segments.read_change(blob) for blob in change.blobs]
        table = pa.concat_tables([fitted(rows, schema, stored.fills).cast(schema) for rows, _ in parts])
        return Change(
            table.rename_columns([c.name for c in relation.columns]), np.concatenate([diff for _, diff in parts])
        )

    def _mark(
        self,
        changes: dict[str, Change],
        position: Position,
        copied: dict[str, int] | None = None,
        rejected: dict[str, int] | None = None,
    ) -> None:
        """Commits changes together with the position after them."""
        with self._fork.guard:
            made = self._fork.commit(changes, copied, rejected, captured={MAIN: list(position)})
        if position.epoch > self._marked.epoch:
            self._marks.append((position.epoch, made.number))
        self._position = self._marked = position
        if min(position) - min(self._noted) >= _NOTED:
            note_replayed(self._fork.layout, *position)
            self._noted = position


def own_commits(fork: OpenDatabase) -> Iterator[Commit]:
    """The kept commits of a fork since its beginning, newest first."""
    number, began = fork.log.head(), fork.own.fork.commit
    while number > began and (commit := fork.log.find(number)) is not None:
        yield commit
        number -= 1


def _with_replayed(fork: OpenDatabase) -> Iterator[tuple[Commit, bool]]:
    """The kept commits of a fork but the first, newest first, and whether each notes a newly replayed commit."""
    for commit, before in pairwise(own_commits(fork)):
        yield commit, commit.captured.get(MAIN) != before.captured.get(MAIN)


def replayed_at(fork: OpenDatabase) -> int:
    """The commit of a fork with which it noted the newest replayed commit."""
    noted = (commit.number for commit, is_replayed in _with_replayed(fork) if is_replayed)
    return next(noted, fork.own.fork.commit)


def own_changes(fork: OpenDatabase) -> set[str]:
    """The relations whose rows statements have changed in a fork."""
    found: set[str] = set()
    for commit, is_replayed in _with_replayed(fork):
        if commit.kind == "transaction" and not is_replayed:
            found |= {*commit.relations}
    return found


class PastFork:
    """A fork that begins with an earlier commit of the main database, with its present definitions.

    The fork has one commit, with the number and the inputs of that commit. Its tables are those of the main database
    without the later changes. If the state of the commit still exists, the fork shares it, and its views are as they
    were. Otherwise, all views are filled again from the tables, and from the records that sources had read.
    """

    def __init__(self, main: OpenDatabase, name: str, number: int) -> None:
        """The ddl lock of `main` is held."""
        self._main, self._name, self._number = main, name, number
        queries = {r.id for r in main.catalog.relations.values() if r.hidden and isinstance(r, Query)}
        queries |= {r.id for r in main.catalog.relations.values() if r.owner in queries}
        self._catalog = with_own_ids(main.catalog.without(queries))
        self._planned = [r for r in self._catalog.relations.values() if r.has_plan]

    def run(self) -> None:
        """Creates the fork. Raises like `create_fork`; INVALID_PARAMETER, HISTORY_GONE for another commit;
        FEATURE_NOT_SUPPORTED if views can't be filled as they were.
        """
        main, name = self._main, self._name
        made = Fork(name, self._number, time_us=time.time_ns() // 1000, is_past=True, is_complete=False)
        with closing(Reader(main.layout)) as reader, main.uncleaned():
            if self._number < 1:
                raise error("INVALID_PARAMETER", f"there is no commit {self._number}")
            moment = pin_past(main.layout, main.log, reader, self._number)
            reserve_fork(main.layout, made)
            try:
                made = self._begin(made, moment)
                record_fork(main.layout, made, first=False)
                main.log.check()
            except BaseException:
                remove_fork(main.layout, name)
                raise
        try:
            if made.is_filled:
                self._fill()
            record_fork(main.layout, replace(made, is_complete=True), first=False)
        except BaseException:
            remove_fork(main.layout, name)
            raise

    def _begin(self, made: Fork, moment: Moment) -> Fork:
        """Writes the files of the fork. Its views are still to be filled, unless the state exists."""
        main, log, number = self._main, self._main.log, self._number
        epoch, commit = log.last_epoch(number), log.read(number)
        state = None if epoch is None else self._state(commit, epoch)
        is_filled = state is None and bool(self._planned)
        if is_filled:
            self._check_rebuilt(epoch)
        folders = ["secrets", "sequences"] if is_filled else ["secrets", "sequences", "plans"]
        fork = begin_fork(main.layout, log, made.name, folders)
        store_parallelism(fork, main.buckets)
        sources = {} if epoch is None or epoch.frontier is None else epoch.frontier.sources
        save_past(main.layout, log, [r for i, r in self._catalog.relations.items() if i in sources], number, fork)
        catalog = self._without_plans() if is_filled else self._catalog
        there = [r for r in catalog.relations.values() if r.is_stored and r.since <= commit.catalog_version]
        empty = {r.id: Snapshot(number) for r in self._catalog.relations.values() if r.is_stored}
        snapshots = {**empty, **past_snapshots(main.layout, log, main.segments, there, moment, fork)}
        first = replace(first_commit(commit, epoch, filled=is_filled), copied=self._copied())
        write_first(fork, log, first, catalog, snapshots, moment)
        shared = (state or set()) | {b.file for s in snapshots.values() for b in s.blobs}
        return replace(
            made,
            files=tuple(sorted(shared - set(storage.list_names(fork.segments)))),
            definitions=digests_of(main.catalog),
            is_filled=is_filled,
        )

    def _copied(self) -> dict[str, int]:
        """The commits up to which the rows of views are in the relations that they feed: the number of the fork, or the
        one before if rows of earlier commits are still to be written.
        """
        log, found = self._main.log, {}
        for view in writers_of(self._catalog):
            upto = self._number
            while (commit := log.find(upto)) is not None and view not in commit.copied:
                upto -= 1
            upto = upto if commit is None else commit.copied[view]
            later = map(log.find, range(upto + 1, self._number + 1))
            found[view] = self._number - any(c is not None and view in c.relations for c in later)
        return found

    def _state(self, commit: Commit, epoch: Commit) -> set[str] | None:
        """The files of the state of an epoch; None if one was deleted, or the definitions have changed since."""
        main = self._main
        last = main.log.last_epoch()
        same = last is not None and epoch.circuit is not None and epoch.circuit == last.circuit
        if not same or epoch.frontier is None or epoch.frontier.backfill is not None:
            return None
        if any(r.since > commit.catalog_version for r in self._catalog.relations.values() if r.is_stored):
            return None
        try:
            if digests_of(stored_catalog(main.layout, commit.catalog)) != digests_of(main.catalog):
                return None
            found = {f for s, place in epoch.sections for f in main.segments.referenced_files(s, place)}
        except FileNotFoundError:
            return None
        except Error as damage:
            if damage.condition != "STATE_DAMAGED":
                raise
            return None
        return None if storage.missing([main.layout.segment(f) for f in sorted(found)]) else found

    def _check_rebuilt(self, epoch: Commit | None) -> None:
        """Raises FEATURE_NOT_SUPPORTED for views whose content does not only follow from their present inputs."""
        if epoch is None:
            return
        try:
            check_rebuild(self._main.plans.circuit, epoch.progress, self._catalog.relations)
        except Error as refused:
            raise error(
                refused.condition,
                f"a fork can't begin with commit {self._number}: {refused.message}",
                detail=refused.detail,
                hint="The state of that commit is deleted. Without AT COMMIT, a fork begins with the newest one.",
            ) from refused

    def _without_plans(self) -> Catalog:
        """The catalog before views are filled."""
        planned = {r.id for r in self._planned}
        planned |= {r.id for r in self._catalog.dependents(*planned)}
        owned = {r.id for r in self._catalog.relations.values() if r.owner in planned or isinstance(r, Sink)}
        return self._catalog.without(planned | owned)

    def _fill(self) -> None:
        """Fills the views of the fork."""
        main, planned = self._main, self._planned
        try:
            with closing(opened_fork(main, self._name)) as fork:
                version = fork.catalog.version + 1
                known = {
                    i: replace(r, ready=not r.has_plan, since=version if r.has_plan else r.since)
                    for i, r in self._catalog.relations.items()
                }
                fork.change_catalog(replace(self._catalog, version=version, relations=known))
                for relation in planned:
                    fork.plans.add(relation.id, main.plans.producers[relation.id])
                lost = fork.engine.install(fork.plans.circuit, [r.id for r in planned])
                gone = {i: s["history_lost"] for i, s in fork.engine.sources().items() if s.get("history_lost_files")}
                check_whole({**lost, **{i: f"the files {', '.join(names)}" for i, names in gone.items()}})
                ready = {i: replace(r, ready=True) for i, r in known.items()}
                fork.change_catalog(replace(self._catalog, version=version + 1, relations=ready))
                fork.commit({}, dict.fromkeys(writers_of(fork.catalog), fork.log.head()))
        finally:
            main.layout.serve_secrets()


def opened_fork(main: OpenDatabase, name: str) -> OpenDatabase:
    """A fork, open for writing in this process. References to secrets then read those of the fork."""
    return OpenDatabase(
        str(root_of(main.layout, name)),
        runtime=main.runtime,
        spark=main.spark,
        tick_seconds=main.clock.tick_us / 1e6,
        files=main.files,
    )


class Promotion:
    """PROMOTE: the main database becomes its fork in one commit.

    The commit is an epoch with the fork's state and positions of sources. It changes each view by the difference to the
    fork, so readers of changes receive only that. All files that it names exist before: the fork's own files of its
    state get a second path in the main database. A saved plan that changes is deleted before: without a file, the plan
    is that of the newest epoch's circuit (`database/plans`), which is the old one before the commit and the new one
    after it.
    """

    def __init__(self, main: OpenDatabase, fork: OpenDatabase) -> None:
        """Both are open for writing; the ddl lock of `main` is held."""
        self._main, self._fork = main, fork
        self._name = fork.layout.root.name
        self._delivered = Successors(main.catalog, fork.catalog)
        self.notices: list[str] = []
        """What external targets do not receive."""

    def run(self, stop: Callable[[Iterable[str]], None]) -> set[str]:
        """Promotes the fork. Returns the ids of dropped relations. stop: stops deliveries until the database's services
        `follow`.

        Raises FEATURE_NOT_SUPPORTED if definitions of the main database have changed since the fork was created, or
        rows of tables differ; DEPENDENT_OBJECTS for running queries.
        """
        self._check_definitions()
        behind = self._main.log.head()
        for _ in range(_ROUNDS):
            if replay(self._fork) - behind < _FEW:
                break
            behind = self._main.log.head()
        stop(self._delivered.former.values())
        with self._main.guard:
            self._main.adopt(self._commit)
            self._forget()
        self._take_plans()
        self._main.settle_rewritten()
        return {i for i in self._before.relations if i not in self._main.catalog.relations}

    def _forget(self) -> None:
        """Forgets what this process knows about relations that now have other rows."""
        main, own = self._main, self._fork.own
        main.taken_over |= dict.fromkeys(self._writers(), main.log.head())
        for target in own.written | own.external:
            main.clocks.pop(target, None)
            main.key_rows.pop(target, None)
            for known in [k for k in main.key_hashes if k[0] == target]:
                del main.key_hashes[known]
            main.content.drop(target)
        for relation_id in main.rewritten:
            main.content.drop(relation_id)

    def _check_definitions(self) -> None:
        self._before = main = self._main.catalog
        record = fork_named(self._main.layout, self._name)
        now = digests_of(main)
        changed = sorted(i for i in now.keys() | record.definitions.keys() if now.get(i) != record.definitions.get(i))
        if changed:
            names = [main.relations[i].title if i in main.relations else "a dropped relation" for i in changed if i]
            raise error(
                "FEATURE_NOT_SUPPORTED",
                f'fork "{self._name}" can\'t be promoted: definitions of the main database have changed since',
                detail=f"These are {', '.join(names or ['functions or schemas'])}.",
                hint="DROP FORK, create another one, and repeat its changes.",
            )
        for relation in main.relations.values():
            if isinstance(relation, Query):
                raise error(
                    "DEPENDENT_OBJECTS",
                    f"{relation.reader} would end",
                    hint="End it with KILL QUERY, or wait for its end.",
                )
        self._check_fork()

    def _check_fork(self) -> None:
        stopped = self._fork.log.progress().failed.keys() - self._main.log.progress().failed.keys()
        for relation in self._fork.catalog.relations.values():
            if relation.id in stopped or not relation.ready:
                raise error("FEATURE_NOT_SUPPORTED", f"{relation.title} of the fork is stopped or not filled")
            if (problem := self._fork.unwritten.get(relation.id)) is not None:
                raise again(problem)

    def _catalog(self, changes: dict[str, RelationChange]) -> Catalog:
        """The catalog of the fork, as the next one of the main database. changes: those of its content."""
        main, fork = self._main.catalog, self._fork.catalog
        version = main.version + 1
        relations = {
            i: replace(r, since=main.relations[i].since if i in main.relations else version)
            for i, r in fork.relations.items()
            if not (r.hidden and isinstance(r, Query)) and not is_temporary(r.schema)
        }
        for target, change in changes.items():
            found = relations.get(target)
            if isinstance(found, Table | MaterializedView) and found.append_only and change.deleted_rows:
                relations[target] = replace(found, rewritten=True, since=version)  # readers load it again
        for made, former in self._delivered.former.items():
            found = relations[made]
            if isinstance(found, MaterializedView) and self._delivered.have_difference(made):
                relations[made] = replace(found, delivered_as=self._delivered.of(former).delivered_as or former)
        relations |= {i: r for i, r in main.relations.items() if is_temporary(r.schema)}
        return replace(
            main,
            version=version,
            next_number=max(main.next_number, fork.next_number),
            relations=relations,
            schemas=fork.schemas,
            functions=fork.functions,
        )

    def _commit(self) -> tuple[Commit, Catalog]:
        """The commit, while the main database does not change."""
        # In a thread of its own, because this one holds locks of the main database after which it can't take the same
        # locks of another one. Nothing else uses those of the fork.
        with ThreadPoolExecutor(1, "watersmeet-replay") as pool:
            pool.submit(self._stop_fork).result()
        main, fork = self._main, self._fork
        head, last, before = main.log.head(), fork.log.last_epoch(), main.log.last_epoch()
        if last is None or last.frontier is None or last.circuit is None:
            return Commit("catalog", time_us=time.time_ns() // 1000, promoted=self._name), self._catalog({})
        epoch = max(last.epoch or 0, (before.epoch or 0) if before else 0) + 1
        changes = self._changes(epoch)
        catalog = self._catalog(changes)
        known = {d.id for d in deliveries(self._before)}
        for begun in deliveries(catalog):
            if begun.id not in known:
                main.sink_positions.begin(begun.id, self._begun(begun, head + 1))
        state = {f for s, place in last.sections for f in fork.segments.referenced_files(s, place)}
        for name in sorted(state - fork.layout.shared):
            source, target = fork.layout.segment(name), main.layout.segment(name)
            storage.publish_again(source, target, durable=main.layout.durable)
        save_circuit(main.layout, load_circuit(fork.layout, last.circuit))
        main.plans.forget(i for i in fork.plans.producers if self._has_other_plan(i))
        made = Commit(
            "epoch",
            time_us=time.time_ns() // 1000,
            relations=changes,
            epoch=epoch,
            frontier=Frontier(head + 1, last.frontier.sources),
            segments=last.segments,
            circuit=last.circuit,
            progress=replace(last.progress, taken={}),
            copied=dict.fromkeys(self._writers(), head + 1),
            metrics=last.metrics,
            promoted=self._name,
        )
        return made, catalog

    def _begun(self, delivery: Delivery, commit: int) -> Delivered:
        """The position of a new delivery of the fork at the commit of the promotion: that of its predecessor, which has
        one more change, the difference; without a predecessor, the whole content is a change of that commit.
        """
        former = self._delivered.former.get(delivery.id)
        if former is None:
            return Delivered(delivery.generation, commit - 1)
        if not self._delivered.have_difference(delivery.id):
            self.notices.append(
                f"{delivery.title} delivers only rows after PROMOTE: {self._delivered.of(former).title}, which "
                "delivered to the same target, has other columns"
            )
            return Delivered(delivery.generation, commit)
        saved = self._main.sink_positions.saved(former)
        return replace(saved, former=(*(f for f in saved.former if f[1] > saved.since), (former, commit)))

    def _stop_fork(self) -> None:
        replay(self._fork)
        self._fork.flush(ended=True)
        self._check_fork()
        self._fork.engine.stop()

    def _writers(self) -> list[str]:
        """The views that write relations which differ from those of the main database. PROMOTE takes over all that they
        have written, while others continue where they are.
        """
        written = self._fork.own.written
        return [i for i, view in writers_of(self._fork.catalog).items() if view.feeds in written]

    def _changes(self, epoch: int) -> dict[str, RelationChange]:
        """The change of each relation of the main database to its content in the fork."""
        main, fork = self._main, self._fork
        found = Comparison(side_of(self._name, fork), side_of(MAIN, main))
        writer = SegmentWriter(main.layout.segments, epoch_prefix(epoch, main.log.writer), durable=main.layout.durable)
        changes: dict[str, RelationChange] = {}
        for relation in fork.catalog.relations.values():
            if not relation.is_stored or isinstance(relation, Query) or is_temporary(relation.schema):
                continue
            pair = Pair(relation, main.catalog.relations.get(relation.id))
            if pair.main is not None and not pair.has_rows_to_compare:
                raise error("FEATURE_NOT_SUPPORTED", f"{relation.title} has other columns in the fork")
            changes[relation.id] = self._change(writer, pair, found)
            if relation.id in self._delivered.former and self._delivered.have_difference(relation.id):
                former = self._delivered.of(self._delivered.former[relation.id])
                changes[former.id] = self._change(writer, Pair(relation, former), found)
        for made, former_id in {**self._delivered.kept, **self._delivered.former}.items():
            lacking = changes[former_id].deleted_rows if former_id in changes else 0
            if lacking:
                self.notices.append(
                    f"{lacking:,} delivered rows that {fork.catalog.relations[made].title} does not have stay in its "
                    "target, to which rows are only added"
                )
        segment = writer.finish()
        return {i: change.within(segment) for i, change in changes.items() if change.blobs}

    def _change(self, writer: SegmentWriter, pair: Pair, found: Comparison) -> RelationChange:
        """Writes the difference between the relation of the fork and the other one, as a change of the latter."""
        relation, written = pair.fork, ChangeWriter(writer, unread=False)
        assert relation is not None
        for table, diff in found.difference(pair):
            if not self._is_taken_over(relation):
                raise error(
                    "FEATURE_NOT_SUPPORTED",
                    f"{relation.title} has other rows in the fork",
                    detail="PROMOTE takes over definitions and views. Rows of tables are those of the main database.",
                    hint="Change them after PROMOTE.",
                )
            if pair.main is not None and pair.main.append_only and (diff < 0).any():
                self._check_readers(pair.main)
            written.add(table.rename_columns([c.name for c in relation.as_stored.columns]), diff)
        return written.finish()

    def _check_readers(self, relation: Relation) -> None:
        """Raises FEATURE_NOT_SUPPORTED if others have received rows of a relation which are final."""
        known = self._before.relations.values()
        sinks = (r for r in known if isinstance(r, Sink) and r.delivers == relation.id and r.connector)
        final: list[Relation] = [r for r in sinks if r.format.rows == "plain" and not r.force_append_only]
        final += [r for r in known if isinstance(r, NamedSubscription) and relation.id in r.depends_on]
        if final:
            raise error(
                "FEATURE_NOT_SUPPORTED",
                f"the fork lacks rows of {relation.title}, whose rows are never deleted",
                detail=f"{final[0].title} has received these rows.",
                hint="In a new fork, drop the view and create it again: then it is another view. A sink with "
                "force_append_only = 'true' leaves deletions out.",
            )

    def _is_taken_over(self, relation: Relation) -> bool:
        """Whether the rows of a relation are those that the fork has made."""
        own, before = self._fork.own, self._before.relations.get(relation.id)
        is_made = relation.is_fed_by_circuit or (before is not None and before.is_fed_by_circuit)
        return is_made or relation.id in own.written or relation.id in own.external

    def _has_other_plan(self, relation_id: str) -> bool:
        return self._main.plans.producers.get(relation_id) != self._fork.plans.producers[relation_id]

    def _take_plans(self) -> None:
        """Saves the plans of the fork."""
        plans, made = self._main.plans, self._fork.plans
        plans.buckets = made.buckets
        for relation_id in made.producers:
            if self._has_other_plan(relation_id):
                plans.add(relation_id, made.producers[relation_id])
