"""Topics and processors over restarts, rebuilds and the borders of dialects."""

import pytest

import watersmeet
from watersmeet.errors import Error

SETUP = """
SET defaults.topic.autocreate=true;
CREATE TABLE customers (_key int, id int, name string) FORMAT (INT, AVRO) PROPERTIES (partitions=2);
CREATE TABLE orders (_key int, customer_id int, item string) FORMAT (INT, AVRO) PROPERTIES (partitions=2);
WITH c AS (SELECT TABLE * FROM customers);
WITH o AS (SELECT TABLE * FROM orders);
INSERT INTO joined SELECT TABLE c.name, o.item FROM c LEFT JOIN o ON c.id = o.customer_id;
INSERT INTO counted SELECT TABLE name, COUNT(*) AS n FROM customers GROUP BY name;
INSERT INTO windowed SELECT STREAM customers.name, orders.item FROM customers LEFT JOIN orders
    ON customers.id = orders.customer_id WITHIN 5s;
"""


def connected(path, **options):
    return watersmeet.connect(str(path), dialect=options.pop("dialect", "lenses"), runtime="inprocess", **options)


def rows(connection, sql):
    return sorted(connection.execute(sql).fetchall(), key=str)


def now(connection, topic):
    """The topic as a table."""
    query = connection.start(f"SELECT TABLE * FROM {topic}")
    table, diff = query.take()
    query.close()
    assert (diff == 1).all()
    return sorted(map(tuple, (r.values() for r in table.to_pylist())), key=str)


def filled(path, **options):
    connection = connected(path, **options)
    connection.execute(SETUP)
    connection.execute(
        "INSERT INTO customers (_key, id, name, `@time`) VALUES (1, 10, 'John', TIMESTAMP '2021-01-01'), (2, "
        "20, 'Ann', TIMESTAMP '2021-01-01')"
    )
    connection.execute(
        "INSERT INTO orders (_key, customer_id, item, `@time`) VALUES (1, 10, 'pen', TIMESTAMP '2021-01-01 00:00:01')"
    )
    connection.execute("FLUSH")
    connection.execute(
        "INSERT INTO orders (_key, customer_id, item, `@time`) VALUES (1, 20, 'ink', TIMESTAMP '2021-01-01 00:00:03')"
    )
    connection.execute("FLUSH")
    return connection


JOINED = [("Ann", "ink"), ("John", None)]
COUNTED = [("Ann", 1), ("John", 1)]


def after(connection):
    """Goes on with the topics and looks at all of them."""
    assert now(connection, "joined") == JOINED
    assert now(connection, "counted") == COUNTED
    assert rows(connection, "SELECT * FROM windowed") == [("Ann", "ink"), ("John", "pen")]
    before = rows(connection, "SELECT name, item FROM joined")
    assert len(before) >= 3
    connection.execute("INSERT INTO customers (_key, _value) VALUES (1, NULL)")
    connection.execute(
        "INSERT INTO customers (_key, id, name, `@time`) VALUES (3, 20, 'Zoe', TIMESTAMP '2021-01-01 00:00:04')"
    )
    connection.execute("FLUSH")
    assert now(connection, "joined") == [("Ann", "ink"), ("Zoe", "ink")]
    assert now(connection, "counted") == [("Ann", 1), ("Zoe", 1)]
    assert rows(connection, "SELECT * FROM windowed") == [("Ann", "ink"), ("John", "pen"), ("Zoe", "ink")]
    records = rows(connection, "SELECT name, item FROM joined")
    assert len(records) == len(before) + 2, "the new pair, and that John's is gone"
    connection.close()


def test_topics_survive_a_restart(tmp_path):
    filled(tmp_path / "db").close()
    after(connected(tmp_path / "db"))


def test_topics_survive_a_rebuild_with_another_parallelism(tmp_path):
    filled(tmp_path / "db", parallelism=1).close()
    after(connected(tmp_path / "db", parallelism=3, rebuild=True))


