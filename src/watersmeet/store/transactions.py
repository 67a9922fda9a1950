"""A session's transaction as one commit."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from watersmeet.store.changes import ChangeWriter, Diff
from watersmeet.store.commits import CommitLog
from watersmeet.store.layout import Layout
from watersmeet.store.manifests import Commit
from watersmeet.store.packs import PackWriter, transaction_prefix


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
    pending = {}
    for relation_id, (table, diff) in changes.items():
        blobs = ChangeWriter(writer, unread=False)
        blobs.add(table, diff)
        pending[relation_id] = blobs.finish()
    pack = writer.finish()
    relations = {i: change.within(pack) for i, change in pending.items()}
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
