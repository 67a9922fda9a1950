"""The versions of a table's rows that a join keeps, as of an epoch: rows that a query can read.

They are read from the state itself, as nothing else has them. Of versions behind the watermarks the state has to keep
the newest of each key alone; others may still be there, and don't count: what is left of them says nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import duckdb
import pyarrow as pa

from watersmeet.algebra.bounded import Past, PastScan
from watersmeet.algebra.nodes import Column, Versions
from watersmeet.catalog import Relation
from watersmeet.circuit import operators
from watersmeet.circuit.circuit import Circuit
from watersmeet.database.opened import OpenDatabase
from watersmeet.kernel.operators.arrange import ROWS
from watersmeet.kernel.runs.shares import load
from watersmeet.lineage.origins import ADDED, OLDEST
from watersmeet.runtime.output import stored_state
from watersmeet.runtime.plans import kept_circuit
from watersmeet.session.access.reading import conformed, lent
from watersmeet.store.commits import Commit
from watersmeet.store.merging import quoted
from watersmeet.types import BIGINT, BOOLEAN, Field, arrow_schema
from watersmeet.watermarks import value

#: Columns beside those of the table: from when a version counts, and whether there is a row from then on.
_MADE: Final = (f"{ADDED}since", f"{ADDED}live")
_DIFF: Final = f"{ADDED}diff"


def kept_by(database: OpenDatabase, epoch: Commit, view: Relation, node: Versions) -> operators.Versions | None:
    """The operator whose versions a view reads; None if there is none, or more than one that might be it."""
    if epoch.circuit is None:
        return None
    circuit = kept_circuit(database.layout, epoch.circuit)
    below = circuit.below_sinks.get(view.id, frozenset())
    found = [
        o
        for o in map(circuit.by_id.__getitem__, below)
        if isinstance(o, operators.Versions) and o.source == node.scan.relation_id
    ]
    return found[0] if len(found) == 1 and len(found[0].schema) == len(node.columns) else None


def versions_scan(node: Versions, operator: operators.Versions, epoch: Commit) -> PastScan:
    """What stands for the versions: rows that are lent by `kept_versions` under the scan's name."""
    names = (*node.scan.source_names, *_MADE)
    outputs = (Column(c.id, n, c.type, c.nullable) for c, n in zip(node.columns, names, strict=True))
    oldest = Column(f"{node.made[0].id}.oldest", OLDEST, BOOLEAN, nullable=False)
    past = Past("commit", str(epoch.number))
    return PastScan(node.scan.relation_id, f"versions {operator.id}", past, (*outputs, oldest), None)


def kept_versions(
    database: OpenDatabase,
    epoch: Commit,
    connection: duckdb.DuckDBPyConnection,
    scan: PastScan,
    operator: operators.Versions,
) -> tuple[pa.Table, Sequence[Field]]:
    """The versions that count as of the newest epoch, and their columns.

    `OLDEST` is true for those before which there may have been others of their key that are forgotten.
    """
    assert epoch.circuit is not None
    *fields, oldest = (Field(c.name, c.type, c.nullable) for c in scan.outputs)
    rows = _stored(database, epoch, kept_circuit(database.layout, epoch.circuit), operator, fields)
    names = [quoted(f.name) for f in fields]
    since, listed = quoted(_MADE[0]), ", ".join(names)
    bound_us = value(operator.retain, epoch.progress.watermarks)
    with lent(connection, rows, (*fields, Field(_DIFF, BIGINT)), "kept"):
        text = f"SELECT {listed} FROM kept GROUP BY ALL HAVING sum({quoted(_DIFF)}) > 0"
        if bound_us is None:
            text = f"SELECT *, FALSE AS {quoted(OLDEST)} FROM ({text})"
        else:
            moment = f"CAST(make_timestamp({bound_us}) AS {fields[-2].type.duckdb})"
            key = ", ".join(names[i] for i in operator.keys)
            newest = f"max({since}) FILTER ({since} < {moment}) OVER (PARTITION BY {key})"
            text = (
                f"SELECT *, {since} < {moment} AS {quoted(OLDEST)} FROM ({text}) "
                f"QUALIFY {since} >= {moment} OR {since} = {newest}"
            )
        found = connection.execute(text).to_arrow_table()
    columns = (*fields, oldest)
    return conformed(found, arrow_schema(columns, positional=False)), columns


def _stored(
    database: OpenDatabase, epoch: Commit, circuit: Circuit, operator: operators.Versions, fields: Sequence[Field]
) -> pa.Table:
    """What is stored of the state in all buckets: rows that came and went, with the column `_DIFF`."""
    schema = arrow_schema((*fields, Field(_DIFF, BIGINT)), positional=False)
    parts = [schema.empty_table()]
    for bucket in range(circuit.buckets):
        place = f"{circuit.stages[operator.id]}/{bucket}"
        if place not in epoch.packs:
            continue
        state = stored_state(database.packs, epoch.packs[place], place)
        for ref in state.operators.get(operator.id, {}).get(ROWS, ()):
            run = load(ref, database.packs.read_blob(ref.blob))
            rows = [*run.arrays, pa.array(run.diff, pa.int64())]
            parts.append(pa.Table.from_arrays(rows, names=schema.names))
    return pa.concat_tables(parts, promote_options="permissive")
