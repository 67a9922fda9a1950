"""Converts SQLstream's own functions to those of `expressions.logparsing` and to functions that all dialects have.

SQLstream, "Streaming SQL Reference Guide", "Functions"; "Log Parsing Functions". The columns of a log-parsing function
are constants of the call, so they are read here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final

from sqlglot import exp

from watersmeet.dialects.sqlstream.timefunctions import TIME_FUNCTIONS
from watersmeet.dialects.tree.nodes import ColumnPath, retyped
from watersmeet.errors import error

Arguments = Sequence[exp.Expression]

_TEXT: Final = exp.Literal.string


def _call(name: str, *arguments: exp.Expression) -> exp.Expression:
    return exp.Anonymous(this=name, expressions=list(arguments))


def _constant(node: exp.Expression, name: str) -> str:
    """The constant text of an argument. Raises FEATURE_NOT_SUPPORTED."""
    if not isinstance(node, exp.Literal) or not node.is_string:
        raise error(
            "FEATURE_NOT_SUPPORTED",
            f"{name} with columns or a format that is not a constant is not supported",
            hint="Its columns have to be known when the query is read: write a text in quotes.",
        )
    return str(node.this)


def _fields(texts: exp.Expression, columns: Sequence[tuple[str, str]]) -> exp.Expression:
    """A row of the elements of an array of texts, converted to the names and types of columns."""
    return _call("$fields", texts, *(_TEXT(part) for column in columns for part in column))


def _numbered(count: int) -> list[tuple[str, str]]:
    return [(f"COLUMN{i + 1}", "varchar") for i in range(count)]


_NAME: Final = r'\s*(?:"(?P<quoted>[^"]+)"|(?P<plain>\w+))\s+TYPE\s+'
_TYPE: Final = r"(?P<type>[A-Za-z][\w ]*?(?:\(\s*\d+\s*(?:,\s*\d+\s*)?\))?)"
_COLUMN: Final = re.compile(
    _NAME + _TYPE + r"(?P<format>\s*'[^']*')?(?:\s+NOT\s+NULL)?"
    r"(?:\s+START\s+(?P<start>\d+)(?:\s+FOR\s+(?P<length>\d+))?)?\s*(?:,|\Z)",
    re.IGNORECASE,
)


def _columns(node: exp.Expression, name: str) -> list[re.Match[str]]:
    """The columns in `a TYPE INTEGER START 0 FOR 3, …`. Raises SYNTAX_ERROR, FEATURE_NOT_SUPPORTED."""
    text, found, place = _constant(node, name), [], 0
    while place < len(text.rstrip()):
        column = _COLUMN.match(text, place)
        if column is None:
            raise error(
                "SYNTAX_ERROR",
                f'the columns of {name} can\'t be read at "{text[place : place + 20].strip()}"',
                hint="A column is written: name TYPE type, for instance 'id TYPE INTEGER, name TYPE VARCHAR(20)'.",
            )
        if column["format"]:
            raise error(
                "FEATURE_NOT_SUPPORTED",
                f"a format of a column in {name} is not supported",
                hint="Declare the column as VARCHAR, and convert it with CHAR_TO_TIMESTAMP.",
            )
        found.append(column)
        place = column.end()
    return found


def _typed(columns: Sequence[re.Match[str]]) -> list[tuple[str, str]]:
    return [(c["quoted"] or c["plain"].upper(), _type(c["type"])) for c in columns]


def _type(written: str) -> str:
    """The type of a column; texts have no length."""
    name = " ".join(written.upper().split())
    if re.match(r"(VAR)?CHAR|CHARACTER", name):
        return "varchar"
    return {"TINYINT": "smallint", "DOUBLE PRECISION": "double"}.get(name, name.lower())


def groups(pattern: str) -> int:
    """The number of capturing groups of a regular expression of Java."""
    bare = re.sub(r"\[\^?\]?[^\]]*\]", "", re.sub(r"\\.", "", pattern, flags=re.DOTALL))
    return len(re.findall(r"\((?!\?)", bare))


class ParsedText(exp.Anonymous):  # type: ignore[misc]
    """A call whose part `kept` is the condition for the rows of its SELECT; others are dropped."""

    arg_types: ClassVar[dict[str, Any]] = {**exp.Anonymous.arg_types, "kept": False}
    own_parts: ClassVar[frozenset[str]] = frozenset({"kept"})


def _keeping(call: exp.Expression, condition: exp.Expression) -> exp.Expression:
    made: exp.Expression = ParsedText(this=call.this, expressions=call.expressions, kept=condition)
    return made


def with_parsed_rows(node: exp.Select) -> None:
    """Adds to WHERE that the texts of FAST_REGEX_LOG_PARSE and VARIABLE_COLUMN_LOG_PARSE in the list can be parsed."""
    calls = [c for item in node.expressions for c in item.find_all(ParsedText) if c.args.get("kept")]
    own = [c.args["kept"].pop() for c in calls if c.find_ancestor(exp.Query) is node]
    for condition in {c.sql(): c for c in own}.values():
        node.where(condition, copy=False)


def _of_regex(name: str, flags: str, arguments: Arguments) -> exp.Expression | None:
    """REGEX_LOG_PARSE(text, pattern [, columns]): the groups of a pattern that the whole text matches, else NULL."""
    if len(arguments) not in (2, 3):
        return None
    pattern = _constant(arguments[1], name)
    count = groups(pattern)
    columns = _typed(_columns(arguments[2], name)) if len(arguments) == 3 else _numbered(count)
    if not count or len(columns) != count:
        raise error(
            "INVALID_PARAMETER",
            f"the pattern of {name} has {count} groups" + (f", not {len(columns)}" if count else ""),
            hint="Each group in parentheses is a column.",
        )
    found = _call("$groups", arguments[0], _TEXT(flags + pattern), exp.Literal.number(count))
    row = _fields(found, columns)
    if not flags:
        return row
    unmatched = exp.and_(exp.Is(this=found.copy(), expression=exp.null()), arguments[0].copy().is_(exp.null()).not_())
    return _keeping(row, exp.paren(unmatched, copy=False).not_())


def _of_columns(arguments: Arguments) -> exp.Expression | None:
    """VARIABLE_COLUMN_LOG_PARSE(text, columns, delimiter [, escape [, quotes]])."""
    name = "VARIABLE_COLUMN_LOG_PARSE"
    if len(arguments) not in (3, 4, 5):
        return None
    text, wanted, *more = arguments
    is_count = isinstance(wanted, exp.Literal) and not wanted.is_string
    columns = _numbered(int(wanted.this)) if is_count else _typed(_columns(wanted, name))
    signs = [_constant(sign, name) for sign in more]
    texts = _call("$separated", text, *map(_TEXT, signs))
    row = _fields(texts, columns)
    if all(kind == "varchar" for _, kind in columns):
        return row
    return _keeping(row, _call("$fits", *(e.copy() for e in row.expressions)))


def _of_places(arguments: Arguments) -> exp.Expression | None:
    """FIXED_COLUMN_LOG_PARSE(text, columns): positions begin at 0."""
    if len(arguments) != 2:
        return None
    columns = _columns(arguments[1], "FIXED_COLUMN_LOG_PARSE")
    parts: list[exp.Expression] = []
    for column in columns:
        start = exp.Literal.number(int(column["start"] or 0) + 1)
        length = [] if column["length"] is None else [exp.Literal.number(int(column["length"]))]
        parts.append(_call("substr", arguments[0].copy(), start, *length))
    return _fields(exp.Array(expressions=parts), _typed(columns))


#: The predefined formats of W3C_LOG_PARSE.
_FORMATS: Final = {
    "COMMON": '%h %l %u %t "%r" %>s %b',
    "COMMON WITH VHOST": '%v %h %l %u %t "%r" %>s %b',
    "NCSA EXTENDED": '%h %l %u %t "%r" %>s %b "%[Referer]i" "%[User-agent]i"',
    "REFERER": "%[Referer]i ---> %U",
    "AGENT": "%[User-agent]i",
}
_SPECIFIER: Final = re.compile(r"(\"?)%[<>]?(?:\[[^\]]*\]|\{[^}]*\})?([A-Za-z])(\"?)")


def _of_format(arguments: Arguments) -> exp.Expression | None:
    """W3C_LOG_PARSE(text, format): a column for each specifier of Apache's log formats."""
    if len(arguments) != 2:
        return None
    given = _constant(arguments[1], "W3C_LOG_PARSE")
    written = _FORMATS.get(" ".join(given.upper().split()), given)
    pattern, columns, place = "", list[tuple[str, str]](), 0
    for found in _SPECIFIER.finditer(written):
        pattern += re.escape(written[place : found.start()])
        quoted, letter, last = bool(found[1] and found[3]), found[2], found.end() == len(written)
        inside = '"([^"]*)"' if quoted else r"\[([^\]]*)\]" if letter == "t" else "(.*)" if last else r"(\S*)"
        pattern += inside if quoted else found[1] + inside + found[3]
        columns.append((f"COLUMN{len(columns) + 1}", "bigint" if letter == "b" else "varchar"))
        place = found.end()
    if not columns:
        raise error(
            "FEATURE_NOT_SUPPORTED",
            f'the format "{given}" of W3C_LOG_PARSE is not supported',
            hint=f"It is {', '.join(_FORMATS)}, or made of Apache's specifiers, such as %h.",
        )
    pattern += re.escape(written[place:])
    return _fields(_call("$groups", arguments[0], _TEXT(pattern), exp.Literal.number(len(columns))), columns)


