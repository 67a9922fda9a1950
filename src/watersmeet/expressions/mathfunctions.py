"""Binds mathematical functions (PostgreSQL 17, 9.3): numeric for numeric arguments, double precision for other
numbers.
"""

from __future__ import annotations

from typing import Final

from watersmeet.expressions.calls import Builder, FunctionCall, Signature, builders, signature
from watersmeet.expressions.context import (
    COMPLEX,
    OVERFLOW,
    UNDERFLOW,
    ZERO_TO_NEGATIVE,
    Value,
    call,
    duckdb_cast,
    failing,
)
from watersmeet.values.types import NUMERIC

_PI: Final = "pi()"


def _double(template: str) -> list[Signature]:
    return [signature("double", "double", template)]


def _both(template: str) -> list[Signature]:
    """A function of one number that DuckDB computes as double."""
    return [*_double(template), signature("numeric", "numeric", template.replace("a0", "CAST(a0 AS DOUBLE)"))]


def _exact(template: str) -> list[Signature]:
    """A function of one number that DuckDB also computes for decimals."""
    return [*_double(template), signature("numeric", "numeric", template)]


def _of_degrees(exact: dict[int, str], template: str) -> list[Signature]:
    """A function of degrees, exact for the same arguments as PostgreSQL's."""
    cases = " ".join(f"WHEN {degrees} THEN {value}" for degrees, value in exact.items())
    return _double(f"CASE a0 {cases} ELSE {template} END" if exact else template)


def _to_degrees(exact: dict[str, int], template: str) -> list[Signature]:
    cases = " ".join(f"WHEN {value} THEN {degrees}" for value, degrees in exact.items())
    return _double(f"CASE a0 {cases} ELSE {template} END")


def _in_range(result: str, finite: str, other: str = "") -> str:
    """A template that fails if `result` is infinite or 0 although the arguments are `finite`. It names the arguments x
    and y, so that their expressions occur only once in the SQL. other: cases that are tested first.
    """
    return (
        f"CASE {other}WHEN isinf({result}) AND {finite} THEN {failing(OVERFLOW, result, 'DOUBLE')} "
        f"WHEN {result} = 0 AND {finite} THEN {failing(UNDERFLOW, result, 'DOUBLE')} ELSE {result} END"
    )


_X: Final = "struct_extract(_p, 'x')"
_Y: Final = "struct_extract(_p, 'y')"
POWER: Final = "list_extract(list_transform([struct_pack(x := a0, y := a1)], lambda _p: {}), 1)".format(
    _in_range(
        f"pow({_X}, {_Y})",
        f"{_X} <> 0 AND isfinite({_X}) AND isfinite({_Y})",
        f"WHEN {_X} = 0 AND {_Y} < 0 THEN {failing(ZERO_TO_NEGATIVE, _X, 'DOUBLE')} "
        f"WHEN {_X} < 0 AND {_Y} <> floor({_Y}) THEN {failing(COMPLEX, _X, 'DOUBLE')} ",
    )
)
"""The template of `pow` of two doubles."""
_EXP: Final = f"list_extract(list_transform([a0], lambda _x: {_in_range('exp(_x)', 'isfinite(_x)')}), 1)"
_POWER: Final = [
    signature("double double", "double", POWER),
    signature("numeric numeric", "numeric", "pow(CAST(a0 AS DOUBLE), CAST(a1 AS DOUBLE))"),
]

_NOT_ZERO: Final = "CASE WHEN a1 = 0 THEN NULL ELSE a1 END"

_BUCKET: Final = (
    "CASE WHEN a3 <= 0 OR a1 = a2 THEN NULL WHEN a1 < a2 AND a0 < a1 OR a1 > a2 AND a0 > a1 THEN 0 "
    "WHEN a1 < a2 AND a0 >= a2 OR a1 > a2 AND a0 <= a2 THEN a3 + 1 "
    "ELSE CAST(floor(CAST(a0 - a1 AS DOUBLE) * a3 / CAST(a2 - a1 AS DOUBLE)) AS INTEGER) + 1 END"
)


def _same(template: str) -> list[Signature]:
    """A function of one number whose result has the number's type."""
    return [signature(t, t, template) for t in ("smallint", "int", "bigint", "numeric", "double", "real")]


def _digits(name: str) -> str:
    """`round(n, digits)` with a CASE for each number of digits, because DuckDB accepts only constants."""
    cases = " ".join(f"WHEN {d} THEN CAST({name}(a0, {d}) AS DECIMAL(38,10))" for d in range(-27, 10))
    return f"CASE WHEN a1 > 9 THEN a0 WHEN a1 < -27 THEN 0 ELSE CASE a1 {cases} END END"


_SCALE: Final = [signature("numeric", "int", "length(rtrim(regexp_extract(CAST(a0 AS VARCHAR), '\\.(.*)', 1), '0'))")]

