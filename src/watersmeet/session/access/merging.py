"""How MERGE writes the rows of its source: by one key of the table, row after row, as s-Server does."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from watersmeet.catalog import Merging, Relation, one
from watersmeet.connectors.base.targets import connector_named
from watersmeet.dialects.tree.definitions import MergeClauses
from watersmeet.dialects.tree.statements import Name, Statement
from watersmeet.session.access.assignment import named_targets
from watersmeet.session.access.context import error_at


def merging_of(
    statement: Statement, relation: Relation, table: Name, columns: Sequence[Name], values: Sequence[exp.Expression]
) -> Merging | None:
    """How the rows of a MERGE are written; None for other statements. columns, values: of its INSERT; without columns
    values go to those of the relation.

    FEATURE_NOT_SUPPORTED for another table than one of another system, and where rows that are there get other values
    than those that would be inserted.
    """
    clauses = getattr(statement, "clauses", None)
    if clauses is None:
        return None
    assert isinstance(clauses, MergeClauses)
    there = relation.external
    if there is None or not there.target or connector_named(there.target["connector"]).change is None:
        raise error_at(
            statement, table.span, "FEATURE_NOT_SUPPORTED", f"MERGE into {one(relation.what)} is not supported",
            hint="A table with a PRIMARY KEY needs none: an inserted row replaces the one of its key.",
        )  # fmt: skip
    targets = named_targets(relation, tuple(columns), statement) if columns else ()
    names = [t.column.name for t in targets] or [c.name for c in relation.columns]
    inserted = dict(zip(names, values, strict=False))
    found = []
    for pairs, where in ((clauses.on, "ON"), (clauses.updated, "UPDATE")):
        given = named_targets(relation, tuple(name for name, _ in pairs), statement)
        for target, (name, value) in zip(given, pairs, strict=True):
            if inserted.get(target.column.name) != value:
                raise error_at(
                    statement, name.span, "FEATURE_NOT_SUPPORTED",
                    f'another value of column "{target.column.name}" in {where} than in INSERT is not supported',
                    hint="Give the column in INSERT, too, with the same value.",
                )  # fmt: skip
        found.append(tuple(t.column.name for t in given))
    return Merging(*found)
