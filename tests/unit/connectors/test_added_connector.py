"""A connector from outside, made by the steps of CONTRIBUTING: a view over its source, and a sink with its target."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pytest
from tests.waiting import until

import watersmeet
from watersmeet.connectors import registry
from watersmeet.connectors.base import sources as sources_module
from watersmeet.connectors.base.options import OptionSet, OptionSpec
from watersmeet.connectors.base.sources import History, Poll, Source, SourceConnector, SourceRows, SourceSpec
from watersmeet.connectors.base.targets import Connector, Target
from watersmeet.connectors.registry import register, register_source
from watersmeet.values.slices import KINDS, SourceSlice

# Step 1
OPTIONS = OptionSet("squares", (OptionSpec("count", "How many squares there are.", "integer", default=5, minimum=0),))
SINK_OPTIONS = OptionSet("squares of sinks", ())
assert callable(OptionSet.read)


# Step 2
@dataclass(frozen=True, kw_only=True)
class SquareSlice(SourceSlice):
    kind: ClassVar[str] = "squares"
    begin: int
    end: int


del KINDS[SquareSlice.kind]  # other tests list all kinds


# Step 3
@dataclass(frozen=True)
class SquareSpec(SourceSpec):
    kind: ClassVar[str] = "squares"


# Step 4
class SquareSource:
    def __init__(self, relation):
        self.relation_id = relation.id
        self._count = OPTIONS.read(relation.connector).number("count")
        self._done = self._slices = 0

    def spec(self):
        return SquareSpec()

    def poll(self, position, budget_rows, budget_bytes, now_us, *, fresh=False):
        end = min(self._count, self._done + budget_rows)
        if end == self._done:
            return Poll((), {"done": self._done}, finished=True)
        return Poll((self._slice(self._done, end, self._slices),), {"done": end}, more=end < self._count)

    def _slice(self, begin, end, ordinal):
        return SquareSlice(relation=self.relation_id, rows=end - begin, ordinal=ordinal, begin=begin, end=end)

    def listen(self, notification):
        pass

    def accept(self, slices):
        for piece in slices:
            if piece.ordinal == self._slices:
                self._done, self._slices = piece.end, self._slices + 1

    def withdraw(self, slices):
        for piece in reversed([p for p in slices if p.ordinal < self._slices]):
            self._done, self._slices = piece.begin, self._slices - 1

    def history(self, cursor, budget_rows, budget_bytes):
        return History((self._slice(0, self._done, 0),) if self._done else (), None)

    def save(self, path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps([self._done, self._slices]))

    def load(self, path):
        self._done, self._slices = json.loads(path.read_text())

    def status(self):
        return {"rows_planned": self._done, "problem": None}


# Step 5
def read_squares(piece, spec, columns, dead_letters):
    numbers = np.arange(piece.begin, piece.end)
    arrays = [pa.array(numbers**2 if c.name == "square" else numbers, c.type.arrow) for c in columns]
    return SourceRows(pa.Table.from_arrays(arrays, names=[c.name for c in columns]), numbers - piece.begin)


# Step 6
class SquareTarget(Target):
    written: ClassVar[list] = []

    def open(self, generation):
        return None

    def deliver(self, batches):
        self.written.append(len(batches))


# Step 7
@pytest.fixture(autouse=True)
def registered():
    KINDS[SquareSlice.kind] = SquareSlice
    register_source("squares", SourceConnector(SquareSource, SquareSpec, (SquareSlice,), read_squares, OPTIONS))
    register(
        "squares",
        Connector(lambda d: SINK_OPTIONS.read(d.connector).check(), lambda *_: SquareTarget(), remembers=False),
    )
    yield
    del (
        registry.SOURCES["squares"],
        registry.READERS[SquareSpec.kind],
        registry.SINKS["squares"],
        KINDS[SquareSlice.kind],
    )


def section():
    text = (Path(__file__).parents[3] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    return text.partition("## Add a connector\n")[2].partition("\n## ")[0].strip()


def test_the_steps_are_few_and_each_is_followed_here():
    steps = re.findall(r"^(\d+)\. ", section(), re.MULTILINE)
    assert section().count("\n") <= 10
    own = Path(__file__).read_text(encoding="utf-8")
    assert [f"# Step {n}" in own for n in steps] == [True] * len(steps) == [True] * own.count("\n# Step ")
    names = [n for n in re.findall(r"`([A-Za-z_.]+)`", section()) if "/" not in n and n != "kind"]
    assert [n for n in names if not re.search(rf"\b{re.escape(n)}\b", own)] == []


def test_the_classes_have_the_methods_of_their_contracts():
    for contract, own in ((Source, SquareSource), (Target, SquareTarget)):
        methods = [n for n in vars(contract) if not n.startswith("_") and callable(getattr(contract, n))]
        assert [n for n in methods if not callable(getattr(own, n, None))] == []
    assert sources_module.Source is Source


def test_a_view_over_a_source_from_outside_and_a_sink_of_it(tmp_path):
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        connection.execute("CREATE SOURCE s (number bigint, square bigint) WITH (connector = 'squares', count = '7')")
        connection.execute("CREATE MATERIALIZED VIEW v AS SELECT number, square FROM s WHERE number % 2 = 0")
        connection.execute("CREATE SINK k FROM v WITH (connector = 'squares', type = 'append-only')")
        connection.execute("FLUSH")
        assert sorted(connection.execute("SELECT * FROM v").fetchall()) == [(0, 0), (2, 4), (4, 16), (6, 36)]
        until(lambda: SquareTarget.written)
        for wrong in ("count = 'x'", "cuont = '7'"):
            with pytest.raises(watersmeet.Error) as found:
                connection.execute(f"CREATE SOURCE t (number bigint) WITH (connector = 'squares', {wrong})")
            assert found.value.condition == "CONNECTOR_OPTION"
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        assert len(connection.execute("SELECT * FROM v").fetchall()) == 4


# Connectors of Watersmeet itself have entries in `SOURCES` and `SINKS`, and a line in `CONNECTORS` of the reference.
