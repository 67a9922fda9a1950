"""CREATE, ALTER and DROP of SQLstream: streams, pumps, servers, foreign streams and tables; MERGE.

SQLstream, "CREATE SERVER", "CREATE FOREIGN STREAM", "CREATE FOREIGN TABLE", "CREATE PUMP", "MERGE".
"""

from __future__ import annotations

from typing import Any, Final

from sqlglot import exp
from sqlglot.dialects.dialect import Dialect
from sqlglot.tokens import TokenType

from watersmeet.catalog import ARRIVAL, DropWord
from watersmeet.dialects.sqlstream.grammar import StreamSelect
from watersmeet.dialects.statements import alter, ddl
from watersmeet.dialects.statements.dml import column_name, target_name
from watersmeet.dialects.statements.tables import Definition, TypeReader
from watersmeet.dialects.tree.definitions import (
    AlterPump,
    CreateForeignStream,
    CreateForeignTable,
    CreateMergingPump,
    CreatePump,
    CreateServer,
    CreateStream,
    Drop,
    Merge,
    MergeClauses,
    Watermark,
)
from watersmeet.dialects.tree.queries import Parameters, is_marked, name_of, node_span, read_tree
from watersmeet.dialects.tree.sqltypes import read_type
from watersmeet.dialects.tree.statements import Insert, Name, Refused, Statement
from watersmeet.dialects.tree.tokens import Cursor, not_supported, read_value, span_of
from watersmeet.errors import Span, error
from watersmeet.values.types import TIMESTAMP, Field, SqlType

_CLAUSES: Final = {"with_": "WITH", "returning": "RETURNING", "using_cond": "ON (columns)"}


def read_merge(cursor: Cursor, dialect: Dialect, base: dict[str, Any], parameters: Parameters = ()) -> Merge:
    """MERGE: the cursor stands at the word.

    SYNTAX_ERROR; FEATURE_NOT_SUPPORTED for what s-Server does not have, and for values of the table itself.
    """
    start = cursor.index
    tree = read_tree(cursor.originals(cursor.rest), cursor.text, dialect, parameters)
    if not isinstance(tree, exp.Merge):
        cursor.index = start
        raise cursor.error()
    reader = _Reader(tree, base)
    return Merge(**base, insert=reader.insert(), clauses=reader.clauses())


def merging_query(merge: Merge) -> exp.Expression:
    """The query of a MERGE that a pump runs. SYNTAX_ERROR if it ends."""
    query = merge.insert.query
    if not is_marked(query):
        raise error(
            "SYNTAX_ERROR",
            "a pump runs until it is stopped: USING (SELECT STREAM …) was expected",
            sql=merge.text,
            span=node_span(query),
        )
    return StreamSelect(**query.args, stream=exp.Var(this="STREAM"))


