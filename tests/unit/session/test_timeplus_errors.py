"""Texts and numbers of Timeplus' errors are Proton's."""

from __future__ import annotations

import pickle

import pytest

import watersmeet
from watersmeet import Error
from watersmeet.dialects.timeplus.ddl import CODES
from watersmeet.errors import CONDITIONS

STREAMS = """CREATE STREAM a(i int, k string); CREATE STREAM b(j int, k string); CREATE MUTABLE STREAM m(k string,
        v int) PRIMARY KEY k;
    CREATE STREAM vk(k string, v int) PRIMARY KEY k SETTINGS mode='versioned_kv';
    CREATE STREAM ck(k string, v int) PRIMARY KEY k SETTINGS mode='changelog_kv'"""


@pytest.mark.parametrize(
    ("sql", "condition", "code", "text"),
    [
        (
            "vk JOIN a ON vk.k = a.k",
            "JOIN_KIND",
            48,
            "'VersionedKV stream' INNER ALL JOIN 'Append stream' is not supported",
        ),
        (
            "a FULL JOIN m ON a.k = m.k",
            "JOIN_KIND",
            48,
            "'Append stream' FULL ALL JOIN 'Mutable stream' is not supported",
        ),
        ("a RIGHT JOIN b ON a.k = b.k", "JOIN_KIND", 48, "Stream join only supports inner/left join"),
        (
            "a FULL JOIN b ON a.k = b.k AND date_diff_within(2m)",
            "JOIN_KIND",
            48,
            (
                "Only inner/left range join is supported and the left and right stream must be append-only "
                "streams in range join"
            ),
        ),
        (
            "a JOIN m ON a.k = m.k AND date_diff_within(a._tp_time, m._tp_time, 2m)",
            "JOIN_KIND",
            48,
            "append-only streams in range join",
        ),
        (
            "a LATEST JOIN ck ON a.k = ck.k",
            "JOIN_KIND",
            48,
            "The right data stream semantic of inner latest JOIN is expected to be 'Append', but got 'Changelog'",
        ),
        (
            "m ASOF JOIN a ON m.k = a.k AND m.v >= a.i",
            "JOIN_KIND",
            48,
            "The left data stream semantic of inner asof JOIN is expected to be 'Append', but got 'Changelog'",
        ),
        (
            "a JOIN table(changelog(b, k)) AS c ON a.k = c.k",
            "JOIN_KIND",
            48,
            "The filled join data doesn't support changelog processing",
        ),
        (
            "a JOIN b ON a.k = b.k OR a.i = b.j",
            "JOIN_WITHOUT_EQUALITY",
            48,
            "Stream to Stream join only supports only one disjunct join clause",
        ),
        (
            "a LATEST JOIN b ON a.k = b.k AND a.i > 1",
            "FEATURE_NOT_SUPPORTED",
            48,
            "Streaming join doesn't support predicates in JOIN ON clause. Use WHERE predicate instead",
        ),
        (
            "a JOIN b ON a.k = b.k AND date_diff_within(0s)",
            "SYNTAX_ERROR",
            62,
            "Range join requires left bound of the range is less than or equal to zero, but got lower_bound=0",
        ),
        ("a JOIN b ON a.k = b.k AND date_diff_within(-2m)", "SYNTAX_ERROR", 62, "but got lower_bound=120"),
        (
            "a JOIN b ON a.k = b.k AND date_diff_within(1h) SETTINGS max_join_range = 300",
            "SYNTAX_ERROR",
            62,
            "The join range (-3600, 3600) is too big. If two streams have big difference in timestamps",
        ),
        (
            "a JOIN b ON a.k = b.k AND date_diff('second', a._tp_time, b._tp_time) BETWEEN 1 AND 5",
            "SYNTAX_ERROR",
            62,
            "Range join requires left bound of the range is less than or equal to zero, but got lower_bound=1",
        ),
        (
            (
                "a JOIN b ON a.k = b.k AND date_diff('minute', a._tp_time, b._tp_time) > -5 AND -1 >= "
                "date_diff('minute', a._tp_time, b._tp_time)"
            ),
            "SYNTAX_ERROR",
            62,
            "Range join requires right bound of the range is greater than or equal to zero, but got upper_bound=-60",
        ),
        (
            (
                "a JOIN b ON a.k = b.k AND date_diff('hour', a._tp_time, b._tp_time) BETWEEN -1 AND 1 SETTINGS "
                "max_join_range = 300"
            ),
            "SYNTAX_ERROR",
            62,
            "The join range (-3600, 3600) is too big.",
        ),
        (
            "a JOIN m ON a.k = m.k AND date_diff('second', a._tp_time, m._tp_time) BETWEEN -1 AND 1",
            "JOIN_KIND",
            48,
            "append-only streams in range join",
        ),
        ("a JOIN b ON a.i < b.j", "JOIN_WITHOUT_EQUALITY", 403, "nested-loop join"),
        ("a ASOF JOIN b ON a.i < b.j", "ASOF_WITHOUT_EQUALITY", 62, "ASOF join needs at least one equal-join column"),
        (
            "a ASOF JOIN b ON a.i = b.j AND a.k < b.k",
            "DATATYPE_MISMATCH",
            169,
            "ASOF join not supported for type: string",
        ),
        ("a JOIN b ON a.k = b.k SETTINGS nothing = 1", "UNDEFINED_OBJECT", 115, "nothing"),
        ("a JOIN nothing ON a.k = b.k", "UNDEFINED_RELATION", 60, "nothing"),
        ("a JOIN b ON a.k = b.nothing", "UNDEFINED_COLUMN", 47, "nothing"),
    ],
)
def test_texts_and_numbers(sql, condition, code, text):
    with watersmeet.connect(None, "timeplus", runtime="inprocess") as connection:
        connection.execute(STREAMS)
        with pytest.raises(Error) as refused:
            connection.execute(f"SELECT * FROM {sql}")
        err = refused.value
        assert (err.condition, err.code) == (condition, code)
        assert text in str(err)
        assert f"error[{condition}] {err.sqlstate} (code {code}): " in str(err)
        assert err.span is not None
        assert err.to_json()["code"] == code
        assert pickle.loads(pickle.dumps(err)).code == code


