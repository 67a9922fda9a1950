"""Named subscriptions: what keeps the changes of a relation for those who fetch them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from watersmeet.catalog.relations import Relation
from watersmeet.catalog.words import Words


@dataclass(frozen=True, slots=True)
class NamedSubscription(Relation):
    """A subscription of RisingWave: it keeps the changes of the relation on which it depends. It has no columns and no
    rows of its own.

    retention_us: for how long, in microseconds. begun: the newest commit when it was made: changes behind it are kept.
    """

    words: ClassVar[Words] = Words(
        "subscription", show=("subscriptions",), show_create=("subscription",), drop=("subscription",)
    )
    family: ClassVar[str] = "sink"
    entry: ClassVar[str] = "named subscription"

    retention_us: int = field(kw_only=True)
    begun: int = field(kw_only=True)
