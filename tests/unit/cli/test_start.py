"""What commands import: a start does not wait for what it does not need."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys

import pytest

import watersmeet
from watersmeet.dialects import readers
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


FIRST_VIEW = """
import sys
import watersmeet
with watersmeet.connect(runtime="inprocess", parallelism=1) as connection:
    connection.execute("CREATE TABLE a (id bigint PRIMARY KEY, x varchar)")
    connection.execute("CREATE TABLE b (id bigint PRIMARY KEY, y varchar)")
    connection.execute("INSERT INTO a VALUES (1, 'u'), (2, 'v')")
    connection.execute("INSERT INTO b VALUES (1, 'p'), (3, 'q')")
    connection.execute("CREATE MATERIALIZED VIEW v AS SELECT a.id, x, y FROM a LEFT JOIN b ON a.id = b.id")
    assert sorted(connection.execute("SELECT * FROM v").fetchall()) == [(1, "u", "p"), (2, "v", None)]
print(*sys.modules, sep="\\n")
"""


def test_the_first_view_needs_neither_pandas_nor_data_sets_nor_connectors():
    done = subprocess.run([sys.executable, "-c", FIRST_VIEW], capture_output=True, text=True, check=True)
    modules = set(done.stdout.split())
    assert "watersmeet.kernel.executor" in modules
    assert not modules & {"pandas", "pyarrow.dataset", "pyspark"}
    found = {m.removeprefix("watersmeet.connectors.").partition(".")[0] for m in modules if "r.connectors." in m}
    assert found <= {"base", "databases", "registry"}
    assert not modules & {f"watersmeet.session.features.{f}" for f in ("dictionaries", "forks", "grants", "types")}


def test_the_dialects_of_help_are_those_of_the_registry():
    assert [language_named(name).name for name in DIALECTS] == list(DIALECTS)


def test_the_table_of_features_has_the_words_of_their_readers():
    """A feature is imported when a statement begins with its words, so the table repeats these."""
    load_features()
    for module, words in handlers.FEATURES.items():
        source = inspect.getsource(sys.modules[f"watersmeet.session.features.{module}"])
        found = re.findall(r'^@reads\("([A-Z ]+)"(?:, own="([a-z ]+)")?\)', source, re.MULTILINE)
        assert source.count("\n@reads(") == len(found)
        assert [f"{name} ({own})" if own else name for name, own in found] == words.split(", ")
    reading = {kind for kind in readers._MODULES.values() for kind in kind.values()}
    assert {f"watersmeet.session.features.{module}" for module in handlers.FEATURES} <= reading
    others = [m for m in sys.modules if m.startswith("watersmeet.session.features.") and m not in reading]
    assert not [m for m in others if "\n@reads(" in inspect.getsource(sys.modules[m])]


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
