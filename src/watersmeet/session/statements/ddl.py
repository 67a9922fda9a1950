"""CREATE and DROP of tables, sources, views and indexes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from watersmeet.binder import bind_query
from watersmeet.catalog import ARRIVAL, Relation, RelationKind
from watersmeet.dialects.queries import is_marked
from watersmeet.dialects.registry import language_named
from watersmeet.dialects.schemas import quoted
from watersmeet.dialects.statements import (
    Alter,
    Create,
    CreateIndex,
    CreateRelation,
    CreateSource,
    CreateTable,
    CreateView,
    Drop,
    Name,
    Statement,
)
from watersmeet.errors import Error, Span, did_you_mean
from watersmeet.planner import compile_connector_table
from watersmeet.session.access.context import Session, error_at, undefined_relation
from watersmeet.session.access.eventtimes import OPTIONS, event_time
from watersmeet.session.access.filling import clear_away, fill
from watersmeet.session.access.planning import most_join_rows
from watersmeet.session.access.reading import Bounded, bounded, readable
from watersmeet.session.access.replacing import check_replaceable, check_view
from watersmeet.session.access.result import Result
from watersmeet.session.access.schemas import schema_for
from watersmeet.session.access.transactions import own_transaction
from watersmeet.session.services.refreshing import refresh_read
from watersmeet.session.statements.tableas import insert_query
from watersmeet.sources.connectors import check_connector
from watersmeet.types import Field, Schema

#: What a word of DROP stands for, where it is no kind by its own name.
_KINDS: Final[dict[str, tuple[RelationKind, ...]]] = {
    "any view": ("view", "materialized view"),
    "pump": ("view", "materialized view"),
    "topic": ("table", "materialized view"),
    "dictionary": ("table", "view"),
}


def create_table(session: Session, statement: CreateTable) -> Result:
    """CREATE TABLE, with or without a connector, or AS a query."""
    # What is replaced may be read by the query that replaces it.
    query = bounded(session, statement.query, statement.text) if statement.query and statement.replaces else None
    if not may_create(session, statement, statement.name, statement.name_span, statement.if_not_exists):
        return Result("CREATE TABLE")
    if statement.query is not None:
        return _create_table_as(session, statement, query or bounded(session, statement.query, statement.text))
    relation = _checked(
        session,
        new_relation(
            session,
            statement,
            "table",
            statement.columns,
            primary_key=statement.primary_key,
            append_only=statement.append_only,
            connector=_connector(session, statement),
            event_time=event_time(statement),
            defaults=dict.fromkeys(statement.arrivals, ARRIVAL),
        ),
        statement,
    )
    if relation.connector:
        operators = compile_connector_table(relation, session.database.buckets)
        fill(session, relation, operators)
    else:
        add(session, relation)
    return Result("CREATE TABLE")


def create_source(session: Session, statement: CreateSource) -> Result:
    """CREATE SOURCE."""
    if not may_create(session, statement, statement.name, statement.name_span, statement.if_not_exists):
        return Result("CREATE SOURCE")
    if "connector" not in statement.options:
        raise error_at(
            statement,
            statement.name_span,
            "CONNECTOR_OPTION",
            "a source needs a connector",
            hint="Write WITH (connector = 'file', …).",
        )
    if statement.primary_key:
        raise error_at(
            statement,
            statement.name_span,
            "FEATURE_NOT_SUPPORTED",
            "a source has no primary key",
            hint="CREATE TABLE … WITH (connector = …) keeps the last row of each key.",
        )
    add(
        session,
        _checked(
            session,
            new_relation(
                session,
                statement,
                "source",
                statement.columns,
                append_only=True,
                connector=_connector(session, statement),
                event_time=event_time(statement),
                defaults=dict.fromkeys(statement.arrivals, ARRIVAL),
            ),
            statement,
        ),
    )
    return Result("CREATE SOURCE")


def create_view(session: Session, statement: CreateView) -> Result:
    """CREATE VIEW: kept as its text, bound to make sure that it can be read."""
    if not may_create(session, statement, statement.name, statement.name_span, statement.if_not_exists):
        return Result("CREATE VIEW")
    continuous = language_named(session.dialect).semantics.continuous
    if continuous == "streams" or (continuous == "marked" and is_marked(statement.query)):
        found = bind_query(
            statement.query,
            readable(session.catalog),
            statement.text,
            session.dialect,
            column_names=statement.column_names,
        )
        columns, depends_on, functions = found.columns, found.depends_on, found.functions
    else:
        query = bounded(session, statement.query, statement.text)
        columns, depends_on, functions = named_columns(query.columns, statement), query.named, query.functions
    check_columns(columns, statement)
    relation = new_relation(session, statement, "view", columns, depends_on=depends_on, functions=functions)
    existing = session.catalog.by_name(relation.name, relation.schema)
    if existing is not None:
        check_view(session, statement, existing, relation)
        relation = replace(relation, id=existing.id)
    add(session, relation)
    return Result("CREATE VIEW")


def create_index(session: Session, statement: CreateIndex) -> Result:
    """CREATE INDEX: an entry of the catalog, in the schema of its table."""
    table = session.relation(statement.table, statement)
    statement = replace(statement, schema=statement.schema or table.schema)
    if not may_create(session, statement, statement.name, statement.name_span, statement.if_not_exists):
        return Result("CREATE INDEX")
    if schema_for(session, statement) != table.schema:
        raise error_at(
            statement,
            statement.name_span,
            "INVALID_NAME",
            f'an index of "{table.shown}" is in its schema, "{table.schema}"',
            hint=f"Write CREATE INDEX {quoted(statement.name)} ON {quoted(table.schema)}.{quoted(table.name)}.",
        )
    if not table.is_stored:
        raise error_at(
            statement, statement.table.span, "CATALOG_TYPE_MISMATCH", f"can't create an index on {table.title}"
        )
    known = [c.name for c in table.columns]
    for name in (*statement.columns, *statement.include, *statement.distributed_by):
        if name not in known:
            raise error_at(
                statement,
                statement.span,
                "UNDEFINED_COLUMN",
                f'column "{name}" of relation "{table.name}" does not exist',
                hint=did_you_mean(name, known),
            )
    add(
        session,
        new_relation(
            session,
            statement,
            "index",
            table.columns,
            depends_on=(table.id,),
            index_columns=statement.columns,
            included=statement.include,
        ),
    )
    return Result("CREATE INDEX")


def drop(session: Session, statement: Drop) -> Result:
    """DROP of relations of one kind, all or none."""
    command = f"DROP {kind_word(statement).upper()}"
    session.require_definer(command)
    found = [r for name in statement.names if (r := _dropped(session, name, statement)) is not None]
    ids = with_dependents(session, found, statement, cascade=statement.cascade)
    if ids:
        remove(session, ids)
    return Result(command)


def with_dependents(
    session: Session, found: Sequence[Relation], statement: Statement, *, cascade: bool, verb: str = "drop"
) -> set[str]:
    """The ids of relations and of what reads them; DEPENDENT_OBJECTS if something does without cascade."""
    ids = {r.id for r in found}
    for relation in found:
        writing = [r for r in session.catalog.relations.values() if r.feeds == relation.id and not r.owner]
        above = [
            *session.catalog.dependents(relation.id),
            *writing,
            *(d for r in writing for d in session.catalog.dependents(r.id)),
        ]
        above = list({r.id: r for r in above if r.id not in ids}.values())
        # An index goes with its table, as it serves nothing else.
        ids |= {r.id for r in above if r.kind == "index"}
        above = [r for r in above if r.kind != "index"]
        if above and not cascade:
            detail = "; ".join(f"{r.reader} depends on it" for r in above)
            raise error_at(
                statement,
                statement.span,
                "DEPENDENT_OBJECTS",
                f"cannot {verb} {relation.title} because other objects depend on it",
                detail=detail[0].upper() + detail[1:] + ".",
                hint="Use DROP … CASCADE to drop the dependent objects too.",
            )
        for other in above:
            session.notice(f"drop cascades to {other.title}")
        ids |= {r.id for r in above}
    return ids


def new_relation(session: Session, statement: Create, kind: RelationKind, columns: Schema, **fields: Any) -> Relation:
    """What a statement makes, as the catalog keeps it. fields: others than id, name, schema, path, text and dialect."""
    fields.setdefault("most_join_rows", most_join_rows(session.variables))
    return Relation(
        session.catalog.new_id(kind),
        fields.pop("name", statement.name),
        kind,
        columns,
        sql=statement.sql,
        dialect=session.dialect,
        schema=schema_for(session, statement),
        path=session.catalog.path,
        known={} if session.view is None else session.view.known,
        **fields,
    )


def may_create(session: Session, statement: Create, name: str, span: Span, if_not_exists: bool) -> bool:
    """Whether to make the relation: not if it exists and IF NOT EXISTS is given.

    DUPLICATE_OBJECT, INVALID_NAME, UNDEFINED_OBJECT.
    """
    session.require_definer("CREATE")
    if not name:
        raise error_at(statement, span, "INVALID_NAME", "a name can't be empty")
    schema = schema_for(session, statement)
    existing = session.catalog.by_name(name, schema)
    if existing is not None:
        if statement.replaces:
            _give_way(session, statement, existing)
            return True
        if if_not_exists:
            session.notice(f'relation "{existing.shown}" already exists, skipping')
            return False
        raise error_at(statement, span, "DUPLICATE_OBJECT", f"{existing.title} already exists")
    check_folded(session, statement, name, schema, span)
    return True


def check_folded(
    session: Session, statement: Statement, name: str, schema: str, span: Span, own: Relation | None = None
) -> None:
    """DUPLICATE_OBJECT for a name that DuckDB could not tell from that of another relation than `own`."""
    shown = Relation("", name, "table", (), schema=schema).shown.lower()
    same = (r for r in session.catalog.relations.values() if r.shown.lower() == shown and not r.hidden and r is not own)
    folded = next(same, None)
    if folded is not None:
        detail = "upper and lower case" if folded.schema == schema else "where a dot belongs to the name"
        raise error_at(
            statement,
            span,
            "DUPLICATE_OBJECT",
            f"{folded.title} already exists",
            detail=f"Two relations can't have names that differ only in {detail}.",
        )


def _give_way(session: Session, statement: Create, existing: Relation) -> None:
    """Take away what the statement replaces. A plain view stays, as others may read it (`create_view`)."""
    check_replaceable(statement, existing)
    if type(statement) is not CreateView:
        remove(session, with_dependents(session, [existing], statement, cascade=False, verb="replace"))


def check_columns(columns: Sequence[Field], statement: Statement) -> None:
    """DUPLICATE_COLUMN for names that DuckDB could not tell apart."""
    seen: dict[str, str] = {}
    for column in columns:
        other = seen.setdefault(column.name.lower(), column.name)
        if other is not column.name:
            detail = None if other == column.name else "Two columns can't have names that differ only in case."
            raise error_at(
                statement,
                statement.span,
                "DUPLICATE_COLUMN",
                f'column "{column.name}" specified more than once',
                detail=detail,
            )


def named_columns(columns: Schema, statement: CreateView) -> Schema:
    """The columns of a view: the query's, under the names that the statement gives."""
    names = statement.column_names
    if not names:
        return columns
    if len(names) > len(columns):
        raise error_at(
            statement, statement.name_span, "SYNTAX_ERROR", "CREATE VIEW specifies more column names than columns"
        )
    renamed = [Field(n, c.type, c.nullable) for n, c in zip(names, columns, strict=False)]
    return (*renamed, *columns[len(names) :])


