"""Small statements of many clients run together, and do the same as one by one: the same rows, errors and rights."""

from __future__ import annotations

import datetime as dt
import random
import struct
import threading
import uuid
from contextlib import contextmanager
from decimal import Decimal

import psycopg
import pytest
from tests.unit.server.test_any_messages import message, spoken, started

from watersmeet.database.grouping import RowInsert, commit_rows, takes_rows
from watersmeet.server.grouped import inserts_in
from watersmeet.session.statements import small

TYPES = """
CREATE TABLE {0} (
    id bigint PRIMARY KEY, whole int, tiny smallint, name varchar, far double precision, exact numeric, sure boolean,
    day date, moment timestamp
);
"""
#: Rows as texts. Those with values that the plan can't assign go the usual way, or fail.
ROWS = [
    "1, 2, 3, 'a', 1.5, 2.25, TRUE, '2024-02-29', '2024-02-29 10:11:12.5'",
    "2, -2, -3, 'it''s', -0.0, -2.25, FALSE, '1970-01-01', '1970-01-01T00:00:00'",
    "3, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL",
    "4, 2147483647, 32767, '', 9007199254740993, 123456789012345678, TRUE, NULL, NULL",
    "5, 2147483648, 1, 'too large', 1, 1, TRUE, NULL, NULL",
    "6, 1, 32768, 'too large', 1, 1, TRUE, NULL, NULL",
    "7, 1, 1, 'no date', 1, 1, TRUE, '2023-02-29', NULL",
    "8, '8', '9', 'texts', '1.25', '2.5', 'yes', 'today', '2024-02-29'",
    "9, 1.5, 1, 'a fraction', 0.1234567890123456789, 0.12345678901234, TRUE, NULL, NULL",
    "NULL, 1, 1, 'no key', 1, 1, TRUE, NULL, NULL",
    "10, 1, 1, E'a\\nb', 1e3, 1, TRUE, NULL, NULL",
    "1, 9, 9, 'again', 9.5, 9.25, FALSE, '2024-03-01', NULL",
    "11, '\u0663', 1, 'no digits', 1, 1, TRUE, NULL, NULL",
    "12, \u0663, 1, 'no digits', 1, 1, TRUE, NULL, NULL",
    "13, -1, -1, 'long', -1.5, -1234567890123456789012345678.0123456789, TRUE, NULL, NULL",
]


def tried(client: psycopg.Connection, text: str, values=None) -> str | None:
    """The SQLSTATE of a statement that fails."""
    try:
        client.execute(text, values)
    except psycopg.Error as err:
        return err.sqlstate
    return None


@contextmanager
def planned(monkeypatch):
    """Counts the statements that have run by a plan."""
    counts = {"insert": 0, "lookup": 0}
    given = {kind: kind.given for kind in (small.InsertPlan, small.LookupPlan)}

    def counting(name, kind):
        def count(self, values):
            found = given[kind](self, values)
            counts[name] += 1
            return found

        return count

    monkeypatch.setattr(small.InsertPlan, "given", counting("insert", small.InsertPlan))
    monkeypatch.setattr(small.LookupPlan, "given", counting("lookup", small.LookupPlan))
    yield counts


def test_inserted_rows_are_those_of_the_usual_way(serving, monkeypatch):
    served = serving(TYPES.format("one") + TYPES.format("other"))
    usual = [f"INSERT INTO other VALUES ({row})" for row in ROWS]
    with planned(monkeypatch) as counts, served.connect(autocommit=True) as client:
        failed = [tried(client, text.replace("other", "one")) for _ in range(4) for text in usual]
        assert counts["insert"] > 4
    with served.connect(autocommit=True) as client, monkeypatch.context() as patch:
        patch.setattr(small.Plans, "of_text", lambda *_: None)
        assert failed == [tried(client, text) for _ in range(4) for text in usual]
        assert failed.count(None) > 15
        ours, theirs = (client.execute(f"SELECT * FROM {t} ORDER BY id").fetchall() for t in ("one", "other"))
        assert ours == theirs
        assert len(ours) > 4


