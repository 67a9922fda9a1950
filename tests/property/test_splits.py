"""Split invariance: the same changes, cut into other transactions and epochs, give the same content, byte for byte."""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from contextlib import suppress

import pytest

import watersmeet
from tests.property.oracle import UnanswerableError
from tests.property.runs import Run
from tests.property.values import ours
from tests.thorough import mostly_slow

Content = dict[str, Counter]


def contents(cursor, views) -> Content:
    found = {}
    for name in views:
        cursor.execute(f"SELECT * FROM {name}")
        found[name] = Counter(map(repr, cursor.fetchall()))
    return found


class Split:
    """One way to cut: how often a transaction, a FLUSH and a new start come. late: views are made at the end."""

    def __init__(self, case: Run, views: list, source: random.Random) -> None:
        self.case, self.views, self.random = case, views, source

    def run(self, directory: str, name: str, buckets: int, *, together: float, flush: float, late: bool) -> Content:
        with watersmeet.connect(f"{directory}/{name}", runtime="inprocess", parallelism=buckets) as connection:
            cursor = connection.cursor()
            for table in self.case.case.tables:
                cursor.execute(ours(table.ddl))
            if not late:
                self.make(cursor)
            in_transaction = False
            for statement in self.case.changes:
                if not in_transaction and self.random.random() < together:
                    cursor.execute("BEGIN")
                    in_transaction = True
                cursor.execute(ours(statement))
                if in_transaction and self.random.random() > together:
                    cursor.execute("COMMIT")
                    in_transaction = False
                if not in_transaction and self.random.random() < flush:
                    cursor.execute("FLUSH")
            if in_transaction:
                cursor.execute("COMMIT")
            if late:
                self.make(cursor)
            cursor.execute("FLUSH")
            return contents(cursor, [v.name for v in self.views if v.kind == "materialized"])

    def make(self, cursor) -> None:
        for view in self.views:
            kind = "MATERIALIZED VIEW" if view.kind == "materialized" else "VIEW"
            cursor.execute(f"CREATE {kind} {view.name} AS {ours(view.sql)}")


def split(seed: int) -> None:
    with suppress(UnanswerableError), tempfile.TemporaryDirectory() as directory:
        options = {"runtime": "inprocess", "parallelism": 1 + seed % 3}
        case = Run(seed, f"{directory}/first", options)
        with case.connection:
            for step in case.case.steps:
                if step.kind != "drop":  # all views are there at the end
                    case.step(step)
            expected = contents(case.cursor, case.views)
            case.connection.close()
        views = [s for s in case.case.steps if s.kind in ("view", "materialized")]
        way = Split(case, views, random.Random(seed))
        for number, (together, flush, late) in enumerate(
            [(0, 1, False), (0.9, 0, False), (0.5, 0.3, False), (0.3, 0.3, True)]
        ):
            buckets = 1 + (seed + number) % 3
            real = way.run(directory, f"way{number}", buckets, together=together, flush=flush, late=late)
            for name in expected:
                assert real[name] == expected[name], (
                    f"seed {seed}, {name}, way {number}\nmissing {expected[name] - real[name]}\n"
                    f"surplus {real[name] - expected[name]}"
                )


@pytest.mark.parametrize("seed", mostly_slow(range(5000, 5002), 0, 2))
def test_split(seed: int) -> None:
    split(seed)


@pytest.mark.thorough
@pytest.mark.parametrize("block", range(3))
def test_many_splits(block: int) -> None:
    for seed in range(5100 + 10 * block, 5110 + 10 * block):
        split(seed)
