"""A join of DataFrames without Spark: what its tasks and buckets do, one micro-batch after the other."""

from __future__ import annotations

import random
from collections import Counter
from datetime import datetime, timedelta

import numpy as np
import pyarrow as pa

from watersmeet.frames.buckets import Cutter, parts, repeated, run_bucket
from watersmeet.frames.building import Given, Options, build
from watersmeet.frames.circuits import appends
from watersmeet.frames.stores import name_of
from watersmeet.frames.tasks import Decoder
from watersmeet.kernel.runs.frames import decode, encode
from watersmeet.system.blobs import BlobRef, joined
from watersmeet.values.types import INTEGER, TIMESTAMP, VARCHAR, Field, SqlType

START = datetime(2026, 1, 1)
COLUMNS = (Field("k", INTEGER), Field("ts", TIMESTAMP), Field("v", VARCHAR))


def at(seconds: float | None) -> datetime | None:
    return None if seconds is None else START + timedelta(seconds=seconds)


def given(
    *columns: tuple[str, SqlType],
    watermark: tuple[str, float] | None = None,
    streaming: bool = True,
    signed: bool = False,
) -> Given:
    fields = tuple(Field(n, t) for n, t in columns) or COLUMNS
    return Given(fields, streaming, None if watermark is None else (watermark[0], int(watermark[1] * 1e6)), signed)


class MemoryStore:
    """A bucket's state in memory (`frames.buckets.Store`)."""

    def __init__(self):
        self.runs = {}
        self._texts = {}

    def text(self, name):
        return self._texts.get(name)

    def keep_text(self, name, text):
        self._texts[name] = text

    def add(self, blob, rows):
        buffer = joined(blob)
        ref = BlobRef(name_of(buffer), 0, buffer.size, rows)
        self.runs[ref.file] = buffer
        return ref

    def remove(self, ref):
        del self.runs[ref.file]

    def read(self, ref):
        return self.runs[ref.file]


class Query:
    """A join and its state in every bucket. content: what the result holds. seen: every change, in order."""

    def __init__(
        self, options: Options, left: Given | None = None, right: Given | None = None, buckets: int = 2
    ) -> None:
        self.given = (left or given(), right or given())
        self.shape = build(*self.given, options, buckets)
        self.stores = [MemoryStore() for _ in range(buckets)]
        self.content: Counter[tuple[object, ...]] = Counter()
        self.batches: list[Counter[tuple[object, ...]]] = []
        self.late = [0, 0]
        self.state = (0, 0)
        self.watermarks: dict[str, int] = {}
        self.appends = appends(self.shape)
        types = []
        for output in self.shape.outputs:
            first = output.columns[0]
            kind = self.shape.sides[first.input].schema[first.column].type.arrow
            types.append(pa.struct([("start", kind), ("end", kind)]) if output.window else kind)
        if not self.appends:
            types.append(pa.int32())
        schema = pa.schema([pa.field(f"c{i}", t) for i, t in enumerate(types)])
        self.decoder = Decoder(self.shape, schema, diff=not self.appends)

    def batch(self, left=(), right=(), rng: random.Random | None = None, now: datetime | None = None) -> Counter:
        """One micro-batch; rng cuts it into tasks and shuffles what they send.

        Rows of a signed side end with their diff.
        """
        pieces = []
        for index, rows in enumerate((list(left), list(right))):
            if rng is not None:
                rng.shuffle(rows)
            cut = rng.randrange(len(rows) + 1) if rng is not None else 0
            for part in (rows[:cut], rows[cut:]):
                if part:
                    wide = self.shape.sides[index].schema  # DataFrames are cast to these types before
                    count = len(self.given[index].columns)
                    arrays = [pa.array([r[i] for r in part], wide[i].type.arrow) for i in range(count)]
                    cutter = Cutter(self.shape, index)
                    limit = None if now is None else int((now - datetime(1970, 1, 1)).total_seconds() * 1e6)
                    diff = np.array([r[-1] for r in part], np.int64) if self.given[index].signed else None
                    pieces += [*cutter.cut(arrays, limit, diff), *cutter.clocks()]
        if rng is not None:
            rng.shuffle(pieces)
        found: Counter[tuple[object, ...]] = Counter()
        self.late, self.state = [0, 0], (0, 0)
        for bucket, store in enumerate(self.stores):
            step = run_bucket(self.shape, bucket, [p for p in pieces if p.bucket == bucket], store)
            self.watermarks = dict(step.watermarks)
            self.late = [a + b for a, b in zip(self.late, step.late, strict=True)]
            self.state = (self.state[0] + step.state[0], self.state[1] + step.state[1])
            for part in parts(repeated(step.delta), 1000):
                for row in self.decoder.rows(decode(encode(part))).to_pylist():
                    values = tuple(
                        tuple(v.values()) if isinstance(v, dict) else tuple(v) if isinstance(v, list) else v
                        for v in row.values()
                    )
                    found[values if self.appends else values[:-1]] += 1 if self.appends else values[-1]
        assert not self.appends or all(n > 0 for n in found.values())
        self.content.update(found)
        self.content = Counter({r: n for r, n in self.content.items() if n})
        self.batches.append(found)
        return found
