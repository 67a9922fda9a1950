"""Reads definitions of tables and sources: their columns, keys, rules of conflicts and options."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final, Literal

from sqlglot import exp
from sqlglot.tokens import Token

from watersmeet.catalog import (
    LAKES,
    Conflict,
    MessageFormat,
    Numbering,
)
from watersmeet.dialects.statements.constraints import (
    OF_COLUMNS,
    at_constraint,
    read_column_constraint,
    read_constraint,
)
from watersmeet.dialects.statements.sourceclauses import (
    CAPTURE_CONNECTORS,
    CHANGE_FORMATS,
    CHANGE_PARTS,
    CONNECTORS,
    FILE_PARTS,
    FILES,
    HEADERS,
    PARTS,
    RECEIVED_PARTS,
    RECEIVING,
    VALIDATE_SECRET,
    WEBHOOK,
    Encoded,
    Included,
    Origin,
    included_columns,
    message_format,
    read_encoded,
    read_included,
    read_origin,
)
from watersmeet.dialects.tree.definitions import ConstraintClause, NamedType, SerialClause, Watermark
from watersmeet.dialects.tree.queries import expression_of
from watersmeet.dialects.tree.sqltypes import read_declared, read_depth
from watersmeet.dialects.tree.statements import Name
from watersmeet.dialects.tree.tokens import Cursor, not_supported, read_options, read_value, span_of
from watersmeet.errors import Error, Span, did_you_mean, error
from watersmeet.system.secretvalues import reference
from watersmeet.values import ConflictAction
from watersmeet.values.declaredtypes import BYTE_COLLATIONS, Declared
from watersmeet.values.types import (
    BIGINT,
    INTEGER,
    INTERVAL,
    JSONB,
    SMALLINT,
    TIMESTAMP,
    TIMESTAMPTZ,
    VARCHAR,
    Field,
    SqlType,
)

#: The actions of ON CONFLICT, by their words.
_ACTIONS: Final[dict[str, ConflictAction]] = {
    "DO NOTHING": "ignore",
    "IGNORE": "ignore",
    "OVERWRITE": "overwrite",
    "DO UPDATE FULL": "overwrite",
    "DO UPDATE IF NOT NULL": "fill",
}

#: The types of values that version columns can't have.
_UNORDERED: Final = (JSONB, INTERVAL)

#: A function that reads the type of a column.
TypeReader = Callable[[Cursor], SqlType]


#: The types of sequences by their names.
_NUMBERED: Final = {
    "smallint": "smallint", "int2": "smallint", "integer": "integer", "int": "integer", "int4": "integer",
    "bigint": "bigint", "int8": "bigint",
}  # fmt: skip

#: The types of columns with numbers in sequence.
_SERIALS: Final = {
    "SERIAL": INTEGER, "SERIAL4": INTEGER, "BIGSERIAL": BIGINT, "SERIAL8": BIGINT, "SMALLSERIAL": SMALLINT,
    "SERIAL2": SMALLINT,
}  # fmt: skip


def read_identity(cursor: Cursor, kind: SqlType) -> SerialClause | None:
    """Reads `GENERATED {ALWAYS | BY DEFAULT} AS IDENTITY [(options)]`; None at another clause."""
    if cursor.take("GENERATED", "ALWAYS", "AS", "IDENTITY"):
        identity: Literal["always", "by default"] = "always"
    elif cursor.take("GENERATED", "BY", "DEFAULT", "AS", "IDENTITY"):
        identity = "by default"
    else:
        return None
    numbers, name = Numbering(kind.name if kind.is_integer else "bigint"), None
    start = cursor.index
    if cursor.take("("):
        while not cursor.take(")"):
            if cursor.take("SEQUENCE", "NAME"):
                name = cursor.relation_name()
                continue
            option = read_numbering(cursor)
            if option is None:
                raise cursor.error()
            numbers = replace(numbers, **option)
        check_numbering(numbers, cursor.text, span_of(cursor.tokens[start : cursor.index]))
    return SerialClause(numbers, identity, name)


def read_serial(cursor: Cursor) -> tuple[SqlType, SerialClause] | None:
    """Reads `serial` and its variants; None at another type."""
    kind = next((kind for word, kind in _SERIALS.items() if cursor.take(word)), None)
    return None if kind is None else (kind, SerialClause(Numbering(kind.name)))


def read_known_type(cursor: Cursor) -> tuple[SqlType, Declared | None] | NamedType:
    """Reads a type, or the name of one that the catalog may know."""
    start = cursor.index
    try:
        return read_declared(cursor)
    except Error as err:
        if err.condition != "UNDEFINED_OBJECT":
            raise
        cursor.index = start
        return NamedType(cursor.relation_name(), read_depth(cursor), err)


def read_numbering(cursor: Cursor) -> dict[str, Any] | None:
    """Reads an option of a sequence: the fields of `Numbering` that it sets; None at other words."""
    if cursor.take("AS"):
        word = cursor.word()
        kind = _NUMBERED.get(word.name)
        if kind is None:
            message = "sequence type must be smallint, integer, or bigint"
            raise cursor.error_at(word.span, "INVALID_PARAMETER", message)
        return {"type": kind}
    for words, field in (("START WITH", "start"), ("START", "start"), ("INCREMENT BY", "step"), ("INCREMENT", "step")):
        if cursor.take(*words.split()):
            return {field: signed_integer(cursor)}
    for bound, field in (("MINVALUE", "least"), ("MAXVALUE", "greatest")):
        if cursor.take(bound):
            return {field: signed_integer(cursor)}
        if cursor.take("NO", bound):
            return {field: None}
    if cursor.take("CACHE"):
        return {"cache": cursor.integer()}
    if cursor.take("CYCLE"):
        return {"cycles": True}
    return {"cycles": False} if cursor.take("NO", "CYCLE") else None


def signed_integer(cursor: Cursor) -> int:
    """Reads an integer with or without a sign."""
    if cursor.take("-"):
        return -cursor.integer()
    cursor.take("+")
    return cursor.integer()


def check_numbering(numbers: Numbering, text: str, span: Span) -> None:
    """Raises INVALID_PARAMETER for bounds that contain no number, or not the first one."""
    least, greatest = numbers.bounds
    lowest, highest = Numbering(numbers.type, step=-1).bounds[0], Numbering(numbers.type).bounds[1]
    outside = f"is out of range for sequence data type {numbers.type}"
    wrong = {
        "INCREMENT must not be zero": numbers.step == 0,
        f"MINVALUE ({least}) {outside}": not lowest <= least <= highest,
        f"MAXVALUE ({greatest}) {outside}": not lowest <= greatest <= highest,
        f"MINVALUE ({least}) must be less than MAXVALUE ({greatest})": least >= greatest,
        f"START value ({numbers.first}) cannot be less than MINVALUE ({least})": numbers.first < least,
        f"START value ({numbers.first}) cannot be greater than MAXVALUE ({greatest})": numbers.first > greatest,
    }
    message = next((m for m, is_wrong in wrong.items() if is_wrong), None)
    if message is not None:
        raise error("INVALID_PARAMETER", message, sql=text, span=span)


class Definition:
    """The clauses of a CREATE TABLE or CREATE SOURCE."""

    def __init__(
        self, cursor: Cursor, read_type: TypeReader | None = None, *, values: Sequence[str] = ("DEFAULT", "AS")
    ) -> None:
        """Starts with an empty definition. read_type: None for PostgreSQL's types. values: the words after which a
        column may have a value.
        """
        self.cursor = cursor
        self.values = values
        self.read_type = read_type
        self.columns: list[Field] = []
        self.bare_names: list[str] = []
        self.spans: dict[str, Span] = {}
        self.primary_key: tuple[str, ...] = ()
        self.watermarks: list[Watermark] = []
        self.arrivals: list[str] = []
        self.generated: dict[str, exp.Expression] = {}
        self.declared: dict[str, exp.Expression] = {}
        self.ranges: dict[str, tuple[int, int]] = {}
        self.lengths: dict[str, int] = {}
        self.declared_types: dict[str, Declared] = {}
        self.serials: dict[str, SerialClause] = {}
        self.named_types: dict[str, NamedType] = {}
        self.value_texts: dict[str, str] = {}
        self.options: dict[str, str] = {}
        self.included: list[Included] = []
        self.encoded: Encoded | None = None
        self.format: MessageFormat | None = None
        self.message_parts: dict[str, str] = {}
        self.star: Span | None = None
        self.takes_columns = False
        self.origin: Origin | None = None
        self.condition: exp.Expression | None = None
        self.versions: tuple[Name, ...] = ()
        self.append_only = False
        self.conflict = Conflict()
        self.constraints: list[ConstraintClause] = []
        self.rejects_duplicates: bool | None = None
        self.refusal: Error | None = None

    def refuse(self, feature: str, span: Span, hint: str | None = None) -> None:
        """Records that the statement has an unsupported feature; `finish` reports the first one."""
        self.refusal = self.refusal or not_supported(feature, self.cursor.text, span, hint=hint)

    def read_columns(self) -> None:
        """Reads the columns in parentheses. `finish` checks them."""
        cursor = self.cursor
        if not cursor.take("("):
            return
        while not cursor.at(")"):
            self._read_item()
            if not cursor.take(","):
                break
        cursor.expect(")")

    def _read_item(self) -> None:
        cursor = self.cursor
        start = cursor.index
        if cursor.take("WATERMARK", "FOR"):
            column = cursor.name()
            cursor.expect("AS")
            tokens = cursor.until(",", ")", "WITH")
            tree = expression_of(cursor, tokens)
            span = span_of(cursor.tokens[start : cursor.index])
            if cursor.take("WITH", "TTL"):
                self.refuse(
                    "WATERMARK … WITH TTL", span, "A view with WHERE ts > now() - INTERVAL '1 day' lets rows go."
                )
            self.watermarks.append(Watermark(column.name, tree, span))
        elif self.read_type is None and at_constraint(cursor):
            self._add_constraint(read_constraint(cursor))
        elif cursor.take("PRIMARY", "KEY"):
            self._set_key(tuple(n.name for n in cursor.names()), span_of(cursor.tokens[start : cursor.index]))
        elif cursor.at("*"):
            self.star = span_of([cursor.tokens[cursor.index]])
            cursor.index += 1
        elif any(cursor.at(word) for word in ("CONSTRAINT", "UNIQUE", "CHECK", "FOREIGN")) or any(
            cursor.at(*words) for words in (("EXCLUDE", "("), ("EXCLUDE", "USING"), ("PERIOD", "FOR"))
        ):
            self.refuse(f"{cursor.tokens[start].text.upper()} in a table", span_of([cursor.tokens[start]]))
            cursor.until(",", ")")
        else:
            self._read_column()

    def _read_column(self) -> None:
        cursor = self.cursor
        name = cursor.name()
        if name.name in self.spans:
            raise cursor.error_at(name.span, "DUPLICATE_COLUMN", f'column "{name.name}" specified more than once')
        self.spans[name.name] = name.span
        if cursor.at(",") or cursor.at(")"):
            self.bare_names.append(name.name)
            return
        kind = self.read_kind(name.name)
        nullable = True
        while not (cursor.at(",") or cursor.at(")")):
            start = cursor.index
            if self.read_own(name):
                continue
            if cursor.take("NOT", "NULL"):
                nullable = False
            elif self.read_type is None and any(map(cursor.at, OF_COLUMNS)):
                constraint = read_column_constraint(cursor, name)
                if constraint is not None:
                    self._add_constraint(constraint)
            elif cursor.take("PRIMARY", "KEY"):
                self._set_key((name.name,), name.span)
                clause = ConstraintClause(
                    "primary key", span_of(cursor.tokens[start : cursor.index]), columns=(name,), is_column=True
                )
                self.constraints.append(clause)
            elif cursor.take("AS", "PROCTIME", "(", ")"):
                if kind not in (TIMESTAMP, TIMESTAMPTZ):
                    raise cursor.error_at(
                        name.span,
                        "DATATYPE_MISMATCH",
                        f'column "{name.name}" AS PROCTIME() can\'t be {kind.sql}',
                        hint="It must be a timestamp with time zone, or a timestamp.",
                    )
                self.arrivals.append(name.name)
            elif any(cursor.at(word) for word in ("DEFAULT", "AS") if word not in self.values):
                what = "DEFAULT" if cursor.at("DEFAULT") else "a generated column"
                cursor.until(",", ")")
                self.refuse(what, span_of(cursor.tokens[start : cursor.index]))
            elif cursor.take("AS"):
                self.generated[name.name] = self._read_value(name.name, cursor.until(",", ")"))
            elif self.read_type is None and "AS" in self.values and cursor.take("GENERATED", "ALWAYS", "AS", "("):
                cursor.index -= 1
                self.generated[name.name] = self._read_value(name.name, cursor.until(",", ")", "STORED", "VIRTUAL"))
                if not cursor.take("STORED"):
                    cursor.take("VIRTUAL")  # its values are the same
            elif cursor.take("DEFAULT"):
                first = cursor.index
                cursor.index += not cursor.at("(")  # NULL is allowed
                cursor.until(",", ")", "NOT", "NULL", "PRIMARY", *self._after_default, *self.own)
                self.declared[name.name] = self._read_value(name.name, cursor.tokens[first : cursor.index])
            elif self.read_type is None and (serial := read_identity(cursor, kind)) is not None:
                if not kind.is_integer:
                    message = "identity column type must be smallint, integer, or bigint"
                    raise cursor.error_at(name.span, "INVALID_PARAMETER", message)
                self.serials[name.name] = serial
            elif cursor.at("GENERATED"):
                cursor.until(",", ")")
                span = span_of(cursor.tokens[start : cursor.index])
                self.refuse("GENERATED … AS", span, f"Write {name.name} {kind.sql} AS (expression).")
            elif self.read_type is None and cursor.take("COLLATE"):
                self._check_collation()
            elif any(cursor.at(word) for word in ("UNIQUE", "CHECK", "REFERENCES", "CONSTRAINT", "COLLATE")):
                word = cursor.tokens[start].text.upper()
                cursor.until(",", ")")
                self.refuse(f"{word} on a column", span_of(cursor.tokens[start : cursor.index]))
            elif not cursor.take("NULL"):
                raise cursor.error()
        if name.name in self.generated and not nullable:
            self.refuse("NOT NULL on a generated column", name.span)
        self.columns.append(Field(name.name, kind, nullable and name.name not in self.serials))

    def _check_collation(self) -> None:
        """Reads the name of a collation. Texts have the order of their bytes, so others are refused."""
        name = self.cursor.relation_name()
        if name.name.lower() not in BYTE_COLLATIONS:
            self.refuse(f'collation "{name.name}"', name.span, 'Only "C", "POSIX" and "default" are supported.')

    def _add_constraint(self, constraint: ConstraintClause) -> None:
        if constraint.kind == "primary key":
            self._set_key(tuple(n.name for n in constraint.columns), constraint.span)
        self.constraints.append(constraint)

    @property
    def _after_default(self) -> tuple[str, ...]:
        """The first words of clauses that end a DEFAULT."""
        return (*OF_COLUMNS, "GENERATED", "COLLATE") if self.read_type is None else ()

    #: The first words of clauses that only a dialect's columns have.
    own: ClassVar[tuple[str, ...]] = ()

    def read_kind(self, column: str) -> SqlType:
        """Reads the type of a column."""
        if self.read_type is not None:
            return self.read_type(self.cursor)
        serial = read_serial(self.cursor)
        if serial is not None:
            kind, self.serials[column] = serial
            return kind
        found = read_known_type(self.cursor)
        if isinstance(found, NamedType):
            self.named_types[column] = found
            return VARCHAR
        kind, declared = found
        if declared is not None:
            self.declared_types[column] = declared
        return kind

    def read_own(self, column: Name) -> bool:  # noqa: ARG002
        """Reads a clause that only a dialect's columns have; False at other clauses."""
        return False

    def _read_value(self, column: str, tokens: Sequence[Token]) -> exp.Expression:
        if tokens:
            span = span_of(tokens)
            self.value_texts[column] = self.cursor.text[span.start : span.end]
        return expression_of(self.cursor, tokens)

    def _set_key(self, names: tuple[str, ...], span: Span) -> None:
        if self.primary_key:
            raise self.cursor.error_at(span, "SYNTAX_ERROR", "multiple primary keys are not allowed")
        self.primary_key = names
        self.key_span = span

    def no_type(self) -> Error:
        """Raises SYNTAX_ERROR for a column without a type."""
        name = self.bare_names[0]
        return self.cursor.error_at(self.spans[name], "SYNTAX_ERROR", f'column "{name}" has no type')

    def fields(self) -> dict[str, Any]:
        """The fields of `CreateRelation`."""
        return {
            "columns": tuple(self.columns),
            "primary_key": self.primary_key,
            "options": self.options,
            "watermarks": tuple(self.watermarks),
            "arrivals": tuple(self.arrivals),
            "generated": self.generated,
            "declared": self.declared,
            "takes_columns": self.takes_columns,
            "format": self.format,
            "message_parts": self.message_parts,
            "ranges": self.ranges,
            "lengths": self.lengths,
            "declared_types": self.declared_types,
            "serials": self.serials,
            "named_types": self.named_types,
            "value_texts": self.value_texts,
        }

    def finish(self) -> None:
        """Checks the definition after all clauses are read."""
        names = [c.name for c in self.columns]
        for key in self.primary_key:
            if key not in names and not self.takes_columns:
                raise self.cursor.error_at(
                    self.key_span, "UNDEFINED_COLUMN", f'column "{key}" named in key does not exist'
                )
        if len(set(self.primary_key)) < len(self.primary_key):
            raise self.cursor.error_at(self.key_span, "DUPLICATE_COLUMN", "a column appears twice in the primary key")
        for column in self.columns:
            if column.name in self.primary_key and column.type.has_map:
                hint = "Use a column with a value of the map as the key."
                self.refuse(f"a primary key of type {column.type.sql}", self.key_span, hint)
        for key in self.primary_key:
            if key in self.generated:
                raise self.cursor.error_at(
                    self.key_span,
                    "FEATURE_NOT_SUPPORTED",
                    "Generated columns should not be part of the primary key. "
                    f'Here column "{key}" is defined as part of the primary key.',
                )
        self.columns = [Field(c.name, c.type, c.nullable and c.name not in self.primary_key) for c in self.columns]
        for mark in self.watermarks:
            if mark.column not in names and not self.takes_columns:
                raise self.cursor.error_at(
                    mark.span, "UNDEFINED_COLUMN", f'column "{mark.column}" of the watermark does not exist'
                )
        if self.bare_names and self.columns:
            raise self.no_type()

    def read_clauses(self) -> None:
        """Reads the clauses between the columns and the end (or AS)."""
        cursor = self.cursor
        while not cursor.done and not cursor.at("AS"):
            if cursor.at("ON", "COMMIT"):
                break
            if cursor.take("APPEND", "ONLY"):
                self.append_only = True
            elif cursor.at("WITH", "("):
                cursor.index += 1
                self.options.update(read_options(cursor))
            elif cursor.take("FORMAT"):
                self.encoded = read_encoded(cursor)
            elif cursor.take("ON", "CONFLICT"):
                if self.read_type is None and cursor.take("ERROR"):
                    self.rejects_duplicates = True
                    continue
                action = next((a for words, a in _ACTIONS.items() if cursor.take(*words.split())), None)
                if action is None:
                    raise cursor.error(
                        detail="An action was expected here.", hint=f"{', '.join(_ACTIONS)} and ERROR exist."
                    )
                self.rejects_duplicates = False
                self.conflict = replace(self.conflict, action=action)
            elif cursor.take("ENGINE"):
                cursor.take("=")
                engine = read_value(cursor)
                hint = "Create the table without it, and CREATE SINK … WITH (connector = 'iceberg') writes its rows."
                if engine.lower() != "hummock":
                    self.refuse(f"ENGINE = {engine}", span_of(cursor.tokens[cursor.index - 1 : cursor.index]), hint)
            elif cursor.take("INCLUDE"):
                self.included.append(read_included(cursor))
            elif cursor.take("WITH", "VERSION", "COLUMN") or cursor.take("WITH", "VERSION", "COLUMNS"):
                self.versions = cursor.names()
                self.conflict = replace(self.conflict, versions=tuple(n.name for n in self.versions))
            elif cursor.at("FROM"):
                self.origin = read_origin(cursor)
            elif cursor.take("VALIDATE"):
                if cursor.take("SECRET"):
                    self.options[VALIDATE_SECRET] = reference(cursor.name().name)
                cursor.expect("AS")
                self.condition = expression_of(cursor, cursor.rest)
                cursor.index = len(cursor.tokens)
            else:
                raise cursor.error()
        if (written := self.options.pop("appendonly", None)) is not None:
            self.append_only = self.append_only or written.lower() == "true"
        self._finish_format()
        self.finish()
        self._check_conflict()

    def _check_conflict(self) -> None:
        """Checks the conflict rule: its version columns are columns of values with an order, and not of the key."""
        rule, columns = self.conflict, {c.name: c for c in self.columns}
        for name in self.versions:
            column = columns.get(name.name)
            if column is None:
                raise self.cursor.error_at(
                    name.span,
                    "UNDEFINED_COLUMN",
                    f'version column "{name.name}" does not exist',
                    hint=did_you_mean(name.name, columns),
                )
            if name.name in self.primary_key or column.type.fields or column.type.element or column.type in _UNORDERED:
                self.refuse(f'version column "{name.name}" of the key or of type {column.type.sql}', name.span)
        if rule.action == "ignore" and self.versions:
            self.refuse("DO NOTHING with a version column", self.versions[0].span, "Write OVERWRITE.")
        if rule.action == "fill" and len(rule.versions) > 1:
            hint = "Name one, for instance a generated column that orders the rows."
            self.refuse("DO UPDATE IF NOT NULL with several version columns", self.versions[1].span, hint)
        if rule.action == "fill" and self.declared:
            detail = "DEFAULT with DO UPDATE IF NOT NULL"
            self.refuse(detail, self.spans[next(iter(self.declared))], "A missing value would never be NULL.")

    def _finish_format(self) -> None:
        """Interprets FORMAT … ENCODE and INCLUDE by the kind of connector (files, messages, changes)."""
        encoded = self.encoded
        if self.origin is not None or self.options.get("connector", "").lower() in CAPTURE_CONNECTORS:
            self.takes_columns = self.star is not None or not self.columns
            columns, self.message_parts = included_columns(self.included, "cdc", CHANGE_PARTS, self.cursor.text)
            self.columns += columns
            if encoded is not None and (encoded.rows, encoded.encoding) not in CHANGE_FORMATS:
                self.refuse(f"FORMAT {encoded.rows.upper()} with changes of a database", encoded.span)
            return
        if self.options.get("connector", "").lower() in (*CONNECTORS, *RECEIVING):
            connector = self.options["connector"].lower()
            self.takes_columns = self.star is not None or not self.columns
            known = RECEIVED_PARTS if connector in RECEIVING else PARTS
            columns, self.message_parts = included_columns(self.included, connector, known, self.cursor.text)
            self.columns += columns
            try:
                self.format = message_format(encoded, self.cursor.text)
            except Error as problem:
                self.refusal = self.refusal or problem
            if connector in RECEIVING and encoded is not None and encoded.rows != "plain":
                hint = "Its messages have no keys and no order that survives a loss: FORMAT PLAIN is supported."
                self.refuse(f"FORMAT {encoded.rows.upper()} with connector {connector}", encoded.span, hint)
            return
        if self.options.get("connector", "").lower() == WEBHOOK:
            columns, parts = included_columns(self.included, WEBHOOK, {"header": HEADERS}, self.cursor.text)
            self.columns += columns
            self.message_parts = {name: part.lower() for name, part in parts.items()}
            if encoded is not None and (encoded.rows, encoded.encoding, encoded.options) != ("plain", "json", {}):
                self.refuse("a format other than PLAIN JSON of a webhook table", encoded.span, "Leave it out.")
            if self.star is not None:
                self.refuse("a column list with *", self.star, "List the columns, or write (data jsonb).")
            return
        if self.condition is not None:
            raise self.cursor.error(detail="Only a table with connector = 'webhook' can have VALIDATE.")
        if self.options.get("connector", "").lower() in LAKES:
            self.takes_columns = self.star is not None or not self.columns
            for item in self.included:
                self.refuse("INCLUDE with a table of a lake", item.span)
            if encoded is not None and (encoded.rows, encoded.encoding) != ("none", "none"):
                self.refuse(f"FORMAT {encoded.rows.upper()} with a table of a lake", encoded.span, "Leave it out.")
            return
        connector = self.options.get("connector", "").lower()
        if connector in FILES:
            columns, self.message_parts = included_columns(self.included, connector, FILE_PARTS, self.cursor.text)
            self.columns += columns
        else:
            for item in self.included:
                self.refuse(f"INCLUDE with connector {connector}" if connector else "INCLUDE of a table", item.span)
        if self.star is not None:
            hint = "List the columns: they are not read from the data."
            self.refuse("a column list with *", self.star, hint)
        if encoded is None:
            return
        for key, value in encoded.options.items():
            self.options.setdefault(key, value)
        self.options.setdefault("format", encoded.encoding)
        if encoded.rows != "plain":
            self.refuse(f"FORMAT {encoded.rows.upper()}", encoded.span, "With files, FORMAT PLAIN is supported.")
