"""Typed scalars, sort keys and aggregate calls; comparisons, the effect of NULLs, and types determined by DuckDB.

DuckDB evaluates the expressions of views, so the `Oracle` uses it to determine the type of an expression and the value
of a constant.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import duckdb
import pyarrow as pa
from sqlglot import exp

from watersmeet.errors import again
from watersmeet.system import duckdbs
from watersmeet.values.types import (
    BIGINT,
    BOOLEAN,
    BYTEA,
    DATE,
    DOUBLE,
    INTEGER,
    INTERVAL,
    JSONB,
    NUMERIC,
    REAL,
    SMALLINT,
    TIME,
    TIMESTAMP,
    TIMESTAMPTZ,
    VARCHAR,
    SqlType,
)


@dataclass(frozen=True, slots=True)
class Scalar:
    """An expression with its type and nullability. Scalars are compared and hashed by value."""

    expression: exp.Expression
    type: SqlType
    nullable: bool = True

    @property
    def columns(self) -> frozenset[str]:
        """The ids of the columns that it reads."""
        return frozenset(c.name for c in self.expression.find_all(exp.Column))

    @property
    def column(self) -> str | None:
        """The id if the expression is a plain column; else None."""
        return self.expression.name if isinstance(self.expression, exp.Column) else None

    @property
    def cast_column(self) -> str | None:
        """The id if the expression is a column, possibly inside casts; else None."""
        node = self.expression.unnest()
        while isinstance(node, exp.Cast):
            node = node.this.unnest()
        return node.name if isinstance(node, exp.Column) else None

    def sql(self) -> str:
        """DuckDB SQL with the column ids as quoted identifiers."""
        return str(self.expression.sql(dialect="duckdb"))

    def substitute(self, mapping: Mapping[str, exp.Expression]) -> Scalar:
        """The scalar with each column of `mapping` replaced by a copy of its expression."""

        def replace(node: exp.Expression) -> exp.Expression:
            if isinstance(node, exp.Column) and node.name in mapping:
                new = mapping[node.name].copy()
                return new if isinstance(new, (exp.Column, exp.Literal, exp.Null)) else exp.paren(new, copy=False)
            return node

        return Scalar(self.expression.transform(replace), self.type, self.nullable)


def null_of(kind: SqlType) -> Scalar:
    """NULL as a value of a type."""
    return Scalar(exp.cast(exp.null(), kind.duckdb, dialect="duckdb"), kind)


def column_ref(column_id: str) -> exp.Column:
    """The expression that reads the column `column_id`."""
    return exp.column(exp.to_identifier(column_id, quoted=True))


def conjuncts(predicate: Scalar | None) -> list[Scalar]:
    """The parts of a predicate that AND combines; empty for None."""
    return [] if predicate is None else _parts(predicate, exp.And)


def disjuncts(predicate: Scalar) -> list[Scalar]:
    """The parts of a predicate that OR combines; without OR the predicate itself."""
    return _parts(predicate, exp.Or)


def _parts(predicate: Scalar, connector: type[exp.Connector]) -> list[Scalar]:
    parts: list[Scalar] = []
    stack = [predicate.expression]
    while stack:
        node = stack.pop()
        if isinstance(node, exp.Paren):
            stack.append(node.this)
        elif isinstance(node, connector):
            stack.extend([node.right, node.left])
        else:
            parts.append(Scalar(node, BOOLEAN, predicate.nullable))
    return parts


def conjunction(parts: list[Scalar]) -> Scalar | None:
    """The AND of `parts`; None if there are no parts."""
    if not parts:
        return None
    expression = exp.and_(*[p.expression for p in parts], copy=True)
    return Scalar(expression, BOOLEAN, any(p.nullable for p in parts))


Comparison = Literal["<", "<=", ">", ">="]
_Node = type[exp.Expression]
SIGNS: Final[dict[_Node, Comparison]] = {exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">="}

#: `b op a` for `a op b`.
MIRRORED_SIGNS: Final[dict[Comparison, Comparison]] = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}

MIRRORED: Final[dict[_Node, _Node]] = {
    exp.LT: exp.GT,
    exp.GT: exp.LT,
    exp.LTE: exp.GTE,
    exp.GTE: exp.LTE,
    exp.EQ: exp.EQ,
}

#: The negated comparison, which is true for non-NULL values if the comparison is false.
NEGATED: Final[dict[_Node, _Node]] = {exp.LT: exp.GTE, exp.LTE: exp.GT, exp.GT: exp.LTE, exp.GTE: exp.LT}


@dataclass(frozen=True, slots=True)
class SortKey:
    """One key of an order. PostgreSQL's default for `nulls_first` is the value of `descending`."""

    value: Scalar
    descending: bool = False
    nulls_first: bool = False

    def changed(self, change: Callable[[Scalar], Scalar]) -> SortKey:
        """The key with another expression."""
        return replace(self, value=change(self.value))


