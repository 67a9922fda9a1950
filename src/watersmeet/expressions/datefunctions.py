"""Binds functions of dates, times and intervals, with their fields (PostgreSQL 17, 9.9.1) and formats (table 9.26)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sqlglot import exp

from watersmeet.errors import did_you_mean
from watersmeet.expressions.calls import Builder, FunctionCall, builders, counted, refuse_volatile, signature
from watersmeet.expressions.casts import cast
from watersmeet.expressions.clock import at_time_zone, offset_seconds
from watersmeet.expressions.context import (
    Context,
    Value,
    call,
    duckdb_cast,
    fill,
    in_session_zone,
    is_utc,
    local_time,
    moment_of,
    number,
    session_zone,
    string,
)
from watersmeet.values.times import DAY_US, UTC
from watersmeet.values.types import BIGINT, DATE, DOUBLE, INTERVAL, NUMERIC, TIMESTAMP, TIMESTAMPTZ, VARCHAR, SqlType

_DATES: Final = ("timestamp", "timestamptz", "date")


def extracted(part: str, value: Value, ctx: Context, node: exp.Expression) -> Value:
    """`extract(part FROM value)` as a numeric. Raises INVALID_VALUE for a field that the type lacks."""
    if value.unknown or value.type.name not in ("date", "time", "timestamp", "timestamptz", "interval"):
        raise ctx.error("DATATYPE_MISMATCH", f"function extract({part} from {value.type.sql}) does not exist", node)
    if value.type == TIMESTAMPTZ and part != "epoch" and part not in _OF_OFFSET and not is_utc():
        value = Value(local_time(value.expression), TIMESTAMP)
    if part in _OF_MICROSECONDS:
        micros = exp.Extract(this=exp.var("microseconds"), expression=value.expression)
        return _scaled(micros, _OF_MICROSECONDS[part])
    if part == "epoch" and value.type.name in _DATES:
        moment = duckdb_cast(value.expression, TIMESTAMP) if value.type == DATE else value.expression
        return _scaled(call("epoch_us", moment), "0.000001")
    if part == "epoch":
        return Value(duckdb_cast(call("epoch", value.expression), NUMERIC), NUMERIC)
    if part in _OF_OFFSET and value.type == TIMESTAMPTZ:
        seconds = fill(_OF_OFFSET[part], offset_seconds(value.expression))
        return Value(duckdb_cast(seconds, NUMERIC), NUMERIC)
    if part not in _EXTRACTED and not (part == "julian" and value.type.name in _DATES):
        raise ctx.error("INVALID_VALUE", f'unit "{part}" not recognized for type {value.type.sql}', node)
    return Value(duckdb_cast(exp.Extract(this=exp.var(part), expression=value.expression), NUMERIC), NUMERIC)


#: The fields of an offset in seconds.
_OF_OFFSET: Final = {"timezone": "a0", "timezone_hour": "trunc(a0 / 3600)", "timezone_minute": "(a0 // 60) % 60"}

#: The fields computed from microseconds, and their factors.
_OF_MICROSECONDS: Final = {
    "second": "0.000001", "seconds": "0.000001", "millisecond": "0.001", "milliseconds": "0.001",
}  # fmt: skip

_EXTRACTED: Final = frozenset({
    "century", "day", "decade", "dow", "doy", "hour", "isodow", "isoyear", "microsecond", "microseconds", "millennium",
    "minute", "month", "quarter", "week", "year",
})  # fmt: skip


def _scaled(count: exp.Expression, factor: str) -> Value:
    whole = duckdb_cast(count, BIGINT)
    return Value(duckdb_cast(exp.Mul(this=whole, expression=number(factor)), NUMERIC), NUMERIC)


#: Case-insensitive patterns -> strftime's sign (after a `|` the unpadded form).
_SIGNS: Final[dict[str, str]] = {
    "HH24": "%H|%-H", "HH12": "%I|%-I", "HH": "%I|%-I", "MI": "%M|%-M", "SS": "%S|%-S", "MS": "%g", "US": "%f",
    "YYYY": "%Y", "YY": "%y|%-y", "IYYY": "%G", "MM": "%m|%-m", "DDD": "%j|%-j", "DD": "%d|%-d", "IW": "%V",
    "TZHTZM": "%z", "TZH:TZM": "%z", "TZ": "%Z", "TZH": "%z", "TZM": "", "OF": "%z",
}  # fmt: skip

#: Names, whose pattern determines the case of the result.
_NAMES: Final[dict[str, str]] = {"MONTH": "%B", "MON": "%b", "DAY": "%A", "DY": "%a", "AM": "%p", "PM": "%p"}

#: The patterns that strftime lacks.
_COMPUTED: Final[dict[str, str]] = {
    "CC": "lpad(CAST(extract('century' FROM a0) AS VARCHAR), 2, '0')",
    "Y,YYY": "printf('%d,%03d', extract('year' FROM a0) // 1000, extract('year' FROM a0) % 1000)",
    "YYY": "printf('%03d', extract('year' FROM a0) % 1000)", "Y": "right(CAST(extract('year' FROM a0) AS VARCHAR), 1)",
    "IYY": "right(strftime(a0, '%G'), 3)", "I": "right(strftime(a0, '%G'), 1)",
    **{f"FF{n}": f"left(strftime(a0, '%f'), {n})" for n in range(1, 7)},
    "RM": "rpad(['I', 'II', 'III', 'IV', 'V', 'VI', 'VII', 'VIII', 'IX', 'X', 'XI', 'XII'][extract('month' FROM a0)], "
    "4, ' ')",
    **dict.fromkeys(("AD", "BC"), "CASE WHEN extract('year' FROM a0) > 0 THEN 'AD' ELSE 'BC' END"),
    **dict.fromkeys(("A.D.", "B.C."), "CASE WHEN extract('year' FROM a0) > 0 THEN 'A.D.' ELSE 'B.C.' END"),
    **dict.fromkeys(("A.M.", "P.M."), "CASE WHEN extract('hour' FROM a0) < 12 THEN 'A.M.' ELSE 'P.M.' END"),
    "IY": "right(strftime(a0, '%G'), 2)", "Q": "CAST(extract('quarter' FROM a0) AS VARCHAR)",
    "WW": "lpad(CAST((extract('doy' FROM a0) + 6) // 7 AS VARCHAR), 2, '0')",
    "W": "CAST((extract('day' FROM a0) + 6) // 7 AS VARCHAR)", "D": "CAST(extract('dow' FROM a0) + 1 AS VARCHAR)",
    "ID": "CAST(extract('isodow' FROM a0) AS VARCHAR)",
    "J": "CAST(CAST(floor(extract('julian' FROM a0)) AS BIGINT) AS VARCHAR)",
    **dict.fromkeys(("SSSS", "SSSSS"), "CAST(extract('hour' FROM a0) * 3600 + extract('minute' FROM a0) * 60 + "
    "extract('second' FROM a0) AS VARCHAR)"),
}  # fmt: skip

#: Of these the pattern determines the case, and FM removes blanks, not zeros.
_WORDY: Final = ("RM", "AD", "BC", "A.D.", "B.C.", "A.M.", "P.M.")

#: The fields that may be written without leading zeros.
_PADDED: Final = ("CC", "IY", "IYY", "YYY", "WW")

#: The offsets of a timestamptz, by its seconds east of UTC.
_OF_SECONDS: Final[dict[str, str]] = {
    "TZH": "printf('%s%02d', CASE WHEN a0 < 0 THEN '-' ELSE '+' END, abs(a0) // 3600)",
    "TZM": "printf('%02d', abs(a0) // 60 % 60)",
    "OF": "printf('%s%02d', CASE WHEN a0 < 0 THEN '-' ELSE '+' END, abs(a0) // 3600) || "
    "CASE WHEN a0 % 3600 <> 0 THEN printf(':%02d', abs(a0) // 60 % 60) ELSE '' END",
}  # fmt: skip

_WORDS: Final = tuple(sorted({*_SIGNS, *_NAMES, *_COMPUTED}, key=len, reverse=True))

_ORDINAL: Final = (
    "a0 || CASE WHEN CAST(a0 AS BIGINT) % 100 BETWEEN 11 AND 13 THEN 'th' WHEN CAST(a0 AS BIGINT) % 10 = 1 THEN 'st' "
    "WHEN CAST(a0 AS BIGINT) % 10 = 2 THEN 'nd' WHEN CAST(a0 AS BIGINT) % 10 = 3 THEN 'rd' ELSE 'th' END"
)


@dataclass(frozen=True)
class _Piece:
    """A pattern (`word`, as written), or plain text (with an empty `word`)."""

    word: str
    text: str
    unpadded: bool = False
    ordinal: str = ""


def _pieces(pattern: str) -> list[_Piece]:
    found: list[_Piece] = []
    index = 0
    while index < len(pattern):
        if pattern[index] == '"':
            end = pattern.find('"', index + 1)
            end = len(pattern) if end < 0 else end
            found.append(_Piece("", pattern[index + 1 : end]))
            index = end + 1
            continue
        unpadded = pattern[index : index + 2].upper() == "FM"
        at = index + 2 * unpadded
        word = next((w for w in _WORDS if pattern[at : at + len(w)].upper() == w), None)
        if word is None:
            found.append(_Piece("", pattern[index]))
            index += 1
            continue
        index = at + len(word)
        ordinal = pattern[index : index + 2] if pattern[index : index + 2] in ("th", "TH") else ""
        found.append(_Piece(pattern[at:index], "", unpadded, ordinal))
        index += len(ordinal)
    return found


def strptime_format(pattern: str, node: exp.Expression, ctx: Context) -> str:
    """The strptime format of a to_date pattern. Raises FEATURE_NOT_SUPPORTED for patterns that DuckDB can't read."""
    made = ""
    for piece in _pieces(pattern):
        word = piece.word.upper()
        if piece.ordinal or word in _COMPUTED or word == "TZM":
            raise ctx.not_supported(f"the date pattern {piece.word}{piece.ordinal} here", node)
        sign = piece.text.replace("%", "%%") if not word else {**_SIGNS, **_NAMES}[word].split("|", maxsplit=1)[0]
        made += sign
    return made


