"""A cursor over the tokens of a statement, to read everything that is not a query: words, names, options, values."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from sqlglot.dialects.dialect import Dialect
from sqlglot.tokens import Token, TokenType

from watersmeet.dialects.semantics import Folding
from watersmeet.dialects.tree.statements import Name, Refused, Statement
from watersmeet.errors import Error, Span, error
from watersmeet.system.secretvalues import reference

_WORD: Final = re.compile(r"[^\W\d][\w$]*\Z")

#: PostgreSQL's reserved words, which must be quoted to be names of relations or columns.
RESERVED: Final = frozenset({
    "all", "and", "any", "array", "as", "asc", "both", "case", "cast", "check", "collate", "column", "constraint",
    "create", "cross", "default", "desc", "distinct", "do", "else", "end", "except", "false", "fetch", "for",
    "foreign", "from", "full", "grant", "group", "having", "in", "inner", "intersect", "into", "is", "join",
    "lateral", "leading", "left", "limit", "natural", "not", "null", "offset", "on", "or", "order", "outer",
    "primary", "references", "returning", "right", "select", "some", "table", "then", "to", "trailing", "true",
    "union", "unique", "using", "when", "where", "window", "with",
})  # fmt: skip

_QUOTED: Final = (TokenType.STRING, TokenType.IDENTIFIER, TokenType.HEREDOC_STRING)


def span_of(tokens: Sequence[Token]) -> Span:
    """The span of one or more tokens."""
    return Span(tokens[0].start, tokens[-1].end + 1)


def folded(text: str, folding: Folding) -> str:
    """The folded form of an unquoted name."""
    return text.lower() if folding == "lower" else text.upper() if folding == "upper" else text


def spelling(tokens: Sequence[Token]) -> str:
    """The words of a statement, separated by single spaces, in upper case unless quoted."""
    return " ".join(repr(w.text) if w.token_type in _QUOTED else w.text.upper() for w in words_of(tokens))


def words_of(tokens: Sequence[Token]) -> list[Token]:
    """The tokens, where a token of several words (`PRIMARY KEY`) is split into one per word."""
    words: list[Token] = []
    for token in tokens:
        if token.token_type in _QUOTED or not re.search(r"\w\s+\w", token.text):
            words.append(token)
            continue
        for found in re.finditer(r"\S+", token.text):
            start = token.start + found.start()
            words.append(
                Token(TokenType.VAR, found.group(), token.line, token.col, start, start + len(found.group()) - 1, [])
            )
    return words


def syntax_error(
    text: str, token: Token | None, *, end: int | None = None, detail: str | None = None, hint: str | None = None
) -> Error:
    """PostgreSQL's syntax error at `token`, or, if that is None, at the end of the input (offset `end`)."""
    if token is None:
        place = len(text.rstrip()) if end is None else end
        return error(
            "SYNTAX_ERROR",
            "syntax error at end of input",
            detail=detail,
            hint=hint,
            sql=text,
            span=Span(place, place + 1),
        )
    shown = text[token.start : token.end + 1]
    return error(
        "SYNTAX_ERROR", f'syntax error at or near "{shown}"', detail=detail, hint=hint, sql=text, span=span_of([token])
    )


class Unbound:
    """A placeholder for later values: with it, parameters stay in the tree with their numbers."""


UNBOUND: Final = Unbound()
Parameters = Sequence[Any] | Mapping[str, Any] | Unbound


