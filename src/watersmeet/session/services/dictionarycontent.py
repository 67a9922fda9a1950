"""What a dictionary makes of the rows of its source, and which rows it refuses."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.catalog import AddressRanges, Relation
from watersmeet.errors import error
from watersmeet.session.access.context import Session
from watersmeet.session.services.addressranges import PLACES
from watersmeet.store.merging import quoted
from watersmeet.types import Schema

_INCOMING = "_incoming"


def columns_to_read(relation: Relation) -> Schema:
    """The columns as the source may have them: NULL where `with_defaults` has something for it."""
    defaults = () if relation.dictionary is None else relation.dictionary.defaults
    columns = relation.columns[len(PLACES) :] if isinstance(relation, AddressRanges) else relation.columns
    return tuple(replace(c, nullable=c.nullable or c.name in defaults) for c in columns)


def with_defaults(session: Session, relation: Relation, rows: pa.Table) -> pa.Table:
    """The rows with the defaults of attributes that can't be NULL in place of NULL."""
    dictionary = relation.dictionary
    assert dictionary is not None
    for name, default in dictionary.defaults.items():
        column = relation.column(name)
        if not column.nullable and rows.column(name).null_count:
            with session.database.content.session() as connection:
                made = connection.execute(f"SELECT CAST({default} AS {column.type.duckdb}) AS v").to_arrow_table()
            value = made.column(0)[0].cast(rows.schema.field(name).type)
            filled = pc.coalesce(rows.column(name), value)
            rows = rows.set_column(rows.column_names.index(name), rows.schema.field(name), filled)
    return rows


def check_content(session: Session, relation: Relation, rows: pa.Table) -> None:
    """INVALID_VALUE for a key that the layout can't have, or for ranges of one key that overlap.

    rows: one for each primary key.
    """
    dictionary = relation.dictionary
    assert dictionary is not None
    if dictionary.keys_below is not None and rows.num_rows:
        _check_flat(relation, rows, dictionary.keys_below)
    if dictionary.bounds and not isinstance(relation, AddressRanges):
        _check_ranges(session, relation, rows)


def _check_flat(relation: Relation, rows: pa.Table, below: int) -> None:
    (name,) = relation.primary_key
    found = pc.min_max(rows.column(name)).as_py()
    value = next((v for v in (found["min"], found["max"]) if v is not None and not 0 <= v < below), None)
    if value is not None:
        raise error(
            "INVALID_VALUE",
            f'key {value} of dictionary "{relation.name}" is out of range for layout FLAT',
            detail=f"Its keys are whole numbers from 0 to {below - 1}.",
            hint="FLAT(MAX_ARRAY_SIZE n) takes keys below n. HASHED takes all keys.",
        )


def _check_ranges(session: Session, relation: Relation, rows: pa.Table) -> None:
    """A date has at most one row of its key."""
    dictionary = relation.dictionary
    assert dictionary is not None
    *key, first = (quoted(n) for n in relation.primary_key)
    last, keys = quoted(dictionary.bounds[1]), ", ".join(key)
    with session.database.content.session() as connection:
        connection.register(_INCOMING, rows)
        try:
            found = connection.execute(
                f"""WITH dated AS (SELECT {keys}, {first}, {last}, lead({first}) OVER (PARTITION BY {keys}
                ORDER BY {first}) AS next FROM {_INCOMING} WHERE {last} IS NULL OR {first} <= {last})
                SELECT * FROM dated WHERE next IS NOT NULL AND ({last} IS NULL OR next <= {last}) LIMIT 1"""
            ).fetchone()
        finally:
            connection.unregister(_INCOMING)
    if found is not None:
        *values, start, end, following = found
        shown = ", ".join(map(str, values))
        raise error(
            "INVALID_VALUE",
            f'ranges of key {shown} of dictionary "{relation.name}" overlap',
            detail=f"One is from {start} to {'the end' if end is None else end}, the next one begins at {following}.",
            hint="Ranges that overlap are not supported: a date must have one row of its key.",
        )
