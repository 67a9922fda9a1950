"""The base class of all operators: inputs, columns, and an id that is a hash of the content."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Final
from weakref import WeakValueDictionary

from watersmeet.values.serialization import from_json, kinds, to_json
from watersmeet.values.types import Schema


@dataclass(frozen=True, slots=True, order=True)
class InputColumn:
    """A column of an input of a join: the number of the input (left: 0) and the column's position in it."""

    input: int
    column: int

    @property
    def name(self) -> str:
        """Its name in SQL over the pairs of a join of two inputs: l0, r1."""
        return f"{'lr'[self.input]}{self.column}"

    @property
    def numbered_name(self) -> str:
        """Its name in SQL over the rows of a join of many inputs: t0_0, t2_1."""
        return f"t{self.input}_{self.column}"

    @staticmethod
    def of(name: str) -> InputColumn:
        """The column with a name of either kind."""
        if name[0] in "lr":
            return InputColumn("lr".index(name[0]), int(name[1:]))
        number, column = name.removeprefix("t").split("_")
        return InputColumn(int(number), int(column))


#: The classes of operators by their kind.
KINDS: Final[dict[str, type[Operator]]] = {}


@dataclass(frozen=True)
class Operator:
    """Base class. `inputs` are ids of operators; `schema` describes the output columns c0, c1, …

    append_only: whether the output never has a diff below 0. adds: the names of the last columns if they are always the
    same.
    """

    kind: ClassVar[str]
    adds: ClassVar[tuple[str, ...]] = ()
    inputs: tuple[str, ...]
    schema: Schema
    append_only: bool

    def __init_subclass__(cls, **options: Any) -> None:
        """Registers a class that has a `kind`; two classes never share one."""
        super().__init_subclass__(**options)
        if "kind" in vars(cls):
            assert cls.kind not in KINDS, f"two kinds of operators are called {cls.kind}"
            KINDS[cls.kind] = cls

    @cached_property
    def id(self) -> str:
        """`<kind>-<12 hex digits>` of the content (field names of the schema and flags included)."""
        return f"{self.kind}-{hashlib.sha256(self.text.encode()).hexdigest()[:12]}"

    @cached_property
    def text(self) -> str:
        """The JSON form as compact text with sorted keys, so that equal operators have the same text."""
        return json.dumps(to_json(self), sort_keys=True, separators=(",", ":"))

    @property
    def is_timed(self) -> bool:
        """Whether the passing of time can change the output or the state."""
        return False

    @property
    def passed(self) -> tuple[int | None, ...]:
        """For each output column, the column of the first input that it always equals, or None."""
        return (None,) * len(self.schema)


@dataclass(frozen=True)
class PassThrough(Operator):
    """An operator that outputs the columns of its first input, followed by `made` columns of its own."""

    @property
    def made(self) -> int:
        """The number of columns of its own."""
        return len(self.adds)

    @property
    def passed(self) -> tuple[int | None, ...]:
        return (*range(len(self.schema) - self.made), *(None,) * self.made)


kinds(Operator, KINDS)

#: Operators in use, by id: reading a circuit that has one more view creates only the new operators.
_KNOWN: Final[WeakValueDictionary[str, Operator]] = WeakValueDictionary()


def operator_of(operator_id: str, value: Any) -> Operator:
    """The operator with an id and a JSON form. Raises ValueError for any other JSON value."""
    found = _KNOWN.get(operator_id)
    if found is None:
        found = from_json(Operator, value)
        _KNOWN[found.id] = found
    return found
