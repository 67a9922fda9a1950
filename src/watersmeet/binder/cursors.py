"""Table functions over cursors: `STREAM(udx(CURSOR(SELECT STREAM …), arguments))` as an item of FROM.

SQLstream, "User-defined transforms". The function is called for each row of the cursor's query, with its columns as the
first arguments, and returns the rows that follow from it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from sqlglot import exp

from watersmeet.catalog import Catalog
from watersmeet.dialects.schemas import relation_in_from
from watersmeet.dialects.tree.nodes import CommaJoin
from watersmeet.dialects.tree.queries import name_of, node_error, node_span
from watersmeet.values.spans import set_span

#: Words around a table function in FROM.
_AROUND: Final = ("STREAM", "TABLE")
_CURSOR: Final = "CURSOR"
#: The column of a stream that `*` of a cursor omits.
_ROWTIME: Final = "ROWTIME"
_ROWS: Final = "rows of the cursor"


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
