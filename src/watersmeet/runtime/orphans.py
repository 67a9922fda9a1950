"""Updates that keep values of a row that is not there: dead letters that only the bucket of the row can tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from watersmeet.circuit.circuit import Circuit
from watersmeet.circuit.operators import SEQ_ROW_BITS, Operator, Scan, Upsert
from watersmeet.connectors.base.deadletters import DeadLetterWriter
from watersmeet.kernel.metrics import Orphan
from watersmeet.runtime.intents import InputSpec, Intent
from watersmeet.runtime.receipts import SourceCounts
from watersmeet.runtime.slices import count_dead, set_row_aside
from watersmeet.store.layout import Layout


def set_orphans_aside(
    layout: Layout,
    intent: Intent,
    circuit: Circuit,
    stage: int,
    bucket: int,
    orphans: Mapping[str, Sequence[Orphan]],
) -> dict[str, SourceCounts]:
    """Writes the orphans of a stage in a bucket, by upsert, to the dead letters of their relations, and counts them.

    SOURCE_STOPPED if nothing of the source may be set aside. When history is read again, they were set aside before.
    """
    found: dict[str, SourceCounts] = {}
    if intent.mode.reads_history:
        return found
    pieces = {(p.relation, p.seq): p for p in intent.slices} if orphans else {}
    for op in circuit.in_stage(stage):
        if not isinstance(op, Upsert) or not op.partial:
            continue
        scan = _scan(op, circuit)
        with DeadLetterWriter(layout.dead(scan.relation_id), intent.epoch, bucket=bucket) as dead:
            for orphan in sorted(orphans.get(op.id, ()), key=lambda o: o.seq):
                piece = pieces.get((scan.relation_id, orphan.seq >> SEQ_ROW_BITS))
                set_row_aside(dead, piece, orphan.seq & ((1 << SEQ_ROW_BITS) - 1), _reason(op, scan, orphan))
            if dead.count:
                counts = found[scan.relation_id] = SourceCounts()
                count_dead(dead, scan.relation_id, intent.specs.get(scan.relation_id, InputSpec()), counts)
    return found


def _scan(op: Operator, circuit: Circuit) -> Scan:
    """Whose changes the upsert takes."""
    while not isinstance(op, Scan):
        op = circuit.by_id[op.inputs[0]]
    return op


def _reason(op: Upsert, scan: Scan, orphan: Orphan) -> str:
    columns = ", ".join(f'"{scan.names[i]}"' for i in orphan.kept)
    key = ", ".join(f"{scan.names[k]} = {v}" for k, v in zip(op.keys, orphan.key, strict=True))
    return f"kept: the value of {columns} did not change, but there is no row with {key}"
