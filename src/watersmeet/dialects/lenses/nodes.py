"""What Lenses' grammar tells the binder: how a SELECT reads its topics, and WITHIN of its joins."""

from __future__ import annotations

from typing import Any, ClassVar

from sqlglot import exp

from watersmeet.dialects.nodes import CommaJoin, MarkedSelect, MarkedTable


class RecordSelect(MarkedSelect):
    """SELECT STREAM or SELECT TABLE."""

    arg_types: ClassVar[dict[str, Any]] = {**exp.Select.arg_types, "nature": True}
    own_parts: ClassVar[frozenset[str]] = frozenset({"nature"})

    @property
    def word(self) -> str:
        """STREAM or TABLE."""
        return str(self.args["nature"].name.upper())


class RecordTable(MarkedTable):
    """A topic in FROM of such a SELECT."""

    arg_types: ClassVar[dict[str, Any]] = {**exp.Table.arg_types, "nature": True}
    own_parts: ClassVar[frozenset[str]] = frozenset({"nature"})

    @property
    def is_table(self) -> bool:
        """Whether the last record of each key counts, and not every one."""
        return bool(self.args["nature"].name == "table")


class WithinJoin(exp.Join):  # type: ignore[misc]
    """`JOIN … WITHIN 5s GRACE PERIOD 1h`, as often as it is written."""

    arg_types: ClassVar[dict[str, Any]] = {**exp.Join.arg_types, "within": True, "grace": False}
    own_parts: ClassVar[frozenset[str]] = frozenset({"within", "grace"})

    @property
    def lengths(self) -> list[exp.Expression]:
        """The intervals behind WITHIN."""
        return list(self.args["within"])

    @property
    def grace_periods(self) -> list[exp.Expression]:
        """The intervals behind GRACE PERIOD."""
        return list(self.args.get("grace") or [])


class WithinComma(CommaJoin, WithinJoin):
    """`, … WITHIN 5s`, which no query can have."""


def lengths_of(node: exp.Join) -> list[exp.Expression]:
    """The intervals behind WITHIN of a join; none without."""
    return node.lengths if isinstance(node, WithinJoin) else []
