"""Tables of a database written from Spark: each micro-batch, or each DataFrame, is one transaction.

Tasks return their rows in commit messages, so a failed or repeated task leaves nothing behind. The driver sends all
rows to temporary tables, and then runs one transaction, which writes the number of the micro-batch to the table
`watersmeet_spark` and changes the target. If the table has the number, the micro-batch is skipped. The statements are
the same for a server and for a database that this process opens.
"""

from __future__ import annotations

import abc
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.sql import datasource as spark
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from watersmeet.connectors.databases.servers import Server, host_and_port, ssl_mode
from watersmeet.connectors.postgres import client
from watersmeet.connectors.postgres.target import copy_lines, lines
from watersmeet.errors import CONDITIONS, Error, did_you_mean, error
from watersmeet.formats.valuetexts import literal, plain_text
from watersmeet.formats.writers import evaluate_text
from watersmeet.frames.shapes import arrow_columns, sql_type
from watersmeet.session.connections import connect
from watersmeet.session.connections.connection import Connection
from watersmeet.store.changes import quoted
from watersmeet.system import duckdbs, process
from watersmeet.values.types import VARCHAR, Field, Schema, SqlType

#: The options, in lower case, with the meanings of their values.
OPTIONS: Final[Mapping[str, str]] = {
    "path": "the name of the table, usually the argument of save or start",
    "server": "host:port of the server of the database",
    "user": "the user of the server",
    "password": "the password of the user",
    "sslmode": "how much of TLS is required, as in libpq",
    "database": "instead of a server: the path or URL of a database that no other process writes",
    "changes": "the column that marks rows as inserted or deleted; without it, all rows are inserted",
    "txnappid": "with txnVersion: the name of a writer, which writes each version once",
    "txnversion": "with txnAppId: the number of the transaction, which increases",
}

_EXAMPLE: Final = (
    'df.writeStream.format("watersmeet").option("server", "host:4566").option("user", "ann").option("password", …)'
    '.option("checkpointLocation", …).start("orders")'
)

#: Options that Spark itself adds.
_OF_SPARK: Final = frozenset({"checkpointlocation", "queryname"})

#: The table with the last micro-batch of each query.
MARKER: Final = "watersmeet_spark"

#: The temporary tables with the rows to insert, and the keys to delete.
_CAME, _GONE = "watersmeet_spark_rows", "watersmeet_spark_keys"

#: How often a transaction is tried that lost against another one.
_TRIES: Final = 30

_PAUSE_S: Final = 0.02

#: The words for a change, those of Delta's change feed among them.
_INSERTS: Final = ("insert", "update_postimage")
_DELETES: Final = ("delete", "update_preimage")

#: The beginnings of types to which a text is not cast: INSERT reports the difference instead.
_UNLIKE_TEXT: Final = (
    "smallint",
    "integer",
    "bigint",
    "numeric",
    "real",
    "double",
    "boolean",
    "date",
    "timestamp",
    "bytea",
)

_OPENED: Final = '{"v":'

_MEMORY: Final = "1GB"


@dataclass(frozen=True)
class Target:
    """The checked options of a write. Of `server` and `database` one is set. transaction: a name and a number."""

    relation: str
    server: Server | None
    database: str
    changes: str | None
    transaction: tuple[str, int] | None

    @staticmethod
    def of(options: Mapping[str, str]) -> Target:
        """Raises INVALID_PARAMETER for a missing or unknown option, or a wrong value."""
        own = {n: v for n, v in options.items() if n.lower() not in _OF_SPARK}
        given = checked_options(own, OPTIONS, ("path",), _EXAMPLE)
        address, path = given.get("server"), given.get("database", "")
        if bool(address) == bool(path):
            raise _refused(
                "the options server and database are both set" if path else "the option server or database is missing"
            )
        app, version = given.get("txnappid"), given.get("txnversion")
        if (app is None) != (version is None):
            raise _refused(f"the option {'txnVersion' if version is None else 'txnAppId'} is missing")
        if version is not None and not version.isdecimal():
            raise _refused(f"txnVersion is {version!r}")
        return Target(
            given["path"],
            None if address is None else _server(address, given),
            path,
            given.get("changes"),
            None if app is None or version is None else (app, int(version)),
        )

    def opened(self, *, writes: bool) -> AbstractContextManager[Client]:
        """A client of the database, to be closed."""
        return _remote(self.server) if self.server is not None else _embedded(self.database, writes=writes)

    @property
    def sql(self) -> str:
        return ".".join(map(quoted, self._parts))

    @property
    def marker(self) -> str:
        """The table of micro-batches, in the schema of the target."""
        return ".".join(map(quoted, (*self._parts[:-1], MARKER)))

    @property
    def _parts(self) -> list[str]:
        return self.relation.split(".")


