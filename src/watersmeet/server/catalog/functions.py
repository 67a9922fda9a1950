"""PostgreSQL's functions over its catalog, as macros of DuckDB.

Variables hold the data of each client: `database`, `user` (its current role), `login`, `schema`, `path`,
`pid`.
"""

from __future__ import annotations

import re
from typing import Final

from sqlglot import exp

from watersmeet.dialects.tree.sqltypes import INTERVAL_FIELDS
from watersmeet.server.catalog.shapes import NUMBERS, SHAPES
from watersmeet.values import POSTGRES_VERSION

_NUMBERS: Final = " ".join(f"WHEN '{name}' THEN {number}" for name, number in NUMBERS.items())

#: A size in the units of PostgreSQL's pg_size_pretty: halves are rounded away from 0.
_PRETTY_SIZE: Final = (
    "CASE WHEN abs(CAST(n AS HUGEINT)) < 10240 THEN CAST(n AS VARCHAR) || ' bytes' "
    + " ".join(
        f"WHEN abs(CAST(n AS HUGEINT) // {1 << bits}) < 20479 THEN "
        f"CAST((CAST(n AS HUGEINT) // {1 << bits} + CASE WHEN n < 0 THEN -1 ELSE 1 END) // 2 AS VARCHAR) || ' {unit}'"
        for bits, unit in ((9, "kB"), (19, "MB"), (29, "GB"), (39, "TB"))
    )
    + f" ELSE CAST((CAST(n AS HUGEINT) // {1 << 49} + CASE WHEN n < 0 THEN -1 ELSE 1 END) // 2 AS VARCHAR) || ' PB' END"
)

