"""SQL/JSON paths of jsonb as DuckDB SQL (PostgreSQL 17, 9.16.2): `$.a[*] ? (@.b >= 3 && exists(@.c))`; and Lenses'.

A path is translated when a statement is bound. Its items are a DuckDB list of JSON values, and each step transforms
that list. Predicates are three-valued: an item of another type makes a comparison unknown, never an error. Only the lax
mode is supported, in which steps unwrap arrays and skip missing members.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sqlglot import exp

from watersmeet.errors import Error
from watersmeet.expressions.calls import Builder, FunctionCall, constant_of, counted
from watersmeet.expressions.context import Value, fill
from watersmeet.expressions.regexpatterns import options, translated
from watersmeet.values.types import BOOLEAN, JSONB, SqlType

_TOKEN: Final = re.compile(
    r'\s*(?:(?P<text>"(?:[^"\\]|\\.)*")|(?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|\.\d+)|(?P<name>[A-Za-z_][\w]*)'
    r'|(?P<variable>\$[A-Za-z_]\w*|\$"(?:[^"\\]|\\.)*")|(?P<sign>\*\*|==|!=|<>|<=|>=|&&|\|\||[-$@.\[\](){}*?!<>+/%,]))'
)

_COMPARISONS: Final = {"==": "=", "!=": "<>", "<>": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">="}

_OF_NULLS: Final = {"=": "true", "<>": "false", "<": "false", "<=": "true", ">": "false", ">=": "true"}

_IS_NUMBER: Final = "json_type({0}) IN ('BIGINT', 'UBIGINT', 'HUGEINT', 'UHUGEINT', 'DOUBLE')"
_IS_WHOLE: Final = "json_type({0}) IN ('BIGINT', 'UBIGINT', 'HUGEINT', 'UHUGEINT')"

_UNWRAPPED: Final = (
    "flatten(list_transform({0}, lambda {1}: CASE json_type({1}) WHEN 'ARRAY' THEN json_extract({1}, '$[*]') "
    "ELSE [{1}] END))"
)

_TYPE: Final = (
    "CASE json_type({0}) WHEN 'OBJECT' THEN 'object' WHEN 'ARRAY' THEN 'array' WHEN 'VARCHAR' THEN 'string' "
    "WHEN 'BOOLEAN' THEN 'boolean' WHEN 'NULL' THEN 'null' ELSE 'number' END"
)

#: Methods of an item: the template of their value.
_METHODS: Final = {
    "type": f"to_json({_TYPE})",
    "size": "to_json(CASE json_type({0}) WHEN 'ARRAY' THEN json_array_length({0}) ELSE 1 END)",
    "double": "to_json(TRY_CAST(json_extract_string({0}, '$') AS DOUBLE))",
    "abs": f"CASE WHEN {_IS_WHOLE} THEN to_json(abs(TRY_CAST({{0}} AS HUGEINT))) "
    f"WHEN {_IS_NUMBER} THEN to_json(abs(TRY_CAST({{0}} AS DOUBLE))) END",
    **{
        name: f"CASE WHEN {_IS_WHOLE} THEN {{0}} WHEN {_IS_NUMBER} THEN "
        f"to_json(TRY_CAST({call}(TRY_CAST({{0}} AS DOUBLE)) AS HUGEINT)) END"
        for name, call in {"floor": "floor", "ceiling": "ceil"}.items()
    },
}

_MODES: Final = ("lax", "strict")


@dataclass(frozen=True)
class Path:
    """A translated path over the document a0. items: the SQL of its items. predicate: the SQL of its truth, if the path
    is a predicate.
    """

    items: str
    predicate: str | None = None


def translate(c: FunctionCall, text: str, variables: Mapping[str, Any]) -> Path:
    """The path `text`, in which `$name` is a value of `variables`. Raises INVALID_VALUE for an invalid path,
    FEATURE_NOT_SUPPORTED for the strict mode, `.**` and arithmetic outside of predicates.
    """
    return _Translator(c, text, variables).path()


def _literal(value: Any) -> str:
    return "CAST('" + json.dumps(value, ensure_ascii=False).replace("'", "''") + "' AS JSON)"


def _member(key: str) -> str:
    return '."' + key.replace("'", "''").replace("\\", "\\\\").replace('"', '\\"') + '"'


def _any_true(truths: str) -> str:
    """Whether one of the truths is true: unknown if none is and one is unknown."""
    return (
        f"CASE WHEN len(list_filter({truths}, lambda _t: _t)) > 0 THEN true "
        f"WHEN len(list_filter({truths}, lambda _t: _t IS NULL)) > 0 THEN CAST(NULL AS BOOLEAN) ELSE false END"
    )


class _Translator:
    """Reads the tokens of a path from left to right."""

    def __init__(self, c: FunctionCall, text: str, variables: Mapping[str, Any]) -> None:
        self.c = c
        self.text = text
        self.variables = variables
        self.tokens: list[tuple[str, str]] = []
        self.index = 0
        self.names = 0
        self.current: str | None = None
        end = len(text.rstrip())
        position = 0
        while position < end:
            found = _TOKEN.match(text, position)
            if found is None:
                raise self.invalid(text[position:].strip()[:1])
            position = found.end()
            self.tokens.append((found.lastgroup or "", found[found.lastgroup or 0]))

    def path(self) -> Path:
        if self.at(*_MODES):
            if self.take("strict"):
                raise self.lacking("the mode strict", hint="The mode lax, the default, skips missing members.")
            self.index += 1
        found = self.either()
        if self.index < len(self.tokens):
            raise self.invalid(self.tokens[self.index][1])
        if isinstance(found, _Truth):
            return Path(f"[coalesce(to_json({found.sql}), CAST('null' AS JSON))]", found.sql)
        if isinstance(found, _Number):
            raise self.lacking("arithmetic outside of a filter", hint="Compute with the result: (…)::numeric + 1.")
        return Path(found)

    def invalid(self, near: str) -> Error:
        return self.c.error("INVALID_VALUE", f'syntax error at or near "{near}" of jsonpath input "{self.text}"')

    def lacking(self, what: str, hint: str) -> Error:
        return self.c.not_supported(f"{what} in a jsonpath", hint=hint)

    def at(self, *signs: str) -> bool:
        return self.index < len(self.tokens) and self.tokens[self.index][1] in signs

    def take(self, *signs: str) -> str | None:
        if not self.at(*signs):
            return None
        self.index += 1
        return self.tokens[self.index - 1][1]

    def expect(self, sign: str) -> None:
        if self.take(sign) is None:
            raise self.invalid(self.tokens[self.index][1] if self.index < len(self.tokens) else "end of input")

    def next(self, kind: str) -> str:
        if self.index >= len(self.tokens) or self.tokens[self.index][0] != kind:
            raise self.invalid(self.tokens[self.index][1] if self.index < len(self.tokens) else "end of input")
        self.index += 1
        return self.tokens[self.index - 1][1]

    def name(self) -> str:
        """A new name of a lambda's parameter."""
        self.names += 1
        return f"_p{self.names}"

    def either(self) -> _Part:
        return self.connected("||", "OR", lambda: self.connected("&&", "AND", self.comparison))

    def connected(self, sign: str, word: str, part: Callable[[], _Part]) -> _Part:
        found = part()
        while self.at(sign):
            self.index += 1
            found = _Truth(f"({self.truth(found)} {word} {self.truth(part())})")
        return found

    def truth(self, part: _Part) -> str:
        if not isinstance(part, _Truth):
            raise self.invalid(self.tokens[self.index - 1][1])
        return part.sql

    def comparison(self) -> _Part:
        left = self.sum()
        if isinstance(left, _Truth):
            if self.at("is"):
                self.index += 1
                self.expect("unknown")
                return _Truth(f"(({left.sql}) IS NULL)")
            return left
        if (sign := self.take(*_COMPARISONS)) is not None:
            right = self.sum()
            return _Truth(self.compared(self.unwrapped(left), self.unwrapped(right), _COMPARISONS[sign]))
        if self.take("like_regex") is not None:
            return self.like_regex(self.unwrapped(left))
        if self.take("starts") is not None:
            self.expect("with")
            if self.index < len(self.tokens) and self.tokens[self.index][0] == "variable":
                start = self.value(self.next("variable"))
            else:
                start = json.loads(self.next("text"))
            if not isinstance(start, str):
                raise self.invalid(str(start))
            escaped = start.replace("'", "''")
            return _Truth(self.tested(self.unwrapped(left), lambda x: f"starts_with({x}, '{escaped}')"))
        return left

    def like_regex(self, items: str) -> _Part:
        pattern = json.loads(self.next("text"))
        flags = json.loads(self.next("text")) if self.take("flag") is not None else ""
        if "q" in flags:
            pattern, flags = re.escape(pattern), flags.replace("q", "")
        read = translated(pattern, self.c.node, self.c.ctx).replace("'", "''")
        # In a jsonpath a dot matches a line end only with flag s.
        chosen = options(flags.replace("s", ""), self.c.node, self.c.ctx)
        chosen = chosen if "s" in flags else chosen.replace("s", "")
        return _Truth(self.tested(items, lambda x: f"regexp_matches({x}, '{read}', '{chosen}')"))

    def tested(self, items: str, test: Callable[[str], str]) -> str:
        """Whether a text among the items passes a test; other items are unknown."""
        item = self.name()
        text = test(f"json_extract_string({item}, '$')")
        return _any_true(
            f"list_transform({items}, lambda {item}: CASE json_type({item}) WHEN 'VARCHAR' THEN {text} END)"
        )

    def compared(self, left: str, right: str, sign: str) -> str:
        a, b = self.name(), self.name()
        nulls = [f"json_type({x}) = 'NULL'" for x in (a, b)]
        kinds = f"json_type({a}) = json_type({b}) AND json_type({a})"
        whole = f"{_IS_WHOLE.format(a)} AND {_IS_WHOLE.format(b)}"
        number = f"{_IS_NUMBER.format(a)} AND {_IS_NUMBER.format(b)}"
        same = (
            f"CASE WHEN {a} IS NULL OR {b} IS NULL THEN NULL WHEN {nulls[0]} AND {nulls[1]} THEN {_OF_NULLS[sign]} "
            f"WHEN {nulls[0]} OR {nulls[1]} THEN {'true' if sign == '<>' else 'false'} "
            f"WHEN {whole} THEN TRY_CAST({a} AS HUGEINT) {sign} TRY_CAST({b} AS HUGEINT) "
            f"WHEN {number} THEN TRY_CAST({a} AS DOUBLE) {sign} TRY_CAST({b} AS DOUBLE) "
            f"WHEN {kinds} = 'VARCHAR' THEN json_extract_string({a}, '$') {sign} json_extract_string({b}, '$') "
            f"WHEN {kinds} = 'BOOLEAN' THEN CAST({a} AS VARCHAR) {sign} CAST({b} AS VARCHAR) END"
        )
        pairs = f"flatten(list_transform({left}, lambda {a}: list_transform({right}, lambda {b}: {same})))"
        return _any_true(pairs)

    def sum(self) -> _Part:
        return self.computed(("+", "-"), lambda: self.computed(("*", "/", "%"), self.unary))

    def computed(self, signs: tuple[str, ...], part: Callable[[], _Part]) -> _Part:
        found = part()
        while (sign := self.take(*signs)) is not None:
            left, right = self.number(found), self.number(part())
            right = f"nullif({right}, 0)" if sign in "/%" else right
            found = _Number(f"({left} {sign} {right})")
        return found

    def number(self, part: _Part) -> str:
        """The only number among the items, else unknown."""
        if isinstance(part, _Truth):
            raise self.invalid(self.tokens[self.index - 1][1])
        if isinstance(part, _Number):
            return part.sql
        items, item = self.unwrapped(part), self.name()
        value = f"CASE WHEN {_IS_NUMBER.format(item)} THEN TRY_CAST({item} AS DOUBLE) END"
        numbers = f"list_transform({items}, lambda {item}: {value})"
        return f"list_aggregate(CASE WHEN len({numbers}) = 1 THEN {numbers} END, 'max')"

    def unary(self) -> _Part:
        if self.take("-") is not None:
            return _Number(f"(-{self.number(self.unary())})")
        if self.take("+") is not None:
            return _Number(self.number(self.unary()))
        if self.take("!") is not None:
            return _Truth(f"(NOT {self.truth(self.primary())})")
        return self.primary()

    def primary(self) -> _Part:
        if self.take("(") is not None:
            found = self.either()
            self.expect(")")
            return self.steps(found) if isinstance(found, str) else found
        if self.index >= len(self.tokens):
            raise self.invalid("end of input")
        kind, written = self.tokens[self.index]
        self.index += 1
        if written == "exists":
            self.expect("(")
            found = self.either()
            self.expect(")")
            if not isinstance(found, str):
                raise self.invalid(")")
            return _Truth(f"(len({found}) > 0)")
        if written == "$":
            return self.steps("[a0]")
        if written == "@" and self.current is not None:
            return self.steps(f"[{self.current}]")
        if kind == "variable":
            return self.steps(f"[{_literal(self.value(written))}]")
        if kind in ("number", "text") or written in ("true", "false", "null"):
            return self.steps(f"[{_literal(json.loads('0' + written if written[0] == '.' else written))}]")
        raise self.invalid(written)

    def value(self, variable: str) -> Any:
        name = json.loads(variable[1:]) if variable[1] == '"' else variable[1:]
        if name not in self.variables:
            raise self.c.error("INVALID_VALUE", f'could not find jsonpath variable "{name}"')
        return self.variables[name]

    def unwrapped(self, part: _Part) -> str:
        if isinstance(part, _Truth):
            raise self.invalid(self.tokens[self.index - 1][1])
        if isinstance(part, _Number):
            return f"[to_json({part.sql})]"
        return _UNWRAPPED.format(part, self.name())

    def each(self, items: str, made: Callable[[str], str]) -> str:
        """The present items that `made` returns for each item."""
        item, found = self.name(), self.name()
        listed = f"flatten(list_transform({items}, lambda {item}: {made(item)}))"
        return f"list_filter({listed}, lambda {found}: {found} IS NOT NULL)"

    def steps(self, items: str) -> str:
        while True:
            if self.take("?") is not None:
                self.expect("(")
                outer, self.current = self.current, self.name()
                item = self.current
                condition = self.truth(self.either())
                self.current = outer
                self.expect(")")
                items = (
                    f"list_filter({_UNWRAPPED.format(items, self.name())}, lambda {item}: coalesce({condition}, false))"
                )
            elif self.take("[") is not None:
                items = self.subscript(items)
            elif self.take(".") is not None:
                items = self.step(items)
            else:
                return items

    def step(self, items: str) -> str:
        """A member, every member or a method; the dot is read."""
        if self.at("**"):
            raise self.lacking(".**", hint="Write the levels of the path.")
        if self.take("*") is not None:
            wrapped = _UNWRAPPED.format(items, self.name())
            return self.each(
                wrapped, lambda x: f"CASE json_type({x}) WHEN 'OBJECT' THEN json_extract({x}, '$.*') ELSE [] END"
            )
        kind, written = self.tokens[self.index] if self.index < len(self.tokens) else ("", "end of input")
        if kind not in ("name", "text"):
            raise self.invalid(written)
        self.index += 1
        if kind == "name" and self.take("(") is not None:
            self.expect(")")
            if written not in _METHODS:
                hint = f"These exist: {', '.join(sorted(_METHODS))}."
                raise self.lacking(f"the method {written}()", hint=hint)
            source = items if written in ("size", "type") else _UNWRAPPED.format(items, self.name())
            item = self.name()
            return f"list_transform({source}, lambda {item}: {_METHODS[written].format(item)})"
        path = _member(json.loads(written) if kind == "text" else written)
        return self.each(
            _UNWRAPPED.format(items, self.name()),
            lambda x: f"CASE json_type({x}) WHEN 'OBJECT' THEN [json_extract({x}, '${path}')] ELSE [] END",
        )

    def subscript(self, items: str) -> str:
        """`[*]`, `[2]`, `[last - 1]`, `[1 to 3, 5]`; the bracket is read."""
        if self.take("*") is not None:
            self.expect("]")
            return self.each(_UNWRAPPED.format(items, self.name()), lambda x: f"[{x}]")
        parts = []
        while True:
            first = self.place()
            last = self.place() if self.take("to") is not None else first
            parts.append((first, last))
            if self.take(",") is None:
                break
        self.expect("]")

        def sliced(item: str) -> str:
            whole = f"CASE json_type({item}) WHEN 'ARRAY' THEN json_extract({item}, '$[*]') ELSE [{item}] END"
            count = f"CASE json_type({item}) WHEN 'ARRAY' THEN CAST(json_array_length({item}) AS BIGINT) ELSE 1 END"
            cuts = [f"list_slice({whole}, greatest({a.format(count)} + 1, 1), {b.format(count)} + 1)" for a, b in parts]
            return cuts[0] if len(cuts) == 1 else f"flatten([{', '.join(cuts)}])"

        return self.each(items, sliced)

    def place(self) -> str:
        """The SQL of an index from 0, in which {0} is the number of elements."""
        if self.take("last") is None:
            return self.next("number")
        if self.take("-") is None:
            return "{0} - 1"
        return f"{{0}} - 1 - {self.next('number')}"


