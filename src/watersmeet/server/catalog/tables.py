"""The tables of pg_catalog and information_schema, filled from the catalog of a database.

What Watersmeet does not have (types of users, triggers, publications …) are tables without rows.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Final

import pyarrow as pa
from sqlglot.tokens import TokenType

from watersmeet.catalog import (
    COMMON_SCHEMA,
    Catalog,
    ExternalTable,
    Index,
    MaterializedView,
    Relation,
    Role,
    Source,
    SqlFunction,
    View,
)
from watersmeet.dialects.registry import language_named
from watersmeet.dialects.script import tokenize
from watersmeet.server.catalog.privileges import OWNER_OID, Rows, acl, granted, role_rows
from watersmeet.server.catalog.shapes import NUMBERS, SHAPES
from watersmeet.server.oids import TYPES, modifier_of, oid_of, pg_type
from watersmeet.values.types import Field

#: The numbers of schemas that are always there.
PG_CATALOG, PUBLIC, INFORMATION_SCHEMA = 11, 2200, 13_000
#: That of the one database.
DATABASE_OID: Final = 5
_FIRST_RELATION: Final = 16_384
#: Of so many views it is remembered where the query begins: the tables are filled anew with each change of the catalog.
_MOST_VIEWS: Final = 10_000
#: Numbers that a relation has: its own, that of its row type, of its key's index, of its key's constraint, of its rule.
_NUMBERS_OF_ONE: Final = 8

#: Types whose functions have no underscore in their names: `varcharin`, and not `date_in`.
_JOINED: Final = (
    "bool", "bytea", "char", "name", "text", "oid", "bpchar", "varchar", "regclass", "regtype", "int2vector",
    "oidvector", "unknown",
)  # fmt: skip
#: Its name is what a client calls it.
_DATABASE: Final = {
    "oid": DATABASE_OID,
    "datdba": OWNER_OID,
    "encoding": 6,
    "datlocprovider": "c",
    "datistemplate": False,
    "datallowconn": True,
    "datconnlimit": -1,
    "datcollate": "C",
    "datctype": "C",
    "dattablespace": 1663,
}
_KIND_NAMES: Final = {"r": "BASE TABLE", "f": "FOREIGN", "v": "VIEW", "m": "MATERIALIZED VIEW"}


def kind_of(relation: Relation) -> str | None:
    """PostgreSQL's letter of the kind of a relation; None for what is no relation there."""
    if isinstance(relation, MaterializedView):
        return "m"
    if isinstance(relation, View):
        return "v"
    if isinstance(relation, Index):
        return "i"
    if isinstance(relation, (ExternalTable, Source)):
        return "f"
    return "r" if relation.has_rows else None


def relation_oid(relation: Relation, part: int = 0) -> int:
    """The number of a relation, or of what belongs to it."""
    number = int(relation.id.lstrip("abcdefghijklmnopqrstuvwxyz"))
    return _FIRST_RELATION + number * _NUMBERS_OF_ONE + part


def schema_oid(name: str) -> int:
    """The number of a schema."""
    return PUBLIC if name == COMMON_SCHEMA else 1 << 30 | zlib.crc32(name.encode()) >> 3


def filled(catalog: Catalog, roles: Sequence[Role]) -> dict[tuple[str, str], pa.Table]:
    """All tables, by schema and name, with what a client may know: the relations that the catalog shows, and these
    roles.
    """
    rows: dict[tuple[str, str], list[Mapping[str, object]]] = {key: [] for key in SHAPES}
    for (schema, table), row in chain(_rows(catalog, roles), role_rows(catalog, roles)):
        rows[schema, table].append(row)
    return {key: pa.Table.from_pylist(found, pa.schema(list(SHAPES[key].items()))) for key, found in rows.items()}


def relation_oids(catalog: Catalog) -> dict[str, int]:
    """The numbers of the relations that the catalog shows, by their ids."""
    return {r.id: relation_oid(r) for r in catalog.shown}


