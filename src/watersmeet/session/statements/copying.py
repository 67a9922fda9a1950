"""COPY, and one INSERT for many rows of parameters.

PostgreSQL, "COPY".
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from watersmeet.binder.clauses.sources import files_refused
from watersmeet.catalog import VALUE_COLUMN, Relation
from watersmeet.connectors.base.deadletters import DeadLetterWriter, count_dead_letter_files, place_of
from watersmeet.database.assignment import Target, named_targets
from watersmeet.database.reading import (
    batch_query,
    computed,
    conformed,
    described,
    failed_query,
    fetch,
    omitted,
    reading,
    runs_on,
    table_tree,
)
from watersmeet.database.sessions.context import Session, error_at, located
from watersmeet.database.sessions.result import Result, rows_result
from watersmeet.dialects.parsing import parse
from watersmeet.dialects.statements.dml import Copy, CopyFrom, CopyIn, CopyOut, CopyTo
from watersmeet.dialects.tree.statements import Insert, Name, Statement
from watersmeet.dialects.tree.tokens import not_supported
from watersmeet.errors import Error, did_you_mean
from watersmeet.expressions.casts import checked_sql, list_sql
from watersmeet.formats.writingfiles import FILE_FORMATS, FileFormat, FileWriter
from watersmeet.maintenance.refreshing import refresh_read
from watersmeet.session.statements.dml import insert_rows, insert_targets, writable
from watersmeet.session.statements.elsewhere import produce_rows
from watersmeet.store.changes import quoted
from watersmeet.system import files
from watersmeet.system.process import lazy_import
from watersmeet.values.types import BOOLEAN, VARCHAR, Field, Schema, SqlType, arrow_schema

if TYPE_CHECKING:
    from watersmeet.connectors.files import options as fileoptions
    from watersmeet.connectors.files import tables as filetables
else:
    fileoptions = lazy_import("watersmeet.connectors.files.options")
    filetables = lazy_import("watersmeet.connectors.files.tables")

#: Python types whose values Arrow converts exactly as SQL would.
_PLAIN: Final[dict[str, tuple[type, ...]]] = {
    "boolean": (bool,),
    "smallint": (int,),
    "integer": (int,),
    "bigint": (int,),
    "numeric": (Decimal,),
    "real": (float,),
    "double precision": (float, int),
    "varchar": (str,),
    "bytea": (bytes,),
    "date": (dt.date,),
    "time": (dt.time,),
    "timestamp": (dt.datetime,),
    "timestamptz": (dt.datetime,),
}

#: Replaces a parameter while the statement is parsed; a character of Unicode's private use.
_MARK: Final = "\ue000"


def insert_many(session: Session, text: str, rows: Sequence[Sequence[Any]]) -> Result | None:
    """Runs an INSERT of one row of plain parameters for all `rows` at once.

    For any other statement, and for values that need SQL's conversions, does nothing and returns None.
    """
    width = len(rows[0])
    if _MARK in text or any(len(row) != width for row in rows):
        return None
    statements = parse(text, session.dialect, [f"{_MARK}{i}" for i in range(width)])
    if len(statements) != 1 or not isinstance(statements[0], Insert):
        return None
    statement = statements[0]
    order = _parameters(statement.query)
    failed = session.transaction is not None and session.transaction.failed
    if order is None or statement.returning is not None or statement.conflict is not None or failed:
        return None
    with session.database.guard:
        relation = writable(session, statement.table, statement, "insert into")
        if any(c.name == VALUE_COLUMN or c.path for c in statement.columns):
            return None
        targets = insert_targets(relation, statement)[: len(order)]
        if len(targets) != len(order) or (statement.columns and len(statement.columns) != len(order)):
            return None
        columns = _columns(rows, order, targets)
        if columns is None:
            return None
        schema = arrow_schema(relation.columns, positional=False)
        given = {t.column.name: c for t, c in zip(targets, columns, strict=True)}
        missing = [c for c in relation.columns if c.name not in given]
        found = given | omitted_columns(session, relation, missing, len(rows))
        incoming = pa.Table.from_arrays([found[f.name] for f in schema], schema=schema)
        if not relation.connector:
            return insert_rows(session, relation, incoming, statement, given)
    return produce_rows(session, relation, incoming, statement)


def _parameters(query: exp.Expression) -> list[int] | None:
    """The index of the parameter at each position, if VALUES has a single row and only parameters."""
    if not isinstance(query, exp.Values) or len(query.expressions) != 1:
        return None
    row = query.expressions[0]
    cells = row.expressions if isinstance(row, exp.Tuple) else []
    if not cells or not all(isinstance(c, exp.Literal) and c.is_string and c.name.startswith(_MARK) for c in cells):
        return None
    return [int(c.name.removeprefix(_MARK)) for c in cells]


def _columns(rows: Sequence[Sequence[Any]], order: Sequence[int], targets: Sequence[Target]) -> list[pa.Array] | None:
    columns = []
    for number, target in zip(order, targets, strict=True):
        values = [row[number] for row in rows]
        if not _is_plain(values, target.column.type):
            return None
        try:
            columns.append(pa.array(values, target.column.type.arrow))
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeEncodeError):
            return None  # run row by row, the statement reports the invalid value
        if target.column.type == VARCHAR and pc.any(pc.match_substring(columns[-1], "\0")).as_py():
            return None
    return columns


def _is_plain(values: Sequence[Any], kind: SqlType) -> bool:
    allowed = _PLAIN.get(kind.name, ())
    found = {type(v) for v in values} - {type(None)}
    if not found <= set(allowed):
        return False
    if kind.name in ("timestamp", "timestamptz"):
        return all((v.tzinfo is not None) == (kind.name == "timestamptz") for v in values if v is not None)
    return True


def omitted_columns(session: Session, relation: Relation, columns: Sequence[Field], rows: int) -> dict[str, pa.Array]:
    """The values of omitted columns, for `count` rows."""
    if not columns:
        return {}
    now_us = session.database.clock.now_us()
    texts = ", ".join(f"{omitted(relation, c, now_us)} AS c{i}" for i, c in enumerate(columns))
    with session.database.content.session() as connection:
        values = conformed(
            connection.execute(f"SELECT {texts} FROM range({rows})").to_arrow_table(),
            arrow_schema(tuple(columns), positional=False),
        )
    return {c.name: values.column(i) for i, c in enumerate(columns)}


#: The rows of a written batch.
_BATCH_ROWS: Final = 1 << 17

_TO: Final = {
    "csv": ("format", "header", "delimiter", "null"),
    "json": ("format",),
    "parquet": ("format", "compression"),
}

_FROM: Final = {
    "csv": ("format", "header", "delimiter", "null", "quote", "on_error"),
    "json": ("format", "on_error"),
    "parquet": ("format", "on_error"),
}

#: For each value of ON_ERROR, whether unreadable records are set aside.
_ON_ERROR: Final = {"stop": False, "skip": True, "ignore": True}


def copy_to(session: Session, statement: CopyTo) -> Result:
    """COPY … TO: the content as of one moment, as one file. An incomplete file never appears."""
    path = _path(session, statement)
    kind, options = _options(statement, _TO)
    if kind == "csv":
        options["without_header"] = "false" if _truth(statement, "header", options.pop("header", "false")) else "true"
    query = batch_query(session, _selected(session, statement), statement.text)
    if refresh_read(session, query.depends_on):
        session.database.flush()
    transaction = session.transaction
    rows = 0
    with reading(session, query, newest=transaction is not None and not transaction.read_only) as connection:
        temporary = files.temporary_path(path.parent)
        try:
            batches = connection.execute(query.sql).to_arrow_reader(_BATCH_ROWS)
            columns, _ = described(batches.schema.empty_table(), query.columns)
            schema = arrow_schema(columns, positional=False)
            _check_names(statement, columns)
            with located(statement, statement.path_span, statement.spans):
                writer = FileWriter(columns, kind, options)
            with temporary.open("xb") as out:
                file = writer.begin(out)
                for batch in batches:
                    file.write(conformed(pa.Table.from_batches([batch]), schema))
                    rows += batch.num_rows
                file.close()
            files.publish_file(temporary, path, durable=True)
            files.sync_directory(path.parent)
        except duckdb.Error as cause:
            raise failed_query(cause, statement.text) from cause
        except OSError as cause:
            with located(statement, statement.path_span):
                raise files.failure(cause, path) from cause
        finally:
            files.discard(temporary)
    return Result("COPY", rowcount=rows)


def copied_rows(session: Session, statement: CopyOut) -> Result:
    """The rows of the table of COPY … TO STDOUT, as of one moment."""
    query = batch_query(session, _of_table(session, statement), statement.text)
    session.show_writes()
    if refresh_read(session, query.depends_on):
        session.database.flush()
    transaction = session.transaction
    newest = transaction is not None and not transaction.read_only
    table = fetch(session, query, newest=newest, most_bytes=session.result_bytes)
    return rows_result("COPY", *described(table, query.columns))


def refuse_stream(session: Session, statement: CopyIn | CopyOut) -> Result:
    """Raises FEATURE_NOT_SUPPORTED: only clients of a server can COPY from STDIN and to STDOUT."""
    del session
    stream = "FROM STDIN" if isinstance(statement, CopyIn) else "TO STDOUT"
    raise not_supported(
        f"COPY {stream}", statement.text, statement.stream, hint="A server and its clients have it; here, name a file."
    )


def _selected(session: Session, statement: CopyTo) -> exp.Expression:
    """The query whose rows are written."""
    if statement.query is not None:
        if runs_on(session, statement.query):
            raise not_supported(
                "COPY of a query that runs until it is stopped", statement.text, statement.span, hint="Create a sink."
            )
        return statement.query
    return _of_table(session, statement)


def _of_table(session: Session, statement: CopyTo | CopyOut) -> exp.Expression:
    assert statement.table is not None
    relation = session.relation(statement.table, statement)
    names = [t.column.name for t in named_targets(relation, statement.columns, statement)]
    items = [exp.column(exp.to_identifier(n, quoted=True)) for n in names] or [exp.Star()]
    return exp.select(*items).from_(table_tree(relation, None))


def _check_names(statement: CopyTo, columns: Schema) -> None:
    """Raises DUPLICATE_COLUMN: files of JSON and Parquet identify columns by name."""
    names = [c.name for c in columns]
    for i, name in enumerate(names):
        if name in names[:i]:
            raise error_at(
                statement,
                statement.span,
                "DUPLICATE_COLUMN",
                f'column "{name}" specified more than once',
                hint="Give one of them an alias with AS.",
            )


def copy_from(session: Session, statement: CopyFrom) -> Result:
    """COPY … FROM: inserts the rows of a file, in one commit.

    Raises INVALID_VALUE for unreadable records, unless ON_ERROR sets them aside: then they are dead letters of the
    table.
    """
    path = _path(session, statement)
    kind, options = _options(statement, _FROM)
    skips = _skips(statement, options.pop("on_error", "stop"))
    if not path.is_file():
        raise error_at(statement, statement.path_span, "INVALID_PARAMETER", f'there is no file "{path}"')
    with session.database.guard:
        relation = _copied_into(session, statement.table, statement)
        made = Insert(
            text=statement.text,
            sql=statement.sql,
            span=statement.span,
            table=statement.table,
            columns=statement.columns,
            query=exp.Values(),
        )
        columns = tuple(t.column for t in insert_targets(relation, made))
        if kind == "csv":
            options["header"] = "true" if _truth(statement, "header", options.get("header", "false")) else "false"
        given = {"connector": "file", "path": str(path), "format": kind, **options}
        with located(statement, statement.path_span, statement.spans):
            source = filetables.present_files(relation.name, columns, given)
        with _dead_letters(session, relation) if skips else DeadLetterWriter(None) as dead:
            rows = filetables.read_files(source, columns, dead)
            _check_lacking(statement, source.status()["partial"])
            if dead.count:
                _report(session, statement, dead, skips=skips)
        _insert(session, relation, rows, made)
    return Result("COPY", rowcount=rows.num_rows)


def copied_columns(session: Session, statement: Insert) -> Schema:
    """The columns of the rows that a client will send. Raises the errors that don't depend on the rows."""
    with session.database.guard:
        relation = _copied_into(session, statement.table, statement)
        return tuple(t.column for t in insert_targets(relation, statement))


