"""CREATE, ALTER and DROP ROLE; SET ROLE; SHOW ROLES and SHOW GRANTS, in every dialect.

PostgreSQL, "CREATE ROLE", "ALTER ROLE", "DROP ROLE", "SET ROLE". Unquoted names of roles are folded
to lower case.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final

from sqlglot.tokens import TokenType

from watersmeet.catalog import RoleChange
from watersmeet.catalog.roles import (
    ADMIN,
    FIXED,
    OWNER,
    PUBLIC,
    Actor,
    ChangeMembership,
    PutRole,
    RemoveRole,
    Role,
    actor_of,
    all_of,
    language_of,
)
from watersmeet.catalog.roles import RenameRole as Renamed
from watersmeet.database.sessions.context import Session, denied, error_at, located
from watersmeet.database.sessions.result import Result, text_result
from watersmeet.database.sessions.variables import check_setting
from watersmeet.dialects.readers import reads
from watersmeet.dialects.tree.statements import Name, Statement
from watersmeet.dialects.tree.tokens import Cursor, read_value, refused, span_of
from watersmeet.errors import Error, Span, did_you_mean
from watersmeet.session.handlers import handles
from watersmeet.store.positions import keep_secret
from watersmeet.system.passwords import Verifier
from watersmeet.system.secretvalues import reference

#: Options of PostgreSQL that every role of Watersmeet has.
_WITHOUT_EFFECT: Final = ("NOCREATEDB", "NOCREATEROLE", "NOREPLICATION", "NOBYPASSRLS", "INHERIT")

_LACKING: Final = {
    "CREATEDB": "There is one database.",
    "CREATEROLE": f"Members of the role {ADMIN} create roles: GRANT {ADMIN} TO name.",
    "REPLICATION": None,
    "BYPASSRLS": None,
    "NOINHERIT": "Members of a role have its rights.",
    "VALID": None,
    "ADMIN": None,
    "SYSID": None,
}


@dataclass(frozen=True)
class RoleOptions:
    """The options of CREATE ROLE and ALTER ROLE; None if not given.

    password: plaintext or a verifier; empty to remove it. connections: -1 for no limit. admin: whether the role is a
    member of `admin`. member_of, members: roles.
    """

    login: bool | None = None
    admin: bool | None = None
    password: str | None = field(default=None, repr=False)
    connections: int | None = None
    member_of: tuple[Name, ...] = ()
    members: tuple[Name, ...] = ()


@dataclass(frozen=True, kw_only=True)
class OfRoles(Statement):
    """A statement about roles, which members of `admin` run."""

    takes: ClassVar[str | None] = ADMIN
    once: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class CreateRole(OfRoles):
    """`CREATE ROLE | USER | GROUP name [WITH] options`. word: ROLE, USER or GROUP."""

    name: Name
    options: RoleOptions
    word: str
    if_not_exists: bool = False


@dataclass(frozen=True, kw_only=True)
class AlterRole(OfRoles):
    """`ALTER ROLE name [WITH] options`, and `… SET name = value`, `… RESET name | ALL`.

    settings: values by name; None resets a setting. resets: whether all other settings are reset.
    """

    name: Name
    options: RoleOptions = RoleOptions()
    settings: tuple[tuple[str, str | None], ...] = ()
    resets: bool = False

    def role_for(self, user: str | None) -> str | None:
        """None for users who only change their own password."""
        only = replace(self, options=RoleOptions(password=self.options.password), settings=(), resets=False)
        own = self.name.name == user and self.options.password is not None
        return None if own and self == only else self.takes


@dataclass(frozen=True, kw_only=True)
class RenameRole(OfRoles):
    """`ALTER ROLE name RENAME TO new`."""

    name: Name
    new: Name


@dataclass(frozen=True, kw_only=True)
class DropRole(OfRoles):
    """`DROP ROLE names`."""

    names: tuple[Name, ...]
    word: str
    if_exists: bool = False


@dataclass(frozen=True, kw_only=True)
class SetRole(Statement):
    """`SET [LOCAL] ROLE name`. name: None for `SET ROLE NONE` and `RESET ROLE`, which restore the role of the login."""

    takes: ClassVar[str | None] = None

    name: Name | None
    local: bool = False


@reads("CREATE ROLE")
@reads("CREATE USER")
@reads("CREATE GROUP")
def read_create_role(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """CREATE ROLE, USER or GROUP."""
    word = _word(cursor)
    if_not_exists = cursor.take("IF", "NOT", "EXISTS")
    name = _role(cursor)
    base = {**base, "sql": f"CREATE {word} {name.name}"}  # the rest may contain a password
    read = _options(cursor, base)
    if isinstance(read, Statement):
        return read
    options = read if read.login is not None else replace(read, login=word == "USER")
    return CreateRole(**base, name=name, options=options, word=word, if_not_exists=if_not_exists)


@reads("ALTER ROLE")
@reads("ALTER USER")
@reads("ALTER GROUP")
def read_alter_role(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """ALTER ROLE, USER or GROUP."""
    word = _word(cursor)
    name = _role(cursor)
    base = {**base, "sql": f"ALTER {word} {name.name}"}
    if cursor.take("RENAME", "TO"):
        new = _role(cursor)
        cursor.end()
        return RenameRole(**base, name=name, new=new)
    if cursor.at("IN", "DATABASE"):
        return refused(cursor, base, "ALTER ROLE … IN DATABASE", hint="There is one database.")
    if cursor.take("RESET"):
        if cursor.take("ALL"):
            cursor.end()
            return AlterRole(**base, name=name, resets=True)
        setting = cursor.word().name
        cursor.end()
        return AlterRole(**base, name=name, settings=((setting, None),))
    if cursor.take("SET"):
        setting = cursor.word().name
        if not cursor.take("TO"):
            cursor.expect("=")
        value = None if cursor.take("DEFAULT") else _values(cursor)
        cursor.end()
        return AlterRole(**base, name=name, settings=((setting, value),))
    read = _options(cursor, base)
    return read if isinstance(read, Statement) else AlterRole(**base, name=name, options=read)


@reads("DROP ROLE")
@reads("DROP USER")
@reads("DROP GROUP")
def read_drop_role(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """DROP ROLE, USER or GROUP."""
    word = _word(cursor)
    if_exists = cursor.take("IF", "EXISTS")
    names = read_roles(cursor)
    cursor.end()
    return DropRole(**base, names=names, word=word, if_exists=if_exists)


@reads("SET ROLE")
@reads("SET SESSION ROLE")
def read_set_role(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """SET ROLE."""
    return _set_role(cursor, base, local=False)


@reads("SET LOCAL ROLE")
def read_set_local_role(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """SET LOCAL ROLE."""
    return _set_role(cursor, base, local=True)


def _set_role(cursor: Cursor, base: dict[str, Any], *, local: bool) -> Statement:
    if not cursor.take("TO"):
        cursor.take("=")
    name = None if cursor.take("NONE") or cursor.take("DEFAULT") else _role(cursor, text=True)
    cursor.end()
    return SetRole(**base, name=name if name is None or name.name != "none" else None, local=local)


@reads("RESET ROLE")
def read_reset_role(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """RESET ROLE."""
    cursor.end()
    return SetRole(**base, name=None)


def _word(cursor: Cursor) -> str:
    """The word before the cursor: ROLE, USER or GROUP."""
    return str(cursor.tokens[cursor.index - 1].text.upper())


def _role(cursor: Cursor, *, text: bool = False) -> Name:
    """The name of a role. text: also accept single quotes."""
    token = cursor.current
    if text and token is not None and token.token_type == TokenType.STRING:
        return Name(cursor.string(), span_of([token]))
    name = cursor.name()
    quoted = token is not None and token.token_type == TokenType.IDENTIFIER
    return name if quoted or token is None else Name(token.text.lower(), name.span)


def read_roles(cursor: Cursor) -> tuple[Name, ...]:
    """Reads names of roles, separated by commas."""
    _ = cursor.take("GROUP") or (is_kind(cursor) and cursor.take("ROLE"))
    found = [_role(cursor)]
    while cursor.take(","):
        cursor.take("GROUP")
        found.append(_role(cursor))
    return tuple(found)


def is_kind(cursor: Cursor, words: int = 1) -> bool:
    """Whether the next words are the kind of object before a name, rather than a name."""
    behind = cursor.tokens[cursor.index + words : cursor.index + words + 1]
    return bool(behind) and behind[0].text.upper() not in (".", ",", "TO", "FROM")


def _values(cursor: Cursor) -> str:
    values = [read_value(cursor)]
    while cursor.take(","):
        values.append(read_value(cursor))
    return ", ".join(values)


def _options(cursor: Cursor, base: dict[str, Any]) -> RoleOptions | Statement:
    """The options after the name, up to the end; for invalid options, a statement that raises the error."""
    cursor.take("WITH")
    found: dict[str, Any] = {}
    while not cursor.done:
        if cursor.take("LOGIN") or cursor.take("NOLOGIN"):
            found["login"] = cursor.tokens[cursor.index - 1].text.upper() == "LOGIN"
        elif cursor.take("SUPERUSER") or cursor.take("NOSUPERUSER"):
            found["admin"] = cursor.tokens[cursor.index - 1].text.upper() == "SUPERUSER"
        elif cursor.at("PASSWORD") or cursor.at("ENCRYPTED", "PASSWORD"):
            cursor.take("ENCRYPTED")
            cursor.expect("PASSWORD")
            found["password"] = "" if cursor.take("NULL") else cursor.string()
        elif cursor.take("IDENTIFIED", "BY"):  # SQLstream, "CREATE USER"
            found["password"] = cursor.string()
        elif cursor.take("DEFAULT", "CATALOG") or cursor.take("DEFAULT", "SCHEMA"):
            read_value(cursor)
            base["notices"] = ("DEFAULT of a user has no effect: SET SCHEMA sets the schema of a session",)
        elif cursor.take("CONNECTION", "LIMIT"):
            found["connections"] = -cursor.integer() if cursor.take("-") else cursor.integer()
        elif cursor.take("IN", "ROLE") or cursor.take("IN", "GROUP"):
            found["member_of"] = read_roles(cursor)
        elif cursor.take("ROLE") or cursor.take("USER"):
            found["members"] = read_roles(cursor)
        elif not any(cursor.take(word) for word in _WITHOUT_EFFECT):
            token = cursor.current
            word = "" if token is None else token.text.upper()
            if word not in _LACKING:
                raise cursor.error()
            return refused(cursor, base, f"{word} of a role", hint=_LACKING[word])
    return RoleOptions(**found)


_RESERVED: Final = (*FIXED, OWNER, PUBLIC, "none", "current_user", "current_role", "session_user")
_MOST_BYTES: Final = 63
_ID_BYTES: Final = 8


@handles(CreateRole)
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


@handles(AlterRole)
def alter_role(session: Session, statement: AlterRole) -> Result:
    """ALTER ROLE … options, SET and RESET."""
    session.require_definer("ALTER ROLE")
    with session.database.guard:
        role = existing_role(session, statement, statement.name)
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


@handles(RenameRole)
def rename_role(session: Session, statement: RenameRole) -> Result:
    """ALTER ROLE … RENAME TO."""
    session.require_definer("ALTER ROLE")
    with session.database.guard:
        role = existing_role(session, statement, statement.name)
        if statement.new.name in session.catalog.roles:
            shown = statement.new.name
            raise error_at(statement, statement.new.span, "DUPLICATE_OBJECT", f'role "{shown}" already exists')
        _check_name(statement, statement.new)
        session.put_roles([Renamed(role.name, statement.new.name)])
    return Result("ALTER ROLE")


@handles(DropRole)
def drop_role(session: Session, statement: DropRole) -> Result:
    """DROP ROLE: drops all named roles and their grants, or none."""
    command = f"DROP {statement.word}"
    session.require_definer(command)
    with session.database.guard:
        found = []
        for name in statement.names:
            if statement.if_exists and name.name not in (*session.catalog.roles, *FIXED):
                session.notice(f'role "{name.name}" does not exist, skipping')
                continue
            role = existing_role(session, statement, name)
            if actor_of(session.catalog.roles, role.name) in (session.user, session.role):
                raise error_at(statement, name.span, "DEPENDENT_OBJECTS", "current user cannot be dropped")
            found.append(role)
        session.put_roles([RemoveRole(role.name) for role in found])
    return Result(command)


@handles(SetRole)
def set_role(session: Session, statement: SetRole) -> Result:
    """SET ROLE, RESET ROLE: the session gets that role's rights; by SET LOCAL ROLE until the transaction ends. Raises
    PERMISSION_DENIED for a role that is not the user's, whether it exists or not.
    """
    role = _role_to_set(session, statement)
    transaction = session.transaction
    if transaction is not None:
        outer = transaction.outer_role or (session.role,)
        transaction.outer_role = outer if statement.local else None
    elif statement.local:
        session.notice("SET LOCAL can only be used in transaction blocks")
        return Result("SET")
    session.role = role
    return Result("SET")


def put_role(session: Session, name: str, *, local: bool) -> None:
    """Sets the role to a name that is a value. Raises the errors of `set_role`."""
    base: dict[str, Any] = {"text": name, "sql": name, "span": Span(0, len(name))}
    set_role(session, SetRole(**base, name=None if name == "none" else Name(name, base["span"]), local=local))


def _role_to_set(session: Session, statement: SetRole) -> Actor | None:
    roles = session.catalog.roles
    if statement.name is None:
        return session.user
    name = statement.name.name
    found = actor_of(roles, name)
    if session.user is not None:
        own = _own_roles(session)
        if ADMIN not in own and (name == PUBLIC or name not in own):
            raise denied(f'setting role "{name}"', statement.text)
    if found is None:
        raise _undefined(session, statement, statement.name)
    return found


def show_roles(session: Session, is_like: Callable[[str], bool]) -> Result:
    """The roles that the session may see: its own and those of which it is a member; a member of `admin` sees all."""
    rows = [
        (r.name, str(r.login).lower(), ", ".join(r.member_of), "" if r.connections is None else str(r.connections))
        for r in known_roles(session)
        if r.name != PUBLIC and is_like(r.name)
    ]
    return text_result("SHOW", ("Name", "Login", "Member Of", "Connections"), rows)


def show_grants(session: Session, is_like: Callable[[str], bool]) -> Result:
    """The grants on relations of the roles that the session may see."""
    relations = session.catalog.relations
    rows = [
        (role.name, relations[i].shown if i in relations else i, ", ".join(privileges))
        for role in known_roles(session)
        for i, privileges in role.grants.items()
        if (i in relations or language_of(i) is not None) and is_like(role.name)
    ]
    return text_result("SHOW", ("Role", "Relation", "Privileges"), rows)


def known_roles(session: Session) -> list[Role]:
    """The visible roles of the database, sorted by name."""
    roles = session.catalog.roles
    names = roles.keys() if session.rights.has(ADMIN) else _own_roles(session)
    return [roles[name] for name in sorted(roles.keys() & names)]


def _own_roles(session: Session) -> set[str]:
    """The names of the session's role and of the roles of which it is a member."""
    roles, actor = session.catalog.roles, session.user or session.role
    return all_of(roles, actor.name if actor is not None and actor_of(roles, actor.name) == actor else "")


