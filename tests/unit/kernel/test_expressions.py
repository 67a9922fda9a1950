from __future__ import annotations

import datetime as dt
import os
from collections.abc import Sequence
from decimal import Decimal
from random import Random

import numpy as np
import pyarrow as pa
import pytest

from watersmeet.errors import Error
from watersmeet.kernel.evaluation import expressions
from watersmeet.kernel.evaluation.expressions import Evaluator
from watersmeet.kernel.metrics import Counters, Failure
from watersmeet.values.types import (
    BIGINT,
    BOOLEAN,
    BYTEA,
    DATE,
    DOUBLE,
    INTEGER,
    INTERVAL,
    JSONB,
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
UTC = dt.UTC

VALUES = {
    BOOLEAN: [True, False, None],
    SMALLINT: [-32768, 32767, None],
    INTEGER: [-(2**31), 2**31 - 1, None],
    BIGINT: [-(2**63), 2**63 - 1, None],
    REAL: [1.5, float("inf"), None],
    DOUBLE: [0.1, -float("inf"), None],
    NUMERIC: [Decimal("1234567890123456789012345678.0123456789"), Decimal("-0.0000000001"), None],
    SqlType("numeric", 5, 2): [Decimal("999.99"), Decimal("-0.01"), None],
    SqlType("numeric", 18, 0): [Decimal(10**18 - 1), Decimal(-1), None],
    VARCHAR: ["", "a'b\u00e4\u4e2d\U0001f600", None],
    BYTEA: [b"", b"\x00\xff", None],
    DATE: [dt.date(1, 1, 1), dt.date(9999, 12, 31), None],
    TIME: [dt.time(0), dt.time(23, 59, 59, 999999), None],
    TIMESTAMP: [dt.datetime(1900, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999999), None],
    TIMESTAMPTZ: [dt.datetime(1900, 1, 1, tzinfo=UTC), dt.datetime(2024, 3, 31, 1, 30, 0, 1, tzinfo=UTC), None],
    INTERVAL: [pa.MonthDayNano([13, -2, 3_000_001_000]), pa.MonthDayNano([0, 0, 0]), None],
    JSONB: ['{"a": [1, null]}', "null", None],
    SqlType("array", element=VARCHAR): [["a", None], [], None],
    SqlType("array", element=JSONB): [["1", None], [], None],
    SqlType("array", element=SqlType("array", element=NUMERIC)): [[[Decimal("1.5000000000")], None], [], None],
    SqlType("struct", fields=(("x y", INTEGER), ("z", SqlType("array", element=TIMESTAMPTZ)))): [
        {"x y": 1, "z": [dt.datetime(2024, 1, 1, tzinfo=UTC), None]},
        {"x y": None, "z": None},
        None,
    ],
}


def columns(*kinds: SqlType) -> Schema:
    return tuple(Field(f"f{i}", kind) for i, kind in enumerate(kinds))


def table(*pairs: tuple[SqlType, list]) -> pa.Table:
    return pa.table({f"c{i}": pa.array(values, kind.arrow) for i, (kind, values) in enumerate(pairs)})


def project(
    rows: pa.Table, types: list[SqlType], exprs: list[str], results: list[SqlType], predicate: str | None = None
) -> tuple[list[list], list[int] | None, int]:
    counters = Counters()
    result, kept = EVALUATOR.project(rows, columns(*types), exprs, columns(*results), predicate, counters)
    assert result.schema.types == [kind.arrow for kind in results]
    assert result.column_names == [f"c{i}" for i in range(len(exprs))]
    result.validate(full=True)
    return [c.to_pylist() for c in result.columns], None if kept is None else kept.tolist(), counters.expression_errors


@pytest.mark.parametrize("kind", VALUES, ids=lambda kind: kind.sql)
def test_every_type_survives_a_computation(kind: SqlType):
    """Through DuckDB and out again; also its items' names are those of the schema's Arrow type."""
    rows = table((kind, VALUES[kind]), (BOOLEAN, [True, True, False]))
    result, _ = EVALUATOR.project(rows, columns(kind, BOOLEAN), ["CASE WHEN c1 THEN c0 END", "c0"], columns(kind, kind))
    for column in result.columns:
        assert column.to_pylist() == VALUES[kind]
        assert str(column.type) == str(kind.arrow)
    counted, _, errors = project(rows, [kind, BOOLEAN], ["c0 IS NULL"], [BOOLEAN], "c0 IS NULL OR c1")
    assert counted == [[False, False, True]]
    assert errors == 0


@pytest.mark.parametrize("kind", VALUES, ids=lambda kind: kind.sql)
def test_every_type_has_its_duckdb_type(kind: SqlType):
    rows = table((kind, VALUES[kind]))
    (found,), _, _ = project(rows, [kind], ["typeof(c0)"], [VARCHAR])
    assert found[0].replace('"', "") == kind.duckdb.replace('"', "")


def test_filter_first_and_positions_of_kept_rows():
    rows = table((INTEGER, [1, 0, None, 4]), (VARCHAR, ["a", "b", "c", "d"]))
    assert project(rows, [INTEGER, VARCHAR], ["12 // c0", "c1", "7"], [INTEGER, VARCHAR, BIGINT], "c0 <> 0") == (
        [[12, 3], ["a", "d"], [7, 7]],
        [0, 3],
        0,
    )
    assert project(rows, [INTEGER, VARCHAR], ["c1"], [VARCHAR], "c1 > ''")[1] is None
    assert project(rows, [INTEGER, VARCHAR], ["c1", "c0 + 1"], [VARCHAR, INTEGER], "c1 = 'x'") == ([[], []], [], 0)
    assert EVALUATOR.mask(rows, columns(INTEGER, VARCHAR), "c0 > 0").tolist() == [True, False, False, True]


def test_erroneous_cells_are_null_and_counted():
    rows = table((VARCHAR, ["1", "x", None, "", "5"]), (INTEGER, [2**31 - 1, 1, 1, None, 0]))
    values, kept, errors = project(
        rows, [VARCHAR, INTEGER], ["CAST(c0 AS INT)", "c1 + 1", "c0"], [INTEGER, INTEGER, VARCHAR]
    )
    assert values == [[1, None, None, None, 5], [None, 2, 2, None, 1], ["1", "x", None, "", "5"]]
    assert kept is None
    assert errors == 3


@pytest.mark.parametrize(
    ("required", "predicate", "kept"),
    [
        ((), None, [0, 1, 2, 3]),
        ((0,), None, [0, 2, 3]),
        ((0, 1), None, [0, 2, 3]),
        ((2,), None, [0, 1, 2, 3]),
        ((0,), "c1 > 0", [2, 3]),
    ],
)
def test_a_row_whose_required_column_fails_is_dropped(required, predicate, kept):
    """NULL that no error gave stays, and so does a part that fails within a value that is not NULL."""
    rows = table((VARCHAR, ["1", "x", None, "4"]), (INTEGER, [0, 1, 2, 3]))
    exprs = ["CAST(c0 AS INTEGER)", "c1", "coalesce(CAST(c0 AS INTEGER), -1)"]
    counters = Counters()
    types = columns(INTEGER, INTEGER, INTEGER)
    found, places = EVALUATOR.project(
        rows, columns(VARCHAR, INTEGER), exprs, types, predicate, counters, required=required
    )
    whole = {0: (1, 0, 1), 1: (None, 1, -1), 2: (None, 2, -1), 3: (4, 3, 4)}
    assert list(zip(*[c.to_pylist() for c in found.columns], strict=True)) == [whole[i] for i in kept]
    assert (list(range(4)) if places is None else places.tolist()) == kept
    assert counters.expression_errors == 2


def test_erroneous_predicate_is_false_and_counted():
    rows = table((VARCHAR, ["1", "x", None, "9999999999", "-5"]))
    assert project(rows, [VARCHAR], ["CAST(c0 AS INT) * 2"], [INTEGER], "CAST(c0 AS INT) > 0") == ([[2]], [0], 2)
    counters = Counters()
    assert EVALUATOR.mask(rows, columns(VARCHAR), "CAST(c0 AS INT) < 0", counters).tolist() == [False] * 4 + [True]
    assert counters.expression_errors == 2


@pytest.mark.parametrize(
    ("sql", "value", "failing"),
    [
        ("c1 OR CAST(c0 AS INT) > 0", [True, None, False, True, None, None], {1, 4}),
        ("c1 AND CAST(c0 AS INT) > 0", [None, False, False, True, None, None], {0, 4}),
        ("NOT (NOT c1 AND (CAST(c0 AS INT) < 1 OR c1 IS NULL))", [True, None, False, True, None, None], {1}),
        (
            "CASE WHEN CAST(c0 AS INT) = 0 OR c1 THEN true WHEN c0 = 'x' THEN false END",
            [True, False, True, True, False, None],
            {1, 4},
        ),
        ("CASE WHEN c0 = 'x' THEN c1 ELSE CAST(c0 AS INT) > 0 END", [True, False, False, True, None, None], set()),
        ("CASE WHEN c1 THEN CAST(c0 AS INT) IS NULL ELSE false END", [True, False, False, False, False, False], {0}),
        ("CAST(c0 AS INT) > 0", [None, None, False, True, None, None], {0, 1, 4}),
        ("coalesce(c1, CAST(c0 AS INT) > 0)", [True, False, False, True, None, None], {4}),
        ("coalesce(CAST(c0 AS INT), 5) > 2", [True, True, False, False, True, True], {0, 1, 4}),
        ("CAST(c0 AS INT) IS NULL", [True, True, False, False, True, True], {0, 1, 4}),
        ("concat(CAST(c0 AS INT), 'y') = 'y'", [True, True, False, False, True, True], {0, 1, 4}),
        ("({'a': CAST(c0 AS INT), 'b': c1}).a IS NULL", [True, True, False, False, True, True], {0, 1, 4}),
        ("len(list_filter([CAST(c0 AS INT)], lambda e: e IS NULL)) = 1",
         [True, True, False, False, True, True], {0, 1, 4}),
        # parts that DuckDB's TRY does not catch, or does not accept
        ("c0 LIKE 'y' ESCAPE repeat(c0, CASE c0 WHEN 'x' THEN 2 ELSE 1 END) IS NULL",
         [True, True, False, False, True, True], {0, 1, 4}),
        ("coalesce(CASE WHEN c0 = 'x' THEN error('bad') ELSE c0 END, '7') > '5'",
         [True, True, False, False, True, True], {0, 1, 4}),
    ],
)  # fmt: skip
def test_a_row_decides_alone_what_its_errors_do(sql, value, failing):
    """Law: a result never depends on the other rows of the batch. DuckDB skips parts for rows that are decided."""
    text, flags = ["x", "x", "0", "1", "x", None], [True, False, False, True, None, None]
    for rows in ([0, 1, 2, 3, 4, 5], [0], [1], [2], [3], [4], [5], [0, 2], [3, 4], [5, 0]):
        given = table((VARCHAR, [text[i] for i in rows]), (BOOLEAN, [flags[i] for i in rows]))
        real, _, errors = project(given, [VARCHAR, BOOLEAN], [sql], [BOOLEAN])
        expected = [value[i] for i in rows]
        assert real == [expected], rows
        kept = project(given, [VARCHAR, BOOLEAN], [], [], sql)[1]
        assert (list(range(len(rows))) if kept is None else kept) == [i for i, v in enumerate(expected) if v], rows
        assert errors == len(failing.intersection(rows)), rows


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("c0 + 1 > 10", [2**31 - 1, 20]),
        ("CAST(c1 AS INT) = 5", [2**40, 5]),
        ("CAST(c1 AS INT) IN (5, 6)", [2**40, 5]),
        ("CAST(CAST(c1 AS SMALLINT) AS INT) = 5", [2**40, 5]),
        ("c0 * 2 = 10 OR c0 IS NULL", [2**31 - 1, 5]),
    ],
)
def test_an_error_is_not_optimized_away(sql, rows):
    """`c0 + 1 > 10` is not `c0 > 9`: the sum fails, so that the condition is NULL."""
    given = table((INTEGER, [min(r, 2**31 - 1) for r in rows]), (BIGINT, rows))
    for count in (1, 2):
        values, _, errors = project(given.slice(0, count), [INTEGER, BIGINT], [sql], [BOOLEAN])
        assert (values, errors) == ([[None, True][:count]], 1)


