"""Binds the constraints of CREATE TABLE; ALTER TABLE … ADD, DROP and RENAME CONSTRAINT; SET CONSTRAINTS; CREATE INDEX.

PostgreSQL 17, "Constraints", "ALTER TABLE", "SET CONSTRAINTS".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from watersmeet.binder.sqlfunctions import with_created_types
from watersmeet.catalog import (
    Catalog,
    Check,
    Constraint,
    Domain,
    ForeignKey,
    Index,
    Input,
    Relation,
    Stream,
    Table,
    Unique,
    one,
)
from watersmeet.database.assignment import bound_value, positional
from watersmeet.database.committing import own_transaction, put_altered
from watersmeet.database.constraints import check_at_commit, check_stored, references_to
from watersmeet.database.definitions import (
    add,
    alter_indexes,
    drop_reference,
    may_create,
    new_relation,
    note_names,
    schema_for,
    with_column,
    without_constraint,
)
from watersmeet.database.sessions.context import Session, depended_on, error_at, undefined_column
from watersmeet.database.sessions.result import Result
from watersmeet.dialects.parsing import parse
from watersmeet.dialects.statements.constraints import AddConstraint, DropConstraint, RenameConstraint, SetConstraints
from watersmeet.dialects.tree.definitions import (
    AddColumn,
    Alter,
    ConstraintClause,
    CreateIndex,
    CreateTable,
    SerialClause,
)
from watersmeet.dialects.tree.queries import node_span
from watersmeet.dialects.tree.statements import Name, Statement, Update
from watersmeet.dialects.tree.tokens import not_supported, quoted
from watersmeet.errors import Error, did_you_mean
from watersmeet.session.clauses import add_sequence, check_domain, type_named
from watersmeet.session.statements.altering import alter, altered, check_columns_change
from watersmeet.session.statements.dml import update
from watersmeet.values import DEFAULT_DIALECT
from watersmeet.values.types import BOOLEAN, SqlType

#: The variable with the effect of INSERT on an existing primary key.
KEY_CONFLICT: Final = "primary_key_conflict"


def with_constraints(
    session: Session, relation: Table, clauses: Sequence[ConstraintClause], statement: Statement
) -> Table:
    """The table with additional constraints, whose rows are not checked.

    Raises UNDEFINED_COLUMN, UNDEFINED_RELATION, DUPLICATE_CONSTRAINT, INVALID_FOREIGN_KEY, DATATYPE_MISMATCH, and the
    errors of expressions.
    """
    # The keys come first: a foreign key may reference those of its own table.
    for clause in sorted(clauses, key=lambda c: c.kind == "foreign key"):
        _check_columns(relation, clause.columns, statement)
        columns = tuple(n.name for n in clause.columns)
        others = {c.name for c in relation.constraints} if clause.kind == "primary key" else names_of(relation)
        if clause.name and clause.name in others:
            raise error_at(
                statement,
                clause.span,
                "DUPLICATE_CONSTRAINT",
                f'constraint "{clause.name}" for relation "{relation.name}" already exists',
            )
        if clause.kind == "primary key":
            if clause.deferrable:
                raise not_supported("a deferrable primary key", statement.text, clause.span)
            relation = _with_key(relation, clause, columns)
        elif clause.kind == "unique":
            name = _name(relation, clause, "_".join((*columns, "key")))
            relation = replace(
                relation, uniques=(*relation.uniques, Unique(name, columns, clause.deferrable, clause.deferred))
            )
        elif clause.kind == "check":
            relation = replace(
                relation, checks=(*relation.checks, _check(session.catalog, relation, clause, statement))
            )
        else:
            name = _name(relation, clause, "_".join((*columns, "fkey")))
            parent, referenced = _referenced(session, relation, clause, statement)
            actions = clause.on_delete, clause.on_update
            key = ForeignKey(name, columns, parent.id, referenced, *actions, clause.deferrable, clause.deferred)
            relation = replace(relation, foreign_keys=(*relation.foreign_keys, key))
            session.check_lasting(relation)
    return relation


def constrained(session: Session, relation: Table, statement: CreateTable) -> Table:
    """The table of CREATE TABLE with its constraints, and with the effect of INSERT on an existing primary key: that of
    the statement, or the session's default. Raises the errors of `with_constraints`.
    """
    if relation.connector:
        return relation
    relation = with_constraints(session, relation, statement.constraints, statement)
    rejects = statement.rejects_duplicates
    if not relation.primary_key or statement.conflict is not None or rejects is False:
        return relation
    if rejects:
        return replace(relation, rejects_duplicates=True)
    if session.dialect != DEFAULT_DIALECT or session.variables.get(KEY_CONFLICT) != "error":
        return relation
    return replace(relation, rejects_duplicates=True, sql=f"{relation.sql} ON CONFLICT ERROR")


def _with_key(relation: Table, clause: ConstraintClause, columns: tuple[str, ...]) -> Table:
    made = tuple(replace(c, nullable=c.nullable and c.name not in columns) for c in relation.columns)
    return replace(relation, primary_key=columns, columns=made, key=clause.name)


def names_of(relation: Relation) -> set[str]:
    """The names of a table's constraints."""
    key = {relation.key_name} if relation.primary_key else set()
    return key | {c.name for c in relation.constraints}


