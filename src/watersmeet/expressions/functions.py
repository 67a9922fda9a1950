"""Binds functions, and expressions on texts with special syntax: LIKE, SUBSTRING, `->`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any, Final

from sqlglot import exp

from watersmeet.errors import did_you_mean
from watersmeet.expressions import jsonfunctions, nestedfunctions, regexpatterns, textfunctions
from watersmeet.expressions.arrayfunctions import LIST_FUNCTIONS
from watersmeet.expressions.calls import (
    Builder,
    FunctionCall,
    at_least,
    by_duckdb,
    constant_of,
    constant_text,
    counted,
    inserted,
    limited,
    refuse_volatile,
)
from watersmeet.expressions.casts import cast, unify
from watersmeet.expressions.clock import check_duckdb
from watersmeet.expressions.context import (
    Context,
    Value,
    blank_padded,
    boolean,
    call,
    duckdb_cast,
    fill,
    string,
    wrap,
)
from watersmeet.expressions.conversions import CONVERSIONS
from watersmeet.expressions.createdtypes import ENUM_FUNCTIONS
from watersmeet.expressions.createdtypes import INSERTED as INSERTED_CASTS
from watersmeet.expressions.datefunctions import DATE_FUNCTIONS
from watersmeet.expressions.documents import DOCUMENT_FUNCTIONS
from watersmeet.expressions.jsonfunctions import (
    JSON_FUNCTIONS,
    json_element,
    json_extract,
    walked,
    walked_array,
    without_path,
)
from watersmeet.expressions.lenient import LENIENT_FUNCTIONS
from watersmeet.expressions.logparsing import LOG_FUNCTIONS
from watersmeet.expressions.mathfunctions import MATH_FUNCTIONS
from watersmeet.expressions.nestedfunctions import ARRAY_FUNCTIONS, MAP_FUNCTIONS
from watersmeet.expressions.operators import no_operator, quantified
from watersmeet.expressions.recordfunctions import RECORD_FUNCTIONS
from watersmeet.expressions.setfunctions import is_set_function, set_function
from watersmeet.expressions.sqljsonpaths import PATH_FUNCTIONS
from watersmeet.expressions.textfunctions import IN_PYTHON, REGEX_FUNCTIONS, TEXT_FUNCTIONS, VERSION
from watersmeet.expressions.timetexts import TIME_FUNCTIONS
from watersmeet.expressions.webfunctions import DIGESTS, WEB_FUNCTIONS
from watersmeet.values.types import BIGINT, BOOLEAN, DOUBLE, INTEGER, JSON, JSONB, VARCHAR, SqlType

#: The functions of DuckDB that must not be callable.
_FORBIDDEN: Final = frozenset({
    "currval", "error", "getvariable", "nextval", "setseed", "sleep_ms", "stats", "write_log",
    "current_connection_id", "current_query_id", "current_transaction_id", "txid_current", "in_search_path",
    "current_setting", "getenv", "remap_struct", "can_cast_implicitly", "create_sort_key",
    # functions of DuckDB's own catalog
    "col_description", "current_schemas", "format_pg_type", "format_type", "map_to_pg_oid", "obj_description",
    "shobj_description",
})  # fmt: skip

_FORBIDDEN_PREFIXES: Final = ("pg_", "has_", "inet_", "duckdb_", "__internal", "icu_", "watersmeet_")

#: The functions whose value does not depend only on their arguments.
_VOLATILE: Final = frozenset({
    "clock_timestamp", "current_date", "current_time", "current_timestamp", "gen_random_uuid", "localtime",
    "localtimestamp", "now", "proctime", "random", "statement_timestamp", "today", "transaction_timestamp", "uuid",
    "uuidv4", "uuidv7", "setseed", "pg_backend_pid", "current_user", "session_user", "user",
    "current_database", "current_schema", "current_role", "current_catalog",
})  # fmt: skip


def _sequence(c: FunctionCall) -> Value:
    """A call of a function of sequences, in which `database.sessions.sequences` has put the id of the sequence.

    Another argument of the others differs in each row, so that DuckDB calls the function for each.
    """
    if c.name == "setval":
        called = c.cast(2, BOOLEAN).expression if len(c.arguments) > 2 else exp.true()
        given = [c.arguments[0].expression, c.cast(1, BIGINT).expression, called]
    else:
        given = [*(a.expression for a in c.arguments), call("random")]
    return Value(call(f"watersmeet_{c.name}", *given), BIGINT)


#: Functions that grammars insert.
_INSERTED: Final = {
    **inserted({**LIST_FUNCTIONS, **WEB_FUNCTIONS, **DOCUMENT_FUNCTIONS, **CONVERSIONS}),
    **LENIENT_FUNCTIONS,
    **LOG_FUNCTIONS,
    **RECORD_FUNCTIONS,
    **TIME_FUNCTIONS,
    **inserted({**dict.fromkeys(("nextval", "currval", "setval", "lastval"), _sequence), **INSERTED_CASTS}),
}

_FILLING: Final = "Write it in FROM: GAP_FILL(relation, time, INTERVAL '1 minute', LOCF(column), INTERPOLATE(column))."
_AGGREGATE: Final = "Write it in Python: CREATE AGGREGATE FUNCTION."
_OF_VECTORS: Final = "Store vectors as real[]: list_distance, list_cosine_distance and list_inner_product take arrays."

_HASHES: Final = "city_hash64(x), xx_hash64(x), sip_hash64(x) and murmur_hash3_64(x) are supported."
_IN_PYTHON: Final = "Write it in Python: CREATE FUNCTION."
_IN_PLACES: Final = (
    "Write it in Python, with a library for it: CREATE FUNCTION. point_in_polygon, geohash_encode and geo_distance "
    "are supported."
)
_OF_38_DIGITS: Final = "Numbers have at most 38 digits: to_decimal128(x, scale)."
_OF_SETS: Final = "Keep an array: group_uniq_array(x), array_union(a, b), array_intersect(a, b), length(a)."

#: The beginnings of names of functions that do not exist here, by the way round.
_LACKING_FAMILIES: Final = {
    _IN_PLACES: (
        "area_ geo_to_ geohashes_ h3_ mgrs_to_ mvt_ perimeter_ polygon_ polygons_ read_wkb read_wkt s2_ string_to_h3 "
        "svg utm_to_ wkb wkt"
    ),
    _OF_SETS: "bitmap_ numeric_indexed_vector_ sub_bitmap",
    "string_jaccard_index(a, b) and edit_distance(a, b) compare texts; ngrams(text, n) splits one.":
        "multi_fuzzy_ ngram_ sparse_grams word_shingle_",
    "Cast the value: x::int; hex(x) shows bytes.": "reinterpret reinterpret_as_",
    "quantile(level)(x) and quantile_exact(level)(x) are exact.": "median_ quantile_ quantiles_",
    _AGGREGATE: "group_array_ time_series_",
    "Call a model from a function in Python: CREATE FUNCTION.": "ai_ naive_bayes_",
    "It describes a server of the vendor, and has no counterpart.":
        "address_to_ filesystem_ finalize_aggregation initialize_aggregation low_cardinality_ region_ transaction_",
    "json_extract_keys_and_values_raw(document) lists the keys and values of a document.":
        "dynamic_ json_all_ json_dynamic_ json_shared_data_ variant_",
    "first_significant_subdomain(url) and cut_to_first_significant_subdomain(url) are supported.":
        "cut_to_first_significant_subdomain_ first_significant_subdomain_",
    "bit_shift_right(id, 22) is the number of milliseconds.":
        "datetime64_to_snowflake datetime_to_snowflake snowflake_id_ snowflake_to_",
    _OF_38_DIGITS: "to_bfloat16_ to_decimal256_ to_int256_ to_uint128_ to_uint256_",
    "Write it as an operator: x IN (…), x NOT IN (…).":
        "global_in global_not_in in_ignore_set not_in not_null_in null_in",
    "has_token(text, word) and multi_search_any(text, words) are supported.":
        "has_all_token has_any_token has_phrase has_token_",
    _IN_PYTHON: "color_ get_type_ kql_ parse_query_ structure_to_",
}  # fmt: skip

#: The names of functions of vendors that do not exist here, by the way round.
_LACKING_BY_HINT: Final = {
    _OF_VECTORS: "cosine_distance inner_product l1_distance l2_distance l2_normalize vector_norm",
    _HASHES: (
        "farm_fingerprint64 farm_hash64 gcc_murmur_hash iceberg_hash java_hash_utf16_le jump_consistent_hash "
        "kafka_murmur_hash keccak256 kostik_consistent_hash metro_hash64 ripemd160 sha512_256 sip_hash128_keyed "
        "sip_hash128_reference sip_hash64_keyed url_hash weak_hash32 wy_hash64 xxh3_128 yandex_consistent_hash"
    ),
    "Its types are those of whole numbers, floats, dates and times, bool, uuid and string.": "random_in_type",
    _AGGREGATE: (
        "agg_throw analysis_of_variance anova any_heavy arg_and_max arg_and_min categorical_information_value "
        "contingency corr_matrix covar_pop_matrix covar_samp_matrix cramers_v cramers_v_bias_corrected delta_sum "
        "distinct_json_paths estimate_compression_ratio exponential_time_decayed_avg exponential_time_decayed_count "
        "exponential_time_decayed_max exponential_time_decayed_sum flame_graph gini group_array_insert_at "
        "group_array_intersect group_array_sample group_bitmap_and group_bitmap_or group_bitmap_xor group_format "
        "hierarchical_k_means interval_length_sum kolmogorov_smirnov_test largest_triangle_three_buckets lttb "
        "mann_whitney_u_test max_intersections max_intersections_position max_mapped_arrays mean_z_test "
        "merged_json_patch min_mapped_arrays non_negative_derivative rank_corr sequence_match_events "
        "sequence_next_node spark_bar sparkbar student_t_test student_t_test_one_sample "
        "sum_map_filtered sum_map_filtered_with_overflow "
        "sum_mapped_arrays theils_u top_k_weighted welch_t_test"
    ),
    "top_k(x, k) is exact.": "approx_top_count approx_top_k approx_top_sum",
    "Rows have no blocks: write row_number() or lag(x) OVER (ORDER BY …).": (
        "block_number block_size is_constant row_number_in_all_blocks row_number_in_block running_accumulate "
        "running_difference running_difference_starting_with_first_value"
    ),
    "rand(), rand_uniform(a, b), rand_normal(a, b) and random_string(n) are supported.": (
        "array_partial_shuffle array_random_sample array_shuffle fuzz_bits fuzz_query generate_random_structure "
        "rand_chi_squared rand_constant rand_fisher_f rand_negative_binomial rand_student_t random_string_utf8"
    ),
    "The page of metrics and SHOW JOBS describe the process.": (
        "build_id get_os_kernel_version get_server_port revision running_concurrency server_uuid shard_count shard_num "
        "tcp_port uptime zookeeper_session_uptime"
    ),
    "SHOW QUERIES lists running queries with their ids.":
        "connection_id current_query_id initial_query_id query_id",
    "SHOW ALL lists settings.": (
        "current_profiles default_profiles enabled_profiles get_macro get_server_setting get_setting "
        "get_setting_or_default global_variable"
    ),
    "SHOW GRANTS lists rights.": "current_roles default_roles enabled_roles",
    "CAST('text' AS int) fails; CHECK of a table refuses rows.": "error_code_to_name throw_if",
    "SELECT it from information_schema.columns.": "get_size_of_enum_type has_column_in_table",
    "length(to_string(x)) is the size of its text; SHOW MEMORY shows sizes.":
        "block_serialized_size byte_size dump_column_structure visible_width",
    _OF_38_DIGITS: "to_bfloat16 to_decimal256 to_int256 to_uint256",
    "Times have microseconds: add_microseconds(t, n).":
        "add_nanoseconds subtract_nanoseconds to_interval_nanosecond to_start_of_nanosecond",
    "Write make_datetime(year, month, day, hour, minute, second).":
        "change_day change_hour change_minute change_month change_second change_year",
    "Write year(d) * 100 + to_week(d).": "to_time_with_fixed_date to_year_week",
    "Add intervals to a time: t + INTERVAL 1 DAY + INTERVAL 2 HOUR.": (
        "add_interval add_tuple_of_intervals parse_iso8601_duration parse_time_delta subtract_interval "
        "subtract_tuple_of_intervals to_interval"
    ),
    "parse_datetime(text, format) reads a time by its format.": (
        "parse_datetime64 parse_datetime64_best_effort_us parse_datetime64_in_joda_syntax parse_datetime64_or_null "
        "parse_datetime64_or_zero parse_datetime_best_effort_us"
    ),
    "Cast the result of a / b or a * b: ::decimal(38, 10).": "divide_decimal multiply_decimal",
    _IN_PYTHON: (
        "aes_decrypt_mysql aes_encrypt_mysql array_auc array_aucpr array_autocorrelation array_bottom_k "
        "array_enumerate_dense_ranked array_enumerate_uniq_ranked array_levenshtein_distance array_normalized_gini "
        "array_reduce_in_ranges array_rocauc array_similarity array_top_k array_transpose array_zip_unaligned "
        "base32_decode base32_encode basename bit_rotate_left bit_rotate_right bit_slice byte_swap case_fold_utf8 "
        "compare_substrings conv convert_charset crc32_ieee crc64 cut_ipv6 date_time_to_snowflake_id demangle digits "
        "edit_distance_utf8 eval_ml_method extract_key_value_pairs_with_escaping extract_text_from_html "
        "financial_internal_rate_of_return financial_internal_rate_of_return_extended financial_net_present_value "
        "financial_net_present_value_extended first_non_default flatten_tuple format_query format_row "
        "generate_snowflake_id generate_uuidv7 hilbert_decode hilbert_encode is_decimal_overflow is_nullable is_prime "
        "is_probable_prime l1_normalize levenshtein_distance_utf8 linf_normalize log_trace lp_normalize "
        "mac_string_to_oui map_partial_reverse_sort map_populate_series midpoint morton_decode morton_encode "
        "natural_sort_key normalize_query normalize_utf8_nfd normalize_utf8_nfkc normalize_utf8_nfkc_casefold "
        "normalize_utf8_nfkd normalized_query_hash obfuscate_query overlay_utf8 pretty_print_json regexp_position "
        "remove_diacritics_utf8 reverse_by_separator series_decompose_stl series_outliers_detect_tukey "
        "series_period_detect_fft soundex sqid_decode sqid_encode string_bytes_entropy string_bytes_uniq "
        "string_jaccard_index_utf8 translate_utf8 try_base32_decode try_base58_decode try_decrypt "
        "tuple_int_div_or_zero tuple_int_div_or_zero_by_number tuple_positive_modulo_by_number "
        "tuple_to_name_value_pairs"
    ),
    "Join the stream, or call dict_get.": "join_get join_get_or_null",
    "Train the model outside, and call it as a function in Python: CREATE FUNCTION.":
        "stochastic_linear_regression_state stochastic_logistic_regression",
    "It can only be an item of a select list. Name the columns here.": "columns",
    "Write SELECT DISTINCT x, or group_uniq_array(x).": "distinct",
    "EMIT PERIODIC sets how often a query outputs rows.": "sleep",
    "It can only be an item of a select list. Write t.1, t.2 … here.": "untuple",
    "SHOW GRANTS lists rights; clients of the server may call it.":
        "has_any_column_privilege has_function_privilege has_schema_privilege has_table_privilege",
    "SHOW CREATE shows definitions; clients of the server may call it.":
        "pg_get_functiondef pg_get_keywords pg_get_viewdef pg_index_column_has_property",
    "SHOW JOBS and SHOW MEMORY show sizes.":
        "pg_indexes_size pg_relation_size pg_stat_get_numscans pg_table_size",
    "A database is a directory or a URL; SHOW JOBS shows whether its views are running.":
        "pg_is_in_recovery rw_cluster_id rw_recovery_status",
    _FILLING: "gap_fill interpolate keepnull locf",
    "Write the number into a column when the row is inserted: a DEFAULT of a table can call nextval.":
        "currval lastval nextval pg_get_serial_sequence setval",
    "jsonb_path_exists and jsonb_path_query_first take the path of a jsonb.": "json_exists json_query",
    "Write SET name = value.": "set_config",
    "Call the service outside of the database, or from CREATE FUNCTION … LANGUAGE python.": "openai_embedding",
}  # fmt: skip

_LACKING: Final = {name: hint for hint, names in _LACKING_BY_HINT.items() for name in names.split()}
_LACKING_STARTS: Final = {start: hint for hint, starts in _LACKING_FAMILIES.items() for start in starts.split()}

#: The aggregate functions that have another name in DuckDB, and those for which DuckDB need not be asked.
_AGGREGATES: Final = frozenset({
    "approx_percentile", "avg", "count", "every", "first_value", "json_agg", "json_object_agg", "jsonb_agg",
    "jsonb_object_agg", "last_value", "max", "min", "percentile_cont", "percentile_disc", "sum",
})  # fmt: skip


def function(c: FunctionCall) -> Value:
    """The value of a call. Raises UNDEFINED_FUNCTION or DATATYPE_MISMATCH."""
    name = c.name
    check_function(name, c.node, c.ctx)
    if is_set_function(name):
        return c.ctx.rows_of(name, lambda: set_function(c), c.node)
    if name in _INSERTED:
        return _INSERTED[name](c)
    if name in _VOLATILE or c.ctx.oracle.functions().get(name, ("", ""))[1] not in ("", "CONSISTENT"):
        refuse_volatile(c)
    if name in _WITH_BLANKS:
        c = c.over([blank_padded(a) for a in c.arguments])
    if name in _SPECIAL:
        return _SPECIAL[name](c)
    if (hint := _way_round(name, c.ctx)) is not None:
        raise c.not_supported(f"the function {name}", hint=hint)
    check_duckdb(name, c.arguments, c.ctx, c.node)
    return by_duckdb(c.over(_resized(c.arguments)) if name in ("array_resize", "list_resize") else c)


#: The functions that see the blanks of `char(n)`; for others its values are texts without them.
_WITH_BLANKS: Final = frozenset({
    "bit_length", "concat", "concat_ws", "format", "json_build_array", "json_build_object", "jsonb_build_array",
    "jsonb_build_object", "octet_length", "to_json", "to_jsonb",
})  # fmt: skip


def _way_round(name: str, ctx: Context) -> str | None:
    """The hint for a function of vendors that does not exist here; None for other names."""
    if name in _LACKING:
        return _LACKING[name]
    if name in ctx.oracle.functions():
        return None
    return next((hint for start, hint in _LACKING_STARTS.items() if name.startswith(start)), None)


def is_function(name: str, ctx: Context) -> bool:
    """True for the name of a scalar function that can be called."""
    if name in _FORBIDDEN or name.startswith(_FORBIDDEN_PREFIXES) or name in _INSERTED:
        return False
    return name in _SPECIAL or ctx.oracle.functions().get(name, ("", ""))[0] in ("scalar", "macro")


def check_function(name: str, node: exp.Expression, ctx: Context) -> None:
    """Raises UNDEFINED_FUNCTION unless a scalar function has that name; the arguments may be unknown."""
    if name not in _LACKING and name not in _SPECIAL and (name in _FORBIDDEN or name.startswith(_FORBIDDEN_PREFIXES)):
        raise _undefined(name, node, ctx)
    if is_set_function(name) or name in _INSERTED or name in _SPECIAL or _way_round(name, ctx) is not None:
        return
    if ctx.oracle.functions().get(name, ("", ""))[0] not in ("scalar", "macro"):
        raise _undefined(name, node, ctx)


def is_aggregate(name: str, ctx: Context) -> bool:
    """True for the name of an aggregate function."""
    return name in _AGGREGATES or ctx.oracle.functions().get(name, ("", ""))[0] == "aggregate"


#: The hint for `if(…)`, which RisingWave lacks.
IF_HINT: Final = "Write CASE WHEN condition THEN value ELSE other END."


def _undefined(name: str, node: exp.Expression, ctx: Context) -> Exception:
    scalars = [n for n, (kind, _) in ctx.oracle.functions().items() if kind in ("scalar", "macro", "aggregate")]
    names = {*scalars, *_SPECIAL} - _FORBIDDEN
    words = [n for n in names if n.replace("_", "").isalnum() and not n.startswith(_FORBIDDEN_PREFIXES)]
    hint = IF_HINT if name == "if" else did_you_mean(name, words, nearness=0.7)
    return ctx.error("UNDEFINED_FUNCTION", f"function {name} does not exist", node, hint=hint)


def _coalesce(c: FunctionCall) -> Value:
    values, kind = unify(c.arguments, c.nodes, c.ctx, "COALESCE")
    first, *others = [v.expression for v in values]
    return Value(exp.Coalesce(this=first, expressions=others), kind, all(v.nullable for v in values))


def _resized(arguments: Sequence[Value]) -> Sequence[Value]:
    """The arguments of a function that returns an array with the length of its second argument.

    If the length is too large, the array also becomes NULL, because DuckDB would return an empty array for a NULL
    length.
    """
    if len(arguments) < 2 or arguments[1].unknown:
        return arguments
    array, count = arguments[0].finish().expression, arguments[1]
    limit = limited("CAST(a0 AS BIGINT) * 8", "a0")
    number = fill(limit, count.expression)
    checked = f"({limit})".replace("a0", "a1")
    whole = fill(f"CASE WHEN a1 IS NULL OR {checked} IS NOT NULL THEN a0 END", array, count.expression)
    return [replace(arguments[0], expression=whole), replace(count, expression=number), *arguments[2:]]


def _typeof(c: FunctionCall) -> Value:
    """The name of the type of an argument (PostgreSQL 17, pg_typeof)."""
    value = c.arguments[0]
    name = "unknown" if value.unknown else "record" if value.type.name == "struct" else value.type.sql
    name = "character" if value.type.padding else name
    return Value(string(name), VARCHAR, nullable=False)


def _nullif(c: FunctionCall) -> Value:
    one, other = c.arguments
    if one.unknown and not other.unknown:
        one = c.cast(0, other.type)
    values, _ = unify([one, other], c.nodes, c.ctx, "NULLIF")
    first = values[0].finish() if one.unknown else one.finish()
    condition = exp.EQ(this=wrap(values[0].expression), expression=wrap(values[1].expression))
    whole = exp.Case(ifs=[exp.If(this=condition, true=exp.null())], default=first.expression)
    return Value(exp.Paren(this=whole), first.type)


def _populate_map(c: FunctionCall) -> Value:
    """The entries of a map and of a JSON object, which has precedence (RisingWave, jsonb_populate_map)."""
    given, document = c.arguments[0], c.cast(1, JSONB)
    if given.type.name != "map":
        raise c.mismatch("It takes a map and a jsonb.")
    read = jsonfunctions.read_as(document, given.type, c.ctx, c.node)
    return MAP_FUNCTIONS["map_cat"](c.over([given, read]))


def _nulls(c: FunctionCall) -> Value:
    wanted = "NULL" if c.name == "num_nulls" else "NOT NULL"
    parts = [fill(f"CASE WHEN a0 IS {wanted} THEN 1 ELSE 0 END", a.expression) for a in c.arguments]
    total = reduce(lambda a, b: exp.Add(this=a, expression=b), parts)
    return Value(duckdb_cast(total, INTEGER), INTEGER, nullable=False)


#: The roles of a session, which a batch query reads when it runs (`with_roles`), by function.
_ROLES: Final = {
    **dict.fromkeys(("current_user", "current_role", "user"), "current role"),
    "session_user": "session role",
}


def _role(c: FunctionCall) -> Value:
    return Value(duckdb_cast(call("getvariable", string(_ROLES[c.name])), VARCHAR), VARCHAR, nullable=False)


#: Quoted texts and names, and what `_role` writes.
_READ_ROLE: Final = re.compile(
    r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|getvariable\('(current|session) role'\)""", re.IGNORECASE
)


