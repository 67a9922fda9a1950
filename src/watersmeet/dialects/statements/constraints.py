"""Reads the constraints of tables: in CREATE TABLE, in ALTER TABLE, and SET CONSTRAINTS (PostgreSQL, "Constraints")."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

from watersmeet.dialects.tree.definitions import Alter, ConstraintClause
from watersmeet.dialects.tree.queries import expression_of
from watersmeet.dialects.tree.statements import Name, Statement
from watersmeet.dialects.tree.tokens import Cursor, not_supported, read_list, span_of, take_cascade
from watersmeet.errors import Span
from watersmeet.values import ReferenceAction

#: The first words of a constraint of a table.
_OF_TABLES: Final = (
    ("CONSTRAINT",), ("PRIMARY", "KEY"), ("UNIQUE", "("), ("UNIQUE", "NULLS"), ("CHECK", "("), ("FOREIGN", "KEY"),
)  # fmt: skip

#: Those of a constraint of a column, except for NOT NULL and the primary key.
OF_COLUMNS: Final = ("CONSTRAINT", "UNIQUE", "CHECK", "REFERENCES")

#: The span of a clause until all of it is read.
_HERE: Final = Span(0, 0)

_ACTIONS: Final[dict[str, ReferenceAction]] = {
    "NO ACTION": "no action",
    "RESTRICT": "restrict",
    "CASCADE": "cascade",
    "SET NULL": "set null",
    "SET DEFAULT": "set default",
}


@dataclass(frozen=True, kw_only=True)
class AddConstraint(Alter):
    """`ALTER TABLE name ADD constraint`. constraint_text: the constraint as written."""

    constraint: ConstraintClause
    constraint_text: str


@dataclass(frozen=True, kw_only=True)
class DropConstraint(Alter):
    """`ALTER TABLE name DROP CONSTRAINT [IF EXISTS] constraint [CASCADE]`."""

    constraint: Name
    if_constraint_exists: bool = False
    cascade: bool = False


@dataclass(frozen=True, kw_only=True)
class RenameConstraint(Alter):
    """`ALTER TABLE name RENAME CONSTRAINT constraint TO new`."""

    constraint: Name
    new: Name


@dataclass(frozen=True, kw_only=True)
class SetConstraints(Statement):
    """`SET CONSTRAINTS {ALL | names} {DEFERRED | IMMEDIATE}`. names: None for ALL."""

    takes: ClassVar[str | None] = None

    names: tuple[Name, ...] | None
    deferred: bool


def at_constraint(cursor: Cursor) -> bool:
    """Whether the cursor is at a constraint of a table."""
    return any(cursor.at(*words) for words in _OF_TABLES)


def read_constraint(cursor: Cursor) -> ConstraintClause:
    """Reads a constraint of a table. Raises FEATURE_NOT_SUPPORTED for EXCLUDE and for USING INDEX."""
    start = cursor.index
    name = cursor.name().name if cursor.take("CONSTRAINT") else ""
    if cursor.take("PRIMARY", "KEY"):
        _refuse_index(cursor)
        found = ConstraintClause("primary key", _HERE, columns=cursor.names())
        _read_index(cursor)
    elif cursor.take("UNIQUE"):
        _refuse_index(cursor)
        _read_nulls(cursor)
        found = ConstraintClause("unique", _HERE, columns=cursor.names())
        _read_index(cursor)
    elif cursor.at("CHECK"):
        found = _read_check(cursor)
    elif cursor.take("FOREIGN", "KEY"):
        columns = cursor.names()
        cursor.expect("REFERENCES")
        found = replace(_read_reference(cursor), columns=columns)
    else:
        raise cursor.error(detail="PRIMARY KEY, UNIQUE, CHECK or FOREIGN KEY was expected here.")
    found = _read_time(cursor, found)
    return replace(found, name=name, span=span_of(cursor.tokens[start : cursor.index]))


def read_column_constraint(cursor: Cursor, column: Name) -> ConstraintClause | None:
    """Reads a constraint of a column: UNIQUE, CHECK, REFERENCES, or with a name also PRIMARY KEY. None, with the cursor
    after the name, for a named NOT NULL, NULL or DEFAULT.
    """
    start = cursor.index
    name = cursor.name().name if cursor.take("CONSTRAINT") else ""
    if cursor.take("PRIMARY", "KEY"):
        found = ConstraintClause("primary key", _HERE, columns=(column,))
        _read_index(cursor)
    elif cursor.take("UNIQUE"):
        _read_nulls(cursor)
        found = ConstraintClause("unique", _HERE, columns=(column,))
        _read_index(cursor)
    elif cursor.at("CHECK"):
        found = _read_check(cursor)
    elif cursor.take("REFERENCES"):
        found = replace(_read_reference(cursor), columns=(column,))
    elif name:
        return None
    else:
        raise cursor.error()
    found = _read_time(cursor, found)
    return replace(found, name=name, span=span_of(cursor.tokens[start : cursor.index]), is_column=True)


def _refuse_index(cursor: Cursor) -> None:
    if cursor.at("USING", "INDEX"):
        hint = "Write its columns: the constraint needs no index."
        raise not_supported("a constraint USING INDEX", cursor.text, span_of(cursor.rest[:2]), hint=hint)


def _read_nulls(cursor: Cursor) -> None:
    """Reads NULLS DISTINCT. Raises FEATURE_NOT_SUPPORTED for NULLS NOT DISTINCT."""
    if cursor.at("NULLS", "NOT", "DISTINCT"):
        raise not_supported("UNIQUE NULLS NOT DISTINCT", cursor.text, span_of(cursor.rest[:3]))
    cursor.take("NULLS", "DISTINCT")


def _read_index(cursor: Cursor) -> None:
    """Reads the properties of an index, which has none: INCLUDE, WITH and USING INDEX TABLESPACE."""
    if cursor.take("INCLUDE"):
        cursor.names()
    if cursor.take("WITH", "("):
        cursor.until(")")
        cursor.expect(")")
    if cursor.take("USING", "INDEX", "TABLESPACE"):
        cursor.name()


def _read_check(cursor: Cursor) -> ConstraintClause:
    cursor.expect("CHECK", "(")
    tokens = cursor.until(")")
    if not tokens:
        raise cursor.error(detail="An expression was expected here.")
    cursor.expect(")")
    span = span_of(tokens)
    cursor.take("NO", "INHERIT")
    condition = expression_of(cursor, tokens)
    return ConstraintClause("check", _HERE, condition=condition, text=cursor.text[span.start : span.end])


def _read_reference(cursor: Cursor) -> ConstraintClause:
    table = cursor.relation_name()
    found = ConstraintClause("foreign key", _HERE, table=table, referenced=cursor.names() if cursor.at("(") else ())
    while True:
        start = cursor.index
        if cursor.take("MATCH", "FULL") or cursor.take("MATCH", "PARTIAL"):
            words = span_of(cursor.tokens[start : cursor.index])
            raise not_supported(f"MATCH {cursor.tokens[start + 1].text.upper()}", cursor.text, words)
        if cursor.take("ON", "DELETE"):
            found = replace(found, on_delete=_read_action(cursor))
        elif cursor.take("ON", "UPDATE"):
            found = replace(found, on_update=_read_action(cursor))
        elif not cursor.take("MATCH", "SIMPLE"):
            return found


def _read_action(cursor: Cursor) -> ReferenceAction:
    for words, action in _ACTIONS.items():
        if cursor.take(*words.split()):
            if action.startswith("set") and cursor.at("("):
                raise not_supported(f"{words} of some columns", cursor.text, span_of(cursor.rest[:1]))
            return action
    raise cursor.error(detail="An action was expected here.", hint=f"{', '.join(_ACTIONS)} exist.")


def _read_time(cursor: Cursor, found: ConstraintClause) -> ConstraintClause:
    """Reads DEFERRABLE, INITIALLY DEFERRED and their opposites; NOT VALID is read by ALTER TABLE."""
    while True:
        if cursor.take("NOT", "DEFERRABLE") or cursor.take("INITIALLY", "IMMEDIATE"):
            continue
        if cursor.take("INITIALLY", "DEFERRED"):
            found = replace(found, deferrable=True, deferred=True)
        elif cursor.take("DEFERRABLE"):
            found = replace(found, deferrable=True)
        else:
            return found


def read_altered_constraint(cursor: Cursor, base: dict[str, Any]) -> Statement | None:
    """Reads `ADD constraint`, `DROP CONSTRAINT` and `RENAME CONSTRAINT` of a table; None, with the cursor unmoved, for
    other clauses.
    """
    start = cursor.index
    if cursor.take("ADD") and at_constraint(cursor):
        found = read_constraint(cursor)
        if cursor.at("NOT", "VALID"):
            raise not_supported("a constraint that is NOT VALID", cursor.text, span_of(cursor.rest[:2]))
        cursor.end()
        text = cursor.text[found.span.start : found.span.end]
        return AddConstraint(**base, constraint=found, constraint_text=text)
    cursor.index = start
    if cursor.take("DROP", "CONSTRAINT"):
        if_exists = cursor.take("IF", "EXISTS")
        name = cursor.name()
        return DropConstraint(**base, constraint=name, if_constraint_exists=if_exists, cascade=take_cascade(cursor))
    if cursor.take("RENAME", "CONSTRAINT"):
        name = cursor.name()
        cursor.expect("TO")
        new = cursor.name()
        cursor.end()
        return RenameConstraint(**base, constraint=name, new=new)
    return None


def read_set_constraints(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """Reads SET CONSTRAINTS; the cursor stands after these words."""
    names = None if cursor.take("ALL") else read_list(cursor, cursor.relation_name)
    deferred = cursor.take("DEFERRED")
    if not deferred:
        cursor.expect("IMMEDIATE")
    cursor.end()
    return SetConstraints(**base, names=names, deferred=deferred)
