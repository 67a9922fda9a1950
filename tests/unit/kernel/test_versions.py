"""Versions, ASOF joins and what they forget, against plain Python written from the rules, after every epoch of random
histories.
"""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from tests import reference
from tests.thorough import mostly_slow
from tests.unit.kernel.kernel_tools import Stored, delta_of, rows_of, schema_of, weaken_hashes

from watersmeet.circuit.operators import SEQ_ROW_BITS, Arrange, AsofJoin, InputColumn, Versions
from watersmeet.kernel.context import StepContext
from watersmeet.kernel.evaluation.expressions import Evaluator
from watersmeet.kernel.operators import arrange, asof, changelogs
from watersmeet.kernel.runs import cleaning, trace
from watersmeet.values.types import BIGINT, BOOLEAN, INTEGER, TIMESTAMP, Field
from watersmeet.values.watermarks import Term

EVALUATOR = Evaluator()
START = datetime(2024, 1, 1)
ROWS = schema_of(INTEGER, TIMESTAMP, INTEGER)
ORDERED = (*ROWS, Field("_seq", BIGINT))
VERSIONS = (*ROWS, Field("since", TIMESTAMP), Field("live", BOOLEAN))
BOTH = (Term("l"), Term("r"))


def at(minute):
    return None if minute is None else START + timedelta(minutes=minute)


def us(minute):
    return int(at(minute).replace(tzinfo=UTC).timestamp() * 1_000_000)


def joining(kind, right, value, residual=None, comparison=">="):
    output = tuple(InputColumn(side, i) for side in (0, 1) for i in range(3))
    schema = tuple(Field(o.name, (ROWS, right)[o.input][o.column].type) for o in output)
    return AsofJoin(
        ("left", "right"), schema, False, kind, (0,), (0,), (False,), comparison, 1, value, (), output, residual
    )


class Pipeline:
    """A join of left rows with versions, or (`table` False) with right rows, whose state is stored and loaded in each
    epoch.
    """

    def __init__(self, kind, *, table=True, clean=False, residual=None, comparison=">="):
        right = VERSIONS if table else ROWS
        self.schemas = (ROWS, right)
        self.join = joining(kind, right, 3 if table else 1, residual, comparison)
        asked = BOTH if clean else ()
        cut = clean and comparison[0] == ">"
        self.left = Arrange(("x",), ROWS, False, (0,), (False,), 0, 1 if cut else None, (Term("r"),) if cut else ())
        self.right = (
            Versions(("y",), VERSIONS, False, (0,), 1, "r", 0, asked)
            if table
            else Arrange(("y",), ROWS, False, (0,), (False,), 0, 1 if clean else None, asked, newest=clean)
        )
        self.stored = Stored()
        self.result: Counter = Counter()

    def step(self, left, right, numbers, before):
        state = self.stored.load()
        context = StepContext(0, False, EVALUATOR, self.schemas, watermarks=numbers, before=before)
        step = changelogs.keep_versions if isinstance(self.right, Versions) else arrange.step
        inputs = [arrange.step(self.left, [left], state, context), step(self.right, [right], state, context)]
        out = asof.step(self.join, inputs, state, context)
        self.stored.save(state)
        for row, d in zip(rows_of(out), out.diff.tolist(), strict=True):
            self.result[reference.row(row)] += d
        self.result = Counter({r: n for r, n in self.result.items() if n})

    def kept(self):
        """The rows that each side keeps."""
        state = self.stored.load()
        return tuple(state.trace(op.id, arrange.ROWS).num_rows for op in (self.left, self.right))


def said(history, key, time, row, before):
    """The rule for one word about a key: what it does to the versions {since: (time, row or None)} of the key."""
    found = history.setdefault(key, {})
    if time is None:
        return
    if before is None or time >= before:
        found[time] = (time, row)
        return
    counts = [s for s in found if s <= before]
    if not counts or time >= found[max(counts)][0]:
        found[before] = (time, row)


def expected(kind, lefts, history, passes):
    """Each left row with the version of its key and time."""
    result: Counter = Counter()
    for (key, time, x), count in lefts.items():
        found = history.get(key, {}) if time is not None else {}
        since = max((s for s in found if s <= time), default=None) if time is not None else None
        row = found[since][1] if since is not None else None
        if row is not None and passes((key, time, x), row):
            result[reference.row((key, at(time), x, row[0], at(row[1]), row[2]))] += count
        elif kind == "left":
            result[reference.row((key, at(time), x, None, None, None))] += count
    return result


def transactions(rng, table, low, high):
    """Random transactions on a keyed table: lists of (row, diff), each with what it says of each key."""
    made = []
    for _ in range(rng.randrange(4)):
        changes, words = [], []
        for key in rng.sample(range(4), rng.randrange(1, 3)):
            old = table.get(key)
            new = None
            if old is None or rng.random() < 0.7:
                time = rng.choice([None, old[1]]) if old and rng.random() < 0.2 else rng.randint(low, high)
                new = (key, time, rng.randrange(5))
            if old == new:
                continue
            if old:
                changes.append((old, -1))
            if new:
                changes.append((new, 1))
            words.append((key, (new or old)[1], new))
            table[key] = new
        rng.shuffle(changes)
        made.append((changes, words))
    return made


