"""Types with few distinct values, so that joins match and duplicates occur, and texts that read differently elsewhere.

Where Watersmeet's RisingWave dialect and DuckDB differ by design (names of types, integer division, casts
of structs) the generated SQL holds both spellings (`both`); `ours` and `theirs` pick one.
"""

from __future__ import annotations

import re

_BOTH = re.compile(r"⟦([^⟦⟧¦]*)¦([^⟦⟧¦]*)⟧")

#: Type -> its values as literals.
VALUES = {
    "int": ["0", "1", "2", "3", "NULL", "7"],
    "bigint": ["0", "1", "2", "3", "NULL", "5000000000"],
    "smallint": ["0", "1", "2", "-3", "NULL"],
    "numeric(10,2)": ["0.00", "1.00", "2.00", "2.50", "NULL"],
    "numeric": ["0", "1", "2.5", "-0.0000000001", "NULL", "1e12"],
    "double precision": ["0.0", "-0.0", "1.0", "2.5", "'NaN'", "NULL", "1e16"],
    "real": ["0.0", "-0.0", "0.5", "16777217", "'NaN'", "NULL", "'-Infinity'"],
    "varchar": ["'a'", "'b'", "'c'", "''", "NULL", "'a b|c'", "'1'"],
    "boolean": ["true", "false", "NULL"],
    "date": ["'2024-01-01'", "'2024-01-02'", "NULL"],
    "time": ["'00:00:00'", "'10:11:12.000001'", "NULL"],
    "timestamp": ["'2024-01-01 00:00:00'", "'2024-01-01 00:00:00.000001'", "NULL"],
    "timestamptz": ["'2024-01-01 00:00:00+00'", "'2024-01-01 02:00:00+02'", "'1969-12-31 23:59:59.5+00'", "NULL"],
    "interval": ["'1 month'", "'30 days'", "'1 day'", "'24 hours'", "NULL"],
    "jsonb": ["""'{"a":1}'""", """'{"a":"x","b":[1,null]}'""", "'[]'", "'null'", "'1'", "NULL"],
    "int[]": ["ARRAY[1, 2]", "ARRAY[NULL, 1]", "'{}'", "NULL"],
    "varchar[][]": ["ARRAY[ARRAY['a', 'b'], ARRAY['c']]", "ARRAY[ARRAY['a', NULL]]", "NULL"],
    "bytea": ["'\\x01'", "'\\x'", "NULL"],
    "struct<a int, b varchar>": ["(1, 'x')", "(1, NULL)", "(NULL, '')", "NULL"],
}
NUMBERS = ("int", "bigint", "smallint", "numeric(10,2)", "numeric", "double precision", "real")
EXACT = ("int", "bigint", "smallint", "numeric(10,2)", "numeric")
INTEGERS = ("int", "bigint", "smallint")
DATES = ("date", "timestamp", "timestamptz")
#: What min, max and `<` take.
ORDERED = (*NUMBERS, *DATES, "time", "varchar")

_THEIR_TYPES = {
    "bytea": "blob",
    "numeric": "decimal(38,10)",
    "jsonb": "json",
    "struct<a int, b varchar>": "struct(a int, b varchar)",
}


def both(mine: str, other: str) -> str:
    """A text of which Watersmeet reads `mine` and DuckDB `other`. Neither part may hold such a text."""
    return mine if mine == other else f"⟦{mine}¦{other}⟧"


def ours(text: str) -> str:
    """The text as Watersmeet reads it."""
    return _BOTH.sub(r"\1", text)


def theirs(text: str) -> str:
    """The text as DuckDB reads it."""
    return _BOTH.sub(r"\2", text)


def spelled(mine: str, other: str, *parts: str) -> str:
    """Both spellings, with `parts` (that may hold both spellings themselves) for their {}."""
    return both(mine.format(*map(ours, parts)), other.format(*map(theirs, parts)))


def type_name(kind: str) -> str:
    """The type's name on both sides."""
    return both(kind, _THEIR_TYPES.get(kind, kind))


def literal(kind: str, text: str) -> str:
    """A value of `VALUES[kind]` as an expression of that type."""
    if text == "NULL":
        return f"CAST(NULL AS {type_name(kind)})" if kind != "varchar" else "NULL"
    if kind in ("int", "varchar"):
        return text
    if kind == "bytea":
        return both(f"CAST({text} AS bytea)", f"{text}::BLOB" if len(text) > 4 else "''::BLOB")
    if kind.startswith("struct"):
        return both(f"CAST(ROW{text} AS {kind})", f"CAST(ROW{text} AS {_THEIR_TYPES[kind]})")
    if text == "'{}'":
        return both(f"CAST({text} AS {kind})", f"CAST([] AS {kind})")
    return f"CAST({text} AS {type_name(kind)})"
