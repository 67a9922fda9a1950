"""The contract of sources: polls, slices, rows of slices, and the protocol `Source`.

The driver cuts input into slices (`Source.poll`), and workers read these (`registry.read_slice`).

`LimitedSource` limits the rows per second of a source, which may be paused.

Readers fetch the content of external tables and dictionaries; queries push conditions down to them.
"""

from __future__ import annotations

import abc
import datetime as dt
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar, Final, Generic, Literal, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.catalog import External, MessageFormat, Relation
from watersmeet.connectors.base.options import RATE_LIMIT, OptionSet, refuse
from watersmeet.errors import Error, error
from watersmeet.system import files
from watersmeet.system.threads import OneCall, Worker
from watersmeet.values.serialization import kinds
from watersmeet.values.slices import SourceSlice
from watersmeet.values.times import SECOND_US
from watersmeet.values.types import Field, Schema


class _Specs(dict[str, type["SourceSpec"]]):
    """The classes by their kind. An unknown kind is that of a connector that this process has not used yet.

    find: the class of such a kind; set by the registry of connectors. Raises KeyError.
    """

    find: Callable[[str], type[SourceSpec]]

    def __missing__(self, kind: str) -> type[SourceSpec]:
        return self.find(kind)


#: The classes of `Source.spec()` by their kind.
SPECS: Final = _Specs()


@dataclass(frozen=True)
class SourceSpec:
    """The base class of descriptions of sources. A class with a `kind` registers itself."""

    kind: ClassVar[str]

    def __init_subclass__(cls) -> None:
        if "kind" in vars(cls):
            SPECS[cls.kind] = cls

    @property
    def stops_on_error(self) -> bool:
        """Whether a row or message that can't be read stops the source."""
        return False


kinds(SourceSpec, SPECS)


class Notification:
    """A flag that is set when a source has new input since the last poll. Thread-safe. woken: an event that is also
    set, for a waiting thread.
    """

    def __init__(self, woken: threading.Event) -> None:
        self._woken = woken
        self.is_set = False

    def notify(self) -> None:
        """Sets the flag: a source has new input."""
        self.is_set = True
        self._woken.set()

    def take(self) -> None:
        """Resets the flag. Call it before polling, so that later input sets it again."""
        self.is_set = False


Answer = TypeVar("Answer")

#: The maximum time for which a caller waits for a new answer.
_WAIT_S: Final = 10


class Inquiry(Generic[Answer]):
    """Sends requests to an external system in a background thread, one at a time. Only one thread may use it.

    name: the name of the thread. title: the system. took_us: the duration of the newest request.
    """

    def __init__(self, name: str, title: str) -> None:
        self._name, self._title = name, title
        self._thread: Worker | None = None
        self._answer: Answer | None = None
        self._notification: Notification | None = None
        self.took_us = 0

    def listen(self, notification: Notification) -> None:
        """Registers a notification that each answer sets."""
        self._notification = notification

    @property
    def is_idle(self) -> bool:
        """Whether neither a request nor an answer is pending."""
        return self._thread is None and self._answer is None

    @property
    def is_answered(self) -> bool:
        """Whether an answer is available."""
        return self._answer is not None

    def begin(self, ask: Callable[[], Answer]) -> None:
        """Sends a request unless one is pending. ask: must not raise."""
        if self._thread is None:
            self._answer = None
            self._thread = OneCall(self._name, self._title, lambda: self._run(ask))
            self._thread.start()

    def take(self) -> Answer | None:
        """Takes the answer, which is returned only once."""
        found, self._answer = self._answer, None
        return found

    def now(self, ask: Callable[[], Answer]) -> Answer | None:
        """The answer to a new request; None if it takes too long."""
        self._wait()  # an earlier request may have begun too early
        self._answer = None
        self.begin(ask)
        self._wait()
        return self.take()

    def _wait(self) -> None:
        thread = self._thread
        if thread is not None:
            thread.join(_WAIT_S)

    def _run(self, ask: Callable[[], Answer]) -> None:
        began = time.perf_counter_ns()
        self._answer = ask()
        self.took_us = (time.perf_counter_ns() - began) // 1000
        self._thread = None
        if self._notification is not None:
            self._notification.notify()


