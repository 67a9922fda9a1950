"""Roles and what they may do, as PostgreSQL's catalog tells it.

PostgreSQL 16, "pg_roles", "pg_auth_members", "Access Privilege Inquiry Functions".
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import pyarrow as pa

from watersmeet.catalog import Catalog, Role
from watersmeet.catalog.roles import ADMIN, FIXED, OWNER, PUBLIC, Rights, all_of, rights_of

OWNER_OID: Final = 10
#: Of a client that is let in without a password, under a name that is no role.
TRUSTED_OID: Final = 9
_FIRST_FIXED: Final = 11
_LETTERS: Final = {"INSERT": "a", "SELECT": "r", "UPDATE": "w", "DELETE": "d"}
_PLAIN: Final = re.compile(r"[a-z_][a-z0-9_]*")

#: Tables that functions ask: what each role may do by fixed roles and by what it was granted, also through others, and
#: of which roles it is a member.
RIGHTS: Final = pa.schema({"role": pa.uint32(), "level": pa.int32()})
GRANTS: Final = pa.schema({"role": pa.uint32(), "relation": pa.uint32(), "privilege": pa.string()})
MEMBERS: Final = pa.schema({"role": pa.uint32(), "of": pa.uint32()})

Rows = Iterator[tuple[tuple[str, str], Mapping[str, object]]]

#: Functions over these tables: macros of DuckDB by name and parameters. `r`, `u`: a role by number, or by name, too.
MACROS: Final = {
    "role_id(u)": (
        "(SELECT r_.oid FROM pg_catalog_.pg_roles r_ WHERE r_.rolname = CAST(u AS VARCHAR) "
        "OR CAST(r_.oid AS VARCHAR) = CAST(u AS VARCHAR) LIMIT 1)"
    ),
    "relation_id(o)": ("coalesce(TRY_CAST(CAST(o AS VARCHAR) AS UINTEGER), to_regclass(CAST(o AS VARCHAR)))"),
    "wants(p, one)": "list_contains(list_transform(string_split(upper(p), ','), lambda q: trim(q)), one)",
    "level_of(r)": "coalesce((SELECT x_.level FROM pg_catalog_.rights_ x_ WHERE x_.role = r), 0)",
    "may(r, o, p)": (
        "CASE WHEN r IS NULL OR o IS NULL THEN NULL ELSE (level_of(r) >= 1 AND wants(p, 'SELECT')) OR "
        "(level_of(r) >= 2 AND (wants(p, 'INSERT') OR wants(p, 'UPDATE') OR wants(p, 'DELETE'))) OR EXISTS (SELECT 1 "
        "FROM pg_catalog_.grants_ g_ WHERE g_.role = r AND g_.relation = o AND wants(p, g_.privilege)) END"
    ),
    "is_member(r, o)": (
        "CASE WHEN r IS NULL OR o IS NULL THEN NULL ELSE r = o OR level_of(r) >= 3 OR EXISTS (SELECT 1 FROM "
        "pg_catalog_.members_ m_ WHERE m_.role = r AND m_.of = o) END"
    ),
    "pg_get_userbyid(o)": (
        "coalesce((SELECT r_.rolname FROM pg_catalog_.pg_roles r_ WHERE r_.oid = o), 'unknown (OID=' || o || ')')"
    ),
    "to_regrole(n)": "(SELECT r_.oid FROM pg_catalog_.pg_roles r_ WHERE r_.rolname = bare(n))",
}
#: What everybody has of other objects, and what takes the role `writer` (2) or `admin` (3).
_OTHERS: Final = {
    "database": "CASE WHEN wants(p, 'CONNECT') THEN true ELSE level_of({r}) >= 2 END",
    "schema": "CASE WHEN wants(p, 'USAGE') THEN true ELSE level_of({r}) >= 2 END",
    "function": "true",
    "type": "true",
    "language": "true",
    "sequence": "false",
    "tablespace": "level_of({r}) >= 3",
    "server": "level_of({r}) >= 3",
    "foreign_data_wrapper": "level_of({r}) >= 3",
}


def role_oid(name: str) -> int:
    """The number of a role."""
    if name == OWNER:
        return OWNER_OID
    return _FIRST_FIXED + FIXED.index(name) if name in FIXED else 1 << 30 | zlib.crc32(name.encode()) >> 3


def definitions() -> list[str]:
    """The statements of DuckDB that make the functions that tell what a role may do."""
    me = "getvariable('me')"
    made = []
    for what, extra in (("table", ""), ("any_column", ""), ("column", "c, ")):
        bodies = [f"may({r}, relation_id(o), p)" for r in (me, "role_id(u)")]
        made.append(f"has_{what}_privilege(o, {extra}p) AS {bodies[0]}, (u, o, {extra}p) AS {bodies[1]}")
    for what, body in _OTHERS.items():
        mine, others = body.format(r=me), body.format(r="role_id(u)")
        made.append(f"has_{what}_privilege(o, p) AS {mine}, (u, o, p) AS {others}")
    made.append(f"pg_has_role(r, p) AS is_member({me}, role_id(r)), (u, r, p) AS is_member(role_id(u), role_id(r))")
    return [f"CREATE MACRO {text}" for text in made]


def acl(relation_id: str, roles: Sequence[Role]) -> list[str] | None:
    """Who was granted what on a relation, as `pg_class.relacl` has it; None: nobody."""
    found = []
    for role in roles:
        letters = "".join(letter for p, letter in _LETTERS.items() if p in role.grants.get(relation_id, ()))
        if letters:
            found.append(f"{'' if role.name == PUBLIC else _quoted(role.name)}={letters}/{OWNER}")
    every = "".join(_LETTERS.values())
    return [f"{OWNER}={every}/{OWNER}", *found] if found else None


def granted(relation_id: str, place: dict[str, str], roles: Sequence[Role]) -> Rows:
    """The rows of the views of the information schema about what was granted on a relation."""
    for role in roles:
        for privilege in role.grants.get(relation_id, ()):
            row = {"grantee": "PUBLIC" if role.name == PUBLIC else role.name, **place}
            row |= {"privilege_type": privilege, "is_grantable": "NO"}
            for table in ("table_privileges", "role_table_grants"):
                yield ("information_schema", table), {**row, "with_hierarchy": "YES" if privilege == "SELECT" else "NO"}


def role_rows(catalog: Catalog, roles: Sequence[Role]) -> Rows:
    """The rows of pg_roles, pg_user, pg_auth_members and their kin. roles: those of which the client may know."""
    known = catalog.roles
    for name in (OWNER, *FIXED, *(r.name for r in roles if r.name != PUBLIC)):
        role = known.get(name, Role(name))
        is_admin = name == OWNER or ADMIN in all_of(known, name)
        yield (
            ("pg_catalog", "pg_roles"),
            {
                "rolname": name,
                "oid": role_oid(name),
                "rolsuper": is_admin,
                "rolinherit": True,
                "rolcreaterole": is_admin,
                "rolcreatedb": False,
                "rolcanlogin": role.login,
                "rolreplication": False,
                "rolconnlimit": -1 if role.connections is None else role.connections,
                "rolpassword": "********",
                "rolbypassrls": is_admin,
                "rolconfig": [f"{n}={v}" for n, v in role.settings.items()] or None,
            },
        )
        if role.login:
            row = {"usename": name, "usesysid": role_oid(name), "usecreatedb": False, "usesuper": is_admin}
            yield ("pg_catalog", "pg_user"), {**row, "userepl": False, "usebypassrls": is_admin, "passwd": "********"}
        else:
            members = [role_oid(r.name) for r in roles if name in r.member_of]
            yield ("pg_catalog", "pg_group"), {"groname": name, "grosysid": role_oid(name), "grolist": members}
        yield from _memberships(role)


def _memberships(role: Role) -> Rows:
    for number, other in enumerate(role.member_of):
        row = {"oid": role_oid(role.name) + number, "roleid": role_oid(other), "member": role_oid(role.name)}
        row |= {"grantor": OWNER_OID, "admin_option": False, "inherit_option": True, "set_option": True}
        yield ("pg_catalog", "pg_auth_members"), row
        granted_role = {"grantee": role.name, "role_name": other, "is_grantable": "NO"}
        yield ("information_schema", "applicable_roles"), granted_role


def rights_tables(catalog: Catalog, roles: Sequence[Role], oids: dict[str, int]) -> dict[str, pa.Table]:
    """What the functions ask. oids: the numbers of relations by their ids."""
    known, grants, members = catalog.roles, [], []
    levels = [{"role": TRUSTED_OID, "level": len(FIXED)}]
    for name in (OWNER, *FIXED, *(r.name for r in roles)):
        rights = Rights() if name == OWNER else rights_of(known, name)
        levels.append({"role": role_oid(name), "level": FIXED.index(rights.fixed) + 1 if rights.fixed else 0})
        grants += [
            {"role": role_oid(name), "relation": oids[i], "privilege": p}
            for i, given in rights.grants.items()
            if i in oids
            for p in given
        ]
        members += [{"role": role_oid(name), "of": role_oid(other)} for other in all_of(known, name) - {PUBLIC}]
    return {
        "rights_": pa.Table.from_pylist(levels, RIGHTS),
        "grants_": pa.Table.from_pylist(grants, GRANTS),
        "members_": pa.Table.from_pylist(members, MEMBERS),
    }


def _quoted(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else '"' + name.replace('"', '""') + '"'