def test_errors_are_counted_by_part_with_the_reason_of_the_first():
    rows = table((VARCHAR, ["two", "1", "x", None, "2147483647"]))
    counters = Counters()
    EVALUATOR.project(
        rows,
        columns(VARCHAR),
        ["c0", "coalesce(CAST(c0 AS INT) + 1, 0)", "CAST(c0 AS BOOLEAN)"],
        columns(VARCHAR, INTEGER, BOOLEAN),
        "CAST(c0 AS INT) IS NULL OR true",
        counters,
    )
    assert list(counters.failures.values()) == [
        Failure(1, "CAST(c0 AS INTEGER)", "Could not convert string 'two' to INT32", 2),
        Failure(1, "(CAST(c0 AS INTEGER) + 1)", "Overflow in addition of INT32 (2147483647 + 1)!", 1),
        Failure(2, "CAST(c0 AS BOOLEAN)", "Could not convert string 'two' to BOOL", 3),
    ]
    assert counters.expression_errors == 6


def test_errors_where_try_is_not_possible():
    rows = table((INTEGER, list(range(100))))
    values, _, errors = project(rows, [INTEGER], ["CASE WHEN c0 % 30 = 7 THEN error('bad') ELSE 'ok' END"], [VARCHAR])
    assert errors == 4
    assert [i for i, v in enumerate(values[0]) if v is None] == [7, 37, 67, 97]