@pytest.mark.parametrize("form", ["%b", "%t"])
def test_parameters_are_those_of_the_usual_way(serving, monkeypatch, form):
    served = serving(TYPES.format("one") + TYPES.format("other"))
    rows = [
        (1, 5, 1, "a", 0.1, "2.5", True),
        (2, None, None, None, None, None, None),
        (3, 1 << 31, 1, "too large", 1.0, "1", False),
        (4, 2, 2, "it's", 1e300, "-1.25", False),
        (5, 1, 1, "nan", float("nan"), "1", True),
    ]
    text = f"INSERT INTO {{}} (id, whole, tiny, name, far, exact, sure) VALUES ({', '.join([form] * 7)})"
    with planned(monkeypatch) as counts, served.connect(autocommit=True) as client:
        failed = [tried(client, text.format("one"), row) for _ in range(4) for row in rows]
        assert counts["insert"] > 1
    with served.connect(autocommit=True) as client, monkeypatch.context() as patch:
        patch.setattr(small.Plans, "of_prepared", lambda *_: None)
        assert failed == [tried(client, text.format("other"), row) for _ in range(4) for row in rows]
        ours, theirs = (client.execute(f"SELECT * FROM {t} ORDER BY id").fetchall() for t in ("one", "other"))
        assert str(ours) == str(theirs)


MORE_TYPES = """
CREATE TABLE {0} (id bigint PRIMARY KEY, price numeric(6, 2), tiny numeric(3), at timestamptz, plain timestamp(6),
                  exact timestamptz(6), code uuid, data bytea, day date, name varchar(5));
"""
A_TIME = dt.datetime(2024, 7, 1, 12, 30, tzinfo=dt.timezone(dt.timedelta(hours=2)))
#: By column, values of which a plan assigns some.
GIVEN = {
    "price": [Decimal(n) for n in ("1.5", "0", "-0.00", "9999.99", "99999", "1.2300", "1.005", "1E+3", "1E+4")],
    "tiny": [Decimal(n) for n in ("1", "1.0", "999", "1000", "0.4", "10")],
    "at": [A_TIME, dt.datetime(2024, 7, 1, 12, 30), "2024-07-01 01:02:03.5+00", "2024-07-01 01:02:03",
           "2024-13-01 00:00:00+00"],
    "plain": [dt.datetime(2024, 7, 1, 12, 30), A_TIME, "2024-07-01T01:02:03.123456", "2024-07-01 01:02:03-05:30"],
    "exact": [A_TIME, "2024-07-01 01:02:03.123456-0800"],
    "code": [uuid.UUID(int=7), str(uuid.UUID(int=8)), "0000000000000000000000000000000A", "no uuid"],
    "data": [b"", b"\0\xff'", "\\x00ff", "text"],
    "day": [dt.date(2024, 2, 29), "2024-02-29 +00", "2024-02-30", "2024-02-29 +00:00:00"],
    "name": ["", "short", "longer", "tail    "],
}  # fmt: skip


@pytest.mark.parametrize("form", ["%b", "%t"])
def test_values_of_more_types_are_those_of_the_usual_way(serving, monkeypatch, form):
    served = serving(MORE_TYPES.format("one") + MORE_TYPES.format("other"))
    with planned(monkeypatch) as counts, served.connect(autocommit=True) as client:

        def inserted(table: str) -> list[str | None]:
            found = []
            for column, values in GIVEN.items():
                text = f"INSERT INTO {table} (id, {column}) VALUES ({form}, {form})"
                for value in values * 3:
                    found.append(tried(client, text, (len(found), value)))
            return found

        failed = inserted("one")
        assert counts["insert"] > 50
        with monkeypatch.context() as patch:
            patch.setattr(small.Plans, "of_prepared", lambda *_: None)
            assert inserted("other") == failed
        ours, theirs = (client.execute(f"SELECT * FROM {t} ORDER BY id").fetchall() for t in ("one", "other"))
        assert str(ours) == str(theirs)
        assert len(ours) > 60


