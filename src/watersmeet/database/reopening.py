"""Sources that each query reads from a place of its own on: what it reads of one is a source that it owns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from watersmeet.algebra.nodes import Node, Reopened, Scan
from watersmeet.algebra.trees import transform_up, walk
from watersmeet.catalog import Catalog, QuerySource, Relation
from watersmeet.watermarks import Watermark


def reopened_scans(tree: Node) -> list[Reopened]:
    """One scan for each source that a query needs of its own. Those of one relation and place share it."""
    found = {_place(n): n for n in walk(tree) if isinstance(n, Reopened)}
    return list(found.values())


def reading(tree: Node, sources: Iterable[QuerySource]) -> Node:
    """The tree of a query with its own sources in place of those that it names."""
    by_place = {(s.of, s.start, s.shards): s.id for s in sources}

    def rule(node: Node) -> Node:
        if not isinstance(node, Reopened):
            return node
        scan, source_id = _scan(node), by_place[_place(node)]
        marks = tuple((column, moved(mark, {scan.relation_id: source_id})) for column, mark in scan.watermarks)
        return replace(scan, relation_id=source_id, watermarks=marks)

    return transform_up(tree, rule) if by_place else tree


def read_again(tree: Node, view: Relation, catalog: Catalog) -> Node:
    """The tree of a view that exists, which was bound once more, with the sources that it has."""
    own = [r for r in catalog.relations.values() if isinstance(r, QuerySource) and r.owner == (view.owner or view.id)]
    return reading(tree, own)


def moved(mark: Watermark, ids: Mapping[str, str]) -> Watermark:
    """A watermark of other sources. ids: theirs, by those that it has."""
    return tuple(replace(term, source=ids.get(term.source, term.source)) for term in mark)


def _scan(node: Reopened) -> Scan:
    assert isinstance(node.input, Scan), "the binder makes them of scans"
    return node.input


def _place(node: Reopened) -> tuple[str, str, str]:
    return _scan(node).relation_id, node.start, node.shards
