"""SQLstream's type names: `VARCHAR(32)`, `DOUBLE`, `VARBINARY(16)`.

SQLstream, "JOIN clause", listings of CREATE (SS-62, SS-63).
"""

from __future__ import annotations

from typing import Final

from watersmeet.dialects.sqltypes import read_type
from watersmeet.dialects.tokens import Cursor
from watersmeet.types import SqlType

#: Names that the others do not have, or not with a length: values are not cut to it.
_OWN: Final[dict[tuple[str, ...], str]] = {
    ("VARCHAR",): "varchar", ("CHARACTER", "VARYING"): "varchar", ("CHAR", "VARYING"): "varchar", ("CHARACTER",
      ): "varchar",
    ("CHAR",): "varchar", ("VARBINARY",): "bytea", ("BINARY", "VARYING"): "bytea", ("BINARY",): "bytea", ("TINYINT",
      ): "smallint",
    ("TIMESTAMP",): "timestamp", ("TIME",): "time",
}  # fmt: skip


def read_column_type(cursor: Cursor) -> SqlType:
    """Reads a type at the cursor. UNDEFINED_OBJECT, FEATURE_NOT_SUPPORTED."""
    for words, name in _OWN.items():
        if cursor.take(*words):
            if cursor.take("("):
                cursor.integer()
                cursor.expect(")")
            return SqlType(name)
    return read_type(cursor)
