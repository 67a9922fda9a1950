"""External tables and streams, dictionaries: content outside of the database.

Timeplus, "Multi-JOINs and ASOF JOINs"; TP-12, TP-18, TP-19, TP-44 to TP-48.
"""

from __future__ import annotations

import os

import pytest
from tests.harness import Harness, connect_without_connectors

import watersmeet
from watersmeet import Error

SECOND_US = 1_000_000
START_US = 1_700_000_000 * SECOND_US
ORDERS = "CREATE STREAM orders(id string, product_id string)"


def connect(path=None, dialect="timeplus", **options):
    return watersmeet.connect(path, dialect, runtime="inprocess", **options)


def disconnected(path=None, dialect="timeplus", **options):
    return connect_without_connectors(path, dialect, runtime="inprocess", **options)


def rows(connection, sql):
    return sorted(connection.execute(sql).fetchall(), key=str)


def orders(connection, *pairs):
    Harness(connection).deliver("orders", [list(p) for p in pairs], ["id", "product_id"])
    connection.execute("FLUSH")


def refused(connection, sql):
    with pytest.raises(Error) as found:
        connection.execute(sql)
    return found.value


def write(path, text):
    """Another file under the same name, as one that is moved into place."""
    other = path.with_name(path.name + ".new")
    other.write_text(text)
    os.replace(other, path)


def test_an_external_table_over_files_shows_what_they_have_now(tmp_path):
    file = tmp_path / "vendors.csv"
    write(file, "id,vendor\np1,Acme\np2,\n")
    with connect(tmp_path / "db") as connection:
        connection.execute(
            f"CREATE EXTERNAL TABLE vendors(id string, vendor nullable(string)) SETTINGS type='file', "
            f"path='{file}', format='CSVWithNames'"
        )
        assert rows(connection, "SELECT * FROM vendors") == [("p1", "Acme"), ("p2", None)]
        connection.execute(
            "CREATE STREAM devices(device string, product_id string) PRIMARY KEY device SETTINGS mode='versioned_kv'"
        )
        connection.execute(
            "CREATE MATERIALIZED VIEW old AS SELECT device, vendor FROM devices JOIN vendors AS v ON "
            "devices.product_id = v.id"
        )
        write(file, "id,vendor\np1,Acme & Sons\np3,Gamma\n")
        connection.execute(
            "CREATE MATERIALIZED VIEW new AS SELECT device, vendor FROM devices LEFT JOIN vendors AS v ON "
            "devices.product_id = v.id"
        )
        connection.execute("INSERT INTO devices(device, product_id) VALUES ('d1', 'p1'), ('d3', 'p3'); FLUSH")
        assert rows(connection, "SELECT * FROM table(old)") == [("d1", "Acme")]  # it stands still
        assert rows(connection, "SELECT * FROM table(new)") == [("d1", "Acme & Sons"), ("d3", "Gamma")]
        assert rows(connection, "SELECT count(*) FROM vendors WHERE vendor LIKE '%a%'") == [(1,)]
        assert refused(connection, "INSERT INTO vendors VALUES ('p4', 'Delta')").condition == "READ_ONLY_RELATION"
    write(file, "id,vendor\np5,Echo\n")
    with connect(tmp_path / "db", "risingwave") as connection:
        assert rows(connection, "SELECT * FROM vendors") == [("p5", "Echo")]
        connection.execute("CREATE MATERIALIZED VIEW v AS SELECT vendor FROM vendors")
        with connect(tmp_path / "db", read_only=True) as reader:
            assert rows(reader, "SELECT * FROM vendors") == [("p5", "Echo")]
        connection.execute("CREATE TABLE copied AS SELECT vendor FROM vendors; FLUSH")
        assert rows(connection, "SELECT * FROM copied") == rows(connection, "SELECT * FROM v") == [("Echo",)]
        file.unlink()
        assert refused(connection, "SELECT * FROM vendors").condition == "CONNECTOR_OPTION"
        assert rows(connection, "SELECT * FROM v") == [("Echo",)]
    with connect(tmp_path / "db") as connection:
        assert "vendors" in refused(connection, "DROP EXTERNAL TABLE vendors").message
        connection.execute("DROP VIEW old; DROP VIEW new; DROP VIEW v; DROP STREAM vendors")
        assert ("vendors",) not in rows(connection, "SHOW TABLES")


