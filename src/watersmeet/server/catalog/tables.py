"""The rows of pg_catalog and information_schema: relations, types and roles of a database.

PostgreSQL 15, "System Catalogs". Tables of features that Watersmeet lacks (user types, triggers, publications …) are
empty.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Final

import pyarrow as pa

from watersmeet.catalog import (
    COMMON_SCHEMA,
    Catalog,
    Check,
    Constraint,
    DomainType,
    EnumType,
    ExternalTable,
    ForeignKey,
    Index,
    MaterializedView,
    NumberSequence,
    Relation,
    Role,
    Source,
    SqlFunction,
    Table,
    Unique,
    View,
    is_temporary,
)
from watersmeet.catalog.roles import ADMIN, FIXED, OWNER, PUBLIC, Rights, all_of, rights_of
from watersmeet.server.catalog.definitions import default_text, in_parentheses, quoted, view_query, written_values
from watersmeet.server.catalog.shapes import DEFAULTS, NUMBERS, SHAPES, type_row, types
from watersmeet.server.oids import TYPES, created_oid, declared_type, modifier_of, oid_of
from watersmeet.values.declaredtypes import Declared
from watersmeet.values.types import Field

PG_CATALOG, COMMON_OID, INFORMATION_SCHEMA = 11, 2200, 13_000
#: The oid of the only database; clients may connect to it under any name.
DATABASE_OID: Final = 5
OWNER_OID: Final = 10
#: The oid of the user of a trusted client whose name is not a role.
TRUSTED_OID: Final = 9
_FIRST_FIXED: Final = 11
#: The server of foreign tables, which are sources and external tables, and its wrapper. There are no other ones.
_SERVER_OID, _WRAPPER_OID = 1 << 28, 1 << 28 | 1
#: The role that owns the default schema in PostgreSQL, and that schema's owner and rights.
_COMMON_OWNER: Final = "pg_database_owner", 6171
_OF_COMMON: Final = {
    "nspowner": _COMMON_OWNER[1],
    "nspacl": [f"{_COMMON_OWNER[0]}=UC/{_COMMON_OWNER[0]}", f"=U/{_COMMON_OWNER[0]}"],
}
_KIND_NAMES: Final = {"r": "BASE TABLE", "f": "FOREIGN", "v": "VIEW", "m": "MATERIALIZED VIEW"}
#: The names of types in information_schema.
_DATA_TYPES: Final = {
    **{t.name: n for n, t in TYPES.items()}, "varchar": "character varying", "text": "text", "bpchar": "character",
    "timestamp": "timestamp without time zone", "timestamptz": "timestamp with time zone",
    "time": "time without time zone", "name": "name", "oid": "oid", "inet": "inet", "cidr": "cidr",
}  # fmt: skip
_ACTIONS: Final = {"no action": "a", "restrict": "r", "cascade": "c", "set null": "n", "set default": "d"}
_LETTERS: Final = {"INSERT": "a", "SELECT": "r", "UPDATE": "w", "DELETE": "d"}

#: Tables of the functions about privileges, with inherited ones: the level of the fixed role of each role, its direct
#: privileges, and the roles of which it is a member.
_RIGHTS: Final = {
    "rights_": pa.schema({"role": pa.uint32(), "level": pa.int32()}),
    "grants_": pa.schema({"role": pa.uint32(), "relation": pa.uint32(), "privilege": pa.string()}),
    "members_": pa.schema({"role": pa.uint32(), "of": pa.uint32()}),
}

#: A row: its values by column.
Row = Mapping[str, object]

#: A row of a table: ((schema, table), row).
_Rows = Iterator[tuple[tuple[str, str], Row]]


def kind_of(relation: Relation) -> str | None:
    """PostgreSQL's letter for the kind of a relation; None for objects that are not relations in PostgreSQL."""
    if isinstance(relation, MaterializedView):
        return "m"
    if isinstance(relation, View):
        return "v"
    if isinstance(relation, Index):
        return "i"
    if isinstance(relation, (ExternalTable, Source)):
        return "f"
    if isinstance(relation, NumberSequence):
        return "S"
    return "r" if relation.has_rows else None


def relation_oid(relation: Relation, part: int = 0) -> int:
    """The oid of a relation, or of one of its parts."""
    return created_oid(relation.id, part)


def relation_oids(catalog: Catalog) -> dict[str, int]:
    """The oids of the relations that the catalog shows, by id."""
    return {r.id: relation_oid(r) for r in catalog.shown}


def schema_oid(name: str) -> int:
    """The oid of a schema."""
    return COMMON_OID if name == COMMON_SCHEMA else 1 << 30 | zlib.crc32(name.encode()) >> 3


