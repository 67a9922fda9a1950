"""Recognizes queries of the system catalog and translates them to DuckDB."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from sqlglot import exp, parse_one
from sqlglot.dialects.postgres import Postgres
from sqlglot.errors import SqlglotError
from sqlglot.tokens import Token

from watersmeet.binder.context.scope import item_name
from watersmeet.dialects.statements.preparing import Parameter
from watersmeet.dialects.tree.nodes import ImpliedAlias, infer_open
from watersmeet.dialects.tree.queries import node_span, numbered
from watersmeet.dialects.tree.statements import Statement
from watersmeet.dialects.tree.tokens import Parameters, span_of
from watersmeet.errors import Error, error
from watersmeet.server.catalog.functions import (
    CALLED,
    CALLED_IN_FROM,
    ELEMENTS,
    INLINED,
    SESSION_FUNCTIONS,
    TRUE_TYPES,
    by_aliases,
    contain_elements,
    is_catalog_table,
    true_type,
)
from watersmeet.server.catalog.shapes import NUMBERS, OF_CLIENTS, SHAPES
from watersmeet.session.statements.preparing import literal
from watersmeet.values.spans import own_span, set_span
from watersmeet.values.types import BIGINT, BOOLEAN, INTEGER, VARCHAR, SqlType

_SCHEMAS: Final = {"pg_catalog": "pg_catalog_", "information_schema": "information_schema_"}
_OPERATORS: Final[dict[str, tuple[str, bool]]] = {
    "~": ("regexp_matches", False),
    "!~": ("regexp_matches", True),
    "~*": ("regexp_matches_i", False),
    "!~*": ("regexp_matches_i", True),
    "~~": ("like", False),
    "!~~": ("like", True),
    "~~*": ("ilike", False),
    "!~~*": ("ilike", True),
    "=": ("=", False),
    "<>": ("=", True),
}
#: DuckDB types by PostgreSQL types.
_TYPES: Final = {
    "name": "VARCHAR", "char": "VARCHAR", "text": "VARCHAR", "varchar": "VARCHAR", "oid": "UINTEGER", "xid": "UINTEGER",
    "cid": "UINTEGER", "bool": "BOOLEAN", "int2": "SMALLINT", "int4": "INTEGER", "int8": "BIGINT", "int": "INTEGER",
    "bigint": "BIGINT",
    "regproc": "UINTEGER", "regprocedure": "UINTEGER", "regoper": "UINTEGER", "regnamespace": "UINTEGER",
    "regrole": "UINTEGER", "regtype": "UINTEGER", "regclass": "UINTEGER", "int2vector": "SMALLINT[]",
    "oidvector": "UINTEGER[]", "sql_identifier": "VARCHAR", "cardinal_number": "INTEGER", "character_data": "VARCHAR",
    "yes_or_no": "VARCHAR", "pg_node_tree": "VARCHAR", "aclitem": "VARCHAR", "timestamptz": "TIMESTAMPTZ",
    "float4": "FLOAT", "float8": "DOUBLE", "numeric": "DECIMAL(38, 10)", "json": "JSON", "jsonb": "JSON",
    "information_schema.sql_identifier": "VARCHAR",
}  # fmt: skip
_PARAMETER_TYPES: Final = {
    **dict.fromkeys(("int", "int4"), INTEGER), **dict.fromkeys(("int8", "bigint", "oid"), BIGINT), "bool": BOOLEAN,
}  # fmt: skip
#: The prefix of names of WITH queries in DuckDB.
_CTE: Final = "watersmeet_with_"
#: Arrays of types that sqlglot does not parse.
_ARRAY_TYPES: Final = re.compile(r"(?<=::)\s*(?:pg_catalog\.)?(oid|regclass|regtype|name|\"char\")\s*\[\]")
#: A keyword as a column alias after AS, which PostgreSQL accepts and sqlglot does not.
_NAMED_BY_KEYWORD: Final = re.compile(r"(?i)(\bas\s+)([a-z]+)(?=\s*,|\s+from\b)")
#: The oid of type text[].
_TEXTS: Final = 1009
_POSTGRES: Final = Postgres()
_REGISTERED: Final = ("regclass", "regtype", "regproc", "regprocedure", "regnamespace", "regrole")
#: Words that may make a query without relations one of the catalog; names with certain prefixes also count.
_WORDS: Final = frozenset({
    *SESSION_FUNCTIONS, *_REGISTERED, "current_catalog", "current_database", "current_role", "current_schema",
    "current_user", "session_user", "user",
})  # fmt: skip


#: Functions of queries whose names look like those of the catalog.
_OF_QUERIES: Final = ("pg_typeof", "pg_sleep", "pg_sleep_for")


@dataclass(frozen=True, kw_only=True)
class CatalogQuery(Statement):
    """A query that reads only PostgreSQL's catalog."""

    tree: exp.Query