def test_nothing_is_late_in_a_rebuild(tmp_path):
    """Though the clocks of the streams are past all of it; where rows were left out as late, the state can't be what it
    was.
    """
    write = "INSERT INTO {} (_key, x, `@time`) VALUES ({}, {}, TIMESTAMP '2021-01-01 00:00:{:02d}')"

    def given(connection, *records):
        for record in records:
            connection.execute(write.format(*record))
            connection.flush()

    with connected(tmp_path / "db", parallelism=1) as connection:
        connection.execute("""CREATE TABLE a (x int) FORMAT (INT, AVRO); CREATE TABLE b (x int) FORMAT (INT, AVRO);
        SET defaults.topic.autocreate=true;
            WITH pairs AS (SELECT STREAM a.x, b.x AS y FROM a JOIN b WITHIN 5s GRACE PERIOD 0s);
            INSERT INTO counted SELECT TABLE x, COUNT(*) AS n FROM pairs GROUP BY x""")
        given(connection, ("a", 1, 7, 0), ("b", 1, 1, 1), ("a", 2, 7, 30), ("b", 2, 2, 30))
        assert now(connection, "counted") == [(7, 2)]
    with connected(tmp_path / "db", parallelism=2, rebuild=True) as connection:
        given(connection, ("b", 2, 3, 31))
        assert now(connection, "counted") == [(7, 3)]
        given(connection, ("b", 1, 4, 2))
        assert now(connection, "counted") == [(7, 3)]
    with pytest.raises(Error, match='the state of processor "counted" can\'t be rebuilt'):
        connected(tmp_path / "db", parallelism=1, rebuild=True)


def test_other_dialects_read_topics_and_topics_others(tmp_path):
    filled(tmp_path / "db").close()
    with connected(tmp_path / "db", dialect="risingwave") as connection:
        connection.execute('CREATE MATERIALIZED VIEW kept AS SELECT _key, name FROM customers WHERE NOT "@deleted"')
        connection.execute(
            "CREATE MATERIALIZED VIEW per_name AS SELECT name, count(*) AS n FROM customers GROUP BY name"
        )
        connection.execute("CREATE TABLE prices (item varchar PRIMARY KEY, price int)")
        connection.execute("CREATE TABLE log (item varchar, price int) APPEND ONLY")
        connection.execute(
            "INSERT INTO prices VALUES ('pen', 1), ('ink', 2); INSERT INTO log VALUES ('pen', 1), ('pen', 1); FLUSH"
        )
        assert rows(connection, "SELECT * FROM kept") == [(1, "John"), (2, "Ann")]
        assert connection.execute("SELECT count(*) FROM joined").fetchone()[0] >= 3
    with connected(tmp_path / "db") as connection:
        connection.execute("SET defaults.topic.autocreate=true")
        connection.execute(
            "INSERT INTO priced SELECT TABLE orders.customer_id, prices.price FROM orders JOIN prices ON "
            "orders.item = prices.item"
        )
        connection.execute("INSERT INTO names SELECT STREAM name FROM kept")
        connection.execute("INSERT INTO logged SELECT STREAM * FROM log")
        assert now(connection, "priced") == [(20, 2)]
        assert rows(connection, "SELECT * FROM names") == [("Ann",), ("John",)]
        assert rows(connection, "SELECT * FROM logged") == [("pen", 1), ("pen", 1)]
        with pytest.raises(Error, match="deletes rows, so"):
            connection.execute("INSERT INTO x SELECT STREAM n FROM per_name")
        # records without key are a stream, and no table
        connection.execute(
            "INSERT INTO again SELECT STREAM * FROM logged; INSERT INTO items SELECT STREAM item, COUNT(*) "
            "AS n FROM logged GROUP BY item"
        )
        assert rows(connection, "SELECT * FROM again") == [("pen", 1), ("pen", 1)]
        assert now(connection, "items") == [("pen", 2)]
        assert ("key format", "none", None) in connection.execute("DESCRIBE again").fetchall()
        with pytest.raises(Error, match='the records of topic "logged" have no key'):
            connection.execute("INSERT INTO x SELECT TABLE * FROM logged")
        with pytest.raises(Error, match="no key that could be stored as INT"):
            connection.execute("INSERT INTO x STORE KEY AS INT SELECT STREAM * FROM logged")


