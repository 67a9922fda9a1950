"""Content outside of the database as a whole: what external tables and dictionaries show. One reader for each kind.

A new connector is one class and one line in READERS. Readers work on the driver alone; what they bring is committed to
the database, and tasks read it from there, so that nothing outside needs to be reachable for executors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import pyarrow as pa

from watersmeet.catalog import External
from watersmeet.errors import did_you_mean, error
from watersmeet.formats.convert import convert
from watersmeet.sources.clickhousetables import ClickhouseReader
from watersmeet.sources.contents import Reader
from watersmeet.sources.httpcontent import HttpReader
from watersmeet.sources.lakes.externaltables import IcebergReader
from watersmeet.sources.mysqltables import MysqlReader
from watersmeet.sources.narrowing import Condition
from watersmeet.sources.objecttables import ObjectReader
from watersmeet.sources.options import refuse
from watersmeet.sources.postgrestables import PostgresReader
from watersmeet.sources.presentfiles import FileReader
from watersmeet.types import Field, Schema, arrow_schema
from watersmeet.units import SECOND_US, length_us

MAX_AGE: Final = "lookup_max_age"
#: What other systems can be named, so that one whose connector is missing is told from one that does not exist.
KINDS: Final = (
    "bigquery",
    "clickhouse",
    "executable",
    "executable_pool",
    "file",
    "http",
    "iceberg",
    "kafka",
    "log",
    "mongodb",
    "mysql",
    "odbc",
    "postgresql",
    "pulsar",
    "python",
    "redis",
    "s3",
    "timeplus",
)


class GivenReader(Reader):
    """Rows that a test gives in place of another system's. rows: as texts."""

    def __init__(self, columns: Schema, rows: Sequence[Sequence[str | None]]) -> None:
        self._columns = columns
        self._rows = [tuple(row) for row in rows]

    def columns(self) -> Schema | None:
        return self._columns

    def version(self) -> Any:
        return self._rows

    def read(self, columns: Schema, conditions: Sequence[Condition] = ()) -> pa.Table:  # noqa: ARG002
        places = {c.name: i for i, c in enumerate(self._columns)}
        if missing := [c.name for c in columns if c.name not in places]:
            refuse(f'the external table has no column "{missing[0]}"', hint=did_you_mean(missing[0], places))
        texts = [pa.array([row[places[c.name]] for row in self._rows], pa.string()) for c in columns]
        done = convert(texts, [c.type for c in columns])
        for column, found in zip(columns, done, strict=True):
            if found.bad is not None and found.bad.any():
                raise error("INVALID_VALUE", f'a value of column "{column.name}" is not {column.type.sql}')
        return pa.Table.from_arrays([d.column for d in done], schema=arrow_schema(columns, positional=False))


READERS: Final[dict[str, Callable[[External], Reader]]] = {
    "clickhouse": ClickhouseReader,
    "file": FileReader,
    "http": HttpReader,
    "iceberg": IcebergReader,
    "mysql": MysqlReader,
    "postgresql": PostgresReader,
    "s3": ObjectReader,
}


def taken_max_age_us(options: dict[str, str]) -> int:
    """The option that says how old answers of look-ups may be, which is taken out of `options`. CONNECTOR_OPTION."""
    name = next((n for n in options if n.lower() == MAX_AGE), None)
    if name is None:
        return 0
    text = options.pop(name)
    found = int(text) * SECOND_US if text.isdecimal() else length_us(text)
    if found is None or found < 0:
        refuse(f'option {name} can\'t be "{text}"', hint="It is a number of seconds, or a length of time such as 5m.")
    return found


def check_kind(kind: str, known: Sequence[str], what: str) -> None:
    """CONNECTOR_OPTION for a kind that does not exist, FEATURE_NOT_SUPPORTED for one that has no connector here.

    known: those that have.
    """
    if kind in known:
        return
    hint = f"Here {what} can be of kind {', '.join(known)}."
    if kind in KINDS:
        raise error(
            "FEATURE_NOT_SUPPORTED", f"{what} of kind {kind} is not supported: there is no connector for it", hint=hint
        )
    refuse(f'there is no kind "{kind}" of {what}', hint=did_you_mean(kind, KINDS) or hint)


def declared(reader: Reader, columns: Schema) -> tuple[Field, ...]:
    """The columns that were declared, or those that the reader knows. CONNECTOR_OPTION if there are none."""
    found = columns or reader.columns()
    if not found:
        refuse("the columns have to be declared", hint="Write them after the name: (id int, name string).")
    return tuple(found)