def formatted(value: exp.Expression, pattern: str, seconds: exp.Expression | None = None) -> exp.Expression:
    """The text of a date or timestamp by a to_char pattern. seconds: those east of UTC, for a timestamptz."""
    parts: list[exp.Expression] = []
    signs = ""
    for piece in _pieces(pattern):
        word = piece.word.upper()
        if not word:
            signs += piece.text.replace("%", "%%")
            continue
        special = _special(value, piece) if word not in _OF_ZONE else _of_zone(piece, seconds)
        if special is None:
            signs += _sign(piece)
            continue
        parts += [call("strftime", value, string(signs)), special] if signs else [special]
        signs = ""
    if signs or not parts:
        parts.append(call("strftime", value, string(signs)))
    return parts[0] if len(parts) == 1 else fill(" || ".join(f"a{i}" for i in range(len(parts))), *parts)


_OF_ZONE: Final = ("TZHTZM", "TZH:TZM", "TZ", "TZH", "TZM", "OF")


def _of_zone(piece: _Piece, seconds: exp.Expression | None) -> exp.Expression:
    """The text for the pattern of a zone; a time without one has none."""
    word = piece.word.upper()
    if word == "TZ":
        found = string("" if seconds is None else UTC)
        return call("lower", found) if piece.word.islower() else found
    if seconds is None:
        return string({"TZH": "+00", "TZM": "00", "OF": "+00", "TZHTZM": "+0000"}.get(word, "+00:00"))
    if word in _OF_SECONDS:
        return fill(_OF_SECONDS[word], seconds)
    parts = [fill(_OF_SECONDS[part], seconds) for part in ("TZH", "TZM")]
    return fill("a0 || ':' || a1" if ":" in word else "a0 || a1", *parts)


