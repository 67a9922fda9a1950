"""Checks the arguments of `join`, with errors that show the correct call, and builds the shape; the values of
`match=`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from decimal import Decimal
from typing import Any, Final, Literal, get_args

from pyspark.sql import DataFrame

from watersmeet.circuit.operators import AsofComparison, InputColumn
from watersmeet.errors import Error, did_you_mean, error
from watersmeet.frames.circuits import duration_us, has_distance, tolerance_of, waiting
from watersmeet.frames.shapes import SIDES, Emit, JoinShape, Nearest, Newest, ResultColumn, Side, Tolerance, Within
from watersmeet.values.types import BIGINT, INTEGER, SMALLINT, Field, Schema

Direction = Literal["backward", "forward", "nearest"]


@dataclass(frozen=True)
class AsofMatch:
    """The value of `asof`."""

    left: str
    right: str
    direction: Direction
    allow_exact_matches: bool
    tolerance: timedelta | str | float | Decimal | None


@dataclass(frozen=True)
class LatestMatch:
    """The value of `latest`."""

    order: str | None


def asof(
    left: str,
    right: str,
    *,
    direction: Direction = "backward",
    allow_exact_matches: bool = True,
    tolerance: timedelta | str | float | Decimal | None = None,
) -> AsofMatch:
    """Joins each left row with the right row of its key whose value is nearest.

    left, right: columns of one type, mostly times. direction: `backward` finds the greatest right value at or before
    the left one, `forward` the least at or after it, `nearest` the nearer of both, or the earlier if they are equally
    near. allow_exact_matches: whether an equal value counts. tolerance: the greatest distance, inclusive: for times a
    timedelta or a text such as "10 minutes", for numbers a number. If right rows have equal values, the first in the
    order of their columns counts. NULL matches nothing. Raises INVALID_PARAMETER for another direction.
    """
    _check_name(left)
    _check_name(right)
    if not isinstance(allow_exact_matches, bool):
        raise error(
            "INVALID_PARAMETER", f"allow_exact_matches={allow_exact_matches!r} of asof", hint="Use True or False."
        )
    if direction not in get_args(Direction):
        raise error(
            "INVALID_PARAMETER",
            f'direction "{direction}" of asof',
            hint='Use "backward", "forward" or "nearest".',
        )
    return AsofMatch(left, right, direction, allow_exact_matches, tolerance)


def _check_name(name: Any) -> None:
    if not isinstance(name, str):
        raise error(
            "INVALID_PARAMETER",
            f"asof has a {type(name).__name__} instead of a column name",
            hint='Name the columns: asof("left_ts", "right_ts").',
        )


def latest(order: str | None = None) -> LatestMatch:
    """Joins each left row on arrival with the newest right row of its key. The result is never revised.

    In a micro-batch, right rows precede left rows. Of several new right rows of a key, the one with the greatest column
    `order` counts (by default the last one by a hash of the content, so that a repetition has the same result).
    """
    if order is not None and not isinstance(order, str):
        raise error(
            "INVALID_PARAMETER",
            f"latest has a {type(order).__name__} instead of a column name",
            hint='Name a column of the right side: latest("seq").',
        )
    return LatestMatch(order)


Duration = timedelta | str
Bounds = Duration | tuple[Duration | None, Duration | None]
_EMITS: Final = ("changes", "final", "arrival")


@dataclass(frozen=True)
class Options:
    """The arguments of `join` other than the two sides."""

    on: str | Sequence[str | tuple[str, str]]
    how: str = "inner"
    match: AsofMatch | LatestMatch | None = None
    within: Bounds | None = None
    window: Duration | None = None
    time: str | tuple[str, str] | None = None
    as_of: str | tuple[str, str] | None = None
    emit: str | None = None
    suffix: str = "_right"
    diff: str = "diff"


def check_side(frame: Any, side: str) -> None:
    """Raises Error unless a side is a DataFrame of Spark, classic or Connect, whose columns can be named."""
    kind = type(frame)
    origin = kind.__module__
    if not isinstance(frame, DataFrame):
        given = f"{origin.partition('.')[0]}.{kind.__name__}" if origin != "builtins" else kind.__name__
        raise error(
            "INVALID_PARAMETER",
            f"the {side} side is a {given}, not a Spark DataFrame",
            hint=f"{side} = spark.createDataFrame({side}), or spark.readStream for a stream.",
        )
    dotted = next((name for name in frame.columns if "." in name or "`" in name), None)
    if dotted is not None:
        plain = dotted.replace(".", "_").replace("`", "_")
        raise error(
            "INVALID_NAME",
            f'the {side} side has a column "{dotted}": Spark takes the dot for a field of a struct',
            hint=f'{side}.withColumnRenamed("{dotted}", "{plain}")',
        )


def check_watermark(watermark: Any, side: str) -> None:
    """Raises INVALID_PARAMETER unless it is None or a pair of a column's name and a delay."""
    if watermark is None or (
        isinstance(watermark, (tuple, list)) and len(watermark) == 2 and isinstance(watermark[0], str)
    ):
        return
    column = watermark if isinstance(watermark, str) else "ts"
    raise error(
        "INVALID_PARAMETER",
        f"{side}_watermark is {_shown(watermark)}",
        hint=f'It must be a pair of a column and a delay: {side}_watermark=("{column}", "10 seconds").',
    )


