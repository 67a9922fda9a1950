"""The keys of an order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from watersmeet.algebra.scalars import Scalar


@dataclass(frozen=True, slots=True)
class SortKey:
    """One key of an order; PostgreSQL's default for `nulls_first` is `descending`."""

    value: Scalar
    descending: bool = False
    nulls_first: bool = False

    def changed(self, change: Callable[[Scalar], Scalar]) -> SortKey:
        """The key with another expression."""
        return replace(self, value=change(self.value))
