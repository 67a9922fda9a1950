"""Writes each node of the algebra as DuckDB SQL. Columns are named by their ids, which are unique in a tree, so that an
expression has the same text everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import singledispatchmethod
from typing import Final, Self

from sqlglot import exp

from watersmeet.algebra.bounded import FileScan, Named, PastScan, Recursion, SystemScan, TopicScan
from watersmeet.algebra.nodes import (
    Aggregate,
    Apply,
    Arrivals,
    Column,
    Expand,
    Filter,
    Join,
    Node,
    Project,
    Repeat,
    Scan,
    TopN,
    Union,
    Unnest,
    Values,
    Window,
)
from watersmeet.algebra.rewrites.conditions import as_predicate
from watersmeet.algebra.scalars import Scalar, conjuncts
from watersmeet.errors import error
from watersmeet.system.duckdbs import ARRIVAL, arrival_view
from watersmeet.unparsing.pushdown import found_by_key
from watersmeet.unparsing.texts import aggregate, alias, as_column, cast, key_text, order_by, quoted, sql, window


@dataclass(frozen=True)
class Select:
    """`WITH … SELECT [distinct] items FROM source WHERE … GROUP BY … QUALIFY … ORDER BY … LIMIT …`.

    items: None for all columns of the source. more: further items. tail: ORDER BY, LIMIT, OFFSET.
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
        """The whole SELECT."""
        parts = [f"SELECT {self.distinct}" + ", ".join((*(("*",) if self.items is None else self.items), *self.more))]
        parts += [f"FROM {self.source}"] if self.source else []
        parts += ["WHERE " + " AND ".join(self.where)] if self.where else []
        return " ".join([*parts, *(p for p in (self.group, self.qualify, self.tail) if p)])

    @property
    def item(self) -> str:
        """The SELECT as an item of FROM."""
        return self.source if self.is_bare and not self.where else f"({self.text})"

    @property
    def is_bare(self) -> bool:
        """Whether it selects all columns of its source, and at most filters rows."""
        return self.items is None and not (self.more or self.distinct or self.qualify or self.tail)

    @property
    def bare(self) -> Self:
        """A SELECT with the same rows, to which a clause may be added."""
        return self if self.is_bare else self.around()

    def around(self) -> Self:
        """A SELECT of all its rows as a subquery."""
        return type(self)(f"({self.text})")

    def filtered(self, *conditions: str) -> Self:
        """The SELECT with only the rows for which the conditions are true."""
        found = self.bare
        return replace(found, where=(*found.where, *conditions))

    def listed(self, items: Sequence[str]) -> Self:
        """The relation with these items as its only columns."""
        found = self.around() if self.items is not None or self.more or self.distinct else self
        return replace(found, items=tuple(items))

    def beside(self, more: Sequence[str]) -> Self:
        """The relation with these items after its columns. The items must not read columns of `more`."""
        found = self.bare
        return replace(found, more=tuple(more))


#: A condition that keeps all rows, but has a window function, below which DuckDB pushes no filter.
_WINDOW: Final = "QUALIFY row_number() OVER () >= 1"


