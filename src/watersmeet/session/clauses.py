"""Clauses that several CREATE statements have: WATERMARK FOR, columns of a schema, and `connection = name`.

RisingWave, "Joins", "Window joins"; RisingWave, "Understanding streaming joins", "watermark".
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sqlglot import exp

from watersmeet.algebra.timewindows import TIME_TYPES, duration_us, has_months, timeout_us
from watersmeet.binder.sqlfunctions import with_created_types
from watersmeet.catalog import (
    ARRIVAL,
    COMMON_SCHEMA,
    Connection,
    Domain,
    DomainType,
    EnumType,
    EventTime,
    Input,
    NumberSequence,
    Relation,
    Serial,
)
from watersmeet.catalog.rowless import ConnectionType
from watersmeet.connectors import registry as connectors
from watersmeet.database.assignment import default_values, generated_columns
from watersmeet.database.committing import own_transaction
from watersmeet.database.definitions import add, remove, written
from watersmeet.database.reading import batch_query, fetch, table_tree
from watersmeet.database.rowchecks import broken_rule
from watersmeet.database.sessions.context import Session, error_at, located
from watersmeet.database.sessions.sequences import default_sequence, owned_by, with_sequences
from watersmeet.dialects.schemas import relation_written
from watersmeet.dialects.tree.definitions import (
    CreateRelation,
    CreateSink,
    CreateTable,
    NamedType,
    SerialClause,
    Watermark,
)
from watersmeet.dialects.tree.queries import name_of, node_span
from watersmeet.dialects.tree.statements import Statement
from watersmeet.dialects.tree.tokens import not_supported
from watersmeet.errors import Error, did_you_mean, error
from watersmeet.system.process import lazy_import
from watersmeet.values.declaredtypes import Declared
from watersmeet.values.times import DAY_US
from watersmeet.values.types import Field, Schema, SqlType

if TYPE_CHECKING:
    from watersmeet.formats import decoders
else:
    decoders = lazy_import("watersmeet.formats.decoders")


def column_defaults(statement: CreateRelation) -> dict[str, str]:
    """Raises FEATURE_NOT_SUPPORTED for DEFAULT in a relation that a connector feeds."""
    if statement.declared and "connector" in statement.options:
        raise not_supported(
            "DEFAULT on a column that a connector gives",
            statement.text,
            node_span(next(iter(statement.declared.values()))),
            hint="Write a generated column: other type AS (coalesce(column, …)).",
        )
    return {**dict.fromkeys(statement.arrivals, ARRIVAL), **default_values(statement)}


def input_fields(session: Session, statement: CreateRelation) -> dict[str, Any]:
    """The fields of the catalog entry of a source or table, for `new_relation`, apart from keys, conflicts, limits of
    types and the connector. Raises the errors of its clauses.
    """
    refuse_named_types(statement)
    generated, functions = generated_columns(session, statement)
    return {
        "format": statement.format,
        "message_parts": dict(statement.message_parts),
        "event_time": event_time(statement),
        "defaults": column_defaults(statement),
        "generated": generated,
        "functions": functions,
    }


def table_fields(session: Session, statement: CreateTable) -> dict[str, Any]:
    """As `input_fields`, for a table: all but the connector."""
    return {
        **input_fields(session, statement),
        **limit_fields(statement),
        "primary_key": statement.primary_key,
        "append_only": statement.append_only,
        "conflict": statement.conflict,
    }


def limit_fields(statement: CreateRelation) -> dict[str, Any]:
    """The limits of the types of written rows."""
    return {
        "ranges": dict(statement.ranges),
        "lengths": dict(statement.lengths),
        "declared": dict(statement.declared_types),
        "domains": dict(statement.domains),
    }


def refuse_serials(statement: CreateRelation) -> None:
    """Raises FEATURE_NOT_SUPPORTED for columns with numbers in sequence, whose rows a connector fills."""
    if statement.serials:
        feature = "serial or identity of a column that a connector fills"
        raise not_supported(feature, statement.text, statement.name_span)


#: Options of WITH about event time, which are not passed to the connector.
_AHEAD: Final = "watermark_max_ahead"

_IDLE: Final = "watermark_idle_timeout"
OPTIONS: Final = (_AHEAD, _IDLE)
_FORM: Final = "Write WATERMARK FOR ts AS ts - INTERVAL '20' SECOND."


def event_time(statement: CreateRelation) -> EventTime | None:
    """The event time that the statement declares, or None.

    Raises FEATURE_NOT_SUPPORTED, DATATYPE_MISMATCH, INVALID_VALUE.
    """
    options = {n: _option(statement, n) for n in OPTIONS if n in statement.options}
    if not statement.watermarks:
        if options:
            raise error_at(
                statement,
                statement.name_span,
                "CONNECTOR_OPTION",
                f"option {min(options)} needs a watermark",
                hint=_FORM,
            )
        return None
    if len(statement.watermarks) > 1:
        raise _refused(statement, statement.watermarks[1], "FEATURE_NOT_SUPPORTED", "Only 1 watermark is supported now")
    mark = statement.watermarks[0]
    column = next(c for c in statement.columns if c.name == mark.column)
    if column.type.name not in TIME_TYPES:
        raise _refused(
            statement,
            mark,
            "DATATYPE_MISMATCH",
            f'a watermark can\'t be on column "{column.name}" of type {column.type.sql}',
            hint="It needs a timestamp, timestamp with time zone or date.",
        )
    if isinstance(statement, CreateTable) and not (statement.append_only or statement.primary_key or statement.options):
        raise _refused(
            statement,
            mark,
            "FEATURE_NOT_SUPPORTED",
            "Defining watermarks on table requires the table to be append only.",
            hint="Use the key words `APPEND ONLY`, or give a PRIMARY KEY for a table of versions "
            "(FOR SYSTEM_TIME AS OF left.ts).",
        )
    return EventTime(column.name, _delay_us(statement, mark), options.get(_AHEAD, DAY_US), options.get(_IDLE))


def _delay_us(statement: CreateRelation, mark: Watermark) -> int:
    """How far the watermark stays below the greatest time."""
    node = mark.expression.unnest()
    if _is_column(node, mark.column):
        return 0
    if not isinstance(node, exp.Sub) or not _is_column(node.this, mark.column):
        raise _refused(
            statement,
            mark,
            "FEATURE_NOT_SUPPORTED",
            "a watermark other than the column minus an interval is not supported",
            hint=_FORM,
        )
    delay = duration_us(node.expression)
    if delay is None:
        raise _refused(
            statement,
            mark,
            "INVALID_VALUE",
            "the delay of a watermark must be a constant interval of fixed length",
            detail="Months and years have no one length in days."
            if has_months(node.expression)
            else "What is subtracted is not an interval.",
            hint=_FORM,
        )
    if delay < 0:
        raise _refused(
            statement,
            mark,
            "INVALID_VALUE",
            "the delay of a watermark can't be negative",
            detail="Otherwise every row would be late as soon as it arrives.",
            hint=_FORM,
        )
    return delay


def _is_column(node: exp.Expression, name: str) -> bool:
    return isinstance(node, exp.Column) and name_of(node.this) == name


def _option(statement: CreateRelation, name: str) -> int:
    """The value of an option that is a positive interval, in microseconds."""
    text = statement.options[name]
    found = timeout_us(text)
    if found is None:
        raise error_at(
            statement,
            statement.name_span,
            "CONNECTOR_OPTION",
            f'option {name} can\'t be "{text}"',
            hint="It must be an interval above zero of fixed length, such as '10 seconds'.",
        )
    return found


def _refused(
    statement: CreateRelation,
    mark: Watermark,
    condition: str,
    message: str,
    *,
    detail: str | None = None,
    hint: str | None = None,
) -> Error:
    return error(condition, message, detail=detail, hint=hint, sql=statement.text, span=mark.span)


S = TypeVar("S", bound=CreateRelation)
Made = TypeVar("Made", bound=Input)


def with_connector(session: Session, relation: Made) -> Made:
    """The relation as CREATE stores it, with a checked connector.

    A session that only checks connectors stores the relation without one. A source that each query opens keeps its
    options as written. Raises the errors of `registry.check_connector`.
    """
    if session.connectors == "checked":
        connectors.check_options(relation)
        return without_connector(relation)
    checked = connectors.check_connector(relation)
    return relation if relation.reopened else checked


def check_messages(relation: Input) -> None:
    """Raises CONNECTOR_OPTION if messages in the format of a relation can't fill its columns."""
    assert relation.format is not None
    decoders.open_decoder(relation.written, (), relation.format, relation.message_parts)