def test_several_rows_of_a_prepared_insert(serving, monkeypatch):
    served = serving(
        "SET primary_key_conflict = 'error';"
        "CREATE TABLE one (id int PRIMARY KEY, far double precision, n serial, name varchar(4));"
        "CREATE TABLE other (id int PRIMARY KEY, far double precision, n serial, name varchar(4));"
    )
    text = "INSERT INTO {} (id, far, name) VALUES (%b, %b, %b), (%b, %b, %b), (%b, %b, %b)"
    rows = [
        (1, 0.5, "a", 2, None, "b", 3, 1.5, None),
        (4, 0.5, "a", 4, 0.5, "b", 5, 0.5, "c"),  # twice the same key
        (6, 0.5, "a", 7, 0.5, "too long", 8, 0.5, "c"),
        (9, 0.5, "a", 2, 0.5, "b", 10, 0.5, "c"),
        (11, 0.5, "a", 12, 2, "b", 13, 0.5, "c"),  # whose type differs
        (14, 0.5, "a", None, 2.5, "b", 15, 0.5, "c"),
        (16, 0.5, "a", 17, 2.5, "b", 18, 0.5, "c"),
    ]

    def inserted(table: str, *, together: bool) -> list[object]:
        found: list[object] = []
        with served.connect(autocommit=True, prepare_threshold=0) as client:
            for number, row in enumerate(rows * 2):
                if together and number % len(rows) == 0:
                    client.execute("COMMIT" if number else "SELECT 1")
                    client.execute("BEGIN")
                found.append(tried(client, text.format(table), row))
                if found[-1] is not None and together:
                    client.execute("ROLLBACK")
                    client.execute("BEGIN")
            if together:
                client.execute("COMMIT")
            found.append(client.execute(f"SELECT id, far, name, n IS NOT NULL FROM {table} ORDER BY id").fetchall())
        return found

    for together in (False, True):
        with planned(monkeypatch) as counts:
            ours = inserted("one", together=together)
            assert counts["insert"] > 4
        with monkeypatch.context() as patch:
            patch.setattr(small.Plans, "of_prepared", lambda *_: None)
            assert inserted("other", together=together) == ours
        served.python.execute("TRUNCATE one; TRUNCATE other")


KEYED = """
SET primary_key_conflict = 'error';
CREATE TABLE {0} (id int PRIMARY KEY, a int UNIQUE, b varchar, UNIQUE (a, b));
"""


@pytest.mark.parametrize("seed", range(6))
def test_keys_in_transactions_are_checked_as_in_the_usual_way(serving, monkeypatch, seed):
    """A client whose statements, some in transactions, have the results of the usual way; another one writes between
    its transactions.
    """
    served = serving(KEYED.format("one") + KEYED.format("other"))

    def ran(table: str) -> list[object]:
        rng = random.Random(seed)
        found: list[object] = []
        with served.connect(autocommit=True) as first, served.connect(autocommit=True) as second:
            for _ in range(150):
                idle = first.info.transaction_status == second.info.transaction_status
                client = second if idle and rng.random() < 0.2 else first
                key, other = rng.randrange(400), rng.choice([None, *range(400)])
                word = rng.choices(
                    ("insert", "begin", "commit", "rollback", "delete", "save", "back"), (60, 9, 4, 1, 4, 2, 2)
                )
                word = ["insert"] if client is second else word
                status = client.info.transaction_status
                texts = {"begin": "BEGIN", "commit": "COMMIT", "rollback": "ROLLBACK", "save": "SAVEPOINT s",
                         "back": "ROLLBACK TO s", "delete": f"DELETE FROM {table} WHERE id = {key}"}  # fmt: skip
                if word[0] == "insert":
                    insert = f"INSERT INTO {table} VALUES (%b, %b, %b)"
                    found.append(tried(client, insert, (key, other, "x")))
                else:
                    found.append(tried(client, texts[word[0]]))
                if client.info.transaction_status == psycopg.pq.TransactionStatus.INERROR != status:
                    found.append(tried(client, "ROLLBACK"))
            found += [tried(client, "COMMIT") for client in (first, second)]
            found.append(first.execute(f"SELECT * FROM {table} ORDER BY id").fetchall())
        return found

    with planned(monkeypatch) as counts:
        ours = ran("one")
        assert counts["insert"] > 20
    with monkeypatch.context() as patch:
        patch.setattr(small.Plans, "of_prepared", lambda *_: None)
        assert ran("other") == ours
    assert len(ours[-1]) > 5