@dataclass
class Writer:
    """Writes one query. relation_name: returns the DuckDB relation with the content of a relation id. named: the WITH
    queries, which precede all others.

    DuckDB also pushes filters of a join below LIMIT and DISTINCT ON, which changes their rows (`join_filters` of
    `duckdbs.connect`). So below joins, these are written as window functions, or within one.
    """

    relation_name: Callable[[str], str]
    named: dict[str, str] = field(default_factory=dict)
    _read: dict[str, frozenset[str]] = field(default_factory=dict)
    _joins: int = 0
    """The number of joins that may enclose the SQL that is being written."""

    @contextmanager
    def _joined(self) -> Iterator[None]:
        """A context in which the SQL being written may be below a join."""
        self._joins += 1
        yield
        self._joins -= 1

    def query(self, tree: Node, names: Sequence[str]) -> str:
        """A query of the rows of `tree`, with these names for its columns."""
        found = self.select(tree)
        if any(n.startswith("#") for n in names):  # such names could be mistaken for ids
            found = found.around().listed(_picked(tree.columns, names))
        elif isinstance(tree, Project):
            found = replace(found, items=tuple(_called(sql(x), n) for x, n in zip(tree.exprs, names, strict=True)))
        else:
            found = found.listed(_picked(tree.columns, names))
        heads = [f"{quoted(n)} AS ({text})" for n, text in self.named.items()]
        return f"WITH {', '.join(heads)} {found.text}" if heads else found.text

    def text(self, tree: Node) -> str:
        """A query whose columns are exactly those of `tree`, by their ids."""
        found = self.select(tree)
        return (found if found.items is not None and not found.more else found.listed(_ids(tree.columns))).text

    @singledispatchmethod
    def select(self, node: Node) -> Select:
        """A SELECT of the rows of `node`, with columns named by their ids."""
        raise AssertionError(type(node).__name__)

    # -- what is stored ---------------------------------------------------------------------------------------------

    @select.register
    def _(self, node: Scan) -> Select:
        return Select(_table(self.relation_name(node.relation_id), node.columns))

    @select.register
    def _(self, node: Arrivals) -> Select:
        view = arrival_view(self.relation_name(node.scan.relation_id))
        epoch, sequence = node.age
        ages = (as_column("0", epoch), as_column(f"-{quoted(ARRIVAL)}", sequence))
        return Select(_table(view, node.scan.columns), (*_ids(node.scan.columns), *ages)).around()

    @select.register
    def _(self, node: FileScan) -> Select:
        items = (as_column(cast(quoted(n), c.type), c) for n, c in zip(node.source_names, node.outputs, strict=True))
        return Select(node.call.sql(dialect="duckdb"), tuple(items))

    @select.register
    def _(self, node: PastScan | SystemScan | TopicScan) -> Select:
        return Select(_table(node.name, node.outputs))

    @select.register
    def _(self, node: Values) -> Select:
        if len(node.rows) == 1:
            return Select("", tuple(as_column(sql(s), c) for s, c in zip(node.rows[0], node.outputs, strict=True)))
        inner = [f"v{i}" for i in range(len(node.outputs))]
        rows = ", ".join(f"({', '.join(map(sql, row))})" for row in node.rows)
        items = (as_column(cast(n, c.type), c) for n, c in zip(inner, node.outputs, strict=True))
        return Select(f"(VALUES {rows}) AS v({', '.join(inner)})", tuple(items))

    # -- names ------------------------------------------------------------------------------------------------------

    @select.register
    def _(self, node: Named) -> Select:
        if node.definition is None:
            return Select(_table(node.name, node.columns))
        if node.name not in self.named:
            with self._joined():
                text = self.text(node.definition)
            if node.definition.free or self._rounds(node.definition):
                return Select(f"({text}) AS {alias(node.columns)}")  # it must stay at this point
            self.named[node.name] = text
        return Select(_table(node.name, node.columns))

    def _rounds(self, tree: Node) -> frozenset[str]:
        """The recursions around a tree whose rounds it reads."""
        if isinstance(tree, Named) and tree.definition is None:
            return frozenset([tree.name])
        if isinstance(tree, Named) and tree.name in self._read:
            return self._read[tree.name]
        found = frozenset[str]().union(*map(self._rounds, tree.inputs))
        if isinstance(tree, Named):
            self._read[tree.name] = found
        return found - {tree.name} if isinstance(tree, Recursion) else found

    @select.register
    def _(self, node: Recursion) -> Select:
        union = "UNION" if node.distinct else "UNION ALL"
        head = f"{quoted(node.name)}({', '.join(_ids(node.columns))})"
        rows = f"({self.text(node.anchor)}) {union} ({self.text(node.step)})"
        return Select(f"(WITH RECURSIVE {head} AS ({rows}) SELECT * FROM {quoted(node.name)})")

    # -- rows one by one --------------------------------------------------------------------------------------------

    @select.register
    def _(self, node: Filter) -> Select:
        parts, first = conjuncts(node.predicate), found_by_key(node)
        if first is None or len(parts) == 1:
            return self.select(node.input).filtered(*(_part(p) for p in parts))
        # DuckDB uses an index only for a single condition; LIMIT separates it from the others.
        one = replace(self.select(node.input).filtered(_part(first)), tail="LIMIT 2").around()
        return one.filtered(*(_part(p) for p in parts if p is not first))

    @select.register
    def _(self, node: Project) -> Select:
        below = self.select(node.input)
        if not below.source and not node.reads & node.input.ids:
            below = Select("")  # this is the single row of a query without FROM
        texts = [sql(x) for x in node.exprs]
        found = below.listed([as_column(t, c) for t, c in zip(texts, node.outputs, strict=True)])
        if isinstance(node.input, TopN) and _is_ending(node.input) and not self._is_held(node.input):
            found = replace(found, tail=_ending(node.input, texts))
        return found

    @select.register
    def _(self, node: Repeat) -> Select:
        below = self.select(node.input).beside([f'unnest(range({sql(node.times)})) AS "~"'])
        return below.around().listed(_ids(node.columns))

    @select.register
    def _(self, node: Expand) -> Select:
        flag = node.made[-1]
        keys = []
        for i, (key, column) in enumerate(zip(node.keys, node.made, strict=False)):
            chosen = ", ".join(str(n) for n, s in enumerate(node.sets) if i in s) or "NULL"
            keys.append(as_column(f"CASE WHEN {quoted(flag.id)} IN ({chosen}) THEN {sql(key)} END", column))
        numbers = ", ".join(f"({n})" for n in range(len(node.sets)))
        source = f"{self.select(node.input).item} CROSS JOIN (VALUES {numbers}) AS {alias([flag])}"
        return Select(source, (*_ids(node.input.columns), *keys, quoted(flag.id))).around()

    @select.register
    def _(self, node: Unnest) -> Select:
        rows = [f"unnest({sql(a)})" for a in node.arrays]
        if node.ordinality is not None:
            lengths = ", ".join(f"len({sql(a)})" for a in node.arrays)
            rows.append(f"unnest(generate_series(1, greatest({lengths}, 0)))")
        items = [as_column(r, c) for r, c in zip(rows, node.made, strict=True)]
        below = self.select(node.input)
        if not node.outer:
            return below.beside(items).around()
        right = f"(SELECT {', '.join(items)})"
        if node.condition is not None:
            right = f"(SELECT * FROM {right} WHERE {sql(node.condition)})"
        return Select(f"{below.item} LEFT JOIN LATERAL {right} ON TRUE")

    # -- several inputs ---------------------------------------------------------------------------------------------

    @select.register
    def _(self, node: Join) -> Select:
        assert not node.arrival
        assert node.partners is None
        with self._joined():
            left, right = self.select(node.left), self.select(node.right)
        parts = [*(sql(as_predicate(k)) for k in node.keys), *(_part(p) for p in conjuncts(node.residual))]
        other = f"({right.item})" if " JOIN " in right.item and not right.item.startswith("(") else right.item
        if node.kind == "inner" and not parts:
            return Select(f"{left.item} CROSS JOIN {other}")
        return Select(f"{left.item} {node.kind.upper()} JOIN {other} ON {' AND '.join(parts) or 'TRUE'}")

    @select.register
    def _(self, node: Apply) -> Select:
        with self._joined():
            left = self.select(node.left)
            if node.kind in ("inner", "left"):
                return Select(f"{left.item} {node.kind.upper()} JOIN LATERAL ({self.text(node.right)}) ON TRUE")
            if node.mark is not None:
                return left.beside([as_column(self._value(node), node.mark)])
            truth = self._truth(node)
        return left.filtered(f"NOT {truth}" if node.kind == "anti" else truth)

    def _value(self, node: Apply) -> str:
        """The value of a scalar subquery as a column."""
        if node.kind == "mark":
            return self._truth(node)
        return f"{'array' if node.kind == 'array' else ''}({self.text(node.right)})"

    def _truth(self, node: Apply) -> str:
        """Whether a row has a partner."""
        if not node.pairs:
            return f"EXISTS ({self.select(node.right).text})"
        if len(node.pairs) > 1:
            return self._truth_of_rows(node)
        (pair,) = node.pairs
        left, right = sql(pair.left), sql(pair.right)
        if [right] == list(_ids(node.right.columns)):
            found = f"(({left}) IN ({self.text(node.right)}))"
        else:
            found = f"(({left}) IN ({self.select(node.right).bare.listed([right]).text}))"
        # if NULL and false are equivalent, DuckDB makes a bare IN a semi join
        return found if node.null_aware or node.kind == "semi" else f"coalesce({found}, FALSE)"

    def _truth_of_rows(self, node: Apply) -> str:
        """Whether a row of several values is IN a subquery.

        DuckDB's own IN of rows is NULL for each row with a NULL, and it has none for subqueries with outer columns.
        """
        equal = [sql(as_predicate(k)) for k in node.pairs]
        known = [not k.left.nullable and not k.right.nullable for k in node.pairs]
        possible = [e if sure else f"(({e}) IS NOT FALSE)" for e, sure in zip(equal, known, strict=True)]

        def some(parts: list[str]) -> str:
            return f"EXISTS ({self.select(node.right).filtered(*parts).text})"

        if not node.null_aware or all(known):
            return some(equal)
        if node.kind == "anti":
            return some(possible)
        return f"(CASE WHEN {some(equal)} THEN TRUE WHEN {some(possible)} THEN NULL ELSE FALSE END)"

    @select.register
    def _(self, node: Union) -> Select:
        parts = " UNION ALL ".join(f"({self.text(p)})" for p in node.parts)
        return Select(f"({parts}) AS {alias(node.columns)}")

    # -- groups and orders ------------------------------------------------------------------------------------------

    @select.register
    def _(self, node: Aggregate) -> Select:
        below = self.select(node.input).bare
        values = [*map(sql, node.keys), *map(aggregate, node.calls)]
        items = tuple(as_column(v, c) for v, c in zip(values, node.outputs, strict=True))
        if not node.calls:
            return replace(below, items=items, distinct="DISTINCT ")
        numbers = ", ".join(str(i + 1) for i in range(len(node.keys)))
        return replace(below, items=items, group=f"GROUP BY {numbers}" if numbers else "")

    @select.register
    def _(self, node: Window) -> Select:
        if node.delays:
            raise error(
                "FEATURE_NOT_SUPPORTED",
                "windows that close by later rows are not supported in a query that ends",
                hint="Make a materialized view of the query, and read that.",
            )
        partition = [sql(p) for p in node.partition]
        items = [as_column(window(call, partition), c) for call, c in zip(node.calls, node.outputs, strict=True)]
        return self.select(node.input).beside(items)

    @select.register
    def _(self, node: TopN) -> Select:
        below = self.select(node.input).bare
        if _is_ending(node):
            found = replace(below, tail=_ending(node))
            return replace(found.around(), qualify=_WINDOW) if self._is_held(node) else found
        order = order_by(node.order)
        partition = ", ".join(map(key_text, node.partition))
        if node.limit == 1 and not node.offset and not node.with_ties and not self._joins:
            return replace(below, distinct=f"DISTINCT ON ({partition}) ", tail=order)
        over = " ".join(p for p in (f"PARTITION BY {partition}" if partition else "", order) if p)
        number = f"{'rank' if node.with_ties else 'row_number'}() OVER ({over})"
        parts = [f"row_number() OVER ({over}) > {node.offset}"] if node.offset else []
        parts += [] if node.limit is None else [f"{number} <= {node.offset + node.limit}"]
        return replace(below, qualify=f"QUALIFY {' AND '.join(parts)}" if parts else "", tail=order)

    def _is_held(self, node: TopN) -> bool:
        """Whether it selects some of its rows, so that a filter must not remove rows first."""
        return bool(self._joins) and (node.limit is not None or bool(node.offset))


