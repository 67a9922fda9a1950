"""Files next to the commits: positions of subscriptions and sinks, status files, secrets.

A position tells how far a subscription was read, or a sink was delivered. The name of its file contains the number of
its writer. The file of the newest writer counts; files of an overtaken writer are ignored.

Status files are JSON files, by which the writer reports to other processes. Each view has one file of verifications. A
secret is a file that only the user of this process can read.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
import urllib.parse
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Generic, Literal, Protocol, TypeVar, get_args

from watersmeet.errors import Error, error
from watersmeet.objectstores import storage
from watersmeet.objectstores.storage import AnyPath
from watersmeet.store.commits import CommitLog
from watersmeet.store.layout import Layout, WriterFile, check_id, writer_file, writer_files
from watersmeet.store.readers import ACTIVE, DELIVERED, KEPT, Reader, low_water_number
from watersmeet.system.secretvalues import is_nameless, nameless, reference, signed
from watersmeet.values.serialization import from_json, to_json


@dataclass(frozen=True, slots=True)
class Emitted:
    """The part of a running query's output that determines its next output.

    version: that of the last emission. left: the number of rows that may still be output; None for any number. offset:
    the number of rows still to be skipped. period: the first one that was not output yet.
    """

    version: int = 0
    left: int | None = None
    offset: int = 0
    period: int = 0


@dataclass(frozen=True, slots=True)
class Position:
    """The position in the changes of a subscription up to which they were returned.

    taken: the last returned commit; emitted: the output up to it. since: the commits after it are needed, for periods
    that had not ended at `taken`. upto, asked_us, given: only set after a partly returned response: its last commit,
    the time of the request, and the number of rows returned so far.
    """

    since: int
    taken: int
    emitted: Emitted = field(default_factory=Emitted)
    upto: int | None = None
    asked_us: int = 0
    given: int = 0


@dataclass(frozen=True, slots=True)
class Delivered:
    """The position of a sink: the rows that its target has acknowledged.

    generation: see `targets.SinkOffset`. start: the commit whose content is delivered first; None if no content is.
    base: the number of the checkpoint with that content; 0 if there was none. commit, rows, last: the newest position,
    -1 before the first one. since: all commits above it are needed. bound: this commit and later ones were never passed
    to the target; 0 if unknown. former: relations that PROMOTE has replaced, in their order, each with the commit up to
    which its changes are delivered.
    """

    generation: int
    since: int
    start: int | None = None
    base: int = 0
    commit: int = -1
    rows: int = -1
    last: bool = True
    bound: int = 0
    former: tuple[tuple[str, int], ...] = ()

    def delivers(self, relation_id: str, commit: int) -> str:
        """The relation whose changes in a commit are delivered. relation_id: the present one."""
        return next((former for former, upto in self.former if commit <= upto), relation_id)


class Saved(Protocol):
    """A position. since: all commits above it are needed."""

    @property
    def since(self) -> int: ...


P = TypeVar("P", bound=Saved)


@dataclass(slots=True)
class _Kept(Generic[P]):
    """saved: the position; None for the reason `problem`. reader: pins the commits that are still needed."""

    saved: P | None
    reader: Reader
    problem: Error | None = None


class Positions(Generic[P]):
    """The positions of all subscriptions, or of all sinks, with leases on the commits that they need. For the writer;
    thread-safe.

    Forgotten relations are unknown, and saving their position does nothing.
    """

    def __init__(
        self,
        layout: Layout,
        log: CommitLog,
        directory: AnyPath,
        kind: type[P],
        relation_ids: Iterable[str],
        *,
        held: str,
        kept: str,
        opened: Callable[[P], P] = lambda saved: saved,
    ) -> None:
        """Must be called before the first clean-up. relation_ids: existing relations; positions of others are deleted.

        held, kept: the states of the lease (`readers`) while a position is in use, and while it is not. opened: applied
        to saved positions when the database is opened.
        """
        self._layout, self._log = layout, log
        self._directory, self._kind = directory, kind
        self._held, self._rests = held, kept
        self._lock = threading.Lock()
        self._known: dict[str, _Kept[P]] = {}
        storage.remove_temporaries(directory)
        files = writer_files(directory)
        newest = {f.id: f.writer for f in files if f.writer <= log.writer}
        for relation_id in relation_ids:
            kept_here = self._known[relation_id] = _Kept[P](None, Reader(layout))
            try:
                kept_here.saved = opened(self._read(relation_id, newest.get(relation_id)))
            except Error as problem:
                kept_here.problem = problem
                continue
            kept_here.reader.pin(kept_here.saved.since, kept)
            self._write(relation_id, kept_here.saved)  # own number: ignores later writes of an earlier writer
        self._remove_others(files)

    def begin(self, relation_id: str, position: P) -> None:
        """Adds a new position, in use."""
        with self._lock:
            kept = self._known[relation_id] = _Kept(position, Reader(self._layout))
            kept.reader.pin(position.since, self._held)
            self._write(relation_id, position)

    def resume(self, relation_id: str) -> P | None:
        """A position, in use from now on; None if it is lost. Raises DATABASE_DAMAGED if it can't be read."""
        with self._lock:
            kept = self._known[relation_id]
            if kept.saved is None:
                assert kept.problem is not None
                raise kept.problem
            if kept.reader.try_pin(kept.saved.since, self._held):
                return kept.saved
            kept.reader.pin(kept.saved.since, self._rests)
            return None

    def saved(self, relation_id: str) -> P:
        """The last saved position. Raises DATABASE_DAMAGED if it can't be read."""
        with self._lock:
            kept = self._known[relation_id]
            if kept.saved is None:
                assert kept.problem is not None
                raise kept.problem
            return kept.saved

    def save(self, relation_id: str, position: P) -> None:
        """Saves a position, which also survives a crash. Raises WRITER_FENCED."""
        self._log.check()
        with self._lock:
            kept = self._known.get(relation_id)
            if kept is None:
                return
            if position != kept.saved:
                self._write(relation_id, position)
                kept.saved = position
            kept.reader.pin(position.since, self._held)

    def idle(self, relation_id: str) -> None:
        """Records that the position is currently not in use."""
        with self._lock:
            kept = self._known.get(relation_id)
            if kept is not None and kept.saved is not None:
                kept.reader.pin(kept.saved.since, self._rests)

    def since(self, relation_id: str) -> int | None:
        """The commit after which all commits are needed; None if some of these were deleted."""
        with self._lock:
            kept = self._known.get(relation_id)
            lost = kept is None or kept.saved is None or low_water_number(self._layout) > kept.saved.since
            return None if lost or kept is None or kept.saved is None else kept.saved.since

    def forget(self, relation_ids: Iterable[str]) -> None:
        """Deletes the positions of dropped relations."""
        with self._lock:
            for relation_id in relation_ids:
                kept = self._known.pop(relation_id, None)
                if kept is not None:
                    kept.reader.close()
                    storage.discard(self._path(relation_id, self._log.writer))

    def close(self) -> None:
        """Releases all commits."""
        with self._lock:
            for kept in self._known.values():
                kept.reader.close()

    def _path(self, relation_id: str, writer: int) -> AnyPath:
        return writer_file(self._directory, check_id(relation_id), writer)

    def _write(self, relation_id: str, position: P) -> None:
        path = self._path(relation_id, self._log.writer)
        storage.replace_file(path, self._layout.seal(path, to_json(position)), durable=self._layout.durable)

    def _read(self, relation_id: str, writer: int | None) -> P:
        directory = self._directory.name
        if writer is None:
            raise error(
                "DATABASE_DAMAGED", f"the position of {directory[:-1]} {relation_id} is missing from {directory}"
            )
        path = self._path(relation_id, writer)
        try:
            return from_json(self._kind, self._layout.unseal(path))
        except ValueError as cause:
            raise error("DATABASE_DAMAGED", f"{directory}/{path.name} is not a position") from cause

    def _remove_others(self, files: Iterable[WriterFile]) -> None:
        """Deletes the files of earlier writers, except unreadable ones."""
        for file in files:
            kept = self._known.get(file.id)
            if (file.writer < self._log.writer and (kept is None or kept.saved is not None)) or (
                file.writer == self._log.writer and kept is None
            ):
                storage.discard(file.path)


