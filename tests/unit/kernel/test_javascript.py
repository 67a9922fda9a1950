"""Functions in JavaScript: forms of bodies, values of each type, failures and limits."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest
from tests.unit.kernel.test_other_languages import computed

from watersmeet.errors import Error
from watersmeet.kernel.evaluation.functioncalls import SECONDS, check_body
from watersmeet.values.calledfunctions import CalledFunction
from watersmeet.values.types import BIGINT, DATE, DOUBLE, INTEGER, JSONB, NUMERIC, TIMESTAMP, VARCHAR, SqlType


def javascript(code: str, *parameters: SqlType, returns: SqlType = BIGINT, **others) -> CalledFunction:
    names = tuple("abc"[: len(parameters)])
    return CalledFunction("f", "javascript", "f", code, parameters, returns, names=names, **others)


@pytest.mark.parametrize(
    "code",
    [
        "export function f(a, b) { while (b != 0) { let t = b; b = a % b; a = t; } return a; }",
        "function f(a, b) { return b == 0 ? a : f(b, a % b); }",
        "while (b != 0) { let t = b; b = a % b; a = t; } return a;",
    ],
)
def test_forms_of_scalar_bodies(code: str) -> None:
    assert computed(javascript(code, INTEGER, INTEGER, returns=INTEGER), "f(c0, c1)", [12, 25], [18, 15]) == (
        [6, 5],
        {},
    )


def test_bodies_over_columns() -> None:
    code = "function f(values) { for (let i = 0; i < values.length; i++) values[i] = values[i] + 5; return values; }"
    assert computed(javascript(code, DOUBLE, returns=DOUBLE, form="lists"), "f(c0)", [1.5, 2.0]) == ([6.5, 7.0], {})
    values, failures = computed(javascript("return [1]", BIGINT, form="lists"), "f(c0)", [1, 2])
    assert values == [1, 1], failures  # each row by itself


def test_tables_and_aggregates() -> None:
    rows = SqlType("struct", fields=(("i", INTEGER), ("s", VARCHAR)))
    code = "export function* f(n) { for (let i = 0; i < n; i++) yield [i, 'x'.repeat(i)]; }"
    found, _ = computed(javascript(code, INTEGER, returns=rows, shape="table"), "f(c0)", [2, 0])
    assert found == [[{"i": 0, "s": ""}, {"i": 1, "s": "x"}], []]
    single = SqlType("struct", fields=(("x", INTEGER),))
    function = javascript("for (let i = 0; i < a; i++) { yield i; }", INTEGER, returns=single, shape="table")
    assert computed(function, "f(c0)", [2])[0] == [[{"x": 0}, {"x": 1}]]
    code = """
    export function create_state() { return 0; }
    export function accumulate(state, value) { return state + value; }
    export function finish(state) { return state * 10; }
    """
    kinds = (SqlType("array", element=BIGINT),)
    function = javascript(code, BIGINT, shape="aggregate")
    assert computed(function, "f(c0)", [[1, 2], None], kinds=kinds)[0] == [30, 0]
    code = """{
        initialize: function() { this.max = -1.0; },
        process: function(values) { for (const v of values) this.max = Math.max(this.max, v); },
        finalize: function() { return this.max; },
        merge: function(state) {}, serialize: function() {}, deserialize: function(state) {}
    }"""
    function = javascript(code, BIGINT, shape="aggregate", form="lists")
    assert computed(function, "f(c0)", [[1, 2], None, [7]], kinds=kinds)[0] == [2, -1, 7]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (BIGINT, [2**63 - 1, -(2**63), 7]),
        (DOUBLE, [0.1, float("inf"), float("-inf"), -0.0]),
        (VARCHAR, ["", "é\0😀"]),
        (DATE, [0, 20000]),
        (TIMESTAMP, [0, 1_700_000_000_000_001]),
        (JSONB, ['{"a":[1,null]}']),
        (SqlType("array", element=BIGINT), [[1, 2**60, None], []]),
        (SqlType("struct", fields=(("x", INTEGER), ("y", DOUBLE))), [{"x": 1, "y": 1.5}]),
    ],
    ids=lambda v: v.sql if isinstance(v, SqlType) else "",
)
def test_values_of_each_type_pass_unchanged(kind: SqlType, values: list) -> None:
    column = pa.array([*values, None], kind.arrow).to_pylist()
    found, failures = computed(javascript("return a", kind, returns=kind), "f(c0)", column, kinds=(kind,))
    assert not failures
    assert [v.replace(" ", "") if kind == JSONB and v else v for v in found] == column
    number = computed(javascript("return a", NUMERIC, returns=NUMERIC), "f(c0)", [None])
    assert number == ([None], {})
    (nan,), _ = computed(javascript("return a", DOUBLE, returns=DOUBLE), "f(c0)", [math.nan])
    assert math.isnan(nan)


def test_failures_are_of_their_rows() -> None:
    code = "if (a % 2 == 0) throw new Error('even'); return a == 3 ? 'x' : a;"
    values, failures = computed(javascript(code, BIGINT), "f(c0)", [1, 2, 3])
    assert (values, sum(failures.values())) == ([1, None, None], 2)
    assert computed(javascript("async function f(a) { return a; }", BIGINT), "f(c0)", [1])[1] == {
        "TypeError: the body is asynchronous": 1
    }
    assert computed(javascript("return typeof require + typeof process", BIGINT, returns=VARCHAR), "f(c0)", [1]) == (
        ["undefinedundefined"],
        {},
    )


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("while (true) {}", "did not return"),
        ("const list = []; while (true) list.push(new Array(1000).fill(1));", "memory"),
    ],
    ids=["loop", "memory"],
)
def test_a_body_that_misbehaves_is_stopped(monkeypatch: pytest.MonkeyPatch, code: str, reason: str) -> None:
    computed(javascript("return a", BIGINT), "f(c0)", [1])
    monkeypatch.setenv(SECONDS, "1" if reason != "memory" else "60")
    with pytest.raises(Error, match=reason) as caught:
        computed(javascript(code, BIGINT), "f(c0)", [1])
    assert caught.value.condition == "FUNCTION_STOPPED"


def test_a_text_that_is_not_javascript() -> None:
    assert "SyntaxError" in str(check_body(javascript("function f( {", BIGINT)))
    assert "ReferenceError" in str(check_body(javascript("function f(a) {}\nnowhere();", BIGINT)))
