"""The target `postgres` (and `jdbc`): a table of PostgreSQL.

Each transaction there has the rows and, in the table `watersmeet_sinks` beside the table, the place of the last one.
Rows come by COPY: those that are only added go straight to the table, others through a temporary table, from which
deletes and upserts are made.

Whoever opens the target ends the connections of earlier writers, and writes its own token into the row with the place:
a transaction that does not find its token there changes nothing.

RisingWave, "Sink data from RisingWave to PostgreSQL", "Sink data to PostgreSQL with the JDBC connector".
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.errors import Error, did_you_mean, error
from watersmeet.faults import fault
from watersmeet.formats.valuetexts import EXACT_JSON, array_literal
from watersmeet.formats.writers import concatenated, csv_writer, evaluate_text, json_writer, value_bytes
from watersmeet.postgresclient import Server, connect, failure, library
from watersmeet.sinks.base import Delivery, Place, Portion, Target, Unavailable, newest_rows, rows_that_came
from watersmeet.sinks.targets import Connector, check_options
from watersmeet.types import BOOLEAN, VARCHAR, Field, Schema, SqlType

PROGRESS: Final = "watersmeet_sinks"
_RIGHTS: Final = "SELECT, INSERT, UPDATE, DELETE"
#: How `atttypmod` has the scale of a numeric, the fields and digits of an interval, the digits of a time.
_MODIFIER_HEAD: Final = 4
_SCALE_BITS: Final = 0x7FF
_SCALE_SIGN: Final = 0x400
_ALL_FIELDS: Final = 0x7FFF
_MICROSECONDS: Final = 6
#: Bytes of rows that are given to the library at once.
_WRITTEN_BYTES: Final = 1 << 20
_GONE: Final = "watersmeet_gone"

#: By type: the types there that take every value of it, by their names in `pg_type`. All take text.
_TEXTS: Final = ("text", "varchar", "bpchar")
_TAKEN_BY: Final[dict[str, tuple[str, ...]]] = {
    "boolean": ("bool",),
    "smallint": ("int2", "int4", "int8", "numeric"),
    "integer": ("int4", "int8", "numeric"),
    "bigint": ("int8", "numeric"),
    "real": ("float4", "float8"),
    "double precision": ("float8",),
    "numeric": ("numeric",),
    "varchar": ("citext", "uuid", "json", "jsonb", "xml", "inet", "cidr", "macaddr"),
    "bytea": ("bytea",),
    "date": ("date",),
    "time": ("time",),
    "timestamp": ("timestamp",),
    "timestamptz": ("timestamptz",),
    "interval": ("interval",),
    "jsonb": ("jsonb", "json"),
    "struct": ("jsonb", "json"),
    "array": ("jsonb", "json"),
}
_SSL_MODES: Final = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
_POSTGRES: Final = ("host", "port", "user", "password", "database", "schema", "table", "ssl_mode", "ssl.mode")
_JDBC: Final = ("jdbc.url", "user", "password", "schema.name", "table.name")

_COLUMNS: Final = """
SELECT a.attname, t.typname, t.typtype, e.typname, e.typtype, format_type(a.atttypid, a.atttypmod),
    a.attnotnull AND NOT a.atthasdef AND a.attidentity = '', a.attgenerated <> '' OR a.attidentity = 'a', a.atttypmod
FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_type t ON t.oid = a.atttypid LEFT JOIN pg_type e ON e.oid = t.typelem AND t.typcategory = 'A'
WHERE n.nspname = %s AND c.relname = %s AND c.relkind IN ('r', 'p', 'v', 'f') AND a.attnum > 0 AND NOT a.attisdropped
"""
_KEYS: Final = """
SELECT array_agg(a.attname::text) FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid
JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])
WHERE n.nspname = %s AND c.relname = %s AND i.indisunique AND i.indisvalid AND i.indpred IS NULL
    AND i.indexprs IS NULL AND i.indimmediate
GROUP BY i.indexrelid
"""
_END_OTHERS: Final = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE application_name = %s AND datname = current_database() AND pid <> pg_backend_pid() AND usename = current_user
"""


@dataclass(frozen=True)
class _Options:
    """The table that a sink writes."""

    server: Server
    schema: str
    table: str

    @property
    def what(self) -> str:
        """For messages."""
        return f'table "{self.schema}.{self.table}"'


