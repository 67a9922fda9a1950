"""The base of all operators: what they are called, and their form as JSON."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields, is_dataclass
from functools import cached_property
from typing import Any, ClassVar, Final

from watersmeet.types import Schema

#: Fields that are left out where they say nothing: operators that were saved before these were there keep their ids.
_LATER: Final = (
    "late",
    "time",
    "retain",
    "newest",
    "depth",
    "stays",
    "untimed",
    "residual",
    "waits",
    "ttl_us",
    "moment",
    "apart",
    "history",
)


@dataclass(frozen=True)
class Operator:
    """Base: `inputs` are ids of operators; `schema` describes the output columns c0, c1, …

    append_only: the output never has a diff below 0.
    """

    kind: ClassVar[str]
    inputs: tuple[str, ...]
    schema: Schema
    append_only: bool

    @cached_property
    def id(self) -> str:
        """`<kind>-<12 hex digits>` of the content (field names of the schema and flags included)."""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return f"{self.kind}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    @property
    def is_timed(self) -> bool:
        """True if time alone can change what it gives or keeps."""
        return False

    def to_json(self) -> dict[str, Any]:
        """A JSON value from which `operator_from_json` makes the same operator."""
        values = {
            f.name: getattr(self, f.name)
            for f in fields(self)
            if f.name not in _LATER or getattr(self, f.name) != f.default
        }
        values["schema"] = [column.to_json() for column in self.schema]
        for name, value in values.items():
            if isinstance(value, tuple) and value and is_dataclass(value[0]):
                values[name] = [asdict(part) for part in value]
        return {"kind": self.kind, **values}
