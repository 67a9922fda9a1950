"""`check`: every statement of a script that would be refused, and nothing else."""

import random

import pytest
from tests.thorough import mostly_slow

import watersmeet
from watersmeet.catalog import Sink
from watersmeet.connectors.base.targets import Connector
from watersmeet.connectors.registry import SINKS
from watersmeet.session.connections.checking import check_scripts
from watersmeet.session.connections.scripts import scratch_database

#: For each dialect, statements as (the object that it creates, the objects that it reads, its text).
SCRIPTS = {
    "risingwave": [
        ("orders", (), "CREATE TABLE orders (id int PRIMARY KEY, customer int, amount numeric, at timestamp)"),
        ("customers", (), "CREATE TABLE customers (id int PRIMARY KEY, name varchar)"),
        (
            "clicks",
            (),
            (
                "CREATE SOURCE clicks (id int, at timestamp) WITH (connector = 'kafka', topic = 'c', "
                "properties.bootstrap.server = 'localhost:1') FORMAT PLAIN ENCODE JSON"
            ),
        ),
        (
            "shop",
            (),
            (
                "CREATE SOURCE shop WITH (connector = 'postgres-cdc', hostname = 'localhost', port = '1', "
                "username = 'u', password = 'p', database.name = 'd')"
            ),
        ),
        ("stock", ("shop",), "CREATE TABLE stock (id int PRIMARY KEY, n int) FROM shop TABLE 'public.stock'"),
        (
            "named",
            ("orders", "customers"),
            (
                "CREATE MATERIALIZED VIEW named AS SELECT o.id, c.name, o.at FROM orders o JOIN customers c "
                "ON o.customer = c.id"
            ),
        ),
        (
            "seen",
            ("clicks", "named"),
            "CREATE MATERIALIZED VIEW seen AS SELECT n.id FROM clicks k JOIN named n USING (id)",
        ),
        (
            "left_over",
            ("named", "stock"),
            "CREATE VIEW left_over AS SELECT n.id FROM named n LEFT JOIN stock s USING (id)",
        ),
        (
            "out",
            ("seen",),
            (
                "CREATE SINK out FROM seen WITH (connector = 'kafka', topic = 'o', primary_key = 'id', "
                "properties.bootstrap.server = 'localhost:1') FORMAT UPSERT ENCODE JSON"
            ),
        ),
        (None, ("orders",), "INSERT INTO orders (id, customer) VALUES (1, 2)"),
        (None, ("left_over",), "SELECT id FROM left_over"),
        (None, (), "FLUSH"),
    ],
    "timeplus": [
        ("trades", (), "CREATE STREAM trades (id int, symbol string, price float64)"),
        ("quotes", (), "CREATE MUTABLE STREAM quotes (symbol string, bid float64) PRIMARY KEY symbol"),
        (
            "raw",
            (),
            "CREATE EXTERNAL STREAM raw (raw string) SETTINGS type = 'kafka', brokers = 'localhost:1', topic = 't'",
        ),
        ("pairs", ("trades", "quotes"), "CREATE VIEW pairs AS SELECT id, bid FROM trades JOIN quotes USING (symbol)"),
        ("kept", ("pairs",), "CREATE MATERIALIZED VIEW kept AS SELECT id, bid FROM pairs"),
        ("texts", ("raw",), "CREATE MATERIALIZED VIEW texts AS SELECT raw FROM raw"),
        ("sent", ("raw", "trades"), "CREATE MATERIALIZED VIEW sent INTO raw AS SELECT symbol AS raw FROM trades"),
        (None, ("trades",), "INSERT INTO trades (id, symbol, price) VALUES (1, 'a', 2.5)"),
        (None, ("kept",), "SELECT id FROM table(kept)"),
        (None, ("pairs",), "SELECT id FROM pairs"),
    ],
    "sqlstream": [
        ("s", (), "CREATE OR REPLACE SCHEMA s"),
        ("orders", ("s",), "CREATE OR REPLACE STREAM s.orders (id int, item int)"),
        ("shipments", ("s",), "CREATE OR REPLACE STREAM s.shipments (id int, city varchar(20))"),
        ("joined", ("s",), "CREATE OR REPLACE STREAM s.joined (id int, city varchar(20))"),
        (
            "pump",
            ("s", "orders", "shipments", "joined"),
            (
                "CREATE OR REPLACE PUMP s.pump STOPPED AS INSERT INTO s.joined (id, city) SELECT STREAM o.id, p.city "
                "FROM s.orders OVER (RANGE INTERVAL '1' MINUTE PRECEDING) AS o JOIN s.shipments AS p ON o.id = p.id"
            ),
        ),
        (
            "v",
            ("s", "joined"),
            "CREATE OR REPLACE VIEW s.v AS SELECT STREAM id FROM s.joined WHERE city = 'x'",
        ),
        (None, ("s", "v"), "SELECT STREAM id FROM s.v"),
        (
            "files",
            ("s",),
            (
                "CREATE OR REPLACE FOREIGN STREAM s.files (id int) SERVER FILE_SERVER OPTIONS (DIRECTORY 'written', "
                "FORMATTER 'CSV', FILE_ROTATION_TIME '1h')"
            ),
        ),
        (
            "writing",
            ("s", "v", "files"),
            "CREATE OR REPLACE PUMP s.writing STOPPED AS INSERT INTO s.files SELECT STREAM id FROM s.v",
        ),
    ],
    "lenses": [
        (None, (), "SET defaults.topic.autocreate = true"),
        ("orders", (), "CREATE TABLE orders (_key int, customer int, amount decimal(10, 2)) FORMAT (int, json)"),
        ("customers", (), "CREATE TABLE customers (_key int, name string) FORMAT (int, json)"),
        (None, ("orders",), "INSERT INTO orders (_key, customer) VALUES (1, 2)"),
        (None, ("orders",), "SELECT customer FROM orders LIMIT 2"),
        (
            "named",
            ("orders", "customers"),
            (
                "INSERT INTO named SELECT STREAM o.amount, c.name FROM orders AS o INNER JOIN customers AS c "
                "ON o.customer = c._key WITHIN 5m"
            ),
        ),
    ],
}


