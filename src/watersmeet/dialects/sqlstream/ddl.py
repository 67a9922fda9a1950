"""CREATE, ALTER and DROP of SQLstream: streams, pumps, servers, foreign streams and tables; MERGE.

SQLstream, "CREATE SERVER", "CREATE FOREIGN STREAM", "CREATE FOREIGN TABLE", "CREATE PUMP", "MERGE".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from sqlglot import exp
from sqlglot.tokens import TokenType

from watersmeet.catalog import ARRIVAL, DropWord
from watersmeet.dialects.sqlstream.grammar import StreamSelect
from watersmeet.dialects.statements import alter, ddl
from watersmeet.dialects.statements.dml import column_name, read_dml, target_name
from watersmeet.dialects.statements.functions import function_readers
from watersmeet.dialects.statements.tables import Definition
from watersmeet.dialects.tree.definitions import (
    AlterPump,
    CreateMergingPump,
    CreatePump,
    CreateStream,
    Merge,
    MergeClauses,
    ResetStream,
    Watermark,
)
from watersmeet.dialects.tree.queries import is_marked, name_of, node_error, node_span, query_of
from watersmeet.dialects.tree.sqltypes import read_type
from watersmeet.dialects.tree.statements import Accepted, Insert, Name, Refused, Statement
from watersmeet.dialects.tree.tokens import (
    Cursor,
    not_supported,
    read_list,
    read_new_name,
    read_value,
    span_of,
    take_cascade,
)
from watersmeet.errors import Error, Span, error
from watersmeet.values.types import TIMESTAMP, Field, SqlType

_CLAUSES: Final = {"with_": "WITH", "returning": "RETURNING", "using_cond": "ON (columns)"}


def read_merge(cursor: Cursor, base: dict[str, Any]) -> Merge:
    """Reads MERGE; the cursor stands at this word.

    Raises SYNTAX_ERROR, and FEATURE_NOT_SUPPORTED for clauses that s-Server lacks and for values read from the target
    table.
    """
    start = cursor.index
    tree = query_of(cursor)
    if not isinstance(tree, exp.Merge):
        cursor.index = start
        raise cursor.error()
    reader = _Reader(tree, base)
    return Merge(**base, insert=reader.insert(), clauses=reader.clauses())


def merging_query(merge: Merge) -> exp.Expression:
    """The query of a MERGE that a pump runs. Raises SYNTAX_ERROR for a query that ends."""
    query = merge.insert.query
    if not is_marked(query):
        raise node_error(
            merge.text, query, "SYNTAX_ERROR", "a pump runs until it is stopped: USING (SELECT STREAM …) was expected"
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
        """The INSERT of the missing rows."""
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
        """The conditions after ON, and the assignments of UPDATE."""
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
        span = self._place(tree) if isinstance(tree, exp.Expression) else self._table.span
        return not_supported(what, self._base["text"], span, hint=hint)

    def _wrong(self, what: str, tree: exp.Expression) -> Exception:
        return error("SYNTAX_ERROR", what, sql=self._base["text"], span=self._place(tree))


#: The time column of every stream, which is never declared (SS-62).
ROWTIME: Final = "ROWTIME"

#: Type names that other dialects lack or accept only without a length.
_TYPES: Final[dict[tuple[str, ...], str]] = {
    ("VARCHAR",): "varchar", ("CHARACTER", "VARYING"): "varchar", ("CHAR", "VARYING"): "varchar", ("CHARACTER",
      ): "varchar",
    ("CHAR",): "varchar", ("NVARCHAR",): "varchar",
    ("NCHAR",): "varchar", ("VARBINARY",): "bytea", ("BINARY", "VARYING"): "bytea", ("BINARY",): "bytea", ("TINYINT",
      ): "smallint",
    ("TIMESTAMP",): "timestamp", ("TIME",): "time",
}  # fmt: skip


#: The values of a TINYINT, which is stored as a smallint.
_TINY: Final = (-128, 127)


def read_alter(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """`ALTER PUMP name, … START` or `STOP`, `ALTER STREAM name, … RESET`, each also of `schema.*`, and ALTER of every
    dialect. The cursor stands after ALTER.
    """
    start = cursor.index
    if cursor.take("STREAM") and (found := _read_streams(cursor, base)) is not None:
        return found
    cursor.index = start
    if not cursor.take("PUMP"):
        kinds = ("STREAM", "TABLE", "VIEW", "MATERIALIZED", "INDEX")
        return alter.read_alter(cursor, base, _read_column, kinds, alter.COMMON_CLAUSES)
    names = read_list(cursor, lambda: _some_name(cursor))
    if cursor.take("SET"):
        name = read_value(cursor)
        cursor.expect("=")
        read_value(cursor)
        cursor.end()
        return Accepted(**base, command="ALTER PUMP", notice=f"ALTER PUMP … SET {name} has no effect")
    starts = cursor.take("START")
    if not starts:
        cursor.expect("STOP")
    cursor.end()
    return AlterPump(**base, names=names, start=starts)


def _read_streams(cursor: Cursor, base: dict[str, Any]) -> Statement | None:
    """RESET, PAUSE and RESUME of streams; None for another ALTER STREAM."""
    try:
        names = read_list(cursor, lambda: _some_name(cursor))
    except Error:
        return None
    action = next((word for word in ("RESET", "PAUSE", "RESUME") if cursor.at(word)), None)
    if action is None:
        return None
    span = span_of(cursor.rest[:1])
    cursor.index += 1
    cursor.end()
    if action == "RESET":
        return ResetStream(**base, names=names)
    if action == "RESUME":
        notice = "ALTER STREAM … RESUME has no effect: streams are never paused"
        return Accepted(**base, command="ALTER STREAM", notice=notice)
    hint = "Stop the pumps that write the stream, and start all pumps by one ALTER PUMP: no row is lost."
    return Refused(**base, error=not_supported("ALTER STREAM … PAUSE", cursor.text, span, hint=hint))


def _some_name(cursor: Cursor) -> Name:
    """A name; `*` for all of a schema (`schema.*`), or of all schemas (`*.*`)."""
    first = cursor.index
    schema = "*" if cursor.take("*") else None
    if schema is None and [t.text for t in cursor.rest[1:3]] == [".", "*"]:
        schema = cursor.name(reserved=True).name
    if schema is None:
        return cursor.relation_name()
    if schema != "*" or cursor.at("."):
        cursor.expect(".", "*")
    return Name("*", span_of(cursor.tokens[first : cursor.index]), schema=schema)


def _read_column(cursor: Cursor) -> tuple[Field, dict[str, Any]]:
    name = cursor.name()
    kept = {"range": _TINY if cursor.at("TINYINT") else None, "length": _length(cursor)}
    kind = read_column_type(cursor)
    nullable = not cursor.take("NOT", "NULL")
    return Field(name.name, kind, nullable), {name: value for name, value in kept.items() if value is not None}


#: Texts are not longer.
_MOST_CHARACTERS: Final = (1 << 31) - 1


def _length(cursor: Cursor) -> int | None:
    """The length of the type at the cursor, `VARCHAR(32)` or `BINARY(8)`, without reading it; 1 for CHAR.

    Raises FEATURE_NOT_SUPPORTED for 0.
    """
    words = next((w for w, n in _TYPES.items() if n in ("varchar", "bytea") and cursor.at(*w)), None)
    if words is None:
        return None
    after = [token.text for token in cursor.rest[len(words) : len(words) + 2]]
    if len(after) == 2 and after[0] == "(" and after[1].isdecimal():
        if not int(after[1]):
            span = span_of(cursor.rest[: len(words) + 2])
            raise not_supported("length 0 of a type", cursor.text, span, hint="Write a number from 1 on.")
        return min(int(after[1]), _MOST_CHARACTERS)
    return 1 if words in (("CHAR",), ("CHARACTER",), ("NCHAR",)) else None


class ColumnsOfTypes(Definition):
    """Columns with the types of SQLstream, of which lengths and ranges are kept, and with OPTIONS.

    with_options: the columns that have OPTIONS, with their spans.
    """

    own = ("OPTIONS",)

    def __init__(self, cursor: Cursor, values: Sequence[str] = ("DEFAULT", "AS")) -> None:
        super().__init__(cursor, read_column_type, values=values)
        self.with_options: dict[str, Span] = {}

    def read_kind(self, column: str) -> SqlType:
        if self.cursor.at("TINYINT"):
            self.ranges[column] = _TINY
        if (length := _length(self.cursor)) is not None:
            self.lengths[column] = length
        return super().read_kind(column)

    def read_own(self, column: Name) -> bool:
        if not self.cursor.take("OPTIONS"):
            return False
        start = self.cursor.index - 1
        read_options(self.cursor, {})
        self.with_options[column.name] = span_of(self.cursor.tokens[start : self.cursor.index])
        return True

    def ignored(self) -> tuple[str, ...]:
        """The notices about options of columns."""
        return tuple(f"OPTIONS of column {name} have no effect: no adapter reads them" for name in self.with_options)


def read_definition(cursor: Cursor) -> Definition:
    """The columns in parentheses, if any, without default values. Options of columns are not supported."""
    found = ColumnsOfTypes(cursor, ())
    found.read_columns()
    for span in found.with_options.values():
        hint = "Options of the stream can name the column, for instance \"ID_PATH\" '$.id'."
        found.refuse("OPTIONS of a column", span, hint)
    return found


def _read_table(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """Reads CREATE TABLE; the cursor stands after TABLE."""
    made: list[ColumnsOfTypes] = []

    def defining(at: Cursor) -> Definition:
        made.append(ColumnsOfTypes(at))
        return made[0]

    found = ddl.read_table(cursor, base, defining)
    return replace(found, notices=made[0].ignored())


def read_options(cursor: Cursor, spans: dict[str, Span]) -> dict[str, str]:
    """`("NAME" 'value', name 'value', …)`: quoted names as written, others in upper case.

    spans: receives the span of each option. Raises CONNECTOR_OPTION for a duplicate option.
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
            raise cursor.error_at(name.span, "CONNECTOR_OPTION", f'option "{name.name}" is given twice')
        options[name.name] = read_value(cursor)
        spans[name.name] = Span(name.span.start, cursor.tokens[cursor.index - 1].end + 1)
        if not cursor.take(","):
            break
    cursor.expect(")")
    return options


