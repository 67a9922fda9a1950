"""An open database with its files, catalog and content, and the engine and services of its writer."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import pyarrow as pa

from watersmeet.catalog import Catalog, External, NumberSequence, Relation, SqlFunction, Subscription
from watersmeet.circuit.operators import Operator
from watersmeet.connectors import registry as readers
from watersmeet.connectors.base.sources import Feed
from watersmeet.connectors.base.targets import deliveries
from watersmeet.database.keyhashes import KeyHashes, KeyRows
from watersmeet.database.plans import (
    Plans,
    RunningCircuit,
    begun_parallelism,
    check_environment,
    column_names,
    default_parallelism,
    make_engine,
    read_circuit_ahead,
    stored_parallelism,
)
from watersmeet.database.transaction import Change
from watersmeet.errors import Error, error
from watersmeet.objectstores import storage
from watersmeet.runtime.engine import Database, Engine
from watersmeet.runtime.memory import Meter, give_back
from watersmeet.store.backup import Own, create_fork, own_of, remove_unfinished
from watersmeet.store.commits import (
    Commit,
    CommitLog,
    catalog_commit,
    catalog_name,
    load_catalog,
    saving,
    write_transaction,
)
from watersmeet.store.compaction import COMMITS, Compactor, RelationSizes
from watersmeet.store.content import Content
from watersmeet.store.layout import (
    DATABASE_FORMAT_VERSION,
    FilePermissions,
    Layout,
    WriterLock,
    check_storage,
    writer_files,
)
from watersmeet.store.positions import (
    Problems,
    StatusFile,
    Verifications,
    discard_problems,
    drop_unused,
    nameless_secrets,
    sink_positions,
    subscription_positions,
)
from watersmeet.store.retention import clean_at_start, kept_history
from watersmeet.store.segmentfiles import SegmentFiles
from watersmeet.store.sequences import Sequences
from watersmeet.system.process import scratch_folder
from watersmeet.system.threads import Clock, lock

if TYPE_CHECKING:
    from watersmeet.connectors.base.sources import Reader

#: The number of commits after which an in-process database in a directory is compacted, by the thread that commits. It
#: is low because the statement that flushes waits for it. Others have a thread for it, or pay for each request.
_INPROCESS_COMPACTION: Final = 64


class Service:
    """A background service of a database, defined in a package that depends on the database. Its methods are
    thread-safe.
    """

    def start(self) -> None:
        """Starts the service. Called once, when it is registered."""

    def follow(self) -> None:
        """Adapt to changed definitions of the catalog."""

    def before_epochs(self) -> None:
        """Commit changes that the epochs of `OpenDatabase.flush` should reflect."""

    def after_epochs(self, *, ended: bool = False) -> bool:
        """Commit changes that follow from the views. Returns whether there were any, so that another round is
        needed. ended: whether no input follows, so that a period that has begun is over.
        """
        del ended
        return False

    def replaying(self, *, begun: bool) -> None:
        """In a fork: REPLAY begins or has ended. Meanwhile, views write only relations that differ from those of the
        main database (`comparing.Own`).
        """
        del begun

    def applied(self, relation: Relation, change: Change) -> tuple[Change, int] | None:
        """In a fork, a change of the main database as a change of the content that a relation has there, with the
        number of rows that are too late for it; None if another service does this.
        """
        del relation, change
        return None

    def delivered(self, *, wait: bool) -> dict[str, int]:
        """The number of rows written to topics so far, by the id of the writer. wait: whether to wait until all rows
        committed now are written.
        """
        del wait
        return {}

    def catch_up(self) -> list[str]:
        """Wait until earlier commits of captured databases have arrived. Returns a notice for each skipped database."""
        return []


class ExternalReaders:
    """Readers of external content by relation id, with the last read versions. A reading thread holds `lock`.

    problems: the error of the last failed read. versions: the versions of the stored content. checked_us: the time of
    the last check for changes.
    """

    def __init__(self, problems: Problems) -> None:
        self.lock = lock("external")
        self.problems = problems
        self.versions: dict[str, Any] = {}
        self.checked_us: dict[str, int] = {}

    def reader(self, external: External, what: str = "an external table") -> Reader:
        """The reader of an external relation. Raises CONNECTOR_OPTION, and FEATURE_NOT_SUPPORTED for a kind without a
        reader.
        """
        readers.check_kind(external.kind, sorted(readers.TABLES), what)
        return readers.TABLES[external.kind].open(external)


S = TypeVar("S", bound=Service)


class OpenDatabase:
    """A database that this process has opened.

    guard: a lock held while the catalog or tables are read and then changed. ddl: a lock held for a whole statement
    that changes the catalog, including the filling of its view; acquired before guard. clocks: the time of the newest
    row of each ordered stream that this process has written, in microseconds, by relation id. key_hashes: those of
    tables that this process has written, by relation id. unwritten: the errors of views with INTO whose rows the
    stream rejects. canceled_fills: the ids of views whose fills are to end. Only a writer has circuit, plans, and
    positions and sink_positions, the progress of subscriptions and sinks. feed: in a fork, the input of its sources.
    taken_over: by view, the commit up to which PROMOTE has taken over the rows of the relation that it feeds.
    spark: the given SparkSession.

    Services register by `add`, and statements find them by their class.
    """

    plans: Plans
    circuit: RunningCircuit
    sequences: Sequences

    def __init__(
        self,
        path: str | Path | None,
        *,
        read_only: bool = False,
        parallelism: int | None = None,
        runtime: str = "inprocess",
        spark: Any = None,
        rebuild: bool = False,
        tick_seconds: float = 1.0,
        permissions: FilePermissions = "private",
        files: bool = False,
        take_over: bool = False,
    ) -> None:
        """Opens or creates a database. files: whether statements may read local files. The others are as in `connect`,
        except that the default is in process.

        Raises DATABASE_IN_USE, DATABASE_FORMAT, DATABASE_DAMAGED, PARALLELISM_MISMATCH, FILE_SYSTEM_UNSUITABLE.
        """
        self.guard = lock("guard")
        self.ddl = lock("ddl")
        self.read_only = read_only
        self.runtime = runtime
        self.spark = spark
        self.files = files
        if not tick_seconds > 0:
            raise error("INVALID_PARAMETER", f"tick_seconds can't be {tick_seconds}", hint="It must be above 0.")
        self.clock = Clock(round(tick_seconds * 1e6))
        self.clocks: dict[str, int] = {}
        self.key_hashes: dict[tuple[str, tuple[str, ...]], KeyHashes] = {}
        self.key_rows: dict[str, KeyRows] = {}
        self.meter = Meter()
        self.canceled_fills: set[str] = set()
        self.taken_over: dict[str, int] = {}
        self._own: tuple[int, Own] | None = None
        self._closed = False
        with contextlib.ExitStack() as opened:
            if not read_only:
                check_environment()
            root = _directory(path, opened)
            self.layout = Layout(root, durable=path is not None, create=not read_only, permissions=permissions)
            opened.enter_context(self.layout.explaining())
            opened.callback(self.layout.close)
            with storage.Concurrently(self.layout.root) as requests:
                if not read_only:
                    suitable = requests.begin(partial(check_storage, self.layout))
                    self._lock = WriterLock(self.layout, breaks=take_over)
                    opened.callback(self._lock.release)
                self.log = CommitLog(self.layout)
                self.feed = Feed() if self.layout.is_fork else None
                self._newest = StatusFile(self.layout, "NEWEST.json")
                self.segments = SegmentFiles(self.layout.segments, path=self.layout.segment)
                opened.callback(self.segments.close)
                if self.layout.format != DATABASE_FORMAT_VERSION:
                    self._upgrade()
                if read_only:
                    self._catalog, self._catalog_name = load_catalog(self.layout, self.log)
                else:
                    self._take_over(parallelism, requests, suitable, rebuild=rebuild)
            with self.log.explaining():  # Another writer may take over at any time.
                if not read_only:
                    if self.feed is not None:  # only replayed commits move the time of a fork
                        self.clock.set(self.log.progress().time_us or self.log.read(self.log.head()).time_us)
                    self.plans.restore()
                    self.plans.discard_unused()
                    if self.layout.directory is not None:
                        self._clean_up(self._catalog)
                self.content = Content(self.layout, self.log, self.segments, external_access=files)
                opened.callback(self.content.close)
                self.external_readers = ExternalReaders(Problems(self.layout, "EXTERNAL.json", read_only=read_only))
                self.unwritten = Problems(self.layout, "UNWRITTEN.json", read_only=read_only)
                self._services: list[Service] = []
                self.sizes = RelationSizes(self.layout, self.log)
                opened.callback(self.sizes.close)
                if not read_only:
                    self._start(parallelism, spark, opened, rebuild=rebuild)
            self.layout.require_fork()
            self._opened = opened.pop_all()

    @property
    def catalog(self) -> Catalog:
        """The newest catalog."""
        if self.read_only and catalog_name(self.log) != self._catalog_name:
            self._catalog, self._catalog_name = load_catalog(self.layout, self.log)
        return self._catalog

    @property
    def engine(self) -> Engine:
        """The engine of the writer."""
        return self.circuit.engine

    @property
    def buckets(self) -> int:
        """The number of state buckets."""
        return stored_parallelism(self.layout, self.log) if self.read_only else self.plans.buckets

    @property
    def own(self) -> Own:
        """In a fork, the relations whose rows it makes by itself."""
        if self._own is None or self._own[0] != self.catalog.version:
            self._own = self.catalog.version, own_of(self.layout, self.catalog)
        return self._own[1]

    def change_catalog(self, catalog: Catalog) -> None:
        """Make `catalog` the newest. On failure the previous catalog stays, with a new version number."""
        with self._saving(catalog) as name:
            self.log.append(catalog_commit(catalog, name))

    def forget(self, ids: set[str]) -> bool:
        """Remove relations from the newest catalog; False if the change is only in this process, because storing it
        failed.
        """
        catalog = self._catalog.without(ids)
        try:
            self.change_catalog(catalog)
        except Error:
            self._catalog = catalog
            return False
        return True

    def resume(self) -> None:
        """Restart the engine from its newest commit if the disk was full."""
        failure = self.engine.failure
        if failure is not None and failure.condition == "DISK_FULL":
            with self.ddl:
                self.circuit.reinstall()

    def commit(
        self,
        changes: Mapping[str, Change],
        copied: Mapping[str, int] | None = None,
        rejected: Mapping[str, int] | None = None,
        catalog: Catalog | None = None,
        captured: Mapping[str, Any] | None = None,
    ) -> Commit:
        """Commit changes (by relation id) in one step, and notify the engine.

        rejected: the number of rejected rows by relation id. copied, captured: see `store.manifests.Commit`. catalog:
        becomes the newest in the same step; after an error only if the commit is in the log.
        """
        known = (catalog or self._catalog).relations
        rows = {i: (_as_stored(c.table, known.get(i)), c.diff) for i, c in changes.items()}
        with contextlib.nullcontext("") if catalog is None else self._saving(catalog) as name:
            made = write_transaction(
                self.layout,
                self.log,
                rows,
                copied=copied,
                rejected=rejected,
                captured=captured,
                catalog=name,
                follows=catalog is not None and catalog.follows_epochs,
            )
        if self.layout.directory is not None:
            self._note_newest()  # an object store would need another request, so only `close` records it
        for relation_id in changes.keys() & self.clocks.keys():
            time = self._catalog.relations[relation_id].event_time
            assert time is not None
            self.rise(relation_id, changes[relation_id].newest_us(time.column))
        self.engine.notify()
        return made

    @contextlib.contextmanager
    def _saving(self, catalog: Catalog) -> Iterator[str]:
        """Store a catalog, which the commit inside the block makes the newest; yields its name.

        Without a commit the previous catalog stays, with a new version number.
        """
        found = replace(self._catalog, version=catalog.version)
        try:
            with saving(self.layout, self.log, catalog) as name:
                try:
                    yield name
                finally:
                    if catalog_name(self.log) == name:
                        found = catalog
        finally:
            self._catalog = found

    def rise(self, relation_id: str, time_us: int) -> None:
        """Advance the clock of an ordered stream to at least a time if the clock is known."""
        if relation_id in self.clocks:
            self.clocks[relation_id] = max(time_us, self.clocks[relation_id])

    def flush(self, *, topics: bool = False, ended: bool = False) -> None:
        """Wait until all views reflect all transactions.

        `unwritten` then has the errors of streams that reject rows of views. topics: whether views also reflect the
        records that processors write to Kafka topics; a processor may read the topic of another one. ended: whether
        views with periods write those that have begun, because no input follows.
        """
        written = self._delivered(wait=False) if topics else {}
        self._flush(ended=ended)
        for _ in range(len(written)):
            before, written = written, self._delivered(wait=True)
            if written == before:
                return
            self._flush(ended=ended)

    def _delivered(self, *, wait: bool) -> dict[str, int]:
        return {i: rows for service in self._services for i, rows in service.delivered(wait=wait).items()}

    def _flush(self, *, ended: bool) -> None:
        self.log.check()
        self.circuit.ensure_installed(self.ddl)
        for service in self._services:
            service.before_epochs()
        self.engine.flush()
        while any(service.after_epochs(ended=ended) for service in self._services):
            self.engine.flush()
        if self.runtime == "inprocess":
            self._compactor.run_if_due()

    def applied(self, relation: Relation, change: Change) -> tuple[Change, int]:
        """See `Service.applied`."""
        found = (service.applied(relation, change) for service in self._services)
        return next((made for made in found if made is not None), (change, 0))

    @contextlib.contextmanager
    def replaying(self) -> Iterator[None]:
        """A context in which a fork replays commits."""
        for service in self._services:
            service.replaying(begun=True)
        try:
            yield
        finally:
            for service in self._services:
                service.replaying(begun=False)

    def fork(self, name: str) -> None:
        """Create a fork of the newest commit. Raises like `create_fork`."""
        with self._compactor.paused():
            create_fork(self.layout, self.log, name)

    def uncleaned(self) -> contextlib.AbstractContextManager[None]:
        """A context in which no file of the database is deleted."""
        return self._compactor.paused()

    def adopt(self, make: Callable[[], tuple[Commit, Catalog]]) -> None:
        """Append a commit with another catalog. make: makes both while no epoch runs and nothing is deleted; the epochs
        after it continue from it.
        """

        def commit() -> None:
            with self._compactor.paused():
                made, catalog = make()
                with self._saving(catalog) as name:
                    self.log.append(replace(made, catalog=name, follows=catalog.follows_epochs))

        with self.guard:
            self.engine.flush()
            self.engine.replaced(commit)

    def settle(self, relations: frozenset[str]) -> None:
        """Reduce the history of tables to their content, so that a new view reads no replaced or deleted row."""
        self.flush()
        while not self._compactor.settle(relations):
            self.commit({})
            self.flush()

    def has_difference(self, view: str, hidden: str) -> bool:
        """Whether a change can turn the content of a view into that of a hidden one: the content must be readable, and
        an append-only view must lose no row.
        """
        known = self._catalog.relations
        self.content.drop(view)
        try:
            self.content.refresh(self._catalog, [view])
            grows = known[hidden].append_only and not self.circuit.deletes(known[view], hidden)
            return grows or not known[view].append_only
        except Error as damage:
            if damage.condition != "DATABASE_DAMAGED":
                raise
            return False

    def redefine(
        self,
        relations: Sequence[Relation],
        plans: Mapping[str, Sequence[Operator]],
        made: Mapping[str, str],
        functions: Sequence[SqlFunction] = (),
    ) -> None:
        """Give relations new definitions, inputs first, and views their new plans in one commit, which changes the
        content of each view by the difference to the hidden view that was filled for it (`made`, by view). functions:
        those that change in the same commit.
        """
        with self.guard:
            catalog = self._catalog.with_functions(functions) if functions else self._catalog
            catalog = catalog.redefined(relations)
            if not made:
                self.change_catalog(catalog)
                return
            with self._saving(catalog) as name:
                self.circuit.refresh(plans, made, name)
            for relation_id in made:
                self.content.drop(relation_id)

    def replace_content(self, made: Mapping[str, str]) -> None:
        """Replace the content of views by that of hidden views (`made`, by view) without a change. Readers load the
        content again.
        """
        if not made:
            return
        while not self._compactor.replace(made):
            self.commit({})
            self.flush()
        with self.guard:
            catalog = self._catalog
            version = catalog.version + 1
            known = catalog.relations
            loaded = {
                view: replace(known[view], since=version, append_only=known[hidden].append_only)
                for view, hidden in made.items()
            }
            self.change_catalog(replace(catalog, version=version, relations={**known, **loaded}))
        for relation_id in made:
            self.content.drop(relation_id)

    def add(self, service: S) -> S:
        """Register and start a service. It ends when the database is closed."""
        self._services.append(service)
        service.start()
        return service

    def service(self, kind: type[S]) -> S | None:
        """The service of a class; None if it does not run, as in read-only processes."""
        return next((s for s in self._services if isinstance(s, kind)), None)

    def follow(self) -> None:
        """Notify the services that the definitions of the catalog have changed."""
        for service in self._services:
            service.follow()

    def catch_up(self) -> list[str]:
        """Wait until tables reflect all commits of their captured databases. Returns a notice for each skipped
        database.
        """
        return [notice for service in self._services for notice in service.catch_up()]

    def serves(self, port: int) -> None:
        """Note the port at which this process serves clients, from which a standby knows that it writes."""
        self._lock.note(port)

    def at_close(self, callback: Callable[[], None]) -> None:
        """Register a callback that `close` calls."""
        self._opened.callback(callback)

    @property
    def is_closed(self) -> bool:
        """True once `close` was called."""
        return self._closed

    def close(self) -> None:
        """Stop the engine and release everything. May be called again."""
        if not self._closed:
            self._closed = True
            with self._opened:  # released even if the newest commit can't be recorded
                if not self.read_only:
                    self._note_newest()

    def _upgrade(self) -> None:
        """Give a database of an older format the present one. Its files stay as they are.

        Raises DATABASE_FORMAT if it has objects that this release can't read.
        """
        try:
            load_catalog(self.layout, self.log)
        except Error as damage:
            raise error(
                "DATABASE_FORMAT",
                f"the database at {self.layout.root} has format {self.layout.format}, and objects that this release "
                "can't read",
                detail=str(damage.__cause__ or damage.message),
                hint="Use the release of Watersmeet that wrote it. Nothing was changed.",
            ) from damage
        self.layout.upgrade()

    def _take_over(
        self, wanted: int | None, requests: storage.Concurrently, suitable: Future[None], *, rebuild: bool
    ) -> None:
        """Become the writer. On an error the database stays unchanged. suitable: the check of the storage."""
        first = default_parallelism(self.runtime) if wanted is None else wanted
        secrets = requests.begin(partial(nameless_secrets, self.layout))
        shared = requests.begin(lambda: self.layout.shared)
        taken = False
        while not taken:
            # read before the log, because another writer may commit, and record its commits, at any moment
            noted = None if rebuild else self._newest.read().get("commit")
            with self.log.same_head():
                head = self.log.head()
                if isinstance(noted, int):
                    self._check_newest(noted, head)
                circuit = requests.begin(partial(read_circuit_ahead, self.layout, self.log.last_epoch()))
                saved = requests.begin(partial(writer_files, self.layout.plans))
                self._catalog, self._catalog_name = load_catalog(self.layout, self.log)
                circuit.result()
                suitable.result()
                shared.result()  # raises for a fork that its main database no longer has
                buckets = begun_parallelism(self.layout, self.log, first)
                self.plans = Plans(self.layout, self.log, self._catalog, buckets, saved.result())
                self._secrets = secrets.result()
                taken = self.log.head() == head and self.log.take_over(head)

    def _clean_up(self, catalog: Catalog) -> None:
        """Deletes files that earlier writers left. catalog: the one at the start of this writer.

        An object store would need a dozen requests in series, so there the compactor does this before its first run, or
        `close`: the first epoch doesn't wait for it, and a killed process leaves it to the next one.
        """
        clean_at_start(self.layout, self.log, self.segments)
        remove_unfinished(self.layout)
        drop_unused(self.layout, self._secrets, json.dumps(catalog.to_json()))
        Verifications(self.layout).forget_others(lambda: self._catalog.relations)

    def _check_newest(self, noted: int, head: int) -> None:
        """Raises DATABASE_DAMAGED if a writer recorded a later commit than the last one of the log, because files were
        deleted.
        """
        if noted > head:
            raise error(
                "DATABASE_DAMAGED",
                f"the newest commits of the database are missing: the log ends at {head}, the last writer made {noted}",
                detail=f"They are the files {self.layout.commit(head + 1).name} to {self.layout.commit(noted).name} "
                f"in {self.layout.commits}.",
                hint="Restore them from a backup. With rebuild the database opens without them, and without what they "
                "changed.",
            )

    def _note_newest(self) -> None:
        """Record the newest commit, so that the next writer detects if it is missing."""
        self._newest.write({"commit": self.log.head()})

    def _start(self, wanted: int | None, spark: Any, opened: contextlib.ExitStack, *, rebuild: bool) -> None:
        """Start the engine and the compactor. wanted, rebuild: see `RunningCircuit.start`."""
        self._drop_ended()
        runtime = Database(
            self.layout,
            self.log,
            self.segments,
            lambda: self._catalog.as_stored,
            self.clock,
            column_names,
            feed=self.feed,
        )
        waits = self.runtime == "inprocess" and self.layout.directory is not None
        self._compactor = Compactor(
            self.layout,
            self.log,
            self.segments,
            lambda: self._catalog.as_stored,
            commits=_INPROCESS_COMPACTION if waits else COMMITS,
            history=kept_history,
            after=give_back,
            first=None if self.layout.directory is not None else partial(self._clean_up, self._catalog),
        )
        opened.callback(self._compactor.clean_up_first)
        engine = make_engine(self.runtime, runtime, wanted or self.buckets, spark)
        opened.callback(engine.stop)
        self.circuit = RunningCircuit(runtime, engine, self.plans, lambda: self._catalog, self.change_catalog)
        if self.rewritten:
            self._compactor.settle(self.rewritten)  # plans read history of append-only relations without deletions
        self.circuit.start(wanted, rebuild=rebuild)
        layout, log, known = self.layout, self.log, self._catalog.relations.values()
        subscribed = [r.id for r in known if isinstance(r, Subscription)]
        numbered = [r.id for r in known if isinstance(r, NumberSequence)]
        delivered = [d.id for d in deliveries(self._catalog)]
        with storage.Concurrently(layout.root) as requests:
            problems = requests.begin(partial(discard_problems, layout))
            positions = _begin_closable(requests, opened, partial(subscription_positions, layout, log, subscribed))
            sequences = _begin_closable(requests, opened, partial(Sequences, layout, log, numbered))
            sinks = _begin_closable(requests, opened, partial(sink_positions, layout, log, delivered))
        problems.result()
        self.positions, self.sequences, self.sink_positions = positions.result(), sequences.result(), sinks.result()
        if self.runtime != "inprocess":
            self._compactor.start()
        opened.callback(self._compactor.stop)

    @property
    def rewritten(self) -> frozenset[str]:
        """The append-only tables and views of which PROMOTE has deleted rows."""
        return frozenset(r.id for r in self._catalog.relations.values() if r.append_only and not r.only_grows)

    def settle_rewritten(self) -> None:
        """Reduces the history of `rewritten` relations to their content."""
        if self.rewritten:
            self.settle(self.rewritten)

    def _drop_ended(self) -> None:
        """Drop running queries, which ended with the last process, except subscriptions; and uncommitted relations."""
        known = self._catalog.relations
        ended = {
            r.id for r in known.values() if r.hidden and not r.owner and (r.staged or not isinstance(r, Subscription))
        }
        ended |= {r.id for r in known.values() if r.owner and r.owner not in known.keys() - ended}
        if ended:
            self.change_catalog(self._catalog.without(ended))
            self.plans.remove(ended)


def _as_stored(rows: pa.Table, relation: Relation | None) -> pa.Table:
    """Rows of a relation with the column names of stored files."""
    if relation is None or not relation.stored:
        return rows
    return rows.rename_columns([c.name for c in relation.as_stored.columns])


class _Closable(Protocol):
    def close(self) -> None: ...


C = TypeVar("C", bound=_Closable)


def _begin_closable(requests: storage.Concurrently, opened: contextlib.ExitStack, make: Callable[[], C]) -> Future[C]:
    """Begins to make an object, which is closed at the end of `opened`."""

    def made() -> C:
        found = make()
        opened.callback(found.close)
        return found

    return requests.begin(made)


def _directory(path: str | Path | None, opened: contextlib.ExitStack) -> str | Path:
    if path is not None:
        if not str(path):
            raise error("INVALID_PARAMETER", "the path of a database is empty")
        return path
    return opened.enter_context(scratch_folder("database")) / "db"