def checked_options(
    options: Mapping[str, str], known: Mapping[str, str], needed: Sequence[str], example: str
) -> dict[str, str]:
    """The options with names in lower case. known: their meanings. Raises INVALID_PARAMETER for unknown and missing
    ones.
    """
    given = {name.lower(): value for name, value in options.items()}
    unknown = sorted(given.keys() - known.keys())
    if unknown:
        raise error(
            "INVALID_PARAMETER",
            f'the data source watersmeet has no option "{unknown[0]}"',
            hint="Options: " + "; ".join(f"{name}: {meaning}" for name, meaning in known.items()) + ".",
        )
    for name in needed:
        if not given.get(name):
            raise error("INVALID_PARAMETER", f"the option {name} is missing: {known[name]}", hint=example)
    return given


def _refused(text: str) -> Error:
    return error("INVALID_PARAMETER", text, hint=_EXAMPLE)


def _server(address: str, given: Mapping[str, str]) -> Server:
    found = host_and_port(address)
    if found is None:
        raise _refused(f"server is {address!r}, not host:port")
    if not given.get("user"):
        raise _refused("the option user is missing")
    return Server(
        *found,
        given["user"],
        given.get("password", ""),
        "watersmeet",
        ssl_mode(given.get("sslmode", "prefer")),
    )


class Client(abc.ABC):
    """A session of the database."""

    @abc.abstractmethod
    def run(self, text: str) -> tuple[int, list[tuple[Any, ...]]]:
        """Runs a statement. Returns the number of changed rows, and the rows of the result."""

    @abc.abstractmethod
    def load(self, table: str, columns: Schema, rows: pa.Table) -> None:
        """Inserts rows into a temporary table."""

    def finish(self) -> None:  # noqa: B027 - of databases that no other process runs
        """Updates the views."""