def role_oid(name: str) -> int:
    """The oid of a role."""
    if name == OWNER:
        return OWNER_OID
    return _FIRST_FIXED + FIXED.index(name) if name in FIXED else 1 << 30 | zlib.crc32(name.encode()) >> 3


def rows_of_tables(catalog: Catalog, roles: Sequence[Role]) -> dict[tuple[str, str], list[Row]]:
    """The rows of all tables by schema and name, with the relations that the catalog shows, and these roles."""
    rows: dict[tuple[str, str], list[Row]] = {key: [] for key in SHAPES}
    for table, row in chain(_rows(catalog, roles), _role_rows(catalog, roles)):
        rows[table].append({**DEFAULTS[table], **row})
    for name, found in _rights_rows(catalog, roles, relation_oids(catalog)).items():
        rows["pg_catalog", name] = found
    return rows


def arrow_table(key: tuple[str, str], rows: list[Row]) -> pa.Table:
    """The rows of a table, by its schema and name, in Arrow."""
    schema = _RIGHTS.get(key[1]) or pa.schema(list(SHAPES[key].items()))
    return pa.Table.from_pylist(rows, schema)


def _rows(catalog: Catalog, roles: Sequence[Role]) -> _Rows:
    granted_in = {r.schema for r in catalog.shown}
    known = [n for n in catalog.schemas if catalog.granted is None or n in granted_in]
    known += [n for n in catalog.path if is_temporary(n)]
    schemas = {COMMON_SCHEMA: COMMON_OID, **{name: schema_oid(name) for name in known}}
    for name, oid in {**schemas, "pg_catalog": PG_CATALOG, "information_schema": INFORMATION_SCHEMA}.items():
        yield ("pg_catalog", "pg_namespace"), {"oid": oid, "nspname": name, **(_OF_COMMON if oid == COMMON_OID else {})}
        yield ("information_schema", "schemata"), {"schema_name": name}
    own = {"objoid": COMMON_OID, "classoid": NUMBERS["pg_namespace"], "objsubid": 0}
    yield ("pg_catalog", "pg_description"), {**own, "description": "standard public schema"}
    yield from types()
    yield ("pg_catalog", "pg_database"), {}
    yield ("pg_catalog", "pg_am"), {"oid": 2, "amname": "heap", "amtype": "t"}
    yield ("pg_catalog", "pg_am"), {"oid": 403, "amname": "btree", "amtype": "i"}
    yield ("pg_catalog", "pg_tablespace"), {"oid": 1663, "spcname": "pg_default"}
    yield ("pg_catalog", "pg_collation"), {"oid": 100, "collname": "default", "collnamespace": PG_CATALOG}
    yield from _functions(catalog)
    if any(kind_of(r) == "f" and not r.hidden for r in catalog.shown):
        wrapper = {
            "oid": _WRAPPER_OID,
            "fdwname": "watersmeet",
            "fdwowner": OWNER_OID,
            "fdwhandler": 0,
            "fdwvalidator": 0,
        }
        yield ("pg_catalog", "pg_foreign_data_wrapper"), wrapper
        server = {"oid": _SERVER_OID, "srvname": "watersmeet", "srvowner": OWNER_OID, "srvfdw": _WRAPPER_OID}
        yield ("pg_catalog", "pg_foreign_server"), server
    with_triggers = _with_triggers(catalog)
    with_indexes = {i for r in catalog.relations.values() if isinstance(r, Index) for i in r.depends_on}
    for relation in catalog.shown:
        if isinstance(relation, EnumType) and not relation.hidden:
            yield from _enum(relation)
        if isinstance(relation, DomainType) and not relation.hidden:
            yield from _domain(relation)
        if not relation.hidden and kind_of(relation) is not None:
            has = {"relhastriggers": relation.id in with_triggers, "relhasindex": relation.id in with_indexes}
            yield from _relation(relation, catalog, roles, {name: True for name, holds in has.items() if holds})


def _with_triggers(catalog: Catalog) -> set[str]:
    """The ids of the tables with a foreign key, and of those that one references: PostgreSQL gives them triggers."""
    return {i for r in catalog.relations.values() for k in r.foreign_keys for i in (r.id, k.table)}


def _enum(enum: EnumType) -> _Rows:
    """The rows for an enum: its type, the type of its arrays, and its labels."""
    oid, array = relation_oid(enum), relation_oid(enum, 1)
    own = {"typnamespace": schema_oid(enum.schema), "typtype": "e"}
    yield ("pg_catalog", "pg_type"), {**type_row(oid, enum.name, 4, "E", array=array), **own}
    more = {"typnamespace": schema_oid(enum.schema)}
    yield ("pg_catalog", "pg_type"), {**type_row(array, f"_{enum.name}", -1, "A", element=oid), **more}
    for number, label in enumerate(enum.labels, 1):
        row = {"oid": oid << 8 | number, "enumtypid": oid, "enumsortorder": float(number), "enumlabel": label}
        yield ("pg_catalog", "pg_enum"), row