def without_connector(relation: Made) -> Made:
    """The relation without its connector, so that only statements write it."""
    reopened: dict[str, Any] = {"reopened": False} if relation.reopened else {}
    return replace(relation, connector={}, **reopened)


def with_schema_columns(session: Session, statement: S) -> S:
    """The statement with the current columns of its schema, followed by those that it declares itself.

    A column in both has the declared type. For a table of a lake, raises the errors of `lakes.source.lake_schema`. For
    messages, raises CONNECTOR_OPTION without a schema, RUNTIME_UNAVAILABLE if it can't be read now, and
    UNDEFINED_COLUMN if the primary key or a watermark names another column.
    """
    if not statement.takes_columns:
        return statement
    known = connectors.SOURCES.get(statement.options.get("connector", "").lower())
    if known is not None and known.columns is not None:
        session.require_outside("the schema of a table of a lake", statement, statement.name_span)
        with located(statement, statement.name_span):
            session.require_files(statement.options)
            return _with_columns(statement, known.columns(statement.options))
    if statement.format is None:
        return statement
    session.require_outside("the schema of the messages", statement, statement.name_span)
    topic = statement.options.get("topic", statement.options.get("kafka.topic", ""))
    try:
        with located(statement, statement.name_span):
            session.require_files(statement.format.options)
            registered = decoders.registered_schema(statement.format, topic)
            found = decoders.schema_columns(statement.format, registered)
            taken = decoders.taken_schema(statement.format, registered)
    except OSError as cause:
        raise error(
            "RUNTIME_UNAVAILABLE",
            f"the schema of the messages can't be read: {cause}",
            hint="Check the option schema.registry or schema.location.",
            sql=statement.text,
            span=statement.name_span,
        ) from cause
    made = _with_columns(statement, found)
    return replace(made, format=replace(statement.format, options={**statement.format.options, **taken}))