def with_roles(sql: str, current: str, session: str) -> str:
    """DuckDB's SQL with the names of the roles in the places of their functions."""
    names = {"current": current, "session": session}
    return _READ_ROLE.sub(lambda m: string(names[m[1]]).sql(dialect="duckdb") if m[1] else m[0], sql)


#: The functions that a call with VARIADIC of an array calls instead.
_OF_AN_ARRAY: Final = {
    "concat": "array_to_string", "concat_ws": "array_to_string", "jsonb_build_array": "to_jsonb",
    "jsonb_build_object": "jsonb_object", "jsonb_extract_path": "#>", "jsonb_extract_path_text": "#>>",
}  # fmt: skip


def variadic(name: str, node: exp.Expression, ctx: Context, bind: Callable[[exp.Expression, Context], Value]) -> Value:
    """The value of `f(…, VARIADIC array)`, which calls `f` with the elements of the array."""
    *before, last = node.expressions
    array = last.this.unnest()
    written = array.this if isinstance(array, exp.Cast) else array
    if isinstance(written, exp.Array) and written.expressions:
        element = array.to.expressions[0] if isinstance(array, exp.Cast) else None
        items = [e if element is None else exp.Cast(this=e, to=element.copy()) for e in written.expressions]
        nodes = [*before, *items]
        return function(FunctionCall(name, [bind(n, ctx) for n in nodes], nodes, node, ctx))
    if name not in _OF_AN_ARRAY:
        hint = "Write the elements as arguments."
        raise ctx.not_supported(f"VARIADIC of an array that is not written as ARRAY[…] in {name}", node, hint=hint)
    values, nodes = [bind(n, ctx) for n in [*before, last.this]], [*before, last.this]
    if name.startswith("concat"):
        separator = values[0] if len(values) == 2 else Value(string(""), VARCHAR, unknown=True)
        values, nodes = [values[-1], separator], [nodes[-1], nodes[0]]
    called = _OF_AN_ARRAY[name]
    if called.startswith("#"):
        return _at_path(values[0], values[1], called, node, ctx)
    return function(FunctionCall(called, values, nodes, node, ctx))