class Cursor:
    """Reads the tokens of a statement from left to right. All failures are SYNTAX_ERROR with a span.

    folding: the case of unquoted names. grammar, parameters: used for queries inside the statement. inner: reads a
    statement inside the statement.
    """

    def __init__(
        self,
        tokens: Sequence[Token],
        text: str,
        *,
        folding: Folding = "lower",
        grammar: Dialect | None = None,
        parameters: Parameters = (),
        inner: Callable[[Sequence[Token]], Statement] | None = None,
    ) -> None:
        self.tokens: Sequence[Token] = words_of(tokens)
        self.text = text
        self.folding = folding
        self.grammar = grammar
        self.parameters = parameters
        self.index = 0
        self._originals = tokens
        self._inner = inner

    def over(self, tokens: Sequence[Token]) -> Cursor:
        """A cursor over other tokens of the same statement."""
        return Cursor(
            tokens,
            self.text,
            folding=self.folding,
            grammar=self.grammar,
            parameters=self.parameters,
            inner=self._inner,
        )

    def statement(self, tokens: Sequence[Token] | None = None) -> Statement:
        """Reads a statement inside the statement. tokens: by default all from the cursor on."""
        found = self.rest if tokens is None else tokens
        if not found:
            raise self.error()
        assert self._inner is not None
        return self._inner(self.originals(found))

    @property
    def current(self) -> Token | None:
        """The token at the cursor; None at the end."""
        return self.tokens[self.index] if self.index < len(self.tokens) else None

    @property
    def done(self) -> bool:
        """True if the cursor is at the end."""
        return self.index >= len(self.tokens)

    @property
    def rest(self) -> Sequence[Token]:
        """The tokens from the cursor on."""
        return self.tokens[self.index :]

    def originals(self, tokens: Sequence[Token]) -> list[Token]:
        """The original tokens of a part, which may contain several words, as sqlglot's parser requires."""
        if not tokens:
            return []
        places = [
            i
            for i, t in enumerate(self._originals)
            if t.start <= tokens[0].start <= t.end or t.start <= tokens[-1].end <= t.end
        ]
        return list(self._originals[places[0] : places[-1] + 1])

    def at(self, *words: str) -> bool:
        """True if the next tokens are these words (upper case) or signs, none of them quoted."""
        if self.index + len(words) > len(self.tokens):
            return False
        pairs = zip(words, self.tokens[self.index :], strict=False)
        return all(
            token.text.upper() == word and token.token_type not in (TokenType.IDENTIFIER, TokenType.STRING)
            for word, token in pairs
        )

    def take(self, *words: str) -> bool:
        """Like `at`, but moves past the words if the result is true."""
        if not self.at(*words):
            return False
        self.index += len(words)
        return True

    def expect(self, *words: str) -> None:
        """Moves past the words; raises an error if they are missing."""
        for word in words:
            if not self.take(word):
                raise self.error(detail=f"{word} was expected here.")

    def error(self, *, detail: str | None = None, hint: str | None = None) -> Error:
        """A syntax error at the cursor."""
        end = self.tokens[-1].end + 1 if self.tokens else None
        return syntax_error(self.text, self.current, end=end, detail=detail, hint=hint)

    def error_at(
        self, span: Span | None, condition: str, message: str, *, detail: str | None = None, hint: str | None = None
    ) -> Error:
        """An error at a span of the statement."""
        return error(condition, message, detail=detail, hint=hint, sql=self.text, span=span)

    def end(self) -> None:
        """Raises an error if the statement has more tokens."""
        if not self.done:
            raise self.error()

    def name(self, *, reserved: bool = False) -> Name:
        """Reads the next token as a name, folded unless quoted. reserved: whether reserved words are accepted."""
        token = self.current
        if token is None:
            raise self.error(detail="A name was expected here.")
        if token.token_type == TokenType.IDENTIFIER:
            if not token.text:
                raise error("INVALID_NAME", "zero-length name", sql=self.text, span=span_of([token]))
            self.index += 1
            return Name(token.text, span_of([token]))
        if (
            token.token_type == TokenType.STRING
            or not _WORD.match(token.text)
            or (not reserved and token.text.lower() in RESERVED)
        ):
            raise self.error(detail="A name was expected here.")
        self.index += 1
        return Name(folded(token.text, self.folding), span_of([token]), folded=self.folding != "none")

    def word(self) -> Name:
        """Reads the next token as a keyword (an option, a variable, a type), reserved or not; the result is in lower
        case.
        """
        found = self.name(reserved=True)
        return Name(found.name.lower(), found.span)

    def relation_name(self) -> Name:
        """Reads a name, optionally qualified by a schema; the schema may be a reserved word (`default.t`)."""
        following = self.tokens[self.index + 1].text if self.index + 1 < len(self.tokens) else ""
        first = self.name(reserved=following == ".")
        if not self.take("."):
            return first
        second = self.name(reserved=True)
        return Name(second.name, Span(first.span.start, second.span.end), second.folded, first.name)

    def names(self, ignored: Sequence[str] = ()) -> tuple[Name, ...]:
        """Reads `(name, …)`. ASC, DESC and the words `ignored` after a name are allowed and have no effect."""
        self.expect("(")
        found = [self.name()]
        self._skip_order(ignored)
        while self.take(","):
            found.append(self.name())
            self._skip_order(ignored)
        self.expect(")")
        return tuple(found)

    def _skip_order(self, ignored: Sequence[str]) -> None:
        any(map(self.take, ignored))
        if not self.take("ASC"):
            self.take("DESC")
        if self.take("NULLS") and not self.take("FIRST"):
            self.expect("LAST")

    def string(self) -> str:
        """Reads a string literal and returns its value."""
        token = self.current
        if token is None or token.token_type not in (TokenType.STRING, TokenType.NATIONAL_STRING):
            raise self.error(detail="A string was expected here.")
        self.index += 1
        return str(token.text)

    def query_id(self) -> Name:
        """Reads the id of a query, which is a text, a number or a word, with its span."""
        span, token = span_of(self.rest[:1] or self.tokens), self.current
        if token is not None and token.token_type in (TokenType.NUMBER, TokenType.VAR):
            self.index += 1
            return Name(token.text, span)
        return Name(self.string(), span)

    def integer(self) -> int:
        """Reads an integer literal and returns its value."""
        token = self.current
        if token is None or not token.text.isdecimal() or token.token_type != TokenType.NUMBER:
            raise self.error(detail="An integer was expected here.")
        self.index += 1
        return int(token.text)

    def split_shift(self) -> None:
        """Splits the token `>>` at the cursor, if present: two ends of STRUCT<…> that the tokenizer read as one
        sign.
        """
        token = self.current
        if token is None or not self.at(">>"):
            return
        halves = [
            Token(TokenType.GT, ">", token.line, token.col, place, place, []) for place in (token.start, token.end)
        ]
        self.tokens = [*self.tokens[: self.index], *halves, *self.tokens[self.index + 1 :]]

    def until(self, *stops: str) -> Sequence[Token]:
        """Moves to the first of `stops` outside brackets, or to the end, and returns the tokens up to it."""
        start, depth = self.index, 0
        while not self.done:
            if depth == 0 and any(self.at(stop) for stop in stops):
                break
            depth += any(map(self.at, "([{")) - any(map(self.at, ")]}"))
            self.index += 1
        return self.tokens[start : self.index]