def _domain(domain: DomainType) -> _Rows:
    """The rows for a domain: its type and its constraints."""
    oid, rules = relation_oid(domain), domain.rules
    column = _attribute(oid, 1, Field("value", domain.base), domain.declared_base)
    kind, schema = declared_type(domain.base, domain.declared_base), schema_oid(domain.schema)
    row = type_row(oid, domain.name, int(str(column["attlen"])), "A" if domain.base.element else kind.category)
    row |= {"typnamespace": schema, "typtype": "d", "typbasetype": column["atttypid"], "typnotnull": not rules.nullable}
    row |= {"typtypmod": column["atttypmod"], "typcollation": column["attcollation"], "typinput": "domain_in"}
    yield ("pg_catalog", "pg_type"), {**row, "typdefault": domain.default_text or None, "typreceive": "domain_recv"}
    if domain.comment:
        found = {"objoid": oid, "classoid": NUMBERS["pg_type"], "objsubid": 0, "description": domain.comment}
        yield ("pg_catalog", "pg_description"), found
    own = {"domain_schema": domain.schema, "domain_name": domain.name}
    named = _DATA_TYPES.get(kind.name, "USER-DEFINED") + "[]" * (domain.base.element is not None)
    length = None if domain.declared_base is None else domain.declared_base.length
    udt = f"_{kind.name}" if domain.base.element else kind.name
    listed = {**own, "data_type": named, "character_maximum_length": length, "udt_name": udt}
    yield ("information_schema", "domains"), {**listed, "domain_default": domain.default_text or None}
    for check in rules.checks:
        text = in_parentheses(check.text)
        made = {"oid": _constraint_oid(domain, check.name), "conname": check.name, "connamespace": schema}
        made |= {"contype": "c", "conrelid": 0, "contypid": oid, "conbin": f"CHECK ({text})", "connoinherit": False}
        yield ("pg_catalog", "pg_constraint"), made
        called = {"constraint_schema": domain.schema, "constraint_name": check.name}
        yield ("information_schema", "domain_constraints"), {**called, **own}
        yield ("information_schema", "check_constraints"), {**called, "check_clause": f"({text})"}


def functions_by_oid(catalog: Catalog) -> Iterator[tuple[int, SqlFunction]]:
    """The functions that can be called, with their oids."""
    functions = sorted((f for f in catalog.functions.values() if not f.dropped), key=lambda f: f.id)
    return ((1 << 29 | number, function) for number, function in enumerate(functions))


def _functions(catalog: Catalog) -> _Rows:
    """The rows for functions and their languages."""
    languages = {"sql": 14}
    for oid, function in functions_by_oid(catalog):
        languages.setdefault(function.language, 15 + len(languages))
        yield ("pg_catalog", "pg_proc"), {**_function(oid, function), "prolang": languages[function.language]}
    for name, number in languages.items():
        yield ("pg_catalog", "pg_language"), {"oid": number, "lanname": name, "lanispl": False}


def _function(oid: int, function: SqlFunction) -> dict[str, object]:
    return {
        "oid": oid,
        "proname": function.name,
        "pronamespace": schema_oid(function.schema),
        "pronargs": len(function.parameters),
        "prorettype": oid_of(function.returns),
        "proargtypes": [oid_of(p.type) for p in function.parameters],
        "proargnames": [p.name for p in function.parameters],
        "prosrc": function.body,
    }