def read_wrapper(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """`CREATE FOREIGN DATA WRAPPER name LIBRARY 'text' LANGUAGE JAVA [OPTIONS (…)]`: the cursor is after WRAPPER."""
    name = cursor.name(reserved=True)
    while not cursor.done:
        if cursor.take("LIBRARY") or cursor.take("DESCRIPTION"):
            cursor.string()
        elif cursor.take("OPTIONS"):
            read_options(cursor, {})
        else:
            cursor.expect("LANGUAGE")
            cursor.word()
    reason = "servers need a wrapper that Watersmeet has, ECDA or SYS_JDBC"
    notice = f"CREATE FOREIGN DATA WRAPPER {name.name} has no effect: {reason}"
    return Accepted(**base, command="CREATE FOREIGN DATA WRAPPER", notice=notice)


def read_drop_wrapper(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """`DROP FOREIGN DATA WRAPPER name [CASCADE]`: the cursor stands after WRAPPER."""
    cursor.take("IF", "EXISTS")
    name = cursor.name(reserved=True)
    take_cascade(cursor)
    notice = f"DROP FOREIGN DATA WRAPPER {name.name} has no effect: Watersmeet loads no wrappers"
    return Accepted(**base, command="DROP FOREIGN DATA WRAPPER", notice=notice)


_EXPEDITED: Final = "EXPEDITED has no effect: rows can be read when their transaction is committed"


def read_insert(cursor: Cursor, base: dict[str, Any]) -> Statement | None:
    """Reads `INSERT EXPEDITED INTO …`; None for another INSERT. The cursor stands at INSERT."""
    if not cursor.at("INSERT", "EXPEDITED", "INTO"):
        return None
    first, _, *rest = cursor.originals(cursor.tokens)
    return read_dml(cursor.over([first, *rest]), {**base, "notices": (_EXPEDITED,)})


def _read_pump(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """Reads `CREATE PUMP name [STARTED | STOPPED] AS INSERT INTO stream [(columns)] SELECT STREAM …`, or `AS MERGE INTO
    …`; the cursor stands after PUMP.
    """
    made = read_new_name(cursor, base)
    started = cursor.take("STARTED")
    if not started:
        cursor.take("STOPPED")
    ddl.skip_description(cursor)
    made["started"] = started
    cursor.expect("AS")
    if cursor.at("UPDATE") or cursor.at("DELETE"):
        span = span_of(cursor.rest[:1])
        hint = "A pump can INSERT, and MERGE into a foreign table."
        return Refused(
            **base, error=not_supported(f"a pump with {cursor.rest[0].text.upper()}", cursor.text, span, hint=hint)
        )
    if cursor.at("MERGE"):
        merge = read_merge(cursor, base)
        insert, query = merge.insert, merging_query(merge)
        return CreateMergingPump(**made, query=query, into=insert.table, targets=insert.columns, clauses=merge.clauses)
    cursor.expect("INSERT")
    made["notices"] = (_EXPEDITED,) if cursor.take("EXPEDITED") else ()
    cursor.expect("INTO")
    into = cursor.relation_name()
    targets: tuple[Name, ...] = ()
    if cursor.at("(") and not cursor.at("(", "SELECT") and not cursor.at("(", "("):
        targets = cursor.names()
    if cursor.done:
        raise cursor.error(detail="SELECT STREAM was expected here.")
    query = query_of(cursor)
    if not is_marked(query):
        raise cursor.error_at(
            node_span(query),
            "SYNTAX_ERROR",
            "a pump runs until it is stopped: SELECT STREAM was expected",
            hint="INSERT INTO … SELECT without CREATE PUMP writes the stored rows once.",
        )
    return CreatePump(**made, query=query, into=into, targets=targets)


def _read_stream(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """Reads `CREATE STREAM name (columns)`; the cursor stands after STREAM."""
    made = read_new_name(cursor, base)
    if not cursor.at("("):
        raise cursor.error(detail="The columns of the stream were expected here.")
    definition = ColumnsOfTypes(cursor, ("DEFAULT",))
    definition.read_columns()
    definition.finish()
    notices = definition.ignored()
    if cursor.take("OPTIONS"):
        read_options(cursor, {})
        notices = (*notices, "OPTIONS of a stream have no effect: no adapter reads them")
    ddl.skip_description(cursor)
    cursor.end()
    if definition.bare_names or not definition.columns:
        raise cursor.error_at(made["name_span"], "SYNTAX_ERROR", "a stream needs columns with types")
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
            raise cursor.error_at(
                span,
                "DUPLICATE_COLUMN",
                f'column "{column}" specified more than once',
                detail="Every stream has a column ROWTIME, which is not declared.",
            )
    if definition.refusal:
        return Refused(**base, error=definition.refusal)
    rowtime = Field(ROWTIME, TIMESTAMP, nullable=False)
    clock = Watermark(ROWTIME, exp.column(exp.to_identifier(ROWTIME, quoted=True)), made["name_span"])
    return CreateStream(
        **made,
        notices=notices,
        columns=(rowtime, *definition.columns),
        watermarks=(clock,),
        mode="append",
        defaults={ROWTIME: ARRIVAL},
        ordered=True,
        declared=definition.declared,
        ranges=definition.ranges,
        lengths=definition.lengths,
    )


def read_column_type(cursor: Cursor) -> SqlType:
    """Reads a type such as `VARCHAR(32)` (SS-62, SS-63). Raises UNDEFINED_OBJECT, FEATURE_NOT_SUPPORTED."""
    if cursor.at("INTERVAL"):
        hint = "As in s-Server, intervals are only for expressions: declare a number, and multiply it by an interval."
        raise not_supported("a column of type INTERVAL", cursor.text, span_of(cursor.rest[:1]), hint=hint)
    for words, name in _TYPES.items():
        if cursor.take(*words):
            if cursor.take("("):
                cursor.integer()
                cursor.expect(")")
            return SqlType(name)
    return read_type(cursor)


#: The way round Java.
JAVA: Final = "Write the function in SQL (RETURN expression) or in Python (LANGUAGE PYTHON)."

LACKING: Final[ddl.Lacking] = {
    **ddl.LACKING,
    **dict.fromkeys(
        (
            *(f"{verb} {word}" for verb in ("CREATE", "DROP") for word in ("LIBRARY", "TYPE", "CATALOG", "LABEL")),
            "CREATE GLOBAL TEMPORARY TABLE",
            "CREATE ORDERING",
        )
    ),
    "CREATE CLUSTERED": "Write CREATE INDEX: Watersmeet decides how rows are stored.",
    **dict.fromkeys(("CREATE PROCEDURE", "DROP PROCEDURE", "DROP ROUTINE"), JAVA),
    **dict.fromkeys(("DROP SPECIFIC FUNCTION", "DROP SPECIFIC ROUTINE"), "Write DROP FUNCTION name."),
    **dict.fromkeys(("CREATE JAR", "DROP JAR"), JAVA),
}

CREATES: Final[Mapping[str, ddl.Reader]] = {
    **ddl.CREATES,
    **function_readers(read_column_type),
    "STREAM": _read_stream,
    "TABLE": _read_table,
    "PUMP": _read_pump,
    "FOREIGN DATA WRAPPER": read_wrapper,
}

DROPS: Final[Mapping[str, DropWord | ddl.Reader]] = {
    **ddl.DROPS,
    "STREAM": "stream",
    "FOREIGN STREAM": "stream",
    "FOREIGN TABLE": "table",
    "PUMP": "pump",
    "SERVER": "server",
    "FOREIGN DATA WRAPPER": read_drop_wrapper,
}