def read_catalog_query(
    tokens: Sequence[Token], text: str, parameters: Parameters, is_relation: Callable[[str], bool]
) -> CatalogQuery | None:
    """A query of the catalog, from its tokens in any dialect; None for any other query.

    If one of its words may be a name of the catalog, the query is parsed by PostgreSQL's grammar, and its tree decides.
    is_relation: whether the session has a relation of that name.
    """
    if not _names_catalog(tokens):
        return None
    span = span_of(tokens)
    written = _ARRAY_TYPES.sub(lambda m: "bigint[]" if m[1] == "oid" else "text[]", text[span.start : span.end])
    tree = _parsed(written, parameters) or _parsed(_NAMED_BY_KEYWORD.sub(r'\1"\2"', written), parameters)
    if not isinstance(tree, exp.Query) or not _is_of_catalog(tree, is_relation):
        return None  # the session reports the error
    return CatalogQuery(text=text, sql=text[span.start : span.end], span=span, tree=tree)


def _names_catalog(tokens: Sequence[Token]) -> bool:
    """Whether a word of a query may be a name of the catalog.

    Words that are also common column names count if FROM names no relation, or WITH may define one.
    """
    words = [t.text.lower() for t in tokens]
    if any(w.startswith("pg_") or w == "information_schema" for w in words):
        return True
    reads = any(
        word in ("from", "join") and i + 2 < len(words) and words[i + 2] != "(" for i, word in enumerate(words)
    ) or words[-2:-1] == ["from"]
    if reads and words[0] != "with":
        return False
    return any(w.startswith("has_") or w in _WORDS for w in words)


def _parsed(text: str, parameters: Parameters) -> exp.Expression | None:
    """The tree of a text, parsed by PostgreSQL's grammar; None if it can't be parsed."""
    try:
        tokens = _POSTGRES.tokenize(text)
        found = _POSTGRES.parser().parse(numbered(tokens) if parameters else tokens, text)
    except SqlglotError:
        return None
    return found[0] if len(found) == 1 else None


#: Functions of the number of a process.
_OF_PROCESSES: Final = ("pg_cancel_backend", "pg_terminate_backend")


def infer_types(tree: exp.Query) -> None:
    """Sets the types of open parameters: from a cast or a function, or text[] after ANY."""
    for node in tree.find_all(exp.Null):
        if isinstance(node.parent, exp.Cast):
            kind = node.parent.to
            infer_open(node, _parameter_type(kind), 1028 if _type_name(kind) == ("bigint", True) else 0)
        elif isinstance(node.parent, exp.Anonymous) and str(node.parent.this).lower() in _OF_PROCESSES:
            infer_open(node, INTEGER)
        elif isinstance(node.find_ancestor(exp.Any, exp.Select), exp.Any):
            infer_open(node, SqlType("array", element=VARCHAR), _TEXTS)


def _parameter_type(kind: exp.DataType) -> SqlType:
    """The type of a parameter that a query casts to a type."""
    name, is_array = _type_name(kind)
    found = _PARAMETER_TYPES.get(name, VARCHAR)
    return SqlType("array", element=found) if is_array else found


def _is_of_catalog(tree: exp.Query, is_relation: Callable[[str], bool]) -> bool:
    tables = [t for t in tree.find_all(exp.Table) if isinstance(t.this, exp.Identifier)]
    own = [t for t in tables if cte_of(t) is None]
    if not own:
        return _asks_session(tree)
    return all(
        t.db.lower() in _SCHEMAS
        or (not t.db and is_catalog_table(t.name) and t.name.lower().startswith("pg_") and not is_relation(t.name))
        for t in own
    )


