"""The content of a dictionary: its source, and the cache in front of it (TP-44 to TP-48; ruling D-003-10)."""

from __future__ import annotations

from collections.abc import Callable

from watersmeet.algebra.nodes import Join, KeyPair, Node, Union
from watersmeet.algebra.trees import exactly
from watersmeet.binder.context.binding import read
from watersmeet.binder.context.rules import Binding
from watersmeet.catalog import Relation


def with_cache(source: Node, relation: Relation, binding: Binding, scan: Callable[[Relation], Node]) -> Node:
    """The content of a dictionary: its cache stream, and the rows of `source` whose keys the cache lacks."""
    dictionary = relation.dictionary
    assert dictionary is not None
    if not dictionary.stream:
        return source
    stream = binding.catalog.relations[dictionary.stream]
    names = [c.name for c in relation.columns]
    cached, other = (
        exactly(tree, [c for n in names for c in tree.columns if c.name == n]) for tree in (scan(stream), scan(stream))
    )
    places = [names.index(k) for k in relation.primary_key]
    keys = tuple(KeyPair(read(source.columns[i]), read(other.columns[i])) for i in places)
    rest = Join(source, other, "anti", keys)
    outputs = tuple(
        binding.new_column(c.name, c.type, c.nullable or o.nullable)
        for c, o in zip(source.columns, cached.columns, strict=True)
    )
    return Union((cached, rest), outputs)
