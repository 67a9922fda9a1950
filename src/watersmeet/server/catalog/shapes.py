"""The columns of the tables of pg_catalog and information_schema.

PostgreSQL 16, "System Catalogs" and "The Information Schema": names and order of columns are theirs.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

#: Tables of pg_catalog that each client has for itself.
OF_CLIENTS: Final = ("pg_settings", "pg_stat_activity")

#: PostgreSQL's numbers of its own tables, for those that clients name: `'pg_class'::regclass`.
NUMBERS: Final[dict[str, int]] = {
    "pg_am": 2601, "pg_attrdef": 2604, "pg_attribute": 1249, "pg_auth_members": 1261, "pg_cast": 2605, "pg_class": 1259,
    "pg_collation": 3456, "pg_constraint": 2606, "pg_database": 1262, "pg_depend": 2608, "pg_description": 2609,
    "pg_enum": 3501, "pg_event_trigger": 3466, "pg_extension": 3079, "pg_foreign_data_wrapper": 2328,
    "pg_foreign_server": 1417, "pg_foreign_table": 3118, "pg_index": 2610, "pg_inherits": 2611, "pg_language": 2612,
    "pg_namespace": 2615, "pg_opclass": 2616, "pg_operator": 2617, "pg_policy": 3256, "pg_proc": 1255,
    "pg_publication": 6104, "pg_range": 3541, "pg_rewrite": 2618, "pg_sequence": 2224, "pg_shdescription": 2396,
    "pg_statistic_ext": 3381, "pg_tablespace": 1213, "pg_trigger": 2620, "pg_type": 1247,
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
    "pg_group": "groname grosysid:oid grolist:oid[]",
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
    "pg_statio_all_tables": "relid:oid schemaname relname heap_blks_read:int8 heap_blks_hit:int8 idx_blks_read:int8 "
    "idx_blks_hit:int8",
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
    "applicable_roles": "grantee role_name is_grantable",
}


def shape(spec: str) -> dict[str, pa.DataType]:
    """The columns of a table."""
    pairs = (word.partition(":") for word in spec.split())
    return {name: _ARROW[kind or "text"] for name, _, kind in pairs}


#: All tables by schema and name.
SHAPES: Final[dict[tuple[str, str], dict[str, pa.DataType]]] = {
    **{("pg_catalog", name): shape(spec) for name, spec in _PG.items()},
    **{("information_schema", name): shape(spec) for name, spec in _INFORMATION.items()},
}