def _of_syslog(arguments: Arguments) -> exp.Expression | None:
    """SYS_LOG_PARSE(text): the time of the line `Mon DD HH:MM:SS …`, in 1970, and its rest."""
    if len(arguments) != 1:
        return None
    return _fields(_call("$syslog", arguments[0]), [("COLUMN1", "timestamp"), ("COLUMN2", "varchar")])


def _listed(arguments: Arguments) -> exp.Expression | None:
    """LISTAGG([DISTINCT] text [, separator])."""
    if not arguments:
        return None
    first = arguments[0]
    if isinstance(first, exp.Distinct) and len(first.expressions) == 1:
        first.append("expressions", _TEXT(""))
    more = [] if isinstance(first, exp.Distinct) or len(arguments) > 1 else [_TEXT("")]
    return _call("string_agg", *arguments, *more)


def ordered_list(node: exp.WithinGroup) -> exp.Expression | None:
    """`LISTAGG(…) WITHIN GROUP (ORDER BY …)` with its order in the call; None for other functions."""
    call = node.this
    made = _listed(call.expressions) if isinstance(call, exp.Anonymous) and call.name.upper() == "LISTAGG" else None
    if made is not None:
        *first, last = made.expressions
        made.set("expressions", [*first, exp.Order(this=last, expressions=node.expression.expressions)])
    return made