def _with_columns(statement: S, found: Schema) -> S:
    """The statement with the columns of a schema. Raises UNDEFINED_COLUMN."""
    declared = {c.name for c in statement.columns}
    columns = (*(c for c in found if c.name not in declared), *statement.columns)
    names = [c.name for c in columns]
    for what, name in (
        *(("key", k) for k in statement.primary_key),
        *(("watermark", w.column) for w in statement.watermarks),
    ):
        if name not in names:
            raise error_at(
                statement,
                statement.name_span,
                "UNDEFINED_COLUMN",
                f'column "{name}" of the {what} does not exist',
                hint=did_you_mean(name, names) or "The columns are " + ", ".join(names) + ".",
            )
    keyed = tuple(Field(c.name, c.type, c.nullable and c.name not in statement.primary_key) for c in columns)
    return replace(statement, columns=keyed)


#: The type that the connection of each connector must have.
_BY_CONNECTOR: Final[dict[str, ConnectionType]] = {"kafka": "kafka", "iceberg": "iceberg"}

Given = TypeVar("Given", bound=CreateRelation | CreateSink)


def with_connections(session: Session, statement: Given) -> tuple[Given, tuple[str, ...]]:
    """The statement with the options of its named connections, and the ids of these. Raises UNDEFINED_OBJECT."""
    connector = statement.options.get("connector", "").lower()
    options, ids = _options(session, statement, statement.options, _BY_CONNECTOR.get(connector))
    made = replace(statement, options=options)
    if made.format is not None:
        options, more = _options(session, statement, made.format.options, "schema_registry")
        made, ids = replace(made, format=replace(made.format, options=options)), (*ids, *more)
    return made, ids