class _Remote(Client):
    def __init__(self, server: Server, connection: Any) -> None:
        self._server, self._connection = server, connection

    def run(self, text: str) -> tuple[int, list[tuple[Any, ...]]]:
        with self._explained():
            done = self._connection.execute(text)
            return done.rowcount, done.fetchall() if done.description else []

    def load(self, table: str, columns: Schema, rows: pa.Table) -> None:
        with self._explained():
            names = ", ".join(quoted(c.name) for c in columns)
            copy_lines(self._connection, table, lines(rows, columns, {}), names)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Converts errors of the library to those that the server raised."""
        try:
            yield
        except client.library().Error as cause:
            told = cause.diag
            if told.source_function in CONDITIONS:
                raise error(
                    told.source_function, told.message_primary, detail=told.message_detail, hint=told.message_hint
                ) from cause
            raise client.failure(cause, self._server) from cause


class _Embedded(Client):
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def run(self, text: str) -> tuple[int, list[tuple[Any, ...]]]:
        done = self._connection.execute(text)
        return done.rowcount, done.fetchall() if done.description else []

    def load(self, table: str, columns: Schema, rows: pa.Table) -> None:
        names = ", ".join(quoted(c.name) for c in columns)
        with process.scratch_folder("spark") as folder:
            path = str(folder / "rows.parquet")
            pq.write_table(rows, path)
            self.run(f"COPY {table} ({names}) FROM {literal(path)} (FORMAT parquet)")

    def finish(self) -> None:
        self._connection.flush()


@contextmanager
def _remote(server: Server) -> Iterator[Client]:
    connection = client.connect(server)
    try:
        yield _Remote(server, connection)
    finally:
        with suppress(client.library().Error):
            connection.close()


@contextmanager
def _embedded(path: str, *, writes: bool) -> Iterator[Client]:
    # the check of the target, which comes first, opens the database read-only: nothing creates one
    with connect(path, read_only=not writes, runtime="inprocess") as connection:
        yield _Embedded(connection)


@dataclass(frozen=True)
class _Plan:
    """How rows become those of the table. given: the columns of the DataFrame, with the names of the table. columns:
    the same as they are sent, arrays and structs as texts of JSON. values: the SQL of each value. key: the names of
    the primary key.
    """

    given: Schema
    columns: Schema
    values: tuple[str, ...]
    key: tuple[str, ...]

    def sent(self, rows: pa.Table) -> pa.Table:
        """The rows of Spark as they are sent."""
        found = arrow_columns(rows, self.given)
        texts = [_wrapped(c.type) for c in self.given]
        sent = [evaluate_text([c], x).cast(pa.string()) if x else c for c, x in zip(found, texts, strict=True)]
        return pa.table(sent, names=[c.name for c in self.columns])


def _wrapped(kind: SqlType) -> str:
    """The SQL of DuckDB that wraps an array or struct into an object of JSON, from which SQL functions read the
    exact value. Empty for other types.
    """
    if not kind.is_nested:
        return ""
    return f"CASE WHEN t0 IS NOT NULL THEN {literal(_OPENED)} || {plain_text('t0', kind)} || '}}' END"


def _value(given: Field, column: str) -> str:
    """The SQL of a value that was sent. column: the type of the table's column."""
    name = quoted(given.name)
    if given.type.is_nested:
        return f"(jsonb_populate_record(NULL::struct<v {given.type.sql}>, CAST({name} AS jsonb))).v"
    is_cast = given.type == VARCHAR and not column.startswith(_UNLIKE_TEXT) and not column.endswith("]")
    return f"CAST({name} AS {column})" if is_cast else name


def _has_bytes(kind: SqlType) -> bool:
    parts = [k for _, k in kind.fields or ()] + ([kind.element] if kind.element is not None else [])
    return kind.name == "bytea" or any(map(_has_bytes, parts))


def _planned(target: Target, schema: StructType) -> _Plan:
    """Compares the columns of a DataFrame with the table. Raises errors of the database for a missing table or right,
    UNDEFINED_COLUMN, FEATURE_NOT_SUPPORTED.
    """
    with target.opened(writes=False) as session:
        described = session.run(f"DESCRIBE {target.sql}")[1]
    types = {name: kind for name, kind, required in described if required is not None}
    listed = next((names for what, names, required in described if what == "primary key" and required is None), "")
    key = tuple(name for name in types if name in listed.split(", "))
    columns, values = [], []
    for given in schema.fields:
        if target.changes is not None and given.name.lower() == target.changes.lower():
            continue
        name = given.name if given.name in types else given.name.lower()
        if name not in types:
            raise error(
                "UNDEFINED_COLUMN",
                f'table "{target.relation}" has no column "{given.name}"',
                hint=did_you_mean(given.name, types) or "drop() it before the write.",
            )
        column = Field(name, sql_type(given.dataType, given.name))
        if column.type.is_nested and _has_bytes(column.type):
            raise error(
                "FEATURE_NOT_SUPPORTED",
                f'column "{given.name}" has type {given.dataType.simpleString()}: binary values in arrays and structs',
                hint="Make them columns, or texts by hex().",
            )
        columns.append(column)
        values.append(_value(column, types[name]))
    if target.changes is not None:
        _check_changes(target, schema, key, {c.name for c in columns})
    sent = tuple(replace(c, type=VARCHAR) if c.type.is_nested else c for c in columns)
    return _Plan(tuple(columns), sent, tuple(values), key)


