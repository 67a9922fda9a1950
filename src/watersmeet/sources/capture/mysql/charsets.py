"""Texts of the charsets of a server, which it converts to Unicode itself: its tables are not those of other programs.

MariaDB, "Supported Character Sets and Collations", "CONVERT".
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from watersmeet.sources.capture.mysql.servers import ask

#: Charsets whose texts are UTF-8 already.
_UTF8: Final = ("utf8mb4", "utf8mb3", "utf8")
#: The charsets of collations by the numbers that the log has for these. Older servers number collations of each charset
#: in one table, newer ones those that several charsets share in the other.
_COLLATIONS: Final = "SELECT ID, CHARACTER_SET_NAME FROM information_schema.{} WHERE ID IS NOT NULL"
_IS_NUMBERED: Final = """
SELECT 1 FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = 'information_schema'
AND TABLE_NAME = 'COLLATION_CHARACTER_SET_APPLICABILITY' AND COLUMN_NAME = 'ID'
"""
_SIZES: Final = "SELECT CHARACTER_SET_NAME, MAXLEN FROM information_schema.CHARACTER_SETS"
#: The most bytes, and values, that the server converts at once.
_MOST_BYTES: Final = 1 << 20
_MOST_VALUES: Final = 1000


class Charsets:
    """The charsets of a server, by the numbers of collations. One thread uses it. Errors of the library."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._names = dict(ask(connection, _COLLATIONS.format("COLLATIONS")))
        if ask(connection, _IS_NUMBERED):
            self._names |= dict(ask(connection, _COLLATIONS.format("COLLATION_CHARACTER_SET_APPLICABILITY")))
        self._sizes: dict[str, int] = dict(ask(connection, _SIZES))
        self._tables: dict[str, str] = {}
        self._labels: dict[tuple[int, tuple[bytes, ...]], tuple[str, ...]] = {}

    def has(self, collation: int) -> bool:
        """Whether it is known which charset a collation is of."""
        return collation in self._names

    def decoded(self, values: pa.StringArray, collation: int) -> pa.StringArray:
        """Texts of a column, given as the bytes that the log has."""
        name = self._names[collation]
        if name in _UTF8:
            return values
        encoded = values.cast(pa.binary()).dictionary_encode()
        found = self._texts(encoded.dictionary.to_pylist(), name)
        return pa.array(found, pa.string()).take(encoded.indices)

    def labels(self, labels: tuple[bytes, ...], collation: int) -> tuple[str, ...]:
        """The labels of a type."""
        key = collation, labels
        if key not in self._labels:
            name = self._names[collation]
            known = [x.decode() for x in labels] if name in _UTF8 else self._texts(labels, name)
            self._labels[key] = tuple(known)
        return self._labels[key]

    def _texts(self, values: Sequence[bytes], name: str) -> list[str]:
        if self._sizes.get(name) == 1:
            if name not in self._tables:
                self._tables[name] = "".join(self._converted([bytes([i]) for i in range(256)], name))
            return [codecs.charmap_decode(v, "strict", self._tables[name])[0] for v in values]
        found: list[str] = []
        begin = size_bytes = 0
        for i, value in enumerate(values):
            if i > begin and (size_bytes + len(value) > _MOST_BYTES or i - begin == _MOST_VALUES):
                found += self._converted(values[begin:i], name)
                begin, size_bytes = i, 0
            size_bytes += len(value)
        return found + self._converted(values[begin:], name)

    def _converted(self, values: Sequence[bytes], name: str) -> list[str]:
        if not values:
            return []
        listed = ", ".join(f"CONVERT(CONVERT(x'{v.hex()}' USING {name}) USING utf8mb4)" for v in values)
        (found,) = ask(self._connection, f"SELECT {listed}")
        return list(found)
