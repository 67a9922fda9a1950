"""Rebuilding: the plans of all views made anew from their statements, and with them all state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from watersmeet.catalog import Catalog
from watersmeet.circuit.operators import Operator
from watersmeet.dialects import parse
from watersmeet.dialects.binder import bind_view
from watersmeet.dialects.statements import CreateMaterializedView
from watersmeet.planner import compile_connector_table, compile_view


def plans_made_anew(catalog: Catalog, buckets: int) -> dict[str, Sequence[Operator]]:
    """The operators of everything that the circuit feeds, for `buckets`, by relation id in order of creation."""
    producers: dict[str, Sequence[Operator]] = {}
    for relation in catalog.relations.values():
        if relation.kind == "table" and relation.connector:
            producers[relation.id] = compile_connector_table(relation, buckets)
        elif relation.kind == "materialized view":
            statement = parse(relation.sql, relation.dialect)[0]
            assert isinstance(statement, CreateMaterializedView), f"{relation.name} is stored as {relation.sql}"
            query = bind_view(statement, replace(catalog, path=relation.path), relation.dialect)
            producers[relation.id] = compile_view(query.tree, relation, producers, buckets, catalog=catalog)
    return producers