def test_an_error_in_a_constant_makes_all_rows_null():
    rows = table((INTEGER, [1, 2]))
    assert project(rows, [INTEGER], ["CAST('x' AS INTEGER)", "sqrt(-1) + c0"], [INTEGER, DOUBLE]) == (
        [[None, None], [None, None]],
        None,
        4,
    )
    assert project(rows, [INTEGER], ["c0"], [INTEGER], "CAST('x' AS BOOLEAN)") == ([[]], [], 2)


def test_errors_of_json_and_of_casts_to_the_result_type():
    rows = table((JSONB, ['{"a": "x"}', '{"a": 3}', None]), (BIGINT, [1, 2**40, None]))
    values, _, errors = project(
        rows, [JSONB, BIGINT], ["CAST(c0->>'a' AS INT)", "c1", "c0->'a'"], [INTEGER, INTEGER, JSONB]
    )
    assert values == [[None, 3, None], [1, None, None], ['"x"', "3", None]]
    assert errors == 2


def test_no_columns_and_no_rows():
    empty, kept = EVALUATOR.project(
        pa.table({}), (), ["1", "'it''s'", "1 + 1"], columns(INTEGER, VARCHAR, BIGINT), num_rows=3
    )
    assert empty.to_pydict() == {"c0": [1] * 3, "c1": ["it's"] * 3, "c2": [2] * 3}
    assert kept is None
    rows = table((INTEGER, []))
    assert project(rows, [INTEGER], ["c0", "c0 + 1", "NULL"], [INTEGER, BIGINT, VARCHAR], "c0 > 1") == (
        [[], [], []],
        None,
        0,
    )
    none, kept = EVALUATOR.project(table((INTEGER, [1, 2, 3])), columns(INTEGER), [], (), "c0 > 1")
    assert kept is not None
    assert kept.tolist() == [1, 2]
    assert none.num_columns == 0


