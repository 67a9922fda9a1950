"""Types as tools of PostgreSQL declare them: lengths, digits, fields of intervals, uuid, json, addresses."""

from __future__ import annotations

import datetime as dt
import random
import uuid

import pytest

from watersmeet import Error

ONE = uuid.UUID("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11")


def refused(connection, sql):
    with pytest.raises(Error) as found:
        connection.execute(sql)
    return found.value.condition, found.value.message


def one(connection, sql):
    (row,) = connection.execute(sql).fetchall()
    return row[0] if len(row) == 1 else row


def test_texts_have_at_most_their_length(connection):
    """PostgreSQL 17, 8.3: only blanks are cut without an error; an explicit cast cuts any text."""
    connection.execute("CREATE TABLE t (v varchar(3), c char(3), one char, many varchar(2)[])")
    connection.execute("INSERT INTO t VALUES ('abc  ', 'a', 'x', '{ab,c}')")
    assert one(connection, "SELECT * FROM t") == ("abc", "a  ", "x", ["ab", "c"])
    long = [
        ("v", "'abcd'", "varying(3)"),
        ("c", "'a  b'", "(3)"),
        ("one", "'xy'", "(1)"),
        ("many", "'{abc}'", "ing(2)"),
    ]
    for column, value, shown in long:
        condition, message = refused(connection, f"INSERT INTO t ({column}) VALUES ({value})")
        assert (condition, message.endswith(shown)) == ("VALUE_TOO_LONG", True)
        assert refused(connection, f"UPDATE t SET {column} = {value}")[0] == "VALUE_TOO_LONG"
    assert one(connection, "SELECT 'abcd'::varchar(3), 'ab'::char(4) || '!', cast('xyz' AS char)") == (
        "abc",
        "ab!",
        "x",
    )
    assert one(connection, "SELECT '{abc,NULL}'::varchar(2)[]") == ["ab", None]


def test_blanks_at_the_end_of_char_have_no_meaning(connection):
    connection.execute("CREATE TABLE t (c char(4) PRIMARY KEY)")
    connection.execute("INSERT INTO t VALUES ('a'), ('a  ')")
    assert connection.execute("SELECT c, c = 'a', length(c), c || '!' FROM t").fetchall() == [("a   ", True, 1, "a!")]


def test_collations_of_columns_order_by_bytes(connection):
    connection.execute(
        'CREATE TABLE t (a varchar COLLATE "C" PRIMARY KEY, b text COLLATE pg_catalog."default" NOT NULL)'
    )
    connection.execute("INSERT INTO t VALUES ('é', 'x'), ('z', 'x'), ('B', 'x'), ('a', 'x')")
    assert [a for (a,) in connection.execute("SELECT a FROM t ORDER BY a").fetchall()] == ["B", "a", "z", "é"]
    found = refused(connection, 'CREATE TABLE u (a text COLLATE "de-x-icu")')
    assert found == ("FEATURE_NOT_SUPPORTED", 'collation "de-x-icu" is not supported')