def _name(relation: Table, clause: ConstraintClause, end: str) -> str:
    """The name of a constraint, by default PostgreSQL's: that of the table with an ending, and a number if needed."""
    found, taken = clause.name or f"{relation.name}_{end}", names_of(relation)
    return next(n for i in range(len(taken) + 1) if (n := f"{found}{i or ''}") not in taken)


def _check_columns(relation: Relation, columns: Sequence[Name], statement: Statement) -> None:
    """Raises UNDEFINED_COLUMN, DUPLICATE_COLUMN for a column that occurs twice."""
    known = [c.name for c in relation.columns]
    for place, column in enumerate(columns):
        if column.name not in known:
            raise undefined_column(relation, column.name, column.span, statement)
        if column.name in [c.name for c in columns[:place]]:
            raise error_at(
                statement, column.span, "DUPLICATE_COLUMN", f'column "{column.name}" appears twice in a constraint'
            )


def _check(catalog: Catalog, relation: Table, clause: ConstraintClause, statement: Statement) -> Check:
    tree = clause.condition
    assert tree is not None
    tree = with_created_types(tree, catalog)
    value = bound_value(tree, relation.columns, relation.name, statement.text, "a CHECK constraint")
    if value.type != BOOLEAN:
        raise error_at(
            statement,
            node_span(tree) or clause.span,
            "DATATYPE_MISMATCH",
            f"argument of CHECK must be type boolean, not type {value.type.sql}",
        )
    made = positional(value, relation.columns)
    read = [c.name for c in made.reads]
    return Check(_name(relation, clause, "_".join([*(read if len(read) == 1 else []), "check"])), made, clause.text)


def _referenced(
    session: Session, relation: Table, clause: ConstraintClause, statement: Statement
) -> tuple[Table, tuple[str, ...]]:
    """The table of a foreign key, and the names of its columns in the stored data."""
    name = clause.table
    assert name is not None
    is_own = name.name == relation.name and name.schema in (None, relation.schema)
    parent = relation if is_own else session.relation(name, statement)
    if not isinstance(parent, Table) or isinstance(parent, Stream) or parent.connector or not parent.can_alter:
        raise error_at(
            statement, name.span, "CATALOG_TYPE_MISMATCH", f'referenced relation "{name.shown}" is not a plain table'
        )
    _check_columns(parent, clause.referenced, statement)
    columns = tuple(n.name for n in clause.referenced) or parent.primary_key
    if not columns:
        raise error_at(
            statement, name.span, "UNDEFINED_OBJECT", f'there is no primary key for referenced table "{parent.name}"'
        )
    if len(columns) != len(clause.columns):
        raise error_at(
            statement,
            clause.span,
            "INVALID_FOREIGN_KEY",
            "number of referencing and referenced columns for foreign key disagree",
        )
    if {*columns} not in [{*key} for key in (parent.primary_key, *(u.columns for u in parent.uniques))]:
        raise error_at(
            statement,
            clause.span,
            "INVALID_FOREIGN_KEY",
            f'there is no unique constraint matching given keys for referenced table "{parent.name}"',
        )
    for own, other in zip(clause.columns, columns, strict=True):
        mine, theirs = relation.column(own.name).type, parent.column(other).type
        if not _comparable(mine, theirs):
            raise error_at(
                statement,
                own.span,
                "DATATYPE_MISMATCH",
                f'foreign key constraint on column "{own.name}" cannot be implemented',
                detail=f'Key columns "{own.name}" and "{other}" are of incompatible types: '
                f"{mine.sql} and {theirs.sql}.",
            )
    return parent, tuple(parent.stored.get(c, c) for c in columns)