_SPECIAL: Final[dict[str, Builder]] = {
    **dict.fromkeys(_ROLES, counted(_role, 0)),
    "version": counted(lambda _: Value(VERSION.copy(), VARCHAR, nullable=False), 0),
    **DATE_FUNCTIONS, **MATH_FUNCTIONS, **TEXT_FUNCTIONS, **REGEX_FUNCTIONS, **IN_PYTHON,
    **ARRAY_FUNCTIONS, **MAP_FUNCTIONS, **JSON_FUNCTIONS, **PATH_FUNCTIONS, **DIGESTS,
    "coalesce": at_least(_coalesce, 1), **ENUM_FUNCTIONS,
    "nullif": counted(_nullif, 2), "jsonb_populate_map": counted(_populate_map, 2),
    "pg_typeof": counted(_typeof, 1), "num_nonnulls": at_least(_nulls, 1), "num_nulls": at_least(_nulls, 1),
}  # fmt: skip

Bind = Callable[[exp.Expression, Context], Value]
Reader = Callable[[Any, Context, Bind], Value]
_TEXTS: Final = SqlType("array", element=VARCHAR)


def _as_text(node: exp.Expression, owner: exp.Expression, sign: str, ctx: Context, bind: Bind) -> Value:
    value = bind(node, ctx)
    if value.unknown:
        return cast(value, VARCHAR, ctx, owner)
    if value.type != VARCHAR:
        raise no_operator(ctx, owner, sign, value.type, VARCHAR)
    return blank_padded(value)


