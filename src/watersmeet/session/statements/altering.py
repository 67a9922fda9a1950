"""ALTER of relations: RENAME TO, ADD COLUMN, RENAME COLUMN, in one commit.

Views continue unchanged: their plans and files refer to relations by id, and to columns by their first names. A view's
text is not changed. The catalog stores the names that the text uses (`Relation.known`), so that `*` keeps its columns
and names keep their meaning, as in PostgreSQL. SHOW CREATE adds what is named differently now.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from sqlglot.tokens import Token, TokenType

from watersmeet.catalog import ARRIVAL, Index, Input, Known, Relation, Source, Table, one
from watersmeet.dialects.registry import language_named
from watersmeet.dialects.script import read_script, tokenize
from watersmeet.dialects.statements import AddColumn, Alter, Create, CreateTable, RenameColumn, RenameRelation
from watersmeet.errors import did_you_mean
from watersmeet.session.access.context import Session, error_at, sentence
from watersmeet.session.access.definitions import check_folded, kind_word, named
from watersmeet.session.access.result import Result
from watersmeet.session.access.transactions import own_transaction
from watersmeet.session.access.words import is_called, used_instead
from watersmeet.sources.connectors import check_connector
from watersmeet.types import SqlType

#: The values of existing rows in an added column that can't be NULL, by type: the types' defaults, as text.
_FILLS: Final = {
    "boolean": "false",
    "varchar": "",
    "date": "1970-01-01",
    "timestamp": "1970-01-01 00:00:00",
    "jsonb": "{}",
}
#: Items of a column list other than columns.
_NO_COLUMNS: Final = ("PRIMARY", "PRIMARY KEY", "WATERMARK", "INDEX", "CONSTRAINT")


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
    if not is_called(statement.kind, relation):
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
    _note(session, relation)
    session.put(replace(session.catalog.relations[relation.id], name=new.name, sql=_with_name(relation, new.name)))


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
        sql=_with_column(relation, statement.definition),
    )
    if made.connector:
        made = check_connector(made)
    _note(session, relation)
    session.put(made)
    _alter_indexes(session, relation, lambda index: replace(index, columns=made.columns, stored=made.stored))


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
    _note(session, relation)
    session.put(replace(relation.renamed(shown), sql=_with_column_called(relation, old.name, new.name)))
    _alter_indexes(session, relation, lambda index: index.renamed(shown))


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


def _note(session: Session, relation: Relation) -> None:
    """Stores the present names of a relation for those whose text refers to it."""
    known = Known(relation.name, relation.schema, tuple(c.name for c in relation.columns))
    for other in list(session.catalog.relations.values()):
        names_it = relation.id in other.depends_on or relation.id == other.feeds
        if names_it and not isinstance(other, Index) and relation.id not in other.known:
            session.put(replace(other, known={**other.known, relation.id: known}))


def _alter_indexes(session: Session, relation: Relation, altered: Callable[[Relation], Relation]) -> None:
    for index in list(session.catalog.relations.values()):
        if isinstance(index, Index) and relation.id in index.depends_on:
            session.put(altered(index))


def _fill(kind: SqlType) -> str | None:
    return "0" if kind.is_numeric else _FILLS.get(kind.name)


def _free(name: str, taken: Sequence[str]) -> str:
    return next(n for i in range(2, len(taken) + 3) if (n := f"{name}_{i}") not in taken)


def _with_name(relation: Relation, name: str) -> str:
    """The CREATE statement with another name."""
    made = _created(relation)
    if made is None:
        return relation.sql
    written = _written(name, relation)
    if made.schema is not None:
        written = f"{_written(made.schema, relation)}.{written}"
    return f"{relation.sql[: made.name_span.start]}{written}{relation.sql[made.name_span.end :]}"


def _with_column(relation: Relation, definition: str) -> str:
    """The CREATE statement with a further column. CREATE TABLE … AS gets its columns in place of the query."""
    made = _created(relation)
    if made is None:
        return relation.sql
    if isinstance(made, CreateTable) and made.query is not None:
        columns = [f"{_written(c.name, relation)} {c.type.sql}" for c in relation.columns]
        return f"{relation.sql[: made.name_span.end]} ({', '.join([*columns, definition])})"
    _, closing, _ = _list(relation, made)
    return f"{relation.sql[: closing.start].rstrip()}, {definition}{relation.sql[closing.start :]}"


def _with_column_called(relation: Relation, old: str, new: str) -> str:
    """The CREATE statement with a column renamed: in its declaration, in keys, indexes and watermarks."""
    made = _created(relation)
    if made is None or (isinstance(made, CreateTable) and made.query is not None):
        return relation.sql
    language = language_named(relation.dialect)
    items, _, behind = _list(relation, made)
    places = [t for item in items for t in (item if item[0].text.upper() in _NO_COLUMNS else item[:1])]
    options = next((i for i, t in enumerate(behind) if t.text.upper() in ("WITH", "SETTINGS", "FORMAT")), len(behind))
    fold = {"lower": str.lower, "upper": str.upper}.get(str(language.semantics.folding), str)
    text = relation.sql
    for token in reversed([*places, *behind[:options]]):
        is_quoted = token.token_type == TokenType.IDENTIFIER
        if token.token_type != TokenType.STRING and (token.text if is_quoted else fold(token.text)) == old:
            text = f"{text[: token.start]}{_written(new, relation)}{text[token.end + 1 :]}"
    return text


def _list(relation: Relation, made: Create) -> tuple[list[list[Token]], Token, list[Token]]:
    """The items of the column list, its closing parenthesis, and what follows it."""
    tokens = [t for t in tokenize(relation.sql, language_named(relation.dialect)) if t.start >= made.name_span.end]
    depth, items = 0, [[]]  # type: ignore[var-annotated]
    for i, token in enumerate(tokens):
        depth -= token.token_type == TokenType.R_PAREN
        if depth == 0 and i:
            return [item for item in items if item], token, tokens[i + 1 :]
        if depth == 1 and token.token_type == TokenType.COMMA:
            items.append([])
        elif depth:
            items[-1].append(token)
        depth += token.token_type == TokenType.L_PAREN
    raise AssertionError(relation.sql)


def _created(relation: Relation) -> Create | None:
    """The statement that created it; None for an index that CREATE STREAM has created."""
    made = read_script(relation.sql, language_named(relation.dialect))[-1]
    return made if isinstance(made, Create) and made.name == relation.name else None


def _written(name: str, relation: Relation) -> str:
    """A name as the relation's dialect writes it."""
    plain = re.fullmatch("[a-z_][a-z0-9_]*", name) and language_named(relation.dialect).semantics.folding != "upper"
    return name if plain else '"' + name.replace('"', '""') + '"'
