"""query, explain and status: formats, files, standard input, and messages for wrong use."""

from __future__ import annotations

import json

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import watersmeet
from watersmeet.cli.commands import app


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A database with a table of two rows, a view of it, and a view that data has stopped."""
    path = tmp_path_factory.mktemp("reading") / "shop"
    with watersmeet.connect(path, runtime="inprocess") as connection:
        connection.execute("CREATE TABLE sales (id int, item varchar, price numeric, PRIMARY KEY (id))")
        connection.execute("INSERT INTO sales VALUES (1, 'a|b', 2.50), (2, NULL, 1), (3, '', 3)")
        connection.execute("CREATE MATERIALIZED VIEW totals AS SELECT sum(price) AS total FROM sales")
        connection.execute("FLUSH")
    return path


@pytest.fixture
def call(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def call(*arguments, **options):
        result = CliRunner().invoke(app, [*arguments, "--path", str(path)], **options)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return call


ROWS = "SELECT * FROM sales ORDER BY id"
CSV = 'id,item,price\n1,a|b,2.5\n2,,1\n3,"",3\n'
MARKDOWN = "| id | item | price |\n| ---: | --- | ---: |\n| 1 | a\\|b | 2.5 |\n| 2 | NULL | 1 |\n| 3 |  | 3 |\n"


def test_csv_tells_null_from_an_empty_text(call):
    assert call("query", ROWS, "--csv").stdout == CSV


def test_markdown(call):
    assert call("query", ROWS, "--markdown").stdout == MARKDOWN


@pytest.mark.parametrize(("name", "content"), [("x.csv", CSV), ("x.md", MARKDOWN)])
def test_the_name_of_the_file_implies_the_format(call, tmp_path, name, content):
    assert call("query", ROWS, "-o", name).output == ""
    assert (tmp_path / name).read_text(encoding="utf-8") == content


def test_the_command_line_has_precedence_over_the_name_and_the_environment(call, tmp_path):
    call("query", ROWS, "-o", "x.md", "--csv", env={"WATERSMEET_JSON": "true"})
    assert (tmp_path / "x.md").read_text(encoding="utf-8") == CSV
    assert json.loads(call("query", "SELECT 1 AS a", env={"WATERSMEET_JSON": "true"}).stdout) == {"a": 1}


def test_parquet(call, tmp_path):
    assert call("query", "SELECT id, id FROM sales ORDER BY 1", "-o", "x.parquet").exit_code == 0
    assert pq.read_table(tmp_path / "x.parquet").to_pydict() == {"id": [1, 2, 3], "id_1": [1, 2, 3]}
    refused = call("query", "SELECT 1; SELECT 2", "-o", "y.parquet")
    assert (refused.exit_code, "rows of one query" in refused.stderr) == (1, True)
    assert not (tmp_path / "y.parquet").exists()


def test_a_file_is_not_written_after_an_error(call, tmp_path):
    (tmp_path / "x.csv").write_text("before")
    assert call("query", "SELECT 1; SELECT nix", "-o", "x.csv").exit_code == 1
    assert (tmp_path / "x.csv").read_text() == "before"


def test_standard_input(call):
    assert call("query", "-", "--csv", input=ROWS).stdout == CSV


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("query", "SELECT 1", "--csv", "--json"), 2, "--csv and --json exclude each other"),
        (("query", "SELECT 1", "--cvs"), 2, "Possible options: --csv"),
        (("query", "SELECT 1", "-o", "nowhere/x.csv"), 1, "nowhere/x.csv can't be written: No such file"),
        (("explain", "missing.sql"), 2, "missing.sql is neither a file nor SQL"),
    ],
)
def test_wrong_use_says_what_to_do(call, arguments, code, said):
    result = call(*arguments)
    assert (result.exit_code, result.stdout) == (code, "")
    assert said in result.stderr


def test_explain_of_a_string_names_relations_of_the_database(call):
    result = call("explain", "SELECT id FROM sales")
    assert result.stdout.startswith("-- query 1\nBatchQuery { engine: DuckDB }")
    result = call("explain", "-", input="CREATE MATERIALIZED VIEW twice AS SELECT 2 * total AS t FROM totals")
    assert result.stdout.startswith("-- twice\nStreamMaterialize { columns: [t")
    assert "StreamTableScan { table: totals" in result.stdout
    result = call("explain", "SELECT nix FROM sales")
    assert result.stderr.startswith('error[UNDEFINED_COLUMN] 42703: column "nix" does not exist\nLINE 1:')


def test_explain_creates_nothing_in_a_database(call, path):
    result = call("explain", "CREATE TABLE more (a int); CREATE MATERIALIZED VIEW v AS SELECT a FROM more")
    assert (result.exit_code, 'relation "more" does not exist' in result.stderr) == (1, True)


def test_status(call):
    result = call("status")
    assert result.exit_code == 0
    title, *table = result.stdout.splitlines()
    assert title.split(",")[0] == "stopped"
    assert "rows in" in table[1]
    assert "rows/s" not in table[1]
    assert [line.split()[1:4] for line in table if "totals" in line] == [["totals", "│", "3"]]
    assert [v["name"] for v in json.loads(call("status", "--json").stdout)["views"]] == ["totals"]


def test_status_ends_with_3_if_data_has_stopped_a_source(tmp_path):
    (tmp_path / "1.json").write_text("nonsense\n")
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        connection.execute(f"""
            CREATE SOURCE s (a int) WITH (connector = 'file', path = '{tmp_path}', match_pattern = '*.json',
                format = 'json', on_error = 'stop');
            CREATE MATERIALIZED VIEW v AS SELECT a FROM s; FLUSH""")
    result = CliRunner().invoke(app, ["status", "--path", str(tmp_path / "db")])
    assert (result.exit_code, "source s" in result.stdout) == (3, True)
