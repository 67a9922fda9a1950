"""Aggregates against a plain-Python reference, over random histories with retractions."""

from __future__ import annotations

import datetime as dt
import functools
import math
import operator
from collections import Counter
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Decimal, localcontext
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.thorough import examples
from tests.unit.kernel.kernel_tools import Stored, delta_of, rows_of, schema_of, weaken_hashes

from watersmeet.circuit.operators import COLLECTED, DEVIATIONS, Aggregate, AggregateSpec, SortKey
from watersmeet.errors import Error
from watersmeet.kernel.arrays import hashing
from watersmeet.kernel.context import StepContext
from watersmeet.kernel.evaluation.expressions import Evaluator
from watersmeet.kernel.operators import aggregate
from watersmeet.kernel.operators import aggregate as extremes_module
from watersmeet.kernel.runs import groups as groups_module
from watersmeet.kernel.runs import trace as latest_module
from watersmeet.kernel.runs.delta import Delta
from watersmeet.values.types import (
    BIGINT,
    BOOLEAN,
    BYTEA,
    DATE,
    DOUBLE,
    INTEGER,
    INTERVAL,
    NUMERIC,
    REAL,
    SMALLINT,
    TIME,
    TIMESTAMP,
    TIMESTAMPTZ,
    VARCHAR,
    Field,
    Schema,
    SqlType,
)

EVALUATOR = Evaluator()
SUM_TYPE = {
    SMALLINT: BIGINT,
    INTEGER: BIGINT,
    BIGINT: SqlType("numeric", 38, 0),
    REAL: REAL,
    DOUBLE: DOUBLE,
    NUMERIC: NUMERIC,
}
AVG_TYPE = {SMALLINT: NUMERIC, INTEGER: NUMERIC, BIGINT: NUMERIC, REAL: DOUBLE, DOUBLE: DOUBLE, NUMERIC: NUMERIC}
PRICE = SqlType("numeric", 10, 2)
SUM_TYPE[PRICE] = NUMERIC
AVG_TYPE[PRICE] = NUMERIC


def call(function: str, argument: int | None = None, where: int | None = None, distinct: bool = False) -> AggregateSpec:
    return AggregateSpec(function, argument, where, distinct)


def aggregate_of(schema: Schema, keys: tuple[int, ...], *calls: AggregateSpec) -> Aggregate:
    types = [schema[k].type for k in keys]
    for c in calls:
        argument = None if c.argument is None else schema[c.argument].type
        if c.function in ("array_agg", "percentile_cont"):
            types.append(DOUBLE if c.function == "percentile_cont" else SqlType("array", element=argument))
            continue
        types.append(
            {
                "count": lambda a: BIGINT,
                "bool_and": lambda a: BOOLEAN,
                "bool_or": lambda a: BOOLEAN,
                "sum": SUM_TYPE.get,
                **dict.fromkeys(("avg", *DEVIATIONS), AVG_TYPE.get),
            }.get(c.function, lambda a: a)(argument)
        )
    return Aggregate(("scan-0",), schema_of(*types), False, keys, calls)


class History:
    """Runs epochs through the operator and its stored state; keeps the result's content."""

    def __init__(self, op: Aggregate, schema: Schema, *, append_only: bool = False) -> None:
        self.op, self.schema, self.append_only = op, schema, append_only
        self.stored = Stored()
        self.content: Counter[tuple[object, ...]] = Counter()
        self.initial = True
        self.errors = 0

    def epoch(self, delta: Delta) -> Delta:
        state = self.stored.load()
        ctx = StepContext(0, self.initial, EVALUATOR, (self.schema,), append_only=(self.append_only,))
        out = aggregate.step(self.op, [delta], state, ctx)
        self.stored.save(state)
        self.initial = False
        self.errors += ctx.counters.expression_errors
        assert [f.type for f in out.columns.schema] == [f.type.arrow for f in self.op.schema]
        out.columns.validate(full=True)
        changes: Counter[tuple[object, ...]] = Counter()
        for row, diff in zip(rows_of(out), out.diff.tolist(), strict=True):
            assert diff in (1, -1)
            changes[canonical(row)] += diff
        assert all(changes.values()), "a row is retracted and inserted"
        assert len(changes) == out.num_rows
        for row, diff in changes.items():
            self.content[row] += diff
            assert self.content[row] in (0, 1)
        self.content = +self.content
        return out


