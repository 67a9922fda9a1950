"""Every value of a captured database arrives as its system has it, or its row is a dead letter: values from the edges
of all types, by a snapshot and by changes.
"""

from __future__ import annotations

import datetime as dt
import random
import re
from decimal import Decimal

import pytest

import watersmeet
from tests import captures
from tests.thorough import mostly_slow

#: By type: values that arrive, and values for which there is no equivalent.
POSTGRES = {
    "bool": (["t", "f"], []),
    "int2": (["-32768", "32767", "0"], []),
    "int4": (["-2147483648", "2147483647"], []),
    "int8": (["-9223372036854775808", "9223372036854775807"], []),
    "float4": (["0.1", "-0", "1e-45", "3.4028235e38", "NaN", "-Infinity", "16777217"], []),
    "float8": (["0.1", "-0", "5e-324", "1.7976931348623157e308", "NaN", "Infinity", "9007199254740993"], []),
    "numeric": (
        ["0", "-1.5000", "0.0000000001", "9999999999999999999999999999.9999999999", "12.50000000000"],
        ["1e-30", "1.12345678901", "1e28", "NaN", "Infinity", "-Infinity"],
    ),
    "numeric(38,38)": (["0.00000000000000000000000000000000000001", "-0.99999999999999999999999999999999999999"], []),
    "numeric(5,-2)": (["12345", "-9999900"], []),
    "numeric(3,5)": (["0.00999", "-0.00001"], []),
    "numeric(60,2)": (["1.25"], ["12345678901234567890123456789012345678901234567890.25"]),
    "text": (["", " a ", "é😀", "NULL", "\\N", 'q"q', "a\nb\r\t\x01", "\\x00", "x" * 3000], []),
    "varchar(3)": (["", "abc", "a  "], []),
    "char(3)": (["", "abc", "a", " b"], []),
    "name": (["x"], []),
    "mood": (["sad", "it's ok"], []),
    "uuid": (["00000000-0000-0000-0000-00000000002a", "FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF"], []),
    "bytea": (["\\x", "\\x00ff5c22", "\\x" + "00" * 3000], []),
    "date": (
        ["0001-01-01", "9999-12-31", "2000-02-29", "1582-10-10"],
        ["0044-03-15 BC", "4713-01-01 BC", "infinity", "-infinity"],
    ),
    "time": (["00:00:00", "23:59:59.999999", "12:00:00.1"], ["24:00:00"]),
    "timestamp": (
        ["0001-01-01 00:00:00", "9999-12-31 23:59:59.999999", "1969-12-31 23:59:59.999999"],
        ["0044-03-15 12:00:00 BC", "infinity", "-infinity"],
    ),
    "timestamptz": (
        ["0001-01-02 00:00:00+00", "9999-12-30 23:59:59.999999+00", "2024-06-01 12:00:00+05:30"],
        ["0044-03-15 12:00:00+00 BC", "infinity"],
    ),
    "interval": (
        ["1 mon -1 day 02:00:00", "-1 year -1 mon 1 day -00:00:00.000001", "2562047 hours", "0", "-1 days +23:00:00"],
        ["2562048 hours", "-100000000:00:00", "infinity"],
    ),
    "jsonb": (['{"b": 1.10, "a": [null, true]}', '"x"', "12345678901234567890123456789012345678", "[]"], []),
    "json": (['{"b":1, "a":  "é"}', "null", " 1.0 "], []),
    "amount": (["0.01", "99.99"], []),  # a domain over a domain
    "amount[]": (["{0.01,NULL}", "{}"], []),
    "numbers": (["{1,2}"], []),
    "bool[]": (["{t,NULL,f}", "{}"], []),
    "int4[]": (["{1,-2147483648,NULL}", "{}"], ["{{1},{2}}", "[0:1]={1,2}"]),
    "numeric[]": (["{1.5,NULL,-0.0000000001}"], ["{1,1e-30}", "{NaN}"]),
    "text[]": (
        ['{"a,b","NULL",NULL,"","q\\"q","\\\\","{}"}', "{}", '{" x"}', '{"\x01\n"}'],
        ["{{a,b},{c,d}}", "[2:3]={a,b}", '{{"{"}}'],
    ),
    "char(3)[]": (['{a,"b  "}'], []),
    "jsonb[]": (['{"{\\"a\\": [1]}","3",NULL,"\\"x\\"","null"}', "{}"], ['{{"1"},{"2"}}']),
    "date[]": (["{2024-01-01,NULL}"], ['{2024-01-01,"0044-03-15 BC"}', "{infinity}"]),
    "timestamptz[]": (['{"2024-06-01 12:00:00+05:30"}'], ["{infinity}"]),
    "interval[]": (['{"1 mon -1 day 02:00:00"}'], []),
    "float8[]": (["{NaN,-0,5e-324,NULL}"], []),
    "bytea[]": (['{"\\\\x00ff",NULL}'], []),
    "uuid[]": (["{00000000-0000-0000-0000-00000000002a}"], []),
}
#: Types of a key besides its number.
KEYS = (
    "int8",
    "text",
    "uuid",
    "bytea",
    "date",
    "numeric(38,38)",
    "timestamptz",
    "char(3)",
    "amount",
    "bool",
    "numeric",
)
MARIADB = {
    "tinyint": (["-128", "127"], []),
    "tinyint(1) unsigned zerofill": (["0", "255"], []),
    "smallint unsigned": (["0", "65535"], []),
    "mediumint": (["-8388608", "8388607"], []),
    "int(7) zerofill": (["0", "42", "4294967295"], []),
    "bigint": (["-9223372036854775808", "9223372036854775807"], []),
    "bigint unsigned zerofill": (["0", "18446744073709551615"], []),
    "decimal(38,10)": (["-1.5", "9999999999999999999999999999.9999999999"], []),
    "decimal(7,2) zerofill": (["1.5", "99999.99"], []),
    "decimal(30,30)": (["0.000000000000000000000000000001", "-0.5"], []),
    "float": (["0.1", "-0e0", "1e-45", "3.4e38", "16777217", "1e10", "0.00001"], []),
    "float(7,3) zerofill": (["1.5", "1234.567"], []),
    "double": (["0.1", "-0e0", "5e-324", "1.7976931348623157e308", "1e15", "1e-5"], []),
    "bit(1)": (["0", "1"], []),
    "bit(64)": (["0", "18446744073709551615"], []),
    "date": (["0001-01-01", "9999-12-31"], ["0000-00-00", "2024-00-00", "2024-02-31"]),
    "time(6)": (["00:00:00", "23:59:59.999999"], ["24:00:00", "-00:00:00.000001", "-838:59:59", "838:59:59.5"]),
    "datetime(3)": (["0001-01-01 00:00:00", "9999-12-31 23:59:59.999"], ["0000-00-00 00:00:00"]),
    "datetime(6)": (["2024-02-29 12:00:00.000001"], ["2024-00-01 00:00:00"]),
    "timestamp(6) NULL": (["1970-01-01 00:00:01", "2038-01-19 03:14:07.999999"], ["0000-00-00 00:00:00"]),
    "year": (["1901", "2155"], []),
    "char(5)": (["", "a ", " b", "é😀"], []),
    "varchar(300)": (["", "a ", "\\N", 'q"q\n\t\x01', "é" * 300], []),
    "mediumtext": (["", "x" * 5000], []),
    "binary(4)": (["", "a", "abcd"], []),
    "varbinary(9)": (["", "a\\", "abc"], []),
    "blob": (["", 'q"\n'], []),
    "uuid": (["00112233-4455-6677-8899-aabbccddee00"], []),
    "json": (['{"b":1.10, "a":[null]}', '"x"'], []),
    "enum('é','b','it''s') CHARACTER SET latin1": (["é", "b", "it's"], []),
    "set('é','b') CHARACTER SET latin2": (["", "é", "é,b"], []),
    "enum('ж','あ')": (["ж", "あ"], []),
    "varchar(9) CHARACTER SET latin1": (["é€", "\x81ÿ"], []),
    "varchar(9) CHARACTER SET koi8u": (["ґ•∙"], []),
    "varchar(9) CHARACTER SET cp866": (["жⁿ²"], []),
    "varchar(9) CHARACTER SET sjis": (["あ\\", "ｱ"], []),
    "varchar(9) CHARACTER SET euckr": (["한갂"], []),
    "varchar(9) CHARACTER SET eucjpms": (["～①－"], []),
    "varchar(9) CHARACTER SET gbk": (["中"], []),
    "varchar(9) CHARACTER SET big5": (["中"], []),
    "varchar(9) CHARACTER SET utf16le": (["é😀"], []),
    "varchar(9) CHARACTER SET ucs2": (["é"], []),
    "text CHARACTER SET macroman": (["éÄ"], []),
    "varchar(9) CHARACTER SET swe7": (["ÅÄÖ"], []),
}  # fmt: skip
MY_KEYS = ("bigint", "varchar(300)", "date", "decimal(38,10)", "varbinary(9)", "datetime(3)", "int(7) zerofill")


