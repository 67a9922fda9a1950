"""Objects with options for other statements: secrets, connections, named collections, format schemas.

RisingWave, "Manage secrets", "CREATE CONNECTION"; Timeplus, "Named Collection", "CREATE FORMAT SCHEMA", "Kafka Source".
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, get_args

from watersmeet.binder.clauses.sources import files_refused
from watersmeet.catalog import Connection, FormatSchema, Input, MessageFormat, NamedCollection, Relation, Sink
from watersmeet.catalog.roles import ADMIN
from watersmeet.catalog.rowless import ConnectionType, SchemaType
from watersmeet.connectors import registry as connectors
from watersmeet.database.committing import own_transaction
from watersmeet.database.definitions import add, may_create, named, new_relation
from watersmeet.database.secrets import kept_options, uses_secret, with_secrets
from watersmeet.database.sessions.context import Session, error_at, located, sentence
from watersmeet.database.sessions.result import Result, text_result
from watersmeet.dialects.readers import reads
from watersmeet.dialects.tree.definitions import AlterConnection, Create, CreateOptions
from watersmeet.dialects.tree.statements import Accepted, Name, Refused, Statement
from watersmeet.dialects.tree.tokens import Cursor, not_supported, read_options, read_setting, span_of
from watersmeet.errors import Span, did_you_mean, error
from watersmeet.formats.registry import RegisteredSchema, SchemaKind
from watersmeet.session.handlers import handles
from watersmeet.sinkwriters.writers import SinkWriters
from watersmeet.store import positions
from watersmeet.system.process import lazy_import
from watersmeet.system.secretvalues import external_place, external_secret, revealed_options

if TYPE_CHECKING:
    from watersmeet.connectors.lakes import client as lakeclient
    from watersmeet.formats import avroschema, protoschema
else:
    protoschema = lazy_import("watersmeet.formats.protoschema")
    avroschema = lazy_import("watersmeet.formats.avroschema")
    lakeclient = lazy_import("watersmeet.connectors.lakes.client")

#: Backends whose values are outside of the database, each with the option for their location.
_EXTERNAL: Final = {"env": "name", "file": "path"}


@dataclass(frozen=True, kw_only=True)
class CreateSecret(Statement):
    """`CREATE SECRET name WITH (backend = 'meta') AS 'value'`, without the value in its text. With `(backend = 'env',
    name = '…')` or `(backend = 'file', path = '…')`, its value is the location.
    """

    takes: ClassVar[str | None] = ADMIN
    defines: ClassVar[bool] = True
    once: ClassVar[bool] = True
    alone: ClassVar[bool] = True

    name: Name
    value: str = field(repr=False)
    if_not_exists: bool = False


@dataclass(frozen=True, kw_only=True)
class AlterSecret(CreateSecret):
    """`ALTER SECRET name [WITH (…)] AS 'value'`."""


@dataclass(frozen=True, kw_only=True)
class DropSecret(Statement):
    """`DROP SECRET name`."""

    takes: ClassVar[str | None] = ADMIN
    defines: ClassVar[bool] = True
    once: ClassVar[bool] = True
    alone: ClassVar[bool] = True

    name: Name
    if_exists: bool = False


@reads("CREATE SECRET", own="secret")
def read_create_secret(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """CREATE SECRET …. The statement's text has stars instead of the value.

    RisingWave, "CREATE SECRET". The backends env and file (a value in the environment or in a file) are Watersmeet's
    own.
    """
    if_not_exists = cursor.take("IF", "NOT", "EXISTS")
    name = cursor.name()
    if not cursor.at("WITH"):
        raise cursor.error(detail="WITH was expected here.")
    return _read_value(cursor, {**base, "sql": f"CREATE SECRET {name.name}"}, CreateSecret, name, if_not_exists)


@reads("ALTER SECRET", own="secret")
def read_alter_secret(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """ALTER SECRET …, with stars instead of the value in its text.

    RisingWave, "ALTER SECRET".
    """
    name = cursor.name()
    for words, reason in (("OWNER TO", "secrets have no owners"), ("SET SCHEMA", "secrets are in no schema")):
        if cursor.take(*words.split()):
            cursor.until("")
            return Accepted(**base, command="ALTER SECRET", notice=f"ALTER SECRET … {words} has no effect: {reason}")
    return _read_value(cursor, {**base, "sql": f"ALTER SECRET {name.name}"}, AlterSecret, name)


def _read_value(
    cursor: Cursor, base: dict[str, Any], made: type[CreateSecret], name: Name, if_not_exists: bool = False
) -> Statement:
    """Reads `[WITH (backend …)] [AS 'value']`."""
    spans: dict[str, Span] = {}
    backend = read_options(cursor, spans) if cursor.take("WITH") else {"backend": "meta"}
    kind = backend.get("backend", "")
    if kind in _EXTERNAL:
        option = _EXTERNAL[kind]
        cursor.end()
        if backend.keys() != {"backend", option} or not backend[option]:
            wrong = next((n for n in backend if n not in ("backend", option)), "backend")
            raise cursor.error_at(
                spans[wrong],
                "CONNECTOR_OPTION",
                f"a secret of backend {kind} has the option {option} alone",
                hint=f"Write WITH (backend = '{kind}', {option} = '…').",
            )
        return made(
            **base,
            name=name,
            value=external_secret(kind, backend[option]),
            if_not_exists=if_not_exists,
        )
    cursor.expect("AS")
    span = span_of(cursor.rest[:1] or cursor.tokens)
    value = cursor.string()
    cursor.end()
    stars = "*" * (span.end - span.start - 2)
    text = f"{cursor.text[: span.start]}'{stars}'{cursor.text[span.end :]}"
    base = {**base, "text": text}
    if backend.pop("backend", "") != "meta" or backend:
        hint = "Write WITH (backend = 'meta') AS '…', (backend = 'env', name = '…') or (backend = 'file', path = '…')."
        return Refused(**base, error=not_supported("a secret of this backend", text, name.span, hint=hint))
    return made(**base, name=name, value=value, if_not_exists=if_not_exists)


@reads("DROP SECRET", own="secret")
def read_drop_secret(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """DROP SECRET …: the cursor stands after SECRET."""
    if_exists = cursor.take("IF", "EXISTS")
    name = cursor.name()
    cursor.end()
    return DropSecret(**base, name=name, if_exists=if_exists)


@handles(CreateSecret)
def create_secret(session: Session, statement: CreateSecret) -> Result:
    """CREATE SECRET, effective at once. Raises FILES_NOT_ALLOWED for external values without the right to read
    files.
    """
    session.require_definer("CREATE SECRET")
    session.require_no_transaction("CREATE SECRET")
    name, value = statement.name, _value(session, statement)
    if not positions.create_secret(session.database.layout, name.name, value):
        if not statement.if_not_exists:
            raise error_at(statement, name.span, "DUPLICATE_OBJECT", f'secret "{name.name}" already exists')
        session.notice(f'secret "{name.name}" already exists, skipping')
    return Result("CREATE SECRET")


def _value(session: Session, statement: CreateSecret) -> str:
    """The value that is stored. Raises FILES_NOT_ALLOWED."""
    place = external_place(statement.value)
    if place is None:
        return statement.value
    if not session.reads_files:
        raise files_refused(f"a secret of backend {place[0]}", sql=statement.text, span=statement.name.span)
    return external_secret("file", os.path.abspath(place[1])) if place[0] == "file" else statement.value


@handles(AlterSecret)
def alter_secret(session: Session, statement: AlterSecret) -> Result:
    """ALTER SECRET, effective at once: the sources and sinks that use it connect again."""
    session.require_definer("ALTER SECRET")
    session.require_no_transaction("ALTER SECRET")
    name = statement.name
    _known(session, statement, name)
    positions.replace_secret(session.database.layout, name.name, _value(session, statement))
    using = [r for r in session.catalog.relations.values() if uses_secret(r, name.name)]
    writers = session.database.service(SinkWriters)
    if writers is not None and any(isinstance(r, Sink) for r in using):
        writers.reopen([r.id for r in using])
    if any(isinstance(r, Input) for r in using):
        session.database.circuit.reinstall()  # opens their sources again
    return Result("ALTER SECRET")


def _known(session: Session, statement: Statement, name: Name) -> None:
    """Raises UNDEFINED_OBJECT for an unknown secret."""
    known = positions.secret_names(session.database.layout)
    if name.name not in known:
        message = f'secret "{name.name}" does not exist'
        raise error_at(statement, name.span, "UNDEFINED_OBJECT", message, hint=did_you_mean(name.name, known))


@handles(DropSecret)
def drop_secret(session: Session, statement: DropSecret) -> Result:
    """DROP SECRET. Raises DEPENDENT_OBJECTS while an option refers to it."""
    session.require_definer("DROP SECRET")
    session.require_no_transaction("DROP SECRET")
    layout, name = session.database.layout, statement.name
    if statement.if_exists and name.name not in positions.secret_names(layout):
        session.notice(f'secret "{name.name}" does not exist, skipping')
        return Result("DROP SECRET")
    _known(session, statement, name)
    if session.catalog.verify_key == name.name:
        raise error_at(
            statement,
            name.span,
            "DEPENDENT_OBJECTS",
            f'cannot drop secret "{name.name}" because VERIFY signs its results with it',
            hint="ALTER SYSTEM RESET verify_key first.",
        )
    using = [r for r in session.catalog.relations.values() if uses_secret(r, name.name)]
    if using:
        raise error_at(
            statement,
            name.span,
            "DEPENDENT_OBJECTS",
            f'cannot drop secret "{name.name}" because other objects use it',
            detail=sentence(f"{r.title} does" for r in using),
            hint="Drop these first.",
        )
    positions.drop_secret(layout, name.name)
    return Result("DROP SECRET")


def show_secrets(session: Session, is_like: Callable[[str], bool]) -> Result:
    """The names of the secrets. No statement shows their values."""
    names = positions.secret_names(session.database.layout)
    return text_result("SHOW", ("Name",), [(n,) for n in names if is_like(n)])


#: The required option of each type of connection (in any of its spellings).
_NEEDED: Final[dict[ConnectionType, tuple[str, ...]]] = {
    "kafka": ("properties.bootstrap.server", "properties.bootstrap.servers"),
    "schema_registry": ("schema.registry",),
    "iceberg": ("catalog.type",),
}

#: The prefix of the options of those types that have no list of options.
_PREFIXES: Final[dict[ConnectionType, str]] = {"kafka": "properties.", "schema_registry": "schema.registry"}


@dataclass(frozen=True, kw_only=True)
class CreateConnection(CreateOptions):
    """`CREATE CONNECTION name WITH (type = …, …)`. options: names in lower case."""

    takes: ClassVar[str | None] = ADMIN

    makes: ClassVar[type[Relation]] = Connection


@reads("CREATE CONNECTION", own="connection")
def read_create_connection(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """CREATE CONNECTION …: the cursor stands after CONNECTION.

    RisingWave, "CREATE CONNECTION".
    """
    if_not_exists = cursor.take("IF", "NOT", "EXISTS")
    name = cursor.relation_name()
    cursor.expect("WITH")
    options = read_options(cursor)
    cursor.end()
    return CreateConnection(
        **base,
        name=name.name,
        name_span=name.span,
        schema=name.schema,
        if_not_exists=if_not_exists,
        options=options,
    )


@handles(CreateConnection)
def create_connection(session: Session, statement: CreateConnection) -> Result:
    """CREATE CONNECTION. No server is contacted: a source or sink that names the connection does that."""
    statement = with_secrets(session, statement)
    if not may_create(session, statement, statement.name, statement.name_span, statement.if_not_exists):
        return Result("CREATE CONNECTION")
    options = dict(statement.options)
    said = options.pop("type", "")
    kind = next((k for k in _NEEDED if k == said.lower()), None)
    if kind is None:
        raise error_at(
            statement,
            statement.name_span,
            "CONNECTOR_OPTION",
            f'a connection can\'t be of type "{said}"',
            hint=did_you_mean(said, _NEEDED) or f"These are: {', '.join(_NEEDED)}.",
        )
    needed = _NEEDED[kind]
    wrong = [n for n in options if not _takes(kind, n)]
    if wrong or not options.keys() & set(needed):
        raise error_at(
            statement,
            statement.name_span,
            "CONNECTOR_OPTION",
            f'a connection of type {kind} has no option "{wrong[0]}"'
            if wrong
            else f'a connection of type {kind} needs the option "{needed[0]}"',
            hint=_hint(kind, wrong[0] if wrong else needed[0]),
        )
    if kind == "iceberg":
        with located(statement, statement.name_span):
            lakeclient.iceberg_catalog_type(options)
    add(session, new_relation(session, statement, Connection, (), type=kind, options=options))
    return Result("CREATE CONNECTION")


@handles(AlterConnection)
def alter_connection(session: Session, statement: AlterConnection) -> Result:
    """ALTER CONNECTION … CONNECTOR WITH: other options for it and for the sources, tables and sinks that copied them.

    RisingWave, "ALTER CONNECTION". Raises CONNECTOR_OPTION for an option that its type does not have.
    """
    session.require_definer("ALTER CONNECTION")
    found = named(session, statement.name, statement)
    if found is None:
        return Result("ALTER CONNECTION")
    if not isinstance(found, Connection):
        message = f'"{statement.name.shown}" is not a connection'
        raise error_at(statement, statement.name.span, "CATALOG_TYPE_MISMATCH", message)
    statement = with_secrets(session, statement)
    wrong = next((n for n in statement.options if not _takes(found.type, n)), None)
    if wrong is not None:
        message = f'a connection of type {found.type} has no option "{wrong}"'
        span = statement.spans[wrong]
        raise error_at(statement, span, "CONNECTOR_OPTION", message, hint=_hint(found.type, wrong))
    options = kept_options(session, statement.options)
    with own_transaction(session):
        session.put(replace(found, options={**found.options, **options}))
        for reader in [r for r in session.catalog.relations.values() if found.id in r.depends_on]:
            if isinstance(reader, (Input, Sink)):
                with located(statement, statement.name.span, statement.spans):
                    session.put(_with_options(reader, options))
    session.database.circuit.reinstall()  # opens the sources again
    return Result("ALTER CONNECTION")


def _with_options(reader: Input | Sink, options: Mapping[str, str]) -> Relation:
    """A source, table or sink with other values of its options."""
    made = replace(reader, connector={n: options.get(n, v) for n, v in reader.connector.items()})
    if made.format is not None:
        changed = {n: options.get(n, v) for n, v in made.format.options.items()}
        made = replace(made, format=replace(made.format, options=changed))
    return connectors.check_connector(made) if isinstance(made, Input) and made.connector else made


def _takes(kind: ConnectionType, option: str) -> bool:
    return (
        option.startswith(_PREFIXES[kind])
        if kind in _PREFIXES
        else lakeclient.ICEBERG_CATALOG.having(option) is not None
    )


def _hint(kind: ConnectionType, option: str) -> str:
    if kind in _PREFIXES:
        return f"The names of its options begin with {_PREFIXES[kind]}"
    if lakeclient.ICEBERG_TABLE.having(option) is not None:
        return f"{option} is an option of the source or sink."
    return f"These are: {', '.join(s.name for s in lakeclient.ICEBERG_CATALOG.specs)}."


def show_connections(connections: Sequence[Relation]) -> Result:
    """The connections with their types. SHOW CREATE CONNECTION shows the options."""
    return text_result("SHOW", ("Name", "Type"), [(c.name, c.type) for c in connections if isinstance(c, Connection)])


@dataclass(frozen=True, kw_only=True)
class CreateNamedCollection(Create):
    """`CREATE NAMED COLLECTION name AS setting = value [[NOT] OVERRIDABLE], …`. settings, fixed: as in the catalog."""

    takes: ClassVar[str | None] = ADMIN

    makes: ClassVar[type[Relation]] = NamedCollection

    settings: Mapping[str, str]
    fixed: tuple[str, ...]


@reads("CREATE NAMED COLLECTION", own="named collection")
def read_named_collection(cursor: Cursor, base: dict[str, Any]) -> CreateNamedCollection:
    """The cursor stands after COLLECTION. Raises CONNECTOR_OPTION for a duplicate setting."""
    if_not_exists = cursor.take("IF", "NOT", "EXISTS")
    name = cursor.relation_name()
    cursor.expect("AS")
    settings: dict[str, str] = {}
    fixed: list[str] = []
    while True:
        setting = read_setting(cursor, settings)
        if cursor.take("NOT", "OVERRIDABLE"):
            fixed.append(setting)
        else:
            cursor.take("OVERRIDABLE")
        if not cursor.take(","):
            break
    cursor.end()
    return CreateNamedCollection(
        **base,
        name=name.name,
        name_span=name.span,
        schema=name.schema,
        if_not_exists=if_not_exists,
        settings=settings,
        fixed=tuple(fixed),
    )


_SETTING = "named_collection"


@handles(CreateNamedCollection)
def create_named_collection(session: Session, statement: CreateNamedCollection) -> Result:
    """CREATE NAMED COLLECTION. Its settings are checked by the statements that name it."""
    if may_create(session, statement, statement.name, statement.name_span, statement.if_not_exists):
        settings, fixed = dict(statement.settings), statement.fixed
        add(session, new_relation(session, statement, NamedCollection, (), settings=settings, fixed=fixed))
    return Result("CREATE NAMED COLLECTION")


def with_named_collection(session: Session, given: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """The settings of a statement with those of its named collection, and the ids of its dependencies.

    Raises UNDEFINED_OBJECT; CONNECTOR_OPTION for a setting that can't be overridden.
    """
    settings = dict(given)
    name = settings.pop(_SETTING, None)
    if name is None:
        return settings, ()
    found = session.find(Name(name, Span(0, 0)))
    if not isinstance(found, NamedCollection):
        known = [r.name for r in session.catalog.relations.values() if isinstance(r, NamedCollection)]
        raise error(
            "UNDEFINED_OBJECT",
            f'named collection "{name}" does not exist',
            hint=did_you_mean(name, known) or "Create it first: CREATE NAMED COLLECTION name AS setting = '…', ….",
        )
    for setting in found.fixed:
        if setting in settings:
            raise error(
                "CONNECTOR_OPTION",
                f'setting "{setting}" of {found.title} can\'t be overridden',
                hint="Leave it out here.",
            )
    return {**revealed_options(found.settings), **settings}, (found.id,)


@dataclass(frozen=True, kw_only=True)
class CreateFormatSchema(Create):
    """`CREATE FORMAT SCHEMA name AS 'text' TYPE type`. schema_span: that of the text."""

    takes: ClassVar[str | None] = ADMIN

    makes: ClassVar[type[Relation]] = FormatSchema

    type: SchemaType
    schema_text: str
    schema_span: Span


@reads("CREATE FORMAT SCHEMA", own="format schema")
def read_format_schema(cursor: Cursor, base: dict[str, Any]) -> CreateFormatSchema:
    """`CREATE FORMAT SCHEMA name AS 'text' TYPE Avro | Protobuf`: the cursor stands after SCHEMA."""
    if_not_exists = cursor.take("IF", "NOT", "EXISTS")
    name = cursor.relation_name()
    cursor.expect("AS")
    start = cursor.index
    text = cursor.string()
    text_span = span_of(cursor.tokens[start : cursor.index])
    cursor.expect("TYPE")
    kind = cursor.name(reserved=True)
    cursor.end()
    of: SchemaType | None = next((t for t in get_args(SchemaType) if t == kind.name.lower()), None)
    if of is None:
        raise cursor.error_at(
            kind.span,
            "INVALID_PARAMETER",
            f"a format schema can't be of type {kind.name}",
            hint="It is Avro or Protobuf.",
        )
    return CreateFormatSchema(
        **base,
        name=name.name,
        name_span=name.span,
        schema=name.schema,
        if_not_exists=if_not_exists,
        type=of,
        schema_text=text,
        schema_span=text_span,
    )


_KINDS: Final[dict[str, SchemaKind]] = {"avro": "AVRO", "protobuf": "PROTOBUF"}


@handles(CreateFormatSchema)
def create_format_schema(session: Session, statement: CreateFormatSchema) -> Result:
    """CREATE FORMAT SCHEMA. Raises CONNECTOR_OPTION for an invalid schema."""
    if not may_create(session, statement, statement.name, statement.name_span, statement.if_not_exists):
        return Result("CREATE FORMAT SCHEMA")
    with located(statement, statement.schema_span):
        written = RegisteredSchema(0, _KINDS[statement.type], statement.schema_text)
        if statement.type == "avro":
            avroschema.read_schema(written)
        else:
            protoschema.from_text(written)
    made = new_relation(session, statement, FormatSchema, (), type=statement.type, text=statement.schema_text)
    add(session, made)
    return Result("CREATE FORMAT SCHEMA")


def with_format_schema(session: Session, form: MessageFormat, named: str) -> tuple[MessageFormat, tuple[str, ...]]:
    """The format with the schema called `name` or `name:Message`, and the ids of its dependencies.

    Raises UNDEFINED_OBJECT, CONNECTOR_OPTION.
    """
    name, _, message = named.partition(":")
    found = session.find(Name(name, Span(0, 0)))
    if not isinstance(found, FormatSchema):
        known = [r.name for r in session.catalog.relations.values() if isinstance(r, FormatSchema)]
        raise error(
            "UNDEFINED_OBJECT",
            f'format schema "{name}" does not exist',
            hint=did_you_mean(name, known) or "Create it first: CREATE FORMAT SCHEMA name AS '…' TYPE Protobuf.",
        )
    if form.encoding != found.type:
        raise error(
            "CONNECTOR_OPTION",
            f'format schema "{name}" is one of {found.type}, and the messages are in {form.encoding}',
            hint="Choose another data_format.",
        )
    options = {**form.options, "schema": found.text} | ({"message": message} if message else {})
    return replace(form, options=options), (found.id,)