def _like(node: Any, ctx: Context, bind: Bind, escape: exp.Expression | None = None) -> Value:
    sign = "~~" if isinstance(node, exp.Like) else "~~*"
    text = _as_text(node.this, node, sign, ctx, bind)
    if isinstance(node.expression, (exp.Any, exp.All)):
        if isinstance(node.expression.this.unnest(), exp.Query):
            raise ctx.not_supported("LIKE ANY and LIKE ALL of a subquery", node)
        array = _text_array(bind(node.expression.this.unnest(), ctx), ctx, node)
        pattern = Value(exp.to_identifier("_e"), VARCHAR)
        each = _negated(node, _one_match(node, text, pattern, escape, ctx, bind))
        return quantified(array, each, every=isinstance(node.expression, exp.All))
    pattern = _as_text(node.expression, node, sign, ctx, bind)
    return boolean(_negated(node, _one_match(node, text, pattern, escape, ctx, bind)), text, pattern)


def _one_match(
    node: Any, text: Value, pattern: Value, escape: exp.Expression | None, ctx: Context, bind: Bind
) -> exp.Expression:
    match: exp.Expression = type(node)(this=wrap(text.expression), expression=wrap(pattern.expression))
    if escape is not None:
        return exp.Escape(this=match, expression=bind(escape, ctx).expression)
    if not pattern.expression.is_string or "\\" in pattern.expression.name:
        # a backslash is the escape character in PostgreSQL, in DuckDB only with ESCAPE
        match = exp.Escape(this=match, expression=string("\\"))
    return match


