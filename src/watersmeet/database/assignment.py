"""Assignment: converts values of queries and expressions to the types of a table's columns by PostgreSQL's rules.

It also handles DEFAULT, generated columns, and the rows that UPDATE, DELETE and MERGE change.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

import duckdb
from sqlglot import exp

from watersmeet.algebra.scalars import column_ref
from watersmeet.binder.context.scope import ScopeColumn, ScopeContext, single
from watersmeet.binder.sqlfunctions import inlined
from watersmeet.catalog import (
    ARRIVAL,
    GeneratedColumn,
    Merging,
    Relation,
    one,
)
from watersmeet.connectors import registry as connectors
from watersmeet.database.reading import BatchQuery, batch_query, converted, omitted, table_tree
from watersmeet.database.rowchecks import FLAG
from watersmeet.database.sessions.context import Session, error_at
from watersmeet.dialects.tree.definitions import CreateRelation, CreateStream, MergeClauses
from watersmeet.dialects.tree.nodes import CommaJoin
from watersmeet.dialects.tree.queries import is_default, name_of, node_span
from watersmeet.dialects.tree.statements import Name, Statement, Update
from watersmeet.dialects.tree.tokens import not_supported
from watersmeet.errors import Span, did_you_mean
from watersmeet.expressions.casts import cast
from watersmeet.expressions.clock import is_clock
from watersmeet.expressions.context import Context, Value, columns_of, decimal_literal, first_line
from watersmeet.expressions.scalars import bind_value
from watersmeet.store.changes import quoted
from watersmeet.values.spans import own_span, set_span
from watersmeet.values.types import BOOLEAN, NUMERIC, VARCHAR, Field, Schema, SqlType

_TREE_TYPES: Final[dict[str, exp.DataType.Type]] = {
    "boolean": exp.DataType.Type.BOOLEAN,
    "smallint": exp.DataType.Type.SMALLINT,
    "integer": exp.DataType.Type.INT,
    "bigint": exp.DataType.Type.BIGINT,
    "real": exp.DataType.Type.FLOAT,
    "double precision": exp.DataType.Type.DOUBLE,
    "varchar": exp.DataType.Type.VARCHAR,
    "bytea": exp.DataType.Type.VARBINARY,
    "date": exp.DataType.Type.DATE,
    "time": exp.DataType.Type.TIME,
    "timestamp": exp.DataType.Type.TIMESTAMP,
    "timestamptz": exp.DataType.Type.TIMESTAMPTZ,
    "interval": exp.DataType.Type.INTERVAL,
    "jsonb": exp.DataType.Type.JSONB,
    "json": exp.DataType.Type.JSON,
    "uuid": exp.DataType.Type.UUID,
}

#: The maximum number of digits for which a number is the same whether it is read directly or as numeric.
_PLAIN_DIGITS: Final = {"real": 8, "double precision": 11, "numeric": 11}

_DATES: Final = ("date", "timestamp", "timestamptz")
_DOCUMENTS: Final = ("json", "jsonb")


NO_DEFAULTS: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True)
class Target:
    """A column that a statement assigns, with its position in the text.

    epoch_ms: whether a timestamp may also be given in whole milliseconds since 1970, as for the time of a topic's
    records. path: for a field of a column, the names from the column to the field; `column` is then the field. ignored:
    whether the column gets its default instead of the value.
    """

    column: Field
    span: Span | None = None
    epoch_ms: bool = False
    path: tuple[str, ...] = ()
    ignored: bool = False

    @property
    def place(self) -> tuple[str, ...]:
        """The names from the column to the field."""
        return self.path or (self.column.name,)

    def takes(self, kind: SqlType) -> bool:
        """Whether values of the type can be assigned."""
        return (self.epoch_ms and kind.is_integer) or _is_assignable(kind, self.column.type)

    def converted(self, sql: str, kind: SqlType, zone: str) -> str:
        """DuckDB SQL for the column's value, from the SQL for a value of type `kind`. zone: that of the session."""
        if self.epoch_ms and kind.is_integer:
            return f"make_timestamp(CAST({sql} AS BIGINT) * 1000)"
        return converted(sql, kind, self.column.type, zone=zone)

    def typed(self, value: exp.Expression, *, numbers: bool = False, always: bool = False) -> exp.Expression:
        """`value`, cast to the column's type if it is an untyped literal (a string, NULL, ROW(…), an empty array) or a
        number with more digits than numeric has. numbers: whether to cast every number. always: whether to also cast a
        number for a float column, because it is not a parameter.
        """
        if always and not _is_open(value) and not isinstance(value, (exp.Placeholder, exp.Parameter)):
            return _cast(value, self.column.type, value)
        return _typed(value, self.column.type, numbers=numbers)

    def needs_numbers(self, values: Sequence[exp.Expression]) -> bool:
        """Whether the numbers among the column's values must be cast to its type, because one has more digits than
        numeric, so that no common type represents all of them.
        """
        return self.column.type.name == "numeric" and any(_number_text(v, self.column.type) for v in values)