def test_rows_with_keys_in_a_transaction_are_written_together(serving, monkeypatch):
    served = serving(KEYED.format("one"))
    added: list[bool] = []
    usual = small.InsertPlan.add
    monkeypatch.setattr(
        small.InsertPlan, "add", lambda *given, **named: added.append(usual(*given, **named)) or added[-1]
    )
    with served.connect(prepare_threshold=0) as client:
        for number in range(30):
            client.execute("INSERT INTO one VALUES (%b, %b, 'x')", (number, number))
        assert sum(added) > 25
        assert tried(client, "INSERT INTO one VALUES (%b, %b, 'x')", (7, 99)) == "23505"
    with served.connect(autocommit=True) as client:
        assert client.execute("SELECT count(*) FROM one").fetchone() == (0,)


def test_a_key_that_another_transaction_commits_first_is_a_conflict(serving):
    served = serving(KEYED.format("one") + "CREATE TABLE keyless (a int UNIQUE)")
    for table, values, failure in (("one", "%b, NULL, 'x'", "40001"), ("keyless", "%b", "23505")):
        text = f"INSERT INTO {table} VALUES ({values})"
        with served.connect(prepare_threshold=0) as first, served.connect(autocommit=True) as second:
            for number in range(10):
                first.execute(text, (number,))
            second.execute(text, (9,))
            assert tried(first, f"SELECT count(*) FROM {table}") == failure


@pytest.mark.parametrize("flushes", [False, True])
def test_a_batch_that_asks_for_one_row_of_each_insert_shares_a_commit(serving, flushes):
    """PostgreSQL's driver for Java executes a batch of INSERTs with a limit of one row."""
    served = serving(SHOP)

    def rows(first: int, count: int) -> bytes:
        parts = []
        for number in range(first, first + count):
            value = str(number).encode()
            parameters = struct.pack(">hhi", 0, 1, len(value)) + value + struct.pack(">h", 0)
            parts += [message(b"B", b"\0s\0" + parameters), message(b"E", b"\0" + struct.pack(">i", 1))]
        return b"".join(parts) + message(b"S", b"")

    setting = message(b"Q", b"SET rw_implicit_flush = " + str(flushes).lower().encode() + b"\0")
    parsing = message(b"P", b"s\0INSERT INTO items VALUES ($1, 'x', 1)\0" + struct.pack(">h", 0))
    before = served.python.opened.log.head()
    with started(served.server.port) as client:
        found = spoken(client, setting + parsing + rows(900, 1) + rows(901, 1) + rows(902, 1) + rows(910, 40))
    assert found.count(b"C") == 44
    assert served.python.opened.log.head() < before + 20
    with served.connect(autocommit=True) as other:
        if not flushes:
            other.execute("FLUSH")
        assert other.execute("SELECT count(*) FROM shown WHERE id >= 900").fetchone() == (43,)


SHOP = """
CREATE TABLE items (id bigint PRIMARY KEY, name varchar, part int);
INSERT INTO items SELECT i, 'item ' || i, i % 3 FROM generate_series(1, 20) AS g(i);
CREATE MATERIALIZED VIEW shown AS SELECT id, name, part FROM items;
FLUSH;
"""


def test_looked_up_rows_are_those_of_the_usual_way(serving, monkeypatch):
    served = serving(SHOP)
    queries = [
        "SELECT name, id FROM shown WHERE id = {}",
        "SELECT * FROM items WHERE {} = id",
        "SELECT id FROM shown WHERE part = {}",
        "SELECT i.name FROM items AS i WHERE i.id = {}",
    ]
    texts = [q.format(v) for v in (1, 2, 3, -1, 99, "NULL", "'5'") for q in queries]
    texts += [f"SELECT id FROM shown WHERE name = '{n}'" for n in ("item 1", "item 7", "it''s", "")]
    with planned(monkeypatch) as counts, served.connect(autocommit=True) as client:
        found = [sorted(client.execute(text).fetchall()) for text in texts]
        names = [c.name for c in client.execute(texts[0]).description]
        assert names == ["name", "id"]
        prepared = [
            client.cursor(binary=binary).execute("SELECT id, name FROM shown WHERE id = %s", [key]).fetchall()
            for binary in (False, True)
            for key in (1, 2, 3, 99, None)
        ]
        assert prepared == [[(1, "item 1")], [(2, "item 2")], [(3, "item 3")], [], []] * 2
        assert counts["lookup"] > 12
    assert found == [sorted(served.python.execute(text).fetchall()) for text in texts]


