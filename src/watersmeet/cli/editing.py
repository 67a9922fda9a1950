"""The line editor of the shell: statements of several lines, colours, history, completion."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from prompt_toolkit import PromptSession
from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import completion_is_selected
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.lexers import PygmentsLexer
from pygments.lexers.sql import PostgresLexer  # type: ignore[import-untyped]

from watersmeet.dialects.parsing import split_statements
from watersmeet.errors.secretnames import concealed
from watersmeet.values.dialectnames import DEFAULT_DIALECT

_WORDS: Final = (
    "AND", "AS", "BEGIN", "BY", "CASE", "CAST", "COMMIT", "CREATE", "CROSS", "DELETE", "DESCRIBE", "DISTINCT", "DROP",
    "ELSE", "END", "EXISTS", "EXPLAIN", "FLUSH", "FROM", "FULL", "GROUP", "HAVING", "IN", "INDEX", "INNER", "INSERT",
    "INTO", "IS", "JOIN", "LEFT", "LIMIT", "MATERIALIZED", "NATURAL", "NOT", "NULL", "ON", "OR", "ORDER", "RIGHT",
    "ROLLBACK", "SELECT", "SET", "SHOW", "SOURCE", "TABLE", "THEN", "UNION", "UPDATE", "USING", "VALUES", "VIEW",
    "WHEN", "WHERE", "WITH",
)  # fmt: skip
_CONTINUATION: Final = "        ... "


def prompt_session(names: Callable[[], Iterable[str]], dialect: Callable[[], str]) -> PromptSession[str]:
    """An editor in which Enter ends a complete statement and otherwise begins a new line.

    names: what completion knows beside SQL's words. dialect: the one by which statements end now.
    """
    return PromptSession(
        history=_history(),
        auto_suggest=AutoSuggestFromHistory(),
        multiline=True,
        key_bindings=_bindings(dialect),
        prompt_continuation=_CONTINUATION,
        lexer=PygmentsLexer(PostgresLexer),
        completer=_Names(names),
        complete_while_typing=False,
        enable_history_search=True,
    )


def is_complete(text: str, dialect: str = DEFAULT_DIALECT) -> bool:
    """True if Enter should run the text: nothing, a backslash command, `quit` or `help`, or statements that have
    ended.
    """
    stripped = text.strip()
    if not stripped or stripped.startswith("\\") or stripped.lower() in ("quit", "exit", "help"):
        return True
    complete, rest = split_statements(text, dialect)
    return not rest and (bool(complete) or not _is_open(text, dialect))


def _is_open(text: str, dialect: str) -> bool:
    """True if the text, which has no complete statement and no rest, is more than comments: a quote that has no end."""
    return bool(split_statements(text + "\n;", dialect)[1])


class _Names(Completer):
    """Completes the word before the cursor: relations, then SQL's words."""

    def __init__(self, names: Callable[[], Iterable[str]]) -> None:
        self._names = names

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        del complete_event
        word = document.get_word_before_cursor()
        if not word:
            return
        for name in [*self._names(), *(w if word.isupper() else w.lower() for w in _WORDS)]:
            if name.lower().startswith(word.lower()):
                yield Completion(name, start_position=-len(word))


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
    """What was written, but for passwords: another session has asterisks in their place."""

    def store_string(self, string: str) -> None:
        super().store_string(concealed(string)[0] or "")


def _history() -> History:
    try:
        path = Path.home() / ".watersmeet_history"
        path.touch(mode=0o600)
        return _FileHistory(str(path))
    except (OSError, RuntimeError):  # A home that can't be written, or none: the session has its history all the same.
        return InMemoryHistory()
