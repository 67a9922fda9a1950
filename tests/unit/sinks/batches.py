"""Batches, and histories of them, as tests of all targets deliver them."""

import random

import numpy as np
import pyarrow as pa

from watersmeet.connectors.base.targets import SinkBatch, SinkOffset
from watersmeet.values.types import INTEGER, VARCHAR, Field, arrow_schema

TWO = (Field("id", INTEGER), Field("name", VARCHAR))


def batch(commit, *rows, columns=TWO, diff=None, part=0, last=True, generation=1):
    arrays = [pa.array([r[i] for r in rows], c.type.arrow) for i, c in enumerate(columns)]
    return SinkBatch(
        SinkOffset(generation, commit, part, last),
        pa.Table.from_arrays(arrays, schema=arrow_schema(columns, positional=False)),
        np.array(diff or [1] * len(rows), np.int64),
        commit * 1_000_000,
    )


def history(seed):
    """Batches of commits, and the content behind each commit."""
    r = random.Random(seed)
    now, found = {}, []
    for commit in range(2, 9):
        rows, diff = [], []
        for key in r.sample(range(8), r.randint(0, 5)):
            before, after = now.get(key), r.choice([None, *"abc"])
            if before is not None:
                rows.append((key, before))
                diff.append(-1)
            if after is not None:
                rows.append((key, after))
                diff.append(1)
            now[key] = after
        found.append((batch(commit, *rows, diff=diff), sorted((k, v) for k, v in now.items() if v is not None)))
    return found
