"""What Timeplus' grammar tells the binder: streams in FROM, joins by ranges of time, UNION without a mode."""

from __future__ import annotations

from typing import Any, ClassVar

from sqlglot import exp

from watersmeet.dialects.nodes import MarkedTable


class EmitClause(exp.Expression):  # type: ignore[misc]
    """EMIT, as the part `emit` of a whole query: when its output comes."""

    arg_types: ClassVar[dict[str, Any]] = {"mode": True, "length_us": True}

    @property
    def mode(self) -> str:
        """What its words say: stream, changelog, updates, periodic, window close."""
        return str(self.args["mode"])

    @property
    def length_us(self) -> int:
        """The length that they give, in microseconds; 0 without."""
        return int(self.args["length_us"])


class PlainUnion(exp.Union):  # type: ignore[misc]
    """A UNION that says neither ALL nor DISTINCT. Its own place is that of its word."""


class DictionaryJoin(exp.Join):  # type: ignore[misc]
    """A left join with a dictionary that stands for calls of `dict_get` and the like.

    computes: what it compares of the left side takes time to compute.
    """

    arg_types: ClassVar[dict[str, Any]] = {**exp.Join.arg_types, "computes": False}
    own_parts: ClassVar[frozenset[str]] = frozenset({"computes"})


class RangeJoin(exp.Join):  # type: ignore[misc]
    """A join whose condition bounds the time between the rows of its two sides."""


class StreamTable(MarkedTable):
    """A relation in FROM: `stream`, `table(stream)`, `changelog(stream, key, …)`.

    static: it stands in `table()`. changelog: the names behind the stream in `changelog()`. rewound: WHERE asks for
    rows from a time on, which may be before the query starts.
    """

    arg_types: ClassVar[dict[str, Any]] = {**exp.Table.arg_types, "static": False, "changelog": False, "rewound": False}
    own_parts: ClassVar[frozenset[str]] = frozenset({"static", "changelog", "rewound"})
    stored_parts: ClassVar[frozenset[str]] = frozenset({"static", "rewound"})

    @property
    def is_stored(self) -> bool:
        """Whether it stands in `table()`."""
        return bool(self.args.get("static"))

    @property
    def is_rewound(self) -> bool:
        """Whether WHERE says where it begins."""
        return bool(self.args.get("rewound"))

    @property
    def keys(self) -> list[exp.Expression] | None:
        """The names of the keys of `changelog()`; None if it does not stand there."""
        found: list[exp.Expression] | None = self.args.get("changelog")
        return found
