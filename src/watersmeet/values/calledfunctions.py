"""Functions of other languages, and their names in expressions.

An expression calls such a function by a name that contains its whole definition: the language, the types and the text.
So a saved plan, a task and a query need nothing besides the expression, the identity of an operator changes with the
function, and a view keeps the definition with which it was created.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Final, Literal

from watersmeet.values.serialization import from_json, to_json
from watersmeet.values.types import SqlType

#: The form in which a body receives its arguments: one row at a time, as Arrow arrays, as lists of values, or as Series
#: of pandas.
Form = Literal["rows", "arrow", "lists", "pandas"]
Shape = Literal["scalar", "table", "aggregate"]
#: The language of functions of `kernel.evaluation.nativefunctions`, which have no body.
NATIVE: Final = "native"
#: The native function that waits for the seconds of its rows.
SLEEP: Final = "sleep"

#: The beginning of DuckDB's message about the exception of a body.
RAISED: Final = "Python exception occurred while executing the UDF: Raised: "

_PREFIX: Final = "watersmeet_calls_"
#: Functions whose value may differ from call to call; DuckDB evaluates them once for each row.
_VOLATILE: Final = "watersmeet_rolls_"
_NAMES: Final = re.compile(rf"\b(?:{_PREFIX}|{_VOLATILE})[a-z2-7]+\b", re.IGNORECASE)


@dataclass(frozen=True)
class CalledFunction:
    """A function of another language.

    entry: the name of the function, class or object in `code`; with `pickled`, `code` is a pickled callable in base64.
    parameters: the types of the arguments of one row. names: those of the parameters. returns: the type of the value;
    for a table, the type of a row. strict: NULL if an argument is NULL. ordered: the caller determines the order of the
    rows of an aggregate; otherwise they are sorted by their values.
    """

    name: str
    language: str
    entry: str
    code: str
    parameters: tuple[SqlType, ...]
    returns: SqlType
    form: Form = "rows"
    shape: Shape = "scalar"
    strict: bool = False
    volatile: bool = False
    ordered: bool = False
    pickled: bool = False
    names: tuple[str, ...] = ()

    @cached_property
    def encoded(self) -> str:
        """The name in expressions."""
        content = json.dumps(to_json(self), sort_keys=True, separators=(",", ":")).encode()
        text = base64.b32encode(zlib.compress(content, 9)).decode().rstrip("=").lower()
        return (_VOLATILE if self.volatile else _PREFIX) + text

    @property
    def arguments(self) -> tuple[SqlType, ...]:
        """The types that the expression passes. An aggregate receives the array of the rows of its group. A function
        without parameters receives a number, so that the number of rows is known.
        """
        if self.shape == "aggregate":
            return (SqlType("array", element=self.row),)
        return self.parameters or (SqlType("double precision"),)

    @property
    def row(self) -> SqlType:
        """The type of a row of an aggregate: that of its argument, or a struct of several arguments."""
        if len(self.parameters) == 1:
            return self.parameters[0]
        return SqlType("struct", fields=tuple((f"a{i}", kind) for i, kind in enumerate(self.parameters)))

    @property
    def value(self) -> SqlType:
        """The type of the expression."""
        return SqlType("array", element=self.returns) if self.shape == "table" else self.returns


def is_called(name: Any) -> bool:
    """Whether a function's name in an expression is that of a function of another language."""
    return isinstance(name, str) and name.lower().startswith((_PREFIX, _VOLATILE))


def is_volatile(name: str) -> bool:
    """Whether a function's name in an expression is that of a volatile function of another language."""
    return name.lower().startswith(_VOLATILE)


@lru_cache(maxsize=512)
def decoded(name: str) -> CalledFunction | None:
    """The function with that name in expressions; None for other names."""
    if not is_called(name):
        return None
    text = name[len(_PREFIX) :].upper()
    try:
        content = zlib.decompress(base64.b32decode(text + "=" * (-len(text) % 8)))
        return from_json(CalledFunction, json.loads(content))
    except (binascii.Error, zlib.error, ValueError):
        return None


def called_in(sql: str) -> Iterator[tuple[str, CalledFunction]]:
    """The functions of other languages that an expression calls, by their lower-case names in it."""
    for name in {found.lower() for found in _NAMES.findall(sql)}:
        function = decoded(name)
        if function is not None:
            yield name, function


def readable(sql: str) -> str:
    """An expression, or a message of DuckDB about it, with the names that users see."""

    def shown(match: re.Match[str]) -> str:
        function = decoded(match[0].lower())
        return match[0] if function is None else function.name

    sql = sql.replace(RAISED, "")
    return _NAMES.sub(shown, sql) if _PREFIX in sql.lower() or _VOLATILE in sql.lower() else sql


def wired(kind: SqlType) -> SqlType:
    """The type in which DuckDB passes values; jsonb is passed as text."""
    if kind.name == "jsonb":
        return SqlType("varchar")
    if kind.element is not None:
        return replace(kind, element=wired(kind.element))
    if kind.name == "struct":
        return SqlType("struct", fields=tuple((name, wired(inner)) for name, inner in kind.fields))
    return kind
