"""Settings that several statements share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from watersmeet.catalog.relations import Relation
from watersmeet.catalog.words import Words


@dataclass(frozen=True, slots=True)
class NamedCollection(Relation):
    """A named collection of Timeplus: settings that external streams and tables take over when they are created. It has
    no columns and no rows.

    settings: names in lower case. fixed: the names of those that a statement can't override.
    """

    words: ClassVar[Words] = Words(
        "named collection", show=("named collections",), show_create=("named collection",), drop=("named collection",)
    )
    family: ClassVar[str] = "source"
    entry: ClassVar[str] = "named collection"
    can_alter: ClassVar[bool] = False

    settings: dict[str, str] = field(kw_only=True)
    fixed: tuple[str, ...] = field(default=(), kw_only=True)