def canonical(row: tuple[object, ...]) -> tuple[object, ...]:
    return tuple(map(plain, row))


def plain(value: object) -> object:
    """A hashable form in which equal values are equal."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    if isinstance(value, list) or (isinstance(value, tuple) and value[:1] == ("list",)):
        return ("list", *map(plain, value[1:] if isinstance(value, tuple) else value))
    return value


def order(value: Any) -> Any:
    if isinstance(value, float):
        return (math.isnan(value), 0.0 if math.isnan(value) else value)
    return value


def reference(op: Aggregate, rows: Counter[tuple[object, ...]]) -> Counter[tuple[object, ...]]:
    """The batch result."""
    grouped: dict[tuple[object, ...], list[tuple[object, ...]]] = {}
    for row, times in rows.items():
        grouped.setdefault(canonical(tuple(row[k] for k in op.keys)), []).extend([row] * times)
    if not op.keys and op.calls:
        grouped.setdefault((), [])
    found = [
        (*key, *(value_of(c, members, f.type) for c, f in zip(op.calls, op.schema[len(op.keys) :], strict=True)))
        for key, members in grouped.items()
    ]
    return Counter(map(canonical, found))


def value_of(c: AggregateSpec, members: list[tuple[object, ...]], kind: SqlType) -> object:
    members = [m for m in members if c.filter is None or m[c.filter] is True]
    if c.argument is None:
        return len(members)
    values: list[Any] = [m[c.argument] for m in members if m[c.argument] is not None]
    if c.function in COLLECTED:
        return collected(c, members)
    if c.distinct:
        values = list({canonical((v,)): v for v in values}.values())
    if c.function == "count":
        return len(values)
    if not values:
        return None
    simple: dict[str, Callable[[], object]] = {
        "min": lambda: min(values, key=order),
        "max": lambda: max(values, key=order),
        "bool_and": lambda: all(values),
        "bool_or": lambda: any(values),
    }
    if c.function in simple:
        return simple[c.function]()
    if c.function in DEVIATIONS:
        return deviation(c.function, values, kind)
    if isinstance(values[0], float):
        return float_sum(values, kind) / (len(values) if c.function == "avg" else 1)
    total = sum(map(Fraction, values), Fraction(0)) / (len(values) if c.function == "avg" else 1)
    if kind == BIGINT:
        return int(total)
    assert kind.name == "numeric"
    scale = kind.scale if kind.precision else 10
    with localcontext() as context:
        context.prec = 100
        return (Decimal(total.numerator) / Decimal(total.denominator)).quantize(
            Decimal(1).scaleb(-scale), ROUND_HALF_UP
        )


def deviation(function: str, values: list[Any], kind: SqlType) -> object:
    others = len(values) - function.endswith("samp")
    if not others or not all(math.isfinite(v) for v in values):
        return math.nan if others else None
    exact = [Fraction(v) for v in values]
    numerator = len(values) * sum(v * v for v in exact) - sum(exact) ** 2
    if kind.name == "numeric" and function.startswith("var"):
        return rounded(numerator / (len(values) * others))
    scale = 10.0 ** (-2 * min(v.as_tuple().exponent for v in values)) if isinstance(values[0], Decimal) else 1.0
    whole = numerator * Fraction(scale)
    far = 0 if not whole else 1200 if whole >= Fraction(2) ** 1024 else -1200 if whole < Fraction(2) ** -900 else 0
    whole *= Fraction(2) ** -far
    found = whole.numerator / whole.denominator / scale / (len(values) * others)
    if function.startswith("stddev"):
        found, far = math.sqrt(found), far // 2
    with np.errstate(over="ignore"):  # beyond the largest double it is infinite
        found = float(np.ldexp(found, far))
    return rounded(Fraction(found)) if kind.name == "numeric" else found


def rounded(value: Fraction) -> Decimal | None:
    if value >= 10**28:
        return None  # too large for the type
    with localcontext() as context:
        context.prec = 200
        return (Decimal(value.numerator) / Decimal(value.denominator)).quantize(Decimal("1e-10"), ROUND_HALF_UP)


def collected(c: AggregateSpec, members: list[tuple[object, ...]]) -> object:
    """Aggregates over all values in order, by PostgreSQL's rules; the rest of the order is that of the arguments."""
    columns = list(dict.fromkeys([*(k.column for k in c.order), c.argument, *c.extra]))
    if c.distinct:
        read = sorted({c.argument, *c.extra, *(k.column for k in c.order)})
        members = list({canonical(tuple(m[i] for i in read)): m for m in members}.values())
    down = {k.column: (k.descending, k.nulls_first) for k in c.order}
    for column in reversed(columns):
        descending, first = down.get(column, (False, False))
        present = sorted(
            (m for m in members if m[column] is not None), key=lambda m: order(m[column]), reverse=descending
        )
        none = [m for m in members if m[column] is None]
        members = none + present if first else present + none
    if c.function not in ("array_agg", "jsonb_agg", "first_value", "last_value"):
        members = [m for m in members if m[c.argument] is not None]
    values: list[Any] = [m[c.argument] for m in members]
    extra = [m[i] for m in members for i in c.extra]
    if not values:
        return None
    if c.function == "array_agg":
        return ("list", *values)
    if c.function == "string_agg":
        delimiters = [d or "" for d in extra] or [c.constant] * len(values)
        return values[0] + "".join(d + v for d, v in zip(delimiters[1:], values[1:], strict=True))
    if c.function == "jsonb_agg":
        return "[" + ",".join("null" if v is None else v for v in values) + "]"
    if c.function == "jsonb_object_agg":
        fields = dict(zip(values, extra, strict=True))
        return "{" + ",".join(f"{k}:{'null' if fields[k] is None else fields[k]}" for k in sorted(fields)) + "}"
    if c.function in ("first_value", "last_value"):
        return values[0] if c.function == "first_value" else values[-1]
    if c.function == "mode":
        counts = Counter(canonical((v,)) for v in values)
        return max(values, key=lambda v: counts[canonical((v,))])
    if c.function == "percentile_disc":
        return values[max(1, math.ceil(c.constant * len(values))) - 1]
    if c.function == "percentile_cont":
        place = c.constant * (len(values) - 1)
        low, high = values[math.floor(place)], values[math.ceil(place)]
        return low if place == math.floor(place) else low + (place - math.floor(place)) * (high - low)
    return functools.reduce(
        {"bit_and": operator.and_, "bit_or": operator.or_, "bit_xor": operator.xor}[c.function], values
    )


