"""ASOF joins against the nested-loop reference, after every epoch of random histories. RW-20 to RW-27."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import fields
from datetime import date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from tests import reference
from tests.thorough import mostly_slow
from tests.unit.kernel.kernel_tools import Stored, check_order, delta_of, grown, rows_of, schema_of, weaken_hashes
from tests.unit.kernel.test_join import random_change

from watersmeet.circuit.operators import Arrange, ArrivalAsofJoin, AsofJoin, InputColumn, SortKey
from watersmeet.kernel.context import StepContext
from watersmeet.kernel.evaluation.expressions import Evaluator
from watersmeet.kernel.operators import arrange, asof, join
from watersmeet.kernel.operators.asof import nearer_above
from watersmeet.kernel.runs.delta import Delta, Sliced, Slicing, slices_of
from watersmeet.values.types import BIGINT, DATE, DOUBLE, INTEGER, REAL, SMALLINT, TIMESTAMP, VARCHAR, Field, SqlType

DECIMAL = SqlType("numeric", 20, 2)
EVALUATOR = Evaluator()
KEYS = {INTEGER: [None, 0, 1, 2], VARCHAR: [None, "", "a", "a long string that does not fit into two words"]}
VALUES = {
    BIGINT: [None, *range(-2, 6)],
    DOUBLE: [None, -1.5, 0.0, 2.0, 1e300],
    VARCHAR: [None, "", "a", "b", "ba", "c"],
}
COMPARISONS = ["<", "<=", ">", ">="]
#: Of values with a distance.
BOTH_SIDES = ["<>", "<=>"]


def make(kind, schema, comparison, *, keys=(0,), null_safe=(False,), ties=(2,)):
    output = tuple(InputColumn(side, i) for side in (0, 1) for i in range(len(schema)))
    made = tuple(Field(c.name, schema[c.column].type) for c in output)
    return AsofJoin(("l", "r"), made, False, kind, keys, keys, null_safe, comparison, 1, 1, ties, output)


def step(op, deltas, state, schema, slicing=None):
    context = StepContext(0, False, EVALUATOR, (schema, schema), slicing=slicing or Slicing())
    arranged = [
        arrange.step(Arrange((name,), schema, False, op.left_keys, op.null_safe, 0), [delta], state, context)
        for name, delta in zip(("left", "right"), deltas, strict=True)
    ]
    return asof.step(op, arranged, state, context)


def run(seed):
    """A random history; the output's sum is the batch result after every epoch, also in slices. Where left rows are
    only inserted, retractions come first.
    """
    rng = random.Random(seed)
    grows, slicing = seed % 3 == 0, Slicing(rows=rng.choice([2, 5, 1 << 20]))
    key, value = rng.choice(list(KEYS)), rng.choice(list(VALUES))
    schema = schema_of(key, value, INTEGER, VARCHAR)
    columns = [KEYS[key], VALUES[value], [None, 1, 2, 3], ["x", "y"]]
    kind = rng.choice(["inner", "left"])
    comparison = rng.choice(COMPARISONS if value == VARCHAR else COMPARISONS + BOTH_SIDES)
    safe = rng.random() < 0.3
    op = make(kind, schema, comparison, null_safe=(safe,), ties=(2, 3))
    contents = [Counter(), Counter()]
    result: Counter = Counter()
    stored = Stored()
    for _ in range(rng.randrange(2, 7)):
        deltas = []
        for content in contents:
            change = random_change(rng, content, columns, 12)
            rows, diffs = grown(change) if grows and content is contents[0] else change
            for r, d in zip(rows, diffs, strict=True):
                content[r] += d
            deltas.append(delta_of(schema, rows, diffs))
        state = stored.load()
        out = step(op, deltas, state, schema, slicing)
        stored.save(state)
        if isinstance(out, Sliced) and grows:
            assert out.retracts_first
        check_order(out)
        out = Delta.concat([Delta.none(op.schema), *slices_of(out)])
        for r, d in zip(rows_of(out), out.diff.tolist(), strict=True):
            result[reference.row(r)] += d
        lefts, rights = (Counter({r: n for r, n in c.items() if n}) for c in contents)
        expected = reference.asof(
            kind,
            lefts,
            rights,
            left_keys=(0,),
            right_keys=(0,),
            null_safe=(safe,),
            comparison=comparison,
            left_value=1,
            right_value=1,
            ties=(2, 3),
            output=op.output,
            right_width=4,
        )
        assert {r: n for r, n in result.items() if n} == {reference.row(r): n for r, n in expected.items() if n}


@pytest.mark.parametrize("block", mostly_slow(range(8), 1))
def test_random_histories(block):
    for seed in range(30 * block, 30 * block + 30):
        run(seed)


def test_keys_whose_hashes_collide(monkeypatch):
    weaken_hashes(monkeypatch)
    for seed in range(1000, 1020):
        run(seed)


def choose(seed):
    """What stands for rows that no column of `ties` tells apart depends on the rows alone, not on how they came or what
    went.
    """
    rng = random.Random(seed)
    schema = schema_of(INTEGER, BIGINT, INTEGER, VARCHAR)
    columns = [[None, 0, 1], [None, *range(3)], [None, 1, 2], ["x", "y", "z"]]
    op = make("left", schema, rng.choice(COMPARISONS + BOTH_SIDES), ties=rng.choice([(), (2,)]))
    contents, stored, result = [Counter(), Counter()], Stored(), Counter()
    for _ in range(rng.randrange(2, 6)):
        changes = [random_change(rng, content, columns, 12) for content in contents]
        for content, change in zip(contents, changes, strict=True):
            for r, d in zip(*change, strict=True):
                content[r] += d
        state = stored.load()
        out = step(op, [delta_of(schema, *change) for change in changes], state, schema)
        stored.save(state)
        for r, d in zip(rows_of(out), out.diff.tolist(), strict=True):
            result[reference.row(r)] += d
        whole = step(
            op,
            [delta_of(schema, [r for r, n in c.items() if n], [n for n in c.values() if n]) for c in contents],
            Stored().load(),
            schema,
        )
        expected: Counter = Counter()
        for r, d in zip(rows_of(whole), whole.diff.tolist(), strict=True):
            expected[reference.row(r)] += d
        assert {r: n for r, n in result.items() if n} == expected


def test_rows_that_nothing_tells_apart(monkeypatch):
    for seed in range(15):
        choose(seed)
    weaken_hashes(monkeypatch)
    for seed in range(30, 38):
        choose(seed)


def keep(seed, depth, most):
    """Each left row meets the nearest of the `depth` greatest versions that its key has had until then."""
    rng = random.Random(seed)
    schema = schema_of(INTEGER, BIGINT, INTEGER, VARCHAR)
    comparison, kind = rng.choice(COMPARISONS + BOTH_SIDES), rng.choice(["inner", "left"])
    plain = make(kind, schema, comparison)
    op = ArrivalAsofJoin(**{f.name: getattr(plain, f.name) for f in fields(plain)}, depth=depth)
    kept = Arrange(
        ("right",), schema, True, (0,), (False,), 0, depth=depth, order=(SortKey(1, descending=True), SortKey(2))
    )
    stored, rights = Stored(), []
    for epoch in range(rng.randrange(2, 9)):
        new = [
            [
                (rng.choice([None, 0, 1]), rng.choice([None, *range(8)]), 100 * epoch + i, "x")
                for i in range(rng.randrange(most))
            ]
            for _ in "lr"
        ]
        rights += new[1]
        state = stored.load()
        context = StepContext(0, False, EVALUATOR, (schema, schema))
        out = join.arrival_asof(
            op,
            [delta_of(schema, new[0]), arrange.step(kept, [delta_of(schema, new[1])], state, context)],
            state,
            context,
        )
        stored.save(state)
        order = sorted((r for r in rights if r[1] is not None), key=lambda r: (-r[1], r[2]))
        best = Counter(r for key in (0, 1) for r in [r for r in order if r[0] == key][:depth])
        expected = reference.asof(
            kind,
            Counter(new[0]),
            best,
            left_keys=(0,),
            right_keys=(0,),
            null_safe=(False,),
            comparison=comparison,
            left_value=1,
            right_value=1,
            ties=(2,),
            output=op.output,
            right_width=4,
        )
        assert Counter(map(reference.row, rows_of(out))) == expected
        assert (out.diff == 1).all()
    return state.trace(kept.id, "rows").num_rows


@pytest.mark.parametrize("seed", [5, 11, 13, 23])
def test_joins_on_arrival_without_candidates(seed):
    """In an epoch, no left row has a version to choose from."""
    keep(seed, 1 + seed % 4, 6)


def test_joins_on_arrival_with_so_many_versions(monkeypatch):
    """TP-56, `keep_versions`; of a few keys nothing near all of their rows is kept."""
    for seed in range(40):
        keep(seed, 1 + seed % 4, 6)
    assert max(keep(seed, 2, 900) for seed in range(4)) < 900
    weaken_hashes(monkeypatch)
    for seed in range(40, 55):
        keep(seed, 1 + seed % 4, 6)


def test_only_rows_whose_partner_changes_come_out():
    """RW-27: of a thousand left rows of a key, those between the new record and its neighbour."""
    schema = schema_of(INTEGER, BIGINT, INTEGER, VARCHAR)
    op = make("left", schema, ">=")
    stored = Stored()
    state = stored.load()
    left = delta_of(schema, [(1, i, 0, "l") for i in range(1000)])
    step(op, [left, delta_of(schema, [(1, 0, 0, "a"), (1, 500, 0, "b")])], state, schema)
    out = step(op, [delta_of(schema, []), delta_of(schema, [(1, 490, 0, "c")])], state, schema)
    assert out.num_rows == 20
    assert {r[1] for r in rows_of(out)} == set(range(490, 500))


def test_times_and_decimals():
    for kind, values in (
        (TIMESTAMP, [datetime(2024, 1, 1, h) for h in range(4)]),
        (DECIMAL, [Decimal("-1.50"), Decimal("0.00"), Decimal("0.25"), Decimal("99.00")]),
    ):
        schema = schema_of(INTEGER, kind, INTEGER, VARCHAR)
        op = make("inner", schema, ">")
        left = delta_of(schema, [(1, v, 0, "l") for v in values])
        right = delta_of(schema, [(1, v, 0, "r") for v in values])
        out = rows_of(step(op, [left, right], Stored().load(), schema))
        assert sorted((r[1], r[5]) for r in out) == list(zip(values[1:], values, strict=False))


@pytest.mark.parametrize(
    ("kind", "value", "below", "above", "nearer"),
    [
        (BIGINT, 0, -(1 << 63), (1 << 63) - 1, True),
        (BIGINT, -1, -(1 << 63), (1 << 63) - 1, False),
        (BIGINT, (1 << 63) - 2, -(1 << 63), (1 << 63) - 1, True),
        (SMALLINT, 0, -32768, 32767, True),
        (DATE, date(2024, 1, 3), date(2024, 1, 1), date(2024, 1, 4), True),
        (TIMESTAMP, datetime(2024, 1, 3), datetime(2024, 1, 1), datetime(2024, 1, 5), False),
        (DECIMAL, Decimal("0.00"), Decimal("-0.02"), Decimal("0.01"), True),
        (SqlType("numeric", 38, 0), Decimal(-1), Decimal("9" * 38).copy_negate(), Decimal("9" * 38), False),
        (SqlType("numeric", 38, 0), Decimal(1), Decimal("9" * 38).copy_negate(), Decimal("9" * 38), True),
        (REAL, 0.0, -0.5, 0.25, True),
        (DOUBLE, -1e308, -1.5e308, 1.5e308, False),
        (DOUBLE, 5.0, 0.0, float("inf"), False),
        (DOUBLE, 5.0, float("-inf"), float("nan"), False),
        (DOUBLE, 5.0, float("-inf"), 1e308, True),
        (DOUBLE, float("nan"), 5.0, float("nan"), False),
    ],
)
def test_distances_are_exact(kind, value, below, above, nearer):
    """Also where the type has no room for them."""
    assert nearer_above(*(pa.array([v], kind.arrow) for v in (value, below, above))).tolist() == [nearer]


@pytest.mark.parametrize("extreme", [-(1 << 63), (1 << 63) - 1])
@pytest.mark.parametrize("comparison", COMPARISONS)
def test_values_at_the_ends_of_their_type(extreme, comparison):
    """No value lies beyond them."""
    schema = schema_of(INTEGER, BIGINT, INTEGER, VARCHAR)
    values = [-(1 << 63), -1, (1 << 63) - 1]
    left, right = delta_of(schema, [(1, v, 0, "l") for v in values]), delta_of(schema, [(1, extreme, 0, "r")])
    out = rows_of(step(make("inner", schema, comparison), [left, right], Stored().load(), schema))
    meets = {"<": int.__lt__, "<=": int.__le__, ">": int.__gt__, ">=": int.__ge__}[comparison]
    assert sorted(r[1] for r in out) == [v for v in values if meets(v, extreme)]


def test_the_nearer_one_of_both_sides():
    schema = schema_of(INTEGER, BIGINT, INTEGER, VARCHAR)
    left = delta_of(schema, [(1, v, 0, "l") for v in (0, 10, 14, 15, 16, 20, 99)])
    right = delta_of(schema, [(1, 10, 0, "r"), (1, 20, 0, "r"), (2, 15, 0, "r"), (1, None, 0, "r")])
    for comparison, expected in (
        ("<=>", [10, 10, 10, 10, 20, 20, 20]),
        ("<>", [10, 20, 10, 10, 20, 10, 20]),
    ):
        out = rows_of(step(make("inner", schema, comparison), [left, right], Stored().load(), schema))
        assert [r[5] for r in sorted(out)] == expected