@dataclass(frozen=True)
class _Truth:
    """A predicate."""

    sql: str


@dataclass(frozen=True)
class _Number:
    """The value of arithmetic: a DOUBLE, NULL if unknown."""

    sql: str


_Part = str | _Truth | _Number


def path_of(c: FunctionCall) -> Path:
    """The path of a call `f(document, path [, variables [, silent]])`."""
    text = c.text(1, example="$", what="a path")
    given: Any = {}
    if len(c.arguments) > 2:
        read = constant_of(c.arguments[2], JSONB, c.node, c.ctx, example="{}")
        if read is None:
            raise c.not_supported(f"{c.name} with variables that are not constants", hint="Compare with the result.")
        given = json.loads(read)
        if not isinstance(given, dict):
            raise c.error("INVALID_VALUE", '"vars" argument is not an object')
    return translate(c, text, given)


def by_path(template: str, kind: SqlType) -> Builder:
    """A function of the items of a path. template: DuckDB SQL over {items}."""

    def build(c: FunctionCall) -> Value:
        made = template.format(items=path_of(c).items)
        return Value(fill(f"CASE WHEN a0 IS NOT NULL THEN {made} END", c.cast(0, JSONB).expression), kind)

    return counted(build, 2, 3, 4)


def _path_match(c: FunctionCall) -> Value:
    """The truth of a predicate; other paths must have one boolean item, or the result is NULL."""
    path = path_of(c)
    first = f"list_extract({path.items}, 1)"
    test = path.predicate or f"CASE json_type({first}) WHEN 'BOOLEAN' THEN CAST({first} AS BOOLEAN) END"
    return Value(fill(f"CASE WHEN a0 IS NOT NULL THEN {test} END", c.cast(0, JSONB).expression), BOOLEAN)