def _comparable(one: SqlType, other: SqlType) -> bool:
    return one == other or (one.is_numeric and other.is_numeric)


def _plain_table(session: Session, statement: Alter, what: str) -> Table | None:
    """The table that a statement alters. Raises FEATURE_NOT_SUPPORTED for one whose rows SQL does not write alone."""
    session.require_definer("ALTER TABLE")
    relation = altered(session, statement)
    if relation is None:
        return None
    check_columns_change(statement, relation, what, sources=True)
    if type(relation) is not Table:
        raise not_supported(f"{what} of {one(relation.what)}", statement.text, statement.name.span)
    return relation


def add_column(session: Session, statement: AddColumn) -> Result:
    """ALTER TABLE … ADD COLUMN, with the constraints of the column, and with the next numbers of its sequence in
    existing rows.
    """
    found = session.find(statement.name)
    is_there = found is not None and statement.column.name in [c.name for c in found.columns]
    named = None if statement.named_type is None else type_named(session, statement.named_type)
    if named is not None:
        column = replace(statement.column, type=named.kind)
        statement = replace(statement, column=column, named_type=None, declared_type=named.declared)
    if statement.declared is not None:
        statement = replace(statement, declared=with_created_types(statement.declared, session.catalog))
    with own_transaction(session):
        if statement.serial is not None and not is_there:
            statement = replace(statement, column=replace(statement.column, nullable=True))
        result = alter(session, statement)
        if is_there or found is None:
            return result
        if statement.serial is not None:
            _number(session, session.catalog.relations[found.id], statement, statement.serial)
        if named is not None and named.domain is not None:
            _add_domain(session, session.catalog.relations[found.id], statement, named.domain)
        if statement.constraints:
            relation = session.catalog.relations[found.id]
            assert isinstance(relation, Table)
            add_checked(session, relation, with_constraints(session, relation, statement.constraints, statement))
    return result


def _add_domain(session: Session, relation: Relation, statement: AddColumn, domain: Domain) -> None:
    """Gives a new column the rules of its domain, which existing rows must meet."""
    if not isinstance(relation, Input) or relation.connector:
        what = f"a domain as the type of a column of {relation.title}, which a connector fills,"
        raise not_supported(what, statement.text, statement.column_span)
    if domain.default and statement.declared is None:
        hint = "Write the DEFAULT of the column."
        what = "ADD COLUMN of a domain with a DEFAULT"
        raise not_supported(what, statement.text, statement.column_span, hint=hint)
    made = replace(relation, domains={**relation.domains, statement.column.name: domain})
    session.put(made)
    check_domain(session, made, statement.column.name, domain, statement)


def _number(session: Session, relation: Relation, statement: AddColumn, clause: SerialClause) -> None:
    """Gives a new column its sequence, and existing rows the next numbers of it."""
    name = statement.column.name
    if type(relation) is not Table or relation.append_only:
        raise not_supported(
            f"ADD COLUMN of a serial column to {one(relation.what)} whose rows can't be updated",
            statement.text,
            statement.column_span,
        )
    serial = add_sequence(session, relation, name, clause)
    sequence = session.catalog.relations[serial.sequence]
    session.put(replace(relation, serials={**relation.serials, name: serial}))
    called = ".".join(quoted(n) for n in (sequence.schema, sequence.name)).replace("'", "''")
    table = ".".join(quoted(n) for n in (relation.schema, relation.name))
    (changes,) = parse(f"UPDATE {table} SET {quoted(name)} = nextval('{called}')", session.dialect)
    assert isinstance(changes, Update)
    update(session, changes)
    now = session.catalog.relations[relation.id]
    columns = tuple(replace(c, nullable=False) if c.name == name else c for c in now.columns)
    put_altered(session, now, replace(now, columns=columns))


