"""SQLAlchemy's own suite for dialects, against the server and against PostgreSQL."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import sqlalchemy
from tests.clients import check_result, outcomes_of, reason_of

SUITE = Path(__file__).with_name("sqlalchemysuite")
#: The failures that are known, by reason: patterns of `class::test`. Others fail the test.
KNOWN = {
    "the text of a DEFAULT differs": ("ComponentReflectionTestExtra::test_server_defaults*",),
    "indexes of expressions": ("ComponentReflectionTestExtra::test_reflect_expression_based_indexes",),
    "collations of columns in the catalog": ("ComponentReflectionTest::test_column_collation_reflection",),
    "tables without columns": ("TableNoColumnsTest::*",),
    "a column twice in a foreign key": ("RepeatedColumnForeignKeyTest::*",),
    "make_interval with names of arguments": ("*IntervalTest::test_literal",),
    "numeric has 38 digits, without precision 10 after the point": (
        "TrueDivTest::test_truediv_divisor*",
        "NumericTest::test_enotation_decimal",
        "JSONTest::test_*[[]_decimal1]",
    ),
    "rows without ORDER BY in another order": ("WindowFunctionTest::test_window_range*",),
}


def outcomes(url: str, folder: Path) -> dict[str, str]:
    """What became of each test that asks the database."""
    options = ["-c", "setup.cfg", "-p", "features", "--dburi", url, "--maxfail", "100000", "-k", "not ArgSignatureTest"]
    return outcomes_of([*options, "suite.py"], SUITE, folder / "report.xml", {"PYTHONPATH": "."})


@pytest.mark.slow
@pytest.mark.long
def test_the_suite(serving, postgres, tmp_path):
    served = serving("CREATE SCHEMA test_schema; CREATE SCHEMA test_schema_2")
    options = "options=-c%20primary_key_conflict%3Derror"
    found = outcomes(f"postgresql+psycopg://ann@127.0.0.1:{served.server.port}/test?{options}", tmp_path)
    with postgres.connect() as connection:
        connection.execute("CREATE SCHEMA test_schema; CREATE SCHEMA test_schema_2")
        info = connection.info
        there = f"{info.user}:{info.password}@{info.host}:{info.port}/{info.dbname}"
    base = {n for n, what in outcomes(f"postgresql+psycopg://{there}", tmp_path).items() if what == "passed"}
    failed = {name for name, what in found.items() if what == "failed" and name in base}
    assert {name for name in failed if reason_of(name, KNOWN) is None} == set()
    passed = [name for name in base if found.get(name) == "passed"]
    assert len(passed) >= 0.9 * len(base)
    check_result(
        "SQLAlchemy's suite for dialects",
        at_least=True,
        version=sqlalchemy.__version__,
        ran="the tests that pass on PostgreSQL, without two-phase commit and time with time zone",
        passed=len(passed),
        of=len(base),
        refused=dict(sorted(Counter(reason_of(name, KNOWN) for name in failed).items())),
    )