def test_a_unit_leaves_nothing_behind(tmp_path):
    with connected(tmp_path / "db") as connection:
        connection.execute("CREATE TABLE t (_key int, n int) FORMAT (INT, AVRO)")
        with pytest.raises(Error) as found:
            connection.execute(
                "SET defaults.topic.autocreate=true; CREATE TABLE u (_key int, n int) FORMAT (INT, AVRO); "
                "INSERT INTO a SELECT STREAM * FROM t; INSERT INTO b SELECT STREAM m FROM t;"
            )
        assert found.value.condition == "UNDEFINED_COLUMN"
        assert found.value.span is not None
        assert [r[0] for r in rows(connection, "SHOW TABLES")] == ["t"]
        assert rows(connection, "SHOW MATERIALIZED VIEWS") == []
        with pytest.raises(Error, match="does not exist"):
            connection.execute("INSERT INTO a SELECT STREAM * FROM t")
        connection.execute("INSERT INTO t VALUES (1, 2); FLUSH")
        assert rows(connection, "SELECT * FROM t") == [(2,)]


def test_many_rows_at_once(tmp_path):
    with connected(tmp_path / "db") as connection:
        connection.execute("CREATE TABLE t (_key int, n int) FORMAT (INT, AVRO)")
        connection.cursor().executemany("INSERT INTO t VALUES (?, ?)", [(i, i) for i in range(5)])
        connection.cursor().executemany("INSERT INTO t (_key, _value) VALUES (?, NULL)", [(i,) for i in range(3)])
        assert now(connection, "t") == [(3,), (4,)]
        assert connection.execute("SELECT count(*) FROM t").fetchone() == (8,)


def test_parameters():
    """Of rows and of queries that end; a processor runs by its text."""
    connection = watersmeet.connect(dialect="lenses", runtime="inprocess")
    for name in "ab":
        connection.execute(f"CREATE TABLE {name} (_key int, v string) FORMAT (INT, AVRO)")
    connection.execute("INSERT INTO a VALUES (?, ?)", (1, "one"))
    connection.execute("INSERT INTO b SELECT _key, ? FROM a WHERE _key = ?", ("uno", 1))
    connection.flush()
    assert connection.execute("SELECT _key, v FROM b").fetchall() == [(1, "uno")]
    with pytest.raises(watersmeet.ProgrammingError, match="a processor takes no parameters"):
        connection.execute("INSERT INTO c SELECT STREAM v FROM a WHERE _key = ?", (1,))
    connection.close()


def test_properties_and_settings_without_effect_say_so():
    connection = watersmeet.connect(dialect="lenses", runtime="inprocess")
    told = [
        connection.execute(sql).notices
        for sql in (
            "CREATE TABLE a (id int) FORMAT (INT, JSON) PROPERTIES (compacted=true, replication=3)",
            "CREATE TABLE b (id int) FORMAT (INT, JSON) PROPERTIES (compacted=false, partitions=3)",
            "SET processing.guarantee='exactly_once'",
        )
    ]
    assert [[n.split(":")[0] for n in notices] for notices in told] == [
        ["compacted has no effect", "replication has no effect"],
        [],
        ["processing.guarantee has no effect"],
    ]
    assert "Lenses" in told[2][0]
    connection.close()


def test_select_table_shows_what_a_topic_would_get(tmp_path):
    """No sign, no column of our own: a key that is gone is a tombstone."""
    with connected(tmp_path / "db") as connection:
        connection.execute("CREATE TABLE a (_key int, x int) FORMAT (INT, AVRO)")
        connection.execute("INSERT INTO a VALUES (1, 10), (2, 20)")
        cursor = connection.execute("SELECT TABLE _key, x FROM a WHERE x < 100")
        assert [d[0] for d in cursor.description] == ["_key", "x"]
        assert sorted(cursor.fetchmany(2)) == [(1, 10), (2, 20)]
        for text, shown in (("(1, 11)", (1, 11)), ("(2, 200)", (2, None)), ("(2, 300)", None), ("(3, 3)", (3, 3))):
            connection.execute(f"INSERT INTO a VALUES {text}")
            connection.flush()
            if shown is not None:
                assert cursor.fetchone() == shown
        cursor.close()
        connection.execute("CREATE TABLE b (_key int, y int) FORMAT (INT, AVRO)")
        connection.execute("INSERT INTO b VALUES (1, 1)")
        joined = connection.execute("SELECT TABLE a.x, b.y FROM a LEFT JOIN b")
        assert sorted(joined.fetchmany(3), key=str) == [(11, 1), (3, None), (300, None)]
        joined.close()


