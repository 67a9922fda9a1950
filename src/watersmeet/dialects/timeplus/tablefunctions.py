"""Functions in FROM that make rows: `numbers(n)`, `zeros(n)`, `values('a int', …)` and `file('path', 'format')` become
parts that all dialects have. FORMAT after a query only concerns its client.

Timeplus, "Table Functions"; ClickHouse, "numbers", "zeros", "values", "file".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlglot import exp
from sqlglot.tokens import Token, TokenType

from watersmeet.dialects.timeplus.columns import cast_type
from watersmeet.dialects.tree.nodes import ArrayJoin
from watersmeet.dialects.tree.queries import node_error, node_span
from watersmeet.dialects.tree.tokens import not_supported
from watersmeet.values.spans import own_span, set_span

#: Functions that read what is outside of the database, each with the way round.
_OUTSIDE: Final = {
    "url": "CREATE EXTERNAL TABLE t SETTINGS type = 'http', url = '…', format = '…' reads a document.",
    "s3": "CREATE EXTERNAL TABLE t SETTINGS type = 's3', … reads objects.",
    "mysql": "CREATE EXTERNAL TABLE t SETTINGS type = 'mysql', … reads a table.",
    "postgresql": "CREATE EXTERNAL TABLE t SETTINGS type = 'postgresql', … reads a table.",
    "remote": "CREATE EXTERNAL TABLE t SETTINGS type = 'clickhouse', … reads a table.",
    "generate_random": "CREATE RANDOM STREAM makes rows with random values.",
}

#: The name of `values` as a function, which the parser doesn't know as a word.
_CALLED: Final = "$values"

_AFTER: Final = (TokenType.FROM, TokenType.JOIN, TokenType.COMMA)


def with_called_values(tokens: Sequence[Token]) -> list[Token]:
    """The tokens, where `values(…)` in FROM is the call of a function."""
    found = list(tokens)
    for i in range(1, len(found) - 2):
        token, opened = found[i], found[i + 1].token_type == TokenType.L_PAREN
        if token.token_type == TokenType.VALUES and opened and found[i - 1].token_type in _AFTER:
            found[i] = Token(TokenType.VAR, _CALLED, token.line, token.col, token.start, token.end, [])
    return found


def read_table_functions(tree: exp.Expression | None, text: str) -> None:
    """Reads all that this module is about in a tree."""
    if tree is None:
        return
    delimiter = _take_delimiter(tree)
    _read_format(tree)
    _read_tuples(tree)
    for node in [n for n in tree.find_all(exp.Table) if isinstance(n.this, exp.Anonymous)]:
        _read_table_function(node, text, delimiter)


def read_array_joins(tree: exp.Expression | None, text: str) -> None:
    """Turns `ARRAY JOIN array AS x, other AS y` into a join with the elements of the arrays, side by side. In the
    SELECT their names mean the elements, even if a relation has such a column.
    """
    for node in [] if tree is None else list(tree.find_all(exp.Join)):
        if node.args.get("kind", "").upper() != "ARRAY":
            continue
        items, select = [node.this, *node.expressions], node.parent
        if not isinstance(select, exp.Select):
            raise not_supported("ARRAY JOIN in this place", text, node_span(items[0]))
        calls, names = list[exp.Table](), list[str]()
        for item in items:
            array = item.unalias()
            if not isinstance(item, exp.Alias) and not isinstance(array, exp.Column):
                hint = "Write ARRAY JOIN array AS name."
                raise not_supported("ARRAY JOIN without a name", text, node_span(item), hint=hint)
            call = exp.Anonymous(this="unnest", expressions=[array.copy()])
            set_span(call, node_span(item))
            calls.append(exp.Table(this=call))
            names.append(item.alias_or_name)
        listed = [exp.to_identifier(name, quoted=True) for name in names]
        alias = exp.TableAlias(this=listed[0].copy(), columns=listed)
        words = {"side": "LEFT", "on": exp.true()} if node.side.upper() == "LEFT" else {"kind": "CROSS"}
        several = {"rows_from": calls} if len(calls) > 1 else {}
        made = ArrayJoin(this=exp.Table(this=calls[0].this.copy(), alias=alias, whole=True, **several), **words)
        set_span(made, node_span(items[0]))
        node.replace(made)
        _name_elements(select, names)


def _name_elements(select: exp.Select, names: Sequence[str]) -> None:
    """Qualifies the unqualified columns of a SELECT that have one of the names by the first name, which is that of the
    item of FROM.
    """
    parts = [*select.expressions, *(select.args[p] for p in _AFTER_FROM if select.args.get(p) is not None)]
    for part in parts:
        for column in list(part.find_all(exp.Column)):
            if column.name not in names or column.args.get("table") or _is_hidden(column, select):
                continue
            made = exp.column(column.this.copy(), table=exp.to_identifier(names[0], quoted=True))
            set_span(made, node_span(column))
            if column is part:
                name = exp.to_identifier(column.name, quoted=True)
                column.replace(exp.Alias(this=made, alias=name))
            else:
                column.replace(made)


def _is_hidden(column: exp.Column, select: exp.Select) -> bool:
    """Whether a column is the parameter of a function, or belongs to a query inside the SELECT."""
    above = column.find_ancestor(exp.Select, exp.Lambda)
    while isinstance(above, exp.Lambda) and column.name not in [p.name for p in above.expressions]:
        above = above.find_ancestor(exp.Select, exp.Lambda)
    return above is not select


#: The clauses of a SELECT that read the rows of FROM.
_AFTER_FROM: Final = ("where", "group", "having", "order")


def _read_tuples(tree: exp.Expression) -> None:
    """Turns tuples inside rows of VALUES into values of structs."""
    for values in tree.find_all(exp.Values):
        for row in values.expressions:
            for inner in [n for n in row.find_all(exp.Tuple) if n is not row]:
                call = exp.Anonymous(this="row", expressions=inner.expressions)
                set_span(call, node_span(inner))
                inner.replace(call)


def _read_format(tree: exp.Expression) -> None:
    """Turns FORMAT of a query into a setting without effect, which gives a notice."""
    written = tree.args.get("format")
    if written is None or not isinstance(tree, exp.Query):
        return
    tree.set("format", None)
    setting = exp.EQ(this=exp.column(exp.to_identifier("FORMAT")), expression=exp.Literal.string(written.name))
    tree.set("settings", [*(tree.args.get("settings") or []), setting])


def _take_delimiter(tree: exp.Expression) -> str | None:
    """Takes `format_csv_delimiter` out of the settings of a query."""
    settings = tree.args.get("settings") or []
    for setting in settings:
        if isinstance(setting, exp.EQ) and setting.this.name == "format_csv_delimiter" and setting.expression.is_string:
            settings.remove(setting)
            return str(setting.expression.name)
    return None


#: The formats of files by name: the function that reads them, with its options.
_FILES: Final[dict[str, tuple[str, dict[str, str]]]] = {
    "csv": ("read_csv", {"header": "false"}), "csvwithnames": ("read_csv", {"header": "true"}),
    **dict.fromkeys(("tsv", "tabseparated"), ("read_csv", {"header": "false", "delim": "'\t'"})),
    **dict.fromkeys(("tsvwithnames", "tabseparatedwithnames"), ("read_csv", {"header": "true", "delim": "'\t'"})),
    **dict.fromkeys(("jsoneachrow", "jsonlines", "ndjson"), ("read_json", {"format": "'newline_delimited'"})),
    "json": ("read_json", {"format": "'auto'"}), "parquet": ("read_parquet", {}),
}  # fmt: skip

#: The formats of files whose names end so.
_ENDINGS: Final = {"csv": "csvwithnames", "tsv": "tsvwithnames", "json": "json", "jsonl": "jsoneachrow",
                   "ndjson": "jsoneachrow", "parquet": "parquet"}  # fmt: skip


def _file(call: exp.Anonymous, delimiter: str | None, text: str) -> exp.Expression:
    """The query of `file('path', 'format', 'a int, b string')`; by default the format is that of the name's ending.
    With a structure, the columns are cast to its types; without it they are those of the file.
    """
    given = [a.name for a in call.expressions if a.is_string]
    if len(given) != len(call.expressions) or not 1 <= len(given) <= 3:
        raise node_error(text, call, "SYNTAX_ERROR", "file takes a path, a format and a structure, as texts")
    path, written, structure = [*given, "", ""][:3]
    name = written.lower() if written and written.lower() != "auto" else _ENDINGS.get(path.rpartition(".")[2], "")
    if name not in _FILES:
        hint = "CSV, CSVWithNames, TSV, JSONEachRow, JSON and Parquet are supported."
        raise not_supported(f"the format {written or 'of this file'} in file(…)", text, own_span(call), hint=hint)
    reader, options = _FILES[name]
    if delimiter is not None and "delim" not in options and reader == "read_csv":
        options = {**options, "delim": exp.Literal.string(delimiter).sql()}
    columns = _structure(structure) if structure else []
    if not columns and options.get("header") == "false":
        raise not_supported(f"file(…) of {written} without a structure", text, own_span(call),
                            hint="Write it as the third argument: 'a int, b string'.")  # fmt: skip
    arguments: list[exp.Expression] = [exp.Literal.string(path)]
    arguments += [exp.EQ(this=exp.column(n), expression=exp.maybe_parse(v)) for n, v in options.items()]
    if columns and reader == "read_csv":
        arguments.append(exp.EQ(this=exp.column("all_varchar"), expression=exp.true()))
        if options["header"] == "false":
            names = exp.Array(expressions=[exp.Literal.string(n.lower()) for n, _ in columns])
            arguments.append(exp.EQ(this=exp.column("names"), expression=names))
    source = exp.Anonymous(this=reader, expressions=arguments)
    set_span(source, own_span(call))
    items = [
        exp.alias_(value if kind is None else exp.cast(value, kind), name, quoted=True)
        for name, kind in columns
        for value in [exp.column(exp.to_identifier(name.lower(), quoted=True))]
    ]
    return exp.select(*(items or [exp.Star()]), copy=False).from_(exp.Table(this=source), copy=False)


def _read_table_function(node: exp.Table, text: str, delimiter: str | None) -> None:
    """Replaces a call in FROM by rows. Raises FEATURE_NOT_SUPPORTED for functions that read what is outside, and for
    arguments that are no constants.
    """
    call = node.this
    name = str(call.this).lower()
    if name in _OUTSIDE:
        raise not_supported(f"{name}(…) in FROM", text, own_span(call), hint=_OUTSIDE[name])
    if name == "file":
        node.replace(exp.Subquery(this=_file(call, delimiter, text), alias=node.args.get("alias") or _alias("file")))
    elif name in ("numbers", "numbers_mt") and len(call.expressions) in (1, 2):
        start, count = [exp.Literal.number(0), *call.expressions][-2:]
        last = exp.Paren(this=exp.Sub(this=exp.Add(this=start.copy(), expression=count), expression=_one()))
        _replace(node, exp.Anonymous(this="generate_series", expressions=[start, last]), "number")
    elif name in ("zeros", "zeros_mt") and len(call.expressions) == 1:
        series = exp.Anonymous(this="generate_series", expressions=[_one(), call.expressions[0]])
        zero = exp.alias_(exp.cast(exp.Literal.number(0), exp.DType.SMALLINT), "zero", quoted=True)
        rows = exp.select(zero, copy=False).from_(exp.Table(this=series), copy=False)
        node.replace(exp.Subquery(this=rows, alias=node.args.get("alias") or _alias("zeros")))
    elif name == _CALLED and call.expressions:
        node.replace(exp.Subquery(this=_values(call, text), alias=node.args.get("alias") or _alias("values")))


def _replace(node: exp.Table, call: exp.Anonymous, column: str) -> None:
    set_span(call, own_span(node.this))
    alias = node.args.get("alias") or _alias(node.this.this)
    if not alias.columns:
        alias.set("columns", [exp.to_identifier(column, quoted=True)])
    node.set("this", call)
    node.set("alias", alias)


def _values(call: exp.Anonymous, text: str) -> exp.Expression:
    """The query of `values('a int, b string', (1, 'x'), …)`; without the structure columns are c1, c2 …"""
    first, *rest = call.expressions
    structure = first.name if isinstance(first, exp.Literal) and first.is_string and " " in first.name.strip() else ""
    rows = [row.expressions if isinstance(row, exp.Tuple) else [row] for row in (rest if structure else [first, *rest])]
    width = len(rows[0]) if rows else 0
    if not rows or any(len(row) != width for row in rows):
        raise node_error(text, call, "SYNTAX_ERROR", "values(…) needs rows of equal width")
    columns = _structure(structure) if structure else [(f"c{i + 1}", None) for i in range(width)]
    if len(columns) != width:
        raise node_error(text, call, "SYNTAX_ERROR", f"the structure has {len(columns)} columns, the rows have {width}")
    names = [exp.to_identifier(f"c{i + 1}", quoted=True) for i in range(width)]
    listed = exp.Values(
        expressions=[exp.Tuple(expressions=row) for row in rows],
        alias=exp.TableAlias(this=exp.to_identifier("rows", quoted=True), columns=names),
    )
    items = [
        exp.alias_(
            exp.column(place.copy()) if kind is None else exp.cast(exp.column(place.copy()), kind), name, quoted=True
        )
        for place, (name, kind) in zip(names, columns, strict=True)
    ]
    return exp.select(*items, copy=False).from_(listed, copy=False)


def _structure(text: str) -> list[tuple[str, exp.DataType | None]]:
    """The names and types of `a int, b decimal(10, 2)`."""
    found: list[tuple[str, exp.DataType | None]] = []
    depth, begin = 0, 0
    for i, character in enumerate(f"{text},"):
        depth += (character == "(") - (character == ")")
        if character == "," and not depth:
            name, _, kind = text[begin:i].strip().partition(" ")
            found.append(
                (name.strip("`"), cast_type(exp.DataType.build(kind.strip() or "string", dialect="clickhouse")))
            )
            begin = i + 1
    return found


def _one() -> exp.Literal:
    return exp.Literal.number(1)


def _alias(name: str) -> exp.TableAlias:
    return exp.TableAlias(this=exp.to_identifier(name, quoted=True))
