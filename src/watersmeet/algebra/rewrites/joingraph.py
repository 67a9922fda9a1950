"""The graph of neighboring joins: their inputs, and the conditions that connect them.

Inner joins merge into one graph. With `move_outer`, LEFT, semi and anti joins between them also become inputs, which
can be joined as soon as all columns of their condition exist:

    (a JOIN b ON a.k = b.k) LEFT JOIN c ON a.j = c.j   =   (a LEFT JOIN c ON a.j = c.j) JOIN b ON a.k = b.k
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from sqlglot import exp

from watersmeet.algebra.nodes import Filter, Join, JoinKind, KeyPair, Node, Project
from watersmeet.algebra.rewrites.conditions import as_predicate, key_pair, paired
from watersmeet.algebra.rewrites.pushdown import is_volatile
from watersmeet.algebra.scalars import Scalar, conjuncts
from watersmeet.algebra.trees import part_of
from watersmeet.errors import Span

Mask = int
"""A set of inputs or of equalities as bits of an integer."""

_DEPENDENT: Final = ("left", "semi", "anti")


@dataclass(frozen=True, slots=True)
class Attachment:
    """A LEFT, semi or anti join without its inputs. The left operands of its keys read the graph's inputs."""

    kind: JoinKind
    keys: tuple[KeyPair, ...]
    residual: Scalar | None
    span: Span | None

    def join(self, left: Node, right: Node) -> Join:
        """The join of `left` and `right`; `left` must have all left columns that the condition reads."""
        return Join(left, right, self.kind, self.keys, self.residual, span=self.span)


@dataclass(slots=True)
class Input:
    """One input of the graph.

    attached: the join of the input if it is not an inner join.
    requires: the inputs that `attached` reads.
    keys, key_order: the equalities to which the keys of `attached` belong.
    classes: the equalities with a member in this input.
    """

    relation: Node
    attached: Attachment | None = None
    requires: Mask = 0
    keys: Mask = 0
    key_order: tuple[int, ...] = ()
    classes: Mask = 0


@dataclass(slots=True)
class Equality:
    """Scalars by input that are equal in every row. All have one type, or are integers, or there are only two.

    null_safe: whether it compares two members with IS NOT DISTINCT FROM.
    text: the text of a key over several inputs.
    """

    members: dict[int, list[Scalar]] = field(default_factory=dict)
    null_safe: bool = False
    text: str | None = None


@dataclass(slots=True)
class Condition:
    """A condition other than an equality of two inputs, and the inputs that it reads."""

    predicate: Scalar
    reads: Mask


