"""The targets `postgres` and `postgresql`: a table of PostgreSQL.

Rows are sent by COPY: added rows directly to the table, others to a temporary table, from which rows are deleted and
upserted.

RisingWave, "Sink data from RisingWave to PostgreSQL". Timeplus, "External Table", "PostgreSQL".
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.connectors.base.options import OptionSet, OptionSpec
from watersmeet.connectors.base.targets import (
    Delivery,
    RowChange,
    SinkBatch,
    check_form,
    rows_that_came,
)
from watersmeet.connectors.databases.targets import (
    PROGRESS,
    RIGHTS,
    DatabaseTarget,
    TargetColumn,
    TargetTable,
    database_connector,
    named_table,
    table_specs,
)
from watersmeet.connectors.postgres.client import connect, failure, library
from watersmeet.connectors.postgres.types import LOOSE, innermost, rounds, takes
from watersmeet.errors import Error, error
from watersmeet.formats.valuetexts import EXACT_JSON, array_literal
from watersmeet.formats.writers import concatenated, csv_writer, evaluate_text, json_writer, value_bytes
from watersmeet.system.process import fault
from watersmeet.values.types import BOOLEAN, VARCHAR, Field, Schema

#: The bytes of rows that are passed to the library in one call.
_WRITTEN_BYTES: Final = 1 << 20
_GONE: Final = "watersmeet_gone"
#: The pattern of a clause of INSERT, with the columns of the key.
_CLAUSE: Final = re.compile(r"(?is)\s*ON\s+CONFLICT\b\s*(?:\(([^()]*)\))?.*\bDO\s+(?:NOTHING|UPDATE)\b")
_CHANGES: Final = "pg_temp.watersmeet_changes"

_COLUMNS: Final = """
SELECT a.attname, t.typname, t.typtype, e.typname, e.typtype, format_type(a.atttypid, a.atttypmod),
    a.attnotnull AND NOT a.atthasdef AND a.attidentity = '', a.attgenerated <> '' OR a.attidentity = 'a', a.atttypmod,
    coalesce(NOT l.collisdeterministic, false)
FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_type t ON t.oid = a.atttypid LEFT JOIN pg_type e ON e.oid = t.typelem AND t.typcategory = 'A'
LEFT JOIN pg_collation l ON l.oid = a.attcollation
WHERE n.nspname = %s AND c.relname = %s AND c.relkind IN ('r', 'p', 'v', 'f') AND a.attnum > 0 AND NOT a.attisdropped
"""
_KEYS: Final = """
SELECT array_agg(a.attname::text), NOT bool_and(a.attnotnull) FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid
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