_MADE: Final[dict[str, Callable[[Arguments], exp.Expression | None]]] = {
    "LISTAGG": _listed,
    "SOME": lambda a: _call("bool_or", a[0]) if len(a) == 1 else None,
    "MONOTONIC": lambda a: a[0].pop() if len(a) == 1 else None,  # its argument is known to rise
    "REGEX_REPLACE": lambda a: _call("$regex_replace", *a),
    "REGEX_LOG_PARSE": lambda a: _of_regex("REGEX_LOG_PARSE", "", a),
    **dict.fromkeys(
        ("FAST_REGEX_LOG_PARSE", "FAST_REGEX_LOG_PARSER"), lambda a: _of_regex("FAST_REGEX_LOG_PARSE", "(?U)", a)
    ),
    "VARIABLE_COLUMN_LOG_PARSE": _of_columns,
    "FIXED_COLUMN_LOG_PARSE": _of_places,
    "W3C_LOG_PARSE": _of_format,
    "SYS_LOG_PARSE": _of_syslog,
}

#: An escape in `U&'…'`.
_UNICODE: Final = re.compile(r"\\(?:\+([0-9A-Fa-f]{6})|([0-9A-Fa-f]{4})|(\\))")


def _not_supported(what: str, hint: str) -> exp.Expression:
    raise error("FEATURE_NOT_SUPPORTED", f"{what} is not supported", hint=hint)


#: The words that are values without parentheses.
_WORDS: Final[dict[str, Callable[[], exp.Expression]]] = {
    "UNKNOWN": lambda: exp.cast(exp.null(), exp.DataType.Type.BOOLEAN),
    "CURRENT_ROW_TIMESTAMP": exp.Localtimestamp,
    "CURRENT_PATH": lambda: _not_supported("CURRENT_PATH", "Functions are found in the schema of SET SCHEMA."),
    "USER": exp.CurrentUser,
    "SYSTEM_USER": exp.SessionUser,
}