def cte_of(table: exp.Table) -> exp.CTE | None:
    """The WITH query that a name refers to: the innermost one defined before it, or around it with RECURSIVE."""
    if table.db:
        return None
    node: exp.Expression = table
    while node.parent is not None:
        inside, node = node, node.parent
        if isinstance(node, exp.With):
            end = node.expressions.index(inside) + bool(node.recursive)
            known = node.expressions[:end]
        else:
            known = [] if isinstance(inside, exp.With) else getattr(node, "ctes", [])
        found = next((cte for cte in known if cte.alias.lower() == table.name.lower()), None)
        if found is not None:
            return found
    return None


def _name_ctes(tree: exp.Expression) -> None:
    """Gives WITH queries unique names, so that their names can't refer to other objects in DuckDB."""
    meant = [(table, cte) for table in tree.find_all(exp.Table) if (cte := cte_of(table)) is not None]
    names = {id(cte): exp.to_identifier(f"{_CTE}{i}") for i, cte in enumerate(tree.find_all(exp.CTE))}
    for table, cte in meant:
        if not table.alias:
            table.set("alias", exp.TableAlias(this=table.this))
        table.set("this", names[id(cte)].copy())
    for cte in tree.find_all(exp.CTE):
        cte.args["alias"].set("this", names[id(cte)])


def _asks_session(tree: exp.Query) -> bool:
    """Whether a query without relations calls a function of the catalog."""
    if any(tree.find_all(*_SPECIAL, exp.CurrentVersion)):
        return True
    if any(_type_name(cast.to)[0] in _REGISTERED for cast in tree.find_all(exp.Cast)):
        return True
    names = {_called(call) for call in tree.find_all(exp.Func)}
    bare = {c.name.lower() for c in tree.find_all(exp.Column) if not c.table}
    return bool(
        names & SESSION_FUNCTIONS
        or any(n.startswith(("pg_", "has_")) and n not in _OF_QUERIES for n in names)
        or bare & {"user", "session_user", "current_user", "current_catalog", "current_role", "current_database"}
        or "current_database" in names
    )


def with_values(tree: exp.Expression, ask: Callable[[exp.Query], tuple[object, SqlType]]) -> exp.Expression:
    """A query with values instead of its constant calls of functions of the catalog. ask: returns value and type of a
    query of the catalog.
    """
    if not _constant_calls(tree):
        return tree
    tree = tree.copy()
    for call in _constant_calls(tree):
        value, kind = ask(_query_of(call))
        made = literal(value, Parameter(kind))
        item = call.parent if isinstance(call.parent, ImpliedAlias) else call
        if isinstance(item.parent, exp.Select) and item.arg_key == "expressions":
            made = exp.alias_(made, item_name(call) or "?column?", quoted=True)
        set_span(made, own_span(call) or node_span(call))
        item.replace(made)
    return tree


def _constant_calls(tree: exp.Expression) -> list[exp.Expression]:
    """The outermost calls of functions of the catalog, and casts to types such as regclass, that read no columns."""
    found: list[exp.Expression] = []

    def look(node: exp.Expression) -> None:
        asks = _called(node) in INLINED if isinstance(node, exp.Anonymous) else isinstance(node, exp.CurrentVersion)
        if isinstance(node, exp.Cast):
            asks = _type_name(node.to)[0] in _REGISTERED or any(
                _type_name(cast.to)[0] in _REGISTERED for cast in node.this.find_all(exp.Cast)
            )
        if asks and next(node.find_all(exp.Column, exp.Query, exp.Placeholder, exp.Parameter), None) is None:
            found.append(node)
            return
        for child in node.iter_expressions():
            look(child)

    look(tree)
    return found


def _query_of(node: exp.Expression) -> exp.Query:
    """The query of the catalog that returns the value of a call."""
    tree = parse_one(f"SELECT {node.sql(dialect='postgres')}", dialect=_POSTGRES)
    assert isinstance(tree, exp.Select)
    return tree


def _called(call: exp.Expression) -> str:
    """The name of a function that is called; empty for other expressions."""
    if isinstance(call, exp.Anonymous):
        return str(call.this).lower()
    return str(call.sql_name()).lower() if isinstance(call, exp.Func) else ""


