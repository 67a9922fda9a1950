"""Dictionaries: what their layouts take as keys, ranges, lifetimes, and defaults of attributes.

Timeplus, "Dictionary"; ClickHouse, "Dictionaries".
"""

from __future__ import annotations

import os
import zlib

import pytest
from tests.harness import Harness

import watersmeet
from watersmeet import Error

SECOND_US = 1_000_000
START_US = 1_700_000_000 * SECOND_US


@pytest.fixture
def opened(tmp_path):
    with watersmeet.connect(tmp_path / "db", "timeplus", runtime="inprocess") as connection:
        yield connection


def rows(connection, query):
    return sorted(connection.execute(query).fetchall(), key=str)


def refused(connection, sql):
    with pytest.raises(Error) as found:
        connection.execute(sql)
    return found.value


def source(path, text):
    """The clause for a file with this content, which replaces another one at once."""
    other = path.with_name(path.name + ".new")
    other.write_text(text)
    os.replace(other, path)
    return f"SOURCE(FILE(path '{path}' format 'CSV'))"


@pytest.mark.parametrize(
    ("columns", "clauses", "condition", "place"),
    [
        ("k string, v int", "PRIMARY KEY k LAYOUT(FLAT())", "DATATYPE_MISMATCH", "FLAT()"),
        ("k int, l int, v int", "PRIMARY KEY k, l LAYOUT(HASHED())", "INVALID_PARAMETER", "HASHED()"),
        ("k int, l int, v int", "PRIMARY KEY (k, l) LAYOUT(FLAT())", "INVALID_PARAMETER", "FLAT()"),
        ("k int, v int", "PRIMARY KEY k LAYOUT(COMPLEX_KEY_FLAT())", "INVALID_PARAMETER", "COMPLEX_KEY_FLAT()"),
        (
            "k int, v int",
            "PRIMARY KEY k LAYOUT(FLAT(MAX_ARRAY_SIZE 'x'))",
            "CONNECTOR_OPTION",
            "FLAT(MAX_ARRAY_SIZE 'x')",
        ),
        ("k int, v int", "PRIMARY KEY k LAYOUT(RANGE_HASHED())", "INVALID_PARAMETER", "RANGE_HASHED()"),
        ("k int, a int, b int", "PRIMARY KEY k RANGE(MIN a MAX b) LAYOUT(HASHED())", "INVALID_PARAMETER", "HASHED()"),
        ("k int, a int, b date", "PRIMARY KEY k RANGE(MIN a MAX b) LAYOUT(RANGE_HASHED())", "DATATYPE_MISMATCH", "a"),
        ("k int, a int", "PRIMARY KEY k RANGE(MIN a MAX z) LAYOUT(RANGE_HASHED())", "UNDEFINED_COLUMN", "z"),
        ("k int, v int", "PRIMARY KEY k LAYOUT(IP_TRIE())", "DATATYPE_MISMATCH", "IP_TRIE()"),
        ("k int DEFAULT 3, v int", "PRIMARY KEY k LAYOUT(HASHED())", "FEATURE_NOT_SUPPORTED", "3"),
        ("k int, v int DEFAULT k", "PRIMARY KEY k LAYOUT(HASHED())", "FEATURE_NOT_SUPPORTED", "k"),
    ],
)
def test_keys_that_a_layout_can_not_have_are_refused(opened, tmp_path, columns, clauses, condition, place):
    sql = f"CREATE DICTIONARY d({columns}) {source(tmp_path / 's.csv', '1,2,3')} {clauses}"
    err = refused(opened, sql)
    assert (err.condition, sql[err.span.start : err.span.end]) == (condition, place)
    assert rows(opened, "SHOW TABLES") == []


def test_flat_takes_keys_below_its_size(opened, tmp_path):
    file = tmp_path / "s.csv"
    create = "CREATE DICTIONARY {}(k uint64, v string) PRIMARY KEY k {} LAYOUT(FLAT({}))"
    err = refused(opened, create.format("d", source(file, "1,a\n500000,b\n"), ""))
    assert (err.condition, err.detail) == ("INVALID_VALUE", "Its keys are whole numbers from 0 to 499999.")
    opened.execute(create.format("d", source(file, "1,a\n500000,b\n"), "MAX_ARRAY_SIZE 500001"))
    opened.execute(create.format("e", source(file, "0,a\n499999,b\n"), ""))
    assert [v for _, v in rows(opened, "SELECT * FROM e")] == ["a", "b"]
    source(file, "-1,a\n")
    assert refused(opened, "SELECT * FROM e").condition == "INVALID_VALUE"