def test_a_plan_ends_with_its_table(serving):
    served = serving(SHOP)
    with served.connect(autocommit=True) as client:
        for number in range(100, 104):
            client.execute(f"INSERT INTO items VALUES ({number}, 'a', 1)")
        client.execute("ALTER TABLE items ADD COLUMN more int DEFAULT 7")
        client.execute("INSERT INTO items VALUES (104, 'b', 1)")
        assert client.execute("SELECT more FROM items WHERE id = 104").fetchall() == [(7,)]
        client.execute("DROP TABLE items CASCADE")
        assert tried(client, "INSERT INTO items VALUES (105, 'c', 1)") == "42P01"
        assert tried(client, "SELECT name, id FROM shown WHERE id = 1") == "42P01"


def test_a_look_up_shows_the_commits_of_its_session(serving):
    served = serving(SHOP)
    with served.connect(autocommit=True) as client, served.connect(autocommit=True) as other:
        for number in range(200, 206):
            client.execute(f"INSERT INTO items VALUES ({number}, 'new', 1)")
            assert client.execute(f"SELECT name FROM shown WHERE id = {number}").fetchall() == [("new",)]
            assert other.execute(f"SELECT name FROM shown WHERE id = {number}").fetchall() == [("new",)]


def test_rows_of_a_transaction_are_written_before_its_next_statement(serving):
    served = serving(SHOP)
    with served.connect() as client, served.connect(autocommit=True) as other:
        with client.cursor() as cursor:
            cursor.executemany("INSERT INTO items VALUES (%s, %s, 1)", [(i, f"n{i}") for i in range(300, 340)])
            assert cursor.execute("SELECT count(*) FROM items WHERE id >= 300").fetchone() == (40,)
            cursor.execute("SAVEPOINT s")
            cursor.executemany("INSERT INTO items VALUES (%s, %s, 1)", [(i, f"n{i}") for i in range(340, 350)])
            cursor.execute("ROLLBACK TO SAVEPOINT s")
            assert other.execute("SELECT count(*) FROM items WHERE id >= 300").fetchone() == (0,)
        client.commit()
        other.execute("FLUSH")
        assert other.execute("SELECT count(*) FROM items WHERE id >= 300").fetchone() == (40,)
        with client.cursor() as cursor:
            cursor.executemany("INSERT INTO items VALUES (%s, %s, 1)", [(i, f"n{i}") for i in range(400, 440)])
        client.rollback()
        with client.cursor() as cursor:  # another transaction changes the table before this one commits
            cursor.executemany("INSERT INTO items VALUES (%s, %s, 1)", [(i, f"n{i}") for i in range(500, 540)])
            other.execute("INSERT INTO items VALUES (501, 'first', 1)")
        with pytest.raises(psycopg.errors.SerializationFailure):
            client.commit()
        other.execute("FLUSH")
        assert other.execute("SELECT id, name FROM items WHERE id >= 400").fetchall() == [(501, "first")]


def test_a_transaction_that_only_reads_takes_no_row(serving):
    served = serving(SHOP)
    with served.connect(autocommit=True) as client:
        for number in range(450, 454):
            client.execute("INSERT INTO items VALUES (%s, 'a', 1)", [number], prepare=True)
        client.execute("BEGIN READ ONLY")
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            client.execute("INSERT INTO items VALUES (%s, 'a', 1)", [454], prepare=True)
        client.execute("ROLLBACK")
        assert client.execute("SELECT id FROM items WHERE id = 454").fetchall() == []


