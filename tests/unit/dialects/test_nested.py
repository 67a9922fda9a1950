"""Random nested and correlated queries mean the same as trees with dependent joins undone. DuckDB runs the original."""

from __future__ import annotations

import random

import duckdb
import pytest
from tests.nested import SCRIPT, TABLES, Nested, rows
from tests.unit.dialects.helpers import Content, bound, catalog_of, multiset

from watersmeet.algebra.relations import Apply
from watersmeet.algebra.rewrites import rewrite
from watersmeet.algebra.rewrites.unnesting import unnest
from watersmeet.algebra.trees import walk

CATALOG = catalog_of(SCRIPT)
SEEDS = 60


def check(seed: int) -> bool:
    """True if DuckDB can run the query of `seed`, which then has the same result."""
    source = random.Random(seed)
    sql = Nested(source, streamable=source.random() < 0.6, depth=source.choice([1, 2, 2, 3])).query()
    content = Content(CATALOG)
    for table in TABLES:
        count = source.choice([0, 2, 5, 7])
        if count:
            content.execute(rows(source, table, count))
    try:
        expected = multiset(content.rows(sql))
    except duckdb.Error:
        return False
    tree = bound(sql, CATALOG, needs_names=False).tree
    plain = unnest(tree)
    assert not plain.free
    assert not any(isinstance(n, Apply) for n in walk(plain))
    assert multiset(content.tree(plain)) == expected, (seed, sql)
    assert multiset(content.tree(rewrite(tree))) == expected, (seed, sql)
    return True


@pytest.mark.parametrize("start", range(0, SEEDS, 20))
def test_unnesting_keeps_the_result(start):
    assert sum(check(seed) for seed in range(start, start + 20)) >= 12


@pytest.mark.slow
@pytest.mark.parametrize("start", range(1000, 4000, 100))
def test_unnesting_keeps_the_result_of_many(start):
    assert sum(check(seed) for seed in range(start, start + 100)) >= 50
