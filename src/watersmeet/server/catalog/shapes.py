"""The columns of the tables of pg_catalog and information_schema, with their defaults, and the built-in types.

PostgreSQL 15, "System Catalogs" and "The Information Schema".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import pyarrow as pa

from watersmeet.server.oids import DECLARED, TYPES

#: Tables of pg_catalog that are separate for each client.
OF_CLIENTS: Final = (
    "pg_cursors", "pg_prepared_statements", "pg_sequences", "pg_settings", "pg_stat_activity", "pg_timezone_names",
)  # fmt: skip

#: The oids of the system tables that clients name: `'pg_class'::regclass`.
NUMBERS: Final[dict[str, int]] = {
    "pg_am": 2601, "pg_amop": 2602, "pg_amproc": 2603, "pg_attrdef": 2604, "pg_attribute": 1249,
    "pg_auth_members": 1261, "pg_cast": 2605, "pg_class": 1259, "pg_collation": 3456, "pg_constraint": 2606,
    "pg_conversion": 2607, "pg_database": 1262, "pg_db_role_setting": 2964, "pg_default_acl": 826, "pg_depend": 2608,
    "pg_description": 2609, "pg_enum": 3501, "pg_event_trigger": 3466, "pg_extension": 3079,
    "pg_foreign_data_wrapper": 2328, "pg_foreign_server": 1417, "pg_foreign_table": 3118, "pg_index": 2610,
    "pg_inherits": 2611, "pg_init_privs": 3394, "pg_language": 2612, "pg_largeobject_metadata": 2995,
    "pg_namespace": 2615, "pg_opclass": 2616, "pg_operator": 2617, "pg_opfamily": 2753, "pg_partitioned_table": 3350,
    "pg_policy": 3256, "pg_proc": 1255, "pg_publication": 6104, "pg_publication_namespace": 6237,
    "pg_publication_rel": 6106, "pg_range": 3541, "pg_rewrite": 2618, "pg_seclabel": 3596, "pg_sequence": 2224,
    "pg_shdescription": 2396, "pg_statistic_ext": 3381, "pg_subscription": 6100, "pg_tablespace": 1213,
    "pg_transform": 3576, "pg_trigger": 2620, "pg_ts_config": 3602, "pg_ts_dict": 3600, "pg_ts_parser": 3601,
    "pg_ts_template": 3764, "pg_type": 1247, "pg_user_mapping": 1418,
}  # fmt: skip

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

#: For each table, its columns as `name:type=default`. The type is text if none is given. Most defaults are constants.
_PG: Final[dict[str, str]] = {
    "pg_am": "oid:oid amname amhandler:oid amtype",
    "pg_amop": "oid:oid amopfamily:oid",
    "pg_amproc": "oid:oid amprocfamily:oid",
    "pg_attrdef": "oid:oid adrelid:oid adnum:int2 adbin",
    "pg_attribute": "attrelid:oid attname atttypid:oid attlen:int2 attnum:int2 attcacheoff:int4=-1 atttypmod:int4 "
    "attndims:int2 attbyval:bool attalign=i attstorage attcompression= attnotnull:bool atthasdef:bool=f "
    "atthasmissing:bool=f attidentity= attgenerated= attisdropped:bool=f attislocal:bool=t attinhcount:int2=0 "
    "attstattarget:int2=-1 attcollation:oid attacl:text[] attoptions:text[] attfdwoptions:text[] attmissingval",
    "pg_auth_members": "oid:oid roleid:oid member:oid grantor:oid=10 admin_option:bool=f inherit_option:bool=t "
    "set_option:bool=t",
    "pg_cast": "oid:oid castsource:oid casttarget:oid castfunc:oid castcontext castmethod",
    "pg_class": "oid:oid relname relnamespace:oid reltype:oid reloftype:oid=0 relowner:oid=10 relam:oid "
    "relfilenode:oid reltablespace:oid=0 relpages:int4=0 reltuples:float4=-1 relallvisible:int4=0 "
    "reltoastrelid:oid=0 relhasindex:bool relisshared:bool=f relpersistence=p relkind relnatts:int2 relchecks:int2=0 "
    "relhasrules:bool=f relhastriggers:bool=f relhassubclass:bool=f relrowsecurity:bool=f relforcerowsecurity:bool=f "
    "relispopulated:bool=t relreplident=d relispartition:bool=f relrewrite:oid=0 relfrozenxid:oid=0 relminmxid:oid=0 "
    "relacl:text[] reloptions:text[] relpartbound",
    "pg_collation": "oid:oid collname collnamespace:oid collowner:oid=10 collprovider collisdeterministic:bool "
    "collencoding:int4 collcollate collctype colliculocale collicurules collversion",
    "pg_constraint": "oid:oid conname connamespace:oid contype=p condeferrable:bool=f condeferred:bool=f "
    "convalidated:bool=t conrelid:oid contypid:oid=0 conindid:oid conparentid:oid=0 confrelid:oid=0 confupdtype "
    "confdeltype confmatchtype conislocal:bool=t coninhcount:int2=0 connoinherit:bool=t conkey:int2[] confkey:int2[] "
    "conpfeqop:oid[] conppeqop:oid[] conffeqop:oid[] confdelsetcols:int2[] conexclop:oid[] conbin",
    "pg_conversion": "oid:oid conname connamespace:oid conowner:oid",
    "pg_database": "oid:oid=5 datname datdba:oid=10 encoding:int4=6 datlocprovider=c datistemplate:bool=f "
    "datallowconn:bool=t datconnlimit:int4=-1 datfrozenxid:oid datminmxid:oid dattablespace:oid=1663 datcollate=C "
    "datctype=C daticulocale daticurules datcollversion datacl:text[]",
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
    "pg_group": "groname grosysid:oid grolist:oid[]",
    "pg_index": "indexrelid:oid indrelid:oid indnatts:int2 indnkeyatts:int2 indisunique:bool=f "
    "indnullsnotdistinct:bool=f indisprimary:bool=f indisexclusion:bool=f indimmediate:bool=t indisclustered:bool=f "
    "indisvalid:bool=t indcheckxmin:bool=f indisready:bool=t indislive:bool=t indisreplident:bool=f indkey:int2[] "
    "indcollation:oid[] indclass:oid[] indoption:int2[] indexprs indpred",
    "pg_init_privs": "objoid:oid classoid:oid objsubid:int4 privtype initprivs:text[]",
    "pg_inherits": "inhrelid:oid inhparent:oid inhseqno:int4 inhdetachpending:bool",
    "pg_language": "oid:oid lanname lanowner:oid=10 lanispl:bool lanpltrusted:bool lanplcallfoid:oid laninline:oid "
    "lanvalidator:oid lanacl:text[]",
    "pg_largeobject_metadata": "oid:oid lomowner:oid lomacl:text[]",
    "pg_locks": "locktype database:oid relation:oid pid:int4 mode granted:bool",
    "pg_matviews": "schemaname matviewname matviewowner=watersmeet tablespace hasindexes:bool=f ispopulated:bool "
    "definition",
    "pg_namespace": "oid:oid nspname nspowner:oid=10 nspacl:text[]",
    "pg_opclass": "oid:oid opcmethod:oid opcname opcnamespace:oid opcowner:oid opcfamily:oid opcintype:oid "
    "opcdefault:bool opckeytype:oid",
    "pg_operator": "oid:oid oprname oprnamespace:oid oprowner:oid oprkind oprleft:oid oprright:oid oprresult:oid "
    "oprcode:oid",
    "pg_opfamily": "oid:oid opfmethod:oid opfname opfnamespace:oid opfowner:oid",
    "pg_partitioned_table": "partrelid:oid partstrat partnatts:int2 partdefid:oid partattrs:int2[] partexprs "
    "partclass:oid[]",
    "pg_policies": "schemaname tablename policyname permissive roles:text[] cmd qual with_check",
    "pg_policy": "oid:oid polname polrelid:oid polcmd polpermissive:bool polroles:oid[] polqual polwithcheck",
    "pg_proc": "oid:oid proname pronamespace:oid proowner:oid=10 prolang:oid=14 procost:float4=100 prorows:float4=0 "
    "provariadic:oid=0 prosupport=- prokind=f prosecdef:bool=f proleakproof:bool proisstrict:bool proretset:bool=f "
    "provolatile=i proparallel=s pronargs:int2 pronargdefaults:int2 prorettype:oid proargtypes:oid[] "
    "proallargtypes:oid[] proargmodes:text[] proargnames:text[] proargdefaults protrftypes:oid[] prosrc probin "
    "prosqlbody proconfig:text[] proacl:text[]",
    "pg_publication": "oid:oid pubname pubowner:oid puballtables:bool pubinsert:bool pubupdate:bool pubdelete:bool "
    "pubtruncate:bool pubviaroot:bool",
    "pg_publication_namespace": "oid:oid pnpubid:oid pnnspid:oid",
    "pg_publication_rel": "oid:oid prpubid:oid prrelid:oid prqual prattrs:int2[]",
    "pg_range": "rngtypid:oid rngsubtype:oid rngmultitypid:oid rngcollation:oid rngsubopc:oid rngcanonical:oid "
    "rngsubdiff:oid",
    "pg_rewrite": "oid:oid rulename=_RETURN ev_class:oid ev_type=1 ev_enabled=O is_instead:bool=t ev_qual ev_action",
    "pg_roles": "rolname rolsuper:bool rolinherit:bool=t rolcreaterole:bool rolcreatedb:bool=f rolcanlogin:bool "
    "rolreplication:bool=f rolconnlimit:int4 rolpassword=******** rolvaliduntil:time rolbypassrls:bool "
    "rolconfig:text[] oid:oid",
    "pg_cursors": "name statement is_holdable:bool is_binary:bool is_scrollable:bool=t creation_time:time",
    "pg_prepared_statements": "name statement prepare_time:time parameter_types:text[] result_types:text[] "
    "from_sql:bool generic_plans:int8 custom_plans:int8",
    "pg_seclabels": "objoid:oid classoid:oid objsubid:int4 objtype objnamespace:oid objname provider label",
    "pg_sequence": "seqrelid:oid seqtypid:oid seqstart:int8 seqincrement:int8 seqmax:int8 seqmin:int8 seqcache:int8 "
    "seqcycle:bool",
    "pg_settings": "name setting unit category short_desc extra_desc context vartype source min_val max_val "
    "enumvals:text[] boot_val reset_val sourcefile sourceline:int4 pending_restart:bool",
    "pg_shdescription": "objoid:oid classoid:oid description",
    "pg_shseclabel": "objoid:oid classoid:oid provider label",
    "pg_stat_activity": "datid:oid datname pid:int4 leader_pid:int4 usesysid:oid usename application_name "
    "client_addr client_hostname client_port:int4 backend_start:time xact_start:time query_start:time "
    "state_change:time wait_event_type wait_event state backend_xid:oid backend_xmin:oid query_id:int8 query "
    "backend_type",
    "pg_stat_user_tables": "relid:oid schemaname relname seq_scan:int8 n_live_tup:int8 n_dead_tup:int8 "
    "last_vacuum:time last_analyze:time",
    "pg_statio_all_tables": "relid:oid schemaname relname heap_blks_read:int8 heap_blks_hit:int8 idx_blks_read:int8 "
    "idx_blks_hit:int8",
    "pg_statistic_ext": "oid:oid stxrelid:oid stxname stxnamespace:oid stxowner:oid stxstattarget:int4 "
    "stxkeys:int2[] stxkind:text[] stxexprs",
    "pg_subscription": "oid:oid subdbid:oid subname subowner:oid subenabled:bool subconninfo subslotname subsynccommit "
    "subpublications:text[] subbinary:bool substream:bool subtwophasestate subdisableonerr:bool",
    "pg_tables": "schemaname tablename tableowner=watersmeet tablespace hasindexes:bool hasrules:bool=f "
    "hastriggers:bool=f rowsecurity:bool=f",
    "pg_tablespace": "oid:oid spcname spcowner:oid=10 spcacl:text[] spcoptions:text[]",
    "pg_transform": "oid:oid trftype:oid trflang:oid trffromsql:oid trftosql:oid",
    "pg_trigger": "oid:oid tgrelid:oid tgparentid:oid tgname tgfoid:oid tgtype:int2 tgenabled tgisinternal:bool "
    "tgconstrrelid:oid tgconstrindid:oid tgconstraint:oid tgdeferrable:bool tginitdeferred:bool tgnargs:int2 "
    "tgattr:int2[] tgargs tgqual tgoldtable tgnewtable",
    "pg_ts_config": "oid:oid cfgname cfgnamespace:oid cfgowner:oid cfgparser:oid",
    "pg_ts_dict": "oid:oid dictname dictnamespace:oid dictowner:oid dicttemplate:oid dictinitoption",
    "pg_ts_parser": "oid:oid prsname prsnamespace:oid prsstart:oid prstoken:oid prsend:oid prsheadline:oid "
    "prslextype:oid",
    "pg_ts_template": "oid:oid tmplname tmplnamespace:oid tmplinit:oid tmpllexize:oid",
    "pg_type": "oid:oid typname typnamespace:oid=11 typowner:oid=10 typlen:int2 typbyval:bool typtype typcategory "
    "typispreferred:bool typisdefined:bool=t typdelim=, typrelid:oid=0 typsubscript:oid=0 typelem:oid typarray:oid "
    "typinput typoutput typreceive typsend typmodin:oid=0 typmodout:oid=0 typanalyze:oid=0 typalign typstorage "
    "typnotnull:bool=f typbasetype:oid=0 typtypmod:int4=-1 typndims:int4=0 typcollation:oid typdefaultbin typdefault "
    "typacl:text[]",
    "pg_user": "usename usesysid:oid usecreatedb:bool=f usesuper:bool userepl:bool=f usebypassrls:bool "
    "passwd=******** valuntil:time useconfig:text[]",
    "pg_user_mapping": "oid:oid umuser:oid umserver:oid umoptions:text[]",
    "pg_user_mappings": "umid:oid srvid:oid srvname umuser:oid usename umoptions:text[]",
    "pg_views": "schemaname viewname viewowner=watersmeet definition",
    "pg_indexes": "schemaname tablename indexname tablespace indexdef",
    "pg_sequences": "schemaname sequencename sequenceowner=watersmeet data_type start_value:int8 min_value:int8 "
    "max_value:int8 increment_by:int8 cycle:bool cache_size:int8=1 last_value:int8",
    "pg_timezone_names": "name abbrev utc_offset is_dst:bool",
}
_INFORMATION: Final[dict[str, str]] = {
    "schemata": "catalog_name schema_name schema_owner=watersmeet default_character_set_catalog "
    "default_character_set_schema default_character_set_name sql_path",
    "tables": "table_catalog table_schema table_name table_type self_referencing_column_name reference_generation "
    "user_defined_type_catalog user_defined_type_schema user_defined_type_name is_insertable_into is_typed=NO "
    "commit_action",
    "columns": "table_catalog table_schema table_name column_name ordinal_position:int4 column_default is_nullable "
    "data_type character_maximum_length:int4 character_octet_length:int4 numeric_precision:int4 "
    "numeric_precision_radix:int4 numeric_scale:int4 datetime_precision:int4 interval_type interval_precision:int4 "
    "character_set_catalog character_set_schema character_set_name collation_catalog collation_schema collation_name "
    "domain_catalog domain_schema domain_name udt_catalog udt_schema=pg_catalog udt_name scope_catalog scope_schema "
    "scope_name maximum_cardinality:int4 dtd_identifier is_self_referencing=NO is_identity=NO identity_generation "
    "identity_start identity_increment identity_maximum identity_minimum identity_cycle=NO is_generated "
    "generation_expression is_updatable",
    "views": "table_catalog table_schema table_name view_definition check_option is_updatable=NO is_insertable_into "
    "is_trigger_updatable is_trigger_deletable is_trigger_insertable_into",
    "table_constraints": "constraint_catalog constraint_schema constraint_name table_catalog table_schema table_name "
    "constraint_type is_deferrable=NO initially_deferred=NO enforced=YES nulls_distinct",
    "key_column_usage": "constraint_catalog constraint_schema constraint_name table_catalog table_schema table_name "
    "column_name ordinal_position:int4 position_in_unique_constraint:int4",
    "constraint_column_usage": "table_catalog table_schema table_name column_name constraint_catalog "
    "constraint_schema constraint_name",
    "check_constraints": "constraint_catalog constraint_schema constraint_name check_clause",
    "referential_constraints": "constraint_catalog constraint_schema constraint_name unique_constraint_catalog "
    "unique_constraint_schema unique_constraint_name match_option update_rule delete_rule",
    "table_privileges": "grantor grantee table_catalog table_schema table_name privilege_type is_grantable=NO "
    "with_hierarchy",
    "role_table_grants": "grantor grantee table_catalog table_schema table_name privilege_type is_grantable=NO "
    "with_hierarchy",
    "column_privileges": "grantor grantee table_catalog table_schema table_name column_name privilege_type "
    "is_grantable",
    "routines": "specific_catalog specific_schema specific_name routine_catalog routine_schema routine_name "
    "routine_type data_type",
    "sequences": "sequence_catalog sequence_schema sequence_name data_type numeric_precision:int4 "
    "numeric_precision_radix:int4=2 numeric_scale:int4=0 start_value minimum_value maximum_value increment "
    "cycle_option",
    "domains": "domain_catalog domain_schema domain_name data_type character_maximum_length:int4 "
    "numeric_precision:int4 numeric_scale:int4 datetime_precision:int4 domain_default udt_catalog "
    "udt_schema=pg_catalog udt_name",
    "domain_constraints": "constraint_catalog constraint_schema constraint_name domain_catalog domain_schema "
    "domain_name is_deferrable=NO initially_deferred=NO",
    "triggers": "trigger_catalog trigger_schema trigger_name event_manipulation event_object_schema event_object_table",
    "character_sets": "character_set_name",
    "enabled_roles": "role_name",
    "applicable_roles": "grantee role_name is_grantable=NO",
}


#: All tables by schema and name.
_SPECS: Final = {
    **{("pg_catalog", name): spec for name, spec in _PG.items()},
    **{("information_schema", name): spec for name, spec in _INFORMATION.items()},
}


def _column(word: str) -> tuple[str, pa.DataType, object]:
    """Name, type and default (None without one) of a column."""
    head, _, default = word.partition("=")
    name, _, kind = head.partition(":")
    if head == word:
        return name, _ARROW[kind or "text"], None
    value = default if not kind else default == "t" if kind == "bool" else int(default)
    return name, _ARROW[kind or "text"], value


_COLUMNS: Final = {table: [_column(word) for word in spec.split()] for table, spec in _SPECS.items()}
SHAPES: Final = {table: {name: kind for name, kind, _ in columns} for table, columns in _COLUMNS.items()}
#: The columns that have a default.
DEFAULTS: Final[dict[tuple[str, str], dict[str, object]]] = {
    table: {name: value for name, _, value in columns if value is not None} for table, columns in _COLUMNS.items()
}

#: Types whose functions have no underscore in their names: `varcharin`, but `date_in`.
_JOINED: Final = (
    "bool", "bytea", "char", "name", "text", "oid", "bpchar", "varchar", "regclass", "regtype", "int2vector",
    "oidvector", "unknown",
)  # fmt: skip
#: The oids of types of text.
_TEXTS: Final = (18, 19, 25, 1042, 1043)
_TYPE_FUNCTIONS: Final = {"input": "in", "output": "out", "receive": "recv", "send": "send"}


def types() -> Iterator[tuple[tuple[str, str], Mapping[str, object]]]:
    """The rows of the types that each database has."""
    extra = {"char": (18, 1002, "Z", 1), "regclass": (2205, 2210, "N", 4), "unknown": (705, 0, "X", -2)}
    extra |= {"int2vector": (22, 1006, "A", -1), "oidvector": (30, 1013, "A", -1), "regtype": (2206, 2211, "N", 4)}
    extra |= {t.name: (t.oid, t.array, t.category, t.length) for t in (*DECLARED.values(), *TYPES.values())}
    for name, (oid, array, category, length) in extra.items():
        yield ("pg_catalog", "pg_type"), type_row(oid, name, length, category, array=array)
        if array:
            yield ("pg_catalog", "pg_type"), type_row(array, f"_{name}", -1, "A", element=oid)


def type_row(oid: int, name: str, length: int, category: str, *, array: int = 0, element: int = 0) -> dict[str, object]:
    """The row of a type in pg_type."""
    stem = "array_" if element else name if name in _JOINED or name[-1].isdigit() else f"{name}_"
    return {
        "oid": oid,
        "typname": name,
        "typlen": length,
        "typbyval": 0 < length <= 8,
        "typtype": "p" if category in "PX" else "b",
        "typcategory": category,
        "typispreferred": name in ("bool", "float8", "oid", "text", "timestamptz", "interval"),
        "typelem": element,
        "typarray": array,
        **{f"typ{use}": f"{stem}{end}" for use, end in _TYPE_FUNCTIONS.items()},
        "typalign": "d" if length == 8 else "i",
        "typstorage": "x" if length < 0 else "p",
        "typcollation": 100 if category == "S" or element in _TEXTS else 0,
    }