def insert_copied(session: Session, statement: Insert, read: Callable[[Schema], pa.Table]) -> Result:
    """Inserts rows that a client sends, in one commit. read: returns the values of columns, as text or in their types.

    Raises INVALID_VALUE for an invalid value of a column's type, and errors of `read`: then nothing is inserted.
    """
    with session.database.guard:
        relation = _copied_into(session, statement.table, statement)
        columns = tuple(t.column for t in insert_targets(relation, statement))
        given = read(columns)
        values = [_value(quoted(c.name), c.type, given.schema.field(c.name).type) for c in columns]
        try:
            rows = computed(session, given, values, columns, statement.text) if columns else given
        except Error as err:
            err.detail = err.detail or _where(session, given, values)
            raise
        _insert(session, relation, rows, statement)
    return Result("COPY", rowcount=rows.num_rows)


def _where(session: Session, given: pa.Table, values: Sequence[str]) -> str | None:
    """A text with the row and column of the first invalid value."""
    kinds = tuple(Field(name, BOOLEAN) for name in given.column_names)
    tried = [f"{quoted(n)} IS NOT NULL AND TRY({v}) IS NULL" for n, v in zip(given.column_names, values, strict=True)]
    wrong = computed(session, given, tried, kinds)
    places = [(pc.index(c, pa.scalar(True)).as_py(), i) for i, c in enumerate(wrong.columns)]
    row, column = min((p for p in places if p[0] >= 0), default=(-1, 0))
    return None if row < 0 else f'Row {row + 1}, column "{given.column_names[column]}".'