def rounded(us, digits):
    unit = 10 ** (6 - digits)
    whole = (abs(us) + unit // 2) // unit * unit
    return whole if us >= 0 else -whole


@pytest.mark.parametrize("digits", range(7))
def test_times_are_rounded_to_their_digits(connection, digits):
    """Relative to 2000, halves away from it, as PostgreSQL's AdjustTimestampForTypmod; casts and columns agree."""
    start = dt.datetime(2000, 1, 1)
    draw = random.Random(digits)
    offsets_us = [500_000, -500_000, 0, *(draw.randrange(-(10**15), 10**15) for _ in range(20))]
    moments = [start + dt.timedelta(microseconds=us) for us in offsets_us]
    connection.execute(f"CREATE TABLE t (n int, a timestamp({digits}), b timestamptz({digits}))")
    rows = ", ".join(f"({n}, '{m}', '{m}+00')" for n, m in enumerate(moments))
    connection.execute(f"INSERT INTO t VALUES {rows}")
    wanted = [start + dt.timedelta(microseconds=rounded(us, digits)) for us in offsets_us]
    found = connection.execute("SELECT a, b FROM t ORDER BY n").fetchall()
    assert found == [(m, m.replace(tzinfo=dt.UTC)) for m in wanted]
    cast = connection.execute(f"SELECT (x::timestamp)::timestamp({digits}) FROM (VALUES {rows}) v (n, x, y) ORDER BY n")
    assert [m for (m,) in cast.fetchall()] == wanted


def test_other_times(connection):
    connection.execute("CREATE TABLE t (a time(1), b timestamp(0), c interval day to minute, d interval year)")
    connection.execute("INSERT INTO t VALUES ('10:00:00.25', 'infinity', '3 days 01:02:03', '1 year 5 mons 3 days')")
    shown = "SELECT a::text, b::text, c::text, d::text FROM t"
    assert one(connection, shown) == ("10:00:00.3", "infinity", "3 days 01:02:00", "1 year")
    assert one(connection, "SELECT '1 day 01:02:03.456'::interval(1)::text") == "1 day 01:02:03.5"
    assert one(connection, "SELECT '1 mon 1 day 01:02:03'::interval month::text") == "1 mon"


def test_uuid(connection):
    connection.execute("CREATE TABLE t (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), n int, ids uuid[])")
    connection.execute(f"INSERT INTO t VALUES ('{{{str(ONE).upper()}}}', 1, '{{{ONE.hex}}}'), ('{ONE}', 2, NULL)")
    assert connection.execute("SELECT * FROM t").fetchall() == [(ONE, 2, None)]
    connection.execute("INSERT INTO t (n) VALUES (3)")
    made = one(connection, "SELECT id FROM t WHERE n = 3")
    assert (made.version, one(connection, f"SELECT n FROM t WHERE id = '{made}'")) == (4, 3)
    ordered = connection.execute("SELECT id FROM t ORDER BY id").fetchall()
    assert ordered == sorted(ordered)
    for text in ("'zz'", f"'{ONE}'::varchar || '0'"):
        assert refused(connection, f"SELECT ({text})::uuid")[0] == "INVALID_VALUE"
    assert one(connection, f"SELECT ('{ONE}'::varchar)::uuid = '{ONE}', pg_typeof('{ONE}'::uuid)") == (True, "uuid")
    assert refused(connection, "SELECT gen_random_uuid() = 1")[0] == "DATATYPE_MISMATCH"


def test_uuids_are_keys_of_views(connection):
    connection.execute("CREATE TABLE a (id uuid PRIMARY KEY, n int); CREATE TABLE b (id uuid PRIMARY KEY, m int)")
    connection.execute("CREATE MATERIALIZED VIEW v AS SELECT a.id, n, m FROM a JOIN b ON a.id = b.id")
    connection.execute(f"INSERT INTO a VALUES ('{ONE}', 1); INSERT INTO b VALUES ('{str(ONE).upper()}', 2); FLUSH")
    assert connection.execute("SELECT * FROM v").fetchall() == [(ONE, 1, 2)]


def test_json_keeps_its_text(connection):
    connection.execute("""CREATE TABLE t (j json); INSERT INTO t VALUES ('{"b": 1,  "a": [2]}')""")
    assert one(connection, "SELECT j::varchar, j, j->'a'->>0, j::jsonb::varchar FROM t") == (
        '{"b": 1,  "a": [2]}',
        {"b": 1, "a": [2]},
        "2",
        '{"a": [2], "b": 1}',
    )
    assert refused(connection, "INSERT INTO t VALUES ('{')")[0] == "INVALID_VALUE"
    assert refused(connection, "SELECT j = j FROM t")[0] == "DATATYPE_MISMATCH"


@pytest.mark.parametrize(
    "text",
    ["10.0.0.1", "10.0.0.0/8", "::", "::1", "1::", "2001:db8::1/64", "1:2:3:4:5:6:7:8", "::ffff:1.2.3.4", "fe80::1:2"],
)
def test_addresses(connection, text):
    connection.execute(f"CREATE TABLE t (a inet, c cidr); INSERT INTO t VALUES ('{text}', '{text}')")
    assert one(connection, f"SELECT a, '{text}'::inet FROM t") == (text, text)


@pytest.mark.parametrize(
    "text", ["10.0.0.256", "10.0.0", "10.0.0.1/33", ":", "1::2::3", "1:2:3:4:5:6:7", "g::", "::/129"]
)
def test_texts_that_are_no_addresses(connection, text):
    connection.execute("CREATE TABLE t (a inet)")
    assert refused(connection, f"INSERT INTO t VALUES ('{text}')")[0] == "INVALID_VALUE"
    assert refused(connection, f"SELECT '{text}'::inet")[0] == "INVALID_VALUE"


def test_oid_and_name(connection):
    connection.execute("CREATE TABLE t (o oid, n name)")
    connection.execute(f"INSERT INTO t VALUES (4294967295, '{'x' * 70}')")
    assert one(connection, "SELECT o, length(n) FROM t") == (4294967295, 63)
    assert refused(connection, "INSERT INTO t (o) VALUES (-1)")[0] == "INVALID_VALUE"


@pytest.mark.parametrize(
    ("kind", "condition"),
    [
        ("varchar(0)", "INVALID_PARAMETER"),
        ("float(54)", "INVALID_PARAMETER"),
        ("int(5)", "SYNTAX_ERROR"),
        ("interval day to year", "SYNTAX_ERROR"),
        ("money", "FEATURE_NOT_SUPPORTED"),
    ],
)
def test_types_that_are_refused(connection, kind, condition):
    assert refused(connection, f"CREATE TABLE t (a {kind})")[0] == condition


def test_floats_by_their_bits(connection):
    connection.execute("CREATE TABLE t (a float(24), b float(25), c float)")
    kinds = [row[1] for row in connection.execute("DESCRIBE t").fetchall()[:3]]
    assert kinds == ["real", "double precision", "double precision"]


def test_declared_types_after_alter(connection):
    connection.execute("CREATE TABLE t (a varchar(2)); INSERT INTO t VALUES ('x')")
    connection.execute("ALTER TABLE t ADD COLUMN b char(2) DEFAULT 'y'; ALTER TABLE t RENAME COLUMN a TO c")
    assert one(connection, "SELECT c, b FROM t") == ("x", "y ")
    assert refused(connection, "INSERT INTO t (c) VALUES ('abc')")[0] == "VALUE_TOO_LONG"
    assert refused(connection, "ALTER TABLE t ADD COLUMN d varchar(1) DEFAULT 'ab'")[0] == "VALUE_TOO_LONG"


def test_connectors_fill_no_columns_with_limits(connection):
    sql = "CREATE TABLE t (a varchar(3), PRIMARY KEY (a)) WITH (connector = 'datagen')"
    assert refused(connection, sql)[0] == "FEATURE_NOT_SUPPORTED"


_CHAR_QUERIES = (
    "SELECT id, k FROM c ORDER BY id",
    "SELECT id FROM c WHERE k = 'ab  ' OR k IN ('x ', 'zz') ORDER BY id",
    "SELECT id FROM c WHERE 'ab ' = k AND k <> 'q   ' AND k = ANY (ARRAY['ab   ']) ORDER BY id",
    "SELECT length(k), octet_length(k), upper(k), k || '!', concat(k, '!'), md5(k) FROM c ORDER BY id",
    "SELECT k LIKE 'ab', k LIKE 'ab   ', k LIKE 'ab%', k ~ 'b$', k NOT LIKE 'x' FROM c ORDER BY id",
    "SELECT max(k), min(k), array_agg(k ORDER BY id), string_agg(k, ',' ORDER BY id) FROM c",
    "SELECT many, many[1], many[1] = 'a ' FROM c ORDER BY id",
    "SELECT 'ab'::char(5), 'abc'::char(2), 'a '::char(3) = 'a', to_json(k)::text FROM c ORDER BY id",
    "SELECT CASE WHEN id > 1 THEN k END, nullif(k, 'ab  '), lag(k) OVER (ORDER BY id) FROM c ORDER BY id",
    "SELECT k, count(*) FROM (SELECT k FROM c UNION ALL SELECT k FROM c) AS q GROUP BY k ORDER BY k",
    "SELECT a.id, b.id FROM c AS a JOIN c AS b ON a.k = b.k ORDER BY 1, 2",
)


@pytest.mark.postgres
def test_char_is_padded_as_in_postgresql(connection, postgres):
    script = """
        CREATE TABLE c (id int PRIMARY KEY, k char(5), many char(3)[]);
        INSERT INTO c VALUES (1, 'ab', '{a,bc}'), (2, 'ab   ', NULL), (3, 'x', '{}'), (4, NULL, '{NULL,d}');
        CREATE VIEW seen AS SELECT id, k, max(k) OVER () AS m FROM c;
    """
    for _ in connection.execute_script(script):
        pass
    postgres.execute(script)
    with postgres.connect() as other:
        for sql in (*_CHAR_QUERIES, "SELECT * FROM seen ORDER BY id"):
            assert connection.execute(sql).fetchall() == other.execute(sql).fetchall(), sql
    connection.execute("CREATE MATERIALIZED VIEW kept AS SELECT k, count(*) AS n FROM c WHERE k = 'ab ' GROUP BY k")
    connection.flush()
    assert connection.execute("SELECT k, n, k = 'ab' FROM kept").fetchall() == [("ab   ", 2, True)]