def _rows(catalog: Catalog, roles: Sequence[Role]) -> Rows:
    granted_in = {r.schema for r in catalog.shown}
    known = [n for n in catalog.schemas if catalog.granted is None or n in granted_in]
    schemas = {COMMON_SCHEMA: PUBLIC, **{name: schema_oid(name) for name in known}}
    for name, oid in {**schemas, "pg_catalog": PG_CATALOG, "information_schema": INFORMATION_SCHEMA}.items():
        yield ("pg_catalog", "pg_namespace"), {"oid": oid, "nspname": name, "nspowner": OWNER_OID}
        yield ("information_schema", "schemata"), {"schema_name": name, "schema_owner": "watersmeet"}
    yield from _types()
    yield ("pg_catalog", "pg_database"), _DATABASE
    yield ("pg_catalog", "pg_am"), {"oid": 2, "amname": "heap", "amtype": "t"}
    yield ("pg_catalog", "pg_am"), {"oid": 403, "amname": "btree", "amtype": "i"}
    yield ("pg_catalog", "pg_language"), {"oid": 14, "lanname": "sql", "lanowner": OWNER_OID}
    yield ("pg_catalog", "pg_tablespace"), {"oid": 1663, "spcname": "pg_default", "spcowner": OWNER_OID}
    yield (
        ("pg_catalog", "pg_timezone_names"),
        {"name": "UTC", "abbrev": "UTC", "utc_offset": "00:00:00", "is_dst": False},
    )
    yield ("pg_catalog", "pg_collation"), {"oid": 100, "collname": "default", "collnamespace": PG_CATALOG}
    functions = sorted((f for f in catalog.functions.values() if not f.dropped), key=lambda f: f.id)
    for number, function in enumerate(functions):
        yield ("pg_catalog", "pg_proc"), _function(number, function)
    for relation in catalog.shown:
        if not relation.hidden and kind_of(relation) is not None:
            yield from _relation(relation, catalog, roles)


def _types() -> Rows:
    extra = {"text": (25, 1009, "S", -1), "oid": (26, 1028, "N", 4), "name": (19, 1003, "S", 64)}
    extra |= {"char": (18, 1002, "Z", 1), "bpchar": (1042, 1014, "S", -1), "regclass": (2205, 2210, "N", 4)}
    extra |= {"json": (114, 199, "U", -1), "uuid": (2950, 2951, "U", 16), "unknown": (705, 0, "X", -2)}
    extra |= {"int2vector": (22, 1006, "A", -1), "oidvector": (30, 1013, "A", -1), "regtype": (2206, 2211, "N", 4)}
    extra |= {t.name: (t.oid, t.array, t.category, t.length) for t in TYPES.values()}
    for name, (oid, array, category, length) in extra.items():
        yield ("pg_catalog", "pg_type"), _type(oid, name, length, category, array=array)
        if array:
            yield ("pg_catalog", "pg_type"), _type(array, f"_{name}", -1, "A", element=oid)


def _type(oid: int, name: str, length: int, category: str, *, array: int = 0, element: int = 0) -> dict[str, object]:
    stem = "array_" if element else name if name in _JOINED or name[-1].isdigit() else f"{name}_"
    return {
        "oid": oid,
        "typname": name,
        "typnamespace": PG_CATALOG,
        "typowner": OWNER_OID,
        "typlen": length,
        "typbyval": 0 < length <= 8,
        "typtype": "p" if category in "PX" else "b",
        "typcategory": category,
        "typispreferred": name in ("bool", "float8", "oid", "text", "timestamptz", "interval"),
        "typisdefined": True,
        "typdelim": ",",
        "typrelid": 0,
        "typsubscript": 0,
        "typelem": element,
        "typarray": array,
        "typinput": f"{stem}in",
        "typoutput": f"{stem}out",
        "typreceive": f"{stem}recv",
        "typsend": f"{stem}send",
        "typmodin": 0,
        "typmodout": 0,
        "typanalyze": 0,
        "typalign": "d" if length == 8 else "i",
        "typstorage": "x" if length < 0 else "p",
        "typnotnull": False,
        "typbasetype": 0,
        "typtypmod": -1,
        "typndims": 0,
        "typcollation": 100 if category == "S" else 0,
    }


def _function(number: int, function: SqlFunction) -> dict[str, object]:
    return {
        "oid": 1 << 29 | number,
        "proname": function.name,
        "pronamespace": schema_oid(function.schema),
        "proowner": OWNER_OID,
        "prolang": 14,
        "prokind": "f",
        "prosecdef": False,
        "proretset": False,
        "provolatile": "i",
        "proparallel": "s",
        "pronargs": len(function.parameters),
        "prorettype": oid_of(function.returns),
        "proargtypes": [oid_of(p.type) for p in function.parameters],
        "proargnames": [p.name for p in function.parameters],
        "prosrc": function.sql,
    }


