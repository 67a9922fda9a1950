"""The law and text tests on Spark: some kinds of joins in `make test`, the rest in `make test-more`, with every form of
operator.

All text tests run on Spark in the thorough tier: what they say of SQL does not depend on what runs them.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.property.test_deep import run as run_deep
from tests.property.test_timed_joins import run as run_timed
from tests.property.test_views import run as run_seed
from tests.slt.test_text import files, name
from tests.slt.test_text import run as run_text
from tests.thorough import THOROUGH, mostly_slow

#: One text test of each kind of join, of each dialect.
KINDS = """
dialects/one-database.slt
lenses/examples/inner.slt
lenses/examples/left.slt
lenses/examples/outer-tables.slt
lenses/examples/stream-table-late.slt
lenses/examples/within.slt
lenses/topics.slt
lenses/windows.slt
risingwave/emit-on-window-close.slt
risingwave/functions-in-python.slt
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
sqlstream/windows.slt
timeplus/examples/append-join-append.slt
timeplus/examples/append-join-versioned.slt
timeplus/examples/asof-append-append.slt
timeplus/examples/changelog.slt
timeplus/examples/direct-dictionary.slt
timeplus/examples/latest-append-versioned.slt
timeplus/examples/range-join.slt
""".split()

#: These add every form of operator that text tests have (`python -m tests.forms`), all types of values between tasks,
#: and what depends on the runtime: running queries, limits, late rows, changed definitions.
FORMS = """
lenses/examples/topology.slt
lenses/expressions.slt
lenses/filters.slt
lenses/late-records.slt
lenses/processors.slt
plain/duckdb_style.slt
risingwave/alter.slt
risingwave/dynamic-filter.slt
risingwave/emit-on-arrival.slt
risingwave/examples/asof-operators.slt
risingwave/join-amplification.slt
risingwave/set-operations.slt
risingwave/table-functions.slt
risingwave/time-windows.slt
risingwave/types.slt
sqlstream/groups.slt
sqlstream/promotion.slt
sqlstream/stream-subqueries.slt
timeplus/arrival.slt
timeplus/examples/asof-append-versioned.slt
timeplus/missing-columns.slt
timeplus/proton.slt
timeplus/queries-that-run.slt
timeplus/session-windows.slt
timeplus/subscribe.slt
""".split()


def shown() -> list[Path]:
    listed = [*KINDS, *FORMS]
    found = [path for path in files() if THOROUGH or name(path) in listed]
    return sorted(found, key=lambda path: name(path) not in KINDS)


@pytest.mark.parametrize("seed", mostly_slow(range(12 if THOROUGH else 8), 2))
def test_random_views(seed: int) -> None:
    run_seed(seed, runtime="spark", parallelism=1 + seed % 3)


@pytest.mark.parametrize("seed", mostly_slow(range(2000, 2016 if THOROUGH else 2008), 0, 3))
def test_deep_views(seed: int) -> None:
    run_deep(seed, runtime="spark", parallelism=1 + seed % 2)


@pytest.mark.parametrize("seed", mostly_slow(range(3), 1))
def test_random_timed_joins(seed: int, tmp_path: Path) -> None:
    run_timed(seed, tmp_path / "db", runtime="spark", parallelism=1 + seed % 3, deliveries=4)


@pytest.mark.parametrize("path", mostly_slow(shown(), len(KINDS) // 2), ids=name)
def test_text(path: Path) -> None:
    run_text(path, runtime="spark", parallelism=2)


def test_every_entry_is_a_file() -> None:
    assert {*KINDS, *FORMS} <= {name(path) for path in files()}
