"""What commands import: a start does not wait for what it does not need."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import watersmeet
from watersmeet.dialects.readers import load_features
from watersmeet.dialects.registry import language_named
from watersmeet.session import handlers
from watersmeet.system.process import lazy_import
from watersmeet.values import DIALECTS

LOADED = """
import sys
sys.argv[0] = "watersmeet"
from watersmeet.cli import main
try:
    main()
except SystemExit as end:
    assert not end.code, end
print(*sys.modules, sep="\\n", file=sys.stderr)
"""


def loaded(*arguments: str) -> set[str]:
    done = subprocess.run([sys.executable, "-c", LOADED, *arguments], capture_output=True, text=True, check=True)
    return set(done.stderr.split())


def test_help_needs_no_engine():
    modules = loaded("--help")
    assert "watersmeet.cli.commands" in modules
    assert not modules & {
        "duckdb",
        "pyarrow",
        "numpy",
        "sqlglot",
        "pandas",
        "pyspark",
        "watersmeet.session.connections.connection",
    }


def test_a_query_needs_neither_planner_nor_kernel_nor_pandas(tmp_path):
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        connection.execute("CREATE TABLE t (a int); CREATE MATERIALIZED VIEW v AS SELECT a FROM t; FLUSH")
        connection.execute("INSERT INTO t VALUES (1); FLUSH")
        connection.execute("DELETE FROM t; FLUSH")  # so that the content is put together from changes
    modules = loaded("query", "SELECT * FROM v", "--path", str(tmp_path / "db"))
    assert "watersmeet.session.statements.select" in modules
    assert not modules & {
        "pandas.core",
        "prompt_toolkit",
        "pyspark",
        "watersmeet.kernel.executor",
        "watersmeet.planner.lowering",
        "watersmeet.runtime.tasks",
    }


def test_the_dialects_of_help_are_those_of_the_registry():
    assert [language_named(name).name for name in DIALECTS] == list(DIALECTS)


def test_every_statement_finds_its_handler():
    load_features()
    assert all(callable(handlers.handler_of(kind)) for kind in handlers.HANDLERS)


def test_a_late_module_is_imported_when_it_is_used():
    module = lazy_import("colorsys")
    assert module.rgb_to_hsv(0, 0, 0) == (0.0, 0.0, 0)
    assert lazy_import("colorsys") is sys.modules["colorsys"]


@pytest.mark.slow
def test_a_command_may_be_started_without_standard_streams(tmp_path):
    script = tmp_path / "script.sql"
    script.write_text("CREATE TABLE t (a int); INSERT INTO t VALUES (1), (2); SELECT * FROM t", encoding="utf-8")
    command = ["watersmeet", "run", str(script), "--path", str(tmp_path / "db"), "--runtime", "inprocess"]
    closed = 'exec "$0" -m "$@" <&- >&- 2>&-'
    done = subprocess.run(
        ["sh", "-c", closed, sys.executable, *command],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert done.returncode == 0
    with watersmeet.connect(tmp_path / "db", read_only=True) as connection:
        assert connection.execute("SELECT sum(a) FROM t").fetchall() == [(3,)]
