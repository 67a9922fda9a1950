"""LEFT JOIN of keyed streams whose rows show NULLs until they have met a partner, and not again: `SETTINGS
join_restore_nulls = 0`.

Proton's behaviour: when the last partner of a left row goes it takes the pair back and gives nothing. The default is
the standard's, where the row shows NULLs again.
"""

from __future__ import annotations

from dataclasses import replace

from watersmeet.algebra.relations import Aggregate, Join, KeyPair, Project, Records, Relation, Union
from watersmeet.algebra.scalars import null_of
from watersmeet.algebra.trees import read
from watersmeet.binder.rules import Binding
from watersmeet.types import BIGINT, BOOLEAN


def without_restored_nulls(joined: Join, binding: Binding) -> Relation:
    """The pairs of `joined`, a LEFT JOIN, and the left rows that never were in one, with NULLs.

    What a row has met is remembered as long as the view lives. A pair that comes and goes within an epoch was none.
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
