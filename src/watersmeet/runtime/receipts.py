"""Receipts: what a task tells the committer. Small JSON that travels with the frames."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final

from watersmeet.store.manifests import RelationChange

#: The channel of frames whose body is a receipt.
RECEIPT: Final = "receipt"
#: The channel of frames that make a bucket run and tell what a task saw of the sources' event times (JSON, by
#: relation).
CONTROL: Final = "control"


@dataclass(frozen=True)
class Receipt:
    """What one task of one stage has done.

    pack: name of the pack with the bucket's new state, None if the state did not change. relations: changes that it
    wrote. operators: metrics by operator. sources: counts by relation. retired: files that its state needs no longer.
    grown: by operator, by how many bytes its state has grown. hottest: by join that may have made too many rows, the
    most rows of one key, and the key's values.
    """

    stage: int
    bucket: int
    pack: str | None = None
    relations: dict[str, RelationChange] = field(default_factory=dict)
    operators: dict[str, dict[str, int]] = field(default_factory=dict)
    sources: dict[str, dict[str, Any]] = field(default_factory=dict)
    retired: tuple[str, ...] = ()
    grown: dict[str, int] = field(default_factory=dict)
    hottest: dict[str, tuple[int, tuple[str | None, ...]]] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """Compact JSON."""
        value = {
            "stage": self.stage,
            "bucket": self.bucket,
            "pack": self.pack,
            "relations": {i: c.to_json() for i, c in self.relations.items()},
            "operators": self.operators,
            "sources": self.sources,
            "retired": self.retired,
            "grown": self.grown,
            "hottest": self.hottest,
        }
        return json.dumps(value, separators=(",", ":")).encode()

    @staticmethod
    def from_bytes(data: bytes) -> Receipt:
        """The inverse of `to_bytes`."""
        value = json.loads(data)
        value["relations"] = {i: RelationChange.from_json(c) for i, c in value["relations"].items()}
        value["retired"] = tuple(value["retired"])
        value["hottest"] = {i: (rows, tuple(key)) for i, (rows, key) in value["hottest"].items()}
        return Receipt(**value)