def typed_query(tree: exp.Expression, targets: Sequence[Target]) -> exp.Expression:
    """The query of an INSERT with each untyped literal cast to the type of its column."""
    tree = tree.copy()
    if isinstance(tree, exp.Values):
        rows = [row.expressions if isinstance(row, exp.Tuple) else [] for row in tree.expressions]
        for place, target in enumerate(targets):
            cells = [row[place] for row in rows if place < len(row)]
            numbers = target.needs_numbers(cells)
            texts = target.column.type == VARCHAR  # accepts values of any type
            for cell in cells:
                _replace(cell, target, numbers=numbers, always=texts)
    elif isinstance(tree, exp.Select) and not any(isinstance(e, exp.Star) or e.is_star for e in tree.expressions):
        for item, target in zip(tree.expressions, targets, strict=False):
            _replace(item.this if isinstance(item, exp.Alias) else item, target)
    return tree


@dataclass(frozen=True)
class Filled:
    """The query of an INSERT with NULL in the places of DEFAULT.

    targets: those of its first columns, without columns that are DEFAULT in each row. flagged: the columns of the
    table that are DEFAULT in some rows; for each the query has a further column, which is true in these rows. rows:
    whether it has one more column, because each value is DEFAULT.
    """

    tree: exp.Expression
    targets: tuple[Target, ...]
    flagged: tuple[str, ...] = ()
    rows: bool = False

    @property
    def beside(self) -> int:
        """The number of the query's columns that are no values."""
        return len(self.flagged) + self.rows


def without_defaults(tree: exp.Expression, targets: Sequence[Target], statement: Statement) -> Filled:
    """The query of an INSERT without DEFAULT. Raises FEATURE_NOT_SUPPORTED for DEFAULT of a field of a column."""
    listed = tree.expressions if isinstance(tree, exp.Values) else []
    rows = [row.expressions for row in listed if isinstance(row, exp.Tuple)]
    width = min(len(targets), len(rows[0]) if rows else 0)
    words = {n: [n < len(row) and is_default(row[n]) for row in rows] for n in range(width)}
    if not any(any(found) for found in words.values()) or len({len(row) for row in rows}) > 1:
        return Filled(tree, tuple(targets))
    left_out = {n for n, found in words.items() if all(found)}
    flagged = [n for n, found in words.items() if any(found) and n not in left_out]
    for n in flagged:
        if targets[n].path:
            place = node_span(next(row[n] for row in rows if is_default(row[n])))
            raise not_supported("DEFAULT of a field", statement.text, place, hint="Leave the field out.")
    tree = tree.copy()
    for number, row in enumerate(tree.expressions):
        values = [exp.null() if n in words and words[n][number] else v for n, v in enumerate(row.expressions)]
        kept = [v for n, v in enumerate(values) if n not in left_out]
        flags = [exp.Boolean(this=words[n][number]) for n in flagged]
        row.set("expressions", [*kept, *flags] or [exp.true()])
    others = tuple(t for n, t in enumerate(targets) if n not in left_out)
    return Filled(
        tree, others, tuple(targets[n].place[0] for n in flagged), rows=len(left_out) == len(rows[0]) and not flagged
    )