class _Reader:
    """The parts of one MERGE."""

    def __init__(self, tree: exp.Merge, base: dict[str, Any]) -> None:
        self._tree, self._base = tree, base
        self._table, alias = target_name(tree.this, base)
        self._shown = alias or self._table.name
        for name in _CLAUSES:
            if found := tree.args.get(name):
                raise self._lacking(f"{_CLAUSES[name]} in MERGE", found)
        whens = {}
        for when in tree.args["whens"].expressions:
            action = when.args["then"]
            if when.args.get("condition") is not None:
                raise self._lacking("a condition of WHEN in MERGE", when.args["condition"])
            kind = exp.Update if when.args["matched"] else exp.Insert
            if when.args.get("source") or not isinstance(action, kind):
                raise self._lacking(
                    f"{'BY SOURCE' if when.args.get('source') else action.name or action.key.upper()} in MERGE", when
                )
            if kind in whens:
                raise self._wrong("WHEN is there twice", when)
            whens[kind] = action
        if exp.Insert not in whens:
            raise self._lacking("MERGE without WHEN NOT MATCHED THEN INSERT", tree)
        self._inserted, self._updated = whens[exp.Insert], whens.get(exp.Update)

    def insert(self) -> Insert:
        """The rows that are not there yet."""
        if not isinstance(self._inserted.expression, exp.Tuple):
            raise self._lacking("this form of INSERT in MERGE", self._inserted)
        values = self._inserted.expression.expressions
        for value in values:
            self._check(value, "INSERT")
        listed = self._inserted.this.expressions if isinstance(self._inserted.this, exp.Tuple) else []
        return Insert(
            **self._base,
            table=self._table,
            columns=tuple(self._column(c) for c in listed),
            query=exp.select(*(v.copy() for v in values), copy=False).from_(self._tree.args["using"], copy=False),
        )

    def clauses(self) -> MergeClauses:
        """What stands behind ON, and in UPDATE."""
        condition = self._tree.args["on"]
        compared = []
        for part in condition.unnest().flatten() if isinstance(condition.unnest(), exp.And) else [condition]:
            sides = part.unnest()
            own, value = (sides.this, sides.expression) if isinstance(sides, exp.EQ) else (None, None)
            if value is not None and self._is_own(value):
                own, value = value, own
            if value is None or not self._is_own(own) or any(self._is_own(c) for c in value.find_all(exp.Column)):
                raise self._lacking(
                    f"an ON of MERGE that is no list of {self._shown}.column = value", part, "Join them by AND."
                )
            compared.append((self._column(own), value))
        assigned = []
        for item in self._updated.expressions if self._updated is not None else []:
            if not isinstance(item, exp.EQ) or not isinstance(item.this, exp.Column):
                raise self._lacking("this form of SET", item)
            self._check(item.expression, "UPDATE")
            assigned.append((self._column(item.this), item.expression))
        return MergeClauses(tuple(compared), tuple(assigned))

    def _is_own(self, tree: exp.Expression) -> bool:
        return isinstance(tree, exp.Column) and name_of(tree.args.get("table") or exp.to_identifier("")) == self._shown

    def _check(self, value: exp.Expression, where: str) -> None:
        for column in value.find_all(exp.Column):
            if self._is_own(column):
                raise self._lacking(f"a value of the table itself in {where} of MERGE", column)

    def _column(self, tree: exp.Expression) -> Name:
        return column_name(tree.this, self._place(tree))

    def _place(self, tree: exp.Expression) -> Span:
        return node_span(tree) or self._table.span

    def _lacking(self, what: str, tree: Any, hint: str | None = None) -> Exception:
        place = self._place(tree) if isinstance(tree, exp.Expression) else self._table.span
        return not_supported(what, self._base["text"], place, hint=hint)

    def _wrong(self, what: str, tree: exp.Expression) -> Exception:
        return error("SYNTAX_ERROR", what, sql=self._base["text"], span=self._place(tree))


#: The wrapper of all adapters of streams that are here, and that of databases.
_WRAPPER: Final = "ECDA"

_DATABASES: Final = "SYS_JDBC"


