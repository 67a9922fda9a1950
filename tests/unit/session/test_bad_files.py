"""Files that are not as they should be, through SQL: read, or counted and shown, never silently skipped."""

from __future__ import annotations

import json
import os
import time
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import watersmeet
from watersmeet.runtime import coordinator
from watersmeet.store import retention

WEEK_S = 7 * 24 * 3600
IN_AN_ARRAY = "json: an array; a file of JSON has one object in each line, without an array around them"


@pytest.fixture
def source(run, tmp_path):
    """Makes a source `s` and a view `v` of all its rows; gives its directory."""

    def source(columns="a int, b varchar", kind="csv", **options):
        directory = tmp_path / "in"
        directory.mkdir()
        settings = {"connector": "file", "path": directory, "format": kind, "settle_ms": 50, **options}
        listed = ", ".join(f"{name} = '{value}'" for name, value in settings.items())
        run(f"CREATE SOURCE s ({columns}) WITH ({listed}); CREATE MATERIALIZED VIEW v AS SELECT * FROM s")
        return directory

    return source


@pytest.fixture
def job(connection):
    """The row of SHOW JOBS that is about the source, its detail as a dict."""

    def job():
        cursor = connection.execute("SHOW JOBS LIKE 's'")
        row = dict(zip([d[0] for d in cursor.description], cursor.fetchone(), strict=True))
        return row | {"detail": json.loads(row["detail"] or "{}")}

    return job


def content(run):
    run("FLUSH")
    return sorted(run("SELECT * FROM v"), key=str)


def dead(run):
    return [row[1:4] for row in run("SHOW DEAD LETTERS FROM s")]


@pytest.mark.parametrize(
    ("kind", "good", "bad", "reason"),
    [
        ("csv", "a,b\n1,one\n", "two,x\n", 'value: column "a" is not integer'),
        ("csv", "a,b\n1,one\n", "2\n", "fields: 1 instead of 2"),
        ("csv", "a,b\n1,one\n", "2,x,y\n", "fields: 3 instead of 2"),
        ("csv", "a,b\n1,one\n", '2,"x\n', "quotes: not closed, or followed by other text"),
        ("csv", "a,b\n1,one\n", "99999999999,x\n", 'value: column "a" is not integer'),
        ("json", '\n{"a": 1, "b": "one"}\n', '{"a": "two"}\n', 'value: column "a" is not integer'),
        ("json", '\n{"a": 1, "b": "one"}\n', "nonsense\n", "json: not a JSON object"),
        ("json", '\n{"a": 1, "b": "one"}\n', '{"a": 1,\n', "json: not a JSON object"),
        ("json", '\n{"a": 1, "b": "one"}\n', "[1]\n", IN_AN_ARRAY),
    ],
)
def test_a_malformed_record_is_set_aside_with_file_line_and_reason(run, source, job, kind, good, bad, reason):
    directory = source(kind=kind)
    (directory / f"x.{kind}").write_text(good + bad)
    assert content(run) == [(1, "one")]
    assert dead(run) == [(f"x.{kind}", 3, reason)]
    assert (job()["errors"], job()["rows_in"], job()["state"]) == (1, 1, "running")
    assert job()["detail"]["first_dead"]["line"] == 3
    assert ("s", "dead letter", f"x.{kind}", 3, reason) in run("SHOW ERRORS")
    (directory / f"y.{kind}").write_text(good)
    assert content(run) == [(1, "one"), (1, "one")], "the view goes on"