def check_types(columns: Schema, targets: Sequence[Target], statement: Statement) -> None:
    """DATATYPE_MISMATCH unless each column of the query can be assigned to its target."""
    for column, target in zip(columns, targets, strict=True):
        if not target.takes(column.type):
            raise error_at(
                statement,
                target.span or statement.span,
                "DATATYPE_MISMATCH",
                f'column "{target.column.name}" is of type {target.column.type.sql} but expression is of '
                f"type {column.type.sql}",
                hint="You will need to rewrite or cast the expression.",
            )


def assignable(
    query: BatchQuery,
    targets: Sequence[Target],
    relation: Relation,
    now_us: int,
    flagged: Sequence[str] = (),
    beside: Schema = (),
) -> BatchQuery:
    """The query for rows of `relation`, in which targets are cast and other columns have their values of `omitted` at
    the time `now_us`. flagged: as in `Filled`; the result has their columns after those of the relation, and then
    `beside`, the last columns of the query.
    """
    zone = query.catalog.zone
    pairs = enumerate(zip(query.columns, targets, strict=False))
    given = {t.place: t.converted(f"x{i}", c.type, zone) for i, (c, t) in pairs if not t.ignored}
    named = {place[0] for place in given}
    flags = {name: f"x{len(targets) + i}" for i, name in enumerate(flagged)}
    columns: list[str] = []
    for column in relation.columns:
        value = _packed((column.name,), column.type, given) if column.name in named else ""
        if column.name in flags or not value:
            default = omitted(relation, column, now_us)
            value = f"CASE WHEN {flags[column.name]} THEN {default} ELSE {value} END" if value else default
        columns.append(f"{value} AS c{len(columns)}")
    columns += [f"{flag} AS f{i}" for i, flag in enumerate(flags.values())]
    columns += [f"x{len(query.columns) - len(beside) + i} AS b{i}" for i in range(len(beside))]
    names = ", ".join(f"x{i}" for i in range(len(query.columns)))
    exact = (*relation.columns, *(Field(f"{FLAG}{name}", BOOLEAN) for name in flags), *beside)
    sql = f"SELECT {', '.join(columns)} FROM ({query.sql}) AS q({names})"
    return replace(query, sql=sql, columns=exact, exact=exact)


def _packed(place: tuple[str, ...], kind: SqlType, given: Mapping[tuple[str, ...], str]) -> str:
    """DuckDB SQL for the value at a path, built from its fields; missing fields are NULL."""
    if place in given:
        return given[place]
    if not any(p[: len(place)] == place for p in given):
        return f"CAST(NULL AS {kind.duckdb})"
    return f"struct_pack({', '.join(f'{quoted(n)} := {_packed((*place, n), t, given)}' for n, t in kind.fields)})"


def data_type(kind: SqlType) -> exp.DataType:
    """The type in the syntax trees of the dialects."""
    if kind.name == "array":
        assert kind.element is not None
        return exp.DataType(this=exp.DataType.Type.ARRAY, expressions=[data_type(kind.element)], nested=True)
    if kind.name == "map":
        return exp.DataType(this=exp.DType.MAP, expressions=[data_type(part) for part in kind.entry], nested=True)
    if kind.name == "struct":
        fields = [exp.ColumnDef(this=exp.to_identifier(n, quoted=True), kind=data_type(t)) for n, t in kind.fields]
        return exp.DataType(this=exp.DataType.Type.STRUCT, expressions=fields, nested=True)
    if kind.name == "numeric":
        digits = [] if kind.precision is None else [kind.precision, kind.scale or 0]
        parameters = [exp.DataTypeParam(this=exp.Literal.number(d)) for d in digits]
        return exp.DataType(this=exp.DataType.Type.DECIMAL, expressions=parameters)
    return exp.DataType(this=_TREE_TYPES[kind.name])