def test_constant_rows():
    found = EVALUATOR.rows([["1", "'a'"], ["2 * 3", "NULL"]], columns(BIGINT, VARCHAR))
    assert found.to_pydict() == {"c0": [1, 6], "c1": ["a", None]}
    assert EVALUATOR.rows([], columns(BIGINT)).num_rows == 0


def test_sql_reaches_neither_files_nor_settings():
    for text in (
        "(SELECT count(*) FROM read_csv('/etc/hostname'))",
        "(SELECT content FROM read_text('/etc/hostname'))",
    ):
        with pytest.raises(Exception, match="disabled by configuration"):
            EVALUATOR.project(table((INTEGER, [1])), columns(INTEGER), [text], columns(VARCHAR))


def test_a_wrong_plan_is_an_internal_error():
    with pytest.raises(Error, match="INTERNAL_ERROR"):
        EVALUATOR.project(table((INTEGER, [1])), columns(INTEGER), ["c0 + nowhere"], columns(INTEGER))


def test_sliced_and_chunked_input():
    rows = table((BIGINT, list(range(100)))).slice(10, 50)
    rows = pa.concat_tables([rows, rows.slice(5, 5)])
    values, kept, _ = project(rows, [BIGINT], ["c0 * 2", "c0"], [BIGINT, BIGINT], "c0 % 2 = 0")
    assert values[0] == [2 * v for v in values[1]]
    assert values[1] == [v for v in [*range(10, 60), *range(15, 20)] if v % 2 == 0]
    assert kept == [i for i, v in enumerate([*range(10, 60), *range(15, 20)]) if v % 2 == 0]


