"""Lowering of outer joins whose pairs do not all count as matches: pairs and rows without a match read the same
arrangements.
"""

from __future__ import annotations

from collections.abc import Sequence

from watersmeet.algebra.nodes import Column, Join, KeyPair
from watersmeet.algebra.retention import of_join
from watersmeet.algebra.scalars import Scalar, conjunction, conjuncts, null_of
from watersmeet.circuit import operators
from watersmeet.circuit.operators import InputColumn, Operator
from watersmeet.planner.builder import positional
from watersmeet.planner.joins import JoinLowering, keeping
from watersmeet.planner.sharing import Side
from watersmeet.planner.sides import one_type
from watersmeet.planner.streams import Stream, at, emit_exactly, of_operator
from watersmeet.planner.texts import position, sql

_Ids = frozenset[str]


class PartneredLowering(JoinLowering):
    """Lowers joins with `partners` into the builder: an inner join, and an anti join for each preserved side."""

    def lower(self, node: Join, needed: _Ids) -> Stream:
        """The stream of `node` with at least the columns `needed`."""
        assert node.keys
        assert node.partners is not None
        pairs = [one_type(k) for k in node.keys]
        conditions = [*node.partners, *conjuncts(node.residual)]
        reads = needed.union(*[s.columns for s in conditions])
        kept = of_join(node)
        inputs = (
            self._input(node.left, reads, [k.left for k in pairs], keep=keeping(kept[0]), movable=False),
            self._input(node.right, reads, [k.right for k in pairs], keep=keeping(kept[1]), movable=False),
        )
        left, right, order = self._both(node, inputs, [k.null_safe for k in pairs])
        pairs = [pairs[i] for i in order]
        wanted = [c for c in node.columns if c.id in needed] or [node.columns[0]]
        # The pairs come last, because the last join says what a view keeps of its left and right inputs.
        parts = (
            [self._alone(node.partners[0], node, pairs, left, right, wanted)] if node.kind in ("left", "full") else []
        )
        parts += (
            [self._alone(node.partners[1], node, pairs, right, left, wanted)] if node.kind in ("right", "full") else []
        )
        parts.append(self._pairs(node, pairs, left, right, wanted))
        fields = [(c.type, any(p.schema[i].nullable for p in parts)) for i, c in enumerate(wanted)]
        made = self.builder.add(operators.Union(tuple(p.id for p in parts), positional(fields), append_only=False))
        return of_operator(made, [(c, i) for i, c in enumerate(wanted)])

    def _pairs(
        self, node: Join, pairs: Sequence[KeyPair], left: Side, right: Side, wanted: Sequence[Column]
    ) -> Operator:
        places = [
            InputColumn(0, left.positions[c.id]) if c.id in node.left.ids else InputColumn(1, right.positions[c.id])
            for c in wanted
        ]
        output = tuple(dict.fromkeys(places))
        fields = [(left, right)[p.input].operator.schema[p.column] for p in output]
        append_only = left.operator.append_only and right.operator.append_only
        made = self.builder.add(
            operators.Join(
                (left.operator.id, right.operator.id),
                positional((f.type, f.nullable) for f in fields),
                append_only,
                "inner",
                left.keys,
                right.keys,
                tuple(k.null_safe for k in pairs),
                _text(conjuncts(node.residual), left, right),
                output,
            )
        )
        return self._exactly(made, [at(made, output.index(p)) for p in places], wanted)

    def _alone(
        self, partner: Scalar, node: Join, pairs: Sequence[KeyPair], own: Side, other: Side, wanted: Sequence[Column]
    ) -> Operator:
        """The rows of `own` that have no partner in `other`, with NULLs."""
        places = {c.id: InputColumn(0, own.positions[c.id]) for c in wanted if c.id in own.positions}
        output = tuple(dict.fromkeys(places.values())) or (InputColumn(0, own.keys[0]),)
        fields = [own.operator.schema[p.column] for p in output]
        made = self.builder.add(
            operators.Join(
                (own.operator.id, other.operator.id),
                positional((f.type, f.nullable) for f in fields),
                False,
                "anti",
                own.keys,
                other.keys,
                tuple(k.null_safe for k in pairs),
                _text([*conjuncts(node.residual), partner], own, other),
                output,
            )
        )
        values = [at(made, output.index(places[c.id])) if c.id in places else null_of(c.type) for c in wanted]
        return self._exactly(made, values, wanted)

    def _exactly(self, op: Operator, values: Sequence[Scalar], wanted: Sequence[Column]) -> Operator:
        return emit_exactly(self.builder, Stream(op, {c.id: v for c, v in zip(wanted, values, strict=True)}), values)


def _text(parts: Sequence[Scalar], left: Side, right: Side) -> str | None:
    """The condition of a join over the columns of its sides."""
    places = {i: position(p, "l") for i, p in left.positions.items()} | {
        i: position(p, "r") for i, p in right.positions.items()
    }
    condition = conjunction([p.substitute(places) for p in parts])
    return None if condition is None else sql(condition.expression)
