"""How many rows of ordered streams were rejected since they were made: a file beside the commits, for every process to read."""

from __future__ import annotations

import json
from collections.abc import Mapping

from watersmeet.errors import Error
from watersmeet.store import files
from watersmeet.store.layout import Layout


def read_rejections(layout: Layout) -> dict[str, int]:
    """By relation id; none if nothing was ever rejected."""
    try:
        found = json.loads(files.read_file(layout.rejections))
    except (Error, OSError, ValueError):
        return {}
    return {str(i): int(n) for i, n in found.items()} if isinstance(found, dict) else {}


def add_rejections(layout: Layout, more: Mapping[str, int]) -> None:
    """Counts further rows. Errors of the file system as DATABASE_ACCESS and the like."""
    counts = read_rejections(layout)
    for relation_id, number in more.items():
        counts[relation_id] = counts.get(relation_id, 0) + number
    files.replace_file(layout.rejections, json.dumps(counts).encode(), durable=layout.durable)