def _relation(relation: Relation, catalog: Catalog, roles: Sequence[Role], has: Mapping[str, bool]) -> _Rows:
    kind, oid, schema = kind_of(relation) or "r", relation_oid(relation), relation.schema
    columns = [c for c in relation.columns if c.name not in relation.unlisted]
    key = [i for i, c in enumerate(columns, 1) if c.name in relation.primary_key] if kind in "rm" else []
    row = _class(oid, relation.name, schema, kind, len(columns), bool(key or relation.uniques))
    row |= {"relchecks": len(relation.checks), **has}
    yield ("pg_catalog", "pg_class"), {**row, "relacl": _acl(relation.id, roles)}
    needs = {"classid": NUMBERS["pg_class"], "objid": oid, "objsubid": 0, "refclassid": NUMBERS["pg_namespace"]}
    yield ("pg_catalog", "pg_depend"), {**needs, "refobjid": schema_oid(schema), "refobjsubid": 0, "deptype": "n"}
    for place, name in enumerate(["", *(c.name for c in columns)]):
        text = relation.comments.get(name) if place else relation.comment
        if text:
            found = {"objoid": oid, "classoid": NUMBERS["pg_class"], "objsubid": place, "description": text}
            yield ("pg_catalog", "pg_description"), found
    if isinstance(relation, Index):
        table = catalog.relations[relation.depends_on[0]]
        names = [c.name for c in table.columns]
        numbers = [names.index(n) + 1 for n in (*relation.index_columns, *relation.included)]
        is_unique = any(u.index == relation.id for u in table.uniques)
        row = {**_index(oid, relation_oid(table), numbers), "indisunique": is_unique}
        yield ("pg_catalog", "pg_index"), {**row, "indnkeyatts": len(relation.index_columns)}
        more = relation.included
        yield from _listed_index(table, relation.name, relation.index_columns, more, is_unique=is_unique)
        return
    if isinstance(relation, NumberSequence):
        yield from _sequence(relation, catalog)
        return
    for number, column in enumerate(columns, 1):
        row = _attribute(oid, number, column, relation.declared.get(column.name))
        row["attnotnull"] = not column.nullable and kind not in "mv"
        if (rules := relation.domains.get(column.name)) and (domain := relation_named(rules.name, catalog)):
            row["atttypid"] = relation_oid(domain)
        default = default_text(relation, column, catalog, qualified=True)
        if column.name in relation.generated:
            default = in_parentheses(written_values(relation.sql, relation.dialect)[column.name])
        serial = relation.serials.get(column.name)
        identity = "" if serial is None or not serial.identity else "a" if serial.identity == "always" else "d"
        yield (
            ("pg_catalog", "pg_attribute"),
            {
                **row,
                "atthasdef": default is not None,
                "attidentity": identity,
                "attgenerated": "s" if column.name in relation.always_generated else "",
            },
        )
        if default is not None:
            row = {"oid": oid << 8 | number, "adrelid": oid, "adnum": number, "adbin": default}
            yield ("pg_catalog", "pg_attrdef"), row
            yield from _depends_of_default(oid, number, None if serial is None else catalog.relations[serial.sequence])
        shown = _column(relation, number, column, catalog, kind)
        default = default_text(relation, column, catalog, qualified=False)
        yield ("information_schema", "columns"), {**shown, "column_default": default}
    own = {"table_schema": schema, "table_name": relation.name}
    yield from _granted(relation.id, own, roles)
    insertable = "YES" if kind == "r" else "NO"
    yield (
        ("information_schema", "tables"),
        {
            **own,
            "table_type": "LOCAL TEMPORARY" if is_temporary(schema) and kind == "r" else _KIND_NAMES[kind],
            "is_insertable_into": insertable,
        },
    )
    knows = kind in "vm" and catalog.knows([relation.id])
    definition = view_query(relation.view_text, relation.dialect) if knows else None
    if kind == "r":
        row = {"schemaname": schema, "tablename": relation.name, "hasindexes": bool(key)}
        yield ("pg_catalog", "pg_tables"), row
        for stat in ("pg_stat_user_tables", "pg_statio_all_tables"):
            yield ("pg_catalog", stat), {"relid": oid, "schemaname": schema, "relname": relation.name}
    if kind == "v":
        row = {"schemaname": schema, "viewname": relation.name, "definition": definition}
        yield ("pg_catalog", "pg_views"), row
        yield ("information_schema", "views"), {**own, "view_definition": definition}
    if kind == "m":
        row = {"schemaname": schema, "matviewname": relation.name, "ispopulated": relation.ready}
        yield ("pg_catalog", "pg_matviews"), {**row, "definition": definition}
    if kind in "vm":
        yield from _rule(relation, catalog)
    if kind == "f":
        yield ("pg_catalog", "pg_foreign_table"), {"ftrelid": oid, "ftserver": _SERVER_OID}
    if key:
        yield from _key(relation, columns, key)
    if kind == "r":
        yield from _constraints(relation, columns, catalog)


def _rule(relation: Relation, catalog: Catalog) -> _Rows:
    """The rule that defines a view, and its dependencies."""
    rule = relation_oid(relation, 4)
    yield ("pg_catalog", "pg_rewrite"), {"oid": rule, "ev_class": relation_oid(relation)}
    own = {"classid": NUMBERS["pg_rewrite"], "objid": rule, "objsubid": 0}
    own |= {"refclassid": NUMBERS["pg_class"], "refobjsubid": 0}
    yield ("pg_catalog", "pg_depend"), {**own, "refobjid": relation_oid(relation), "deptype": "i"}
    for relation_id in relation.depends_on:
        upstream = catalog.relations[relation_id]
        if catalog.shows(upstream) and not upstream.hidden:
            yield ("pg_catalog", "pg_depend"), {**own, "refobjid": relation_oid(upstream), "deptype": "n"}


