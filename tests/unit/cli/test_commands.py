"""The command line: what is printed where, and the exit codes. Without Spark."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time

import pytest
from typer.testing import CliRunner

import watersmeet
from watersmeet.cli.commands import app

#: A slow machine may take so long for what this one does in a second.
PATIENCE_S = 300
INPROCESS = ("--runtime", "inprocess")


@pytest.fixture
def call(tmp_path, monkeypatch):
    """Runs the command; gives the result, whose stdout, stderr and exit_code are of interest."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments, **options):
        result = CliRunner().invoke(app, [str(a) for a in arguments], **options)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return call


@pytest.fixture
def script(tmp_path):
    """Writes a script and gives its path."""

    def script(text):
        path = tmp_path / "script.sql"
        path.write_text(text)
        return path

    return script


@contextlib.contextmanager
def started(command, **options):
    """The command as a process, which ends with the block at the latest, or when it is time to give up."""
    with subprocess.Popen(command, encoding="utf-8", **options) as process:
        patience = threading.Timer(PATIENCE_S, process.kill)
        patience.start()
        try:
            yield process
        finally:
            patience.cancel()
            process.kill()


def json_lines(text):
    return [json.loads(line) for line in text.splitlines()]


def test_version(call):
    result = call("--version")
    assert (result.exit_code, result.stdout) == (0, f"watersmeet {watersmeet.__version__}\n")