class Unavailable(OSError):  # noqa: N818 - a state that passes
    """An external system, such as brokers or a schema registry, is temporarily unavailable, or has rejected rows for a
    temporary reason. The epoch is planned again later, and the sink tries again.
    """


@dataclass(frozen=True, slots=True)
class Poll:
    """The available input of a source.

    slices: in order of arrival. position: the source's position once the slices are committed, as JSON.
    more: whether another poll right after these slices are accepted would return more (the budget was the limit).
    pending: the number of incomplete files or lines.
    next_us: the time at which pending input becomes readable by itself (None: only a notification announces it).
    finished: whether the source will never have input again.
    """

    slices: tuple[SourceSlice, ...]
    position: Any
    more: bool = False
    pending: int = 0
    next_us: int | None = None
    finished: bool = False

    @property
    def rows(self) -> int:
        """The estimated number of rows of all slices."""
        return sum(s.rows for s in self.slices)

    @property
    def size_bytes(self) -> int:
        """The estimated size of all slices."""
        return sum(s.size_bytes for s in self.slices)


@dataclass(frozen=True, slots=True)
class History:
    """A piece of the input of a source up to a position. cursor: the start of the next piece; None at the end. lost: a
    sentence about the input of all pieces that no longer exists; only in the first piece.
    """

    slices: tuple[SourceSlice, ...]
    cursor: Any
    lost: str = ""


class Source(Protocol):
    """The driver's side of a source connector. Not thread-safe.

    First `load` restores the saved state and `accept` adds the slices of later commits. Then `poll`, commit and
    `accept` repeat. `poll` has no lasting effect: if its slices are not accepted, the next poll finds the same input
    again.
    """

    relation_id: str

    def spec(self) -> SourceSpec:
        """The description of the source, which `read_slice` needs in addition to each slice."""

    def poll(self, position: Any, budget_rows: int, budget_bytes: int, now_us: int, *, fresh: bool = False) -> Poll:
        """The slices after `position` (None at first, else the position of the newest accepted poll).

        They never exceed the budget, but include at least one slice if there is input. fresh: whether to check the
        external system now, regardless of the interval (FLUSH). Raises DATABASE_DAMAGED if `position` is not the end of
        the accepted slices.
        """

    def listen(self, notification: Notification) -> None:
        """Registers the notification that new input sets, if the source detects it without polling."""

    def accept(self, slices: Iterable[SourceSlice]) -> None:
        """Records that `slices` are committed. Idempotent. Raises DATABASE_DAMAGED for a gap in the ordinals."""

    def withdraw(self, slices: Sequence[SourceSlice]) -> None:
        """Forgets the newest accepted slices, which are in order. Those that were not accepted have no effect.

        Raises FEATURE_NOT_SUPPORTED if the state before them is unknown.
        """

    def history(self, cursor: Any, budget_rows: int, budget_bytes: int) -> History:
        """All accepted input again, in pieces within the budget (backfill). cursor: None to begin at the start.

        Slices of a history have separate ordinals and must not be passed to `accept`.
        """

    def save(self, path: Path) -> None:
        """Writes the state of all accepted slices to the file `path`, atomically."""

    def load(self, path: Path) -> None:
        """The inverse of `save`. The caller then accepts later slices again."""

    def status(self) -> dict[str, Any]:
        """Counters and problems for SHOW, as JSON."""


def check_position(relation_id: str, position: int, accepted: int, unit: str = "slice") -> None:
    """Raises DATABASE_DAMAGED unless the position of a source is the end of its accepted slices."""
    if position != accepted:
        raise error(
            "DATABASE_DAMAGED",
            f"the position of source {relation_id} is {unit} {position}, its accepted slices end at {accepted}",
        )