def _class(oid: int, name: str, schema: str, kind: str, columns: int, has_index: bool) -> dict[str, object]:
    return {
        "oid": oid,
        "relname": name,
        "relnamespace": schema_oid(schema),
        "reltype": oid + 1,
        "relam": 403 if kind == "i" else 2 if kind in "rm" else 0,
        "relfilenode": oid,
        "relhasindex": has_index,
        "relkind": kind,
        "relpersistence": "t" if is_temporary(schema) else "p",
        "relnatts": columns,
    }


def _attribute(oid: int, number: int, column: Field, declared: Declared | None) -> dict[str, object]:
    is_array, kind = column.type.name == "array", declared_type(column.type, declared)
    length = -1 if is_array else kind.length
    return {
        "attrelid": oid,
        "attname": column.name,
        "atttypid": kind.array if is_array else kind.oid,
        "attlen": length,
        "attnum": number,
        "atttypmod": modifier_of(column.type, declared),
        "attndims": int(is_array),
        "attbyval": 0 < length <= 8,
        "attstorage": "p" if length > 0 else "x",
        "attnotnull": not column.nullable,
        "attcollation": 100 if kind.category == "S" else 0,
    }


def _depends_of_default(oid: int, number: int, sequence: Relation | None) -> _Rows:
    """The dependencies of the DEFAULT of a column: on the column and on its sequence."""
    own = {"classid": NUMBERS["pg_attrdef"], "objid": oid << 8 | number, "objsubid": 0}
    own |= {"refclassid": NUMBERS["pg_class"]}
    yield ("pg_catalog", "pg_depend"), {**own, "refobjid": oid, "refobjsubid": number, "deptype": "a"}
    if sequence is not None:
        yield ("pg_catalog", "pg_depend"), {**own, "refobjid": relation_oid(sequence), "refobjsubid": 0, "deptype": "n"}


def relation_named(shown: str, catalog: Catalog) -> Relation | None:
    """The relation with a name that may have a schema."""
    return next((r for r in catalog.relations.values() if r.shown == shown and not r.hidden), None)


def sequence_row(sequence: NumberSequence) -> dict[str, object]:
    """The row of a sequence in pg_sequences, without its last value."""
    numbers, (least, greatest) = sequence.numbers, sequence.numbers.bounds
    shown: dict[str, object] = {"schemaname": sequence.schema, "sequencename": sequence.name, "data_type": numbers.type}
    shown |= {"start_value": numbers.first, "min_value": least, "max_value": greatest, "increment_by": numbers.step}
    return {**shown, "cycle": numbers.cycles, "cache_size": numbers.cache}


def _sequence(sequence: NumberSequence, catalog: Catalog) -> _Rows:
    """The rows for a sequence: its numbers, and the column that owns it."""
    oid, numbers, kind = relation_oid(sequence), sequence.numbers, TYPES[sequence.numbers.type]
    least, greatest = numbers.bounds
    own = {"seqrelid": oid, "seqtypid": kind.oid, "seqstart": numbers.first, "seqincrement": numbers.step}
    own |= {"seqmax": greatest, "seqmin": least, "seqcache": numbers.cache, "seqcycle": numbers.cycles}
    yield ("pg_catalog", "pg_sequence"), own
    row: dict[str, object] = {
        "sequence_schema": sequence.schema,
        "sequence_name": sequence.name,
        "data_type": numbers.type,
    }
    row |= {"numeric_precision": {"smallint": 16, "integer": 32, "bigint": 64}[numbers.type]}
    row |= {"start_value": str(numbers.first), "minimum_value": str(least), "maximum_value": str(greatest)}
    row |= {"increment": str(numbers.step), "cycle_option": "YES" if numbers.cycles else "NO"}
    table = catalog.relations[sequence.owned[0]] if sequence.owned else None
    serials = {} if table is None else table.serials
    inside = any(s.sequence == sequence.id and s.identity for s in serials.values())
    if not inside:
        yield ("information_schema", "sequences"), row
    if table is None:
        return
    for number, column in enumerate((c for c in table.columns if c.name not in table.unlisted), 1):
        if table.stored.get(column.name, column.name) == sequence.owned[1]:
            depends = {"classid": NUMBERS["pg_class"], "objid": oid, "objsubid": 0, "deptype": "i" if inside else "a"}
            on = {"refclassid": NUMBERS["pg_class"], "refobjid": relation_oid(table), "refobjsubid": number}
            yield ("pg_catalog", "pg_depend"), {**depends, **on}


