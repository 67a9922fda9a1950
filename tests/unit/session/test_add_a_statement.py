"""A statement is added by the lines of CONTRIBUTING, and runs."""

from __future__ import annotations

import re
from pathlib import Path

import watersmeet
from watersmeet.dialects.readers import load_features, plug_in

IMPORTS = """
from dataclasses import dataclass
from typing import Any

from watersmeet.dialects.readers import reads
from watersmeet.dialects.tree.statements import Statement
from watersmeet.dialects.tree.tokens import Cursor
from watersmeet.database.sessions.context import Session
from watersmeet.database.sessions.result import Result, text_result
from watersmeet.session.handlers import handles

"""


def test_a_statement_of_one_module(tmp_path, monkeypatch):
    guide = (Path(__file__).parents[3] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    found = re.search(r"## Add a statement\n.*?```python\n(.*?)```", guide, re.DOTALL)
    assert found is not None
    assert found[1].count("\n") <= 10
    package = tmp_path / "added_features"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "moments.py").write_text(IMPORTS + found[1], encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    plug_in("added_features")
    load_features()
    with watersmeet.connect(runtime="inprocess") as connection:
        connection.execute("CREATE TABLE t (a int); CREATE USER ann; INSERT INTO t VALUES (1)")
        before = connection.execute("SHOW MOMENT").fetchall()
        connection.execute("INSERT INTO t VALUES (2)")
        connection.execute("SET dialect = 'timeplus'; SET ROLE ann")
        assert connection.execute("SHOW MOMENT").fetchall() == [(str(int(before[0][0]) + 1),)]
