"""What PostgreSQL 17 gives for functions and operators: `expression ⇒ type ⇒ value`, as psql shows it (∅ is NULL).

Written from its documentation (chapter 9 and the examples in it) and from RisingWave's where that differs.
Numbers are compared as numbers. A line that starts with `#` names the section.
"""

from __future__ import annotations

#: Columns that some of the cases read: what is a constant is checked and translated when a statement is bound.
TABLE = """CREATE TABLE one (i INT, n NUMERIC, f DOUBLE PRECISION, s VARCHAR, p VARCHAR, w VARCHAR, by BYTEA, ts TIMESTAMP,
    tz TIMESTAMPTZ, d DATE, tm TIME, iv INTERVAL, j JSONB, a INT[], sa VARCHAR[], st STRUCT<x INT, y VARCHAR>, z INT)"""
ROW = r"""INSERT INTO one VALUES (2, 42.4382, -2.5, 'Thomas', 'o(.)a', '%ho%', '\x1234', '2001-02-16 20:38:40.12', '2001-02-16 20:38:40+00',
    '2001-02-16', '20:38:40', INTERVAL '1 month 2 days 03:04:05', '{"a": {"b": [1, "x", null]}, "k": "v", "n": null, "t": true}',
    ARRAY[1, 2, NULL], ARRAY['x%', 'Th%'], ROW(1, 'p'), NULL)"""