def _column(relation: Relation, number: int, column: Field, catalog: Catalog, relkind: str) -> dict[str, object]:
    kind, declared = column.type, relation.declared.get(column.name)
    named = declared_type(kind, declared).name
    found: dict[str, object] = {
        "table_schema": relation.schema,
        "table_name": relation.name,
        "column_name": column.name,
        "ordinal_position": number,
        "is_nullable": "YES" if column.nullable or relkind in "mv" else "NO",
        "data_type": "ARRAY"
        if kind.name == "array"
        else "record"
        if kind.fields
        else _DATA_TYPES.get(named, "USER-DEFINED"),
        "udt_name": f"_{named}" if kind.name == "array" else named,
        "dtd_identifier": str(number),
        "is_generated": "ALWAYS" if column.name in relation.always_generated else "NEVER",
        "is_updatable": "YES" if relkind == "r" else "NO",
    }
    if kind.is_numeric:
        bits = {"smallint": 16, "integer": 32, "bigint": 64, "real": 24, "double precision": 53}
        found["numeric_precision"] = bits.get(kind.name, kind.precision)
        found["numeric_precision_radix"] = 10 if kind.name == "numeric" else 2
        found["numeric_scale"] = 0 if kind.is_integer else kind.scale
    if kind.name in ("time", "timestamp", "timestamptz", "interval"):
        found["datetime_precision"] = 6 if declared is None or declared.digits is None else declared.digits
    serial = relation.serials.get(column.name)
    if serial is not None and serial.identity:
        found |= {"is_identity": "YES", "identity_generation": serial.identity.upper()}
        sequence = catalog.relations[serial.sequence]
        assert isinstance(sequence, NumberSequence)
        numbers, (least, greatest) = sequence.numbers, sequence.numbers.bounds
        found |= {"identity_start": str(numbers.first), "identity_increment": str(numbers.step)}
        found |= {"identity_minimum": str(least), "identity_maximum": str(greatest)}
        found |= {"identity_cycle": "YES" if numbers.cycles else "NO"}
    if declared is not None and kind.element is None:
        found["character_maximum_length"] = declared.length
    if (rules := relation.domains.get(column.name)) and (domain := relation_named(rules.name, catalog)):
        found |= {"domain_schema": domain.schema, "domain_name": domain.name}
    return found


def _key(relation: Relation, columns: list[Field], key: list[int]) -> _Rows:
    """The rows for a primary key: an index and a constraint."""
    ordered = [next(i for i in key if columns[i - 1].name == k) for k in relation.primary_key]
    comment = relation.key_comment if isinstance(relation, Table) else ""
    primary = Unique(relation.key_name, relation.primary_key, comment=comment)
    yield from _unique(relation, columns, primary, ordered, relation_oid(relation, 2), relation_oid(relation, 3))


def _unique(
    relation: Relation, columns: list[Field], key: Unique, ordered: list[int], index: int, constraint: int
) -> _Rows:
    """The rows for a key: its index and its constraint. ordered: the numbers of its columns."""
    is_primary = key.columns == relation.primary_key
    oid, kind = relation_oid(relation), "p" if is_primary else "u"
    yield ("pg_catalog", "pg_class"), _class(index, key.name, relation.schema, "i", len(ordered), has_index=False)
    uses = {"indisprimary": is_primary, "indisunique": True, "indimmediate": not key.deferrable}
    yield ("pg_catalog", "pg_index"), {**_index(index, oid, ordered), **uses}
    yield from _listed_index(relation, key.name, key.columns, is_unique=True)
    for number, column in enumerate(ordered, 1):
        part = columns[column - 1]
        yield ("pg_catalog", "pg_attribute"), _attribute(index, number, part, relation.declared.get(part.name))
    words = "PRIMARY KEY" if is_primary else "UNIQUE"
    text = f"{words} ({_listed(key.columns)}){_times(key)}"
    row = {"oid": constraint, "contype": kind, "conindid": index, "conkey": ordered, "conbin": text}
    yield from _constraint(relation, key, row, words)
    own = _table_and_constraint(relation, key.name)
    for number, name in enumerate(key.columns, 1):
        yield ("information_schema", "key_column_usage"), {**own, "column_name": name, "ordinal_position": number}
        yield ("information_schema", "constraint_column_usage"), {**own, "column_name": name}


def _constraint(relation: Relation, found: Constraint, row: dict[str, object], words: str) -> _Rows:
    """The rows of a constraint of any kind."""
    own: dict[str, object] = {"conname": found.name, "connamespace": schema_oid(relation.schema)}
    own |= dict.fromkeys(("confupdtype", "confdeltype", "confmatchtype"), " ")  # those of a foreign key are in `row`
    listed = {**_table_and_constraint(relation, found.name), "constraint_type": words}
    if not isinstance(found, Check):
        own |= {"condeferrable": found.deferrable, "condeferred": found.deferred}
        listed["is_deferrable"] = "YES" if found.deferrable else "NO"
        listed["initially_deferred"] = "YES" if found.deferred else "NO"
    yield ("pg_catalog", "pg_constraint"), {**own, "conrelid": relation_oid(relation), **row}
    yield ("information_schema", "table_constraints"), listed
    if found.comment:
        described = {"objoid": row["oid"], "classoid": NUMBERS["pg_constraint"], "objsubid": 0}
        yield ("pg_catalog", "pg_description"), {**described, "description": found.comment}


