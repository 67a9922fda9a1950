"""Binds queries of any form: SELECT, VALUES, WITH, and set operations (UNION, INTERSECT, EXCEPT, each also with ALL).

A tree of set operations becomes one aggregate, unless a type conversion between them could make rows equal. The
aggregate counts each row per input, and these counts determine how often the row is output (SQL:2023, 7.17, general
rules 3).

    (a EXCEPT b) INTERSECT ALL c   ->   Repeat(least(na > 0 AND NOT nb > 0, nc), Aggregate(na, nb, nc, Union(a, b, c)))
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from sqlglot import exp

from watersmeet.algebra.nodes import Aggregate, AggregateCall, Column, Filter, Node, Project, Repeat, Union, Values
from watersmeet.algebra.scalars import Scalar, column_ref
from watersmeet.algebra.trees import is_exact, read
from watersmeet.binder.clauses.ordering import ended
from watersmeet.binder.clauses.sources import QUERY_PARTS, alias_of, bind_values, check_arguments, named_rows
from watersmeet.binder.clauses.substreams import with_whole_groups
from watersmeet.binder.clauses.timewindows import arrivals
from watersmeet.binder.context.binding import (
    Bound,
    BoundQuery,
    Cte,
    Environment,
    OutputColumn,
    check_alias_list,
    check_width,
    distinct,
    value_of,
)
from watersmeet.binder.context.rules import Binding, BindQuery
from watersmeet.binder.dialects import rules_of
from watersmeet.binder.selects import Selecting
from watersmeet.binder.sqlfunctions import inlined
from watersmeet.catalog import Catalog
from watersmeet.dialects.tree.nodes import LoggedTable, kind_of
from watersmeet.dialects.tree.queries import depth_checked, name_of, node_error, node_span
from watersmeet.errors import error
from watersmeet.expressions.casts import cast, coerce
from watersmeet.expressions.context import (
    Context,
    Value,
    call,
    common_type,
    duckdb_cast,
    in_zone,
    number,
    refuse_maps,
)
from watersmeet.values import DEFAULT_DIALECT
from watersmeet.values.types import BIGINT, BOOLEAN, VARCHAR, Field, SqlType

Kind = Literal["UNION", "INTERSECT", "EXCEPT"]

_KINDS: Final[dict[type[exp.SetOperation], Kind]] = {
    exp.Union: "UNION", exp.Intersect: "INTERSECT", exp.Except: "EXCEPT",
}  # fmt: skip


@dataclass(frozen=True)
class _Counted:
    """The rows of all leaves with a tag."""

    tag: int


@dataclass(frozen=True)
class _Once:
    """The distinct rows of `of`."""

    of: _Shape


@dataclass(frozen=True)
class _Combined:
    """UNION, INTERSECT or EXCEPT with ALL; if `once` is set, EXCEPT without ALL."""

    kind: Kind
    left: _Shape
    right: _Shape
    once: bool = False


_Shape = _Counted | _Once | _Combined


@dataclass(frozen=True)
class _Tree:
    """A tree of set operations: its leaves, their tags, and the combination of the counts by tag."""

    leaves: tuple[Bound, ...]
    places: tuple[exp.Expression, ...]
    tags: tuple[int, ...]
    shape: _Shape

    @property
    def is_union(self) -> bool:
        """True if it consists of UNION [ALL] only, so that its rows may be converted before or after it."""
        return isinstance(self.shape, _Counted) or (
            isinstance(self.shape, _Once) and isinstance(self.shape.of, _Counted)
        )

    def keeps(self, kinds: Sequence[SqlType]) -> bool:
        """True if a cast of the columns to `kinds` keeps different rows of the leaves different."""
        return all(is_exact(o.column.type, k) for leaf in self.leaves for o, k in zip(leaf.outputs, kinds, strict=True))


def _parts(node: exp.Expression) -> frozenset[str]:
    """The parts that a query may have; the last three are those of `UNION CORRESPONDING [BY (a, b)]`."""
    return QUERY_PARTS | {"by_name", "kind", "on"} if node.args.get("kind") == "INNER" else QUERY_PARTS


def bind_set_operation(node: exp.SetOperation, env: Environment, binding: Binding, bind: BindQuery) -> Bound:
    """Binds a set operation. Raises DATATYPE_MISMATCH if columns have no common type, SYNTAX_ERROR if their numbers
    differ.
    """
    return _Binder(env, binding, bind).bound(_Binder(env, binding, bind).tree(node))


@dataclass(frozen=True)
class _Binder:
    env: Environment
    binding: Binding
    bind: BindQuery

    def tree(self, node: exp.Expression) -> _Tree:
        """The tree of set operations under `node`. Other nodes, and queries with clauses of their own, are leaves."""
        spine: list[exp.SetOperation] = []
        while isinstance(node, exp.SetOperation) and (not spine or _is_bare(node)):
            check_arguments(node, _parts(node), self.env.text, "a query")
            spine.append(node)
            node = _unwrapped(node.this)
        tree = self._leaf(node)
        for operation in reversed(spine):
            right = _unwrapped(operation.expression)
            bare = isinstance(right, exp.SetOperation) and _is_bare(right)
            tree = self._combined(operation, tree, self.tree(right) if bare else self._leaf(right))
        return tree

    def _leaf(self, node: exp.Expression) -> _Tree:
        return _Tree((self.bind(node, self.env, self.binding),), (node,), (0,), _Counted(0))

    def _combined(self, node: exp.SetOperation, left: _Tree, right: _Tree) -> _Tree:
        kind = _KINDS[kind_of(node)]
        once = bool(node.args.get("distinct"))
        ctx = Context(self.env.text, kind)
        if node.args.get("by_name"):
            left, right = self._corresponding(node, left, right, ctx)
        width = len(left.leaves[0].outputs)
        other = len(right.leaves[0].outputs)
        check_width(kind, width, other, node_span(right.places[0]), ctx.text)
        places = (*left.places, *right.places)
        kinds = [_kind([leaf.outputs[i] for leaf in (*left.leaves, *right.leaves)], ctx, places) for i in range(width)]
        left, right = (self._settled(t, kind, kinds, once=once) for t in (left, right))
        if kind == "UNION" and isinstance(left.shape, _Counted) and isinstance(right.shape, _Counted):
            shape: _Shape = left.shape
            tags = (*left.tags, *(left.tags[0] for _ in right.tags))
        else:
            start = max(left.tags) + 1
            tags = (*left.tags, *(t + start for t in right.tags))
            shape = _Combined(kind, left.shape, _shifted(right.shape, start), once and kind == "EXCEPT")
        if once and kind != "EXCEPT":
            shape = _Once(shape)
        return _Tree((*left.leaves, *right.leaves), (*left.places, *right.places), tags, shape)

    def _corresponding(self, node: exp.SetOperation, left: _Tree, right: _Tree, ctx: Context) -> tuple[_Tree, _Tree]:
        """Both sides with the columns that both have, in the order of the left side, or in that of BY (…)."""
        sides = [[o.column.name for o in tree.leaves[0].outputs] for tree in (left, right)]
        names = [name_of(c) for c in node.args.get("on") or []] or sides[0]
        common = list(dict.fromkeys(n for n in names if all(n in side for side in sides)))
        if not common:
            raise ctx.error(
                "SYNTAX_ERROR",
                "no column of CORRESPONDING exists on both sides",
                node.expression,
                hint="Give the columns the same names by AS.",
            )

        def narrowed(tree: _Tree) -> _Tree:
            whole = self.bound(tree)
            by_name = {o.column.name: o for o in reversed(whole.outputs)}
            chosen = [by_name[name] for name in common]
            columns = [self.binding.new_column(o.column.name, o.column.type, o.column.nullable) for o in chosen]
            relation = Project(whole.relation, tuple(columns), tuple(read(o.column) for o in chosen))
            outputs = tuple(replace(o, column=c) for o, c in zip(chosen, columns, strict=True))
            return _Tree((Bound(relation, outputs),), tree.places[:1], (0,), _Counted(0))

        return narrowed(left), narrowed(right)

    def _settled(self, tree: _Tree, kind: Kind, kinds: Sequence[SqlType], *, once: bool) -> _Tree:
        """`tree` as part of a larger tree: a leaf unless its rows can be counted together with those of other
        leaves.
        """
        if isinstance(tree.shape, _Counted):  # conversions lose nothing, because rows are counted unchanged
            return tree
        if kind == "UNION" and not once:  # UNION ALL has no counts to which the part could be added
            return self._leaf_of(tree)
        if kind == "UNION" and tree.is_union:
            return _Tree(tree.leaves, tree.places, tree.tags, _Counted(tree.tags[0]))
        return tree if tree.keeps(kinds) else self._leaf_of(tree)

    def _leaf_of(self, tree: _Tree) -> _Tree:
        return _Tree((self.bound(tree),), tree.places[:1], (0,), _Counted(0))

    def bound(self, tree: _Tree) -> Bound:
        """The relation of a tree."""
        if len(tree.leaves) == 1:
            return tree.leaves[0]
        ctx = Context(self.env.text, "a set operation")
        first = tree.leaves[0]
        width = len(first.outputs)
        kinds = [_kind([leaf.outputs[i] for leaf in tree.leaves], ctx, tree.places) for i in range(width)]
        columns = tuple(
            self.binding.new_column(o.column.name, kind, any(leaf.outputs[i].column.nullable for leaf in tree.leaves))
            for i, (o, kind) in enumerate(zip(first.outputs, kinds, strict=True))
        )
        parts = [
            _converted(leaf, kinds, ctx, place, self.binding)
            for leaf, place in zip(tree.leaves, tree.places, strict=True)
        ]
        if tree.is_union:
            made: Node = Union(tuple(parts), columns)
            if isinstance(tree.shape, _Once):
                refuse_maps(kinds, "UNION over", self.env.text)
                made = distinct(made, self.binding)
        else:
            refuse_maps(kinds, "a set operation over", self.env.text)
            made = self._counted(tree, parts, columns)
        outputs = tuple(
            OutputColumn(c, o.named, all(leaf.outputs[i].unknown for leaf in tree.leaves), o.span)
            for i, (c, o) in enumerate(zip(made.columns, first.outputs, strict=True))
        )
        return Bound(made, outputs)

    def _counted(self, tree: _Tree, parts: Sequence[Node], columns: tuple[Column, ...]) -> Node:
        """Counts each row per tag. The counts determine how often it is output."""
        new = self.binding.new_column
        tags = sorted(set(tree.tags))
        marks = tuple(new(f"in_{t}", BOOLEAN, nullable=False) for t in tags)
        marked = []
        for part, own in zip(parts, tree.tags, strict=True):
            outputs = (*part.columns, *(new(m.name, BOOLEAN, nullable=False) for m in marks))
            flags = tuple(Scalar(exp.Boolean(this=t == own), BOOLEAN, nullable=False) for t in tags)
            marked.append(Project(part, outputs, (*map(read, part.columns), *flags)))
        together = Union(tuple(marked), (*columns, *marks))
        calls = tuple(AggregateCall("count", None, read(m), distinct=False, type=BIGINT) for m in marks)
        keys = tuple(new(c.name, c.type, c.nullable) for c in columns)
        counts = {t: new("count", BIGINT, nullable=False) for t in tags}
        grouped = Aggregate(together, tuple(map(read, columns)), calls, (*keys, *counts.values()))
        present = Scalar(_present(tree.shape, counts), BOOLEAN, nullable=False)
        found: Node = Filter(grouped, present)
        if not _is_once(tree.shape):
            times = duckdb_cast(_times(tree.shape, counts), BIGINT)
            found = Repeat(found, Scalar(times, BIGINT, nullable=False))
        return Project(found, keys, tuple(map(read, keys)))


def _is_bare(node: exp.SetOperation) -> bool:
    return not any(node.args.get(k) for k in ("with_", "order", "limit", "offset"))


def _unwrapped(node: exp.Expression) -> exp.Expression:
    """The query inside parentheses that contain nothing else."""
    while isinstance(node, (exp.Subquery, exp.Paren)) and not any(v for k, v in node.args.items() if k != "this"):
        node = node.this
    return node


def _shifted(shape: _Shape, by: int) -> _Shape:
    if isinstance(shape, _Counted):
        return _Counted(shape.tag + by)
    if isinstance(shape, _Once):
        return _Once(_shifted(shape.of, by))
    return _Combined(shape.kind, _shifted(shape.left, by), _shifted(shape.right, by), shape.once)


def _is_once(shape: _Shape) -> bool:
    """True if the output has no duplicates."""
    if isinstance(shape, _Combined):
        if shape.kind == "UNION":
            return False
        return shape.once or _is_once(shape.left) or (shape.kind == "INTERSECT" and _is_once(shape.right))
    return isinstance(shape, _Once)


def _present(shape: _Shape, counts: dict[int, Column]) -> exp.Expression:
    """The condition that a row is output at least once."""
    if isinstance(shape, _Counted):
        return exp.GT(this=column_ref(counts[shape.tag].id), expression=number(0))
    if isinstance(shape, _Once):
        return _present(shape.of, counts)
    if shape.kind == "EXCEPT" and not shape.once:
        return exp.Paren(this=exp.GT(this=_times(shape.left, counts), expression=_times(shape.right, counts)))
    left, right = _present(shape.left, counts), _present(shape.right, counts)
    if shape.kind == "EXCEPT":
        right = exp.Not(this=exp.Paren(this=right))
    operator = exp.Or if shape.kind == "UNION" else exp.And
    return exp.Paren(this=operator(this=left, expression=right))


def _times(shape: _Shape, counts: dict[int, Column]) -> exp.Expression:
    """The number of copies of a row in the output."""
    if isinstance(shape, _Counted):
        return column_ref(counts[shape.tag].id)
    if isinstance(shape, _Once) or shape.once:
        return duckdb_cast(exp.Paren(this=_present(shape, counts)), BIGINT)
    left, right = _times(shape.left, counts), _times(shape.right, counts)
    if shape.kind == "UNION":
        return exp.Paren(this=exp.Add(this=left, expression=right))
    if shape.kind == "INTERSECT":
        return call("least", left, right)
    return call("greatest", exp.Paren(this=exp.Sub(this=left, expression=right)), number(0))


def _kind(outputs: Sequence[OutputColumn], ctx: Context, places: Sequence[exp.Expression]) -> SqlType:
    known = [o.column.type for o in outputs if not o.unknown]
    if not known:
        return outputs[0].column.type
    kind = common_type(known)
    if kind is None:
        other = next(o for o in outputs if not o.unknown and common_type([known[0], o.column.type]) is None)
        place = places[list(outputs).index(other)]
        raise ctx.error(
            "DATATYPE_MISMATCH",
            f"{ctx.clause} types {known[0].sql} and {other.column.type.sql} cannot be matched",
            place,
        )
    return kind


def _literal(relation: Node, place: int) -> exp.Expression | None:
    """The untyped string literal of which a column of a SELECT consists, or None."""
    if isinstance(relation, Project):
        found = relation.exprs[place].expression
    elif isinstance(relation, Values) and len(relation.rows) == 1:
        found = relation.rows[0][place].expression
    else:
        return None
    return found if isinstance(found, exp.Literal) and found.is_string else None


def _converted(part: Bound, kinds: Sequence[SqlType], ctx: Context, place: exp.Expression, binding: Binding) -> Node:
    """A part with its columns cast to the types of the whole."""
    if all(o.column.type == k for o, k in zip(part.outputs, kinds, strict=True)):
        return part.relation
    columns: list[Column] = []
    exprs = []
    for i, (output, kind) in enumerate(zip(part.outputs, kinds, strict=True)):
        column = output.column
        if column.type == kind:
            columns.append(column)
            exprs.append(read(column))
            continue
        value = value_of(column)
        if not output.unknown:
            converted = coerce(value, kind, ctx, place)
        elif (text := _literal(part.relation, i)) is not None:
            converted = cast(Value(text, VARCHAR, unknown=True), kind, ctx, place)
        else:
            converted = Value(duckdb_cast(value.expression, kind), kind)
        columns.append(binding.new_column(column.name, kind, converted.nullable))
        exprs.append(converted.finish())
    return Project(part.relation, tuple(columns), tuple(exprs))


def named_queries(clause: exp.Expression, text: str) -> Iterator[tuple[str, tuple[str, ...], exp.Expression]]:
    """The queries of a WITH in order, each as name, column list and tree.

    Raises DUPLICATE_OBJECT, and FEATURE_NOT_SUPPORTED for statements that are not queries.
    """
    own: set[str] = set()
    for node in clause.expressions:
        name, names = alias_of(node)
        assert name is not None
        if name in own:
            raise node_error(
                text, node.args["alias"], "DUPLICATE_OBJECT", f'WITH query name "{name}" specified more than once'
            )
        own.add(name)
        if not isinstance(node.this, (exp.Query, exp.Values, LoggedTable)):
            raise Environment(text).not_supported("a data-modifying statement in WITH", node)
        yield name, names, node.this


def names_itself(query: exp.Expression, name: str) -> bool:
    """True if a query of WITH reads its own name."""
    return any(isinstance(t.this, exp.Identifier) and name_of(t.this) == name for t in query.find_all(exp.Table))


def with_ctes(query: exp.Expression, env: Environment, *, batch: bool) -> Environment:
    """The environment inside a query, with the CTEs of its WITH. batch: whether they may be recursive."""
    clause = query.args.get("with_")
    if clause is None:
        return env
    ctes = dict(env.ctes)
    for name, names, node in named_queries(clause, env.text):
        recursive = bool(clause.args.get("recursive")) and names_itself(node, name)
        if recursive and not batch:
            raise env.not_supported(
                "WITH RECURSIVE in a view",
                clause,
                hint="A query can be recursive, also over a view: SELECT it there. In a view write the steps "
                "as joins, with UNION ALL between them.",
            )
        recursive = recursive and isinstance(node, exp.Union)
        ctes[name] = Cte(node, names, Environment(env.text, dict(ctes), env.outer), recursive)
    return Environment(env.text, ctes, env.outer)


def check_unnamed(query: exp.Expression, env: Environment, binding: Binding, bind: BindQuery) -> None:
    """Raises the errors in CTEs that the query, bound in `env`, does not reference. The query also depends on these
    CTEs.

    It checks them in reverse order, because a CTE may reference earlier ones.
    """
    clause = query.args.get("with_")
    for node in [] if clause is None else reversed(clause.expressions):
        name, names = alias_of(node)
        cte = env.ctes[name or ""]
        if cte not in binding.collected.named:
            bound = named_rows(str(name), cte, replace(binding, fills=[]), bind)
            check_alias_list(names, bound.width, f'table "{name}"', env.text, node_span(node))


def bind_query(
    query: exp.Expression,
    catalog: Catalog,
    text: str,
    dialect: str = DEFAULT_DIALECT,
    *,
    column_names: Sequence[str] = (),
    needs_names: bool = True,
    moment: int = 0,
    arriving: bool = False,
) -> BoundQuery:
    """Binds a view's query.

    text: the text to which spans in `query` refer. column_names: the names in CREATE VIEW v (…). moment: see
    `Binding`. arriving: whether to add the columns that order the rows by arrival, if that order is known.
    needs_names: False if output columns may be named `?column?` and names may repeat.

    Raises UNDEFINED_*, AMBIGUOUS_COLUMN, DATATYPE_MISMATCH, COLUMN_NOT_GROUPED, EXPRESSION_WITHOUT_NAME,
    DUPLICATE_COLUMN, FEATURE_NOT_SUPPORTED and SYNTAX_ERROR, all with a span.
    """
    rules = rules_of(dialect)
    reading = rules.reading(query)
    binding = Binding(catalog, rules, rules_of, moment, part=reading.part, still=reading.still)
    found = binding.collected
    with depth_checked(text), in_zone(catalog.zone):
        query, functions = inlined(query, catalog, dialect, text)
        bound = bind(query, Environment(text), binding)
    rules.check_query(query, bound.relation, text)
    own = [o for o in bound.outputs if not o.hidden]
    names = [o.column.name for o in bound.outputs if o.hidden] + _names(
        own, column_names, text, needs_names=needs_names
    )
    tree = _named(bound.relation, names)
    columns = tuple(Field(c.name, c.type, c.nullable) for c in tree.columns)
    aged = arrivals(tree, binding, joined=True) if arriving else None
    limit = min(found.limits, default=rules.semantics.join_max_buffered_bytes)
    rowtime = rules.rowtime(tree)
    tree = tree if aged is None else aged[0]
    return BoundQuery(
        with_whole_groups(tree, binding) if found.closed else tree,
        columns,
        tuple(found.notices),
        tuple(binding.depends_on),
        limit,
        found.most_join_rows,
        bound.extension,
        rowtime,
        hidden=len(own) < len(bound.outputs),
        fills=tuple(binding.fills),
        functions=functions,
        age=() if aged is None else aged[1],
    )


def bind(node: exp.Expression, env: Environment, binding: Binding) -> Bound:
    """Binds a query of any form with its settings, which also hold in nested queries."""
    node, own = binding.rules.settings(node, env.text)
    if own:
        binding = binding.rules.within(own, binding)
    return _among_names(node, env, binding)


def _among_names(node: exp.Expression, env: Environment, binding: Binding) -> Bound:
    env = with_ctes(node, env, batch=binding.rules.batch)
    found = _of_kind(node, env, binding)
    check_unnamed(node, env, binding, bind)
    return found


def _of_kind(node: exp.Expression, env: Environment, binding: Binding) -> Bound:
    if not isinstance(node, exp.Select):
        check_arguments(node, _parts(node), env.text, "a query")
    if isinstance(node, exp.Select):
        return binding.rules.emitted(node, env, binding, lambda own, b: Selecting(own, env, b, bind).bound())
    if isinstance(node, (exp.Subquery, exp.Paren)):
        return ended(bind(node.this, env, binding), node, env, binding)
    if isinstance(node, exp.SetOperation):
        found = binding.rules.set_operation(node, env, binding, bind, bind_set_operation)
        return ended(found, node, env, binding)
    if isinstance(node, exp.Values):
        return ended(bind_values(node, env, binding, bind), node, env, binding)
    whose = "" if binding.rules.batch else " of a view"
    raise env.not_supported(f"{kind_of(node).__name__.upper()} as a query{whose}", node)


def _names(outputs: Sequence[OutputColumn], column_names: Sequence[str], text: str, *, needs_names: bool) -> list[str]:
    if len(column_names) > len(outputs):
        raise error(
            "SYNTAX_ERROR",
            "the view has more column names than columns",
            sql=text,
            detail=f"It has {len(column_names)} names and {len(outputs)} columns.",
        )
    names = [*column_names, *[o.column.name for o in outputs[len(column_names) :]]]
    if not needs_names:
        return names
    for i, output in enumerate(outputs):
        if not output.named and i >= len(column_names):
            raise error(
                "EXPRESSION_WITHOUT_NAME",
                f"An alias must be specified for the {_ordinal(i + 1)} expression (counting from 1) in result relation",
                sql=text,
                span=output.span,
                hint="Write expression AS name.",
            )
        if names[i] in names[:i]:
            raise error(
                "DUPLICATE_COLUMN",
                f'column "{names[i]}" specified more than once',
                sql=text,
                span=output.span,
                hint="Give one of them an alias with AS.",
            )
    return names


def _ordinal(number: int) -> str:
    if number % 100 in (11, 12, 13):
        return f"{number}th"
    return f"{number}" + {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")


def _named(tree: Node, names: Sequence[str]) -> Node:
    columns = tree.columns
    if [c.name for c in columns] == list(names):
        return tree
    outputs = tuple(replace(c, name=n) for c, n in zip(columns, names, strict=True))
    if isinstance(tree, Project):
        return replace(tree, outputs=tuple(replace(o, name=n) for o, n in zip(tree.outputs, names, strict=True)))
    return Project(tree, outputs, tuple(read(c) for c in columns))