class PostgresTarget:
    """See `base.Target`."""

    def __init__(self, delivery: Delivery, database_id: str) -> None:
        self._delivery = delivery
        self._options = _options(delivery)
        self._name = f"{database_id}-{delivery.target_id}"
        # PostgreSQL cuts names at 63 bytes.
        self._application = f"watersmeet {hashlib.blake2b(self._name.encode(), digest_size=16).hexdigest()}"
        self._sql = library().sql
        by_name = {c.name: c for c in delivery.columns}
        self._key = tuple(by_name[name] for name in delivery.key) if delivery.format.rows == "upsert" else ()
        self._keys = json_writer(self._key, EXACT_JSON)
        self._connection: Any = None
        self._token = ""
        self._arrays: dict[str, str] = {}
        """By column that goes into an array there: the SQL of its text."""

    def look(self) -> None:
        """Whether the table is there and takes the rows. Unavailable, UNDEFINED_OBJECT, CONNECTOR_OPTION."""
        with self._explained():
            self._connection = connect(self._options.server)
            self._check_table()
        self.close()

    def open(self, generation: int) -> Place | None:
        self.close()
        with self._explained():
            self._connection = connection = connect(self._options.server)
            connection.execute("SELECT set_config('application_name', %s, false)", [self._application])
            # A transaction that nobody goes on with holds locks until its connection ends.
            connection.execute(_END_OTHERS, [self._application])
            self._check_table()
            self._make_progress_table()
            fault("postgres.entered")
            found = self._enter(generation)
            fault("postgres.fenced")
            if self._key:
                self._make_changes_table()
            return found

    def deliver(self, portions: Sequence[Portion]) -> None:
        lines = self._changes(portions) if self._key else self._added(portions)
        with self._explained(), self._connection.transaction():
            fault("postgres.begun")
            self._progress(portions[-1].place)
            fault("postgres.placed")
            if self._key:
                self._merge(lines)
            else:
                self._copy(self._table, lines, self._names)
            fault("postgres.written")
        fault("postgres.committed")

    def rest(self) -> None:
        pass

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(library().Error):
                connection.close()

    @property
    def _table(self) -> Any:
        return self._sql.Identifier(self._options.schema, self._options.table)

    @property
    def _progress_table(self) -> Any:
        return self._sql.Identifier(self._options.schema, PROGRESS)

    @property
    def _names(self) -> Any:
        return self._listed(self._delivery.columns)

    def _listed(self, columns: Schema) -> Any:
        return self._sql.SQL(", ").join(self._sql.Identifier(c.name) for c in columns)

    def _run(self, text: str, parameters: Sequence[Any] | None = None, **parts: Any) -> Any:
        return self._connection.execute(self._sql.SQL(text).format(**parts), parameters)

    def _check_table(self) -> None:
        """UNDEFINED_OBJECT, UNDEFINED_COLUMN, DATATYPE_MISMATCH, CONNECTOR_OPTION."""
        options, where = self._options, [self._options.schema, self._options.table]
        found = {row[0]: row[1:] for row in self._run(_COLUMNS, where).fetchall()}
        if not found:
            raise error(
                "UNDEFINED_OBJECT",
                f"there is no {options.what} in {options.server.shown}",
                hint="Create it first: its columns need the names of the sink's.",
            )
        for column in self._delivery.columns:
            if column.name not in found:
                raise error(
                    "UNDEFINED_COLUMN",
                    f'{options.what} has no column "{column.name}"',
                    detail=f"The sink has one of type {column.type.sql}.",
                    hint=did_you_mean(column.name, found),
                )
            name, kind, element, element_kind, shown, _, computed, modifier = found[column.name]
            if not computed and _rounds(_innermost(column.type), element or name, modifier):
                raise error(
                    "DATATYPE_MISMATCH",
                    f'column "{column.name}" of {options.what} has type {shown}, which rounds values of the sink',
                    detail=f"The sink has values of type {column.type.sql} for it.",
                    hint=f"Convert them in the query: CAST({column.name} AS {shown})."
                    if column.type.name == "numeric"
                    else "Give the column there microseconds: leave its precision out.",
                )
            if computed or not _takes(column.type, name, kind, element, element_kind):
                why = "computes its values itself" if computed else f"has type {shown}"
                raise error(
                    "DATATYPE_MISMATCH",
                    f'column "{column.name}" of {options.what} {why}',
                    detail=f"The sink has values of type {column.type.sql} for it.",
                )
            if column.type.element is not None and element is not None:
                self._arrays[column.name] = array_literal("t0", column.type)
        names = {c.name for c in self._delivery.columns}
        for name, (*_, required, _, _) in found.items():
            if required and name not in names:
                raise error(
                    "CONNECTOR_OPTION",
                    f'column "{name}" of {options.what} must not be NULL, and the sink has no column for it',
                    hint="Give it a default there.",
                )
        if self._key:
            wanted = {c.name for c in self._key}
            if not any(set(names) == wanted for (names,) in self._run(_KEYS, where).fetchall()):
                listed = ", ".join(c.name for c in self._key)
                raise error(
                    "CONNECTOR_OPTION",
                    f"{options.what} has no primary key or unique index over ({listed}), which upserts need",
                    hint=f"ALTER TABLE {options.schema}.{options.table} ADD PRIMARY KEY ({listed})",
                )

    def _make_progress_table(self) -> None:
        psycopg = library()
        if self._run("SELECT to_regclass(%s)", [f'"{self._options.schema}"."{PROGRESS}"']).fetchone()[0] is not None:
            return
        with contextlib.suppress(psycopg.errors.UniqueViolation, psycopg.errors.DuplicateTable):  # another sink did
            self._run(
                "CREATE TABLE IF NOT EXISTS {table} (sink text PRIMARY KEY, writer text NOT NULL, "
                "generation bigint NOT NULL, commit bigint NOT NULL, rows bigint NOT NULL, last boolean NOT NULL)",
                table=self._progress_table,
            )

    def _enter(self, generation: int) -> Place | None:
        """Writes the own token, from which on no other writer commits; the place of the newest portion."""
        self._token = secrets.token_hex(16)
        with self._connection.transaction():
            row = self._run(
                "SELECT generation, commit, rows, last FROM {table} WHERE sink = %s FOR UPDATE",
                [self._name],
                table=self._progress_table,
            ).fetchone()
            if row is not None and row[0] > generation:
                raise error("WRITER_FENCED", f"{self._delivery.title} was replaced: generation {row[0]} is delivered")
            self._run(
                "INSERT INTO {table} VALUES (%s, %s, 0, 0, 0, false) ON CONFLICT (sink) DO UPDATE SET "
                "writer = excluded.writer",
                [self._name, self._token],
                table=self._progress_table,
            )
        return Place(*row) if row is not None and row[0] else None

    def _progress(self, place: Place) -> None:
        """Writes the place, which also holds back all other writers until the end of the transaction."""
        changed = self._run(
            "UPDATE {table} SET generation = %s, commit = %s, rows = %s, last = %s WHERE sink = %s AND writer = %s",
            [*place, self._name, self._token],
            table=self._progress_table,
        ).rowcount
        if changed != 1:
            raise error("WRITER_FENCED", f"another writer has taken over {self._delivery.title}")

    def _make_changes_table(self) -> None:
        self._run(
            "CREATE TEMPORARY TABLE watersmeet_changes ON COMMIT DELETE ROWS AS "
            "SELECT {names}, false AS {gone} FROM {table} WITH NO DATA",
            names=self._names,
            gone=self._sql.Identifier(_GONE),
            table=self._table,
        )

    def _added(self, portions: Sequence[Portion]) -> pa.BinaryArray:
        rows = pa.concat_tables([rows_that_came(p) for p in portions])
        return self._lines(rows.select([c.name for c in self._delivery.columns]), self._delivery.columns)

    def _changes(self, portions: Sequence[Portion]) -> pa.BinaryArray:
        """A line for each key that changed: its last row, or one that says that it has none any more."""
        rows, gone = newest_rows(portions, [c.name for c in self._delivery.columns], self._keys)
        taken = rows.append_column(_GONE, pa.array(gone))
        return self._lines(taken, (*self._delivery.columns, Field(_GONE, BOOLEAN)))

    def _lines(self, rows: pa.Table, columns: Schema) -> pa.BinaryArray:
        """The rows as CSV. What goes into an array is written as PostgreSQL reads arrays."""
        written = list(columns)
        for i, column in enumerate(columns):
            if column.name in self._arrays:
                texts = evaluate_text([rows.column(i)], self._arrays[column.name]).cast(pa.string())
                rows = rows.set_column(i, column.name, texts)
                written[i] = Field(column.name, VARCHAR)
        lines = csv_writer(tuple(written)).write(rows)
        if len(written) == 1:  # alone in a line it would be the end of the data
            lines = pc.if_else(pc.equal(lines, b"\\."), b'"\\."', lines)
        return concatenated([lines, b"\n"])

    def _copy(self, table: Any, lines: pa.BinaryArray, names: Any) -> None:
        copying = self._sql.SQL("COPY {} ({}) FROM STDIN (FORMAT csv)").format(table, names)
        received = value_bytes(lines)
        with self._connection.cursor().copy(copying) as copy:
            for begin in range(0, len(received), _WRITTEN_BYTES):
                copy.write(received[begin : begin + _WRITTEN_BYTES])

    def _merge(self, lines: pa.BinaryArray) -> None:
        sql = self._sql
        gone, changes = sql.Identifier(_GONE), sql.Identifier("pg_temp", "watersmeet_changes")
        self._copy(changes, lines, sql.SQL("{}, {}").format(self._names, gone))
        fault("postgres.copied")
        self._run(
            "DELETE FROM {table} AS t USING {changes} AS c WHERE c.{gone} AND {same}",
            table=self._table,
            changes=changes,
            gone=gone,
            same=sql.SQL(" AND ").join(sql.SQL("t.{0} = c.{0}").format(sql.Identifier(c.name)) for c in self._key),
        )
        key = {c.name for c in self._key}
        kept = [
            sql.SQL("{0} = excluded.{0}").format(sql.Identifier(c.name))
            for c in self._delivery.columns
            if c.name not in key
        ]
        self._run(
            "INSERT INTO {table} ({names}) SELECT {names} FROM {changes} WHERE NOT {gone} "
            "ON CONFLICT ({key}) DO {what}",
            table=self._table,
            names=self._names,
            changes=changes,
            gone=gone,
            key=self._listed(self._key),
            what=sql.SQL("UPDATE SET {}").format(sql.SQL(", ").join(kept)) if kept else sql.SQL("NOTHING"),
        )

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Errors of the library as those of the contract."""
        psycopg = library()
        try:
            yield
        except psycopg.Error as cause:
            if (getattr(cause, "sqlstate", None) or "").startswith(("22", "23")):
                raise self._refused(cause) from cause
            raise self._passing(
                failure(cause, self._options.server, f"{self._options.schema}.{self._options.table}", _RIGHTS)
            ) from cause
        except Error as cause:
            raise self._passing(cause) from cause

    def _passing(self, found: Error) -> Exception:
        if found.condition != "RUNTIME_UNAVAILABLE":
            return found
        return Unavailable(f"{found.message}{f': {found.detail}' if found.detail else ''}")

    def _refused(self, cause: Any) -> Error:
        told = cause.diag
        return error(
            "DELIVERY_REFUSED",
            f"{self._options.what} does not take a row of {self._delivery.title}",
            detail=" ".join(t for t in (told.message_primary, told.message_detail) if t),
        )


def _takes(kind: SqlType, name: str, there: str, element: str | None, element_kind: str | None) -> bool:
    """Whether a column takes all values of a type. there: of `pg_type.typtype`."""
    if name in _TEXTS:
        return True
    if element is not None:
        return kind.element is not None and _takes(_innermost(kind), element, element_kind or "", None, None)
    if there == "e":
        return kind.name == "varchar"
    if kind.name == "numeric" and name.startswith("int"):
        return False
    return name in _TAKEN_BY.get(kind.name, ())


def _rounds(kind: SqlType, name: str, modifier: int) -> bool:
    """Whether a column with a modifier (`atttypmod`) stores a value that is near the one that is written, and says
    nothing.
    """
    if modifier < 0:
        return False
    if name == "numeric" and kind.name == "numeric":
        scale = (((modifier - _MODIFIER_HEAD) & _SCALE_BITS) ^ _SCALE_SIGN) - _SCALE_SIGN
        return kind.decimals > scale
    if name in ("time", "timestamp", "timestamptz"):
        return modifier < _MICROSECONDS
    return name == "interval" and (modifier >> 16 != _ALL_FIELDS or modifier & 0xFFFF < _MICROSECONDS)


def _innermost(kind: SqlType) -> SqlType:
    """Of an array of arrays the type in the last one: PostgreSQL's arrays of any depth have one type."""
    return kind if kind.element is None else _innermost(kind.element)


