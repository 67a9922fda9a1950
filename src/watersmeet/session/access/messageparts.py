"""Parts of the messages that are written to a stream, which follow from its rows: message_key and sharding_expr.

Timeplus, "Kafka Sink".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import pyarrow as pa

from watersmeet.catalog import ComputedPart, Relation
from watersmeet.dialects.registry import language_named
from watersmeet.dialects.script import tokenize
from watersmeet.dialects.tree.queries import read_expression
from watersmeet.errors import error
from watersmeet.formats.encoders import BROKERS_OWN, COMPUTED_KEY, COMPUTED_PARTITION
from watersmeet.kernel.metrics import Counters
from watersmeet.runtime.generated import computed
from watersmeet.session.access.columnvalues import bound_value, positional
from watersmeet.session.access.context import Session
from watersmeet.types import Field, Schema

_KEY_COLUMN: Final = "_tp_message_key"


class _Setting(NamedTuple):
    part: str
    kind: str
    takes: tuple[str, ...]


_SETTINGS: Final = {
    "message_key": _Setting(COMPUTED_KEY, "a string", ("varchar",)),
    "sharding_expr": _Setting(COMPUTED_PARTITION, "a whole number", ("smallint", "integer", "bigint", "numeric")),
}
#: What is so without the setting.
_ANY_PARTITION: Final = "rand()"


def take_computed_parts(
    session: Session, settings: dict[str, str], name: str, columns: Schema
) -> tuple[ComputedPart, ...]:
    """The parts that settings of the stream `name` say, which are taken out of `settings`.

    columns: those that the stream declares. CONNECTOR_OPTION; DATATYPE_MISMATCH; errors of the expressions.
    """
    made = []
    for setting, (part, kind, takes) in _SETTINGS.items():
        text = settings.pop(setting, "").strip()
        if not text or (part == COMPUTED_PARTITION and text.lower().replace(" ", "") == _ANY_PARTITION):
            continue
        if _KEY_COLUMN in [c.name for c in columns]:
            raise error(
                "CONNECTOR_OPTION",
                f"setting {setting} can't be given beside the column {_KEY_COLUMN}",
                hint=f"Leave one of both out: the column is the key of messages, and {setting} says it too."
                if part == COMPUTED_KEY
                else "Leave one of both out: messages with a key go to the partition of its hash.",
            )
        language = language_named(session.dialect)
        tree = read_expression(tokenize(text, language), text, language.grammar)
        value = bound_value(tree, columns, name, text, f"setting {setting}")
        if value.type.name not in takes or value.type.scale:
            raise error("DATATYPE_MISMATCH", f"setting {setting} must give {kind}, not {value.type.sql}")
        made.append(ComputedPart(Field(f"?{setting}", value.type), part, positional(value, columns)))
    return tuple(made)


def unwritten(stream: Relation) -> set[str]:
    """The columns of a stream outside of the database that nobody gives who writes to it: what the brokers say, and the
    key where it is computed.
    """
    computed = [c.part for c in stream.computed_parts]
    parts = (*BROKERS_OWN, "key") if COMPUTED_KEY in computed else BROKERS_OWN
    return {column for column, part in stream.message_parts.items() if part in parts}


def with_computed_parts(rows: pa.Table, parts: Sequence[ComputedPart], title: str) -> pa.Table:
    """The rows with a column for each part. title: of the stream. INVALID_VALUE if an expression raises an error."""
    for part in parts:
        counters = Counters()
        values = computed(rows, part.column, part.value, counters)
        if counters.expression_errors:
            raise error(
                "INVALID_VALUE",
                f"setting {part.column.name[1:]} of {title} can't be computed",
                detail=f"Its expression raises an error in {counters.expression_errors} of {rows.num_rows} rows.",
            )
        rows = rows.append_column(part.column.name, values)
    return rows