def _typed(value: exp.Expression, kind: SqlType, *, numbers: bool = False) -> exp.Expression:
    if isinstance(value, exp.Array) and value.expressions and kind.element is not None:
        elements = [_typed(e, kind.element) for e in value.expressions]
        if all(new is old for new, old in zip(elements, value.expressions, strict=True)):
            return value
        array = value.copy()
        array.set("expressions", [e.copy() for e in elements])
        return array
    written = _number_text(value, kind, always=numbers)
    if written is None and not (_is_open(value) or (kind.name == "struct" and _is_row(value))):
        return value
    return _cast(value if written is None else exp.Literal.string(written), kind, value)


def _cast(value: exp.Expression, kind: SqlType, written: exp.Expression) -> exp.Cast:
    """`value` cast to a type, with the position of `written`."""
    cast = exp.Cast(this=value.copy(), to=data_type(kind))
    set_span(cast, own_span(written) or node_span(written))
    return cast


def _number_text(value: exp.Expression, kind: SqlType, *, always: bool = False) -> str | None:
    """The text of a number literal for a float or a numeric if `always` is set or the literal would lose digits as
    numeric.
    """
    number = value.this if isinstance(value, exp.Neg) else value
    if not isinstance(number, exp.Literal) or number.is_string or not (kind.is_float or kind.name == "numeric"):
        return None
    text = str(number.this).replace("_", "")
    if not always and len(text) <= _PLAIN_DIGITS[kind.name] and "e" not in text.lower():
        return None
    if not always and (kind == NUMERIC or (kind.is_float and text.isdecimal())):
        read = decimal_literal(text)
        if read is not None and read.type == NUMERIC:
            return None
    return f"-{text}" if number is not value else text


def _is_open(value: exp.Expression) -> bool:
    if isinstance(value, exp.Array):
        return not value.expressions
    if isinstance(value, exp.Struct) or (isinstance(value, exp.Anonymous) and value.this == "$map_cast"):
        return not value.expressions  # an empty map
    return isinstance(value, exp.Null) or (isinstance(value, exp.Literal) and value.is_string)


def _is_row(value: exp.Expression) -> bool:
    return isinstance(value, exp.Anonymous) and str(value.this).lower() == "row"


def _replace(node: exp.Expression, target: Target, *, numbers: bool = False, always: bool = False) -> None:
    typed = target.typed(node, numbers=numbers, always=always)
    if typed is not node:
        node.replace(typed)


def _is_assignable(source: SqlType, target: SqlType) -> bool:
    if source == target or target.name == "varchar":
        return True
    if source.is_numeric:
        return target.is_numeric
    if source.name in _DATES:
        return target.name in _DATES
    if source.name in _DOCUMENTS:
        return target.name in _DOCUMENTS
    if source.name == target.name and source.element is not None and target.element is not None:
        return _is_assignable(source.element, target.element)
    if source.name == "struct" and target.name == "struct":
        names, wanted = [n for n, _ in source.fields], [n for n, _ in target.fields]
        unnamed = [str(i + 1) for i in range(len(wanted))]  # Timeplus' tuples
        return names in (wanted, unnamed) and all(
            _is_assignable(s, t) for (_, s), (_, t) in zip(source.fields, target.fields, strict=True)
        )
    return False


def named_targets(relation: Relation, names: tuple[Name, ...], statement: Statement) -> tuple[Target, ...]:
    """The columns with some names. Raises UNDEFINED_COLUMN, DUPLICATE_COLUMN."""
    known = {c.name: c for c in relation.columns}
    lower = {c.name.lower(): c for c in relation.columns}
    found: list[Target] = []
    for name in names:
        column = known.get(name.name) or (lower.get(name.name.lower()) if name.folded else None)
        if column is None:
            raise error_at(
                statement,
                name.span,
                "UNDEFINED_COLUMN",
                f'column "{name.name}" of relation "{relation.name}" does not exist',
                hint=did_you_mean(name.name, known),
            )
        target = Target(column, name.span)
        if name.path:
            target = Target(_field(relation, column, name, statement), name.span, path=(column.name, *name.path))
        place = target.place
        if any(t.place[: len(place)] == place or place[: len(t.place)] == t.place for t in found):
            raise error_at(
                statement, name.span, "DUPLICATE_COLUMN", f'column "{".".join(place)}" specified more than once'
            )
        found.append(target)
    return tuple(found)