def test_no_line_of_json_stops_a_view_and_numbers_keep_their_digits(run, source, job):
    directory = source("a int, b varchar, d numeric, j jsonb, s struct<x numeric(38,15), y varchar[]>", kind="json")
    deep = "[" * 1000 + "]" * 1000
    lines = [
        '{"a": 1, "b": "\\ud800", "d": 1.234567890123456}',
        '{"a": 2, "x": ' + deep + ', "d": 1.234567890123456}',
        '{"a": 0, "a": 3, "b": 99999999999999.99, "j": {"k": 0, "k": 99999999999999.99}}',
        '{"a": 4, "s": {"x": 1.234567890123456, "y": [99999999999999.99, 1.10]}}',
        '{"a": 5, "d": true}',
        '{"a": 6.5}',
    ]
    (directory / "x.json").write_text("\n".join(lines))
    run("FLUSH")
    assert run("SELECT a, b, d, j::varchar FROM v WHERE a < 4 ORDER BY a") == [
        (2, None, Decimal("1.2345678901"), None),
        (3, "99999999999999.99", None, '{"k": 99999999999999.99}'),
    ]
    assert run("SELECT (s).x, (s).y FROM v WHERE a = 4") == [
        (Decimal("1.234567890123456"), ["99999999999999.99", "1.10"])
    ]
    assert dead(run) == [
        ("x.json", 1, "json: not a JSON object"),
        ("x.json", 5, 'value: column "d" is not numeric'),
        ("x.json", 6, 'value: column "a" is not integer'),
    ]
    assert job()["state"] == "running"


def test_a_record_that_is_too_long_is_set_aside_alone(run, source):
    directory = source(max_record_bytes=20)
    (directory / "x.csv").write_text(f"a,b\n1,one\n2,{'x' * 100}\n3,three\n")
    assert content(run) == [(1, "one"), (3, "three")]
    assert dead(run) == [("x.csv", 3, "length: 103 bytes, more than max_record_bytes = 20")]


def test_bytes_that_are_no_text_are_set_aside(run, source):
    (source() / "x.csv").write_bytes(b"a,b\n1,\xff\xfe\n2,ok\n")
    assert content(run) == [(2, "ok")]
    assert dead(run) == [("x.csv", 2, "encoding: not UTF-8")]


def test_null_in_a_column_of_the_key_is_set_aside(run, tmp_path):
    (tmp_path / "x.json").write_text('{"a": 1}\n{"b": "no key"}\n')
    run(
        f"CREATE TABLE t (a int PRIMARY KEY, b varchar) WITH (connector = 'file', path = '{tmp_path}', "
        f"format = 'json'); FLUSH"
    )
    assert run("SELECT * FROM t") == [(1, None)]
    [(_, file, line, reason, text)] = run("SHOW DEAD LETTERS FROM t")
    assert (file, line, text) == ("x.json", 2, '{"b": "no key"}')
    assert '"a"' in reason


def test_on_error_stop_stops_the_source_and_says_where(run, connection, source, job, tmp_path):
    directory = source(kind="json", on_error="stop")
    (directory / "x.json").write_text('{"a": 1}\n')
    assert content(run) == [(1, None)]
    other = tmp_path / "other"
    other.mkdir()
    (other / "1.json").write_text('{"a": 10}\nbad\n')
    run(
        f"CREATE SOURCE lenient (a int) WITH (connector = 'file', path = '{other}', format = 'json', settle_ms = 50);"
        "CREATE MATERIALIZED VIEW joined AS SELECT v.a, l.a AS b FROM v JOIN lenient l ON v.a = l.a / l.a;"
        "CREATE MATERIALIZED VIEW beside AS SELECT a FROM lenient"
    )
    (directory / "y.json").write_text('{"a": 2}\nnonsense\n{"a": 3}\n')
    (other / "2.json").write_text('{"a": 20}\nbad, too\n')
    for _ in range(2):
        [notice] = connection.execute("FLUSH").notices
        why = (
            "a record can't be read: json: not a JSON object (y.json, line 2). To set such records aside and continue: "
            "ALTER SOURCE s CONNECTOR WITH (on_error = 'skip')"
        )
        assert notice == f'source "s" was not waited for, as it is stalled: {why}'
        assert run("SHOW SOURCES LIKE 's'")[0][:3] == ("s", "stalled", why)
        assert ("s", "problem", None, None, why) in run("SHOW ERRORS")
        assert {r[0]: r[11] for r in run("SHOW JOBS")}["joined"] == 'source "s" is stalled'
        assert run("SELECT * FROM v") == [(1, None)], "nothing of the file came through"
        assert run("SELECT * FROM beside ORDER BY a") == [(10,), (20,)], "others go on"
        assert run("SELECT * FROM joined ORDER BY b") == [(1, 10), (1, 20)], "also what joins the source"
        assert [row[:3] for row in run("SHOW DEAD LETTERS")] == [("lenient", f"{n}.json", 2) for n in (1, 2)], (
            "nothing is set aside of the epoch that was given up"
        )
    (directory / "y.json").write_text('{"a": 2}\n{"a": 3}\n')
    assert content(run) == [(1, None), (2, None), (3, None)], "it goes on when the input is corrected"
    assert run("SHOW SOURCES LIKE 's'")[0][:3] == ("s", "running", None)


