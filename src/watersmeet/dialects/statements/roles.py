"""Roles and what they are granted: the same statements in every dialect.

PostgreSQL, "CREATE ROLE", "ALTER ROLE", "DROP ROLE", "GRANT", "REVOKE", "SET ROLE". Names of roles are in lower case,
unless they are in quotes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final

from sqlglot.tokens import TokenType

from watersmeet.catalog.roles import ADMIN, PRIVILEGES, Privilege
from watersmeet.dialects.tree.statements import Name, Refused, Statement
from watersmeet.dialects.tree.tokens import Cursor, not_supported, read_value, span_of

#: What may stand in front of the name of a relation, and says nothing more.
_KINDS: Final = (("TABLE",), ("VIEW",), ("MATERIALIZED", "VIEW"), ("SOURCE",), ("STREAM",), ("DICTIONARY",))
#: Words of PostgreSQL that say what is so of every role here.
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
#: What is granted on others than relations, and that everybody has.
_OPEN: Final = (
    ("USAGE", "SCHEMA"),
    ("CONNECT", "DATABASE"),
    ("EXECUTE", "FUNCTION"),
    ("EXECUTE", "FUNCTIONS"),
    ("USAGE", "TYPE"),
)
_OTHERS: Final = ("SCHEMA", "DATABASE", "FUNCTION", "SEQUENCE", "TYPE", "LANGUAGE", "FOREIGN", "TABLESPACE", "DOMAIN")


@dataclass(frozen=True)
class RoleOptions:
    """What CREATE ROLE and ALTER ROLE say; None of what they do not mention.

    password: in plain, or a verifier; empty: there is none any more. connections: -1: any number. admin: whether it is
    a member of that role. member_of, members: roles.
    """

    login: bool | None = None
    admin: bool | None = None
    password: str | None = field(default=None, repr=False)
    connections: int | None = None
    member_of: tuple[Name, ...] = ()
    members: tuple[Name, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CreateRole(Statement):
    """`CREATE ROLE | USER | GROUP name [WITH] options`. word: which of these."""

    takes: ClassVar[str | None] = ADMIN

    name: Name
    options: RoleOptions
    word: str
    if_not_exists: bool = False


@dataclass(frozen=True, kw_only=True)
class AlterRole(Statement):
    """`ALTER ROLE name [WITH] options`, and `… SET name = value`, `… RESET name | ALL`.

    settings: value None: back to the default. resets: all others go back.
    """

    takes: ClassVar[str | None] = ADMIN

    name: Name
    options: RoleOptions = RoleOptions()
    settings: tuple[tuple[str, str | None], ...] = ()
    resets: bool = False

    def is_own_password(self, user: str) -> bool:
        """Whether it sets the password of a user, and nothing else."""
        own = self.name.name == user and self.options.password is not None
        return own and self == replace(
            self, options=RoleOptions(password=self.options.password), settings=(), resets=False
        )


@dataclass(frozen=True, kw_only=True)
class RenameRole(Statement):
    """`ALTER ROLE name RENAME TO new`."""

    takes: ClassVar[str | None] = ADMIN

    name: Name
    new: Name


@dataclass(frozen=True, kw_only=True)
class DropRole(Statement):
    """`DROP ROLE names`."""

    takes: ClassVar[str | None] = ADMIN

    names: tuple[Name, ...]
    word: str
    if_exists: bool = False


@dataclass(frozen=True, kw_only=True)
class Grant(Statement):
    """`GRANT privileges ON relations TO roles`, `REVOKE … FROM …`.

    relations: empty with `schemas`, whose relations are meant. open_to_all: it is about what everybody has.
    """

    takes: ClassVar[str | None] = ADMIN

    gives: bool
    privileges: tuple[Privilege, ...]
    relations: tuple[Name, ...]
    schemas: tuple[Name, ...]
    roles: tuple[Name, ...]
    open_to_all: bool = False


@dataclass(frozen=True, kw_only=True)
class GrantRole(Statement):
    """`GRANT roles TO members`, `REVOKE roles FROM members`."""

    takes: ClassVar[str | None] = ADMIN

    gives: bool
    roles: tuple[Name, ...]
    members: tuple[Name, ...]


@dataclass(frozen=True, kw_only=True)
class SetRole(Statement):
    """`SET ROLE name`; None: `SET ROLE NONE` and `RESET ROLE`, as whom one logged in."""

    takes: ClassVar[str | None] = None

    name: Name | None


def read_create(cursor: Cursor, base: dict[str, Any]) -> Statement | None:
    """CREATE ROLE, USER or GROUP: the cursor stands behind CREATE. None for anything else."""
    word = _word(cursor)
    if word is None:
        return None
    if_not_exists = cursor.take("IF", "NOT", "EXISTS")
    name = _role(cursor)
    base = {**base, "sql": f"CREATE {word} {name.name}"}  # the rest may have a password
    read = _options(cursor, base)
    if isinstance(read, Statement):
        return read
    options = read if read.login is not None else RoleOptions(**{**read.__dict__, "login": word == "USER"})
    return CreateRole(**base, name=name, options=options, word=word, if_not_exists=if_not_exists)


def read_alter(cursor: Cursor, base: dict[str, Any]) -> Statement | None:
    """ALTER ROLE or USER: the cursor stands behind ALTER. None for anything else."""
    word = _word(cursor)
    if word is None:
        return None
    name = _role(cursor)
    base = {**base, "sql": f"ALTER {word} {name.name}"}
    if cursor.take("RENAME", "TO"):
        new = _role(cursor)
        cursor.end()
        return RenameRole(**base, name=name, new=new)
    if cursor.at("IN", "DATABASE"):
        return Refused(**base, error=_lacking(cursor, "ALTER ROLE … IN DATABASE", "There is one database."))
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


def read_drop(cursor: Cursor, base: dict[str, Any]) -> Statement | None:
    """DROP ROLE, USER or GROUP: the cursor stands behind DROP. None for anything else."""
    word = _word(cursor)
    if word is None:
        return None
    if_exists = cursor.take("IF", "EXISTS")
    names = _roles(cursor)
    cursor.end()
    return DropRole(**base, names=names, word=word, if_exists=if_exists)


def read_grant(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """GRANT: the cursor stands behind it."""
    return _grant(cursor, base, gives=True)


def read_revoke(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """REVOKE: the cursor stands behind it."""
    if cursor.at("GRANT", "OPTION") or cursor.at("ADMIN", "OPTION"):
        return Refused(**base, error=_lacking(cursor, "REVOKE … OPTION FOR", "There are no such options."))
    return _grant(cursor, base, gives=False)


def read_set_role(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """SET ROLE: the cursor stands behind it."""
    name = None if cursor.take("NONE") or cursor.take("DEFAULT") else _role(cursor, text=True)
    cursor.end()
    return SetRole(**base, name=name if name is None or name.name != "none" else None)


def _word(cursor: Cursor) -> str | None:
    return next((word for word in ("ROLE", "USER", "GROUP") if cursor.take(word)), None)


def _role(cursor: Cursor, *, text: bool = False) -> Name:
    """A name of a role. text: it may be in single quotes."""
    token = cursor.current
    if text and token is not None and token.token_type == TokenType.STRING:
        return Name(cursor.string(), span_of([token]))
    name = cursor.name()
    quoted = token is not None and token.token_type == TokenType.IDENTIFIER
    return name if quoted or token is None else Name(token.text.lower(), name.span)


def _roles(cursor: Cursor) -> tuple[Name, ...]:
    cursor.take("GROUP")
    found = [_role(cursor)]
    while cursor.take(","):
        cursor.take("GROUP")
        found.append(_role(cursor))
    return tuple(found)


def _values(cursor: Cursor) -> str:
    values = [read_value(cursor)]
    while cursor.take(","):
        values.append(read_value(cursor))
    return ", ".join(values)


def _options(cursor: Cursor, base: dict[str, Any]) -> RoleOptions | Statement:
    """What stands behind the name, up to the end; a statement that refuses it."""
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
        elif cursor.take("CONNECTION", "LIMIT"):
            found["connections"] = -cursor.integer() if cursor.take("-") else cursor.integer()
        elif cursor.take("IN", "ROLE") or cursor.take("IN", "GROUP"):
            found["member_of"] = _roles(cursor)
        elif cursor.take("ROLE") or cursor.take("USER"):
            found["members"] = _roles(cursor)
        elif not any(cursor.take(word) for word in _WITHOUT_EFFECT):
            token = cursor.current
            word = "" if token is None else token.text.upper()
            if word not in _LACKING:
                raise cursor.error()
            return Refused(**base, error=_lacking(cursor, f"{word} of a role", _LACKING[word]))
    return RoleOptions(**found)


def _lacking(cursor: Cursor, feature: str, hint: str | None) -> Any:
    return not_supported(feature, cursor.text, span_of(cursor.rest[:1] or cursor.tokens), hint=hint)


def _grant(cursor: Cursor, base: dict[str, Any], *, gives: bool) -> Statement:
    start = cursor.index
    before = cursor.until("TO" if gives else "FROM")
    is_of_roles = not any(t.text.upper() == "ON" and t.token_type != TokenType.IDENTIFIER for t in before)
    cursor.index = start
    if is_of_roles:
        roles = _roles(cursor)
        cursor.expect("TO" if gives else "FROM")
        members = _roles(cursor)
        return _ended(cursor, base, gives, GrantRole(**base, gives=gives, roles=roles, members=members))
    privileges = _privileges(cursor, base)
    if isinstance(privileges, Statement):
        return privileges
    return _on(cursor, base, privileges, gives=gives)


def _privileges(cursor: Cursor, base: dict[str, Any]) -> tuple[str, ...] | Statement:
    """The words in front of ON."""
    if cursor.take("ALL"):
        cursor.take("PRIVILEGES")
        cursor.expect("ON")
        return ("ALL",)
    found = [cursor.word().name.upper()]
    while cursor.take(","):
        found.append(cursor.word().name.upper())
    if cursor.at("("):
        return Refused(**base, error=_lacking(cursor, "a privilege on columns", "Grant SELECT on a view of them."))
    cursor.expect("ON")
    return tuple(found)


def _on(cursor: Cursor, base: dict[str, Any], words: tuple[str, ...], *, gives: bool) -> Statement:
    """What stands behind ON."""
    schemas: tuple[Name, ...] = ()
    relations: tuple[Name, ...] = ()
    kind = "" if cursor.current is None else cursor.current.text.upper()
    every = cursor.at("ALL") and cursor.tokens[cursor.index + 2 : cursor.index + 3]
    other = cursor.tokens[cursor.index + 1].text.upper() if every else kind
    if other in (*_OTHERS, "FUNCTIONS", "SEQUENCES", "ROUTINES") and _is_kind(cursor):
        if len(words) > 1 or (words[0], other) not in _OPEN or not gives:
            shown = f"{'GRANT' if gives else 'REVOKE'} {', '.join(words)} ON {other}"
            hint = "Rights are of relations, and of the roles reader, writer and admin."
            return Refused(**base, error=_lacking(cursor, shown, hint))
        cursor.until("TO")
        open_to_all = True
    else:
        open_to_all = False
        if cursor.take("ALL", "TABLES", "IN", "SCHEMA"):
            schemas = _names(cursor)
        else:
            next(
                (k for k in _KINDS if len(cursor.rest) > len(k) and _is_kind(cursor, len(k)) and cursor.take(*k)), None
            )
            relations = _names(cursor)
    for word in words:
        if not open_to_all and word not in (*PRIVILEGES, "ALL"):
            hint = f"There are {', '.join(PRIVILEGES)} and ALL; the role writer changes definitions."
            return Refused(**base, error=_lacking(cursor, f"the privilege {word}", hint))
    privileges = PRIVILEGES if words == ("ALL",) else tuple(p for p in PRIVILEGES if p in words)
    cursor.expect("TO" if gives else "FROM")
    roles = _roles(cursor)
    made = Grant(
        **base,
        gives=gives,
        privileges=privileges,
        relations=relations,
        schemas=schemas,
        roles=roles,
        open_to_all=open_to_all,
    )
    return _ended(cursor, base, gives, made)


def _is_kind(cursor: Cursor, words: int = 1) -> bool:
    """Whether the next words say of what kind the name behind them is, and are no name themselves."""
    behind = cursor.tokens[cursor.index + words : cursor.index + words + 1]
    return bool(behind) and behind[0].text.upper() not in (".", ",", "TO", "FROM")


def _names(cursor: Cursor) -> tuple[Name, ...]:
    found = [cursor.relation_name()]
    while cursor.take(","):
        found.append(cursor.relation_name())
    return tuple(found)


def _ended(cursor: Cursor, base: dict[str, Any], gives: bool, made: Statement) -> Statement:
    """The statement, if nothing that counts stands behind it."""
    if gives and (cursor.at("WITH", "GRANT", "OPTION") or cursor.at("WITH", "ADMIN")):
        hint = f"Members of the role {ADMIN} grant."
        return Refused(**base, error=_lacking(cursor, "GRANT … WITH … OPTION", hint))
    if cursor.at("GRANTED", "BY"):
        return Refused(**base, error=_lacking(cursor, "GRANTED BY", None))
    if not gives and not cursor.take("CASCADE"):
        cursor.take("RESTRICT")
    cursor.end()
    return made