def add_constraint(session: Session, statement: AddConstraint) -> Result:
    """ALTER TABLE … ADD constraint. Raises UNIQUE_VIOLATION, CHECK_VIOLATION, NOT_NULL_VIOLATION, FOREIGN_KEY_VIOLATION
    for an existing row, now and again at COMMIT.
    """
    relation = _plain_table(session, statement, "ADD CONSTRAINT")
    if relation is None:
        return Result("ALTER TABLE")
    clause = statement.constraint
    if clause.kind == "primary key":
        _check_new_key(relation, statement)
    made = with_constraints(session, relation, [clause], statement)
    if clause.kind == "primary key" and session.variables.get(KEY_CONFLICT) == "error":
        made = replace(made, rejects_duplicates=True)
    add_checked(session, relation, replace(made, sql=with_column(relation, statement.constraint_text)))
    return Result("ALTER TABLE")


def add_checked(session: Session, relation: Table, made: Table) -> None:
    """Replaces a table by the same one with more constraints, which its rows must meet."""
    with own_transaction(session):
        note_names(session, relation)
        put_altered(session, relation, made)
        alter_indexes(session, relation, lambda index: replace(index, columns=made.columns, stored=made.stored))
        assert session.transaction is not None
        session.transaction.unchecked_tables.add(relation.id)
        with session.database.guard:
            check_stored(session, made)


def with_checks_bound(session: Session, relation: Table, column: str, statement: Statement) -> Table:
    """The table whose CHECK constraints that read a column are bound to its present type. Raises the errors of ADD
    CONSTRAINT.
    """
    read = [c for c in relation.checks if column in [r.name for r in c.condition.reads]]
    bound = replace(relation, checks=tuple(c for c in relation.checks if c not in read))
    for check in read:
        text = f"ALTER TABLE {quoted(relation.name)} ADD CONSTRAINT {quoted(check.name)} CHECK ({check.text})"
        (added,) = parse(text, session.dialect)
        assert isinstance(added, AddConstraint)
        made = _check(session.catalog, bound, added.constraint, statement)
        bound = replace(bound, checks=(*bound.checks, replace(made, text=check.text, comment=check.comment)))
    return bound


def _check_new_key(relation: Table, statement: AddConstraint) -> None:
    """Raises an error for a table that can't get a primary key."""
    if relation.primary_key:
        raise error_at(
            statement,
            statement.constraint.span,
            "EXPRESSION_WITHOUT_NAME",
            f'multiple primary keys for table "{relation.name}" are not allowed',
        )
    if relation.append_only or relation.event_time is not None:
        why = "APPEND ONLY" if relation.append_only else "a watermark"
        raise not_supported(f"ADD PRIMARY KEY of a table with {why}", statement.text, statement.constraint.span)


def _constraint(relation: Table, name: Name, statement: Statement) -> Constraint | None:
    """The constraint of a table with a name; None for its primary key. Raises UNDEFINED_OBJECT."""
    if relation.primary_key and name.name == relation.key_name:
        return None
    found = next((c for c in relation.constraints if c.name == name.name), None)
    if found is None or (isinstance(found, Unique) and found.index):
        raise missing_constraint(relation, name, statement)
    return found


def missing_constraint(relation: Relation, name: Name, statement: Statement) -> Error:
    """The error UNDEFINED_OBJECT for a constraint."""
    return error_at(
        statement,
        name.span,
        "UNDEFINED_OBJECT",
        f'constraint "{name.name}" of relation "{relation.name}" does not exist',
    )


def without(relation: Table, constraint: Constraint | None) -> Table:
    """The table without a constraint; None is its primary key."""
    if constraint is None:
        return replace(relation, primary_key=(), key="", key_comment="", rejects_duplicates=False, conflict=None)
    return replace(
        relation,
        uniques=tuple(c for c in relation.uniques if c is not constraint),
        checks=tuple(c for c in relation.checks if c is not constraint),
        foreign_keys=tuple(c for c in relation.foreign_keys if c is not constraint),
    )