def _options(delivery: Delivery) -> _Options:
    """CONNECTOR_OPTION for options that are wrong."""
    given, form = delivery.connector, delivery.format
    connector = given["connector"].lower()
    if form.rows == "debezium" or form.encoding != "json" or form.options:
        raise error(
            "CONNECTOR_OPTION",
            f"connector {connector} writes columns, not messages",
            hint="Leave FORMAT … ENCODE … out; type = 'append-only' and 'upsert' exist.",
        )
    check_options(delivery, _JDBC if connector == "jdbc" else _POSTGRES)
    if connector == "jdbc":
        server, properties = jdbc_server(_needed(given, "jdbc.url"), given.get("user"), given.get("password"))
        schema = given.get("schema.name") or properties.get("currentSchema")
        return _Options(server, schema or "public", _needed(given, "table.name"))
    port = given.get("port", "5432")
    if not port.isdecimal():
        raise error("CONNECTOR_OPTION", f'port can\'t be "{port}"', hint="It is a number, such as 5432.")
    server = Server(
        _needed(given, "host"),
        int(port),
        _needed(given, "user"),
        given.get("password", ""),
        _needed(given, "database"),
        _ssl_mode(given.get("ssl_mode", given.get("ssl.mode", "prefer"))),
    )
    return _Options(server, given.get("schema", "public"), _needed(given, "table"))


