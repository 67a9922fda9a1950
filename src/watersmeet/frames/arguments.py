"""The arguments of `join`: checked, and refused with what to write instead; what `match=` takes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any, Final, Literal, get_args

from pyspark.sql import DataFrame

from watersmeet.errors import Error, did_you_mean, error

Direction = Literal["backward", "forward", "nearest"]


@dataclass(frozen=True)
class AsofMatch:
    """See `asof`."""

    left: str
    right: str
    direction: Direction
    allow_exact_matches: bool
    tolerance: timedelta | str | float | Decimal | None


@dataclass(frozen=True)
class LatestMatch:
    """See `latest`."""

    order: str | None


def asof(
    left: str,
    right: str,
    *,
    direction: Direction = "backward",
    allow_exact_matches: bool = True,
    tolerance: timedelta | str | float | Decimal | None = None,
) -> AsofMatch:
    """Each left row with the one right row of its key whose value is nearest.

    left, right: columns of one type, mostly times. direction: `backward` looks for the greatest right value at or
    before the left one, `forward` for the least at or after it, `nearest` for the nearer one of these two; if they are
    equally near, the one before counts. allow_exact_matches: whether an equal value counts.
    tolerance: how far the right value may be away, the bound included: for times a timedelta or a text such as
    "10 minutes", for numbers a number. Of right rows with equal values the one that is first by its columns, in order,
    counts. NULL meets nothing. INVALID_PARAMETER for another direction.
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
    """Each left row with the right row of its key that is the newest when the left row comes; never revised.

    Within a micro-batch the right side comes first; of several new right rows of a key the one with the greatest
    column `order` counts (without: the one that is last by a hash of its content, so that a repetition gives the same).
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
    """The arguments of `join` beside the two sides."""

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
    """Raises Error unless a side is a DataFrame of a classic Spark session whose columns can be named."""
    kind = type(frame)
    origin = kind.__module__
    if origin.startswith("pyspark.sql.connect"):
        raise error(
            "FEATURE_NOT_SUPPORTED",
            f"the {side} side is a Spark Connect DataFrame",
            hint="Use a classic SparkSession: SparkSession.builder.master(…) without .remote(…).",
        )
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
    """INVALID_PARAMETER unless it is None or a pair of a column's name and a delay."""
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
    """INVALID_PARAMETER unless an argument is a text with at least one character."""
    if not isinstance(value, str) or not value:
        raise refused(argument, value, "It must be a text that is not empty.")


def check_buckets(buckets: Any) -> None:
    """INVALID_PARAMETER unless it is a number of buckets."""
    if not isinstance(buckets, int) or isinstance(buckets, bool) or not 1 <= buckets < 1 << 16:
        raise refused("buckets", buckets, "It must be a number from 1 to 65535.")


def check_options(options: Options) -> None:
    """INVALID_PARAMETER unless every argument has a type that it can have.

    A Column is a calculation, which has no name: columns are given by name.
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
    """The position of a column: of that name exactly, else whatever its case. where: the rows that have it.

    UNDEFINED_COLUMN if there is none, AMBIGUOUS_COLUMN if there are several.
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
    """The columns, as (side, position), in groups whose members must all be equal, directly or through others."""
    groups: list[dict[tuple[int, int], None]] = []
    for left, right in pairs:
        pair = {(0, left): None, (1, right): None}
        met = [g for g in groups if g.keys() & pair.keys()]
        groups = [g for g in groups if g not in met]
        groups.append({k: None for g in [*met, pair] for k in g})
    return [list(g) for g in groups]


def refused(argument: str, value: Any, hint: str) -> Error:
    """INVALID_PARAMETER for the value of an argument."""
    return error("INVALID_PARAMETER", f"{argument}={_shown(value)}", hint=hint)


def _is_pair_of_names(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and len(value) == 2 and all(isinstance(v, str) for v in value)


def _shown(value: Any) -> str:
    return f"a {type(value).__name__}" if type(value).__name__ == "Column" else repr(value)