def _check_changes(target: Target, schema: StructType, key: Sequence[str], names: set[str]) -> None:
    if all(f.name.lower() != str(target.changes).lower() for f in schema.fields):
        raise error(
            "UNDEFINED_COLUMN",
            f'the DataFrame has no column "{target.changes}", which changes names',
            hint=did_you_mean(str(target.changes), schema.fieldNames()),
        )
    if not key:
        raise error(
            "FEATURE_NOT_SUPPORTED",
            f'changes of table "{target.relation}", which has no primary key',
            hint="Deleted rows are found by the key: CREATE TABLE … (…, PRIMARY KEY (…)).",
        )
    missing = [name for name in key if name not in names]
    if missing:
        raise error("UNDEFINED_COLUMN", f'the DataFrame lacks the column "{missing[0]}" of the primary key')


@dataclass(frozen=True)
class Rows(spark.WriterCommitMessage):  # type: ignore[misc]
    """The rows of a task, as a stream of Arrow. query: the id of the streaming query, or empty."""

    body: bytes
    query: str


class _Writer:
    """The common part of the writers of batches and of streams."""

    def __init__(self, target: Target, schema: StructType, *, overwrites: bool) -> None:
        if overwrites and target.changes is not None:
            raise error("INVALID_PARAMETER", "changes can't replace the content of a table", hint="Use mode append.")
        self._target, self._schema, self._overwrites = target, schema, overwrites
        self._plan = _planned(target, schema)

    def write(self, iterator: Iterator[Any]) -> Rows:
        """The rows of a task. iterator: batches of Arrow, or rows for writers of streams in Spark 4.0."""
        context = TaskContext.get()
        query = (context.getLocalProperty("sql.streaming.queryId") or "") if context is not None else ""
        first = next(iterator, None)
        if first is None:
            return Rows(b"", query)
        found = chain([first], iterator)
        kinds = to_arrow_schema(self._schema)
        batches = found if isinstance(first, pa.RecordBatch) else _batches(found, kinds)
        out = pa.BufferOutputStream()
        with ExitStack() as stack:
            stream = None
            for batch in batches:
                if stream is None:
                    options = pa.ipc.IpcWriteOptions(compression="lz4")
                    stream = stack.enter_context(pa.ipc.new_stream(out, batch.schema, options=options))
                stream.write_batch(batch)
        return Rows(out.getvalue().to_pybytes(), query)

    def _written(self, messages: Sequence[Rows | None], transaction: tuple[str, int] | None) -> None:
        """Writes the rows of all tasks in one transaction, unless it was written before."""
        tables = [pa.ipc.open_stream(m.body).read_all() for m in messages if m is not None and m.body]
        if not any(map(len, tables)) and not self._overwrites:
            return
        came, gone = self._changes(tables)
        with self._target.opened(writes=True) as session:
            _Transaction(session, self._target, self._plan, overwrites=self._overwrites).run(came, gone, transaction)
            session.finish()

    def _changes(self, tables: Sequence[pa.Table]) -> tuple[pa.Table, pa.Table | None]:
        """The rows to insert, and the keys to delete."""
        plan = self._plan
        if not tables:
            return pa.table({c.name: pa.array([], c.type.arrow) for c in plan.columns}), None
        given = pa.concat_tables(tables)
        marks = self._target.changes
        place = (
            None if marks is None else next(i for i, n in enumerate(given.column_names) if n.lower() == marks.lower())
        )
        kept = given if place is None else given.remove_column(place)
        rows = plan.sent(kept)
        return (rows, None) if place is None else _netted(rows, given.column(place), plan.key)


class BatchWriter(_Writer, spark.DataSourceArrowWriter):  # type: ignore[misc]
    """Writes a DataFrame."""

    def commit(self, messages: list[Rows | None]) -> None:
        self._written(messages, self._target.transaction)

    def abort(self, messages: list[Rows | None]) -> None:
        """Nothing to do: tasks write nothing."""