def _sign(piece: _Piece) -> str:
    signs = {**_SIGNS, **_NAMES}[piece.word.upper()].split("|")
    return signs[-1] if piece.unpadded else signs[0]


def _special(value: exp.Expression, piece: _Piece) -> exp.Expression | None:
    """The text for a pattern that needs more than a sign of strftime, or None."""
    word = piece.word.upper()
    if word in _WORDY:
        made = fill(_COMPUTED[word], value)
        made = call("rtrim", made) if piece.unpadded else made
        return call("lower", made) if piece.word.islower() else made
    if word in _COMPUTED:
        made = fill(_COMPUTED[word], value)
        if piece.unpadded and word in _PADDED:
            made = call("ltrim", made, string("0"))
    elif word in _NAMES:
        made = call("strftime", value, string(_NAMES[word]))
        if word in ("MONTH", "DAY") and not piece.unpadded:
            made = call("rpad", made, number(9), string(" "))
        if piece.word.islower():
            return call("lower", made)
        return call("upper", made) if piece.word.isupper() and word not in ("AM", "PM") else made
    elif piece.ordinal:
        made = call("strftime", value, string(_sign(piece)))
    else:
        return None
    if not piece.ordinal:
        return made
    text = fill(_ORDINAL, made)
    return call("upper", text) if piece.ordinal == "TH" else text