# Lenses' paths: `$.points[?(@.y >= 3)].id`.

#: One step of a path: a filter, every child, a name, a position, a name in brackets.
_STEP: Final = re.compile(
    r"\[\?\((?P<filter>.*?)\)\]|(?P<deep>\.\.)|(?P<all>\.\*|\[\*\])|\.(?P<name>[A-Za-z_$][\w$-]*)"
    r"|\[(?P<place>-?\d+)\]|\[(?P<quote>['\"])(?P<quoted>.*?)(?P=quote)\]"
)

#: A comparison in a filter: `@.y >= 3`, `@['id'] == 'i4'`, `@ == false`, `@.y`.
_CONDITION: Final = re.compile(
    r"\s*@(?P<path>[^\s=<>!]*)\s*(?:(?P<sign>==|!=|<=|>=|<|>)\s*(?P<value>'[^']*'|\"[^\"]*\"|-?[\d.]+|true|false|null))?\s*"
)

_CHILDREN: Final = (
    "CASE json_type(_e) WHEN 'ARRAY' THEN json_extract(_e, '$[*]') WHEN 'OBJECT' THEN json_extract(_e, '$.*') END"
)


def matches(document: exp.Expression, path: str, c: FunctionCall) -> exp.Expression:
    """The JSON of all parts of a document at a path as an array of texts: empty without a match, NULL for a text that
    is not JSON. Raises INVALID_VALUE for an invalid path, FEATURE_NOT_SUPPORTED for `..` and other unsupported steps.
    """
    found = "[_d]"
    if not path.startswith("$"):
        raise c.error("INVALID_VALUE", f'the JSON path "{path}" must begin with $')
    position, plain = 1, ""
    while position < len(path):
        step = _STEP.match(path, position)
        if step is None or step["deep"]:
            raise c.not_supported(
                f'"{path[position:]}" in the JSON path "{path}"',
                hint="A path has names (.a, ['a']), positions ([0], [-1]), .*, [*] and filters: [?(@.y >= 3)].",
            )
        position = step.end()
        if step["filter"] is not None or step["all"]:
            found, plain = f"flatten(list_transform({_at(found, plain)}, lambda _e: {_CHILDREN}))", ""
            if step["filter"] is not None:
                found = f"list_filter({found}, lambda _e: {_condition(step['filter'], c)})"
        else:
            plain += _plain(step)
    whole = f"list_transform({_at(found, plain)}, lambda _e: CAST(_e AS VARCHAR))"
    read = "CASE WHEN json_valid(a0) THEN CAST(a0 AS JSON) END"
    template = f"CASE WHEN json_valid(a0) THEN flatten(list_transform([{read}], lambda _d: {whole})) END"
    return fill(template, document)