def subscription_positions(layout: Layout, log: CommitLog, relation_ids: Iterable[str]) -> Positions[Position]:
    """The positions of subscriptions."""
    return Positions(layout, log, layout.subscriptions, Position, relation_ids, held=ACTIVE, kept=KEPT)


def sink_positions(layout: Layout, log: CommitLog, relation_ids: Iterable[str]) -> Positions[Delivered]:
    """The positions of sinks."""

    def opened(saved: Delivered) -> Delivered:
        """Positions when the database is opened: the commits of the new writer can't have been delivered by an earlier
        one.
        """
        return saved if saved.bound else replace(saved, bound=log.began)

    return Positions(layout, log, layout.sinks, Delivered, relation_ids, held=DELIVERED, kept=DELIVERED, opened=opened)


class StatusFile:
    """A JSON file, usually by relation id, by which the writer reports to other processes. Nothing depends on it.

    Not thread-safe.
    """

    def __init__(self, layout: Layout, name: str) -> None:
        self._path = layout.sources / name
        self._written = ""

    @property
    def is_written(self) -> bool:
        """Whether this process has written the file."""
        return bool(self._written)

    def write(self, value: Mapping[str, Any]) -> None:
        """Writes a changed value. Never raises an error."""
        text = json.dumps(value, ensure_ascii=False, default=str)
        if text == self._written:
            return
        with contextlib.suppress(Error, OSError):
            storage.replace_file(self._path, text.encode(), durable=False)
            self._written = text

    def read(self) -> dict[str, Any]:
        """The value that the writer wrote last; empty if there is none."""
        try:
            found = json.loads(storage.read_file(self._path))
        except (Error, OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}