def add(session: Session, relation: Relation) -> None:
    """Put a relation into the catalog."""
    session.put(relation)


def remove(session: Session, ids: set[str]) -> None:
    """Take relations out of the catalog and of the circuit, with the hidden views that work for them. In a transaction
    what others see stays until COMMIT.
    """
    database = session.database
    with database.guard:
        ids = ids | {r.id for r in session.catalog.relations.values() if r.owner in ids}
        if session.transaction is not None:
            for relation_id in ids:
                database.content.drop(relation_id)
            ids = session.transaction.drop(ids, database.catalog)
        if ids:
            database.change_catalog(database.catalog.without(ids))
    clear_away(session, ids)


def _create_table_as(session: Session, statement: CreateTable, query: Bounded) -> Result:
    names = statement.column_names or tuple(c.name for c in query.columns)
    if len(names) != len(query.columns):
        raise error_at(
            statement,
            statement.name_span,
            "SYNTAX_ERROR",
            f"CREATE TABLE names {len(names)} columns, the query has {len(query.columns)}",
        )
    columns = tuple(Field(n, c.type) for n, c in zip(names, query.columns, strict=True))
    check_columns(columns, statement)
    refresh_read(session, query.depends_on)
    relation = new_relation(session, statement, "table", columns, append_only=statement.append_only)
    with own_transaction(session):
        add(session, relation)
        return insert_query(session, relation, query)