class PostgresTarget(DatabaseTarget[pa.BinaryArray]):
    """A target (see `databases.targets`) whose rows are lines of CSV."""

    microseconds = "leave its precision out"

    def __init__(self, delivery: Delivery, database_id: str, table: TargetTable) -> None:
        super().__init__(delivery, database_id, table)
        self._keys = json_writer(self._key, EXACT_JSON)
        self._arrays: dict[str, str] = {}
        """The SQL of the text of a column that is written to an array, by column."""
        self._loose: dict[str, str] = {}
        """The column with staged texts, by key column in which the server may treat different texts as equal."""

    def _connect(self) -> Any:
        return connect(self._where.server)

    def _end_others(self) -> None:
        self._run("SELECT set_config('application_name', %s, false)", [self._application])
        self._run(_END_OTHERS, [self._application])

    def _columns(self) -> Mapping[str, TargetColumn]:
        types = {c.name: c.type for c in self._delivery.columns}
        self._loose = {}
        found = {}
        for row in self._run(_COLUMNS, self._place_of):
            name, kind, there, element, element_kind, shown, required, computed, modifier, is_loose = row
            wanted = types.get(name)
            accepts = wanted is not None and takes(wanted, kind, there, element, element_kind)
            is_rounded = wanted is not None and rounds(innermost(wanted), element or kind, modifier)
            found[name] = TargetColumn(shown, accepts, is_rounded, computed, required)
            if wanted is not None and wanted.element is not None and element is not None:
                self._arrays[name] = array_literal("t0", wanted)
            if (is_loose or kind in LOOSE) and wanted == VARCHAR and name in {c.name for c in self._key}:
                self._loose[name] = f"watersmeet_text_{len(self._loose)}"
        return found

    def _unique_keys(self) -> Mapping[frozenset[str], bool]:
        return {frozenset(names): has_nulls for names, has_nulls in self._run(_KEYS, self._place_of)}

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with self._transaction():
            self._run(f"LOCK TABLE {self._table} IN SHARE ROW EXCLUSIVE MODE")
            yield

    def _change(self, change: RowChange) -> None:
        marks = [f"watersmeet_key_{i}" for i in range(len(change.key))]
        pairs = [(self._quoted(c.name), mark) for c, mark in zip(change.key, marks, strict=True)]
        columns = self._delivery.columns if change.rows is not None else ()
        names = [self._quoted(c.name) for c in columns]
        self._run(
            f"CREATE TEMPORARY TABLE {_CHANGES} ON COMMIT DROP AS "
            f"SELECT {', '.join([*(f'{name} AS {mark}' for name, mark in pairs), *names])} FROM {self._table} "
            "WITH NO DATA"
        )
        keys = [Field(mark, c.type) for c, mark in zip(change.key, marks, strict=True)]
        values = [] if change.rows is None else change.rows.columns
        rows = pa.table([*change.keys.columns, *values], names=[c.name for c in (*keys, *columns)])
        self._copy(_CHANGES, self._lines(rows, (*keys, *columns)), ", ".join([*marks, *names]))
        same = " AND ".join(f"t.{name} = c.{mark}" for name, mark in pairs)
        if change.rows is None:
            done = self._run(f"DELETE FROM {self._table} AS t USING {_CHANGES} AS c WHERE {same}")
        else:
            changes = ", ".join(f"{name} = c.{name}" for name in names)
            done = self._run(f"UPDATE {self._table} AS t SET {changes} FROM {_CHANGES} AS c WHERE {same}")
        self._check_changed(done.rowcount, change)

    @property
    def _place_of(self) -> list[str]:
        return [self._where.schema, self._where.table]

    @property
    def _is_staged(self) -> bool:
        return bool(self._key or self._delivery.merging or self._where.on_conflict)

    def _make_progress_table(self) -> None:
        psycopg = library()
        there = f'"{self._where.schema}"."{PROGRESS}"'
        if self._run("SELECT to_regclass(%s)", [there]).fetchone()[0] is not None:
            return
        with contextlib.suppress(psycopg.errors.UniqueViolation, psycopg.errors.DuplicateTable):  # another sink made it
            self._run(
                f"CREATE TABLE IF NOT EXISTS {self._progress_table} (sink text PRIMARY KEY, writer text NOT NULL, "
                "generation bigint NOT NULL, commit bigint NOT NULL, rows bigint NOT NULL, last boolean NOT NULL)"
            )

    def _add_progress_row(self) -> None:
        self._run(
            f"INSERT INTO {self._progress_table} VALUES (%s, '', 0, 0, 0, false) ON CONFLICT DO NOTHING", [self._name]
        )

    def _prepare(self) -> None:
        self._run(
            f"CREATE TEMPORARY TABLE {_CHANGES} ON COMMIT DELETE ROWS AS "
            f"SELECT {self._names}, false AS {_GONE}{''.join(f', NULL::text AS {t}' for t in self._loose.values())} "
            f"FROM {self._table} WITH NO DATA"
        )

    def _rows(self, batches: Sequence[SinkBatch]) -> pa.BinaryArray:
        columns = self._delivery.columns
        if not self._key:
            return self._added(pa.concat_tables([rows_that_came(p) for p in batches]))
        # a line for each changed key, with its last row or a mark that the row was deleted
        rows, gone = self._newest(batches, self._keys)
        rows = rows.append_column(_GONE, pa.array(gone))
        for name, text in self._loose.items():
            rows = rows.append_column(text, rows.column(name))
        texts = [Field(text, VARCHAR) for text in self._loose.values()]
        return self._lines(rows, (*columns, Field(_GONE, BOOLEAN), *texts))

    def _added(self, rows: pa.Table) -> pa.BinaryArray:
        columns = self._delivery.columns
        return self._lines(rows.select([c.name for c in columns]), columns)

    def _write(self, rows: pa.BinaryArray) -> None:
        if self._key:
            self._merge(rows)
        elif self._is_staged:
            self._insert(rows)
        else:
            self._copy(self._table, rows, self._names)

    def _transaction(self) -> contextlib.AbstractContextManager[Any]:
        found: contextlib.AbstractContextManager[Any] = self._connection.transaction()
        return found

    def _run(self, text: str, parameters: Sequence[Any] = ()) -> Any:
        return self._connection.execute(text, parameters)

    def _quoted(self, *names: str) -> str:
        name: str = library().sql.Identifier(*names).as_string(None)
        return name.replace("%", "%%")

    def _errors(self) -> type[Exception]:
        found: type[Exception] = library().Error
        return found

    def _refusal(self, cause: Any) -> str | None:
        if not (getattr(cause, "sqlstate", None) or "").startswith(("21", "22", "23")):
            return None
        told = cause.diag
        return " ".join(t for t in (told.message_primary, told.message_detail) if t)

    def _failure(self, cause: Any) -> Error:
        return failure(cause, self._where.server, self._where.name, RIGHTS)

    def _lines(self, rows: pa.Table, columns: Schema) -> pa.BinaryArray:
        return lines(rows, columns, self._arrays)

    def _copy(self, table: str, rows: pa.BinaryArray, names: str) -> None:
        copy_lines(self._connection, table, rows, names)

    def _insert(self, lines: pa.BinaryArray) -> None:
        """Adds rows with the effect of INSERT with the clause, sequentially for rows of one key."""
        self._copy(_CHANGES, lines, self._names)
        fault("database.copied")
        merging = self._delivery.merging
        if merging is None:
            found = _CLAUSE.match(self._where.on_conflict)
            assert found is not None
            key, clause = ((part or "").replace("%", "%%") for part in (found.group(1), self._where.on_conflict))
        else:
            key = ", ".join(self._quoted(name) for name in merging.key)
            clause = self._on_conflict(key, merging.updated)
        order = f"row_number() OVER (PARTITION BY {key} ORDER BY ctid)" if key else "1"
        rows = f"(SELECT {self._names}, {order} AS watersmeet_turn FROM {_CHANGES}) AS c"
        (turns,) = self._run(f"SELECT coalesce(max(watersmeet_turn), 0) FROM {rows}").fetchone()
        for turn in range(1, turns + 1):
            self._run(
                f"INSERT INTO {self._table} ({self._names}) SELECT {self._names} FROM {rows} "
                f"WHERE watersmeet_turn = %s {clause}",
                [turn],
            )

    def _merge(self, lines: pa.BinaryArray) -> None:
        self._copy(_CHANGES, lines, ", ".join([self._names, _GONE, *self._loose.values()]))
        fault("database.copied")
        same = " AND ".join(
            [
                *(f"t.{name} = c.{name}" for name in (self._quoted(c.name) for c in self._key)),
                *(f't.{self._quoted(name)}::text COLLATE "C" = c.{text}' for name, text in self._loose.items()),
            ]
        )
        self._run(f"DELETE FROM {self._table} AS t USING {_CHANGES} AS c WHERE c.{_GONE} AND {same}")
        kept, key = [c.name for c in self._delivery.columns if c not in self._key], self._listed(self._key)
        # in the order of the key, so that each page of the index is visited once
        self._run(
            f"INSERT INTO {self._table} ({self._names}) SELECT {self._names} FROM {_CHANGES} WHERE NOT {_GONE} "
            f"ORDER BY {key} {self._on_conflict(key, kept)}"
        )
        if self._loose:
            self._check_texts(same)

    def _check_texts(self, same: str) -> None:
        """Raises DELIVERY_REFUSED if the server treats a key as equal to a different text. same: the condition that a
        row t has the key c.
        """
        texts = ", ".join(self._loose.values())
        found = self._run(
            f"SELECT {texts} FROM {_CHANGES} AS c WHERE NOT {_GONE} "
            f"AND NOT EXISTS (SELECT FROM {self._table} AS t WHERE {same}) LIMIT 1"
        ).fetchone()
        if found is not None:
            key = ", ".join(repr(text) for text in found)
            raise self._refused(
                f"Its key {key} is not told from another one there, by the type or collation of a column."
            )

    def _on_conflict(self, key: str, updated: Sequence[str]) -> str:
        """The clause by which an existing row takes columns of the written row. key: the list of the key's columns."""
        changes = ", ".join(f"{name} = excluded.{name}" for name in map(self._quoted, updated))
        return f"ON CONFLICT ({key}) DO {f'UPDATE SET {changes}' if changes else 'NOTHING'}"


