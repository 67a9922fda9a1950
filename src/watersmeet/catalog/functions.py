"""Functions of SQL that a database contains."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from functools import cached_property

from watersmeet.catalog.parts import COMMON_SCHEMA
from watersmeet.values.serialization import to_json
from watersmeet.values.types import Schema, SqlType


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
        content = json.dumps(to_json(replace(self, dropped=False)), sort_keys=True)
        return "f" + hashlib.sha256(content.encode()).hexdigest()[:16]

    @property
    def shown(self) -> str:
        """The name, with its schema unless that is the common one."""
        return self.name if self.schema == COMMON_SCHEMA else f"{self.schema}.{self.name}"

    @property
    def signature(self) -> str:
        """The name and the types of the parameters."""
        return f"{self.shown}({', '.join(p.type.sql for p in self.parameters)})"
