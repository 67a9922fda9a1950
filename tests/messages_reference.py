"""What messages say, in plain Python, one by one: written from the rules (docs/rules/messages.md) alone."""

from __future__ import annotations

import io
import json
import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal, localcontext
from typing import Any

import fastavro

from watersmeet.catalog import MessageFormat
from watersmeet.values.types import Field, SqlType

BAD = object()
"""A value that the type can't take."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DEFAULTS = {"bigint": 0, "integer": 0, "numeric": Decimal(0), "double precision": 0.0, "boolean": False, "varchar": ""}
DEFAULTS |= {"timestamptz": EPOCH, "date": date(1970, 1, 1), "jsonb": "null", "array": [], "bytea": b""}
#: What stands for a value that was not sent, as a text and as bytes.
PLACEHOLDERS = ["__debezium_unavailable_value", "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="]
UNSENT = [*PLACEHOLDERS, *([text] for text in PLACEHOLDERS)]


class UnreadableError(Exception):
    """The message is set aside."""


@dataclass(frozen=True)
class Number:
    """A number as it is written."""

    text: str


@dataclass(frozen=True)
class Object:
    """Members of an object, in order."""

    pairs: tuple[tuple[str, Any], ...]

    def get(self, name: str) -> Any:
        """The last value of that key; without one, the last of a key that is equal but for case."""
        exact = [v for k, v in self.pairs if k == name]
        alike = [v for k, v in self.pairs if k.lower() == name.lower()]
        found = exact or alike
        return found[-1] if found else None

    def has(self, name: str) -> bool:
        return any(k == name for k, _ in self.pairs)


def no_constant(text: str) -> Any:
    raise ValueError(text)


DECODER = json.JSONDecoder(
    object_pairs_hook=lambda pairs: Object(tuple(pairs)),
    parse_float=Number,
    parse_int=Number,
    parse_constant=no_constant,
)


def parsed(payload: bytes) -> Any:
    """The JSON value of a payload."""
    try:
        return DECODER.decode(payload.decode())
    except (ValueError, RecursionError) as cause:
        raise UnreadableError from cause


def written(value: Any) -> str:
    """A JSON value in the form of jsonb."""
    if isinstance(value, Number):
        return value.text
    if isinstance(value, Object):
        last = {k: i for i, (k, _) in enumerate(value.pairs)}
        kept = [(k, v) for i, (k, v) in enumerate(value.pairs) if last[k] == i]
        return "{" + ",".join(f"{written(k)}:{written(v)}" for k, v in kept) + "}"
    if isinstance(value, list):
        return "[" + ",".join(written(v) for v in value) + "]"
    return json.dumps(value, ensure_ascii=False)


def typed(kind: SqlType, value: Any, *, json_texts: bool = False) -> Any:
    """A JSON value as a type; BAD if it is none of it. json_texts: jsonb is written as a text."""
    name = kind.name
    if value is None:
        return None
    text = value.text if isinstance(value, Number) else value if isinstance(value, str) else None
    if name == "varchar":
        return text if text is not None else written(value)
    if name == "jsonb":
        if json_texts and isinstance(value, str):
            try:
                value = parsed(value.encode())
            except UnreadableError:
                return BAD
            return None if value is None else written(value)
        return written(value)
    if name == "boolean":
        return value if isinstance(value, bool) else BAD
    if name == "struct":
        if isinstance(value, str):
            try:
                value = parsed(value.encode())
            except UnreadableError:
                return BAD
            if value is None:
                return None
        if not isinstance(value, Object):
            return BAD
        parts = {part: typed(part_kind, value.get(part)) for part, part_kind in kind.fields}
        return BAD if BAD in parts.values() else parts
    if name == "array":
        if not isinstance(value, list):
            return BAD
        assert kind.element is not None
        items = [typed(kind.element, item) for item in value]
        return BAD if any(item is BAD for item in items) else items
    if text is None:
        return BAD
    if name in ("timestamptz", "date") and isinstance(value, Number):
        return from_number(name, text)
    return from_text(kind, text)


def from_number(name: str, text: str) -> Any:
    if not re.fullmatch(r"-?[0-9]+", text):
        return BAD
    number = int(text)
    if name == "date":
        return date(1970, 1, 1) + timedelta(days=number) if -719162 <= number <= 2932896 else BAD
    for limit, factor in ((10**11, 10**6), (10**14, 10**3), (10**17, 1)):
        if 0 <= number < limit:
            return EPOCH + timedelta(microseconds=number * factor)
    return EPOCH + timedelta(microseconds=number // 1000) if 10**17 <= number < 1 << 63 else BAD


def from_text(kind: SqlType, text: str) -> Any:
    """Text as a scalar type."""
    name = kind.name
    if name == "varchar":
        return text
    if name in ("bigint", "integer"):
        limit = 1 << (63 if name == "bigint" else 31)
        if not re.fullmatch(r"\s*[+-]?[0-9]+\s*", text):
            return BAD
        return int(text) if -limit <= int(text) < limit else BAD
    if name == "numeric":
        assert kind.precision is not None
        if not re.fullmatch(r"\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\s*", text):
            return BAD
        with localcontext() as context:
            context.prec = 1000
            value = Decimal(text.strip()).quantize(Decimal(1).scaleb(-(kind.scale or 0)), rounding=ROUND_HALF_UP)
        return value if abs(value) < 10 ** (kind.precision - (kind.scale or 0)) else BAD
    if name == "double precision":
        return float(text) if re.fullmatch(r"\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\s*", text) else BAD
    if name == "timestamptz":
        found = re.fullmatch(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", text)
        return datetime.fromisoformat(text).astimezone(UTC) if found else BAD
    if name == "date":
        try:
            return datetime.fromisoformat("0" * (4 - text.find("-")) + text).date()  # short years are years
        except ValueError:
            return BAD
    raise AssertionError(kind)


@dataclass(frozen=True)
class Row:
    """diff: 1 there, -1 gone. values: by column. kept: the columns that keep the value of the row before; with diff -1:
    all rows are gone.
    """

    diff: int
    values: dict[str, Any]
    kept: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Reference:
    """A decoder of messages. schema: of Avro, for all bodies."""

    fields: tuple[Field, ...]
    key: tuple[str, ...]
    form: MessageFormat
    schema: Any = None

    def decode(self, key: bytes | None, value: bytes | None) -> list[Row]:
        """The rows of a message. Raises UnreadableError."""
        if self.form.rows == "plain":
            found = [Row(1, v) for v in self.values(value)]
        elif self.form.rows == "upsert":
            found = self.newest(key, value)
        else:
            found = self.change(key, value)
        return [Row(row.diff, self.readable(row), row.kept) for row in found]

    def readable(self, row: Row) -> dict[str, Any]:
        """Values, with what stands for those that can't be read."""
        done = {}
        for column in self.fields:
            if row.kept is not None and (row.diff < 0 or column.name in row.kept):
                done[column.name] = None
                continue
            value = row.values.get(column.name)
            strict = column.name in self.key
            if row.diff < 0 and not strict:
                value = None
            if value is BAD:
                if strict or self.form.bad_field == "dead letter":
                    raise UnreadableError
                value = DEFAULTS[column.type.name] if self.form.bad_field == "default" else None
            if value is None and (strict or (not column.nullable and row.diff > 0)):
                if strict or self.form.bad_field != "default":
                    raise UnreadableError
                value = DEFAULTS[column.type.name]
            done[column.name] = value
        return done

    def values(self, payload: bytes | None) -> list[dict[str, Any]]:
        """The rows of a value."""
        if payload is None:
            return [{}]
        if self.form.encoding == "json":
            return [self.members(found) for found in self.objects(payload)]
        if self.form.encoding == "avro":
            return [self.avro(payload)]
        if self.form.encoding == "csv":
            return [self.csv(payload)]
        (column,) = self.fields
        return [{column.name: self.scalar(column, payload)}]

    def scalar(self, column: Field, payload: bytes) -> Any:
        width = {"int": 4, "long": 8}.get(self.form.encoding)
        if width is not None:
            if len(payload) != width:
                raise UnreadableError
            return from_text(column.type, str(int.from_bytes(payload, "big", signed=True)))
        if self.form.encoding == "bytes":
            return payload
        try:
            return from_text(column.type, payload.decode())
        except UnicodeDecodeError as cause:
            raise UnreadableError from cause

    def objects(self, payload: bytes) -> list[Object]:
        try:
            value = parsed(payload)
            found = value if isinstance(value, list) else [value]
        except UnreadableError:
            if not self.form.many_rows:
                raise
            found = self.several(payload)
        if not all(isinstance(item, Object) for item in found):
            raise UnreadableError
        return found

    def several(self, payload: bytes) -> list[Any]:
        try:
            text = payload.decode()
            found, place = [], 0
            while True:
                while place < len(text) and (text[place] in " \t\r\n" or (found and text[place] == ",")):
                    place += 1
                if place == len(text):
                    break
                value, place = DECODER.raw_decode(text, place)
                found.append(value)
        except (ValueError, RecursionError) as cause:
            raise UnreadableError from cause
        if not found:
            raise UnreadableError
        return found

    def members(self, found: Object) -> dict[str, Any]:
        texts = self.form.rows == "debezium"
        return {c.name: typed(c.type, found.get(c.name), json_texts=texts) for c in self.fields}

    def avro(self, payload: bytes) -> dict[str, Any]:
        file = io.BytesIO(payload)
        try:
            plain = json.loads(json.dumps(self.schema).replace("logicalType", "x"))
            found = fastavro.schemaless_reader(file, fastavro.parse_schema(plain))
        except Exception as cause:
            raise UnreadableError from cause
        if file.tell() != len(payload):
            raise UnreadableError
        return {c.name: self.of_avro(c.type, found.get(c.name)) for c in self.fields}

    def of_avro(self, kind: SqlType, value: Any) -> Any:
        if kind.name == "integer" and value is not None and not -(1 << 31) <= value < 1 << 31:
            return BAD
        if kind.name == "numeric" and value is not None:
            if not value:
                return BAD
            number = int.from_bytes(value, "big", signed=True)
            with localcontext() as context:
                context.prec = 1000
                return from_text(kind, f"{Decimal(number).scaleb(-3):f}")  # the scale in the schema of the test
        return value

    def csv(self, payload: bytes) -> dict[str, Any]:
        try:
            text = payload.decode().rstrip("\r\n")
        except UnicodeDecodeError as cause:
            raise UnreadableError from cause
        field = r'(?:"(?:[^"]|"")*"|[^",\r\n][^,\r\n]*|)'
        if (not text and len(self.fields) > 1) or not re.fullmatch(f"{field}(?:,{field})*", text):
            raise UnreadableError
        parts = re.findall(f"(?:^|,)({field})", text)
        if len(parts) != len(self.fields):
            raise UnreadableError
        said = [None if not p else p[1:-1].replace('""', '"') if p[0] == '"' else p for p in parts]
        return {c.name: None if s is None else from_csv(c.type, s) for c, s in zip(self.fields, said, strict=True)}

    def keys(self, key: bytes | None) -> dict[str, Any]:
        """The columns of the primary key as the key of the message has them."""
        if key is None:
            raise UnreadableError
        found = parsed(key)
        if isinstance(found, Object) and self.form.rows == "debezium" and found.has("payload"):
            found = found.get("payload")
        columns = [c for c in self.fields if c.name in self.key]
        if isinstance(found, Object):
            return {c.name: typed(c.type, found.get(c.name)) for c in columns}
        if len(columns) != 1:
            raise UnreadableError
        return {columns[0].name: typed(columns[0].type, found)}

    def newest(self, key: bytes | None, value: bytes | None) -> list[Row]:
        if key is None:
            raise UnreadableError
        known = {k: v for k, v in self.keys(key).items() if v is not None} if self.form.key_encoding else {}
        if not value:
            return [Row(-1, known)]
        found = self.values(value)
        if len(found) != 1:
            raise UnreadableError
        return [Row(1, {**found[0], **known})]

    def change(self, key: bytes | None, value: bytes | None) -> list[Row]:
        if not value:
            return []
        found = parsed(value)
        if isinstance(found, Object) and found.has("payload") and (found.has("schema") or not found.has("op")):
            found = found.get("payload")
            if found is None:
                return []
        if not isinstance(found, Object):
            raise UnreadableError
        exact = {k: [v for n, v in found.pairs if n == k][-1:] for k in ("op", "before", "after")}
        op, before, after = (exact[k][0] if exact[k] else None for k in ("op", "before", "after"))
        if op == "m":
            return []
        if op == "t":
            return [Row(-1, {}, ())]
        if op not in ("c", "r", "u", "d"):
            raise UnreadableError
        if op == "r":
            before = None
        for part in (before, after):
            if part is not None and not isinstance(part, Object):
                raise UnreadableError
        old = None if before is None else self.members(before)
        new = None if after is None else self.members(after)
        if op == "d":
            return [Row(-1, old if old is not None else self.keys(key))]
        if new is None:
            raise UnreadableError
        kept = tuple(c.name for c in self.fields if after.get(c.name) in UNSENT) or None
        changed = old is not None and any(
            old[k] not in (None, BAD) and new[k] not in (None, BAD) and old[k] != new[k] for k in self.key
        )
        if kept is not None and (changed or set(kept) & set(self.key)):
            raise UnreadableError
        return [Row(-1, old), Row(1, new, kept)] if changed and old is not None else [Row(1, new, kept)]


def from_csv(kind: SqlType, text: str) -> Any:
    if kind.name == "boolean":
        return {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}.get(text.lower(), BAD)
    return from_text(kind, text)