def _connector(session: Session, statement: CreateRelation) -> dict[str, str]:
    """The options of the connector; none if there is none, or if tests stand for it."""
    options = {n: v for n, v in statement.options.items() if n not in OPTIONS}
    if "connector" not in options and options:
        raise error_at(
            statement,
            statement.name_span,
            "CONNECTOR_OPTION",
            f"option {min(options)} needs a connector",
            hint="Write WITH (connector = …, …).",
        )
    return {} if session.replace_connectors else options


def _checked(session: Session, relation: Relation, statement: CreateRelation) -> Relation:
    """The relation as the catalog keeps it, if its columns and its connector's options can work."""
    if not relation.columns:
        raise error_at(
            statement,
            statement.name_span,
            "FEATURE_NOT_SUPPORTED",
            f'{relation.kind} "{relation.shown}" has no columns',
            hint="List the columns: they are not read from the data.",
        )
    check_columns(relation.columns, statement)
    if relation.connector:
        try:
            session.require_files(relation.connector)
            return check_connector(relation)
        except Error as err:
            err.sql, err.span = statement.text, err.span or statement.name_span
            raise
    return relation


def named(session: Session, name: Name, statement: Drop | Alter) -> Relation | None:
    """The relation of that name, of whatever kind; None if there is none, which IF EXISTS allows.

    UNDEFINED_RELATION, with near names of the statement's kind.
    """
    relation = session.find(name)
    if relation is None and not statement.if_exists:
        same_kind = [r.shown for r in session.catalog.relations.values() if is_of_kind(r, statement) and not r.hidden]
        raise undefined_relation(session.catalog, name, statement, kind_word(statement), same_kind)
    if relation is None:
        session.notice(f'{kind_word(statement)} "{name.shown}" does not exist, skipping')
    return relation