def test_attributes_that_can_not_be_null_have_their_default(opened, tmp_path):
    clause = source(tmp_path / "s.csv", "1,,,,\n2,x,5,y,6\n")
    opened.execute(
        "CREATE DICTIONARY d(k int, a string DEFAULT 'none', b int, c nullable(string) DEFAULT 'never', "
        f"e decimal(5, 2) DEFAULT 1.5) PRIMARY KEY k {clause} LAYOUT(HASHED())"
    )
    first, second = rows(opened, "SELECT * FROM d")
    assert (*first[:4], float(first[4])) == (1, "none", 0, None, 1.5)
    assert (*second[:4], float(second[4])) == (2, "x", 5, "y", 6.0)


def test_ranges_of_a_key_must_not_overlap(opened, tmp_path):
    file = tmp_path / "s.csv"
    create = (
        "CREATE DICTIONARY {}(k int, a date, b nullable(date), v string) PRIMARY KEY k RANGE(MIN a MAX b) {} "
        "LAYOUT(RANGE_HASHED(range_lookup_strategy 'max')) LIFETIME(0)"
    )
    opened.execute(
        create.format("d", source(file, "1,2024-01-01,2024-01-31,x\n1,2024-02-01,,y\n2,2024-01-05,2024-01-04,z\n"))
    )
    assert len(rows(opened, "SELECT * FROM d")) == 3
    source(file, "1,2024-01-01,2024-02-01,x\n2,2024-01-15,2024-01-15,z\n1,2024-02-01,,y\n")
    err = refused(opened, "SELECT * FROM d")
    assert (err.condition, err.detail) == (
        "INVALID_VALUE",
        "One is from 2024-01-01 to 2024-02-01, the next one begins at 2024-02-01.",
    )
    source(file, "1,2024-01-01,2024-02-01,x\n1,2024-01-01,2024-01-31,w\n1,2024-02-01,,y\n")  # the last row counts
    assert [v for *_, v in rows(opened, "SELECT * FROM d")] == ["w", "y"]


def test_a_lifetime_is_spread_between_its_bounds_by_name(opened, tmp_path):
    file = tmp_path / "s.csv"
    source(file, "1,a\n")
    Harness(opened).set_clock(START_US)
    opened.execute("CREATE STREAM s(n int, k int)")
    after = {}
    for name in ("one", "two", "three"):
        opened.execute(
            f"CREATE DICTIONARY {name}(k int, v string) PRIMARY KEY k {source(file, '1,a')} "
            f"LAYOUT(CACHE(SIZE_IN_CELLS 9)) LIFETIME(MIN 100 MAX 1100)"
        )
        opened.execute(
            f"CREATE MATERIALIZED VIEW v_{name} AS SELECT n, d.v FROM s JOIN {name} AS d ON s.k = d.k "
            "SETTINGS join_algorithm = 'direct'"
        )
        after[name] = 100 * SECOND_US + (1000 * SECOND_US * zlib.crc32(name.encode()) >> 32)
    opened.execute("INSERT INTO s(n, k) VALUES (0, 1); FLUSH")
    source(file, "1,b\n")
    for name, wait_us in after.items():
        assert 100 * SECOND_US <= wait_us <= 1100 * SECOND_US
        for n, moment in ((1, wait_us - 1), (2, wait_us)):
            Harness(opened).set_clock(START_US + moment)
            opened.execute(f"INSERT INTO s(n, k) VALUES ({n}, 1); FLUSH")
        break
    name = "one"
    assert rows(opened, f"SELECT n, v FROM table(v_{name})") == [(0, "a"), (1, "a"), (2, "b")]
    assert len(set(after.values())) == 3