#: The fields of an interval a0 by the pattern. Hours may exceed 24 only in HH24.
_OF_INTERVAL: Final[dict[str, str]] = {
    "HH24": "printf('%02d', extract('hour' FROM a0))",
    "HH12": "printf('%02d', (extract('hour' FROM a0) + 11) % 12 + 1)",
    "MI": "printf('%02d', extract('minute' FROM a0))",
    "SS": "printf('%02d', CAST(floor(extract('second' FROM a0)) AS BIGINT))",
    "MS": "printf('%03d', extract('milliseconds' FROM a0) % 1000)",
    "US": "printf('%06d', extract('microseconds' FROM a0) % 1000000)",
    "YYYY": "printf('%04d', extract('year' FROM a0))",
    "YY": "printf('%02d', extract('year' FROM a0) % 100)", "MM": "printf('%02d', extract('month' FROM a0))",
    "DD": "printf('%02d', extract('day' FROM a0))",
    "AM": "CASE WHEN extract('hour' FROM a0) % 24 < 12 THEN 'AM' ELSE 'PM' END",
}  # fmt: skip


def _interval_formatted(c: FunctionCall) -> Value:
    """The text of an interval by a to_char pattern."""
    parts: list[exp.Expression] = [string("")]
    for piece in _pieces(c.text(1, example="YYYY")):
        word = {"HH": "HH12", "PM": "AM"}.get(piece.word.upper(), piece.word.upper())
        if word and (word not in _OF_INTERVAL or piece.unpadded or piece.ordinal):
            raise c.not_supported(f"the pattern {piece.word} in to_char of an interval", hint="Use extract and lpad.")
        made = fill(_OF_INTERVAL[word], c.arguments[0].expression) if word else string(piece.text)
        parts.append(call("lower", made) if word == "AM" and piece.word.islower() else made)
    return Value(fill(" || ".join(f"a{i}" for i in range(len(parts))), *parts), VARCHAR)


def _to_char(c: FunctionCall) -> Value:
    if c.arguments[0].type == INTERVAL and not c.arguments[0].unknown:
        return _interval_formatted(c)
    if c.arguments[0].type.name not in ("timestamp", "timestamptz", "date") or c.arguments[0].unknown:
        raise c.not_supported(
            f"to_char of {c.arguments[0].type.sql}", hint="Cast it to varchar, or use lpad and round."
        )
    value, pattern = c.arguments[0], c.text(1, example="YYYY")
    if value.type != TIMESTAMPTZ:
        return Value(formatted(value.expression, pattern), VARCHAR)
    if not is_utc() and any(piece.word.upper() == "TZ" for piece in _pieces(pattern)):
        hint = "OF, TZH and TZM are its offset."
        raise c.not_supported(f"the abbreviation of the zone {session_zone()} in to_char", hint=hint)
    time = value.expression if is_utc() else local_time(value.expression)
    text = formatted(time, pattern, offset_seconds(value.expression))
    return Value(text, VARCHAR)


def _read(c: FunctionCall, kind: SqlType) -> Value:
    pattern = strptime_format(c.text(1, example="YYYY"), c.node, c.ctx)
    return Value(duckdb_cast(call("strptime", c.cast(0, VARCHAR).expression, string(pattern)), kind), kind)


def _to_date(c: FunctionCall) -> Value:
    return _read(c, DATE)


def _to_timestamp(c: FunctionCall) -> Value:
    if len(c.arguments) == 1:
        return Value(call("to_timestamp", c.cast(0, DOUBLE).expression), TIMESTAMPTZ)
    if is_utc() or any(piece.word.upper() in _OF_ZONE for piece in _pieces(c.text(1, example="YYYY"))):
        return _read(c, TIMESTAMPTZ)
    return _in_session(_read(c, TIMESTAMP))


def _date_part(c: FunctionCall) -> Value:
    field = c.text(0, example="year").lower()
    value = c.arguments[1]
    if len(c.arguments) == 3:
        if value.type != TIMESTAMPTZ:
            raise c.mismatch("It takes a field, a timestamptz and a time zone.")
        value = at_time_zone(c.cast(2, VARCHAR), value, c.ctx, c.nodes[2])
    return Value(duckdb_cast(extracted(field, value, c.ctx, c.node).expression, DOUBLE), DOUBLE)