def is_known_slice(relation_id: str, piece: SourceSlice, accepted: int, of: str) -> bool:
    """Whether a slice was accepted before. Raises DATABASE_DAMAGED for a new slice that is not the next one. of: its
    content.
    """
    if piece.ordinal > accepted:
        raise error(
            "DATABASE_DAMAGED",
            f"slices {accepted} to {piece.ordinal - 1} of source {relation_id} are missing",
            detail=f"{of} would be read twice or never.",
        )
    return piece.ordinal < accepted


def newest_first(slices: Sequence[SourceSlice], accepted: int) -> list[SourceSlice]:
    """The slices that `Source.withdraw` forgets, of those with ordinals below `accepted`."""
    return [p for p in reversed(slices) if p.ordinal < accepted]


def no_withdrawal(relation_id: str, reason: str) -> Error:
    """The error for slices that a source can't forget."""
    refused = error("FEATURE_NOT_SUPPORTED", "the input of a source at that commit is unknown", detail=reason)
    refused.source = relation_id
    return refused


def save_state(path: Path, state: Mapping[str, Any]) -> None:
    """Writes the state of a source atomically."""
    files.make_directory(path.parent)
    files.replace_file(path, json.dumps(state).encode(), durable=True)


@contextmanager
def saved_state(path: Path) -> Iterator[Any]:
    """The state that `save_state` wrote. Raises DATABASE_DAMAGED if it, or a part that the block reads, is missing."""
    try:
        yield json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise error(
            "DATABASE_DAMAGED", f"the state of a source, {path.name}, can't be read", detail=str(problem)
        ) from problem


@dataclass(frozen=True)
class SourceRows:
    """The rows of a slice.

    table: the requested columns by name, in the Arrow types of their SQL types. ordinals: the rows' offsets in the
    slice (int64, ascending; rejected rows leave gaps); len(ordinals) is the number of rows even if no column was
    requested. missing_columns: declared columns that the file lacks, which are NULL. diff: int64, 1 for an inserted
    row, -1 for a deleted row, of which only the primary key counts; None: all are 1. kept: for relations with partial
    changes (`Relation.has_partial_changes`), for each row NULL; or with diff 1 the names of the columns that keep the
    value of the existing row with the same key; or with diff -1 an empty list, which empties the table
    (`circuit.operators.Upsert`). None: all are NULL.
    """

    table: pa.Table
    ordinals: npt.NDArray[np.int64]
    missing_columns: tuple[str, ...] = field(default=())
    diff: npt.NDArray[np.int64] | None = None
    kept: pa.ListArray | None = None


class DeadLetterSink(Protocol):
    """The receiver of unreadable rows."""

    def add(self, file: str, line: int | None, reason: str, text: str = "", rows: int = 1) -> None:
        """Adds one record. line: the 1-based line (Parquet: row) in the file; None for a whole file or slice."""

    def add_rows(self, file: str, lines: Sequence[int], reasons: Sequence[str], texts: Sequence[str]) -> None:
        """Adds several rejected rows."""

    def add_messages(
        self,
        topic: str,
        partition: int,
        offsets: Sequence[int],
        reasons: Sequence[str],
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
    ) -> None:
        """Adds several rejected messages."""

    def add_lost(self, topic: str, partition: int, begin: int, end: int, reason: str) -> None:
        """Counts the messages [begin, end) of a partition that are not there any more."""


@dataclass(frozen=True)
class SourceConnector:
    """A system that sources read.

    open: returns the source of a relation. spec: the class of the source's `spec`, different for each connector.
    slices: the classes of its slices. read: returns the rows of a slice, like `registry.read_slice`. options: all
    options that statements may set. begun: returns the options that CREATE stores, for example the start offset; raises
    an error if the system is unavailable. columns: returns the system's columns, which statements needn't declare.
    expect: begins to fetch the slices (with their spec) that are read next. late_start: returns a sentence about input
    that the system no longer has, for the options that CREATE stores; empty if there is none.
    """

    open: Callable[[Relation], Source]
    spec: type[SourceSpec]
    slices: tuple[type[SourceSlice], ...]
    read: Callable[[Any, Any, Sequence[Field], DeadLetterSink], SourceRows]
    options: OptionSet
    begun: Callable[[Relation], Mapping[str, str]] = attrgetter("connector")
    columns: Callable[[Mapping[str, str]], Schema] | None = None
    expect: Callable[[Sequence[Any], Any], None] | None = None
    late_start: Callable[[Mapping[str, str]], str] | None = None