class JoinGraph:
    """The graph of the joins at the top of `tree`.

    Without `move_outer` the graph ends at LEFT, semi and anti joins; if `tree` itself is one, the graph has its two
    inputs.
    values: columns of the tree that have another id in an input.
    has_gap, span: whether a join has no key, and the span of that join.
    """

    def __init__(self, tree: Node, *, move_outer: bool) -> None:
        self.inputs: list[Input] = []
        self.has_gap = False
        self.span: Span | None = None
        self._move_outer = move_outer
        self._pairs: list[KeyPair] = []
        self._parts: list[Scalar] = []
        self.values = self._collect(tree, outer=True)
        self._owner = {
            c.id: i
            for i, one in enumerate(self.inputs)
            if one.attached is None or one.attached.kind == "left"
            for c in one.relation.columns
        }
        self.equalities: list[Equality] = []
        self.conditions: list[Condition] = []
        self._classify()
        self._depend()

    def reads(self, columns: Iterable[str]) -> Mask:
        """The inputs that produce `columns`."""
        found = 0
        for column in columns:
            found |= 1 << self._owner[column]
        return found

    def _collect(self, node: Node, *, outer: bool) -> dict[str, Scalar]:
        """Adds the joins of `node` to the graph. Returns its columns that have another id in an input, as expressions
        over the inputs.

        outer: whether `node` itself may be a LEFT, semi or anti join.
        """
        if isinstance(node, Join) and joins_freely(node, move_outer=outer):
            return self._joined(node)
        if isinstance(node, Filter) and is_transparent(node, move_outer=outer):
            values = self._collect(node.input, outer=outer)
            self._parts += [_resolved(p, values) for p in conjuncts(node.predicate)]
            return values
        if isinstance(node, Project) and is_transparent(node, move_outer=outer):
            values = self._collect(node.input, outer=outer)
            return {c.id: _resolved(e, values) for c, e in zip(node.outputs, node.exprs, strict=True)}
        self.inputs.append(Input(node))
        return {}

    def _joined(self, node: Join) -> dict[str, Scalar]:
        if node.kind == "inner":
            values = self._collect(node.left, outer=self._move_outer) | self._collect(
                node.right, outer=self._move_outer
            )
            if not node.keys:
                self.has_gap, self.span = True, node.span
            self._pairs += [
                KeyPair(_resolved(k.left, values), _resolved(k.right, values), k.null_safe) for k in node.keys
            ]
            self._parts += [_resolved(p, values) for p in conjuncts(node.residual)]
            return values
        values = {}
        if self._move_outer:
            values = self._collect(node.left, outer=True)
        else:
            self.inputs.append(Input(node.left))
        keys = tuple(KeyPair(_resolved(k.left, values), k.right, k.null_safe) for k in node.keys)
        residual = None if node.residual is None else _resolved(node.residual, values)
        self.inputs.append(Input(node.right, Attachment(node.kind, keys, residual, node.span)))
        return values

    def _classify(self) -> None:
        """Divides all conditions into equalities of two inputs and others."""
        classes = _Classes()
        for pair in self._pairs:
            one, other = self.reads(pair.left.columns), self.reads(pair.right.columns)
            if one.bit_count() == other.bit_count() == 1 and one != other:
                classes.add(pair, one.bit_length() - 1, other.bit_length() - 1, self._plain)
            else:
                self.conditions.append(Condition(as_predicate(pair), one | other))
        for part in self._parts:
            found = self._as_pair(part)
            if found is None:
                self.conditions.append(Condition(part, self.reads(part.columns)))
            else:
                classes.add(*found, self._plain)
        self.equalities = classes.found
        for number, equality in enumerate(self.equalities):
            for i in equality.members:
                self.inputs[i].classes |= 1 << number

    def _as_pair(self, part: Scalar) -> tuple[KeyPair, int, int] | None:
        node = part.expression
        if not isinstance(node, (exp.EQ, exp.NullSafeEQ)):
            return None
        sides = [self.reads(Scalar(s, part.type).columns) for s in (node.this, node.expression)]
        if any(s.bit_count() != 1 for s in sides) or sides[0] == sides[1]:
            return None
        one, other = (s.bit_length() - 1 for s in sides)
        pair = key_pair(part, self.inputs[one].relation, self.inputs[other].relation)
        return None if pair is None else (pair, one, other)

    def _plain(self, scalar: Scalar, i: int) -> Scalar:
        """The scalar without a cast to a wider integer type, which does not affect an equality."""
        node = scalar.expression
        if isinstance(node, exp.Cast) and scalar.type.is_integer:
            inner = part_of(node.this.unnest(), self.inputs[i].relation.columns)
            if inner is not None and inner.type.is_integer:
                return inner
        return scalar

    def _depend(self) -> None:
        """Finds the inputs that each LEFT, semi and anti join reads, and the equalities to which its keys belong."""
        numbers = {
            text_of(m): n
            for n, e in enumerate(self.equalities)
            if not e.null_safe
            for ms in e.members.values()
            for m in ms
        }
        for i, one in enumerate(self.inputs):
            if one.attached is None:
                continue
            parts = [k.left for k in one.attached.keys] + conjuncts(one.attached.residual)
            columns = {c for p in parts for c in p.columns if c in self._owner}
            one.requires = self.reads(columns) & ~(1 << i)
            for key in one.attached.keys:
                number = numbers.setdefault(text_of(key.left), len(self.equalities))
                if number == len(self.equalities):
                    self._add_single(key.left)
                one.keys |= 1 << number
                one.key_order += (number,)
                if one.attached.kind == "left" and not key.null_safe:
                    numbers.setdefault(text_of(key.right), number)  # equals the left value or is NULL

    def _add_single(self, scalar: Scalar) -> None:
        """Adds a key that belongs to no equality of the graph, with a member if a single input computes it."""
        reads = self.reads(scalar.columns)
        if reads.bit_count() == 1:
            i = reads.bit_length() - 1
            self.inputs[i].classes |= 1 << len(self.equalities)
            self.equalities.append(Equality({i: [self._plain(scalar, i)]}))
        else:
            self.equalities.append(Equality(text=text_of(scalar)))

    def texts(self, equality: int, inputs: Mask) -> frozenset[str]:
        """The texts of the members of an equality in `inputs`."""
        found = self.equalities[equality]
        texts = {text_of(m) for i, ms in found.members.items() if inputs >> i & 1 for m in ms}
        return frozenset(texts if found.text is None else texts | {found.text})

    def shards(self, i: int) -> dict[str, int]:
        """The texts over input `i` by which its rows can be distributed for an equality, with the number of the
        equality.
        """
        found = {t: n for n in range(len(self.equalities)) for t in self.texts(n, 1 << i)}
        attached = self.inputs[i].attached
        if attached is None:
            return {t: n for t, n in found.items() if self.inputs[i].classes >> n & 1}
        return {text_of(k.right): n for k, n in zip(attached.keys, self.inputs[i].key_order, strict=True)}

    def keys(self, left: Mask, right: Mask) -> list[KeyPair]:
        """The keys of a join of two sets of inputs, one for each equality that connects them."""
        found = []
        for equality in self.equalities:
            one, other = (_member(equality, side) for side in (left, right))
            if one is not None and other is not None:
                found.append(_paired(one, other, null_safe=equality.null_safe))
        return found

    def tested(self, left: Mask, right: Mask, both: Mask) -> list[Scalar]:
        """The conditions that can be tested on `both`, but not on `left` or `right`."""
        return [
            c.predicate
            for c in self.conditions
            if c.reads and not c.reads & ~both and c.reads & ~left and c.reads & ~right
        ]

    def components(self, *, attached: bool) -> list[Mask]:
        """The parts of the graph that equalities connect, in the written order. attached: whether to include attached
        inputs.
        """
        found: list[tuple[Mask, Mask]] = []
        for i, one in enumerate(self.inputs):
            if one.attached is not None and not attached:
                continue
            inputs, classes = 1 << i | one.requires, one.classes
            for old in [f for f in found if f[0] & inputs or f[1] & classes]:
                inputs, classes = inputs | old[0], classes | old[1]
                found.remove(old)
            found.append((inputs, classes))
        return sorted((inputs for inputs, _ in found), key=lambda m: m & -m)

    def inside(self, i: int) -> list[Scalar]:
        """The conditions that the equalities imply for one input."""
        found = []
        for equality in self.equalities:
            first, *others = equality.members.get(i, [None])
            found += [
                as_predicate(_paired(first, m, null_safe=False)) for m in others if first is not None and m is not None
            ]
        return found