def _table_and_constraint(relation: Relation, name: str) -> dict[str, str]:
    own = {"constraint_schema": relation.schema, "constraint_name": name}
    return own | {"table_schema": relation.schema, "table_name": relation.name}


def _listed(columns: Sequence[str]) -> str:
    return ", ".join(map(quoted, columns))


def _times(found: Unique | ForeignKey) -> str:
    return " DEFERRABLE INITIALLY DEFERRED" if found.deferred else " DEFERRABLE" if found.deferrable else ""


def _constraint_oid(relation: Relation, name: str, part: str = "") -> int:
    """The oid of a constraint or, by another part, of its index."""
    return 3 << 29 | zlib.crc32(f"{relation.id}.{name}.{part}".encode()) >> 3


def _constraints(relation: Relation, columns: list[Field], catalog: Catalog) -> _Rows:
    """The rows for the constraints of a table besides its primary key."""
    numbers = {c.name: i for i, c in enumerate(columns, 1)}
    for key in relation.uniques:
        if not key.index:
            ordered = [numbers[c] for c in key.columns]
            index, constraint = (_constraint_oid(relation, key.name, part) for part in ("index", ""))
            yield from _unique(relation, columns, key, ordered, index, constraint)
    for check in relation.checks:
        reads = [c.name for c in check.condition.reads if c.name in numbers]
        text = f"CHECK ({in_parentheses(check.text)})"
        row: dict[str, object] = {"oid": _constraint_oid(relation, check.name), "contype": "c", "conbin": text}
        row |= {"conkey": [numbers[c] for c in reads], "connoinherit": False}
        yield from _constraint(relation, check, row, "CHECK")
        own = _table_and_constraint(relation, check.name)
        yield (
            ("information_schema", "check_constraints"),
            {
                "constraint_schema": relation.schema,
                "constraint_name": check.name,
                "check_clause": f"({in_parentheses(check.text)})",
            },
        )
        for name in reads:
            yield ("information_schema", "constraint_column_usage"), {**own, "column_name": name}
    for reference in relation.foreign_keys:
        yield from _reference(relation, reference, numbers, catalog)


def _reference(relation: Relation, found: ForeignKey, numbers: Mapping[str, int], catalog: Catalog) -> _Rows:
    """The rows for a foreign key."""
    parent = catalog.relations[found.table]
    names = {stored: name for name, stored in parent.stored.items()}
    referenced = [names.get(c, c) for c in found.referenced]
    there = {c.name: i for i, c in enumerate((c for c in parent.columns if c.name not in parent.unlisted), 1)}
    key = next((u for u in parent.uniques if {*u.columns} == {*referenced}), None)
    if {*parent.primary_key} == {*referenced}:
        target, index = parent.key_name, relation_oid(parent, 2)
    else:
        assert key is not None
        target = key.name
        index = relation_oid(catalog.relations[key.index]) if key.index else _constraint_oid(parent, key.name, "index")
    actions = "".join(
        f" ON {word} {action.upper()}"
        for word, action in (("UPDATE", found.on_update), ("DELETE", found.on_delete))
        if action != "no action"
    )
    text = f"FOREIGN KEY ({_listed(found.columns)}) REFERENCES {quoted(parent.name)}({_listed(referenced)})"
    text += f"{actions}{_times(found)}"
    row: dict[str, object] = {"oid": _constraint_oid(relation, found.name), "contype": "f", "conbin": text}
    row |= {"confrelid": relation_oid(parent), "conindid": index, "confmatchtype": "s"}
    row |= {"confupdtype": _ACTIONS[found.on_update], "confdeltype": _ACTIONS[found.on_delete]}
    row |= {"conkey": [numbers[c] for c in found.columns], "confkey": [there[c] for c in referenced]}
    yield from _constraint(relation, found, row, "FOREIGN KEY")
    own = _table_and_constraint(relation, found.name)
    order = list(parent.primary_key if key is None else key.columns)
    for number, (name, other) in enumerate(zip(found.columns, referenced, strict=True), 1):
        place = {"ordinal_position": number, "position_in_unique_constraint": order.index(other) + 1}
        yield ("information_schema", "key_column_usage"), {**own, "column_name": name, **place}
        used = {"constraint_schema": relation.schema, "constraint_name": found.name, "column_name": other}
        used |= {"table_schema": parent.schema, "table_name": parent.name}
        yield ("information_schema", "constraint_column_usage"), used
    yield (
        ("information_schema", "referential_constraints"),
        {
            "constraint_schema": relation.schema,
            "constraint_name": found.name,
            "unique_constraint_schema": parent.schema,
            "unique_constraint_name": target,
            "match_option": "NONE",
            "update_rule": found.on_update.upper(),
            "delete_rule": found.on_delete.upper(),
        },
    )


