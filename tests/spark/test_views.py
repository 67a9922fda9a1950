"""The law and the text tests on Spark: every kind of join once in `make test`, the rest in `make test-more`."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.property.test_deep import run as run_deep
from tests.property.test_timed_joins import run as run_timed
from tests.property.test_views import run as run_seed
from tests.slt.test_text import files, name
from tests.slt.test_text import run as run_text
from tests.thorough import mostly_slow

#: One text test of each kind of join, of each dialect.
KINDS = """
dialects/one-database.slt
lenses/examples/inner.slt
lenses/examples/left.slt
lenses/examples/outer-tables.slt
lenses/examples/stream-table-late.slt
lenses/examples/within.slt
lenses/topics.slt
risingwave/emit-on-window-close.slt
risingwave/examples/asof-changes.slt
risingwave/examples/asof-left.slt
risingwave/examples/dynamic-filter.slt
risingwave/examples/interval-join.slt
risingwave/examples/regular-joins.slt
risingwave/examples/semi-anti.slt
risingwave/examples/temporal-non-append-only.slt
risingwave/examples/window-join.slt
risingwave/temporal-filters.slt
risingwave/versions.slt
risingwave/windows.slt
sqlstream/examples/cross.slt
sqlstream/examples/full.slt
sqlstream/examples/inner.slt
sqlstream/examples/multiway.slt
sqlstream/examples/rows-window.slt
sqlstream/examples/stream-table.slt
sqlstream/pumps.slt
timeplus/examples/append-join-append.slt
timeplus/examples/append-join-versioned.slt
timeplus/examples/asof-append-append.slt
timeplus/examples/changelog.slt
timeplus/examples/direct-dictionary.slt
timeplus/examples/latest-append-versioned.slt
timeplus/examples/range-join.slt
""".split()


def kinds_first() -> list[Path]:
    return sorted(files(), key=lambda path: name(path) not in KINDS)


@pytest.mark.parametrize("seed", mostly_slow(range(12), 3))
def test_random_views(seed: int) -> None:
    run_seed(seed, runtime="spark", parallelism=1 + seed % 3)


@pytest.mark.parametrize("seed", mostly_slow(range(2000, 2016), 2))
def test_deep_views(seed: int) -> None:
    run_deep(seed, runtime="spark", parallelism=1 + seed % 2)


@pytest.mark.parametrize("seed", mostly_slow(range(3), 1))
def test_random_timed_joins(seed: int, tmp_path: Path) -> None:
    run_timed(seed, tmp_path / "db", runtime="spark", parallelism=1 + seed % 3, deliveries=4)


@pytest.mark.parametrize("path", mostly_slow(kinds_first(), len(KINDS)), ids=name)
def test_text(path: Path) -> None:
    run_text(path, runtime="spark", parallelism=2)


def test_every_kind_is_a_file() -> None:
    assert set(KINDS) <= {name(path) for path in files()}