#: The kinds of quoted tokens: a string, a string with escapes (`E'\\t'`), a name.
_QUOTED_VALUES: Final = ("STRING", "BYTE_STRING", "IDENTIFIER")

#: The options that are paths of files, each with the option for the content of the file.
_FILES: Final = ("ssl.ca.location", "ssl.certificate.location", "ssl.key.location")


def not_supported(
    feature: str, text: str, span: Span | None, *, detail: str | None = None, hint: str | None = None
) -> Error:
    """The error for an unsupported feature of the dialect."""
    return error("FEATURE_NOT_SUPPORTED", f"{feature} is not supported", detail=detail, hint=hint, sql=text, span=span)


def refused(cursor: Cursor, base: dict[str, Any], feature: str, *, hint: str | None = None) -> Refused:
    """A statement that is not supported because of `feature`, which stands at the cursor."""
    span = span_of(cursor.rest[:1] or cursor.tokens)
    return Refused(**base, error=not_supported(feature, cursor.text, span, hint=hint))


def read_new_name(cursor: Cursor, base: dict[str, Any]) -> dict[str, Any]:
    """Reads `[IF NOT EXISTS] [schema.]name`: `base` with the fields of `Create` that name the new object."""
    if_not_exists = cursor.take("IF", "NOT", "EXISTS")
    name = cursor.relation_name()
    return {**base, "name": name.name, "name_span": name.span, "schema": name.schema, "if_not_exists": if_not_exists}


def read_list(cursor: Cursor, read: Callable[[], Name]) -> tuple[Name, ...]:
    """Reads one or more names, separated by commas."""
    found = [read()]
    while cursor.take(","):
        found.append(read())
    return tuple(found)