def float_sum(values: list[float], kind: SqlType) -> float:
    special = [v for v in values if not math.isfinite(v)]
    if special:
        return math.nan if len(set(special)) > 1 or math.isnan(special[0]) else special[0]
    total = sum(map(Fraction, values), Fraction(0))
    exact = total.numerator / total.denominator
    return float(np.float32(exact)) if kind == REAL else exact


SCHEMA = schema_of(VARCHAR, INTEGER, DOUBLE, PRICE, BOOLEAN, BIGINT, REAL, NUMERIC, SMALLINT)
ROWS = st.tuples(
    st.sampled_from(["a", "b", None]),
    st.sampled_from([0, 1, -1, 2**31 - 1, -(2**31), None]),
    st.sampled_from([0.0, -0.0, 0.1, 1e16, -1e16, 1.0, 1e300, 5e-324, math.nan, math.inf, -math.inf, None]),
    st.sampled_from([Decimal("0.01"), Decimal("-99999999.99"), Decimal("7.00"), None]),
    st.sampled_from([True, False, None]),
    st.sampled_from([2**63 - 1, -(2**63), 5, None]),
    st.sampled_from([1.5, -0.0, 2.0**100, -(2.0**100), 2.0**-20, math.nan, None]),
    st.sampled_from([Decimal("123456789012345678.0000000001"), Decimal("-0.5000000000"), None]),
    st.sampled_from([1, 2, None]),
)
CALLS = [
    call("count"),
    call("count", where=4),
    call("count", 1),
    call("count", 1, 4),
    call("count", 0, distinct=True),
    call("sum", 8),
    call("sum", 1),
    call("sum", 5),
    call("sum", 3),
    call("sum", 7),
    call("sum", 2),
    call("sum", 6),
    call("avg", 1),
    call("avg", 5),
    call("avg", 3),
    call("avg", 7),
    call("avg", 2),
    call("avg", 6),
    call("avg", 1, 4, True),
    call("sum", 2, distinct=True),
    call("sum", 3, 4),
    call("min", 0),
    call("max", 0),
    call("min", 1),
    call("max", 1),
    call("min", 2),
    call("max", 2),
    call("min", 3),
    call("max", 7, 4),
    call("min", 5, distinct=True),
    call("max", 4),
    call("bool_and", 4),
    call("bool_or", 4),
    call("bool_or", 4, 4),
    *(call(function, column) for function in DEVIATIONS for column in (1, 2, 3, 5, 6, 7)),
    call("var_pop", 2, 4, True),
]
COLLECTED_CALLS = [
    AggregateSpec("array_agg", 1, None, False),
    AggregateSpec("array_agg", 2, None, True),
    AggregateSpec("array_agg", 2, 4, False, order=(SortKey(7, True, True), SortKey(1))),
    AggregateSpec("string_agg", 0, None, False, constant=", "),
    AggregateSpec("string_agg", 0, None, False, (0,)),
    AggregateSpec("string_agg", 0, None, True, order=(SortKey(0, True),), constant=""),
    AggregateSpec("string_agg", 0, 4, False, order=(SortKey(2, True, True),), constant="-"),
    AggregateSpec("jsonb_agg", 0, None, False, order=(SortKey(1, False, True),)),
    AggregateSpec("jsonb_agg", 0, None, True),
    AggregateSpec("jsonb_object_agg", 0, None, False, (0,)),
    AggregateSpec("jsonb_object_agg", 0, 4, False, (0,), (SortKey(5),)),
    AggregateSpec("first_value", 1, None, False, order=(SortKey(2),)),
    AggregateSpec("last_value", 1, None, False, order=(SortKey(2),)),
    AggregateSpec("last_value", 3, 4, False),
    AggregateSpec("mode", 8, None, False, order=(SortKey(8),)),
    AggregateSpec("mode", 2, 4, False, order=(SortKey(2, True, True),)),
    *(
        AggregateSpec("percentile_disc", 7, None, False, order=(SortKey(7, down, down),), constant=f)
        for f in (0.0, 0.5, 1.0)
        for down in (False, True)
    ),
    *(
        AggregateSpec("percentile_cont", 2, None, False, order=(SortKey(2, f == 0.3, f == 0.3),), constant=f)
        for f in (0.0, 0.25, 0.3, 1.0)
    ),
    AggregateSpec("bit_and", 5, None, False),
    AggregateSpec("bit_or", 8, 4, False),
    AggregateSpec("bit_xor", 1, None, False),
    AggregateSpec("bit_xor", 1, None, True),
]
CALLS += COLLECTED_CALLS