class StreamWriter(_Writer, getattr(spark, "DataSourceStreamArrowWriter", spark.DataSourceStreamWriter)):  # type: ignore[misc]
    """Writes the micro-batches of a streaming query, identified by its id, which the checkpoint has, and their
    numbers.
    """

    def __init__(self, target: Target, schema: StructType, *, overwrites: bool) -> None:
        if target.transaction is not None:
            raise error("INVALID_PARAMETER", "txnAppId and txnVersion are options of df.write, not of streams")
        super().__init__(target, schema, overwrites=overwrites)

    def commit(self, messages: list[Rows | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        query = next((m.query for m in messages if m is not None), "")
        if messages and not query:
            raise error("RUNTIME_UNAVAILABLE", "the tasks did not receive the id of their streaming query")
        self._written(messages, (query, batchId))

    def abort(self, messages: list[Rows | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Nothing to do: tasks write nothing."""


def _batches(rows: Iterator[Any], kinds: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of Spark 4.0 as Arrow."""
    yield from pa.Table.from_pylist([row.asDict(recursive=True) for row in rows], schema=kinds).to_batches()


def _netted(rows: pa.Table, marks: pa.ChunkedArray, key: Sequence[str]) -> tuple[pa.Table, pa.Table]:
    """The sum of changes: the rows that remain, and the keys of which no row remains. Raises INVALID_VALUE for an
    unknown mark, and DELIVERY_REFUSED if two rows of a key remain.
    """
    names = ", ".join(quoted(n) for n in rows.column_names)
    keys = ", ".join(quoted(n) for n in key)
    numbers = pa.types.is_integer(marks.type)
    words = [f"({', '.join(map(literal, found))})" for found in (_INSERTS, _DELETES)]
    diff = (
        "watersmeet_mark"
        if numbers
        else f"CASE WHEN watersmeet_mark IN {words[0]} THEN 1 WHEN watersmeet_mark IN {words[1]} THEN -1 END"
    )
    with duckdbs.connect(memory_limit=_MEMORY) as db:
        db.register("changes", rows.append_column("watersmeet_mark", marks if numbers else marks.cast(pa.string())))
        wrong = db.execute(f"SELECT watersmeet_mark FROM changes WHERE ({diff}) IS NULL LIMIT 1").fetchone()
        if wrong is not None:
            raise error(
                "INVALID_VALUE",
                f"the column of changes has the value {wrong[0]!r}",
                hint=f"It has whole numbers, or the words {', '.join((*_INSERTS, *_DELETES))}.",
            )
        db.execute(
            f"CREATE TEMP TABLE net AS SELECT {names}, sum({diff}) AS watersmeet_diff FROM changes GROUP BY {names} "
            f"HAVING sum({diff}) <> 0"
        )
        twice = db.execute(
            f"SELECT {keys} FROM net WHERE watersmeet_diff > 0 GROUP BY {keys} HAVING sum(watersmeet_diff) > 1 LIMIT 1"
        ).fetchone()
        if twice is not None:
            raise error(
                "DELIVERY_REFUSED",
                f"the changes leave two rows with the key ({', '.join(map(str, twice))})",
                hint="Choose one of them first, for example by an aggregate.",
            )
        came = db.execute(f"SELECT {names} FROM net WHERE watersmeet_diff > 0").to_arrow_table()
        gone = db.execute(
            f"SELECT DISTINCT {keys} FROM net AS n WHERE watersmeet_diff < 0 AND NOT EXISTS "
            f"(SELECT 1 FROM net AS m WHERE m.watersmeet_diff > 0 AND ({', '.join(f'm.{quoted(k)}' for k in key)}) = "
            f"({', '.join(f'n.{quoted(k)}' for k in key)}))"
        ).to_arrow_table()
    return came.cast(rows.schema), gone.cast(rows.select(list(key)).schema)


class _Transaction:
    """One transaction, which is tried again if another one changed the same table before its COMMIT."""

    def __init__(self, session: Client, target: Target, plan: _Plan, *, overwrites: bool) -> None:
        self._session, self._target, self._plan, self._overwrites = session, target, plan, overwrites

    def run(self, came: pa.Table, gone: pa.Table | None, transaction: tuple[str, int] | None) -> None:
        """Changes the table. Does nothing if the transaction was done before."""
        if transaction is not None and self._is_done(transaction):
            return
        steps = self._steps(came, gone)
        for attempt in range(_TRIES):
            try:
                self._once(steps, transaction)
            except Error as lost:
                if lost.condition != "SERIALIZATION_FAILURE" or attempt == _TRIES - 1:
                    raise
            else:
                return
            time.sleep(_PAUSE_S * (attempt + 1))

    def _once(self, steps: Sequence[str], transaction: tuple[str, int] | None) -> None:
        run = self._session.run
        run("BEGIN")
        try:
            if transaction is not None:
                query, number = transaction
                noted = (
                    f"UPDATE {self._target.marker} SET batch = {number} WHERE {self._is_of(query)} AND batch < {number}"
                )
                if run(noted)[0] == 0:  # a writer that Spark believed dead was faster
                    run("ROLLBACK")
                    return
            for step in steps:
                run(step)
            run("COMMIT")
        except Error:
            with suppress(Error):
                run("ROLLBACK")
            raise

    def _is_of(self, query: str) -> str:
        return f"query = {literal(query)} AND relation = {literal(self._target.relation)}"

    def _is_done(self, transaction: tuple[str, int]) -> bool:
        """Whether the table has a transaction. Notes a query that is new."""
        query, number = transaction
        run, marker = self._session.run, self._target.marker
        run(
            f"CREATE TABLE IF NOT EXISTS {marker} "
            "(query varchar, relation varchar, batch bigint, PRIMARY KEY (query, relation))"
        )
        found = run(f"SELECT batch FROM {marker} WHERE {self._is_of(query)}")[1]
        if not found:
            values = f"({literal(query)}, {literal(self._target.relation)}, -1)"
            run(f"INSERT INTO {marker} VALUES {values} ON CONFLICT DO NOTHING")
        return bool(found) and int(found[0][0]) >= number

    def _steps(self, came: pa.Table, gone: pa.Table | None) -> list[str]:
        """Sends the rows, and returns the statements that change the table."""
        plan, target = self._plan, self._target.sql
        steps = [f"DELETE FROM {target}"] if self._overwrites else []
        if gone is not None and len(gone):
            keys = [next(c for c in plan.columns if c.name == name) for name in gone.column_names]
            self._load(_GONE, keys, gone)
            values = dict(zip((c.name for c in plan.columns), plan.values, strict=True))
            same = " AND ".join(f"{target}.{quoted(c.name)} = g.{quoted(c.name)}" for c in keys)
            found = ", ".join(f"{values[c.name]} AS {quoted(c.name)}" for c in keys)
            steps.append(f"DELETE FROM {target} USING (SELECT {found} FROM {_GONE}) AS g WHERE {same}")
        if len(came):
            self._load(_CAME, plan.columns, came)
            names = ", ".join(quoted(c.name) for c in plan.columns)
            steps.append(
                f"INSERT INTO {target} ({names}) SELECT {', '.join(plan.values)} FROM {_CAME}{self._conflict()}"
            )
        return steps

    def _conflict(self) -> str:
        """The clause by which a row replaces the row of its key."""
        if not self._plan.key:
            return ""
        others = [quoted(c.name) for c in self._plan.columns if c.name not in self._plan.key]
        changes = ", ".join(f"{name} = excluded.{name}" for name in others)
        keys = ", ".join(map(quoted, self._plan.key))
        return f" ON CONFLICT ({keys}) DO {f'UPDATE SET {changes}' if changes else 'NOTHING'}"

    def _load(self, table: str, columns: Sequence[Field], rows: pa.Table) -> None:
        self._session.run(f"CREATE TEMP TABLE {table} ({', '.join(f'{quoted(c.name)} {c.type.sql}' for c in columns)})")
        self._session.load(table, tuple(columns), rows)