#: Macros over the tables: the expression of each head (name and parameters).
_MACROS: Final = {
    "pg_current_database()": "getvariable('database')",
    "pg_current_user()": "getvariable('user')",
    "pg_session_user()": "getvariable('login')",
    "pg_cancel_backend(p)": "signal_(CAST(p AS INTEGER), false, getvariable('asking'))",
    "pg_terminate_backend(p, most_ms := 0)": "signal_(CAST(p AS INTEGER), true, getvariable('asking'))",
    "pg_notify(c, p)": "notify_(CAST(c AS VARCHAR), CAST(p AS VARCHAR), getvariable('asking'))",
    "pg_listening_channels()": "unnest(getvariable('channels'))",
    "pg_current_schema()": "getvariable('schema')",
    "version()": f"'PostgreSQL {POSTGRES_VERSION} (Watersmeet)'",
    "pg_backend_pid()": "getvariable('pid')",
    "inet_server_addr()": "CAST(NULL AS VARCHAR)",
    "inet_client_addr()": "CAST(NULL AS VARCHAR)",
    "inet_server_port()": "CAST(NULL AS INTEGER)",
    "pg_is_in_recovery()": "getvariable('recovers')",
    "pg_postmaster_start_time()": "getvariable('started')",
    "pg_conf_load_time()": "getvariable('started')",
    "pg_advisory_unlock_all()": "NULL",
    "txid_current()": "CAST(0 AS BIGINT)",
    "pg_my_temp_schema()": (
        "coalesce((SELECT n_.oid FROM pg_catalog_.pg_namespace n_ WHERE starts_with(n_.nspname, 'pg_temp_')), "
        "CAST(0 AS UINTEGER))"
    ),
    "pg_is_other_temp_schema(o)": "false",
    "pg_relation_is_updatable(o, with_triggers)": (
        "coalesce((SELECT CASE WHEN r_.relkind IN ('r', 'p') THEN 28 END FROM pg_catalog_.pg_class r_ "
        "WHERE r_.oid = o), 0)"
    ),
    "json_contains_(j, x)": "list_contains(from_json(j, '[\"JSON\"]'), x)",
    "_pg_char_max_length(o, n)": "CASE WHEN n > 4 AND o IN (1042, 1043) THEN n - 4 END",
    "current_schemas(implicit)": (
        "CASE WHEN implicit THEN list_concat(coalesce((SELECT [n_.nspname] FROM pg_catalog_.pg_namespace n_ WHERE "
        "starts_with(n_.nspname, 'pg_temp_')), []), list_prepend('pg_catalog', getvariable('path'))) ELSE "
        "getvariable('path') END"
    ),
    "pg_encoding_to_char(n)": "CASE n WHEN 6 THEN 'UTF8' ELSE '' END",
    "pg_char_to_encoding(n)": "CASE upper(n) WHEN 'UTF8' THEN 6 ELSE -1 END",
    "pg_client_encoding()": "'UTF8'",
    "pg_table_is_visible(o)": (
        "EXISTS (SELECT 1 FROM pg_catalog_.pg_class c_ JOIN pg_catalog_.pg_namespace n_ ON n_.oid = "
        "c_.relnamespace WHERE c_.oid = o AND (n_.nspname = 'pg_catalog' OR starts_with(n_.nspname, 'pg_temp_') OR "
        "(list_contains(getvariable('path'), n_.nspname) AND NOT EXISTS (SELECT 1 FROM pg_catalog_.pg_class x_ JOIN "
        "pg_catalog_.pg_namespace y_ ON y_.oid = x_.relnamespace WHERE x_.relname = c_.relname AND "
        "starts_with(y_.nspname, 'pg_temp_')))))"
    ),
    "pg_type_is_visible(o)": "true",
    "pg_function_is_visible(o)": "true",
    "pg_operator_is_visible(o)": "true",
    "pg_opclass_is_visible(o)": "true",
    "pg_collation_is_visible(o)": "true",
    "pg_statistics_obj_is_visible(o)": "true",
    "type_name(n, s, m)": (
        "CASE WHEN s = 11 THEN sql_name(n, m) ELSE CASE WHEN list_contains(getvariable('path'), (SELECT n_.nspname "
        "FROM pg_catalog_.pg_namespace n_ WHERE n_.oid = s)) THEN '' ELSE (SELECT quote_ident(n_.nspname) FROM "
        "pg_catalog_.pg_namespace n_ WHERE n_.oid = s) || '.' END || quote_ident(n) END"
    ),
    "format_type(o, m)": (
        "CASE WHEN o IS NULL THEN NULL WHEN o = 0 THEN '-' ELSE coalesce((SELECT CASE WHEN t_.typelem <> 0 AND "
        "t_.typlen = -1 THEN (SELECT type_name(e_.typname, e_.typnamespace, m) FROM pg_catalog_.pg_type e_ WHERE "
        "e_.oid = t_.typelem) || '[]' ELSE type_name(t_.typname, t_.typnamespace, m) END FROM pg_catalog_.pg_type t_ "
        "WHERE t_.oid = o), '???') END"
    ),
    "acldefault(c, o)": (
        "CASE WHEN c = 'r' THEN [pg_get_userbyid(o) || '=arwd/' || pg_get_userbyid(o)] ELSE CAST([] AS VARCHAR[]) END"
    ),
    "pg_get_expr(e, o, pretty := false)": (
        "CASE WHEN len(getvariable('path')) = 0 THEN qualified_('default', CAST(o AS UINTEGER), e) WHEN "
        "list_contains(getvariable('path'), 'public') THEN replace(e, 'nextval(''public.', 'nextval(''') ELSE e END"
    ),
    "pg_get_viewdef(o, pretty := false)": (
        "(SELECT CASE WHEN len(getvariable('path')) = 0 THEN qualified_('view', c_.oid, coalesce(v_.definition, "
        "m_.definition)) ELSE coalesce(v_.definition, m_.definition) END FROM pg_catalog_.pg_class c_ JOIN "
        "pg_catalog_.pg_namespace n_ ON n_.oid = c_.relnamespace LEFT JOIN pg_catalog_.pg_views v_ ON "
        "v_.viewname = c_.relname AND v_.schemaname = n_.nspname LEFT JOIN pg_catalog_.pg_matviews m_ ON "
        "m_.matviewname = c_.relname AND m_.schemaname = n_.nspname WHERE c_.oid = CAST(o AS UINTEGER))"
    ),
    "pg_get_constraintdef(o, pretty := false)": (
        "(SELECT CASE WHEN k_.contype = 'f' AND NOT pg_table_is_visible(k_.confrelid) THEN replace(k_.conbin, "
        "' REFERENCES ', ' REFERENCES ' || (SELECT quote_ident(n_.nspname) FROM pg_catalog_.pg_class c_ JOIN "
        "pg_catalog_.pg_namespace n_ ON n_.oid = c_.relnamespace WHERE c_.oid = k_.confrelid) || '.') WHEN k_.contype "
        "= 'c' AND len(getvariable('path')) = 0 THEN qualified_('check', k_.conrelid, k_.conbin) ELSE k_.conbin END "
        "FROM pg_catalog_.pg_constraint k_ WHERE k_.oid = CAST(o AS UINTEGER))"
    ),
    "pg_get_indexdef(o, n := 0, pretty := false)": (
        "(SELECT CASE WHEN n > 0 THEN quote_ident(index_column(i_.indrelid, i_.indkey[n])) ELSE 'CREATE ' || "
        "CASE WHEN i_.indisunique THEN 'UNIQUE ' ELSE '' END || 'INDEX ' || quote_ident(x_.relname) || ' ON ' || "
        "(SELECT quote_ident(n_.nspname) FROM pg_catalog_.pg_namespace n_ WHERE n_.oid = y_.relnamespace) || '.' || "
        "quote_ident(y_.relname) || ' USING btree (' || (SELECT string_agg(quote_ident(a_.attname), ', ' ORDER "
        "BY list_position(i_.indkey, a_.attnum)) FROM pg_catalog_.pg_attribute a_ WHERE a_.attrelid = "
        "i_.indrelid AND list_contains(i_.indkey, a_.attnum)) || ')' END FROM pg_catalog_.pg_index i_ JOIN "
        "pg_catalog_.pg_class x_ ON x_.oid = i_.indexrelid JOIN pg_catalog_.pg_class y_ ON y_.oid = i_.indrelid "
        "WHERE i_.indexrelid = o)"
    ),
    "pg_get_function_result(o)": (
        "(SELECT format_type(p_.prorettype, NULL) FROM pg_catalog_.pg_proc p_ WHERE p_.oid = o)"
    ),
    "pg_get_function_arguments(o)": (
        "(SELECT coalesce(string_agg(CASE WHEN x_.n = '' THEN '' ELSE quote_ident(x_.n) || ' ' END || "
        "format_type(x_.t, NULL), ', ' ORDER BY x_.i), '') FROM (SELECT unnest(p_.proargtypes) AS t, "
        "unnest(p_.proargnames) AS n, unnest(range(len(p_.proargtypes))) AS i FROM pg_catalog_.pg_proc p_ WHERE p_.oid "
        "= o) x_)"
    ),
    "pg_get_function_identity_arguments(o)": "pg_get_function_arguments(o)",
    "pg_get_functiondef(o)": "qualified_('function', CAST(o AS UINTEGER), '')",
    "pg_get_function_sqlbody(o)": "CAST(NULL AS VARCHAR)",
    "pg_partition_ancestors(o)": "unnest(CAST([] AS UINTEGER[]))",
    "pg_options_to_table(o)": "unnest(CAST([] AS VARCHAR[]))",
    "pg_get_partkeydef(o)": "CAST(NULL AS VARCHAR)",
    "pg_get_ruledef(o, pretty := false)": "CAST(NULL AS VARCHAR)",
    "pg_get_triggerdef(o, pretty := false)": "CAST(NULL AS VARCHAR)",
    "pg_get_statisticsobjdef_columns(o)": "CAST(NULL AS VARCHAR)",
    "pg_get_serial_sequence(t, c)": (
        "(SELECT quote_ident(n_.nspname) || '.' || quote_ident(s_.relname) FROM pg_catalog_.pg_depend d_ JOIN "
        "pg_catalog_.pg_class s_ ON s_.oid = d_.objid AND s_.relkind = 'S' JOIN pg_catalog_.pg_namespace n_ ON "
        "n_.oid = s_.relnamespace JOIN pg_catalog_.pg_attribute a_ ON a_.attrelid = d_.refobjid AND a_.attnum = "
        "d_.refobjsubid WHERE d_.refobjid = to_regclass(t) AND a_.attname = c LIMIT 1)"
    ),
    "serial_sequence_oid(o, c)": (
        "(SELECT d_.objid FROM pg_catalog_.pg_depend d_ JOIN pg_catalog_.pg_class s_ ON s_.oid = d_.objid AND "
        "s_.relkind = 'S' JOIN pg_catalog_.pg_attribute a_ ON a_.attrelid = d_.refobjid AND a_.attnum = d_.refobjsubid "
        "WHERE d_.refobjid = o AND a_.attname = c LIMIT 1)"
    ),
    "pg_get_replica_identity_index(o)": "CAST(NULL AS UINTEGER)",
    "pg_relation_is_publishable(o)": "false",
    "pg_relation_size(o, f := 'main')": "CAST(0 AS BIGINT)",
    "pg_total_relation_size(o)": "CAST(0 AS BIGINT)",
    "pg_table_size(o)": "CAST(0 AS BIGINT)",
    "pg_indexes_size(o)": "CAST(0 AS BIGINT)",
    "pg_database_size(o)": "CAST(0 AS BIGINT)",
    "pg_size_pretty(n)": _PRETTY_SIZE,
    "pg_tablespace_size(o)": "CAST(0 AS BIGINT)",
    "getdatabaseencoding()": "'UTF8'",
    **{
        f"pg_{what}_is_visible(o)": "true"
        for what in ("conversion", "opfamily", "ts_config", "ts_dict", "ts_parser", "ts_template")
    },
    "pg_tablespace_location(o)": "''",
    "pg_stat_get_numscans(o)": "CAST(0 AS BIGINT)",
    "obj_description(o, c := '')": "col_description(o, 0)",
    "col_description(o, n)": (
        "(SELECT d_.description FROM pg_catalog_.pg_description d_ WHERE d_.objoid = o AND d_.objsubid = n)"
    ),
    "shobj_description(o, c)": "CAST(NULL AS VARCHAR)",
    "array_remove(a, v)": "list_filter(a, lambda x: x IS DISTINCT FROM v)",
    "pg_get_keywords()": (
        "TABLE SELECT keyword_name AS word, CASE keyword_category WHEN 'reserved' THEN 'R' WHEN 'column_name' THEN 'C' "
        "WHEN 'type_function' THEN 'T' ELSE 'U' END AS catcode, keyword_category AS catdesc FROM duckdb_keywords()"
    ),
    "array_upper(a, d)": "nullif(len(a), 0)",
    "array_lower(a, d)": "CASE WHEN len(a) > 0 THEN 1 END",
    "quote_ident(n)": (
        "CASE WHEN regexp_full_match(n, '[a-z_][a-z0-9_]*') THEN n ELSE '\"' || replace(n, '\"', '\"\"') || '\"' END"
    ),
    "quote_literal(n)": (
        r"CAST(CASE WHEN contains(CAST(n AS VARCHAR), '\') THEN 'E' ELSE '' END || '''' || "
        r"replace(replace(CAST(n AS VARCHAR), '\', '\\'), '''', '''''') || '''' AS VARCHAR)"
    ),
    "index_column(t, k)": (
        "(SELECT a_.attname FROM pg_catalog_.pg_attribute a_ WHERE a_.attrelid = t AND a_.attnum = k)"
    ),
    "to_regclass(n)": (
        "coalesce((SELECT c_.oid FROM pg_catalog_.pg_class c_ JOIN pg_catalog_.pg_namespace n_ ON n_.oid = "
        "c_.relnamespace WHERE CASE WHEN contains(n, '.') THEN bare(n_.nspname || '.' || c_.relname) = inside(n) "
        "ELSE c_.relname = bare(n) AND (starts_with(n_.nspname, 'pg_temp_') OR list_contains(list_prepend("
        "'pg_catalog', getvariable('path')), n_.nspname)) END ORDER BY NOT starts_with(n_.nspname, 'pg_temp_'), "
        "list_position(getvariable('path'), n_.nspname) LIMIT 1), "
        f"CAST(CASE regexp_replace(bare(n), '^pg_catalog\\.', '') {_NUMBERS} END AS UINTEGER))"
    ),
    "_pg_expandarray(a)": "unnest(list_transform(a, lambda x, i: {'x': x, 'n': CAST(i AS INTEGER)}))",
    "inside(n)": (
        "CASE WHEN len(string_split(bare(n), '.')) = 3 AND starts_with(bare(n), getvariable('database') || '.') THEN "
        "substr(bare(n), len(getvariable('database')) + 2) ELSE bare(n) END"
    ),
    "bare(n)": "regexp_replace(trim(replace(n, '\"', '')), '\\s*\\.\\s*', '.')",
    "to_regtype(n)": (
        "coalesce((SELECT t_.oid FROM pg_catalog_.pg_type t_ WHERE t_.typname = regexp_replace(bare(n), "
        "'^pg_catalog\\.', '') OR sql_name(t_.typname, -1) = n LIMIT 1), "
        "CAST(CASE bare(n) WHEN 'trigger' THEN 2279 WHEN 'void' THEN 2278 END AS UINTEGER))"
    ),
    "to_regnamespace(n)": "(SELECT n_.oid FROM pg_catalog_.pg_namespace n_ WHERE n_.nspname = bare(n))",
    "to_regproc(n)": "(SELECT p_.oid FROM pg_catalog_.pg_proc p_ WHERE p_.proname = bare(n) LIMIT 1)",
    "regclass_text(o)": (
        "(SELECT CASE WHEN list_contains(getvariable('path'), n_.nspname) OR n_.nspname = 'pg_catalog' OR "
        "starts_with(n_.nspname, 'pg_temp_') THEN '' "
        "ELSE quote_ident(n_.nspname) || '.' END || quote_ident(c_.relname) FROM pg_catalog_.pg_class c_ JOIN "
        "pg_catalog_.pg_namespace n_ ON n_.oid = c_.relnamespace WHERE c_.oid = o)"
    ),
    "regtype_text(o)": "format_type(o, NULL)",
    "regproc_text(o)": "CASE WHEN o = 0 THEN '-' ELSE CAST(o AS VARCHAR) END",
    "regnamespace_text(o)": "(SELECT n_.nspname FROM pg_catalog_.pg_namespace n_ WHERE n_.oid = o)",
    "regrole_text(o)": "pg_get_userbyid(o)",
    "current_setting(n, missing := false)": (
        "CAST(coalesce(getvariable('shown')[list_position(getvariable('settings'), lower(n))], CASE WHEN NOT missing "
        "THEN error('UNDEFINED_OBJECT: unrecognized configuration parameter \"' || n || '\"') END) AS VARCHAR)"
    ),
    "set_config(n, v, local)": "configure_(CAST(n AS VARCHAR), CAST(v AS VARCHAR), local, getvariable('asking'))",
}

