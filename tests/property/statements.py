"""Random statements of each dialect, right and wrong ones.

A statement grows from the rules below, or is one of `tests/coverage`. Most are then damaged: words are dropped,
doubled, swapped or replaced by those of other statements, expressions are nested deeply, names become long or strange.
"""

# ruff: noqa: E501 - a rule is one line

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Callable
from functools import cache

from scripts.dialectcoverage import topics
from scripts.reference import examples_of_the_page

from watersmeet.connectors.reference import option_sets

#: `symbol: text` with other symbols in braces.
COMMON = r"""
statement: {query}
statement: {query}
statement: EXPLAIN {query}
statement: INSERT INTO {relation} VALUES ({literal}, {literal}), ({expr}, {literal})
statement: INSERT INTO {relation} ({column}, {column}) {query}
statement: UPDATE {relation} SET {column} = {expr} WHERE {condition}
statement: DELETE FROM {relation} WHERE {condition}
statement: DROP {kind} IF EXISTS {relation} CASCADE
statement: DROP {kind} {relation}
statement: CREATE VIEW {name} AS {query}
statement: CREATE OR REPLACE VIEW {name} ({column}, {column}) AS {query}
statement: SHOW {list}
statement: SHOW CREATE {kind} {relation}
statement: DESCRIBE {relation}
statement: SET {variable} = {literal}
statement: RESET {variable}
statement: PREPARE {name} AS {query}
statement: EXECUTE {name} ({literal})
statement: COPY {relation} FROM '/nowhere/x.csv' WITH (format = 'csv')
statement: DECLARE {name} CURSOR FOR {query}
statement: FETCH {literal} FROM {name}
statement: BEGIN
statement: COMMIT
statement: ROLLBACK TO {name}
statement: CREATE ROLE {name} WITH LOGIN PASSWORD {literal}
statement: GRANT SELECT, INSERT ON {relation} TO {name}
statement: REVOKE ALL ON {relation} FROM {name}
statement: TRUNCATE {relation}
statement: REFRESH MATERIALIZED VIEW {relation}
statement: SUBSCRIBE {relation} AFTER {literal}
statement: SHOW COMMITS FROM {relation}
statement: ALTER DATABASE SET parallelism = {literal}
statement: EXPLAIN ROW ({query})
statement: KILL QUERY {literal}
statement: {word} {name} {word} {word} {expr}
query: SELECT {items} FROM {from}
query: SELECT {items} FROM {from} WHERE {condition}
query: SELECT DISTINCT {items} FROM {from} ORDER BY {expr} DESC NULLS LAST LIMIT {literal} OFFSET {literal}
query: SELECT {column}, {call} FROM {from} GROUP BY {column} HAVING {condition}
query: SELECT {items} FROM {from} GROUP BY GROUPING SETS (({column}), ())
query: SELECT {column}, {call} OVER (PARTITION BY {column} ORDER BY {column} ROWS {literal} PRECEDING) AS w FROM {from}
query: WITH {name} AS ({query}) SELECT {items} FROM {name} AS a
query: {query} UNION ALL {query}
query: {query} EXCEPT {query}
query: VALUES ({literal}, {expr}), ({literal}, {literal})
query: SELECT {expr} AS x
items: *
items: {column}
items: {column}, {expr} AS x
items: a.*, {call} AS y
from: {source}
from: {source} AS a
from: {source} AS a JOIN {source} AS b ON {condition}
from: {source} AS a {join} JOIN {source} AS b ON a.{column} = b.{column} AND {condition}
from: {source} AS a JOIN {source} AS b USING ({column})
from: {source} AS a, LATERAL ({query}) AS b
from: {source} AS a NATURAL JOIN {source} AS b
join: LEFT
join: RIGHT OUTER
join: FULL
join: CROSS
join: ASOF
join: SEMI
source: {relation}
source: {relation}
source: ({query})
source: unnest({expr})
condition: {column} = {column}
condition: {column} = {literal}
condition: {expr} > {expr}
condition: {condition} AND {condition}
condition: NOT ({condition} OR {condition})
condition: {column} BETWEEN {literal} AND {expr}
condition: {column} IN ({literal}, {literal})
condition: EXISTS ({query})
condition: {column} IN ({query})
condition: {column} IS NOT DISTINCT FROM {expr}
condition: {column} LIKE {literal}
expr: {column}
expr: {literal}
expr: {call}
expr: {example}
expr: {expr} + {expr}
expr: {expr} || {expr}
expr: CASE WHEN {condition} THEN {expr} ELSE {expr} END
expr: CAST({expr} AS {type})
expr: {expr}::{type}
expr: ({query})
expr: ARRAY[{expr}, {literal}]
expr: INTERVAL '1' DAY
call: count(*)
call: sum({expr})
call: max(DISTINCT {column})
call: coalesce({expr}, {literal})
call: first_value({column})
call: string_agg({column}, ',')
call: row_number()
literal: 1
literal: 'a'
literal: NULL
literal: 2.5
literal: '2024-01-01 00:00:00'
literal: -9223372036854775809
literal: 1e400
literal: ''
literal: 'it''s ☃'
literal: TRUE
literal: X'ff'
literal: $1
literal: 99999999999999999999999999999999999999999.5
column: id
column: name
column: a.id
column: b.name
column: amount
column: at
column: nothing
column: "odd ""name"
relation: orders
relation: customers
relation: named
relation: {name}
relation: public.orders
name: r1
name: r2
name: r3
name: "Ü"
kind: TABLE
kind: VIEW
kind: MATERIALIZED VIEW
kind: SOURCE
kind: SINK
kind: INDEX
kind: STREAM
list: TABLES
list: JOBS
list: VIEWS
list: nothing
list: SOURCES LIKE {literal}
variable: search_path
variable: timezone
variable: dialect
variable: nothing.at.all
type: int
type: varchar
type: numeric(10, 2)
type: timestamp
type: int[]
type: no_type
type: interval
word: MERGE
word: LOCK
word: LISTEN
word: USE
word: CALL
word: COMMENT
word: VACUUM
word: ALTER
word: CREATE
word: DROP
word: GARBAGE
word: STOP
word: RECOVER
word: WITH
word: SETTINGS
"""