def lines(rows: pa.Table, columns: Schema, arrays: Mapping[str, str]) -> pa.BinaryArray:
    """The rows as CSV. arrays: the SQL of the text of columns that are written in PostgreSQL's form, see
    `array_literal`.
    """
    written = list(columns)
    for i, column in enumerate(columns):
        if column.name in arrays:
            texts = evaluate_text([rows.column(i)], arrays[column.name]).cast(pa.string())
            rows = rows.set_column(i, column.name, texts)
            written[i] = Field(column.name, VARCHAR)
    found = csv_writer(tuple(written)).write(rows)
    if len(written) == 1:  # a line with only this text would end the data
        found = pc.if_else(pc.equal(found, b"\\."), b'"\\."', found)
    return concatenated([found, b"\n"])


def copy_lines(connection: Any, table: str, rows: pa.BinaryArray, names: str) -> None:
    """Sends lines of CSV to a table. names: its columns, in SQL."""
    received = value_bytes(rows)
    with connection.cursor().copy(f"COPY {table} ({names}) FROM STDIN (FORMAT csv)", []) as copy:
        for begin in range(0, len(received), _WRITTEN_BYTES):
            copy.write(received[begin : begin + _WRITTEN_BYTES])


#: The systems by connector.
SINK_OPTIONS: Final = {
    "postgres": OptionSet("postgres of sinks", table_specs(5432)),
    "postgresql": OptionSet(
        "postgresql of sinks",
        table_specs(
            5432, OptionSpec("on_conflict", "The effect of an inserted row whose key exists: a clause of INSERT.")
        ),
    ),
}


def _target(delivery: Delivery, database_id: str) -> PostgresTarget:
    """The target of a delivery. Raises CONNECTOR_OPTION for invalid options."""
    check_form(delivery)
    options = SINK_OPTIONS[delivery.connector["connector"].lower()].read(delivery.connector)
    clause = conflict_clause(delivery.connector.get("on_conflict", ""))
    return PostgresTarget(delivery, database_id, named_table(options, "public", clause))


def conflict_clause(text: str) -> str:
    """The option `on_conflict`. Raises CONNECTOR_OPTION if it is not a clause of INSERT."""
    if text and not _CLAUSE.match(text):
        raise error(
            "CONNECTOR_OPTION",
            f'on_conflict can\'t be "{text}"',
            hint="Write ON CONFLICT DO NOTHING, or ON CONFLICT (columns) DO UPDATE SET ….",
        )
    return text.strip()


CONNECTORS: Final = {name: database_connector(_target, options) for name, options in SINK_OPTIONS.items()}
