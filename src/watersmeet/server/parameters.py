"""Values of parameters, as clients send them: text or binary, to literals of a statement's tree."""

from __future__ import annotations

import datetime as dt
import math
import struct
from collections.abc import Sequence
from decimal import Decimal
from typing import Final, Literal

from sqlglot import exp

from watersmeet.database.sessions.result import Interval
from watersmeet.dialects.statements.preparing import Parameter
from watersmeet.dialects.tree.queries import literal_of
from watersmeet.errors import Error, error
from watersmeet.server.messages import Body, decoded
from watersmeet.server.oids import TEXT, UUID, UUIDS, oid_of, sql_type
from watersmeet.server.valuebytes import EPOCH_US
from watersmeet.session.statements.preparing import literal, uuid_text
from watersmeet.values.types import BIGINT, TIMESTAMP, VARCHAR, SqlType

_NUMBERS: Final = {"smallint": ">h", "integer": ">i", "bigint": ">q", "real": ">f", "double precision": ">d"}
_OID_BYTES: Final = 4
_GROUP_DIGITS: Final = 4
_NEGATIVE: Final = 0x4000
_SPECIAL: Final = {0xC000: "NaN", 0xD000: "Infinity", 0xF000: "-Infinity"}
_EPOCH_DATE: Final = dt.date(2000, 1, 1)


_UUID_KINDS: Final[dict[int, Literal["one", "many"]]] = {UUID: "one", UUIDS: "many"}


def number_of(parameter: Parameter) -> int:
    """PostgreSQL's number of the type of a parameter."""
    if parameter.oid:
        return parameter.oid
    if parameter.uuid:
        return UUID if parameter.uuid == "one" else UUIDS
    return TEXT if parameter.kind is None else oid_of(parameter.kind)


def parameter_of(oid: int) -> Parameter:
    """A parameter by PostgreSQL's number of its type; 0 leaves it open. FEATURE_NOT_SUPPORTED."""
    kind = sql_type(oid)
    return Parameter() if kind is None else Parameter(kind, oid, _UUID_KINDS.get(oid, ""))


def bound(
    values: Sequence[bytes | None], formats: Sequence[int], parameters: Sequence[Parameter]
) -> list[exp.Expression]:
    """The literals of a Bind message. formats: none (all text), one for all, or one for each value.

    PROTOCOL_VIOLATION, INVALID_VALUE.
    """
    forms = for_each(formats, len(values), "values")
    return [_literal(v, f, p) for v, f, p in zip(values, forms, parameters, strict=True)]


def for_each(formats: Sequence[int], count: int, what: str) -> Sequence[int]:
    """The format of each value or column, from none (text), one for all, or one for each. PROTOCOL_VIOLATION."""
    if any(f not in (0, 1) for f in formats):
        raise error("PROTOCOL_VIOLATION", "a format is 0 (text) or 1 (binary)")
    if len(formats) not in (0, 1, count):
        raise error("PROTOCOL_VIOLATION", f"{len(formats)} formats were given for {count} {what}")
    return formats if len(formats) == count else [formats[0] if formats else 0] * count


def _literal(value: bytes | None, form: int, parameter: Parameter) -> exp.Expression:
    """The tree that stands for a value."""
    kind = parameter.kind
    if value is None:
        return literal(None, parameter)
    if form == 1 and parameter.uuid == "one" and parameter.oid in (0, UUID):
        return literal(value, parameter)
    binary_uuids = parameter.uuid == "many" and parameter.oid in (0, UUIDS)
    if form == 0 or kind is None or kind == VARCHAR or (parameter.uuid == "many" and not binary_uuids):
        return literal(decoded(value), parameter)
    try:
        found = _read(Body(value), len(value), kind)
    except (struct.error, OverflowError, ValueError, Error) as cause:
        reason = cause.message if isinstance(cause, Error) else str(cause)
        raise error(
            "INVALID_BINARY_VALUE",
            f"incorrect binary data for type {kind.sql}",
            detail=f"{reason[:1].upper()}{reason[1:]}.",
        ) from None
    return literal(found, parameter) if kind.is_integer or isinstance(found, str) else literal_of(found, "")


def _read(body: Body, length: int, kind: SqlType) -> object:
    """A value in binary, as Python or as its text."""
    if kind.name in _NUMBERS:
        form = ">I" if kind == BIGINT and length == _OID_BYTES else _NUMBERS[kind.name]
        (number,) = struct.unpack(form, body.take(length))
        return number if not isinstance(number, float) or math.isfinite(number) else str(number)
    match kind.name:
        case "boolean":
            return struct.unpack(">?", body.take(length))[0]
        case "bytea":
            return body.take(length)
        case "varchar":
            return decoded(body.take(length))
        case "jsonb":
            text = body.take(length)
            return decoded(text[1:] if text[:1] == b"\1" else text)
        case "numeric":
            return _numeric(body)
        case "date":
            return _day(struct.unpack(">i", body.take(length))[0])
        case "time":
            return _clock(struct.unpack(">q", body.take(length))[0])
        case "timestamp" | "timestamptz":
            (moment,) = struct.unpack(">q", body.take(length))
            return _moment(moment, zoned=kind != TIMESTAMP)
        case "interval":
            microseconds, days, months = struct.unpack(">qii", body.take(length))
            return Interval(months, days, microseconds)
        case _:
            return _array(body)


def _numeric(body: Body) -> Decimal | str:
    count, weight, sign = body.number(2), body.number(2), body.number(2) & 0xFFFF
    body.number(2)
    if sign in _SPECIAL:
        return _SPECIAL[sign]
    digits = [body.number(2) for _ in range(count)]
    if any(not 0 <= d < 10**_GROUP_DIGITS for d in digits):
        raise ValueError("a digit is out of range")
    whole = int("".join(f"{d:04}" for d in digits) or "0")
    number = Decimal((0, tuple(map(int, str(whole))), _GROUP_DIGITS * (weight - len(digits) + 1)))
    return -number if sign == _NEGATIVE else number


def _day(days: int) -> dt.date | str:
    if abs(days) >= 2**31 - 1:
        return "infinity" if days > 0 else "-infinity"
    return _EPOCH_DATE + dt.timedelta(days=days)


def _clock(microseconds: int) -> dt.time:
    return (dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=microseconds)).time()


def _moment(microseconds: int, *, zoned: bool) -> dt.datetime | str:
    if abs(microseconds) >= 2**63 - 1:
        return "infinity" if microseconds > 0 else "-infinity"
    zone = dt.UTC if zoned else None
    return dt.datetime(1970, 1, 1, tzinfo=zone) + dt.timedelta(microseconds=microseconds + EPOCH_US)


def _array(body: Body) -> list[object]:
    dimensions, _, oid = body.number(4), body.number(4), body.number(4)
    element = sql_type(oid)
    if element is None or dimensions not in (0, 1):
        raise ValueError("arrays have one dimension and a type of their elements")
    if dimensions == 0:
        return []
    length = body.number(4)
    body.number(4)
    values = [body.value() for _ in range(length)]
    if oid == UUID:
        return [None if v is None else uuid_text(v) for v in values]
    return [None if v is None else _read(Body(v), len(v), element) for v in values]
