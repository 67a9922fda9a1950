"""CREATE MATERIALIZED VIEW … INTO stream, where the stream does not take what the view gives."""

from __future__ import annotations

import pytest

import watersmeet
from watersmeet.errors import Error


def test_what_a_stream_does_not_take_is_shown_and_stops_nothing_else(tmp_path):
    with watersmeet.connect(tmp_path / "db", "timeplus", runtime="inprocess") as connection:

        def run(sql):
            cursor = connection.execute(sql)
            return cursor.fetchall() if cursor.description else None

        run("CREATE STREAM s (i int); CREATE STREAM small (n int16); CREATE STREAM wide (i int)")
        run("CREATE MATERIALIZED VIEW narrow INTO small AS SELECT i * 1000 AS n FROM s")
        run("CREATE MATERIALIZED VIEW copied INTO wide AS SELECT i FROM s; INSERT INTO s (i) VALUES (1), (100)")
        with pytest.raises(Error, match="100000 is out of range"):
            run("FLUSH")
        jobs = {row[0]: row for row in run("SHOW JOBS")}
        assert (jobs["narrow"][2], jobs["copied"][11]) == ("running", None)
        assert jobs["narrow"][11].startswith('stream "small" does not accept its rows: INVALID_VALUE: value 100000')
        assert [(row[0], row[1]) for row in run("SHOW ERRORS")] == [("narrow", "not written")]
        with watersmeet.connect(tmp_path / "db", "timeplus", read_only=True) as reader:  # what other processes see
            assert [row[11] for row in reader.execute("SHOW JOBS").fetchall() if row[0] == "narrow"] == [
                jobs["narrow"][11]
            ]
            assert [(row[0], row[1]) for row in reader.execute("SHOW ERRORS").fetchall()] == [("narrow", "not written")]
        assert sorted(run("SELECT i FROM table(wide)")) == [(1,), (100,)]
        cursor = connection.execute("SELECT i + 1 AS j FROM s")
        run("INSERT INTO s (i) VALUES (7)")
        assert next(iter(cursor)) == (8,)
        run("DROP VIEW narrow; FLUSH")
        assert run("SHOW ERRORS") == run("SELECT n FROM table(small)") == []
        with watersmeet.connect(tmp_path / "db", "timeplus", read_only=True) as reader:
            assert reader.execute("SHOW ERRORS").fetchall() == []
        assert sorted(run("SELECT i FROM table(wide)")) == [(1,), (7,), (100,)]
