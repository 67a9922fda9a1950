"""Functions of SQL that a database contains."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from watersmeet.catalog.parts import COMMON_SCHEMA
from watersmeet.types import Field, Schema, SqlType


@dataclass(frozen=True)
class SqlFunction:
    """A function of SQL: an expression over its parameters.

    schema, path: as of a relation. parameters: the name of one without is empty. body: `SELECT expression`.
    sql: the text of the statement that made it. functions: ids of those that the body calls.
    dropped: no statement can call it any more; views and functions that were made with it still do.
    """

    name: str
    schema: str
    path: tuple[str, ...]
    parameters: Schema
    returns: SqlType
    body: str
    sql: str
    dialect: str
    functions: tuple[str, ...] = ()
    dropped: bool = False

    @cached_property
    def id(self) -> str:
        """A hash of all that it is: the same function made again is the same."""
        content = json.dumps({**self.to_json(), "dropped": False}, sort_keys=True)
        return "f" + hashlib.sha256(content.encode()).hexdigest()[:16]

    @property
    def shown(self) -> str:
        """The name, with its schema unless that is the common one."""
        return self.name if self.schema == COMMON_SCHEMA else f"{self.schema}.{self.name}"

    @property
    def signature(self) -> str:
        """The name and the types of the parameters."""
        return f"{self.shown}({', '.join(p.type.sql for p in self.parameters)})"

    def to_json(self) -> Any:
        """A JSON value from which `from_json` makes the same function."""
        return {
            **{n: getattr(self, n) for n in ("name", "schema", "body", "sql", "dialect", "dropped")},
            **{n: list(getattr(self, n)) for n in ("path", "functions")},
            "parameters": [p.to_json() for p in self.parameters],
            "returns": self.returns.to_json(),
        }

    @staticmethod
    def from_json(value: Any) -> SqlFunction:
        """The inverse of `to_json`."""
        lists = {n: tuple(value[n]) for n in ("path", "functions")}
        parameters = tuple(Field.from_json(p) for p in value["parameters"])
        return SqlFunction(
            **{**value, **lists, "parameters": parameters, "returns": SqlType.from_json(value["returns"])}
        )