def test_order_of_many_rows_is_kept():
    numbers = np.random.default_rng(1).integers(0, 1000, 500_000)
    rows = pa.table({"c0": numbers})
    values, kept = EVALUATOR.project(rows, columns(BIGINT), ["c0 + 1"], columns(BIGINT), "c0 % 3 = 0")
    assert kept is not None
    assert (values.column(0).to_numpy() - 1 == numbers[kept]).all()
    assert kept.size == (numbers % 3 == 0).sum()


def test_a_forked_child_has_its_own_connection():
    rows = table((INTEGER, [1, 2]))
    project(rows, [INTEGER], ["c0 + 40"], [INTEGER])
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        values, _, _ = project(rows, [INTEGER], ["c0 + 40"], [INTEGER])
        os.write(writer, repr(values).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 100) == b"[[41, 42]]"


def test_many_plans_are_forgotten_again():
    rows = table((INTEGER, [1]))
    for i in range(600):
        assert project(rows, [INTEGER], [f"c0 + {i}"], [INTEGER])[0] == [[1 + i]]
    assert project(rows, [INTEGER], ["c0 + 0"], [INTEGER])[0] == [[1]]


def made_condition(random: Random, types: Sequence[SqlType]) -> str:
    position = random.randrange(len(types))
    edges = [0, 1, -1, 127, 32767, -32768, 2**31 - 1, -(2**31), 10**18 - 1, 10**18 + 1, random.randrange(-9, 9)]
    texts = ["'a'", "''", "'it''s'", "'a AND b'", "'1'"]
    if random.random() < 0.2:
        return f"{random.choice(['', 'NOT '])}c{position} IS NULL"
    alike = [i for i, kind in enumerate(types) if kind == types[position] and kind not in (VARCHAR, DOUBLE)]
    if alike and random.random() < 0.2:
        return f"c{position} {random.choice(['=', '<>', '<', '<=', '>', '>='])} c{random.choice(alike)}"
    if types[position] in (TIMESTAMP, TIMESTAMPTZ):
        other = random.choice([i for i, kind in enumerate(types) if kind in (TIMESTAMP, TIMESTAMPTZ)])
        span = f"epoch_us(c{position}) - epoch_us(c{other})"
        limit = random.choice([0, 5, -5, 10**17, -(10**17)])
        comparison = random.choice(["<", "<=", ">", ">="])
        if random.random() < 0.3:
            length = random.choice(["5 SECONDS", "00:00:00.000005", "25:10:00", "0 SECONDS"])
            return f"c{position} {comparison} (c{other} {random.choice('+-')} CAST('{length}' AS INTERVAL))"
        return f"{random.choice([span, f'abs({span})'])} {comparison} {limit}"
    if types[position] == VARCHAR:
        return f"c{position} {random.choice(['=', '<>', '<'])} {random.choice(texts)}"
    return f"c{position} {random.choice(['=', '<>', '<', '<=', '>', '>='])} {random.choice(edges)}"