def test_a_lifetime_of_0_is_for_ever(opened, tmp_path):
    file = tmp_path / "s.csv"
    Harness(opened).set_clock(START_US)
    opened.execute("CREATE STREAM s(n int, k int)")
    opened.execute(
        f"CREATE DICTIONARY d(k int, v string) PRIMARY KEY k {source(file, '1,a')} LAYOUT(SPARSE_HASHED()) LIFETIME(0)"
    )
    opened.execute("CREATE MATERIALIZED VIEW v AS SELECT n, d.v FROM s JOIN d ON s.k = d.k")
    opened.execute("INSERT INTO s(n, k) VALUES (0, 1); FLUSH")
    source(file, "1,b\n")
    Harness(opened).set_clock(START_US + 10**9 * SECOND_US)
    opened.execute("INSERT INTO s(n, k) VALUES (1, 1); FLUSH")
    assert rows(opened, "SELECT n, v FROM table(v)") == [(0, "a"), (1, "a")]


@pytest.fixture
def looked_up(opened, tmp_path):
    """Dictionaries p (by k), wide (by an int64), c (by k and l), r (by k and a range), and streams s and keyed."""
    opened.execute(
        f"""CREATE DICTIONARY p(k int, v string DEFAULT 'none', n nullable(int) DEFAULT 7) PRIMARY KEY k
        {source(tmp_path / "p.csv", "1,a,5")} LAYOUT(FLAT());
        CREATE DICTIONARY wide(k int64, v string, t datetime DEFAULT '2024-01-01 00:00:00', e decimal(5, 2))
        PRIMARY KEY k {source(tmp_path / "w.csv", "1,a,2024-02-01 00:00:00,1.25")} LAYOUT(HASHED());
        CREATE DICTIONARY c(k int, l string, v string) PRIMARY KEY k, l {source(tmp_path / "c.csv", "1,u,one")}
        LAYOUT(COMPLEX_KEY_HASHED());
        CREATE DICTIONARY r(k int, a date, b nullable(date), v string) PRIMARY KEY k RANGE(MIN a MAX b)
        {source(tmp_path / "r.csv", "1,2024-01-01,2024-01-31,x")} LAYOUT(RANGE_HASHED());
        CREATE STREAM s(n int, k int, l string); CREATE MUTABLE STREAM keyed(k int, w string) PRIMARY KEY k"""
    )
    return opened


@pytest.mark.parametrize(
    ("call", "result"),
    [
        ("dict_get('p', 'v', 1)", "a"),
        ("DICT_GET('default.p', 'v', 9)", "none"),
        ("dict_get('p', 'n', 9)", 7),
        ("dict_get_or_null('p', 'n', 9)", None),
        ("dict_get_or_default('p', 'v', 9, 'other')", "other"),
        ("dict_has('p', 1)", True),
        ("dict_has('p', 9)", False),
        ("dict_get('c', 'v', (1, 'u'))", "one"),
        ("dict_get('c', 'v', tuple(1, 'w'))", ""),
        ("dict_get('r', 'v', 1, to_date('2024-01-31'))", "x"),
        ("dict_has('r', 1, to_date('2024-02-01'))", False),
        ("to_string(dict_get('wide', 't', 2))", "2024-01-01 00:00:00"),
        ("to_string(dict_get('wide', 'e', 1))", "1.25"),
        ("dict_get('p', 'v', to_int(dict_get('p', 'n', 1)) - 4)", "a"),
    ],
)
def test_a_call_answers(looked_up, call, result):
    assert rows(looked_up, f"SELECT {call}") == [(result,)]