def _field(relation: Relation, column: Field, name: Name, statement: Statement) -> Field:
    """The field of a column with a name. Raises UNDEFINED_COLUMN."""
    kind, place = column.type, column.name
    for below in name.path:
        fields = dict(kind.fields)
        if below not in fields:
            raise error_at(
                statement,
                name.span,
                "UNDEFINED_COLUMN",
                f'"{place}" of relation "{relation.name}" has no field "{below}"',
                hint=did_you_mean(below, fields),
            )
        kind, place = fields[below], f"{place}.{below}"
    return Field(place, kind)


_CLAUSE: Final = "a generated column"


def default_values(statement: CreateRelation, digits: Mapping[str, int] | None = None) -> dict[str, str]:
    """The values that an INSERT uses for omitted columns with DEFAULT, in the form of `Relation.defaults`.

    digits: see `Relation`. Raises the errors of `default_value`.
    """
    types = {c.name: c.type for c in statement.columns}
    return {
        name: ARRIVAL
        if types[name].name == "timestamp" and _is_arrival(node, (digits or {}).get(name))
        else default_value(statement, node, types[name])
        for name, node in statement.declared.items()
    }


def default_value(statement: Statement, node: exp.Expression, kind: SqlType) -> str:
    """DuckDB SQL for the value of a DEFAULT, cast to the type of its column; an INSERT evaluates it, so it may call
    now(). Raises FEATURE_NOT_SUPPORTED for an expression that reads columns or relations, and errors in the expression.
    """
    if next(node.find_all(exp.Column, exp.Query), None) is not None:
        raise not_supported(
            "DEFAULT that reads columns or relations",
            statement.text,
            node_span(node),
            hint="Write the value in the INSERT.",
        )
    ctx = Context(statement.text, "DEFAULT", batch=True)
    value = cast(bind_value(node, ctx), kind, ctx, node).finish().expression
    try:
        ctx.check(value)
    except duckdb.Error as cause:
        raise error_at(statement, node_span(node), "INVALID_VALUE", first_line(cause)) from None
    return str(value.sql(dialect="duckdb"))


def _is_arrival(node: exp.Expression, digits: int | None) -> bool:
    """Whether an expression is the time of the INSERT, with at least the fractional digits of its column."""
    if not isinstance(node, exp.Anonymous) or node.name != "date_trunc" or len(node.expressions) != 2:
        return False
    unit, time = node.expressions
    return is_clock(time) and (unit.name == "milliseconds" or (unit.name == "second" and digits == 0))


def generated_columns(
    session: Session, statement: CreateRelation
) -> tuple[dict[str, GeneratedColumn], tuple[str, ...]]:
    """The generated columns of a statement by name, and the ids of the functions that they call.

    RisingWave, "Generated columns". Raises DATATYPE_MISMATCH for a value that can't be assigned to its column,
    FEATURE_NOT_SUPPORTED for an expression that reads another generated column, and errors of the expressions.
    """
    given = tuple(c for c in statement.columns if c.name not in (*statement.generated, *statement.arrivals))
    made: dict[str, GeneratedColumn] = {}
    functions: list[str] = []
    for column in statement.columns:
        if column.name not in statement.generated:
            continue
        tree, called = inlined(statement.generated[column.name], session.catalog, session.dialect, statement.text)
        functions += called
        earlier: Collection[str] = made if isinstance(statement, CreateStream) else ()
        _check_reads(tree, statement, earlier)
        target = Target(column)
        tree = target.typed(tree)
        known = tuple(c for c in statement.columns if c in given or c.name in earlier)
        ctx = _context(known, statement.name, statement.text, _CLAUSE)
        value = bind_value(tree, ctx)
        if not target.takes(value.type):
            raise error_at(
                statement,
                node_span(tree),
                "DATATYPE_MISMATCH",
                f'column "{column.name}" is of type {column.type.sql} but expression is of type {value.type.sql}',
                hint="You will need to rewrite or cast the expression.",
            )
        made[column.name] = positional(cast(value, column.type, ctx, tree), known)
    return made, tuple(dict.fromkeys(functions))


