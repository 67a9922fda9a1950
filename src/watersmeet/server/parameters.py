"""Values of parameters, as clients send them: text or binary, to literals of a statement's tree."""

from __future__ import annotations

import datetime as dt
import math
import re
import struct
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from sqlglot import exp

from watersmeet.database.assignment import data_type
from watersmeet.database.values import Interval
from watersmeet.dialects.tree.queries import literal_of
from watersmeet.errors import Error, error
from watersmeet.server.messages import Body, decoded
from watersmeet.server.oids import UUID, UUIDS, sql_type
from watersmeet.server.valuebytes import EPOCH_US
from watersmeet.values.types import BIGINT, INTEGER, TIMESTAMP, VARCHAR, SqlType

_NUMBERS: Final = {"smallint": ">h", "integer": ">i", "bigint": ">q", "real": ">f", "double precision": ">d"}
_OID_BYTES: Final = 4
_GROUP_DIGITS: Final = 4
_NEGATIVE: Final = 0x4000
_SPECIAL: Final = {0xC000: "NaN", 0xD000: "Infinity", 0xF000: "-Infinity"}
_EPOCH_DATE: Final = dt.date(2000, 1, 1)
_UUID_BYTES: Final = 16
#: Groups of four digits, with hyphens between them or without.
_UUID_DIGITS: Final = re.compile(r"(?:[0-9a-fA-F]{4}-?){7}[0-9a-fA-F]{4}")
_UUID_ARRAY: Final = re.compile(r"\s*\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}\s*")


@dataclass(frozen=True)
class Parameter:
    """A parameter of a prepared statement. oid: as the client gave it, else as it was inferred. kind: None: a text
    whose type follows from where it stands. uuid: UUID for the text of one, UUIDS for an array of these: they are
    brought into PostgreSQL's form.
    """

    oid: int
    kind: SqlType | None
    uuid: int = 0


def bound(values: Sequence[bytes | None], formats: Sequence[int], parameters: Sequence[Parameter]) -> list[Any]:
    """The literals of a Bind message. formats: none (all text), one for all, or one for each value.

    PROTOCOL_VIOLATION, INVALID_VALUE.
    """
    forms = _for_each(formats, len(values))
    return [literal(v, f, p) for v, f, p in zip(values, forms, parameters, strict=True)]


def _for_each(formats: Sequence[int], count: int) -> Sequence[int]:
    if any(f not in (0, 1) for f in formats):
        raise error("PROTOCOL_VIOLATION", "a format is 0 (text) or 1 (binary)")
    if len(formats) not in (0, 1, count):
        raise error("PROTOCOL_VIOLATION", f"{len(formats)} formats were given for {count} values")
    return formats if len(formats) == count else [formats[0] if formats else 0] * count


def literal(value: bytes | None, form: int, parameter: Parameter) -> exp.Expression:
    """The tree that stands for a value."""
    kind = parameter.kind
    if value is None:
        return exp.null() if kind is None else exp.Cast(this=exp.null(), to=data_type(kind))
    if parameter.uuid == UUID:
        binary = form == 1 and parameter.oid == UUID
        return literal_of(_uuid(value if binary else decoded(value)), "")
    if kind is None or kind == VARCHAR:
        return literal_of(decoded(value), "")
    if parameter.uuid == UUIDS and (form == 0 or parameter.oid != UUIDS):
        return exp.Cast(this=literal_of(_uuids(decoded(value)), ""), to=data_type(kind))
    if form == 0:
        return _written(decoded(value), kind)
    try:
        found = _read(Body(value), len(value), kind)
    except (struct.error, OverflowError, ValueError, Error) as cause:
        reason = cause.message if isinstance(cause, Error) else str(cause)
        raise error(
            "INVALID_BINARY_VALUE",
            f"incorrect binary data for type {kind.sql}",
            detail=f"{reason[:1].upper()}{reason[1:]}.",
        ) from None
    if isinstance(found, str):
        return exp.Cast(this=exp.Literal.string(found), to=data_type(kind))
    return _integer(found, kind) if kind.is_integer else literal_of(found, "")


def _written(text: str, kind: SqlType) -> exp.Expression:
    """A value in text."""
    if kind.is_integer:
        try:
            return _integer(int(text), kind)
        except ValueError:
            pass
    return exp.Cast(this=literal_of(text, ""), to=data_type(kind))


def _integer(value: int, kind: SqlType) -> exp.Expression:
    """An integer of a type: the columns of a statement were described with it."""
    made = literal_of(value, "")
    return made if kind == INTEGER else exp.Cast(this=made, to=data_type(kind))


def _read(body: Body, length: int, kind: SqlType) -> Any:
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


def _array(body: Body) -> list[Any]:
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
        return [None if v is None else _uuid(v) for v in values]
    return [None if v is None else _read(Body(v), len(v), element) for v in values]


def _uuid(value: bytes | str) -> str:
    """The text of a uuid, from one in any form that PostgreSQL reads, or from its 16 bytes. INVALID_BINARY_VALUE,
    INVALID_VALUE.
    """
    if isinstance(value, bytes):
        if len(value) != _UUID_BYTES:
            raise error("INVALID_BINARY_VALUE", "incorrect binary data for type uuid")
        return str(uuid.UUID(bytes=value))
    digits = value.strip()
    digits = digits[1:-1] if digits.startswith("{") and digits.endswith("}") else digits
    if _UUID_DIGITS.fullmatch(digits) is None:
        raise error("INVALID_VALUE", f'invalid input syntax for type uuid: "{value}"')
    return str(uuid.UUID(hex=digits.replace("-", "")))


def _uuids(text: str) -> str:
    """An array of one dimension in text, with the texts of uuids. INVALID_VALUE."""
    if _UUID_ARRAY.fullmatch(text) is None:
        raise error("INVALID_VALUE", f'invalid input syntax for type uuid[]: "{text}"')
    listed = [v.strip().strip('"') for v in text.strip()[1:-1].split(",")] if text.strip("{ }") else []
    return "{" + ",".join("NULL" if v.upper() == "NULL" else _uuid(v) for v in listed) + "}"
