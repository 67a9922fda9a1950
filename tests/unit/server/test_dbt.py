"""dbt with its adapter for PostgreSQL: a project of five models against the server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from scripts.servers.archives import ServerUnavailableError
from scripts.servers.packages import fetch_packages

PROJECT = Path(__file__).with_name("dbt")
PINS = Path(__file__).parents[3] / "requirements" / "dbt.txt"
VERSION = "1.11.0"
SHOP = """
CREATE TABLE orders (id int PRIMARY KEY, item int, amount int);
CREATE TABLE items (item int PRIMARY KEY, name varchar);
INSERT INTO orders VALUES (1, 1, 10), (2, 2, 20), (3, 1, 30);
INSERT INTO items VALUES (1, 'one'), (2, 'two');
CREATE USER ann PASSWORD 'secret' SUPERUSER; CREATE USER eve PASSWORD 'secret'; FLUSH
"""
MODELS = {"lines", "sales", "large_sales", "names", "report"}


@pytest.fixture
def packages() -> Path:
    pins = PINS.read_text()
    assert f"dbt-postgres=={VERSION} " in pins
    try:
        return fetch_packages(f"dbt-postgres-{VERSION}", pins, 50)
    except ServerUnavailableError as cause:
        pytest.skip(str(cause))


def ran(packages: Path, folder: Path, port: int, project: Path = PROJECT) -> subprocess.CompletedProcess[str]:
    """`dbt build`, at its end."""
    command = [sys.executable, "-S", "-c", "from dbt.cli.main import cli; cli()", "--no-version-check", "build"]
    command += ["--project-dir", str(project), "--profiles-dir", str(PROJECT)]
    command += ["--target-path", str(folder / "target"), "--log-path", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(packages), "SHOP_PORT": str(port)}
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=240, env=environment)


def build(packages: Path, folder: Path, port: int) -> dict[str, dict]:
    """What `dbt build` did with each model and test, by its name."""
    done = ran(packages, folder, port)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((folder / "target" / "run_results.json").read_text())["results"]
    return {one["unique_id"].split(".")[2]: one for one in found}


def rows(served, name: str) -> list[tuple]:
    served.python.execute("FLUSH")
    return sorted(served.python.execute(f"SELECT * FROM marts.{name}").fetchall())


@pytest.mark.slow
def test_build_twice(serving, packages, tmp_path):
    served = serving(SHOP)
    first = build(packages, tmp_path, served.server.port)
    assert {name for name, one in first.items() if one["status"] == "success"} == MODELS
    assert [one["status"] for name, one in first.items() if name not in MODELS] == ["pass"] * 5
    assert rows(served, "sales") == [("one", 2, 40), ("two", 1, 20)]
    assert rows(served, "large_sales") == []
    assert rows(served, "report") == [("one", 40), ("two", 20)]

    served.python.execute("INSERT INTO orders VALUES (4, 2, 100)")
    wanted = [("one", 2, 40), ("two", 2, 120)]
    assert rows(served, "sales") == wanted  # materialized views follow by themselves
    assert rows(served, "large_sales") == [("two", 120)]
    assert rows(served, "report") == [("one", 40), ("two", 20)]  # a table is of the run that made it

    second = build(packages, tmp_path, served.server.port)
    assert {name: one["status"] for name, one in second.items()} == {n: one["status"] for n, one in first.items()}
    kept = {n for n, one in second.items() if one["adapter_response"].get("code") == "REFRESH MATERIALIZED VIEW"}
    assert kept == {"lines", "sales", "large_sales"}
    assert rows(served, "sales") == wanted
    assert rows(served, "report") == [("one", 40), ("two", 120)]
    assert rows(served, "names") == [("one",), ("two",)]

    with served.connect(user="eve", password="secret") as client:  # to whom the project grants SELECT
        assert client.execute("SELECT name FROM marts.report ORDER BY name").fetchall() == [("one",), ("two",)]
        assert client.execute("SELECT relname FROM pg_class WHERE relname = 'orders'").fetchall() == []


@pytest.mark.slow
def test_incremental_models(serving, packages, tmp_path):
    """The first run makes a table, as with PostgreSQL; the second one adds new rows by a temporary table."""
    served = serving(SHOP)
    project = tmp_path / "project"
    (project / "models").mkdir(parents=True)
    (project / "dbt_project.yml").write_text(
        "name: shop\nversion: '1.0'\nprofile: shop\nflags: {send_anonymous_usage_stats: false}\n"
    )
    query = "SELECT id, amount FROM {{ source('public', 'orders') }}"
    query += "{% if is_incremental() %} WHERE id > (SELECT max(id) FROM {{ this }}){% endif %}"
    (project / "models" / "grown.sql").write_text(f"{{{{ config(materialized='incremental') }}}} {query}")
    (project / "models" / "sources.yml").write_text("sources: [{name: public, tables: [{name: orders}]}]\n")
    first = ran(packages, tmp_path, served.server.port, project)
    assert first.returncode == 0, first.stdout
    assert rows(served, "grown") == [(1, 10), (2, 20), (3, 30)]
    served.python.execute("INSERT INTO orders (id, amount) VALUES (4, 40); FLUSH")
    second = ran(packages, tmp_path, served.server.port, project)
    assert second.returncode == 0, second.stdout
    assert rows(served, "grown") == [(1, 10), (2, 20), (3, 30), (4, 40)]
