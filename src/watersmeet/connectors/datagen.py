"""Connectors without another system: `datagen` generates rows at a given rate, `blackhole` discards them.

Each value of a generated column depends only on the column's seed and the row's number.

So the rows of a range are always the same, regardless of slices and repetitions. All computations use NumPy.

`PacedSource` is the base class of sources that generate consecutive events at a given rate. `Blackhole` serves for
measurements (RisingWave, "Sink to blackhole").
"""

from __future__ import annotations

import datetime as dt
import itertools
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.catalog import Relation
from watersmeet.connectors.base.options import OptionSet, OptionSpec, refuse
from watersmeet.connectors.base.sources import (
    DeadLetterSink,
    History,
    Notification,
    Poll,
    SourceConnector,
    SourceRows,
    SourceSpec,
    check_position,
    is_known_slice,
    newest_first,
    save_state,
    saved_state,
)
from watersmeet.connectors.base.targets import Delivery, SinkBatch, SinkOffset, Target, connector_for
from watersmeet.values.slices import EventSlice, Segments, SourceSlice
from watersmeet.values.times import DAY_US, length_us
from watersmeet.values.types import Field, Schema, SqlType

LEAST_SPLIT_ROWS: Final = 10_000


class PacedSource:
    """A source of events that are generated from their numbers; `read_slice` generates the rows of a range of events.

    The first event occurs at the first poll, event n `n / per_second` seconds later (None: as fast as they are read).
    While the database is closed no events occur; the next start continues with the next event. The source ends after
    `limit` events. `status` and positions count events from 0.

    Subclasses define the number of rows of a range of events, and the number of events for a number of rows.
    """

    def __init__(
        self,
        relation_id: str,
        columns: Schema,
        *,
        per_second: Fraction | None,
        splits: int,
        limit: int | None,
        row_bytes: int,
    ) -> None:
        self.relation_id = relation_id
        self._columns = columns
        self._per_second, self._splits, self._limit, self._row_bytes = per_second, splits, limit, row_bytes
        self._rows = 0
        self._slices = 0
        self._started_us: int | None = None
        self._segments: Segments = ()
        self._anchor: tuple[int, int] | None = None
        """The segment of events that begins with the first poll of this process."""

    @property
    def ends(self) -> bool:
        """Whether it generates a limited number of rows."""
        return self._limit is not None

    def _rows_of(self, begin: int, end: int) -> int:
        """The number of rows that the events [begin, end) generate."""
        return end - begin

    def _events_of(self, rows: int) -> int:
        """The greatest number of consecutive events that always have at most `rows` rows."""
        return rows

    def poll(self, position: Any, budget_rows: int, budget_bytes: int, now_us: int, *, fresh: bool = False) -> Poll:  # noqa: ARG002 - nothing to look at
        expected = 0 if position is None else position["rows"]
        check_position(self.relation_id, expected, self._rows, "row")
        if self._anchor is None:
            self._anchor = (self._rows, now_us)
        segments = self._segments
        if not segments or segments[-1] != self._anchor:
            segments = (*(s for s in segments if s[0] < self._anchor[0]), self._anchor)
        started_us = now_us if self._started_us is None else self._started_us
        most = self._rows + self._budget(budget_rows, budget_bytes)
        ends = [end for end in (self._due(now_us), self._limit) if end is not None]
        until = min([most, *ends])
        pieces = self._pieces(self._rows, until, started_us, segments, self._slices)
        finished = self._limit is not None and until >= self._limit
        where = {"rows": pieces[-1].end if pieces else self._rows}
        more = until == most if not ends else until < min(ends)
        return Poll(
            tuple(pieces), where, more=more, finished=finished, next_us=None if finished else self._made_us(until)
        )

    def listen(self, notification: Notification) -> None:
        """Does nothing, because the passing of time sends no notification."""

    def accept(self, slices: Iterable[SourceSlice]) -> None:
        for piece in slices:
            assert isinstance(piece, EventSlice)
            if is_known_slice(self.relation_id, piece, self._slices, "Rows"):
                continue
            self._slices += 1
            self._rows = piece.end
            self._started_us = piece.started_us
            for segment in piece.segments:
                if segment not in self._segments:
                    self._segments = (*(s for s in self._segments if s[0] < segment[0]), segment)

    def withdraw(self, slices: Sequence[SourceSlice]) -> None:
        for piece in newest_first(slices, self._slices):
            assert isinstance(piece, EventSlice)
            self._slices -= 1
            self._rows = piece.begin

    def history(self, cursor: Any, budget_rows: int, budget_bytes: int) -> History:
        begin, ordinal = cursor or (0, 0)
        until = min(self._rows, begin + self._budget(budget_rows, budget_bytes))
        pieces = self._pieces(begin, until, self._started_us or 0, self._segments, ordinal)
        return History(tuple(pieces), [until, ordinal + len(pieces)] if until < self._rows else None)

    def save(self, path: Path) -> None:
        state = {"rows": self._rows, "slices": self._slices, "started_us": self._started_us, "segments": self._segments}
        save_state(path, state)

    def load(self, path: Path) -> None:
        with saved_state(path) as state:
            self._rows, self._slices = state["rows"], state["slices"]
            self._started_us = state["started_us"]
            self._segments = tuple((first, time_us) for first, time_us in state["segments"])

    def status(self) -> dict[str, Any]:
        """The status as JSON: the number of events so far, the limit (None: no end), and problem None."""
        return {"rows_planned": self._rows, "limit_rows": self._limit, "problem": None}

    def _budget(self, rows: int, size_bytes: int) -> int:
        return max(1, self._events_of(max(1, min(rows, size_bytes // self._row_bytes))))

    def _due(self, now_us: int) -> int | None:
        """The number of events that have occurred by now."""
        if self._per_second is None:
            return None
        assert self._anchor is not None
        passed_us = max(0, now_us - self._anchor[1])
        return self._anchor[0] + int(passed_us * self._per_second / 1_000_000) + 1

    def _made_us(self, event: int) -> int:
        """The time of an event."""
        assert self._anchor is not None
        if self._per_second is None:
            return self._anchor[1]
        return self._anchor[1] - int(-(event - self._anchor[0]) * 1_000_000 // self._per_second)

    def _pieces(self, begin: int, end: int, started_us: int, segments: Segments, ordinal: int) -> list[EventSlice]:
        """The slices of the events [begin, end), one for each split if there are enough events."""
        rows = self._rows_of(begin, end)
        count = min(self._splits, max(1, rows // LEAST_SPLIT_ROWS)) if end > begin else 0
        bounds = [begin + (end - begin) * i // count for i in range(count + 1)] if count else []
        pieces: list[EventSlice] = []
        for low, high in itertools.pairwise(bounds):
            earlier = [s for s in segments if s[0] <= low][-1:]
            within = [s for s in segments if low < s[0] < high]
            made = self._rows_of(low, high)
            pieces.append(
                EventSlice(
                    relation=self.relation_id,
                    rows=made,
                    size_bytes=made * self._row_bytes,
                    ordinal=ordinal + len(pieces),
                    begin=low,
                    end=high,
                    started_us=started_us,
                    segments=(*earlier, *within),
                )
            )
        return pieces


Rows = npt.NDArray[np.int64]
Bits = npt.NDArray[np.uint64]
DEFAULT_MAX: Final = 32767
DEFAULT_LENGTH: Final = 10
_ALPHABET: Final = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789", np.uint8)
_INT64: Final = 1 << 63


@dataclass(frozen=True)
class Moment:
    """The rows to generate. rows: their numbers. times_us: their times. started_us: the start time of the source."""

    rows: Rows
    times_us: Rows
    started_us: int


class Generator(Protocol):
    """Generates one column."""

    @property
    def limit(self) -> int | None:
        """The total number of rows; None if it is unlimited."""

    def make(self, moment: Moment) -> pa.Array:
        """The values of the rows."""


def mix(rows: Rows, seed: int) -> Bits:
    """64 pseudo-random bits for each number, by the finalizer of splitmix64."""
    step = np.uint64(0x9E3779B97F4A7C15)
    with np.errstate(over="ignore"):
        z = (rows.astype(np.uint64) + np.uint64(1)) * step + np.uint64(seed % (1 << 64)) * np.uint64(0xD1B54A32D192ED03)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def duration_us(text: str, option: str) -> int:
    """The microseconds of `1h 30m`, `2 days` and the like. Other texts are an error."""
    found = length_us(text)
    if found is None or set(text) & {"+", "-"}:
        refuse(f'option {option} can\'t be "{text}"', hint="It must be a duration such as 1h 30m, 2 days or 500ms.")
    return found


def generator(kind: SqlType, given: Mapping[str, str], path: str) -> Generator:
    """The generator of a column of type `kind`. given: its options (`fields.<path>.…`). Raises CONNECTOR_OPTION."""
    if kind.name == "struct":
        return _Struct(kind, given, path)
    if kind.name == "array":
        return _Array(kind, given, path)
    if kind.is_numeric:
        return _number(kind, _FieldOptions(given, path, "number"))
    if kind.name in ("timestamp", "timestamptz", "date"):
        return _Time(kind, _FieldOptions(given, path, "time"))
    if kind.name in ("varchar", "bytea"):
        options = _FieldOptions(given, path, "text")
        options.only_random()
        return _Text(kind, options)
    if kind.name in ("boolean", "time"):
        options = _FieldOptions(given, path, "plain")
        options.only_random()
        return _Simple(kind, options.seed())
    return refuse(f'connector datagen can\'t make column "{path}" of type {kind.sql}')


#: The options of a column. Their names begin with `fields.<column>.`.
FIELD_OPTIONS: Final = (
    OptionSpec("kind", "How values follow one another.", "choice", among=("random", "sequence"), default="random"),
    OptionSpec("seed", "Random values depend on it; otherwise on the column's name.", "integer"),
    OptionSpec("min", "The least random number.", default=0),
    OptionSpec("max", "The greatest random number.", default=DEFAULT_MAX),
    OptionSpec("start", "The first number or time of a sequence.", default=0),
    OptionSpec("end", "The last number or time of a sequence; then the source ends.", default=DEFAULT_MAX),
    OptionSpec("interval", "The distance of times in a sequence.", default="1s"),
    OptionSpec("max_past", "How long ago random times are at most.", default="1 day"),
    OptionSpec(
        "max_past_mode", "Since when: `absolute` (the source's start) or `relative` (the row).", default="absolute"
    ),
    OptionSpec("basetime", "The time before which random times are."),
    OptionSpec("length", "The length of texts and arrays.", "integer", default=DEFAULT_LENGTH, minimum=0),
)

_SEQUENCES: Final = {"number": ("kind", "seed", "start", "end"), "time": ("kind", "seed", "start", "end", "interval")}

_RANDOM: Final = {
    "number": ("kind", "seed", "min", "max"),
    "time": ("kind", "seed", "max_past", "max_past_mode", "basetime"),
    "text": ("kind", "seed", "length"),
    "plain": ("kind", "seed"),
    "array": ("length",),
}


class _FieldOptions:
    """The options of one column."""

    def __init__(self, given: Mapping[str, str], path: str, form: str) -> None:
        is_sequence = given.get("kind", "").lower() == "sequence"
        known = _SEQUENCES.get(form, _RANDOM[form]) if is_sequence else _RANDOM[form]
        begin = f"fields.{path}."
        specs = tuple(replace(s, name=begin + s.name) for s in FIELD_OPTIONS if s.name in known)
        self._options = OptionSet("datagen", specs).read({begin + n: v for n, v in given.items()})
        self._path = path

    def name(self, option: str) -> str:
        return f"fields.{self._path}.{option}"

    def text(self, option: str) -> str | None:
        return self._options.given(self.name(option))

    def is_sequence(self) -> bool:
        return self._options.choice(self.name("kind")) == "sequence"

    def only_random(self) -> None:
        if self.is_sequence():
            refuse(f'option {self.name("kind")} can\'t be "sequence"', hint="Only numbers and times have sequences.")

    def seed(self) -> int:
        seed = self._options.integer(self.name("seed"))
        return zlib.crc32(self._path.encode()) if seed is None else seed

    def length(self) -> int:
        return self._options.number(self.name("length"))

    def duration_us(self, option: str, default_us: int) -> int:
        text = self.text(option)
        return default_us if text is None else duration_us(text, self.name(option))

    def moment_us(self, option: str) -> int | None:
        text = self.text(option)
        if text is None:
            return None
        try:
            moment = dt.datetime.fromisoformat(text)
        except ValueError:
            return refuse(f'option {self.name(option)} can\'t be "{text}"', hint="It must be a time in ISO 8601.")
        moment = moment.replace(tzinfo=moment.tzinfo or dt.UTC)
        return (moment - dt.datetime.fromtimestamp(0, dt.UTC)) // dt.timedelta(microseconds=1)

    def number(self, option: str, default: int) -> Decimal:
        text = self.text(option)
        try:
            return Decimal(default if text is None else text.strip())
        except InvalidOperation:
            return refuse(f'option {self.name(option)} can\'t be "{text}"', hint="It must be a number.")


def _number(kind: SqlType, options: _FieldOptions) -> Generator:
    sequence = options.is_sequence()
    first, last = ("start", "end") if sequence else ("min", "max")
    most = DEFAULT_MAX
    if kind.name == "numeric":
        most = min(most, 10 ** (kind.arrow.precision - kind.arrow.scale) - 1)
    low, high = options.number(first, 0), options.number(last, most)
    seed = options.seed()
    if low > high:
        refuse(f"option {options.name(first)} is greater than {options.name(last)}")
    if kind.is_float:
        return _Float(kind, float(low), float(high), sequence, seed)
    # a numeric without precision has two decimals
    scale = 0 if kind.is_integer else min(kind.arrow.scale, 2) if kind.precision is None else kind.arrow.scale
    for option, value in ((first, low), (last, high)):
        scaled = value.scaleb(scale)
        limit = 1 << (kind.arrow.bit_width - 1) if kind.is_integer else min(_INT64, 10**kind.arrow.precision)
        if scaled != int(scaled) or not -limit <= scaled < limit:
            refuse(f"option {options.name(option)} can't be {value}", hint=f"It must be a value of type {kind.sql}.")
    return _Whole(kind, int(low.scaleb(scale)), int(high.scaleb(scale)), scale, sequence, seed)


@dataclass(frozen=True)
class _Whole:
    """Integers, and decimals as multiples of their last digit. Both ends of the range are included."""

    kind: SqlType
    low: int
    high: int
    scale: int
    sequence: bool
    seed: int

    @property
    def limit(self) -> int | None:
        return (self.high - self.low) // 10**self.scale + 1 if self.sequence else None

    def make(self, moment: Moment) -> pa.Array:
        if self.sequence:
            values = np.int64(self.low) + moment.rows * np.int64(10**self.scale)
        else:
            bits = mix(moment.rows, self.seed)
            span = self.high - self.low + 1
            offset = bits if span == 1 << 64 else bits % np.uint64(span)
            with np.errstate(over="ignore"):
                values = (offset + np.uint64(self.low % (1 << 64))).view(np.int64)
        if self.kind.is_integer:
            return pa.array(values).cast(self.kind.arrow)
        digits = pa.decimal128(19, 0)
        low_high = np.empty((len(values), 2), np.int64)
        low_high[:, 0], low_high[:, 1] = values, values >> 63
        whole = pa.Decimal128Array.from_buffers(
            pa.decimal128(38, self.scale) if self.scale else digits, len(values), [None, pa.py_buffer(low_high)]
        )
        return whole.cast(self.kind.arrow)


@dataclass(frozen=True)
class _Float:
    kind: SqlType
    low: float
    high: float
    sequence: bool
    seed: int

    @property
    def limit(self) -> int | None:
        return int(self.high - self.low) + 1 if self.sequence else None

    def make(self, moment: Moment) -> pa.Array:
        if self.sequence:
            values = self.low + moment.rows.astype(np.float64)
        else:
            fraction = (mix(moment.rows, self.seed) >> np.uint64(11)).astype(np.float64) * 2.0**-53
            values = self.low + fraction * (self.high - self.low)
        return pa.array(values).cast(self.kind.arrow, safe=False)


class _Time:
    """Random times in the past, to the millisecond, or a sequence of times at equal distances."""

    limit: int | None = None

    def __init__(self, kind: SqlType, options: _FieldOptions) -> None:
        self._kind = kind
        self._sequence = options.is_sequence()
        self._seed = options.seed()
        if self._sequence:
            self._start_us = options.moment_us("start")
            self._interval_us = options.duration_us("interval", 1_000_000)
            end_us = options.moment_us("end")
            if end_us is not None:
                if self._start_us is None or end_us < self._start_us or not self._interval_us:
                    refuse(f"option {options.name('end')} needs an earlier start and an interval")
                self.limit = (end_us - self._start_us) // self._interval_us + 1
            return
        self._max_past_us = options.duration_us("max_past", DAY_US)
        mode = options.text("max_past_mode") or "absolute"
        if mode not in ("absolute", "relative"):
            refuse(
                f'option {options.name("max_past_mode")} can\'t be "{mode}"', hint="It must be absolute or relative."
            )
        self._relative = mode == "relative"
        self._base_us = options.moment_us("basetime")

    def make(self, moment: Moment) -> pa.Array:
        if self._sequence:
            start_us = moment.started_us if self._start_us is None else self._start_us
            values = start_us + moment.rows * self._interval_us
        else:
            past = (mix(moment.rows, self._seed) % np.uint64(self._max_past_us // 1000 + 1)).astype(np.int64) * 1000
            if self._base_us is not None:
                values = self._base_us - past
            elif self._relative:
                values = moment.times_us - past
            else:
                values = moment.started_us - past
        if self._kind.name == "date":
            return pa.array((values // DAY_US).astype(np.int32)).cast(pa.date32())
        return pa.array(values).cast(self._kind.arrow)


class _Text:
    """Random letters and digits, or bytes."""

    limit: int | None = None

    def __init__(self, kind: SqlType, options: _FieldOptions) -> None:
        self._kind = kind
        self._length = options.length()
        self._seed = options.seed()

    def make(self, moment: Moment) -> pa.Array:
        count, length = len(moment.rows), self._length
        words = (length + 7) // 8
        numbers = (moment.rows[:, None] * np.int64(max(words, 1)) + np.arange(words)).ravel()
        data = mix(numbers, self._seed).astype("<u8").view(np.uint8).reshape(count, words * 8)[:, :length]
        if self._kind.name == "varchar":
            data = _ALPHABET[data % len(_ALPHABET)]
        offsets = pa.py_buffer(np.arange(count + 1, dtype=np.int32) * length)
        values = pa.py_buffer(np.ascontiguousarray(data))
        return pa.Array.from_buffers(self._kind.arrow, count, [None, offsets, values])


@dataclass(frozen=True)
class _Simple:
    """Random truth values and times of day."""

    kind: SqlType
    seed: int
    limit: int | None = None

    def make(self, moment: Moment) -> pa.Array:
        bits = mix(moment.rows, self.seed)
        if self.kind.name == "boolean":
            return pa.array((bits & np.uint64(1)).astype(np.bool_))
        return pa.array((bits % np.uint64(86_400_000)).astype(np.int64) * 1000).cast(self.kind.arrow)


class _Struct:
    """Structs, whose fields are generated like columns with the options `fields.<column>.<part>.…`."""

    def __init__(self, kind: SqlType, given: Mapping[str, str], path: str) -> None:
        names = [name for name, _ in kind.fields]
        parts = split_options(given, names, path)
        self._kind = kind
        self._parts = [generator(part, parts[name], f"{path}.{name}") for name, part in kind.fields]
        self.limit = least([part.limit for part in self._parts])

    def make(self, moment: Moment) -> pa.Array:
        return pa.StructArray.from_arrays([part.make(moment) for part in self._parts], fields=list(self._kind.arrow))


class _Array:
    """Arrays of a fixed length; element j of row i is row `i * length + j` of the generator `fields.<column>._.…`."""

    def __init__(self, kind: SqlType, given: Mapping[str, str], path: str) -> None:
        assert kind.element is not None
        self._kind = kind
        own = _FieldOptions({n: v for n, v in given.items() if not n.startswith("_.")}, path, "array")
        self._length = own.length()
        inner = {n[2:]: v for n, v in given.items() if n.startswith("_.")}
        self._element = generator(kind.element, inner, f"{path}._")
        element_limit = self._element.limit
        self.limit = None if element_limit is None or not self._length else element_limit // self._length

    def make(self, moment: Moment) -> pa.Array:
        length = self._length
        rows = (moment.rows[:, None] * np.int64(length) + np.arange(length)).ravel()
        inner = Moment(rows, np.repeat(moment.times_us, length), moment.started_us)
        offsets = pa.array(np.arange(len(moment.rows) + 1, dtype=np.int32) * length)
        return pa.ListArray.from_arrays(offsets, self._element.make(inner), type=self._kind.arrow)


def split_options(given: Mapping[str, str], names: list[str], path: str) -> dict[str, dict[str, str]]:
    """The options `<name>.<option>` of each of `names`. Options of other names are an error."""
    result: dict[str, dict[str, str]] = {name: {} for name in names}
    for option, value in given.items():
        owners = [name for name in names if option.lower().startswith(name.lower() + ".")]
        if not owners:
            where = f"fields.{path}.{option}" if path else f"fields.{option}"
            refuse(f'connector datagen has no option "{where}"', hint="The columns are " + ", ".join(names) + ".")
        owner = max(owners, key=len)
        result[owner][option[len(owner) + 1 :]] = value
    return result


def least(limits: list[int | None]) -> int | None:
    """The least of the limits; None if there are no limits."""
    return min((limit for limit in limits if limit is not None), default=None)


DEFAULT_RATE: Final = 10
ROW_BYTES: Final = 16

"""The estimated bytes of a value, for the byte budget."""


@dataclass(frozen=True)
class DatagenSpec(SourceSpec):
    """The description of generated rows. columns: all declared columns. options: the options of the columns without
    `fields.`. rate: rows per second.
    """

    kind: ClassVar[str] = "datagen"
    columns: Schema
    options: Mapping[str, str]
    rate: int


def generators_of(columns: Sequence[Field], given: Mapping[str, str]) -> dict[str, Generator]:
    """The generators of all columns. given: the options without `fields.`. Raises CONNECTOR_OPTION."""
    parts = split_options(given, [column.name for column in columns], "")
    return {column.name: generator(column.type, parts[column.name], column.name) for column in columns}


SOURCE_OPTIONS: Final = OptionSet(
    "datagen",
    (
        OptionSpec(
            "datagen.rows.per.second", "Rows per second.", "integer", default=DEFAULT_RATE, minimum=1, unit="rows/s"
        ),
        OptionSpec("datagen.split.num", "Number of splits that generate rows.", "integer", default=1, minimum=1),
        OptionSpec("datagen.max.rows", "The source ends after this many rows.", "integer", minimum=0, unit="rows"),
        OptionSpec("fields.", "How a column is generated, such as `fields.<column>.kind`.", "prefix"),
        OptionSpec(
            "format",
            "Accepted without effect.",
            "choice",
            among=("json", "native", "plain"),
            default="json",
            is_idle=True,
        ),
        OptionSpec(
            "encode", "Accepted without effect.", "choice", among=("json", "native"), default="json", is_idle=True
        ),
    ),
)


class DatagenSource(PacedSource):
    """Rows that are generated from their numbers at the rate `datagen.rows.per.second`. The options are RisingWave's.

    The source ends with its shortest sequence or after `datagen.max.rows` rows.
    """

    def __init__(self, relation: Relation) -> None:
        options = SOURCE_OPTIONS.read(relation.connector)
        options.check()
        self._fields = options.under("fields.")
        self._rate = options.number("datagen.rows.per.second")
        made = generators_of(relation.given, self._fields)
        super().__init__(
            relation.id,
            relation.given,
            per_second=Fraction(self._rate),
            splits=options.number("datagen.split.num"),
            limit=least([options.integer("datagen.max.rows"), *(column.limit for column in made.values())]),
            row_bytes=ROW_BYTES * max(1, len(relation.given)),
        )

    def spec(self) -> DatagenSpec:
        return DatagenSpec(self._columns, self._fields, self._rate)


def read_datagen_slice(piece: EventSlice, spec: DatagenSpec, columns: Sequence[Field], _: DeadLetterSink) -> SourceRows:
    """The rows of a slice of a datagen source."""
    made = generators_of(spec.columns, spec.options)
    rows = np.arange(piece.begin, piece.end, dtype=np.int64)
    starts = np.array([s[0] for s in piece.segments], np.int64)
    bases = np.array([s[1] for s in piece.segments], np.int64)
    segment = np.searchsorted(starts, rows, side="right") - 1
    since = rows - starts[segment]
    # computed in two parts, because a product in microseconds would overflow after some years at a high rate
    times_us = bases[segment] + since // spec.rate * 1_000_000 + since % spec.rate * 1_000_000 // spec.rate
    moment = Moment(rows, times_us, piece.started_us)
    arrays = [made[column.name].make(moment) for column in columns]
    schema = pa.schema([pa.field(c.name, c.type.arrow) for c in columns])
    return SourceRows(pa.Table.from_arrays(arrays, schema=schema), rows - piece.begin)


SOURCES: Final = {
    "datagen": SourceConnector(DatagenSource, DatagenSpec, (EventSlice,), read_datagen_slice, SOURCE_OPTIONS)
}

SINK_OPTIONS: Final = OptionSet("blackhole of sinks", ())


class Blackhole(Target):
    """A target that accepts all rows and stores none, nor an offset."""

    def __init__(self, delivery: Delivery, database_id: str) -> None:  # noqa: ARG002 - of the contract
        SINK_OPTIONS.read(delivery.connector)

    def open(self, generation: int) -> SinkOffset | None:  # noqa: ARG002 - of the contract
        return None

    def deliver(self, batches: Sequence[SinkBatch]) -> None:
        pass


SINKS: Final = {"blackhole": connector_for(Blackhole, SINK_OPTIONS, remembers=False)}