class Values:
    """Tables of one random choice of columns: what is written there, and which rows have no equivalent."""

    types: dict[str, tuple[list[str], list[str]]]
    keys: tuple[str, ...]

    def __init__(self, seed, connection):
        self.random, self.connection = random.Random(seed), connection
        self.number = 0
        #: By number of a row: which of its columns have no equivalent.
        self.odd: dict[int, set[str]] = {}
        self.ever_odd: set[int] = set()
        r = self.random
        self.columns = {"k": r.choice(self.keys), "i": "int"}
        self.columns |= {f"c{n}": kind for n, kind in enumerate(r.sample(sorted(self.types), 7))}
        #: Of rows that are there: those of which a value out of line was not sent since they were odd.
        self.lost: set[int] = set()

    def draw(self, column):
        """(a value of a column, whether it has no equivalent)."""
        good, bad = self.types[self.columns[column]]
        if column == "k":
            return self.random.choice([v for v in good if len(v) < 1000]), False
        if self.random.random() < 0.15:
            return None, False
        if bad and self.random.random() < 0.2:
            return self.random.choice(bad), True
        return self.random.choice(good), False

    def insert(self, count):
        for _ in range(count):
            self.number += 1
            drawn = {c: self.draw(c) for c in self.columns if c != "i"}
            self.note(self.number, {c for c, (_, is_odd) in drawn.items() if is_odd})
            self.write(
                f"INSERT INTO t ({', '.join(['i', *drawn])}) VALUES ({', '.join(['%s', *['%s'] * len(drawn)])})",
                {"i": self.number, **{c: v for c, (v, _) in drawn.items()}},
            )

    def note(self, number, odd):
        self.odd[number] = odd
        if odd:
            self.ever_odd.add(number)

    def change(self):
        r = self.random
        if not self.odd or r.random() < 0.2:
            return self.insert(r.randint(1, 4))
        number = r.choice(sorted(self.odd))
        choice = r.random()
        if choice < 0.6:
            column = r.choice([c for c in self.columns if c not in ("i", "k")])
            value, is_odd = self.draw(column)
            self.write(f"UPDATE t SET {column} = %s WHERE i = {number}", {column: value})
            self.updated(number, column)
            self.note(number, self.odd[number] - {column} | ({column} if is_odd else set()))
        elif choice < 0.75:
            self.number += 1
            self.write(f"UPDATE t SET i = {self.number} WHERE i = {number}", {})
            self.moved(number, self.number)
            self.note(self.number, self.odd.pop(number))
        elif choice < 0.95:
            self.write(f"DELETE FROM t WHERE i = {number}", {})
            del self.odd[number]
        else:
            self.write("TRUNCATE TABLE t", {})
            self.odd.clear()
        return None

    def updated(self, number, column):
        """For systems that leave out values."""

    def moved(self, number, now):
        """See `updated`."""

    def check(self, name):
        """Table `name` has the rows that have an equivalent, and those alone; the others are dead letters."""
        expected = self.theirs()
        absent = {i for i, odd in self.odd.items() if odd} | (self.lost & self.odd.keys())
        listed = ", ".join(self.shown(c) for c in self.columns)
        found = captures.rows(self.connection, f"SELECT {listed} FROM {name} ORDER BY i")
        good = [row for row in expected if row[1] not in absent]
        for ours, theirs in zip(found, good, strict=True):
            for column, a, b in zip(self.columns, ours, theirs, strict=True):
                assert self.same(a, b), (name, column, self.columns[column], a, b)
        letters = self.connection.execute(f"SHOW DEAD LETTERS FROM {name}").fetchall()
        numbers = {int(re.search(r'"i": "?(\d+)', text)[1]) for *_, text in letters}
        assert absent <= numbers <= self.ever_odd | self.lost, (absent, numbers, self.ever_odd)
        assert not [r for r in self.connection.execute("SHOW ERRORS").fetchall() if r[1] == "stopped"]

    def shown(self, column):
        return column

    def same(self, ours, theirs):
        if isinstance(ours, float) and isinstance(theirs, float):
            return ours == theirs or (ours != ours and theirs != theirs)
        if isinstance(ours, list) and isinstance(theirs, list):
            return len(ours) == len(theirs) and all(map(self.same, ours, theirs))
        return ours == theirs

    def run(self):
        self.insert(8)
        self.follow("first")
        self.check("first")
        for _ in range(4):
            for _ in range(6):
                self.change()
            self.check("first")
        self.follow("second")  # its snapshot has what changes brought the other
        self.check("second")
        self.insert(3)
        self.check("second")
        self.check("first")
        self.texts()


