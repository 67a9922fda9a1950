"""Roles and their rights. Some may log in (users), others only pass their grants to members.

PostgreSQL, "Database Roles". Three roles always exist, each including the previous one: `reader` reads all relations,
`writer` changes rows and definitions, `admin` does everything. Other grants of a role are for single relations.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

Privilege = Literal["SELECT", "INSERT", "UPDATE", "DELETE", "USAGE"]

#: The privileges on relations. USAGE is of languages of functions.
PRIVILEGES: Final[tuple[Privilege, ...]] = ("SELECT", "INSERT", "UPDATE", "DELETE")
READER, WRITER, ADMIN = "reader", "writer", "admin"
#: The roles that always exist, the least privileged first.
FIXED: Final = (READER, WRITER, ADMIN)
#: The role of which every role is a member.
PUBLIC: Final = "public"
USAGE: Final[Privilege] = "USAGE"
_LANGUAGE: Final = "language "
#: The owner of all relations.
OWNER: Final = "watersmeet"


@dataclass(frozen=True)
class Role:
    """A role.

    id: a role created later under the same name has another id; roles of old databases have none. login: whether
    clients may connect as this role. verifier: the verifier of its password, or a reference to the secret with it;
    empty without a password. connections: the maximum number of simultaneous connections; None: no limit. settings: the
    settings of new connections. member_of: the names of roles whose rights it has. grants: its grants by relation id.
    """

    name: str
    login: bool = False
    verifier: str = ""
    connections: int | None = None
    settings: dict[str, str] = field(default_factory=dict)
    member_of: tuple[str, ...] = ()
    grants: dict[str, tuple[Privilege, ...]] = field(default_factory=dict)
    id: str = ""

    @property
    def identity(self) -> str:
        """The id, or the name of a role without an id."""
        return self.id or self.name


@dataclass(frozen=True)
class Actor:
    """The role of a session. A role created later under the same name has another id and is a different role."""

    name: str
    id: str


@dataclass(frozen=True)
class Rights:
    """Rights: those of a fixed role (its name, or empty) on all relations, and grants by relation id."""

    fixed: str = ADMIN
    grants: Mapping[str, frozenset[Privilege]] = field(default_factory=dict)

    def has(self, fixed: str) -> bool:
        """Whether the rights of a fixed role are included."""
        return self.fixed != "" and FIXED.index(self.fixed) >= FIXED.index(fixed)

    def may(self, privilege: Privilege, relation_id: str) -> bool:
        """Whether a privilege on a relation is included."""
        return self.has(READER if privilege == "SELECT" else WRITER) or privilege in self.grants.get(relation_id, ())


#: The rights of a process that opened the files of the database itself.
EVERYTHING: Final = Rights()

Roles = Mapping[str, Role]


def all_of(roles: Roles, name: str) -> set[str]:
    """The names of a role, of PUBLIC, and of all existing roles of which it is a direct or indirect member."""
    found: set[str] = set()
    pending = [name, PUBLIC]
    while pending:
        one = pending.pop()
        if one in found or not (one in roles or one in FIXED or one == PUBLIC):
            continue
        found.add(one)
        pending += roles[one].member_of if one in roles else ()
    return found


def actor_of(roles: Roles, name: str) -> Actor | None:
    """The role that now has the name; None if it does not exist."""
    if name in FIXED:
        return Actor(name, name)
    return Actor(name, roles[name].identity) if name in roles else None


def acting_rights(roles: Roles, actor: Actor) -> Rights:
    """The rights of a session's role; no rights if the role was dropped or renamed."""
    return rights_of(roles, actor.name) if actor_of(roles, actor.name) == actor else Rights("")


def rights_of(roles: Roles, name: str) -> Rights:
    """The rights of a role; no rights if it does not exist."""
    if name not in roles and name not in FIXED:
        return Rights("")
    names = all_of(roles, name)
    grants: dict[str, frozenset[Privilege]] = {}
    for one in names & roles.keys():
        for relation_id, given in roles[one].grants.items():
            grants[relation_id] = grants.get(relation_id, frozenset()) | frozenset(given)
    return Rights(next((f for f in reversed(FIXED) if f in names), ""), grants)


