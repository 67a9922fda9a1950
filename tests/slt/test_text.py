"""Every text test below this folder whose features exist."""

from __future__ import annotations

import random
from fnmatch import fnmatch
from pathlib import Path
from unittest import mock

import pytest
from tests import placed
from tests.richtexts import run_text

from watersmeet.database.opened import OpenDatabase
from watersmeet.testing import parse_file

HERE = Path(__file__).parent
NOT_DUE = [
    line.split()[0]
    for line in (HERE / "not_due.txt").read_text(encoding="utf-8").splitlines()
    if line and line[0] != "#"
]
#: A join counts rows that were deleted until a merge meets them.
MERGES_COUNT = ("risingwave/join-amplification.slt",)
#: These take seconds, and more than other tests of SQL's functions and types do.
LONG = """
lenses/late-records.slt
lenses/times-of-changes.slt
risingwave/functions.slt
risingwave/sinks-into.slt
risingwave/table-functions.slt
risingwave/types.slt
sqlstream/groups.slt
timeplus/functions.slt
timeplus/proton.slt
timeplus/ranges.slt
""".split()


def name(path: Path) -> str:
    return path.relative_to(HERE).as_posix()


def files() -> list[Path]:
    return [f for f in sorted(HERE.rglob("*.slt")) if not any(fnmatch(name(f), p) for p in NOT_DUE)]


def run(path: Path, **options) -> None:
    outcome = run_text(parse_file(path), **options)
    assert outcome.failure is None, outcome.failure
    assert outcome.records > 0


@pytest.mark.parametrize(
    "path", [pytest.param(f, marks=pytest.mark.slow if name(f) in LONG else ()) for f in files()], ids=name
)
@pytest.mark.parametrize("parallelism", [pytest.param(1, marks=pytest.mark.thorough), 3])
def test_in_process(path: Path, parallelism: int) -> None:
    with placed.checked():
        run(path, runtime="inprocess", parallelism=parallelism)


@pytest.mark.parametrize("path", [pytest.param(f, marks=pytest.mark.thorough) for f in files()], ids=name)
def test_with_other_numbers_of_buckets(path: Path) -> None:
    """The number changes after random statements."""
    rng, flush = random.Random(name(path)), OpenDatabase.flush

    def changing(database: OpenDatabase, **options: bool) -> None:
        flush(database, **options)
        if rng.random() < 0.5:
            database.circuit.rescale(rng.choice([1, 2, 3, 5, 8]))

    if name(path) in MERGES_COUNT:
        pytest.skip("what it counts depends on when runs are merged")
    with placed.checked(), mock.patch.object(OpenDatabase, "flush", changing):
        run(path, runtime="inprocess", parallelism=3)


def test_every_entry_of_not_due_names_a_file() -> None:
    names = [name(f) for f in HERE.rglob("*.slt")]
    assert [p for p in NOT_DUE if not any(fnmatch(n, p) for n in names)] == []
