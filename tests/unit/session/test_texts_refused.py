"""Text and JSON that no column takes: refused where it is given, with the place; from files it is set aside."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import watersmeet
from watersmeet.session.connections.texts import shown
from watersmeet.values.types import JSON_MAX_DEPTH, JSONB

ZERO, SURROGATE = "a\0b", "a\ud800b"


def nested(levels):
    return "[" * levels + "]" * levels


@pytest.fixture
def table(run):
    run("CREATE TABLE t (s varchar, j jsonb, v varchar[])")


@pytest.mark.parametrize("value", [ZERO, SURROGATE])
@pytest.mark.parametrize(
    ("sql", "wrap"),
    [
        ("INSERT INTO t (s) VALUES (?)", lambda v: v),
        ("INSERT INTO t (v) VALUES (?)", lambda v: ["x", v]),
        ("SELECT s FROM t WHERE s = ?", lambda v: v),
        ("UPDATE t SET s = ?", lambda v: v),
    ],
)
def test_a_parameter(fails, table, value, sql, wrap):
    err = fails(sql, wrap(value))
    assert (err.condition, err.sqlstate) == ("CHARACTER_NOT_IN_REPERTOIRE", "22021")
    assert err.column == sql.index("?") + 1
    str(err).encode()


@pytest.mark.parametrize(("value", "shown"), [(ZERO, "U+0000"), (SURROGATE, "U+D800")])
@pytest.mark.parametrize("sql", ["SELECT '{}'", "INSERT INTO t (s) VALUES ('{}')", 'SELECT 1 AS "{}"', "-- {}", "{}"])
def test_a_statement(fails, table, value, shown, sql):
    err = fails(sql.format(value))
    assert (err.condition, err.span.start) == ("CHARACTER_NOT_IN_REPERTOIRE", sql.index("{") + 1)
    assert shown in err.message
    str(err).encode()


def test_an_escape(fails, table):
    for sql in (r"SELECT e'a\x00b'", r"INSERT INTO t (s) VALUES (e'a\000b')"):
        assert fails(sql).condition == "CHARACTER_NOT_IN_REPERTOIRE"


@pytest.mark.parametrize("value", [ZERO, SURROGATE])
def test_many_rows_at_once(connection, run, table, value):
    with pytest.raises(watersmeet.Error, match="CHARACTER_NOT_IN_REPERTOIRE"):
        connection.cursor().executemany("INSERT INTO t (s) VALUES (?)", [["x"], [value], ["y"]])
    assert run("SELECT s FROM t") == []


def test_the_connection_goes_on(run, fails, table):
    fails("INSERT INTO t (s) VALUES (?)", ZERO)
    run("INSERT INTO t (s, j) VALUES ('x', ?)", {"k": "\0"})
    assert run("SELECT s, j FROM t") == [("x", {"k": "\0"})]


@pytest.mark.parametrize("levels", [JSON_MAX_DEPTH + 1, 100_000])
def test_json_without_bottom(run, fails, table, levels):
    for sql, values in [
        (f"INSERT INTO t (j) VALUES ('{nested(levels)}')", ()),
        ("INSERT INTO t (j) VALUES (?)", (nested(levels),)),
        (f"SELECT '{nested(levels)}'::jsonb", ()),
    ]:
        err = fails(sql, *values)
        assert (err.condition, err.sqlstate) == ("JSON_TOO_DEEP", "54001")
    value = "x"
    for _ in range(levels):
        value = [value]
    assert fails("INSERT INTO t (j) VALUES (?)", {"k": value}).condition == "JSON_TOO_DEEP"
    assert run("SELECT count(*) FROM t") == [(0,)]


def test_json_as_deep_as_it_may_be(run, table):
    wide = "[" + ",".join(['"[["', "[]", "{}"] * 500) + "]"
    for text in (nested(JSON_MAX_DEPTH), wide):
        run("INSERT INTO t (j) VALUES (?)", text)
    rows = [row[0] for row in run("SELECT j FROM t")]
    assert sorted(json.dumps(r) for r in rows) == sorted(json.dumps(json.loads(x)) for x in (wide, nested(650)))
    assert all(json.loads(shown(r, JSONB)) == r for r in rows)
    assert shown({"x": float("inf")}, JSONB) == '{"x": "Infinity"}'


def test_json_that_an_expression_makes_too_deep_for_python(run, table):
    run("INSERT INTO t (s) VALUES (?)", nested(5000))
    with pytest.raises(watersmeet.Error, match="JSON_TOO_DEEP"):
        run("SELECT s::jsonb FROM t")
    assert run("SELECT length(s::jsonb::varchar) FROM t") == [(10_000,)]


def test_functions_of_json_that_an_expression_makes_too_deep_for_a_column(run, table):
    """No function goes down by recursion, which would end the process where the stack is small."""
    deep = '{"a":' * 100_000 + "1" + "}" * 100_000
    wide = json.dumps([{"a": '[[["'}] * 20_000)
    for text in (deep, wide, '[{"a": 1}]', '{"b": null}', None):
        run("INSERT INTO t (s) VALUES (?)", text)
    merged = "length((s::jsonb || '{\"a\": 2}')::varchar)"
    run(
        "CREATE MATERIALIZED VIEW v AS SELECT length(s) AS n, s::jsonb @> '[{}]' AS c, "
        f"length(jsonb_strip_nulls(s::jsonb)::varchar) AS m, s::jsonb = s::jsonb AS e, {merged} AS b FROM t; FLUSH"
    )
    assert run("SELECT n, c, m, e, b FROM v ORDER BY n") == [
        (10, True, 10, True, 20),
        (11, False, 2, True, 19),
        (len(wide), True, len(wide), True, len(wide) + 10),
        (len(deep), False, len(deep) + 100_000, True, 8),
        (None, None, None, None, None),
    ]


@pytest.mark.parametrize("kind", ["json", "csv", "parquet"])
def test_a_file_with_json_without_bottom(run, tmp_path, kind):
    files = tmp_path / "in"
    files.mkdir()
    values = ["[1]", nested(JSON_MAX_DEPTH + 1), nested(100_000), nested(JSON_MAX_DEPTH)]
    match kind:
        case "json":
            (files / "x.json").write_text("".join(f'{{"id": {i}, "j": {v}}}\n' for i, v in enumerate(values)))
        case "csv":
            (files / "x.csv").write_text("id,j\n" + "".join(f'{i},"{v}"\n' for i, v in enumerate(values)))
        case _:
            pq.write_table(pa.table({"id": pa.array(range(4), pa.int32()), "j": values}), files / "x.parquet")
    run(f"CREATE SOURCE s (id int, j jsonb) WITH (connector = 'file', path = '{files}', format = '{kind}')")
    run("CREATE MATERIALIZED VIEW v AS SELECT id, j FROM s; FLUSH")
    assert run("SELECT id FROM v ORDER BY id") == [(0,), (3,)]
    assert len(run("SELECT j FROM v")) == 2
    assert [row[3] for row in run("SHOW DEAD LETTERS")] == ['value: column "j" is not jsonb'] * 2
