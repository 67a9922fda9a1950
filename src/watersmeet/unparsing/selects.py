"""A SELECT while it is written: what may still be added to it, and what needs one around it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self


@dataclass(frozen=True)
class Select:
    """`WITH … SELECT [distinct] items FROM source WHERE … GROUP BY … QUALIFY … ORDER BY … LIMIT …`.

    items: None for all columns of the source. more: what is selected behind them. tail: ORDER BY and what follows it.
    """

    source: str
    items: tuple[str, ...] | None = None
    more: tuple[str, ...] = ()
    where: tuple[str, ...] = ()
    distinct: str = ""
    group: str = ""
    qualify: str = ""
    tail: str = ""

    @property
    def text(self) -> str:
        """The whole."""
        parts = [f"SELECT {self.distinct}" + ", ".join((*(("*",) if self.items is None else self.items), *self.more))]
        parts += [f"FROM {self.source}"] if self.source else []
        parts += ["WHERE " + " AND ".join(self.where)] if self.where else []
        return " ".join([*parts, *(p for p in (self.group, self.qualify, self.tail) if p)])

    @property
    def item(self) -> str:
        """As an item of FROM."""
        return self.source if self.is_bare and not self.where else f"({self.text})"

    @property
    def is_bare(self) -> bool:
        """Whether it is all columns of its source, maybe filtered."""
        return self.items is None and not (self.more or self.distinct or self.qualify or self.tail)

    @property
    def bare(self) -> Self:
        """The same rows as a SELECT to which a clause may be added."""
        return self if self.is_bare else self.around()

    def around(self) -> Self:
        """A SELECT of all of it."""
        return type(self)(f"({self.text})")

    def filtered(self, *conditions: str) -> Self:
        """With only the rows for which the conditions are true."""
        found = self.bare
        return replace(found, where=(*found.where, *conditions))

    def listed(self, items: Sequence[str]) -> Self:
        """With these items for its columns."""
        found = self.around() if self.items is not None or self.more or self.distinct else self
        return replace(found, items=tuple(items))

    def beside(self, more: Sequence[str]) -> Self:
        """With these items behind its columns; they read none that `more` has made."""
        found = self.bare
        return replace(found, more=tuple(more))