def drop_constraint(session: Session, statement: DropConstraint) -> Result:
    """ALTER TABLE … DROP CONSTRAINT. Raises DEPENDENT_OBJECTS if a foreign key references a dropped key, or another
    object reads a table that loses its primary key.
    """
    relation = _plain_table(session, statement, "DROP CONSTRAINT")
    if relation is None:
        return Result("ALTER TABLE")
    name = statement.constraint
    if statement.if_constraint_exists and name.name not in names_of(relation):
        session.notice(f'constraint "{name.name}" of relation "{relation.name}" does not exist, skipping')
        return Result("ALTER TABLE")
    found = _constraint(relation, name, statement)
    columns = relation.primary_key if found is None else found.columns if isinstance(found, Unique) else ()
    others = _using(session, relation, columns) if columns else []
    readers = list(session.catalog.dependents(relation.id)) if found is None else []
    if readers or (others and not statement.cascade):
        uses = [f'constraint "{key.name}" of {child.title} depends on it' for child, key in others]
        raise depended_on(
            statement,
            name.span,
            f'drop constraint "{name.name}" of {relation.title}',
            [*(f"{r.reader} reads the table" for r in readers), *uses],
            hint="Drop these first." if readers else "Use DROP CONSTRAINT … CASCADE to drop the dependent objects too.",
        )
    with own_transaction(session):
        note_names(session, relation)
        session.put(without(replace(relation, sql=without_constraint(relation, found)), found))
        for child, key in others:
            drop_reference(session, child.id, key)
    return Result("ALTER TABLE")


def _using(session: Session, relation: Table, columns: tuple[str, ...]) -> list[tuple[Relation, ForeignKey]]:
    """The foreign keys that need a key of a table."""
    stored = {relation.stored.get(c, c) for c in columns}
    return [(r, key) for r, key in references_to(session.catalog, relation.id) if {*key.referenced} == stored]


def rename_constraint(session: Session, statement: RenameConstraint) -> Result:
    """ALTER TABLE … RENAME CONSTRAINT."""
    relation = _plain_table(session, statement, "RENAME CONSTRAINT")
    if relation is None:
        return Result("ALTER TABLE")
    found, new = _constraint(relation, statement.constraint, statement), statement.new
    if new.name in names_of(relation):
        raise error_at(
            statement,
            new.span,
            "DUPLICATE_CONSTRAINT",
            f'constraint "{new.name}" for relation "{relation.name}" already exists',
        )
    sql = without_constraint(relation, found, new.name)
    with own_transaction(session):
        note_names(session, relation)
        session.put(_renamed(replace(relation, sql=sql), found, new.name))
    return Result("ALTER TABLE")


def _renamed(relation: Table, found: Constraint | None, name: str) -> Table:
    if found is None:
        return replace(relation, key=name)
    return replace(
        relation,
        uniques=tuple(replace(c, name=name) if c is found else c for c in relation.uniques),
        checks=tuple(replace(c, name=name) if c is found else c for c in relation.checks),
        foreign_keys=tuple(replace(c, name=name) if c is found else c for c in relation.foreign_keys),
    )


def set_constraints(session: Session, statement: SetConstraints) -> Result:
    """SET CONSTRAINTS: IMMEDIATE also checks the changes of the transaction. Without a transaction it has no effect."""
    known = {c.name for r in session.catalog.relations.values() if isinstance(r, Table) for c in r.constraints}
    for name in statement.names or ():
        if name.name not in known:
            raise error_at(statement, name.span, "UNDEFINED_OBJECT", f'constraint "{name.name}" does not exist')
    transaction = session.transaction
    if transaction is None:
        session.notice("SET CONSTRAINTS can only be used in transaction blocks")
        return Result("SET CONSTRAINTS")
    if statement.names is None:
        transaction.deferring = {"": statement.deferred}
    else:
        transaction.deferring |= {n.name: statement.deferred for n in statement.names}
    if not statement.deferred:
        with session.database.guard:
            check_at_commit(session)
    return Result("SET CONSTRAINTS")


def create_index(session: Session, statement: CreateIndex) -> Result:
    """CREATE INDEX: a catalog entry in the schema of its table. A unique index is also a key of the table."""
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
    index = new_relation(
        session,
        statement,
        Index,
        table.columns,
        depends_on=(table.id,),
        index_columns=statement.columns,
        included=statement.include,
    )
    with own_transaction(session):
        add(session, index)
        if statement.is_unique:
            if type(table) is not Table or table.connector:
                raise not_supported(f"a unique index of {one(table.what)}", statement.text, statement.table.span)
            unique = Unique(index.name, index.index_columns, index=index.id)
            add_checked(session, table, replace(table, uniques=(*table.uniques, unique)))
    return Result("CREATE INDEX")
