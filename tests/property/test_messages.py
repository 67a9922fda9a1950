"""Whatever is in a topic: messages read + messages set aside = messages, each row is what the rules say, and how
messages are cut into batches makes no difference.
"""

from __future__ import annotations

import io
import json
import random
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

import fastavro
import numpy as np
import pytest

from tests.messages_reference import UNSENT, Reference, UnreadableError
from tests.thorough import mostly_slow
from tests.unit.formats.messages import messages
from watersmeet.catalog import MessageFormat
from watersmeet.formats.decoders import open_decoder
from watersmeet.formats.payloads import Decoder
from watersmeet.values import types as t
from watersmeet.values.types import Field, SqlType

REGRESSIONS: Final = [54, 275, 600, 3596, 3799]
SEEDS: Final = mostly_slow([*REGRESSIONS, *range(60)], 20)

STRUCT: Final = SqlType("struct", fields=(("x", t.BIGINT), ("y", t.VARCHAR), ("z", t.BOOLEAN)))
KINDS: Final = [
    t.BIGINT, t.INTEGER, t.VARCHAR, t.BOOLEAN, t.DOUBLE, SqlType("numeric", 12, 2), t.TIMESTAMPTZ, t.DATE, t.JSONB,
    STRUCT, SqlType("array", element=t.INTEGER),
]  # fmt: skip
FLAT: Final = [t.BIGINT, t.VARCHAR, t.BOOLEAN, t.DOUBLE, SqlType("numeric", 12, 2)]
WORDS: Final = ["", "a", "é", "x y", "true", "7", "-1", "null", "2024-01-02", "2024-01-02T03:04:05Z", "1.50", "ß{[,:"]
NUMBERS: Final = [
    "0", "7", "-3", "1.5", "1.005", "1e2", "-0", "2147483648", "9223372036854775807", "9223372036854775808",
    "1712800800123", "9999999999.99", "12345678901.123", "0.1",
]  # fmt: skip


def value(rnd: random.Random, depth: int = 0) -> str:
    """Any JSON value."""
    pick = rnd.random()
    if pick < 0.35:
        return rnd.choice(NUMBERS)
    if pick < 0.6:
        return json.dumps(rnd.choice(WORDS), ensure_ascii=rnd.random() < 0.5)
    if pick < 0.8 or depth > 2:
        return rnd.choice(["true", "false", "null"])
    if pick < 0.9:
        return "[" + ", ".join(value(rnd, depth + 1) for _ in range(rnd.randrange(3))) + "]"
    return written(rnd, [(rnd.choice("xyzXq"), value(rnd, depth + 1)) for _ in range(rnd.randrange(4))])


def written(rnd: random.Random, pairs: list[tuple[str, str]]) -> str:
    space = rnd.choice(["", " ", "\n", "\t "])
    return "{" + f",{space}".join(f"{json.dumps(k)}{space}:{v}" for k, v in pairs) + space + "}"


def fitting(rnd: random.Random, kind: SqlType) -> str:
    """A JSON value that fits a type, most of the time."""
    if rnd.random() < 0.12:
        return value(rnd)
    if rnd.random() < 0.1:
        return "null"
    plain = {
        "bigint": ["1", "2", '"3"', "-9223372036854775808"],
        "integer": ["1", "2", "2147483647"],
        "varchar": ['"a"', '"b"', '""'],
        "boolean": ["true", "false"],
        "double precision": ["1.5", "2", '"3"', "1e300"],
        "numeric": ["1.25", '"99.99"', "-9999999999.99"],
        "timestamptz": ['"2024-01-02T03:04:05.123Z"', "1712800800", '"2024-01-02 03:04:05+02:00"'],
        "date": ['"2024-02-29"', "19782"],
        "jsonb": ['{"a": 1}', "[]"],
        "struct": ['{"x": 1, "y": "a", "z": true}', '{"X": "2"}', '"{\\"x\\": 5}"'],
        "array": ["[1, 2]", "[]", "[null]"],
    }
    return rnd.choice(plain[kind.name])


def an_object(rnd: random.Random, fields: list[Field]) -> str:
    pairs = [(f.name, fitting(rnd, f.type)) for f in fields if rnd.random() < 0.95]
    for _ in range(rnd.choice([0, 0, 0, 1, 2])):
        name = rnd.choice([*(f.name for f in fields), *(f.name.upper() for f in fields), "other"])
        pairs.insert(rnd.randrange(len(pairs) + 1), (name, value(rnd)))
    return written(rnd, pairs)


def damaged(rnd: random.Random, payload: bytes) -> bytes:
    data = bytearray(payload)
    for _ in range(rnd.choice([1, 1, 3])):
        place = rnd.randrange(len(data) + 1)
        data[place : place + rnd.randrange(3)] = rnd.choice([b"", b'"', b"{", b"}", b",", b"\\", b"\xff", b"0", b"\n"])
    return bytes(data[: rnd.choice([len(data), rnd.randrange(len(data) + 1)])])


