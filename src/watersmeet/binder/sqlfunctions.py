"""Functions of users: calls are replaced before the enclosing query is bound, and a view keeps the definitions with
which it was created.

The body of a function of SQL replaces its call (RisingWave, "SQL UDFs"). A call of another language contains the whole
function. A table function is the `unnest` of the array of its rows, an aggregate a function of the `array_agg` of the
rows of a group, so its value depends only on the present rows.

`STREAM(udx(CURSOR(SELECT STREAM …), arguments))` in FROM calls a function for each row of the cursor's query, with its
columns as the first arguments, and returns the rows that follow from it (SQLstream, "User-defined transforms").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final

from sqlglot import exp, parse_one
from sqlglot.tokens import Token, TokenType

from watersmeet.catalog import Catalog, DomainType, EnumType, SqlFunction
from watersmeet.catalog.rowless import ANY
from watersmeet.dialects.registry import language_named
from watersmeet.dialects.schemas import find_relation, relation_in_from, schema_meant
from watersmeet.dialects.script import tokenize
from watersmeet.dialects.tree.nodes import CommaJoin, sql_of
from watersmeet.dialects.tree.queries import name_of, node_error, node_span, read_tree
from watersmeet.dialects.tree.tokens import folded, not_supported, quoted
from watersmeet.errors import Error, Span, error
from watersmeet.expressions.calls import Argument, Called, Inlined, returned
from watersmeet.expressions.context import Context, Value
from watersmeet.expressions.functions import check_function
from watersmeet.expressions.scalars import bind_value
from watersmeet.values.calledfunctions import CalledFunction
from watersmeet.values.spans import own_span, set_span

#: A limit on the nodes of a statement, which grows exponentially if functions call each other twice.
_MOST_NODES: Final = 10_000
_LISTS: Final = (exp.Distinct, exp.Order, exp.Star)
#: Words around a table function in FROM.
_AROUND: Final = ("STREAM", "TABLE")
_CURSOR: Final = "CURSOR"
#: The column of a stream that `*` of a cursor omits.
_ROWTIME: Final = "ROWTIME"
_ROWS: Final = "rows of the cursor"


def inlined(tree: exp.Expression, catalog: Catalog, dialect: str, text: str) -> tuple[exp.Expression, tuple[str, ...]]:
    """The tree with function bodies instead of calls, and the ids of the called functions.

    Functions of SQL can only be called in their dialect. The given tree is not changed. Raises UNDEFINED_FUNCTION,
    FEATURE_NOT_SUPPORTED.
    """
    tree = with_created_types(tree, catalog)
    if not any(_is_of(f, dialect) for f in catalog.functions.values()):
        return tree, ()
    if not any(_called(c, catalog, dialect) for c in tree.find_all(exp.Anonymous)):
        return tree, ()
    tree = with_cursors_spelled_out(tree.copy(), lambda c: _is_table_function(c, catalog, dialect), catalog, text)
    used: list[str] = []
    for call in reversed(list(tree.find_all(exp.Anonymous))):  # inner calls first
        function = _called(call, catalog, dialect)
        if function is None or not _fits(call, function, text):
            continue
        whole = call.parent if isinstance(call.parent, exp.Dot) else call
        if function.called is None:
            made = _expanded(call, function, catalog)
        else:
            whole, made = _called_otherwise(whole, call, function, function.called)
        if whole is tree:
            tree = made
        else:
            whole.replace(made)
        used.append(function.id)
        if sum(1 for _ in made.walk()) > _MOST_NODES:
            raise node_error(
                text,
                made,
                "FEATURE_NOT_SUPPORTED",
                f"the expansion of function {function.shown} is too large",
                detail=f"With the functions that it calls it has more than {_MOST_NODES} parts.",
            )
    return tree, tuple(dict.fromkeys(used))


def with_created_types(tree: exp.Expression, catalog: Catalog) -> exp.Expression:
    """The tree with calls of `$enum` and `$of_domain` instead of casts to enums and domains; a new tree."""
    if not any(isinstance(r, EnumType | DomainType) for r in (catalog.actual or catalog).relations.values()):
        return tree

    def found(node: exp.Expression) -> EnumType | DomainType | None:
        kind = node.args.get("to") if isinstance(node, exp.Cast) else None
        while isinstance(kind, exp.DataType) and kind.this == exp.DataType.Type.ARRAY and kind.expressions:
            kind = kind.expressions[0]
        if not isinstance(kind, exp.DataType) or kind.this != exp.DataType.Type.USERDEFINED:
            return None
        written = kind.args.get("kind") or ""
        parts = (sql_of(written) if isinstance(written, exp.Expression) else str(written)).split(".")
        schema = parts[0] if len(parts) > 1 else None
        relation = find_relation(catalog, parts[-1].strip('"'), schema, folded='"' not in parts[-1])
        return relation if isinstance(relation, EnumType | DomainType) else None

    if not any(found(c) for c in tree.find_all(exp.Cast)):
        return tree

    def replaced(node: exp.Expression) -> exp.Expression:
        enum = found(node)
        if enum is None:
            return node
        if isinstance(enum, DomainType):
            return _domain_of(node, enum, replaced)
        value, kind = node.this, node.args["to"]
        depth = 0
        while kind.this == exp.DataType.Type.ARRAY:
            depth, kind = depth + 1, kind.expressions[0]
        if depth:
            array = exp.DataType(this=exp.DataType.Type.VARCHAR)
            for _ in range(depth):
                array = exp.DataType(this=exp.DataType.Type.ARRAY, expressions=[array], nested=True)
            value = exp.Cast(this=value, to=array)
        arguments = [value, *(exp.Literal.string(text) for text in (enum.shown, enum.id, *enum.labels))]
        made = exp.Anonymous(this="$enum", expressions=arguments)
        set_span(made, own_span(node) or node_span(node))
        return made

    return tree.copy().transform(replaced, copy=False)


def _domain_of(
    node: exp.Expression, domain: DomainType, replaced: Callable[[exp.Expression], exp.Expression]
) -> exp.Expression:
    """The call that casts to a domain. Its arguments are the value in the base type, and the rules of the domain.

    A cast to an array of a domain stays as it is, and its type does not exist.
    """
    if node.args["to"].this == exp.DataType.Type.ARRAY:
        return node
    grammar = language_named(domain.dialect).grammar
    base = parse_one(f"CAST(NULL AS {domain.base_text})", dialect=grammar).args["to"]
    value = replaced(exp.Cast(this=node.this, to=base))
    rules = domain.rules
    texts = [rules.name, str(int(rules.nullable)), *(t for c in rules.checks for t in (c.name, c.condition.sql))]
    made = exp.Anonymous(this="$of_domain", expressions=[value, *map(exp.Literal.string, texts)])
    for part in (made, value):
        set_span(part, own_span(node) or node_span(node))
    return made


def can_be_called(name: str, dialect: str) -> bool:
    """Whether a name before parentheses is a call and not a word of the grammar."""
    language = language_named(dialect)
    small = name.lower()
    is_plain = quoted(small) == small and folded(name, language.semantics.folding) == name
    text = f"SELECT {name if is_plain else exp.to_identifier(name, quoted=True).sql()}(1)"
    try:
        call = read_tree(tokenize(text, language), text, language.grammar).expressions[0].unalias()
    except Error:
        return False
    return isinstance(call, exp.Anonymous) and _name(call, dialect) == name and name.lower() not in ("row", "grouping")


def checked_body(function: SqlFunction, catalog: Catalog) -> SqlFunction:
    """The function with the ids of the functions that its body calls. Checks that the body can be bound and has the
    type.

    Raises errors of the binder, with spans in the body, and FEATURE_NOT_SUPPORTED for a function that calls itself.
    """
    body = _body_of(function.body, function.dialect)
    for call in body.find_all(exp.Anonymous):
        if _name(call, function.dialect) == function.name and _schema(call, catalog) in (None, function.schema):
            raise not_supported("a function that calls itself", function.body, node_span(call))
    tree, used = inlined(body, catalog, function.dialect, function.body)
    if function.returns == ANY:
        for column in body.find_all(exp.Column):
            if _parameter(column, function) is None:
                raise node_error(
                    function.body, column, "UNDEFINED_COLUMN", f"there is no parameter {name_of(column.this)}"
                )
        return replace(function, functions=used)
    place = _Body(function)
    returned(bind_value(tree, place), function.returns, place, tree)
    return replace(function, functions=used)


class _Body(Context):
    """The body of a function as a query with the parameters as columns."""

    volatile_allowed = True

    def __init__(self, function: SqlFunction) -> None:
        super().__init__(function.body, "a function of SQL")
        self._function = function

    def column(self, node: exp.Column) -> Value:
        place = _parameter(node, self._function)
        if place is None:
            shown = name_of(node.this)
            raise self.error("UNDEFINED_COLUMN", f"there is no parameter {shown}", node)
        return Value(exp.column(f"${place + 1}", quoted=True), self._function.parameters[place].type)


def _called(call: exp.Expression, catalog: Catalog, dialect: str) -> SqlFunction | None:
    """The function with the name of a call; arguments are not checked."""
    schema = _schema(call, catalog)
    if schema == "":
        return None
    found = catalog.function(_name(call, dialect), schema)
    if found is None or not _is_of(found, dialect):
        return None
    is_table = found.called is not None and found.called.shape == "table"
    return None if isinstance(call.parent, exp.Table) and not is_table else found


def _is_table_function(call: exp.Expression, catalog: Catalog, dialect: str) -> bool:
    found = _called(call, catalog, dialect)
    return found is not None and found.called is not None and found.called.shape == "table"


def _is_of(function: SqlFunction, dialect: str) -> bool:
    return function.dialect == dialect or function.called is not None


def _name(call: exp.Expression, dialect: str) -> str:
    if isinstance(call.this, exp.Identifier):
        return name_of(call.this)
    return folded(str(call.this), language_named(dialect).semantics.folding)


def _schema(call: exp.Expression, catalog: Catalog) -> str | None:
    """The schema that qualifies a call; None if it is unqualified, "" if the qualifier is not a schema."""
    if not isinstance(call.parent, exp.Dot) or call.parent.expression is not call:
        return None
    front = call.parent.this
    return (schema_meant(name_of(front), catalog) or "") if isinstance(front, exp.Identifier) else ""


def _fits(call: exp.Expression, function: SqlFunction, text: str) -> bool:
    """Whether a call has as many arguments as the function. If not, it may call another function with the same name."""
    arguments = call.expressions
    if function.called is not None and function.called.shape == "aggregate":
        arguments = _aggregated(call)[0]
    if len(arguments) == len(function.parameters) and not any(isinstance(a, _LISTS) for a in arguments):
        return True
    try:
        check_function(function.name, call, Context(text))
    except Error:
        count = len(function.parameters)
        raise node_error(
            text,
            call,
            "UNDEFINED_FUNCTION",
            f"function {function.shown} takes {count} argument{'' if count == 1 else 's'}",
            detail=f"It is {function.signature}.",
        ) from None
    return False


def _expanded(call: exp.Expression, function: SqlFunction, catalog: Catalog) -> exp.Expression:
    """The body with the arguments of a call. All nodes get the span of the call."""
    body, _ = inlined(
        _body_of(function.body, function.dialect), catalog.seen_in(function), function.dialect, function.body
    )
    span = node_span(call)
    made: exp.Expression = exp.Paren(this=body.copy())
    if function.returns != ANY:
        made = Inlined(this=made, kind=function.returns, called=function.name)
    for node in made.walk():
        set_span(node, span if function.returns == ANY else None)
    set_span(made, span)
    arguments = [_argument(a, i, function) for i, a in enumerate(call.expressions)]
    read = set()
    for column in list(made.find_all(exp.Column)):
        place = _parameter(column, function)
        if place is not None:
            read.add(place)
            column.replace(arguments[place].copy())
    if function.returns != ANY:
        made.set("expressions", [a for i, a in enumerate(arguments) if i not in read])
    return made


def _called_otherwise(
    whole: exp.Expression, call: exp.Expression, function: SqlFunction, called: CalledFunction
) -> tuple[exp.Expression, exp.Expression]:
    """The node to replace, and the call of a function of another language that replaces it."""
    span = node_span(call)
    if called.shape == "aggregate":
        whole, made = _of_group(whole, call, function, called)
    else:
        made = Called(expressions=[_argument(a, i, function) for i, a in enumerate(call.expressions)], function=called)
        item = whole.parent
        if called.shape == "table" and isinstance(item, exp.Table | exp.Lateral):
            made.set("rows", True)
            if item.args.get("alias") is None and not isinstance(item.parent, exp.Lateral):
                item.set("alias", exp.TableAlias(this=exp.to_identifier(function.name, quoted=True)))
            made = exp.Anonymous(this="unnest", expressions=[made])
    set_span(made, span)
    return whole, made


def _aggregated(call: exp.Expression) -> tuple[list[exp.Expression], list[exp.Ordered], bool]:
    """The arguments of an aggregate, its ORDER BY, and whether it has DISTINCT."""
    arguments, order = list(call.expressions), []
    if arguments and isinstance(arguments[-1], exp.Order):
        order = arguments[-1].expressions
        arguments[-1] = arguments[-1].this
    distinct = len(arguments) == 1 and isinstance(arguments[0], exp.Distinct)
    return (list(arguments[0].expressions) if distinct else arguments), order, distinct


def _of_group(
    whole: exp.Expression, call: exp.Expression, function: SqlFunction, called: CalledFunction
) -> tuple[exp.Expression, exp.Expression]:
    """`f(array_agg(row))`, with FILTER and OVER of the call at `array_agg`."""
    arguments, order, distinct = _aggregated(call)
    values = [_argument(a, i, function) for i, a in enumerate(arguments)]
    row: exp.Expression = values[0]
    if len(values) > 1:
        struct = exp.Anonymous(this="row", expressions=values)
        row = Argument(this=struct, kind=called.row, called=f"the arguments of function {function.shown}")
    if distinct:
        row = exp.Distinct(expressions=[row])
    if order:
        row = exp.Order(this=row, expressions=[item.copy() for item in order])
    rows: exp.Expression = exp.Anonymous(this="array_agg", expressions=[row])
    set_span(rows, node_span(call))
    for kind in (exp.Filter, exp.Window):
        around = whole.parent
        if isinstance(around, kind) and around.this is whole:
            outer = around.copy()
            outer.set("this", rows)
            whole, rows = around, outer
    return whole, Called(expressions=[rows], function=replace(called, ordered=bool(order)))


def _argument(node: exp.Expression, place: int, function: SqlFunction) -> exp.Expression:
    if function.returns == ANY:
        return exp.Paren(this=node.copy())
    return Argument(
        this=exp.Paren(this=node.copy()),
        kind=function.parameters[place].type,
        called=f"argument {place + 1} of function {function.shown}",
    )


def _parameter(column: exp.Expression, function: SqlFunction) -> int | None:
    """The number (from 0) of the parameter to which a column of a body refers: `name`, `function.name` or `$1`."""
    table = column.args.get("table")
    if column.args.get("db") is not None or (table is not None and name_of(table) != function.name):
        return None
    name = name_of(column.this)
    if table is None and name[:1] == "$" and name[1:].isdecimal():
        return int(name[1:]) - 1 if 1 <= int(name[1:]) <= len(function.parameters) else None
    return next((i for i, p in enumerate(function.parameters) if p.name and p.name == name), None)


@lru_cache(maxsize=256)
def _body_of(body: str, dialect: str) -> exp.Expression:
    """The expression of a function's body, with the parameter `$1` as the column "$1". Callers must not change it.

    Its spans refer to `body`. Raises SYNTAX_ERROR, and FEATURE_NOT_SUPPORTED for more than `SELECT expression`.
    """
    language = language_named(dialect)
    tokens = tokenize(body, language)
    while tokens and tokens[-1].token_type == TokenType.SEMICOLON:
        tokens.pop()
    if not tokens:
        raise error("SYNTAX_ERROR", "the body of a function is empty", sql=body, span=Span(0, 1))
    tree = read_tree(_numbered(tokens), body, language.grammar)
    items = tree.expressions if isinstance(tree, exp.Select) else []
    others = [v for k, v in tree.args.items() if k != "expressions" and v]
    if len(items) != 1 or others or isinstance(items[0], exp.Star):
        raise not_supported(
            "a function body other than SELECT with one expression",
            body,
            node_span(tree),
            hint="To read relations, create a view.",
        )
    found: exp.Expression = items[0].unalias()
    return found


def _numbered(tokens: Sequence[Token]) -> list[Token]:
    """The tokens, where `$1` is a single name."""
    found: list[Token] = []
    for token in tokens:
        before = found[-1] if found else None
        numbers = before is not None and before.token_type == TokenType.PARAMETER and before.end + 1 == token.start
        if before is not None and numbers and token.token_type == TokenType.NUMBER:
            name = f"${token.text}"
            found[-1] = Token(TokenType.IDENTIFIER, name, before.line, before.col, before.start, token.end, [])
        else:
            found.append(token)
    return found


def with_cursors_spelled_out(
    tree: exp.Expression, is_table_function: Callable[[exp.Expression], bool], catalog: Catalog, text: str
) -> exp.Expression:
    """The tree with `FROM (SELECT f.* FROM (query) AS rows, f(rows.column, …, arguments) AS f)` for each function over
    a cursor. Raises FEATURE_NOT_SUPPORTED.
    """
    for item in list(tree.find_all(exp.Table)):
        around = item.this
        if not isinstance(around, exp.Anonymous) or str(around.this).upper() not in _AROUND:
            continue
        call = around.expressions[0] if len(around.expressions) == 1 else None
        if not isinstance(call, exp.Anonymous) or not is_table_function(call):
            continue
        if any(_query(argument) is not None for argument in call.expressions):
            item.replace(_spelled_out(item, call, catalog, text))
        else:
            item.set("this", call.copy())
    return tree


def _query(argument: exp.Expression) -> exp.Select | None:
    is_cursor = isinstance(argument, exp.Anonymous) and str(argument.this).upper() == _CURSOR
    found = argument.expressions[0] if is_cursor and len(argument.expressions) == 1 else None
    return found if isinstance(found, exp.Select) else None


def _spelled_out(item: exp.Table, call: exp.Anonymous, catalog: Catalog, text: str) -> exp.Subquery:
    queries = [query for argument in call.expressions if (query := _query(argument)) is not None]
    if len(queries) > 1:
        raise node_error(
            text,
            call,
            "FEATURE_NOT_SUPPORTED",
            "a function over two cursors is not supported",
            hint="Join the two queries in one cursor.",
        )
    query = queries[0].copy()
    columns = [exp.column(name, table=_ROWS, quoted=True) for name in _names(query, catalog, text)]
    arguments: list[exp.Expression] = []
    for argument in call.expressions:
        arguments += columns if _query(argument) is not None else [argument.copy()]
    called = exp.Anonymous(this=call.this, expressions=arguments)
    title = str(call.this)
    alias = exp.TableAlias(this=exp.to_identifier(title, quoted=True))
    select = type(query)(
        expressions=[exp.Column(this=exp.Star(), table=exp.to_identifier(title, quoted=True))],
        from_=exp.From(this=exp.Subquery(this=query, alias=exp.TableAlias(this=exp.to_identifier(_ROWS, quoted=True)))),
        joins=[CommaJoin(this=exp.Table(this=called, alias=alias.copy()))],
    )
    if query.args.get("stream") is not None:
        select.set("stream", query.args["stream"].copy())
    made = exp.Subquery(this=select, alias=item.args.get("alias") or alias)
    for node in made.walk():
        if node_span(node) is None:
            set_span(node, node_span(call))
    return made


def _names(query: exp.Select, catalog: Catalog, text: str) -> Sequence[str]:
    """The names of a cursor's columns; unnamed ones get a name."""
    names: list[str] = []
    for i, column in enumerate(query.expressions):
        if isinstance(column, exp.Star):
            from_ = query.args.get("from_")
            source = None if from_ is None else from_.this
            named = isinstance(source, exp.Table) and isinstance(source.this, exp.Identifier)
            relation = relation_in_from(source, catalog) if named else None
            if relation is None or query.args.get("joins"):
                raise node_error(
                    text,
                    column,
                    "FEATURE_NOT_SUPPORTED",
                    "* in the cursor of a join or of a subquery is not supported",
                    hint="List the columns.",
                )
            names += [c.name for c in relation.columns if c.name not in (_ROWTIME, *relation.unlisted)]
        elif isinstance(column, exp.Column):
            names.append(name_of(column.this))
        elif isinstance(column, exp.Alias):
            names.append(name_of(column.args["alias"]))
        else:
            names.append(f"column {i + 1}")
            column.replace(exp.alias_(column.copy(), names[-1], quoted=True))
    return names
