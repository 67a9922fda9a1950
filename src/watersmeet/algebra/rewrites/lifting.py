"""Makes a dependent relation independent of the columns of its domain (the enclosing query), node by node from the
leaves.

Conditions on the domain move toward the root: unchanged past filters, projections and joins; past an aggregate if they
are equalities, whose inner sides become group keys. A condition that can't move further is resolved by a join with the
distinct values of the domain's columns; the only remaining condition is that a row belongs to these values (Neumann and
Kemper, "Unnesting Arbitrary Queries", BTW 2015: the domain D, which an equality replaces by the inner column). Most
queries need no such join.

    Filter(b.k = d.k, b)                          ->  b                     if b.k = d.k
    Aggregate([], sum(b.x), Filter(b.k = d.k, b)) ->  Aggregate([b.k], sum(b.x), b)  if b.k = d.k, total
    Aggregate([], sum(b.x), Filter(b.k < d.k, b)) ->  Aggregate([D.k], sum(b.x), D JOIN b ON b.k < D.k)
                                                      if D.k IS NOT DISTINCT FROM d.k, total
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import singledispatchmethod
from itertools import count
from typing import Final, Literal

from sqlglot import exp

from watersmeet.algebra.nodes import (
    Aggregate,
    AsofJoin,
    Binary,
    Column,
    Filter,
    Join,
    JoinKind,
    KeyPair,
    Node,
    Partitioned,
    Project,
    TopN,
    Unary,
    Union,
    Values,
)
from watersmeet.algebra.properties import is_single_row
from watersmeet.algebra.scalars import Scalar, column_ref, conjunction, conjuncts, rejected_columns
from watersmeet.algebra.trees import cast, filtered, part_of, read, walk, with_inputs
from watersmeet.errors import Span, error
from watersmeet.values.types import BOOLEAN, INTEGER, SqlType

Ids = frozenset[str]


@dataclass(frozen=True)
class Lifted:
    """A relation that doesn't read columns of the domain, with the means to restore the dependent relation.

    For each row of the domain, the dependent relation has the rows of `relation` for which all `conditions` (over both)
    are true. deferred: the dependent relation's columns that `relation` lacks, as expressions over both. total: whether
    at most one row matches a domain row, and a domain row without a match has a row with NULL in each column of
    `relation`.
    """

    relation: Node
    conditions: tuple[Scalar, ...] = ()
    deferred: Mapping[str, tuple[Column, Scalar]] = field(default_factory=dict)
    total: bool = False

    def resolve(self, scalar: Scalar) -> Scalar:
        """Converts a scalar over the dependent relation's columns to a scalar over `relation` and the domain."""
        return scalar.substitute({i: s.expression for i, (_, s) in self.deferred.items()})

    def value(self, column: Column) -> Scalar:
        """The value of a column of the dependent relation."""
        if column.id in self.deferred:
            return cast(self.deferred[column.id][1], column.type)
        return read(column)


class Names:
    """Creates columns with ids that the tree does not use."""

    def __init__(self, tree: Node) -> None:
        used = [c.id for node in walk(tree) for c in node.columns]
        self._next = count(max((int(i[1:]) for i in used if i[0] == "#" and i[1:].isdecimal()), default=0) + 1)

    def new(self, name: str, kind: SqlType, nullable: bool) -> Column:
        """A column with a new id."""
        return Column(f"#{next(self._next)}", name, kind, nullable)


def distinct(node: Node, columns: Iterable[Column], names: Names) -> Aggregate:
    """The distinct values of some columns, with new ids."""
    wanted = tuple(columns)
    outputs = tuple(names.new(c.name, c.type, c.nullable) for c in wanted)
    return Aggregate(node, tuple(read(c) for c in wanted), (), outputs)


def one_row(node: Node, names: Names) -> Node:
    """A single row if `node` has rows, else no row."""
    mark = names.new("exists", INTEGER, nullable=False)
    return distinct(Project(node, (mark,), (Scalar(exp.Literal.number(1), INTEGER, nullable=False),)), [mark], names)


def equals(left: Scalar, right: Scalar, *, null_safe: bool = False) -> Scalar:
    """`left = right`, or IS NOT DISTINCT FROM."""
    sides = [_operand(s) for s in (left, right)]
    kind = exp.NullSafeEQ if null_safe else exp.EQ
    nullable = not null_safe and (left.nullable or right.nullable)
    return Scalar(kind(this=sides[0], expression=sides[1]), BOOLEAN, nullable)