def _ssl_mode(text: str) -> str:
    found = text.lower().replace("_", "-")
    if found not in _SSL_MODES:
        raise error(
            "CONNECTOR_OPTION",
            f'ssl_mode can\'t be "{text}"',
            hint=did_you_mean(found, _SSL_MODES) or "For example require.",
        )
    return found


def _needed(options: dict[str, str], name: str) -> str:
    if not options.get(name):
        raise error(
            "CONNECTOR_OPTION",
            f"connector {options['connector']} needs the option {name}",
            hint=f"Add {name} = '…'.",
        )
    return options[name]


def jdbc_server(url: str, user: str | None, password: str | None) -> tuple[Server, dict[str, str]]:
    """What a URL of JDBC says of a database of PostgreSQL, and its properties.

    CONNECTOR_OPTION; FEATURE_NOT_SUPPORTED for another system.
    """
    system = url.removeprefix("jdbc:").partition(":")[0]
    if system != "postgresql":
        raise error(
            "FEATURE_NOT_SUPPORTED", f"connections to {system or 'a database'} by JDBC", hint="jdbc:postgresql://… is."
        )
    parts = urlsplit(url.removeprefix("jdbc:"))
    properties = dict(parse_qsl(parts.query))
    user, password = user or properties.get("user"), password or properties.get("password")
    try:
        port = parts.port or 5432
    except ValueError:
        port = 0
    if not parts.hostname or not parts.path.strip("/") or not port or not user:
        raise error(
            "CONNECTOR_OPTION",
            "the URL of the database does not say the host, the database and the user",
            hint="Write jdbc:postgresql://host:5432/database, and the user as an option.",
        )
    mode = _ssl_mode(properties.get("sslmode", "prefer"))
    return Server(parts.hostname, port, user, password or "", unquote(parts.path.strip("/")), mode), properties


def _check(delivery: Delivery) -> None:
    target = PostgresTarget(delivery, "")
    try:
        target.look()
    except Unavailable as cause:
        raise error("RUNTIME_UNAVAILABLE", str(cause), hint="Check that it runs, and its address.") from cause


def _open(delivery: Delivery, database_id: str, stopping: Callable[[], bool]) -> Target:
    del stopping
    return PostgresTarget(delivery, database_id)


CONNECTOR: Final = Connector(_check, _open)
