"""ALTER and DROP of relations, CREATE and DROP of schemas.

Views continue unchanged after RENAME TO, ADD COLUMN and RENAME COLUMN: their plans and files refer to relations by id,
and to columns by their first names. A view's text is not changed. The catalog stores the names that the text uses
(`Relation.known`), so that `*` keeps its columns and names keep their meaning, as in PostgreSQL. SHOW CREATE adds what
is named differently now.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from watersmeet.capture.capturing import drop_captured
from watersmeet.catalog import ARRIVAL, Input, Relation, Source, SqlFunction, Table, View, one
from watersmeet.connectors.registry import check_connector
from watersmeet.database.committing import own_transaction
from watersmeet.database.definitions import (
    alter_indexes,
    check_folded,
    is_called,
    kind_word,
    make_schema,
    named,
    note_names,
    remove,
    schemas_of,
    used_instead,
    with_column,
    with_column_called,
    with_dependents,
    with_name,
)
from watersmeet.database.sessions.context import Session, error_at, sentence
from watersmeet.database.sessions.result import Result
from watersmeet.dialects.tree.definitions import (
    AddColumn,
    Alter,
    CreateSchema,
    Drop,
    DropSchema,
    RenameColumn,
    RenameRelation,
)
from watersmeet.dialects.tree.statements import Name
from watersmeet.errors import did_you_mean
from watersmeet.session.access.kafkatopics import drop_topics
from watersmeet.session.statements.sqlfunctions import drop_functions
from watersmeet.values.types import SqlType

#: The values of existing rows in an added column that can't be NULL, by type: the types' defaults, as text.
_FILLS: Final = {
    "boolean": "false",
    "varchar": "",
    "date": "1970-01-01",
    "timestamp": "1970-01-01 00:00:00",
    "jsonb": "{}",
}


def alter(session: Session, statement: Alter) -> Result:
    """ALTER of one relation. In a transaction, others see it after COMMIT."""
    command = f"ALTER {kind_word(statement).upper()}"
    session.require_definer(command)
    relation = _altered(session, statement)
    if relation is None:
        return Result(command)
    with own_transaction(session):
        if isinstance(statement, RenameRelation):
            _rename(session, statement, relation)
        elif isinstance(statement, RenameColumn):
            _rename_column(session, statement, relation)
        elif isinstance(statement, AddColumn):
            _add_column(session, statement, relation)
    return Result(command)


def _altered(session: Session, statement: Alter) -> Relation | None:
    """The relation that a statement names; None if there is none and the statement has IF EXISTS."""
    name = statement.name
    relation = named(session, name, statement)
    if relation is None:
        return None
    # PostgreSQL, "ALTER TABLE": it renames views, too, and dbt writes so.
    renames = isinstance(statement, RenameRelation) and statement.kind == "table" and isinstance(relation, View)
    if not is_called(statement.kind, relation) and not renames:
        raise error_at(
            statement,
            name.span,
            "CATALOG_TYPE_MISMATCH",
            f'"{name.shown}" is not {one(kind_word(statement))}',
            hint=f"{used_instead('ALTER', relation, session.semantics)[0]}.",
        )
    if not relation.can_alter:
        raise error_at(statement, name.span, "FEATURE_NOT_SUPPORTED", f"ALTER of {one(relation.what)} is not supported")
    return relation


def _rename(session: Session, statement: RenameRelation, relation: Relation) -> None:
    new = statement.new
    if session.catalog.by_name(new.name, relation.schema) is relation:
        return
    if not new.name or "\0" in new.name:
        raise error_at(statement, new.span, "INVALID_NAME", "a name can't be empty or contain a zero byte")
    check_folded(session, statement, new.name, relation.schema, new.span, relation)
    note_names(session, relation)
    session.put(replace(session.catalog.relations[relation.id], name=new.name, sql=with_name(relation, new.name)))


def _add_column(session: Session, statement: AddColumn, relation: Relation) -> None:
    column, span = statement.column, statement.column_span
    _check_columns_change(session, statement, relation, "ADD COLUMN", sources=True)
    if any(c.name.lower() == column.name.lower() for c in relation.columns):
        if statement.if_not_exists and any(c.name == column.name for c in relation.columns):
            session.notice(f'column "{column.name}" of {relation.title} already exists, skipping')
            return
        raise error_at(
            statement,
            span,
            "DUPLICATE_COLUMN",
            f'column "{column.name}" of {relation.title} already exists',
            detail="Two columns can't have names that differ only in case."
            if not any(c.name == column.name for c in relation.columns)
            else None,
        )
    assert isinstance(relation, Input)
    stored = [relation.stored.get(c.name, c.name) for c in relation.columns]
    fill = None if column.nullable or isinstance(relation, Source) else _fill(column.type)
    if not column.nullable and (statement.default is None or (isinstance(relation, Table) and fill is None)):
        raise error_at(
            statement,
            span,
            "FEATURE_NOT_SUPPORTED",
            "ADD COLUMN of a column that can't be NULL is not supported",
            detail="Existing rows have no value for it.",
        )
    made: Input = replace(
        relation,
        columns=(*relation.columns, column),
        defaults=relation.defaults | ({} if statement.default is None else {column.name: statement.default}),
        ranges=relation.ranges | ({} if statement.range is None else {column.name: statement.range}),
        digits=relation.digits | ({} if statement.digits is None else {column.name: statement.digits}),
        fills=relation.fills | ({} if fill is None else {column.name: fill}),
        # In the data, another column may have that name, which was renamed since.
        stored=relation.stored | ({column.name: _free(column.name, stored)} if column.name in stored else {}),
        sql=with_column(relation, statement.definition),
    )
    if made.connector:
        made = check_connector(made)
    note_names(session, relation)
    session.put(made)
    alter_indexes(session, relation, lambda index: replace(index, columns=made.columns, stored=made.stored))


def _rename_column(session: Session, statement: RenameColumn, relation: Relation) -> None:
    _check_columns_change(session, statement, relation, "RENAME COLUMN", sources=False)
    old, new = statement.column, statement.new
    names = [c.name for c in relation.columns]
    if old.name not in names:
        raise error_at(
            statement,
            old.span,
            "UNDEFINED_COLUMN",
            f'column "{old.name}" of relation "{relation.shown}" does not exist',
            hint=did_you_mean(old.name, names),
        )
    if any(n.lower() == new.name.lower() for n in names if n != old.name):
        raise error_at(
            statement, new.span, "DUPLICATE_COLUMN", f'column "{new.name}" of {relation.title} already exists'
        )
    if relation.defaults.get(old.name) == ARRIVAL:
        raise error_at(
            statement,
            old.span,
            "FEATURE_NOT_SUPPORTED",
            f'RENAME of the system column "{old.name}" is not supported',
        )
    computing = [n for n, g in relation.generated.items() if old.name in (n, *(c.name for c in g.reads))]
    if computing:
        raise error_at(
            statement,
            old.span,
            "FEATURE_NOT_SUPPORTED",
            f'RENAME of a column that generated column "{computing[0]}" depends on is not supported'
            if computing[0] != old.name
            else f'RENAME of the generated column "{old.name}" is not supported',
        )
    writing = [r for r in session.catalog.relations.values() if r.feeds == relation.id]
    if writing:
        raise error_at(
            statement,
            statement.name.span,
            "DEPENDENT_OBJECTS",
            f"cannot rename a column of {relation.title} because other objects write it",
            detail=sentence([f"{writing[0].reader} does"]),
        )
    shown = tuple(new.name if n == old.name else n for n in names)
    note_names(session, relation)
    session.put(replace(relation.renamed(shown), sql=with_column_called(relation, old.name, new.name)))
    alter_indexes(session, relation, lambda index: index.renamed(shown))


def _check_columns_change(session: Session, statement: Alter, relation: Relation, what: str, *, sources: bool) -> None:
    """FEATURE_NOT_SUPPORTED for a relation whose columns follow from a query; TRANSACTION_STATE for one that the open
    transaction has written.
    """
    fed = isinstance(relation, Table) and bool(relation.connector) if sources else isinstance(relation, Source)
    if not relation.can_alter_columns or fed:
        kind = f"{relation.what} with a connector" if relation.connector else relation.what
        raise error_at(
            statement, statement.name.span, "FEATURE_NOT_SUPPORTED", f"{what} of {one(kind)} is not supported"
        )
    if session.transaction is not None and relation.id in session.transaction.changes:
        raise error_at(
            statement,
            statement.name.span,
            "TRANSACTION_STATE",
            f"{what} is not possible in the transaction that has written {relation.title}",
            hint="COMMIT first.",
        )


def _fill(kind: SqlType) -> str | None:
    return "0" if kind.is_numeric else _FILLS.get(kind.name)


def _free(name: str, taken: Sequence[str]) -> str:
    return next(n for i in range(2, len(taken) + 3) if (n := f"{name}_{i}") not in taken)


def drop(session: Session, statement: Drop) -> Result:
    """DROP of relations of one kind: all or none."""
    command = f"DROP {kind_word(statement).upper()}"
    session.require_definer(command)
    found = [r for name in statement.names if (r := _dropped(session, name, statement)) is not None]
    ids = with_dependents(session, found, statement, cascade=statement.cascade)
    if ids:
        gone = [r for r in session.catalog.relations.values() if r.id in ids or r.owner in ids]
        remove(session, ids)
        drop_topics(session, gone)
        drop_captured(session, gone)
    return Result(command)


def _dropped(session: Session, name: Name, statement: Drop) -> Relation | None:
    relation = named(session, name, statement)
    if relation is not None and not is_called(statement.kind, relation):
        hint, word = used_instead("DROP", relation, session.semantics)
        raise error_at(
            statement,
            name.span,
            "CATALOG_TYPE_MISMATCH",
            f'"{name.shown}" is not {one(kind_word(statement))}',
            hint=f"{hint}." if word is None else f"{hint} to remove {one(word)}.",
        )
    return relation


def create_schema(session: Session, statement: CreateSchema) -> Result:
    """CREATE SCHEMA. OR REPLACE also drops its content (SQLstream, "CREATE SCHEMA"), unless others read that."""
    if not (statement.replaces and statement.name.name in session.catalog.schemas):
        return make_schema(session, statement)
    session.require_definer("CREATE")
    relations, functions = _content(session, [statement.name.name])
    remove(session, with_dependents(session, relations, statement, cascade=False, verb="replace"))
    drop_functions(session, functions, statement, cascade=False)
    return Result(f"CREATE {session.semantics.schema_word.upper()}")


def drop_schema(session: Session, statement: DropSchema) -> Result:
    """DROP SCHEMA: all or none. CASCADE also drops the content and what reads it."""
    word = session.semantics.schema_word
    command = f"DROP {word.upper()}"
    session.require_definer(command)
    schemas = schemas_of(session, statement)
    relations, functions = _content(session, schemas)
    found: list[Relation | SqlFunction] = [*relations, *functions]
    if found and not statement.cascade:
        titles = [r.title for r in relations] + [f"function {f.shown}" for f in functions]
        raise error_at(
            statement,
            statement.span,
            "DEPENDENT_OBJECTS",
            f'cannot drop {word} "{found[0].schema}" because it is not empty',
            detail=sentence(f"{title} is in it" for title in titles),
            hint=f"Use DROP {word.upper()} … CASCADE to drop its content, too.",
        )
    with own_transaction(session):
        ids = with_dependents(session, relations, statement, cascade=True)
        if ids:
            gone = [session.catalog.relations[i] for i in ids]
            remove(session, ids)
            drop_topics(session, gone)
        drop_functions(session, functions, statement, cascade=True)
        session.put_schemas(tuple(s for s in session.catalog.schemas if s not in schemas))
    return Result(command)


def _content(session: Session, schemas: Sequence[str]) -> tuple[list[Relation], list[SqlFunction]]:
    """The relations and SQL functions in some schemas."""
    catalog = session.catalog
    functions = [f for f in catalog.functions.values() if f.schema in schemas and not f.dropped]
    return [r for r in catalog.relations.values() if r.schema in schemas], functions
