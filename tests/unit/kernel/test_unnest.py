"""Unnest against the plain reference, over random histories."""

from __future__ import annotations

import random
from collections import Counter

import pyarrow as pa
import pytest
from tests import reference
from tests.unit.kernel.kernel_tools import delta_of, rows_of, schema_of

from watersmeet.circuit.operators import Unnest
from watersmeet.kernel.context import StepContext
from watersmeet.kernel.evaluation.expressions import Evaluator
from watersmeet.kernel.operators import rowwise
from watersmeet.kernel.runs.delta import Delta, Slicing, slices_of
from watersmeet.values.types import BIGINT, INTEGER, VARCHAR, Field, SqlType

EVALUATOR = Evaluator()
STRUCT = SqlType("struct", fields=(("a", INTEGER), ("b", VARCHAR)))
SCHEMA = schema_of(INTEGER, *[SqlType("array", element=t) for t in (INTEGER, VARCHAR, STRUCT)])
VALUES = [
    [None, 1, 2],
    [None, [], [1], [2, None, 1], [None]],
    [None, [], ["x", "a long string of more than sixteen bytes"], [None]],
    [None, [], [{"a": 1, "b": "x"}, None, {"a": None, "b": None}]],
]
CONDITIONS = {
    None: lambda row, made: True,
    "r0 > 1": lambda row, made: made[0] is not None and made[0] > 1,
    "l0 = r0": lambda row, made: None not in (row[0], made[0]) and row[0] == made[0],
    "1 / (r0 - r0) > 0 AND false": lambda row, made: False,
}


def operator(arrays, keep, ordinality, outer, condition):
    kinds = [SCHEMA[i].type for i in keep] + [SCHEMA[i].type.element for i in arrays] + [BIGINT] * ordinality
    return Unnest(
        ("x",),
        tuple(Field(f"c{i}", t) for i, t in enumerate(kinds)),
        False,
        tuple(arrays),
        tuple(keep),
        ordinality,
        outer,
        condition,
    )


def applied(op, delta, slicing=None):
    context = StepContext(0, False, EVALUATOR, (SCHEMA,), slicing=slicing or Slicing())
    return Delta.concat(list(slices_of(rowwise.unnest(op, [delta], None, context))))  # it keeps no state


@pytest.mark.parametrize("outer", [False, True])
@pytest.mark.parametrize("arrays", [(1,), (2,), (3,), (1, 2), (3, 1, 2)])
def test_random_changes(arrays, outer):
    rng = random.Random(f"{arrays}{outer}")
    for condition in CONDITIONS if outer and arrays[0] == 1 else [None]:
        for ordinality in (False, True):
            for keep in ((), (0,), (0, 1, 2, 3)):
                op = operator(arrays, keep, ordinality, outer, condition)
                rows = [tuple(rng.choice(v) for v in VALUES) for _ in range(rng.choice([0, 1, 7, 30]))]
                diffs = [rng.choice([1, 2, -1]) for _ in rows]
                given: Counter = Counter()
                for r, d in zip(rows, diffs):
                    found = reference.unnest(
                        [(r, 1)], arrays, keep, ordinality=ordinality, outer=outer, condition=CONDITIONS[condition]
                    )
                    for made, count in found.items():
                        given[made] += count * d
                out = applied(op, delta_of(SCHEMA, rows, diffs), Slicing(rows=3))
                assert [f.type for f in out.columns.schema] == [f.type.arrow for f in op.schema]
                result: Counter = Counter()
                for r, d in zip(rows_of(out), out.diff):
                    result[reference.row(r)] += int(d)
                assert {k: v for k, v in result.items() if v} == {k: v for k, v in given.items() if v}


def test_slices_of_lists_with_hidden_elements_behind_nulls():
    offsets = pa.array([0, 2, 4, 5], pa.int32())
    lists = pa.ListArray.from_arrays(
        offsets, pa.array([1, 2, 3, 4, 5], pa.int32()), mask=pa.array([False, True, False])
    )
    table = pa.table({"c0": pa.array([9, 10, 11, 12], pa.int32()), "c1": pa.concat_arrays([lists, lists[:1]])}).slice(1)
    empty = [pa.nulls(3, f.type.arrow) for f in SCHEMA[2:]]
    whole = pa.Table.from_arrays([*table.columns, *empty], names=["c0", "c1", "c2", "c3"])
    out = applied(
        operator((1,), (0,), True, False, None), Delta(whole, delta_of(SCHEMA, [(1, None, None, None)] * 3).diff)
    )
    assert rows_of(out) == [(11, 5, 1), (12, 1, 1), (12, 2, 2)]
