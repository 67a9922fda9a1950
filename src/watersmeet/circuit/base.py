"""The base of all operators: what they are called, and which kinds there are."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Final

from watersmeet.serialization import kinds, to_json
from watersmeet.types import Schema

#: The classes of operators by their kind.
KINDS: Final[dict[str, type[Operator]]] = {}


@dataclass(frozen=True)
class Operator:
    """Base: `inputs` are ids of operators; `schema` describes the output columns c0, c1, …

    append_only: the output never has a diff below 0.
    """

    kind: ClassVar[str]
    inputs: tuple[str, ...]
    schema: Schema
    append_only: bool

    def __init_subclass__(cls, **options: Any) -> None:
        """Every class of operators is a kind of its own."""
        super().__init_subclass__(**options)
        assert cls.kind not in KINDS, f"two kinds of operators are called {cls.kind}"
        KINDS[cls.kind] = cls

    @cached_property
    def id(self) -> str:
        """`<kind>-<12 hex digits>` of the content (field names of the schema and flags included)."""
        text = json.dumps(to_json(self), sort_keys=True, separators=(",", ":"))
        return f"{self.kind}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    @property
    def is_timed(self) -> bool:
        """True if time alone can change what it gives or keeps."""
        return False


kinds(Operator, KINDS)