#: Macros over the tables of `rights_tables`. `r`: the oid of a role; `u`: its name or oid.
_PRIVILEGE_MACROS: Final = {
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
#: Privileges on other objects, which everybody has, or only the fixed roles from `writer` (2) or `admin` (3) on.
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

_SQL_NAMES: Final = {
    "bool": "boolean", "int2": "smallint", "int4": "integer", "int8": "bigint", "float4": "real",
    "float8": "double precision", "varchar": "character varying", "bpchar": "character",
    "time": "time without time zone", "timestamp": "timestamp without time zone",
    "timestamptz": "timestamp with time zone", "char": '"char"',
}  # fmt: skip

#: Macros that other macros call.
_FIRST: Final = (
    "quote_ident", "index_column", "bare", "inside", "pg_get_userbyid", "type_name", "format_type",
    "pg_get_function_arguments", "to_regclass", "pg_table_is_visible", "role_id", "relation_id", "col_description",
    "wants", "level_of", "may", "is_member",
)  # fmt: skip

#: Functions of PostgreSQL that make a query without FROM a query of the catalog.
SESSION_FUNCTIONS: Final = frozenset({
    "version", "current_setting", "set_config", "current_schemas", "to_regclass", "to_regtype", "format_type",
    "quote_ident", "quote_literal", "inet_server_addr", "inet_client_addr", "inet_server_port", "obj_description",
    "col_description", "shobj_description", "txid_current", "to_regnamespace", "to_regproc", "getdatabaseencoding",
})  # fmt: skip


#: Functions that queries of users may call with constants, also next to their tables.
INLINED: Final = frozenset({
    *SESSION_FUNCTIONS - {"quote_ident", "quote_literal"}, "pg_backend_pid", "pg_char_to_encoding",
    "pg_client_encoding", "pg_conf_load_time", "pg_database_size", "pg_encoding_to_char", "pg_function_is_visible",
    "pg_get_constraintdef", "pg_get_expr", "pg_get_function_arguments", "pg_get_function_identity_arguments",
    "pg_get_function_result", "pg_get_functiondef", "pg_get_indexdef", "pg_get_userbyid", "pg_get_viewdef",
    "pg_has_role", "pg_indexes_size", "pg_is_in_recovery", "pg_my_temp_schema", "pg_postmaster_start_time",
    "pg_relation_size", "pg_size_pretty", "pg_table_is_visible", "pg_table_size", "pg_tablespace_size",
    "pg_total_relation_size", "pg_type_is_visible", "to_regrole",
    *(f"has_{what}_privilege" for what in ("table", "column", "any_column", *_OTHERS)),
})  # fmt: skip


def definitions() -> list[str]:
    """DuckDB's statements that create the macros. The tables must exist."""
    cases = " ".join(f"WHEN '{name}' THEN '{sql}'" for name, sql in _SQL_NAMES.items())
    digits = "CASE WHEN m > 4 THEN '(' || ((m - 4) >> 16) || ',' || ((m - 4) & 65535) || ')' ELSE '' END"
    length = "CASE WHEN m > 4 THEN '(' || (m - 4) || ')' ELSE '' END"
    precision = "CASE WHEN m >= 0 THEN '(' || m || ')' ELSE '' END"
    lengthy = " ".join(f"WHEN '{name}' THEN '{_SQL_NAMES[name]}' || {length}" for name in ("varchar", "bpchar"))
    timed = " ".join(
        f"WHEN '{name}' THEN regexp_replace('{_SQL_NAMES[name]}', ' ', {precision} || ' ')"
        for name in ("time", "timestamp", "timestamptz")
    )
    numeric = f"WHEN 'numeric' THEN 'numeric' || {digits}"
    spans = " ".join(f"WHEN {mask} THEN ' {fields}'" for fields, mask in INTERVAL_FIELDS.items())
    seconds = "CASE WHEN m >= 0 AND m & 65535 <> 65535 THEN '(' || (m & 65535) || ')' ELSE '' END"
    interval = f"WHEN 'interval' THEN 'interval' || CASE m >> 16 {spans} ELSE '' END || {seconds}"
    made = [f"CREATE MACRO sql_name(n, m) AS CASE n {numeric} {interval} {lengthy} {timed} {cases} ELSE n END"]
    macros = {**_MACROS, **_PRIVILEGE_MACROS}
    made += [f"CREATE MACRO {head} AS {body}" for head, body in sorted(macros.items(), key=lambda m: _rank(m[0]))]
    return [*made, *_privilege_definitions()]


def _privilege_definitions() -> list[str]:
    """The statements that create the functions about privileges (has_table_privilege …)."""
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


def _rank(head: str) -> int:
    """A sort key for macros: those that others call are first."""
    name = head.partition("(")[0]
    return _FIRST.index(name) if name in _FIRST else len(_FIRST)


#: Functions that DuckDB and PostgreSQL have in common. DuckDB's other functions may read files, or the state of this
#: process.
_OF_BOTH: Final = frozenset({
    "age", "array_agg", "array_length", "array_ndims", "array_position", "array_prepend", "array_append", "array_cat",
    "array_to_string", "bit_length", "bool_and", "bool_or", "btrim", "cardinality", "ceiling", "char_length", "chr",
    "clock_timestamp", "concat", "concat_ws", "date_part", "decode", "encode", "every", "generate_series",
    "generate_subscripts", "initcap", "json_agg", "json_array_length", "json_build_array", "json_object",
    "json_object_agg", "jsonb_build_object", "json_build_object", "length", "lower", "ltrim", "make_date", "now",
    "nullif",
    "octet_length", "overlay", "parse_ident", "pg_typeof", "regexp_matches", "regexp_match", "regexp_replace",
    "regexp_split_to_array", "repeat", "replace", "reverse", "row", "row_to_json", "rtrim", "split_part",
    "starts_with", "statement_timestamp", "string_to_array", "strpos", "substr", "to_char", "to_hex", "to_json",
    "to_jsonb", "transaction_timestamp", "translate", "trunc", "unnest", "upper",
})  # fmt: skip


def _named() -> frozenset[str]:
    heads = [*_MACROS, *_PRIVILEGE_MACROS, *(d.removeprefix("CREATE MACRO ") for d in _privilege_definitions())]
    return _OF_BOTH | {head.partition("(")[0] for head in heads}


#: The functions that queries of the catalog may call, and those in FROM.
CALLED: Final = _named()
CALLED_IN_FROM: Final = frozenset(
    {"generate_series", "generate_subscripts", "unnest", "_pg_expandarray", "pg_get_keywords"}
)


def is_catalog_table(name: str) -> bool:
    """Whether a name without a schema is a table of pg_catalog."""
    return ("pg_catalog", name.lower()) in SHAPES


#: The text of an array of plain texts.
ELEMENTS: Final = re.compile(r"\{([\w.,-]*)\}")
#: Functions of the rows of a column and of its type, by the values of the column and of the type below a domain.
TRUE_TYPES: Final = {"_pg_truetypid": ("atttypid", "typbasetype"), "_pg_truetypmod": ("atttypmod", "typtypmod")}


def true_type(call: exp.Anonymous) -> exp.Expression:
    """A call of one of `TRUE_TYPES` with two rows, for DuckDB."""
    column, kind = (exp.to_identifier(a.table, quoted=True).sql("duckdb") for a in call.expressions)
    own, based = TRUE_TYPES[str(call.this).lower()]
    sql = f"CASE WHEN {kind}.typtype = 'd' THEN {kind}.{based} ELSE {column}.{own} END"
    return exp.maybe_parse(sql, dialect="duckdb")


def by_aliases(group: exp.Group) -> exp.Group:
    """GROUP BY with expressions for the aliases of the select list that are also aliases of tables: DuckDB reads these
    as rows.
    """
    select = group.parent
    assert isinstance(select, exp.Select)
    tables = {t.alias_or_name for t in select.find_all(exp.Table)}
    known = {p.alias: p.this for p in select.selects if isinstance(p, exp.Alias) and p.alias in tables}
    listed = [known.get(e.name, e) if isinstance(e, exp.Column) and not e.table else e for e in group.expressions]
    group.set("expressions", [e.copy() for e in listed])
    return group


def contain_elements(condition: exp.In) -> None:
    """Replaces `x IN (SELECT * FROM jsonb_array_elements(y))` by a condition of DuckDB."""
    query = condition.args.get("query")
    query = query.unnest() if isinstance(query, exp.Subquery) else query
    if not isinstance(query, exp.Select) or not query.is_star or query.args.get("from_") is None:
        return
    called = query.args["from_"].this.this
    if isinstance(called, exp.Anonymous) and str(called.this).lower() == "jsonb_array_elements":
        condition.replace(exp.Anonymous(this="json_contains_", expressions=[called.expressions[0], condition.this]))
