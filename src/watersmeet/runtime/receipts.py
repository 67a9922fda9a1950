"""Receipts: what a task tells the committer. Small JSON that travels with the frames."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final

from watersmeet.runtime.eventtimes import Observed
from watersmeet.store.manifests import FailedPart, OperatorCounts, RelationChange
from watersmeet.values.serialization import from_json, to_json

#: The channel of frames whose body is a receipt.
RECEIPT: Final = "receipt"
#: The channel of frames that make a bucket run and tell what a task saw of the sources' event times (JSON, by
#: relation).
CONTROL: Final = "control"


@dataclass
class SourceCounts:
    """What was read of one relation. dead: rows set aside; first_dead: the first of them. seen: of its event times.

    clocks: see `epochs.Live`. expression_errors: how often a part of the expression of a generated column failed.
    failures: these parts.
    """

    rows: int = 0
    size_bytes: int = 0
    dead: int = 0
    first_dead: dict[str, Any] | None = None
    seen: Observed = field(default_factory=Observed)
    clocks: dict[str, int] = field(default_factory=dict)
    expression_errors: int = 0
    failures: tuple[FailedPart, ...] = ()


@dataclass(frozen=True)
class Receipt:
    """What one task of one stage has done.

    pack: name of the pack with the bucket's new state, None if the state did not change. relations: changes that it
    wrote. operators, sources: counts by operator and by relation. waiting: see `ticks`. grown: by operator, by how many
    bytes its state has grown. hottest: by join that may have made too many rows, the most rows of one key, and the
    key's values. failures: by operator, the parts of its expressions that failed. busiest: by join and arrangement, as
    in `kernel.metrics.Counters`. requests: to the object store, cache_hits, cache_misses, fetched_bytes: as in
    `databasefiles.Requests`; all four of the whole task, in one of its receipts. executor: the id of the one that ran
    it, "" outside of a cluster. began_ns, took_ns: when it began (since 1970, by the clock of its machine), and for how
    long it ran.
    """

    stage: int
    bucket: int
    pack: str | None = None
    relations: dict[str, RelationChange] = field(default_factory=dict)
    operators: dict[str, OperatorCounts] = field(default_factory=dict)
    sources: dict[str, SourceCounts] = field(default_factory=dict)
    waiting: dict[str, int] = field(default_factory=dict)
    grown: dict[str, int] = field(default_factory=dict)
    hottest: dict[str, tuple[int, tuple[str | None, ...]]] = field(default_factory=dict)
    failures: dict[str, tuple[FailedPart, ...]] = field(default_factory=dict)
    busiest: dict[str, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    requests: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    fetched_bytes: int = 0
    executor: str = ""
    began_ns: int = 0
    took_ns: int = 0

    def to_bytes(self) -> bytes:
        """Compact JSON."""
        return json.dumps(to_json(self), separators=(",", ":")).encode()

    @staticmethod
    def from_bytes(data: bytes) -> Receipt:
        """The inverse of `to_bytes`."""
        return from_json(Receipt, json.loads(data))