def _value(text: str, kind: SqlType, given: pa.DataType) -> str:
    """DuckDB SQL that converts a column to a type: from text in PostgreSQL's form, or from a value of another type."""
    if given != pa.string():
        return f"CAST({text} AS {kind.duckdb})"
    if kind.name == "bytea":
        return f"CASE WHEN starts_with({text}, '\\x') THEN unhex(substr({text}, 3)) ELSE encode({text}) END"
    if kind.name == "array":
        return checked_sql(f"CAST({list_sql(text)} AS {kind.duckdb})", kind)
    return checked_sql(f"CAST({text} AS {kind.duckdb})", kind)


def _copied_into(session: Session, table: Name, statement: Statement) -> Relation:
    """The table, if rows can be copied into it. The caller holds the guard."""
    relation = writable(session, table, statement, "copy into")
    if relation.connector:
        raise not_supported(
            f"COPY FROM into {relation.title}", statement.text, table.span, hint="INSERT writes messages."
        )
    return relation


def _insert(session: Session, relation: Relation, rows: pa.Table, statement: Insert) -> None:
    """Inserts rows that have some of the relation's columns. The caller holds the guard."""
    found = {name: rows.column(name) for name in rows.column_names}
    found |= omitted_columns(session, relation, [c for c in relation.columns if c.name not in found], rows.num_rows)
    schema = arrow_schema(relation.columns, positional=False)
    incoming = pa.Table.from_arrays([found[f.name] for f in schema], schema=schema)
    insert_rows(session, relation, incoming, statement, rows.column_names)