def of_language(name: str) -> str:
    """The key of the grants on a language, between those on relations."""
    return _LANGUAGE + name


def language_of(key: str) -> str | None:
    """The language of a key of grants; None for a relation."""
    return key.removeprefix(_LANGUAGE) if key.startswith(_LANGUAGE) else None


class RoleChange:
    """A change of the roles. It can be applied again to newer roles, so that concurrent transactions lose nothing."""

    def applied(self, roles: Roles) -> dict[str, Role]:
        """The roles with the change."""
        raise NotImplementedError


@dataclass(frozen=True)
class PutRole(RoleChange):
    """Creates a role (`makes`), or changes properties of an existing one. changes: the new values of fields of
    `Role`.
    """

    name: str
    changes: Mapping[str, Any]
    makes: bool = False

    def applied(self, roles: Roles) -> dict[str, Role]:
        if self.name not in roles and not self.makes:
            return dict(roles)
        return {**roles, self.name: replace(roles.get(self.name, Role(self.name)), **self.changes)}


@dataclass(frozen=True)
class RenameRole(RoleChange):
    """Renames a role."""

    name: str
    new: str

    def applied(self, roles: Roles) -> dict[str, Role]:
        names = {self.name: self.new}
        return {
            names.get(n, n): replace(
                r, name=names.get(n, n), member_of=tuple(names.get(m, m) for m in r.member_of), id=r.identity
            )
            for n, r in roles.items()
        }


@dataclass(frozen=True)
class RemoveRole(RoleChange):
    """Removes a role with its grants."""

    name: str

    def applied(self, roles: Roles) -> dict[str, Role]:
        return {
            n: replace(r, member_of=tuple(m for m in r.member_of if m != self.name))
            for n, r in roles.items()
            if n != self.name
        }


@dataclass(frozen=True)
class ChangeMembership(RoleChange):
    """Adds a role to others as a member, or removes it."""

    name: str
    others: tuple[str, ...]
    gives: bool

    def applied(self, roles: Roles) -> dict[str, Role]:
        if self.name not in roles:
            return dict(roles)
        role = roles[self.name]
        kept = tuple(m for m in role.member_of if m not in self.others)
        added = tuple(o for o in self.others if o in roles or o in FIXED) if self.gives else ()
        return {**roles, self.name: replace(role, member_of=(*kept, *added))}


@dataclass(frozen=True)
class ChangeGrants(RoleChange):
    """Grants a role privileges on relations, or revokes them. The first grant creates PUBLIC."""

    name: str
    relation_ids: tuple[str, ...]
    privileges: tuple[Privilege, ...]
    gives: bool

    def applied(self, roles: Roles) -> dict[str, Role]:
        if self.name not in roles and self.name != PUBLIC:
            return dict(roles)
        role = roles.get(self.name, Role(self.name))
        grants = dict(role.grants)
        for relation_id in self.relation_ids:
            had = set(grants.pop(relation_id, ()))
            has = had | set(self.privileges) if self.gives else had - set(self.privileges)
            if has:
                grants[relation_id] = tuple(p for p in (*PRIVILEGES, USAGE) if p in has)
        return {**roles, self.name: replace(role, grants=grants)}


@dataclass(frozen=True)
class PassGrants(RoleChange):
    """Passes the grants on a relation to its replacement."""

    old: str
    new: str

    def applied(self, roles: Roles) -> dict[str, Role]:
        return {n: replace(r, grants=self._passed(r.grants)) for n, r in roles.items()}

    def _passed(self, grants: Mapping[str, tuple[Privilege, ...]]) -> dict[str, tuple[Privilege, ...]]:
        return {self.new if i == self.old else i: p for i, p in grants.items()}


def changed(roles: Roles, changes: Iterable[RoleChange]) -> dict[str, Role]:
    """The roles after the changes, in order."""
    found = dict(roles)
    for change in changes:
        found = change.applied(found)
    return found
