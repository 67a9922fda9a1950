"""CREATE TYPE … AS ENUM, CREATE DOMAIN, and ALTER of both; CREATE CAST between enums and texts. Columns have the labels
of an enum in their types (`values.types.SqlType`), and tables the rules of domains.

PostgreSQL 17, "CREATE TYPE", "ALTER TYPE", "CREATE DOMAIN", "ALTER DOMAIN". Views are planned with the order of labels,
so that a type that one of them reads gets no more labels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

from sqlglot import exp, parse_one

from watersmeet.binder.sqlfunctions import with_created_types
from watersmeet.catalog import (
    COMMON_SCHEMA,
    Check,
    Domain,
    DomainType,
    EnumType,
    Input,
    MaterializedView,
    Relation,
)
from watersmeet.database.assignment import bound_value, default_value, positional
from watersmeet.database.committing import own_transaction
from watersmeet.database.definitions import add, may_create, named, new_relation, written
from watersmeet.database.sessions.context import Session, depended_on, error_at
from watersmeet.database.sessions.result import Result
from watersmeet.dialects.readers import reads
from watersmeet.dialects.registry import language_named
from watersmeet.dialects.statements.constraints import read_constraint
from watersmeet.dialects.statements.tables import read_known_type
from watersmeet.dialects.tree.definitions import Alter, ConstraintClause, Create, NamedType
from watersmeet.dialects.tree.queries import expression_of
from watersmeet.dialects.tree.statements import Name, Statement
from watersmeet.dialects.tree.tokens import Cursor, not_supported, read_new_name, span_of
from watersmeet.errors import Span
from watersmeet.session.clauses import check_domain, type_named
from watersmeet.session.handlers import handles
from watersmeet.values.declaredtypes import Declared
from watersmeet.values.types import BOOLEAN, VARCHAR, Field, SqlType, with_labels


@dataclass(frozen=True, kw_only=True)
class CreateEnum(Create):
    """`CREATE TYPE name AS ENUM ('label', …)`."""

    makes: ClassVar[type[Relation]] = EnumType

    labels: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class AlterEnum(Alter):
    """`ALTER TYPE name ADD VALUE [IF NOT EXISTS] 'label' [BEFORE | AFTER 'other']`, `… RENAME VALUE 'old' TO 'label'`.

    other: the label before or after which the new one is, or that gets another name. place: `before`, `after`, or
    `renamed`.
    """

    label: str
    other: str | None = None
    place: str = "after"
    if_label_missing: bool = False
    span_of_label: Span


@reads("CREATE TYPE", own="type")
def read_create_type(cursor: Cursor, base: dict[str, Any]) -> Statement | None:
    """The cursor stands after TYPE. None for other types than enums."""
    made = read_new_name(cursor, base)
    if not cursor.take("AS", "ENUM"):
        return None
    cursor.expect("(")
    labels: list[str] = []
    while not cursor.at(")"):
        labels.append(cursor.string())
        if not cursor.take(","):
            break
    cursor.expect(")")
    cursor.end()
    return CreateEnum(**made, labels=tuple(labels))


@reads("ALTER TYPE", own="type")
def read_alter_type(cursor: Cursor, base: dict[str, Any]) -> Statement | None:
    """The cursor stands after TYPE. None for RENAME TO, SET SCHEMA and OWNER TO, which all relations have."""
    name = cursor.relation_name()
    made = {**base, "name": name, "kind": "type"}
    start = cursor.index
    if cursor.take("ADD", "VALUE"):
        missing = cursor.take("IF", "NOT", "EXISTS")
        label, place, other = cursor.string(), "after", None
        for word in ("before", "after"):
            if cursor.take(word.upper()):
                place, other = word, cursor.string()
        cursor.end()
        return AlterEnum(
            **made, label=label, other=other, place=place, if_label_missing=missing, span_of_label=name.span
        )
    if cursor.take("RENAME", "VALUE"):
        old = cursor.string()
        cursor.expect("TO")
        label = cursor.string()
        cursor.end()
        return AlterEnum(**made, label=label, other=old, place="renamed", span_of_label=name.span)
    cursor.index = start
    return None


def _check_name(session: Session, statement: Create) -> None:
    """Raises INVALID_NAME for the name of a type that casts would read as a built-in one."""
    name = exp.to_identifier(statement.name).sql(dialect="postgres")
    grammar = language_named(session.dialect).grammar
    if parse_one(f"CAST(NULL AS {name})", dialect=grammar).args["to"].this != exp.DataType.Type.USERDEFINED:
        message = f'"{statement.name}" is the name of a built-in type'
        raise error_at(statement, statement.name_span, "INVALID_NAME", message)


@handles(CreateEnum)
def create_enum(session: Session, statement: CreateEnum) -> Result:
    """CREATE TYPE … AS ENUM. Raises DUPLICATE_TYPE."""
    if not may_create(session, statement, statement.name, statement.name_span, statement.if_not_exists):
        return Result("CREATE TYPE")
    _check_name(session, statement)
    for number, label in enumerate(statement.labels):
        if label in statement.labels[:number]:
            message = f'enum label "{label}" used more than once'
            raise error_at(statement, statement.name_span, "DUPLICATE_TYPE", message)
    add(session, new_relation(session, statement, EnumType, (), labels=statement.labels))
    return Result("CREATE TYPE")


@handles(AlterEnum)
def alter_enum(session: Session, statement: AlterEnum) -> Result:
    """ALTER TYPE … ADD VALUE and RENAME VALUE. Raises DEPENDENT_OBJECTS if a view reads a column of the type."""
    session.require_definer("ALTER TYPE")
    relation = named(session, statement.name, statement)
    if not isinstance(relation, EnumType):
        message = f'"{statement.name.shown}" is not an enum'
        raise error_at(statement, statement.name.span, "CATALOG_TYPE_MISMATCH", message)
    labels = list(relation.labels)
    if statement.label in labels:
        if statement.if_label_missing:
            session.notice(f'enum label "{statement.label}" already exists, skipping')
            return Result("ALTER TYPE")
        message = f'enum label "{statement.label}" already exists'
        raise error_at(statement, statement.span_of_label, "DUPLICATE_TYPE", message)
    if statement.other is not None and statement.other not in labels:
        message = f'"{statement.other}" is not an existing enum label'
        raise error_at(statement, statement.span_of_label, "INVALID_PARAMETER", message)
    users = session.catalog.with_enum(relation)
    if statement.place == "renamed":
        if any(r.is_stored for r in users):
            raise not_supported(
                f"RENAME VALUE of {relation.title}, which tables have,",
                statement.text,
                statement.span_of_label,
                hint="ADD VALUE with the new label, and UPDATE the rows.",
            )
        labels[labels.index(statement.other or "")] = statement.label
    else:
        place = len(labels) if statement.other is None else labels.index(statement.other)
        labels.insert(place + (statement.place == "after"), statement.label)
    views = [r for r in users if isinstance(r, MaterializedView)]
    views += [v for r in users for v in session.catalog.dependents(r.id) if isinstance(v, MaterializedView)]
    if views:
        raise depended_on(
            statement,
            statement.span,
            f"alter {relation.title}",
            (f"{v.reader} reads it" for v in {v.id: v for v in views}.values()),
            hint="Drop these first, and create them again.",
        )
    listed = ", ".join("'" + label.replace("'", "''") + "'" for label in labels)
    sql = f"CREATE TYPE {written(relation.name, relation)} AS ENUM ({listed})"
    with own_transaction(session):
        session.put(replace(relation, labels=tuple(labels), sql=sql))
        for user in users:
            columns = tuple(replace(c, type=with_labels(c.type, relation.shown, tuple(labels))) for c in user.columns)
            session.put(replace(user, columns=columns))
    return Result("ALTER TYPE")


@dataclass(frozen=True, kw_only=True)
class CastBetween(Statement):
    """`CREATE CAST (source AS target) WITH INOUT [AS ASSIGNMENT | AS IMPLICIT]`, `DROP CAST [IF EXISTS] (…)`.

    kinds: the built-in types among both; named: the others. with_function: whether values are converted in another way
    than by their texts.
    """

    command: str
    kinds: tuple[SqlType, ...]
    named: tuple[NamedType, ...]
    with_function: bool = False


def _read_cast(cursor: Cursor, base: dict[str, Any], command: str) -> CastBetween:
    cursor.expect("(")
    both = [read_known_type(cursor)]
    cursor.expect("AS")
    both.append(read_known_type(cursor))
    cursor.expect(")")
    with_function = False
    if command == "DROP CAST":
        cursor.take("CASCADE") or cursor.take("RESTRICT")
    elif not cursor.take("WITH", "INOUT"):
        with_function = bool(cursor.until(";"))
    elif cursor.take("AS") and not (cursor.take("ASSIGNMENT") or cursor.take("IMPLICIT")):
        raise cursor.error()
    named = tuple(one for one in both if isinstance(one, NamedType))
    kinds = tuple(one[0] for one in both if not isinstance(one, NamedType))
    return CastBetween(**base, command=command, kinds=kinds, named=named, with_function=with_function)


@reads("CREATE CAST", own="type")
def read_create_cast(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """The cursor stands after CAST."""
    return _read_cast(cursor, base, "CREATE CAST")


@reads("DROP CAST", own="type")
def read_drop_cast(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """The cursor stands after CAST."""
    cursor.take("IF", "EXISTS")
    return _read_cast(cursor, base, "DROP CAST")


@handles(CastBetween)
def cast_between(session: Session, statement: CastBetween) -> Result:
    """CREATE CAST and DROP CAST. Raises FEATURE_NOT_SUPPORTED except for an enum and varchar, which need no cast."""
    session.require_definer(statement.command)
    enums = [named for named in statement.named if type_named(session, named).kind.enum]
    if statement.with_function or statement.kinds != (VARCHAR,) or len(enums) != 1:
        what, hint = f"{statement.command} except of an enum and varchar", "Call a function instead."
        raise not_supported(what, statement.text, statement.span, hint=hint)
    session.notice(f"{statement.command} has no effect: enums and texts are converted without it")
    return Result(statement.command)


@dataclass(frozen=True, kw_only=True)
class CreateDomain(Create):
    """`CREATE DOMAIN name [AS] type [DEFAULT value] [[CONSTRAINT name] {NOT NULL | NULL | CHECK (condition)}] …`.

    named: the type if the parser does not know it. checks: names, conditions and their texts.
    """

    makes: ClassVar[type[Relation]] = DomainType

    base: SqlType
    declared_base: Declared | None
    named: NamedType | None
    base_text: str
    default: exp.Expression | None
    default_text: str
    nullable: bool
    checks: tuple[ConstraintClause, ...]


@dataclass(frozen=True, kw_only=True)
class AlterDomain(Alter):
    """`ALTER DOMAIN name {{SET | DROP} {DEFAULT | NOT NULL} | {ADD | DROP | RENAME | VALIDATE} CONSTRAINT …}`.

    change: `default`, `not null`, `add`, `drop`, `rename` or `validate`. default: the value of SET DEFAULT, with its
    text. nullable: that of the domain after `not null`. check: the constraint of ADD. old, new: names of constraints.
    """

    change: str
    default: exp.Expression | None = None
    default_text: str = ""
    nullable: bool = True
    check: ConstraintClause | None = None
    valid: bool = True
    old: Name | None = None
    new: str = ""
    if_constraint_exists: bool = False


#: The words that may follow the DEFAULT of a domain.
_AFTER_DEFAULT: Final = ("CONSTRAINT", "NOT", "NULL", "CHECK", "COLLATE")


@reads("CREATE DOMAIN", own="domain")
def read_create_domain(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """The cursor stands after DOMAIN."""
    made = read_new_name(cursor, base)
    cursor.take("AS")
    start = cursor.index
    found = read_known_type(cursor)
    base_text = span_of(cursor.tokens[start : cursor.index])
    named = found if isinstance(found, NamedType) else None
    kind, declared = (VARCHAR, None) if isinstance(found, NamedType) else found
    default, default_text, nullable, checks = None, "", True, list[ConstraintClause]()
    while not cursor.done:
        if cursor.take("DEFAULT"):
            default, default_text = _read_default(cursor)
            continue
        begin = cursor.index
        name = cursor.name().name if cursor.take("CONSTRAINT") else ""
        if cursor.take("NOT", "NULL"):
            nullable = False
        elif cursor.at("CHECK"):
            cursor.index = begin
            checks.append(read_constraint(cursor))
        elif cursor.at("COLLATE") or name or not cursor.take("NULL"):
            word = cursor.tokens[min(cursor.index, len(cursor.tokens) - 1)]
            raise not_supported(f"{word.text.upper()} of a domain", cursor.text, span_of([word]))
    return CreateDomain(
        **made,
        base=kind,
        declared_base=declared,
        named=named,
        base_text=cursor.text[base_text.start : base_text.end],
        default=default,
        default_text=default_text,
        nullable=nullable,
        checks=tuple(checks),
    )


def _read_default(cursor: Cursor) -> tuple[exp.Expression, str]:
    first = cursor.index
    cursor.index += not cursor.at("(")  # NULL is allowed
    cursor.until(*_AFTER_DEFAULT)
    span = span_of(cursor.tokens[first : cursor.index])
    return expression_of(cursor, cursor.tokens[first : cursor.index]), cursor.text[span.start : span.end]


@reads("ALTER DOMAIN", own="domain")
def read_alter_domain(cursor: Cursor, base: dict[str, Any]) -> Statement | None:
    """The cursor stands after DOMAIN. None for RENAME TO, SET SCHEMA and OWNER TO, which all relations have."""
    made = {**base, "name": cursor.relation_name(), "kind": "domain"}
    if cursor.take("SET", "DEFAULT"):
        default, text = _read_default(cursor)
        return AlterDomain(**made, change="default", default=default, default_text=text)
    if cursor.take("DROP", "DEFAULT"):
        found = AlterDomain(**made, change="default")
    elif cursor.take("SET", "NOT", "NULL") or cursor.take("ADD", "NOT", "NULL"):
        found = AlterDomain(**made, change="not null", nullable=False)
    elif cursor.take("DROP", "NOT", "NULL"):
        found = AlterDomain(**made, change="not null")
    elif cursor.take("ADD"):
        check = read_constraint(cursor)
        if check.kind != "check":
            raise cursor.error_at(check.span, "SYNTAX_ERROR", "a domain can only have CHECK and NOT NULL")
        found = AlterDomain(**made, change="add", check=check, valid=not cursor.take("NOT", "VALID"))
    elif cursor.take("DROP", "CONSTRAINT"):
        missing = cursor.take("IF", "EXISTS")
        found = AlterDomain(**made, change="drop", old=cursor.name(), if_constraint_exists=missing)
        if not cursor.take("CASCADE"):
            cursor.take("RESTRICT")
    elif cursor.take("RENAME", "CONSTRAINT"):
        old = cursor.name()
        cursor.expect("TO")
        found = AlterDomain(**made, change="rename", old=old, new=cursor.name().name)
    elif cursor.take("VALIDATE", "CONSTRAINT"):
        found = AlterDomain(**made, change="validate", old=cursor.name())
    else:
        return None
    cursor.end()
    return found


@handles(CreateDomain)
def create_domain(session: Session, statement: CreateDomain) -> Result:
    """CREATE DOMAIN. Raises DUPLICATE_TYPE, UNDEFINED_OBJECT, and errors of the expressions."""
    if not may_create(session, statement, statement.name, statement.name_span, statement.if_not_exists):
        return Result("CREATE DOMAIN")
    _check_name(session, statement)
    kind, declared = statement.base, statement.declared_base
    if statement.named is not None:
        named = type_named(session, statement.named)
        if named.domain is not None:
            raise not_supported("a domain over a domain", statement.text, statement.name_span)
        kind, declared = named.kind, named.declared
    default = _default_of(session, statement, kind, statement.default)
    domain = new_relation(
        session,
        statement,
        DomainType,
        (),
        base=kind,
        declared_base=declared,
        base_text=statement.base_text,
        default_text=statement.default_text,
        rules=Domain(""),
    )
    rules = Domain(domain.shown, statement.nullable, default)
    for clause in statement.checks:
        rules = _with_check(session, domain, rules, clause, statement)
    add(session, replace(domain, rules=rules))
    return Result("CREATE DOMAIN")


def _default_of(session: Session, statement: Statement, kind: SqlType, value: exp.Expression | None) -> str:
    if value is None:
        return ""
    return default_value(statement, with_created_types(value, session.catalog), kind)


def _with_check(
    session: Session, domain: DomainType, rules: Domain, clause: ConstraintClause, statement: Statement
) -> Domain:
    """The rules with another check. Raises DUPLICATE_CONSTRAINT."""
    taken = [c.name for c in rules.checks]
    if clause.name in taken:
        message = f'constraint "{clause.name}" for domain "{domain.name}" already exists'
        raise error_at(statement, clause.span, "DUPLICATE_CONSTRAINT", message)
    assert clause.condition is not None
    column = (Field("value", domain.base),)
    tree = with_created_types(clause.condition, session.catalog)
    value = bound_value(tree, column, domain.name, statement.text, "a CHECK constraint")
    if value.type != BOOLEAN:
        message = f"argument of CHECK must be type boolean, not type {value.type.sql}"
        raise error_at(statement, clause.span, "DATATYPE_MISMATCH", message)
    stem = clause.name or f"{domain.name}_check"
    name = next(n for i in range(len(taken) + 1) if (n := f"{stem}{i or ''}") not in taken)
    return replace(rules, checks=(*rules.checks, Check(name, positional(value, column), clause.text)))


@handles(AlterDomain)
def alter_domain(session: Session, statement: AlterDomain) -> Result:
    """ALTER DOMAIN. Raises UNDEFINED_OBJECT, and NOT_NULL_VIOLATION, CHECK_VIOLATION for existing rows."""
    session.require_definer("ALTER DOMAIN")
    domain = named(session, statement.name, statement)
    if not isinstance(domain, DomainType):
        message = f'"{statement.name.shown}" is not a domain'
        raise error_at(statement, statement.name.span, "CATALOG_TYPE_MISMATCH", message)
    rules, made, checks = domain.rules, domain, False
    if statement.change == "default":
        rules = replace(rules, default=_default_of(session, statement, domain.base, statement.default))
        made = replace(domain, default_text=statement.default_text)
    elif statement.change == "not null":
        rules, checks = replace(rules, nullable=statement.nullable), not statement.nullable
    elif statement.change == "add":
        assert statement.check is not None
        rules, checks = _with_check(session, domain, rules, statement.check, statement), statement.valid
    else:
        rules, checks = _with_constraint(session, domain, statement), statement.change == "validate"
    made = replace(made, rules=rules)
    with own_transaction(session):
        session.put(replace(made, sql=domain_text(made)))
        for table in session.catalog.with_enum(domain):
            assert isinstance(table, Input)
            columns = [name for name, known in table.domains.items() if known.name == rules.name]
            session.put(replace(table, domains={**table.domains, **dict.fromkeys(columns, rules)}))
            for column in columns if checks else ():
                check_domain(session, table, column, rules, statement)
    return Result("ALTER DOMAIN")


def _with_constraint(session: Session, domain: DomainType, statement: AlterDomain) -> Domain:
    """The rules after DROP, RENAME and VALIDATE CONSTRAINT."""
    assert statement.old is not None
    rules, old = domain.rules, statement.old
    if old.name not in [c.name for c in rules.checks]:
        if statement.if_constraint_exists:
            session.notice(f'constraint "{old.name}" of domain "{domain.name}" does not exist, skipping')
            return rules
        message = f'constraint "{old.name}" of domain "{domain.name}" does not exist'
        raise error_at(statement, old.span, "UNDEFINED_OBJECT", message)
    if statement.change == "drop":
        return replace(rules, checks=tuple(c for c in rules.checks if c.name != old.name))
    new = statement.new or old.name
    return replace(rules, checks=tuple(replace(c, name=new) if c.name == old.name else c for c in rules.checks))


def domain_text(domain: DomainType) -> str:
    """The statement that creates a domain."""
    schema = "" if domain.schema == COMMON_SCHEMA else f"{written(domain.schema, domain)}."
    parts = [f"CREATE DOMAIN {schema}{written(domain.name, domain)} AS {domain.base_text}"]
    parts += [f"DEFAULT {domain.default_text}"] if domain.default_text else []
    parts += [] if domain.rules.nullable else ["NOT NULL"]
    parts += [f"CONSTRAINT {written(c.name, domain)} CHECK ({c.text})" for c in domain.rules.checks]
    return " ".join(parts)