def _date_trunc(c: FunctionCall) -> Value:
    written = c.text(0, example="year")
    field = written.lower()
    if field not in _TRUNCATED:
        raise c.error("INVALID_VALUE", f'unit "{written}" not recognized', hint=did_you_mean(field, _TRUNCATED))
    value = c.cast(1, TIMESTAMP) if c.arguments[1].unknown else c.arguments[1]
    kind = TIMESTAMP if value.type == DATE else value.type
    if kind not in (TIMESTAMP, TIMESTAMPTZ, INTERVAL) or (len(c.arguments) == 3 and kind != TIMESTAMPTZ):
        raise c.mismatch("It takes a field, a timestamp or interval, and for timestamptz a zone.")
    if len(c.arguments) == 3 or (kind == TIMESTAMPTZ and not is_utc()):
        zone = c.cast(2, VARCHAR) if len(c.arguments) == 3 else Value(string(session_zone()), VARCHAR)
        local = at_time_zone(zone, value, c.ctx, c.nodes[-1])
        truncated = Value(_truncated(field, local, TIMESTAMP), TIMESTAMP)
        if field in _WITHIN_DAY:  # an hour repeated by daylight saving keeps its offset
            return Value(fill("a0 - (a1 - a2)", value.expression, local.expression, truncated.expression), kind)
        return at_time_zone(zone, truncated, c.ctx, c.nodes[-1])
    return Value(duckdb_cast(_truncated(field, value, kind), kind), kind)


def _truncated(field: str, value: Value, kind: SqlType) -> exp.Expression:
    years = {"century": 100, "millennium": 1000}.get(field)
    if years is None or kind == INTERVAL:
        return call("date_trunc", string(field), value.expression)
    # centuries begin with year 1
    return fill(f"date_trunc('year', a0) - to_years(CAST((year(a0) - 1) % {years} AS INTEGER))", value.expression)


_WITHIN_DAY: Final = ("microseconds", "milliseconds", "second", "minute", "hour")

_TRUNCATED: Final = (*_WITHIN_DAY, "day", "week", "month", "quarter", "year", "decade", "century", "millennium")


def _now(kind: SqlType) -> Builder:
    def build(c: FunctionCall) -> Value:
        if c.ctx.clock is not None and not c.ctx.volatile_allowed:
            return cast(c.ctx.clock(), kind, c.ctx, c.node)
        refuse_volatile(c)
        shifted = in_session_zone(call("now"), TIMESTAMPTZ, kind)
        return Value(duckdb_cast(call("now"), kind) if shifted is None else shifted, kind, nullable=False)

    return build


_MONTHS: Final = "(extract('year' FROM a0) * 12 + extract('month' FROM a0))"
_DAYS: Final = "extract('day' FROM a0)"

_MICROS: Final = (
    "(extract('hour' FROM a0) * 3600000000 + extract('minute' FROM a0) * 60000000 + extract('microseconds' FROM a0))"
)


def _interval(months: str, days: str, micros: str) -> str:
    return (
        f"to_months(CAST({months} AS INTEGER)) + to_days(CAST({days} AS INTEGER)) + "
        f"to_microseconds(CAST({micros} AS BIGINT))"
    )


_JUSTIFIED_DAYS: Final = _interval(f"{_MONTHS} + trunc({_DAYS} / 30)", f"{_DAYS} % 30", _MICROS)
_JUSTIFIED_HOURS: Final = _interval(_MONTHS, f"{_DAYS} + trunc({_MICROS} / {DAY_US})", f"{_MICROS} % {DAY_US}")

#: The interval in microseconds with 30 days a month, so that all parts have one sign.
_ALL: Final = f"(({_MONTHS} * 30 + {_DAYS}) * {DAY_US} + {_MICROS})"

_JUSTIFIED: Final = _interval(
    f"trunc({_ALL} / {30 * DAY_US})", f"trunc({_ALL} % {30 * DAY_US} / {DAY_US})", f"{_ALL} % {DAY_US}"
)

#: The start of the bin: the time minus the remainder of its distance from the origin.
_BEYOND: Final = "(epoch_us(a1) - epoch_us(a2))"

_WIDTH: Final = (
    "(CASE WHEN extract('month' FROM a0) = 0 AND extract('year' FROM a0) = 0 AND epoch_us(a0) > 0 THEN "
    "epoch_us(a0) END)"
)

_BIN: Final = f"a2 + to_microseconds({_BEYOND} - (({_BEYOND} % {_WIDTH}) + {_WIDTH}) % {_WIDTH})"

_MADE_INTERVAL: Final = [
    "to_years(a0)",
    "to_months(a1)",
    "to_days(a2 * 7)",
    "to_days(a3)",
    "to_hours(a4)",
    "to_minutes(a5)",
    "to_microseconds(CAST(round(a6 * 1000000) AS BIGINT))",
]