def duckdb_sql(tree: exp.Expression, text: str) -> str:
    """The query as DuckDB SQL over the catalog's tables. Raises UNDEFINED_RELATION for a missing one."""
    tree = tree.copy()
    _name_ctes(tree)
    _number_tables(tree)
    for select in list(tree.find_all(exp.Select)):
        _name_items(select)
    for condition in list(tree.find_all(exp.In)):
        contain_elements(condition)
    for comparison in list(tree.find_all(exp.NEQ)):
        _compare_with_all(comparison)
    for node in reversed(list(tree.walk())):  # inner nodes are first
        made = _rewritten(node, text)
        if made is node:
            continue
        if node is tree:
            tree = made
        else:
            node.replace(made)
    return str(tree.sql(dialect="duckdb"))


def _number_tables(tree: exp.Expression) -> None:
    """Replaces `tableoid`, a hidden column of PostgreSQL's tables, by the oid of its table."""
    for column in list(tree.find_all(exp.Column)):
        if column.name.lower() != "tableoid":
            continue
        select = column.find_ancestor(exp.Select)
        while select is not None:
            table = _table_called(select, column.table)
            if table is None:
                select = select.find_ancestor(exp.Select)
                continue
            number = exp.cast(exp.Literal.number(NUMBERS.get(table.name.lower(), 0)), "UINTEGER", dialect="duckdb")
            named = isinstance(column.parent, exp.Select)
            column.replace(exp.alias_(number, column.name, quoted=True) if named else number)
            break


def _table_called(select: exp.Select, name: str) -> exp.Table | None:
    """A table in FROM by its name or alias; without a name, the first one."""
    sources = [select.args.get("from_") or select.args.get("from"), *(select.args.get("joins") or ())]
    tables = [s.this for s in sources if s is not None and isinstance(s.this, exp.Table)]
    return next((t for t in tables if not name or t.alias_or_name == name), None)


def _compare_with_all(comparison: exp.NEQ) -> None:
    """`x <> ALL (array)` in DuckDB's form."""
    array = comparison.expression
    if isinstance(array, exp.Anonymous) and str(array.this).lower() == "all":
        found = exp.EQ(
            this=comparison.this.copy(), expression=exp.Any(this=exp.Paren(this=array.expressions[0].copy()))
        )
        comparison.replace(exp.Paren(this=exp.Not(this=exp.Paren(this=found))))


def _name_items(select: exp.Select) -> None:
    """Gives the items of a select list the names that PostgreSQL gives them."""
    for item in list(select.expressions):
        if not isinstance(item, (exp.Alias, exp.Column, exp.Star, exp.Dot)) or (
            isinstance(item, exp.Dot) and not item.is_star
        ):
            item.replace(exp.alias_(item.copy(), _item_name(item), quoted=True))


def _item_name(item: exp.Expression) -> str:
    if isinstance(item, exp.Dot):
        return _item_name(item.expression)
    if isinstance(item, exp.Cast):
        inner = _item_name(item.this)
        return inner if inner != "?column?" else _type_name(item.to)[0]
    if isinstance(item, (exp.Paren, exp.Collate)):
        return _item_name(item.this)
    if isinstance(item, exp.Column):
        return str(item.name)
    if isinstance(item, exp.Case):
        return "case"
    if isinstance(item, exp.Subquery):
        return str(item.this.expressions[0].alias_or_name or "?column?")
    return _FUNCTION_NAMES.get(type(item)) or (_called(item) if isinstance(item, exp.Func) else "?column?")


_FUNCTION_NAMES: Final[dict[type[exp.Expression], str]] = {
    exp.CurrentUser: "current_user",
    exp.SessionUser: "session_user",
    exp.CurrentSchema: "current_schema",
    exp.CurrentCatalog: "current_catalog",
    exp.CurrentDatabase: "current_database",
    exp.CurrentVersion: "version",
    exp.Exists: "exists",
    exp.Array: "array",
    exp.And: "?column?",
    exp.Or: "?column?",
    exp.Count: "count",
}


