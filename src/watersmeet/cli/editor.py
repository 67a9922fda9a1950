"""The line editor of the shell: statements of several lines, colors, history, and completion of names and keywords."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from prompt_toolkit import PromptSession
from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.filters import completion_is_selected
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.lexers import PygmentsLexer
from pygments.lexers.sql import PostgresLexer  # type: ignore[import-untyped]

from watersmeet.dialects.parsing import split_statements
from watersmeet.dialects.registry import Language, language_named
from watersmeet.dialects.tree.tokens import RESERVED, folded
from watersmeet.errors.secretnames import concealed
from watersmeet.values import CHOICES, DEFAULT_DIALECT

#: The first words of statements in all dialects.
_VERBS: Final = (
    "ALTER", "BEGIN", "COMMIT", "COPY", "CREATE", "DELETE", "DESCRIBE", "DROP", "EXPLAIN", "FLUSH", "GRANT", "INSERT",
    "KILL", "REFRESH", "REVOKE", "ROLLBACK", "SELECT", "SET", "SHOW", "TRUNCATE", "UPDATE", "WITH",
)  # fmt: skip
_WORDS: Final = (
    "AND", "AS", "BETWEEN", "BY", "CASE", "CAST", "CROSS", "DISTINCT", "ELSE", "END", "EXISTS", "FROM", "FULL", "GROUP",
    "HAVING", "IN", "INNER", "INTERVAL", "INTO", "IS", "JOIN", "LEFT", "LIKE", "LIMIT", "NATURAL", "NOT", "NULL",
    "OFFSET", "ON", "OR", "ORDER", "OUTER", "OVER", "PARTITION", "PRIMARY KEY", "RIGHT", "SELECT", "SET", "THEN",
    "UNION", "USING", "VALUES", "WHEN", "WHERE", "WITH",
)  # fmt: skip
_SHOWN: Final = (
    "COLUMNS FROM",
    "CREATE",
    "ERRORS",
    "JOBS",
    "MATERIALIZED VIEWS",
    "RELATIONS",
    "SINKS",
    "SOURCES",
    "TABLES",
    "VIEWS",
)
#: The words that precede names of relations, and those that precede expressions.
_BEFORE_RELATIONS: Final = frozenset(
    {
        "FROM",
        "JOIN",
        "INTO",
        "UPDATE",
        "TABLE",
        "VIEW",
        "SOURCE",
        "SINK",
        "STREAM",
        "INDEX",
        "PUMP",
        "PROCESSOR",
        "DESCRIBE",
        "DESC",
        "TRUNCATE",
        "COPY",
    }
)
_BEFORE_COLUMNS: Final = frozenset({"SELECT", "WHERE", "ON", "BY", "HAVING", "SET", "USING", "WHEN", "DISTINCT"})
_CLAUSES: Final = _BEFORE_RELATIONS | _BEFORE_COLUMNS
_TOKEN: Final = re.compile(
    r"""'(?:[^']|'')*(?:'|\Z) | "(?:[^"]|"")*(?:"|\Z) | `[^`]*(?:`|\Z) | --[^\n]* | /\*.*?(?:\*/|\Z) | [\w$]+ | \S""",
    re.DOTALL | re.VERBOSE,
)
_WORD: Final = re.compile(r"[\w$]+")
_PLAIN: Final = re.compile(r"[A-Za-z_][\w$]*")

#: Statements that a shell command ends instead of a semicolon.
ENDED: Final = re.compile(r"\\(?:watch\b[^\\]*|gx)\s*\Z")
_CONTINUATION: Final = "        ... "


def is_complete(text: str, dialect: str = DEFAULT_DIALECT) -> bool:
    """True if Enter should run the text: an empty text, a shell command, `quit` or `help`, or complete statements."""
    stripped = text.strip()
    if not stripped or stripped[0] in "\\." or stripped.lower() in ("quit", "exit", "help") or ENDED.search(stripped):
        return True
    complete, rest = split_statements(text, dialect)
    return not rest and (bool(complete) or not _is_open(text, dialect))


def _is_open(text: str, dialect: str) -> bool:
    """True if a text without statements is more than comments, because a quote does not end."""
    return bool(split_statements(text + "\n;", dialect)[1])


@dataclass(frozen=True)
class Names:
    """The names that can be completed. relations: the columns of each relation by its name. commands: the shell
    commands.
    """

    relations: Callable[[], Mapping[str, Sequence[str]]]
    dialect: Callable[[], str]
    commands: Sequence[str] = ()


def prompt_session(names: Names) -> PromptSession[str]:
    """An editor in which Enter ends a complete statement and otherwise begins a new line. Tab completes."""
    return PromptSession(
        history=history(),
        auto_suggest=AutoSuggestFromHistory(),
        multiline=True,
        key_bindings=_bindings(names.dialect),
        prompt_continuation=_CONTINUATION,
        lexer=PygmentsLexer(PostgresLexer),
        completer=SqlCompleter(names),
        complete_while_typing=False,
        enable_history_search=True,
    )