def run_versions(seed, *, clean):
    """Random left rows and transactions, out of order and late, in random epochs."""
    rng = random.Random(seed)
    kind = rng.choice(["inner", "left"])
    with_residual = rng.random() < 0.4
    pipeline = Pipeline(kind, clean=clean, residual="r4 AND r2 <> l2" if with_residual else "r4")
    lefts: Counter = Counter()
    history: dict = {}
    table: dict = {}
    numbers: dict = {}
    delay = {"l": rng.randrange(6), "r": rng.randrange(6)}
    clock = 0
    for _ in range(rng.randrange(3, 12)):
        clock += rng.randrange(6)
        before = dict(numbers)
        rows = [
            (rng.randrange(4), rng.choice([None, *range(max(0, clock - 8), clock + 1)]), rng.randrange(5))
            for _ in range(rng.randrange(6))
        ]
        rows = [r for r in rows if r[1] is None or r[1] >= before.get("l", -1)]
        diffs = [1] * len(rows)
        gone = [r for r in lefts if lefts[r] and (r[1] is None or r[1] >= before.get("l", -1)) and rng.random() < 0.2]
        for r, d in [*zip(rows, diffs, strict=True), *((r, -1) for r in gone)]:
            lefts[r] += d
        made = transactions(rng, table, max(0, clock - 8), clock)
        ordered = []
        for number, (changes, words) in enumerate(made):
            ordered += [((k, at(t), v, number << SEQ_ROW_BITS | i), d) for i, ((k, t, v), d) in enumerate(changes)]
            for key, time, row in words:
                said(history, key, time, row, before.get("r"))
        rng.shuffle(ordered)
        for source, times in (("l", [r[1] for r in rows]), ("r", [r[1] for c, _ in made for r, _ in c])):
            seen = [t - delay[source] for t in times if t is not None]
            if seen:
                numbers[source] = max(numbers.get(source, -99), *seen)
        left = delta_of(ROWS, [(k, at(t), x) for k, t, x in [*rows, *gone]], diffs + [-1] * len(gone))
        right = delta_of(ORDERED, [r for r, _ in ordered], [d for _, d in ordered])
        pipeline.step(left, right, *({s: us(n) for s, n in found.items()} for found in (numbers, before)))
        passes = (lambda l, r: r[2] != l[2]) if with_residual else (lambda *_: True)
        assert pipeline.result == expected(kind, Counter({r: n for r, n in lefts.items() if n}), history, passes), seed
    return pipeline, numbers


@pytest.mark.parametrize("clean", [False, True])
def test_random_versions(clean):
    for seed in range(12):
        run_versions(seed, clean=clean)


@pytest.mark.slow
@pytest.mark.parametrize("clean", [False, True])
def test_many_random_versions(clean):
    for seed in range(12, 150):
        run_versions(seed, clean=clean)


def test_versions_whose_hashes_collide(monkeypatch):
    weaken_hashes(monkeypatch)
    for seed in range(1000, 1008):
        run_versions(seed, clean=True)


def test_nothing_but_the_newest_version_of_a_key_is_left():
    for seed in range(2000, 2008):
        pipeline, numbers = run_versions(seed, clean=True)
        end = {s: us(1000) for s in ("l", "r")}
        pipeline.step(delta_of(ROWS, []), delta_of(ORDERED, []), end, {s: us(n) for s, n in numbers.items()})
        left, right = pipeline.kept()
        assert left == 0
        assert right <= 4