@pytest.mark.parametrize("form", ["%b", "%t"])
def test_parameters_have_all_their_digits(serving, form):
    served, text = serving("CREATE TABLE t (a numeric)"), "-1234567890123456789012345678.0123456789"
    with served.connect(autocommit=True) as client:
        for _ in range(4):
            client.execute(f"INSERT INTO t VALUES ({form})", [Decimal(text)])
        assert client.execute("SELECT DISTINCT CAST(a AS varchar) FROM t").fetchall() == [(text,)]


def test_transactions_of_a_group_share_a_commit_and_fail_separately(serving):
    served = serving(SHOP)
    database = served.python.opened
    session = served.python._session
    relation = next(r for r in database.catalog.relations.values() if r.name == "items")
    rows = [[(600, "a", 1)], [(None, "no key", 1)], [(601, "b", 1)], [(600, "last", 2)]]
    inserts = [RowInsert(session, database.catalog, relation, part) for part in rows]
    before = database.log.head()
    commit_rows(database, [inserts[0], inserts[2], inserts[3]])
    assert database.log.head() == before + 1
    assert [one.failure for one in inserts] == [None] * 4
    commit_rows(database, inserts)
    assert [getattr(one.failure, "condition", None) for one in inserts] == [None, "NOT_NULL_VIOLATION", None, None]
    served.python.execute("FLUSH")
    found = served.python.execute("SELECT id, name, part FROM items WHERE id >= 600 ORDER BY id").fetchall()
    assert found == [(600, "last", 2), (601, "b", 1)]


def test_rows_of_a_table_with_comments_are_inserted_by_a_plan(serving):
    database = serving(SHOP + "COMMENT ON TABLE items IS 'a'; COMMENT ON COLUMN items.name IS 'b'").python.opened
    relation = next(r for r in database.catalog.relations.values() if r.name == "items")
    assert (relation.comment, relation.comments) == ("a", {"name": "b"})
    assert takes_rows(relation)


def test_numbers_of_a_sequence_need_no_other_way(serving, monkeypatch):
    """The plan of an INSERT that omits a serial column is kept while its sequence reserves numbers."""
    served = serving("CREATE TABLE numbered (id serial PRIMARY KEY, n int);")
    with planned(monkeypatch) as counts, served.connect(autocommit=True) as client:
        for n in range(100):
            client.execute(f"INSERT INTO numbered (n) VALUES ({n})")
        found = client.execute("SELECT count(*), count(DISTINCT id), currval('numbered_id_seq') FROM numbered")
        assert found.fetchone() == (100, 100, 100)
    assert counts["insert"] > 90


def test_inserts_of_several_clients_are_all_there(serving):
    served = serving(SHOP)
    failures: list[BaseException] = []

    def write(number: int) -> None:
        try:
            with served.connect(autocommit=True) as client:
                for i in range(10):
                    client.execute(f"INSERT INTO items VALUES ({1000 + 100 * number + i}, 'of {number}', {i})")
        except BaseException as cause:
            failures.append(cause)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures
    served.python.execute("FLUSH")
    assert served.python.execute("SELECT count(*), sum(part) FROM shown WHERE id >= 1000").fetchone() == (40, 180)


def test_inserts_that_are_sent_in_one_go_share_a_commit(serving):
    served = serving(SHOP)
    text = "INSERT INTO items VALUES (%s, %s, 1)"
    with served.connect(autocommit=True, prepare_threshold=0) as client:
        for number in range(800, 803):
            client.execute(text, (number, "a"))
        before = served.python.opened.log.head()
        with client.pipeline():
            for number in range(810, 840):
                client.execute(text, (number, "b"))
            found = client.execute("SELECT count(*) FROM items WHERE id >= 800")
        assert found.fetchone() == (33,)
        assert served.python.opened.log.head() < before + 15
        with pytest.raises(psycopg.errors.UndefinedColumn), client.pipeline():
            for number in range(840, 850):
                client.execute(text, (number, "c"))
            client.execute("SELECT missing FROM items")
        assert client.execute("SELECT count(*) FROM items WHERE id >= 840").fetchone() == (0,)