def _text_array(array: Value, ctx: Context, node: exp.Expression) -> Value:
    kind = SqlType("array", element=VARCHAR)
    if array.unknown:
        return cast(array, kind, ctx, node)
    if array.type != kind:
        raise ctx.error("DATATYPE_MISMATCH", "op ANY/ALL (array) requires array on right side", node)
    return array


def _negated(node: Any, match: exp.Expression) -> exp.Expression:
    """The match, negated for NOT LIKE and NOT ILIKE, which sqlglot may mark by a flag."""
    return exp.Not(this=exp.Paren(this=match)) if node.args.get("negate") else match


def _escape(node: Any, ctx: Context, bind: Bind) -> Value:
    if isinstance(node.this, exp.SimilarTo):
        return _similar(node.this, ctx, bind, node.expression)
    if not isinstance(node.this, (exp.Like, exp.ILike)):
        raise ctx.not_supported("ESCAPE here", node)
    return _like(node.this, ctx, bind, node.expression)


def _regexp(node: Any, ctx: Context, bind: Bind) -> Value:
    insensitive = isinstance(node, exp.RegexpILike)
    sign = "~*" if insensitive else "~"
    text = _as_text(node.this, node, sign, ctx, bind)
    pattern = _as_text(node.expression, node, sign, ctx, bind)
    return Value(textfunctions.matched(text, pattern, "i" if insensitive else "", node, ctx), BOOLEAN)


