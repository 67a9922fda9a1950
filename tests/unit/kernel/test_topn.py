"""Top-N against a plain-Python reference written from the rule, over random histories with retractions."""

from __future__ import annotations

import functools
import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.thorough import examples
from tests.unit.kernel.kernel_tools import Stored, delta_of, rows_of, schema_of, weaken_hashes
from tests.unit.kernel.test_aggregate import as_bytes, canonical

from watersmeet.circuit.operators import SortKey, TopN
from watersmeet.kernel.context import StepContext
from watersmeet.kernel.evaluation.expressions import Evaluator
from watersmeet.kernel.operators import topn
from watersmeet.kernel.runs import groups as groups_module
from watersmeet.kernel.runs.delta import Delta
from watersmeet.values.types import BIGINT, DOUBLE, INTEGER, VARCHAR

EVALUATOR = Evaluator()
SCHEMA = schema_of(VARCHAR, INTEGER, DOUBLE, BIGINT)
ROWS = st.tuples(
    st.sampled_from(["a", "b", None]),
    st.sampled_from([0, 1, 2, -(2**31), 2**31 - 1, None]),
    st.sampled_from([0.0, -0.0, 1.5, math.nan, math.inf, -math.inf, None]),
    st.sampled_from([1, 2, 2**40, 2**40 + 1, None]),
)
ORDERS = [
    (SortKey(1),),
    (SortKey(1, True, True),),
    (SortKey(1, False, True), SortKey(3, True)),
    (SortKey(2, True),),
    (SortKey(3, True), SortKey(2)),
    (SortKey(1), SortKey(0, True)),
    (SortKey(0, True), SortKey(2), SortKey(3)),
    (),
]


def compared(left, right, order):
    """-1, 0 or 1: PostgreSQL's order, NULLs where the key says, NaN above all numbers."""
    for key in order:
        a, b = left[key.column], right[key.column]
        if (a is None) != (b is None):
            return -1 if (a is None) == key.nulls_first else 1
        if a is None:
            continue
        a, b = ((math.isnan(x), 0.0 if math.isnan(x) else x) if isinstance(x, float) else x for x in (a, b))
        if a != b:
            return (-1 if a < b else 1) * (-1 if key.descending else 1)
    return 0


def ordered(rows, order):
    """The rule of ties: the other columns, in order, ascending, NULLs last."""
    rest = [SortKey(i) for i in range(len(SCHEMA)) if i not in {k.column for k in order}]
    return sorted(rows, key=functools.cmp_to_key(lambda a, b: compared(a, b, (*order, *rest))))


def reference(op, rows):
    found = Counter()
    for key in {canonical(tuple(r[k] for k in op.keys)) for r in rows.elements()}:
        members = ordered([r for r in rows.elements() if canonical(tuple(r[k] for k in op.keys)) == key], op.order)
        last = len(members) if op.limit is None else op.offset + op.limit
        chosen = members[op.offset : last]
        if op.with_ties and chosen:
            chosen += [r for r in members[last:] if compared(r, members[last - 1], op.order) == 0]
        found.update(map(canonical, chosen))
    return found


class History:
    def __init__(self, op, *, append_only=False):
        self.op, self.append_only = op, append_only
        self.stored = Stored()
        self.content = Counter()

    def epoch(self, changes):
        return self.run(delta_of(SCHEMA, [r for r, _ in changes], [d for _, d in changes]))

    def run(self, delta):
        state = self.stored.load()
        out = topn.step(
            self.op, [delta], state, StepContext(0, False, EVALUATOR, (SCHEMA,), append_only=(self.append_only,))
        )
        self.stored.save(state)
        assert [f.type for f in out.columns.schema] == [f.type.arrow for f in SCHEMA]
        seen = Counter(canonical(r) for r in rows_of(out))
        assert max(seen.values(), default=1) == 1, "a row comes twice"
        for row, diff in zip(rows_of(out), out.diff.tolist(), strict=True):
            assert diff
            self.content[canonical(row)] += diff
            assert self.content[canonical(row)] >= 0
        self.content = +self.content
        return out