def _is_ending(node: TopN) -> bool:
    """Whether it only adds ORDER BY, LIMIT and OFFSET."""
    return not node.partition and not node.with_ties


def _ending(node: TopN, items: Sequence[str] = ()) -> str:
    """The clauses ORDER BY, LIMIT and OFFSET. Sort keys that are also in `items` become positions, so that they are
    evaluated once.
    """
    ends = [order_by(node.order, items), "" if node.limit is None else f"LIMIT {node.limit}"]
    return " ".join(e for e in (*ends, f"OFFSET {node.offset}" if node.offset else "") if e)


def _ids(columns: Sequence[Column]) -> tuple[str, ...]:
    return tuple(quoted(c.id) for c in columns)


def _picked(columns: Sequence[Column], names: Sequence[str]) -> tuple[str, ...]:
    return tuple(_called(quoted(c.id), n) for c, n in zip(columns, names, strict=True))


def _called(text: str, name: str) -> str:
    return f"{text} AS {quoted(name)}"


def _table(name: str, columns: Sequence[Column]) -> str:
    return f"{quoted(name)} AS {alias(columns)}"


def _part(scalar: Scalar) -> str:
    """A condition in parentheses, for AND."""
    text = sql(scalar)
    return f"({text})" if isinstance(scalar.expression, (exp.Or, exp.Case, exp.Not)) else text
