"""Cuts a text into statements at semicolons and finds the reader of each one."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final

from sqlglot import exp
from sqlglot.errors import TokenError
from sqlglot.tokens import Token, TokenType

from watersmeet.dialects.readers import read_feature, statements_read
from watersmeet.dialects.registry import Language
from watersmeet.dialects.statements import ddl, dml, preparing, utility
from watersmeet.dialects.statements.ddl import Reader
from watersmeet.dialects.statements.dml import read_copy
from watersmeet.dialects.statements.explaining import read_explain
from watersmeet.dialects.tree.definitions import Create, CreateProcessor, CreateSchema, CreateTopic
from watersmeet.dialects.tree.queries import QUERIES, query_of
from watersmeet.dialects.tree.statements import Accepted, Refused, Select, SetVariable, Statement, Unit
from watersmeet.dialects.tree.tokens import Cursor, Parameters, not_supported, span_of, syntax_error
from watersmeet.errors import Error, Span, did_you_mean, error
from watersmeet.values.types import Schema

_DML: Final = ("INSERT", "UPDATE", "DELETE")

_LACKING: Final = (
    "ALTER", "ANALYZE", "CALL", "CANCEL", "CHECKPOINT", "CLUSTER", "COMMENT", "DO", "GRANT", "LISTEN", "LOAD", "LOCK",
    "MERGE", "NOTIFY", "REASSIGN", "RECOVER", "REINDEX", "REVOKE", "SUBSCRIBE", "UNSUBSCRIBE", "USE", "VACUUM",
)  # fmt: skip

_QUOTES: Final = {
    "'": "quoted string",
    '"': "quoted identifier",
    "`": "quoted identifier",
    "/": "comment",
    "$": "dollar-quoted string",
}

_NOTED: Final = re.compile(r"from \d+:(\d+)")
_UNDONE: Final = (CreateProcessor, CreateTopic, SetVariable)

_COMMON: Final[dict[str, Reader]] = {
    "COPY": read_copy,
    "DEALLOCATE": preparing.read_deallocate,
    "DESC": utility.read_describe,
    "DESCRIBE": utility.read_describe,
    "EXECUTE": preparing.read_execute,
    "EXPLAIN": read_explain,
    "KILL": utility.read_kill,
    "PREPARE": preparing.read_prepare,
    "SHOW": utility.read_show,
}
#: The words of statements that accept parameters.
_WITH_PARAMETERS: Final = ("COPY", "DECLARE", "EXECUTE")
#: Reads a query that the session does not run itself, such as one of the system catalog; returns None for other
#: queries.
OwnQuery = Callable[[Sequence[Token], str, Parameters], Statement | None]


def statements_of(language: Language) -> set[str]:
    """The first words of all statements of a dialect."""
    found = {*QUERIES[:3], *_DML, *_COMMON, "DROP", *language.readers, *statements_read(language.semantics)}
    found |= {f"CREATE {words}" for words in language.creates if words}
    return found | ({"ALTER"} if language.alter else set())


def objects_of(verb: str, language: Language, following: Token | None = None) -> str:
    """A hint that lists the objects of a dialect that CREATE, DROP or ALTER takes, or names those that are similar to
    the word after it; for other verbs, all verbs.
    """
    known = statements_of(language)
    found = {words.removeprefix(f"{verb} ") for words in known if words.startswith(f"{verb} ")}
    if verb == "DROP":
        found |= {words for words in language.drops if f"CREATE {words}" in known or words not in ddl.DROPS}
    if not found:
        return f"Statements begin with {', '.join(sorted({words.split()[0] for words in known}))}."
    word = "" if following is None else following.text.upper()
    first = {words.split()[0] for words in found}
    if word not in first and (near := did_you_mean(word, first, nearness=0.7)):
        return near.replace('"', "")
    *most, last = sorted(found)
    return f"{verb} {', '.join(most)} and {last} are supported."


def no_own_query(tokens: Sequence[Token], text: str, parameters: Parameters) -> None:
    """Returns None: the session runs all queries."""
    del tokens, text, parameters


def read_script(
    text: str,
    language: Language,
    parameters: Parameters = (),
    start: int = 0,
    end: int | None = None,
    own_query: OwnQuery = no_own_query,
) -> list[Statement]:
    """The statements of `text`, or of a part of it, in order, without empty ones.

    A definition before a semicolon (`WITH a AS (…);`) is added to each later query that names it. Unused definitions
    are added to the last query, which reports their errors. Raises SYNTAX_ERROR if no query follows.
    """
    parts = [p for p in cut(tokenize(text, language, start, end)) if p]
    places = [None if language.goes_on(p) else _first_select(p) for p in parts]
    defined: list[int] = []
    shared: dict[int, list[int]] = {}
    for i, part in enumerate(parts):
        if language.goes_on(part):
            defined.append(i)
        elif places[i] is not None:
            shared[i] = _named(part, defined, parts)
    if defined and not (shared and max(shared) > defined[-1]):
        raise syntax_error(
            text, None, end=parts[defined[-1]][-1].end + 1, hint="A query or INSERT INTO … SELECT must follow."
        )
    used = {d for found in shared.values() for d in found}
    for d in [d for d in defined if d not in used]:
        later = [i for i in shared if i > d]
        i = max([i for i in later if _runs(parts[i]) == _runs(parts[d])] or later)
        shared[i] = sorted([*shared[i], d])
    found = [
        _read(p, text, language, parameters, own_query, [parts[d] for d in shared.get(i, ())], places[i] or 0)
        for i, p in enumerate(parts)
        if i not in defined
    ]
    return _united(found)


def _united(statements: Sequence[Statement]) -> list[Statement]:
    """The statements, where adjacent reversible statements form a unit if one of them creates a processor."""
    found: list[Statement] = []
    run: list[Statement] = []
    for statement in [*statements, None]:
        if isinstance(statement, _UNDONE):
            run.append(statement)
            continue
        if len(run) > 1 and any(isinstance(s, CreateProcessor) for s in run):
            span = Span(run[0].span.start, run[-1].span.end)
            run = [Unit(text=run[0].text, sql=run[0].text[span.start : span.end], span=span, statements=tuple(run))]
        found += run
        run = []
        found += [] if statement is None else [statement]
    return found


def _listed(before: Sequence[Sequence[Token]]) -> list[Token]:
    """Joins `WITH a …` and `WITH b …` to `WITH a …, b …`."""
    found: list[Token] = []
    for part in before:
        word = part[0]
        comma = Token(TokenType.COMMA, ",", word.line, word.col, word.start, word.end, [])
        found += [comma, *part[1:]] if found else part
    return found


def _first_select(part: Sequence[Token]) -> int | None:
    """The index of the first SELECT of a statement outside of parentheses."""
    depth = 0
    for i, token in enumerate(part):
        depth += (token.token_type == TokenType.L_PAREN) - (token.token_type == TokenType.R_PAREN)
        if depth == 0 and token.token_type == TokenType.SELECT:
            return i
    return None


def _runs(part: Sequence[Token]) -> bool:
    """True if one of the queries of a statement is a SELECT STREAM or TABLE."""
    return any(a.token_type == TokenType.SELECT and b.text.upper() in ("STREAM", "TABLE") for a, b in pairwise(part))


def _named(part: Sequence[Token], defined: Sequence[int], parts: Sequence[Sequence[Token]]) -> list[int]:
    """The indexes of the `parts` that define a word of `part`, directly or through others, in order."""
    words = {t.text for t in part}
    found: list[int] = []
    for i in reversed(defined):
        if not words.isdisjoint(_definitions(parts[i])):
            found.append(i)
            words |= {t.text for t in parts[i]}
    return found[::-1]


def _definitions(part: Sequence[Token]) -> set[str]:
    """The names that `WITH a …, b …` defines."""
    depth = 0
    found = set()
    for token, following in pairwise(part):
        depth += (token.token_type == TokenType.L_PAREN) - (token.token_type == TokenType.R_PAREN)
        if depth == 0 and token.token_type in (TokenType.WITH, TokenType.COMMA):
            found.add(following.text)
    return found


def columns_of(text: str, language: Language) -> Schema:
    """The columns of `id string, name string`. Raises FEATURE_NOT_SUPPORTED in a dialect without external tables."""
    if language.columns is None:
        raise error("FEATURE_NOT_SUPPORTED", f"tables of other systems are not supported in dialect {language.name}")
    cursor = Cursor(tokenize(f"({text})", language), f"({text})", folding=language.semantics.folding)
    columns, _ = language.columns(cursor)
    cursor.end()
    return columns


def tokenize(text: str, language: Language, start: int = 0, end: int | None = None) -> list[Token]:
    """The tokens of `text`, or of a part of it, with their spans in `text`. Raises SYNTAX_ERROR for an unfinished quote
    or comment.
    """
    part = " " * start + text[start:end]
    try:
        return list(language.grammar.tokenize(part))
    except TokenError as found:
        raise unfinished(text, _opened_at(part), found) from None


def unfinished(text: str, opened: int | None, found: TokenError) -> Error:
    """The error for a text that ends inside a quote. opened: the index of the quote."""
    reason = str(found.__cause__ or found)
    if opened is None:  # the tokenizer counts characters from the beginning of the text
        noted = _NOTED.search(reason)
        opened = None if noted is None else int(noted[1])
    if opened is None or opened >= len(text) or text[opened] not in _QUOTES:
        return error("SYNTAX_ERROR", "the text can't be read", detail=reason.splitlines()[0] + ".", sql=text)
    what = _QUOTES[text[opened]]
    return error("SYNTAX_ERROR", f"unterminated {what}", sql=text, span=Span(opened, opened + 1))


def _opened_at(text: str) -> int | None:
    """The offset of the quote or comment that is open at the end of `text`."""
    index = 0
    while index < len(text):
        char = text[index]
        if text.startswith("--", index):
            index = text.find("\n", index)
            if index < 0:
                return None
        elif text.startswith("/*", index) or char in "'\"" or text.startswith("$$", index):
            closing = "*/" if char == "/" else "$$" if char == "$" else char
            end = text.find(closing, index + len(closing))
            if end < 0:
                return index
            index = end + len(closing)
            continue
        index += 1
    return None


def cut(tokens: Sequence[Token]) -> list[list[Token]]:
    """The tokens of each statement; the last list holds the tokens after the last semicolon and may be empty."""
    parts: list[list[Token]] = [[]]
    for token in tokens:
        if token.token_type == TokenType.SEMICOLON:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


def _read(
    tokens: Sequence[Token],
    text: str,
    language: Language,
    parameters: Parameters,
    own_query: OwnQuery,
    before: Sequence[Sequence[Token]] = (),
    place: int = 0,
) -> Statement:
    """The statement, with the definitions `before` inserted before its token number `place`."""
    span = span_of(tokens)
    sql = text[span.start : span.end]
    tokens = _without_system_schema(tokens)
    if language.catalog:
        tokens = _without_catalog(tokens, language.catalog)
    if before:
        sql = ";\n".join([*(text[p[0].start : p[-1].end + 1] for p in before), sql])
        tokens = [*tokens[:place], *_listed(before), *tokens[place:]]
    cursor = Cursor(
        tokens,
        text,
        folding=language.semantics.folding,
        grammar=language.grammar,
        parameters=parameters,
        inner=lambda inner: _read(inner, text, language, parameters, own_query),
    )
    return _dispatch(cursor, {"text": text, "sql": sql, "span": span}, language, own_query)


def _without_system_schema(tokens: Sequence[Token]) -> Sequence[Token]:
    """The tokens, where functions have lost the schema `pg_catalog`."""
    named = [i for i, t in enumerate(tokens) if t.text.lower() == "pg_catalog"]
    texts = [t.text for t in tokens] if named else []
    dropped = {
        i + n for i in named if texts[i + 1 : i + 4 : 2] == [".", "("] and texts[i - 1 : i] != ["."] for n in (0, 1)
    }
    return [t for i, t in enumerate(tokens) if i not in dropped] if dropped else tokens


def _without_catalog(tokens: Sequence[Token], catalog: str) -> Sequence[Token]:
    """The tokens, where names of three parts have lost the first, the database's."""
    texts = [t.text for t in tokens]
    dropped = {
        i + place
        for i, text in enumerate(texts)
        if text.upper() == catalog and texts[i + 1 : i + 4 : 2] == [".", "."] and texts[i - 1 : i] != ["."]
        for place in (0, 1)
    }
    return [t for i, t in enumerate(tokens) if i not in dropped] if dropped else tokens