#: The catalog of s-Server's own views and functions.
_SYSTEM: Final = "SYS_BOOT"


#: Functions that may be called by their names in the system catalog.
_OF_SYSTEM: Final = (*TIME_FUNCTIONS, *_MADE)


def _of_system(node: exp.Dot) -> exp.Expression | None:
    """A function in the system catalog, `SYS_BOOT.MGMT.char_to_timestamp(…)`, without the catalog; None for others."""
    *names, call = node.flatten()
    if [n.name.upper() for n in names[:1]] != [_SYSTEM] or not isinstance(call, exp.Anonymous):
        return None
    if call.name.upper() not in _OF_SYSTEM:
        shown = ".".join([*(n.name.upper() for n in names), call.name])
        return _not_supported(shown, "SHOW JOBS, SHOW ERRORS and SHOW MEMORY show the state of the database.")
    return call.pop()


def adapted_table(node: exp.Table) -> None:
    """A view or function of the system catalog, `SYS_BOOT.MGMT.x` or `STREAM(sys_boot.mgmt.x(…))`, as a relation x of
    the schema "SYS_BOOT.MGMT".
    """
    catalog, call = node.args.get("catalog"), node.this
    if isinstance(call, exp.Anonymous) and len(call.expressions) == 1 and isinstance(call.expressions[0], exp.Dot):
        parts = [*call.expressions[0].flatten()]
        if len(parts) == 3 and parts[0].name.upper() == _SYSTEM:
            catalog, schema, name = parts[0].name, parts[1].name, parts[2].name
            node.set("this", exp.to_identifier(name, quoted=True))
            node.set("db", exp.to_identifier(f"{catalog}.{schema}".upper(), quoted=True))
    elif catalog is not None and catalog.name.upper() == _SYSTEM and node.args["db"]:
        if isinstance(call, exp.Anonymous):
            node.set("this", exp.to_identifier(call.name, quoted=True))
        node.set("db", exp.to_identifier(f"{catalog.name}.{node.args['db'].name}".upper(), quoted=True))
        node.set("catalog", None)


def adapted_function(node: exp.Expression) -> exp.Expression:
    """The node, or the one that replaces it in the tree."""
    if isinstance(node, exp.Anonymous) and isinstance(node.this, str):
        build = _MADE.get(node.this.upper())
        made = None if build is None else build(node.expressions)
        if build is not None and made is None:
            count = len(node.expressions)
            raise error("DATATYPE_MISMATCH", f"{node.this.upper()} does not take {count} argument{'s' * (count != 1)}")
    elif isinstance(node, exp.Dot):
        made = None if isinstance(node.parent, exp.Dot) else _of_system(node)
    elif isinstance(node, exp.Any):
        made = None if isinstance(node.parent, exp.Binary) else _call("bool_or", node.this.unnest().copy())
    elif isinstance(node, exp.HexString):
        made = exp.cast(_TEXT("\\x" + str(node.this)), exp.DataType.Type.VARBINARY)
    elif isinstance(node, exp.UnicodeString):
        made = _TEXT(_UNICODE.sub(lambda m: "\\" if m[3] else chr(int(m[1] or m[2], 16)), str(node.this)))
    elif isinstance(node, (exp.Localtime, exp.CurrentTime)):
        made = exp.cast(exp.Localtimestamp(), exp.DataType.Type.TIME)
    elif isinstance(node, exp.Column) and node.args.get("db") is not None and type(node) is exp.Column:
        return retyped(node, ColumnPath)
    elif isinstance(node, exp.Column) and node.args.get("table") is None and isinstance(node.this, exp.Identifier):
        word = None if node.this.args.get("quoted") else _WORDS.get(node.this.name.upper())
        made = None if word is None else word()
    else:
        made = None
    return node if made is None else made


def cast_of_text(node: exp.Cast, length: int, *, padded: bool) -> exp.Expression:
    """Converts `CAST(x AS VARCHAR(n))` to the first n characters, `CAST(x AS CHAR(n))` to exactly n characters."""
    arguments: list[Any] = [node, exp.Literal.number(1), exp.Literal.number(length)]
    cut = exp.Substring(this=arguments[0], start=arguments[1], length=arguments[2])
    return _call("rpad", cut, exp.Literal.number(length)) if padded else cut