def _rewritten(node: exp.Expression, text: str) -> exp.Expression:
    if isinstance(node, exp.Table) and isinstance(node.this, exp.Identifier):
        return _table(node, text)
    if isinstance(node, (exp.ReadCSV, exp.ReadParquet)):
        raise _undefined(node.sql_name(), text)
    if isinstance(node, exp.Table) and (one := _VALUES_IN_FROM.get(_called(node.this))) is not None:
        return _selected(node, one)
    if isinstance(node, exp.Table) and (empty := _EMPTY_IN_FROM.get(_called(node.this))) is not None:
        return exp.Subquery(this=exp.select(*empty, dialect="duckdb").where("false"), alias=node.args.get("alias"))
    if isinstance(node, exp.Table):  # a function in FROM; its alias is also the name of its column
        if isinstance(node.this, exp.Anonymous) and str(node.this.this).lower() not in CALLED_IN_FROM:
            raise _undefined(str(node.this.this), text)
        node.set("db", None)
        if _called(node.this) == "_pg_expandarray":
            return _numbered_elements(node)
        return _selected(node, node.alias) if isinstance(node.this, _SELECTED) and node.alias else _with_column(node)
    if isinstance(node, exp.Bracket) and isinstance(node.this, exp.Column) and node.this.name.lower() == "typname":
        # The bytes of a name are numbered from 0, and sqlglot subtracts 1.
        start = exp.Add(this=exp.Paren(this=node.expressions[0].copy()), expression=exp.Literal.number(2))
        return exp.Substring(this=node.this, start=start, length=exp.Literal.number(1))
    if isinstance(node, exp.Unnest):
        return _zipped(node) if len(node.expressions) > 1 else _with_column(node)
    if isinstance(node, exp.Column):
        return _column(node)
    if isinstance(node, exp.Dot) and str(node.this.name).lower() in _SCHEMAS:
        return node.expression
    if isinstance(node, exp.Collate):
        return node.this
    if isinstance(node, exp.Group):
        return by_aliases(node)
    if isinstance(node, exp.Anonymous) and str(node.this).lower() in TRUE_TYPES:
        return true_type(node)
    if isinstance(node, exp.EQ) and isinstance(node.expression, exp.Any):
        listed = node.expression.this.unnest()
        if isinstance(listed, exp.Literal) and (texts := ELEMENTS.fullmatch(listed.name)):
            elements = [exp.Literal.string(t) for t in texts[1].split(",") if t]
            return exp.In(this=exp.cast(node.this, "VARCHAR"), expressions=elements or [exp.null()])
        if not isinstance(listed, exp.Column):
            return node
        # DuckDB makes ANY a subquery, which it does not support in the condition of an outer join.
        return exp.Anonymous(this="list_contains", expressions=[listed, node.this])
    if isinstance(node, (exp.EQ, exp.NEQ)):
        return _compared_function(node)
    if isinstance(node, (exp.Like, exp.ILike)) and not isinstance(node.parent, exp.Escape):
        return _escaped(node.copy())
    if isinstance(node, exp.DPipe) and any(isinstance(s, exp.Literal) for s in (node.this, node.expression)):
        # When a query is described, NULL stands for parameters, and DuckDB gives NULL a numeric type.
        return exp.Cast(this=exp.Paren(this=node.copy()), to=exp.DataType.build("VARCHAR"))
    if isinstance(node, exp.Operator):
        return _operator(node)
    if isinstance(node, exp.Cast):
        return _cast(node)
    if isinstance(node, exp.Format):
        return _formatted(node, text)
    if isinstance(node, exp.Anonymous) and str(node.this).lower() == "jsonb_agg":
        return exp.Anonymous(this="to_json", expressions=[exp.Anonymous(this="list", expressions=node.expressions)])
    if isinstance(node, exp.Anonymous) and str(node.this).lower() in _RENAMED:
        return exp.Anonymous(this=_RENAMED[str(node.this).lower()], expressions=node.expressions)
    if isinstance(node, exp.Anonymous) and str(node.this).lower() not in CALLED:
        raise _undefined(str(node.this), text)
    special = _SPECIAL.get(type(node))
    return exp.Anonymous(this=special) if special is not None else node


#: The parts of a pattern of format, and the functions that write a value as a name or as a literal.
_PATTERN: Final = re.compile(r"%(?:(%)|([sIL]))|([^%]+)")
_WRITING: Final = {"I": "quote_ident", "L": "quote_literal"}


