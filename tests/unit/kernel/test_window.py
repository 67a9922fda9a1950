"""Window functions against a plain-Python reference written from PostgreSQL's rules, over random histories with
retractions.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.thorough import examples
from tests.unit.kernel.kernel_tools import Stored, delta_of, rows_of, schema_of, weaken_hashes
from tests.unit.kernel.test_aggregate import AVG_TYPE, SUM_TYPE, as_bytes, call, canonical, value_of
from tests.unit.kernel.test_topn import back, compared

from watersmeet.circuit.operators import DEVIATIONS, Arrange, SortKey, Window, WindowFrame, WindowSpec
from watersmeet.kernel.context import StepContext
from watersmeet.kernel.evaluation.expressions import Evaluator
from watersmeet.kernel.operators import arrange as arrange_module
from watersmeet.kernel.operators import window
from watersmeet.kernel.runs import groups as groups_module
from watersmeet.kernel.runs.delta import Delta
from watersmeet.values.types import BIGINT, BOOLEAN, DOUBLE, INTEGER, VARCHAR

EVALUATOR = Evaluator()
# key, order, the value of functions, a filter, and the bounds of RANGE BETWEEN 2 PRECEDING AND 1 FOLLOWING of column 1
SCHEMA = schema_of(VARCHAR, INTEGER, DOUBLE, BIGINT, BOOLEAN, INTEGER, INTEGER)
ROWS = st.builds(
    lambda k, o, x, n, b: (k, o, x, n, b, None if o is None else o - 2, None if o is None else o + 1),
    st.sampled_from(["a", "b", None]),
    st.sampled_from([0, 1, 2, 5, 6, None]),
    st.sampled_from([0.0, 0.1, 1e16, -1e16, 1e300, 5e-324, math.nan, math.inf, None]),
    st.sampled_from([1, 2, -7, 2**40, None]),
    st.sampled_from([True, False, None]),
)
UP, DOWN, NONE = (SortKey(1),), (SortKey(1, True, True),), ()
TWO = (SortKey(3, False, True), SortKey(1))
WHOLE = WindowFrame("range", None, None)
RUNNING = WindowFrame("range", None, 0)


def spec(function, *arguments, number=0, condition=None, order=UP, frame=RUNNING, skips=False):
    return WindowSpec(function, arguments, number, condition, order, frame, skips)


BOUNDS = [None, -2, -1, 0, 1, 3]
EXCLUDES = ["none", "current row", "group", "ties"]
FRAMES = st.one_of(
    st.builds(
        WindowFrame,
        st.sampled_from(["rows", "groups"]),
        st.sampled_from(BOUNDS),
        st.sampled_from(BOUNDS),
        st.sampled_from(EXCLUDES),
    ),
    st.builds(
        WindowFrame, st.just("range"), st.sampled_from([None, 0]), st.sampled_from([None, 0]), st.sampled_from(EXCLUDES)
    ),
    st.builds(
        WindowFrame,
        st.just("range"),
        st.just(0),
        st.sampled_from([0, None]),
        st.sampled_from(EXCLUDES),
        st.just(1),
        st.just(5),
        st.sampled_from([None, 6]),
    ),
    st.builds(
        WindowFrame,
        st.just("range"),
        st.sampled_from([0, None]),
        st.just(0),
        st.sampled_from(EXCLUDES),
        st.just(1),
        st.none(),
        st.just(6),
    ),
)
ORDERS = st.sampled_from([UP, DOWN, TWO, NONE])


@st.composite
def specs(draw):
    kind = draw(st.sampled_from(["rank", "neighbour", "value", "aggregate"]))
    order = draw(ORDERS)
    if kind == "rank":
        name = draw(st.sampled_from(["row_number", "rank", "dense_rank", "percent_rank", "cume_dist", "ntile"]))
        return spec(name, number=draw(st.integers(1, 4)), order=order)
    skips = draw(st.booleans())  # IGNORE NULLS
    if kind == "neighbour":
        return spec(
            draw(st.sampled_from(["lag", "lead"])),
            *draw(st.sampled_from([(2,), (3,), (5, 1)])),
            number=draw(st.integers(1 if skips else -1, 2)),
            order=order,
            skips=skips,
        )
    frame = draw(FRAMES)
    if frame.value is not None:
        order = draw(st.sampled_from([UP, (SortKey(1, False, True),)]))
    if kind == "value":
        return spec(
            draw(st.sampled_from(["first_value", "last_value", "nth_value"])),
            draw(st.sampled_from([2, 3])),
            number=draw(st.integers(1, 3)),
            order=order,
            frame=frame,
            skips=skips,
        )
    condition = draw(st.sampled_from([None, 4]))
    name, argument = draw(
        st.sampled_from(
            [
                ("count", None),
                ("count", 2),
                ("sum", 3),
                ("sum", 2),
                ("avg", 2),
                ("avg", 3),
                ("min", 2),
                ("max", 2),
                ("min", 3),
                ("max", 0),
                ("bool_and", 4),
                ("bool_or", 4),
                ("var_samp", 2),
                ("stddev_pop", 3),
            ]
        )
    )
    return spec(name, *(() if argument is None else (argument,)), condition=condition, order=order, frame=frame)


def type_of(s):
    if s.function in ("row_number", "rank", "dense_rank", "ntile", "count"):
        return BIGINT
    if s.function in ("percent_rank", "cume_dist"):
        return DOUBLE
    kind = SCHEMA[s.arguments[0]].type
    return {"sum": SUM_TYPE.get, **dict.fromkeys(("avg", *DEVIATIONS), AVG_TYPE.get)}.get(s.function, lambda k: k)(kind)


def window_of(keys, *functions):
    functions = tuple(functions)
    return Window(("scan-0",), SCHEMA + schema_of(*map(type_of, functions)), False, keys, functions)


def in_frame(s, members, i):
    """The places of the frame of row i, by the definition."""
    frame, n = s.frame, len(members)
    groups = []
    for j, row in enumerate(members):
        new = j == 0 or compared(members[j - 1], row, s.order) != 0
        groups.append((groups[-1] if groups else -1) + new)
    if frame.mode == "rows":
        inside = [
            j
            for j in range(n)
            if (frame.start is None or j >= i + frame.start) and (frame.end is None or j <= i + frame.end)
        ]
    elif frame.mode == "groups":
        inside = [
            j
            for j in range(n)
            if (frame.start is None or groups[j] >= groups[i] + frame.start)
            and (frame.end is None or groups[j] <= groups[i] + frame.end)
        ]
    else:

        def after_start(j):
            if frame.low is None or members[i][1] is None:
                return groups[j] >= groups[i] if frame.low is not None or frame.start == 0 else True
            if members[j][1] is None:
                return not s.order[0].nulls_first
            return members[j][1] >= members[i][frame.low]

        def before_end(j):
            if frame.high is None or members[i][1] is None:
                return groups[j] <= groups[i] if frame.high is not None or frame.end == 0 else True
            if members[j][1] is None:
                return s.order[0].nulls_first
            return members[j][1] <= members[i][frame.high]

        inside = [j for j in range(n) if after_start(j) and before_end(j)]
    out = {
        "none": lambda j: False,
        "current row": lambda j: j == i,
        "group": lambda j: groups[j] == groups[i],
        "ties": lambda j: groups[j] == groups[i] and j != i,
    }[frame.exclude]
    return [j for j in inside if not out(j)], groups


def result_of(s, members, i, kind):
    n = len(members)
    inside, groups = in_frame(s, members, i)
    first_peer = groups.index(groups[i])
    simple = {
        "row_number": lambda: i + 1,
        "rank": lambda: first_peer + 1,
        "dense_rank": lambda: groups[i] + 1,
        "percent_rank": lambda: first_peer / (n - 1) if n > 1 else 0.0,
        "cume_dist": lambda: sum(g <= groups[i] for g in groups) / n,
        "ntile": lambda: [b for b in range(s.number) for _ in range(n // s.number + (b < n % s.number))][i] + 1,
    }
    if s.function in simple:
        return simple[s.function]()
    known = [j for j in range(n) if not s.skips_nulls or members[j][s.arguments[0]] is not None]
    if s.function in ("lag", "lead") and s.skips_nulls:
        found = [j for j in reversed(known) if j < i] if s.function == "lag" else [j for j in known if j > i]
        if s.number <= len(found):
            return members[found[s.number - 1]][s.arguments[0]]
        return members[i][s.arguments[1]] if len(s.arguments) > 1 else None
    if s.function in ("lag", "lead"):
        at = i - s.number if s.function == "lag" else i + s.number
        if 0 <= at < n:
            return members[at][s.arguments[0]]
        return members[i][s.arguments[1]] if len(s.arguments) > 1 else None
    if s.function in ("first_value", "last_value", "nth_value"):
        inside = [j for j in inside if j in known]
        at = {"first_value": 0, "last_value": len(inside) - 1, "nth_value": s.number - 1}[s.function]
        return members[inside[at]][s.arguments[0]] if 0 <= at < len(inside) else None
    argument = s.arguments[0] if s.arguments else None
    return value_of(call(s.function, argument, s.filter), [members[j] for j in inside], kind)


def reference(op, rows):
    found = Counter()
    for key in {canonical(tuple(r[k] for k in op.keys)) for r in rows.elements()}:
        members = [r for r in rows.elements() if canonical(tuple(r[k] for k in op.keys)) == key]
        values = {}
        for f, field in zip(op.functions, op.schema[len(SCHEMA) :], strict=True):
            rest = [SortKey(i) for i in range(len(SCHEMA)) if i not in {k.column for k in f.order}]
            ordered = sorted(
                range(len(members)),
                key=functools.cmp_to_key(lambda a, b: compared(members[a], members[b], (*f.order, *rest)) or a - b),
            )
            here = [members[j] for j in ordered]
            for place, j in enumerate(ordered):
                values.setdefault(j, []).append(result_of(f, here, place, field.type))
        for j, row in enumerate(members):
            found[canonical((*row, *values[j]))] += 1
    return found


def step(op, delta, state, ctx):
    """One step of the arrangement and of the window over it."""
    made = Arrange(("scan-0",), SCHEMA, False, op.keys, (True,) * len(op.keys), 0)
    return window.step(op, [arrange_module.step(made, [delta], state, ctx)], state, ctx)


class History:
    def __init__(self, op):
        self.op, self.stored, self.content = op, Stored(), Counter()

    def epoch(self, changes):
        return self.run(delta_of(SCHEMA, [r for r, _ in changes], [d for _, d in changes]))

    def run(self, delta):
        state = self.stored.load()
        out = step(self.op, delta, state, StepContext(0, False, EVALUATOR, (SCHEMA,)))
        self.stored.save(state)
        assert [f.type for f in out.columns.schema] == [f.type.arrow for f in self.op.schema]
        out.columns.validate(full=True)
        seen = Counter(canonical(r) for r in rows_of(out))
        assert max(seen.values(), default=1) == 1, "a row comes twice"
        for row, diff in zip(rows_of(out), out.diff.tolist(), strict=True):
            self.content[canonical(row)] += diff
            assert self.content[canonical(row)] >= 0
        self.content = +self.content
        return out


@st.composite
def histories(draw):
    present, epochs = [], []
    for _ in range(draw(st.integers(1, 4))):
        changes = [(row, 1) for row in draw(st.lists(ROWS, max_size=7))]
        present += [row for row, _ in changes]
        if present:
            removed = draw(st.lists(st.integers(0, len(present) - 1), max_size=6, unique=True))
            changes += [(present[i], -1) for i in removed]
            present = [row for i, row in enumerate(present) if i not in removed]
        epochs.append(draw(st.permutations(changes)))
    return epochs


def run_history(op, epochs):
    history = History(op)
    rows = Counter()
    for changes in epochs:
        history.epoch(changes)
        for row, diff in changes:
            rows[canonical(row)] += diff
        assert history.content == reference(op, Counter({back(r): n for r, n in (+rows).items()}))
    return history


KEYS = st.sampled_from([(0,), (), (0, 4), (2,)])


@examples(80)
@given(histories(), st.lists(specs(), min_size=1, max_size=4), KEYS)
def test_content_equals_the_reference_after_every_epoch(epochs, functions, keys):
    run_history(window_of(keys, *functions), epochs)


def test_nothing_depends_on_distinct_hashes(monkeypatch):
    weaken_hashes(monkeypatch, 1)
    monkeypatch.setattr(groups_module, "is_bijective", lambda kind: False)

    @examples(25)
    @given(histories(), st.lists(specs(), min_size=1, max_size=3), KEYS)
    def run(epochs, functions, keys):
        run_history(window_of(keys, *functions), epochs)

    run()


@examples(30)
@given(histories(), st.lists(specs(), min_size=1, max_size=3), KEYS, st.randoms())
def test_permuted_and_recut_input_gives_the_same_bytes(epochs, functions, keys, random):
    op = window_of(keys, *functions)
    first, second = History(op), History(op)
    for changes in epochs:
        other = list(changes)
        random.shuffle(other)
        cut = random.randint(0, len(other))
        pieces = [delta_of(SCHEMA, [r for r, _ in part], [d for _, d in part]) for part in (other[:cut], other[cut:])]
        assert as_bytes(first.epoch(changes)) == as_bytes(second.run(Delta.concat(pieces)))
    assert first.stored.bytes() == second.stored.bytes()


def test_only_what_changes_comes_out():
    history = History(window_of((0,), spec("row_number")))
    history.epoch([(("a", i, None, i, None, i - 2, i + 1), 1) for i in range(0, 1000, 2)])
    out = history.epoch([(("a", 995, None, 1, None, 993, 996), 1)])
    assert sorted((r[1], r[-1], d) for r, d in zip(rows_of(out), out.diff.tolist(), strict=True)) == [
        (995, 499, 1),
        (996, 499, -1),
        (996, 500, 1),
        (998, 500, -1),
        (998, 501, 1),
    ]


def test_a_sum_of_a_frame_is_exact_whatever_lies_beside_it():
    history = History(window_of((0,), spec("sum", 2, frame=WindowFrame("rows", -1, 0))))
    values = [1e300, 0.1, 0.2, -1e300, 0.3]
    history.epoch([(("a", i, x, 0, None, i, i), 1) for i, x in enumerate(values)])
    sums = [r[-1] for r in sorted(history.content)]
    assert sums == [float(Fraction(values[max(0, i - 1)]) * (i > 0) + Fraction(x)) for i, x in enumerate(values)]


@pytest.mark.parametrize("function", ["sum", "avg"])
def test_a_sum_that_is_too_large_is_null_and_counted(function):
    op = Window(("scan-0",), (*SCHEMA, *schema_of(INTEGER)), False, (0,), (spec("sum", 3, order=NONE, frame=WHOLE),))
    state = Stored().load()
    ctx = StepContext(0, False, EVALUATOR, (SCHEMA,))
    out = step(op, delta_of(SCHEMA, [("a", 1, None, 2**40, None, 0, 0)]), state, ctx)
    assert rows_of(out)[0][-1] is None
    assert ctx.counters.expression_errors == 1