@st.composite
def histories(draw, *, append_only=False):
    present, epochs = [], []
    for _ in range(draw(st.integers(1, 6))):
        changes = [(row, 1) for row in draw(st.lists(ROWS, max_size=8))]
        present += [row for row, _ in changes]
        if not append_only and present:
            removed = draw(st.lists(st.integers(0, len(present) - 1), max_size=8, unique=True))
            changes += [(present[i], -1) for i in removed]
            present = [row for i, row in enumerate(present) if i not in removed]
        epochs.append(draw(st.permutations(changes)))
    return epochs


@st.composite
def operators(draw):
    order = draw(st.sampled_from(ORDERS))
    limit = draw(st.sampled_from([0, 1, 2, 3, 7, None]))
    ties = bool(order) and bool(limit) and draw(st.booleans())
    return TopN(
        ("scan-0",),
        SCHEMA,
        False,
        draw(st.sampled_from([(0,), (), (0, 1), (2,)])),
        order,
        limit,
        draw(st.sampled_from([0, 0, 1, 3])),
        ties,
    )


def run_history(op, epochs, *, append_only=False):
    history = History(op, append_only=append_only)
    rows = Counter()
    for changes in epochs:
        history.epoch(changes)
        for row, diff in changes:
            rows[canonical(row)] += diff
        assert history.content == reference(op, Counter({back(r): n for r, n in (+rows).items()}))
    return history


def back(row):
    return tuple(math.nan if v == "NaN" else v for v in row)


@pytest.mark.parametrize("look", [1, 16])
@pytest.mark.parametrize("append_only", [False, True])
def test_content_equals_the_reference_after_every_epoch(monkeypatch, look, append_only):
    monkeypatch.setattr(topn, "FIRST_ROWS", look)

    @examples(40)
    @given(histories(append_only=append_only), operators())
    def run(epochs, op):
        run_history(op, epochs, append_only=append_only)

    run()


def test_nothing_depends_on_distinct_hashes(monkeypatch):
    weaken_hashes(monkeypatch, 1)
    monkeypatch.setattr(groups_module, "is_bijective", lambda kind: False)

    @examples(40)
    @given(histories(), operators())
    def run(epochs, op):
        run_history(op, epochs)

    run()


@examples(40)
@given(histories(), operators(), st.randoms())
def test_permuted_and_recut_input_gives_the_same_bytes(epochs, op, random):
    first, second = History(op), History(op)
    for changes in epochs:
        other = list(changes)
        random.shuffle(other)
        cut = random.randint(0, len(other))
        pieces = [delta_of(SCHEMA, [r for r, _ in part], [d for _, d in part]) for part in (other[:cut], other[cut:])]
        assert as_bytes(first.epoch(changes)) == as_bytes(second.run(Delta.concat(pieces)))
    assert first.stored.bytes() == second.stored.bytes()


def test_appended_input_keeps_only_what_can_come_out():
    op = TopN(("scan-0",), SCHEMA, False, (0,), (SortKey(3, True, True),), 2, 1)
    history = History(op, append_only=True)
    for start in range(0, 5000, 500):
        history.epoch([(("a", i, None, i), 1) for i in range(start, start + 500)])
    assert sorted(r[3] for r in history.content) == [4997, 4998]
    assert history.stored.load().size(op.id)[0] < 3 + 6 * 10  # the best three, and what merging has not met yet


def test_only_the_best_rows_are_read(monkeypatch):
    """A change below the best rows of a large key reads a few rows of each run, not the key."""
    op = TopN(("scan-0",), SCHEMA, False, (0,), (SortKey(1),), 3)
    history = History(op)
    history.epoch([(("a", i * 1000, None, i), 1) for i in range(20_000)])
    read = []
    real = topn.touched
    monkeypatch.setattr(
        topn, "touched", lambda old, change, hashes: read.extend(len(o) for o, _ in old) or real(old, change, hashes)
    )
    assert not history.epoch([(("a", 5_000_000, None, 1), 1), (("a", 19_000_000, None, 19_000), -1)]).num_rows
    assert sum(read) < 100
    out = history.epoch([(("a", 0, None, 0), -1)])
    assert sorted(zip([r[1] for r in rows_of(out)], out.diff.tolist(), strict=True)) == [(0, -1), (3000, 1)]
