"""One run of the simulation: a seed decides on the world, on what is done in it, and on what goes wrong."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import watersmeet
from tests.simulation.disk import DiskRates
from tests.simulation.ledger import Ledger, by_duckdb
from tests.simulation.objects import Rates
from tests.simulation.place import Files, Kind, Place
from tests.simulation.seams import installed
from tests.simulation.workers import Troubles, Workers
from tests.simulation.workload import SETUP, Case, Looker, Writer
from tests.simulation.world import Actor, Process, Violation, World
from watersmeet.database import opened
from watersmeet.errors import Error
from watersmeet.runtime import inprocess
from watersmeet.runtime.coordinator import Coordinator
from watersmeet.runtime.engine import Database
from watersmeet.runtime.workers import Budget
from watersmeet.session.connections.connection import Connection
from watersmeet.store import changes, commits, compaction, readers, segments

_LATER_US = 3_600_000_000
#: When all goes well, what is asked for is done after so many steps.
_BOUND_STEPS = 5_000
FOR_EVER = 1_000_000
#: The share of seeds in which sessions make views mostly.
_DEFINING = 0.1
#: The first words of the steps before which it matters most what others do: making a commit, cleaning up.
_WHERE_IT_MATTERS = (
    ("create db/commits", "link commits"),
    ("delete db/commits", "delete db/snapshots", "delete db/segments", "unlink commits", "unlink segments"),
)


@dataclass(frozen=True)
class Knobs:
    """What a seed decides on before it begins. Without a value: as calm and simple as can be.

    operations, cleanings: of each writer. small: blobs, epochs and the like are as small as can be. locks: whether the
    lock of the writer works. skew_us: how far clocks are from each other at most. history: the setting `retention` of
    the database; None: as it is by default. defining: sessions make views mostly, so that several writers give the
    same ids.
    """

    store: Kind = "objects"
    buckets: int = 1
    lives: int = 1
    sessions: int = 1
    operations: int = 4
    cleanings: int = 1
    readers: int = 0
    switching: float = 0.1
    reading_s: str = "0"
    page: int = 1000
    small: bool = False
    locks: bool = True
    skew_us: int = 0
    rates: Rates = field(default_factory=Rates)
    disk: DiskRates = field(default_factory=DiskRates)
    troubles: Troubles = field(default_factory=Troubles)
    history: str | None = "0"
    defining: bool = False

    @staticmethod
    def of(seed: int) -> Knobs:
        """What a seed decides on."""
        r = random.Random(f"{seed}/knobs")
        flip = r.choice((0, 0, 0, 0.01))
        return Knobs(
            store=r.choice(("objects", "objects", "disk")),
            buckets=r.choice((1, 1, 2)),
            lives=r.choice((1, 2, 2, 3)),
            sessions=r.choice((1, 1, 2)),
            operations=r.choice((2, 3, 4)),
            cleanings=r.choice((0, 1, 2, 2)),
            readers=r.choice((0, 1)),
            switching=r.choice((0.02, 0.1, 0.3)),
            reading_s=r.choice(("0", "0.2", "5")),
            page=r.choice((2, 1000)),
            small=r.random() < 0.5,
            locks=r.random() < 0.3,
            skew_us=r.choice((0, 0, 600_000_000)),
            rates=Rates(r.choice((0, 0.02, 0.08)), r.choice((0, 0.02)), r.choice((0, 0.005)), flip),
            disk=DiskRates(r.choice((0, 0.01)), r.choice((0, 0.01)), flip, r.choice((0, 0.3))),
            troubles=Troubles(r.choice((0, 0.1)), r.choice((0, 0.3))),
            history=r.choice(("0", "0", "'1 second'", None)),
            defining=random.Random(f"{seed}/defining").random() < _DEFINING,
        )


_templates: dict[tuple[Kind, int, str | None], Files] = {}


def template(knobs: Knobs) -> Files:
    """The files of a database with the tables and views, and nothing in them."""
    key = kind, buckets, history = knobs.store, knobs.buckets, knobs.history
    if key not in _templates:
        world = World(f"template {kind} {buckets}")
        with _directory() as directory, installed(world):
            place = Place(world, kind, directory, {})
            with (
                place.used(),
                watersmeet.connect(place.path, runtime="inprocess", parallelism=buckets) as connection,
            ):
                for statement in SETUP:
                    connection.execute(statement)
                if history is not None:
                    connection.execute(f"ALTER SYSTEM SET retention = {history}")
            _templates[key] = place.files()
    return _templates[key]


@contextlib.contextmanager
def _directory() -> Iterator[Path]:
    """A directory for all that a run writes."""
    directory = Path(tempfile.mkdtemp(prefix="watersmeet-simulation-"))
    try:
        with mock.patch.object(tempfile, "tempdir", str(directory)):
            yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


class _NoLock:
    """In the place of the writer's lock."""

    def __init__(self, layout: object, *, breaks: bool = False) -> None:
        pass

    def release(self) -> None:
        pass

    def note(self, port: int) -> None:
        pass