@st.composite
def histories(draw: st.DrawFn, *, append_only: bool = False) -> list[list[tuple[tuple[object, ...], int]]]:
    """Epochs of (row, diff); no multiplicity is ever below 0 at the end of an epoch."""
    present: list[tuple[object, ...]] = []
    epochs = []
    for _ in range(draw(st.integers(1, 5))):
        changes = [(row, 1) for row in draw(st.lists(ROWS, max_size=6))]
        present += [row for row, _ in changes]
        if not append_only:
            removed = (
                draw(st.lists(st.integers(0, max(0, len(present) - 1)), max_size=6, unique=True)) if present else []
            )
            changes += [(present[i], -1) for i in removed]
            present = [row for i, row in enumerate(present) if i not in removed]
        epochs.append(draw(st.permutations(changes)))
    return epochs


def run_history(
    op: Aggregate, epochs: list[list[tuple[tuple[object, ...], int]]], *, append_only: bool = False
) -> History:
    history = History(op, SCHEMA, append_only=append_only)
    rows: Counter[tuple[object, ...]] = Counter()
    for changes in epochs:
        history.epoch(delta_of(SCHEMA, [r for r, _ in changes], [d for _, d in changes]))
        for row, diff in changes:
            rows[row] += diff
        assert history.content == reference(op, +rows)
    return history