def _operand(scalar: Scalar) -> exp.Expression:
    """The expression as one side of an operator."""
    plain = isinstance(scalar.expression, (exp.Column, exp.Cast, exp.Paren, exp.Literal, exp.Anonymous))
    return scalar.expression.copy() if plain else exp.paren(scalar.expression)


def is_null(scalar: Scalar) -> Scalar:
    """`scalar IS NULL`."""
    return Scalar(exp.Is(this=_operand(scalar), expression=exp.null()), BOOLEAN, nullable=False)


def is_not_null(scalar: Scalar) -> Scalar:
    """`scalar IS NOT NULL`."""
    return Scalar(exp.Not(this=is_null(scalar).expression), BOOLEAN, nullable=False)


def case(branches: Iterable[tuple[Scalar, exp.Expression]], default: exp.Expression | None, kind: SqlType) -> Scalar:
    """CASE WHEN … THEN … ELSE `default` END."""
    ifs = [exp.If(this=test.expression.copy(), true=result.copy()) for test, result in branches]
    return Scalar(exp.Case(ifs=ifs, default=None if default is None else default.copy()), kind)


@dataclass(frozen=True)
class Equality:
    """A condition `inner = outer`, where inner reads only the relation and outer only the domain."""

    inner: Scalar
    outer: exp.Expression
    null_safe: bool


def equality(condition: Scalar, relation: Node) -> Equality | None:
    """The condition as an equality of a value of `relation` with a value of the domain; None for other conditions."""
    node = condition.expression
    if not isinstance(node, (exp.EQ, exp.NullSafeEQ)):
        return None
    own = relation.ids
    for inner, outer in ((node.this, node.expression), (node.expression, node.this)):
        reads = Scalar(inner, BOOLEAN).columns
        if reads and reads <= own and not Scalar(outer, BOOLEAN).columns & own:
            part = part_of(inner.unnest(), relation.columns)
            return None if part is None else Equality(part, outer.unnest(), isinstance(node, exp.NullSafeEQ))
    return None


def inequality(condition: Scalar, relation: Node) -> tuple[Literal["min", "max"], Scalar] | None:
    """The value of `relation` that is compared with a value of the domain, and whether the least or the greatest value
    suffices.
    """
    node = condition.expression
    if not isinstance(node, (exp.LT, exp.LTE, exp.GT, exp.GTE)):
        return None
    own = relation.ids
    inner, outer = node.this, node.expression
    if not Scalar(inner, BOOLEAN).columns & own:
        inner, outer = outer, inner
    if not Scalar(inner, BOOLEAN).columns <= own or Scalar(outer, BOOLEAN).columns & own:
        return None
    part = part_of(inner.unnest(), relation.columns)
    if part is None or part.type.is_nested or part.type.name in ("boolean", "jsonb", "interval"):
        return None
    rises = isinstance(node, (exp.LT, exp.LTE)) == (inner is node.expression)
    return "max" if rises else "min", part


def outer_column(found: Equality) -> str | None:
    """The id of the outer side if it is a plain column; else None."""
    return found.outer.name if isinstance(found.outer, exp.Column) else None


def is_one_constant_row(node: Node) -> bool:
    """True for SELECT without FROM."""
    return isinstance(node, Values) and len(node.rows) == 1


def source_of(left: Node, ids: Ids) -> Node:
    """The smallest part of `left` with at least all combinations of values in the columns `ids`."""
    if isinstance(left, Project):
        passed = {c.id for c, e in zip(left.outputs, left.exprs, strict=True) if e.column == c.id}
        return source_of(left.input, ids) if ids <= passed else left
    if isinstance(left, Filter):
        below = source_of(left.input, ids)
        return left if below is left.input else below
    if isinstance(left, Binary):
        return next((source_of(side, ids) for side in left.preserved if ids <= side.ids), left)
    return left


def reference(column: Column) -> exp.Expression:
    """The expression that reads a column."""
    return column_ref(column.id)


#: The aggregate functions that return 0 for no rows; all others return NULL.
ZERO_IF_EMPTY: Final = frozenset({"count"})

Mapped = Mapping[str, Scalar]
_NONE: Final = Ids()


