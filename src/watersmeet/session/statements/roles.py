"""CREATE, ALTER and DROP ROLE; GRANT and REVOKE; SET ROLE; SHOW ROLES and SHOW GRANTS."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any, Final

from watersmeet.catalog import Relation, RoleChange, View, one
from watersmeet.catalog.roles import (
    ADMIN,
    FIXED,
    OWNER,
    PUBLIC,
    ChangeGrants,
    ChangeMembership,
    PutRole,
    RemoveRole,
    Role,
    actor_of,
    all_of,
)
from watersmeet.catalog.roles import RenameRole as Renamed
from watersmeet.database.definitions import undefined_schema
from watersmeet.database.sessions.context import Session, denied, error_at, located
from watersmeet.database.sessions.result import Result, text_result
from watersmeet.database.sessions.variables import check_setting
from watersmeet.dialects.schemas import schema_meant
from watersmeet.dialects.statements.roles import (
    AlterRole,
    CreateRole,
    DropRole,
    Grant,
    GrantRole,
    RenameRole,
    RoleOptions,
    SetRole,
)
from watersmeet.dialects.tree.statements import Name, Statement
from watersmeet.errors import Error, did_you_mean
from watersmeet.store.positions import keep_secret
from watersmeet.system.passwords import Verifier
from watersmeet.system.secretvalues import reference

_RESERVED: Final = (*FIXED, OWNER, PUBLIC, "none", "current_user", "current_role", "session_user")
_MOST_BYTES: Final = 63
_ID_BYTES: Final = 8


def create_role(session: Session, statement: CreateRole) -> Result:
    """CREATE ROLE, USER, GROUP."""
    command = f"CREATE {statement.word}"
    session.require_definer(command)
    with session.database.guard:
        name = statement.name.name
        if name in session.catalog.roles:
            if not statement.if_not_exists:
                raise error_at(statement, statement.name.span, "DUPLICATE_OBJECT", f'role "{name}" already exists')
            session.notice(f'role "{name}" already exists, skipping')
            return Result(command)
        _check_name(statement, statement.name)
        _check_roles(session, statement, statement.options)
        properties = {"id": secrets.token_hex(_ID_BYTES), **_properties(session, statement, statement.options)}
        made = PutRole(name, properties, makes=True)
        session.put_roles([made, *_memberships(statement.options, name)])
    return Result(command)


def alter_role(session: Session, statement: AlterRole) -> Result:
    """ALTER ROLE … options, SET and RESET."""
    session.require_definer("ALTER ROLE")
    with session.database.guard:
        role = _existing(session, statement, statement.name)
        _check_roles(session, statement, statement.options)
        changes = _properties(session, statement, statement.options)
        if statement.resets:
            changes["settings"] = {}
        for setting, value in statement.settings:
            kept = {n: v for n, v in role.settings.items() if n != setting}
            with located(statement, statement.span):
                checked = {} if value is None else {setting: check_setting(setting, value)}
            changes["settings"] = {**kept, **checked}
        session.put_roles([PutRole(role.name, changes), *_memberships(statement.options, role.name)])
        if session.user == actor_of(session.catalog.roles, role.name) and "verifier" in changes:
            session.verifiers.add(changes["verifier"])
    return Result("ALTER ROLE")


def rename_role(session: Session, statement: RenameRole) -> Result:
    """ALTER ROLE … RENAME TO."""
    session.require_definer("ALTER ROLE")
    with session.database.guard:
        role = _existing(session, statement, statement.name)
        if statement.new.name in session.catalog.roles:
            shown = statement.new.name
            raise error_at(statement, statement.new.span, "DUPLICATE_OBJECT", f'role "{shown}" already exists')
        _check_name(statement, statement.new)
        session.put_roles([Renamed(role.name, statement.new.name)])
    return Result("ALTER ROLE")


def drop_role(session: Session, statement: DropRole) -> Result:
    """DROP ROLE: all or none, with what they were granted."""
    command = f"DROP {statement.word}"
    session.require_definer(command)
    with session.database.guard:
        found = []
        for name in statement.names:
            if statement.if_exists and name.name not in (*session.catalog.roles, *FIXED):
                session.notice(f'role "{name.name}" does not exist, skipping')
                continue
            role = _existing(session, statement, name)
            if actor_of(session.catalog.roles, role.name) in (session.user, session.role):
                raise error_at(statement, name.span, "DEPENDENT_OBJECTS", "current user cannot be dropped")
            found.append(role)
        session.put_roles([RemoveRole(role.name) for role in found])
    return Result(command)


def grant(session: Session, statement: Grant) -> Result:
    """GRANT and REVOKE of privileges on relations."""
    command = "GRANT" if statement.gives else "REVOKE"
    session.require_definer(command)
    with session.database.guard:
        roles = [_grantee(session, statement, name, everybody=True) for name in statement.roles]
        if statement.open_to_all:
            session.notice("this has no effect: everybody has this privilege")
            return Result(command)
        relations = [_granted(session, statement, name) for name in statement.relations]
        for name in statement.schemas:
            schema = schema_meant(name.name, session.catalog)
            if schema is None:
                raise undefined_schema(session, name, statement)
            known = session.catalog.relations.values()
            relations += [r for r in known if r.schema == schema and r.is_named and _has_rows(r)]
        ids = tuple(r.id for r in relations)
        session.put_roles([ChangeGrants(role, ids, statement.privileges, statement.gives) for role in roles])
    return Result(command)


def grant_role(session: Session, statement: GrantRole) -> Result:
    """GRANT and REVOKE of membership in roles."""
    command = "GRANT ROLE" if statement.gives else "REVOKE ROLE"
    session.require_definer(command)
    with session.database.guard:
        known = session.catalog.roles
        others = [_grantee(session, statement, name, everybody=False) for name in statement.roles]
        members = []
        for name in statement.members:
            member = _existing(session, statement, name).name
            around = next((o for o in others if o == member or (o in known and member in all_of(known, o))), None)
            if statement.gives and around is not None:
                raise error_at(
                    statement, name.span, "INVALID_PARAMETER", f'role "{around}" is a member of role "{member}"'
                )
            members.append(member)
        session.put_roles([ChangeMembership(m, tuple(others), statement.gives) for m in members])
    return Result(command)


def set_role(session: Session, statement: SetRole) -> Result:
    """SET ROLE, RESET ROLE: what the session may do follows from that role. PERMISSION_DENIED for one that is none of
    the user's, whether there is such a role or not.
    """
    roles = session.catalog.roles
    if statement.name is None:
        session.role = session.user
        return Result("SET")
    name = statement.name.name
    found = actor_of(roles, name)
    if session.user is not None:
        own = _own_roles(session)
        if ADMIN not in own and (name == PUBLIC or name not in own):
            raise denied(f'setting role "{name}"', statement.text)
    if found is None:
        raise _undefined(session, statement, statement.name)
    session.role = found
    return Result("SET")


def show_roles(session: Session, is_like: Callable[[str], bool]) -> Result:
    """The roles of which the session may know: of all that it is or is a member of; a member of `admin` of all."""
    rows = [
        (r.name, str(r.login).lower(), ", ".join(r.member_of), "" if r.connections is None else str(r.connections))
        for r in known_roles(session)
        if r.name != PUBLIC and is_like(r.name)
    ]
    return text_result("SHOW", ("Name", "Login", "Member Of", "Connections"), rows)


def show_grants(session: Session, is_like: Callable[[str], bool]) -> Result:
    """What these roles were granted on relations."""
    relations = session.catalog.relations
    rows = [
        (role.name, relations[i].shown, ", ".join(privileges))
        for role in known_roles(session)
        for i, privileges in role.grants.items()
        if i in relations and is_like(role.name)
    ]
    return text_result("SHOW", ("Role", "Relation", "Privileges"), rows)


def known_roles(session: Session) -> list[Role]:
    """The roles of the database of which the session may know, by name."""
    roles = session.catalog.roles
    names = roles.keys() if session.rights.has(ADMIN) else _own_roles(session)
    return [roles[name] for name in sorted(roles.keys() & names)]


def _own_roles(session: Session) -> set[str]:
    """The names of the roles that the session's user is, and is a member of."""
    roles, actor = session.catalog.roles, session.user or session.role
    return all_of(roles, actor.name if actor is not None and actor_of(roles, actor.name) == actor else "")