def run_asof(seed, *, small=True):
    """ASOF joins over right rows that come and go, with watermarks on both sides: (the join, the numbers)."""
    rng = random.Random(seed)
    kind, comparison = rng.choice(["inner", "left"]), rng.choice([">=", ">", "<=", "<"])
    pipeline = Pipeline(kind, table=False, clean=True, comparison=comparison)
    contents = [Counter(), Counter()]
    numbers: dict = {}
    clock = 0
    keys = 4 if small else 60
    for _ in range(rng.randrange(3, 14)):
        clock += rng.randrange(6)
        before = dict(numbers)
        deltas = []
        for source, content in zip("lr", contents, strict=True):
            low = before.get(source, -1)
            rows = [
                (rng.randrange(keys), rng.choice([None, *range(max(0, clock - 5), clock + 1)]), rng.randrange(3))
                for _ in range(rng.randrange(8 if small else 200))
            ]
            rows = [r for r in rows if r[1] is None or r[1] >= low]
            gone = [r for r in content if content[r] and (r[1] is None or r[1] >= low) and rng.random() < 0.3]
            changes = [*((r, 1) for r in rows), *((r, -1) for r in gone)]
            for r, d in changes:
                content[r] += d
            deltas.append(delta_of(ROWS, [(k, at(t), x) for (k, t, x), _ in changes], [d for _, d in changes]))
            seen = [r[1] - 3 for r in rows if r[1] is not None]
            if seen:
                numbers[source] = max(numbers.get(source, -99), *seen)
        pipeline.step(*deltas, {s: us(n) for s, n in numbers.items()}, {s: us(n) for s, n in before.items()})
        lefts, rights = (Counter({(k, at(t), x): n for (k, t, x), n in c.items() if n}) for c in contents)
        wanted = reference.asof(
            kind,
            lefts,
            rights,
            left_keys=(0,),
            right_keys=(0,),
            null_safe=(False,),
            comparison=comparison,
            left_value=1,
            right_value=1,
            ties=(0, 1, 2),
            output=pipeline.join.output,
            right_width=3,
        )
        mine = Counter({r[:5]: 0 for r in pipeline.result})
        for r, n in pipeline.result.items():
            mine[r[:5]] += n
        theirs: Counter = Counter()
        for r, n in wanted.items():
            theirs[reference.row(r)[:5]] += n
        assert mine == theirs, seed  # which of rows with one time is chosen is tested with the join
    return pipeline, numbers


def test_random_asof_joins_that_forget():
    for seed in range(20):
        run_asof(seed)


@pytest.mark.slow
def test_many_random_asof_joins_that_forget():
    for seed in range(20, 140):
        run_asof(seed)


@pytest.mark.parametrize("first", mostly_slow([3000, 3002, 3004], 1))
def test_large_traces_forget_too(first, monkeypatch):
    monkeypatch.setattr(cleaning, "SMALL_TRACE_ROWS", 8)
    monkeypatch.setattr(cleaning, "_BLOCKS", 2)
    monkeypatch.setattr(cleaning, "_BLOCK_ROWS", 4)
    monkeypatch.setattr(trace, "_MANY_HASHES", 1)
    for seed in (first, first + 1):
        pipeline, numbers = run_asof(seed, small=False)
        end = {s: us(1000) for s in ("l", "r")}
        pipeline.step(delta_of(ROWS, []), delta_of(ROWS, []), end, {s: us(n) for s, n in numbers.items()})
        left, right = pipeline.kept()
        distinct = 60 * 3 * 2  # rows of one key and time that differ, and at most twice as many as are of use
        assert left == 0 or pipeline.join.comparison[0] == "<"
        assert right <= distinct


@pytest.mark.parametrize("hot", [False, True])
@pytest.mark.parametrize("depth", [1, 3])
def test_samples_of_a_large_run_are_close_to_its_times(hot, depth):
    rng = np.random.default_rng(5)
    count = 200_000
    keys = np.where(rng.random(count) < 0.9, 7, rng.integers(0, count, count)) if hot else rng.integers(0, 9000, count)
    hashes = np.sort(keys.astype(np.uint64) << np.uint64(32))
    times = rng.integers(0, 10**9, count)
    told, rows, successors, succeeded = cleaning._tell(hashes, times, depth, pure=True)
    assert (told[0], told[-1], rows) == (times.min(), times.max(), count)
    ordered = times[np.lexsort((times, hashes))]
    follows = np.flatnonzero(hashes[depth:] == hashes[:-depth])
    assert succeeded == pytest.approx(len(follows), rel=0.1)
    for bound in (10**8, 5 * 10**8, 9 * 10**8):
        samples = cleaning._Samples(np.array(told), rows, np.array(successors), succeeded)
        assert samples.passed(bound) == pytest.approx((times < bound).sum(), abs=0.08 * count)
        # A row's successor in its block may be later than the next row of its key, never earlier.
        dead = int((ordered[follows + depth] < bound).sum())
        assert samples.dead(bound) <= dead + 0.08 * count
    assert samples.dead(10**9) >= 0.8 * len(follows)


def test_a_trace_stays_flat_and_is_seldom_rewritten(monkeypatch):
    """A hundred epochs of 300 keys: at most twice the rows that are of use, and each row is rewritten a few times."""
    written = []
    made = cleaning.Newest.merge
    monkeypatch.setattr(
        cleaning.Newest,
        "merge",
        lambda self, runs, /, *, whole, above=(): (
            written.append(sum(r.num_rows for r in runs)) or made(self, runs, whole=whole, above=above)
        ),
    )
    pipeline = Pipeline("left", table=False, clean=True)
    none = delta_of(ROWS, [])
    sizes = []
    for minute in range(100):
        right = delta_of(ROWS, [(k, at(minute), k) for k in range(300)])
        number = {"l": us(minute - 2), "r": us(minute - 2)} if minute > 2 else {}
        pipeline.step(none, right, number, {})
        sizes.append(pipeline.kept()[1])
    assert max(sizes[50:]) <= 3 * 300 * 4
    assert sum(written) <= 12 * 100 * 300