Outcome = Literal["proven", "partly proven", "differs", "not provable"]


@dataclass(frozen=True)
class Verification:
    """The result of VERIFY for one view. outcome: proven if the content equals the recomputed one. missing, extra: the
    number of rows that the view lacks, and that it should not have. reason: why it is not or only partly proven. hash:
    that of the view's content.

    statement: what was compared, as JSON: the database, the commit, the SQL, and the hashes of the commit's manifest,
    of the inputs and of both results. digest: SHA-256 of the statement. signature, signed_by: see
    `secretvalues.signed`; empty if it is unsigned.
    """

    view: str
    commit: int
    outcome: Outcome
    missing: int = 0
    extra: int = 0
    reason: str = ""
    rows: int = 0
    hash: str = ""
    verified_us: int = 0
    took_s: float = 0.0
    statement: str = ""
    digest: str = ""
    signature: str = ""
    signed_by: str = ""

    def stating(self, statement: str, layout: Layout, key: str) -> Verification:
        """The result with a statement, signed by the secret `key` of the database if it is not empty. Raises the errors
        of `secretvalues.signed`.
        """
        signature, signed_by = signed(statement, reference(key, layout.id)) if key else ("", "")
        digest = hashlib.sha256(statement.encode()).hexdigest()
        return replace(self, statement=statement, digest=digest, signature=signature, signed_by=signed_by)

    @property
    def compared(self) -> bool:
        """Whether the content was compared."""
        return self.outcome != "not provable"

    @property
    def summary(self) -> str:
        """The result in one line."""
        rows = self.missing + self.extra
        differs = f", {rows:,} row{'' if rows == 1 else 's'}" if self.outcome == "differs" else ""
        return f"{self.outcome} at commit {self.commit}{differs}"


def manifest_digest(layout: Layout, number: int) -> str | None:
    """The SHA-256 of the manifest of a commit; None if it was deleted, or for commit 0."""
    try:
        return hashlib.sha256(storage.read_file(layout.commit(number))).hexdigest()
    except FileNotFoundError:
        return None


#: The number of verifications of each view that are kept.
_KEPT: Final = 100

_VERIFICATIONS: Final = "-verifications.json"


