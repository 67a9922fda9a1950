"""What two sources of records need to be joined: keys in one format, and equal numbers of partitions.

Lenses, "Joins", "Key decoder types", "Co-partitioning", "ON expressions and key change"; LS-31 to LS-36, D-004-16,
D-004-17. Formats are also compared if ON equates values. A key that a query computes has no format of its own.
"""

from __future__ import annotations

from sqlglot import exp

from watersmeet.algebra.nodes import Node, Repartition
from watersmeet.binder.context.binding import Environment
from watersmeet.binder.context.scope import Scope
from watersmeet.binder.dialects.lenses.extensions import RecordLayout, RecordMetadata, metadata_in
from watersmeet.dialects.tree.queries import place_of
from watersmeet.errors import error

Sourced = tuple[Node, Scope]


def check_keys(left: Scope, right: Scope, node: exp.Join, env: Environment) -> RecordLayout:
    """How the joined records are stored if the join is by their keys. KEY_FORMATS."""
    one, other = _metadata(left), _metadata(right)
    formats = one.layout.key_format, other.layout.key_format
    if None not in formats:
        types = [f.key.type.sql for f in (one, other) if f.key is not None]
        shown = (
            [f"{f} ({t})" for f, t in zip(formats, types, strict=True)] if formats[0] == formats[1] else list(formats)
        )
        if shown[0] != shown[1]:
            names = [s.tables[-1].alias for s in (left, right)]
            raise error(
                "KEY_FORMATS",
                f"key formats differ: {names[0]} has {shown[0]}, {names[1]} has {shown[1]}",
                sql=env.text,
                span=place_of(node.this),
                detail="Sources are joined by keys in one format, even if ON compares values.",
                hint=f"Write one of them again: INSERT INTO topic STORE KEY AS {formats[0]} VALUE AS AVRO SELECT TABLE "
                f"CAST(_key AS {types[0]}) AS _key, … FROM {names[1]}.",
            )
    counts = [f.layout.partitions for f in (one, other) if f.layout.partitions is not None]
    value_format = one.layout.value_format or other.layout.value_format
    return RecordLayout(formats[0] if formats[0] == formats[1] else None, max(counts, default=None), value_format)


def copartitioned(left: Sourced, right: Sourced) -> tuple[Sourced, Sourced]:
    """Both sources with equal numbers of partitions: the one with fewer is repartitioned (D-004-16), and so is one
    whose records are not where their keys belong.
    """
    layouts = _metadata(left[1]).layout, _metadata(right[1]).layout
    counts = [layout.partitions for layout in layouts]
    if counts[0] is None or counts[1] is None:
        return left, right
    wanted = max(counts[0], counts[1])
    one, other = (
        sourced if layout.partitions == wanted and layout.by_hash else (Repartition(sourced[0], wanted), sourced[1])
        for sourced, layout in zip((left, right), layouts, strict=True)
    )
    return one, other


def _metadata(scope: Scope) -> RecordMetadata:
    metadata = metadata_in(scope)
    assert metadata is not None, "only sources of records are joined"
    return metadata
