"""Callables of Python as functions of a database: `Connection.create_function`.

A callable is stored pickled, with the functions and values of its module that it uses, so it outlives its process.
Objects that Spark's `udf` and `pandas_udf` return have their type and form.
"""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import inspect
import sys
import textwrap
import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from watersmeet.dialects.parsing import parse
from watersmeet.dialects.statements.functions import CreateFunction
from watersmeet.dialects.tree.tokens import quoted
from watersmeet.errors import error
from watersmeet.values import DEFAULT_DIALECT
from watersmeet.values.calledfunctions import Form

#: Types of annotations in SQL.
_ANNOTATED: Final[dict[Any, str]] = {
    bool: "boolean", int: "bigint", float: "double precision", str: "varchar", bytes: "bytea",
    decimal.Decimal: "numeric", dt.date: "date", dt.time: "time", dt.datetime: "timestamp",
    dict: "jsonb",
}  # fmt: skip

#: The SQL names of Spark's types whose names differ.
_OF_SPARK: Final = {
    "string": "varchar", "binary": "bytea", "tinyint": "smallint", "byte": "smallint", "short": "smallint",
    "long": "bigint", "float": "real", "double": "double precision", "timestamp": "timestamptz",
    "timestamp_ntz": "timestamp",
}  # fmt: skip

#: The kinds of Spark's functions (`pyspark.util.PythonEvalType`) that take and return columns or values.
_FORMS: Final[dict[int, Form]] = {100: "rows", 101: "rows", 200: "pandas", 250: "arrow"}

_HINT: Final = "Give the types of SQL: create_function(name, function, parameters=['bigint'], returns='varchar')."


def statement_of(
    name: str,
    function: Any,
    parameters: Sequence[str] | None,
    returns: str | None,
    *,
    form: Form,
    volatile: bool,
    strict: bool,
    replaces: bool,
) -> CreateFunction:
    """The statement that creates a function from a callable. Raises INVALID_FUNCTION, INVALID_PARAMETER, and errors of
    types.
    """
    if hasattr(function, "evalType") and hasattr(function, "func"):
        found = _FORMS.get(int(function.evalType))
        if found is None:
            raise error(
                "FEATURE_NOT_SUPPORTED",
                f"a function of Spark of kind {function.evalType} is not supported",
                hint="A pandas_udf from Series to Series is.",
            )
        form, returns = found, returns or _of_spark(function.returnType.simpleString())
        function = function.func
    if not callable(function):
        raise error("INVALID_FUNCTION", f"function {name}: {type(function).__name__} is not callable")
    hints = typing.get_type_hints(function) if isinstance(function, types.FunctionType) else {}
    if parameters is None:
        parameters = [_annotated(hints.get(p), f"parameter {p} of function {name}") for p in _names(name, function)]
    returns = returns or _annotated(hints.get("return"), f"the result of function {name}")
    clauses = f"{' VOLATILE' if volatile else ''}{' STRICT' if strict else ''}"
    head = f"CREATE {'OR REPLACE ' if replaces else ''}FUNCTION {quoted(name)}({', '.join(parameters)})"
    sql = f"{head} RETURNS {returns} LANGUAGE python{clauses} AS $$\n{_source(function)}\n$$"
    (statement,) = parse(sql, DEFAULT_DIALECT)
    if not isinstance(statement, CreateFunction):
        raise error("INVALID_FUNCTION", f"function {name}: the types are not valid", hint=_HINT)
    return replace(statement, body=_pickled(name, function), is_pickled=True, form=form)


def _names(name: str, function: Callable[..., Any]) -> list[str]:
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        raise error("INVALID_FUNCTION", f"function {name}: its parameters are unknown", hint=_HINT) from None


def _annotated(hint: Any, what: str) -> str:
    options = [a for a in typing.get_args(hint) if a is not types.NoneType]
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType) and len(options) == 1:
        return _annotated(options[0], what)
    if origin is list and len(options) == 1:
        return f"{_annotated(options[0], what)}[]"
    found = _ANNOTATED.get(origin or hint)
    if found is None:
        raise error("INVALID_PARAMETER", f"the type of {what} is unknown", hint=_HINT)
    return found


def _of_spark(name: str) -> str:
    if name.startswith("array<"):
        return f"{_of_spark(name[6:-1])}[]"
    return name if name.startswith("decimal") else _OF_SPARK.get(name, name)


def _source(function: Callable[..., Any]) -> str:
    """The source text, for SHOW CREATE FUNCTION."""
    try:
        text = textwrap.dedent(inspect.getsource(function)).strip()
    except (OSError, TypeError):
        text = ""
    return text if text and "$$" not in text else "# a function of Python without its source"


def _pickled(name: str, function: Callable[..., Any]) -> str:
    from pyspark import cloudpickle  # noqa: PLC0415 - takes half a second

    module = sys.modules.get(getattr(function, "__module__", None) or "")
    by_value = isinstance(function, types.FunctionType) and module is not None and module.__name__ != "__main__"
    if by_value:
        cloudpickle.register_pickle_by_value(module)
    try:
        return base64.b64encode(cloudpickle.dumps(function)).decode()
    except Exception as cause:
        raise error("INVALID_FUNCTION", f"function {name} can't be pickled: {cause}") from cause
    finally:
        if by_value:
            cloudpickle.unregister_pickle_by_value(module)