def _relation(relation: Relation, catalog: Catalog, roles: Sequence[Role]) -> Rows:
    kind, oid, schema = kind_of(relation), relation_oid(relation), relation.schema
    columns = [c for c in relation.columns if c.name not in relation.unlisted]
    key = [i for i, c in enumerate(columns, 1) if c.name in relation.primary_key] if kind in ("r", "m") else []
    row = _class(oid, relation.name, schema, kind or "r", len(columns), bool(key))
    yield ("pg_catalog", "pg_class"), {**row, "relacl": acl(relation.id, roles)}
    if isinstance(relation, Index):
        table = catalog.relations[relation.depends_on[0]]
        names = [c.name for c in table.columns]
        places = [names.index(n) + 1 for n in relation.index_columns]
        yield ("pg_catalog", "pg_index"), _index(oid, relation_oid(table), places)
        return
    for number, column in enumerate(columns, 1):
        yield ("pg_catalog", "pg_attribute"), _attribute(oid, number, column)
        yield ("information_schema", "columns"), _column(relation, number, column, updatable=kind == "r")
    place = {"table_schema": schema, "table_name": relation.name}
    yield from granted(relation.id, place, roles)
    insertable = "YES" if kind == "r" else "NO"
    definition = (
        _query(relation.view_text, relation.dialect) if kind in ("v", "m") and catalog.knows([relation.id]) else None
    )
    yield (
        ("information_schema", "tables"),
        {**place, "table_type": _KIND_NAMES[kind or "r"], "is_insertable_into": insertable, "is_typed": "NO"},
    )
    if kind == "r":
        row = {"schemaname": schema, "tablename": relation.name, "tableowner": "watersmeet", "hasindexes": bool(key)}
        yield ("pg_catalog", "pg_tables"), {**row, "hasrules": False, "hastriggers": False, "rowsecurity": False}
        yield ("pg_catalog", "pg_stat_user_tables"), {"relid": oid, "schemaname": schema, "relname": relation.name}
    if kind == "v":
        row = {"schemaname": schema, "viewname": relation.name, "viewowner": "watersmeet", "definition": definition}
        yield ("pg_catalog", "pg_views"), row
        yield ("information_schema", "views"), {**place, "view_definition": definition, "is_updatable": "NO"}
    if kind == "m":
        row = {"schemaname": schema, "matviewname": relation.name, "matviewowner": "watersmeet"}
        row |= {"hasindexes": False, "ispopulated": relation.ready, "definition": definition}
        yield ("pg_catalog", "pg_matviews"), row
    if kind in ("v", "m"):
        yield from _rule(relation, catalog)
    if key:
        yield from _key(relation, columns, key)


@lru_cache(_MOST_VIEWS)
def _query(sql: str, dialect: str) -> str:
    """The query of a statement that creates a view, with a semicolon, as PostgreSQL shows it."""
    depth = 0
    for token in tokenize(sql, language_named(dialect)):
        depth += (token.token_type == TokenType.L_PAREN) - (token.token_type == TokenType.R_PAREN)
        if token.token_type == TokenType.ALIAS and not depth:
            return f"{sql[token.end + 1 :].strip().removesuffix(';')};"
    return sql


def _rule(relation: Relation, catalog: Catalog) -> Rows:
    """The rule by which a view is what it is, and on what that depends."""
    rule = relation_oid(relation, 4)
    row = {"oid": rule, "rulename": "_RETURN", "ev_class": relation_oid(relation), "ev_type": "1", "ev_enabled": "O"}
    yield ("pg_catalog", "pg_rewrite"), {**row, "is_instead": True}
    own = {"classid": NUMBERS["pg_rewrite"], "objid": rule, "objsubid": 0}
    own |= {"refclassid": NUMBERS["pg_class"], "refobjsubid": 0}
    yield ("pg_catalog", "pg_depend"), {**own, "refobjid": relation_oid(relation), "deptype": "i"}
    for relation_id in relation.depends_on:
        below = catalog.relations[relation_id]
        if catalog.shows(below) and not below.hidden:
            yield ("pg_catalog", "pg_depend"), {**own, "refobjid": relation_oid(below), "deptype": "n"}


def _class(oid: int, name: str, schema: str, kind: str, columns: int, has_index: bool) -> dict[str, object]:
    return {
        "oid": oid,
        "relname": name,
        "relnamespace": schema_oid(schema),
        "reltype": oid + 1,
        "reloftype": 0,
        "relowner": OWNER_OID,
        "relam": 403 if kind == "i" else 2 if kind in "rm" else 0,
        "relfilenode": oid,
        "reltablespace": 0,
        "relpages": 0,
        "reltuples": -1.0,
        "relallvisible": 0,
        "reltoastrelid": 0,
        "relhasindex": has_index,
        "relisshared": False,
        "relpersistence": "p",
        "relkind": kind,
        "relnatts": columns,
        "relchecks": 0,
        "relhasrules": False,
        "relhastriggers": False,
        "relhassubclass": False,
        "relrowsecurity": False,
        "relforcerowsecurity": False,
        "relispopulated": True,
        "relreplident": "d",
        "relispartition": False,
        "relrewrite": 0,
        "relfrozenxid": 0,
        "relminmxid": 0,
    }


