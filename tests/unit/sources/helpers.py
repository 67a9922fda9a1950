from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from watersmeet.catalog import Source as CatalogSource
from watersmeet.connectors.base.deadletters import DeadLetterWriter
from watersmeet.connectors.base.sources import Source, SourceSpec
from watersmeet.connectors.datagen import DatagenSpec
from watersmeet.connectors.files.options import FileSpec
from watersmeet.connectors.registry import open_source, read_slice
from watersmeet.values import types as t
from watersmeet.values.serialization import from_json, to_json
from watersmeet.values.slices import SourceSlice
from watersmeet.values.types import Field

S = 1_000_000
T0 = 1_700_000_000 * S
"""A time in microseconds. Files of the tests are older unless said otherwise."""

AB = (Field("a", t.INTEGER), Field("b", t.VARCHAR))


def relation(columns: Sequence[Field] = AB, key: tuple[str, ...] = (), **options: str) -> CatalogSource:
    named = {name.replace("__", "."): value for name, value in options.items()}
    return CatalogSource("s1", "s", tuple(columns), primary_key=key, append_only=True, connector=named)


def file_source(root: Path, columns: Sequence[Field] = AB, **options: str) -> Source:
    return open_source(relation(columns, connector="file", path=str(root), **({"format": "csv"} | options)))


def put(path: Path, text: str | bytes, at_us: int = T0 - 60 * S, append: bool = False) -> Path:
    """Writes a file with a time stamp."""
    data = text.encode() if isinstance(text, str) else text
    with path.open("ab" if append else "wb") as out:
        out.write(data)
    os.utime(path, ns=(at_us * 1000, at_us * 1000))
    return path


def stored(slices: Sequence[SourceSlice]) -> tuple[SourceSlice, ...]:
    """The slices as intents and commits have them."""
    return from_json(tuple[SourceSlice, ...], json.loads(json.dumps(to_json(tuple(slices)))))


class Driver:
    """Polls a source, reads the slices, accepts them: what the runtime does."""

    def __init__(self, source: Source, budget_rows: int = 1 << 40, budget_bytes: int = 1 << 40) -> None:
        self.source = source
        self.position: Any = None
        self.budget = (budget_rows, budget_bytes)
        self.dead: list[dict[str, Any]] = []
        self.slices: list[SourceSlice] = []
        self.last: Any = None

    def once(
        self, now_us: int = T0, fresh: bool = True, columns: Sequence[Field] | None = None
    ) -> list[tuple[Any, ...]]:
        poll = self.source.poll(self.position, *self.budget, now_us, fresh=fresh)
        self.last = poll
        rows = self.read(poll.slices, columns)
        self.source.accept(poll.slices)
        self.slices += poll.slices
        self.position = json.loads(json.dumps(poll.position))
        return rows

    def read(self, slices: Sequence[SourceSlice], columns: Sequence[Field] | None = None) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = []
        spec = from_json(SourceSpec, json.loads(json.dumps(to_json(self.source.spec()))))
        if columns is None:
            assert isinstance(spec, (FileSpec, DatagenSpec))
        wanted = spec.columns if columns is None else columns
        for piece in stored(slices):
            letters = DeadLetterWriter(None)
            got = read_slice(piece, spec, wanted, letters)
            got.table.validate(full=True)
            assert got.table.schema == t.arrow_schema(tuple(wanted), positional=False)
            assert len(got.ordinals) == got.table.num_rows or not wanted
            assert (got.ordinals[1:] > got.ordinals[:-1]).all()
            rows += list(zip(*(c.to_pylist() for c in got.table.columns), strict=True))
            self.dead += letters.records
        return rows

    def all(self, now_us: int = T0, fresh: bool = True) -> list[tuple[Any, ...]]:
        rows = self.once(now_us, fresh)
        while self.last.more:
            rows += self.once(now_us, fresh)
        return rows

    def history(self, budget_rows: int = 1 << 40, budget_bytes: int = 1 << 40) -> list[tuple[Any, ...]]:
        rows, cursor = [], None
        while True:
            piece = self.source.history(cursor, budget_rows, budget_bytes)
            rows += self.read(piece.slices)
            cursor = json.loads(json.dumps(piece.cursor))
            if cursor is None:
                return rows

    def reasons(self) -> list[tuple[str, int | None, str]]:
        return [(d["file"], d["line"], d["reason"].split(":")[0]) for d in self.dead]
