"""A session's transaction as one commit."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from watersmeet.blobs import BlobRef
from watersmeet.store.changes import Diff, count_change, encode_change
from watersmeet.store.commits import CommitLog
from watersmeet.store.layout import Layout
from watersmeet.store.manifests import Commit, RelationChange
from watersmeet.store.packs import PackWriter, transaction_prefix

#: A change is cut into blobs of at most this many rows, so that readers can take bounded pieces.
_BLOB_ROWS = 1 << 18


def write_transaction(
    layout: Layout,
    log: CommitLog,
    changes: Mapping[str, tuple[pa.Table, Diff | None]],
    *,
    copied: Mapping[str, int] | None = None,
    rejected: Mapping[str, int] | None = None,
    captured: Mapping[str, Any] | None = None,
    catalog: str = "",
    follows: bool = True,
) -> Commit:
    """Commits `changes` (by relation id: rows by column name, their diffs; None for all 1) in one step.

    rejected: by relation id, rows that ordered streams did not take. The others: as in `Commit`.
    All or nothing: after an error the log is as it was.
    """
    writer = PackWriter(layout.packs, transaction_prefix(log.head() + 1, log.writer), durable=layout.durable)
    pending = {i: _add(writer, table, diff) for i, (table, diff) in changes.items()}
    pack = writer.finish()
    relations = {
        i: RelationChange(tuple(b.within(pack) for b in change.blobs), change.inserted_rows, change.deleted_rows)
        for i, change in pending.items()
    }
    return log.append(
        Commit(
            "transaction",
            time_us=time.time_ns() // 1000,
            relations=relations,
            copied=dict(copied or {}),
            rejected=dict(rejected or {}),
            captured=dict(captured or {}),
            catalog=catalog,
            follows=follows,
        )
    )


def _add(writer: PackWriter, table: pa.Table, diff: Diff | None) -> RelationChange:
    blobs: list[BlobRef] = []
    for start in range(0, table.num_rows, _BLOB_ROWS):
        rows = table.slice(start, _BLOB_ROWS)
        part = None if diff is None else diff[start : start + _BLOB_ROWS]
        blobs.append(writer.add(encode_change(rows, part), rows.num_rows))
    return RelationChange(tuple(blobs), *count_change(diff, table.num_rows))
