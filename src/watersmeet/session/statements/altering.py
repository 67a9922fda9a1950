"""ALTER of relations: RENAME TO, ADD COLUMN, RENAME COLUMN, in one commit.

Views continue unchanged: their plans and files refer to relations by id, and to columns by their first names. A view's
text is not changed. The catalog stores the names that the text uses (`Relation.known`), so that `*` keeps its columns
and names keep their meaning, as in PostgreSQL. SHOW CREATE adds what is named differently now.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from watersmeet.catalog import ARRIVAL, Input, Relation, Source, Table, View, one
from watersmeet.connectors.registry import check_connector
from watersmeet.database.definitions import check_folded, is_called, kind_word, named, used_instead
from watersmeet.database.renaming import alter_indexes, note_names, with_column, with_column_called, with_name
from watersmeet.database.sessions.context import Session, error_at, sentence
from watersmeet.database.sessions.result import Result
from watersmeet.database.transactions import own_transaction
from watersmeet.dialects.tree.definitions import AddColumn, Alter, RenameColumn, RenameRelation
from watersmeet.errors import did_you_mean
from watersmeet.types import SqlType

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
