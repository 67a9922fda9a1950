"""Lends the rows of each round of a recursive query to the connection that explains a row."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Final

import duckdb
import numpy as np
import pyarrow as pa

from watersmeet.algebra.bounded import Recursion
from watersmeet.algebra.trees import walk
from watersmeet.database.reading import conformed, lent
from watersmeet.errors import error
from watersmeet.lineage.steps import Asker
from watersmeet.lineage.subqueries import all_name, of_round, round_name
from watersmeet.lineage.trees import Explained, plain
from watersmeet.store.changes import quoted
from watersmeet.values.types import BIGINT, Field, arrow_schema

#: The maximum number of rounds of one recursion.
MOST_ROUNDS: Final = 1000

_NUMBER: Final = Field("round", BIGINT, nullable=False)


def lend_rounds(explained: Explained, asker: Asker, connection: duckdb.DuckDBPyConnection, entered: ExitStack) -> None:
    """Lends the rows of each round of all recursions of a query until `entered` ends.

    Raises FEATURE_NOT_SUPPORTED for a recursion of more than `MOST_ROUNDS`.
    """
    done = set()
    for node in reversed(list(walk(explained.tree))):
        if isinstance(node, Recursion) and node.name not in done:
            done.add(node.name)
            _lend(node, explained, asker, connection, entered)


def _lend(
    recursion: Recursion,
    explained: Explained,
    asker: Asker,
    connection: duckdb.DuckDBPyConnection,
    entered: ExitStack,
) -> None:
    fields = tuple(Field(f"c{i}", c.type) for i, c in enumerate(recursion.outputs))
    schema = arrow_schema((*fields, _NUMBER), positional=False)
    rounds, every = [schema.empty_table()], all_name(recursion)
    for number in range(1, MOST_ROUNDS + 2):
        tree = of_round(recursion, number)
        names = ", ".join(quoted(c.id) for c in tree.columns)
        text = f"SELECT {names} FROM ({asker.text(plain(tree, explained))})"
        if recursion.distinct:
            with lent(connection, pa.concat_tables(rounds).drop_columns([_NUMBER.name]), fields, every):
                found = connection.execute(f"SELECT DISTINCT * FROM ({text}) EXCEPT SELECT * FROM {quoted(every)}")
                rows = found.to_arrow_table()
        else:
            rows = connection.execute(text).to_arrow_table()
        if not rows.num_rows:
            break
        rows = conformed(rows, arrow_schema(fields, positional=False))
        entered.enter_context(lent(connection, rows, fields, round_name(recursion, number)))
        rounds.append(rows.append_column(schema.field(_NUMBER.name), pa.array(np.full(rows.num_rows, number))))
    else:
        raise error(
            "FEATURE_NOT_SUPPORTED",
            f"a row of {explained.name} can't be explained",
            detail=f"It has a recursion of more than {MOST_ROUNDS} rounds.",
        )
    entered.enter_context(lent(connection, pa.concat_tables(rounds), (*fields, _NUMBER), every))
