"""COPY … TO STDOUT and COPY … FROM STDIN."""

from __future__ import annotations

import datetime as dt
import random
import struct
import subprocess
import time
from decimal import Decimal

import psycopg
import pytest
from tests.thorough import mostly_slow
from tests.unit.server.test_any_messages import message, spoken, started

from watersmeet import Error
from watersmeet.server import copyrows
from watersmeet.values.types import INTEGER, JSONB, NUMERIC, TIMESTAMP, VARCHAR, Field

SHOP = """
CREATE TABLE t (id int PRIMARY KEY, name varchar, n numeric(10, 2), b bytea, a int[]);
INSERT INTO t VALUES (1, 'plain', 1.5, '\\x00ff', ARRAY[1, 2]),
                     (2, E'tab\\tline\\nback\\\\slash, "quote"', NULL, NULL, NULL),
                     (3, '', 0, '', ARRAY[]::int[]), (4, NULL, NULL, NULL, NULL), (5, '\\N', NULL, NULL, NULL);
CREATE TABLE u (id int PRIMARY KEY, name varchar, n numeric(10, 2), b bytea, a int[]);
FLUSH;
"""

TEXT = (
    "1\tplain\t1.50\t\\\\x00ff\t{1,2}\n"
    '2\ttab\\tline\\nback\\\\slash, "quote"\t\\N\t\\N\t\\N\n'
    "3\t\t0.00\t\\\\x\t{}\n"
    "4\t\\N\t\\N\t\\N\t\\N\n"
    "5\t\\\\N\t\\N\t\\N\t\\N\n"
)
CSV = (
    'id,name,n,b,a\n1,plain,1.50,\\x00ff,"{1,2}"\n2,"tab\tline\nback\\slash, ""quote""",,,\n'
    '3,"",0.00,\\x,{}\n4,,,,\n5,\\N,,,\n'
)


def copied_out(client, statement) -> str:
    with client.cursor().copy(statement) as copy:
        return b"".join(copy).decode()


@pytest.fixture
def client(serving):
    with serving(SHOP).connect(autocommit=True) as client:
        yield client


def test_text_and_csv_as_postgresql_writes_them(client):
    assert copied_out(client, "COPY (SELECT * FROM t ORDER BY id) TO STDOUT") == TEXT
    assert copied_out(client, "COPY (SELECT * FROM t ORDER BY id) TO STDOUT (FORMAT csv, HEADER)") == CSV
    assert copied_out(client, "COPY (SELECT id, a FROM t WHERE id = 1) TO STDOUT WITH CSV DELIMITER ';'") == "1;{1,2}\n"
    assert sorted(copied_out(client, "COPY t (id) TO STDOUT").split()) == list("12345")
    with client.cursor().copy("COPY t (id) TO STDOUT") as copy:
        assert sorted(row for (row,) in copy.rows()) == list("12345")


def test_binary(client):
    cursor = client.cursor()
    with cursor.copy("COPY (SELECT id, name, n FROM t ORDER BY id) TO STDOUT (FORMAT binary)") as copy:
        copy.set_types(["int4", "varchar", "numeric"])
        rows = list(copy.rows())
    assert rows == client.execute("SELECT id, name, n FROM t ORDER BY id").fetchall()
    empty = copied_out_bytes(client, "COPY (SELECT id FROM t WHERE id > 9) TO STDOUT BINARY")
    assert empty == b"PGCOPY\n\xff\r\n\0" + bytes(8) + b"\xff\xff"


def copied_out_bytes(client, statement) -> bytes:
    with client.cursor().copy(statement) as copy:
        return b"".join(copy)


@pytest.mark.parametrize(("options", "data"), [("", TEXT), ("(FORMAT csv, HEADER true)", CSV)])
def test_what_went_out_comes_in_again(client, options, data):
    cursor = client.cursor()
    with cursor.copy(f"COPY u FROM STDIN {options}") as copy:
        for start in range(0, len(data), 7):
            copy.write(data[start : start + 7])
    assert cursor.statusmessage == "COPY 5"
    client.execute("FLUSH")
    every = "SELECT * FROM {} ORDER BY id"
    assert client.execute(every.format("u")).fetchall() == client.execute(every.format("t")).fetchall()


def test_rows_of_python(client):
    with client.cursor().copy("COPY u (name, id) FROM STDIN") as copy:
        for i in range(1000):
            copy.write_row((f"n\t{i}", i))
    client.execute("FLUSH")
    assert client.execute("SELECT name FROM u WHERE id = 999").fetchone() == ("n\t999",)
    assert client.execute("SELECT count(*) FROM u").fetchone() == (1000,)