def findings(dialect, *texts):
    with watersmeet.connect(runtime="inprocess") as connection:
        return check_scripts(connection.opened, [(dialect, text) for text in texts])


@pytest.mark.parametrize("dialect", SCRIPTS)
def test_a_right_script_has_no_findings(dialect):
    assert findings(dialect, ";\n".join(text for *_, text in SCRIPTS[dialect])) == (len(SCRIPTS[dialect]), [])


#: Faults, as (a part of a statement, the wrong text in its place).
FAULTS = [
    ("CREATE ", "CREAET "),
    ("SELECT ", "SELECT no_such_column, "),
    ("SELECT ", "SELECT no_such_function(1), "),
    ("SELECT ", "SELECT 1 +, "),
    ("topic = ", "topik = "),
    ("connector = '", "connector = 'no"),
    ("hostname = ", "host_name = "),
    (" int", " imt"),
    ("VALUES (1, 2", "VALUES ('one', 2"),
    ("primary_key = 'id'", "primary_key = 'di'"),
    ("FLUSH", "FLUSHH"),
]


@pytest.mark.parametrize("seed", mostly_slow(range(56), 12, fresh=False))
def test_all_planted_faults_are_found_and_nothing_else(seed):
    random_ = random.Random(seed)
    dialect = list(SCRIPTS)[seed % len(SCRIPTS)]
    script = SCRIPTS[dialect]
    texts = [text for *_, text in script]
    planted = {}
    for i in random_.sample([i for i, t in enumerate(texts) if not t.startswith("SET")], random_.randint(1, 3)):
        fault = random_.choice([f for f in FAULTS if f[0] in texts[i]] or [(texts[i], f"no{texts[i]}")])
        planted[i] = texts[i] = texts[i].replace(*fault, 1)
    expected = {i: None for i in planted}
    made_by = {name: i for i, (name, *_) in enumerate(script) if name is not None}
    for i, (_, needs, _text) in enumerate(script):
        causes = [made_by[n] for n in needs if made_by[n] in expected]
        if causes and i not in planted:
            expected[i] = causes
    whole = ";\n".join(texts)
    begins = [len(";\n".join([*texts[:i], ""])) for i in range(len(texts))]
    count, found = findings(dialect, whole)
    assert count == len(texts)
    assert all(f.checked for f in found)
    by_statement = {begins.index(f.statement.start): f for f in found}
    assert set(by_statement) == set(expected) and len(found) == len(expected), (whole, found)
    for i, causes in expected.items():
        follows = by_statement[i].follows
        if causes is not None:
            assert begins.index(follows.statement.start) in causes, whole


def test_what_only_another_system_knows_is_not_checked():
    source = SCRIPTS["risingwave"][3][2]
    text = f"{source};\nCREATE TABLE t (*) FROM shop TABLE 'public.t';\nSELECT a FROM t;\nSELECT a FROM u"
    count, (columns, reader, wrong) = findings("risingwave", text)
    assert count == 4
    assert (columns.error.condition, columns.checked, columns.line) == ("RUNTIME_UNAVAILABLE", False, 2)
    assert (reader.error.condition, reader.checked, reader.follows) == ("UNDEFINED_RELATION", False, columns)
    assert (wrong.error.condition, wrong.checked, wrong.follows) == ("UNDEFINED_RELATION", True, None)


