"""EXPLAIN: the plan of a view in RisingWave's form, and what the view costs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from watersmeet.algebra.nodes import Node
from watersmeet.algebra.nodes import Scan as TreeScan
from watersmeet.algebra.rewrites import JoinOrder, rewrite, rewriting
from watersmeet.algebra.trees import walk
from watersmeet.catalog import MOST_JOIN_ROWS, Catalog, Relation
from watersmeet.circuit.operators import Operator, Scan
from watersmeet.drawing import to_dot
from watersmeet.planner.display import PlanTree, plan_diagram
from watersmeet.planner.footprint import footprint
from watersmeet.planner.logical import logical_tree
from watersmeet.planner.lowering import Producers, assemble, compile_view
from watersmeet.planner.names import Names
from watersmeet.planner.physical import PhysicalPrinter

#: The version of the JSON form, raised when a field is removed or changes its meaning.
JSON_VERSION: Final = 1


@dataclass(frozen=True)
class ExplainOptions:
    """What EXPLAIN shows. level: the rewritten algebra, the operators as a tree, or the operators by stage.

    trace: also the algebra before and after each rewrite. format: `dot` has only the tree.
    """

    verbose: bool = False
    level: Literal["logical", "physical", "distsql"] = "physical"
    format: Literal["text", "json", "dot"] = "text"
    trace: bool = False
    join_order: JoinOrder = "bushy"
    share: bool = True
    multiway: bool = True


def explain(
    tree: Node,
    sink: Relation,
    catalog: Catalog,
    producers: Producers,
    buckets: int,
    options: ExplainOptions | None = None,
) -> list[str]:
    """The lines of EXPLAIN for a view: the tree, an empty line, the stages and the state.

    The tree shows the exchanges, which do nothing if `buckets` is 1; the lines after it are about `buckets`.
    Raises what `compile_view` raises.
    """
    options = options or ExplainOptions()
    plan = (
        logical_plan(tree, options.join_order)
        if options.level == "logical"
        else physical_plan(
            tree,
            sink,
            catalog,
            producers,
            options.join_order,
            verbose=options.verbose,
            share=options.share,
            multiway=options.multiway,
        )
    )
    if options.format == "dot":
        return to_dot(plan_diagram(plan)).removesuffix("\n").split("\n")
    steps = trace(tree, options.join_order) if options.trace else []
    costs: dict[str, Any] = {}
    below: list[str] = []
    if options.level != "logical":
        ops = compile_view(
            tree,
            sink,
            producers,
            options.join_order,
            catalog=catalog,
            share=options.share,
            multiway=options.multiway,
        )
        circuit = assemble([ops], buckets)
        names = Names(circuit.by_id, catalog, leaves(circuit.by_id, catalog, _named(tree, producers)))
        found = footprint(circuit, names, _keepers(catalog, producers))
        costs, below = found.to_json(), found.lines()
        if sink.most_join_rows != MOST_JOIN_ROWS:
            costs["max_join_amplification_rows"] = sink.most_join_rows
            below.append(f"Rows that each join may make in one epoch: {sink.most_join_rows or 'any number'}")
        if options.level == "distsql":
            printer = PhysicalPrinter(circuit.by_id, names, verbose=True)
            operators = [{"stage": circuit.stages[o.id], "operator": printer.tree(o).text} for o in circuit.operators]
            costs["operators"] = operators
            below = ["Operators:", *[f"  stage {o['stage']}: {o['operator']}" for o in operators], *below]
    if options.format == "json":
        value = {"version": JSON_VERSION, "level": options.level, "plan": plan.to_json(), **costs}
        if options.trace:
            value["trace"] = [{"step": name, "plan": step.to_json()} for name, step in steps]
        return json.dumps(value, indent=2, ensure_ascii=False).split("\n")
    traced = [line for name, step in steps for line in (f"{name}:", "", *step.lines(), "")]
    return traced + plan.lines() + (["", *below] if below else [])


def trace(tree: Node, join_order: JoinOrder) -> list[tuple[str, PlanTree]]:
    """The tree as it was bound, and after each rewrite that changes its plan."""
    found = [("Begin", logical_tree(tree))]
    for name, changed in rewriting(tree, join_order):
        plan = logical_tree(changed)
        if plan != found[-1][1]:
            found.append((name.replace("_", " ").title(), plan))
    return found


def logical_plan(tree: Node, join_order: JoinOrder = "bushy") -> PlanTree:
    """The rewritten tree of a query."""
    return logical_tree(rewrite(tree, join_order))


def physical_plan(
    tree: Node,
    sink: Relation,
    catalog: Catalog,
    producers: Producers,
    join_order: JoinOrder = "bushy",
    *,
    verbose: bool = False,
    share: bool = True,
    multiway: bool = True,
) -> PlanTree:
    """The operators of a view as a tree whose leaves are the relations that it reads."""
    ops = compile_view(tree, sink, producers, join_order, catalog=catalog, share=share, multiway=multiway)
    by_id = {op.id: op for op in ops}
    names = Names(by_id, catalog, leaves(by_id, catalog, _named(tree, producers)))
    return PhysicalPrinter(by_id, names, verbose=verbose, timed=sink.watermarks).tree(ops[-1])


def stored_plan(view: Relation, catalog: Catalog, producers: Producers) -> PlanTree:
    """The operators of a view as they run, each with its id, arrangements included; the leaves are the relations that
    it reads.
    """
    by_id = {op.id: op for op in producers[view.id]}
    below = catalog.upstream(view.depends_on)
    names = Names(by_id, catalog, leaves(by_id, catalog, {i: ops for i, ops in producers.items() if i in below}))
    printer = PhysicalPrinter(by_id, names, verbose=True, timed=view.watermarks, arranged=True)
    return printer.tree(producers[view.id][-1])


def _named(tree: Node, producers: Producers) -> Producers:
    """The producers of the relations that the tree reads itself. Another view with the same plan is none of its
    leaves.
    """
    read = {n.relation_id for n in walk(tree) if isinstance(n, TreeScan)}
    return {i: ops for i, ops in producers.items() if i in read}


def _keepers(catalog: Catalog, producers: Producers) -> dict[str, tuple[str, ...]]:
    """By operator, the names of the relations that already keep it."""
    found: dict[str, tuple[str, ...]] = {}
    for relation_id, ops in producers.items():
        if relation_id in catalog.relations:
            for op in ops:
                found[op.id] = (*found.get(op.id, ()), catalog.relations[relation_id].shown)
    return found


def leaves(operators: Mapping[str, Operator], catalog: Catalog, producers: Producers) -> dict[str, Relation]:
    """The operators that are the content of a relation, by id. A Scan is shown as the relation that it scans."""
    found = {}
    for relation_id, ops in producers.items():
        top = ops[-1].inputs[0]
        if top in operators and not isinstance(operators[top], Scan) and relation_id in catalog.relations:
            found[top] = catalog.relations[relation_id]
    return found