def _options(
    session: Session, statement: Given, options: Mapping[str, str], wanted: ConnectionType | None
) -> tuple[dict[str, str], tuple[str, ...]]:
    found = dict(options)
    name = found.pop("connection", None)
    if name is None:
        return found, ()
    connection = relation_written(session.catalog, name)
    if not isinstance(connection, Connection):
        known = [r.shown for r in session.catalog.relations.values() if isinstance(r, Connection)]
        raise error_at(
            statement,
            statement.name_span,
            "UNDEFINED_OBJECT",
            f'connection "{name}" does not exist',
            hint=did_you_mean(name, known) or "Create it first: CREATE CONNECTION name WITH (type = 'kafka', …).",
        )
    if connection.type != wanted:
        raise error_at(
            statement,
            statement.name_span,
            "CONNECTOR_OPTION",
            f'connection "{name}" is of type {connection.type}',
            hint="WITH (connector = 'kafka', …) and WITH (connector = 'iceberg', …) take one of the type with the "
            "connector's name, ENCODE … (…) one of type schema_registry.",
        )
    if twice := sorted(connection.options.keys() & found.keys()):
        raise error_at(
            statement,
            statement.name_span,
            "CONNECTOR_OPTION",
            f'option "{twice[0]}" is given by connection "{name}", too',
            hint="Leave it out here.",
        )
    return {**connection.options, **found}, (connection.id,)


def sequence_text(sequence: NumberSequence) -> str:
    """The statement that creates a sequence."""
    numbers = sequence.numbers
    schema = "" if sequence.schema == COMMON_SCHEMA else f"{written(sequence.schema, sequence)}."
    parts = [f"CREATE SEQUENCE {schema}{written(sequence.name, sequence)}", f"AS {numbers.type}"]
    parts += [] if numbers.start is None else [f"START WITH {numbers.start}"]
    parts += [] if numbers.step == 1 else [f"INCREMENT BY {numbers.step}"]
    parts += [] if numbers.least is None else [f"MINVALUE {numbers.least}"]
    parts += [] if numbers.greatest is None else [f"MAXVALUE {numbers.greatest}"]
    parts += [] if numbers.cache == 1 else [f"CACHE {numbers.cache}"]
    parts += ["CYCLE"] if numbers.cycles else []
    return " ".join(parts)


D = TypeVar("D", bound=CreateRelation)


def remove_sequences(session: Session, relation: Relation, column: str) -> None:
    """Removes the sequences of a column, by its name in the stored data."""
    remove(session, {s.id for s in owned_by(session.catalog, [relation.id], column)})


def refuse_named_types(statement: CreateRelation) -> None:
    """Raises UNDEFINED_OBJECT for a column whose type could only be an enum, for a relation that can't have enums."""
    for named in statement.named_types.values():
        raise named.error


def with_named_types(session: Session, statement: D) -> D:
    """A definition with the enums of its columns, and of casts in its DEFAULTs. Raises UNDEFINED_OBJECT."""
    declared = {name: with_created_types(tree, session.catalog) for name, tree in statement.declared.items()}
    statement = replace(statement, declared=declared)
    if not statement.named_types:
        return statement
    found = {column: type_named(session, named) for column, named in statement.named_types.items()}
    columns = tuple(replace(c, type=found[c.name].kind if c.name in found else c.type) for c in statement.columns)
    domains = {column: named.domain for column, named in found.items() if named.domain is not None}
    lengths = {column: named.declared for column, named in found.items() if named.declared is not None}
    types = {**statement.declared_types, **lengths}
    return replace(statement, columns=columns, named_types={}, domains=domains, declared_types=types)


@dataclass(frozen=True)
class CreatedType:
    """A type that a user has created. declared: see `Declared`. domain: the rules of a domain."""

    kind: SqlType
    declared: Declared | None = None
    domain: Domain | None = None