@pytest.mark.parametrize("kind", ["SOURCE", "TABLE"])
def test_a_source_that_stopped_goes_on_without_its_bad_records(run, connection, tmp_path, kind):
    (tmp_path / "1.json").write_text('{"a": 1}\n')
    run(
        f"CREATE {kind} s (a int) WITH (connector = 'file', path = '{tmp_path}', format = 'json', settle_ms = 50, "
        "on_error = 'stop'); CREATE MATERIALIZED VIEW v AS SELECT * FROM s; FLUSH"
    )
    (tmp_path / "2.json").write_text('{"a": 2}\nnonsense\n{"a": 3}\n')
    [notice] = connection.execute("FLUSH").notices
    run(notice.partition("continue: ")[2])
    assert content(run) == [(1,), (2,), (3,)]
    assert [(place[:2]) for place in dead(run)] == [("2.json", 2)]
    run(f"ALTER {kind} s CONNECTOR WITH (on_error = 'stop')")
    (tmp_path / "3.json").write_text("bad again\n")
    [notice] = connection.execute("FLUSH").notices
    assert "3.json, line 1" in notice
    assert content(run) == [(1,), (2,), (3,)]


def test_csv_of_another_schema(run, source, job):
    directory = source()
    (directory / "1.csv").write_text("b,a\nswapped,1\n")
    (directory / "2.csv").write_text("a,b,c\n2,more,x\n")
    (directory / "3.csv").write_text("a,c\n3,x\n")
    (directory / "4.csv").write_text("c,d\n4,x\n5,x\n")
    assert content(run) == [(1, "swapped"), (2, "more"), (3, None)]
    assert dead(run) == [("4.csv", None, "schema: the file has none of the declared columns")]
    assert job()["detail"]["partial"] == ["3.csv: without b"]
    assert ("s", "partial", "3.csv", None, "the file has no column b: NULL was read") in run("SHOW ERRORS")
    assert job()["errors"] == 2


def test_parquet_of_another_schema(run, source, job):
    directory = source(kind="parquet")
    pq.write_table(pa.table({"a": pa.array([1], pa.int32()), "b": ["x"]}), directory / "1.parquet")
    pq.write_table(
        pa.table({"a": pa.array([2, 2**40], pa.int64()), "b": ["wide", "too wide"]}), directory / "2.parquet"
    )
    pq.write_table(pa.table({"a": pa.array([3], pa.int32())}), directory / "3.parquet")
    pq.write_table(pa.table({"a": ["4", "5"], "b": ["x", "y"]}), directory / "4.parquet")
    (directory / "5.parquet").write_bytes(b"PAR1 this is no Parquet file PAR1")
    assert content(run) == [(1, "x"), (2, "wide"), (3, None)]
    assert dead(run) == [
        ("2.parquet", 2, 'value: column "a" is not integer'),
        ("4.parquet", None, 'schema: column "a" is string, declared as integer'),
        ("5.parquet", None, "damaged: the file is not complete, or not of its format"),
    ]
    assert job()["detail"]["partial"] == ["3.parquet: without b"]
    assert job()["detail"]["damaged_files"] == 1
    assert job()["errors"] == 4, "a row, a file of two rows, a file"


def test_views_of_a_parquet_source_agree_whatever_they_read(run, source, job):
    directory = source(kind="parquet")
    run("CREATE MATERIALIZED VIEW numbers AS SELECT a FROM s")
    words = pa.array([b"one", b"caf\xe9", b"three"]).cast(pa.string(), safe=False)
    pq.write_table(pa.table({"a": pa.array([1, 2, 3], pa.int32()), "b": words}), directory / "x.parquet")
    assert content(run) == [(1, "one"), (3, "three")]
    run("CREATE MATERIALIZED VIEW later AS SELECT a FROM s")
    assert run("SELECT a FROM numbers ORDER BY a") == run("SELECT a FROM later ORDER BY a") == [(1,), (3,)]
    assert dead(run) == [("x.parquet", 2, 'value: column "b" is not character varying')]
    assert (job()["rows_in"], job()["errors"]) == (2, 1)