def read_server(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """`CREATE SERVER name [TYPE 'type'] FOREIGN DATA WRAPPER wrapper [OPTIONS (…)]`: the cursor is behind SERVER."""
    if_not_exists = cursor.take("IF", "NOT", "EXISTS")
    name = cursor.relation_name()
    start = cursor.index
    kind = cursor.string() if cursor.take("TYPE") else ""
    kind_span = span_of(cursor.tokens[start : cursor.index]) if kind else name.span
    cursor.expect("FOREIGN", "DATA", "WRAPPER")
    wrapper = cursor.name(reserved=True)
    options = read_options(cursor, {}) if cursor.take("OPTIONS") else {}
    _skip_description(cursor)
    cursor.end()
    if wrapper.name.upper() == _DATABASES:
        kind = _DATABASES
    elif wrapper.name.upper() != _WRAPPER:
        refusal = not_supported(f"foreign data wrapper {wrapper.name}", cursor.text, wrapper.span)
        return Refused(**base, error=refusal)
    if not kind:
        raise error(
            "SYNTAX_ERROR",
            "a server of wrapper ECDA needs a type",
            sql=cursor.text,
            span=name.span,
            hint="Write TYPE 'KAFKA10' or TYPE 'FILE'.",
        )
    return CreateServer(
        **base,
        name=name.name,
        name_span=name.span,
        schema=name.schema,
        if_not_exists=if_not_exists,
        kind=kind.upper(),
        kind_span=kind_span,
        options=options,
    )


def read_foreign_stream(cursor: Cursor, dialect: Dialect, base: dict[str, Any], read_type: TypeReader) -> Statement:
    """`CREATE FOREIGN STREAM name (columns) SERVER server [OPTIONS (…)]`; the cursor stands behind STREAM."""
    if_not_exists = cursor.take("IF", "NOT", "EXISTS")
    name = cursor.relation_name()
    definition = Definition(cursor, dialect, read_type, has_values=False)
    if not cursor.at("("):
        raise cursor.error(detail="The columns of the stream were expected here.")
    definition.read_columns()
    cursor.expect("SERVER")
    server = cursor.relation_name()
    spans: dict[str, Span] = {}
    options = read_options(cursor, spans) if cursor.take("OPTIONS") else {}
    _skip_description(cursor)
    cursor.end()
    if definition.bare_names or not definition.columns:
        raise error("SYNTAX_ERROR", "a stream needs columns with types", sql=cursor.text, span=name.span)
    if definition.primary_key:
        definition.refuse("PRIMARY KEY of a stream", definition.key_span)
    if definition.refusal:
        return Refused(**base, error=definition.refusal)
    return CreateForeignStream(
        **base,
        name=name.name,
        name_span=name.span,
        schema=name.schema,
        columns=tuple(definition.columns),
        watermarks=tuple(definition.watermarks),
        if_not_exists=if_not_exists,
        server=server,
        options=options,
        spans=spans,
    )


def read_foreign_table(cursor: Cursor, dialect: Dialect, base: dict[str, Any], read_type: TypeReader) -> Statement:
    """`CREATE FOREIGN TABLE name [(columns)] SERVER server [OPTIONS (…)]`; the cursor stands behind TABLE."""
    if_not_exists = cursor.take("IF", "NOT", "EXISTS")
    name = cursor.relation_name()
    definition = Definition(cursor, dialect, read_type, has_values=False)
    if cursor.at("("):
        definition.read_columns()
    cursor.expect("SERVER")
    server = cursor.relation_name()
    spans: dict[str, Span] = {}
    options = read_options(cursor, spans) if cursor.take("OPTIONS") else {}
    _skip_description(cursor)
    cursor.end()
    if definition.bare_names:
        raise error("SYNTAX_ERROR", "the columns of a table need types", sql=cursor.text, span=name.span)
    if definition.primary_key:
        definition.refuse("PRIMARY KEY of a foreign table", definition.key_span)
    if definition.watermarks:
        definition.refuse("WATERMARK of a foreign table", definition.watermarks[0].span)
    if definition.refusal:
        return Refused(**base, error=definition.refusal)
    return CreateForeignTable(
        **base,
        name=name.name,
        name_span=name.span,
        schema=name.schema,
        columns=tuple(definition.columns),
        if_not_exists=if_not_exists,
        server=server,
        options=options,
        spans=spans,
    )


def read_options(cursor: Cursor, spans: dict[str, Span]) -> dict[str, str]:
    """`("NAME" 'value', name 'value', …)`: names as they are written, those without quotes in upper case.

    spans: gets that of each option. CONNECTOR_OPTION for one that is given twice.
    """
    cursor.expect("(")
    options: dict[str, str] = {}
    while not cursor.at(")"):
        token = cursor.current
        if token is None or token.token_type == TokenType.STRING:
            raise cursor.error(detail="The name of an option was expected here.")
        name = cursor.name(reserved=True)
        cursor.take("=")
        if name.name in options:
            raise error("CONNECTOR_OPTION", f'option "{name.name}" is given twice', sql=cursor.text, span=name.span)
        options[name.name] = read_value(cursor)
        spans[name.name] = Span(name.span.start, cursor.tokens[cursor.index - 1].end + 1)
        if not cursor.take(","):
            break
    cursor.expect(")")
    return options


#: The time of each row of a stream, which no declaration names (SS-62).
ROWTIME: Final = "ROWTIME"

_LACKING: Final = (
    ("FOREIGN", "DATA", "WRAPPER"),
    ("FUNCTION",),
    ("PROCEDURE",),
    ("JAR",),
    ("LIBRARY",),
    ("TYPE",),
    ("CATALOG",),
    ("GLOBAL", "TEMPORARY", "TABLE"),
)

#: Names that the others do not have, or not with a length: values are not cut to it.
_TYPES: Final[dict[tuple[str, ...], str]] = {
    ("VARCHAR",): "varchar", ("CHARACTER", "VARYING"): "varchar", ("CHAR", "VARYING"): "varchar", ("CHARACTER",
      ): "varchar",
    ("CHAR",): "varchar", ("VARBINARY",): "bytea", ("BINARY", "VARYING"): "bytea", ("BINARY",): "bytea", ("TINYINT",
      ): "smallint",
    ("TIMESTAMP",): "timestamp", ("TIME",): "time",
}  # fmt: skip


def read_create(cursor: Cursor, dialect: Dialect, base: dict[str, Any]) -> Statement:
    """CREATE …: the cursor stands behind CREATE."""
    if cursor.take("STREAM"):
        return _read_stream(cursor, dialect, base)
    if cursor.take("TABLE"):
        return ddl.read_table(cursor, dialect, base, _read_column_type)
    if cursor.take("PUMP"):
        return _read_pump(cursor, dialect, base)
    if cursor.take("SERVER"):
        return read_server(cursor, base)
    if cursor.take("FOREIGN", "STREAM"):
        return read_foreign_stream(cursor, dialect, base, _read_column_type)
    if cursor.take("FOREIGN", "TABLE"):
        return read_foreign_table(cursor, dialect, base, _read_column_type)
    refused = ddl.refused_create(
        cursor, base, _LACKING, "STREAM, FOREIGN STREAM, SERVER, TABLE, FOREIGN TABLE, VIEW and MATERIALIZED VIEW"
    )
    return refused or ddl.read_create(cursor, dialect, base)


def read_drop(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """DROP STREAM, DROP PUMP, and what every dialect drops. The cursor stands behind DROP."""
    if cursor.at("FOREIGN", "STREAM") or cursor.at("FOREIGN", "TABLE"):
        cursor.take("FOREIGN")
    words: dict[str, DropWord] = {"STREAM": "stream", "PUMP": "pump", "SERVER": "server"}
    kind = next((k for word, k in words.items() if cursor.take(word)), None)
    if kind is None:
        return ddl.read_drop(cursor, base)
    if_exists = cursor.take("IF", "EXISTS")
    name = cursor.relation_name()
    cascade = cursor.take("CASCADE")
    if not cascade:
        cursor.take("RESTRICT")
    cursor.end()
    return Drop(**base, kind=kind, names=(name,), if_exists=if_exists, cascade=cascade)


def read_alter(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """`ALTER PUMP name, … START` or `STOP`, also of `schema.*`, and what every dialect alters. The cursor stands behind
    ALTER.
    """
    if not cursor.take("PUMP"):
        return alter.read_alter(cursor, base, _read_column, ("STREAM", "TABLE", "VIEW", "MATERIALIZED", "INDEX"))
    names, every = [], None
    following = cursor.tokens[cursor.index + 1 : cursor.index + 3]
    if [t.text for t in following] == [".", "*"]:
        every = cursor.name(reserved=True)
        cursor.expect(".", "*")
    else:
        names.append(cursor.relation_name())
        while cursor.take(","):
            names.append(cursor.relation_name())
    start = cursor.take("START")
    if not start:
        cursor.expect("STOP")
    cursor.end()
    return AlterPump(**base, names=tuple(names), start=start, every=every)


def _read_column(cursor: Cursor) -> tuple[Field, dict[str, Any]]:
    name = cursor.name()
    kind = _read_column_type(cursor)
    nullable = not cursor.take("NOT", "NULL")
    return Field(name.name, kind, nullable), {}


def _skip_description(cursor: Cursor) -> None:
    """`DESCRIPTION 'text'` is for who reads the statement, which SHOW CREATE shows."""
    if cursor.take("DESCRIPTION"):
        cursor.string()


def _read_pump(cursor: Cursor, dialect: Dialect, base: dict[str, Any]) -> Statement:
    """`CREATE PUMP name [STARTED | STOPPED] AS INSERT INTO stream [(columns)] SELECT STREAM …`, or `AS MERGE INTO …`;
    the cursor stands behind PUMP.
    """
    if_not_exists = cursor.take("IF", "NOT", "EXISTS")
    name = cursor.relation_name()
    started = cursor.take("STARTED")
    if not started:
        cursor.take("STOPPED")
    _skip_description(cursor)
    made = {
        **base,
        "name": name.name,
        "name_span": name.span,
        "schema": name.schema,
        "if_not_exists": if_not_exists,
        "started": started,
    }
    cursor.expect("AS")
    if cursor.at("MERGE"):
        merge = read_merge(cursor, dialect, base)
        insert, query = merge.insert, merging_query(merge)
        return CreateMergingPump(**made, query=query, into=insert.table, targets=insert.columns, clauses=merge.clauses)
    cursor.expect("INSERT", "INTO")
    into = cursor.relation_name()
    targets: tuple[Name, ...] = ()
    if cursor.at("(") and not cursor.at("(", "SELECT") and not cursor.at("(", "("):
        targets = cursor.names()
    if cursor.done:
        raise cursor.error(detail="SELECT STREAM was expected here.")
    query = read_tree(cursor.originals(cursor.rest), cursor.text, dialect)
    if not is_marked(query):
        raise error(
            "SYNTAX_ERROR",
            "a pump runs until it is stopped: SELECT STREAM was expected",
            sql=cursor.text,
            span=node_span(query),
            hint="INSERT INTO … SELECT without CREATE PUMP writes the stored rows once.",
        )
    return CreatePump(**made, query=query, into=into, targets=targets)


def _read_stream(cursor: Cursor, dialect: Dialect, base: dict[str, Any]) -> Statement:
    """`CREATE STREAM name (columns)`; the cursor stands behind STREAM."""
    if_not_exists = cursor.take("IF", "NOT", "EXISTS")
    name = cursor.relation_name()
    definition = Definition(cursor, dialect, _read_column_type, has_values=False)
    if not cursor.at("("):
        raise cursor.error(detail="The columns of the stream were expected here.")
    definition.read_columns()
    definition.finish()
    if cursor.at("OPTIONS"):
        definition.refuse("OPTIONS of a stream", span_of([cursor.tokens[cursor.index]]))
        cursor.until("")
    _skip_description(cursor)
    cursor.end()
    if definition.bare_names or not definition.columns:
        raise error("SYNTAX_ERROR", "a stream needs columns with types", sql=cursor.text, span=name.span)
    if definition.primary_key:
        definition.refuse(
            "PRIMARY KEY of a stream",
            definition.key_span,
            "Every row of a stream counts; CREATE TABLE keeps one row for each key.",
        )
    for mark in definition.watermarks:
        definition.refuse("WATERMARK of a stream", mark.span, "The clock of a stream is the ROWTIME of its newest row.")
    for column, span in definition.spans.items():
        if column.upper() == ROWTIME:
            raise error(
                "DUPLICATE_COLUMN",
                f'column "{column}" specified more than once',
                sql=cursor.text,
                span=span,
                detail="Every stream has a column ROWTIME, which is not declared.",
            )
    if definition.refusal:
        return Refused(**base, error=definition.refusal)
    rowtime = Field(ROWTIME, TIMESTAMP, nullable=False)
    clock = Watermark(ROWTIME, exp.column(exp.to_identifier(ROWTIME, quoted=True)), name.span)
    return CreateStream(
        **base,
        name=name.name,
        name_span=name.span,
        schema=name.schema,
        columns=(rowtime, *definition.columns),
        watermarks=(clock,),
        if_not_exists=if_not_exists,
        mode="append",
        defaults={ROWTIME: ARRIVAL},
        ordered=True,
    )


def _read_column_type(cursor: Cursor) -> SqlType:
    """Reads a type such as `VARCHAR(32)` (SS-62, SS-63). UNDEFINED_OBJECT, FEATURE_NOT_SUPPORTED."""
    for words, name in _TYPES.items():
        if cursor.take(*words):
            if cursor.take("("):
                cursor.integer()
                cursor.expect(")")
            return SqlType(name)
    return read_type(cursor)
