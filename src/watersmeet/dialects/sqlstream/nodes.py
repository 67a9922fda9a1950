"""SQLstream's own nodes for the binder: SELECT STREAM, and the windows of items of FROM."""

from __future__ import annotations

from typing import Any, ClassVar

from sqlglot import exp

from watersmeet.dialects.tree.nodes import MarkedSelect, MarkedTable


class StreamSelect(MarkedSelect):
    """SELECT STREAM."""

    arg_types: ClassVar[dict[str, Any]] = {**exp.Select.arg_types, "stream": True}
    own_parts: ClassVar[frozenset[str]] = frozenset({"stream"})

    @property
    def word(self) -> exp.Var:
        """STREAM."""
        found: exp.Var = self.args["stream"]
        return found


class WindowedTable(MarkedTable):
    """`relation OVER window`."""

    arg_types: ClassVar[dict[str, Any]] = {**exp.Table.arg_types, "over": True}
    own_parts: ClassVar[frozenset[str]] = frozenset({"over"})


class WindowedSubquery(exp.Subquery):  # type: ignore[misc]
    """`(SELECT …) OVER window`."""

    arg_types: ClassVar[dict[str, Any]] = {**exp.Subquery.arg_types, "over": True}
    own_parts: ClassVar[frozenset[str]] = frozenset({"over"})


def window_of(node: exp.Expression) -> exp.Window | None:
    """The window behind an item of FROM; None if there is none."""
    return node.args["over"] if isinstance(node, (WindowedTable, WindowedSubquery)) else None