def _plain(step: re.Match[str]) -> str:
    """A step in DuckDB's form."""
    if step["place"] is not None:
        return f"[{step['place'].replace('-', '#-')}]"
    name = step["name"] if step["quoted"] is None else step["quoted"]
    return '."' + name.replace("'", "''").replace('"', '\\"') + '"'


def _at(found: str, plain: str) -> str:
    """The existing parts at a path without filters and wildcards."""
    if not plain:
        return found
    return f"list_filter(list_transform({found}, lambda _e: json_extract(_e, '${plain}')), lambda _e: _e IS NOT NULL)"


def _condition(text: str, c: FunctionCall) -> str:
    """The condition of a filter over the element `_e`."""
    parts = [_comparison(p, c) for p in re.split(r"(&&|\|\|)", text)]
    return f"coalesce({' '.join(parts)}, false)"


def _comparison(text: str, c: FunctionCall) -> str:
    if text in ("&&", "||"):
        return {"&&": "AND", "||": "OR"}[text]
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise _lacking(text, c)
    path, position = "$", 0
    while position < len(match["path"]):
        step = _STEP.match(match["path"], position)
        if step is None or step["filter"] is not None or step["deep"] or step["all"]:
            raise _lacking(text, c)
        path, position = path + _plain(step), step.end()
    if match["sign"] is None:
        return f"json_exists(_e, '{path}')"
    value, sign = match["value"], {"==": "=", "!=": "<>"}.get(match["sign"], match["sign"])
    if value[0] in "'\"":
        literal = value[1:-1].replace("'", "''")
        return f"(json_type(_e, '{path}') = 'VARCHAR' AND json_extract_string(_e, '{path}') {sign} '{literal}')"
    if value in ("true", "false", "null"):
        return f"(CAST(json_extract(_e, '{path}') AS VARCHAR) {sign} '{value}')"
    return f"(TRY_CAST(json_extract(_e, '{path}') AS DOUBLE) {sign} {value})"


def _lacking(text: str, c: FunctionCall) -> Error:
    return c.not_supported(
        f'the filter "{text.strip()}" of a JSON path',
        hint="A filter compares a field with a constant: @.y >= 3, @['id'] == 'i4'; && and || join comparisons.",
    )


PATH_FUNCTIONS: Final[dict[str, Builder]] = {
    "jsonb_path_exists": by_path("len({items}) > 0", BOOLEAN), "jsonb_path_match": counted(_path_match, 2, 3, 4),
    "jsonb_path_query_array": by_path("CAST(to_json({items}) AS JSON)", JSONB),
    "jsonb_path_query_first": by_path("list_extract({items}, 1)", JSONB),
}  # fmt: skip