class PostgresValues(Values):
    types, keys = POSTGRES, KEYS

    def __init__(self, seed, connection, postgres):
        super().__init__(seed, connection)
        self.postgres = postgres
        columns = ", ".join(f"{n} {kind}" for n, kind in self.columns.items())
        postgres.execute(
            "CREATE TYPE mood AS ENUM ('sad', 'it''s ok'); CREATE DOMAIN cents AS numeric(6, 2);"
            "CREATE DOMAIN amount AS cents CHECK (VALUE > 0); CREATE DOMAIN numbers AS int[];"
            f"CREATE TABLE t ({columns}, PRIMARY KEY (k, i))"
        )
        self.external = {c for c in self.columns if self.columns[c] in ("text", "bytea") and self.random.random() < 0.7}
        for column in self.external:
            postgres.execute(f"ALTER TABLE t ALTER {column} SET STORAGE EXTERNAL")
        captures.source(connection, postgres)

    def write(self, statement, values):
        for column in values:
            statement = statement.replace("%s", f"(%t::text)::{self.columns[column]}", 1)
        with self.postgres.connect() as connection:
            given = [None if v is None else str(v) for v in values.values()]
            connection.execute(statement.replace("%t", "%s"), given)

    def updated(self, number, column):
        """A row that was absent gets back only what is sent: not what is out of line."""
        self._kept(number, {column})

    def moved(self, number, now):
        was = number in self.lost
        self.lost.discard(number)
        if was:
            self.lost.add(now)
        self._kept(now, set(), number)

    def _kept(self, number, sent, before=None):
        with self.postgres.connect() as connection:
            kept = {
                c
                for c in self.external - sent - {"k"}
                if connection.execute(f"SELECT octet_length({c}) > 2500 FROM t WHERE i = %s", [number]).fetchone()[0]
            }
        if kept and (number in self.lost or self.odd[number if before is None else before]):
            self.lost.add(number)
        elif not kept:
            self.lost.discard(number)

    def follow(self, name):
        size = self.random.choice([2, 3, 1000])
        self.connection.execute(
            f"CREATE TABLE {name} (*) WITH (snapshot.batch_size = '{size}') FROM there TABLE 't'; FLUSH"
        )

    def shown(self, column):
        return f"{column}::varchar" if self.columns[column] in ("interval", "interval[]") else column

    def theirs(self):
        casts = {"interval": "::text", "interval[]": "::text", "float4": "::float8", "amount[]": "::numeric[]"}
        listed = ", ".join(c + casts.get(k, "") for c, k in self.columns.items())
        with self.postgres.connect() as connection:
            connection.execute("SET timezone = 'UTC'")
            connection.adapters.register_loader("uuid", _text_loader())
            connection.adapters.register_loader("date", _text_loader())
            for kind in ("time", "timestamp", "timestamptz"):
                connection.adapters.register_loader(kind, _text_loader())
            rows = connection.execute(f"SELECT {listed} FROM t ORDER BY i").fetchall()
        return [tuple(map(_value, row, self.columns.values())) for row in rows]

    def texts(self):
        """As varchar every value of every type arrives."""
        columns = ", ".join(f"{c} varchar" for c in self.columns if c not in ("k", "i"))
        self.connection.execute(f"CREATE TABLE texts (*, {columns}) FROM there TABLE 't'; FLUSH")
        self.insert(3)
        names = [c for c in self.columns if c not in ("k", "i")]
        found = captures.rows(self.connection, f"SELECT i, {', '.join(names)} FROM texts ORDER BY i")
        with self.postgres.connect() as connection:
            connection.execute("SET timezone = 'UTC'")
            # As a client shows them: the cast of a boolean spells it out.
            listed = ", ".join(f"left({c}::text, 1)" if self.columns[c] == "bool" else f"{c}::text" for c in names)
            assert found == connection.execute(f"SELECT i, {listed} FROM t ORDER BY i").fetchall()