class Verifications:
    """The newest results of VERIFY by the id of the view, the newest first. Thread-safe."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._lock = threading.Lock()

    def add(self, view_id: str, made: Verification) -> None:
        """Stores a result durably. Raises DISK_FULL."""
        with self._lock:
            found = [made, *self.read(view_id)][:_KEPT]
            text = json.dumps([vars(one) for one in found], ensure_ascii=False)
            storage.replace_file(self._path(view_id), text.encode(), durable=True)

    def read(self, view_id: str) -> list[Verification]:
        """The results of a view."""
        try:
            return [Verification(**one) for one in json.loads(storage.read_file(self._path(view_id)))]
        except FileNotFoundError:
            return []

    def newest(self, view_ids: Iterable[str]) -> dict[str, Verification]:
        """The newest result of each of these views that has one."""
        there = self._there()
        return {i: rows[0] for i in view_ids if i in there and (rows := self.read(i))}

    def stored(self, view_ids: Iterable[str]) -> dict[str, bytes]:
        """The results of these views that have some, as they are stored."""
        there = self._there()
        return {i: storage.read_file(self._path(i)) for i in view_ids if i in there}

    def restore(self, view_id: str, data: bytes) -> None:
        """Stores results that `stored` has returned."""
        storage.replace_file(self._path(view_id), data, durable=True)

    def forget_others(self, known: Callable[[], Container[str]]) -> None:
        """Deletes the results of views that no longer exist. known: returns the ids of those that do."""
        there = self._there()
        exist = known()
        storage.remove_files(self._layout.sources / f"{i}{_VERIFICATIONS}" for i in sorted(there) if i not in exist)

    def _there(self) -> set[str]:
        """The ids of views with results."""
        names = storage.list_names(self._layout.sources)
        return {name.removesuffix(_VERIFICATIONS) for name in names if name.endswith(_VERIFICATIONS)}

    def _path(self, view_id: str) -> AnyPath:
        return self._layout.sources / f"{check_id(view_id)}{_VERIFICATIONS}"


#: The status files with errors.
ProblemsName = Literal["EXTERNAL.json", "SINKS.json", "UNWRITTEN.json"]


def discard_problems(layout: Layout) -> None:
    """Deletes the errors of the last writer, with one request. Only for the writer, at its start."""
    storage.remove_files(layout.sources / name for name in get_args(ProblemsName))


class Problems:
    """Errors by relation id. Thread-safe.

    A new writer starts without errors (`discard_problems`), because it reads everything again. Read-only processes see
    the errors of the last writer.
    """

    def __init__(self, layout: Layout, name: ProblemsName, *, read_only: bool) -> None:
        self._status_file = StatusFile(layout, name)
        self._read_only = read_only
        self._found: dict[str, Error] = {}
        self._lock = threading.Lock()

    def __setitem__(self, relation_id: str, problem: Error) -> None:
        with self._lock:
            self._found[relation_id] = problem
            self._status_file.write(self._values())

    def pop(self, relation_id: str) -> None:
        """Removes the error of a relation."""
        with self._lock:
            if self._found.pop(relation_id, None) is not None:
                self._status_file.write(self._values())

    def get(self, relation_id: str) -> Error | None:
        """The error of a relation."""
        with self._lock:
            return self._found.get(relation_id)

    def first(self) -> Error | None:
        """The oldest error."""
        with self._lock:
            return next(iter(self._found.values()), None)

    def to_json(self) -> dict[str, dict[str, Any]]:
        """All errors as JSON."""
        if self._read_only:
            return self._status_file.read()
        with self._lock:
            return self._values()

    def _values(self) -> dict[str, dict[str, Any]]:
        return {i: p.to_json() for i, p in self._found.items()}


#: The maximum bytes of a secret's name as the name of a file.
_MAX_NAME: Final = 200

_ENDING: Final = ".json"


def create_secret(layout: Layout, name: str, value: str) -> bool:
    """Stores a secret, which only this process's user can read. False if the name exists. Raises INVALID_NAME."""
    path = _path(layout, name)
    try:
        storage.create_file(path, layout.seal(path, value), durable=layout.durable, private=True)
    except FileExistsError:
        return False
    if layout.durable:
        storage.sync_directory(layout.secrets)
    return True


def replace_secret(layout: Layout, name: str, value: str) -> None:
    """Stores another value of a secret."""
    path = _path(layout, name)
    storage.replace_file(path, layout.seal(path, value), durable=layout.durable, private=True)


def keep_secret(layout: Layout, value: str) -> str:
    """Stores a secret that no statement can name. Returns its name."""
    name = nameless()
    create_secret(layout, name, value)
    return name


def nameless_secrets(layout: Layout) -> list[str]:
    """The names of the secrets that no statement can name."""
    return [name for name in _names(layout) if is_nameless(name)]


def drop_unused(layout: Layout, names: Iterable[str], catalog: str) -> None:
    """Deletes secrets that no statement can name, except those in the text of the catalog.

    names: those that existed before this writer took over, because later ones may belong to its successor.
    """
    for name in names:
        if name[1:] not in catalog:
            drop_secret(layout, name)


def drop_secret(layout: Layout, name: str) -> None:
    """Deletes a secret."""
    storage.discard(_path(layout, name))
    if layout.durable:
        storage.sync_directory(layout.secrets)


def secret_names(layout: Layout) -> list[str]:
    """The names of all secrets that statements can name, sorted."""
    return [name for name in _names(layout) if not is_nameless(name)]


def _names(layout: Layout) -> list[str]:
    found = [n for n in storage.list_names(layout.secrets) if n.endswith(_ENDING) and not n.startswith(".")]
    return sorted(urllib.parse.unquote(n.removesuffix(_ENDING)) for n in found)


def _path(layout: Layout, name: str) -> AnyPath:
    path = layout.secret(name)
    if not name or len(path.name) > _MAX_NAME:
        raise error("INVALID_NAME", f"a secret can't be called {name[:40]!r}", hint="Choose a shorter name.")
    return path
