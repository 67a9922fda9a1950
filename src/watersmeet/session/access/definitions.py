"""Creating, naming and dropping relations in the catalog."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from watersmeet.catalog import AddressRanges, Index, MaterializedView, Relation, SinkQuery, Table, TopicWriter
from watersmeet.dialects.tree.definitions import Alter, Create, CreateView, Drop
from watersmeet.dialects.tree.statements import Name, Statement
from watersmeet.errors import Span
from watersmeet.session.access.context import Session, error_at, sentence, undefined_relation
from watersmeet.session.access.filling import clear_away
from watersmeet.session.access.planning import most_join_rows
from watersmeet.session.access.replacing import check_replaceable
from watersmeet.session.access.schemas import schema_for
from watersmeet.session.access.secrets import kept
from watersmeet.session.access.words import is_called
from watersmeet.types import Field, Schema

R = TypeVar("R", bound=Relation)


def new_relation(session: Session, statement: Create, kind: type[R], columns: Schema, **fields: Any) -> R:
    """The catalog entry for what a statement creates. fields: all but id, name, schema, path, text and dialect.

    Secrets that the statement gives in plain are not in it, but references to them.
    """
    if issubclass(kind, MaterializedView):
        fields.setdefault("most_join_rows", most_join_rows(session.variables))
    relation = kind(
        session.catalog.new_id(kind),
        fields.pop("name", statement.name),
        columns,
        sql=statement.sql,
        dialect=session.dialect,
        schema=schema_for(session, statement),
        path=session.catalog.path,
        known={} if session.view is None else session.view.known,
        **fields,
    )
    return kept(session, relation)


def may_create(session: Session, statement: Create, name: str, span: Span, if_not_exists: bool) -> bool:
    """Whether to create the relation: False if it exists and the statement has IF NOT EXISTS.

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
    """DUPLICATE_OBJECT for a name that DuckDB can't distinguish from that of another relation than `own`."""
    shown = Table("", name, (), schema=schema).shown.lower()
    same = (r for r in session.catalog.relations.values() if r.shown.lower() == shown and r.is_named and r is not own)
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
    """Removes what the statement replaces. A plain view stays, because others may read it (`create_view`)."""
    check_replaceable(statement, existing)
    if type(statement) is not CreateView:
        remove(session, with_dependents(session, [existing], statement, cascade=False, verb="replace"))


def check_columns(columns: Sequence[Field], statement: Statement) -> None:
    """DUPLICATE_COLUMN for names that DuckDB can't distinguish."""
    seen: dict[str, str] = {}
    for column in columns:
        folded = column.name.lower()
        if folded in seen:
            same = seen[folded] == column.name
            raise error_at(
                statement,
                statement.span,
                "DUPLICATE_COLUMN",
                f'column "{column.name}" specified more than once',
                detail=None if same else "Two columns can't have names that differ only in case.",
            )
        seen[folded] = column.name


def named_columns(columns: Schema, statement: CreateView) -> Schema:
    """The columns of a view: those of its query, with the names that the statement gives them."""
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
    """Adds a relation to the catalog."""
    session.put(relation)


def remove(session: Session, ids: set[str]) -> None:
    """Removes relations, with their hidden helper views, from the catalog and the circuit. In a transaction, what
    others see stays until COMMIT.
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


def with_dependents(
    session: Session, found: Sequence[Relation], statement: Statement, *, cascade: bool, verb: str = "drop"
) -> set[str]:
    """The ids of relations and of everything that reads them. DEPENDENT_OBJECTS if there is any and not `cascade`."""
    ids = {r.id for r in found}
    for relation in found:
        writing = [r for r in session.catalog.relations.values() if r.feeds == relation.id and not r.owner]
        above = [
            *session.catalog.dependents(relation.id),
            *writing,
            *(d for r in writing for d in session.catalog.dependents(r.id)),
        ]
        # What is hidden goes with its owner, which reads the same.
        above = list({r.id: r for r in above if r.id not in ids and not isinstance(r, SinkQuery)}.values())
        # An index is removed with its table, as it serves nothing else; so are the processors of a topic.
        ids |= {r.id for r in above if _serves(r, relation, verb)}
        above = [r for r in above if r.id not in ids]
        if above and not cascade:
            raise error_at(
                statement,
                statement.span,
                "DEPENDENT_OBJECTS",
                f"cannot {verb} {relation.title} because other objects depend on it",
                detail=sentence(f"{r.reader} depends on it" for r in above),
                hint="Use DROP … CASCADE to drop the dependent objects too.",
            )
        for other in above:
            session.notice(f"drop cascades to {other.title}")
        ids |= {r.id for r in above}
    return ids


def _serves(relation: Relation, other: Relation, verb: str) -> bool:
    """Whether a relation goes with another. The processors of a topic that is replaced would write what it was."""
    writes = isinstance(relation, TopicWriter) and relation.feeds == other.id
    return isinstance(relation, (Index, AddressRanges)) or (writes and verb == "drop")


def named(session: Session, name: Name, statement: Drop | Alter) -> Relation | None:
    """The relation with that name, of any kind; None if there is none and the statement has IF EXISTS.

    UNDEFINED_RELATION, with similar names of the statement's kind.
    """
    relation = session.find(name)
    if relation is None and not statement.if_exists:
        same_kind = [r.shown for r in session.catalog.relations.values() if is_called(statement.kind, r) and r.is_named]
        raise undefined_relation(session.catalog, name, statement, kind_word(statement), same_kind)
    if relation is None:
        session.notice(f'{kind_word(statement)} "{name.shown}" does not exist, skipping')
    return relation


def kind_word(statement: Drop | Alter) -> str:
    """The kind of relation that the statement names, for messages."""
    return "view" if statement.kind == "any view" else statement.kind
