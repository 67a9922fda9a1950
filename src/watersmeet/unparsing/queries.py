"""Batch queries: the translation of a parsed query to DuckDB SQL over the current content, its limits and its
errors.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import duckdb
import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from watersmeet.algebra.bounded import TopicScan
from watersmeet.binder.batch import QueryFacts, bind_batch_query
from watersmeet.catalog import Catalog, Relation
from watersmeet.connectors.base.sources import Pushdown
from watersmeet.dialects.tree.queries import depth_checked
from watersmeet.errors import Error, Span, error
from watersmeet.expressions.casts import NO_INTEGER
from watersmeet.expressions.context import FAILURES, NO_NULLS, first_line
from watersmeet.store.inplace import Needed
from watersmeet.unparsing.pushdown import ValueLookup, looked_up, pushed_down, stored_reads, value_lookup
from watersmeet.unparsing.relations import Writer
from watersmeet.unparsing.texts import quoted
from watersmeet.values import DEFAULT_DIALECT
from watersmeet.values.calledfunctions import called_in
from watersmeet.values.times import NO_TIME
from watersmeet.values.types import Field, Schema


@dataclass(frozen=True)
class QuerySql(QueryFacts):
    """The DuckDB SQL of a batch query. topics: the topics that it reads, with at least one column each.

    pushdowns: columns and conditions for external tables. lookups: the columns by which it looks up rows, as (relation
    id, column). only: the look-up of which it consists, if it does nothing else. reads: returns what it reads of each
    stored relation, as in `stored_reads`.
    """

    sql: str
    columns: Schema
    pushdowns: tuple[Pushdown, ...] = field(default=(), kw_only=True)
    lookups: tuple[tuple[str, str], ...] = field(default=(), kw_only=True)
    only: ValueLookup | None = field(default=None, kw_only=True)
    reads: Callable[[], dict[str, Needed]] = field(default=dict, kw_only=True, compare=False)


def to_duckdb(
    query: exp.Expression,
    catalog: Catalog,
    text: str,
    dialect: str = DEFAULT_DIALECT,
    *,
    relation_name: Callable[[Relation], str] = lambda r: r.shown,
    files: bool = True,
) -> QuerySql:
    """The DuckDB SQL of a batch query.

    text: the text to which the spans in `query` refer. relation_name: returns the DuckDB relation with the content of a
    table or materialized view, which has the relation's column names. files: whether the query may read files. The
    result's columns have the names (which may repeat) and types of `columns`. Raises the errors of `bind_query`.
    """
    found = bind_batch_query(query, catalog, text, dialect, files=files)
    columns = tuple(Field(o.column.name, o.column.type, o.column.nullable) for o in found.bound.outputs)
    with depth_checked(text):
        writer = Writer(lambda i: relation_name(catalog.relations[i]))
        sql = writer.query(found.bound.relation, [c.name for c in columns])
    facts = {**found.facts, "topics": tuple(_read_in(sql, t) for t in found.topics)}
    tree = found.bound.relation
    return QuerySql(
        sql,
        columns,
        pushdowns=pushed_down(tree, sql, catalog),
        lookups=looked_up(tree, catalog),
        only=value_lookup(tree),
        reads=partial(stored_reads, tree, sql, catalog),
        **facts,
    )


def _read_in(sql: str, scan: TopicScan) -> TopicScan:
    """The scan with the columns that a query reads, determined from its SQL."""
    read = tuple(c for c in scan.outputs if sql.count(quoted(c.id)) > 1)
    return replace(scan, outputs=read or scan.outputs[:1])


#: The limits of characters and joins: planning of larger SQL can't be interrupted soon enough.
_MOST_CHARACTERS: Final = 1 << 20

_MOST_JOINS: Final = 40

#: The maximum growth of one row in a function call, because DuckDB computes 2,048 rows at once.
_MOST_REPEATED: Final = 1000

_MOST_SERIES: Final = 10_000

#: Functions whose single call may take long, or return a large value.
_SLOW: Final = re.compile(
    r"\b(levenshtein|damerau_levenshtein|editdist3|jaro_similarity|jaro_winkler_similarity|jaccard"
    r"|list_resize|array_resize)\s*\(",
    re.IGNORECASE,
)

_LARGE: Final = re.compile(r"\b(repeat|lpad|rpad|generate_series|range)\s*\(", re.IGNORECASE)
_JOIN: Final = re.compile(r"\bJOIN\b")
_EXPLAIN: Final = re.compile(r"^EXPLAIN \([^)]*\) ")
_SERIES: Final = (exp.GenerateSeries, exp.ExplodingGenerateSeries)


def needs_isolation(sql: str, *, columns_are_small: bool = False) -> bool:
    """Whether DuckDB may not be interruptible while it runs the SQL, or exceed its memory limit.

    columns_are_small: whether numbers in columns are small, as in the catalog.
    """
    if len(sql) > _MOST_CHARACTERS or _SLOW.search(sql) or sum(1 for _ in _JOIN.finditer(sql)) > _MOST_JOINS:
        return True
    if not _LARGE.search(sql):
        return False
    try:
        tree = sqlglot.parse_one(_EXPLAIN.sub("", sql), read="duckdb")
    except (SqlglotError, RecursionError):
        return True
    return any(
        not _is_small(call, columns_are_small=columns_are_small)
        for call in tree.find_all(exp.Repeat, exp.Pad, *_SERIES)
    )


def _is_small(call: exp.Expression, *, columns_are_small: bool) -> bool:
    if isinstance(call, _SERIES):
        bounds = [call.args.get("start"), call.args.get("end")]
        if columns_are_small:
            return not any(b is not None and _may_be_large(b) for b in bounds)
        low, high = map(_number, bounds)
        return low is not None and high is not None and not call.args.get("step") and abs(high - low) <= _MOST_SERIES
    times = call.args["times"] if isinstance(call, exp.Repeat) else call.expression
    # The translation checks the number: CASE WHEN … THEN … ELSE number END.
    count = _number(times.args.get("default") if isinstance(times, exp.Case) else times)
    return count is not None and count <= _MOST_REPEATED


def _may_be_large(bound: exp.Expression) -> bool:
    """Whether a bound may exceed the values of columns: it contains a large number, or a product."""
    return bound.find(exp.Mul, exp.Pow) is not None or any(
        not n.is_string and (_number(n) is None or abs(_number(n) or 0) > _MOST_SERIES)
        for n in bound.find_all(exp.Literal)
    )


def _number(value: exp.Expression | None) -> int | None:
    """The number of a literal; None for other expressions."""
    while isinstance(value, (exp.Cast, exp.Paren)):
        value = value.this
    if isinstance(value, exp.Neg):
        found = _number(value.this)
        return None if found is None else -found
    return int(value.name) if isinstance(value, exp.Literal) and value.name.isdecimal() else None


_CONDITIONS: Final[tuple[tuple[type[Exception], str], ...]] = (
    (duckdb.ConversionException, "INVALID_VALUE"),
    (duckdb.OutOfRangeException, "INVALID_VALUE"),
    (duckdb.InvalidInputException, "INVALID_VALUE"),
    (duckdb.ParserException, "INTERNAL_ERROR"),
    (duckdb.CatalogException, "INTERNAL_ERROR"),
    (duckdb.BinderException, "FEATURE_NOT_SUPPORTED"),
    (duckdb.NotImplementedException, "FEATURE_NOT_SUPPORTED"),
    (duckdb.OutOfMemoryException, "OUT_OF_MEMORY"),
    (duckdb.InterruptException, "QUERY_CANCELED"),
    (duckdb.IOException, "INTERNAL_ERROR"),
)

#: DuckDB's words for a value that a type can't represent.
_OUT_OF_RANGE: Final = (
    re.compile(r"^Type \w+ with value (?P<value>.*) can't be cast .*destination type (?P<type>[\w() ,]+?)$", re.DOTALL),
    re.compile(r'^Casting value "(?P<value>.*)" to type (?P<type>.+?) failed: value is out of range$', re.DOTALL),
    re.compile(r"^Could not cast value (?P<value>.*) to (?P<type>DECIMAL\(.+?\))$", re.DOTALL),
)

_UNKNOWN_ZONE: Final = re.compile(r"Unknown TimeZone '(?P<name>.*?)\??'")
_NO_NUMBER: Final = re.compile(r"^Could not convert string '(?P<value>.*)' to (?P<type>[\w(), ]+)$", re.DOTALL)
_TYPE_NAME: Final = re.compile(r"\bINT(?:16|32|64)\b|\bDECIMAL(?=\()")
_SOURCE_COLUMN: Final = re.compile(r"!?\s*when casting from source column \S+$")

_TYPES: Final = {
    "BLOB": "bytea", "BOOL": "boolean", "BOOLEAN": "boolean", "DOUBLE": "double precision", "FLOAT": "real",
    "INT16": "smallint", "INT32": "integer", "INT64": "bigint", "INT128": "uuid", "INTEGER": "integer",
    "SMALLINT": "smallint",
}  # fmt: skip


#: The message about a value that breaks a rule of a domain, in a cast that fails.
_DOMAIN: Final = re.compile(
    rf"(?:value for )?domain [^'\"]+?(?P<check> violates check constraint \"[^\"]+\")|domain [^'\"]+?{NO_NULLS}"
)


def map_duckdb_error(exc: duckdb.Error, text: str, span: Span | None = None) -> Error:
    """The Watersmeet error for an error of DuckDB in a translated query.

    It is INVALID_VALUE for values (casts, overflow), SCALAR_SUBQUERY_ROWS, OUT_OF_MEMORY, FEATURE_NOT_SUPPORTED for
    queries that DuckDB can't plan, or INTERNAL_ERROR for errors of the translation.
    """
    message = first_line(exc)
    if "More than one row returned by a subquery" in str(exc):
        return error(
            "SCALAR_SUBQUERY_ROWS",
            "more than one row returned by a subquery used as an expression",
            sql=text,
            span=span,
        )
    if (domain := _DOMAIN.search(message)) is not None:
        condition = "CHECK_VIOLATION" if domain["check"] else "NOT_NULL_VIOLATION"
        return error(condition, domain[0], sql=text, span=span)
    if (zone := _UNKNOWN_ZONE.search(message)) is not None:
        return error("INVALID_PARAMETER", f'time zone "{zone["name"]}" not recognized', sql=text, span=span)
    if isinstance(exc, duckdb.CatalogException) and any(True for _ in called_in(str(exc))):
        return error(
            "FEATURE_NOT_SUPPORTED",
            "functions of other languages are not supported in this statement",
            sql=text,
            span=span,
            hint="A SELECT and a materialized view can call them.",
        )
    condition = next((c for kind, c in _CONDITIONS if isinstance(exc, kind)), "INTERNAL_ERROR")
    return error(condition, _lower(_worded(message)), sql=text, span=span)


def _worded(message: str) -> str:
    """The message without DuckDB's names of types and of generated columns."""
    if (known := next((f for f in FAILURES if f in message), None)) is not None:
        return known
    message = _SOURCE_COLUMN.sub("", message.rstrip(" .!")).replace(NO_TIME, "")
    for pattern in _OUT_OF_RANGE:
        if (found := pattern.match(message)) is not None:
            return f"value {found['value']} is out of range for type {_sql_type(found['type'])}"
    if (found := _NO_NUMBER.match(message)) is not None:
        value = found["value"].removesuffix(NO_INTEGER)
        return f'invalid input syntax for type {_sql_type(found["type"])}: "{value}"'
    return _TYPE_NAME.sub(lambda m: _sql_type(m[0]), message)


def _sql_type(name: str) -> str:
    return _TYPES.get(name, name.replace("DECIMAL", "numeric").lower())


def _lower(message: str) -> str:
    """The message in Watersmeet's style: it starts in lower case and has no full stop."""
    message = message.rstrip(" .!")
    return message[:1].lower() + message[1:] if message[1:2].islower() else message