AggregateFunction = Literal[
    "count", "sum", "avg", "min", "max", "bool_and", "bool_or", "var_pop", "var_samp", "stddev_pop", "stddev_samp",
    "array_agg", "string_agg", "jsonb_agg", "jsonb_object_agg", "first_value", "last_value", "mode",
    "percentile_cont", "percentile_disc", "bit_and", "bit_or", "bit_xor",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class AggregateCall:
    """`function(argument, extra … ORDER BY order) FILTER (WHERE filter)`. The argument of count(*) is None.

    order: the keys of ORDER BY in the call, or of WITHIN GROUP.
    extra: the value of jsonb_object_agg, or the delimiter of string_agg if it is not `constant`. constant: the
    delimiter of string_agg, or the fraction of percentile_cont and percentile_disc.
    """

    function: AggregateFunction
    argument: Scalar | None
    filter: Scalar | None
    distinct: bool
    type: SqlType
    extra: tuple[Scalar, ...] = ()
    order: tuple[SortKey, ...] = ()
    constant: str | float | None = None

    @property
    def scalars(self) -> tuple[Scalar, ...]:
        """All expressions that it reads."""
        found = (self.argument, *self.extra, *(key.value for key in self.order), self.filter)
        return tuple(s for s in found if s is not None)

    def changed(self, change: Callable[[Scalar], Scalar]) -> AggregateCall:
        """The call with each of its expressions replaced."""
        argument, condition = (None if s is None else change(s) for s in (self.argument, self.filter))
        order = tuple(replace(key, value=change(key.value)) for key in self.order)
        return replace(self, argument=argument, filter=condition, extra=tuple(map(change, self.extra)), order=order)


_NONE: Final = frozenset[str]()

#: Nodes that are NULL if one of their operands is NULL.
_STRICT: Final = (
    exp.Add, exp.Sub, exp.Mul, exp.Div, exp.IntDiv, exp.Mod, exp.Neg, exp.Paren,
    exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.Like, exp.ILike,
    exp.Lower, exp.Upper, exp.Length, exp.Abs, exp.Floor, exp.Ceil, exp.Not,
)  # fmt: skip


def strict_columns(node: exp.Expression) -> frozenset[str]:
    """The columns that each make the expression NULL if they are NULL. Arguments of unknown functions do not count.

    >>> from sqlglot import parse_one
    >>> sorted(strict_columns(parse_one("CAST(a + 1 AS INT) * COALESCE(b, c)")))
    ['a']
    """
    if isinstance(node, exp.Column):
        return frozenset([node.name])
    if isinstance(node, exp.Cast):
        return strict_columns(node.this)
    if isinstance(node, exp.Coalesce):
        operands = [node.this, *node.expressions]
        return frozenset.intersection(*[strict_columns(o) for o in operands])
    if isinstance(node, (exp.JSONExtract, exp.JSONExtractScalar, exp.Dot, exp.Bracket, exp.In)):
        return strict_columns(node.this)
    if isinstance(node, exp.Anonymous) and node.name == duckdbs.JSON_TEXT:
        return strict_columns(node.expressions[0])
    if isinstance(node, exp.Between):
        return strict_columns(node.this)
    if isinstance(node, _STRICT):
        return _NONE.union(*[strict_columns(o) for o in _operands(node)])
    return _NONE


def rejected_columns(predicate: Scalar) -> frozenset[str]:
    """The columns that each prevent the predicate from being true if they are NULL.

    >>> from sqlglot import parse_one
    >>> from watersmeet.values.types import BOOLEAN
    >>> sorted(rejected_columns(Scalar(parse_one("a > 1 AND (b = 2 OR b = c) AND NOT d IS NULL"), BOOLEAN)))
    ['a', 'b', 'd']
    """
    return _never(predicate.expression, outcome=True)


def _never(node: exp.Expression, *, outcome: bool) -> frozenset[str]:
    """The columns that each prevent `node` from having the value `outcome` if they are NULL."""
    if isinstance(node, exp.Paren):
        return _never(node.this, outcome=outcome)
    if isinstance(node, exp.Not):
        return _never(node.this, outcome=not outcome)
    if isinstance(node, (exp.And, exp.Or)):
        left, right = _never(node.left, outcome=outcome), _never(node.right, outcome=outcome)
        return left | right if isinstance(node, exp.And) == outcome else left & right
    if isinstance(node, exp.Is):
        if isinstance(node.expression, exp.Null):
            return _NONE if outcome else strict_columns(node.this)
        if isinstance(node.expression, exp.Boolean):  # IS TRUE and IS FALSE are never true of NULL
            return strict_columns(node.this) if outcome else _NONE
        return _NONE
    return strict_columns(node)


def _operands(node: exp.Expression) -> list[exp.Expression]:
    found = []
    for value in node.args.values():
        found += [v for v in (value if isinstance(value, list) else [value]) if isinstance(v, exp.Expression)]
    return found


_CACHED: Final = 4096

_SCALARS: Final[dict[str, SqlType]] = {
    "boolean": BOOLEAN, "tinyint": SMALLINT, "smallint": SMALLINT, "integer": INTEGER, "bigint": BIGINT,
    "utinyint": SMALLINT, "usmallint": INTEGER, "uinteger": BIGINT, "ubigint": NUMERIC, "hugeint": NUMERIC,
    "uhugeint": NUMERIC, "bignum": NUMERIC, "float": REAL, "double": DOUBLE, "decimal": NUMERIC, "varchar": VARCHAR,
    "blob": BYTEA, "date": DATE, "time": TIME, "timestamp": TIMESTAMP, "timestamp_s": TIMESTAMP,
    "timestamp_ms": TIMESTAMP, "timestamp_ns": TIMESTAMP, "timestamp with time zone": TIMESTAMPTZ,
    "interval": INTERVAL, "uuid": VARCHAR, "json": JSONB, "sqlnull": VARCHAR,
}  # fmt: skip

#: DuckDB's types that have another name in SQL.
_EXACT: Final[dict[str, SqlType | None]] = {
    **_SCALARS,
    "ubigint": SqlType("numeric", 38, 0), "hugeint": SqlType("numeric", 38, 0), "uhugeint": SqlType("numeric", 38, 0),
    "bignum": None, "timestamp_s": None, "timestamp_ms": None, "timestamp_ns": None, "sqlnull": None,
}  # fmt: skip


def sql_type(kind: Any, *, exact: bool = False) -> SqlType | None:
    """The SQL type for a type object of DuckDB's Python client, or None.

    Decimals of any precision become `numeric`, so the caller must cast the expression. exact: whether to return the
    type of DuckDB's values without a cast, with the precision and scale of decimals.
    """
    if str(kind).upper() == "JSON":
        return JSONB
    name = str(kind.id).lower()
    if name == "list":
        element = sql_type(kind.children[0][1], exact=exact)
        return None if element is None else SqlType("array", element=element)
    if name == "struct":
        fields = [(str(n), sql_type(k, exact=exact)) for n, k in kind.children]
        known = tuple((n, k) for n, k in fields if k is not None and n)  # fields of list_zip's structs have no names
        return SqlType("struct", fields=known) if len(known) == len(fields) else None
    if exact and name == "decimal":
        digits = dict(kind.children)
        return SqlType("numeric", digits["precision"], digits["scale"])
    return (_EXACT if exact else _SCALARS).get(name)


@contextmanager
def _readable() -> Iterator[None]:
    """Replaces the error for a message that DuckDB truncated inside a character, so that Python can't decode it."""
    try:
        yield
    except UnicodeDecodeError:
        raise duckdb.InvalidInputException("Invalid Input Error: a text is malformed") from None


#: The types of the functions of sequences, which `database.sessions.sequences` defines where a query runs.
_SEQUENCES: Final = """
    CREATE MACRO watersmeet_nextval(s, r) AS CAST(1 AS BIGINT); CREATE MACRO watersmeet_lastval(r) AS CAST(1 AS BIGINT);
    CREATE MACRO watersmeet_currval(s, r) AS CAST(1 AS BIGINT);
    CREATE MACRO watersmeet_setval(s, n, c) AS CAST(n AS BIGINT)
"""


class Oracle:
    """An in-memory DuckDB connection with cached answers. It is thread-safe.

    external_access: whether `columns_of` may read files.
    """

    def __init__(self, *, external_access: bool = False) -> None:
        self._external_access = external_access
        self._lock = threading.Lock()
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._types: OrderedDict[str, Any] = OrderedDict()
        self._functions: dict[str, tuple[str, str]] | None = None

    def _connect(self) -> duckdb.DuckDBPyConnection:
        if self._connection is None:
            self._connection = duckdbs.connect(memory_limit="200MB", external_access=self._external_access)
            self._connection.execute(_SEQUENCES)
        return self._connection

    def type_of(self, sql: str) -> tuple[SqlType | None, str]:
        """The type of a DuckDB expression without columns, and DuckDB's name of the type. Raises duckdb.Error."""
        kind = self._asked(sql)
        return sql_type(kind), str(kind)

    def exact_type_of(self, sql: str) -> SqlType | None:
        """The type of the values of a DuckDB expression, possibly with a FROM; None without a SQL type or on errors."""
        try:
            return sql_type(self._asked(sql), exact=True)
        except duckdb.Error:
            return None

    def _asked(self, sql: str) -> Any:
        """DuckDB's own type. Raises duckdb.Error."""
        with self._lock:
            found = self._types.get(sql)
            if found is None:
                try:
                    found = self._connect().sql(f"SELECT {sql}").types[0]
                except duckdb.Error as err:
                    found = err
                self._types[sql] = found
                if len(self._types) > _CACHED:
                    self._types.popitem(last=False)
        if isinstance(found, duckdb.Error):
            raise again(found)
        return found

    def constant(self, sql: str) -> Any:
        """The value of a DuckDB expression without columns. Raises duckdb.Error, also if Python can't represent the
        value.
        """
        with self._lock, _readable():
            try:
                row = self._connect().execute(f"SELECT {sql}").fetchone()
            except OverflowError as cause:  # an interval with more days than a timedelta can have
                raise duckdb.OutOfRangeException(f"Out of Range Error: {cause}") from None
        assert row is not None
        return row[0]

    def arrow_constant(self, sql: str) -> pa.Scalar:
        """The value as an Arrow scalar, which keeps the parts of intervals."""
        with self._lock, _readable():
            return self._connect().execute(f"SELECT {sql}").to_arrow_table().column(0)[0]

    def columns_of(self, source: str) -> list[tuple[str, SqlType | None, str]]:
        """The columns of an item of FROM: name, type, DuckDB's name of the type. Not cached. Raises duckdb.Error."""
        with self._lock:
            found = self._connect().sql(f"SELECT * FROM {source}")
            return [(n, sql_type(t), str(t)) for n, t in zip(found.columns, found.types, strict=True)]

    def functions(self) -> dict[str, tuple[str, str]]:
        """The kind (scalar, aggregate, table, macro …) and the stability of each DuckDB function."""
        with self._lock:
            if self._functions is None:
                rows = (
                    self._connect()
                    .execute(
                        "SELECT function_name, min(function_type), max(coalesce(stability, 'CONSISTENT')) "
                        "FROM duckdb_functions() GROUP BY 1"
                    )
                    .fetchall()
                )
                self._functions = {name: (kind, stability) for name, kind, stability in rows}
            return self._functions


ORACLE: Final = Oracle()