@pytest.mark.parametrize(
    ("form", "name", "text"),
    [
        ("CSV", "v.csv", "p1,1\np2,2\n"),
        ("TSVWithNames", "v.tsv", "n\tid\n1\tp1\n2\tp2\n"),
        ("JSONEachRow", "v.json", '{"id": "p1", "n": 1}\n{"id": "p2", "n": 2}\n'),
    ],
)
def test_formats(tmp_path, form, name, text):
    (tmp_path / name).write_text(text)
    with connect() as connection:
        connection.execute(
            f"CREATE EXTERNAL TABLE t(id string, n int) SETTINGS type='file', path='{tmp_path / name}', "
            f"data_format='{form}'"
        )
        assert rows(connection, "SELECT id, n FROM t") == [("p1", 1), ("p2", 2)]


def test_a_file_of_which_a_part_can_not_be_read_is_refused(tmp_path):
    (tmp_path / "v.csv").write_text("p1,1\np2,many\n")
    with connect() as connection:
        err = refused(
            connection,
            (
                f"CREATE EXTERNAL TABLE t(id string, n int) SETTINGS type='file', path='{tmp_path / 'v.csv'}', "
                f"format='CSV'"
            ),
        )
        assert (err.condition, err.detail) == ("INVALID_VALUE", "It is in v.csv, line 2. It says: p2,many")
        assert rows(connection, "SHOW TABLES") == []


def test_an_external_stream_over_files_is_an_append_stream(tmp_path):
    (tmp_path / "in").mkdir()
    with connect() as connection:
        connection.execute(
            f"CREATE EXTERNAL STREAM clicks(user string, n int) SETTINGS type='file', "
            f"path='{tmp_path / 'in'}', format='CSV'"
        )
        connection.execute(
            "CREATE MUTABLE STREAM users(user string, name string) PRIMARY KEY user; INSERT INTO users(user, "
            "name) VALUES ('u1', 'Ann')"
        )
        running = connection.execute("SELECT name, n FROM clicks JOIN users ON clicks.user = users.user")
        write(tmp_path / "in" / "a.csv", "u1,1\nu2,2\n")
        connection.execute("FLUSH")
        assert running.fetchall() == [("Ann", 1)]
        assert rows(connection, "SHOW SOURCES") == [("clicks", "running", None, None, None, None)]
        running.close()
        connection.execute("DROP EXTERNAL STREAM clicks")
        assert rows(connection, "SHOW SOURCES") == []