class SqlCompleter(Completer):
    """Completes the word before the cursor: relations, columns of the statement's relations, keywords, commands."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._paths = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        before = document.text_before_cursor
        if before.lstrip().startswith("\\"):
            yield from self._command(before.lstrip(), complete_event)
            return
        tokens = [(m.group(), m.end()) for m in _TOKEN.finditer(before)]
        typed = tokens[-1][0] if tokens and tokens[-1][1] == len(before) else ""
        if typed.startswith(("'", "--", "/*")) or (typed and not _WORD.fullmatch(typed) and typed[0] not in '"`'):
            if typed not in (".", ",", "(", "=", "<", ">", "+", "-", "*", "/", ";"):
                return
            typed = ""
        words = [t for t, _ in tokens[: len(tokens) - bool(typed)]]
        words = words[_after_last(words, ";") :]
        after = [m.group() for m in _TOKEN.finditer(document.text_after_cursor)]
        after = after[: after.index(";")] if ";" in after else after
        for name in self._candidates(words, after, typed):
            if name.lower().startswith(typed.lower()) and name != typed:
                yield Completion(name, start_position=-len(typed))

    def _command(self, before: str, event: CompleteEvent) -> Iterator[Completion]:
        """Completes shell commands and their arguments, which are files and relations."""
        name, space, rest = before.partition(" ")
        if not space:
            yield from (Completion(c, start_position=-len(name)) for c in self._names.commands if c.startswith(name))
            return
        word = rest.rpartition(" ")[2].lstrip("'")
        if name in ("\\i", "\\e") or (name == "\\copy" and re.search(r"\b(from|to)\s+\S*$", rest, re.IGNORECASE)):
            yield from self._paths.get_completions(Document(word), event)
            return
        for relation in self._relations(word):
            if relation.lower().startswith(word.lower()):
                yield Completion(relation, start_position=-len(word))

    def _candidates(self, before: Sequence[str], after: Sequence[str], typed: str) -> Iterator[str]:
        """The completions that may follow the words of a statement. typed: the beginning of the current word."""
        if before[-1:] == ["."]:
            yield from self._columns(self._meant(before[-2:-1], [*before, *after]), typed)
            return
        upper = [w.upper() for w in before]
        clause = next((w for w in reversed(upper) if w in _CLAUSES), "")
        is_index = clause == "ON" and upper[:1] == ["CREATE"] and "INDEX" in upper
        starts = bool(upper) and (upper[-1] == clause or upper[-1] in (",", "("))
        if (clause in _BEFORE_RELATIONS or is_index) and starts:
            yield from self._relations(typed)
            return
        if clause in _BEFORE_COLUMNS and upper[0] != "SET":
            yield from self._columns(self._named([*before, *after]), typed)
        is_capital = typed.isupper() if typed else not any(w.islower() and w.upper() in _CLAUSES for w in before)
        for word in _keywords(language_named(self._names.dialect()), upper):
            yield word if is_capital else word.lower()

    def _relations(self, typed: str) -> list[str]:
        return [self._written(n, typed) for n in self._names.relations()]

    def _columns(self, relations: Iterable[str], typed: str) -> list[str]:
        known = self._names.relations()
        return list(dict.fromkeys(self._written(c, typed) for r in relations for c in known[r]))

    def _written(self, name: str, typed: str) -> str:
        """The name as it is written in a statement: quoted if necessary, in the case of the typed word if that means
        the same name.
        """
        folding = language_named(self._names.dialect()).semantics.folding
        parts = [
            p if _PLAIN.fullmatch(p) and folded(p, folding) == p and p.lower() not in RESERVED else f'"{p}"'
            for p in name.split(".")
        ]
        written = ".".join(parts)
        return written.lower() if folding == "upper" and '"' not in written and not typed.isupper() else written

    def _named(self, words: Sequence[str]) -> list[str]:
        """The relations that a statement names; all relations if it names none yet."""
        known = {n.lower(): n for n in self._names.relations()}
        found = dict.fromkeys(known[w] for w in (w.strip('"`').lower() for w in words) if w in known)
        return list(found or known.values())

    def _meant(self, qualifier: Sequence[str], words: Sequence[str]) -> list[str]:
        """The relation of a name or alias before a point."""
        wanted = [q.strip('"`').lower() for q in qualifier]
        known = {n.lower(): n for n in self._names.relations()}
        plain = [w.strip('"`').lower() for w in words if w.upper() != "AS"]
        for relation, alias in zip(plain, [*plain[1:], ""], strict=True):
            if relation in known and [alias] == wanted:
                return [known[relation]]
        return [known[w] for w in wanted if w in known]


def _after_last(words: Sequence[str], separator: str) -> int:
    return max((i + 1 for i, w in enumerate(words) if w == separator), default=0)


def _keywords(language: Language, upper: Sequence[str]) -> Iterable[str]:
    """The keywords that may follow. upper: the words of the statement so far, in capitals."""
    if not upper or upper == ["EXPLAIN"]:
        return sorted({*_VERBS, *language.readers})
    if upper == ["CREATE"]:
        return sorted(w for w in language.creates if w)
    if upper == ["DROP"]:
        return sorted(w for w in language.drops if w)
    if upper == ["SHOW"]:
        return _SHOWN
    if upper[:1] == ["SET"] and "DIALECT" in upper:
        return [f"'{d}'" for d in CHOICES]
    return (*_WORDS, *language.words)


def _bindings(dialect: Callable[[], str]) -> KeyBindings:
    bindings = KeyBindings()

    @bindings.add("enter", filter=~completion_is_selected)
    def _enter(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if is_complete(buffer.text, dialect()):
            buffer.validate_and_handle()
        else:
            buffer.insert_text("\n")

    return bindings


class _FileHistory(FileHistory):
    """A history file with asterisks instead of passwords."""

    def store_string(self, string: str) -> None:
        super().store_string(concealed(string)[0] or "")


def history() -> History:
    """The statements of earlier sessions; only those of this session if the home directory can't be written."""
    try:
        path = Path.home() / ".watersmeet_history"
        path.touch(mode=0o600)
        return _FileHistory(str(path))
    except (OSError, RuntimeError):
        return InMemoryHistory()