def test_a_copy_that_fails_leaves_nothing(client):
    for data, failure in (
        ("1\ta\n", psycopg.errors.BadCopyFileFormat),
        ("x\ta\t\\N\t\\N\t\\N\n", psycopg.errors.InvalidTextRepresentation),
    ):
        with pytest.raises(failure), client.cursor().copy("COPY u FROM STDIN") as copy:
            copy.write(data)
    with pytest.raises(ValueError, match="enough"), client.cursor().copy("COPY u FROM STDIN") as copy:
        copy.write("1\t")
        raise ValueError("enough")
    client.execute("FLUSH")
    assert client.execute("SELECT * FROM u").fetchall() == []
    for statement, failure in (
        ("COPY u TO STDOUT (FORMAT xml)", psycopg.errors.InvalidParameterValue),
        ("COPY nothing TO STDOUT", psycopg.errors.UndefinedTable),
        ("COPY (SELECT 1) TO STDOUT (FORCE_QUOTE *)", psycopg.Error),
        ("COPY u TO '/tmp/somewhere'", psycopg.errors.InsufficientPrivilege),
    ):
        with pytest.raises(failure):
            client.execute(statement)
    assert client.execute("SELECT 1").fetchone() == (1,)


def copied_in(client, options: str, data: bytes) -> list[tuple]:
    client.execute("DELETE FROM w")
    with client.cursor().copy(f"COPY w {options}") as copy:
        copy.write(data)
    client.execute("FLUSH")
    return client.execute("SELECT k, s FROM w ORDER BY k").fetchall()


@pytest.fixture
def words(serving):
    with serving("CREATE TABLE w (k int, s varchar)").connect(autocommit=True) as client:
        yield client


@pytest.mark.parametrize("block_bytes", [1 << 24, 5])
@pytest.mark.parametrize(
    ("options", "data", "wanted"),
    [
        ("FROM STDIN", rb"1	\x41\101\xc3\xA9\303\251\134n\x5cN" + b"\n", [(1, "AAéé\\n\\N")]),
        ("FROM STDIN", b"1\ta\\\tb\\\nc\\\\\n2\t\\q\\\\t\n", [(1, "a\tb\nc\\"), (2, "q\\t")]),
        ("FROM STDIN", b"1\ta\n\\.\n", [(1, "a")]),
        ("FROM STDIN", b"1\ta\n\\.\nno row\n", [(1, "a")]),
        ("FROM STDIN", b"1\ta\r\n2\tb\r\n\\.\r\n", [(1, "a"), (2, "b")]),
        ("FROM STDIN", "1\t\ue000\\\\\ue000\n".encode(), [(1, "\ue000\\\ue000")]),
        ("FROM STDIN (DELIMITER '|')", b"1|a\\|b\\x7c", [(1, "a|b|")]),
        ("FROM STDIN", b"", []),
        ("FROM STDIN (HEADER)", b"k\ts\n", []),
        ("FROM STDIN (HEADER match)", b"k\ts\n1\ta\n", [(1, "a")]),
        ("FROM STDIN (FORMAT csv)", b"", []),
        ("FROM STDIN (FORMAT csv)", b"\\.\n", []),
        ("FROM STDIN (FORMAT csv)", b'1,"a\n\\.\nb"\n\\.\n', [(1, "a\n\\.\nb")]),
        ("FROM STDIN (FORMAT csv, HEADER)", b'"k\n",s\n1,a\n', [(1, "a")]),
        ("(s, k) FROM STDIN (FORMAT csv, HEADER match)", b's,"k"\na,1\n', [(1, "a")]),
    ],
)
def test_rows_in_text_and_csv(words, options, data, wanted, block_bytes, monkeypatch):
    monkeypatch.setattr(copyrows, "_BLOCK_BYTES", block_bytes)
    assert copied_in(words, options, data) == wanted


@pytest.mark.parametrize(
    ("options", "data", "message", "detail"),
    [
        ("", b"1\ta\n2\n", 'missing data for column "s"', "Line 2: 2"),
        ("", b"1\ta\n2\tb\tc\n", "extra data after last expected column", "Line 2: 2\tb\tc"),
        ("(HEADER)", b"k\ts\n1\ta\n2\n", 'missing data for column "s"', "Line 3: 2"),
        ("", b"1\ta\nx\tb\n", 'invalid input syntax for type integer: "x"', 'Row 2, column "k".'),
        ("(FORMAT csv)", b"1,a\nx,b\n", 'invalid input syntax for type integer: "x"', 'Row 2, column "k".'),
        ("(HEADER match)", b"k\tt\n1\ta\n", "the names in the header", "The columns are k, s, the header has k, t."),
        (
            "(FORMAT csv, HEADER match)",
            b"k\n1,a\n",
            "the names in the header",
            "The columns are k, s, the header has k.",
        ),
        ("", b"1\ta\0b\n", 'invalid byte sequence for encoding "UTF8": 0x00', None),
        ("", b"1\t\xff\\n\n", 'invalid byte sequence for encoding "UTF8"', None),
        ("(FORMAT csv)", b"1,\xff\n", 'invalid byte sequence for encoding "UTF8"', None),
        ("(DELIMITER 'x')", b"", 'COPY delimiter cannot be "x"', None),
        ("(FORMAT csv, DELIMITER '\"')", b"", "COPY delimiter cannot be", None),
        ("(NULL 'a\tb')", b"", "COPY null representation", None),
    ],
)
def test_what_is_wrong_with_rows_in_text(words, options, data, message, detail):
    with pytest.raises(psycopg.Error) as found:
        copied_in(words, f"FROM STDIN {options}", data)
    assert message in found.value.diag.message_primary
    assert found.value.diag.message_detail == detail
    assert words.execute("SELECT 1").fetchone() == (1,)


