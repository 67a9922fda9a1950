"""Rows whose values make expressions fail, or nearly: no row stops a view, and none is lost.

The innermost part that fails is NULL, inline and in a subquery.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

import watersmeet
from tests.property import failing
from tests.thorough import mostly_slow
from watersmeet.errors import Error

#: Over the columns of `VALUES`. Some are refused when a view is made of them, with their place.
EXPRESSIONS = (
    "to_base(n, m)", "chr(n)", "repeat(s, n)", "lpad(s, n, o)", "rpad(s, n)", "left(s, n)", "substr(s, n, m)",
    "split_part(s, o, n)", "overlay(s placing o from n for m)", "s ~ o", "regexp_replace(s, o, 'x')",
    "regexp_match(s, o)", "regexp_count(s, o)", "regexp_split_to_array(s, o)", "s LIKE o", "s SIMILAR TO o",
    "s::int", "s::date", "s::timestamp", "s::timestamptz", "s::interval", "s::jsonb", "s::boolean", "s::numeric",
    "s::time", "s::bytea", "s::int[]", "s::double precision", "jsonb_extract_path(j, s)", "j -> s", "j ->> n",
    "j #> ARRAY[s, o]", "jsonb_exists(j, s)", "jsonb_typeof(j)", "jsonb_array_length(j)", "(j)::int", "(j)::boolean",
    "(j)::numeric", "j || j", "j - s", "make_date(n, m, n)", "make_time(n, m, d)",
    "make_timestamp(n, m, n, m, n, d)", "make_interval(n)", "to_timestamp(d)", "to_timestamp(s, o)", "to_date(s, o)",
    "to_char(ts, s)", "to_char(d, s)", "strftime(ts, s)", "strptime(s, o)", "date_bin(i, ts, ts)", "age(ts, ts2)",
    "ts + i", "ts - ts2", "i * d", "i / d", "i * n", "ts + i * n", "date_trunc('year', ts)",
    "extract(epoch FROM ts)", "extract(epoch FROM i)", "justify_interval(i)", "d::int", "d::bigint", "d::numeric",
    "num::int", "num * num", "num / num", "num + num", "n + m", "n * m", "n / m", "n % m", "b * b", "-n", "abs(n)",
    "n << m", "n >> m", "n ^ m", "power(d, d)", "sqrt(d)", "ln(d)", "log(d)", "exp(d)", "asin(d)", "acosh(d)",
    "factorial(n)", "gcd(n, m)", "lcm(n, m)", "round(num, n)", "trunc(num, n)", "width_bucket(d, 0, 1, n)", "a[n]",
    "a[n:m]", "array_length(a, 1)", "array_position(a, n)", "array_append(a, n)", "trim_array(a, n)",
    "list_resize(a, n)", "list_slice(a, n, m, n)", "array_to_string(a, ',')", "decode(s, 'hex')",
    "decode(s, 'base64')", "encode(bs, 'base64')", "convert_from(bs, 'UTF8')", "md5(s)", "get_bit(bs, n)",
    "get_byte(bs, n)", 's COLLATE "C"', "upper(s)", "reverse(s)", "translate(s, o, s)", "ascii(s)", "initcap(s)",
    "format('%s', s)", "concat_ws(o, s, s)", "string_to_array(s, o)", "to_hex(n)", "bit_count(n)", "list_sort(a, s)",
    "list_extract(a, n)", "list_grade_up(a, s)", "bar(d, n, m, 10)", "hash(s)", "levenshtein(s, o)", "jaccard(s, o)",
    "editdist3(s, o)", "nfc_normalize(s)", "unicode(s)", "ord(s)", "parse_path(s)", "url_decode(s)",
    "json_extract(j, s)", "json_value(j, s)", "json_keys(j, s)", "json_structure(j)", "json_contains(j, j)",
    "json_valid(s)", "json_merge_patch(j, j)", "from_hex(s)", "unhex(s)", "unbin(s)", "from_base64(s)",
    "nextafter(d, d)", "epoch_ms(b)", "make_timestamp(b)", "make_timestamptz(n, m, n, m, n, d, s)", "to_years(n)",
    "to_microseconds(b)", "date_add(ts::date, i)", "date_diff('day', ts, ts2)", "date_sub('day', ts, ts2)",
    "last_day(ts)", "dayname(ts)", "time_bucket(i, ts)", "greatest(ts, ts2)", "printf('%d', n)", "bitstring(s, n)",
    "set_bit(s::bit, n, 1)", "s::uuid", "format_bytes(b)", "damerau_levenshtein(s, o)", "mismatches(s, o)",
    "hamming(s, o)", "jaro_similarity(s, o)", "prefix(s, o)", "contains(s, o)", "cardinality(a)", "array_sum(a)",
    "list_unique(a)", "list_median(a)", "array_max(a)", "list_product(a)", "timezone(s, ts)", "ts AT TIME ZONE s",
    "tz AT TIME ZONE o", "(ts, ts2) OVERLAPS (ts, i)", "ts::date - ts2::date", "even(d)", "gamma(d)", "lgamma(d)",
    "bit_length(s)", "tz::date", "tz::time", "ts::timestamptz", "i::time", "tz - tz", "i = i", "bs || bs",
    "substring(bs from n for m)", "n::smallint", "b::int", "d::real", "s::real", "num::numeric(5,2)",
    "d::numeric(38,0)", "list_cosine_similarity(ARRAY[d], ARRAY[d])", "log(num, num)", "div(num, num)",
    "mod(num, num)", "ceil(d)", "sha256(s)", "cot(d)", "s IN (o, s)", "string_split_regex(s, o)",
    "regexp_extract(s, o, n)", "regexp_extract_all(s, o)", "regexp_full_match(s, o)", "like_escape(s, o, s)",
    "s ^@ o", "trim(s, o)", "strip_accents(s)", "substring_grapheme(s, n, m)", "length_grapheme(s)",
    "left_grapheme(s, n)", "array_reverse_sort(a)", "list_concat(a, a)", "list_value(n, m)", "list_has_all(a, a)",
    "list_where(a, ARRAY[true])", "list_select(a, a)", "flatten(ARRAY[a])", "map_from_entries(a)",
    "struct_pack(x := n)", "row(n, s)", "isfinite(ts)", "isnan(d)", "signbit(d)", "xor(n, m)", "epoch(i)",
    "century(ts)", "julian(ts)", "yearweek(ts)", "datepart('epoch_ns', ts)", "epoch_ns(ts)", "make_date(n)",
    "century(tz)", "monthname(tz)", "date_part('epoch', tz)",
)  # fmt: skip

#: For each column its type and values at the edges of it, in SQL.
VALUES = {
    "n": ("int", "-2147483648", "2147483647", "0", "-1", "55296", "5"),
    "m": ("int", "-1", "0", "2147483647", "2", "-2147483648", "64"),
    "b": ("bigint", "-9223372036854775808", "9223372036854775807", "0"),
    "d": ("double precision", "'NaN'", "'Infinity'", "'-Infinity'", "-1", "0", "1e308", "2"),
    "num": ("numeric", "9999999999999999999999999999", "-9999999999999999999999999999.9999999999", "0", "1.5"),
    "s": ("varchar", "''", "'['", "'\\'", "'(?'", "'%'", "'a\\'", "'{'", "'é'", "'e\u0301😀'", "'%Q'", "'nowhere'",
          "'$.a['", "'$..'", "'1,2'", "repeat('x', 5000)", "'+99:99'", "'2024-01-01'", "'1e400'"),
    "o": ("varchar", "''", "'('", "'*'", "'a{2000}'", "'%Y-%m'", "'%'", "'desc'", "'\\1'", "'(a)(b'"),
    "j": ("jsonb", "'null'", "'[]'", "'{}'", "'\"x\"'", "'1e400'", "'[1,2]'", "'{\"a\":[null]}'"),
    "ts": ("timestamp", "'infinity'", "'-infinity'", "'0001-01-01'", "'9999-12-31'", "'290000-01-01'",
           "'2024-03-31 02:30'"),
    "ts2": ("timestamp", "'infinity'", "'290308-12-22 (BC)'", "'2024-10-27 02:30'"),
    "tz": ("timestamptz", "'9999-12-31 00:00:00+00'", "'2024-03-31 02:30:00+00'", "'0001-01-01 00:00:00+00'"),
    "i": ("interval", "'178000000 years'", "'-178000000 years'", "'0'", "'1 month -30 days'", "'1 microsecond'"),
    "a": ("int[]", "'{}'", "'{1,2}'", "'{2147483647,2147483647}'"),
    "bs": ("bytea", "'\\x'", "'\\xff'", "'\\x00'"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_no_row_stops_a_view(part):
    chance = random.Random(part)
    with watersmeet.connect(runtime="inprocess", parallelism=2) as connection:
        columns = ", ".join(f"{name} {kind}" for name, (kind, *_) in VALUES.items())
        connection.execute(f"CREATE TABLE t (id int, {columns})")
        views, refused = [], 0
        for expression in EXPRESSIONS[part::4]:
            try:
                connection.execute(f"CREATE MATERIALIZED VIEW v{len(views)} AS SELECT id, {expression} AS x FROM t")
                views.append(expression)
            except Error as problem:
                assert problem.condition != "INTERNAL_ERROR", problem
                assert problem.span is not None, problem
                refused += 1
        assert len(views) > 5 * refused
        rows = [{name: value} for name, (_, *values) in VALUES.items() for value in values]
        rows += [{n: chance.choice(["NULL", *v]) for n, (_, *v) in VALUES.items()} for _ in range(60)]
        taken = 0
        for begin in range(0, len(rows), 20):
            for number, row in enumerate(rows[begin : begin + 20], begin):
                names, values = ", ".join(row), ", ".join(row.values())
                connection.execute(f"INSERT INTO t (id, {names}) VALUES ({number}, {values})")
                taken += 1
            connection.execute("FLUSH")
        for number, expression in enumerate(views):
            assert connection.execute(f"SELECT count(*) FROM v{number}").fetchall() == [(taken,)], expression


#: Of (id, s, n, a): what a number makes long, and what it is where the number is not too large.
LONG = {
    "repeat(s, n)": "xx",
    "lpad(s, n)": " x",
    "rpad(s, n)": "x ",
    "lpad(s, n, 'ab')": "ax",
    "rpad(s, n, 'ab')": "xa",
    "list_resize(a, n)": [1, None],
    "array_resize(a, n, 7)": [1, 7],
}


def test_a_number_makes_no_value_too_long():
    with watersmeet.connect(runtime="inprocess", parallelism=1) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, s varchar, n int, a int[])")
        for number, expression in enumerate(LONG):
            connection.execute(f"CREATE MATERIALIZED VIEW v{number} AS SELECT id, {expression} AS x FROM t")
        connection.execute("CREATE MATERIALIZED VIEW part AS SELECT id, repeat(s, n) = 'xx' OR id = 2 AS x FROM t")
        connection.execute("INSERT INTO t VALUES (1, 'x', 2, '{1}'), (2, 'xyz', 2147483647, '{1, 2}')")
        connection.execute("FLUSH")
        for number, (expression, value) in enumerate(LONG.items()):
            assert connection.execute(f"SELECT * FROM v{number} ORDER BY id").fetchall() == [(1, value), (2, None)]
            with pytest.raises(Error, match="requested length too large"):
                connection.execute(f"SELECT {expression} FROM t")
        assert connection.execute("SELECT * FROM part ORDER BY id").fetchall() == [(1, True), (2, True)]
        with pytest.raises(Error, match="requested length too large"):
            connection.execute("INSERT INTO t VALUES (3, repeat('abc', 2000000000), 1, NULL)")


#: Over n, a number of days or of rows; each gives n rows.
SERIES = (
    "generate_series(1, n)", "range(0, n)", "generate_series(-1, -n, -1)", "generate_series(0.5, n)",
    "generate_series(1, n::numeric * 2, 2)",
    "generate_series(timestamp '2024-01-01', timestamp '2024-01-01' + interval '1 day' * (n - 1), interval '1 day')",
    "generate_series(date '2024-01-01', now_, '1 day')",
)  # fmt: skip


def test_a_number_makes_no_series_too_long():
    with watersmeet.connect(runtime="inprocess", parallelism=1) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, n int, now_ timestamp)")
        for number, series in enumerate(SERIES):
            connection.execute(f"CREATE MATERIALIZED VIEW v{number} AS SELECT id, {series} AS x FROM t")
            connection.execute(f"CREATE MATERIALIZED VIEW w{number} AS SELECT id, x FROM t, {series} AS g(x)")
        connection.execute(
            "INSERT INTO t VALUES (1, 3, '2024-01-03'), (2, 100000000, '200000-01-01'), (3, 2, '2024-01-02')"
        )
        connection.execute("FLUSH")
        for number, series in enumerate(SERIES):
            for view in ("v", "w"):
                counts = f"SELECT id, count(*) FROM {view}{number} GROUP BY id ORDER BY id"
                assert connection.execute(counts).fetchall() == [(1, 3), (3, 2)], series
            with pytest.raises(Error, match="requested length too large"):
                connection.execute(f"SELECT count(*) FROM (SELECT {series} FROM t)")
        assert connection.execute("SELECT count(*) FROM generate_series(1, 9000000)").fetchall() == [(9_000_000,)]


#: The end of the second range is `ts + i`, an expression of its own; a column holds intervals of some 292 years.
OF_PARTS = {"(ts, ts2) OVERLAPS (ts, i)", "to_microseconds(b)"}


def _literal(value):
    return "NULL" if value is None else "'" + value + "'" if isinstance(value, str) else str(value)


def _contents(connection, name):
    return Counter(map(tuple, connection.execute(f"SELECT * FROM {name}").fetchall()))


@pytest.mark.parametrize("seed", mostly_slow(range(60), 2, 4))
def test_the_innermost_part_that_fails_is_null(seed):
    """Law: a view has the values of the reference, whether parts are inline or columns of subqueries, whatever else a
    batch holds, and forgets rows that are deleted.
    """
    chance = random.Random(seed)
    with watersmeet.connect(runtime="inprocess", parallelism=1) as connection:
        columns = ", ".join(f"{name} {kind}" for name, kind in failing.COLUMNS.items())
        connection.execute(f"CREATE TABLE t (id int PRIMARY KEY, {columns})")
        connection.execute("CREATE TABLE b (y int)")
        wanted = {}
        for number in range(2):
            value, condition = failing.make(chance, "int", 4), failing.make(chance, "boolean", 4)
            for form, (item, source), (test, filtered) in (
                ("inline", (value.sql(), "t"), (condition.sql(), "t")),
                ("hoisted", failing.hoisted(chance, value), failing.hoisted(chance, condition)),
            ):
                for kind, sql in {
                    "item": f"SELECT id, {item} AS x FROM {source}",
                    "filter": f"SELECT id FROM {filtered} WHERE {test}",
                    "key": f"SELECT id, b.y AS x FROM {source} LEFT JOIN b ON {item} = b.y",
                    "group": f"SELECT {item} AS x, count(*) AS rows FROM {source} GROUP BY {item}",
                    "sum": f"SELECT count({item}) AS x, sum(coalesce({item}, 5)) AS y FROM {source}",
                }.items():
                    name = f"{kind}_{form}_{number}"
                    connection.execute(f"CREATE MATERIALIZED VIEW {name} AS {sql}")
                    wanted[name] = kind, value, condition, sql
        rows = {}
        connection.execute("INSERT INTO b VALUES (0), (7), (2147483647)")
        for step in range(4):
            gone = chance.sample(sorted(rows), len(rows) // 2)
            for key in gone:
                del rows[key]
            if gone:
                connection.execute(f"DELETE FROM t WHERE id IN ({', '.join(map(str, gone))})")
            for key in range(step * 10, step * 10 + chance.choice([1, 8])):
                rows[key] = {c: chance.choice(failing.VALUES[k]) for c, k in failing.COLUMNS.items()}
                listed = ", ".join(map(_literal, rows[key].values()))
                connection.execute(f"INSERT INTO t VALUES ({key}, {listed})")
            connection.execute("FLUSH")
            for name, (kind, value, condition, sql) in wanted.items():
                values = {key: value.of(row) for key, row in rows.items()}
                if kind == "item":
                    expected = Counter(values.items())
                elif kind == "filter":
                    expected = Counter((key,) for key, row in rows.items() if condition.of(row))
                elif kind == "key":
                    expected = Counter((key, x if x in (0, 7, 2**31 - 1) else None) for key, x in values.items())
                elif kind == "group":
                    expected = Counter(Counter(values.values()).items())
                else:
                    count = sum(x is not None for x in values.values())
                    expected = Counter([(count, sum(5 if x is None else x for x in values.values()) if rows else None)])
                assert _contents(connection, name) == expected, (sql, rows)


def _batch_values(connection, expression, ids):
    """By row, the value that a batch query has; NULL where it fails."""
    try:
        listed = ", ".join(map(str, ids))
        return dict(connection.execute(f"SELECT id, ({expression})::varchar FROM t WHERE id IN ({listed})").fetchall())
    except Error:
        if len(ids) == 1:
            return {ids[0]: None}
        middle = len(ids) // 2
        return _batch_values(connection, expression, ids[:middle]) | _batch_values(connection, expression, ids[middle:])


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
def test_a_function_that_fails_is_null(part):
    """Law: whatever DuckDB computes for a function or operator, it is NULL in a view where a batch query fails, and the
    expression around it is evaluated with that NULL, inline as in a subquery.
    """
    chance = random.Random(part)
    with watersmeet.connect(runtime="inprocess", parallelism=1) as connection:
        columns = ", ".join(f"{name} {kind}" for name, (kind, *_) in VALUES.items())
        connection.execute(f"CREATE TABLE t (id int PRIMARY KEY, {columns})")
        made = []
        for expression in EXPRESSIONS[part::8]:
            name = f"v{len(made)}"
            if expression in OF_PARTS:
                continue
            try:
                connection.execute(f"SELECT {expression} FROM t")
                connection.execute(f"CREATE MATERIALIZED VIEW {name} AS SELECT id, ({expression})::varchar AS x FROM t")
            except Error:
                continue  # no such function, or one whose argument must be a constant
            inline = f"coalesce(({expression})::varchar, 'none') AS x, ({expression}) IS NULL AS y"
            connection.execute(f"CREATE MATERIALIZED VIEW i{name} AS SELECT id, {inline} FROM t")
            source = f"(SELECT id, {expression} AS z FROM t) AS q"
            outer = "coalesce(z::varchar, 'none') AS x, z IS NULL AS y"
            connection.execute(f"CREATE MATERIALIZED VIEW s{name} AS SELECT id, {outer} FROM {source}")
            made.append((name, expression))
        rows = [{name: value} for name, (_, *values) in VALUES.items() for value in values]
        rows += [{n: chance.choice(["NULL", *v]) for n, (_, *v) in VALUES.items()} for _ in range(30)]
        ids = []
        for number, row in enumerate(rows):
            try:
                connection.execute(f"INSERT INTO t (id, {', '.join(row)}) VALUES ({number}, {', '.join(row.values())})")
                ids.append(number)
            except Error:
                continue  # a value that the type refuses
        connection.execute("FLUSH")
        wrong = []
        for name, expression in made:
            values = dict(connection.execute(f"SELECT id, x FROM {name}").fetchall())
            expected = _batch_values(connection, expression, ids)
            inline = {i: (x, y) for i, x, y in connection.execute(f"SELECT * FROM i{name}").fetchall()}
            split = {i: (x, y) for i, x, y in connection.execute(f"SELECT * FROM s{name}").fetchall()}
            whole = {i: ("none" if v is None else v, v is None) for i, v in expected.items()}
            wrong += [
                (expression, n, rows[n], [m[n] for m in (values, expected, inline, split)])
                for n in ids
                if values[n] != expected[n] or inline[n] != whole[n] or split[n] != whole[n]
            ][:3]
        assert not wrong, "\n".join(map(str, wrong))