def _dispatch(cursor: Cursor, base: dict[str, Any], language: Language, own_query: OwnQuery) -> Statement:
    token = cursor.current
    if token is None:
        raise cursor.error()
    word = token.text.upper()
    if token.token_type in (TokenType.STRING, TokenType.IDENTIFIER):
        raise syntax_error(cursor.text, token)
    if word in QUERIES:
        own = own_query(cursor.originals(cursor.rest), cursor.text, cursor.parameters)
        reader = language.readers.get(word)
        own = own or (None if reader is None else reader(cursor, base))
        if own is not None:
            return own
        query = query_of(cursor)
        if word == "TABLE" and not isinstance(query, exp.Query):
            raise cursor.error()
        return dml.dml_of(query, base) or Select(**base, query=query)
    reader = language.readers.get(word)
    if word in (*_DML, "MERGE"):
        found = None if reader is None else reader(cursor, base)
        if found is not None or word in _DML:
            return found or dml.read_dml(cursor, base)
    if cursor.parameters and word not in _WITH_PARAMETERS:
        raise cursor.error_at(span_of([token]), "INVALID_PARAMETER", f"{word} takes no parameters")
    cursor.index += 1
    if word == "CREATE":
        return _read_create(cursor, base, language)
    found = (reader and reader(cursor, base)) or read_feature(word, cursor, base, language.semantics)
    if found is not None:
        return found
    if word == "DROP":
        return ddl.read_drop(
            cursor, base, language.drops, language.lacking, objects_of("DROP", language, cursor.current)
        )
    if word == "ALTER" and language.alter is not None:
        return language.alter(cursor, base)
    if word in _COMMON:
        return _COMMON[word](cursor, base)
    listed = objects_of(word, language)
    if word in _LACKING or word in language.lacking:
        hint = language.lacking.get(word)
        instead = hint(cursor.text) if callable(hint) else hint
        return Refused(**base, error=not_supported(word, cursor.text, span_of([token]), hint=instead or listed))
    near = did_you_mean(word, {words.split()[0] for words in statements_of(language)}, nearness=0.7)
    raise syntax_error(cursor.text, token, hint=near.replace('"', "") if near else listed)