def _dropped(session: Session, name: Name, statement: Drop) -> Relation | None:
    relation = named(session, name, statement)
    if relation is not None and not is_of_kind(relation, statement):
        kind = (
            relation.what
            if relation.what in ("dictionary", "pump", "stream") and session.semantics.continuous != "never"
            else relation.kind
        )
        raise error_at(
            statement,
            name.span,
            "CATALOG_TYPE_MISMATCH",
            f'"{name.shown}" is not {_article(kind_word(statement))}',
            hint=f"Use DROP {kind.upper()} to remove {_article(kind)}.",
        )
    return relation


def is_of_kind(relation: Relation, statement: Drop | Alter) -> bool:
    """True if the word of the statement stands for such a relation."""
    if statement.kind == "stream":
        return relation.kind == "source" or relation.mode is not None or relation.external is not None
    if (statement.kind == "dictionary" and relation.dictionary is None) or relation.pump != (statement.kind == "pump"):
        return False
    return relation.kind in _KINDS.get(statement.kind, (statement.kind,))


def kind_word(statement: Drop | Alter) -> str:
    """The kind of relation that the statement says, for messages."""
    return "view" if statement.kind == "any view" else statement.kind


def _article(kind: str) -> str:
    return f"an {kind}" if kind == "index" else f"a {kind}"