def test_rows_in_a_script_of_psql(serving):
    served = serving("CREATE TABLE w (k int, s varchar)")
    script = "COPY w FROM STDIN;\n1\ta\n\\.\nCOPY w FROM STDIN CSV;\n2,b\n\\.\nFLUSH;\nSELECT k, s FROM w ORDER BY k;\n"
    command = ["psql", served.dsn, "-qAt", "-v", "ON_ERROR_STOP=1"]
    done = subprocess.run(command, check=False, input=script, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("1|a\n2|b\n", "")


def test_arrays_of_any_texts(serving):
    values = ["a,b", "{x}", "[y]", 'q"r', "", None, "NULL", "back\\slash", "it's", "'a", "a b", " "]
    with serving("CREATE TABLE l (id int, a varchar[])").connect(autocommit=True) as client:
        client.execute("INSERT INTO l VALUES (1, %s)", (values,))
        client.execute("FLUSH")
        data = copied_out(client, "COPY l TO STDOUT")
        with client.cursor().copy("COPY l FROM STDIN") as copy:
            copy.write(data)
        client.execute("FLUSH")
        assert client.execute("SELECT a FROM l").fetchall() == [(values,)] * 2
        client.execute("CREATE TABLE m (a varchar); INSERT INTO m SELECT a::varchar FROM l; FLUSH")
        assert client.execute("SELECT a::varchar[] FROM m").fetchall() == [(values,)] * 2


@pytest.mark.parametrize(("target", "sqlstate"), [("nothing", "42P01"), ("v", "42809"), ("w (nothing)", "42703")])
def test_what_can_t_be_copied_into_is_told_before_rows_are_sent(serving, target, sqlstate):
    served = serving("CREATE TABLE w (k int); CREATE MATERIALIZED VIEW v AS SELECT * FROM w")
    with started(served.server.port) as client:
        said = spoken(client, message(b"Q", f"COPY {target} FROM STDIN\0".encode()) + message(b"X", b""))
    assert said[said.index(b"Z") + 1 :] == [b"E", b"Z"]
    with served.connect(autocommit=True) as client, pytest.raises(psycopg.Error) as found:
        client.execute(f"COPY {target} FROM STDIN")
    assert found.value.sqlstate == sqlstate


def test_a_copy_is_cancelled_and_is_not_idle(serving):
    with serving("CREATE TABLE w (k int)").connect(autocommit=True) as client:
        client.execute("SET idle_session_timeout = '50ms'")
        with client.cursor().copy("COPY w FROM STDIN") as copy:
            time.sleep(0.2)
            copy.write("1\n")
        client.execute("SET idle_session_timeout = 0; SET statement_timeout = '50ms'")
        with pytest.raises(psycopg.errors.QueryCanceled, match="statement timeout"):  # noqa: SIM117
            with client.cursor().copy("COPY w FROM STDIN") as copy:
                time.sleep(0.2)
                copy.write("2\n")
        client.execute("SET statement_timeout = 0")
        with pytest.raises(psycopg.errors.QueryCanceled, match="user request"):  # noqa: SIM117
            with client.cursor().copy("COPY w FROM STDIN") as copy:
                client.cancel_safe()
                copy.write("3\n")
        client.execute("FLUSH")
        assert client.execute("SELECT k FROM w").fetchall() == [(1,)]


KINDS = {
    "o": "boolean", "s": "smallint", "i": "int", "l": "bigint", "r": "real", "d": "double precision", "n": "numeric",
    "m": "numeric(20, 4)", "v": "varchar", "b": "bytea", "e": "date", "h": "time", "t": "timestamp",
    "z": "timestamptz", "y": "interval", "j": "jsonb",
}  # fmt: skip
MADE = f"CREATE TABLE b (k int PRIMARY KEY, {', '.join(f'{n} {t}' for n, t in KINDS.items())})"
HEAD = b"PGCOPY\n\xff\r\n\0" + bytes(8)


def some_value(rng: random.Random, kind: str):
    if rng.random() < 0.2:
        return None
    day = dt.date(rng.randint(1, 9999), rng.randint(1, 12), rng.randint(1, 28))
    clock = dt.time(rng.randint(0, 23), rng.randint(0, 59), rng.randint(0, 59), rng.choice((0, 1, 999_999)))
    number = rng.choice((0, 1, -1, 17, 256, 4369, -32768))
    digits = ("12345678901234567890.0123456789", "0.0000000001", "-9999.9999", str(number))
    return {
        "o": bool(number),
        "r": number / 4,
        "d": number / 7,
        "n": Decimal(rng.choice(digits)),
        "m": Decimal(number) / 10_000,
        "v": rng.choice(("", "a", "ü", "\x01\x11" * 20, "x" * 300)),
        "b": rng.randbytes(rng.choice((0, 1, 17, 40))) + bytes((0, 17)) * rng.randint(0, 9),
        "e": day,
        "h": clock,
        "t": dt.datetime.combine(day, clock),
        "z": dt.datetime.combine(day, clock, dt.UTC),
        "y": dt.timedelta(days=number % 100, microseconds=number),
        "j": psycopg.types.json.Jsonb(rng.choice(({}, [1, None], {"k": "v"}, 1.5))),
    }.get(kind, number)


@pytest.mark.parametrize("seed", mostly_slow(range(30), 2, 2))
def test_rows_that_come_in_binary(serving, seed, monkeypatch):
    """As psycopg writes them, cut at any place: the same as by INSERT."""
    rng = random.Random(seed)
    monkeypatch.setattr(copyrows, "_BLOCK_BYTES", rng.choice((1, 100, 700, 1 << 20)))
    rows = [(k, *(some_value(rng, kind) for kind in KINDS)) for k in range(rng.choice((0, 1, 40)))]
    with serving(MADE).connect(autocommit=True) as client:
        with client.cursor().copy("COPY b FROM STDIN (FORMAT binary)") as copy:
            names = [k.partition("(")[0] for k in KINDS.values()]
            copy.set_types(["int4", *(n.replace("int", "int4") if n == "int" else n for n in names)])
            for row in rows:
                copy.write_row(row)
        client.execute("FLUSH")
        found = client.cursor(binary=True).execute("SELECT * FROM b ORDER BY k").fetchall()
        wanted = [tuple(v.obj if isinstance(v, psycopg.types.json.Jsonb) else v for v in row) for row in rows]
        assert found == wanted


def test_a_column_of_arrays_can_t_come_in_binary(client):
    copying = pytest.raises(psycopg.errors.FeatureNotSupported, match=r'column "a" of type integer\[\]')
    with copying, client.cursor().copy("COPY u FROM STDIN (FORMAT binary)") as copy:
        copy.write_row((1, None, None, None, None))


@pytest.mark.parametrize("seed", range(20))
def test_damaged_rows_in_binary_are_refused(seed):
    rng = random.Random(seed)
    columns = tuple(Field(f"c{i}", k) for i, k in enumerate((INTEGER, VARCHAR, NUMERIC, TIMESTAMP, JSONB)))
    number = struct.pack(">ihhhhhh", 12, 2, 0, 0, 2, 17, 5)
    row = struct.pack(">hiiih", 5, 4, 17, 2, 0x4141) + number + struct.pack(">ii", -1, 3) + b"\x01{}"
    for _ in range(50):
        data = bytearray(HEAD + row * rng.randint(0, 5) + b"\xff\xff")
        assert copyrows.read_binary(bytes(data), columns).num_rows == (len(data) - 21) // len(row)
        for _ in range(rng.randint(1, 4)):
            kind = rng.random()
            if kind < 0.3:
                data = data[: rng.randint(0, len(data))]
            elif kind < 0.8 and data:
                data[rng.randrange(len(data))] = rng.choice((0, 1, 5, 255, rng.randrange(256)))
            else:
                data += rng.randbytes(rng.randint(1, 9))
        try:
            copyrows.read_binary(bytes(data), columns)
        except Error as err:
            assert err.sqlstate[:2] == "22"


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        (b"", "signature"),
        (HEAD[:11] + b"\0\1\0\0" + bytes(4), "critical flags"),
        (HEAD + b"\0\2" + bytes(8), "field count is 2, expected 1"),
        (HEAD + b"\0\1" + bytes(3), "unexpected EOF"),
        (HEAD + b"\xff\xff\0", "after EOF marker"),
        (HEAD + b"\0\1" + struct.pack(">i", 2) + b"\0\0", "incorrect binary data"),
    ],
)
def test_what_is_wrong_with_rows_in_binary(data, wanted):
    with pytest.raises(Error, match=wanted):
        copyrows.read_binary(data, (Field("a", INTEGER),))
