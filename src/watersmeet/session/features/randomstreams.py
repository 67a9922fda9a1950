"""CREATE RANDOM STREAM: rows with random values, which are generated while something reads the stream.

A call of a random function in DEFAULT becomes a column of the source that `*` omits; the column with the DEFAULT is
generated from it. So the rows depend only on their numbers, and a replay generates the same ones.

Timeplus, "CREATE RANDOM STREAM", "Functions for random data".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final

from sqlglot import exp

from watersmeet.catalog import ARRIVAL, TIME_COLUMN, GeneratedColumn, Relation, Source
from watersmeet.database.assignment import default_values, generated_columns
from watersmeet.database.definitions import add, check_columns, may_create, new_relation
from watersmeet.database.sessions.context import Session, located
from watersmeet.database.sessions.result import Result
from watersmeet.dialects.readers import reads
from watersmeet.dialects.timeplus.columns import Column, only_default, read_column
from watersmeet.dialects.timeplus.storage import no_effect, setting_notice, take_clause
from watersmeet.dialects.tree.definitions import CreateRelation
from watersmeet.dialects.tree.queries import node_error, node_span, read_expression
from watersmeet.dialects.tree.statements import Statement
from watersmeet.dialects.tree.tokens import Cursor, not_supported, read_new_name, read_value, span_of
from watersmeet.errors import Span
from watersmeet.expressions.clock import reads_clock
from watersmeet.session.clauses import with_connector
from watersmeet.session.handlers import handles
from watersmeet.values.spans import own_span, set_span
from watersmeet.values.types import BIGINT, DOUBLE, TIMESTAMP, VARCHAR, Field, SqlType

#: Rows per second without the setting `eps`.
_RATE: Final = 1000

#: The greatest values of whole numbers without a DEFAULT, by type.
_GREATEST: Final = {"smallint": (1 << 15) - 1, "integer": (1 << 31) - 1}
_LARGEST: Final = (1 << 63) - 1

#: Random functions: the type of the values, and their options; of those with a length, the option of the argument.
_RANDOM: Final[dict[str, tuple[SqlType, dict[str, str]]]] = {
    **dict.fromkeys(("rand", "rand32"), (BIGINT, {"max": str((1 << 32) - 1)})),
    "rand64": (BIGINT, {"max": str(_LARGEST)}),
    "rand_uniform": (DOUBLE, {}),
    **dict.fromkeys(("random_printable_ascii", "random_string", "random_fixed_string"), (VARCHAR, {})),
}

_NORMAL: Final = "sqrt(-2 * log(1 - rand_uniform(0, 1))) * cos(2 * pi() * rand_uniform(0, 1))"
_UUID: Final = " || '-' || ".join(f"substring(lower(hex(md5(to_string(rand64())))), 1, {n})" for n in (8, 4, 4, 4, 12))

#: The number of a Poisson distribution whose cumulated probability a random number exceeds.
_POISSON: Final = (
    "array_count(p -> p < rand_uniform(0, 1), array_cum_sum(array_map(k -> exp(k * log(a0) - a0 - lgamma(k + 1)), "
    "range(0, to_int64(a0 + 10 * sqrt(a0) + 20)))))"
)


#: Further random functions as expressions over those of `_RANDOM` and their arguments, and the number of these.
_COMPUTED: Final = {
    "rand_normal": (f"a0 + sqrt(a1) * {_NORMAL}", 2),
    "rand_log_normal": (f"exp(a0 + sqrt(a1) * {_NORMAL})", 2),
    "rand_exponential": ("-log(1 - rand_uniform(0, 1)) / a0", 1),
    "rand_bernoulli": ("if(rand_uniform(0, 1) < a0, 1, 0)", 1),
    "rand_poisson": (_POISSON, 1),
    **dict.fromkeys(("uuid", "generate_uuidv4"), (_UUID, 0)),
}

#: The first characters of the names of columns that hold the values of calls; no text can write them.
_HOLDER: Final = "?random"


@dataclass(frozen=True, kw_only=True)
class CreateRandomStream(CreateRelation):
    """`CREATE RANDOM STREAM name (columns) [SETTINGS eps = n]`. options: those of datagen. clocks: DEFAULT expressions
    of the time of a row. digits: their fractional digits of seconds. unlisted: the field of the catalog.
    """

    makes: ClassVar[type[Relation]] = Source

    clocks: Mapping[str, exp.Expression] = field(default_factory=dict)
    digits: Mapping[str, int] = field(default_factory=dict)
    unlisted: tuple[str, ...] = ()


@reads("CREATE RANDOM STREAM", own="random stream")
def read_random_stream(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """The cursor stands after RANDOM STREAM."""
    return _RandomStream(cursor).read(read_new_name(cursor, base))


class _RandomStream:
    """The parts of a CREATE RANDOM STREAM."""

    def __init__(self, cursor: Cursor) -> None:
        self.cursor = cursor
        self.columns: list[Field] = []
        self.held: list[Field] = []
        self.options: dict[str, str] = {}
        self.generated: dict[str, exp.Expression] = {}
        self.clocks: dict[str, exp.Expression] = {}
        self.digits: dict[str, int] = {}
        self.ranges: dict[str, tuple[int, int]] = {}
        self.notices: list[str] = []

    def read(self, made: dict[str, Any]) -> Statement:
        """Reads the columns and settings; the cursor stands after the name."""
        cursor = self.cursor
        cursor.expect("(")
        while not cursor.at(")"):
            self._column(read_column(cursor, [c.name for c in self.columns], has_delta=True))
            if not cursor.take(","):
                break
        cursor.expect(")")
        rate = self._settings()
        if TIME_COLUMN not in [c.name for c in self.columns]:
            self.columns.append(Field(TIME_COLUMN, TIMESTAMP, nullable=False))
        return CreateRandomStream(
            **{**made, "notices": tuple(self.notices)},
            columns=(*self.columns, *self.held),
            options={"connector": "datagen", "datagen.rows.per.second": str(rate), **self.options},
            generated=self.generated,
            arrivals=(*self.clocks, TIME_COLUMN),
            clocks=self.clocks,
            digits=self.digits,
            unlisted=tuple(c.name for c in self.held),
            ranges=self.ranges,
        )

    def _column(self, column: Column) -> None:
        name, kind = column.field.name, column.field.type
        self.columns.append(column.field)
        self.notices += column.notices
        default = only_default(self.cursor, column, "of a random stream")
        if default is not None:
            if reads_clock(default):
                self.clocks[name] = default
                self.digits |= {} if column.kind.digits is None else {name: column.kind.digits}
            else:
                self.generated[name] = self._inlined(self._held(default))
        elif column.kind.choices:
            hint = "Write DEFAULT with an expression, such as ['a', 'b'][1 + rand() % 2]."
            raise not_supported("a random enum", self.cursor.text, span_of(self.cursor.tokens[:1]), hint=hint)
        elif kind.is_integer or kind.name == "numeric":
            least, greatest = column.kind.range or (0, _GREATEST.get(kind.name, _LARGEST))
            self.options |= {f"fields.{name}.min": str(least), f"fields.{name}.max": str(min(greatest, _LARGEST))}

    def _inlined(self, tree: exp.Expression) -> exp.Expression:
        """The expression with the expressions of earlier columns that it reads; a random value stays the same."""
        holder = exp.Paren(this=tree)
        kinds = {c.name: c.type for c in self.columns}
        for column in [c for c in holder.find_all(exp.Column) if c.name in self.generated and not c.table]:
            value: exp.Expression = self.generated[column.name].copy()
            if kinds[column.name].is_numeric:
                value = exp.Cast(this=value, to=exp.DataType.build(kinds[column.name].duckdb, dialect="duckdb"))
            made = exp.Paren(this=value)
            for node in made.walk():
                set_span(node, own_span(column) or node_span(column))
            column.replace(made)
        found: exp.Expression = holder.this
        return found

    def _held(self, tree: exp.Expression) -> exp.Expression:
        """The expression with a column of the source instead of each call of a random function."""
        holder = exp.Paren(this=tree)
        for call in reversed([c for c in holder.find_all(exp.Anonymous) if _name(c) in _COMPUTED]):
            self._compute(call)
        for call in [c for c in holder.find_all(exp.Anonymous) if _name(c) in _RANDOM]:
            kind, options = _RANDOM[_name(call)]
            number = len(self.held)
            held = Field(f"{_HOLDER}{number}", kind, nullable=False)
            self.held.append(held)
            given = {**options, **self._arguments(call, kind), "seed": str(number)}
            self.options |= {f"fields.{held.name}.{option}": value for option, value in given.items()}
            column = exp.column(exp.to_identifier(held.name, quoted=True))
            set_span(column, own_span(call) or node_span(call))
            call.replace(column)
        found: exp.Expression = holder.this
        return found

    def _compute(self, call: exp.Anonymous) -> None:
        """Replaces the call of a function of `_COMPUTED`. Raises FEATURE_NOT_SUPPORTED for missing arguments."""
        text, count = _COMPUTED[_name(call)]
        grammar, span = self.cursor.grammar, own_span(call) or node_span(call)
        assert grammar is not None
        if len(call.expressions) < count:
            message = f"this call of {_name(call)} is not supported"
            hint = f"It takes {count} number{'s' if count > 1 else ''}."
            raise node_error(self.cursor.text, call, "FEATURE_NOT_SUPPORTED", message, hint=hint)
        made = exp.Paren(this=read_expression(grammar.tokenize(text), text, grammar))
        for node in made.walk():
            set_span(node, span)
        for column in [c for c in made.find_all(exp.Column) if c.name[1:].isdecimal()]:
            column.replace(exp.Paren(this=call.expressions[int(column.name[1:])].copy()))
        call.replace(made)

    def _arguments(self, call: exp.Anonymous, kind: SqlType) -> dict[str, str]:
        """The options for the arguments of a call, which are literals. Raises FEATURE_NOT_SUPPORTED."""
        names = {"varchar": ("length",), "double precision": ("min", "max")}.get(kind.name, ())
        if not names:
            return {}  # `rand(1)`: the argument only tells calls apart
        if len(call.expressions) != len(names) or not all(isinstance(a, exp.Literal) for a in call.expressions):
            hint = f"It takes {len(names)} number{'s' if len(names) > 1 else ''}."
            raise node_error(
                self.cursor.text,
                call,
                "FEATURE_NOT_SUPPORTED",
                f"this call of {_name(call)} is not supported",
                hint=hint,
            )
        return {name: argument.name for name, argument in zip(names, call.expressions, strict=True)}

    def _settings(self) -> int:
        """Reads SETTINGS and clauses of storage to the end: the rows per second."""
        cursor, rate, given = self.cursor, _RATE, False
        while not cursor.done:
            if cursor.take("SETTINGS"):
                while True:
                    name, span = cursor.name(reserved=True), span_of(cursor.rest[1:2] or cursor.tokens)
                    cursor.expect("=")
                    value = read_value(cursor)
                    if name.name == "eps":
                        rate, given = self._rate(value, span), True
                    elif name.name == "interval_time":
                        reason = "each epoch generates the rows since the last one"
                        self.notices.append(no_effect("setting interval_time", reason))
                    elif (notice := setting_notice(name.name)) is not None:
                        self.notices.append(notice)
                    else:
                        hint = "eps sets the rows per second."
                        raise not_supported(
                            f"setting {name.name} of a random stream", cursor.text, name.span, hint=hint
                        )
                    if not cursor.take(","):
                        break
            elif (notices := take_clause(cursor)) is not None:
                self.notices += notices
            else:
                raise cursor.error()
        if not given:
            self.notices.append(
                f"without the setting eps the stream has {_RATE} rows per second, not as many as possible"
            )
        return rate

    def _rate(self, value: str, span: Span) -> int:
        try:
            rate = math.ceil(float(value))
        except (ValueError, OverflowError):
            rate = 0
        if rate <= 0:
            raise self.cursor.error_at(
                span, "INVALID_PARAMETER", f'setting eps can\'t be "{value}"', hint="It is a number above 0."
            )
        if rate != float(value):
            self.notices.append(f"eps = {value} means {rate} here: rows per second are whole numbers")
        return rate


def _name(call: exp.Anonymous) -> str:
    """The function that a call names, as in Timeplus."""
    return str(call.this).lower().removeprefix("$")


@handles(CreateRandomStream)
def create_random_stream(session: Session, statement: CreateRandomStream) -> Result:
    """An append stream whose rows datagen generates. Raises CONNECTOR_OPTION for a column that can't be random."""
    if not may_create(session, statement, statement.name, statement.name_span, statement.if_not_exists):
        return Result("CREATE RANDOM STREAM")
    check_columns(statement.columns, statement)
    generated: dict[str, GeneratedColumn]
    generated, functions = generated_columns(session, statement)
    clocks = default_values(replace(statement, declared=statement.clocks), statement.digits)
    for name in [name for name, value in clocks.items() if value != ARRIVAL]:
        raise not_supported(
            "DEFAULT of a random stream that computes with the clock",
            statement.text,
            node_span(statement.clocks[name]),
            hint="Write now() or now64(), and compute with it in the query.",
        )
    ignored = session.connectors == "ignored"
    with located(statement, statement.name_span):
        relation: Source = new_relation(
            session,
            statement,
            Source,
            statement.columns,
            append_only=True,
            connector={} if ignored else dict(statement.options),
            defaults={**clocks, **dict.fromkeys(statement.arrivals, ARRIVAL)},
            ranges=dict(statement.ranges),
            generated=generated,
            functions=functions,
            unlisted=statement.unlisted,
        )
        relation = with_connector(session, relation) if relation.connector else relation
    add(session, relation)
    return Result("CREATE RANDOM STREAM")
