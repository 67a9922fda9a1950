"""LEFT JOIN of keyed streams whose rows show NULLs only until their first partner: `SETTINGS join_restore_nulls = 0`.

In Proton, when the last partner of a left row is deleted, the pair is deleted and nothing takes its place. The default
follows the standard: the row shows NULLs again.
"""

from __future__ import annotations

from dataclasses import replace

from watersmeet.algebra.nodes import Aggregate, Join, KeyPair, Node, Project, Records, Union
from watersmeet.algebra.scalars import null_of
from watersmeet.algebra.trees import read
from watersmeet.binder.context.rules import Binding
from watersmeet.types import BIGINT, BOOLEAN


def without_restored_nulls(joined: Join, binding: Binding) -> Node:
    """The pairs of `joined`, a LEFT JOIN, and, with NULLs, the left rows that were never in a pair.

    Whether a row has had a partner is remembered as long as the view exists. A pair inserted and deleted within one
    epoch does not count.
    """
    pairs = replace(joined, kind="inner")
    marks = (
        binding.new_column("_deleted", BOOLEAN, nullable=False),
        binding.new_column("_offset", BIGINT, nullable=False),
    )
    left = joined.left.columns
    met = tuple(binding.new_column(c.name, c.type, c.nullable) for c in left)
    ever = Aggregate(Records(pairs, None, (), marks), tuple(read(c) for c in left), (), met)
    keys = tuple(KeyPair(read(c), read(m), null_safe=c.nullable) for c, m in zip(left, met, strict=True))
    alone = Join(joined.left, ever, "anti", keys, span=joined.span)
    ids = joined.left.ids
    exprs = tuple(read(c) if c.id in ids else null_of(c.type) for c in joined.columns)
    padded = Project(alone, tuple(binding.new_column(c.name, c.type, c.nullable) for c in joined.columns), exprs)
    return Union((pairs, padded), joined.columns)