def _check_name(statement: Statement, name: Name) -> None:
    if name.name.lower() in _RESERVED:
        hint = f"Make a user a member of it: GRANT {name.name} TO name." if name.name in FIXED else None
        raise error_at(statement, name.span, "INVALID_NAME", f'role name "{name.name}" is reserved', hint=hint)
    if len(name.name.encode()) > _MOST_BYTES or "\0" in name.name:
        raise error_at(statement, name.span, "INVALID_NAME", "a role can't have this name")


def _properties(session: Session, statement: Statement, options: RoleOptions) -> dict[str, Any]:
    """The fields of a role that the options set. The verifier of a password is stored as a secret."""
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
        grantee(session, statement, name, everybody=False)
    for name in options.members:
        existing_role(session, statement, name)


def _memberships(options: RoleOptions, name: str) -> list[RoleChange]:
    """The changes of memberships in the options of a role."""
    made: list[RoleChange] = []
    if options.admin is not None:
        made.append(ChangeMembership(name, (ADMIN,), options.admin))
    if options.member_of:
        made.append(ChangeMembership(name, tuple(n.name for n in options.member_of), gives=True))
    return [*made, *(ChangeMembership(member.name, (name,), gives=True) for member in options.members)]


def existing_role(session: Session, statement: Statement, name: Name) -> Role:
    """A role that can be changed. Raises UNDEFINED_OBJECT, INVALID_NAME for a built-in one."""
    if name.name in FIXED:
        raise error_at(statement, name.span, "INVALID_NAME", f'role "{name.name}" is always there as it is')
    role = session.catalog.roles.get(name.name)
    if role is None or name.name == PUBLIC:
        raise _undefined(session, statement, name)
    return role


def grantee(session: Session, statement: Statement, name: Name, *, everybody: bool) -> str:
    """A role that receives privileges, or that is granted to another. everybody: whether PUBLIC is allowed."""
    if name.name == PUBLIC and everybody:
        return PUBLIC
    if name.name in FIXED:
        if not everybody:
            return name.name
        raise error_at(statement, name.span, "INVALID_NAME", f'what role "{name.name}" may do can\'t be changed')
    return existing_role(session, statement, name).name


def _undefined(session: Session, statement: Statement, name: Name) -> Error:
    hint = did_you_mean(name.name, session.catalog.roles)
    return error_at(statement, name.span, "UNDEFINED_OBJECT", f'role "{name.name}" does not exist', hint=hint)