def check_text(value: Any, argument: str) -> None:
    """Raises INVALID_PARAMETER unless an argument is a non-empty text."""
    if not isinstance(value, str) or not value:
        raise refused(argument, value, "It must be a text that is not empty.")


def check_buckets(buckets: Any) -> None:
    """Raises INVALID_PARAMETER unless it is a valid number of buckets."""
    if not isinstance(buckets, int) or isinstance(buckets, bool) or not 1 <= buckets < 1 << 16:
        raise refused("buckets", buckets, "It must be a number from 1 to 65535.")


def check_options(options: Options) -> None:
    """Raises INVALID_PARAMETER unless every argument has a valid type. Columns must be names, because a Column may be
    an expression without a name.
    """
    for item in options.on if isinstance(options.on, (list, tuple)) else [options.on]:
        if isinstance(item, str) or _is_pair_of_names(item):
            continue
        wrong = [n for n in item if not isinstance(n, str)] if isinstance(item, (list, tuple)) else [item]
        raise error(
            "INVALID_PARAMETER",
            f"on has {_shown(wrong[0] if wrong else item)}",
            hint='Name the columns: on=["id"], or pairs: on=[("left_id", "right_id")].',
        )
    check_text(options.how, "how")
    for argument in ("time", "as_of"):
        value = getattr(options, argument)
        if value is not None and not isinstance(value, str) and not _is_pair_of_names(value):
            raise refused(argument, value, f'Name the columns: {argument}="ts", or {argument}=("left_ts", "right_ts").')
    if isinstance(options.within, (tuple, list)) and len(options.within) != 2:
        raise refused("within", options.within, "within=(lower, upper), or one length for both directions.")
    if options.match is not None and not isinstance(options.match, (AsofMatch, LatestMatch)):
        raise refused("match", options.match, "Use watersmeet.asof(…) or watersmeet.latest().")
    if options.emit is not None and not (isinstance(options.emit, str) and options.emit in _EMITS):
        raise refused("emit", options.emit, 'It must be "changes", "final" or "arrival".')
    if not isinstance(options.suffix, str):
        raise refused("suffix", options.suffix, 'It must be a text, such as "_right".')
    check_text(options.diff, "diff")


def pairs_of(on: str | Sequence[str | tuple[str, str]]) -> list[tuple[str, str]]:
    """The pairs of names (left, right) of a checked argument `on`."""
    return [pair_of(item) for item in ([on] if isinstance(on, str) else on)]


def pair_of(names: str | Sequence[str]) -> tuple[str, str]:
    """A pair of names; one name stands for both sides."""
    return (names, names) if isinstance(names, str) else (names[0], names[1])


def column_of(names: Sequence[str], name: str, where: str) -> int:
    """The position of the column with exactly this name, else regardless of case. where: the rows, for messages.

    Raises UNDEFINED_COLUMN if there is none, AMBIGUOUS_COLUMN if there are several.
    """
    found = [i for i, n in enumerate(names) if n == name] or [
        i for i, n in enumerate(names) if n.lower() == name.lower()
    ]
    if not found:
        raise error(
            "UNDEFINED_COLUMN",
            f'{where} has no column "{name}"',
            detail=f"It has: {', '.join(names)}.",
            hint=did_you_mean(name, names),
        )
    if len(found) > 1:
        raise error("AMBIGUOUS_COLUMN", f'{where} has more than one column "{name}"', hint="Rename one.")
    return found[0]