#: No limit, in statements.
DEFAULT: Final = "default"


def rate_limit(options: Mapping[str, str], name: str = RATE_LIMIT) -> int | None:
    """The rows per second that the option `name` allows; None for any number. Raises CONNECTOR_OPTION."""
    value = options.get(name, DEFAULT)
    if value.lower() in (DEFAULT, "-1"):
        return None
    if not value.isascii() or not value.isdecimal():
        refuse(
            f'option {name} can\'t be "{value}"',
            hint="It is a number of rows a second, 0 to pause, or DEFAULT for no limit.",
        )
    return int(value)


class Allowance:
    """The number of rows allowed by a limit of rows per second. A burst has at most one second's rows.

    Callers may take more rows than allowed: the excess is subtracted from later allowances.
    """

    def __init__(self, rows_per_second: int) -> None:
        """rows_per_second: above 0."""
        self._rate = rows_per_second
        self._allowed = float(rows_per_second)
        self._at_us: int | None = None

    def at(self, now_us: int) -> int:
        """The number of rows that are allowed at a time. If the time decreases, no time counts as passed."""
        since_us = 0 if self._at_us is None else max(0, now_us - self._at_us)
        self._at_us = now_us
        self._allowed = min(self._rate, self._allowed + self._rate * since_us / SECOND_US)
        return max(0, int(self._allowed))

    def take(self, rows: int) -> None:
        """Subtracts rows from the allowance."""
        self._allowed -= rows

    @property
    def wait_us(self) -> int:
        """The time from `at` until a row is allowed; 0 if one is allowed now."""
        return 0 if self._allowed >= 1 else int((1 - self._allowed) * SECOND_US / self._rate) + 1


class WrappedSource:
    """A source that does all but polling like another one."""

    def __init__(self, source: Source) -> None:
        self.relation_id = source.relation_id
        self._source = source

    def spec(self) -> SourceSpec:
        return self._source.spec()

    def listen(self, notification: Notification) -> None:
        self._source.listen(notification)

    def accept(self, slices: Iterable[SourceSlice]) -> None:
        self._source.accept(slices)

    def withdraw(self, slices: Sequence[SourceSlice]) -> None:
        self._source.withdraw(slices)

    def history(self, cursor: Any, budget_rows: int, budget_bytes: int) -> History:
        return self._source.history(cursor, budget_rows, budget_bytes)

    def save(self, path: Path) -> None:
        self._source.save(path)

    def load(self, path: Path) -> None:
        self._source.load(path)


class LimitedSource(WrappedSource):
    """A wrapper that slows down a source. `poll` counts the estimated rows of slices; reading history does not count.

    A slice with more rows than allowed is returned, and the next polls return nothing for correspondingly longer.
    """

    def __init__(self, source: Source, rows_per_second: int) -> None:
        super().__init__(source)
        self._rate = rows_per_second
        self._allowance = Allowance(rows_per_second)

    def poll(self, position: Any, budget_rows: int, budget_bytes: int, now_us: int, *, fresh: bool = False) -> Poll:
        if not self._rate:
            return Poll((), position)
        allowed = self._allowance.at(now_us)
        if not allowed:
            return Poll((), position, next_us=now_us + self._allowance.wait_us)
        found = self._source.poll(position, min(budget_rows, allowed), budget_bytes, now_us, fresh=fresh)
        self._allowance.take(found.rows)
        if not found.more or not self._allowance.wait_us:
            return found
        return Poll(
            found.slices,
            found.position,
            pending=found.pending,
            next_us=now_us + self._allowance.wait_us,
            finished=found.finished,
        )

    def status(self) -> dict[str, Any]:
        state = {} if self._rate else {"state": "paused"}
        return {**self._source.status(), **state, RATE_LIMIT: str(self._rate)}