def _attribute(oid: int, number: int, column: Field) -> dict[str, object]:
    length = -1 if column.type.element is not None else pg_type(column.type).length
    return {
        "attrelid": oid,
        "attname": column.name,
        "atttypid": oid_of(column.type),
        "attlen": length,
        "attnum": number,
        "attcacheoff": -1,
        "atttypmod": modifier_of(column.type),
        "attndims": int(column.type.element is not None),
        "attbyval": 0 < length <= 8,
        "attalign": "i",
        "attstorage": "p" if length > 0 else "x",
        "attcompression": "",
        "attnotnull": not column.nullable,
        "atthasdef": False,
        "atthasmissing": False,
        "attidentity": "",
        "attgenerated": "",
        "attisdropped": False,
        "attislocal": True,
        "attinhcount": 0,
        "attstattarget": -1,
        "attcollation": 100 if column.type.name == "varchar" else 0,
    }


def _column(relation: Relation, number: int, column: Field, *, updatable: bool) -> dict[str, object]:
    kind = column.type
    found: dict[str, object] = {
        "table_schema": relation.schema,
        "table_name": relation.name,
        "column_name": column.name,
        "ordinal_position": number,
        "column_default": relation.defaults.get(column.name),
        "is_nullable": "YES" if column.nullable else "NO",
        "data_type": "ARRAY" if kind.element is not None else "record" if kind.fields else kind.sql.partition("(")[0],
        "udt_schema": "pg_catalog",
        "udt_name": f"_{pg_type(kind).name}" if kind.element is not None else pg_type(kind).name,
        "dtd_identifier": str(number),
        "is_self_referencing": "NO",
        "is_identity": "NO",
        "identity_cycle": "NO",
        "is_generated": "ALWAYS" if column.name in relation.generated else "NEVER",
        "is_updatable": "YES" if updatable else "NO",
    }
    if kind.is_numeric:
        bits = {"smallint": 16, "integer": 32, "bigint": 64, "real": 24, "double precision": 53}
        found["numeric_precision"] = bits.get(kind.name, kind.precision)
        found["numeric_precision_radix"] = 10 if kind.name == "numeric" else 2
        found["numeric_scale"] = 0 if kind.is_integer else kind.scale
    if kind.name in ("time", "timestamp", "timestamptz", "interval"):
        found["datetime_precision"] = 6
    return found


def _key(relation: Relation, columns: list[Field], key: list[int]) -> Rows:
    """The primary key: an index, and a constraint."""
    oid, index, constraint = (relation_oid(relation, part) for part in (0, 2, 3))
    name = f"{relation.name}_pkey"
    ordered = [next(i for i in key if columns[i - 1].name == k) for k in relation.primary_key]
    yield ("pg_catalog", "pg_class"), _class(index, name, relation.schema, "i", len(key), has_index=False)
    yield ("pg_catalog", "pg_index"), {**_index(index, oid, ordered), "indisprimary": True, "indisunique": True}
    for number, column in enumerate(ordered, 1):
        yield ("pg_catalog", "pg_attribute"), _attribute(index, number, columns[column - 1])
    yield (
        ("pg_catalog", "pg_constraint"),
        {
            "oid": constraint,
            "conname": name,
            "connamespace": schema_oid(relation.schema),
            "contype": "p",
            "condeferrable": False,
            "condeferred": False,
            "convalidated": True,
            "conrelid": oid,
            "contypid": 0,
            "conindid": index,
            "conparentid": 0,
            "confrelid": 0,
            "conislocal": True,
            "coninhcount": 0,
            "connoinherit": True,
            "conkey": ordered,
        },
    )
    place = {"constraint_schema": relation.schema, "constraint_name": name}
    place |= {"table_schema": relation.schema, "table_name": relation.name}
    told = {"constraint_type": "PRIMARY KEY", "is_deferrable": "NO", "initially_deferred": "NO", "enforced": "YES"}
    yield ("information_schema", "table_constraints"), {**place, **told}
    for number, key_name in enumerate(relation.primary_key, 1):
        yield ("information_schema", "key_column_usage"), {**place, "column_name": key_name, "ordinal_position": number}
        yield ("information_schema", "constraint_column_usage"), {**place, "column_name": key_name}


def _index(oid: int, table: int, columns: list[int]) -> dict[str, object]:
    return {
        "indexrelid": oid,
        "indrelid": table,
        "indnatts": len(columns),
        "indnkeyatts": len(columns),
        "indisunique": False,
        "indnullsnotdistinct": False,
        "indisprimary": False,
        "indisexclusion": False,
        "indimmediate": True,
        "indisclustered": False,
        "indisvalid": True,
        "indcheckxmin": False,
        "indisready": True,
        "indislive": True,
        "indisreplident": False,
        "indkey": columns,
        "indcollation": [0] * len(columns),
        "indclass": [0] * len(columns),
        "indoption": [0] * len(columns),
    }
