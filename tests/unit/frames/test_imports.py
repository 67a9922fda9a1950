"""What imports what: the package stays cheap, joins of DataFrames need no SQL front-end."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import watersmeet", ("pyspark", "pyarrow", "duckdb", "sqlglot", "watersmeet.frames")),
        (
            "from watersmeet import join, asof, latest",
            ("sqlglot", "watersmeet.dialects", "watersmeet.planner", "watersmeet.session"),
        ),
    ],
)
def test_what_is_not_imported(statement, absent):
    script = f"import sys\n{statement}\nprint([m for m in {absent!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