def made_window(random: Random, position: int, kind: SqlType) -> str:
    """The start of the window of a time."""
    size = random.choice(["00:00:00.000004", "00:01:00", "00:00:07.5", "30:00:00", "7 SECONDS", "00:00:00"])
    origin = f"1970-01-01 {random.choice(['00:00:00', '00:00:03', '20:00:00.25'])}{'+00' * (kind == TIMESTAMPTZ)}"
    return f"TIME_BUCKET(CAST('{size}' AS INTERVAL), c{position}, CAST('{origin}' AS {kind.duckdb}))"


def made_value(random: Random, kind: SqlType, wide: bool = False) -> object:
    if random.random() < 0.2:
        return None
    if kind == VARCHAR:
        return random.choice(["a", "", "it's", "a AND b", "ä", "1"])
    if kind in (TIMESTAMP, TIMESTAMPTZ):
        infinite = 2**63 - 1
        return random.choice([0, 5, -5, 9, 10**17, *([infinite, -infinite, 9 * 10**18, -9 * 10**18] * wide)])
    if kind == DOUBLE:
        return random.choice([float("nan"), 0.0, -0.0, 1.0, float("inf")])
    bits = {SMALLINT: 15, INTEGER: 31, BIGINT: 63}[kind]
    return random.choice([0, 1, -1, 5, 127, -(2**bits), 2**bits - 1])


def shown(table: pa.Table) -> list[str]:
    """The columns as texts; times, which may be beyond those of Python, as numbers."""
    return [repr((c.cast(pa.int64()) if pa.types.is_timestamp(c.type) else c).to_pylist()) for c in table.columns]


@pytest.mark.parametrize("seed", range(40))
def test_conditions_and_sums_without_duckdb_have_its_rows_and_errors(monkeypatch, seed):
    random = Random(seed)
    some = [SMALLINT, INTEGER, BIGINT, BIGINT, VARCHAR, DOUBLE, TIMESTAMP, TIMESTAMP, TIMESTAMPTZ]
    kinds = [random.choice(some) for _ in range(3)]
    wide = random.random() < 0.3
    schema = tuple(Field(f"c{i}", kind) for i, kind in enumerate(kinds))
    values = [[made_value(random, kind, wide) for _ in range(random.choice([1, 7, 30]))][:30] for kind in kinds]
    count = min(map(len, values))
    table = pa.table(
        [pa.array(v[:count], k.arrow) for v, k in zip(values, kinds, strict=True)], names=["c0", "c1", "c2"]
    )
    fast, slow = Evaluator(), Evaluator()
    for _ in range(12):
        predicate = " AND ".join(made_condition(random, kinds) for _ in range(random.randrange(1, 4)))
        exprs, output = ["c0"], [schema[0]]
        for position, kind in enumerate(kinds):
            if kind in (SMALLINT, INTEGER, BIGINT):
                exprs.append(f"c{position} {random.choice('+-')} {random.choice([0, 3, -2, 2**31, 10**18 - 1])}")
                output.append(Field("sum", random.choice([BIGINT, kind])))
            if kind in (TIMESTAMP, TIMESTAMPTZ):
                exprs.append(made_window(random, position, kind))
                output.append(Field("start", kind))
        given = (table, schema, exprs, tuple(output), random.choice([predicate, predicate, None]))
        counted = Counters(), Counters()
        found, rows = fast.project(*given, counted[0])
        with monkeypatch.context() as patched:
            patched.setattr(expressions, "_simple", lambda *_: None)
            expected, wanted = slow.project(*given, counted[1])
        assert found.schema == expected.schema
        assert shown(found) == shown(expected), given[2:]
        assert (rows is None) == (wanted is None)
        assert rows is None or rows.tolist() == wanted.tolist()
        assert counted[0].expression_errors == counted[1].expression_errors
        assert counted[0].failures == counted[1].failures