OWN = {
    "risingwave": r"""
statement: CREATE TABLE {name} (id {type} PRIMARY KEY, name {type} DEFAULT {literal}, at timestamp, WATERMARK FOR at AS at - INTERVAL '5' SECOND) APPEND ONLY
statement: CREATE TABLE {name} (id {type}, name {type} AS {expr}, PRIMARY KEY (id)) ON CONFLICT DO UPDATE
statement: CREATE TABLE {name} WITH ({options}) FORMAT {format} ENCODE {encode}
statement: CREATE SOURCE {name} (id int, at timestamp) WITH ({options}) FORMAT {format} ENCODE {encode}
statement: CREATE SOURCE {name} (id int) INCLUDE timestamp AS ts INCLUDE header AS h WITH ({options})
statement: CREATE SINK {name} FROM {relation} WITH ({options}) FORMAT {format} ENCODE {encode} (force_append_only = {literal})
statement: CREATE SINK {name} AS {query} WITH ({options})
statement: CREATE SINK {name} INTO {relation} AS {query}
statement: CREATE MATERIALIZED VIEW {name} AS {query}
statement: CREATE MATERIALIZED VIEW {name} AS {query} EMIT ON WINDOW CLOSE
statement: CREATE INDEX {name} ON {relation} ({column}) INCLUDE ({column}) DISTRIBUTED BY ({column})
statement: CREATE FUNCTION {name}(a {type}) RETURNS {type} LANGUAGE sql AS 'SELECT {column}'
statement: CREATE FUNCTION {name}(a {type}) RETURNS TABLE (x {type}) LANGUAGE python AS $$ def f(): pass $$
statement: CREATE SUBSCRIPTION {name} FROM {relation} WITH (retention = {literal})
statement: CREATE SECRET {name} WITH (backend = 'meta') AS {literal}
statement: CREATE CONNECTION {name} WITH (type = 'kafka', properties.bootstrap.server = 'localhost:1')
statement: CREATE SCHEMA {name}
statement: CREATE TYPE {name} AS ENUM ({literal})
statement: ALTER TABLE {relation} ADD COLUMN {name} {type}
statement: ALTER TABLE {relation} ADD COLUMN {name} {type} DEFAULT {literal}
statement: ALTER TABLE {relation} DROP COLUMN {name}
statement: ALTER {kind} {relation} SET SCHEMA {name}
statement: ALTER {kind} {relation} SWAP WITH {relation}
statement: ALTER {kind} {relation} OWNER TO {name}
statement: COMMENT ON TABLE {relation} IS {literal}
statement: ALTER {kind} {relation} RENAME TO {name}
statement: ALTER SYSTEM SET {variable} = {literal}
statement: ALTER SINK {relation} SET sink_rate_limit = {literal}
statement: DECLARE {name} SUBSCRIPTION CURSOR FOR {relation}
from: TUMBLE({relation}, at, INTERVAL '1' MINUTE)
from: HOP({relation}, at, INTERVAL '1' MINUTE, INTERVAL '1' HOUR) AS a
from: {relation} AS a ASOF LEFT JOIN {relation} AS b ON a.id = b.id AND a.at >= b.at
from: {relation} AS a JOIN {relation} FOR SYSTEM_TIME AS OF PROCTIME() AS b ON a.id = b.id
type: jsonb
type: struct<a int, b varchar>
type: map(varchar, int)
format: PLAIN
format: UPSERT
format: DEBEZIUM
encode: JSON
encode: AVRO (schema.registry = 'http://localhost:1')
encode: CSV (delimiter = ',', without_header = {literal})
encode: PROTOBUF (message = 'M', schema.location = 'file:///nowhere.proto')
""",
    "sqlstream": r"""
statement: CREATE OR REPLACE STREAM {name} ("id" {type} NOT NULL, "name" {type}) DESCRIPTION {literal}
statement: CREATE OR REPLACE PUMP {name} {state} AS INSERT INTO {relation} ("id", "name") {query}
statement: ALTER PUMP {name}, {name} {state}
statement: ALTER PUMP {name}.* START
statement: ALTER STREAM {relation} ADD COLUMN {name} {type}
statement: ALTER STREAM {relation} RESET
statement: CREATE SERVER {name} FOREIGN DATA WRAPPER {wrapper} OPTIONS ({settings})
statement: CREATE FOREIGN STREAM {name} ("id" {type}) SERVER {wrapper} OPTIONS ({settings})
statement: CREATE FOREIGN TABLE {name} ("id" {type}) SERVER {wrapper} OPTIONS (TABLE_NAME {literal}, {settings})
statement: CREATE TABLE {name} ("id" {type}, "name" {type}, PRIMARY KEY ("id"))
statement: CREATE MATERIALIZED VIEW {name} AS {query}
statement: CREATE FUNCTION {name}(a {type}) RETURNS {type} LANGUAGE JAVA EXTERNAL NAME {literal}
statement: CREATE JAR {name} LIBRARY {literal} OPTIONS (0)
statement: SET SCHEMA {literal}
statement: CREATE STREAM {name} ("id" {type} DEFAULT {expr} OPTIONS ({settings}), "name" {type} NOT NULL DEFAULT {literal}) OPTIONS ({settings})
statement: INSERT EXPEDITED INTO {relation} ("id", "name") VALUES ROW ({expr}, {literal})
statement: CREATE PUMP {name} AS INSERT EXPEDITED INTO {relation} {query}
statement: CREATE USER {name} IDENTIFIED BY {literal} DEFAULT CATALOG {name}
statement: GRANT ROLE {name} TO {name}
statement: EXPLAIN PLAN FOR {query}
statement: EXPLAIN PLAN FOR INSERT EXPEDITED INTO {relation} {query}
statement: MERGE INTO {relation} USING ({query}) AS s ON {condition} WHEN MATCHED THEN UPDATE SET {column} = {expr}
query: SELECT STREAM {items} FROM {from}
query: SELECT STREAM ROWTIME, {column} FROM {from} WHERE {condition}
query: SELECT STREAM FLOOR(a.ROWTIME TO MINUTE), {call} FROM {relation} AS a GROUP BY FLOOR(a.ROWTIME TO MINUTE)
query: SELECT STREAM {items} FROM {relation} AS a GROUP BY STEP(a.ROWTIME BY INTERVAL '10' SECOND)
query: SELECT STREAM {column}, SUM({column}) OVER w FROM {from} WINDOW w AS (PARTITION BY {column} RANGE INTERVAL '1' MINUTE PRECEDING)
from: {relation} OVER (RANGE INTERVAL '1' MINUTE PRECEDING) AS a JOIN {relation} OVER (ROWS {literal} PRECEDING) AS b ON {condition}
from: {relation} AS a JOIN {relation} OVER w AS b ON {condition}
state: STARTED
state: STOPPED
state: START
from: SYS_BOOT.MGMT.{name}
from: (SYS_BOOT.MGMT.getServerInfoForever({literal})) AS a
expr: POSITION({expr} IN {expr} FROM {expr})
expr: CAST({expr} AS INTERVAL {unit})
expr: ({expr} - {expr}) {unit}
expr: CAST(({expr} - {expr}) {unit} AS {type})
expr: INTERVAL -{literal} {unit}
expr: MONOTONIC({expr})
expr: SYS_BOOT.MGMT.{call}
expr: CURRENT_USER
expr: LISTAGG({expr}, {literal}) WITHIN GROUP (ORDER BY {expr} DESC)
expr: ANY({condition})
expr: FAST_REGEX_LOG_PARSE({expr}, '(.*),(.*)')
expr: VARIABLE_COLUMN_LOG_PARSE({expr}, 'a TYPE INTEGER, b TYPE VARCHAR(3)', ',')
condition: ({expr}, {expr}) {period} ({expr}, {expr})
condition: PERIOD ({expr}, INTERVAL '1' DAY) {period} ({expr}, {expr})
period: OVERLAPS
period: IMMEDIATELY PRECEDES
period: STRICTLY CONTAINS
period: LEADS
unit: SECOND(2, 3)
unit: DAY TO SECOND
unit: HOUR
unit: MONTH
wrapper: SYS_JDBC
wrapper: KAFKA_SERVER
wrapper: FILE_SERVER
wrapper: NOTHING
type: VARCHAR(20)
type: VARBINARY(8)
type: CHAR
type: TINYINT
column: "id"
column: "name"
column: ROWTIME
""",
    "timeplus": r"""
statement: CREATE STREAM {name} (id {type}, name {type} DEFAULT {expr}, INDEX i (id)) PRIMARY KEY id SETTINGS mode = {literal}
statement: CREATE STREAM IF NOT EXISTS {name} (id {type} CODEC(ZSTD(1)), name {type}) TTL to_datetime(_tp_time) + INTERVAL 1 DAY SETTINGS {settings_list}
statement: CREATE MUTABLE STREAM {name} (id {type}, name {type}) PRIMARY KEY (id, name)
statement: CREATE RANDOM STREAM {name} (id {type} DEFAULT rand() % 3) SETTINGS eps = {literal}
statement: CREATE EXTERNAL STREAM {name} (raw string) SETTINGS type = 'kafka', brokers = 'localhost:1', topic = {literal}, {settings_list}
statement: CREATE EXTERNAL TABLE {name} (id int32) SETTINGS type = 'mysql', address = 'localhost:1', user = 'u', password = 'p', {settings_list}
statement: CREATE DICTIONARY {name} (id int, name string DEFAULT '') PRIMARY KEY id SOURCE(TIMEPLUS(STREAM {literal})) LAYOUT({layout}()) LIFETIME(MIN 0 MAX {literal})
statement: CREATE MATERIALIZED VIEW {name} AS {query} SETTINGS {settings_list}
statement: CREATE MATERIALIZED VIEW {name} INTO {relation} AS {query}
statement: CREATE FORMAT SCHEMA {name} AS {literal} TYPE Protobuf
statement: CREATE NAMED COLLECTION {name} AS {settings_list}
statement: CREATE FUNCTION {name}(a {type}) RETURNS {type} LANGUAGE PYTHON AS $$ def f(a): return a $$
statement: CREATE DATABASE {name} SETTINGS {settings_list}
statement: ALTER STREAM {relation} ADD COLUMN {name} {type}
statement: ALTER STREAM {relation} MODIFY SETTING {settings_list}
statement: ALTER VIEW {relation} MODIFY QUERY SETTING {settings_list}
statement: RENAME STREAM {relation} TO {name}
statement: SUBSCRIBE TO {query}
statement: RECOVER FROM {literal}
statement: UNSUBSCRIBE TO {literal}
statement: USE {name}
statement: DROP DICTIONARY IF EXISTS {name}
statement: SYSTEM PAUSE MATERIALIZED VIEW {relation}
query: SELECT {items} FROM {from} {emit}
query: SELECT {items} FROM table({relation}) WHERE {condition} SETTINGS {settings_list}
query: SELECT window_start, {call} FROM tumble({relation}, {interval}) GROUP BY window_start {emit}
query: SELECT {items} FROM hop({relation}, _tp_time, {interval}, {interval}) AS a {emit}
query: SELECT {column} FROM {relation} WHERE _tp_time > now() - {interval} LIMIT {literal} BY {column}
query: SELECT {items} FROM {relation} PARTITION BY {column}
from: {relation} AS a ASOF JOIN {relation} AS b ON a.id = b.id AND a.at >= b.at
from: {relation} AS a LATEST JOIN {relation} AS b USING (id)
from: {relation} AS a JOIN {relation} AS b ON a.id = b.id AND date_diff_within({interval}, a._tp_time, b._tp_time)
from: dedup({relation}, id, {interval})
from: session({relation}, {interval})
expr: name:a.b::int
expr: [{expr}, {literal}]
expr: x -> x + 1
expr: dict_get({literal}, {literal}, {expr})
expr: array_map(x -> {expr}, [{literal}])
interval: 5s
interval: INTERVAL 5 MINUTE
interval: 99999999999999d
emit: EMIT CHANGELOG
emit: EMIT PERIODIC {interval}
emit: EMIT AFTER WINDOW CLOSE WITH DELAY {interval}
emit: EMIT ON UPDATE
emit: EMIT TIMEOUT {interval} AND LAST {interval}
layout: FLAT
layout: IP_TRIE
layout: NOTHING
settings_list: seek_to = {literal}
settings_list: shards = {literal}, {settings_list}
settings_list: {name} = {literal}
settings_list: query_id = {literal}
type: int32
type: string
type: nullable(float64)
type: array(tuple(int8, string))
type: low_cardinality(string)
type: decimal(76, 38)
type: datetime64(3, 'UTC')
type: map(string, int)
column: _tp_time
column: _tp_delta
""",
    "lenses": r"""
statement: CREATE TABLE {name} (_key {type}, id {type}, name {type} NULL, a.b {type}) FORMAT ({format}, {format}) PROPERTIES (partitions = {literal}, compacted = true)
statement: INSERT INTO {name} SELECT STREAM {items} FROM {from}
statement: INSERT INTO {name} STORE KEY AS {format} VALUE AS {format} SELECT TABLE {items} FROM {from}
statement: SET defaults.topic.autocreate = true
statement: SET {setting} = {literal}
statement: STOP PROCESSOR {name}
statement: START PROCESSOR {name}
statement: INSERT INTO {relation} (_key, _value) VALUES ({literal}, NULL)
statement: USE {name}
statement: CREATE VIEW {name} AS {query}
statement: ALTER TABLE {relation} ADD COLUMN {name} {type}
statement: SHOW PROCESSORS
query: SELECT STREAM {items} FROM {from}
query: SELECT TABLE {items} FROM {from} WHERE {condition}
query: SELECT STREAM {column}, {call} FROM {relation} WINDOW BY TUMBLE {literal} GROUP BY {column}
query: SELECT STREAM {column} AS _key, _value.{column} AS a.b FROM {relation} EVENTTIME BY {column}
query: SELECT {items} FROM {relation} WHERE _meta.partition = {literal} AND _meta.timestamp > {literal} LIMIT {literal}
query: WITH {name} AS ({query}); INSERT INTO {name} {query}
from: {relation} AS a {join} JOIN {relation} AS b ON a._key = b._key WITHIN {span}
from: {relation} AS a INNER JOIN (SELECT TABLE {items} FROM {relation}) AS b ON {condition} WITHIN {span} GRACE PERIOD {span}
from: {relation} LATERAL {column} AS l
span: 5m
span: 1h
span: 99999999999999d
format: INT
format: AVRO
format: JSON
format: STRING
format: NOTHING
setting: defaults.topic.partitions
setting: processing.guarantee
setting: topic.orders.cleanup.policy
setting: rocksdb.block.cache
type: string
type: long
type: decimal(10, 2)
column: _key
column: _value
column: _key.a
column: _meta.offset
column: a.b.c
""",
}