def _check_name(statement: Statement, name: Name) -> None:
    if name.name.lower() in _RESERVED:
        hint = f"Make a user a member of it: GRANT {name.name} TO name." if name.name in FIXED else None
        raise error_at(statement, name.span, "INVALID_NAME", f'role name "{name.name}" is reserved', hint=hint)
    if len(name.name.encode()) > _MOST_BYTES or "\0" in name.name:
        raise error_at(statement, name.span, "INVALID_NAME", "a role can't have this name")


def _properties(session: Session, statement: Statement, options: RoleOptions) -> dict[str, Any]:
    """The fields of a role that the options set. The verifier of a password is kept as a secret."""
    found: dict[str, Any] = {}
    if options.login is not None:
        found["login"] = options.login
    if options.connections is not None:
        found["connections"] = None if options.connections < 0 else options.connections
    if options.password is not None:
        found["verifier"] = ""
        if options.password:
            with located(statement, statement.span):
                verifier = str(Verifier.given(options.password))
            layout = session.database.layout
            found["verifier"] = reference(keep_secret(layout, verifier), layout.id)
    return found


def _check_roles(session: Session, statement: Statement, options: RoleOptions) -> None:
    for name in options.member_of:
        _grantee(session, statement, name, everybody=False)
    for name in options.members:
        _existing(session, statement, name)


def _memberships(options: RoleOptions, name: str) -> list[RoleChange]:
    """The changes of memberships that the options of a role say."""
    made: list[RoleChange] = []
    if options.admin is not None:
        made.append(ChangeMembership(name, (ADMIN,), options.admin))
    if options.member_of:
        made.append(ChangeMembership(name, tuple(n.name for n in options.member_of), gives=True))
    return [*made, *(ChangeMembership(member.name, (name,), gives=True) for member in options.members)]


def _existing(session: Session, statement: Statement, name: Name) -> Role:
    """A role that can be changed. UNDEFINED_OBJECT, INVALID_NAME for one that is always there."""
    if name.name in FIXED:
        raise error_at(statement, name.span, "INVALID_NAME", f'role "{name.name}" is always there as it is')
    role = session.catalog.roles.get(name.name)
    if role is None or name.name == PUBLIC:
        raise _undefined(session, statement, name)
    return role


def _grantee(session: Session, statement: Statement, name: Name, *, everybody: bool) -> str:
    """A role to which something is granted, or which is granted. everybody: whether that may be PUBLIC."""
    if name.name == PUBLIC and everybody:
        return PUBLIC
    if name.name in FIXED:
        if not everybody:
            return name.name
        raise error_at(statement, name.span, "INVALID_NAME", f'what role "{name.name}" may do can\'t be changed')
    return _existing(session, statement, name).name


def _undefined(session: Session, statement: Statement, name: Name) -> Error:
    hint = did_you_mean(name.name, session.catalog.roles)
    return error_at(statement, name.span, "UNDEFINED_OBJECT", f'role "{name.name}" does not exist', hint=hint)


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
