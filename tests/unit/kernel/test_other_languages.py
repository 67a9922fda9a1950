"""Functions of other languages: values, failing rows, and bodies that misbehave."""

from __future__ import annotations

import pyarrow as pa
import pytest

from watersmeet.errors import Error
from watersmeet.kernel.evaluation import functioncalls
from watersmeet.kernel.evaluation.expressions import Evaluator
from watersmeet.kernel.metrics import Counters
from watersmeet.values.calledfunctions import CalledFunction, called_in, readable, wired
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
    TIME,
    TIMESTAMP,
    TIMESTAMPTZ,
    VARCHAR,
    Field,
    SqlType,
)

EVALUATOR = Evaluator()


def python(code: str, *parameters: SqlType, returns: SqlType = BIGINT, **others) -> CalledFunction:
    return CalledFunction("f", "python", "f", code, parameters, returns, **others)


def computed(function: CalledFunction, sql: str, *columns: list, kinds: tuple[SqlType, ...] = ()):
    """The values of an expression, where `f` is the function, and for each reason the number of failed rows."""
    kinds = kinds or function.parameters
    table = pa.table({f"c{i}": pa.array(c, k.arrow) for i, (c, k) in enumerate(zip(columns, kinds, strict=True))})
    schema = tuple(Field(f"c{i}", k) for i, k in enumerate(kinds))
    counters = Counters()
    made, _ = EVALUATOR.project(
        table, schema, [sql.replace("f(", f"{function.encoded}(")], (Field("v", function.value),), counters=counters
    )
    return made.column(0).to_pylist(), {f.reason: f.rows for f in counters.failures.values()}


def test_a_name_contains_the_function() -> None:
    function = python("def f(a): return a", BIGINT)
    assert [f for _, f in called_in(f"1 + {function.encoded.upper()}(c0)")] == [function]
    assert readable(f"1 + {function.encoded}(c0)") == "1 + f(c0)"
    assert python("def f(a): return -a", BIGINT).encoded != function.encoded


def test_a_row_that_fails_is_null_and_counted_where_its_value_counts() -> None:
    function = python("def f(a):\n    if a % 3 == 0: raise ValueError('three')\n    return a", BIGINT)
    rows = list(range(6000))
    values, failures = computed(function, "f(c0)", rows)
    assert values == [None if a % 3 == 0 else a for a in rows]
    assert failures == {"ValueError: three (line 2 of the body)": 2000}
    values, failures = computed(function, "CASE WHEN c0 % 3 = 0 THEN -1 ELSE f(c0) + coalesce(f(c0), 0) END", rows[:9])
    assert (values, failures) == ([-1, 2, 4, -1, 8, 10, -1, 14, 16], {})
    values, failures = computed(function, "CASE WHEN f(c0) > 1 THEN f(f(c0) + 1) ELSE 7 END", rows[:6])
    assert values == [7, 7, None, 7, 5, None]
    assert failures == {"ValueError: three (line 2 of the body)": 2}
    values, failures = computed(function, "coalesce(f(c0), f(c0 + 1), CAST('x' AS BIGINT))", [3, 4])
    assert (values, sum(failures.values())) == ([4, 4], 1)


def test_a_vectorized_body_fails_for_the_failing_rows_alone() -> None:
    code = "import pyarrow.compute as pc\ndef f(a, b): return pc.divide(a, b)"
    values, failures = computed(python(code, BIGINT, BIGINT, form="arrow"), "f(c0, c1)", [6, 7, 8], [2, 0, 4])
    assert (values, list(failures.values())) == ([3, None, 2], [1])
    code = "import numpy as np\ndef f(a): return np.asarray(a) * 2"
    assert computed(python(code, BIGINT, form="arrow"), "f(c0)", [1, 2])[0] == [2, 4]
    assert computed(python("def f(a): return [x + 1 for x in a]", BIGINT, form="lists"), "f(c0)", [1, 2])[0] == [2, 3]
    values, failures = computed(python("def f(a): return a[:1] + a", BIGINT, form="lists"), "f(c0)", [1, 2])
    assert (values, failures) == ([None, None], {"ValueError: the body returned 2 values for 1 rows": 2})


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (BOOLEAN, [True, False]),
        (INTEGER, [-(2**31), 2**31 - 1]),
        (DOUBLE, [1.5, float("inf")]),
        (NUMERIC, ["1.5", "-0.0000000001"]),
        (VARCHAR, ["", "é\0x"]),
        (BYTEA, [b"", b"\xff"]),
        (DATE, [0, 20000]),
        (TIME, [0, 86_399_999_999]),
        (TIMESTAMP, [0, 1_700_000_000_000_001]),
        (TIMESTAMPTZ, [0, 1_700_000_000_000_001]),
        (INTERVAL, [(1, 2, 3000), (-1, 0, 0)]),
        (JSONB, ['{"a":[1,null]}', "7"]),
        (SqlType("array", element=VARCHAR), [["a", None], []]),
        (SqlType("struct", fields=(("x", INTEGER), ("y", VARCHAR))), [{"x": 1, "y": "a"}, {"x": None, "y": None}]),
    ],
    ids=lambda v: v.sql if isinstance(v, SqlType) else "",
)
def test_values_of_each_type_pass_unchanged(kind: SqlType, values: list) -> None:
    column = pa.array(values, wired(kind).arrow) if kind != NUMERIC else pa.array(values).cast(NUMERIC.arrow)
    found, failures = computed(
        python("def f(a): return a", kind, returns=kind), "f(c0)", [*column.to_pylist(), None], kinds=(kind,)
    )
    assert not failures
    assert [v.replace(" ", "") if kind == JSONB and v else v for v in found] == [*column.to_pylist(), None]