@contextlib.contextmanager
def _turned(knobs: Knobs, workers: Workers) -> Iterator[None]:
    """Inside, the product is set as `knobs` say."""
    with contextlib.ExitStack() as patches:

        def put(place: object, name: str, value: object) -> None:
            patches.enter_context(mock.patch.object(place, name, value))

        patches.enter_context(mock.patch.dict(os.environ, {readers.READING: knobs.reading_s}))
        put(inprocess, "run_epoch", workers.run_epoch)
        put(opened, "give_back", lambda: None)
        if not knobs.locks:
            put(opened, "WriterLock", _NoLock)
        if knobs.small:
            put(changes, "BLOB_ROWS", 1)
            # Each blob is a file, which snapshots name.
            put(segments, "OWN_FILE_BYTES", 1)
            put(compaction, "_OWN_FILE_BYTES", 1)
            put(compaction, "_LARGE_ROWS", 1)
            put(commits, "_KEPT_VERSIONS", 1)

            def coordinator(db: Database) -> Coordinator:
                return Coordinator(db, budget=Budget(first_rows=1, max_rows=4))

            put(inprocess.InProcessEngine.__init__, "__kwdefaults__", {"make_coordinator": coordinator})
        yield


class Supervisor:
    """Starts writers and readers, lets them be killed and paused, and looks in the end."""

    def __init__(self, case: Case, knobs: Knobs, place: Place, workers: Workers) -> None:
        self.case, self.knobs, self.place, self.workers = case, knobs, place, workers
        self.world = case.world
        self.random = self.world.random("supervisor")
        self.lives = 0

    def follow(self) -> None:
        """Does what the seed decides."""
        for number in range(self.knobs.readers):
            self._reader(number)
        for _ in range(self.knobs.lives):
            self._live()
        self.settle()

    def writer(self) -> Writer:
        """The next process of a writer, which works."""
        knobs = self.knobs
        made = Writer(
            self.case,
            f"writer{self.lives}",
            knobs.sessions,
            knobs.operations,
            knobs.cleanings,
            defining=knobs.defining,
        )
        made.process.skew_us = self._skew_us()
        self.lives += 1
        made.start()
        return made

    def settle(self) -> None:
        """Faults are over: from here on all goes well, and what is left behind goes."""
        world = self.world
        self.place.heal()
        self.workers.troubles = Troubles()
        world.switching = min(world.switching, 0.1)
        others = [a for a in world.actors if a is not world.current]
        locked = self.place.disk is not None and self.knobs.locks
        asleep = [a.process for a in others if a.process.paused_until is not None]
        if asleep and not locked:
            for process in asleep:
                process.pause(FOR_EVER)  # beyond every clean-up
            with contextlib.suppress(Error), self.case.open() as connection:
                self._clean(connection)
        for actor in others:
            actor.process.resume()
        world.wait(lambda: all(a.is_over for a in others))
        world.do_all()
        world.most_steps = world.steps + _BOUND_STEPS
        with self.case.open() as connection:
            self._refresh_stopped(connection)
            self._clean(connection)
            happened = self.check(connection)
        with self.case.open(read_only=True) as connection:
            if self.case.look(connection, "a reader in the end") != happened:
                raise Violation("a reader sees another content than the writer")
        self.place.audit.look()
        if left := self.place.audit.garbage():
            raise Violation(f"nobody needs, but is there: {', '.join(sorted(left))}")

    def _refresh_stopped(self, connection: Connection) -> None:
        """Fills views again that were stopped, as their errors say: each attempt of an epoch met a flipped bit."""
        stopped = [view["name"] for view in connection.status()["views"] if view["error"]]
        if stopped and not self.case.may_be_damaged:
            raise Violation(f"stopped: {', '.join(stopped)}")
        if stopped:
            connection.execute("REFRESH MATERIALIZED VIEW ALL")

    def _clean(self, connection: Connection) -> None:
        """Leaves nothing but what a start needs: what others may have needed goes an hour later."""
        for _ in range(2):  # so many epochs are kept in any case
            connection.execute("INSERT INTO done VALUES (0)")
            connection.execute("FLUSH")
        for _ in range(2):
            self.world.now_us += _LATER_US
            connection.opened._compactor.run()

    def check(self, connection: Connection) -> set[int]:
        """Looks at all that is there; the transactions that have happened."""
        ledger = self.case.ledger
        happened = self.case.look(connection, "in the end")
        ledger.check_final(happened)
        names = {r[0] for r in connection.execute("SHOW MATERIALIZED VIEWS").fetchall()}
        ledger.check_relations(names)
        views = {n: q for n, q in ledger.views.items() if n in names}
        for name, rows in by_duckdb(ledger.tables(happened), views).items():
            content = self.case.content(connection, name)
            if content != rows:
                raise Violation(f"{name} is {content} in place of {rows}")
        return happened

    def _live(self) -> None:
        """The life of one writer, up to its end or to when the next one begins."""
        process = self.writer().process
        fates = ["ends", "killed", "paused", "paused", "overlaps"]
        if self.place.disk is not None:
            fates.append("power")
        fate = self.random.choice(fates)
        if fate != "ends":
            reached = self.reaching(process)
            self.world.wait(lambda: process.is_over or reached())
        if fate == "killed":
            process.kill()
        elif fate == "power":
            self.place.lose_power()
        elif fate == "paused":
            process.pause(self.random.choice((100, FOR_EVER, FOR_EVER)))
        elif fate == "overlaps":
            process.resume()
        else:
            self.world.wait(lambda: process.is_over)
        process.skew_us = self._skew_us()

    def reaching(self, process: Process) -> Callable[[], bool]:
        """Whether a process has come to some step, before which it stands still until somebody asks: any step, or one
        of those at which it matters most what others do meanwhile.
        """
        kinds = self.random.choice(((), *_WHERE_IT_MATTERS))
        left = self.random.randrange(1, 6 if kinds else 250)
        reached = False

        def watch(actor: Actor, what: str) -> bool:
            nonlocal left, reached
            if actor.process is process and (not kinds or what.startswith(kinds)):
                left -= 1
                if not left:
                    reached = True
                    process.pause(FOR_EVER)
            return reached

        self.world.watchers.append(watch)
        return lambda: reached

    def _reader(self, number: int) -> None:
        """A reader, which may stop while it holds something, or die then."""
        process = Looker(self.case, f"reader{number}", 3).start()
        fate = self.random.choice(("ends", "killed", "paused", "paused"))
        left = self.random.randrange(1, 60)

        def watch(actor: Actor, what: str) -> bool:
            nonlocal left
            left -= actor.process is process
            if not left:
                process.kill() if fate == "killed" else process.pause(self.random.choice((300, FOR_EVER)))
            return not left

        if fate != "ends":
            self.world.watchers.append(watch)

    def _skew_us(self) -> int:
        return self.random.randrange(-self.knobs.skew_us, self.knobs.skew_us) if self.knobs.skew_us else 0