def spoiled(rnd: random.Random, payload: bytes | None, often: float) -> bytes | None:
    return damaged(rnd, payload) if payload is not None and rnd.random() < often else payload


def wrapped(rnd: random.Random, payload: str, schema: str) -> str:
    """Debezium's wrapping of an envelope or a key, with and without `schemas.enable`."""
    return f'{{"payload": {payload}}}' if rnd.random() < 0.5 else f'{{"schema": {schema}, "payload": {payload}}}'


class Case:
    """A topic and how it is read, from a seed."""

    def __init__(self, seed: int) -> None:
        rnd = random.Random(seed)
        self.encoding: Any = rnd.choice(["json"] * 5 + ["avro", "avro", "csv", "string", "int", "long", "bytes"])
        self.rows: Any = rnd.choice(["plain", "upsert", "debezium"]) if self.encoding == "json" else "plain"
        self.garbage = rnd.choice([0.0, 0.02, 0.3])
        self.fields, self.key = self.columns(rnd)
        self.schema = self.avro_schema() if self.encoding == "avro" else None
        keyed = self.rows == "upsert"
        self.form = MessageFormat(
            rows=self.rows,
            encoding=self.encoding,
            key_encoding="json" if keyed else None,
            bad_field=rnd.choice(["null", "default", "dead letter"]),
            many_rows=self.encoding == "json" and self.rows == "plain" and rnd.random() < 0.3,
            options={} if self.schema is None else {"schema": json.dumps(self.schema)},
        )
        if any(f.type.name == "struct" for f in self.fields) and self.form.bad_field == "default":
            self.form = MessageFormat(self.rows, self.encoding, self.form.key_encoding, {}, "null", self.form.many_rows)
        self.unsent = random.Random(-seed)
        count = rnd.choice([0, 1, 5, 60])
        self.keys = [self.a_key(rnd) for _ in range(count)]
        self.values = [self.a_value(rnd) for _ in range(count)]
        self.rnd = rnd

    def columns(self, rnd: random.Random) -> tuple[tuple[Field, ...], tuple[str, ...]]:
        if self.encoding in ("string", "int", "long", "bytes"):
            kinds = {"string": [t.VARCHAR, t.BIGINT], "int": [t.INTEGER, t.VARCHAR], "long": [t.BIGINT, t.INTEGER]}
            return (Field("v", rnd.choice(kinds.get(self.encoding, [t.BYTEA])), rnd.random() < 0.8),), ()
        pool = KINDS if self.encoding == "json" else FLAT
        some = [Field(f"c{i}", rnd.choice(pool), rnd.random() < 0.9) for i in range(rnd.randrange(1, 5))]
        if self.rows == "plain":
            return tuple(some), ()
        keys = [Field(name, rnd.choice([t.BIGINT, t.VARCHAR])) for name in rnd.choice([["id"], ["id", "part"]])]
        return (*keys, *some), tuple(k.name for k in keys)

    def avro_schema(self) -> Any:
        plain: dict[str, Any] = {"bigint": "long", "varchar": "string", "boolean": "boolean"}
        plain["double precision"] = "double"
        plain["numeric"] = {"type": "bytes", "logicalType": "decimal", "precision": 14, "scale": 3}
        parts = [{"name": f.name, "type": ["null", plain[f.type.name]]} for f in self.fields]
        parts.append({"name": "more", "type": {"type": "array", "items": "int"}})
        return {"type": "record", "name": "r", "fields": parts}

    def a_key(self, rnd: random.Random) -> bytes | None:
        if self.rows == "plain" or rnd.random() < 0.05:
            return None
        fields = [f for f in self.fields if f.name in self.key]
        text = fitting(rnd, fields[0].type) if rnd.random() < 0.2 else an_object(rnd, fields)
        if self.rows == "debezium" and rnd.random() < 0.3:
            text = wrapped(rnd, text, "{}")
        return spoiled(rnd, text.encode(), self.garbage / 2)

    def a_value(self, rnd: random.Random) -> bytes | None:
        if rnd.random() < 0.06:
            return rnd.choice([None, b""])
        return spoiled(rnd, getattr(self, self.encoding)(rnd), self.garbage)

    def json(self, rnd: random.Random) -> bytes:
        fields = list(self.fields)
        if self.rows == "debezium":
            parts = [("op", rnd.choice(['"c"', '"r"', '"u"', '"u"', '"d"', '"m"', '"t"', "null"]))]
            for name in ("before", "after"):
                whole = rnd.random() < 0.8
                parts.append(
                    (name, self.lacking(an_object(rnd, fields)) if whole else rnd.choice(["null", "null", "7"]))
                )
            rnd.shuffle(parts)
            text = written(rnd, parts[: rnd.choice([3, 3, 3, 2])])
            return (wrapped(rnd, text, "null") if rnd.random() < 0.3 else text).encode()
        if rnd.random() < 0.1:
            return ("[" + ",".join(an_object(rnd, fields) for _ in range(rnd.randrange(3))) + "]").encode()
        if rnd.random() < 0.2:
            gap = rnd.choice(["\n", " ", ",\n", ""])
            return gap.join(an_object(rnd, fields) for _ in range(rnd.randrange(1, 4))).encode()
        return an_object(rnd, fields).encode()

    def lacking(self, written_: str) -> str:
        """An object of which some values were not sent, at times."""
        rnd = self.unsent
        chosen = [f.name for f in self.fields if rnd.random() < 0.3] if rnd.random() < 0.3 else []
        if chosen and chosen[0] in self.key and rnd.random() < 0.8:
            return written_
        ends = "".join(f", {json.dumps(name)}: {json.dumps(rnd.choice(UNSENT))}" for name in chosen)
        return written_[: written_.rindex("}")].rstrip() + (ends if ":" in written_ else ends[1:]) + "}"

    def avro(self, rnd: random.Random) -> bytes:
        pools: dict[str, list[Any]] = {
            "bigint": [0, -1, 1 << 62],
            "varchar": ["", "é", "x" * 100],
            "boolean": [True, False],
            "double precision": [0.5, -1e300],
            "numeric": [Decimal("1.005"), Decimal("-12345678901.000"), Decimal(0)],
        }
        record: dict[str, Any] = {f.name: rnd.choice([*pools[f.type.name], None]) for f in self.fields}
        record["more"] = [1] * rnd.randrange(3)
        file = io.BytesIO()
        fastavro.schemaless_writer(file, fastavro.parse_schema(json.loads(json.dumps(self.schema))), record)
        return file.getvalue()

    def csv(self, rnd: random.Random) -> bytes:
        pools = {
            "bigint": ["1", "-2", "1.5"],
            "varchar": ["a", '"b,""c"', '""', "x y"],
            "boolean": ["true", "false", "?"],
            "double precision": ["1.5", "-2"],
            "numeric": ["1.25", "1.005", "99999999999"],
        }
        return ",".join(rnd.choice([*pools[f.type.name], ""]) for f in self.fields).encode()

    def string(self, rnd: random.Random) -> bytes:
        return rnd.choice(WORDS).encode()

    def int(self, rnd: random.Random) -> bytes:
        return rnd.choice([0, -1, 1 << 30]).to_bytes(4, "big", signed=True)

    def long(self, rnd: random.Random) -> bytes:
        return rnd.choice([0, -1, 1 << 62]).to_bytes(8, "big", signed=True)

    def bytes(self, rnd: random.Random) -> bytes:
        return rnd.randbytes(rnd.randrange(5))