def test_a_dictionary_over_files_serves_what_it_answered_until_its_lifetime_is_over(tmp_path):
    file = tmp_path / "products.csv"
    write(file, "p1,Laptop\np2,Phone\np2,Smartphone\n")
    with connect(tmp_path / "db") as connection:
        Harness(connection).set_clock(START_US)
        connection.execute(
            f"{ORDERS}; CREATE DICTIONARY d(id string, name string) PRIMARY KEY id SOURCE(FILE(path '{file}' "
            f"format 'CSV')) "
            "LAYOUT(COMPLEX_KEY_HASHED()) LIFETIME(60)"
        )
        assert rows(connection, "SELECT * FROM d") == [("p1", "Laptop"), ("p2", "Smartphone")]  # of a key the last row
        connection.execute(
            "CREATE MATERIALIZED VIEW v AS SELECT orders.id, name FROM orders LEFT JOIN d ON orders.product_id = d.id "
            "SETTINGS join_algorithm = 'direct'"
        )
        orders(connection, ("o1", "p1"), ("o2", "p3"))
        write(file, "p1,Notebook\np3,Tablet\n")
        orders(connection, ("o3", "p1"), ("o4", "p3"), ("o5", "p2"))
        assert rows(connection, "SELECT * FROM table(v)") == [
            ("o1", "Laptop"),
            ("o2", None),
            ("o3", "Laptop"),
            ("o4", "Tablet"),
            ("o5", None),
        ]
    with connect(tmp_path / "db") as connection:
        Harness(connection).set_clock(START_US + 59 * SECOND_US)
        orders(connection, ("o6", "p1"))
        file.unlink()
        orders(connection, ("o7", "p3"))  # what was read last counts, and SHOW ERRORS says why
        (problem,) = rows(connection, "SHOW ERRORS")
        with connect(tmp_path / "db", read_only=True) as reader:
            assert rows(reader, "SHOW ERRORS") == [problem]
        assert (problem[0], problem[1]) == ("d", "problem")
        Harness(connection).set_clock(START_US + 60 * SECOND_US)
        orders(connection, ("o8", "p1"))
        assert rows(connection, "SELECT * FROM table(v)")[5:] == [
            ("o6", "Laptop"),
            ("o7", "Tablet"),
            ("o8", "Notebook"),
        ]
        write(file, "p1,Netbook\n")
        connection.execute("FLUSH")
        assert rows(connection, "SHOW ERRORS") == []
        assert rows(connection, "SELECT * FROM d") == [("p1", "Netbook")]
        connection.execute("DROP VIEW v; DROP DICTIONARY d")


def test_a_dictionary_over_a_stream_of_this_database():
    with connect() as connection:
        Harness(connection).set_clock(START_US)
        connection.execute(
            f"{ORDERS}; CREATE MUTABLE STREAM products(id string, name string, price int) PRIMARY KEY id"
        )
        connection.execute(
            "CREATE DICTIONARY forever(id string, name string) PRIMARY KEY id SOURCE(TIMEPLUS(STREAM "
            "'products')) LAYOUT(HASHED())"
        )
        connection.execute(
            "CREATE DICTIONARY direct(id string, name string) PRIMARY KEY id SOURCE(TIMEPLUS(STREAM "
            "'products' DB 'default')) LAYOUT(DIRECT)"
        )
        running = {
            n: connection.execute(f"SELECT orders.id, name FROM orders JOIN {n} AS d ON orders.product_id = d.id{s}")
            for n, s in (("forever", ""), ("direct", " SETTINGS join_algorithm = 'direct'"))
        }
        connection.execute("INSERT INTO products(id, name) VALUES ('p1', 'Laptop')")
        orders(connection, ("o1", "p1"))
        connection.execute("INSERT INTO products(id, name) VALUES ('p1', 'Notebook'); FLUSH")
        Harness(connection).set_clock(START_US + 10**6 * SECOND_US)
        orders(connection, ("o2", "p1"))
        assert sorted(running["forever"].fetchall()) == [("o1", "Laptop"), ("o2", "Laptop")]
        assert sorted(running["direct"].fetchall()) == [("o1", "Laptop"), ("o2", "Notebook")]
        assert rows(connection, "SELECT * FROM forever") == [("p1", "Notebook")]
        assert "depend" in refused(connection, "DROP STREAM products").message


def test_an_external_table_over_a_stream_of_this_database_stands_still():
    with connect() as connection:
        connection.execute(
            f"{ORDERS}; CREATE MUTABLE STREAM products(id string, name string) PRIMARY KEY id; "
            "INSERT INTO products(id, name) VALUES ('p1', 'Laptop'); FLUSH"
        )
        connection.execute(
            "CREATE EXTERNAL TABLE t(id string, name string) SETTINGS type='timeplus', stream='products'; "
            "CREATE EXTERNAL TABLE whole SETTINGS type='timeplus', table='products'"
        )
        running = connection.execute("SELECT orders.id, name FROM orders LEFT JOIN t ON orders.product_id = t.id")
        connection.execute("INSERT INTO products(id, name) VALUES ('p1', 'Notebook'), ('p2', 'Phone'); FLUSH")
        orders(connection, ("o1", "p1"), ("o2", "p2"))
        assert sorted(running.fetchall()) == [("o1", "Laptop"), ("o2", None)]
        assert (
            rows(connection, "SELECT * FROM t")
            == rows(connection, "SELECT id, name FROM whole")
            == [("p1", "Notebook"), ("p2", "Phone")]
        )
        running.close()
        err = refused(connection, "CREATE EXTERNAL TABLE u(id int) SETTINGS type='timeplus', stream='products'")
        assert err.condition == "DATATYPE_MISMATCH"
        connection.execute("DROP EXTERNAL TABLE t; DROP STREAM whole; DROP STREAM products")