_SYMBOL = re.compile(r"\{(\w+)\}")
_TOKEN = re.compile(r"\w+|'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|\$\$|\s+|.", re.DOTALL)
_DEPTH = 5
#: Only shorter statements become long or deep.
_MOST_TOKENS = 200
_ODD = (
    "☃", "\u202e", "\x00", "\ufeff", "'", '"', "`", "$$", "--", "/*", "*/", ";", "::", "->", "=>", "?", "$1", "\\",
    "{", "}", "[", "]", "((((", "))))", "0x", "1e", "1.2.3", "-", "..", "@x", "#", "%", "~", "^", "İ", "ﬀ", "😀",
    "x" * 300, "9" * 400, "NULL", "NOT", "AS", "FROM", "SELECT", "(", ")", ",", ".", "=", "*",
)  # fmt: skip


@cache
def rules(dialect: str) -> dict[str, list[str]]:
    """The texts of each symbol."""
    found = defaultdict[str, list[str]](list)
    for line in f"{COMMON}\n{OWN[dialect]}".split("\n"):
        symbol, _, text = line.partition(": ")
        if text:
            found[symbol].append(text)
    found["example"] = examples_of_the_page()
    for connector, _, known in option_sets():
        for spec in known.shown:
            found["option"].append(f"{spec.name} = {{literal}}")
            found["own_option"].append(f"{spec.name.upper()} {{literal}}")
        found["options"].append(f"connector = '{connector.split(',')[0]}', {{option}}, {{option}}")
    found["settings"] = ["{own_option}", "{own_option}, {own_option}"]
    return found