CASES = r"""
# over columns
jsonb_path_query_array(j, '$.a.b[*]') ⇒ jsonb ⇒ [1, "x", null]
jsonb_path_query_array(j, '$.a.b[*] ? (@ == 1 || @ == "x")') ⇒ jsonb ⇒ [1, "x"]
jsonb_path_query_array(j, '$.a.b[last]') ⇒ jsonb ⇒ [null]
jsonb_path_query_array(j, '$.a.b[0 to 1]') ⇒ jsonb ⇒ [1, "x"]
jsonb_path_query_array(j, '$.* ? (@ == "v" || @ == true)') ⇒ jsonb ⇒ ["v", true]
jsonb_path_query_array(j, '$.a.b[*].type()') ⇒ jsonb ⇒ ["number", "string", "null"]
jsonb_path_query_array(j, '$.a.b.size()') ⇒ jsonb ⇒ [3]
jsonb_path_query_first(j, '$.k ? (@ like_regex "^V" flag "i")') ⇒ jsonb ⇒ "v"
jsonb_path_query_first(j, '$.a.b[*] ? (@ != null)') ⇒ jsonb ⇒ 1
jsonb_path_exists(j, '$.a.b ? (@ > 1)') ⇒ boolean ⇒ false
jsonb_path_exists(j, '$.n') ⇒ boolean ⇒ true
jsonb_path_match(j, '$.a.b[*] == 1') ⇒ boolean ⇒ true
jsonb_path_match(j, '$.a.b[*] > 1') ⇒ boolean ⇒ ∅
jsonb_path_match(j, 'exists($.a.c)') ⇒ boolean ⇒ false
jsonb_path_match(j, '($.k > 1) is unknown') ⇒ boolean ⇒ true
jsonb_path_match(j, '$.a.b[0] + 1 == 2') ⇒ boolean ⇒ true
j @? '$.a.b[3]' ⇒ boolean ⇒ false
j @@ '$.t == true' ⇒ boolean ⇒ true
jsonb_set(j, '{a,b,0}', '{"z": 1}') ⇒ jsonb ⇒ {"a": {"b": [{"z": 1}, "x", null]}, "k": "v", "n": null, "t": true}
jsonb_set(j, '{a,c}', '2') ⇒ jsonb ⇒ {"a": {"b": [1, "x", null], "c": 2}, "k": "v", "n": null, "t": true}
jsonb_set(j, '{a,c}', '2', false) ⇒ jsonb ⇒ {"a": {"b": [1, "x", null]}, "k": "v", "n": null, "t": true}
jsonb_set(j, '{x,y}', '2') ⇒ jsonb ⇒ {"a": {"b": [1, "x", null]}, "k": "v", "n": null, "t": true}
j #- '{a,b,1}' ⇒ jsonb ⇒ {"a": {"b": [1, null]}, "k": "v", "n": null, "t": true}
j #- '{k}' ⇒ jsonb ⇒ {"a": {"b": [1, "x", null]}, "n": null, "t": true}
j @> '{"a": {"b": [1]}}' ⇒ boolean ⇒ true
j @> '{"b": [1]}' ⇒ boolean ⇒ false
'[1, [2]]'::jsonb @> to_jsonb(i) ⇒ boolean ⇒ false
to_jsonb(i) <@ '[1, [2], 2]'::jsonb ⇒ boolean ⇒ true
j ->> 'a' ⇒ character varying ⇒ {"b": [1, "x", null]}
jsonb_object(sa) ⇒ jsonb ⇒ {"x%": "Th%"}
jsonb_pretty(j -> 'n') ⇒ character varying ⇒ null
jsonb_strip_nulls(j) ⇒ jsonb ⇒ {"a": {"b": [1, "x", null]}, "k": "v", "t": true}
s IS JSON ⇒ boolean ⇒ false
s IS NOT JSON OBJECT ⇒ boolean ⇒ true
regexp_replace(s, '[ao]', 'X', 1, 2) ⇒ character varying ⇒ ThomXs
regexp_replace(s, '([ao])', '<\1>', 4, 1, 'i') ⇒ character varying ⇒ Thom<a>s
regexp_replace(s, 'm|a', 'X', 2, 0) ⇒ character varying ⇒ ThoXXs
overlay(by placing '\x99'::bytea from 2) ⇒ bytea ⇒ \x1299
position('\x34'::bytea in by) ⇒ integer ⇒ 2
decode('a\\\001', 'escape') ⇒ bytea ⇒ \x615c01
encode(by, 'base64') ⇒ character varying ⇒ EjQ=
format('%2$s %1$I', s, i) ⇒ character varying ⇒ 2 "Thomas"
to_char(iv, 'MM DD HH24:MI:SS') ⇒ character varying ⇒ 01 02 03:04:05
to_char(ts, 'FMDay, FMMonth IY') ⇒ character varying ⇒ Friday, February 01
date_part('hour', tz AT TIME ZONE 'America/New_York') ⇒ double precision ⇒ 15
concat(VARIADIC sa) ⇒ character varying ⇒ x%Th%
concat_ws('-', VARIADIC sa) ⇒ character varying ⇒ x%-Th%
jsonb_build_array(VARIADIC a) ⇒ jsonb ⇒ [1, 2, null]
abs(f) ⇒ double precision ⇒ 2.5
ceil(n) ⇒ numeric ⇒ 43
floor(i) ⇒ double precision ⇒ 2
round(n, i) ⇒ numeric ⇒ 42.44
trunc(n, i) ⇒ numeric ⇒ 42.43
sign(f) ⇒ double precision ⇒ -1
mod(i, z) ⇒ integer ⇒ ∅
i / z ⇒ integer ⇒ ∅
power(n, 0) ⇒ numeric ⇒ 1
greatest(i, n) ⇒ numeric ⇒ 42.4382
length(s) ⇒ integer ⇒ 6
length(by) ⇒ integer ⇒ 2
lower(s) || i ⇒ character varying ⇒ thomas2
initcap(p) ⇒ character varying ⇒ O(.)A
left(s, i) ⇒ character varying ⇒ Th
right(s, -i) ⇒ character varying ⇒ omas
substr(s, i) ⇒ character varying ⇒ homas
substring(s FROM i - 3 FOR 4) ⇒ character varying ⇒ Th
lpad(s, 8, w) ⇒ character varying ⇒ %hThomas
repeat(s, i) ⇒ character varying ⇒ ThomasThomas
position('om' IN s) ⇒ integer ⇒ 3
translate(s, 'Ta', w) ⇒ character varying ⇒ %homhs
concat(s, z, i = 2) ⇒ character varying ⇒ Thomast
concat_ws(w, s, z, n) ⇒ character varying ⇒ Thomas%ho%42.4382
format('%s-%s', s, d) ⇒ character varying ⇒ Thomas-2001-02-16
quote_literal(s) ⇒ character varying ⇒ 'Thomas'
to_hex(i) ⇒ character varying ⇒ 2
encode(by, 'hex') ⇒ character varying ⇒ 1234
md5(s) = md5('Thomas') ⇒ boolean ⇒ true
s LIKE w ⇒ boolean ⇒ true
s LIKE ANY (sa) ⇒ boolean ⇒ true
s LIKE ALL (sa) ⇒ boolean ⇒ false
s ~ p ⇒ boolean ⇒ true
s ~* upper(p) ⇒ boolean ⇒ true
s !~ p ⇒ boolean ⇒ false
regexp_replace(s, p, '<\&>') ⇒ character varying ⇒ Th<oma>s
regexp_count(s, p) ⇒ integer ⇒ 1
(regexp_match(s, 'o(.)(a)'))[2] ⇒ character varying ⇒ a
substring(s FROM 'o(.)a') ⇒ character varying ⇒ m
regexp_split_to_array(s, '[oa]') ⇒ character varying[] ⇒ {Th,m,s}
i = ANY (a) ⇒ boolean ⇒ true
3 = ANY (a) ⇒ boolean ⇒ ∅
i > ANY (a) ⇒ boolean ⇒ true
i <= ALL (a) ⇒ boolean ⇒ false
0 < ALL (a) ⇒ boolean ⇒ ∅
z = ANY (a) ⇒ boolean ⇒ ∅
i BETWEEN SYMMETRIC 3 AND 1 ⇒ boolean ⇒ true
(i, s) < (2, 'U') ⇒ boolean ⇒ true
num_nulls(z, i) ⇒ integer ⇒ 1
coalesce(z, i) ⇒ integer ⇒ 2
array_to_string(a, ',', 'none') ⇒ character varying ⇒ 1,2,none
string_to_array(s, 'o') ⇒ character varying[] ⇒ {Th,mas}
# 9.1 logical, 9.2 comparison
true AND NULL ⇒ boolean ⇒ ∅
false AND NULL ⇒ boolean ⇒ false
true OR NULL ⇒ boolean ⇒ true
NOT NULL::boolean ⇒ boolean ⇒ ∅
2 BETWEEN 1 AND 3 ⇒ boolean ⇒ true
2 BETWEEN 3 AND 1 ⇒ boolean ⇒ false
2 BETWEEN SYMMETRIC 3 AND 1 ⇒ boolean ⇒ true
2 NOT BETWEEN SYMMETRIC 3 AND 1 ⇒ boolean ⇒ false
1 IS DISTINCT FROM NULL ⇒ boolean ⇒ true
NULL IS NOT DISTINCT FROM NULL ⇒ boolean ⇒ true
NULL::boolean IS UNKNOWN ⇒ boolean ⇒ true
true IS NOT UNKNOWN ⇒ boolean ⇒ true
true IS TRUE ⇒ boolean ⇒ true
NULL::boolean IS NOT TRUE ⇒ boolean ⇒ true
num_nulls(1, NULL, 2, NULL) ⇒ integer ⇒ 2
num_nonnulls(1, NULL, 2) ⇒ integer ⇒ 2
(1, 'a') = (1, 'a') ⇒ boolean ⇒ true
(1, 2) <> (1, 3) ⇒ boolean ⇒ true
(1, 2) < (1, 3) ⇒ boolean ⇒ true
(2, 1) <= (1, 3) ⇒ boolean ⇒ false
(1, 2, 3) > (1, 2, NULL::int) ⇒ boolean ⇒ ∅
(1, 2) >= (0, NULL::int) ⇒ boolean ⇒ true
'a' < 'B' ⇒ boolean ⇒ false
'NaN'::double precision > 'Infinity'::double precision ⇒ boolean ⇒ true
'NaN'::double precision = 'NaN'::double precision ⇒ boolean ⇒ true
# 9.3 mathematical
2 + 3 ⇒ integer ⇒ 5
5 / 2 ⇒ integer ⇒ 2
(-5) / 2 ⇒ integer ⇒ -2
5.0 / 2 ⇒ numeric ⇒ 2.5
5 % 4 ⇒ integer ⇒ 1
-7 % 3 ⇒ integer ⇒ -1
7.5 % 2 ⇒ numeric ⇒ 1.5
2 ^ 3 ⇒ double precision ⇒ 8
2.0 ^ 3 ⇒ numeric ⇒ 8
2 ^ 3 ^ 3 ⇒ double precision ⇒ 512
|/ 25.0 ⇒ double precision ⇒ 5
||/ 64.0 ⇒ double precision ⇒ 4
91 & 15 ⇒ integer ⇒ 11
32 | 3 ⇒ integer ⇒ 35
17 # 5 ⇒ integer ⇒ 20
~1 ⇒ integer ⇒ -2
1 << 4 ⇒ integer ⇒ 16
8 >> 2 ⇒ integer ⇒ 2
abs(-17.4) ⇒ numeric ⇒ 17.4
abs(-5) ⇒ integer ⇒ 5
cbrt(64.0) ⇒ double precision ⇒ 4
cbrt(-27) ⇒ double precision ⇒ -3
ceil(42.2) ⇒ numeric ⇒ 43
ceil(-42.8) ⇒ numeric ⇒ -42
ceiling(95.3) ⇒ numeric ⇒ 96
ceil(5) ⇒ double precision ⇒ 5
degrees(0.5) ⇒ double precision ⇒ 28.64788975654116
div(9, 4) ⇒ numeric ⇒ 2
div(-9, 4) ⇒ numeric ⇒ -2
exp(1.0) ⇒ numeric ⇒ 2.7182818285
exp(1::double precision) ⇒ double precision ⇒ 2.718281828459045
factorial(5) ⇒ numeric ⇒ 120
floor(42.8) ⇒ numeric ⇒ 42
floor(-42.8) ⇒ numeric ⇒ -43
gcd(1071, 462) ⇒ integer ⇒ 21
lcm(1071, 462) ⇒ integer ⇒ 23562
gcd(-6, 0) ⇒ integer ⇒ 6
ln(2.0) ⇒ numeric ⇒ 0.6931471806
log(100) ⇒ double precision ⇒ 2
log(100.0) ⇒ numeric ⇒ 2
log10(1000) ⇒ double precision ⇒ 3
log(2.0, 64.0) ⇒ numeric ⇒ 6
mod(9, 4) ⇒ integer ⇒ 1
mod(-9, 4) ⇒ integer ⇒ -1
mod(9.5, 4) ⇒ numeric ⇒ 1.5
pi() ⇒ double precision ⇒ 3.141592653589793
power(9, 3) ⇒ double precision ⇒ 729
power(9.0, 3) ⇒ numeric ⇒ 729
pow(2, 10) ⇒ double precision ⇒ 1024
radians(45.0) ⇒ double precision ⇒ 0.7853981633974483
round(42.4) ⇒ numeric ⇒ 42
round(-2.5) ⇒ numeric ⇒ -3
round(2.5::double precision) ⇒ double precision ⇒ 2
round(3.5::double precision) ⇒ double precision ⇒ 4
round(42.4382, 2) ⇒ numeric ⇒ 42.44
round(1234.56, -1) ⇒ numeric ⇒ 1230
round(7) ⇒ double precision ⇒ 7
scale(8.41) ⇒ integer ⇒ 2
sign(-8.4) ⇒ numeric ⇒ -1
sign(-8.4::double precision) ⇒ double precision ⇒ -1
sign(3) ⇒ double precision ⇒ 1
sqrt(2) ⇒ double precision ⇒ 1.4142135623730951
sqrt(2.25) ⇒ numeric ⇒ 1.5
trim_scale(8.4100) ⇒ numeric ⇒ 8.41
trunc(42.8) ⇒ numeric ⇒ 42
trunc(-42.8) ⇒ numeric ⇒ -42
trunc(42.4382, 2) ⇒ numeric ⇒ 42.43
trunc(-42.4382, 2) ⇒ numeric ⇒ -42.43
trunc(1234.5, -2) ⇒ numeric ⇒ 1200
trunc(-2.7::double precision) ⇒ double precision ⇒ -2
width_bucket(5.35, 0.024, 10.06, 5) ⇒ integer ⇒ 3
width_bucket(-1.0, 0, 10, 5) ⇒ integer ⇒ 0
width_bucket(10.0, 0, 10, 5) ⇒ integer ⇒ 6
width_bucket(5.35::double precision, 10, 0, 5) ⇒ integer ⇒ 3
acos(1) ⇒ double precision ⇒ 0
acosd(0.5) ⇒ double precision ⇒ 60
asin(1) ⇒ double precision ⇒ 1.5707963267948966
asind(0.5) ⇒ double precision ⇒ 30
atan(1) ⇒ double precision ⇒ 0.7853981633974483
atand(1) ⇒ double precision ⇒ 45
atan2(1, 0) ⇒ double precision ⇒ 1.5707963267948966
atan2d(1, 0) ⇒ double precision ⇒ 90
cos(0) ⇒ double precision ⇒ 1
cosd(60) ⇒ double precision ⇒ 0.5
cot(0.5) ⇒ double precision ⇒ 1.830487721712452
cotd(45) ⇒ double precision ⇒ 1
sin(1) ⇒ double precision ⇒ 0.8414709848078965
sind(30) ⇒ double precision ⇒ 0.5
tan(1) ⇒ double precision ⇒ 1.5574077246549023
tand(45) ⇒ double precision ⇒ 1
sinh(1) ⇒ double precision ⇒ 1.1752011936438014
cosh(0) ⇒ double precision ⇒ 1
tanh(1) ⇒ double precision ⇒ 0.7615941559557649
asinh(1) ⇒ double precision ⇒ 0.881373587019543
acosh(1) ⇒ double precision ⇒ 0
atanh(0.5) ⇒ double precision ⇒ 0.5493061443340548
greatest(1, NULL, 3) ⇒ integer ⇒ 3
least('b', 'a', NULL) ⇒ character varying ⇒ a
greatest(NULL::int, NULL) ⇒ integer ⇒ ∅
# 9.4 strings
'Post' || 'greSQL' ⇒ character varying ⇒ PostgreSQL
'Value: ' || 42 ⇒ character varying ⇒ Value: 42
'is ' || true ⇒ character varying ⇒ is true
'a' || NULL ⇒ character varying ⇒ ∅
btrim('xyxtrimyyx', 'xyz') ⇒ character varying ⇒ trim
btrim('  x ') ⇒ character varying ⇒ x
bit_length('jose') ⇒ integer ⇒ 32
char_length('josé') ⇒ integer ⇒ 4
character_length('josé') ⇒ integer ⇒ 4
length('jose') ⇒ integer ⇒ 4
length('\x1234'::bytea) ⇒ integer ⇒ 2
octet_length('josé') ⇒ integer ⇒ 5
lower('TOM') ⇒ character varying ⇒ tom
upper('tom') ⇒ character varying ⇒ TOM
initcap('hi THOMAS o''reilly 2nd-try') ⇒ character varying ⇒ Hi Thomas O'Reilly 2nd-Try
overlay('Txxxxas' PLACING 'hom' FROM 2 FOR 4) ⇒ character varying ⇒ Thomas
overlay('abcdef' PLACING '45' FROM 4) ⇒ character varying ⇒ abc45f
overlay('Txxxxas', 'hom', 2, 4) ⇒ character varying ⇒ Thomas
position('om' IN 'Thomas') ⇒ integer ⇒ 3
position('z' IN 'Thomas') ⇒ integer ⇒ 0
strpos('high', 'ig') ⇒ integer ⇒ 2
substring('Thomas' FROM 2 FOR 3) ⇒ character varying ⇒ hom
substring('Thomas' FROM 3) ⇒ character varying ⇒ omas
substring('Thomas' FOR 2) ⇒ character varying ⇒ Th
substring('Thomas', 2, 3) ⇒ character varying ⇒ hom
substring('Thomas' FROM -1 FOR 3) ⇒ character varying ⇒ T
substring('Thomas' FROM 0) ⇒ character varying ⇒ Thomas
substring('Thomas' FROM '...$') ⇒ character varying ⇒ mas
substring('Thomas', 'o(.)a') ⇒ character varying ⇒ m
substring('Thomas' FROM 'x+') ⇒ character varying ⇒ ∅
substr('alphabet', 3) ⇒ character varying ⇒ phabet
substr('alphabet', 3, 2) ⇒ character varying ⇒ ph
substr('alphabet', -1, 4) ⇒ character varying ⇒ al
substr('alphabet', 0, 2) ⇒ character varying ⇒ a
substr('alphabet', -3) ⇒ character varying ⇒ alphabet
trim(BOTH 'xyz' FROM 'yxTomxx') ⇒ character varying ⇒ Tom
trim('  x ') ⇒ character varying ⇒ x
trim(LEADING 'x' FROM 'xxax') ⇒ character varying ⇒ ax
trim(TRAILING 'x' FROM 'xaxx') ⇒ character varying ⇒ xa
trim('yxTomxx', 'xyz') ⇒ character varying ⇒ Tom
ltrim('zzzytest', 'xyz') ⇒ character varying ⇒ test
rtrim('testxxzx', 'xyz') ⇒ character varying ⇒ test
ascii('x') ⇒ integer ⇒ 120
ascii('') ⇒ integer ⇒ 0
ascii('é') ⇒ integer ⇒ 233
chr(65) ⇒ character varying ⇒ A
concat('abcde', 2, NULL, 22) ⇒ character varying ⇒ abcde222
concat('a', true, 1.50, DATE '2024-01-02') ⇒ character varying ⇒ at1.52024-01-02
concat(NULL) ⇒ character varying ⇒
concat_ws(',', 'abcde', 2, NULL, 22) ⇒ character varying ⇒ abcde,2,22
concat_ws(NULL, 'a', 'b') ⇒ character varying ⇒ ∅
concat_ws('-', false, 'x') ⇒ character varying ⇒ f-x
format('Hello %s', 'World') ⇒ character varying ⇒ Hello World
format('%s, %1$s %%', 'x') ⇒ character varying ⇒ x, x %
format('%L %I', 'it''s', 'Foo bar') ⇒ character varying ⇒ 'it''s' "Foo bar"
left('abcde', 2) ⇒ character varying ⇒ ab
left('abcde', -2) ⇒ character varying ⇒ abc
right('abcde', 2) ⇒ character varying ⇒ de
right('abcde', -2) ⇒ character varying ⇒ cde
lpad('hi', 5, 'xy') ⇒ character varying ⇒ xyxhi
lpad('hi', 5) ⇒ character varying ⇒    hi
lpad('abcdef', 3) ⇒ character varying ⇒ abc
rpad('hi', 5, 'xy') ⇒ character varying ⇒ hixyx
lpad('hi', -1) ⇒ character varying ⇒
rpad('hi', 5, '') ⇒ character varying ⇒ hi
lpad('hi', 5, '') ⇒ character varying ⇒ hi
md5('abc') ⇒ character varying ⇒ 900150983cd24fb0d6963f7d28e17f72
quote_ident('Foo bar') ⇒ character varying ⇒ "Foo bar"
quote_ident('foo') ⇒ character varying ⇒ foo
quote_ident('a"b') ⇒ character varying ⇒ "a""b"
quote_literal(E'O\'Reilly') ⇒ character varying ⇒ 'O''Reilly'
quote_literal(42) ⇒ character varying ⇒ '42'
quote_nullable(NULL) ⇒ character varying ⇒ NULL
quote_nullable('x') ⇒ character varying ⇒ 'x'
repeat('Pg', 4) ⇒ character varying ⇒ PgPgPgPg
repeat('Pg', -1) ⇒ character varying ⇒
replace('abcdefabcdef', 'cd', 'XX') ⇒ character varying ⇒ abXXefabXXef
replace('abc', '', 'x') ⇒ character varying ⇒ abc
reverse('abcdé') ⇒ character varying ⇒ édcba
split_part('abc~@~def~@~ghi', '~@~', 2) ⇒ character varying ⇒ def
split_part('abc,def,ghi,jkl', ',', -2) ⇒ character varying ⇒ ghi
split_part('abc', ',', 1) ⇒ character varying ⇒ abc
split_part('abc', ',', 2) ⇒ character varying ⇒
split_part('abc', '', 1) ⇒ character varying ⇒ abc
starts_with('alphabet', 'alph') ⇒ boolean ⇒ true
'alphabet' ^@ 'alph' ⇒ boolean ⇒ true
to_hex(2147483647) ⇒ character varying ⇒ 7fffffff
to_hex(-1) ⇒ character varying ⇒ ffffffff
to_hex(255::bigint) ⇒ character varying ⇒ ff
translate('12345', '143', 'ax') ⇒ character varying ⇒ a2x5
string_to_array('xx~~yy~~zz', '~~', 'yy') ⇒ character varying[] ⇒ {xx,NULL,zz}
string_to_array('a,b,c', ',') ⇒ character varying[] ⇒ {a,b,c}
string_to_array('', ',') ⇒ character varying[] ⇒ {}
string_to_array('abc', NULL) ⇒ character varying[] ⇒ {a,b,c}
string_to_array('abc', '') ⇒ character varying[] ⇒ {abc}
array_to_string(ARRAY[1, 2, NULL, 5], ',', '*') ⇒ character varying ⇒ 1,2,*,5
array_to_string(ARRAY[1, 2, NULL, 5], ',') ⇒ character varying ⇒ 1,2,5
array_to_string(ARRAY['a', 'b'], '') ⇒ character varying ⇒ ab
# 9.5 binary
'\x123456'::bytea || '\x789a00bcde'::bytea ⇒ bytea ⇒ \x123456789a00bcde
octet_length('\x123456'::bytea) ⇒ integer ⇒ 3
bit_length('\x123456'::bytea) ⇒ integer ⇒ 24
substring('\x1234567890'::bytea FROM 3 FOR 2) ⇒ bytea ⇒ \x5678
encode('123\000\001', 'base64') ⇒ character varying ⇒ MTIzAAE=
encode('\x123456'::bytea, 'hex') ⇒ character varying ⇒ 123456
decode('MTIzAAE=', 'base64') ⇒ bytea ⇒ \x3132330001
decode('deadBEEF', 'hex') ⇒ bytea ⇒ \xdeadbeef
md5('Th\000omas'::bytea) ⇒ character varying ⇒ 8ab2d3c9689aaf18b4958c334c82d8b1
encode(hmac('key', 'The quick brown fox jumps over the lazy dog', 'sha1'), 'hex') ⇒ character varying ⇒ de7c9b85b8b78aa6bc8a7a36f70a90701c9db4d9
hmac(rpad('k', 100, 'k'), by, 'sha256') = hmac(sha256(rpad('k', 100, 'k')), by, 'sha256') ⇒ boolean ⇒ true
sha256('abc'::bytea) ⇒ bytea ⇒ \xba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad
sha224('abc'::bytea) ⇒ bytea ⇒ \x23097d223405d8228642a477bda255b32aadbce4bda0b3f7e36c9da7
sha384('abc'::bytea) ⇒ bytea ⇒ \xcb00753f45a35e8bb5a03d699ac65007272c32ab0eded1631a8b605a43ff5bed8086072ba1e7cc2358baeca134c825a7
sha512('abc'::bytea) ⇒ bytea ⇒ \xddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f
sha1('abc'::bytea) ⇒ bytea ⇒ \xa9993e364706816aba3e25717850c26c9cd0d89d
'abc'::bytea ⇒ bytea ⇒ \x616263
convert_to('é', 'UTF8') ⇒ bytea ⇒ \xc3a9
convert_from('\x616263'::bytea, 'UTF8') ⇒ character varying ⇒ abc
# 9.7 pattern matching
'abc' LIKE 'abc' ⇒ boolean ⇒ true
'abc' LIKE 'a%' ⇒ boolean ⇒ true
'abc' LIKE '_b_' ⇒ boolean ⇒ true
'abc' LIKE 'c' ⇒ boolean ⇒ false
'10%' LIKE '10\%' ⇒ boolean ⇒ true
'10x' LIKE '10\%' ⇒ boolean ⇒ false
'10%' LIKE '10#%' ESCAPE '#' ⇒ boolean ⇒ true
'a\b' LIKE 'a\b' ESCAPE '' ⇒ boolean ⇒ true
'ABC' ILIKE 'abc' ⇒ boolean ⇒ true
'ABC' NOT ILIKE 'a%' ⇒ boolean ⇒ false
'abc' ~~ 'a%' ⇒ boolean ⇒ true
'abc' !~~ 'a%' ⇒ boolean ⇒ false
'ABC' ~~* 'a%' ⇒ boolean ⇒ true
'abc' LIKE ANY (ARRAY['x%', 'a%']) ⇒ boolean ⇒ true
'abc' LIKE ALL (ARRAY['x%', 'a%']) ⇒ boolean ⇒ false
'abc' NOT LIKE ALL (ARRAY['x%', 'y%']) ⇒ boolean ⇒ true
E'a\nb' LIKE 'a%b' ⇒ boolean ⇒ true
'abc' SIMILAR TO 'abc' ⇒ boolean ⇒ true
'abc' SIMILAR TO 'a' ⇒ boolean ⇒ false
'abc' SIMILAR TO '%(b|d)%' ⇒ boolean ⇒ true
'abc' SIMILAR TO '(b|c)%' ⇒ boolean ⇒ false
'-abc-' SIMILAR TO '%\mabc\M%' ⇒ boolean ⇒ true
'xabcy' NOT SIMILAR TO '%[a-c]{3}%' ⇒ boolean ⇒ false
'a.c' SIMILAR TO 'a.c' ⇒ boolean ⇒ true
'abc' SIMILAR TO 'a.c' ⇒ boolean ⇒ false
'a%c' SIMILAR TO 'a#%c' ESCAPE '#' ⇒ boolean ⇒ true
'abc' SIMILAR TO 'a|b' ⇒ boolean ⇒ false
E'a\nc' SIMILAR TO 'a_c' ⇒ boolean ⇒ true
'thomas' ~ 't.*ma' ⇒ boolean ⇒ true
'thomas' ~* 'T.*ma' ⇒ boolean ⇒ true
'thomas' !~ 't.*max' ⇒ boolean ⇒ true
'thomas' !~* 'T.*ma' ⇒ boolean ⇒ false
'abcd' ~ 'bc' ⇒ boolean ⇒ true
'abcd' ~ '^(b|c)' ⇒ boolean ⇒ false
'foo bar' ~ '\mbar\M' ⇒ boolean ⇒ true
E'a\nb' ~ 'a.b' ⇒ boolean ⇒ true
'ab12' ~ '^[[:alpha:]]+\d+$' ⇒ boolean ⇒ true
regexp_count('ABCABCAXYaxy', 'A.') ⇒ integer ⇒ 3
regexp_count('ABCABCAXYaxy', 'A.', 1, 'i') ⇒ integer ⇒ 4
regexp_count('123456789012', '\d{3}', 2) ⇒ integer ⇒ 3
regexp_extract('foobar', 'o(b.)', 1) ⇒ character varying ⇒ ba
regexp_extract('foobar', 'x') ⇒ character varying ⇒
regexp_like('Hello World', 'world$', 'i') ⇒ boolean ⇒ true
regexp_match('foobarbequebaz', 'bar.*que') ⇒ character varying[] ⇒ {barbeque}
regexp_match('foobarbequebaz', '(bar)(beque)') ⇒ character varying[] ⇒ {bar,beque}
regexp_match('foobarbequebaz', 'x+') ⇒ character varying[] ⇒ ∅
(regexp_match('foobarbequebaz', 'bar.*que'))[1] ⇒ character varying ⇒ barbeque
(regexp_match('foobarbequebaz', '(BAR)', 'i'))[1] ⇒ character varying ⇒ bar
regexp_replace('Thomas', '.[mN]a.', 'M') ⇒ character varying ⇒ ThM
regexp_replace('foobarbaz', 'b..', 'X') ⇒ character varying ⇒ fooXbaz
regexp_replace('foobarbaz', 'b..', 'X', 'g') ⇒ character varying ⇒ fooXX
regexp_replace('foobarbaz', 'b(..)', 'X\1Y', 'g') ⇒ character varying ⇒ fooXarYXazY
regexp_replace('foobarbaz', 'B..', '[\&]', 'gi') ⇒ character varying ⇒ foo[bar][baz]
regexp_split_to_array('hello world', '\s+') ⇒ character varying[] ⇒ {hello,world}
regexp_split_to_array('hello', '') ⇒ character varying[] ⇒ {h,e,l,l,o}
regexp_substr('ABCDEF', 'c(.)(..)', 1, 1, 'i') ⇒ character varying ⇒ CDEF
regexp_substr('number of your street', '[^ ]+') ⇒ character varying ⇒ number
# 9.18 conditional
CASE 2 WHEN 1 THEN 'one' WHEN 2 THEN 'two' END ⇒ character varying ⇒ two
CASE WHEN 1 > 2 THEN 1 END ⇒ integer ⇒ ∅
coalesce(NULL, NULL, 3.5, 2) ⇒ numeric ⇒ 3.5
nullif(1, 1) ⇒ integer ⇒ ∅
nullif(1, 2) ⇒ integer ⇒ 1
nullif('a', 'b') ⇒ character varying ⇒ a
"""
