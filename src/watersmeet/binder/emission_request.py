"""What a SELECT that runs says of its output and not of its rows: EMIT, LIMIT, `_tp_delta` and `emit_version()` in its
select list.

Proton's EMIT clause.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, cast

from sqlglot import exp

from watersmeet.catalog import DELTA_COLUMN
from watersmeet.dialects.queries import place_of
from watersmeet.errors import Span, error

EmitMode = Literal["stream", "changelog", "updates", "periodic", "window close"]

#: The setting that names a query that runs.
QUERY_ID: Final = "query_id"

_VERSION: Final = "emit_version"
#: As the grammar leaves a call of it.
_CALLED: Final = "$emit_version"


@dataclass(frozen=True)
class Emission:
    """An EMIT clause. length_us: of the period (0: as rows come), or of the delay of `window close`."""

    mode: EmitMode = "stream"
    length_us: int = 0
    span: Span | None = None


@dataclass(frozen=True)
class Place:
    """A column of the output that no relation has: so many columns stand before it, or behind it if `from_end`."""

    kind: Literal["delta", "version"]
    name: str
    number: int
    from_end: bool
    span: Span | None

    def index(self, width: int) -> int:
        """Its place among `width` columns, itself counted."""
        return width - 1 - self.number if self.from_end else self.number


@dataclass(frozen=True)
class Request:
    """query: without what is said of the output. limit: None: it runs until it is stopped.

    places: in the order of the list. query_id: what SETTINGS call it.
    """

    query: exp.Expression
    emission: Emission = Emission()
    limit: int | None = None
    offset: int = 0
    places: tuple[Place, ...] = ()
    query_id: str | None = None


def with_emit(query: exp.Expression) -> tuple[exp.Expression, Emission | None]:
    """The query without its EMIT clause, and that."""
    clause = query.args.get("emit")
    if clause is None:
        return query, None
    query = query.copy()
    query.set("emit", None)
    mode, length = clause.expressions
    return query, Emission(cast("EmitMode", mode.name), int(length.name), place_of(clause))


def request_of(query: exp.Expression, text: str) -> Request:
    """The query and what it says of its output. FEATURE_NOT_SUPPORTED for a list of nothing else."""
    query, emission = with_emit(query)
    query, query_id = _with_id(query)
    limit, offset = _number(query, "limit"), _number(query, "offset")
    ends = limit is not None and not query.args.get("order") and (offset is not None or not query.args.get("offset"))
    if ends:
        query = query.copy()
        query.set("limit", None)
        query.set("offset", None)
    query, places = _places(query, text)
    return Request(
        query, emission or Emission(), limit if ends else None, (offset or 0) if ends else 0, places, query_id
    )


def _with_id(query: exp.Expression) -> tuple[exp.Expression, str | None]:
    """The query without the setting that names it, and the name."""
    settings = query.args.get("settings") or []
    found = [n for n in settings if _names_query(n)]
    if not found:
        return query, None
    query = query.copy()
    query.set("settings", [n for n in query.args["settings"] if not _names_query(n)] or None)
    return query, found[-1].expression.name


def _names_query(setting: exp.Expression) -> bool:
    value = setting.args.get("expression")
    named = isinstance(setting, exp.EQ) and isinstance(setting.this, exp.Column) and setting.this.name == QUERY_ID
    return named and isinstance(value, exp.Literal) and bool(value.name)


def _number(query: exp.Expression, part: str) -> int | None:
    node = query.args.get(part)
    value = node.expression if node is not None else None
    return int(value.name) if isinstance(value, exp.Literal) and value.name.isdecimal() else None


def _places(query: exp.Expression, text: str) -> tuple[exp.Expression, tuple[Place, ...]]:
    if not isinstance(query, exp.Select) or not any(_kind(i) for i in query.expressions):
        return query, ()
    items = query.expressions
    if all(_kind(i) for i in items):
        raise error(
            "FEATURE_NOT_SUPPORTED",
            "a select list without a column of a stream is not supported",
            sql=text,
            span=place_of(items[0]),
            hint="Name a column beside it.",
        )
    places = []
    for i, item in enumerate(items):
        kind = _kind(item)
        if kind is not None:
            stars = any(n.is_star for n in items[:i])
            places.append(
                Place(
                    kind,
                    item.alias or (DELTA_COLUMN if kind == "delta" else f"{_VERSION}()"),
                    len(items) - 1 - i if stars else i,
                    stars,
                    place_of(item),
                )
            )
    query = query.copy()
    query.set("expressions", [item for item in query.expressions if _kind(item) is None])
    return query, tuple(places)


def _kind(item: exp.Expression) -> Literal["delta", "version"] | None:
    node = item.unalias()
    if isinstance(node, exp.Column) and node.name == DELTA_COLUMN and not node.args.get("table"):
        return "delta"
    called = isinstance(node, exp.Anonymous) and not node.expressions
    return "version" if called and node.this == _CALLED else None