def type_named(session: Session, named: NamedType) -> CreatedType:
    """A domain, an enum, or an array of an enum, by its name. Raises UNDEFINED_OBJECT."""
    found = session.find(named.name)
    if isinstance(found, DomainType):
        if named.depth:
            raise not_supported("an array of a domain", named.error.sql or "", named.name.span)
        return CreatedType(found.base, found.declared_base, found.rules)
    if not isinstance(found, EnumType):
        raise named.error
    kind = SqlType("varchar", enum=found.shown, enum_id=found.id, labels=found.labels)
    for _ in range(named.depth):
        kind = SqlType("array", element=kind)
    return CreatedType(kind)


def check_domain(session: Session, relation: Relation, column: str, domain: Domain, statement: Statement) -> None:
    """Raises NOT_NULL_VIOLATION, CHECK_VIOLATION if a row of a table breaks a rule of a domain."""
    name = exp.column(exp.to_identifier(column, quoted=True))
    tree = exp.select(name).distinct().from_(table_tree(relation, None), copy=False)
    with session.database.guard:
        rows = fetch(session, batch_query(session, tree, statement.text), newest=True)
    broken = broken_rule(relation, domain, rows.column(0))
    if broken is not None:
        what = "null values" if broken[0] == "NOT_NULL_VIOLATION" else "values that violate the new constraint"
        message = f'column "{column}" of table "{relation.name}" contains {what}'
        raise error_at(statement, statement.span, broken[0], message)


def with_default_sequences(session: Session, statement: D) -> tuple[D, dict[str, NumberSequence]]:
    """A definition of a table without the columns' DEFAULT nextval(…), whose sequences it returns by column, and with
    the ids of sequences in other defaults. Raises UNDEFINED_RELATION.
    """
    declared, found = dict(statement.declared), {}
    for name, node in statement.declared.items():
        kind = next(c.type for c in statement.columns if c.name == name)
        sequence = default_sequence(session, node, statement.text) if kind.is_integer else None
        if sequence is not None:
            found[name] = sequence
            del declared[name]
        else:
            declared[name] = with_sequences(session, node, statement.text)
    return replace(statement, declared=declared), found


def add_table(
    session: Session, table: Input, clauses: Mapping[str, SerialClause], others: Mapping[str, NumberSequence]
) -> None:
    """Adds a table to the catalog, with the sequences of its columns. others: existing sequences by column."""
    if not clauses and not others:
        add(session, table)
        return
    with own_transaction(session):
        add(session, table)
        serials = {name: Serial(s.id) for name, s in others.items()}
        for column, clause in clauses.items():
            serials[column] = add_sequence(session, table, column, clause)
        session.put(replace(table, serials={c.name: serials[c.name] for c in table.columns if c.name in serials}))


def add_sequence(session: Session, table: Input, column: str, clause: SerialClause) -> Serial:
    """Adds the sequence of a column to the catalog. Raises DUPLICATE_OBJECT for a given name that is taken."""
    name = _free_name(session, table, column) if clause.name is None else clause.name.name
    taken = session.catalog.by_name(name, table.schema, folded=True)
    if taken is not None:
        raise error("DUPLICATE_OBJECT", f"{taken.title} already exists")
    made = NumberSequence(
        session.catalog.new_id(NumberSequence),
        name,
        (),
        numbers=clause.numbers,
        owned=(table.id, table.stored.get(column, column)),
        schema=table.schema,
        path=table.path,
        dialect=table.dialect,
    )
    made = replace(made, sql=sequence_text(made))
    session.database.sequences.begin(made)
    add(session, made)
    return Serial(made.id, clause.identity)


#: The characters of a name in PostgreSQL.
_LONGEST_NAME: Final = 63


def _free_name(session: Session, table: Input, column: str) -> str:
    """A name for the sequence of a column: PostgreSQL's, with a number if it is taken."""
    stem = (
        f"{table.name[: 2 * _LONGEST_NAME // 3 - 14]}_{column[: _LONGEST_NAME // 3]}"
        if (len(table.name) + len(column) + len("__seq") > _LONGEST_NAME)
        else f"{table.name}_{column}"
    )
    names = (f"{stem}_seq{n or ''}" for n in itertools.count())
    return next(n for n in names if session.catalog.by_name(n, table.schema, folded=True) is None)