def shown(row: dict[str, Any]) -> str:
    """A row, in which equal values are written alike."""

    def plain(value_: Any) -> Any:
        if isinstance(value_, Decimal):
            return value_.normalize() + 0
        return value_.astimezone(UTC).isoformat() if isinstance(value_, datetime) else value_

    return repr({name: plain(value_) for name, value_ in row.items()})


def rows(decoder: Decoder, keys: list[Any], values: list[Any], first: int) -> tuple[list[Any], list[int]]:
    """(place, diff, what is kept, and values of all rows as text, places of the unreadable)."""
    decoded = decoder.decode(messages(values, keys))
    decoded.table.validate(full=True)
    count = len(decoded.places)
    diff = np.ones(count, np.int64) if decoded.diff is None else decoded.diff
    kept = [None] * count if decoded.kept is None else decoded.kept.to_pylist()
    found = [
        (first + place, d, None if k is None else sorted(k), shown(row))
        for place, d, k, row in zip(
            decoded.places.tolist(), diff.tolist(), kept, decoded.table.to_pylist(), strict=True
        )
    ]
    assert count == decoded.table.num_rows
    assert (np.diff(decoded.places) >= 0).all()
    return found, [first + u.place for u in decoded.unreadable]


@pytest.mark.parametrize("seed", SEEDS)
def test_rows_are_what_the_rules_say_however_messages_are_cut(seed: int) -> None:
    case = Case(seed)
    decoder = open_decoder(case.fields, case.key, case.form, {})
    reference = Reference(case.fields, case.key, case.form, case.schema)
    expected: list[Any] = []
    unreadable = []
    for place, (key, value_) in enumerate(zip(case.keys, case.values, strict=True)):
        try:
            said = reference.decode(key, value_)
        except UnreadableError:
            unreadable.append(place)
            continue
        expected += [
            (place, row.diff, None if row.kept is None else sorted(row.kept), shown(row.values)) for row in said
        ]
    found = rows(decoder, case.keys, case.values, 0)
    assert found == (expected, unreadable)
    cuts = sorted(case.rnd.randrange(len(case.values) + 1) for _ in range(4))
    parts = [
        rows(decoder, case.keys[a:b], case.values[a:b], a)
        for a, b in zip([0, *cuts], [*cuts, len(case.values)], strict=True)
    ]
    assert ([row for p in parts for row in p[0]], [place for p in parts for place in p[1]]) == found
