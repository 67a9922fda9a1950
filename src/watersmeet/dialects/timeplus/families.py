"""The names of Timeplus' functions by family.

Timeplus, "Functions"; names are in lower case. Functions in `OWN` are bound by `expressions`, under names with the
prefix `$`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_CONVERTED: Final = (
    "int8 int16 int32 int int64 uint8 uint16 uint32 uint uint64 int128 float32 float float64 bool date date32 datetime "
    "datetime64 decimal32 decimal64 decimal128 decimal"
)

#: The functions that `expressions` defines for Timeplus, by family.
FAMILIES: Final[Mapping[str, str]] = {
    "array": "array_all array_avg array_compact array_concat array_count array_cum_sum array_cum_sum_non_negative "
    "array_difference array_distinct array_dot_product array_enumerate array_enumerate_dense array_enumerate_uniq "
    "array_except array_exists array_fill array_filter array_first array_first_index array_first_or_null "
    "array_flatten array_fold array_intersect array_jaccard_index array_last array_last_index array_last_or_null "
    "array_map array_max array_min array_pop_back array_pop_front array_product array_push_back array_push_front "
    "array_reduce array_resize array_reverse array_reverse_fill array_reverse_sort array_reverse_split "
    "array_rotate_left array_rotate_right array_shift_left array_shift_right array_shingles array_slice array_sort "
    "array_split array_string_concat array_sum array_symmetric_difference array_union array_uniq array_with_constant "
    "array_zip count_equal has has_all has_any has_substr index_of range",
    "map": "map_add map_all map_apply map_cast map_contains map_contains_key_like map_contains_value_like map_exists "
    "map_extract_key_like map_extract_value_like map_filter map_from_arrays map_keys map_reverse_sort map_sort "
    "map_subtract map_values",
    "tuple": "tuple_cast tuple_concat tuple_divide tuple_divide_by_number tuple_element tuple_hamming_distance "
    "tuple_int_div tuple_int_div_by_number tuple_minus tuple_modulo tuple_modulo_by_number tuple_multiply "
    "tuple_multiply_by_number tuple_names tuple_negate tuple_plus",
    "vector": "cosine_distance dot_product l1_distance l1_norm l2_distance l2_norm l2_squared_distance "
    "l2_squared_norm linf_distance linf_norm lp_distance lp_norm",
    "json": "is_valid_json json_array_length json_extract json_extract_array json_extract_bool json_extract_float "
    "json_extract_int json_extract_keys json_extract_keys_and_values json_extract_keys_and_values_raw "
    "json_extract_raw json_extract_string json_extract_uint json_has json_length json_merge_patch json_query "
    "json_value to_json_string",
    "text": "alpha_tokens append_trailing_char_if_absent byte_hamming_distance count_matches "
    "count_matches_case_insensitive count_substrings count_substrings_case_insensitive damerau_levenshtein_distance "
    "decode_xml_component edit_distance encode_xml_component ends_with_case_insensitive ends_with_utf8 extract "
    "extract_all extract_all_groups extract_all_groups_horizontal extract_all_groups_vertical extract_groups "
    "extract_key_value_pairs first_line format format_readable_decimal_size format_readable_quantity "
    "format_readable_size format_readable_time_delta grok has_subsequence has_subsequence_case_insensitive has_token "
    "has_token_case_insensitive is_valid_ascii is_valid_utf8 left_pad left_pad_utf8 left_utf8 match "
    "multi_match_all_indices multi_match_any multi_match_any_index multi_search_all_positions "
    "multi_search_all_positions_case_insensitive multi_search_any multi_search_any_case_insensitive "
    "multi_search_first_index multi_search_first_index_case_insensitive multi_search_first_position "
    "multi_search_first_position_case_insensitive ngrams normalize_utf8_nfc parse_readable_size "
    "parse_readable_size_or_null parse_readable_size_or_zero position_case_insensitive regexp_quote_meta replace_one "
    "replace_regex replace_regexp_all replace_regexp_one right_pad right_pad_utf8 right_utf8 space split_by_non_alpha "
    "split_by_regexp split_by_string split_by_whitespace starts_with_case_insensitive starts_with_utf8 "
    "string_jaccard_index substring_index to_valid_utf8 tokens transform",
    "encoding": "base58_decode base58_encode base64_decode base64_encode base64_url_decode base64_url_encode bin "
    "bit_positions_to_array bitmask_to_array bitmask_to_list crc32 hex mac_num_to_string mac_string_to_num "
    "to_fixed_string to_string_cut_to_zero try_base64_decode try_base64_url_decode unhex uuid_num_to_string "
    "uuid_string_to_num",
    "hash": "city_hash64 half_md5 hive_hash int_hash32 int_hash64 java_hash md4 md5 murmur_hash2_32 murmur_hash2_64 "
    "murmur_hash3_128 murmur_hash3_32 murmur_hash3_64 sha1 sha224 sha256 sha384 sha512 sip_hash128 sip_hash64 "
    "xx_hash32 xx_hash64 xxh3",
    "url": "cut_fragment cut_query_string cut_query_string_and_fragment cut_to_first_significant_subdomain "
    "cut_url_parameter cut_www decode_url_component decode_url_form_component domain domain_without_www "
    "encode_url_component encode_url_form_component extract_url_parameter extract_url_parameter_names "
    "extract_url_parameters first_significant_subdomain fragment netloc path path_all path_full port protocol "
    "query_string query_string_and_fragment top_level_domain url_hierarchy url_path_hierarchy",
    "address": "ipv4_cidr_to_range ipv4_num_to_string ipv4_num_to_string_class_c ipv4_string_to_num "
    "ipv4_string_to_num_or_default ipv4_string_to_num_or_null ipv4_to_ipv6 ipv6_cidr_to_range ipv6_num_to_string "
    "ipv6_string_to_num ipv6_string_to_num_or_default ipv6_string_to_num_or_null is_ip_address_in_range "
    "is_ipv4_string is_ipv6_string to_ipv4 to_ipv4_or_default to_ipv4_or_null to_ipv6 to_ipv6_or_default "
    "to_ipv6_or_null",
    "geo": "geo_distance geohash_decode geohash_encode great_circle_angle great_circle_distance point_in_ellipses "
    "point_in_polygon",
    "time": "date_name day day_of_month day_of_week day_of_year format_datetime format_datetime_in_joda_syntax "
    "from_days_since_year_zero from_modified_julian_day from_modified_julian_day_or_null from_unix_timestamp "
    "from_unix_timestamp64_micro from_unix_timestamp64_milli from_unix_timestamp64_nano from_unix_timestamp64_second "
    "from_unix_timestamp_in_joda_syntax from_utc_timestamp hour make_datetime make_datetime64 minute month month_name "
    "parse_datetime parse_datetime64_best_effort parse_datetime64_best_effort_or_null "
    "parse_datetime64_best_effort_or_zero parse_datetime_best_effort parse_datetime_best_effort_or_null "
    "parse_datetime_best_effort_or_zero parse_datetime_in_joda_syntax parse_datetime_in_joda_syntax_or_null "
    "parse_datetime_in_joda_syntax_or_zero parse_datetime_or_null parse_datetime_or_zero quarter second time_diff "
    "time_slot time_slots timezone_of timezone_offset to_days_in_month to_days_since_year_zero to_interval_day "
    "to_interval_hour to_interval_microsecond to_interval_millisecond to_interval_minute to_interval_month "
    "to_interval_quarter to_interval_week to_interval_year to_last_day_of_month to_last_day_of_week to_microsecond "
    "to_millisecond to_modified_julian_day to_modified_julian_day_or_null to_month_num_since_epoch to_nanosecond "
    "to_relative_day_num to_relative_hour_num to_relative_minute_num to_relative_month_num to_relative_quarter_num "
    "to_relative_second_num to_relative_week_num to_relative_year_num to_start_of_iso_year to_start_of_microsecond "
    "to_start_of_millisecond to_start_of_month to_start_of_quarter to_start_of_year to_time to_timezone "
    "to_unix_timestamp64_micro to_unix_timestamp64_milli to_unix_timestamp64_nano to_unix_timestamp64_second "
    "to_utc_timestamp to_week to_year_num_since_epoch to_yyyymm to_yyyymmdd to_yyyymmddhhmmss weekday year "
    "yyyymmdd_to_date yyyymmddhhmmss_to_datetime",
    "math": "avg2 bit_count bit_hamming_distance bit_not bit_shift_left bit_shift_right bit_test bit_test_all "
    "bit_test_any count_digits e erf erfc exp10 exp2 hypot int_div_or_null int_div_or_zero int_exp10 int_exp2 "
    "is_finite is_infinite is_nan lgamma log1p log2 max2 min2 modulo_or_null modulo_or_zero positive_modulo "
    "positive_modulo_or_null round_age round_bankers round_down round_duration round_to_exp2 sigmoid sign tgamma "
    "to_decimal_string xor",
    "random": "generate_uuidv4 rand rand32 rand64 rand_bernoulli rand_binomial rand_canonical rand_exponential "
    "rand_log_normal rand_normal rand_poisson rand_uniform random_fixed_string random_printable_ascii random_string "
    "uuid",
    "null": "assume_not_null",
    "type": "to_type_name to_uuid to_uuid_or_default to_uuid_or_null to_uuid_or_zero",
    "conversion": " ".join(
        f"to_{name}_or_{what}" for name in _CONVERTED.split() for what in ("zero", "null", "default")
    ),
}

#: The names of the functions in `FAMILIES`.
OWN: Final = frozenset(name for names in FAMILIES.values() for name in names.split())