def test_scripts_are_checked_one_behind_the_other():
    count, found = findings(
        "risingwave", "CREATE TABLE t (i int);\nCREATE TABL u (i int)", "SELECT i FROM t; SELECT i FROM u"
    )
    assert count == 4
    assert [(f.script, f.line, f.error.condition) for f in found] == [
        (0, 2, "SYNTAX_ERROR"),
        (1, 1, "UNDEFINED_RELATION"),
    ]
    assert found[1].follows is found[0]


@pytest.mark.parametrize(
    "text", ["", "-- nothing", "SELECT 'a", "/* open", "-- dialect: none\nSELECT 1", "SELECT 1 \x00"]
)
def test_any_text_is_taken(text):
    _, found = findings("risingwave", text)
    assert len(found) == (0 if text in ("", "-- nothing") else 1)


def test_nothing_is_run(tmp_path):
    (tmp_path / "in").mkdir()
    text = (
        f"CREATE TABLE t (i int) WITH (connector = 'file', path = '{tmp_path / 'in'}') FORMAT PLAIN ENCODE JSON; "
        f"CREATE SINK s FROM t WITH (connector = 'file', path = '{tmp_path / 'out'}', type = 'append-only', "
        "force_append_only = 'true') FORMAT PLAIN ENCODE JSON;\nSELECT i FROM t; FLUSH"
    )
    _, found = findings("risingwave", text)
    assert (list(tmp_path.iterdir()), found) == ([tmp_path / "in"], [])


def test_statements_of_an_open_transaction_and_of_cursors():
    text = """CREATE TABLE t (i int); CREATE SUBSCRIPTION s FROM t WITH (retention = '1 day');
        DECLARE c SUBSCRIPTION CURSOR FOR s; FETCH NEXT FROM c; CLOSE c;
        PREPARE p AS SELECT i FROM t WHERE i = $1; EXECUTE p (1); EXECUTE p (1, 2);
        BEGIN; SAVEPOINT a; DECLARE d CURSOR FOR SELECT i FROM t; DECLARE e CURSOR FOR SELECT no FROM t;
        FETCH 2 FROM d; ROLLBACK TO a; RELEASE a; COMMIT; TRUNCATE t; TRUNCATE u; EXPLAIN ROW (SELECT i FROM t)"""
    _, found = findings("risingwave", text)
    named = [f.error.sql[f.error.span.start : f.error.span.end] for f in found]
    assert named == ["EXECUTE p (1, 2)", "no", "u"]


EXISTING = {
    "risingwave": """CREATE TABLE orders (id int PRIMARY KEY, name varchar);
        CREATE SOURCE feed (i int) WITH (connector = 'datagen'); CREATE VIEW plain AS SELECT id FROM orders;
        CREATE MATERIALIZED VIEW v AS SELECT o.id, f.i FROM orders o JOIN feed f ON o.id = f.i;
        CREATE FUNCTION half(a int) RETURNS int LANGUAGE sql AS 'SELECT a / 2'""",
    "timeplus": """CREATE STREAM ticks (a int);
        CREATE MATERIALIZED VIEW kept AS SELECT a, count() AS n FROM ticks GROUP BY a""",
    "lenses": "CREATE TABLE records (_key int, a int) FORMAT (int, json)",
}


def test_objects_of_a_database_are_known_and_stay_as_they_are(tmp_path):
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        for dialect, text in EXISTING.items():
            connection.execute(f"SET dialect = {dialect}")
            connection.execute(text)
        connection.execute("SET dialect = risingwave; CREATE SECRET k WITH (backend = 'meta') AS 'x'")
    right = [
        ("risingwave", "CREATE MATERIALIZED VIEW w AS SELECT half(v.id) AS h, name FROM v JOIN orders o USING (id)"),
        ("risingwave", "SELECT h FROM w; ALTER TABLE orders ADD COLUMN z int; SELECT z FROM orders"),
        (
            "risingwave",
            """CREATE SOURCE s (i int) WITH (connector = 'kafka', topic = 't', properties.bootstrap.server = 'h:1',
            properties.sasl.password = SECRET k) FORMAT PLAIN ENCODE JSON""",
        ),
        ("timeplus", "SELECT n FROM table(kept); CREATE MATERIALIZED VIEW m AS SELECT a FROM ticks"),
        ("lenses", "SET defaults.topic.autocreate = true; INSERT INTO out SELECT STREAM a FROM records"),
        ("risingwave", "DROP MATERIALIZED VIEW w; DROP MATERIALIZED VIEW v; DROP VIEW plain"),
    ]
    wrong = ("risingwave", "SELECT nothing FROM orders; CREATE TABLE orders (a int); DROP TABLE kept")
    with watersmeet.connect(tmp_path / "db", read_only=True) as connection:
        before = connection.opened.catalog.to_json()
        with scratch_database(connection.opened) as database:
            count, found = check_scripts(database, [*right, wrong])
        assert connection.opened.catalog.to_json() == before
    assert [f.script for f in found] == [len(right)] * 3, found
    conditions = ["UNDEFINED_COLUMN", "DUPLICATE_OBJECT", "CATALOG_TYPE_MISMATCH"]
    assert (count, [f.error.condition for f in found]) == (15, conditions)