def _dead_letters(session: Session, relation: Relation) -> DeadLetterWriter:
    """The writer of a statement's dead letters; `epoch` is the number that the statement's commit will have."""
    directory, number = session.database.layout.dead(relation.id), session.database.log.head() + 1
    return DeadLetterWriter(directory, number, count_dead_letter_files(directory, number))


def _check_lacking(statement: CopyFrom, partial: list[tuple[str, list[str]]]) -> None:
    """Raises UNDEFINED_COLUMN if the file lacks a named column."""
    for _, lacking in partial:
        raise error_at(
            statement,
            statement.path_span,
            "UNDEFINED_COLUMN",
            f'the file has no column "{lacking[0]}"',
            hint="Name the columns that it has: COPY table (column, …) FROM ….",
        )


def _report(session: Session, statement: CopyFrom, dead: DeadLetterWriter, *, skips: bool) -> None:
    """Reports the number of unreadable records: in a notice if they are set aside, otherwise in an error."""
    assert dead.first is not None
    said = f"{dead.rows} record{'' if dead.rows == 1 else 's'} of the file can't be read"
    if skips:
        session.notice(f"{said} and were set aside: watersmeet.dead_letters has them")
        return
    file, line = place_of(dead.first)
    raise error_at(
        statement,
        statement.path_span,
        "INVALID_VALUE",
        f"{said}: {dead.first['reason']}",
        detail=f"The first is in {file if line is None else f'{file}, line {line}'}. Nothing was copied.",
        hint="ON_ERROR skip sets such records aside, and copies the others.",
    )