def test_inserts_of_one_text_are_written_together(serving, monkeypatch):
    served = serving(SHOP + "CREATE TABLE strict (id int PRIMARY KEY, name varchar UNIQUE) ON CONFLICT ERROR;")
    text = "; ".join(f"INSERT INTO items VALUES ({i}, 'a;b', 1)" for i in range(800, 1000))
    with served.connect(autocommit=True) as client, planned(monkeypatch) as counts:
        assert [r.rowcount for r in client.execute(text).results()] == [1] * 200
        assert counts["insert"] > 190
        asked = "SELECT count(*), min(name) FROM items WHERE id >= 800"
        assert client.execute(asked).fetchone() == (200, "a;b")
        rows = "; ".join(f"INSERT INTO strict VALUES ({i}, 'n{i}')" for i in range(20))
        client.execute(rows)
        for fault, state in [("7, 'x'", "23505"), ("99, 'n7'", "23505"), ("'x', 'x'", "22P02"), ("1, x", "42703")]:
            failing = "".join(f"INSERT INTO strict VALUES ({i}, 'n{i}');\n" for i in range(30, 50))
            assert tried(client, f"{failing}INSERT INTO strict VALUES ({fault});\n{failing}") == state
            assert client.execute("SELECT count(*) FROM strict").fetchone() == (20,)
        with pytest.raises(psycopg.errors.UndefinedColumn, match="LINE 3:"):
            client.execute("INSERT INTO strict VALUES (60, 'a');\nINSERT INTO strict\nVALUES (61, b)")
        client.execute("BEGIN")
        client.execute(rows.replace("(", "(10").replace("'n", "'m"))
        assert tried(client, rows) == "23505"
        assert tried(client, rows) == "25P02"
        client.execute("ROLLBACK")
        assert client.execute("SELECT count(*) FROM strict").fetchone() == (20,)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("INSERT INTO t VALUES (1); insert into t values ('a;b')", 2),
        (' INSERT INTO t VALUES (1);\n INSERT INTO "a;b" VALUES (-1);\n', 2),
        ("INSERT INTO t VALUES (1);", 0),
        ("INSERT INTO t VALUES (1); SELECT 1", 0),
        ("INSERT INTO t VALUES (1); BEGIN; INSERT INTO t VALUES (1)", 0),
        ("INSERT INTO t VALUES (1) -- ;\n; INSERT INTO t VALUES (2)", 0),
        ("INSERT INTO t VALUES (1); /* INSERT */ INSERT INTO t VALUES (2)", 0),
        ("INSERT INTO t VALUES ($$a;b$$); INSERT INTO t VALUES (2)", 0),
        ("INSERT INTO t VALUES ('a); INSERT INTO t VALUES (2)", 0),
    ],
)
def test_texts_of_inserts(text, count):
    assert len(inserts_in(text)) == count


def test_a_right_that_was_revoked_ends_a_plan(serving):
    served = serving(SHOP)
    with served.connect(autocommit=True) as client:
        client.execute("CREATE ROLE eve; GRANT SELECT, INSERT, UPDATE ON items TO eve")
        client.execute("SET ROLE eve")
        for number in range(700, 704):
            client.execute(f"INSERT INTO items VALUES ({number}, 'a', 1)")
            client.execute(f"SELECT name FROM items WHERE id = {number}")
        client.execute("RESET ROLE")
        client.execute("REVOKE INSERT, UPDATE, SELECT ON items FROM eve")
        client.execute("SET ROLE eve")
        assert tried(client, "INSERT INTO items VALUES (704, 'a', 1)") in ("42501", "42P01")
        assert tried(client, "SELECT name FROM items WHERE id = 704") in ("42501", "42P01")


@pytest.mark.parametrize(
    ("text", "shape", "values"),
    [
        ("SELECT a1 FROM t2 WHERE b = 3", "SELECT a1 FROM t2 WHERE b = 0", [3]),
        ("INSERT INTO \"t 1\" VALUES (-5, 'it''s')", 'INSERT INTO "t 1" VALUES (-0, \')', [5, "it's"]),
        ("SELECT 1 -- 2", None, None),
        ("SELECT E'a'", None, None),
        ("SELECT 1e5", None, None),
        ("SELECT $1", None, None),
        ("SELECT 'a\\b'", None, None),
        ("SELECT 'open", None, None),
    ],
)
def test_shapes(text, shape, values):
    assert small.shape_of(text) == (None if shape is None else (shape, values))