def run(
    seed: object,
    knobs: Knobs | None = None,
    script: Callable[[Supervisor], None] = Supervisor.follow,
    *,
    files: Files | None = None,
    ledger: Ledger | None = None,
) -> World:
    """Runs a seed; the world at its end. Raises what broke, with the world as its `world`.

    knobs: instead of those of the seed. script: what is done. files, ledger: what is there before, and what is known
    of it.
    """
    knobs = knobs or Knobs.of(seed)
    files = files or template(knobs)
    world = World(seed, switching=knobs.switching)
    with _directory() as directory, installed(world):
        place = Place(world, knobs.store, directory, files, rates=knobs.rates, page=knobs.page, disk_rates=knobs.disk)
        workers = Workers(world, knobs.troubles)
        case = Case(
            world,
            place.path,
            ledger or Ledger(),
            may_be_damaged=bool(knobs.rates.flip),
            may_be_late=place.store is not None,
        )
        with place.used(), _turned(knobs, workers):
            supervisor = Supervisor(case, knobs, place, workers)
            world.run_in(world.start("supervisor"), "main", lambda: script(supervisor))
            try:
                world.run()
            except BaseException as cause:
                cause.world = world
                raise
            finally:
                for do in world.at_end:
                    with contextlib.suppress(Exception):
                        do()
    return world