def test_a_file_that_vanishes_before_it_is_complete_is_counted(run, source, job):
    directory = source(kind="json", settle_ms=60_000)
    (directory / "x.json").write_text('{"a": 1}')
    assert content(run) == []
    assert job()["detail"]["pending_files"] == 1
    (directory / "x.json").unlink()
    assert content(run) == []
    assert dead(run) == [("x.json", None, "vanished: the file was gone before it was read")]
    assert job()["detail"]["vanished_files"] == 1


def test_a_file_that_was_read_may_go(run, source, job):
    directory = source(kind="json")
    (directory / "x.json").write_text('{"a": 1}\n')
    assert content(run) == [(1, None)]
    (directory / "x.json").unlink()
    assert content(run) == [(1, None)]
    assert dead(run) == []
    run("CREATE MATERIALIZED VIEW later AS SELECT a FROM s")
    assert run("SELECT * FROM later") == []
    assert job()["detail"]["history_lost"] == ["x.json"], "a view that came too late says so"


def test_a_file_that_is_replaced_under_its_name_is_shown_and_not_read_again(run, source, job):
    directory = source(kind="json")
    (directory / "x.json").write_text('{"a": 1}\n{"a": 2}\n')
    assert content(run) == [(1, None), (2, None)]
    other = directory / ".other"
    other.write_text('{"a": 7}\n{"a": 8}\n{"a": 9}\n')
    other.rename(directory / "x.json")
    assert content(run) == [(1, None), (2, None)]
    assert job()["detail"]["replaced"] == ["x.json"]
    assert [row[:3] for row in run("SHOW ERRORS")] == [("s", "replaced", "x.json")]
    (directory / "y.json").write_text('{"a": 3}\n')
    assert content(run) == [(1, None), (2, None), (3, None)]


def test_a_file_with_an_old_time_stamp_is_read(run, source):
    directory = source(kind="json")
    (directory / "new.json").write_text('{"a": 1}\n')
    assert content(run) == [(1, None)]
    old = directory / "old.json"
    old.write_text('{"a": 2}\n')
    os.utime(old, (time.time() - 3 * WEEK_S,) * 2)
    assert content(run) == [(1, None), (2, None)]


def test_a_half_written_line_waits_for_its_end(run, source, job):
    directory = source(kind="csv", settle_ms=60_000)
    with (directory / "x.csv").open("w") as file:
        file.write("a,b\n1,one\n2,tw")
        file.flush()
        assert content(run) == [(1, "one")]
        assert job()["detail"]["pending_files"] == 1
        file.write("o\n3,three\n")
    assert content(run) == [(1, "one"), (2, "two"), (3, "three")]
    assert dead(run) == []
    assert "pending_files" not in job()["detail"]


