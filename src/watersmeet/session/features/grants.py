"""GRANT and REVOKE, in every dialect.

PostgreSQL, "GRANT", "REVOKE"; RisingWave, "GRANT". Rights are of relations, and of the roles reader, writer and admin;
those on other objects, which every member of a role has anyway, are accepted with a notice.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from sqlglot.tokens import TokenType

from watersmeet.catalog import MaterializedView, Relation, Source, View, one
from watersmeet.catalog.roles import (
    ADMIN,
    PRIVILEGES,
    WRITER,
    ChangeGrants,
    ChangeMembership,
    Privilege,
    all_of,
)
from watersmeet.database.definitions import undefined_schema
from watersmeet.database.sessions.context import Session, error_at
from watersmeet.database.sessions.result import Result
from watersmeet.dialects.readers import reads
from watersmeet.dialects.schemas import schema_meant
from watersmeet.dialects.tree.statements import Accepted, Name, Statement
from watersmeet.dialects.tree.tokens import Cursor, refused
from watersmeet.session.features.roles import (
    OfRoles,
    existing_role,
    grantee,
    is_kind,
    read_roles,
)
from watersmeet.session.handlers import handles

#: Words without effect before the name of a relation.
_KINDS: Final = (("TABLE",), ("VIEW",), ("MATERIALIZED", "VIEW"), ("SOURCE",), ("STREAM",), ("DICTIONARY",))

#: Privileges, held by every role, on objects other than relations.
_OPEN: Final = (
    ("USAGE", "SCHEMA"),
    ("CONNECT", "DATABASE"),
    ("EXECUTE", "FUNCTION"),
    ("EXECUTE", "FUNCTIONS"),
    ("USAGE", "TYPE"),
)

#: Objects other than relations.
_OTHERS: Final = (
    "SCHEMA", "DATABASE", "FUNCTION", "SEQUENCE", "TYPE", "LANGUAGE", "FOREIGN", "TABLESPACE", "DOMAIN", "SECRET",
    "CONNECTION", "SINK", "SUBSCRIPTION", "INDEX",
)  # fmt: skip
_ALL_OTHERS: Final = (
    "FUNCTIONS",
    "SEQUENCES",
    "ROUTINES",
    "SECRETS",
    "CONNECTIONS",
    "SINKS",
    "SUBSCRIPTIONS",
    "INDEXES",
)

#: The privileges on other objects. They have no effect.
_OF_OTHERS: Final = ("ALL", "CREATE", "CONNECT", "EXECUTE", "SELECT", "TEMP", "TEMPORARY", "UPDATE", "USAGE")

#: The relations of a schema that ALL … IN SCHEMA names.
_ALL_OF: Final[dict[str, type[Relation]]] = {
    "TABLES": Relation,
    "VIEWS": View,
    "MATERIALIZED VIEWS": MaterializedView,
    "SOURCES": Source,
}


@dataclass(frozen=True, kw_only=True)
class Grant(OfRoles):
    """`GRANT privileges ON relations TO roles`, `REVOKE … FROM …`.

    relations: empty if `schemas` are given, which stand for all their relations of the class `of`. notice: the reason
    why privileges on other objects have no effect. granted_by: whether the clause GRANTED BY, without effect, is given.
    """

    gives: bool
    privileges: tuple[Privilege, ...]
    relations: tuple[Name, ...]
    schemas: tuple[Name, ...]
    roles: tuple[Name, ...]
    of: type[Relation] = Relation
    notice: str = ""
    granted_by: bool = False


@dataclass(frozen=True, kw_only=True)
class GrantRole(OfRoles):
    """`GRANT roles TO members`, `REVOKE roles FROM members`."""

    gives: bool
    roles: tuple[Name, ...]
    members: tuple[Name, ...]


@reads("GRANT")
def read_grant(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """GRANT."""
    return _grant(cursor, base, gives=True)


@reads("ALTER DEFAULT PRIVILEGES")
def read_default_privileges(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """ALTER DEFAULT PRIVILEGES … GRANT, without effect. … REVOKE is refused: others would keep what it takes."""
    cursor.until("GRANT", "REVOKE")
    if not cursor.at("GRANT"):
        hint = "REVOKE … ON ALL TABLES IN SCHEMA name takes privileges on the relations that exist."
        return refused(cursor, base, "ALTER DEFAULT PRIVILEGES … REVOKE", hint=hint)
    cursor.until("")
    reason = "GRANT … ON ALL TABLES IN SCHEMA name grants privileges on the relations that exist"
    notice = f"ALTER DEFAULT PRIVILEGES has no effect: {reason}"
    return Accepted(**base, command="ALTER DEFAULT PRIVILEGES", notice=notice)


@reads("REVOKE")
def read_revoke(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """REVOKE."""
    if cursor.at("GRANT", "OPTION") or cursor.at("ADMIN", "OPTION"):
        return refused(cursor, base, "REVOKE … OPTION FOR", hint="There are no such options.")
    return _grant(cursor, base, gives=False)


def _grant(cursor: Cursor, base: dict[str, Any], *, gives: bool) -> Statement:
    start = cursor.index
    before = cursor.until("TO" if gives else "FROM")
    is_of_roles = not any(t.text.upper() == "ON" and t.token_type != TokenType.IDENTIFIER for t in before)
    cursor.index = start
    if is_of_roles:
        roles = read_roles(cursor)
        cursor.expect("TO" if gives else "FROM")
        members = read_roles(cursor)
        return _ended(cursor, base, gives, GrantRole(**base, gives=gives, roles=roles, members=members))
    privileges = _privileges(cursor, base)
    if isinstance(privileges, Statement):
        return privileges
    return _on(cursor, base, privileges, gives=gives)


def _privileges(cursor: Cursor, base: dict[str, Any]) -> tuple[str, ...] | Statement:
    """The words before ON."""
    if cursor.take("ALL"):
        cursor.take("PRIVILEGES")
        cursor.expect("ON")
        return ("ALL",)
    found = [cursor.word().name.upper()]
    while cursor.take(","):
        found.append(cursor.word().name.upper())
    if cursor.at("("):
        return refused(cursor, base, "a privilege on columns", hint="Grant SELECT on a view of them.")
    cursor.expect("ON")
    return tuple(found)


def _on(cursor: Cursor, base: dict[str, Any], words: tuple[str, ...], *, gives: bool) -> Statement:
    """The objects after ON, and the roles."""
    schemas: tuple[Name, ...] = ()
    relations: tuple[Name, ...] = ()
    kind = "" if cursor.current is None else cursor.current.text.upper()
    every = cursor.at("ALL") and cursor.tokens[cursor.index + 2 : cursor.index + 3]
    other = cursor.tokens[cursor.index + 1].text.upper() if every else kind
    notice, of = "", Relation
    if (other in _OTHERS and is_kind(cursor)) or (every and other in _ALL_OTHERS):
        is_open = all((word, other) in _OPEN for word in words)
        taken = [word for word in words if word == "ALL" or (word, other) in _OPEN]
        wrong = next((word for word in words if word not in _OF_OTHERS), None)
        if wrong is not None or (taken and not gives):
            shown = f"{'GRANT' if gives else 'REVOKE'} {', '.join(words)} ON {other}"
            hint = "Rights are of relations, and of the roles reader, writer and admin."
            return refused(cursor, base, shown, hint=hint)
        cursor.until("TO" if gives else "FROM")
        notice = f"members of the role {WRITER} create objects, and GRANT SELECT of a relation lets others read it"
        notice = "everybody has this privilege" if is_open else notice
    else:
        found = next((w for w in _ALL_OF if cursor.take("ALL", *w.split(), "IN", "SCHEMA")), None)
        if found is not None:
            schemas, of = _names(cursor), _ALL_OF[found]
        else:
            next((k for k in _KINDS if len(cursor.rest) > len(k) and is_kind(cursor, len(k)) and cursor.take(*k)), None)
            relations = _names(cursor)
    for word in words:
        if not notice and word not in (*PRIVILEGES, "ALL"):
            hint = f"There are {', '.join(PRIVILEGES)} and ALL; the role writer changes definitions."
            return refused(cursor, base, f"the privilege {word}", hint=hint)
    privileges = PRIVILEGES if words == ("ALL",) else tuple(p for p in PRIVILEGES if p in words)
    cursor.expect("TO" if gives else "FROM")
    roles = read_roles(cursor)
    made = Grant(
        **base,
        gives=gives,
        privileges=privileges,
        relations=relations,
        schemas=schemas,
        roles=roles,
        of=of,
        notice=notice,
    )
    return _ended(cursor, base, gives, made)


def _names(cursor: Cursor) -> tuple[Name, ...]:
    found = [cursor.relation_name()]
    while cursor.take(","):
        found.append(cursor.relation_name())
    return tuple(found)


def _ended(cursor: Cursor, base: dict[str, Any], gives: bool, made: Statement) -> Statement:
    """The statement, if no further clause follows."""
    without_effect = isinstance(made, Grant) and bool(made.notice)
    if without_effect and gives:
        cursor.take("WITH", "GRANT", "OPTION")
    if gives and (cursor.at("WITH", "GRANT", "OPTION") or cursor.at("WITH", "ADMIN")):
        hint = f"Members of the role {ADMIN} grant."
        return refused(cursor, base, "GRANT … WITH … OPTION", hint=hint)
    if isinstance(made, Grant) and cursor.take("GRANTED", "BY"):
        read_roles(cursor)
        made = replace(made, granted_by=True)
    if cursor.at("GRANTED", "BY"):
        return refused(cursor, base, "GRANTED BY")
    if not gives and not cursor.take("CASCADE"):
        cursor.take("RESTRICT")
    cursor.end()
    return made


@handles(Grant)
def grant(session: Session, statement: Grant) -> Result:
    """GRANT and REVOKE of privileges on relations."""
    command = "GRANT" if statement.gives else "REVOKE"
    session.require_definer(command)
    with session.database.guard:
        roles = [grantee(session, statement, name, everybody=True) for name in statement.roles]
        if statement.granted_by:
            session.notice("GRANTED BY has no effect: privileges belong to the database")
        if statement.notice:
            session.notice(f"this has no effect: {statement.notice}")
            return Result(command)
        relations = [_granted(session, statement, name) for name in statement.relations]
        for name in statement.schemas:
            schema = schema_meant(name.name, session.catalog)
            if schema is None:
                raise undefined_schema(session, name, statement)
            known = session.catalog.relations.values()
            of = statement.of
            relations += [r for r in known if r.schema == schema and r.is_named and _has_rows(r) and isinstance(r, of)]
        ids = tuple(r.id for r in relations)
        session.put_roles([ChangeGrants(role, ids, statement.privileges, statement.gives) for role in roles])
    return Result(command)


@handles(GrantRole)
def grant_role(session: Session, statement: GrantRole) -> Result:
    """GRANT and REVOKE of membership in roles."""
    command = "GRANT ROLE" if statement.gives else "REVOKE ROLE"
    session.require_definer(command)
    with session.database.guard:
        known = session.catalog.roles
        others = [grantee(session, statement, name, everybody=False) for name in statement.roles]
        members = []
        for name in statement.members:
            member = existing_role(session, statement, name).name
            around = next((o for o in others if o == member or (o in known and member in all_of(known, o))), None)
            if statement.gives and around is not None:
                raise error_at(
                    statement, name.span, "INVALID_PARAMETER", f'role "{around}" is a member of role "{member}"'
                )
            members.append(member)
        session.put_roles([ChangeMembership(m, tuple(others), statement.gives) for m in members])
    return Result(command)


def _has_rows(relation: Relation) -> bool:
    return relation.has_rows or isinstance(relation, View)


def _granted(session: Session, statement: Grant, name: Name) -> Relation:
    relation = session.relation(name, statement)
    if not _has_rows(relation):
        raise error_at(
            statement,
            name.span,
            "CATALOG_TYPE_MISMATCH",
            f'"{relation.shown}" is {one(relation.what)}, which has no rows',
        )
    return relation