def test_a_direct_join_asks_for_the_whole_key():
    with connect() as connection:
        connection.execute(
            "CREATE STREAM s(a int, b string, c string); CREATE MUTABLE STREAM m(k int, l string, v string) "
            "PRIMARY KEY (k, l); "
            "CREATE DICTIONARY d(k int, l string, v string) PRIMARY KEY k, l SOURCE(TIMEPLUS(STREAM 'm')) "
            "LAYOUT(COMPLEX_KEY_HASHED())"
        )
        direct = " SETTINGS join_algorithm = 'direct'"
        err = refused(connection, f"SELECT * FROM s JOIN d ON s.a = d.k{direct}")
        assert (err.condition, err.detail) == ("DIRECT_KEY", "Its key is (k, l).")
        running = connection.execute(f"SELECT c, v FROM s LEFT JOIN d ON s.b = d.l AND s.c = d.v AND s.a = d.k{direct}")
        connection.execute(
            "INSERT INTO m(k, l, v) VALUES (1, 'x', 'red'); INSERT INTO s(a, b, c) VALUES (1, 'x', 'blue'), "
            "(1, 'x', 'red'); FLUSH"
        )
        connection.execute(
            "INSERT INTO m(k, l, v) VALUES (1, 'x', 'blue'); INSERT INTO s(a, b, c) VALUES (1, 'x', 'blue'); FLUSH"
        )
        assert sorted(running.fetchall(), key=str) == [
            ("blue", None),
            ("blue", None),
            ("red", "red"),
        ]  # the answer is still red
        plan = "\n".join(
            r[0]
            for r in connection.execute(
                f"EXPLAIN CREATE MATERIALIZED VIEW v AS SELECT c, v FROM s JOIN d ON s.b = d.l AND s.a = d.k{direct}"
            ).fetchall()
        )
        assert "answers_serve: forever" in plan
        assert "keeps what each key was answered with" in plan


CACHED = (
    "CREATE MUTABLE STREAM cache(id string, name string, note nullable(string)) PRIMARY KEY id; "
    "CREATE DICTIONARY d(id string, name string) PRIMARY KEY id SOURCE(CLICKHOUSE(HOST 'h' DB 'shop' TABLE "
    "'products')) "
    "LAYOUT(MUTABLE_CACHE(DB 'default' STREAM 'cache' UPDATE_FROM_SOURCE {}))"
)
DIRECT = "SELECT orders.id, name FROM orders JOIN d ON orders.product_id = d.id SETTINGS join_algorithm = 'direct'"


def products(connection, *pairs):
    Harness(connection).set_external("clickhouse", "shop.products", "id string, name string", [list(p) for p in pairs])