def test_a_value_of_another_type_is_a_failure_of_its_row() -> None:
    values, failures = computed(python("def f(a): return 'x' if a == 1 else a", BIGINT), "f(c0)", [0, 1, 2])
    assert values == [0, None, 2]
    assert list(failures) == [
        "the body returned a str, not bigint: Could not convert 'x' with type str: tried to convert to int64"
    ]


def test_strict_functions_are_not_called_with_null() -> None:
    function = python("def f(a, b): return a + b", BIGINT, BIGINT, strict=True)
    assert computed(function, "f(c0, c1)", [1, None, 3], [1, 1, None]) == ([2, None, None], {})


def test_an_aggregate_does_not_depend_on_the_order_of_its_rows() -> None:
    code = "def create_state(): return ''\ndef accumulate(s, a): return s + str(a)"
    function = python(code, BIGINT, returns=VARCHAR, shape="aggregate")
    groups = [[3, 1, None], [None, 1, 3], None, []]
    kinds = (SqlType("array", element=BIGINT),)
    assert computed(function, "f(c0)", groups, kinds=kinds) == (["13None", "13None", "", ""], {})


def test_secrets_of_a_body_are_not_in_reasons() -> None:
    code = "api_key = 'hunter22'\ndef f(a): raise ValueError(f'bad {api_key}')"
    _, failures = computed(python(code, BIGINT), "f(c0)", [1])
    assert list(failures) == ["ValueError: bad *** (line 2 of the body)"]


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import os\ndef f(a): os._exit(0)", "it ended its process"),
        ("import os, signal\ndef f(a): os.kill(os.getpid(), signal.SIGSEGV)", "it ended its process"),
        ("def f(a):\n    while True: pass", "it did not return within 0.5 seconds"),
        ("def f(a): return len([0] * 10**12)", "MiB of memory"),
    ],
    ids=["exit", "crash", "loop", "memory"],
)
def test_a_body_that_misbehaves_is_stopped(monkeypatch: pytest.MonkeyPatch, code: str, reason: str) -> None:
    computed(python("def f(a): return a", BIGINT), "f(c0)", [1])  # a process exists
    monkeypatch.setenv(functioncalls.SECONDS, "0.5" if "while" in code else "60")
    with pytest.raises(Error, match=reason) as caught:
        computed(python(code, BIGINT), "f(c0)", [1])
    assert caught.value.condition == "FUNCTION_STOPPED"
    monkeypatch.delenv(functioncalls.SECONDS)
    assert computed(python("def f(a): return a", BIGINT), "f(c0)", [1])[0] == [1]


def test_exceptions_of_all_kinds_are_failures_of_rows() -> None:
    code = "def f(a):\n    if a == 0: return f(0)\n    if a == 1: raise SystemExit\n    return a"
    values, failures = computed(python(code, BIGINT), "f(c0)", [0, 1, 2])
    assert (values, list(failures.values())) == ([None, None, 2], [2])
    assert next(iter(failures)).startswith("RecursionError: ")


def test_what_a_body_prints_does_not_garble_values() -> None:
    code = "import sys\ndef f(a):\n    print('x'); sys.stdout.flush(); return a if sys.stdin.read() == '' else -1"
    assert computed(python(code, BIGINT), "f(c0)", [1, 2])[0] == [1, 2]