def _check_reads(tree: exp.Expression, statement: CreateRelation, earlier: Collection[str]) -> None:
    """FEATURE_NOT_SUPPORTED for a column whose value is not in the written row. earlier: the generated columns of a
    stream that are computed before it.
    """
    for node in tree.find_all(exp.Column):
        name = name_of(node.this)
        if name in (*statement.generated, *statement.arrivals) and name not in earlier:
            raise error_at(
                statement,
                node_span(node),
                "FEATURE_NOT_SUPPORTED",
                "a generated column can't reference another generated column",
                hint="Write its expression again." if name in statement.generated else None,
            )


def _context(columns: Schema, name: str, text: str, clause: str) -> Context:
    """The context of an expression that reads the columns of a single relation."""
    scope = single(name, [ScopeColumn(c.name, Value(column_ref(c.name), c.type, c.nullable)) for c in columns])
    return ScopeContext(text, scope, clause)


def bound_value(tree: exp.Expression, columns: Schema, name: str, text: str, clause: str) -> Value:
    """A bound expression over the columns of the relation `name`. text: its source text. clause: its clause, for
    messages. Raises errors of the expression.
    """
    return bind_value(tree, _context(columns, name, text, clause))


def positional(value: Value, given: Schema) -> GeneratedColumn:
    """A value over the columns `given` in the form of the catalog."""
    names = columns_of(value)
    reads = tuple(c for c in given if c.name in names) or given[:1]
    places = {c.name: exp.column(f"c{i}") for i, c in enumerate(reads)}
    return GeneratedColumn(value.finish().substitute(places).sql(), reads)


def check_given(relation: Relation, targets: Iterable[Target], statement: Statement) -> None:
    """Raises READ_ONLY_RELATION if a statement assigns a generated column."""
    for target in targets:
        if target.column.name in relation.always_generated:
            raise error_at(
                statement,
                target.span or statement.span,
                "READ_ONLY_RELATION",
                f'can\'t write the generated column "{target.column.name}" of {relation.title}',
                detail="Its value follows from other columns.",
            )


def assigned(relation: Relation, statement: Update, *, defaults: bool = False) -> tuple[Target, ...]:
    """The columns that an UPDATE sets. defaults: whether values may be DEFAULT, also those of generated columns.

    Raises UNDEFINED_COLUMN, DUPLICATE_COLUMN, and errors of columns that can't be assigned.
    """
    found = named_targets(relation, tuple(n for n, _ in statement.assignments), statement)
    pairs = zip(found, statement.assignments, strict=True)
    check_given(relation, [t for t, (_, v) in pairs if not (defaults and is_default(v))], statement)
    for target, (_, value) in zip(found, statement.assignments, strict=True):
        serial = relation.serials.get(target.column.name)
        if serial is not None and serial.identity == "always" and not is_default(value):
            raise error_at(
                statement,
                target.span or statement.span,
                "GENERATED_ALWAYS",
                f'column "{target.column.name}" can only be updated to DEFAULT',
                detail=f'Column "{target.column.name}" is an identity column defined as GENERATED ALWAYS.',
            )
    return found


#: The column that numbers the rows of a table without a key.
_ROW: Final = "row of the table"


def matching(
    session: Session,
    relation: Relation,
    alias: str | None,
    where: exp.Expression | None,
    values: tuple[exp.Expression, ...],
    statement: Statement,
    sources: Sequence[exp.Expression] = (),
    *,
    repeated: bool = False,
) -> BatchQuery:
    """The query for the rows that `where` selects, with all columns, then `values`.

    sources: more items of FROM. A row that matches several of their rows occurs once, with any of them, unless
    `repeated`.
    """
    shown = exp.to_identifier(alias or relation.name, quoted=True)
    columns = [exp.column(exp.to_identifier(c.name, quoted=True), shown.copy()) for c in relation.columns]
    tree = exp.select(*columns, *(v.copy() for v in values), copy=False)
    if not sources:
        tree = tree.from_(table_tree(relation, alias), copy=False)
    else:
        target: exp.Expression = table_tree(relation, alias)
        keys = [exp.column(exp.to_identifier(k, quoted=True), shown.copy()) for k in relation.primary_key]
        if not keys and not repeated:
            number = exp.Window(this=exp.Anonymous(this="row_number"), over="OVER")
            names = [exp.column(exp.to_identifier(c.name, quoted=True)) for c in relation.columns]
            rows = exp.select(*names, exp.alias_(number, _ROW, quoted=True)).from_(table_tree(relation, None))
            target = exp.Subquery(this=rows, alias=exp.TableAlias(this=shown.copy()))
            keys = [exp.column(exp.to_identifier(_ROW, quoted=True), shown.copy())]
        tree = joined(tree, [*sources, target])
        if not repeated:
            tree.set("distinct", exp.Distinct(on=exp.Tuple(expressions=keys)))
    if where is not None:
        tree = tree.where(where, copy=True)
    return batch_query(session, tree, statement.text)