@examples(150)
@given(histories(), st.lists(st.sampled_from(CALLS), max_size=5), st.sampled_from([(0,), (), (0, 4), (2,), (6, 3)]))
def test_results_equal_the_reference_after_every_epoch(epochs, calls, keys):
    run_history(aggregate_of(SCHEMA, keys, *calls), epochs)


def test_all_calls_together():
    @examples(40)
    @given(histories(), st.booleans())
    def run(epochs, only_row):
        run_history(aggregate_of(SCHEMA, () if only_row else (0,), *CALLS), epochs)

    run()


@examples(50)
@given(histories(append_only=True), st.sampled_from([(0,), ()]))
def test_append_only_input(epochs, keys):
    history = run_history(aggregate_of(SCHEMA, keys, *CALLS[26:39]), epochs, append_only=True)
    kept = history.stored.manifest.operators.get(history.op.id, {})
    assert not any(name.startswith("values") for name in kept)


@pytest.mark.parametrize("mask", [0, 1])
def test_nothing_depends_on_distinct_hashes(monkeypatch, mask):
    weaken_hashes(monkeypatch, mask)
    for module in (groups_module, latest_module):
        monkeypatch.setattr(module, "is_bijective", lambda kind: False)

    @examples(40)
    @given(histories(), st.lists(st.sampled_from(CALLS), max_size=4), st.sampled_from([(0,), (1,), (0, 4), (2,)]))
    def run(epochs, calls, keys):
        run_history(aggregate_of(SCHEMA, keys, *calls), epochs)

    run()


@examples(60)
@given(
    histories(),
    st.lists(st.sampled_from(CALLS), min_size=1, max_size=6),
    st.sampled_from([(0,), (), (0, 4), (2,)]),
    st.randoms(),
)
def test_permuted_and_recut_input_gives_the_same_bytes(epochs, calls, keys, random):
    """D-9a: output and state are equal byte for byte."""
    op = aggregate_of(SCHEMA, keys, *calls)
    first, second = History(op, SCHEMA), History(op, SCHEMA)
    for changes in epochs:
        other = [(r, 1 if d > 0 else -1) for r, d in changes for _ in range(abs(d))]
        random.shuffle(other)
        cut = random.randint(0, len(other))
        a = first.epoch(delta_of(SCHEMA, [r for r, _ in changes], [d for _, d in changes]))
        pieces = [delta_of(SCHEMA, [r for r, _ in part], [d for _, d in part]) for part in (other[:cut], other[cut:])]
        b = second.epoch(Delta.concat(pieces))
        assert as_bytes(a) == as_bytes(b)
    assert first.stored.bytes() == second.stored.bytes()
    assert first.stored.manifest == second.stored.manifest


def as_bytes(delta: Delta) -> bytes:
    table = delta.columns.append_column("_diff", pa.array(delta.diff)).combine_chunks()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


VALUES: dict[SqlType, list[object]] = {
    DATE: [dt.date(2024, 2, 29), dt.date(1, 1, 1), None],
    TIME: [dt.time(1), dt.time(0), None],
    TIMESTAMP: [dt.datetime(2024, 1, 1), dt.datetime(1900, 1, 1), None],
    TIMESTAMPTZ: [dt.datetime(2024, 1, 1, tzinfo=dt.UTC), dt.datetime(1900, 1, 1, tzinfo=dt.UTC), None],
    BYTEA: [b"\x00", b"", b"\xff", None],
    VARCHAR: ["\u00e4", "z", "", "Z", None],
    INTERVAL: [pa.MonthDayNano([1, 0, 0]), pa.MonthDayNano([0, 31, 0]), pa.MonthDayNano([0, 29, 10**9]), None],
    PRICE: [Decimal("-1.00"), Decimal("99999999.99"), None],
}


