"""What records are compared with, by scripts that must pass and scripts that must not."""

from __future__ import annotations

import pytest
from tests.richtexts import run_text

import watersmeet
from watersmeet.testing import parse_file, run_script

STREAM = """dialect timeplus

statement ok
CREATE MUTABLE STREAM m (i int, v string) PRIMARY KEY i

start q
SELECT i, v FROM m

insert m (i, v)
1 | a

expect q rowsort since
---- i | v
1 | a

insert m (i, v)
1 | b
2 | c

"""


def outcome(tmp_path, text):
    path = tmp_path / "t.slt"
    path.write_text(STREAM + text)
    return run_text(parse_file(path), runtime="inprocess").failure


def test_rows_of_an_insert_are_there_when_a_query_reads_them(tmp_path):
    path = tmp_path / "rich.slt"
    path.write_text(
        "dialect risingwave\n\nstatement ok\nCREATE TABLE t (a int);\n\ninsert t\n1\n\n"
        "query rowsort\nSELECT a FROM t\n----\n1\n"
    )
    result = run_text(parse_file(path), runtime="inprocess")
    assert (result.failure, result.records) == (None, 3)
    with watersmeet.connect(runtime="inprocess") as connection:
        assert "no sqllogictest" in run_script(parse_file(path), lambda: connection).failure


@pytest.mark.parametrize(
    "text",
    [
        "expect q changelog\n----\n- | 1 | a\n+ | 1 | b\n+ | 2 | c\n",
        "expect q changelog\n---- v\n- | a\n+ | b\n+ | c\n",
        "expect q changelog\n---- V | i\n- | a | 1\n+ | b | 1\n+ | c | 2\n",
        "expect q net rowsort\n----\n1 | b\n2 | c\n\nexpect q changelog\n----\n",
    ],
)
def test_changes_are_those_since_the_previous_expect(tmp_path, text):
    assert outcome(tmp_path, text) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("expect q changelog\n----\n+ | 1 | b\n+ | 2 | c\n", "the changes differ"),
        ("expect q changelog\n---- v\n- | a\n+ | b\n+ | d\n", "the changes differ"),
        ("expect q changelog\n---- v\n- | 1 | a\n", "2 values are written behind the sign"),
        ("expect q changelog\n---- w\n", "no column 'w'"),
    ],
)
def test_other_changes_fail(tmp_path, text, message):
    assert message in outcome(tmp_path, text)


def test_commits_have_names(tmp_path):
    made = "insert m (i, v)\n1 | a\n\ncommit before\n\ninsert m (i, v)\n1 | b\n\n"
    past = "query rowsort\nSELECT v FROM table(m) FOR SYSTEM_TIME AS OF COMMIT $before\n----\na\nc\n"
    assert outcome(tmp_path, made + past) is None
    assert "rows differ" in outcome(tmp_path, f"{made}commit before\n\n{past}")