def _formatted(node: exp.Format, text: str) -> exp.Expression:
    """format(pattern, values) as a concatenation. Raises FEATURE_NOT_SUPPORTED for positions and widths in the
    pattern.
    """
    pattern, values = node.this, list(node.expressions)
    parts: list[exp.Expression] = []
    covered = 0
    for found in _PATTERN.finditer(pattern.name if isinstance(pattern, exp.Literal) else "%"):
        covered += len(found[0])
        if found[2] is None:
            parts.append(exp.Literal.string(found[1] or found[3]))
        elif values:
            value = exp.Cast(this=values.pop(0), to=exp.DataType.build("VARCHAR"))
            called = _WRITING.get(found[2])
            parts.append(exp.Anonymous(this=called, expressions=[value]) if called else value)
        else:
            covered = -1
            break
    if not isinstance(pattern, exp.Literal) or covered != len(pattern.name):
        raise error("FEATURE_NOT_SUPPORTED", "this format() is not supported in queries of the catalog", sql=text)
    return exp.Cast(this=exp.Concat(expressions=parts, safe=True), to=exp.DataType.build("VARCHAR"))


#: Functions in FROM whose arguments may be queries in PostgreSQL, but not in DuckDB.
_SELECTED: Final = (exp.ExplodingGenerateSeries, exp.StringToArray)
#: Functions in FROM without rows, as nothing is partitioned and no object has options, with their columns.
_EMPTY_IN_FROM: Final = {
    "pg_partition_ancestors": ("CAST(NULL AS UINTEGER) AS relid", "CAST(NULL AS BIGINT) AS depth"),
    "pg_options_to_table": ("CAST(NULL AS VARCHAR) AS option_name", "CAST(NULL AS VARCHAR) AS option_value"),
}
#: Functions of one value by their name in DuckDB, with their column in FROM.
_VALUES_IN_FROM: Final = {
    "current_version": "version",
    "pg_current_database": "current_database",
    "pg_current_schema": "current_schema",
    "pg_current_user": "current_user",
    "pg_session_user": "session_user",
}


def _selected(node: exp.Table, name: str) -> exp.Expression:
    """A function in FROM as a query that selects its result, which is called `name` if it has no alias."""
    call: exp.Expression = node.this.copy()
    if isinstance(call, exp.ExplodingGenerateSeries):
        bounds = [call.args[name] for name in ("start", "end", "step") if call.args.get(name) is not None]
        call = exp.Anonymous(this="unnest", expressions=[exp.Anonymous(this="generate_series", expressions=bounds)])
    alias = node.args.get("alias")
    column = alias.columns[0].name if alias is not None and alias.columns else node.alias or name
    return exp.select(exp.alias_(call, column, quoted=True)).subquery(node.alias or name)


def _numbered_elements(node: exp.Table) -> exp.Expression:
    """`_pg_expandarray` in FROM, whose rows are the elements of an array and their numbers."""
    alias = node.args.get("alias")
    names = [*(c.name for c in alias.columns), *("x", "n")[len(alias.columns) :]] if alias is not None else ["x", "n"]
    array = node.this.expressions[0]
    places = exp.Anonymous(this="generate_subscripts", expressions=[array.copy(), exp.Literal.number(1)])
    items = (exp.Anonymous(this="unnest", expressions=[array.copy()]), places)
    named = [exp.alias_(item, name, quoted=True) for item, name in zip(items, names, strict=True)]
    return exp.Lateral(
        this=exp.select(*named).subquery(),
        alias=exp.TableAlias(this=exp.to_identifier(node.alias or "_pg_expandarray")),
    )


def _zipped(node: exp.Unnest) -> exp.Expression:
    """`unnest` of several arrays in FROM, of which DuckDB takes one: a list of rows that have their elements."""
    alias, place = node.args.get("alias"), node.args.get("offset")
    names = [c.name for c in alias.columns] if alias is not None else []
    names += [f"unnest_{n}" for n in range(len(names) + 1, len(node.expressions) + 1)]
    items = [exp.alias_(exp.column("n_", "u_"), place.name, quoted=True)] if isinstance(place, exp.Identifier) else []
    rows = exp.Bracket(this=exp.column("r_", "u_"), expressions=[exp.Literal.number(0)])
    for number, name in reversed(list(enumerate(names))):
        element = rows.copy()
        element.set("expressions", [exp.Literal.number(number)])
        items.insert(0, exp.alias_(element, name, quoted=True))
    zipped = exp.Anonymous(this="list_zip", expressions=[e.copy() for e in node.expressions])
    listed = exp.Unnest(
        expressions=[zipped],
        alias=exp.TableAlias(this=exp.to_identifier("u_"), columns=[exp.to_identifier("r_")]),
        offset=exp.to_identifier("n_"),
    )
    return exp.select(*items).from_(listed).subquery(node.alias or "unnest")