def _similar(node: Any, ctx: Context, bind: Bind, escape: exp.Expression | None = None) -> Value:
    text = _as_text(node.this, node, "SIMILAR TO", ctx, bind)
    given, sign = bind(node.expression, ctx), bind(escape or string("\\"), ctx)
    pattern = regexpatterns.similar(
        constant_text(given, "SIMILAR TO", node, ctx, example="", what="a pattern"),
        constant_text(sign, "SIMILAR TO", node, ctx, example="\\", what="an escape character"),
        node,
        ctx,
    )
    return Value(call("regexp_full_match", text.expression, pattern, string("s")), BOOLEAN)


def _of_parts(name: str, node: Any, parts: tuple[str, ...], ctx: Context, bind: Bind) -> Value:
    """A reader that calls a function with the existing parts of a node."""
    nodes = [n for part in parts if (n := node.args.get(part)) is not None]
    return function(FunctionCall(name, [bind(n, ctx) for n in nodes], nodes, node, ctx))


def _position(node: Any, ctx: Context, bind: Bind) -> Value:
    return _of_parts("strpos", node, ("this", "substr"), ctx, bind)


def _substring(node: Any, ctx: Context, bind: Bind) -> Value:
    start, length = node.args.get("start"), node.args.get("length")
    if start is None:
        start = exp.Literal.number(1)
    nodes = [n for n in (node.this, start, length) if n is not None]
    values = [bind(n, ctx) for n in nodes]
    if len(values) == 2 and (values[1].unknown or values[1].type == VARCHAR) and not values[1].is_null:
        text = _as_text(node.this, node, "SUBSTRING", ctx, bind)
        return textfunctions.substring(text, cast(values[1], VARCHAR, ctx, node), node, ctx)
    return function(FunctionCall("substring", values, nodes, node, ctx))


