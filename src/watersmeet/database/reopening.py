"""Sources that each query reads from a place of its own on: what it reads of one is a source that it owns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from watersmeet.algebra.nodes import Arrivals, Node, Reopened, Scan
from watersmeet.algebra.trees import transform_up, walk
from watersmeet.catalog import Catalog, QuerySource, Relation
from watersmeet.watermarks import Term, Watermark


def reopened_scans(tree: Node) -> list[Reopened]:
    """One scan for each source that a query needs of its own. Those of one relation and place share it."""
    found = {_place(n): n for n in walk(tree) if isinstance(n, Reopened)}
    return list(found.values())


def reading(tree: Node, sources: Iterable[QuerySource]) -> Node:
    """The tree of a query with its own sources in place of those that it names."""
    sources = list(sources)
    by_place = {(s.of, s.start, s.shards, s.strict): s.id for s in sources}
    ids = by_source(sources)

    def rule(node: Node) -> Node:
        if not isinstance(node, Reopened):
            return _with_clocks(node, ids)
        scan, source_id = scan_of(node), by_place[_place(node)]
        marks = tuple((column, moved(mark, {scan.relation_id: [source_id]})) for column, mark in scan.watermarks)
        own = replace(scan, relation_id=source_id, watermarks=marks)
        return replace(node.input, scan=own) if isinstance(node.input, Arrivals) else own

    return transform_up(tree, rule) if by_place else tree


def by_source(sources: Iterable[QuerySource]) -> dict[str, list[str]]:
    """By the id of a source, the ids of what a query reads of it."""
    found: dict[str, list[str]] = {}
    for source in sources:
        found.setdefault(source.of, []).append(source.id)
    return found


def _with_clocks(node: Node, ids: Mapping[str, Sequence[str]]) -> Node:
    """The node with the clocks of other sources in the watermarks that it compares with."""
    if isinstance(node, Scan):
        return node
    whole: Any = node  # all nodes are dataclasses
    marks = {f.name: v for f in fields(whole) if _is_watermark(v := getattr(node, f.name))}
    changed = {name: moved(mark, ids) for name, mark in marks.items()}
    return replace(whole, **changed) if changed != marks else node


def _is_watermark(value: object) -> bool:
    return isinstance(value, tuple) and bool(value) and all(isinstance(part, Term) for part in value)


def read_again(tree: Node, view: Relation, catalog: Catalog) -> Node:
    """The tree of a view that exists, which was bound once more, with the sources that it has."""
    own = [r for r in catalog.relations.values() if isinstance(r, QuerySource) and r.owner == (view.owner or view.id)]
    return reading(tree, own)


def moved(mark: Watermark, ids: Mapping[str, Sequence[str]]) -> Watermark:
    """A watermark of other sources. ids: theirs, by those that it has; the slowest one of several counts."""
    return tuple(replace(term, source=i) for term in mark for i in ids.get(term.source, (term.source,)))


def scan_of(node: Reopened) -> Scan:
    """The scan of the source, which may have the places of its rows in their order beside."""
    found = node.input.scan if isinstance(node.input, Arrivals) else node.input
    assert isinstance(found, Scan), "the binder makes them of scans"
    return found


def _place(node: Reopened) -> tuple[str, str, str, bool]:
    return scan_of(node).relation_id, node.start, node.shards, node.strict
