"""From the arguments of `join` to its shape, with every refusal that needs no Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from watersmeet.circuit.operators import AsofComparison, InputColumn
from watersmeet.errors import Error, error
from watersmeet.frames.arguments import (
    AsofMatch,
    LatestMatch,
    Options,
    check_buckets,
    check_options,
    column_of,
    linked,
    pair_of,
    pairs_of,
)
from watersmeet.frames.circuits import waiting
from watersmeet.frames.shapes import SIDES, Emit, JoinShape, Nearest, Newest, ResultColumn, Side, Tolerance, Within
from watersmeet.frames.tolerances import duration_us, has_distance, tolerance_of
from watersmeet.values.types import BIGINT, INTEGER, SMALLINT, Field, Schema

KINDS: Final = ("inner", "left", "right", "full", "semi", "anti")
#: Spark's other names, without underscores.
_ALIASES: Final = {
    "leftouter": "left",
    "rightouter": "right",
    "outer": "full",
    "fullouter": "full",
    "leftsemi": "semi",
    "leftanti": "anti",
}
#: Whole numbers, the narrowest first.
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
    """One side as given: its columns, whether it streams, its watermark (column, delay in microseconds) or None.

    signed: it has a diff (which is none of the columns). incomparable: of columns whose values a join can't compare as
    Spark does, by position, why.
    """

    columns: Schema
    streaming: bool
    watermark: tuple[str, int] | None
    signed: bool = False
    incomparable: Mapping[int, Error] = field(default_factory=dict)


def build(left: Given, right: Given, options: Options, buckets: int) -> JoinShape:
    """The shape of the join. Raises Error if the arguments make none, or one that does not exist."""
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
        """The pairs of positions that must be equal, each once. Whole numbers get the widest of their types."""
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
        """Raises Error unless values of two columns can be compared as Spark compares them."""
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
        """The positions of the event times: of `time`, of `as_of`, or of the watermarks."""
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
        """The columns of the result: left, right without what is merged, the window.

        A right column whose name the left side has gets the suffix. DUPLICATE_COLUMN if names still meet.
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
            starts = (InputColumn(0, len(left)), InputColumn(1, len(right)))  # behind the columns that are given
            either = self._how in ("right", "full")
            found.append(ResultColumn("window", starts if either else starts[:1], window=True))
        names = [o.name.lower() for o in found] + [self._options.diff.lower()]
        twice = next((n for i, n in enumerate(names) if n in names[:i]), None)
        if twice is not None:
            raise error("DUPLICATE_COLUMN", f'the result would have two columns "{twice}"', hint=self._hint_for(twice))
        return tuple(found)

    def _hint_for(self, twice: str) -> str:
        """What to do about two columns of a name: `diff` is most often that of a join before this one."""
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
    """Why rows of a side can't be taken back."""
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
    """Why one side can't be static."""
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
            detail="The static side never changes: what comes out is final at once.",
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
    """Why rows can't come out as asked for."""
    if shape.emit != "final" or all(w.decided for w in waiting(shape)):
        return None
    if isinstance(shape.match, Nearest):
        kind = shape.left.schema[shape.match.left].type
        if kind.name not in _TIMES:
            return error(
                "EMIT_NOT_POSSIBLE",
                f'emit="final" with asof(…) of columns of type {kind.sql}',
                detail="They have no watermark: a nearer right row may come at any time.",
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
            detail="A left row is final when no nearer right row can come.",
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
