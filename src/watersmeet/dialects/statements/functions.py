"""Reads CREATE FUNCTION and CREATE AGGREGATE, in SQL and in other languages.

RisingWave, "CREATE FUNCTION" and "CREATE AGGREGATE"; Timeplus, "Python UDF", "JavaScript UDF" and "Remote UDF";
SQLstream, "CREATE FUNCTION".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sqlglot.tokens import TokenType

from watersmeet.catalog.rowless import ANY
from watersmeet.dialects.statements.ddl import Reader
from watersmeet.dialects.tree.definitions import Create
from watersmeet.dialects.tree.statements import Refused, Statement
from watersmeet.dialects.tree.tokens import Cursor, not_supported, read_new_name, read_options, span_of
from watersmeet.errors import Error
from watersmeet.values.calledfunctions import Form, Shape
from watersmeet.values.types import VARCHAR, Field, Schema, SqlType

#: The languages whose function bodies a separate process runs.
LANGUAGES: Final = ("python", "javascript")

#: Words without effect, because an SQL function is inlined, so that only its body counts, and other functions don't
#: read relations.
_WITHOUT_EFFECT: Final = (
    ("IMMUTABLE",), ("STABLE",), ("DETERMINISTIC",), ("CALLED", "ON", "NULL", "INPUT"), ("CONTAINS", "SQL"),
    ("NO", "SQL"), ("READS", "SQL", "DATA"), ("PARALLEL", "SAFE"), ("PARALLEL", "UNSAFE"), ("PARALLEL", "RESTRICTED"),
    ("LEAKPROOF",), ("NOT", "LEAKPROOF"),
)  # fmt: skip
_VOLATILE: Final = (("VOLATILE",), ("NOT", "DETERMINISTIC"))
_STRICT: Final = (("STRICT",), ("RETURNS", "NULL", "ON", "NULL", "INPUT"))

_IN_PYTHON: Final = "Write the body in Python, in the statement: LANGUAGE python AS $$ def {name}(…): … $$."

#: Options of RisingWave without effect.
_IGNORED: Final = "always_retry_on_network_error"

TypeReader = Callable[[Cursor], SqlType]


@dataclass(frozen=True, kw_only=True)
class CreateFunction(Create):
    """`CREATE FUNCTION name ([name] type, …) RETURNS type LANGUAGE … AS '…'`, or `RETURN expression`; CREATE AGGREGATE.

    returns: for a table function the struct of its columns. body: for SQL `SELECT expression`. form, shape, strict,
    volatile: see `CalledFunction`. ignored: options without effect. is_pickled: whether `body` is a pickled Python
    callable in base64.
    """

    parameters: Schema
    returns: SqlType
    body: str
    language: str = "sql"
    form: Form = "rows"
    shape: Shape = "scalar"
    strict: bool = False
    volatile: bool = False
    ignored: tuple[str, ...] = ()
    is_pickled: bool = False


def function_readers(read_type: TypeReader, aggregates: str = "", form: Form = "rows") -> dict[str, Reader]:
    """The readers of CREATE FUNCTION of a dialect, by words.

    aggregates: the words of aggregates; empty if it has none. form: how bodies in other languages receive arguments.
    """
    typed = lengthless(read_type)

    def reader(shape: Shape) -> Reader:
        return lambda cursor, base: _Definition(cursor, base, typed, form, shape).read()

    return {"FUNCTION": reader("scalar"), **({aggregates: reader("aggregate")} if aggregates else {})}


def read_remote(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """Refuses CREATE REMOTE FUNCTION."""
    made = read_new_name(cursor, base)
    error = not_supported(
        "CREATE REMOTE FUNCTION", cursor.text, made["name_span"], hint=_IN_PYTHON.format(name=made["name"])
    )
    return Refused(**base, error=error)


class _Definition:
    """Reads the clauses of a definition, in any order."""

    def __init__(self, cursor: Cursor, base: dict[str, Any], read_type: TypeReader, form: Form, shape: Shape) -> None:
        self.cursor = cursor
        self.base = base
        self.read_type = read_type
        self.form = form
        self.shape = shape
        self.returns: SqlType | None = None
        self.body: str | None = None
        self.is_expression = False
        self.found: dict[str, Any] = {}

    def read(self) -> Statement:
        cursor = self.cursor
        made = read_new_name(cursor, self.base)
        hint = _IN_PYTHON.format(name=made["name"])
        if cursor.at("AS", "("):
            return self._untyped(made)
        if cursor.at("AS"):
            return self._refused("a function without types", hint)
        compiled = next((i for i in range(cursor.index, len(cursor.tokens)) if _is_compiled(cursor, i)), None)
        if compiled is not None:  # its parameters may have types that only its language has
            return self._refused(f"a function in {cursor.tokens[compiled + 1].text.upper()}", hint, compiled)
        parameters = read_parameters(cursor, self.read_type)
        while not cursor.done:
            start = cursor.index
            if any(cursor.take(*words) for words in _STRICT):
                self.found["strict"] = True
            elif any(cursor.take(*words) for words in _VOLATILE):
                self.found["volatile"] = True
            elif cursor.at("RETURNS", "SETOF"):
                return self._refused("a function that returns SETOF", "Write RETURNS TABLE (name type, …).")
            elif cursor.take("RETURNS", "TABLE"):
                self.shape = "table"
                self.returns = SqlType("struct", fields=tuple((f.name, f.type) for f in self._columns()))
            elif cursor.take("RETURNS"):
                self.returns = self.read_type(cursor)
            elif cursor.take("LANGUAGE"):
                language = _language(cursor)
                if language not in ("sql", *LANGUAGES):
                    return self._refused(f"a function in {language.upper()}", hint, start)
                self.found["language"] = language
            elif cursor.at("EXTERNAL", "NAME") or cursor.at("PARAMETER", "STYLE") or cursor.at("USING"):
                words = " ".join(t.text.upper() for t in cursor.rest[:2])
                return self._refused(f"{words} of a function", hint)
            elif cursor.take("AS"):
                self.body = _text(cursor)
            elif cursor.take("RETURN"):
                rest = cursor.rest
                if not rest:
                    raise cursor.error()
                self.is_expression = True
                self.body = f"SELECT {cursor.text[rest[0].start : rest[-1].end + 1]}"
                cursor.index = len(cursor.tokens)
            elif cursor.take("WITH"):
                refused = self._options(start)
                if refused is not None:
                    return refused
            elif cursor.take("SPECIFIC"):
                cursor.relation_name()
            elif not any(cursor.take(*words) for words in _WITHOUT_EFFECT):
                raise cursor.error()
        return self._made(made, parameters)

    def _untyped(self, made: dict[str, Any]) -> Statement:
        """Reads `AS (a, b) -> expression`, whose types are those of each call. Timeplus, "SQL UDF"."""
        cursor = self.cursor
        cursor.take("AS")
        names = cursor.names() if not cursor.at("(", ")") else ()
        if not names:
            cursor.take("(", ")")
        arrow = cursor.current
        if arrow is None or arrow.token_type != TokenType.ARROW or len(cursor.rest) == 1:
            raise cursor.error(detail="A function without types is written AS (a, b) -> expression.")
        cursor.index += 1
        listed = [n.name for n in names]
        for name in names:
            if listed.count(name.name) > 1:
                raise cursor.error_at(
                    name.span, "DUPLICATE_COLUMN", f'parameter name "{name.name}" used more than once'
                )
        body = f"SELECT {cursor.text[cursor.rest[0].start : cursor.rest[-1].end + 1]}"
        cursor.index = len(cursor.tokens)
        parameters = tuple(Field(n, ANY) for n in listed)
        return CreateFunction(**made, parameters=parameters, returns=ANY, body=body, language="sql")

    def _made(self, made: dict[str, Any], parameters: Schema) -> Statement:
        cursor = self.cursor
        language = self.found.setdefault("language", "sql" if self.is_expression else None)
        if language is None:
            raise cursor.error(detail="LANGUAGE is missing.")
        if self.body is None or self.returns is None:
            lacking = "RETURNS and a type are" if self.returns is None else "AS and the body are"
            raise cursor.error(detail=f"{lacking} missing.")
        if language == "sql":
            if self.shape != "scalar":
                return self._refused(
                    f"{'an aggregate' if self.shape == 'aggregate' else 'a table function'} in SQL",
                    _IN_PYTHON.format(name=made["name"]),
                    0,
                )
            if "strict" in self.found:
                return self._refused("STRICT of a function in SQL", "Write CASE WHEN … IS NOT NULL THEN … END.", 0)
            self.found.pop("volatile", None)
        else:
            self.found["form"] = self.form if self.shape != "table" else "rows"
        if self.shape == "aggregate" and not parameters:
            return self._refused("an aggregate without parameters", "Give it a parameter, and a constant in calls.", 0)
        return CreateFunction(
            **made, parameters=parameters, returns=self.returns, body=self.body, shape=self.shape, **self.found
        )

    def _columns(self) -> Schema:
        columns = read_parameters(self.cursor, self.read_type)
        if not columns or not all(c.name for c in columns):
            raise self.cursor.error(detail="Each column of the table needs a name and a type.")
        return columns

    def _options(self, start: int) -> Statement | None:
        options: Mapping[str, str] = read_options(self.cursor)
        for name, value in options.items():
            if name == "batch" and value.lower() in ("true", "false"):
                if value.lower() == "true":
                    self.form = "lists" if self.found.get("language") == "javascript" else "arrow"
            elif name == _IGNORED:
                self.found["ignored"] = (name,)
            elif not (name == "async" and value.lower() == "false"):
                return self._refused(
                    f"the option {name} of a function", "batch = true passes the columns of many rows at once.", start
                )
        return None

    def _refused(self, feature: str, hint: str, start: int | None = None) -> Statement:
        cursor = self.cursor
        place = cursor.tokens[cursor.index if start is None else start :]
        return Refused(**self.base, error=not_supported(feature, cursor.text, span_of(place[:2]), hint=hint))


def _is_compiled(cursor: Cursor, index: int) -> bool:
    return [t.text.upper() for t in cursor.tokens[index : index + 2]] in (["LANGUAGE", "JAVA"], ["LANGUAGE", "C"])


def lengthless(read_type: TypeReader) -> TypeReader:
    """A reader that also accepts the length of a text, which has no effect on the values of a function."""

    def read(cursor: Cursor) -> SqlType:
        if cursor.at("VARCHAR", "(") or cursor.at("CHAR", "("):
            cursor.index += 2
            cursor.integer()
            cursor.expect(")")
            return VARCHAR
        return read_type(cursor)

    return read


def read_parameters(cursor: Cursor, read_type: TypeReader) -> Schema:
    """Reads `([name] type, …)`; the name of an unnamed parameter is empty."""
    cursor.expect("(")
    found: list[Field] = []
    while not cursor.at(")"):
        for word in ("OUT", "INOUT", "VARIADIC"):
            if cursor.at(word):
                raise not_supported(f"{word} of a function", cursor.text, span_of(cursor.rest[:1]))
        cursor.take("IN")
        place = cursor.rest[:1]
        found.append(_parameter(cursor, read_type))
        if found[-1].name and found[-1].name in [p.name for p in found[:-1]]:
            raise cursor.error_at(
                span_of(place), "DUPLICATE_COLUMN", f'parameter name "{found[-1].name}" used more than once'
            )
        if cursor.at("DEFAULT") or cursor.at("="):
            raise not_supported("DEFAULT of a parameter", cursor.text, span_of(cursor.rest[:1]))
        if not cursor.take(","):
            break
    cursor.expect(")")
    return tuple(found)


def _parameter(cursor: Cursor, read_type: TypeReader) -> Field:
    start, refused = cursor.index, None
    try:
        kind = read_type(cursor)
    except Error as err:
        refused = err
    else:
        if cursor.at(",") or cursor.at(")"):
            return Field("", kind)
    cursor.index = start
    name = cursor.name()
    if cursor.at("CURSOR"):
        hint = "List the columns of the cursor as parameters: they are the first arguments of the function."
        raise not_supported("a parameter of type CURSOR", cursor.text, span_of(cursor.rest[:1]), hint=hint)
    if refused is not None and (cursor.at(",") or cursor.at(")")):
        raise refused  # a single word is a type, which does not exist
    return Field(name.name, read_type(cursor))


def _language(cursor: Cursor) -> str:
    token = cursor.current
    if token is not None and token.token_type == TokenType.STRING:
        return cursor.string().lower()
    return cursor.word().name


def _text(cursor: Cursor) -> str:
    """The body, or for a function on a server its name on the server."""
    token = cursor.current
    if token is not None and token.token_type == TokenType.HEREDOC_STRING:
        cursor.index += 1
        return str(token.text)
    is_text = token is not None and token.token_type == TokenType.STRING
    if not is_text and any(t.text.upper() == "USING" for t in cursor.rest):
        cursor.index += 1
        return ""
    return cursor.string()