def _trim(node: Any, ctx: Context, bind: Bind) -> Value:
    name = {"LEADING": "ltrim", "TRAILING": "rtrim"}.get((node.args.get("position") or "").upper(), "btrim")
    return _of_parts(name, node, ("this", "expression"), ctx, bind)


def _overlay(node: Any, ctx: Context, bind: Bind) -> Value:
    return _of_parts("overlay", node, ("this", "expression", "from_", "for_"), ctx, bind)


def _called(name: str) -> Reader:
    """A reader of an operator that calls a function with its operands."""
    return lambda node, ctx, bind: _of_parts(name, node, ("this", "expression"), ctx, bind)


def _root(name: str) -> Reader:
    """A square or cube root, in double precision."""
    return lambda node, ctx, bind: function(
        FunctionCall(name, [cast(bind(node.this, ctx), DOUBLE, ctx, node)], [node.this], node, ctx)
    )


def _json(node: Any, ctx: Context, bind: Bind) -> Value:
    as_text = isinstance(node, exp.JSONExtractScalar)
    sign = "->>" if as_text else "->"
    document, key = bind(node.this, ctx), bind(node.expression, ctx)
    if document.unknown or document.type == JSON:
        document = cast(document, JSONB, ctx, node)
    if document.type != JSONB:
        raise no_operator(ctx, node, sign, document.type, key.type)
    found = json_element(document, key, text=as_text)
    if found is None:
        raise no_operator(ctx, node, sign, document.type, key.type)
    return found