def linked(pairs: Iterable[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """The columns as (side, position) in groups whose members must all be equal, directly or through others."""
    groups: list[dict[tuple[int, int], None]] = []
    for left, right in pairs:
        pair = {(0, left): None, (1, right): None}
        met = [g for g in groups if g.keys() & pair.keys()]
        groups = [g for g in groups if g not in met]
        groups.append({k: None for g in [*met, pair] for k in g})
    return [list(g) for g in groups]


def refused(argument: str, value: Any, hint: str) -> Error:
    """The error INVALID_PARAMETER for the value of an argument."""
    return error("INVALID_PARAMETER", f"{argument}={_shown(value)}", hint=hint)


def _is_pair_of_names(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and len(value) == 2 and all(isinstance(v, str) for v in value)


def _shown(value: Any) -> str:
    return f"a {type(value).__name__}" if type(value).__name__ == "Column" else repr(value)


KINDS: Final = ("inner", "left", "right", "full", "semi", "anti")

#: Spark's alternative names of joins, without underscores.
_ALIASES: Final = {
    "leftouter": "left",
    "rightouter": "right",
    "outer": "full",
    "fullouter": "full",
    "leftsemi": "semi",
    "leftanti": "anti",
}

#: The types of whole numbers, narrowest first.
_WHOLE: Final = (SMALLINT, INTEGER, BIGINT)

_COMPARISONS: Final[dict[tuple[str, bool], AsofComparison]] = {
    ("backward", True): ">=",
    ("backward", False): ">",
    ("forward", True): "<=",
    ("forward", False): "<",
    ("nearest", True): "<=>",
    ("nearest", False): "<>",
}

_TIMES: Final = ("timestamp", "timestamptz")


@dataclass(frozen=True)
class Given:
    """One side: its columns, whether it is streaming, and its watermark (column, delay in microseconds) or None.

    signed: whether it has a diff, which is not among the columns. incomparable: the errors by position of columns whose
    values a join can't compare like Spark.
    """

    columns: Schema
    streaming: bool
    watermark: tuple[str, int] | None
    signed: bool = False
    incomparable: Mapping[int, Error] = field(default_factory=dict)


def build(left: Given, right: Given, options: Options, buckets: int) -> JoinShape:
    """The shape of the join. Raises Error for impossible arguments."""
    return _Builder((left, right), options).build(buckets)


class _Builder:
    def __init__(self, given: tuple[Given, Given], options: Options) -> None:
        check_options(options)
        self._given = given
        self._options = options
        how = options.how.lower().replace("_", "")
        self._how: Any = _ALIASES.get(how, how)
        if self._how not in KINDS:
            raise error("INVALID_PARAMETER", f"how={options.how!r}", hint=f"It must be one of: {', '.join(KINDS)}.")

    def build(self, buckets: int) -> JoinShape:
        """The shape."""
        check_buckets(buckets)
        static = self._static()
        keys = self._keys()
        match = self._match()
        times = self._times()
        window_us = self._window(times)
        sides = []
        for index, given in enumerate(self._given):
            schema, positions = given.columns, tuple(k[index] for k in keys)
            if window_us is not None:
                schema = (*schema, Field("window", schema[_known(times[index])].type))
                positions = (*positions, len(schema) - 1)
            delay_us = given.watermark[1] if given.watermark is not None and given.streaming else None
            if delay_us is not None and delay_us < 0:
                raise error(
                    "INVALID_PARAMETER",
                    "the delay of a watermark can't be negative",
                    detail="Otherwise every row would be late as soon as it arrives.",
                    hint=f'{SIDES[index]}_watermark=("ts", "10 seconds")',
                )
            sides.append(Side(schema, positions, times[index], delay_us, given.signed))
        shape = JoinShape(
            sides[0],
            sides[1],
            self._how,
            self._emit(match),
            buckets,
            self._outputs(keys, window_us),
            match,
            self._within(times),
            window_us,
            static,
        )
        self._check(shape)
        return shape

    def _static(self) -> Any:
        streaming = [g.streaming for g in self._given]
        if not any(streaming):
            raise error(
                "STREAM_MISSING",
                "neither side of the join is a stream",
                hint="Read one with spark.readStream, or use DataFrame.join.",
            )
        return None if all(streaming) else SIDES[streaming.index(False)]

    def _column(self, index: int, name: str) -> int:
        return column_of([f.name for f in self._given[index].columns], name, f"the {SIDES[index]} side")

    def _keys(self) -> list[tuple[int, int]]:
        """The pairs of positions that must be equal, without duplicates. Whole numbers are converted to their widest
        type.
        """
        on = pairs_of(self._options.on)
        if not on:
            raise error(
                "JOIN_WITHOUT_EQUALITY", "the join has no columns that must be equal", hint='Name them: on=["id"].'
            )
        pairs = list(dict.fromkeys((self._column(0, left), self._column(1, right)) for left, right in on))
        self._widen(pairs)
        for pair in pairs:
            self._comparable(pair, "are compared")
        return pairs

    def _widen(self, pairs: Sequence[tuple[int, int]]) -> None:
        schemas = [list(g.columns) for g in self._given]
        for group in linked(pairs):
            kinds = [schemas[side][position].type for side, position in group]
            if all(kind in _WHOLE for kind in kinds):
                widest = max(kinds, key=_WHOLE.index)
                for side, position in group:
                    schemas[side][position] = Field(schemas[side][position].name, widest)
        left, right = (replace(g, columns=tuple(s)) for g, s in zip(self._given, schemas, strict=True))
        self._given = left, right

    def _comparable(self, pair: tuple[int, int], why: str) -> None:
        """Raises Error unless values of two columns can be compared as in Spark."""
        for given, position in zip(self._given, pair, strict=True):
            if position in given.incomparable:
                raise given.incomparable[position]
        self._one_type(pair, why)

    def _one_type(self, pair: tuple[int, int], why: str) -> None:
        fields = [g.columns[i] for g, i in zip(self._given, pair, strict=True)]
        if fields[0].type != fields[1].type:
            detail = " and ".join(f'"{f.name}" is {f.type.sql}' for f in fields)
            raise error(
                "DATATYPE_MISMATCH", f"columns of different types {why}", detail=f"{detail}.", hint="Cast one of them."
            )

    def _times(self) -> tuple[int | None, int | None]:
        """The positions of the event times, from `time`, `as_of`, or the watermarks."""
        asked = self._options.time if self._options.time is not None else self._options.as_of
        names = None if asked is None else pair_of(asked)
        found: list[int | None] = []
        for index, given in enumerate(self._given):
            name = names[index] if names is not None else given.watermark[0] if given.watermark is not None else None
            position = None if name is None else self._column(index, name)
            if position is not None:
                kind = given.columns[position].type
                if kind.name not in _TIMES:
                    raise error(
                        "DATATYPE_MISMATCH",
                        f'the time "{name}" of the {SIDES[index]} side is {kind.sql}',
                        hint="It must be a timestamp.",
                    )
                if given.watermark is not None and self._column(index, given.watermark[0]) != position:
                    raise error(
                        "INVALID_PARAMETER",
                        f'the {SIDES[index]} side has its watermark on "{given.watermark[0]}" and its time is "{name}"',
                        hint="They must be one column.",
                    )
            found.append(position)
        return found[0], found[1]

    def _needs_times(self, times: tuple[int | None, int | None], what: str) -> tuple[int, int]:
        for index, position in enumerate(times):
            if position is None:
                raise error(
                    "INVALID_PARAMETER",
                    f"{what} needs the time of the {SIDES[index]} side",
                    hint='Name the columns: time=("left_ts", "right_ts").',
                )
        pair = (_known(times[0]), _known(times[1]))
        self._one_type(pair, "are the times")
        return pair

    def _window(self, times: tuple[int | None, int | None]) -> int | None:
        if self._options.window is None:
            return None
        size = duration_us(self._options.window, "window")
        if size <= 0:
            raise error("INVALID_PARAMETER", f"window={self._options.window!r}", hint="It must be longer than 0.")
        self._needs_times(times, "window")
        return size

    def _within(self, times: tuple[int | None, int | None]) -> Within | None:
        given = self._options.within
        if given is None:
            return None
        self._needs_times(times, "within")
        if isinstance(given, (tuple, list)):
            low, high = (None if b is None else duration_us(b, "within") for b in given)
        else:
            high = duration_us(given, "within")
            low = -high
        if low is not None and high is not None and low > high:
            raise error(
                "INVALID_PARAMETER",
                "within has a lower bound above its upper bound, so no pair can match",
                hint="within=(lower, upper): lower <= right time - left time <= upper.",
            )
        return Within(low, high)

    def _match(self) -> Nearest | Newest | None:
        match, as_of = self._options.match, self._options.as_of
        if as_of is not None:
            if match is not None:
                raise error("INVALID_PARAMETER", "as_of and match exclude each other")
            match = AsofMatch(*pair_of(as_of), "backward", allow_exact_matches=True, tolerance=None)
        if match is not None and (self._options.within is not None or self._options.window is not None):
            raise error(
                "FEATURE_NOT_SUPPORTED",
                "within or window together with match",
                hint="asof(…, tolerance=…) bounds how far the nearest row may be away.",
            )
        if isinstance(match, AsofMatch):
            return self._nearest(match)
        if isinstance(match, LatestMatch):
            if self._how not in ("inner", "left"):
                raise error("TEMPORAL_KIND", f'how="{self._how}" with latest()', hint='Use "inner" or "left".')
            order = None if match.order is None else self._column(1, match.order)
            if order is not None and order in self._given[1].incomparable:
                raise self._given[1].incomparable[order]
            return Newest(order)
        return None

    def _nearest(self, match: AsofMatch) -> Nearest:
        if self._how not in ("inner", "left"):
            raise error("ASOF_KIND", f'how="{self._how}" with asof(…)', hint='Use "inner" or "left".')
        pair = (self._column(0, match.left), self._column(1, match.right))
        self._comparable(pair, "are matched by asof")
        kind = self._given[0].columns[pair[0]].type
        if match.direction == "nearest" and not has_distance(kind):
            raise error(
                "INVALID_PARAMETER",
                f'direction "nearest" of asof between values of type {kind.sql}',
                detail="They have an order, but no distance.",
                hint='Use "backward" or "forward".',
            )
        tolerance = Tolerance() if match.tolerance is None else tolerance_of(match.tolerance, kind)
        return Nearest(_COMPARISONS[match.direction, match.allow_exact_matches], pair[0], pair[1], tolerance)

    def _emit(self, match: Nearest | Newest | None) -> Emit:
        emit: Any = self._options.emit or ("arrival" if isinstance(match, Newest) else "changes")
        if isinstance(match, Newest) and emit != "arrival":
            raise error(
                "FEATURE_NOT_SUPPORTED",
                f'emit="{emit}" with latest()',
                detail="The newest row is chosen when the left row arrives.",
                hint='Leave it at "arrival".',
            )
        result: Emit = emit
        return result

    def _outputs(self, keys: list[tuple[int, int]], window_us: int | None) -> tuple[ResultColumn, ...]:
        """The columns of the result: left, right without merged keys, the window.

        The suffix is appended to a right column with the name of a left one. Raises DUPLICATE_COLUMN if names are still
        equal.
        """
        left, right = (g.columns for g in self._given)
        merged = {theirs: mine for mine, theirs in keys if left[mine].name.lower() == right[theirs].name.lower()}
        both = self._how not in ("semi", "anti")
        partner = {mine: theirs for theirs, mine in merged.items()} if both and self._how in ("right", "full") else {}
        found = [
            ResultColumn(f.name, (InputColumn(0, i), *([InputColumn(1, partner[i])] if i in partner else [])))
            for i, f in enumerate(left)
        ]
        if both:
            taken = {f.name.lower() for f in left}
            found += [
                ResultColumn(f.name + (self._options.suffix if f.name.lower() in taken else ""), (InputColumn(1, i),))
                for i, f in enumerate(right)
                if i not in merged
            ]
        if window_us is not None:
            starts = (InputColumn(0, len(left)), InputColumn(1, len(right)))  # after the given columns
            either = self._how in ("right", "full")
            found.append(ResultColumn("window", starts if either else starts[:1], window=True))
        names = [o.name.lower() for o in found] + [self._options.diff.lower()]
        twice = next((n for i, n in enumerate(names) if n in names[:i]), None)
        if twice is not None:
            raise error("DUPLICATE_COLUMN", f'the result would have two columns "{twice}"', hint=self._hint_for(twice))
        return tuple(found)

    def _hint_for(self, twice: str) -> str:
        """The hint for two columns with the same name; `diff` usually belongs to an earlier join."""
        if twice == self._options.diff.lower():
            for side, given in zip(SIDES, self._given, strict=True):
                if any(f.name.lower() == twice and f.type.is_integer for f in given.columns):
                    return (
                        f'If the {side} side is the result of a join, its "{twice}" says which rows are taken back: '
                        f'{side}_diff="{twice}". Otherwise rename the column, or choose another diff=.'
                    )
        return "Rename a column, or choose another suffix= or diff=."

    def _check(self, shape: JoinShape) -> None:
        for problem in (_signed_problem(shape), _static_problem(shape), _emit_problem(shape)):
            if problem is not None:
                raise problem


def _signed_problem(shape: JoinShape) -> Error | None:
    """The reason why rows of a side can't be retracted."""
    index = next((i for i, s in enumerate(shape.sides) if s.signed), None)
    if index is None:
        return None
    what = f"a {SIDES[index]} side whose rows are taken back ({SIDES[index]}_diff=…)"
    if shape.static is not None:
        return error("FEATURE_NOT_SUPPORTED", f"{what} together with a static side", hint="Use two streams.")
    if shape.emit != "changes":
        return error("EMIT_NOT_POSSIBLE", f'emit="{shape.emit}" and {what}', hint='Use emit="changes".')
    if shape.sides[index].delay_us is not None:
        return error(
            "FEATURE_NOT_SUPPORTED",
            f"a watermark on {what}",
            detail="A row may be taken back at any time, however old it is.",
            hint="Leave the watermark out.",
        )
    return None


def _static_problem(shape: JoinShape) -> Error | None:
    """The reason why one side can't be static."""
    if shape.static is None:
        return None
    if isinstance(shape.match, Newest):
        return error(
            "FEATURE_NOT_SUPPORTED",
            "latest() with a static side",
            detail="A static side has no newest row.",
            hint="Use asof(…), or a regular join.",
        )
    if shape.emit == "final":
        return error(
            "FEATURE_NOT_SUPPORTED",
            'emit="final" with a static side',
            detail="The static side never changes: output is final at once.",
            hint="Leave emit out.",
        )
    allowed = ("inner", "left", "semi", "anti") if shape.static == "right" else ("inner", "right")
    if shape.how not in allowed or (shape.match is not None and shape.static == "left"):
        kind = f'how="{shape.how}"' + (" with asof(…)" if shape.match is not None else "")
        return error(
            "FEATURE_NOT_SUPPORTED",
            f"{kind} with a static {shape.static} side",
            detail="Rows of the static side would have to wait for everything that the stream may still bring.",
            hint=f"With a static {shape.static} side how is one of: {', '.join(allowed)}.",
        )
    return None


def _emit_problem(shape: JoinShape) -> Error | None:
    """The reason why the result can't be emitted as requested."""
    if shape.emit != "final" or all(w.decided for w in waiting(shape)):
        return None
    if isinstance(shape.match, Nearest):
        kind = shape.left.schema[shape.match.left].type
        if kind.name not in _TIMES:
            return error(
                "EMIT_NOT_POSSIBLE",
                f'emit="final" with asof(…) of columns of type {kind.sql}',
                detail="They have no watermark: a nearer right row may arrive at any time.",
                hint='Use "changes" or "arrival".',
            )
        if shape.match.looks_ahead and shape.match.tolerance.us is None:
            direction = "nearest" if shape.match.looks_back else "forward"
            return error(
                "EMIT_NOT_POSSIBLE",
                f'emit="final" with asof(…, direction="{direction}") and without a tolerance',
                detail="A left row without a partner could still get one, however much later.",
                hint="Give a tolerance.",
            )
        return error(
            "EMIT_NOT_POSSIBLE",
            'emit="final" needs a watermark on the right column of asof(…)',
            detail="A left row is final when no nearer right row can arrive.",
            hint='right_watermark=("ts", "10 seconds"), or withWatermark on that column.',
        )
    if shape.within is None and shape.window_us is None:
        return error(
            "EMIT_NOT_POSSIBLE",
            f'emit="final" with how="{shape.how}" needs a bound between the times of both sides',
            detail="Without one, a row without a partner may get one at any time.",
            hint="Give within=… or window=….",
        )
    return error(
        "EMIT_NOT_POSSIBLE",
        f'emit="final" with how="{shape.how}": some rows never become final',
        detail=(
            "A row without a partner is final when the other side's watermark has passed all times that could match it."
        ),
        hint="Give both sides a watermark, and within=… a bound on that side.",
    )


def _known(position: int | None) -> int:
    assert position is not None
    return position