def _with_column(node: exp.Expression) -> exp.Expression:
    """A function in FROM whose column has the name of its alias."""
    alias = node.args.get("alias")
    if isinstance(alias, exp.TableAlias) and alias.this is not None and not alias.columns:
        alias.set("columns", [alias.this.copy()])
    return node


def _compared_function(node: exp.EQ | exp.NEQ) -> exp.Expression:
    """A comparison of a function's oid with 0 (no function): columns of functions contain names, and `-` for none."""
    sides = (node.this, node.expression)
    if any(isinstance(s, exp.Column) and s.name.lower() in _FUNCTIONS for s in sides):
        for side in sides:
            if isinstance(side, exp.Literal) and side.name == "0":
                side.replace(exp.Literal.string("-"))
    return node


def _undefined(name: str, text: str) -> Error:
    known = name.lower().startswith("pg_")
    detail = None if known else "The query reads PostgreSQL's catalog, where only functions of its tools exist."
    return error("UNDEFINED_FUNCTION", f"function {name.lower()} does not exist", detail=detail, sql=text)


_SPECIAL: Final[dict[type[exp.Expression], str]] = {
    exp.CurrentUser: "pg_current_user",
    exp.SessionUser: "pg_session_user",
    exp.CurrentSchema: "pg_current_schema",
    exp.CurrentCatalog: "pg_current_database",
    exp.CurrentDatabase: "pg_current_database",
}
#: Columns of functions, which contain their names.
_FUNCTIONS: Final = ("typinput", "typoutput", "typreceive", "typsend")
#: Functions that have another name in DuckDB, by their name in DuckDB.
_RENAMED: Final = {"json_build_object": "json_object", "jsonb_build_object": "json_object"}
_BARE: Final = {
    "user": "pg_current_user",
    "current_user": "pg_current_user",
    "session_user": "pg_session_user",
    "current_role": "pg_current_user",
    "current_catalog": "pg_current_database",
}


def _table(node: exp.Table, text: str) -> exp.Expression:
    schema, name = node.db.lower(), node.name.lower()
    if not schema and is_catalog_table(name):
        schema = "pg_catalog"
    if not schema and name.startswith(_CTE):
        return node
    if (schema, name) not in SHAPES:
        shown = f"{schema}.{name}" if schema else name
        raise error("UNDEFINED_RELATION", f'relation "{shown}" does not exist', sql=text)
    if not node.alias:
        node.set("alias", exp.TableAlias(this=exp.to_identifier(name)))
    node.set("db", exp.to_identifier("temp" if name in OF_CLIENTS else _SCHEMAS[schema]))
    node.set("this", exp.to_identifier(name))
    node.set("only", None)
    return node


def _column(node: exp.Column) -> exp.Expression:
    if node.args.get("db") is not None:
        node.set("db", None)
    if not node.table and not node.this.args.get("quoted") and node.name.lower() in _BARE:
        return exp.Anonymous(this=_BARE[node.name.lower()])
    return node


def _operator(node: exp.Operator) -> exp.Expression:
    written = str(node.args.get("operator")).rpartition(".")[2]
    if written not in _OPERATORS:
        raise error("FEATURE_NOT_SUPPORTED", f"operator {written} is not supported in queries of the catalog")
    name, negated = _OPERATORS[written]
    left, right = node.this, node.expression
    made: exp.Expression
    if name == "=":
        made = exp.EQ(this=left, expression=right)
    elif name in ("like", "ilike"):
        made = _escaped((exp.Like if name == "like" else exp.ILike)(this=left, expression=right))
    else:
        made = exp.Anonymous(this="regexp_matches", expressions=[left, right])
        if name.endswith("_i"):
            made.append("expressions", exp.Literal.string("i"))
    return exp.Paren(this=exp.Not(this=made)) if negated else made


def _escaped(like: exp.Expression) -> exp.Expression:
    """LIKE with PostgreSQL's default escape character; DuckDB has none unless ESCAPE is given."""
    return exp.Escape(this=like, expression=exp.Literal.string("\\"))


