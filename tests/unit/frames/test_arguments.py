"""Arguments of `join`, drawn at random: each draw is a join or one of our errors, whatever the order."""

from __future__ import annotations

import random
from datetime import timedelta

import pytest
from tests.thorough import some
from tests.unit.frames.query import given

from watersmeet.errors import Error
from watersmeet.frames.building import Options, asof, build, latest
from watersmeet.frames.circuits import compile_join
from watersmeet.values.types import BIGINT, DATE, DOUBLE, INTEGER, SMALLINT, TIMESTAMP, TIMESTAMPTZ, VARCHAR, SqlType

KINDS = (SMALLINT, INTEGER, BIGINT, DOUBLE, VARCHAR, TIMESTAMP, TIMESTAMPTZ, DATE, SqlType("numeric", 38, 10))
NAMES = ("a", "A", "b", "ts", "Ts", "v", "diff", "window", "x_right", "")
ODD = (None, 5, 0.5, True, "", "a", "A", b"a", (), [], ("a",), ["a", "b"], ("a", None), {"a": 1}, {"a"}, object())
DURATIONS = ("5 seconds", timedelta(seconds=3), "0 seconds", "1 month", "-1 second", "", 5, None, timedelta.max)


def side(rng: random.Random):
    columns = {"a": INTEGER, "b": BIGINT, "ts": TIMESTAMP, "v": VARCHAR}
    for _ in range(rng.randrange(3)):
        columns[rng.choice(NAMES)] = rng.choice(KINDS)
    mark = (rng.choice(["ts", "ts", "b"]), rng.choice([0, 5])) if rng.random() < 0.5 else None
    return given(*columns.items(), watermark=mark, streaming=rng.random() < 0.9, signed=rng.random() < 0.1)


def match(rng: random.Random):
    if rng.random() < 0.3:
        return latest(rng.choice([None, *NAMES, *ODD]))
    chosen = {"left": "ts", "right": "ts"}
    for _ in range(rng.randrange(3)):
        changed, values = rng.choice(
            [
                ("left", [*NAMES, *ODD]),
                ("right", [*NAMES, *ODD]),
                ("direction", ["forward", "nearest", "Backward", *ODD]),
                ("allow_exact_matches", [False, *ODD]),
                ("tolerance", [*DURATIONS, *ODD]),
            ]
        )
        chosen[changed] = rng.choice(values)
    return asof(**chosen)


def options(rng: random.Random) -> Options:
    """Arguments of a join of which up to three are changed."""
    chosen: dict = {"on": "a"}
    pairs = [rng.choice([n, (n, rng.choice(NAMES)), [n, n]]) for n in rng.choices(NAMES, k=2)]
    draws = {
        "on": [pairs, tuple(pairs), pairs[0], "A", "a", ["a", "V"], *ODD],
        "how": ["left", "LEFT", "left_outer", "FullOuter", "right", "semi", "LEFT_ANTI", "cross", *ODD],
        "within": ["5 seconds", *DURATIONS, tuple(rng.choices(DURATIONS, k=2)), [None, "1 second"], *ODD],
        "window": [*DURATIONS, *ODD],
        "time": ["ts", ("ts", "TS"), ["Ts", "b"], ("ts",), *ODD],
        "as_of": ["ts", ("b", "b"), *ODD],
        "emit": ["changes", "final", "arrival", "FINAL", *ODD],
        "suffix": ["", "_r", *ODD],
        "diff": ["DIFF", "change", *ODD],
    }
    for changed in rng.sample([*draws, "match", "match"], k=rng.randrange(4)):
        chosen[changed] = match(rng) if changed == "match" else rng.choice(draws[changed])
    return Options(**chosen)


@pytest.mark.parametrize("seed", some(range(8)))
def test_every_draw_is_a_join_or_an_error(seed):
    rng = random.Random(seed)
    joins = 0
    for _ in range(400):
        try:
            asked = options(rng)
            shape = build(side(rng), side(rng), asked, rng.choice([1, 2, 2, *ODD[:3]]))
            compile_join(shape)
        except Error as refusal:
            assert refusal.condition != "INTERNAL_ERROR"
        else:
            joins += 1
    assert joins > 10


@pytest.mark.parametrize("seed", some(range(8)))
def test_the_order_of_on_makes_no_difference(seed):
    rng = random.Random(seed)

    def result(on):
        try:
            shape = build(*sides, Options(on=on, how=how), 2)
        except Error as refusal:
            return refusal.condition
        return shape.outputs, [s.schema for s in shape.sides], {*zip(shape.left.keys, shape.right.keys, strict=True)}

    found = set()
    for _ in range(60):
        sides = [
            given(*((name, rng.choice(KINDS[:3])) for name in names)) for names in (("a", "B", "c"), ("b", "C", "x"))
        ]
        how = rng.choice(["inner", "LEFT", "full", "anti"])
        on = [(rng.choice("abcABC"), rng.choice("bcxX")) for _ in range(3)]
        turned = [*reversed(on), on[0]]
        assert result(on) == result(turned)
        found.add(isinstance(result(on), str))
    assert False in found