class Statements:
    """Makes statements of a dialect."""

    def __init__(self, dialect: str, source: random.Random) -> None:
        self.random = source
        self._rules = rules(dialect)
        self._entries = [e.text for t in topics() if t.system == dialect for e in t.entries]

    def statement(self) -> str:
        """A statement, in half of the cases a damaged one."""
        r = self.random
        text = r.choice(self._entries) if self._entries and r.random() < 0.3 else self._grown("statement", _DEPTH)
        if r.random() < 0.5:
            tokens = _TOKEN.findall(text)
            for _ in range(r.choice((1, 1, 1, 2, 3))):
                r.choice(_DAMAGES)(self, tokens)
            text = "".join(tokens)
        return text

    def _grown(self, symbol: str, depth: int) -> str:
        texts = self._rules[symbol]
        text = self.random.choice(texts)
        if depth <= 0:
            text = min(self.random.sample(texts, min(len(texts), 3)), key=lambda t: t.count("{"))
        if depth < -_DEPTH:
            return "x"
        return _SYMBOL.sub(lambda m: self._grown(m[1], depth - 1), text)

    def _place(self, tokens: list[str]) -> int:
        places = [i for i, t in enumerate(tokens) if not t.isspace()]
        return self.random.choice(places) if places else 0

    def _drop(self, tokens: list[str]) -> None:
        if tokens:
            del tokens[self._place(tokens)]

    def _double(self, tokens: list[str]) -> None:
        if tokens:
            i = self._place(tokens)
            tokens[i : i + 1] = [tokens[i], " ", tokens[i]]

    def _swap(self, tokens: list[str]) -> None:
        if tokens:
            i, k = self._place(tokens), self._place(tokens)
            tokens[i], tokens[k] = tokens[k], tokens[i]

    def _odd(self, tokens: list[str]) -> None:
        tokens.insert(self._place(tokens), f" {self.random.choice(_ODD)} ")

    def _replaced(self, tokens: list[str]) -> None:
        if tokens:
            symbol = self.random.choice(("literal", "expr", "type", "word", "query", "column", "condition", "kind"))
            tokens[self._place(tokens)] = self._grown(symbol, 2)

    def _cut(self, tokens: list[str]) -> None:
        del tokens[self._place(tokens) :]

    def _deep(self, tokens: list[str]) -> None:
        if 0 < len(tokens) < _MOST_TOKENS:
            i, n = self._place(tokens), self.random.choice((3, 40, 400))
            begin, end = self.random.choice(
                (("(", ")"), ("NOT ", ""), ("- ", ""), ("(SELECT ", ")"), ("CASE WHEN true THEN ", " END"), ("[", "]"))
            )
            tokens[i : i + 1] = _TOKEN.findall(begin * n + tokens[i] + end * n)

    def _long(self, tokens: list[str]) -> None:
        if 0 < len(tokens) < _MOST_TOKENS:
            i = self._place(tokens)
            sign = self.random.choice((", ", " + ", " AND ", ".", " UNION ALL "))
            tokens[i : i + 1] = _TOKEN.findall(sign.join([tokens[i]] * 300))


_DAMAGES: tuple[Callable[[Statements, list[str]], None], ...] = (
    Statements._drop,
    Statements._double,
    Statements._swap,
    Statements._odd,
    Statements._replaced,
    Statements._replaced,
    Statements._cut,
    Statements._deep,
    Statements._long,
)