def _text_loader():
    from psycopg.types.string import TextLoader  # noqa: PLC0415

    return TextLoader


def _value(value, kind):
    """A value as it is read here: psycopg's, texts of moments as Python has them, as far as it does."""
    if isinstance(value, list):
        return [_value(v, kind.removesuffix("[]")) for v in value]
    if value is None or kind not in ("date", "timestamp", "timestamptz", "time", "char(3)", "uuid"):
        return value
    if kind in ("char(3)", "uuid"):
        return value.rstrip(" ")
    try:
        known = {"date": dt.date, "time": dt.time}
        return known.get(kind, dt.datetime).fromisoformat(value)
    except ValueError:
        return value


class MariadbValues(Values):
    types, keys = MARIADB, MY_KEYS

    def __init__(self, seed, connection, mysql):
        super().__init__(seed, connection)
        self.mysql = mysql
        columns = ", ".join(f"{n} {kind}" for n, kind in self.columns.items())
        mysql.execute(f"CREATE TABLE t ({columns}, PRIMARY KEY (k, i)) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin")
        captures.source(connection, mysql)

    def write(self, statement, values):
        with self.mysql.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SET sql_mode = 'ALLOW_INVALID_DATES', time_zone = '+00:00'")
            for column in values:
                numeric = self.columns[column].startswith(("bit", "float", "double"))
                statement = statement.replace("%s", "(%t + 0)" if numeric else "%t", 1)
            cursor.execute(statement.replace("%t", "%s"), [*values.values()])

    def follow(self, name):
        size = self.random.choice([2, 3, 1000])
        odd = [f"{c} varchar" for c, k in self.columns.items() if k.startswith("date") and "2024-02-31" in k]
        self.connection.execute(
            f"CREATE TABLE {name} ({', '.join(['*', *odd])}) WITH (snapshot.batch_size = '{size}') "
            "FROM there TABLE 't'; "
            "FLUSH"
        )

    def theirs(self):
        listed = ", ".join(
            f"{c} * 1e0" if k.startswith("float") else f"{c} + 0" if k.startswith("bit") else
            f"CAST({c} AS char)" if k.startswith(("date", "time")) else c
            for c, k in self.columns.items()
        )  # fmt: skip
        with self.mysql.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SET time_zone = '+00:00'")
            cursor.execute(f"SELECT {listed} FROM t ORDER BY i")
            return [tuple(map(_typed, row, self.columns.values())) for row in cursor.fetchall()]

    def texts(self):
        names = [c for c, k in self.columns.items() if c not in ("k", "i") and k.split("(")[0].split()[0] not in (
            "float", "double", "bit", "binary", "varbinary", "blob")]  # fmt: skip
        columns = ", ".join(f"{c} varchar" for c in names)
        self.connection.execute(f"CREATE TABLE texts (*, {columns}) FROM there TABLE 't'; FLUSH")
        self.insert(3)
        found = captures.rows(self.connection, f"SELECT i, {', '.join(names)} FROM texts ORDER BY i")
        with self.mysql.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SET time_zone = '+00:00'")
            listed = ", ".join(f"CAST({c} AS char)" for c in names)
            cursor.execute(f"SELECT i, {listed} FROM t ORDER BY i")
            assert found == list(cursor.fetchall())


def _typed(value, kind):
    if value is None:
        return None
    if kind == "bit(1)":
        return bool(value)
    if kind.startswith(("bit", "bigint unsigned")):
        return Decimal(value)
    if kind == "json":
        return value
    if kind.startswith(("date", "time")):
        try:
            if kind == "date":
                return dt.date.fromisoformat(value)
            if kind.startswith("time("):
                return dt.time.fromisoformat(value)
            found = dt.datetime.fromisoformat(value)
            return found.replace(tzinfo=dt.UTC) if kind.startswith("timestamp") else found
        except ValueError:
            return value
    return value


@pytest.mark.parametrize("seed", mostly_slow(range(40), 2, 4))
def test_postgres_values(tmp_path, postgres, seed):
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        PostgresValues(seed, connection, postgres).run()


@pytest.mark.parametrize("seed", mostly_slow(range(40), 2, 4))
def test_mariadb_values(tmp_path, mysql, seed):
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        MariadbValues(seed, connection, mysql).run()
