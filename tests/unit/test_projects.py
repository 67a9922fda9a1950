"""The projects of examples/ run whole, and give DuckDB's answer."""

import duckdb
import pytest
from examples import projects


@pytest.mark.slow
def test_each_project_gives_the_answer_of_duckdb(tmp_path):
    for name in projects.PROJECTS:
        outcome = projects.run(name, tmp_path / name, "inprocess")
        assert outcome.right, (outcome.results, outcome.log)
        assert outcome.statements >= 20


def test_rows_that_differ_are_counted():
    reference = duckdb.connect()
    reference.execute("CREATE TABLE t AS SELECT range AS a FROM range(3)")
    reference.execute("CREATE TABLE given AS SELECT * FROM (VALUES (0), (1), (1)) AS v (a)")
    assert projects.compared("given", "SELECT a FROM t", reference, reference) == ("given", 3, 1, 1)