@pytest.mark.parametrize("seed", range(40))
def test_projections_that_are_alike_give_together_what_each_gives_alone(seed):
    random = Random(seed)
    kinds = [random.choice([SMALLINT, INTEGER, BIGINT, BIGINT, VARCHAR, TIMESTAMP, TIMESTAMPTZ]) for _ in range(3)]
    schema = tuple(Field(f"c{i}", kind) for i, kind in enumerate(kinds))
    count = random.choice([1, 1, 2, 9, 30])
    rows = [pa.array([made_value(random, kind) for _ in range(count)], kind.arrow) for kind in kinds]
    table = pa.table(rows, names=["c0", "c1", "c2"])
    projections = {}
    for _ in range(40):
        predicate = " AND ".join(made_condition(random, kinds) for _ in range(random.choice([0, 1, 1, 2]))) or None
        exprs, output = [random.choice(["c0", "c1"])], [schema[0]]
        output = [schema[int(exprs[0][1])]]
        for position, kind in enumerate(kinds):
            if kind == BIGINT and random.random() < 0.5:
                exprs.append(f"c{position} {random.choice('+-')} {random.choice([0, 3, -2, 2**31, 10**18 - 1])}")
                output.append(Field("sum", BIGINT))
        required = (0,) if random.random() < 0.1 else ()
        name = str(len(projections))
        projections[name] = expressions.MapOf(name, tuple(exprs), tuple(output), predicate, required)
    evaluator = Evaluator()
    for _ in range(2):
        together = evaluator.project_alike(table, schema, projections, projections.__getitem__)
        for name, found in together.items():
            one = projections[name]
            counters = Counters()
            expected, rows = evaluator.project(table, schema, one.exprs, one.output, one.predicate, counters)
            assert counters.expression_errors == 0, "it is left out"
            assert (found is None) == (expected.num_rows == 0), one
            if found is not None:
                assert found[0].schema == expected.schema
                assert found[0].to_pydict() == expected.to_pydict(), one
                assert (found[1] is None) == (rows is None)
                assert rows is None or found[1].tolist() == rows.tolist()
    assert {i for i, one in projections.items() if one.required}.isdisjoint(together)


def test_many_projections_are_one_step_if_they_only_differ_in_constants():
    evaluator = Evaluator()
    schema = (Field("a", BIGINT), Field("b", VARCHAR))
    table = pa.table({"c0": [1, None, 7, 2**63 - 1], "c1": ["a", "b", None, "c"]})

    def projection(name: str) -> expressions.MapOf:
        number = int(name)
        sums = (f"c0 + {number}", "c1")
        return expressions.MapOf(name, sums, schema, f"c0 > {number} AND c1 <> '{'abc'[number % 3]}'", ())

    found = evaluator.project_alike(table, schema, map(str, range(9)), projection)
    assert set(found) == {"0", "2", "5", "8"}, "other sums are out of range: each is computed alone"
    assert found["0"][0].to_pydict() == {"c0": [2**63 - 1], "c1": ["c"]}
    assert found["0"][1].tolist() == [3]
    assert found["2"] is None
    assert not evaluator._plans


def test_simple_conditions_and_sums_prepare_no_statement():
    evaluator = Evaluator()
    table = pa.table({"c0": pa.array([1, 2, None, 2**63 - 1]), "c1": ["a", None, "b", "c"]})
    schema = (Field("a", BIGINT), Field("b", VARCHAR))
    out = (Field("b", VARCHAR), Field("s", BIGINT))
    for number in range(600):
        found, rows = evaluator.project(table, schema, ["c1", "c0 + 1"], out, f"c0 <= {number} AND NOT c1 IS NULL")
        assert found.to_pydict() == {"c0": ["a"] * (number > 0), "c1": [2] * (number > 0)}
        assert rows is not None
    assert not evaluator._plans
    counters = Counters()
    found, _ = evaluator.project(table, schema, ["c0 + 1"], out[1:], None, counters)
    assert found.to_pydict() == {"c0": [2, 3, None, None]}
    assert counters.expression_errors == 1
    assert len(evaluator._plans) == 1