def take_cascade(cursor: Cursor) -> bool:
    """Reads `[CASCADE | RESTRICT]` at the end of the statement; returns whether it is CASCADE."""
    cascade = cursor.take("CASCADE")
    if not cascade:
        cursor.take("RESTRICT")
    cursor.end()
    return cascade


def read_options(cursor: Cursor, spans: dict[str, Span] | None = None) -> dict[str, str]:
    """Reads `(name = value, …)`. Names may contain dots and become lower case. spans: receives the span of each
    option.
    """
    cursor.expect("(")
    options: dict[str, str] = {}
    while not cursor.at(")"):
        tokens = cursor.until("=", ",")
        key = "".join(t.text for t in tokens).lower()
        if not key or not cursor.take("="):
            raise cursor.error(detail="An option is written name = 'value'.")
        if key in options:
            raise cursor.error_at(span_of(tokens), "CONNECTOR_OPTION", f'option "{key}" is given twice')
        secret = _read_secret(cursor)
        if secret is not None and cursor.at("AS", "FILE"):
            key = _as_content(cursor, key, span_of(tokens))
        options[key] = secret or read_value(cursor)
        while cursor.take("."):  # `connection = schema.name`
            options[key] += f".{cursor.name(reserved=True).name}"
        if cursor.take("("):  # RisingWave's `backfill_order = FIXED(a -> b)`
            options[key] += f"({' '.join(t.text for t in cursor.until(')'))})"
            cursor.expect(")")
        pairs = []
        while key == "backfill_order" and cursor.tokens[cursor.index + 1].text == "->":  # the same without parentheses
            pairs.append(" ".join(t.text for t in cursor.tokens[cursor.index : cursor.index + 3]))
            cursor.index += 3
            if cursor.at(",") and cursor.tokens[cursor.index + 2].text == "->":
                cursor.index += 1
        if pairs:
            options[key] += f"({' , '.join(pairs)})"
        if spans is not None:
            spans[key] = span_of([*tokens, cursor.tokens[cursor.index - 1]])
        if not cursor.take(","):
            break
    cursor.expect(")")
    return options


def _read_secret(cursor: Cursor) -> str | None:
    """Reads `SECRET name` as a reference; returns None for other values."""
    if not cursor.at("SECRET") or cursor.at("SECRET", ",") or cursor.at("SECRET", ")"):
        return None
    cursor.index += 1
    return reference(cursor.name().name)


def _as_content(cursor: Cursor, key: str, span: Span) -> str:
    """The option for the content of a file that replaces the option `key` for its path: `SECRET name AS FILE` means
    that the secret is the content.
    """
    cursor.index += 2
    if not key.endswith(_FILES):
        hint = "It is for " + ", ".join(f"properties.{name}" for name in _FILES) + "."
        raise not_supported(f"SECRET … AS FILE of option {key}", cursor.text, span, hint=hint)
    return f"{key.removesuffix('location')}pem"


def read_setting(cursor: Cursor, settings: dict[str, str]) -> str:
    """Reads `name = value` into `settings`, with the name in lower case. Raises CONNECTOR_OPTION for a duplicate."""
    name = cursor.name(reserved=True)
    cursor.expect("=")
    setting = name.name.lower()
    if setting in settings:
        raise cursor.error_at(name.span, "CONNECTOR_OPTION", f'option "{name.name}" is given twice')
    settings[setting] = read_value(cursor)
    return setting


def read_value(cursor: Cursor) -> str:
    """Reads a string, a number or a word as text."""
    sign = "-" if cursor.take("-") else ""
    token = cursor.current
    if token is None or not (token.text[:1].isalnum() or token.token_type.name in _QUOTED_VALUES):
        raise cursor.error(detail="A value was expected here.")
    cursor.index += 1
    return sign + str(token.text)


_PLAIN: Final = re.compile(r"[a-z_][a-z0-9_$]*\Z")


def quoted(name: str) -> str:
    """A name as a value of `search_path` contains it: quoted if necessary."""
    return name if _PLAIN.match(name) else '"' + name.replace('"', '""') + '"'


def unquoted(text: str, folding: Folding = "none") -> str:
    """The name in an item of `search_path`, without its quotes."""
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] == '"':
        return text[1:-1].replace('""', '"')
    return folded(text, folding)