_BY_SIGNATURE: Final[dict[str, Builder]] = builders({
    "abs": _same("abs(a0)"),
    **{f: _double(f"{f}(a0)") for f in (
        "acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "cot", "degrees", "radians", "sin", "sinh",
        "tan", "tanh")},
    # DuckDB's root of a cube may differ in the last bit
    "cbrt": _double("CASE WHEN round(cbrt(a0)) ** 3 = a0 THEN round(cbrt(a0)) ELSE cbrt(a0) END"),
    "coth": _double("1 / tanh(a0)"),
    "atan2": [signature("double double", "double", "atan2(a0, a1)")],
    "atan2d": [signature("double double", "double", f"atan2(a0, a1) * 180 / {_PI}")],
    "acosd": _to_degrees({"1": 0, "0.5": 60, "0": 90, "-0.5": 120, "-1": 180}, "degrees(acos(a0))"),
    "asind": _to_degrees({"1": 90, "0.5": 30, "0": 0, "-0.5": -30, "-1": -90}, "degrees(asin(a0))"),
    "atand": _to_degrees({"1": 45, "0": 0, "-1": -45}, "degrees(atan(a0))"),
    "sind": _of_degrees({0: "0", 30: "0.5", 90: "1", 150: "0.5", 180: "0", 270: "-1", 360: "0", -30: "-0.5", -90: "-1"},
                        "sin(radians(a0))"),
    "cosd": _of_degrees({0: "1", 60: "0.5", 90: "0", 120: "-0.5", 180: "-1", 270: "0", 360: "1", -60: "0.5", -90: "0"},
                        "cos(radians(a0))"),
    "tand": _of_degrees({0: "0", 45: "1", 135: "-1", 180: "0", -45: "-1"}, "tan(radians(a0))"),
    "cotd": _of_degrees({45: "1", 90: "0", 135: "-1", -45: "-1"}, "cot(radians(a0))"),
    "pi": [signature("", "double", "pi()")],
    "ceil": _exact("ceil(a0)"), "ceiling": _exact("ceil(a0)"), "floor": _exact("floor(a0)"), "sign": _exact("sign(a0)"),
    "div": [signature("numeric numeric", "numeric", f"trunc(a0 / ({_NOT_ZERO}))")],
    "exp": [signature("double", "double", _EXP),
            signature("numeric", "numeric", "exp(CAST(a0 AS DOUBLE))")],
    "ln": _both("ln(a0)"), "sqrt": _both("sqrt(a0)"), "log10": _both("log10(a0)"),
    "log": [*_both("log10(a0)"),
            signature("numeric numeric", "numeric", "ln(CAST(a1 AS DOUBLE)) / ln(CAST(a0 AS DOUBLE))")],
    "factorial": [signature("bigint", "numeric", "factorial(CAST(a0 AS INTEGER))")],
    "gcd": [signature("int int", "int", "gcd(a0, a1)"), signature("bigint bigint", "bigint", "gcd(a0, a1)")],
    "lcm": [signature("int int", "int", "lcm(a0, a1)"), signature("bigint bigint", "bigint", "lcm(a0, a1)")],
    "mod": [*[signature(f"{t} {t}", t, "a0 % a1") for t in ("smallint", "int", "bigint")],
            signature("numeric numeric", "numeric", f"a0 % ({_NOT_ZERO})")],
    "power": _POWER, "pow": _POWER,
    "round": [signature("double", "double", "round_even(a0, 0)"), signature("numeric", "numeric", "round(a0)"),
              signature("numeric int", "numeric", _digits("round")),
              signature("double int", "double", "round(a0, a1)")],
    # decimals without trailing zeros, which a numeric does not store
    "min_scale": _SCALE, "scale": _SCALE,
    "trim_scale": [signature("numeric", "numeric", "a0")],
    "trunc": [signature("double", "double", "trunc(a0)"), signature("numeric", "numeric", "trunc(a0)"),
              signature("numeric int", "numeric", _digits("trunc"))],
    "width_bucket": [signature("double double double int", "int", _BUCKET),
                     signature("numeric numeric numeric int", "int", _BUCKET)],
})  # fmt: skip


def _with_digits(c: FunctionCall) -> Value:
    """`round` and `trunc`. With a literal number of digits, no CASE is needed."""
    found = _BY_SIGNATURE[c.name](c)
    if len(c.arguments) == 2 and c.arguments[1].is_number_literal and found.type == NUMERIC:
        value = c.cast(0, NUMERIC)
        return Value(duckdb_cast(call(c.name, value.expression, c.arguments[1].expression), NUMERIC), NUMERIC)
    return found


MATH_FUNCTIONS: Final[dict[str, Builder]] = {**_BY_SIGNATURE, "round": _with_digits, "trunc": _with_digits}