@pytest.mark.parametrize(
    ("query", "condition", "place"),
    [
        ("SELECT dict_get('q', 'v', 1)", "UNDEFINED_RELATION", "dict_get('q', 'v', 1)"),
        ("SELECT dict_get('keyed', 'w', 1)", "UNDEFINED_RELATION", "dict_get('keyed', 'w', 1)"),
        ("SELECT dict_get('p', 'w', 1)", "UNDEFINED_COLUMN", "dict_get('p', 'w', 1)"),
        ("SELECT dict_get('p', 'k', 1)", "UNDEFINED_COLUMN", "dict_get('p', 'k', 1)"),
        ("SELECT dict_get('p', 'v')", "DATATYPE_MISMATCH", "dict_get('p', 'v')"),
        ("SELECT dict_get('r', 'v', 1)", "DATATYPE_MISMATCH", "dict_get('r', 'v', 1)"),
        ("SELECT dict_get('c', 'v', 1)", "DATATYPE_MISMATCH", "dict_get('c', 'v', 1)"),
        ("SELECT dict_get(l, 'v', k) FROM table(s)", "DATATYPE_MISMATCH", "dict_get(l, 'v', k)"),
        ("SELECT dict_get('p', ('v', 'n'), 1)", "FEATURE_NOT_SUPPORTED", "dict_get('p', ('v', 'n'), 1)"),
        ("SELECT dict_get_hierarchy('p', 1)", "FEATURE_NOT_SUPPORTED", "dict_get_hierarchy('p', 1)"),
        ("SELECT n FROM table(s) JOIN keyed ON dict_has('p', n)", "FEATURE_NOT_SUPPORTED", "dict_has('p', n)"),
        ("SELECT dict_get('p', 'v', max(k)) FROM table(s)", "COLUMN_NOT_GROUPED", "k"),
    ],
)
def test_calls_without_a_meaning_are_refused(looked_up, query, condition, place):
    err = refused(looked_up, query)
    assert (err.condition, query[err.span.start : err.span.end]) == (condition, place)


def test_calls_stand_in_all_clauses_of_views(looked_up, tmp_path):
    looked_up.execute(
        """CREATE MATERIALIZED VIEW filtered AS SELECT * EXCEPT (_tp_time), dict_get('p', 'v', k) AS v FROM s
        WHERE dict_has('c', (k, l)) OR n > 1 SETTINGS join_use_nulls = 0;
        CREATE MATERIALIZED VIEW counted AS SELECT dict_get('p', 'v', k) AS v, count() AS c FROM s
        GROUP BY dict_get('p', 'v', k) HAVING dict_get('p', 'v', k) != 'x';
        CREATE MATERIALIZED VIEW constant AS SELECT n, dict_get('wide', 'v', 1) AS v FROM s
        SETTINGS join_algorithm = 'direct';
        CREATE MATERIALIZED VIEW followed AS SELECT k, w, dict_get('p', 'v', k) AS v FROM keyed"""
    )
    looked_up.execute("INSERT INTO s(n, k, l) VALUES (1, 1, 'u'), (1, 2, 'u'), (2, 2, 'u')")
    looked_up.execute("INSERT INTO keyed(k, w) VALUES (1, 'x'), (2, 'y'); FLUSH")
    source(tmp_path / "p.csv", "1,b,\n2,c,\n")
    source(tmp_path / "w.csv", "1,b,,\n")
    looked_up.execute("INSERT INTO s(n, k, l) VALUES (3, 1, 'u'), (3, 2, 'u'); FLUSH")
    assert rows(looked_up, "SELECT * EXCEPT (_tp_time) FROM table(filtered)") == [
        (1, 1, "u", "a"),
        (2, 2, "u", "none"),
        (3, 1, "u", "a"),
        (3, 2, "u", "c"),
    ]
    assert rows(looked_up, "SELECT v, c FROM table(counted)") == [("a", 2), ("c", 1), ("none", 2)]
    assert [v for _, v in rows(looked_up, "SELECT n, v FROM table(constant)")] == ["a"] * 5
    assert rows(looked_up, "SELECT k, w, v FROM table(followed)") == [(1, "x", "b"), (2, "y", "c")]
    assert "depend" in refused(looked_up, "DROP DICTIONARY wide").message
    looked_up.execute("INSERT INTO s(n, l) SELECT 9, dict_get('p', 'v', 2); FLUSH")
    assert rows(looked_up, "SELECT l FROM table(s) WHERE n = 9") == [("c",)]