@pytest.mark.parametrize("kind", VALUES, ids=lambda k: k.sql)
def test_extremes_of_every_ordered_type_follow_retractions(kind):
    schema = schema_of(INTEGER, kind)
    op = aggregate_of(schema, (0,), call("min", 1), call("max", 1), call("count", 1, distinct=True))
    history = History(op, schema)
    values = VALUES[kind]
    rank = {
        v: i
        for i, v in enumerate(
            sorted(
                (v for v in values if v is not None),
                key=lambda v: (
                    (v[0] * 30 + v[1], v[2]) if isinstance(v, tuple) else v.encode() if isinstance(v, str) else v
                ),
            )
        )
    }
    present = list(values)
    history.epoch(delta_of(schema, [(1, v) for v in values]))
    while present:
        rest = sorted((v for v in present if v is not None), key=rank.__getitem__)
        expected = (1, rest[0] if rest else None, rest[-1] if rest else None, len(rest))
        ((found, _),) = history.content.items()
        if kind == INTERVAL:  # shown in whole months and days
            expected = tuple(
                None
                if v is None
                else pa.MonthDayNano([(v[0] * 30 + v[1]) // 30, v[1] % 30, v[2]])
                if isinstance(v, tuple)
                else v
                for v in expected
            )
        assert found == expected
        history.epoch(delta_of(schema, [(1, present.pop(0))], [-1]))
    assert not history.content


@pytest.mark.parametrize(
    "kind",
    [*VALUES, DOUBLE, SqlType("array", element=INTEGER), SqlType("struct", fields=(("x", DOUBLE),))],
    ids=lambda k: k.sql,
)
def test_keys_of_every_type(kind):
    values = {
        DOUBLE: [math.nan, 0.0, None],
        SqlType("array", element=INTEGER): [[1, None], [], None],
        SqlType("struct", fields=(("x", DOUBLE),)): [{"x": 1.0}, {"x": None}, None],
    }.get(kind) or VALUES[kind]
    schema = schema_of(kind)
    history = History(aggregate_of(schema, (0,), call("count")), schema)
    history.content = Counter()
    out = history_step(history, delta_of(schema, [(v,) for v in values] * 2))
    assert sorted(row[1] for row in rows_of(out)) == [2] * len(values)
    out = history_step(history, delta_of(schema, [(v,) for v in values], [-1] * len(values)))
    assert sorted(out.diff.tolist()) == [-1] * len(values) + [1] * len(values)
    out = history_step(history, delta_of(schema, [(v,) for v in values], [-1] * len(values)))
    assert out.diff.tolist() == [-1] * len(values)
    assert history_step(history, delta_of(schema, [(values[0],)])).num_rows == 1


def history_step(history: History, delta: Delta) -> Delta:
    """An epoch without the bookkeeping, for rows that Python can't hash."""
    state = history.stored.load()
    out = aggregate.step(history.op, [delta], state, StepContext(0, False, EVALUATOR, (history.schema,)))
    history.stored.save(state)
    return out


def test_intervals_of_equal_length_are_one_group():
    schema = schema_of(INTERVAL)
    history = History(aggregate_of(schema, (0,), call("count")), schema)
    out = history_step(history, delta_of(schema, [(pa.MonthDayNano([1, 0, 0]),), (pa.MonthDayNano([0, 30, 0]),)]))
    assert rows_of(out) == [(pa.MonthDayNano([1, 0, 0]), 2)]


def test_distinct_rows():
    schema = schema_of(INTEGER, VARCHAR)
    history = History(aggregate_of(schema, (0, 1)), schema)
    out = history.epoch(delta_of(schema, [(1, "a"), (1, "a"), (2, None), (2, None)], [1, 2, 1, 1]))
    assert sorted(rows_of(out)) == [(1, "a"), (2, None)]
    assert history.epoch(delta_of(schema, [(1, "a"), (2, None)], [-2, -1])).num_rows == 0
    out = history.epoch(delta_of(schema, [(1, "a"), (2, None)], [-1, -1]))
    assert out.diff.tolist() == [-1, -1]


def test_the_only_row_is_there_from_the_first_epoch_on():
    schema = schema_of(INTEGER)
    op = aggregate_of(schema, (), call("count"), call("sum", 0))
    history = History(op, schema)
    assert rows_of(history.epoch(Delta.empty(pa.schema([("c0", pa.int32())])))) == [(0, None)]
    assert history.epoch(Delta.empty(pa.schema([("c0", pa.int32())]))).num_rows == 0
    assert rows_of(history.epoch(delta_of(schema, [(5,)]))) == [(0, None), (1, 5)]
    assert rows_of(history.epoch(delta_of(schema, [(5,)], [-1]))) == [(1, 5), (0, None)]
    other = StepContext(1, True, EVALUATOR, (schema,))
    assert aggregate.step(op, [Delta.empty(pa.schema([("c0", pa.int32())]))], Stored().load(), other).num_rows == 0


def test_count_of_rows_without_columns():
    op = Aggregate(("scan-0",), schema_of(BIGINT), False, (), (call("count"),))
    history = History(op, ())
    assert rows_of(history.epoch(Delta(pa.table({}), np.ones(3, np.int64)))) == [(3,)]


def test_too_large_sums_are_null_and_counted():
    schema = schema_of(INTEGER, NUMERIC, BIGINT)
    op = Aggregate(("scan-0",), schema_of(INTEGER, NUMERIC, BIGINT), False, (0,), (call("sum", 1), call("sum", 2)))
    history = History(op, schema)
    big = Decimal(9999999999999999999999999999)
    history.epoch(delta_of(schema, [(1, big, 2**63 - 1), (1, big, 1)]))
    assert list(history.content) == [(1, None, None)]
    assert history.errors == 2
    history.epoch(delta_of(schema, [(1, big, 1)], [-1]))
    assert list(history.content) == [(1, big, 2**63 - 1)]


def test_average_of_integers_as_double():
    schema = schema_of(INTEGER)
    op = Aggregate(("scan-0",), schema_of(DOUBLE, DOUBLE), False, (), (call("avg", 0), call("sum", 0)))
    history = History(op, schema)
    history.epoch(delta_of(schema, [(1,), (2,), (2,)]))
    assert list(history.content) == [(5 / 3, 5.0)]


def test_what_has_no_aggregate_is_refused():
    schema = schema_of(VARCHAR, SqlType("array", element=INTEGER))
    for bad in (call("sum", 0), call("bool_and", 0), call("median", 0), call("min", 1)):
        op = Aggregate(("scan-0",), schema_of(VARCHAR), False, (), (bad,))
        with pytest.raises(Error, match="FEATURE_NOT_SUPPORTED"):
            History(op, schema).epoch(delta_of(schema, [("a", [1])]))


def test_many_epochs_over_many_groups_with_merges():
    """State is merged many times; gone groups leave no row behind in the end."""
    rng = np.random.default_rng(7)
    schema = (Field("k", INTEGER), Field("v", DOUBLE), Field("s", VARCHAR))
    op = aggregate_of(schema, (0,), call("count"), call("sum", 1), call("min", 1), call("max", 2))
    history = History(op, schema)
    live: list[tuple[int, float, str]] = []
    for epoch in range(24):
        fresh = [
            (int(k), float(v), f"s{int(v)}")
            for k, v in zip(rng.integers(0, 900, 400), rng.normal(size=400) * 10, strict=True)
        ]
        gone = [live.pop(int(rng.integers(len(live)))) for _ in range(min(len(live), 100 if epoch < 14 else 800))]
        live += fresh if epoch < 14 else []
        changes = [(r, 1) for r in (fresh if epoch < 14 else [])] + [(r, -1) for r in gone]
        history.epoch(delta_of(schema, [r for r, _ in changes], [d for _, d in changes]))
        if epoch % 6 == 5:
            assert history.content == reference(op, Counter(live))
    assert not live
    assert not history.content


def test_the_next_extreme_is_found_far_inside_a_group(monkeypatch):
    """Removes the extremes of one large group again and again, many at a time; equal prefixes and unmerged runs
    included.
    """
    monkeypatch.setattr(extremes_module, "FIRST_ROWS", 2)
    rng = np.random.default_rng(2)
    schema = schema_of(INTEGER, BIGINT, VARCHAR)
    op = aggregate_of(schema, (0,), call("min", 1), call("max", 1), call("min", 2), call("max", 2))
    history = History(op, schema)
    live = [(1, int(v), f"prefix{v % 700:04}") for v in rng.integers(-(10**12), 10**12, 2000)] + [(2, 5, "x")]
    history.epoch(delta_of(schema, live))
    while live:
        live.sort()
        count = min(len(live), 90)
        gone = live[:count] if rng.random() < 0.5 else live[-count:]
        live = [r for r in live if r not in gone]
        history.epoch(delta_of(schema, gone, [-1] * len(gone)))
        assert history.content == reference(op, Counter(live))


@pytest.mark.parametrize("kind", [*VALUES, INTEGER, BIGINT, DOUBLE, NUMERIC], ids=lambda k: k.sql)
def test_order_prefixes_never_fall(kind):
    rng = np.random.default_rng(1)
    numbers = np.concatenate([rng.integers(-(2**63), 2**63 - 1, 300), np.arange(-50, 50), [2**31, -(2**31), 2**62]])
    if kind in (NUMERIC, PRICE):
        wide = [int(n) * 2**s for n in numbers for s in (0, 20, 40, 55)] + [
            s * 2**64 + d for s in (-2, -1, 1, 2) for d in (-1, 0, 1)
        ]
        limit = 10**kind.arrow.precision
        array = pa.array(
            [
                str(Decimal(n).scaleb(-kind.arrow.scale)) if abs(n) < 10**28 else f"{n}"[:-10] + "." + f"{n}"[-10:]
                for n in wide
                if abs(n) < limit
            ]
        ).cast(kind.arrow)
    elif kind in (VARCHAR, BYTEA):
        array = pa.array([bytes(rng.integers(97, 100, rng.integers(0, 7)).astype(np.uint8)) for _ in range(300)]).cast(
            kind.arrow
        )
    elif kind == INTERVAL:
        array = pa.array([pa.MonthDayNano([int(m), int(d), int(n)]) for m, d, n in rng.integers(-40, 40, (300, 3))])
    elif kind == DOUBLE:
        array = pa.array(np.concatenate([numbers.astype(float), rng.normal(size=300), [np.inf, -np.inf, np.nan, 0.0]]))
    else:
        width = kind.arrow.bit_width
        scale = (
            numbers % 86_400_000_000
            if kind == TIME
            else numbers >> (12 if kind in (TIMESTAMP, TIMESTAMPTZ) else 64 - width)
        )
        array = pa.array(scale.astype(f"i{width // 8}")).cast(kind.arrow)
    order = np.argsort(hashing.order_keys(array), kind="stable")
    prefixes = hashing.order_prefixes(array)
    assert (np.diff(prefixes[order].astype(np.int64)) >= 0).all()
    assert prefixes.max() < 2**32
    assert len(np.unique(prefixes)) > 30


def test_few_texts_are_grouped_like_many():
    rng = np.random.default_rng(5)
    for different in (1, 3, 200):
        texts = pa.array(["", None, *(f"text {i}" for i in range(different))])
        key = texts.take(pa.array(rng.integers(0, len(texts), 1 << 14)))
        found = groups_module.group_rows([key], len(key))
        expected = groups_module.group([key], hashing.hash_columns([key]))
        assert (found.hashes == expected.hashes).all()
        assert found.keys == expected.keys
        assert (found.of_row == expected.of_row).all()
        assert (found.lengths == expected.lengths).all()
        assert (np.diff(found.order)[np.diff(found.of_ordered) == 0] > 0).all()
