"""Where the rows are that operators keep, as their own columns show it.

Another number of buckets sends the rows of a bucket to other ones, so each row has to show where it belongs: to the
bucket in which later changes of the same row arrive, and in which operators expect it that rely on its distribution.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from watersmeet.circuit.operators import (
    Aggregate,
    Arrange,
    DynamicFilter,
    Exchange,
    Operator,
    TemporalJoin,
    TimeFilter,
    TopN,
    Upsert,
    Versions,
)
from watersmeet.circuit.placing import OTHERS, Placing
from watersmeet.planner.distribution import Placement, key_columns, promoted, translated

_COPIED: Final = Placing("copied")
_POOLED: Final = Placing("pooled")


class Placings:
    """Where the rows of traces are, derived from operators alone. operators: by id, with all that they read."""

    def __init__(self, operators: Mapping[str, Operator]) -> None:
        self._operators = operators
        self._placement = Placement(operators)
        self._copied: dict[str, bool] = {}

    def of(self, op: Operator) -> dict[str, Placing | None]:
        """By the name of a trace, `OTHERS` for those that are not named, where its rows are; None: they don't show it.

        Nothing for an operator that keeps nothing.
        """
        if isinstance(op, Arrange):
            loose = not op.keys  # joins with copies of the other side don't care
            return {OTHERS: self._rows(op, keys=op.keys, null_safe=op.null_safe, loose=loose)}
        if isinstance(op, Aggregate):
            return {OTHERS: self._rows(op, columns=op.keys)}  # the keys come first in all traces
        if isinstance(op, (TopN, Upsert)):
            return {OTHERS: self._rows(op, columns=range(len(op.schema)))}
        if isinstance(op, Versions):
            return {OTHERS: self._rows(op, columns=range(len(op.schema) - len(op.adds)))}
        if isinstance(op, TimeFilter):
            # Of what is final, a row that is taken back in time has to be found.
            final = op.append_only and not self._operators[op.inputs[0]].append_only
            return {"passed": _POOLED, OTHERS: self._rows(op, loose=not final)}
        if isinstance(op, DynamicFilter):
            return {"bound": self._rows(op, 1), OTHERS: self._rows(op, loose=True)}
        if isinstance(op, TemporalJoin):
            waiting = self._rows(op, keys=op.left_keys, null_safe=op.null_safe, loose=not op.left_keys)
            answers = self._rows(op, 1, keys=op.right_keys, null_safe=op.null_safe)
            return {"memo": self._rows(op, columns=op.identity or None), "waiting": waiting, "answers": answers}
        return {}

    def _rows(
        self,
        op: Operator,
        number: int = 0,
        *,
        columns: Sequence[int] | None = None,
        keys: Sequence[int] = (),
        null_safe: Sequence[bool] = (),
        loose: bool = False,
    ) -> Placing | None:
        """Where rows of an input are. columns: those of the input that the trace has; None: all, at their places.

        keys, null_safe: only rows of which all keys that NULL does not meet are there. loose: a row may be in any
        bucket if no operator relies on where it is.
        """
        source = op.inputs[number]
        if self._is_copied(source):
            return _COPIED
        known = self._placement.distribution(source)
        if known is not None and all(known):
            known = promoted(known, keys, null_safe)
            found = key_columns(known if columns is None else translated(known, columns), exact=not loose)
            if found is not None:
                return Placing("keyed", found)
        if not loose:
            return None
        return Placing("anywhere", tuple((i,) for i in range(len(self._operators[source].schema))))

    def _is_copied(self, operator_id: str) -> bool:
        if operator_id not in self._copied:
            op = self._operators[operator_id]
            self._copied[operator_id] = (
                op.mode == "broadcast"
                if isinstance(op, Exchange)
                else bool(op.inputs) and all(self._is_copied(i) for i in op.inputs)
            )
        return self._copied[operator_id]
