"""As `function_cases`: dates and times, jsonb, arrays, rows and casts."""

from __future__ import annotations

CASES = r"""
# 9.8 formatting
to_char(ts, 'YYYY-MM-DD HH24:MI:SS') ⇒ character varying ⇒ 2001-02-16 20:38:40
to_char(ts, 'HH12:MI:SS AM, Dy DD Mon YY') ⇒ character varying ⇒ 08:38:40 PM, Fri 16 Feb 01
to_char(ts, 'FMMonth FMDDth') ⇒ character varying ⇒ February 16th
to_char(ts, 'MONTH MON mon DAY day DY') ⇒ character varying ⇒ FEBRUARY  FEB feb FRIDAY    friday    FRI
to_char(ts, 'Q D ID DDD IYYY IW') ⇒ character varying ⇒ 1 6 5 047 2001 07
to_char(ts, 'MS US am "year" YYYY') ⇒ character varying ⇒ 120 120000 pm year 2001
to_char(tz, 'YYYY-MM-DD') ⇒ character varying ⇒ 2001-02-16
to_char(d, 'DD.MM.YYYY') ⇒ character varying ⇒ 16.02.2001
to_date('05 Dec 2000', 'DD Mon YYYY') ⇒ date ⇒ 2000-12-05
to_date('20240229', 'YYYYMMDD') ⇒ date ⇒ 2024-02-29
to_timestamp('2001-02-16 20:38', 'YYYY-MM-DD HH24:MI') ⇒ timestamp with time zone ⇒ 2001-02-16 20:38:00+00
to_timestamp(1284352323.5) ⇒ timestamp with time zone ⇒ 2010-09-13 04:32:03.5+00
# 9.9 dates and times
DATE '2001-09-28' + 7 ⇒ date ⇒ 2001-10-05
DATE '2001-09-28' + INTERVAL '1 hour' ⇒ timestamp without time zone ⇒ 2001-09-28 01:00:00
DATE '2001-09-28' + TIME '03:00' ⇒ timestamp without time zone ⇒ 2001-09-28 03:00:00
(INTERVAL '1 day' + INTERVAL '1 hour')::varchar ⇒ character varying ⇒ 1 day 01:00:00
TIMESTAMP '2001-09-28 01:00' + INTERVAL '23 hours' ⇒ timestamp without time zone ⇒ 2001-09-29 00:00:00
TIMESTAMP '2024-01-31' + INTERVAL '1 month' ⇒ timestamp without time zone ⇒ 2024-02-29 00:00:00
TIMESTAMP '2024-03-31' - INTERVAL '1 month' ⇒ timestamp without time zone ⇒ 2024-02-29 00:00:00
DATE '1998-12-01' - INTERVAL '90' DAY ⇒ timestamp without time zone ⇒ 1998-09-02 00:00:00
DATE '1994-01-01' + INTERVAL '1' YEAR ⇒ timestamp without time zone ⇒ 1995-01-01 00:00:00
TIME '01:00' + INTERVAL '3 hours' ⇒ time ⇒ 04:00:00
(-INTERVAL '23 hours')::varchar ⇒ character varying ⇒ -23:00:00
DATE '2001-10-01' - DATE '2001-09-28' ⇒ integer ⇒ 3
DATE '2001-10-01' - 7 ⇒ date ⇒ 2001-09-24
(TIME '05:00' - TIME '03:00')::varchar ⇒ character varying ⇒ 02:00:00
(TIMESTAMP '2001-09-29 03:00' - TIMESTAMP '2001-07-27 12:00')::varchar ⇒ character varying ⇒ 63 days 15:00:00
(INTERVAL '1 second' * 900)::varchar ⇒ character varying ⇒ 00:15:00
(INTERVAL '1 day' * 21)::varchar ⇒ character varying ⇒ 21 days
(3.5 * INTERVAL '1 hour')::varchar ⇒ character varying ⇒ 03:30:00
(INTERVAL '1 hour' / 1.5)::varchar ⇒ character varying ⇒ 00:40:00
(INTERVAL '1 month' / 2)::varchar ⇒ character varying ⇒ 15 days
(INTERVAL '1 day 1 hour' * 1.5)::varchar ⇒ character varying ⇒ 1 day 13:30:00
age(TIMESTAMP '2001-04-10', TIMESTAMP '1957-06-13')::varchar ⇒ character varying ⇒ 43 years 9 mons 27 days
date_bin('15 minutes', TIMESTAMP '2001-02-16 20:38:40', TIMESTAMP '2001-02-16 20:05:00') ⇒ timestamp without time zone ⇒ 2001-02-16 20:35:00
date_bin(INTERVAL '1 hour', ts, TIMESTAMP '2001-01-01') ⇒ timestamp without time zone ⇒ 2001-02-16 20:00:00
date_part('hour', ts) ⇒ double precision ⇒ 20
date_part('second', ts) ⇒ double precision ⇒ 40.12
date_part('month', INTERVAL '2 years 3 months') ⇒ double precision ⇒ 3
date_trunc('hour', ts) ⇒ timestamp without time zone ⇒ 2001-02-16 20:00:00
date_trunc('day', tz) ⇒ timestamp with time zone ⇒ 2001-02-16 00:00:00+00
date_trunc('day', TIMESTAMPTZ '2001-02-16 20:38:40+00', 'Australia/Sydney') ⇒ timestamp with time zone ⇒ 2001-02-16 13:00:00+00
date_trunc('hour', INTERVAL '2 days 3 hours 40 minutes')::varchar ⇒ character varying ⇒ 2 days 03:00:00
date_trunc('week', ts) ⇒ timestamp without time zone ⇒ 2001-02-12 00:00:00
date_trunc('quarter', TIMESTAMP '2001-05-16') ⇒ timestamp without time zone ⇒ 2001-04-01 00:00:00
date_trunc('decade', ts) ⇒ timestamp without time zone ⇒ 2000-01-01 00:00:00
date_trunc('century', ts) ⇒ timestamp without time zone ⇒ 2001-01-01 00:00:00
date_trunc('millennium', ts) ⇒ timestamp without time zone ⇒ 2001-01-01 00:00:00
date_trunc('month', d) ⇒ timestamp without time zone ⇒ 2001-02-01 00:00:00
date_trunc('milliseconds', TIMESTAMP '2001-02-16 20:38:40.123456') ⇒ timestamp without time zone ⇒ 2001-02-16 20:38:40.123
extract(century FROM TIMESTAMP '2000-12-16 12:21:13') ⇒ numeric ⇒ 20
extract(century FROM ts) ⇒ numeric ⇒ 21
extract(day FROM ts) ⇒ numeric ⇒ 16
extract(day FROM INTERVAL '40 days 1 minute') ⇒ numeric ⇒ 40
extract(decade FROM ts) ⇒ numeric ⇒ 200
extract(dow FROM ts) ⇒ numeric ⇒ 5
extract(doy FROM ts) ⇒ numeric ⇒ 47
extract(epoch FROM TIMESTAMPTZ '2001-02-16 20:38:40.12-08') ⇒ numeric ⇒ 982384720.12
extract(epoch FROM INTERVAL '5 days 3 hours') ⇒ numeric ⇒ 442800
extract(epoch FROM TIME '01:00:00.5') ⇒ numeric ⇒ 3600.5
extract(hour FROM ts) ⇒ numeric ⇒ 20
extract(isodow FROM TIMESTAMP '2001-02-18 20:38:40') ⇒ numeric ⇒ 7
extract(isoyear FROM DATE '2006-01-01') ⇒ numeric ⇒ 2005
extract(julian FROM DATE '2006-01-01') ⇒ numeric ⇒ 2453737
extract(microseconds FROM TIME '17:12:28.5') ⇒ numeric ⇒ 28500000
extract(millennium FROM ts) ⇒ numeric ⇒ 3
extract(milliseconds FROM TIME '17:12:28.5') ⇒ numeric ⇒ 28500
extract(minute FROM ts) ⇒ numeric ⇒ 38
extract(month FROM INTERVAL '2 years 13 months') ⇒ numeric ⇒ 1
extract(quarter FROM ts) ⇒ numeric ⇒ 1
extract(second FROM ts) ⇒ numeric ⇒ 40.12
extract(week FROM DATE '2005-01-01') ⇒ numeric ⇒ 53
extract(year FROM d) ⇒ numeric ⇒ 2001
extract(timezone_hour FROM tz) ⇒ numeric ⇒ 0
extract(YEAR FROM INTERVAL '14 months') ⇒ numeric ⇒ 1
justify_days(INTERVAL '35 days')::varchar ⇒ character varying ⇒ 1 mon 5 days
justify_hours(INTERVAL '27 hours')::varchar ⇒ character varying ⇒ 1 day 03:00:00
justify_interval(INTERVAL '1 month -1 hour')::varchar ⇒ character varying ⇒ 29 days 23:00:00
make_date(2013, 7, 15) ⇒ date ⇒ 2013-07-15
make_time(8, 15, 23.5) ⇒ time ⇒ 08:15:23.5
make_timestamp(2013, 7, 15, 8, 15, 23.5) ⇒ timestamp without time zone ⇒ 2013-07-15 08:15:23.5
make_timestamptz(2013, 7, 15, 8, 15, 23.5) ⇒ timestamp with time zone ⇒ 2013-07-15 08:15:23.5+00
make_interval(1, 2, 3, 4, 5, 6, 7.5)::varchar ⇒ character varying ⇒ 1 year 2 mons 25 days 05:06:07.5
tz AT TIME ZONE 'America/Denver' ⇒ timestamp without time zone ⇒ 2001-02-16 13:38:40
ts AT TIME ZONE 'America/Denver' ⇒ timestamp with time zone ⇒ 2001-02-17 03:38:40.12+00
timezone('UTC', ts) ⇒ timestamp with time zone ⇒ 2001-02-16 20:38:40.12+00
isfinite(d) ⇒ boolean ⇒ true
(DATE '2001-02-16', DATE '2001-12-21') OVERLAPS (DATE '2001-10-30', DATE '2002-10-30') ⇒ boolean ⇒ true
(DATE '2001-02-16', INTERVAL '100 days') OVERLAPS (DATE '2001-10-30', DATE '2002-10-30') ⇒ boolean ⇒ false
(INTERVAL '-1 month 3 days 02:00')::varchar ⇒ character varying ⇒ -1 mons +3 days 02:00:00
(INTERVAL '-1 day 2 hours')::varchar ⇒ character varying ⇒ -1 days +02:00:00
(INTERVAL '1-2' YEAR TO MONTH)::varchar ⇒ character varying ⇒ 1 year 2 mons
iv::varchar ⇒ character varying ⇒ 1 mon 2 days 03:04:05
INTERVAL '1 month' = INTERVAL '30 days' ⇒ boolean ⇒ true
INTERVAL '1 day' > INTERVAL '23 hours' ⇒ boolean ⇒ true
# 9.16 json
'[{"a":"foo"},{"b":"bar"},{"c":"baz"}]'::jsonb -> 2 ⇒ jsonb ⇒ {"c":"baz"}
'[{"a":"foo"},{"b":"bar"},{"c":"baz"}]'::jsonb -> -3 ⇒ jsonb ⇒ {"a":"foo"}
j -> 'a' ⇒ jsonb ⇒ {"b":[1,"x",null]}
j -> 'zz' ⇒ jsonb ⇒ ∅
j ->> 'k' ⇒ character varying ⇒ v
j ->> 'n' ⇒ character varying ⇒ ∅
j -> 'n' ⇒ jsonb ⇒ null
j -> 'a' -> 'b' ->> 1 ⇒ character varying ⇒ x
j #> '{a,b,1}' ⇒ jsonb ⇒ "x"
j #>> '{a,b,0}' ⇒ character varying ⇒ 1
j #>> ARRAY['a', 'b', '1'] ⇒ character varying ⇒ x
j -> ('k' || '') ⇒ jsonb ⇒ "v"
'{"a":1, "b":2}'::jsonb @> '{"b":2}' ⇒ boolean ⇒ true
'{"b":2}'::jsonb <@ '{"a":1, "b":2}'::jsonb ⇒ boolean ⇒ true
j ? 'k' ⇒ boolean ⇒ true
j ? 'zz' ⇒ boolean ⇒ false
'["a", "b", "c"]'::jsonb ? 'b' ⇒ boolean ⇒ true
j ?| ARRAY['zz', 'k'] ⇒ boolean ⇒ true
j ?& ARRAY['zz', 'k'] ⇒ boolean ⇒ false
'["a", "b"]'::jsonb || '["a", "d"]'::jsonb ⇒ jsonb ⇒ ["a","b","a","d"]
'{"a": "b"}'::jsonb || '{"c": "d"}'::jsonb ⇒ jsonb ⇒ {"a":"b","c":"d"}
'{"a": "b", "c": 1}'::jsonb || '{"a": null}'::jsonb ⇒ jsonb ⇒ {"a":null,"c":1}
'1'::jsonb || '[2]'::jsonb ⇒ jsonb ⇒ [1,2]
'{"a": "b", "c": "d"}'::jsonb - 'a' ⇒ jsonb ⇒ {"c":"d"}
'["a", "b"]'::jsonb - 1 ⇒ jsonb ⇒ ["a"]
'["a", "b", "a"]'::jsonb - 'a' ⇒ jsonb ⇒ ["b"]
jsonb_typeof('-123.4'::jsonb) ⇒ character varying ⇒ number
jsonb_typeof('null'::jsonb) ⇒ character varying ⇒ null
jsonb_typeof(j -> 't') ⇒ character varying ⇒ boolean
jsonb_array_length('[1,2,{"f1":1}]'::jsonb) ⇒ integer ⇒ 3
jsonb_array_length(j -> 'a' -> 'b') ⇒ integer ⇒ 3
jsonb_extract_path(j, 'a', 'b') ⇒ jsonb ⇒ [1,"x",null]
jsonb_extract_path_text(j, 'a', 'b', '1') ⇒ character varying ⇒ x
jsonb_extract_path_text(j, s) ⇒ character varying ⇒ ∅
jsonb_build_array(1, 2, 'foo', NULL, true) ⇒ jsonb ⇒ [1,2,"foo",null,true]
jsonb_build_object('foo', 1, 'x', s) ⇒ jsonb ⇒ {"foo":1,"x":"Thomas"}
to_jsonb(s) ⇒ jsonb ⇒ "Thomas"
to_jsonb(a) ⇒ jsonb ⇒ [1,2,null]
to_jsonb(st) ⇒ jsonb ⇒ {"x":1,"y":"p"}
jsonb_strip_nulls('{"a":1,"b":null}'::jsonb) ⇒ jsonb ⇒ {"a":1}
jsonb_exists_any(j, ARRAY['zz', 'k']) ⇒ boolean ⇒ true
jsonb_exists_all(j, ARRAY['a', 'k']) ⇒ boolean ⇒ true
jsonb_exists(j, 'k') ⇒ boolean ⇒ true
(j -> 'a' -> 'b' -> 0)::int + 1 ⇒ integer ⇒ 2
(j -> 't')::boolean ⇒ boolean ⇒ true
j -> 'k' = '"v"'::jsonb ⇒ boolean ⇒ true
# 9.19 arrays
ARRAY[1, 4, 3] @> ARRAY[3, 1] ⇒ boolean ⇒ true
ARRAY[2, 2, 7] <@ ARRAY[1, 7, 4, 2, 6] ⇒ boolean ⇒ true
ARRAY[1, 4, 3] && ARRAY[2, 1] ⇒ boolean ⇒ true
ARRAY[1, 2, 3] || ARRAY[4, 5] ⇒ integer[] ⇒ {1,2,3,4,5}
3 || ARRAY[4, 5] ⇒ integer[] ⇒ {3,4,5}
ARRAY[4, 5] || 7 ⇒ integer[] ⇒ {4,5,7}
ARRAY[1, 2] = ARRAY[1, 2] ⇒ boolean ⇒ true
ARRAY[1, 2] < ARRAY[1, 3] ⇒ boolean ⇒ true
a[1] ⇒ integer ⇒ 1
a[i] ⇒ integer ⇒ 2
a[0] ⇒ integer ⇒ ∅
a[-1] ⇒ integer ⇒ ∅
a[7] ⇒ integer ⇒ ∅
a[2:3] ⇒ integer[] ⇒ {2,NULL}
a[:2] ⇒ integer[] ⇒ {1,2}
a[i:] ⇒ integer[] ⇒ {2,NULL}
a[-1:1] ⇒ integer[] ⇒ {1}
a[3:2] ⇒ integer[] ⇒ {}
array_append(ARRAY[1, 2], 3) ⇒ integer[] ⇒ {1,2,3}
array_append(a, NULL) ⇒ integer[] ⇒ {1,2,NULL,NULL}
array_prepend(1, ARRAY[2, 3]) ⇒ integer[] ⇒ {1,2,3}
array_cat(ARRAY[1, 2], ARRAY[3]) ⇒ integer[] ⇒ {1,2,3}
array_dims(ARRAY[1, 2]) ⇒ character varying ⇒ [1:2]
array_length(ARRAY[1, 2, 3], 1) ⇒ integer ⇒ 3
array_length('{}'::int[], 1) ⇒ integer ⇒ ∅
array_length(ARRAY[1, 2], 2) ⇒ integer ⇒ ∅
array_lower(ARRAY[1, 2, 3], 1) ⇒ integer ⇒ 1
array_upper(ARRAY[1, 8, 3, 7], 1) ⇒ integer ⇒ 4
array_ndims(ARRAY[ARRAY[1, 2], ARRAY[3, 4]]) ⇒ integer ⇒ 2
array_position(ARRAY['sun', 'mon', 'tue'], 'mon') ⇒ integer ⇒ 2
array_position(a, NULL) ⇒ integer ⇒ 3
array_position(a, 9) ⇒ integer ⇒ ∅
array_positions(ARRAY['A', 'A', 'B', 'A'], 'A') ⇒ integer[] ⇒ {1,2,4}
array_remove(ARRAY[1, 2, 3, 2], 2) ⇒ integer[] ⇒ {1,3}
array_remove(a, NULL) ⇒ integer[] ⇒ {1,2}
array_replace(ARRAY[1, 2, 5, 4], 5, 3) ⇒ integer[] ⇒ {1,2,3,4}
array_reverse(ARRAY[1, 2, 3]) ⇒ integer[] ⇒ {3,2,1}
array_sort(ARRAY[3, 1, 2]) ⇒ integer[] ⇒ {1,2,3}
array_sum(a) ⇒ bigint ⇒ 3
array_max(a) ⇒ integer ⇒ 2
array_min(a) ⇒ integer ⇒ 1
array_distinct(ARRAY[1, 1, 2]) ⇒ integer[] ⇒ {1,2}
array_contains(ARRAY[1, 2, 3], ARRAY[2]) ⇒ boolean ⇒ true
cardinality(a) ⇒ integer ⇒ 3
cardinality(ARRAY[ARRAY[1, 2], ARRAY[3, 4]]) ⇒ integer ⇒ 4
cardinality('{}'::int[]) ⇒ integer ⇒ 0
trim_array(ARRAY[1, 2, 3, 4, 5, 6], 2) ⇒ integer[] ⇒ {1,2,3,4}
array_to_string(ARRAY[true, false], ',') ⇒ character varying ⇒ t,f
# rows
(st).x + 1 ⇒ integer ⇒ 2
(ROW(1, 'a')).f2 ⇒ character varying ⇒ a
ROW(1, 'a') = ROW(1, 'a') ⇒ boolean ⇒ true
ROW(1, 2) < ROW(1, 3) ⇒ boolean ⇒ true
# casts
'  12 '::int ⇒ integer ⇒ 12
'1e3'::double precision ⇒ double precision ⇒ 1000
2.5::int ⇒ integer ⇒ 3
-2.5::int ⇒ integer ⇒ -3
2.5::double precision::int ⇒ integer ⇒ 2
3.5::double precision::bigint ⇒ bigint ⇒ 4
'12.5'::numeric ⇒ numeric ⇒ 12.5
1.005::numeric(10,2) ⇒ numeric(10,2) ⇒ 1.01
0::boolean ⇒ boolean ⇒ false
5::boolean ⇒ boolean ⇒ true
true::int ⇒ integer ⇒ 1
true::varchar ⇒ character varying ⇒ true
'yes'::boolean ⇒ boolean ⇒ true
1.50::varchar ⇒ character varying ⇒ 1.5
100::numeric::varchar ⇒ character varying ⇒ 100
1e16::double precision::varchar ⇒ character varying ⇒ 1e+16
0.1::double precision::varchar ⇒ character varying ⇒ 0.1
'NaN'::double precision::varchar ⇒ character varying ⇒ NaN
'-Infinity'::real::varchar ⇒ character varying ⇒ -Infinity
ts::varchar ⇒ character varying ⇒ 2001-02-16 20:38:40.12
tz::varchar ⇒ character varying ⇒ 2001-02-16 20:38:40+00
d::varchar ⇒ character varying ⇒ 2001-02-16
tm::varchar ⇒ character varying ⇒ 20:38:40
ts::date ⇒ date ⇒ 2001-02-16
ts::time ⇒ time ⇒ 20:38:40.12
d::timestamp ⇒ timestamp without time zone ⇒ 2001-02-16 00:00:00
'2024-02-29'::date ⇒ date ⇒ 2024-02-29
'12:30'::time ⇒ time ⇒ 12:30:00
'{1,2,NULL}'::int[] ⇒ integer[] ⇒ {1,2,NULL}
'{"a b",c}'::varchar[] ⇒ character varying[] ⇒ {a b,c}
ARRAY[1, 2]::bigint[] ⇒ bigint[] ⇒ {1,2}
a::varchar ⇒ character varying ⇒ {1,2,NULL}
ARRAY['a b', 'c', '', NULL, 'x"y']::varchar ⇒ character varying ⇒ {"a b",c,"",NULL,"x\"y"}
ARRAY[ARRAY[1, 2], ARRAY[3]]::varchar ⇒ character varying ⇒ {{1,2},{3}}
st::varchar ⇒ character varying ⇒ (1,p)
ROW(1, NULL, 'a b')::varchar ⇒ character varying ⇒ (1,,"a b")
j::varchar = '1' ⇒ boolean ⇒ false
'"x"'::jsonb::varchar ⇒ character varying ⇒ "x"
by::varchar ⇒ character varying ⇒ \x1234
'abc'::varchar::bytea ⇒ bytea ⇒ \x616263
CAST('5' AS smallint) ⇒ smallint ⇒ 5
# found by comparing with a server of PostgreSQL 18
1_000 + 0x1F ⇒ integer ⇒ 1031
(i, 'x') ⇒ struct<f1 integer, f2 character varying> ⇒ (2,x)
a || NULL ⇒ integer[] ⇒ {1,2,NULL}
a::varchar[] ⇒ character varying[] ⇒ {1,2,NULL}
ARRAY[ARRAY['1', NULL]]::int[][] ⇒ integer[][] ⇒ {{1,NULL}}
iv::time ⇒ time ⇒ 03:04:05
quote_literal(concat(s, '\b''')) ⇒ character varying ⇒ E'Thomas\\b'''
format('|%10s|%-4s|%4s|', s, i, z) ⇒ character varying ⇒ |    Thomas|2   |    |
concat(' ', 'oFF ')::boolean ⇒ boolean ⇒ false
concat('yes')::boolean ⇒ boolean ⇒ true
(INTERVAL 'P1Y2M3DT4H5M6.5S')::varchar ⇒ character varying ⇒ 1 year 2 mons 3 days 04:05:06.5
(concat('P1Y2M3DT4H5M6S')::interval)::varchar ⇒ character varying ⇒ 1 year 2 mons 3 days 04:05:06
(concat('PT36H')::interval)::varchar ⇒ character varying ⇒ 36:00:00
(concat('P2W')::interval)::varchar ⇒ character varying ⇒ 14 days
(concat('P0001-02-03T04:05:06')::interval)::varchar ⇒ character varying ⇒ 1 year 2 mons 3 days 04:05:06
(concat('-1-2')::interval)::varchar ⇒ character varying ⇒ -1 years -2 mons
(concat('1 12:59:10')::interval)::varchar ⇒ character varying ⇒ 1 day 12:59:10
"""