class Lifting:
    """Lifts the right side of one dependent join out of the scope of its `left` side."""

    def __init__(self, left: Node, names: Names, span: Span | None) -> None:
        self.left = left
        self.domain_ids = left.ids
        self.names = names
        self.span = span

    def lift(self, node: Node) -> Lifted:
        """`node` without references to the left side's columns."""
        return self._lift(node) if node.free & self.domain_ids else Lifted(node)

    def reads(self, scalars: Iterable[Scalar]) -> Ids:
        """The columns of the domain that the scalars read."""
        return Ids().union(*[s.columns for s in scalars]) & self.domain_ids

    @singledispatchmethod
    def _lift(self, node: Node) -> Lifted:
        raise AssertionError(type(node).__name__)

    @_lift.register
    def _(self, node: Binary) -> Lifted:
        raise error(
            "FEATURE_NOT_SUPPORTED",
            f"{node.called} that reads columns of an outer query is not supported",
            span=node.span,
            hint="Join the two relations without these columns, and compare with them in the outer query.",
        )

    # -- the domain ---------------------------------------------------------------------------------------------

    def domain(self, ids: Ids) -> tuple[Node, dict[str, Column]]:
        """The distinct values of some columns of the left side, and the new columns that hold them."""
        source = source_of(self.left, ids)
        wanted = [c for c in source.columns if c.id in ids]
        made = distinct(source, wanted, self.names)
        return made, {c.id: n for c, n in zip(wanted, made.columns, strict=True)}

    def grounded(self, below: Lifted, more: Ids = _NONE, *, anew: bool = False) -> tuple[Lifted, Mapped]:
        """`below` without deferred columns and not total, and the substitute for each column of the domain.

        more: columns that are needed in addition to those of `below`. anew: whether to always join the domain.
        """
        found = self.reads([*below.conditions, *[s for _, s in below.deferred.values()]]) | more
        bound = {} if anew or below.total else self._bound(below)
        if found <= bound.keys():
            mapping: dict[str, Scalar] = {i: e.inner for i, e in bound.items()}
            kept = [c for c in below.conditions if any(equality(c, below.relation) == e for e in bound.values())]
            rest = [_mapped(c, mapping) for c in below.conditions if c not in kept]
            return Lifted(self._computed(filtered(below.relation, rest), below, mapping), tuple(kept)), mapping
        domain, columns = self.domain(found)
        mapping = {i: read(c) for i, c in columns.items()}
        conditions = [_mapped(c, mapping) for c in below.conditions]
        if is_one_constant_row(below.relation) and not below.total:
            row = below.relation
            assert isinstance(row, Values)
            outputs = domain.columns + row.outputs
            relation: Node = Project(domain, outputs, tuple(read(c) for c in domain.columns) + row.rows[0])
            relation = filtered(relation, conditions)
        else:
            kind: JoinKind = "left" if below.total else "inner"
            relation = Join(domain, below.relation, kind, (), conjunction(conditions), span=self.span)
        relation = self._computed(relation, below, mapping)
        return Lifted(relation, self._belongs(columns.items())), mapping

    def _bound(self, below: Lifted) -> dict[str, Equality]:
        """The columns of the domain that a condition equates with a value of the relation."""
        types = {c.id: c.type for c in self.left.columns}
        bound: dict[str, Equality] = {}
        for condition in below.conditions:
            found = equality(condition, below.relation)
            column = None if found is None else outer_column(found)
            if (
                found is not None
                and column in self.domain_ids
                and found.inner.type == types[column]
                and types[column].is_identity
            ):
                bound.setdefault(column, found)
        return bound

    def _computed(self, relation: Node, below: Lifted, mapping: Mapped) -> Node:
        if not below.deferred:
            return relation
        made = [(c, cast(_mapped(s, mapping), c.type)) for c, s in below.deferred.values()]
        kept = [c for c in relation.columns if c.id not in below.deferred]
        return Project(relation, (*kept, *[c for c, _ in made]), (*[read(c) for c in kept], *[s for _, s in made]))

    def _belongs(self, columns: Iterable[tuple[str, Column]]) -> tuple[Scalar, ...]:
        by_id = {c.id: c for c in self.left.columns}
        return tuple(equals(read(c), read(by_id[i]), null_safe=c.nullable) for i, c in columns)

    def _settled(self, below: Lifted) -> Lifted:
        return self.grounded(below)[0] if below.total else below

    # -- nodes --------------------------------------------------------------------------------------------------

    @_lift.register
    def _(self, node: Filter) -> Lifted:
        pushed = self._below_outer_join(node)
        if pushed is not node:
            return self.lift(pushed)
        below = self.lift(node.input)
        parts = [below.resolve(p) for p in conjuncts(node.predicate)]
        if below.total:
            if not any(rejected_columns(p) & below.relation.ids for p in parts):  # the single row may be output
                below = self._settled(below)
                parts = conjuncts(node.predicate)
            else:
                below = replace(below, total=False)
        mine = [p for p in parts if not p.columns & self.domain_ids]
        theirs = tuple(p for p in parts if p.columns & self.domain_ids)
        return replace(below, relation=filtered(below.relation, mine), conditions=below.conditions + theirs)

    @_lift.register
    def _(self, node: Project) -> Lifted:
        below = self.lift(node.input)
        plain: list[tuple[Column, Scalar]] = []
        deferred: dict[str, tuple[Column, Scalar]] = {}
        for column, given in zip(node.outputs, node.exprs, strict=True):
            expr = cast(below.resolve(given), column.type)
            if expr.columns & self.domain_ids or (below.total and expr.column is None):
                deferred[column.id] = (column, expr)
            else:
                plain.append((column, expr))
        needed = Ids().union(*[s.columns for s in (*below.conditions, *[s for _, s in deferred.values()])])
        if all(e.column == c.id for c, e in plain):
            return replace(below, deferred=deferred)
        names = {c.id for c, _ in plain}
        plain += [(c, read(c)) for c in below.relation.columns if c.id in needed and c.id not in names]
        relation = Project(below.relation, tuple(c for c, _ in plain), tuple(e for _, e in plain))
        return replace(below, relation=relation, deferred=deferred)

    @_lift.register
    def _(self, node: Values) -> Lifted:
        """Constant rows that read the domain: the number of a row selects the expression."""
        number = self.names.new("row", INTEGER, nullable=False)
        numbers = tuple((Scalar(exp.Literal.number(i), INTEGER, nullable=False),) for i in range(len(node.rows)))
        deferred = {}
        for i, column in enumerate(node.outputs):
            choices = [cast(row[i], column.type).expression for row in node.rows]
            if len(choices) == 1:
                chosen = choices[0].copy()
            else:
                chosen = exp.Case(
                    this=reference(number),
                    ifs=[exp.If(this=exp.Literal.number(n), true=c.copy()) for n, c in enumerate(choices)],
                )
            deferred[column.id] = (column, Scalar(chosen, column.type, column.nullable))
        return Lifted(Values(numbers, (number,)), (), deferred)

    @_lift.register
    def _(self, node: Aggregate) -> Lifted:
        below = self._settled(self.lift(node.input))
        equalities = [equality(c, below.relation) for c in below.conditions]
        stuck = [
            c for c, e in zip(below.conditions, equalities, strict=True) if e is None and c.columns & below.relation.ids
        ]
        own = [below.resolve(s) for s in node.scalars]
        if stuck or self.reads(own):
            below, mapping = self.grounded(below, self.reads(own))
            node = _mapped_aggregate(node, mapping)
        else:
            node = _mapped_aggregate(node, {i: s for i, (_, s) in below.deferred.items()})
        keys = list(node.keys)
        outputs = list(node.outputs[: len(keys)])
        conditions: list[Scalar] = []
        for condition in below.conditions:
            found = equality(condition, below.relation)
            if found is None:
                conditions.append(condition)  # the expression reads only the domain
                continue
            if found.inner not in keys:
                keys.append(found.inner)
                outputs.append(
                    self.names.new(_name(found.inner, below.relation), found.inner.type, found.inner.nullable)
                )
            key = read(outputs[keys.index(found.inner)])
            outer = Scalar(found.outer, found.inner.type)
            conditions.append(equals(key, outer, null_safe=found.null_safe))
        calls = node.outputs[len(node.keys) :]
        made = Aggregate(below.relation, tuple(keys), node.calls, (*outputs, *calls))
        if node.keys or not node.calls:
            return Lifted(made, tuple(conditions))
        zeros = {
            c.id: (
                c,
                Scalar(exp.Coalesce(this=reference(c), expressions=[exp.Literal.number(0)]), c.type, nullable=False),
            )
            for c, call in zip(calls, node.calls, strict=True)
            if call.function in ZERO_IF_EMPTY
        }
        return Lifted(made, tuple(conditions), zeros, total=bool(conditions))

    @_lift.register
    def _(self, node: Join) -> Lifted:
        if node.kind == "right":
            return self.lift(
                Join(
                    node.right,
                    node.left,
                    "left",
                    tuple(KeyPair(k.right, k.left, k.null_safe) for k in node.keys),
                    node.residual,
                    node.broadcast,
                    span=node.span,
                )
            )
        left, right = self._settled(self.lift(node.left)), self._settled(self.lift(node.right))
        parts = [*[equals(k.left, k.right, null_safe=k.null_safe) for k in node.keys], *conjuncts(node.residual)]
        if node.kind == "inner":
            deferred = {**left.deferred, **right.deferred}
            both = Lifted(left.relation, (), deferred)
            parts = [both.resolve(p) for p in parts]
            mine = [p for p in parts if not p.columns & self.domain_ids]
            theirs = [p for p in parts if p.columns & self.domain_ids]
            mine += self._meeting(left, right)
            joined = Join(left.relation, right.relation, "inner", (), conjunction(mine), node.broadcast, span=node.span)
            return Lifted(joined, (*left.conditions, *right.conditions, *theirs), deferred)
        if node.kind == "full":
            return self._full(left, right, parts)
        if right.deferred:
            right = self.grounded(right)[0]
        parts = [*[left.resolve(p) for p in parts], *right.conditions]
        if self.reads(parts):
            left, mapping = self.grounded(left, self.reads(parts))
            parts = [_mapped(p, mapping) for p in parts]
        joined = Join(left.relation, right.relation, node.kind, (), conjunction(parts), node.broadcast, span=node.span)
        return Lifted(joined, left.conditions, left.deferred)

    @_lift.register
    def _(self, node: AsofJoin) -> Lifted:
        left, right = self._settled(self.lift(node.left)), self._settled(self.lift(node.right))
        ids = self.reads([*right.conditions, *[s for _, s in right.deferred.values()], *node.scalars])
        if ids or left.deferred:
            left, mine = self.grounded(left, ids)
        if not ids:
            return replace(left, relation=replace(node, left=left.relation, right=right.relation))
        right, theirs = self.grounded(right, ids)
        keys = [KeyPair(_mapped(k.left, mine), _mapped(k.right, theirs), k.null_safe) for k in node.keys]
        keys += [KeyPair(mine[i], theirs[i], null_safe=_is_null_safe(right, theirs[i])) for i in sorted(ids)]
        made = replace(
            node,
            left=left.relation,
            right=right.relation,
            keys=tuple(keys),
            left_value=_mapped(node.left_value, mine),
            right_value=_mapped(node.right_value, theirs),
            residual=None if node.residual is None else _mapped(node.residual, mine),
        )
        return replace(left, relation=made)

    def _below_outer_join(self, node: Filter) -> Node:
        """Conditions on the domain and the preserved side move into the inputs of an outer join, whose condition may
        need them.
        """
        join = node.input
        if not isinstance(join, Join) or join.kind not in ("left", "right"):
            return node
        kept = join.left if join.kind == "left" else join.right
        parts = conjuncts(node.predicate)
        down = [p for p in parts if p.columns & self.domain_ids and p.columns & join.ids <= kept.ids]
        if not down:
            return node
        inputs = [filtered(i, down) if i is kept else i for i in join.inputs]
        return filtered(with_inputs(join, inputs), [p for p in parts if p not in down])

    def _meeting(self, left: Lifted, right: Lifted) -> list[Scalar]:
        """If both sides equate a column of the domain with a value, these values are equal in rows that belong to the
        same domain row.
        """
        ours, theirs = self._bound(left), self._bound(right)
        return [
            equals(ours[i].inner, theirs[i].inner, null_safe=ours[i].null_safe and theirs[i].null_safe)
            for i in sorted(ours.keys() & theirs.keys())
        ]

    def _full(self, left: Lifted, right: Lifted, parts: Sequence[Scalar]) -> Lifted:
        """Each side of a FULL join is joined with the domain; a result belongs to the domain row of either side."""
        ids = self.reads(
            [
                *parts,
                *left.conditions,
                *right.conditions,
                *[s for _, s in (*left.deferred.values(), *right.deferred.values())],
            ]
        )
        left, mine = self.grounded(left, ids, anew=True)
        right, theirs = self.grounded(right, ids, anew=True)
        order = sorted(ids)
        pairs = [equals(mine[i], theirs[i], null_safe=True) for i in order]
        joined = Join(
            left.relation,
            right.relation,
            "full",
            (),
            conjunction([*pairs, *[_mapped(p, mine) for p in parts]]),
            span=self.span,
        )
        either = [
            (
                self.names.new("domain", mine[i].type, nullable=True),
                Scalar(
                    exp.Coalesce(this=mine[i].expression.copy(), expressions=[theirs[i].expression.copy()]),
                    mine[i].type,
                ),
            )
            for i in order
        ]
        columns = joined.columns
        relation = Project(
            joined, (*columns, *[c for c, _ in either]), (*[read(c) for c in columns], *[s for _, s in either])
        )
        return Lifted(relation, self._belongs((i, c) for i, (c, _) in zip(order, either, strict=True)))

    @_lift.register
    def _(self, node: Union) -> Lifted:
        ids = node.free & self.domain_ids
        made = [self.grounded(self._settled(self.lift(p)), ids) for p in node.parts]
        order = sorted(ids)
        types = {c.id: c for c in self.left.columns}
        safe = {i: any(_is_null_safe(part, mapping[i]) for part, mapping in made) for i in order}
        parts = []
        for (part, mapping), given in zip(made, node.parts, strict=True):
            strict = [is_not_null(mapping[i]) for i in order if safe[i] and not _is_null_safe(part, mapping[i])]
            hidden = [self.names.new("domain", types[i].type, nullable=True) for i in order]
            outputs = (*given.columns, *hidden)
            exprs = (*[read(c) for c in given.columns], *[mapping[i] for i in order])
            parts.append(Project(filtered(part.relation, strict), outputs, exprs))
        columns = [self.names.new("domain", types[i].type, nullable=True) for i in order]
        conditions = tuple(
            equals(read(c), read(types[i]), null_safe=safe[i]) for i, c in zip(order, columns, strict=True)
        )
        return Lifted(Union(tuple(parts), (*node.outputs, *columns)), conditions)

    @_lift.register
    def _(self, node: Partitioned) -> Lifted:
        """Values equated with the domain become part of the partition, so that each domain row has its own
        partitions.
        """
        if isinstance(node, TopN) and node.limit != 0 and not node.offset and is_single_row(node.input):
            return self.lift(node.input)
        below = self._settled(self.lift(node.input))
        own = [below.resolve(s) for s in node.scalars]
        stuck = [c for c in below.conditions if c.columns & below.relation.ids and equality(c, below.relation) is None]
        mapping: Mapped = {i: s for i, (_, s) in below.deferred.items()}
        if stuck or self.reads(own):
            below, mapping = self.grounded(below, self.reads(own))
        found = [equality(c, below.relation) for c in below.conditions]
        apart = tuple(dict.fromkeys(e.inner for e in found if e is not None))
        node = node.changed(lambda s: _mapped(s, mapping))
        return replace(below, relation=replace(node, input=below.relation, partition=(*apart, *node.partition)))

    @_lift.register
    def _(self, node: Unary) -> Lifted:
        below = self._settled(self.lift(node.input))
        made = node.changed(below.resolve)
        own = made.reads & self.domain_ids
        if own or not made.reads.isdisjoint(below.deferred):  # readers that refer to an id need a column
            below, mapping = self.grounded(below, own)
            made = node.changed(lambda s: _mapped(s, mapping))
        return replace(below, relation=made.over([below.relation]))


def _is_null_safe(part: Lifted, inner: Scalar) -> bool:
    """True if a NULL in `inner` equals a NULL of the outer row; otherwise rows with NULL belong to no outer row."""
    found = [e for e in (equality(c, part.relation) for c in part.conditions) if e is not None and e.inner == inner]
    return all(e.null_safe for e in found) and inner.nullable


def _mapped(scalar: Scalar, mapping: Mapped) -> Scalar:
    return scalar.substitute({i: s.expression for i, s in mapping.items()})


def _mapped_aggregate(node: Aggregate, mapping: Mapped) -> Aggregate:
    calls = tuple(c.changed(lambda s: _mapped(s, mapping)) for c in node.calls)
    return Aggregate(node.input, tuple(_mapped(k, mapping) for k in node.keys), calls, node.outputs)


def _name(scalar: Scalar, relation: Node) -> str:
    names = {c.id: c.name for c in relation.columns}
    return names.get(scalar.column or "", "key")
