"""Written rows in the declared types of their columns (`values.types.Declared`).

Only a written row fails if its text is too long, and only in characters other than blanks at its end: PostgreSQL 17,
8.3 "Character Types". The values are those of a cast (`values.declaredtypes`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.catalog import Relation
from watersmeet.database.sessions.context import Session
from watersmeet.database.sessions.sequences import take
from watersmeet.dialects.tree.statements import Statement
from watersmeet.dialects.tree.tokens import not_supported
from watersmeet.errors import Span, error
from watersmeet.kernel.evaluation.expressions import generated_values
from watersmeet.kernel.metrics import Counters
from watersmeet.values.declaredtypes import ADDRESS, MOST_OID, Declared, narrowing
from watersmeet.values.types import JSON, UUID, Field, Schema

_STORED_UUID: Final = "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"


def check_fed_types(
    relation: Relation, columns: Schema, declared: Mapping[str, Declared], statement: Statement, span: Span
) -> None:
    """Raises FEATURE_NOT_SUPPORTED for a column of a type whose rules a connector's rows would not follow."""
    for column in columns:
        if column.type.leaf in (JSON, UUID) or declared.get(column.name) not in (None, Declared("text")):
            raise not_supported(
                f'the declared type of column "{column.name}" of {relation.title}, which a connector fills,',
                statement.text,
                span,
                hint="Declare it varchar, bigint, jsonb, time, timestamp or interval, without length or digits.",
            )


#: The prefix of a column that is true in the rows in which another column is DEFAULT.
FLAG: Final = "default of "


def with_serials(session: Session, relation: Relation, rows: pa.Table, left_out: Collection[str]) -> pa.Table:
    """The rows with numbers in the serial columns among those that they omit, or for which they have a flag. The caller
    holds the guard.
    """
    flags = {n.removeprefix(FLAG): rows.column(n) for n in rows.column_names if n.startswith(FLAG)}
    rows = rows.drop_columns([f"{FLAG}{name}" for name in flags])
    for name in relation.serials:
        flag = None if name in left_out else flags.get(name)
        count = rows.num_rows if flag is None else pc.sum(flag).as_py() or 0
        if count and (name in left_out or flag is not None):
            place = rows.column_names.index(name)
            try:
                taken = take(session, relation.serials[name].sequence, count)
                values = pa.chunked_array([pa.array(taken, rows.schema.field(place).type)])
            except (pa.ArrowInvalid, OverflowError):
                raise error("VALUE_OUT_OF_RANGE", f"{relation.column(name).type.sql} out of range") from None
            if flag is not None:
                values = pc.replace_with_mask(
                    rows.column(place).combine_chunks(), flag.combine_chunks(), values.combine_chunks()
                )
            rows = rows.set_column(place, rows.schema.field(place), values)
    return rows


def check_uuids(relation: Relation, rows: pa.Table) -> None:
    """Raises INVALID_VALUE for a uuid that is not in its stored form, whose equality would be wrong."""
    for column in relation.columns:
        if column.type.leaf == UUID and column.name in rows.column_names:
            leaves = _leaves(rows.column(column.name))
            wrong = pc.invert(pc.match_substring_regex(leaves, _STORED_UUID))
            if pc.any(wrong).as_py():
                raise error("INVALID_VALUE", f'invalid input syntax for type uuid: "{leaves.filter(wrong)[0].as_py()}"')


def _leaves(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """The elements of arrays of any depth."""
    while pa.types.is_list(values.type):
        values = pc.list_flatten(values)
    return values


def kept(values: pa.ChunkedArray, column: Field, declared: Declared) -> pa.ChunkedArray:
    """The values of a column of written rows, in their declared type.

    Raises VALUE_TOO_LONG for a text with more characters than its length, except blanks at its end; INVALID_VALUE.
    """
    leaves = _leaves(values)
    _check(leaves, declared)
    if declared.name == "varchar" and (pc.max(pc.utf8_length(leaves)).as_py() or 0) <= (declared.length or 0):
        return values
    template = narrowing(column.type, declared, "c0")
    if template is None or declared.name in ("inet", "cidr", "oid"):
        return values
    rows = pa.table({column.name: values})
    return generated_values(rows, column, (column,), template, Counters())


def _check(leaves: pa.ChunkedArray, declared: Declared) -> None:
    if declared.length is not None:
        lengths = pc.utf8_length(pc.utf8_rtrim(leaves, " "))
        if (pc.max(lengths).as_py() or 0) > declared.length:
            shown = f"{'character' if declared.name == 'bpchar' else 'character varying'}({declared.length})"
            raise error("VALUE_TOO_LONG", f"value too long for type {shown}")
    wrong = None
    if declared.name in ("inet", "cidr"):
        wrong = pc.invert(pc.match_substring_regex(leaves, f"^({ADDRESS})$"))
    elif declared.name == "oid":
        wrong = pc.or_(pc.less(leaves, 0), pc.greater(leaves, MOST_OID))
    if wrong is not None and pc.any(wrong).as_py():
        value = leaves.filter(wrong)[0].as_py()
        raise error("INVALID_VALUE", f'invalid input syntax for type {declared.name}: "{value}"')


def padded(table: pa.Table, columns: Schema) -> pa.Table:
    """The rows of a result, in which values of type `char(n)` are filled with blanks.

    Stored values have no blanks at their ends, so that comparisons ignore them.
    """
    for place, column in enumerate(columns):
        if column.type.leaf.padding:
            chunks = [_filled(chunk, column.type.leaf.padding) for chunk in table.column(place).chunks]
            field = table.schema.field(place)
            table = table.set_column(place, field, pa.chunked_array(chunks, field.type))
    return table


def _filled(values: pa.Array, length: int) -> pa.Array:
    """Texts, or arrays of texts, with blanks up to a length."""
    if not pa.types.is_list(values.type):
        return pc.utf8_rpad(values, length, " ")
    values = pa.concat_arrays([values])  # the offsets of a slice of a larger array do not begin at 0
    elements = _filled(values.values, length)
    return pa.ListArray.from_arrays(values.offsets, elements, type=values.type, mask=values.is_null())