def test_a_half_written_parquet_file_waits_for_its_end(run, source, tmp_path):
    whole = tmp_path / "whole.parquet"
    pq.write_table(pa.table({"a": pa.array(range(1000), pa.int32())}), whole)
    data = whole.read_bytes()
    directory = source(kind="parquet", columns="a int", settle_ms=60_000)
    (directory / "x.parquet").write_bytes(data[: len(data) // 2])
    assert content(run) == []
    (directory / "x.parquet").write_bytes(data)
    assert len(content(run)) == 1000
    assert dead(run) == []


def test_the_directory_may_be_away_for_a_while(run, source, job):
    directory = source(kind="json")
    (directory / "x.json").write_text('{"a": 1}\n')
    assert content(run) == [(1, None)]
    away = directory.with_name("away")
    directory.rename(away)
    assert content(run) == [(1, None)]
    assert "No such file" in job()["detail"]["problem"]
    away.rename(directory)
    (directory / "y.json").write_text('{"a": 2}\n')
    assert content(run) == [(1, None), (2, None)]


def test_problems_are_known_to_other_processes_and_after_a_restart(tmp_path):
    files = tmp_path / "in"
    files.mkdir()
    (files / "x.csv").write_text("a\n1\nnonsense\n")
    (files / "y.csv").write_text("b\n1\n")
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as writer:
        writer.execute(f"CREATE SOURCE s (a int, c int) WITH (connector = 'file', path = '{files}', format = 'csv')")
        writer.execute("CREATE MATERIALIZED VIEW v AS SELECT * FROM s; FLUSH")
        with watersmeet.connect(tmp_path / "db", read_only=True) as reader:
            seen = [reader.execute(q).fetchall() for q in ("SHOW DEAD LETTERS", "SHOW JOBS", "SELECT a FROM v")]
            assert sorted(row[1:3] for row in seen[0]) == [("x.csv", 3), ("y.csv", None)]
            assert "x.csv: without c" in dict((r[0], r[11]) for r in seen[1])["s"]
            assert seen[2] == [(1,)]
            assert {row[2] for row in seen[1]} == {"running"}
    with watersmeet.connect(tmp_path / "db", read_only=True) as reader:
        assert {row[2] for row in reader.execute("SHOW JOBS")} == {"stopped"}, "nobody runs it"
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as again:
        again.execute("FLUSH")
        assert [again.execute(q).fetchall() for q in ("SHOW DEAD LETTERS", "SELECT a FROM v")] == [seen[0], seen[2]]
        jobs = {row[0]: row for row in again.execute("SHOW JOBS").fetchall()}
        assert jobs["s"][10] == 2


def test_a_relative_path_survives_another_working_directory(tmp_path, monkeypatch):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "x.json").write_text('{"a": 1}\n')
    monkeypatch.chdir(tmp_path)
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as first:
        first.execute("CREATE SOURCE s (a int) WITH (connector = 'file', path = 'in', format = 'json')")
        first.execute("CREATE MATERIALIZED VIEW v AS SELECT a FROM s; FLUSH")
    monkeypatch.chdir("/")
    with (tmp_path / "in" / "x.json").open("a") as file:
        file.write('{"a": 2}\n')
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as again:
        again.execute("FLUSH")
        assert sorted(again.execute("SELECT a FROM v").fetchall()) == [(1,), (2,)]


def test_a_name_that_is_no_text_is_read_shown_and_remembered(tmp_path):
    files = tmp_path / "in"
    files.mkdir()
    (files / os.fsdecode(b"caf\xe9.json")).write_text('{"a": 1}\n{"a": "bad"}\n')
    (files / os.fsdecode(b"gone\xff.json")).symlink_to("nothing")
    shown = [r"caf\xe9.json", r"gone\xff.json"]
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as first:
        first.execute(f"CREATE SOURCE s (a int) WITH (connector = 'file', path = '{files}', format = 'json')")
        first.execute("CREATE MATERIALIZED VIEW v AS SELECT a FROM s; FLUSH")
        assert first.execute("SELECT a FROM v").fetchall() == [(1,)]
        assert [row[2] for row in first.execute("SHOW ERRORS")] == shown
        detail = json.loads(first.execute("SHOW JOBS LIKE 's'").fetchone()[11])
        assert [detail["first_dead"]["file"], detail["unreadable"][0][0]] == shown
        with watersmeet.connect(tmp_path / "db", read_only=True) as reader:
            assert [row[1] for row in reader.execute("SHOW DEAD LETTERS")] == shown[:1]
            assert [row[2] for row in reader.execute("SHOW ERRORS")] == shown
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as again:
        again.execute("CREATE MATERIALIZED VIEW later AS SELECT a FROM s; FLUSH")
        assert again.execute("SELECT a FROM v UNION ALL SELECT a FROM later").fetchall() == [(1,), (1,)]


def test_a_link_in_a_circle_is_named_and_new_files_are_read(run, source, job):
    directory = source(kind="json", recursive="true")
    (directory / "circle.json").symlink_to("circle.json")
    (directory / "again").symlink_to(".")
    (directory / "x.json").write_text('{"a": 1}\n')
    assert content(run) == [(1, None)]
    assert run("SHOW ERRORS")[:2] == [
        ("s", "unreadable", "again", None, "a link to a directory that is read under another name"),
        ("s", "unreadable", "circle.json", None, "Too many levels of symbolic links"),
    ]
    assert job()["detail"]["unreadable_files"] == 2


@pytest.mark.parametrize("kind", ["json", "csv"])
def test_text_of_bad_records_that_holds_what_unicode_calls_the_end_of_a_line(run, source, kind):
    odd = "\u2028\u2029\u0085\x0b\x0c\x1c\x1d\x1e\x00"
    bad = [f"no{c}number" for c in odd]
    records = [json.dumps({"a": b}, ensure_ascii=False) if kind == "json" else f"{b},x" for b in bad]
    text = "\n".join([*([] if kind == "json" else ["a,b"]), *records, '{"a": 1}' if kind == "json" else "1,", ""])
    (source(kind=kind) / f"x.{kind}").write_text(text, encoding="utf-8")
    assert content(run) == [(1, None)]
    assert [row[4] for row in run("SHOW DEAD LETTERS FROM s")] == records
    assert [row[1] for row in run("SHOW ERRORS")] == ["dead letter"] * len(odd)


def test_a_renamed_file_is_not_read_again(run, source, job):
    directory = source(kind="json")
    (directory / "x.json").write_text('{"a": 1}\n')
    assert content(run) == [(1, None)]
    (directory / "x.json").rename(directory / "y.json")
    assert content(run) == [(1, None)]
    assert job()["detail"]["renamed_files"] == 1
    assert job()["errors"] == 0
    with (directory / "y.json").open("a") as file:
        file.write('{"a": 2}\n')
    run("CREATE MATERIALIZED VIEW later AS SELECT a FROM s")
    assert content(run) == [(1, None), (2, None)]
    assert run("SELECT a FROM later ORDER BY a") == [(1,), (2,)]


def test_of_too_many_dead_letters_the_newest_are_kept_and_all_are_counted(connection, run, source, job, monkeypatch):
    monkeypatch.setattr(coordinator, "SAVE_EPOCHS", 0)
    run("ALTER SYSTEM SET retention = 0")
    directory = source(kind="json")
    for number in range(8):
        (directory / f"{number}.json").write_text("nonsense\n" if number < 6 else '{"a": 1}\n')
        run("FLUSH")
    dead = connection._session.database.layout.directory / "dead"
    letters = sorted(dead.glob("*/*"))
    assert len(letters) == 6
    monkeypatch.setattr(retention, "DEAD_BYTES", sum(path.stat().st_size for path in letters[-3:]))
    connection._session.database._compactor.run()
    assert sorted(dead.glob("*/*")) == letters[-3:]
    assert [file for _, file, *_ in run("SHOW DEAD LETTERS FROM s")] == ["3.json", "4.json", "5.json"]
    assert run("SELECT count(*) FROM watersmeet.dead_letters") == [(3,)]
    assert job()["errors"] == 6


def test_a_query_reads_the_present_files_and_reports_what_is_undecodable(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("id,at\n1,2024-01-01\n2,never\n")
    with watersmeet.connect(tmp_path / "db", runtime="inprocess", parallelism=1) as connection:
        cursor = connection.cursor()
        cursor.execute(
            f"CREATE SOURCE s (id int, at date) WITH (connector = 'file', path = '{tmp_path / 'in'}', format = 'csv')"
        )
        cursor.execute("SELECT id FROM s")
        assert cursor.fetchall() == [(1,)]
        assert "1 record is left out" in "".join(cursor.notices)
        assert "line 3" in "".join(cursor.notices)
        (tmp_path / "in" / "b.csv").write_text("id,at\n3,2024-01-03\n")
        assert cursor.execute("SELECT id FROM s ORDER BY id").fetchall() == [(1,), (3,)]
        assert cursor.execute("SHOW TABLES").fetchall() == []
        cursor.execute("CREATE VIEW w AS SELECT max(id) AS id FROM s; CREATE TABLE t AS SELECT id FROM s")
        assert cursor.execute("SELECT w.id, (SELECT count(*) FROM t) FROM w").fetchall() == [(3, 2)]
        assert cursor.execute("SELECT count(*) FROM watersmeet.dead_letters").fetchall() == [(0,)]