def _path(session: Session, statement: Copy) -> Path:
    """The path of the file. Raises FILES_NOT_ALLOWED, INVALID_PARAMETER."""
    if not session.reads_files:
        raise files_refused("COPY", sql=statement.text, span=statement.path_span)
    path = Path(fileoptions.absolute_path(statement.path))
    if not statement.path or path.is_dir() or not os.path.isdir(path.parent):
        reason = "is a directory" if path.is_dir() else "is in no directory that exists"
        raise error_at(statement, statement.path_span, "INVALID_PARAMETER", f'"{path}" {reason}')
    return path


def _options(statement: Copy, known: dict[str, tuple[str, ...]]) -> tuple[FileFormat, dict[str, str]]:
    """The format, by default that of the file's extension, and the other options. Raises CONNECTOR_OPTION."""
    options = dict(statement.options)
    extension = Path(statement.path).suffix.lower().lstrip(".")
    name = options.pop("format", extension if extension in FILE_FORMATS else "csv").lower()
    if name not in FILE_FORMATS:
        raise error_at(
            statement,
            statement.spans["format"],
            "CONNECTOR_OPTION",
            f'the format of a file can\'t be "{name}"',
            hint=did_you_mean(name, FILE_FORMATS) or "It is CSV, JSON or PARQUET.",
        )
    for option in options:
        if option not in known[name]:
            raise error_at(
                statement,
                statement.spans[option],
                "CONNECTOR_OPTION",
                f"COPY of {name.upper()} has no option {option.upper()}",
                hint=did_you_mean(option, known[name]),
            )
    return name, options


def _truth(statement: Copy, option: str, value: str) -> bool:
    if value.lower() not in ("true", "false", "on", "off", "1", "0"):
        raise error_at(
            statement,
            statement.spans[option],
            "CONNECTOR_OPTION",
            f'option {option.upper()} can\'t be "{value}"',
            hint="It must be true or false.",
        )
    return value.lower() in ("true", "on", "1")


def _skips(statement: CopyFrom, value: str) -> bool:
    if value.lower() not in _ON_ERROR:
        raise error_at(
            statement,
            statement.spans["on_error"],
            "CONNECTOR_OPTION",
            f'option ON_ERROR can\'t be "{value}"',
            hint="It is stop, or skip.",
        )
    return _ON_ERROR[value.lower()]