def test_a_cache_stream_is_filled_also_after_a_restart(tmp_path):
    with disconnected(tmp_path / "db") as connection:
        products(connection, ("p1", "Laptop"), ("p2", "Phone"), ("p3", "Tablet"))
        connection.execute(f"{ORDERS}; {CACHED.format('true')}; CREATE MATERIALIZED VIEW v AS {DIRECT}")
        orders(connection, ("o1", "p1"), ("o2", "p1"))
        assert rows(connection, "SELECT id, name, note FROM table(cache)") == [("p1", "Laptop", None)]
        products(connection, ("p1", "Notebook"), ("p2", "Smartphone"), ("p3", "Tablet"))
        orders(connection, ("o3", "p1"), ("o4", "p2"))
        connection.execute("DELETE FROM cache WHERE id = 'p1'; FLUSH")
        orders(connection, ("o5", "p1"))
    with disconnected(tmp_path / "db") as connection:
        products(connection, ("p3", "Slate"))
        orders(connection, ("o6", "p3"), ("o7", "p2"))
        assert rows(connection, "SELECT * FROM table(v)") == [
            ("o1", "Laptop"),
            ("o2", "Laptop"),
            ("o3", "Laptop"),
            ("o4", "Smartphone"),
            ("o5", "Notebook"),
            ("o6", "Slate"),
            ("o7", "Smartphone"),
        ]
        assert rows(connection, "SELECT id, name FROM table(cache)") == [
            ("p1", "Notebook"),
            ("p2", "Smartphone"),
            ("p3", "Slate"),
        ]
        assert "depend" in refused(connection, "DROP STREAM cache").message
        connection.execute("DROP VIEW v; DELETE FROM cache; FLUSH")
        orders(connection, ("o8", "p3"))
        assert rows(connection, "SELECT id FROM table(cache)") == []
        assert rows(connection, "SHOW MATERIALIZED VIEWS") == rows(connection, "SHOW JOBS") == []


def test_a_cache_stream_that_is_not_to_be_filled_is_only_asked():
    with disconnected() as connection:
        products(connection, ("p1", "Laptop"))
        connection.execute(f"{ORDERS}; {CACHED.format('false')}; INSERT INTO cache(id, name) VALUES ('p9', 'Cached')")
        running = connection.execute(DIRECT)
        orders(connection, ("o1", "p1"), ("o2", "p9"), ("o3", "p8"))
        products(connection, ("p1", "Notebook"))
        orders(connection, ("o4", "p1"))
        assert sorted(running.fetchall()) == [("o1", "Laptop"), ("o2", "Cached"), ("o4", "Notebook")]
        assert rows(connection, "SELECT id FROM table(cache)") == [("p9",)]


def test_views_that_look_up_are_not_made_anew_unless_they_were_stopped(tmp_path):
    with disconnected(tmp_path / "db", parallelism=2) as connection:
        products(connection, ("p1", "Laptop"))
        connection.execute(
            f"{ORDERS}; {CACHED.format('true')}; CREATE STREAM other(i int); CREATE STREAM another(i int)"
        )
        connection.execute(f"CREATE MATERIALIZED VIEW v AS {DIRECT}, join_max_buffered_bytes = 2000")
        orders(connection, ("o1", "p1"))
    assert refused_rebuild(tmp_path / "db").message == "the state of a view with a temporal join can't be rebuilt"
    with disconnected(tmp_path / "db") as connection:
        products(connection, *((f"p{i}", f"name {i}") for i in range(500)))
        connection.execute("FLUSH")
        assert refused(connection, "SELECT * FROM table(v)").condition == "BUFFER_LIMIT"
        assert [r[-1] for r in connection.execute("SHOW JOBS").fetchall()] == [None]
    with disconnected(tmp_path / "db", parallelism=3, rebuild=True) as connection:
        assert refused(connection, "SELECT * FROM table(v)").condition == "BUFFER_LIMIT"
        connection.execute("DROP VIEW v; DROP DICTIONARY d; DROP STREAM cache")
        assert rows(connection, "SHOW JOBS") == []


def refused_rebuild(path):
    with pytest.raises(Error) as found:
        connect(path, parallelism=3, rebuild=True)
    return found.value


SOURCE = "SOURCE(TIMEPLUS(STREAM 'm'))"


