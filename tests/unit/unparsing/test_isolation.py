"""Which SQL runs in a process of its own."""

from __future__ import annotations

import os

import pytest

from watersmeet.system.childprocesses import ChildProcess
from watersmeet.unparsing import needs_isolation

SERIES = "SELECT unnest(generate_series({})) FROM t"


@pytest.mark.parametrize(
    ("sql", "wanted"),
    [
        ("SELECT a FROM t", False),
        ("SELECT levenshtein(a, b) FROM t", True),
        ("EXPLAIN (ANALYZE, FORMAT text) SELECT levenshtein(a, b) FROM t", True),
        ("SELECT repeat(a, 3) FROM t", False),
        ("SELECT repeat(a, 100000) FROM t", True),
        ("EXPLAIN (FORMAT text) SELECT repeat(a, n) FROM t", True),
        ("SELECT repeat(a, n) FROM t", True),
        ("SELECT lpad(a, CASE WHEN 10 > 9 THEN CAST(concat('x', a) AS INT) ELSE 10 END, 'x') FROM t", False),
        ("SELECT lpad(a, CASE WHEN n > 9 THEN CAST(concat('x', a) AS INT) ELSE n END, 'x') FROM t", True),
        (SERIES.format("CAST(-1 AS BIGINT), CAST(10 AS BIGINT)"), False),
        (SERIES.format("1, 1000000"), True),
        (SERIES.format("1, n"), True),
        (SERIES.format("CAST('2024-01-01' AS TIMESTAMP), b, CAST('1 DAY' AS INTERVAL)"), True),
        ("SELECT 1 FROM t" + " JOIN t USING (a)" * 50, True),
        ("SELECT '" + "x" * 2_000_000 + "'", True),
    ],
)
def test_what_can_t_be_interrupted_is_isolated(sql, wanted):
    assert needs_isolation(sql) is wanted


@pytest.mark.parametrize("yields", [False, True])
def test_the_priority_of_a_process(yields):
    worker = ChildProcess("watersmeet.kernel.evaluation.isolated", yields=yields)
    try:
        own = os.getpriority(os.PRIO_PROCESS, 0)
        assert os.getpriority(os.PRIO_PROCESS, worker._process.pid) == (19 if yields else own)
    finally:
        worker.end()


def test_numbers_of_the_catalog_are_small():
    for bound, wanted in (("n", False), ("current_setting('max_index_keys')", False), ("n * n", True), ("99999", True)):
        assert needs_isolation(SERIES.format(f"1, {bound}"), columns_are_small=True) is wanted