def test_a_look_up_join_takes_dictionaries_and_external_tables_as_they_are(tmp_path):
    file = tmp_path / "p.csv"
    clause = source(file, "1,a\n")
    with watersmeet.connect(tmp_path / "db", "timeplus", runtime="inprocess") as connection:
        connection.execute(
            f"CREATE EXTERNAL TABLE e(k int, v string) SETTINGS type='file', path='{file}', format='CSV'; "
            f"CREATE DICTIONARY p(k int, v string) PRIMARY KEY k {clause} LAYOUT(DIRECT()); "
            "CREATE STREAM s(n int, k int); CREATE STREAM changing(n int, k int) PRIMARY KEY n SETTINGS "
            "mode='versioned_kv'"
        )
    insert = "INSERT INTO s(n, k, _tp_time) VALUES ({}, 1, now()), ({}, 2, now()); FLUSH"
    expected = [(1, "a"), (3, "b"), (3, "bb"), (4, "c")]
    with watersmeet.connect(tmp_path / "db", "risingwave", runtime="inprocess") as connection:
        create = (
            "CREATE MATERIALIZED VIEW v_{0} AS SELECT n, v FROM {1} AS s JOIN {0} FOR SYSTEM_TIME AS OF PROCTIME() "
            "ON s.k = {0}.k"
        )
        connection.execute(create.format("e", "s"))
        connection.execute(create.format("p", "s"))
        connection.execute("CREATE MATERIALIZED VIEW still AS SELECT n, v FROM s JOIN e ON s.k = e.k WHERE v < 'x'")
        connection.execute(insert.format(1, 2))
        source(file, "1,b\n1,bb\n2,c\n")
        connection.execute(insert.format(3, 4))
        assert rows(connection, "SELECT n, v FROM v_e") == expected
        assert rows(connection, "SELECT n, v FROM v_p") == [(1, "a"), (3, "bb"), (4, "c")]
        assert rows(connection, "SELECT n, v FROM still") == [(1, "a"), (3, "a")]
    source(file, "1,d\n")
    with watersmeet.connect(tmp_path / "db", "risingwave", runtime="inprocess") as connection:
        connection.execute(insert.format(5, 6))
        expected.append((5, "d"))
        assert rows(connection, "SELECT n, v FROM v_e") == expected
        file.unlink()
        connection.execute(insert.format(7, 8))  # what was read last counts, and SHOW ERRORS says why
        expected.append((7, "d"))
        assert rows(connection, "SELECT n, v FROM v_e") == expected
        assert "e" in [relation for relation, *_ in rows(connection, "SHOW ERRORS")]


def test_an_external_table_that_no_query_looks_up_is_read_by_statements_alone(tmp_path):
    with watersmeet.connect(tmp_path / "db", "timeplus", runtime="inprocess") as connection:
        file = tmp_path / "p.csv"
        source(file, "1,a\n")
        connection.execute(
            f"CREATE EXTERNAL TABLE e(k int, v string) SETTINGS type='file', path='{file}', format='CSV'; "
            "CREATE STREAM s(n int, k int); "
            "CREATE MATERIALIZED VIEW v AS SELECT n, v FROM s JOIN e ON s.k = e.k WHERE v < 'x'"
        )
        file.unlink()
        connection.execute("INSERT INTO s(n, k) VALUES (1, 1); FLUSH")
        assert rows(connection, "SHOW ERRORS") == []


def test_rows_that_go_take_what_they_met_in_an_external_table_with_them(tmp_path):
    file = tmp_path / "p.csv"
    source(file, "1,a\n")
    with watersmeet.connect(tmp_path / "db", "timeplus", runtime="inprocess") as connection:
        connection.execute(
            f"CREATE EXTERNAL TABLE e(k int, v string) SETTINGS type='file', path='{file}', format='CSV'"
        )
    with watersmeet.connect(tmp_path / "db", "risingwave", runtime="inprocess") as connection:
        connection.execute(
            "CREATE TABLE t (n int PRIMARY KEY, k int); CREATE MATERIALIZED VIEW v AS SELECT n, v FROM t LEFT JOIN e "
            "FOR SYSTEM_TIME AS OF PROCTIME() ON t.k = e.k; INSERT INTO t VALUES (1, 1), (2, 1), (3, 2); FLUSH"
        )
        source(file, "1,b\n")
        connection.execute("DELETE FROM t WHERE n = 1; UPDATE t SET k = 1 WHERE n = 3; FLUSH")
        assert rows(connection, "SELECT n, v FROM v") == [(2, "a"), (3, "b")]