def test_forced_colours_make_no_terminal_of_a_file(call, script, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    result = call("run", script("SELECT * FROM generate_series(1, 1500) AS g (k); SELECT zz"), *INPROCESS)
    lines = result.stdout.splitlines()
    assert lines[-3].split() == ["│", "1500", "│"]
    assert "(1,500 rows)" in lines[-1]
    assert "\x1b[1;31merror[UNDEFINED_COLUMN]" in result.stderr
    assert set(re.findall(r"\x1b\[[^a-zA-Z]*([a-zA-Z])", result.stdout + result.stderr)) == {"m"}


def test_wrong_use(call):
    for arguments in (
        ["nothing"],
        ["query", "SELECT 1"],
        ["run"],
        ["run", "missing.sql"],
        ["test"],
        ["run", "--runtime", "x"],
    ):
        result = call(*arguments)
        assert result.exit_code == 2
        assert result.stdout == ""
        assert "Error" in result.stderr


def test_a_script_without_sources_runs_to_its_end(call, script):
    result = call(
        "run",
        script("""
        CREATE TABLE t (a int, b varchar);
        INSERT INTO t VALUES (1, 'one'), (2, NULL);
        CREATE MATERIALIZED VIEW v AS SELECT b, count(*) AS n FROM t GROUP BY b;
        FLUSH;
        SELECT * FROM v ORDER BY b;
        EXPLAIN CREATE MATERIALIZED VIEW w AS SELECT a FROM t;
        SET streaming_enable_unaligned_join = true"""),
        *INPROCESS,
    )
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert [[c.strip() for c in line.strip("│").split("│")] for line in lines if line.startswith("│")] == [
        ["b", "n"],
        ["one", "1"],
        ["NULL", "1"],
    ]
    assert "(2 rows)" in lines
    assert any(line.startswith("StreamMaterialize { columns: [a") for line in lines), "plans are not folded"
    assert result.stderr.startswith("NOTICE: streaming_enable_unaligned_join has no effect")


def test_what_with_defines_goes_only_to_queries_that_name_it_and_topics_alone_do_not_keep_a_script_running(
    call, script
):
    done = call(
        "run",
        script("""
SET defaults.topic.autocreate=true;
CREATE TABLE orders (_key int, item string) FORMAT (INT, AVRO);
WITH bought AS (SELECT STREAM * FROM orders);
INSERT INTO result SELECT STREAM item FROM bought;
INSERT INTO orders (_key, item) VALUES (1, 'Mouse');
FLUSH;
SELECT item FROM result;
"""),
        "--dialect",
        "lenses",
        "--json",
        *INPROCESS,
    )
    assert [json.loads(line) for line in done.stdout.splitlines()] == [{"item": "Mouse"}]
    assert done.exit_code == 0


def test_json(call, script):
    result = call(
        "run",
        script("""SELECT 1 AS a, 1.50::numeric(5,2) AS d, NULL AS n, 'NaN'::double precision AS f,
        timestamp '2024-01-01 00:00:00' AS t, ARRAY[1, 2] AS l, '{"k": 1}'::jsonb AS j, interval '1 day' AS i,
            2 AS a"""),
        "--json",
        *INPROCESS,
    )
    assert json_lines(result.stdout) == [
        {
            "a": 1,
            "d": "1.50",
            "n": None,
            "f": "NaN",
            "t": "2024-01-01 00:00:00",
            "l": [1, 2],
            "j": {"k": 1},
            "i": "1 day",
            "a_1": 2,
        }
    ]


@pytest.mark.parametrize(
    ("sql", "code", "condition"),
    [
        ("SELECT zz", 1, "UNDEFINED_COLUMN"),
        ("SELEC 1", 1, "SYNTAX_ERROR"),
        ("CREATE TRIGGER t", 1, "FEATURE_NOT_SUPPORTED"),
        ("SELECT 'x'::int", 3, "INVALID_VALUE"),
    ],
)
def test_errors_go_to_standard_error_and_say_where(call, script, sql, code, condition):
    path = script(f"CREATE TABLE t (a int);\n{sql};")
    result = call("run", path, *INPROCESS)
    assert (result.exit_code, result.stdout) == (code, "")
    assert result.stderr.startswith(f"error[{condition}]")
    assert f"LINE 2: {sql}" in result.stderr
    result = call("run", path, "--json", *INPROCESS)
    [found] = json_lines(result.stderr)
    assert (result.exit_code, found["condition"]) == (code, condition)
    assert found["span"]["start"] >= 24


HALF = "CREATE TABLE t (a int);\nINSERT INTO t VALUES (1);\n{}SELECT zz FROM t;\nDROP TABLE t"


def rows_of_t(call, tmp_path):
    return call("query", "SELECT a FROM t", "--path", tmp_path / "db", "--json")


def test_nothing_is_left_of_a_script_that_fails(call, script, tmp_path):
    file = script(HALF.format(""))
    result = call("run", file, "--path", tmp_path / "db", *INPROCESS)
    assert result.exit_code == 1
    lines = result.stderr.splitlines()
    assert lines[1:] == [
        f"{file}:3:8",
        "LINE 3: SELECT zz FROM t;",
        "               ^^",
        "detail: Nothing of the script was done.",
    ]
    assert "UNDEFINED_RELATION" in rows_of_t(call, tmp_path).stderr
    again = json.loads(call("run", file, "--path", tmp_path / "db", "--json", *INPROCESS).stderr)
    assert (again["file"], again["line"], again["column"]) == (str(file), 3, 8)


def test_flush_in_a_script_commits_what_stands_before_it(call, script, tmp_path):
    result = call("run", script(HALF.format("FLUSH;\n")), "--path", tmp_path / "db", *INPROCESS)
    assert "The statements before the FLUSH in line 3 took effect, those after it did not." in result.stderr
    assert json_lines(rows_of_t(call, tmp_path).stdout) == [{"a": 1}]


@pytest.mark.parametrize("begun", [False, True])
def test_statements_before_an_error_are_done_where_the_script_is_no_transaction(call, script, tmp_path, begun):
    text = HALF.format("BEGIN;" if begun else "")
    options = () if begun else ("--no-transaction",)
    result = call("run", script(text), "--path", tmp_path / "db", *INPROCESS, *options)
    assert (result.exit_code, "detail" in result.stderr) == (1, False)
    assert json_lines(rows_of_t(call, tmp_path).stdout) == [{"a": 1}]


def test_scripts_are_run_in_order_each_as_one_transaction(call, tmp_path):
    folder = tmp_path / "more"
    folder.mkdir()
    (tmp_path / "z.sql").write_text("CREATE TABLE t (a int); SET dialect = 'timeplus'; SELECT to_string(1) AS x")
    (folder / "2.sql").write_text("INSERT INTO t VALUES (2); SELECT a FROM t ORDER BY a")
    (folder / "1.sql").write_text("INSERT INTO t VALUES (1); SELECT a::bigint FROM t")
    (folder / "notes.txt").write_text("no SQL")
    (tmp_path / "bad.sql").write_text("INSERT INTO t VALUES (3);\nSELECT nix")
    (tmp_path / "last.sql").write_text("INSERT INTO t VALUES (4)")
    result = call("run", "z.sql", folder, "bad.sql", "last.sql", "--path", tmp_path / "db", "--json", *INPROCESS)
    assert json_lines(result.stdout) == [{"x": "1"}, {"a": 1}, {"a": 1}, {"a": 2}]
    assert json.loads(result.stderr)["file"] == "bad.sql"
    assert json_lines(rows_of_t(call, tmp_path).stdout) == [{"a": 1}, {"a": 2}]


def test_no_script_is_run_if_one_of_them_can_not_be_read(call, tmp_path):
    (tmp_path / "a.sql").write_text("CREATE TABLE t (a int)")
    (tmp_path / "b.sql").write_text("\nSELECT 1 +")
    result = call("run", "a.sql", "b.sql", "--path", tmp_path / "db", *INPROCESS)
    assert result.exit_code == 1
    assert "b.sql:2:" in result.stderr
    assert not (tmp_path / "db").exists()
    (tmp_path / "empty").mkdir()
    assert "empty has no *.sql files" in call("run", "empty", *INPROCESS).stderr


def test_a_file_that_is_no_text(call, tmp_path):
    (tmp_path / "x.sql").write_bytes(b"SELECT '\xff'")
    result = call("run", "x.sql", *INPROCESS)
    assert result.exit_code == 1
    assert "is not UTF-8 text" in result.stderr


@pytest.fixture
def shop(script, tmp_path):
    """A script with a streaming source, whose directory is `in`."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.json").write_text('{"id": 1, "amount": 2.5}\n{"id": 2, "amount": 1}\n')
    return script("""
        CREATE TABLE names (id int PRIMARY KEY, name varchar);
        INSERT INTO names VALUES (1, 'Ann');
        CREATE SOURCE orders (id int, amount numeric(10, 2)) WITH (connector = 'file', path = 'in', format = 'json');
        CREATE MATERIALIZED VIEW totals AS
            SELECT name, sum(amount) AS total FROM orders LEFT JOIN names USING (id) GROUP BY name;""")


def test_once_reads_what_is_there(call, shop, tmp_path):
    db = ("--path", tmp_path / "db")
    result = call("run", shop, "--once", *db, *INPROCESS)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")
    result = call("query", "SELECT * FROM totals ORDER BY name", *db, "--json")
    assert json_lines(result.stdout) == [{"name": "Ann", "total": "2.50"}, {"name": None, "total": "1.00"}]
    (tmp_path / "in" / "2.json").write_text('{"id": 1, "amount": 1}\nnonsense\n')
    assert call("run", "--once", *db, *INPROCESS).exit_code == 0, "without a script it goes on"
    result = call("query", "SELECT total FROM totals WHERE name = 'Ann'; SHOW DEAD LETTERS", *db, "--json")
    assert json_lines(result.stdout) == [
        {"total": "3.50"},
        {"relation": "orders", "file": "2.json", "line": 2, "reason": "json: not a JSON object", "text": "nonsense"},
    ]


def test_the_same_script_again_runs_what_is_new(call, shop, tmp_path):
    db = ("--path", tmp_path / "db", *INPROCESS)
    call("run", shop, "--once", *db)
    result = call("run", shop, "--once", *db)
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == f"NOTICE: {shop.name}: 4 statements skipped, because the database has their effect\n"
    changed = shop.read_text().replace("sum(amount) AS total", "sum(amount) AS total, count(*) AS orders")
    shop.write_text(f"CREATE TABLE new (a int);{changed}")
    refused = call("run", shop, "--once", *db)
    assert refused.exit_code == 1
    assert 'materialized view "totals" already exists with another definition' in refused.stderr
    hint = f"hint: watersmeet migrate {shop} --path {tmp_path / 'db'} shows what would change"
    assert hint in refused.stderr
    shown = call("migrate", shop, *db)
    assert (shown.exit_code, shown.stdout.splitlines()[:3]) == (
        0,
        [f"{shop}: 2 to change", "  line 1: CREATE TABLE new (a int)", '  replace materialized view "totals"'],
    )
    assert shown.stderr == "nothing was changed; --yes changes it\n"
    assert call("migrate", shop, "--yes", *db).exit_code == 0
    result = call("query", "SELECT * FROM totals ORDER BY name", "--path", tmp_path / "db", "--json")
    assert json_lines(result.stdout)[0] == {"name": "Ann", "total": "2.50", "orders": 1}
    assert call("migrate", shop, *db).stdout == f"{shop}: nothing to change\n"


@pytest.mark.parametrize("rebuild", [(), ("--rebuild",)])
def test_another_parallelism(call, shop, tmp_path, rebuild):
    db = ("--path", tmp_path / "db", *INPROCESS)
    asked = ("query", "SELECT * FROM totals; SHOW PARAMETERS LIKE 'parallelism'", "--path", tmp_path / "db", "--json")
    call("run", shop, "--once", "--parallelism", 1, *db)
    before = call(*asked).stdout.splitlines()
    assert json.loads(before[-1]) == {"Name": "parallelism", "Value": "1"}
    assert call("run", "--once", "--parallelism", 3, *rebuild, *db).exit_code == 0
    after = call(*asked).stdout.splitlines()
    assert json.loads(after[-1]) == {"Name": "parallelism", "Value": "3"}
    assert sorted(after[:-1]) == sorted(before[:-1])


def test_a_source_that_stops_ends_with_3(call, script, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.json").write_text("nonsense\n")
    path = script(
        "CREATE SOURCE s (a int) WITH (connector = 'file', path = 'in', format = 'json', on_error = 'stop');"
        "CREATE MATERIALIZED VIEW v AS SELECT a FROM s"
    )
    result = call("run", path, "--once", *INPROCESS)
    assert result.exit_code == 3, result.stderr
    assert "1.json, line 1" in result.stderr
    assert "ALTER SOURCE s CONNECTOR WITH (on_error = 'skip')" in result.stderr


def test_query_reads_only(call, tmp_path):
    result = call("query", "SELECT 1", "--path", tmp_path / "nothing")
    assert result.exit_code == 1
    assert "there is no Watersmeet database" in result.stderr
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        connection.execute("CREATE TABLE t (a int)")
        result = call("query", "INSERT INTO t VALUES (1)", "--path", tmp_path / "db")
        assert (result.exit_code, "READ_ONLY_SESSION" in result.stderr) == (1, True)
        result = call("query", "DESCRIBE t", "--path", tmp_path / "db")
        assert "│ a " in result.stdout


def test_a_picture_that_can_not_be_written(call, tmp_path):
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        connection.execute("CREATE TABLE t (a int)")
    result = call("topology", "--path", tmp_path / "db", "--output", tmp_path / "nowhere" / "x.svg")
    assert (result.exit_code, "can't be written: No such file" in result.stderr) == (1, True)


def test_a_second_writer_is_refused(call, script, tmp_path):
    with watersmeet.connect(tmp_path / "db", runtime="inprocess"):
        result = call("run", script("SELECT 1"), "--path", tmp_path / "db", *INPROCESS)
    assert result.exit_code == 1
    assert "DATABASE_IN_USE" in result.stderr


def test_check_lists_all_that_would_be_refused(call, script):
    path = script("CREATE TABLE t (i int);\nCREATE VIEW v AS SELECT j FROM t;\nSELECT * FROM v;\nSELECT i FROM t")
    done = call("check", path)
    assert done.exit_code == 1
    assert done.stdout.splitlines() == [
        'error[UNDEFINED_COLUMN] 42703: column "j" does not exist',
        f"{path}:2:25",
        "LINE 2: CREATE VIEW v AS SELECT j FROM t;",
        "                                ^",
        f'{path}:3: relation "v" does not exist: see {path}:2',
        "4 statements: 2 would be refused (1 because of another one).",
    ]
    first, second = map(json.loads, call("check", path, "--json").stdout.splitlines())
    assert (first["condition"], first["line"], first["column"], first["follows"]) == ("UNDEFINED_COLUMN", 2, 25, None)
    assert (second["statement"], second["checked"]) == ("SELECT * FROM v", True)
    assert second["follows"] == {"file": str(path), "line": 2}
    path.write_text("CREATE TABLE t (i int);" + "\n" * 99 + "CREATE VIEW v AS SELECT j FROM t;\nSELECT * FROM v")
    assert f'{path}:101: relation "v" does not exist: see {path}:100' in call("check", path).stdout
    path.write_text("CREATE TABLE t (i int); SELECT i FROM t")
    done = call("check", path)
    assert (done.exit_code, done.stdout) == (0, "2 statements: none would be refused.\n")


@pytest.mark.parametrize(
    "text",
    ["CREATE TABLE t (i int); SELECT j FROM t; SELECT 1 +", "CREATE TABLE t (i int); SELECT j FROM t; SELECT k FROM t"],
)
def test_a_run_that_fails_says_how_many_others_would(call, script, text):
    path = script(text)
    done = call("run", path, *INPROCESS)
    assert done.exit_code == 1
    assert f"1 more statement would be refused: `watersmeet check {path}` shows them all." in done.stderr
    path.write_text("SELECT j FROM t")
    assert "watersmeet check" not in call("run", path, *INPROCESS).stderr


def test_explain(call, shop, script):
    result = call("explain", shop)
    assert result.exit_code == 0
    assert result.stdout.startswith("-- totals\nStreamMaterialize { columns: [name, total]")
    assert "StreamHashJoin { type: LeftOuter" in result.stdout
    [plan] = json_lines(call("explain", shop, "--json").stdout)
    assert plan["view"] == "totals"
    assert plan["plan"][0].startswith("StreamMaterialize")
    result = call("explain", script("CREATE TABLE t (a int); CREATE MATERIALIZED VIEW v AS SELECT b FROM t"))
    assert (result.exit_code, "UNDEFINED_COLUMN" in result.stderr) == (1, True)
    assert "no materialized view" in call("explain", script("CREATE TABLE t (a int)")).stderr


def test_text_tests(call, tmp_path):
    (tmp_path / "good.slt").write_text("query I\nSELECT 1\n----\n1\n")
    (tmp_path / "table.slt").write_text(
        "statement ok\nCREATE TABLE t (a int);\n\nstatement count 1\nINSERT INTO t VALUES (1)\n\n"
        "query I rowsort\nSELECT a FROM t\n----\n1\n"
    )
    result = call("test", tmp_path)
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1] == "2 passed, 0 failed"
    (tmp_path / "bad.slt").write_text("statement ok\nCREATE TABLE t (a int)\n\nquery I\nSELECT 1\n----\n2\n")
    (tmp_path / "worse.test").write_text("statement ok\nSELECT zz\n")
    result = call("test", tmp_path)
    assert result.exit_code == 1
    assert f"{tmp_path}/bad.slt:4: the rows differ\n  missing: 2\n  surplus: 1\n" in result.stdout
    assert f"{tmp_path}/worse.test:1: error[UNDEFINED_COLUMN]" in result.stdout
    assert result.stdout.splitlines()[-1] == "2 passed, 2 failed"
    records = {r["file"].rpartition("/")[2]: r["failure"] for r in json_lines(call("test", tmp_path, "--json").stdout)}
    assert records["good.slt"] is None
    assert "the rows differ" in records["bad.slt"]
    (tmp_path / "empty").mkdir()
    assert call("test", tmp_path / "empty").exit_code == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "arguments"), [(signal.SIGTERM, ("--json",)), pytest.param(signal.SIGINT, (), marks=pytest.mark.slow)]
)
def test_a_signal_ends_a_running_script_cleanly(shop, tmp_path, number, arguments):
    command = [sys.executable, "-m", "watersmeet", "run", str(shop), "--path", "db", *INPROCESS, *arguments]
    with started(
        command,
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONUTF8": "1"},
    ) as process:
        first = process.stderr.readline()
        while not arguments and "totals: in 3" not in first:  # a slow machine has not read all in the first second
            assert first.startswith("epoch ")
            first = process.stderr.readline()
        (tmp_path / "in" / "2.json").write_text('{"id": 1, "amount": 1}\n')
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            with watersmeet.connect(tmp_path / "db", read_only=True) as reader:
                if reader.execute("SELECT count(*) FROM totals WHERE total = 3.5").fetchall() == [(1,)]:
                    break
        process.send_signal(number)
        _, rest = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, rest
    if arguments:
        assert all("epoch" in line for line in json_lines(rest))
        assert json.loads(first)["sources"]["orders"]["dead"] == 0
    else:
        assert rest.endswith("stopping …\n")
        assert "source orders: 2 rows" in first
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        connection.execute("FLUSH")
        assert connection.execute("SELECT total FROM totals WHERE name = 'Ann'").fetchone()[0] == 3.5


RUNNING = """
-- dialect: timeplus
CREATE STREAM s (a int, b string);
CREATE STREAM m (k int, v int, PRIMARY KEY (k)) SETTINGS mode = 'versioned_kv';
SELECT a, b FROM s;
"""


def test_queries_that_run_at_the_end_of_a_script(call, script):
    """Without streaming sources nothing comes behind the last statement."""
    rows = "INSERT INTO s (a, b) VALUES (1, 'one'), (200, 'two'); INSERT INTO m (k, v) VALUES (1, 10)"
    result = call("run", script(RUNNING + rows), *INPROCESS)
    assert (result.exit_code, result.stdout) == (0, "   a │ b\n   1 │ one\n 200 │ two\n")
    result = call("run", script(RUNNING + "SELECT k, v FROM m;" + rows), *INPROCESS)
    assert result.stdout == "-- query 1\n   a │ b\n   1 │ one\n 200 │ two\n-- query 2\n     k │    v\n+    1 │   10\n"
    result = call("run", script(RUNNING + "SELECT k, v FROM m;" + rows), "--json", *INPROCESS)
    assert json_lines(result.stdout) == [
        {"query": "query 1", "a": 1, "b": "one"},
        {"query": "query 1", "a": 200, "b": "two"},
        {"query": "query 2", "k": 1, "v": 10, "_tp_delta": 1},
    ]


def test_queries_that_run_show_their_rows_before_an_error(call, script):
    result = call(
        "run",
        script(
            RUNNING
            + "INSERT INTO s (a, b) VALUES (1, 'one'); SELECT nix FROM s; INSERT INTO s (a, b) VALUES (2, 'two')"
        ),
        "--json",
        "--no-transaction",
        *INPROCESS,
    )
    assert result.exit_code == 1
    assert json_lines(result.stdout) == [{"a": 1, "b": "one"}]
    assert '"UNDEFINED_COLUMN"' in result.stderr


SOURCE = """CREATE SOURCE g (v bigint) WITH (connector = 'datagen', fields.v.kind = 'sequence', fields.v.start = 1,
            fields.v.end = 1000000, datagen.rows.per.second = 20); SET dialect = 'timeplus';"""


def test_rows_come_until_the_limit(call, script):
    result = call(
        "run", script(SOURCE + "SELECT v FROM g LIMIT 3; SELECT v + 100 AS w FROM g LIMIT 2"), "--json", *INPROCESS
    )
    assert result.exit_code == 0
    rows = json_lines(result.stdout)
    assert [r["query"] for r in rows].count("query 1") == 3
    assert [r["query"] for r in rows].count("query 2") == 2


@pytest.mark.slow
def test_ctrl_c_ends_a_query_that_runs(script):
    command = [sys.executable, "-m", "watersmeet", "run", str(script(SOURCE + "SELECT v FROM g")), *INPROCESS]
    with started(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "COLUMNS": "100", "PYTHONUTF8": "1"}
    ) as process:
        lines = [process.stdout.readline() for _ in range(3)]
        process.send_signal(signal.SIGINT)
        lines += process.stdout.readlines()
        assert (process.wait(timeout=PATIENCE_S), process.stderr.read()) == (0, "")
    numbers = [int(line) for line in lines[1:]]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


def test_a_reader_can_not_start_a_query_that_runs(call, tmp_path):
    with watersmeet.connect(tmp_path / "db", runtime="inprocess", dialect="timeplus") as connection:
        connection.execute("CREATE STREAM s (a int)")
    result = call("query", "SELECT a FROM s", "--path", tmp_path / "db", "--dialect", "timeplus")
    assert result.exit_code == 1
    assert (
        f"hint: watersmeet query only reads. watersmeet shell --path {tmp_path}/db and watersmeet run FILE"
        in result.stderr
    )


def test_a_script_begins_in_the_dialect_of_its_folder(call, tmp_path):
    (tmp_path / "timeplus").mkdir()
    (tmp_path / "timeplus" / "1.sql").write_text("SELECT to_string(1) AS x")
    (tmp_path / "2.sql").write_text("SELECT 1::varchar AS y")
    result = call("run", "timeplus", "2.sql", "--json", *INPROCESS)
    assert json_lines(result.stdout) == [{"x": "1"}, {"y": "1"}]
    result = call("run", "timeplus", "--dialect", "lenses", *INPROCESS)
    assert (result.exit_code, "to_string" in result.stderr) == (1, True)
    explained = call("explain", "timeplus/1.sql")
    assert (explained.exit_code, "makes no materialized view" in explained.stderr) == (0, True)


def test_a_shell_returns_to_its_dialect_after_a_script(call, tmp_path):
    (tmp_path / "timeplus").mkdir()
    (tmp_path / "timeplus" / "1.sql").write_text("SELECT to_string(1) AS x;")
    result = call(
        "shell", *INPROCESS, "-c", "\\i timeplus/1.sql", "-c", "SELECT 2::varchar AS y", "-f", "timeplus/1.sql"
    )
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.count("│ x │") == 2
