"""Random expressions over integers, texts and conditions that fail for some rows, with what they are in Python.

The reference knows one rule: the innermost part that fails is NULL.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

Row = dict[str, Any]

#: The columns of the table that expressions read, by type, and values that make parts of expressions fail.
COLUMNS: Final = {"n": "int", "m": "int", "s": "varchar", "o": "varchar", "f": "boolean"}
VALUES: Final[dict[str, tuple[Any, ...]]] = {
    "int": (2**31 - 1, -(2**31), 0, 1, 7, 46341, None),
    "varchar": ("two", "4", "", "2147483647", "99999999999", "-7", " 12", "true", "f", None),
    "boolean": (True, False, None),
}
_NUMBER: Final = re.compile(r"\s*[+-]?\d+\s*")
_CONDITIONS: Final = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}


class _FailedError(Exception):
    """A part of an expression fails."""


@dataclass(frozen=True)
class Node:
    """A part of an expression. form: SQL with {0}, {1} … for its operands. value: computed from the operands' values,
    by functions without arguments, so that operands that decide nothing are not computed.
    """

    kind: str
    form: str
    operands: tuple[Node, ...]
    value: Callable[..., Any]

    def sql(self) -> str:
        """The expression inline."""
        return self.form.format(*[o.sql() for o in self.operands])

    def of(self, row: Row) -> Any:
        """The value for a row."""
        try:
            return self.value(row, *[lambda o=o: o.of(row) for o in self.operands])
        except _FailedError:
            return None

    def parts(self) -> list[Node]:
        """The node and all below it."""
        return [self, *(p for o in self.operands for p in o.parts())]

    def with_columns(self, names: dict[int, str]) -> str:
        """The SQL with some parts, by identity, read as columns."""
        if id(self) in names:
            return names[id(self)]
        return self.form.format(*[o.with_columns(names) for o in self.operands])


def _strict(compute: Callable[..., Any]) -> Callable[..., Any]:
    """NULL if an operand is."""

    def value(_row: Row, *operands: Callable[[], Any]) -> Any:
        found = [o() for o in operands]
        return None if None in found else compute(*found)

    return value


def _int32(number: int) -> int:
    if not -(2**31) <= number < 2**31:
        raise _FailedError
    return number


def _parsed(text: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise _FailedError
    return _int32(int(text))


def _condition(text: str) -> bool:
    if text not in _CONDITIONS:
        raise _FailedError
    return _CONDITIONS[text]


def _and(_row: Row, a: Callable[[], Any], b: Callable[[], Any]) -> Any:
    found = {a(), b()}
    return False if False in found else None if None in found else True


def _or(_row: Row, a: Callable[[], Any], b: Callable[[], Any]) -> Any:
    found = {a(), b()}
    return True if True in found else None if None in found else False


def _case(_row: Row, a: Callable[[], Any], b: Callable[[], Any], c: Callable[[], Any]) -> Any:
    return b() if a() is True else c()


def _coalesce(_row: Row, a: Callable[[], Any], b: Callable[[], Any]) -> Any:
    found = a()
    return b() if found is None else found


def make(chance: random.Random, kind: str, depth: int) -> Node:
    """An expression of a type."""
    if depth <= 0 or chance.random() < 0.1:
        column = chance.choice([c for c, k in COLUMNS.items() if k == kind])
        return Node(kind, column, (), lambda row: row[column])

    def some(of: str) -> Node:
        return make(chance, of, depth - 1)

    def strict(form: str, kinds: str, compute: Callable[..., Any]) -> Node:
        return Node(kind, form, tuple(some(k) for k in kinds.split()), _strict(compute))

    general = [
        lambda: Node(kind, "coalesce({0}, {1})", (some(kind), some(kind)), _coalesce),
        lambda: Node(kind, "CASE WHEN {0} THEN {1} ELSE {2} END", (some("boolean"), some(kind), some(kind)), _case),
    ]
    by_kind = {
        "int": [
            lambda: strict("({0})::int", "varchar", _parsed),
            lambda: strict("({0} + {1})", "int int", lambda a, b: _int32(a + b)),
            lambda: strict("({0} * {1})", "int int", lambda a, b: _int32(a * b)),
            lambda: strict("abs({0})", "int", lambda a: _int32(abs(a))),
            lambda: strict("length({0})", "varchar", len),
        ],
        "varchar": [
            lambda: strict("({0} || {1})", "varchar varchar", lambda a, b: a + b),
            lambda: strict("({0})::varchar", "int", str),
            lambda: Node(
                "varchar",
                "concat({0}, {1})",
                (some("varchar"), some("int")),
                lambda _row, a, b: "".join(str(v) for v in (a(), b()) if v is not None),
            ),
        ],
        "boolean": [
            lambda: Node(
                "boolean",
                "({0} IS NULL)",
                (some(chance.choice(["int", "varchar", "boolean"])),),
                lambda _row, a: a() is None,
            ),
            lambda: Node(
                "boolean", "({0} IS DISTINCT FROM {1})", (some("int"), some("int")), lambda _row, a, b: a() != b()
            ),
            lambda: strict("({0} > {1})", "int int", lambda a, b: a > b),
            lambda: strict("({0} = {1})", "int int", lambda a, b: a == b),
            lambda: strict("({0} <> {1})", "int int", lambda a, b: a != b),
            lambda: strict("(NOT {0})", "boolean", lambda a: not a),
            lambda: strict("({0})::boolean", "varchar", _condition),
            lambda: Node("boolean", "({0} AND {1})", (some("boolean"), some("boolean")), _and),
            lambda: Node("boolean", "({0} OR {1})", (some("boolean"), some("boolean")), _or),
        ],
    }
    return chance.choice([*general, *by_kind[kind] * 2])()


def hoisted(chance: random.Random, node: Node) -> tuple[str, str]:
    """The expression over columns of a subquery, and the subquery, which has `id` and all columns of the table."""
    source = "t"
    names: dict[int, str] = {}
    inner = [p for p in node.parts()[1:] if p.operands]
    chosen = chance.sample(inner, min(len(inner), chance.randint(1, 3)))
    chosen.sort(key=lambda p: len(p.parts()))  # parts of other chosen parts first
    for part in chosen:
        name = f"y{len(names)}"
        listed = ", ".join(["id", *COLUMNS, *names.values()])
        source = f"(SELECT {listed}, {part.with_columns(names)} AS {name} FROM {source}) AS q{len(names)}"
        names[id(part)] = name
    return node.with_columns(names), source
