"""The tables of pg_catalog and information_schema, filled from the catalog of a database.

PostgreSQL 16, "System Catalogs" and "The Information Schema": names and order of columns are theirs. What
Watersmeet does not have (types of users, triggers, publications …) are tables without rows.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

from watersmeet.catalog import (
    COMMON_SCHEMA,
    Catalog,
    ExternalTable,
    Index,
    MaterializedView,
    Relation,
    Source,
    SqlFunction,
    View,
)
from watersmeet.server.oids import TYPES, modifier_of, oid_of, pg_type

#: The numbers of schemas that are always there.
PG_CATALOG, PUBLIC, INFORMATION_SCHEMA = 11, 2200, 13_000
OWNER: Final = 10
_FIRST_RELATION: Final = 16_384
#: Numbers that a relation has: its own, that of its row type, of its key's index and of its key's constraint.
_NUMBERS_OF_ONE: Final = 4

_ARROW: Final[dict[str, pa.DataType]] = {
    "oid": pa.uint32(),
    "text": pa.string(),
    "bool": pa.bool_(),
    "int2": pa.int16(),
    "int4": pa.int32(),
    "int8": pa.int64(),
    "float4": pa.float32(),
    "time": pa.timestamp("us", tz="UTC"),
    "text[]": pa.list_(pa.string()),
    "int2[]": pa.list_(pa.int16()),
    "oid[]": pa.list_(pa.uint32()),
}

#: By table: its columns and their types; text where none is written.
_PG: Final[dict[str, str]] = {
    "pg_am": "oid:oid amname amhandler:oid amtype",
    "pg_attrdef": "oid:oid adrelid:oid adnum:int2 adbin",
    "pg_attribute": "attrelid:oid attname atttypid:oid attlen:int2 attnum:int2 attcacheoff:int4 atttypmod:int4 "
    "attndims:int2 attbyval:bool attalign attstorage attcompression attnotnull:bool atthasdef:bool "
    "atthasmissing:bool attidentity attgenerated attisdropped:bool attislocal:bool attinhcount:int2 "
    "attstattarget:int2 attcollation:oid attacl:text[] attoptions:text[] attfdwoptions:text[] attmissingval",
    "pg_auth_members": "oid:oid roleid:oid member:oid grantor:oid admin_option:bool inherit_option:bool "
    "set_option:bool",
    "pg_cast": "oid:oid castsource:oid casttarget:oid castfunc:oid castcontext castmethod",
    "pg_class": "oid:oid relname relnamespace:oid reltype:oid reloftype:oid relowner:oid relam:oid relfilenode:oid "
    "reltablespace:oid relpages:int4 reltuples:float4 relallvisible:int4 reltoastrelid:oid relhasindex:bool "
    "relisshared:bool relpersistence relkind relnatts:int2 relchecks:int2 relhasrules:bool relhastriggers:bool "
    "relhassubclass:bool relrowsecurity:bool relforcerowsecurity:bool relispopulated:bool relreplident "
    "relispartition:bool relrewrite:oid relfrozenxid:oid relminmxid:oid relacl:text[] reloptions:text[] relpartbound",
    "pg_collation": "oid:oid collname collnamespace:oid collowner:oid collprovider collisdeterministic:bool "
    "collencoding:int4 collcollate collctype colliculocale collicurules collversion",
    "pg_constraint": "oid:oid conname connamespace:oid contype condeferrable:bool condeferred:bool convalidated:bool "
    "conrelid:oid contypid:oid conindid:oid conparentid:oid confrelid:oid confupdtype confdeltype confmatchtype "
    "conislocal:bool coninhcount:int2 connoinherit:bool conkey:int2[] confkey:int2[] conpfeqop:oid[] conppeqop:oid[] "
    "conffeqop:oid[] confdelsetcols:int2[] conexclop:oid[] conbin",
    "pg_database": "oid:oid datname datdba:oid encoding:int4 datlocprovider datistemplate:bool datallowconn:bool "
    "datconnlimit:int4 datfrozenxid:oid datminmxid:oid dattablespace:oid datcollate datctype daticulocale "
    "daticurules datcollversion datacl:text[]",
    "pg_db_role_setting": "setdatabase:oid setrole:oid setconfig:text[]",
    "pg_default_acl": "oid:oid defaclrole:oid defaclnamespace:oid defaclobjtype defaclacl:text[]",
    "pg_depend": "classid:oid objid:oid objsubid:int4 refclassid:oid refobjid:oid refobjsubid:int4 deptype",
    "pg_description": "objoid:oid classoid:oid objsubid:int4 description",
    "pg_enum": "oid:oid enumtypid:oid enumsortorder:float4 enumlabel",
    "pg_event_trigger": "oid:oid evtname evtevent evtowner:oid evtfoid:oid evtenabled evttags:text[]",
    "pg_extension": "oid:oid extname extowner:oid extnamespace:oid extrelocatable:bool extversion extconfig:oid[] "
    "extcondition:text[]",
    "pg_foreign_data_wrapper": "oid:oid fdwname fdwowner:oid fdwhandler:oid fdwvalidator:oid fdwacl:text[] "
    "fdwoptions:text[]",
    "pg_foreign_server": "oid:oid srvname srvowner:oid srvfdw:oid srvtype srvversion srvacl:text[] srvoptions:text[]",
    "pg_foreign_table": "ftrelid:oid ftserver:oid ftoptions:text[]",
    "pg_index": "indexrelid:oid indrelid:oid indnatts:int2 indnkeyatts:int2 indisunique:bool indnullsnotdistinct:bool "
    "indisprimary:bool indisexclusion:bool indimmediate:bool indisclustered:bool indisvalid:bool indcheckxmin:bool "
    "indisready:bool indislive:bool indisreplident:bool indkey:int2[] indcollation:oid[] indclass:oid[] "
    "indoption:int2[] indexprs indpred",
    "pg_inherits": "inhrelid:oid inhparent:oid inhseqno:int4 inhdetachpending:bool",
    "pg_language": "oid:oid lanname lanowner:oid lanispl:bool lanpltrusted:bool lanplcallfoid:oid laninline:oid "
    "lanvalidator:oid lanacl:text[]",
    "pg_locks": "locktype database:oid relation:oid pid:int4 mode granted:bool",
    "pg_matviews": "schemaname matviewname matviewowner tablespace hasindexes:bool ispopulated:bool definition",
    "pg_namespace": "oid:oid nspname nspowner:oid nspacl:text[]",
    "pg_opclass": "oid:oid opcmethod:oid opcname opcnamespace:oid opcowner:oid opcfamily:oid opcintype:oid "
    "opcdefault:bool opckeytype:oid",
    "pg_operator": "oid:oid oprname oprnamespace:oid oprowner:oid oprkind oprleft:oid oprright:oid oprresult:oid",
    "pg_partitioned_table": "partrelid:oid partstrat partnatts:int2 partdefid:oid partattrs:int2[] partexprs",
    "pg_policies": "schemaname tablename policyname permissive roles:text[] cmd qual with_check",
    "pg_policy": "oid:oid polname polrelid:oid polcmd polpermissive:bool polroles:oid[] polqual polwithcheck",
    "pg_proc": "oid:oid proname pronamespace:oid proowner:oid prolang:oid procost:float4 prorows:float4 "
    "provariadic:oid prosupport:oid prokind prosecdef:bool proleakproof:bool proisstrict:bool proretset:bool "
    "provolatile proparallel pronargs:int2 pronargdefaults:int2 prorettype:oid proargtypes:oid[] "
    "proallargtypes:oid[] proargmodes:text[] proargnames:text[] proargdefaults protrftypes:oid[] prosrc probin "
    "prosqlbody proconfig:text[] proacl:text[]",
    "pg_publication": "oid:oid pubname pubowner:oid puballtables:bool pubinsert:bool pubupdate:bool pubdelete:bool "
    "pubtruncate:bool pubviaroot:bool",
    "pg_publication_namespace": "oid:oid pnpubid:oid pnnspid:oid",
    "pg_publication_rel": "oid:oid prpubid:oid prrelid:oid prqual prattrs:int2[]",
    "pg_range": "rngtypid:oid rngsubtype:oid rngmultitypid:oid rngcollation:oid rngsubopc:oid rngcanonical:oid "
    "rngsubdiff:oid",
    "pg_rewrite": "oid:oid rulename ev_class:oid ev_type ev_enabled is_instead:bool ev_qual ev_action",
    "pg_roles": "rolname rolsuper:bool rolinherit:bool rolcreaterole:bool rolcreatedb:bool rolcanlogin:bool "
    "rolreplication:bool rolconnlimit:int4 rolpassword rolvaliduntil:time rolbypassrls:bool rolconfig:text[] oid:oid",
    "pg_sequence": "seqrelid:oid seqtypid:oid seqstart:int8 seqincrement:int8 seqmax:int8 seqmin:int8 seqcache:int8 "
    "seqcycle:bool",
    "pg_settings": "name setting unit category short_desc extra_desc context vartype source min_val max_val "
    "enumvals:text[] boot_val reset_val sourcefile sourceline:int4 pending_restart:bool",
    "pg_shdescription": "objoid:oid classoid:oid description",
    "pg_stat_activity": "datid:oid datname pid:int4 leader_pid:int4 usesysid:oid usename application_name client_addr "
    "client_hostname client_port:int4 backend_start:time xact_start:time query_start:time state_change:time "
    "wait_event_type wait_event state backend_xid:oid backend_xmin:oid query_id:int8 query backend_type",
    "pg_stat_user_tables": "relid:oid schemaname relname seq_scan:int8 n_live_tup:int8 n_dead_tup:int8 "
    "last_vacuum:time last_analyze:time",
    "pg_statistic_ext": "oid:oid stxrelid:oid stxname stxnamespace:oid stxowner:oid stxstattarget:int4 stxkeys:int2[] "
    "stxkind:text[] stxexprs",
    "pg_subscription": "oid:oid subdbid:oid subname subowner:oid subenabled:bool",
    "pg_tables": "schemaname tablename tableowner tablespace hasindexes:bool hasrules:bool hastriggers:bool "
    "rowsecurity:bool",
    "pg_tablespace": "oid:oid spcname spcowner:oid spcacl:text[] spcoptions:text[]",
    "pg_trigger": "oid:oid tgrelid:oid tgparentid:oid tgname tgfoid:oid tgtype:int2 tgenabled tgisinternal:bool "
    "tgconstrrelid:oid tgconstrindid:oid tgconstraint:oid tgdeferrable:bool tginitdeferred:bool tgnargs:int2 "
    "tgattr:int2[] tgargs tgqual tgoldtable tgnewtable",
    "pg_type": "oid:oid typname typnamespace:oid typowner:oid typlen:int2 typbyval:bool typtype typcategory "
    "typispreferred:bool typisdefined:bool typdelim typrelid:oid typsubscript:oid typelem:oid typarray:oid "
    "typinput typoutput typreceive typsend typmodin:oid typmodout:oid typanalyze:oid typalign typstorage "
    "typnotnull:bool typbasetype:oid typtypmod:int4 typndims:int4 typcollation:oid typdefaultbin typdefault "
    "typacl:text[]",
    "pg_user": "usename usesysid:oid usecreatedb:bool usesuper:bool userepl:bool usebypassrls:bool passwd "
    "valuntil:time useconfig:text[]",
    "pg_user_mapping": "oid:oid umuser:oid umserver:oid umoptions:text[]",
    "pg_views": "schemaname viewname viewowner definition",
    "pg_indexes": "schemaname tablename indexname tablespace indexdef",
    "pg_sequences": "schemaname sequencename sequenceowner data_type start_value:int8",
    "pg_timezone_names": "name abbrev utc_offset is_dst:bool",
}
_INFORMATION: Final[dict[str, str]] = {
    "schemata": "catalog_name schema_name schema_owner default_character_set_catalog default_character_set_schema "
    "default_character_set_name sql_path",
    "tables": "table_catalog table_schema table_name table_type self_referencing_column_name reference_generation "
    "user_defined_type_catalog user_defined_type_schema user_defined_type_name is_insertable_into is_typed "
    "commit_action",
    "columns": "table_catalog table_schema table_name column_name ordinal_position:int4 column_default is_nullable "
    "data_type character_maximum_length:int4 character_octet_length:int4 numeric_precision:int4 "
    "numeric_precision_radix:int4 numeric_scale:int4 datetime_precision:int4 interval_type interval_precision:int4 "
    "character_set_catalog character_set_schema character_set_name collation_catalog collation_schema collation_name "
    "domain_catalog domain_schema domain_name udt_catalog udt_schema udt_name scope_catalog scope_schema scope_name "
    "maximum_cardinality:int4 dtd_identifier is_self_referencing is_identity identity_generation identity_start "
    "identity_increment identity_maximum identity_minimum identity_cycle is_generated generation_expression "
    "is_updatable",
    "views": "table_catalog table_schema table_name view_definition check_option is_updatable is_insertable_into "
    "is_trigger_updatable is_trigger_deletable is_trigger_insertable_into",
    "table_constraints": "constraint_catalog constraint_schema constraint_name table_catalog table_schema table_name "
    "constraint_type is_deferrable initially_deferred enforced nulls_distinct",
    "key_column_usage": "constraint_catalog constraint_schema constraint_name table_catalog table_schema table_name "
    "column_name ordinal_position:int4 position_in_unique_constraint:int4",
    "constraint_column_usage": "table_catalog table_schema table_name column_name constraint_catalog constraint_schema "
    "constraint_name",
    "referential_constraints": "constraint_catalog constraint_schema constraint_name unique_constraint_catalog "
    "unique_constraint_schema unique_constraint_name match_option update_rule delete_rule",
    "table_privileges": "grantor grantee table_catalog table_schema table_name privilege_type is_grantable "
    "with_hierarchy",
    "role_table_grants": "grantor grantee table_catalog table_schema table_name privilege_type is_grantable "
    "with_hierarchy",
    "column_privileges": "grantor grantee table_catalog table_schema table_name column_name privilege_type "
    "is_grantable",
    "routines": "specific_catalog specific_schema specific_name routine_catalog routine_schema routine_name "
    "routine_type data_type",
    "sequences": "sequence_catalog sequence_schema sequence_name data_type",
    "triggers": "trigger_catalog trigger_schema trigger_name event_manipulation event_object_schema event_object_table",
    "character_sets": "character_set_name",
    "enabled_roles": "role_name",
}

_KIND_NAMES: Final = {"r": "BASE TABLE", "f": "FOREIGN", "v": "VIEW", "m": "MATERIALIZED VIEW"}


def shape(spec: str) -> dict[str, pa.DataType]:
    """The columns of a table."""
    pairs = (word.partition(":") for word in spec.split())
    return {name: _ARROW[kind or "text"] for name, _, kind in pairs}


#: All tables by schema and name.
SHAPES: Final[dict[tuple[str, str], dict[str, pa.DataType]]] = {
    **{("pg_catalog", name): shape(spec) for name, spec in _PG.items()},
    **{("information_schema", name): shape(spec) for name, spec in _INFORMATION.items()},
}


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


def filled(catalog: Catalog) -> dict[tuple[str, str], pa.Table]:
    """All tables, by schema and name."""
    rows: dict[tuple[str, str], list[dict[str, Any]]] = {key: [] for key in SHAPES}
    for (schema, table), row in _rows(catalog):
        rows[schema, table].append(row)
    return {key: pa.Table.from_pylist(found, pa.schema(list(SHAPES[key].items()))) for key, found in rows.items()}


def _rows(catalog: Catalog) -> Iterator[tuple[tuple[str, str], dict[str, Any]]]:
    schemas = {COMMON_SCHEMA: PUBLIC, **{name: schema_oid(name) for name in catalog.schemas}}
    for name, oid in {**schemas, "pg_catalog": PG_CATALOG, "information_schema": INFORMATION_SCHEMA}.items():
        yield ("pg_catalog", "pg_namespace"), {"oid": oid, "nspname": name, "nspowner": OWNER}
        yield ("information_schema", "schemata"), {"schema_name": name, "schema_owner": "watersmeet"}
    yield from _types()
    yield ("pg_catalog", "pg_am"), {"oid": 2, "amname": "heap", "amtype": "t"}
    yield ("pg_catalog", "pg_am"), {"oid": 403, "amname": "btree", "amtype": "i"}
    yield ("pg_catalog", "pg_language"), {"oid": 14, "lanname": "sql", "lanowner": OWNER}
    yield ("pg_catalog", "pg_tablespace"), {"oid": 1663, "spcname": "pg_default", "spcowner": OWNER}
    yield (
        ("pg_catalog", "pg_timezone_names"),
        {"name": "UTC", "abbrev": "UTC", "utc_offset": "00:00:00", "is_dst": False},
    )
    yield ("pg_catalog", "pg_collation"), {"oid": 100, "collname": "default", "collnamespace": PG_CATALOG}
    functions = sorted((f for f in catalog.functions.values() if not f.dropped), key=lambda f: f.id)
    for number, function in enumerate(functions):
        yield ("pg_catalog", "pg_proc"), _function(number, function)
    for relation in catalog.relations.values():
        if not relation.hidden and kind_of(relation) is not None:
            yield from _relation(relation, catalog)


def _types() -> Iterator[tuple[tuple[str, str], dict[str, Any]]]:
    extra = {"text": (25, 1009, "S", -1), "oid": (26, 1028, "N", 4), "name": (19, 1003, "S", 64)}
    extra |= {"char": (18, 1002, "Z", 1), "bpchar": (1042, 1014, "S", -1), "regclass": (2205, 2210, "N", 4)}
    extra |= {"json": (114, 199, "U", -1), "uuid": (2950, 2951, "U", 16), "unknown": (705, 0, "X", -2)}
    extra |= {"int2vector": (22, 1006, "A", -1), "oidvector": (30, 1013, "A", -1), "regtype": (2206, 2211, "N", 4)}
    extra |= {t.name: (t.oid, t.array, t.category, t.length) for t in TYPES.values()}
    for name, (oid, array, category, length) in extra.items():
        yield ("pg_catalog", "pg_type"), _type(oid, name, length, category, array=array)
        if array:
            yield ("pg_catalog", "pg_type"), _type(array, f"_{name}", -1, "A", element=oid)


def _type(oid: int, name: str, length: int, category: str, *, array: int = 0, element: int = 0) -> dict[str, Any]:
    stem = (
        "array_" if element else name if name in ("oid", "name", "text", "char") or name[-1].isdigit() else f"{name}_"
    )
    return {
        "oid": oid,
        "typname": name,
        "typnamespace": PG_CATALOG,
        "typowner": OWNER,
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


def _function(number: int, function: SqlFunction) -> dict[str, Any]:
    return {
        "oid": 1 << 29 | number,
        "proname": function.name,
        "pronamespace": schema_oid(function.schema),
        "proowner": OWNER,
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


def _relation(relation: Relation, catalog: Catalog) -> Iterator[tuple[tuple[str, str], dict[str, Any]]]:
    kind, oid, schema = kind_of(relation), relation_oid(relation), relation.schema
    columns = [c for c in relation.columns if c.name not in relation.unlisted]
    key = [i for i, c in enumerate(columns, 1) if c.name in relation.primary_key] if kind in ("r", "m") else []
    yield ("pg_catalog", "pg_class"), _class(oid, relation.name, schema, kind or "r", len(columns), bool(key))
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
    insertable = "YES" if kind == "r" else "NO"
    yield (
        ("information_schema", "tables"),
        {**place, "table_type": _KIND_NAMES[kind or "r"], "is_insertable_into": insertable, "is_typed": "NO"},
    )
    if kind == "r":
        row = {"schemaname": schema, "tablename": relation.name, "tableowner": "watersmeet", "hasindexes": bool(key)}
        yield ("pg_catalog", "pg_tables"), {**row, "hasrules": False, "hastriggers": False, "rowsecurity": False}
        yield ("pg_catalog", "pg_stat_user_tables"), {"relid": oid, "schemaname": schema, "relname": relation.name}
    if kind == "v":
        row = {"schemaname": schema, "viewname": relation.name, "viewowner": "watersmeet", "definition": relation.sql}
        yield ("pg_catalog", "pg_views"), row
        yield ("information_schema", "views"), {**place, "view_definition": relation.sql, "is_updatable": "NO"}
    if kind == "m":
        row = {"schemaname": schema, "matviewname": relation.name, "matviewowner": "watersmeet"}
        row |= {"hasindexes": False, "ispopulated": relation.ready, "definition": relation.sql}
        yield ("pg_catalog", "pg_matviews"), row
    if key:
        yield from _key(relation, columns, key)


def _class(oid: int, name: str, schema: str, kind: str, columns: int, has_index: bool) -> dict[str, Any]:
    return {
        "oid": oid,
        "relname": name,
        "relnamespace": schema_oid(schema),
        "reltype": oid + 1,
        "reloftype": 0,
        "relowner": OWNER,
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


def _attribute(oid: int, number: int, column: Any) -> dict[str, Any]:
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


def _column(relation: Relation, number: int, column: Any, *, updatable: bool) -> dict[str, Any]:
    kind = column.type
    found: dict[str, Any] = {
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


def _key(relation: Relation, columns: list[Any], key: list[int]) -> Iterator[tuple[tuple[str, str], dict[str, Any]]]:
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


def _index(oid: int, table: int, columns: list[int]) -> dict[str, Any]:
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