def joins_freely(node: Join, *, move_outer: bool) -> bool:
    """True if the join may change places with its neighbors."""
    if (
        node.broadcast
        or node.arrival
        or node.partners is not None
        or any(is_volatile(p) for p in conjuncts(node.residual))
    ):
        return False
    return node.kind == "inner" or (
        move_outer and node.kind in _DEPENDENT and bool(node.keys) and all(k.left.columns for k in node.keys)
    )


def is_transparent(node: Node, *, move_outer: bool) -> bool:
    """True if `node` or its input is a join that belongs to the graph of the node that reads `node`."""
    while not isinstance(node, Join):
        if not isinstance(node, (Filter, Project)) or (isinstance(node, Filter) and is_volatile(node.predicate)):
            return False
        if isinstance(node, Project) and not all(
            e.column is not None and e.type == c.type for c, e in zip(node.outputs, node.exprs, strict=True)
        ):
            return False
        node = node.input
    return joins_freely(node, move_outer=move_outer)


def text_of(scalar: Scalar) -> str:
    """The text of a member for comparisons, without a cast to a wider integer type."""
    node = scalar.expression.unnest()
    if isinstance(node, exp.Cast) and scalar.type.is_integer and isinstance(node.this, exp.Column):
        node = node.this
    return str(node.sql(dialect="duckdb"))


def _resolved(scalar: Scalar, values: Mapping[str, Scalar]) -> Scalar:
    if scalar.column is not None:
        return values.get(scalar.column, scalar)
    used = scalar.columns & values.keys()
    return scalar.substitute({c: values[c].expression for c in used}) if used else scalar


def _member(equality: Equality, side: Mask) -> Scalar | None:
    """The first member of the equality in the inputs of `side`, preferably a column."""
    found = [m for i, ms in sorted(equality.members.items()) if side >> i & 1 for m in ms]
    return min(found, key=lambda m: m.column is None, default=None)


def _paired(left: Scalar, right: Scalar, *, null_safe: bool) -> KeyPair:
    return paired(left, right, null_safe=null_safe) or KeyPair(left, right, null_safe)


class _Classes:
    """Equalities under construction. Members that equal a common member belong to one class."""

    def __init__(self) -> None:
        self.found: list[Equality] = []

    def add(self, pair: KeyPair, left: int, right: int, plain: Callable[[Scalar, int], Scalar]) -> None:
        """Adds `pair`, which compares the inputs `left` and `right`."""
        sides = {left: plain(pair.left, left), right: plain(pair.right, right)}
        kinds = [s.type for s in sides.values()]
        alone = any(k.is_nested for k in kinds) or not (kinds[0] == kinds[1] or all(k.is_integer for k in kinds))
        if pair.null_safe or alone:
            self.found.append(Equality({i: [s] for i, s in sides.items()}, pair.null_safe))
            return
        made = Equality({i: [s] for i, s in sides.items()})
        kept = []
        for old in self.found:
            if not old.null_safe and any(_has(old.members.get(i, ()), s) for i, s in sides.items()):
                for i, members in made.members.items():
                    known = old.members.setdefault(i, [])
                    known += [m for m in members if not _has(known, m)]
                made = old
            else:
                kept.append(old)
        self.found = [*kept, made]


def _has(members: Iterable[Scalar], scalar: Scalar) -> bool:
    return any(text_of(m) == text_of(scalar) for m in members)