@pytest.mark.parametrize(
    ("sql", "condition", "place"),
    [
        ("CREATE EXTERNAL TABLE t SETTINGS type='mongodb', address='db:3306', table='t'", "FEATURE_NOT_SUPPORTED", "t"),
        ("CREATE EXTERNAL TABLE t(a int) SETTINGS type='mongodb', uri='b'", "FEATURE_NOT_SUPPORTED", "t"),
        ("CREATE EXTERNAL TABLE t(a int) SETTINGS type='mysqll'", "CONNECTOR_OPTION", "t"),
        ("CREATE EXTERNAL TABLE t SETTINGS type='file', path='/', format='CSV'", "CONNECTOR_OPTION", "t"),
        ("CREATE EXTERNAL TABLE t(a int) SETTINGS type='file', path='/nowhere', format='CSV'", "CONNECTOR_OPTION", "t"),
        ("CREATE EXTERNAL TABLE t(a int) SETTINGS type='file', path='/', format='Avro'", "CONNECTOR_OPTION", "t"),
        ("CREATE EXTERNAL TABLE t(a int) SETTINGS path='/'", "SYNTAX_ERROR", None),
        (
            "CREATE EXTERNAL STREAM t(a int) SETTINGS type='pulsar', service_url='p', topic='x'",
            "FEATURE_NOT_SUPPORTED",
            "t",
        ),
        ("CREATE EXTERNAL STREAM t SETTINGS type='file', path='/'", "SYNTAX_ERROR", None),
        (
            "CREATE DICTIONARY d(k int) PRIMARY KEY k SOURCE(MONGODB(DB 'd' TABLE 't' HOST 'h')) LAYOUT(FLAT())",
            "FEATURE_NOT_SUPPORTED",
            "MONGODB(DB 'd' TABLE 't' HOST 'h')",
        ),
        (
            "CREATE DICTIONARY d(k int) PRIMARY KEY k SOURCE(MONGODB(DB 'd' TABLE 't' HOST 'h')) LAYOUT(FLAT())",
            "FEATURE_NOT_SUPPORTED",
            "MONGODB(DB 'd' TABLE 't' HOST 'h')",
        ),
        (f"CREATE DICTIONARY d(k int) PRIMARY KEY k {SOURCE} LAYOUT(POLYGON)", "FEATURE_NOT_SUPPORTED", "POLYGON"),
        (f"CREATE DICTIONARY d(k int) PRIMARY KEY k {SOURCE} LAYOUT(HASHD())", "INVALID_PARAMETER", "HASHD()"),
        (
            f"CREATE DICTIONARY d(k int) PRIMARY KEY k {SOURCE} LAYOUT(CACHE(SIZE_IN_CELLS 10))",
            "INVALID_PARAMETER",
            "CACHE(SIZE_IN_CELLS 10)",
        ),
        (
            f"CREATE DICTIONARY d(k int) PRIMARY KEY k {SOURCE} LAYOUT(FLAT(SHARDS 1))",
            "CONNECTOR_OPTION",
            "FLAT(SHARDS 1)",
        ),
        (
            f"CREATE DICTIONARY d(k int) PRIMARY KEY k {SOURCE} LAYOUT(HYBRID_HASH_CACHE(PATH 'x'))",
            "INVALID_PARAMETER",
            "HYBRID_HASH_CACHE(PATH 'x')",
        ),
        (
            f"CREATE DICTIONARY d(k int) PRIMARY KEY k {SOURCE} LAYOUT(MUTABLE_CACHE(STREAM 'a'))",
            "CATALOG_TYPE_MISMATCH",
            "MUTABLE_CACHE(STREAM 'a')",
        ),
        (
            f"CREATE DICTIONARY d(k int, w string) PRIMARY KEY k {SOURCE} LAYOUT(FLAT())",
            "UNDEFINED_COLUMN",
            "TIMEPLUS(STREAM 'm')",
        ),
        (
            f"CREATE DICTIONARY d(k string) PRIMARY KEY k {SOURCE} LAYOUT(HASHED())",
            "DATATYPE_MISMATCH",
            "TIMEPLUS(STREAM 'm')",
        ),
        (
            f"CREATE DICTIONARY d(k int, v string) PRIMARY KEY v {SOURCE} LAYOUT(HASHED())",
            "CATALOG_TYPE_MISMATCH",
            "TIMEPLUS(STREAM 'm')",
        ),
        (f"CREATE DICTIONARY d(k int) PRIMARY KEY j {SOURCE} LAYOUT(FLAT())", "UNDEFINED_COLUMN", "j"),
        (
            f"CREATE DICTIONARY d(k int) PRIMARY KEY k {SOURCE} LAYOUT(FLAT()) LIFETIME(MIN 10 MAX 1)",
            "INVALID_PARAMETER",
            ")",
        ),
        (
            f"CREATE DICTIONARY d(k int DEFAULT 1) PRIMARY KEY k {SOURCE} LAYOUT(FLAT())",
            "FEATURE_NOT_SUPPORTED",
            "1",
        ),
        (
            f"CREATE DICTIONARY d(k int) PRIMARY KEY k {SOURCE} LAYOUT(FLAT()) SETTINGS(a = 1)",
            "FEATURE_NOT_SUPPORTED",
            "SETTINGS",
        ),
        ("CREATE DICTIONARY d(k int) PRIMARY KEY k LAYOUT(FLAT())", "SYNTAX_ERROR", None),
        (
            "CREATE DICTIONARY d(k int) PRIMARY KEY k SOURCE(TIMEPLUS(STREAM 'nothing')) LAYOUT(FLAT())",
            "UNDEFINED_RELATION",
            "TIMEPLUS(STREAM 'nothing')",
        ),
        (
            "CREATE DICTIONARY d(k int) PRIMARY KEY k SOURCE(TIMEPLUS(QUERY 'SELECT 1')) LAYOUT(FLAT())",
            "CONNECTOR_OPTION",
            "TIMEPLUS(QUERY 'SELECT 1')",
        ),
        ("DROP DICTIONARY m", "CATALOG_TYPE_MISMATCH", "m"),
    ],
)
def test_refusals_name_the_place_and_leave_nothing_behind(sql, condition, place):
    with connect() as connection:
        connection.execute("CREATE MUTABLE STREAM m(k int, v string) PRIMARY KEY k; CREATE STREAM a(k int)")
        err = refused(connection, sql)
        assert err.condition == condition
        if place is not None:
            assert sql[err.span.start : err.span.end] == place
        assert rows(connection, "SHOW RELATIONS") == [("a", "stream"), ("m", "stream")]