class Feed:
    """The input of the sources of a fork: slices that its main database has read. Thread-safe.

    Poll returns the given slices of a source until its position is the one that follows them. epoch: the least number
    of the next epoch, because the numbers of records contain it.
    """

    def __init__(self) -> None:
        self._given: Mapping[str, tuple[tuple[SourceSlice, ...], Any]] = {}
        self.epoch = 0

    def give(self, slices: Mapping[str, tuple[tuple[SourceSlice, ...], Any]], epoch: int) -> None:
        """Sets the next input. slices: by source, the slices and the position that follows them."""
        self._given, self.epoch = slices, epoch

    def poll(self, relation_id: str, position: Any) -> Poll:
        """The given slices of a source at a position."""
        slices, after = self._given.get(relation_id, ((), position))
        return Poll((), position) if position == after else Poll(slices, after)


class FedSource(WrappedSource):
    """A source that reads new input from a feed, and history like the source that it wraps."""

    def __init__(self, source: Source, feed: Feed) -> None:
        super().__init__(source)
        self._feed = feed

    def poll(self, position: Any, budget_rows: int, budget_bytes: int, now_us: int, *, fresh: bool = False) -> Poll:
        del budget_rows, budget_bytes, now_us, fresh
        return self._feed.poll(self.relation_id, position)

    def listen(self, notification: Notification) -> None:
        pass

    def status(self) -> dict[str, Any]:
        return {**self._source.status(), "state": "fed by the main database"}


Operator = Literal["=", "<>", "<", "<=", ">", ">=", "IN", "IS NULL", "IS NOT NULL"]
Constant = int | Decimal | str | dt.date | dt.datetime


@dataclass(frozen=True)
class Condition:
    """A comparison of a column with `values`: one, any number for IN, none for IS [NOT] NULL.

    The values have the type of the column: whole or decimal numbers, texts, dates, or times without a zone.
    """

    column: Field
    operator: Operator
    values: tuple[Constant, ...] = ()


@dataclass(frozen=True)
class Pushdown:
    """The part of an external relation that a query needs. columns: the needed columns, at least one. Rows that do not
    satisfy all `conditions` have no effect on the query.
    """

    relation_id: str
    columns: Schema
    conditions: tuple[Condition, ...]


class Reader(abc.ABC):
    """The reader of an external table's content.

    takes_pushdown: whether reading fewer columns, or only rows that satisfy conditions, saves work.
    """

    takes_pushdown: ClassVar[bool] = False

    @abc.abstractmethod
    def columns(self) -> Schema | None:
        """The columns of the table; None if they must be declared."""

    @abc.abstractmethod
    def version(self) -> Any:
        """A value that is equal only if the content is certainly the same. It is cheap to compute."""

    @abc.abstractmethod
    def read(self, columns: Schema, conditions: Sequence[Condition] = ()) -> pa.Table:
        """All rows, with `columns` by name in their Arrow types. Rows that do not satisfy all conditions may be
        omitted.

        Raises an error for invalid content.
        """

    def statement(self, columns: Schema, conditions: Sequence[Condition]) -> str:
        """The statement that `read` sends to the system, for EXPLAIN, if `takes_pushdown` is set."""
        raise NotImplementedError

    def written(self) -> dict[str, str]:
        """The options of the sink connector that writes the table; empty if it can't be written."""
        return {}

    def written_format(self) -> MessageFormat | None:
        """The encoding of written rows; None if the columns determine it."""
        return None


class TableConnector(NamedTuple):
    """The connector that reads the content of external tables and dictionaries. options: the options that users write,
    if any.
    """

    open: Callable[[External], Reader]
    options: OptionSet | None = None
