"""Connections to DuckDB reach nothing outside and can't be opened up again."""

from __future__ import annotations

import duckdb
import pyarrow as pa
import pytest

from watersmeet import duckdbs


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