def _listed_index(
    relation: Relation, name: str, columns: Sequence[str], included: Sequence[str] = (), *, is_unique: bool
) -> _Rows:
    table = f"{quoted(relation.schema)}.{quoted(relation.name)}"
    text = f"CREATE {'UNIQUE ' * is_unique}INDEX {quoted(name)} ON {table} USING btree ({_listed(columns)})"
    text += f" INCLUDE ({_listed(included)})" if included else ""
    row = {"schemaname": relation.schema, "tablename": relation.name, "indexname": name, "indexdef": text}
    yield ("pg_catalog", "pg_indexes"), row


def _index(oid: int, table: int, columns: list[int]) -> dict[str, object]:
    count = len(columns)
    found: dict[str, object] = {"indexrelid": oid, "indrelid": table, "indkey": columns}
    found |= dict.fromkeys(("indnatts", "indnkeyatts"), count)
    return found | dict.fromkeys(("indcollation", "indclass", "indoption"), [0] * count)


def _acl(relation_id: str, roles: Sequence[Role]) -> list[str] | None:
    """All grants on a relation, as in `pg_class.relacl`; None without any."""
    found = []
    for role in roles:
        letters = "".join(letter for p, letter in _LETTERS.items() if p in role.grants.get(relation_id, ()))
        if letters:
            found.append(f"{'' if role.name == PUBLIC else quoted(role.name)}={letters}/{OWNER}")
    every = "".join(_LETTERS.values())
    return [f"{OWNER}={every}/{OWNER}", *found] if found else None


def _granted(relation_id: str, table: dict[str, str], roles: Sequence[Role]) -> _Rows:
    """The rows of the information schema about grants on a relation."""
    for role in roles:
        for privilege in role.grants.get(relation_id, ()):
            row = {"grantee": "PUBLIC" if role.name == PUBLIC else role.name, **table, "privilege_type": privilege}
            row["with_hierarchy"] = "YES" if privilege == "SELECT" else "NO"
            yield ("information_schema", "table_privileges"), row
            yield ("information_schema", "role_table_grants"), row


def _role_rows(catalog: Catalog, roles: Sequence[Role]) -> _Rows:
    known = catalog.roles
    yield ("pg_catalog", "pg_roles"), {"rolname": _COMMON_OWNER[0], "oid": _COMMON_OWNER[1], "rolconnlimit": -1}
    for name in (OWNER, *FIXED, *(r.name for r in roles if r.name != PUBLIC)):
        role = known.get(name, Role(name))
        is_admin = name == OWNER or ADMIN in all_of(known, name)
        row = {"rolname": name, "oid": role_oid(name), "rolcanlogin": role.login}
        row |= dict.fromkeys(("rolsuper", "rolcreaterole", "rolbypassrls"), is_admin)
        row["rolconnlimit"] = -1 if role.connections is None else role.connections
        row["rolconfig"] = [f"{n}={v}" for n, v in role.settings.items()] or None
        yield ("pg_catalog", "pg_roles"), row
        if role.login:
            row = {"usename": name, "usesysid": role_oid(name), "usesuper": is_admin, "usebypassrls": is_admin}
            yield ("pg_catalog", "pg_user"), row
        else:
            members = [role_oid(r.name) for r in roles if name in r.member_of]
            yield ("pg_catalog", "pg_group"), {"groname": name, "grosysid": role_oid(name), "grolist": members}
        for number, other in enumerate(role.member_of):
            row = {"oid": role_oid(name) + number, "roleid": role_oid(other), "member": role_oid(name)}
            yield ("pg_catalog", "pg_auth_members"), row
            yield ("information_schema", "applicable_roles"), {"grantee": name, "role_name": other}


def _rights_rows(catalog: Catalog, roles: Sequence[Role], oids: dict[str, int]) -> dict[str, list[Row]]:
    """The rows of the tables of the functions about privileges. oids: those of relations, by id."""
    known = catalog.roles
    grants: list[Row] = []
    members: list[Row] = []
    levels: list[Row] = [{"role": TRUSTED_OID, "level": len(FIXED)}]
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
    return {"rights_": levels, "grants_": grants, "members_": members}
