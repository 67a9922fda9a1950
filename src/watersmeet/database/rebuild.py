"""Rebuilding: the plans of all views made anew from their statements, and with them all state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from watersmeet.algebra.nodes import Node
from watersmeet.algebra.trees import exactly
from watersmeet.binder import BoundQuery, as_emitted, bind_query, bind_view
from watersmeet.binder.dialects.registry import rules_of
from watersmeet.binder.emission import request_of
from watersmeet.catalog import CacheFill, Catalog, MaterializedView, Relation, Table
from watersmeet.circuit.operators import Operator
from watersmeet.database.reopening import read_again
from watersmeet.dialects import parse
from watersmeet.dialects.tree.definitions import CreateMaterializedView, CreateProcessor
from watersmeet.dialects.tree.statements import Subscribe
from watersmeet.planner import compile_connector_table, compile_view


def plans_made_anew(catalog: Catalog) -> dict[str, Sequence[Operator]]:
    """The operators of everything that the circuit feeds, by relation id in order of creation."""
    producers: dict[str, Sequence[Operator]] = {}
    for relation in catalog.relations.values():
        if relation.is_fed_by_circuit:
            producers[relation.id] = plan_made_anew(relation, producers, catalog)
    return producers


def plan_made_anew(
    relation: Relation,
    producers: Mapping[str, Sequence[Operator]],
    catalog: Catalog,
    *,
    moment: int = 0,
    late: Mapping[str, int] | None = None,
    left_out: frozenset[str] = frozenset(),
) -> Sequence[Operator]:
    """The operators of a relation that the circuit feeds. producers: of those that were created before it.

    moment: of a view that begins when it is filled, the newest commit. late, left_out: as in `compile_view`.
    """
    if isinstance(relation, Table):
        return compile_connector_table(relation)
    assert isinstance(relation, MaterializedView), f"{relation.title} is fed by the circuit"
    tree = read_again(_tree(relation, catalog.seen_by(relation), moment), relation, catalog)
    return compile_view(tree, relation, producers, catalog=catalog.as_stored, late=late, left_out=left_out)


def _tree(relation: Relation, catalog: Catalog, moment: int) -> Node:
    """What a view, or the processor of a topic, was made of."""
    if isinstance(relation, CacheFill):
        work = [r.id for r in catalog.relations.values() if isinstance(r, CacheFill) and r.owner == relation.owner]
        owner = catalog.relations[relation.owner]
        return _bound(owner, catalog.seen_by(owner), moment).fills[work.index(relation.id)].tree
    statement = parse(relation.sql, relation.dialect)[-1]
    if isinstance(statement, CreateProcessor):
        query = bind_query(statement.query, catalog, statement.text, relation.dialect, moment=moment)
        records = rules_of(relation.dialect).records_of(query)
        by_name = {c.name: c for c in records.columns}
        return exactly(records, [by_name[c.name] for c in relation.columns])
    return _bound(relation, catalog, moment).tree


def _bound(relation: Relation, catalog: Catalog, moment: int) -> BoundQuery:
    statement = parse(relation.sql, relation.dialect)[-1]
    if isinstance(statement, Subscribe):
        request = request_of(statement.query, statement.text, relation.dialect)
        bind = partial(bind_query, request.query, catalog, statement.text, relation.dialect, moment=moment)
        return as_emitted(lambda closing_us: bind(closing_us=closing_us), request.emission, statement.text)
    assert isinstance(statement, CreateMaterializedView), f"{relation.name} is stored as {relation.sql}"
    return bind_view(statement, catalog, relation.dialect, moment)