def _type_name(kind: exp.DataType) -> tuple[str, bool]:
    """The name of a type in lower case, without its schema; and whether it is an array type."""
    is_array = kind.this == exp.DataType.Type.ARRAY
    if is_array and kind.expressions:
        kind = kind.expressions[0]
    written = kind.sql(dialect="postgres").lower().replace('"', "")
    return written.rpartition(".")[2].partition("(")[0].strip(), is_array


#: The error for a cast of an unknown name, and the kind of the object.
_MISSING: Final = {
    "regclass": ("UNDEFINED_RELATION", "relation"),
    "regtype": ("UNDEFINED_OBJECT", "type"),
    "regnamespace": ("UNDEFINED_OBJECT", "schema"),
}


def _raised(word: str, name: str) -> exp.Expression:
    """An expression that raises the error for a missing object."""
    condition, what = _MISSING[word]
    message = exp.Literal.string(f'{condition}: {what} "{name}" does not exist')
    return exp.Anonymous(this="error", expressions=[message])


def _is_text(value: exp.Expression) -> bool:
    """Whether an expression is certainly text: a concatenation, or a cast to text."""
    if isinstance(value, exp.Cast):
        return _type_name(value.to)[0] in ("text", "varchar", "name")
    return isinstance(value, exp.DPipe)


#: Functions that return the oid of an object, which as text is its name.
_LOOKUPS: Final = ("to_regclass", "to_regtype", "to_regnamespace")


def _oid_of_sequence(call: exp.Anonymous) -> exp.Expression:
    """The oid of the sequence that `pg_get_serial_sequence` names. The table is often the text of an oid."""
    table, column = call.expressions
    inner = table.this if isinstance(table, exp.Cast) else table
    if isinstance(inner, exp.Anonymous) and inner.name == "regclass_text":
        oid = inner.expressions[0].copy()
    else:
        oid = exp.Anonymous(this="to_regclass", expressions=[table.copy()])
    return exp.Anonymous(this="serial_sequence_oid", expressions=[oid, column.copy()])


def _cast(node: exp.Cast) -> exp.Expression:
    name, is_array = _type_name(node.to)
    value = node.this
    if name in _REGISTERED and not is_array:
        word = name.replace("procedure", "proc")
        if word == "regproc" and isinstance(value, exp.Literal) and isinstance(node.parent, exp.Predicate):
            return exp.Literal.string(value.name.rpartition(".")[2])  # columns of functions contain their names
        if isinstance(value, exp.Literal) and value.name.isdecimal():
            value = exp.Cast(this=value, to=exp.DataType.build("UINTEGER", dialect="duckdb"))
        elif isinstance(value, exp.Literal) and value.is_string:
            known = exp.Anonymous(this=f"to_{word}", expressions=[value])
            value = exp.Coalesce(this=known, expressions=[_raised(word, value.name)]) if word in _MISSING else known
        elif _is_text(value.unnest()) and f"to_{word}" in CALLED:
            value = exp.Anonymous(this=f"to_{word}", expressions=[value])
        elif word == "regclass" and _called(value) == "pg_get_serial_sequence" and len(value.expressions) == 2:
            value = _oid_of_sequence(value)
        outside = node.parent
        while isinstance(outside, (exp.Paren, exp.Alias)):
            outside = outside.parent
        is_text = isinstance(outside, exp.Cast) and _type_name(outside.to)[0] in ("text", "varchar", "name")
        is_shown = is_text or isinstance(outside, (exp.Select, exp.DPipe))
        return exp.Anonymous(this=f"{word}_text", expressions=[value]) if is_shown else value
    if name in ("text", "varchar") and isinstance(value, exp.Anonymous) and str(value.this).lower() in _LOOKUPS:
        word = str(value.this).lower().removeprefix("to_")
        return exp.Anonymous(this=f"{word}_text", expressions=[value])
    if name in _TYPES:
        written = _TYPES[name] + ("[]" if is_array else "")
        given = value.this if isinstance(value, exp.Cast) else value
        if is_array and isinstance(given, exp.Literal) and given.is_string:
            value = exp.Literal.string(given.name.replace("{", "[").replace("}", "]"))
        return exp.Cast(this=value, to=exp.DataType.build(written, dialect="duckdb"))
    return node
