"""SQLAlchemy's own suite for dialects, against the server and against PostgreSQL."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from fnmatch import fnmatchcase
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import sqlalchemy
from tests.clients import check_result

SUITE = Path(__file__).with_name("sqlalchemysuite")
#: The failures that are known, by reason: patterns of `class::test`. Others fail the test.
KNOWN = {
    "generated columns as GENERATED ALWAYS AS": ("ComputedColumnTest::*", "ComputedReflectionTest::*"),
    "the text of a DEFAULT differs": ("ComponentReflectionTestExtra::test_server_defaults*",),
    "indexes of expressions": ("ComponentReflectionTestExtra::test_reflect_expression_based_indexes",),
    "COLLATE on a column": ("ComponentReflectionTest::test_column_collation_reflection",),
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
    """What became of each test that asks the database: passed, failed or skipped."""
    report = folder / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-c", "setup.cfg", "-p", "no:cacheprovider", "-p", "features"]
    command += ["--dburi", url, "--maxfail", "100000", "--junitxml", str(report), "-k", "not ArgSignatureTest"]
    environment = {**os.environ, "PYTHONPATH": ".", "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("PYTEST_ADDOPTS", None)
    done = subprocess.run(
        [*command, "suite.py"], cwd=SUITE, env=environment, capture_output=True, text=True, check=False
    )
    assert report.exists(), done.stdout + done.stderr
    found: dict[str, str] = {}
    for case in ET.parse(report).iter("testcase"):
        name = f"{case.get('classname', '').rpartition('.')[2].partition('_postgresql+')[0]}::{case.get('name')}"
        kinds = {child.tag for child in case}
        if kinds & {"failure", "error"}:
            found[name] = "failed"
        else:
            found.setdefault(name, "skipped" if "skipped" in kinds else "passed")
    return found


def reason_of(name: str) -> str | None:
    """Why a test is known to fail."""
    return next((r for r, patterns in KNOWN.items() if any(fnmatchcase(name, p) for p in patterns)), None)


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
    assert {name for name in failed if reason_of(name) is None} == set()
    passed = [name for name in base if found.get(name) == "passed"]
    assert len(passed) >= 0.9 * len(base)
    check_result(
        "SQLAlchemy's suite for dialects",
        at_least=True,
        version=sqlalchemy.__version__,
        ran="the tests that pass on PostgreSQL, without temporary tables, two-phase commit and time with time zone",
        passed=len(passed),
        of=len(base),
        refused=dict(sorted(Counter(reason_of(name) for name in failed).items())),
    )