def test_statements_that_a_run_skips_are_not_checked(tmp_path):
    text = "CREATE TABLE t (i int PRIMARY KEY); INSERT INTO t VALUES (1); CREATE VIEW v AS SELECT i FROM t"
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        for _ in connection.execute_script(text, name="a.sql"):
            pass
    with watersmeet.connect(tmp_path / "db", read_only=True) as connection:
        for names, found in ((["a.sql"], 0), ([], 2)):
            with scratch_database(connection.opened) as database:
                scripts = [("risingwave", text)]
                assert len(check_scripts(database, scripts, names=names, objects_of=connection.opened)[1]) == found


def test_content_of_other_systems_is_not_read():
    table = (
        "CREATE EXTERNAL TABLE {} SETTINGS type = 'mysql', address = 'localhost:1', user = 'u', password = 'p', "
        "database = 'd', table = 't'"
    )
    dictionary = (
        "CREATE DICTIONARY d (id int, name string) PRIMARY KEY id "
        "SOURCE(MYSQL(HOST 'localhost' PORT 1 USER 'u' PASSWORD 'p' DB 'd' TABLE 't')) LAYOUT(FLAT())"
    )
    text = ";\n".join([table.format("t (id int32)"), dictionary, table.format("u"), "SELECT id FROM t"])
    count, (found,) = findings("timeplus", text)
    assert (count, found.line, found.error.condition, found.checked) == (4, 3, "RUNTIME_UNAVAILABLE", False)


def test_a_sink_of_any_connector_delivers_nowhere(monkeypatch):
    def contacted(*_):
        raise AssertionError("the system was contacted")

    monkeypatch.setitem(SINKS, "own", Connector(check=contacted, open=contacted))
    text = "CREATE TABLE t (i int PRIMARY KEY); CREATE SINK s FROM t WITH (connector = 'own')"
    with watersmeet.connect(runtime="inprocess") as connection:
        assert check_scripts(connection.opened, [("risingwave", text)]) == (2, [])
        (sink,) = [r for r in connection.opened.catalog.relations.values() if isinstance(r, Sink)]
        assert sink.connector == {"connector": "blackhole"}


def test_a_quoted_name_with_an_alias_follows_from_the_statement_that_would_make_it():
    text = """CREATE SCHEMA "s.t"; CREATE STREAM "s.t".a (n INTEGER);
    CREATE VIEW "s.t"."b" AS SELECT STREAM missing(n) AS n FROM "s.t".a;
    CREATE VIEW "s.t"."c" AS SELECT STREAM n FROM "s.t"."b" AS "input";
    CREATE VIEW d AS SELECT STREAM n FROM "s.t" . "c" x;"""
    _, found = findings("sqlstream", text)
    assert [f.error.condition for f in found] == ["UNDEFINED_FUNCTION", "UNDEFINED_RELATION", "UNDEFINED_RELATION"]
    assert [f.follows for f in found] == [None, found[0], found[1]]


def test_statements_that_write_records_to_topics_are_taken():
    """Tombstones of DELETE and TRUNCATE; several processors of one topic, which others read."""
    _, found = findings(
        "lenses",
        "SET defaults.topic.autocreate = true; CREATE TABLE orders (_key int, item string) FORMAT (int, avro); "
        "INSERT INTO orders VALUES (1, 'a'); DELETE FROM orders WHERE _key = 1; TRUNCATE TABLE orders; "
        "INSERT INTO items SELECT STREAM item FROM orders; INSERT INTO counts SELECT STREAM COUNT(*) AS n FROM items "
        "GROUP BY item; INSERT INTO items SELECT STREAM item FROM orders WHERE item = 'b'",
    )
    assert found == []


def test_explain_creates_nothing():
    script = (
        "CREATE TABLE t (a int); EXPLAIN CREATE MATERIALIZED VIEW e AS SELECT a FROM t; "
        "CREATE MATERIALIZED VIEW e AS SELECT a FROM t; EXPLAIN CREATE MATERIALIZED VIEW f AS SELECT b FROM t; "
        "SELECT * FROM f"
    )
    with scratch_database() as database:
        _, found = check_scripts(database, [("risingwave", script)])
    assert [f.error.condition for f in found] == ["UNDEFINED_COLUMN", "UNDEFINED_RELATION"]