def joined(tree: exp.Select, items: Sequence[exp.Expression]) -> exp.Select:
    """The query with items of FROM that are separated by commas."""
    first, *others = [item.copy() for item in items]
    joins = list(first.args.get("joins") or ())
    first.set("joins", None)
    tree = tree.from_(first, copy=False)
    for other in others:
        joins += [CommaJoin(this=other), *(other.args.get("joins") or ())]
        other.set("joins", None)
    tree.set("joins", joins)
    return tree


def both_images(
    query: BatchQuery, relation: Relation, targets: tuple[Target, ...], defaults: Mapping[str, str] = NO_DEFAULTS
) -> BatchQuery:
    """The query for the old and the new row in one row, made from a query for the old row and the new values.

    defaults: DuckDB SQL for the columns that are set to DEFAULT.
    """
    width = len(relation.columns)
    names = [f"x{i}" for i in range(len(query.columns))]
    old = [f"{names[i]} AS o{i}" for i in range(width)]
    values = {
        t.column.name: converted(
            names[width + i], query.columns[width + i].type, t.column.type, zone=query.catalog.zone
        )
        for i, t in enumerate(targets)
    }
    values |= defaults
    new = [f"{values.get(c.name, names[i])} AS n{i}" for i, c in enumerate(relation.columns)]
    others = query.columns[width + len(targets) :]
    beside = [f"{names[width + len(targets) + i]} AS r{i}" for i in range(len(others))]
    sql = f"SELECT {', '.join(old + new + beside)} FROM ({query.sql}) AS q({', '.join(names)})"
    return replace(query, sql=sql, exact=(*relation.columns, *relation.columns, *others))


def merging_of(
    statement: Statement, relation: Relation, table: Name, columns: Sequence[Name], values: Sequence[exp.Expression]
) -> Merging | None:
    """The rule by which a MERGE writes its rows; None for other statements. columns, values: the parts of its INSERT;
    without columns, values are for all columns of the relation.

    Raises FEATURE_NOT_SUPPORTED unless the table is in another system, and if existing rows get other values than
    inserted rows.
    """
    clauses = getattr(statement, "clauses", None)
    if clauses is None:
        return None
    assert isinstance(clauses, MergeClauses)
    there = relation.external
    if there is None or not there.target or connectors.connector_named(there.target["connector"]).change is None:
        raise not_supported(
            f"MERGE into {one(relation.what)}",
            statement.text,
            table.span,
            hint="A table with a PRIMARY KEY needs none: an inserted row replaces the one of its key.",
        )
    targets = named_targets(relation, tuple(columns), statement) if columns else ()
    names = [t.column.name for t in targets] or [c.name for c in relation.columns]
    inserted = dict(zip(names, values, strict=False))
    found = []
    for pairs, where in ((clauses.on, "ON"), (clauses.updated, "UPDATE")):
        given = named_targets(relation, tuple(name for name, _ in pairs), statement)
        for target, (name, value) in zip(given, pairs, strict=True):
            if inserted.get(target.column.name) != value:
                raise not_supported(
                    f'another value of column "{target.column.name}" in {where} than in INSERT',
                    statement.text,
                    name.span,
                    hint="Give the column in INSERT, too, with the same value.",
                )
        found.append(tuple(t.column.name for t in given))
    return Merging(*found)