_BY_SIGNATURE: Final[dict[str, Builder]] = builders({
    "age": [signature("timestamp timestamp", "interval", "age(a0, a1)"),
            signature("timestamptz timestamptz", "interval", "age(a0, a1)")],
    "date_bin": [signature("interval timestamp timestamp", "timestamp", _BIN),
                 signature("interval timestamptz timestamptz", "timestamptz", _BIN)],
    "isfinite": [signature("date", "bool", "isfinite(a0)"), signature("timestamp", "bool", "isfinite(a0)"),
                 signature("timestamptz", "bool", "isfinite(a0)"), signature("interval", "bool", "a0 IS NOT NULL")],
    "justify_days": [signature("interval", "interval", _JUSTIFIED_DAYS)],
    "justify_hours": [signature("interval", "interval", _JUSTIFIED_HOURS)],
    "justify_interval": [signature("interval", "interval", _JUSTIFIED)],
    "make_date": [signature("int int int", "date", "make_date(a0, a1, a2)")],
    "make_interval": [signature(" ".join(["int"] * n) if n < 7 else "int int int int int int double", "interval",
                                " + ".join(_MADE_INTERVAL[:n])) for n in range(1, 8)],
    "make_time": [signature("int int double", "time", "make_time(a0, a1, a2)")],
    "make_timestamp": [signature("int int int int int double", "timestamp", "make_timestamp(a0, a1, a2, a3, a4, a5)")],
    "make_timestamptz": [signature("int int int int int double", "timestamptz",
    "make_timestamptz(a0, a1, a2, a3, a4, a5)")],
})  # fmt: skip


def _age(c: FunctionCall) -> Value:
    if len(c.arguments) == 1:
        refuse_volatile(c)  # the result depends on the current day
        midnight = Value(duckdb_cast(duckdb_cast(local_time(call("now")), DATE), TIMESTAMP), TIMESTAMP)
        if c.arguments[0].type == TIMESTAMPTZ:
            midnight = cast(midnight, TIMESTAMPTZ, c.ctx, c.nodes[0])
        c = c.over([midnight, c.arguments[0]], [c.nodes[0], c.nodes[0]])
    if any(a.type == TIMESTAMPTZ and not a.unknown for a in c.arguments):
        c = c.over([cast(c.cast(i, TIMESTAMPTZ), TIMESTAMP, c.ctx, c.node) for i in range(2)], c.nodes)
    return _BY_SIGNATURE["age"](c)


def _make_timestamptz(c: FunctionCall) -> Value:
    if len(c.arguments) != 7:
        found = _BY_SIGNATURE["make_timestamptz"](c)
        return found if is_utc() else _in_session(_BY_SIGNATURE["make_timestamp"](c))
    local = _BY_SIGNATURE["make_timestamp"](c.over(c.arguments[:6], c.nodes[:6]))
    return at_time_zone(cast(c.arguments[6], VARCHAR, c.ctx, c.nodes[6]), local, c.ctx, c.nodes[6])


def _in_session(value: Value) -> Value:
    """The timestamptz of a local time."""
    return Value(moment_of(value.expression), TIMESTAMPTZ, value.nullable)


def _timezone(c: FunctionCall) -> Value:
    zone, value = c.arguments
    if value.unknown or value.type == DATE:
        value = cast(value, TIMESTAMPTZ, c.ctx, c.nodes[1])
    if zone.type != VARCHAR or value.type not in (TIMESTAMP, TIMESTAMPTZ):
        raise c.mismatch("It takes the name of a zone and a timestamp.")
    return at_time_zone(zone, value, c.ctx, c.nodes[0])


DATE_FUNCTIONS: Final[dict[str, Builder]] = {
    **_BY_SIGNATURE, "age": _age, "make_timestamptz": _make_timestamptz,
    "current_date": _now(DATE), "localtimestamp": _now(TIMESTAMP), "clock_timestamp": _now(TIMESTAMPTZ),
    "current_timestamp": _now(TIMESTAMPTZ), "now": _now(TIMESTAMPTZ), "proctime": _now(TIMESTAMPTZ),
    "statement_timestamp": _now(TIMESTAMPTZ),
    "date_part": counted(_date_part, 2, 3), "date_trunc": counted(_date_trunc, 2, 3), "timezone": counted(_timezone, 2),
    "to_char": counted(_to_char, 2), "to_date": counted(_to_date, 2), "to_timestamp": counted(_to_timestamp, 1, 2),
}  # fmt: skip
