"""Connections to DuckDB reach nothing outside and can't be opened up again."""

from __future__ import annotations

import duckdb
import pyarrow as pa
import pytest

from watersmeet.system import duckdbs


def setting(connection, name: str):
    return connection.execute(f"SELECT current_setting('{name}')").fetchone()[0]


def test_settings(tmp_path):
    with duckdbs.connect(memory_limit="100MiB", threads=2, spill_directory=str(tmp_path)) as connection:
        assert setting(connection, "threads") == 2
        assert setting(connection, "memory_limit") == "100.0 MiB"
        assert setting(connection, "temp_directory") == str(tmp_path)
        assert setting(connection, "TimeZone") == "UTC"
        assert setting(connection, "enable_progress_bar") is False
        assert setting(connection, "preserve_insertion_order") is True
        assert setting(connection, "autoload_known_extensions") is False


def test_nothing_outside_can_be_read_nor_allowed(tmp_path):
    (tmp_path / "rows.csv").write_text("a\n1\n")
    lent = pa.table({"a": [1]})
    with duckdbs.connect(memory_limit="100MB") as connection:
        with pytest.raises(duckdb.PermissionException):
            connection.sql(f"FROM '{tmp_path}/rows.csv'")
        with pytest.raises(duckdb.CatalogException, match="lent"):
            connection.sql("FROM lent")
        with pytest.raises(duckdb.InvalidInputException, match="locked"):
            connection.execute("SET threads = 4")
    assert lent.num_rows == 1


def test_what_may_read_files_is_locked_too(tmp_path):
    (tmp_path / "rows.csv").write_text("a\n1\n")
    with duckdbs.connect(memory_limit="100MB", external_access=True) as connection:
        assert connection.sql(f"FROM '{tmp_path}/rows.csv'").fetchall() == [(1,)]
        with pytest.raises(duckdb.InvalidInputException, match="locked"):
            connection.execute("SET autoinstall_known_extensions = true")


def test_only_the_optimizers_that_are_named_are_left():
    with duckdbs.connect(memory_limit="100MB", optimizers=["expression_rewriter"]) as connection:
        names = {n for (n,) in connection.execute("SELECT name FROM duckdb_optimizers()").fetchall()}
        assert set(setting(connection, "disabled_optimizers").split(",")) == names - {"expression_rewriter"}


@pytest.mark.parametrize(
    ("taken", "found"),
    [
        ("SELECT DISTINCT ON (q.k) q.* FROM ({0}) q ORDER BY k, id DESC", [7]),
        ("SELECT * FROM ({0}) q ORDER BY big DESC LIMIT 4000", []),
        ("SELECT * FROM ({0}) q ORDER BY id OFFSET 5001", [10]),
    ],
)
def test_without_filters_of_joins_a_join_does_not_change_what_is_taken_below_it(taken, found):
    """The tables are those of `unparsing/test_queries.py`, where such SQL is written so that it is right with them."""
    made = duckdbs.connect(memory_limit="100MB", join_filters=False, locked=False)
    with made, duckdbs.another(made) as connection:
        connection.execute(
            "CREATE TABLE b AS SELECT 10 + i AS k, 333333333333 AS big, -i AS id, 5 AS y FROM range(5000) t(i);"
            "INSERT INTO b VALUES (1, 1, 10, 5), (1, 222222222222, 11, 5), (2, 1, 7, 5);"
            "CREATE TABLE s AS SELECT 5 AS y; CREATE TABLE r AS SELECT CAST(1 AS bigint) AS big"
        )
        below = taken.format("SELECT b.k, b.big, b.id FROM b JOIN s ON b.y = s.y")
        assert connection.sql(f"SELECT d.id FROM r JOIN ({below}) d USING (big)").fetchall() == [(i,) for i in found]
