"""Where the rows are that operators keep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

#: The values by whose hash a row is in its bucket: each the first of some columns that is not NULL.
Keys = tuple[tuple[int, ...], ...]

#: The name that stands for all traces of an operator that are not named.
OTHERS: Final = ""


@dataclass(frozen=True)
class Placing:
    """In which buckets the rows of a trace are.

    how: `keyed`: each in the bucket of its `keys`, positions in the trace; no keys: all in bucket 0. `anywhere`: each
    in one of them, no matter which; `keys` are all columns. `copied`: every bucket has all of them. `pooled`: each
    bucket has some, and what any of them has is true for all.
    """

    how: Literal["keyed", "anywhere", "copied", "pooled"]
    keys: Keys = ()