def test_numbers_belong_to_the_dialect():
    assert CODES.keys() <= CONDITIONS.keys()
    with watersmeet.connect(None, "risingwave", runtime="inprocess") as connection, pytest.raises(Error) as refused:
        connection.execute("SELECT * FROM nothing")
    assert refused.value.code is None
    assert "code" not in refused.value.to_json()


def test_a_refused_expression_over_a_stream_is_shown_as_sql():
    with watersmeet.connect(runtime="inprocess", dialect="timeplus") as connection:
        connection.execute("CREATE STREAM a(i int)")
        with pytest.raises(Error) as refused:
            connection.execute("SELECT (SELECT max(i) FROM table(a)) GLOB 'x'")
        assert refused.value.message == 'the expression (SELECT MAX("i") FROM "a") GLOB \'x\' is not supported'


#: Casts and functions of a text that is none of their type. None of them may make a value of it.
CASTS = (
    "v::int", "v::uint8", "v::uint64", "v::int128", "v::float32", "v::float64", "v::bool", "v::date", "v::datetime",
    "v::datetime64(3)", "v::decimal(10, 2)", "cast(v, 'int')", "cast(v AS float64)", "v::array(int)", "v::json",
    "v::int + 1", "v:a::int", "to_int(v)", "to_int8(v)", "to_int16(v)", "to_int32(v)", "to_int64(v)", "to_int128(v)",
    "to_uint8(v)", "to_uint16(v)", "to_uint32(v)", "to_uint64(v)", "to_float(v)", "to_float32(v)", "to_float64(v)",
    "to_bool(v)", "to_date(v)", "to_date32(v)", "to_datetime(v)", "to_datetime64(v, 3)", "to_time(v)",
    "to_decimal(v, 2)", "to_decimal32(v, 2)", "to_decimal64(v, 2)", "to_ipv4(v)", "to_ipv6(v)",
    "to_unix_timestamp(v)", "parse_datetime(v, '%Y-%m-%d')", "parse_datetime_best_effort(v)", "to_year(v::date)",
)  # fmt: skip


def test_a_cast_that_fails_in_a_view_is_never_a_value():
    connection = watersmeet.connect(dialect="timeplus", runtime="inprocess")
    connection.show_own_writes()
    connection.execute("CREATE STREAM s (v string); CREATE STREAM taken (n int, w string)")
    items = ", ".join(f"{cast} AS x{i}" for i, cast in enumerate(CASTS))
    connection.execute(f"CREATE MATERIALIZED VIEW m AS SELECT {items} FROM s")
    connection.execute("CREATE MATERIALIZED VIEW w INTO taken AS SELECT to_int(v) AS n, v AS w FROM s")
    connection.execute("INSERT INTO s VALUES ('abc'), ('12'); FLUSH")
    columns = ", ".join(f"x{i}" for i in range(len(CASTS)))
    rows = connection.execute(f"SELECT {columns} FROM table(m)").fetchall()
    wrong = [cast for i, cast in enumerate(CASTS) if all(r[i] is not None for r in rows)]
    assert wrong == []
    assert connection.execute("SELECT n, w FROM table(taken)").fetchall() == [(12, "12")]
    assert {row[0] for row in connection.execute("SHOW ERRORS").fetchall()} >= {"m", "w"}
    connection.close()