def test_show_names_streams_and_dictionaries_and_hides_passwords(tmp_path):
    with disconnected(tmp_path / "db") as connection:
        products(connection, ("p1", "Laptop"))
        connection.execute("""CREATE DICTIONARY d(id string, name string) PRIMARY KEY id
            SOURCE(CLICKHOUSE(DB 'shop' TABLE 'products' USER 'u' PASSWORD 'geheim')) LAYOUT(HASHED());
            CREATE EXTERNAL TABLE e SETTINGS type = 'clickhouse', database = 'shop', table = 'products',
            password = 'geheim';
            CREATE STREAM s(i int)""")
        assert rows(connection, "SHOW STREAMS") == [("s",)]
        assert rows(connection, "SHOW DICTIONARIES") == [("d",)]
        assert rows(connection, "DESCRIBE STREAM s") == rows(connection, "DESC s") == rows(connection, "DESCRIBE s")
        assert rows(connection, "SHOW CREATE STREAM s") == [("s", "CREATE STREAM s(i int)")]
        for statement in ("SHOW CREATE DICTIONARY d", "SHOW CREATE TABLE d", "SHOW CREATE TABLE e"):
            [(_, text)] = rows(connection, statement)
            assert "'[HIDDEN]'" in text
            assert "geheim" not in text
        for file in tmp_path.rglob("*"):  # others on the machine can't read it
            assert not file.is_file() or b"geheim" not in file.read_bytes() or file.stat().st_mode & 0o077 == 0
        assert refused(connection, "SHOW CREATE DICTIONARY s").condition == "CATALOG_TYPE_MISMATCH"
        assert rows(connection, "SELECT id, name FROM e") == [("p1", "Laptop")]