def _read_create(cursor: Cursor, base: dict[str, Any], language: Language) -> Statement:
    """Reads CREATE and CREATE OR REPLACE; the cursor stands after CREATE.

    The stored text is a CREATE without OR REPLACE.
    """
    first = cursor.index
    if not cursor.take("OR", "REPLACE"):
        return _read_object(cursor, base, language)
    span = span_of(cursor.tokens[first : cursor.index])
    head = len(base["sql"]) - (base["span"].end - base["span"].start)
    rest = base["sql"][head + span.end - base["span"].start :]
    created = _read_object(cursor, {**base, "sql": f"{base['sql'][:head]}CREATE{rest}"}, language)
    if isinstance(created, (Accepted, Refused)):
        return created
    if not isinstance(created, (Create, CreateSchema)):
        raise syntax_error(cursor.text, cursor.tokens[first + 2])
    if created.if_not_exists:
        raise cursor.error_at(span, "SYNTAX_ERROR", "CREATE OR REPLACE can't be combined with IF NOT EXISTS")
    return replace(created, replaces=True)


def _read_object(cursor: Cursor, base: dict[str, Any], language: Language) -> Statement:
    found = read_feature("CREATE", cursor, base, language.semantics)
    supported = objects_of("CREATE", language, cursor.current)
    return found or ddl.read_create(cursor, base, language.creates, language.lacking, supported)