def test_on_without_an_equality_says_so(tmp_path):
    """Without an equality the join is by the keys."""
    with connected(tmp_path / "db") as connection:
        connection.execute("CREATE TABLE a (_key int, x string) FORMAT (INT, AVRO)")
        connection.execute("CREATE TABLE b (_key int, y string) FORMAT (INT, AVRO)")
        connection.execute("SET defaults.topic.autocreate=true")
        said = connection.execute("INSERT INTO o SELECT TABLE a.x, b.y FROM a JOIN b ON a.x = 'q'").notices
        assert said == ("the join is by _key: nothing in ON equates both sources",)
        assert connection.execute("INSERT INTO p SELECT TABLE a.x, b.y FROM a JOIN b").notices == ()


@pytest.fixture
def connection(tmp_path):
    with connected(tmp_path / "db") as made:
        yield made


def test_insert_names_fields_of_fields(connection):
    connection.execute(
        "CREATE TABLE t (_key.plate string, _key.country string, id int, address.city string NULL, "
        "address.home.number int NULL, name string NULL) FORMAT (JSON, JSON)"
    )
    connection.execute(
        "INSERT INTO t(_key.plate, _value.id, address.home.number, _key.country, `@time`) "
        "VALUES ('M 1', 1, 5, 'DE', 1000), ('M 2', 2, NULL, NULL, 2000)"
    )
    connection.execute("INSERT INTO t(name, address.city, _key.plate, id) SELECT 'x', concat('O', 'slo'), 'O 3', 3")
    connection.cursor().executemany(
        "INSERT INTO t(_key.plate, id, address.city) VALUES (?, ?, ?)", [("O 4", 4, "Bergen")]
    )
    assert connection.execute("SELECT _key, id, address, name FROM t ORDER BY id").fetchall() == [
        ({"plate": "M 1", "country": "DE"}, 1, {"city": None, "home": {"number": 5}}, None),
        ({"plate": "M 2", "country": None}, 2, {"city": None, "home": {"number": None}}, None),
        ({"plate": "O 3", "country": None}, 3, {"city": "Oslo", "home": None}, "x"),
        ({"plate": "O 4", "country": None}, 4, {"city": "Bergen", "home": None}, None),
    ]
    assert connection.execute(
        "SELECT _key.plate FROM t WHERE _meta.timestamp < TIMESTAMP '1970-01-01 00:00:02'"
    ).fetchall() == [("M 1",)]


@pytest.mark.parametrize(
    ("fields", "condition", "said", "caret"),
    [
        ("_key.plat, id", "UNDEFINED_COLUMN", '"_key" of relation "t" has no field "plat"', "_key.plat"),
        ("id.x", "UNDEFINED_COLUMN", '"id" of relation "t" has no field "x"', "id.x"),
        ("a.b, a.b", "UNDEFINED_COLUMN", 'column "a" of relation "t" does not exist', "a.b"),
        ("_key.plate, _key", "DUPLICATE_COLUMN", 'column "_key" specified more than once', "_key"),
        ("_key, _key.plate", "DUPLICATE_COLUMN", 'column "_key.plate" specified more than once', "_key.plate"),
    ],
)
def test_insert_refuses_fields_that_are_not_there_or_are_there_twice(connection, fields, condition, said, caret):
    connection.execute("CREATE TABLE t (_key.plate string, id int) FORMAT (JSON, JSON)")
    sql = f"INSERT INTO t({fields}) VALUES ('x', 1)"
    with pytest.raises(Error) as caught:
        connection.execute(sql)
    assert (caught.value.condition, caught.value.message) == (condition, said)
    assert sql[caught.value.span.start : caught.value.span.end] == caret


def test_insert_gives_a_field_of_a_field_its_type(connection):
    connection.execute("CREATE TABLE t (_key int, place.n int) FORMAT (INT, JSON)")
    with pytest.raises(Error, match=r'column "place\.n" is of type integer but expression is of type boolean'):
        connection.execute("INSERT INTO t(_key, place.n) VALUES (1, true)")