def _json_path(node: Any, ctx: Context, bind: Bind) -> Value:
    as_text = isinstance(node, exp.JSONBExtractScalar)
    return _at_path(bind(node.this, ctx), bind(node.expression, ctx), "#>>" if as_text else "#>", node, ctx)


def _at_path(document: Value, path: Value, sign: str, node: exp.Expression, ctx: Context) -> Value:
    """The part of a document at a path of keys, as text if `sign` is `#>>`."""
    as_text = sign == "#>>"
    document = cast(document, JSONB, ctx, node) if document.unknown or document.type == JSON else document
    if document.type != JSONB or not (path.unknown or path.type == _TEXTS):
        raise no_operator(ctx, node, sign, document.type, path.type)
    if isinstance(path.expression, exp.Array):
        return walked(document, path.expression.expressions, text=as_text)
    keys = constant_of(path, _TEXTS, node, ctx, example=[])
    if keys is None:
        return walked_array(document, path, text=as_text)
    if None in keys:
        return Value(duckdb_cast(exp.null(), VARCHAR if as_text else JSONB), VARCHAR if as_text else JSONB)
    return json_extract(document, keys, text=as_text)


def _of_arrays(node: Any, ctx: Context, bind: Bind) -> Value:
    """`@>`, `<@` and `&&` of arrays, and the first two of jsonb."""
    left, right = bind(node.this, ctx), bind(node.expression, ctx)
    if isinstance(node, exp.ArrayContainedBy):
        left, right = right, left
    left = cast(left, right.type, ctx, node) if left.unknown else left
    right = cast(right, left.type, ctx, node) if right.unknown else right
    overlaps = isinstance(node, exp.ArrayOverlaps)
    if left.type == JSONB and not overlaps:
        return jsonfunctions.contains(left, right, ctx, node)
    if left.type.name != "array" or right.type != left.type:
        raise no_operator(ctx, node, "&&" if overlaps else "@>", left.type, right.type)
    # DuckDB ignores NULL, which is contained in no array.
    template = "list_has_any(a0, a1)" if overlaps else "list_has_all(a0, a1) AND len(a1) = list_count(a1)"
    return Value(fill(template, left.expression, right.expression), BOOLEAN)


def _without_path(node: Any, ctx: Context, bind: Bind) -> Value:
    return without_path(cast(bind(node.this, ctx), JSONB, ctx, node), bind(node.expression, ctx), ctx, node)


def _path_test(name: str) -> Reader:
    """`document @? path`, or `document @@ path`, which sqlglot reads as a search of texts."""

    def read(node: Any, ctx: Context, bind: Bind) -> Value:
        nodes = [node.this, node.expression] if node.args.get("expression") else [*node.expressions, node.this]
        return function(FunctionCall(name, [bind(n, ctx) for n in nodes], nodes, node, ctx))

    return read


def _bracket(node: Any, ctx: Context, bind: Bind) -> Value:
    value = bind(node.this, ctx)
    if value.type != JSONB or value.unknown:
        return nestedfunctions.subscript(value, node, ctx, bind)
    keys = [None if isinstance(n, exp.Slice) else bind(n, ctx) for n in node.expressions]
    return jsonfunctions.subscript(value, keys, node, ctx)


READERS: Final[dict[type, Reader]] = {
    exp.Bracket: _bracket,
    exp.Like: _like, exp.ILike: _like, exp.Escape: _escape, exp.RegexpLike: _regexp, exp.RegexpILike: _regexp,
    exp.SimilarTo: _similar, exp.StrPosition: _position, exp.Substring: _substring, exp.Trim: _trim,
    exp.Overlay: _overlay, exp.JSONExtract: _json, exp.JSONExtractScalar: _json, exp.JSONBExtract: _json_path,
    exp.JSONBExtractScalar: _json_path, exp.JSONBContainsTopKey: _called("jsonb_exists"),
    exp.JSONBContainsAnyTopKeys: _called("jsonb_exists_any"), exp.JSONBContainsAllTopKeys: _called("jsonb_exists_all"),
    exp.ArrayContainsAll: _of_arrays, exp.ArrayContainedBy: _of_arrays, exp.ArrayOverlaps: _of_arrays,
    exp.JSONBDeleteAtPath: _without_path, exp.JSONBPathExists: _path_test("jsonb_path_exists"),
    exp.MatchAgainst: _path_test("jsonb_path_match"),
    exp.Sqrt: _root("sqrt"), exp.Cbrt: _root("cbrt"), exp.StartsWith: _called("starts_with"),
}  # fmt: skip
