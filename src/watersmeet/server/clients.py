"""The clients of a server: their limits, their activity, counts of their statements, and signals between them."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Final, Literal, Protocol

from watersmeet.catalog.roles import Actor
from watersmeet.database.sessions.variables import size
from watersmeet.errors import Error, error

#: The SQLSTATE of what succeeded.
SUCCESS: Final = "00000"

#: Kinds of statements, by the first words of their tags. What is none of them is `other`: there are few, whatever
#: clients send.
_KINDS: Final = {
    **{
        word.upper(): word
        for word in (
            "select", "insert", "update", "delete", "merge", "copy", "create", "alter", "drop", "show", "describe",
            "explain", "set", "flush", "fetch", "subscribe",
        )
    },
    **dict.fromkeys(("BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT", "RELEASE", "START"), "transaction"),
}  # fmt: skip


def kind_of(tag: str) -> str:
    """The kind of a statement, by its tag or its first word."""
    return _KINDS.get(tag.partition(" ")[0].upper(), "other")


class Traffic:
    """Counts. Safe for several threads.

    statements: finished ones, by kind and SQLSTATE. subscriptions: queries and subscriptions whose rows clients are
    getting now.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._statements: Counter[tuple[str, str]] = Counter()
        self._subscriptions = 0

    @contextmanager
    def subscribed(self) -> Iterator[None]:
        """A client gets rows as they come inside the block."""
        with self._lock:
            self._subscriptions += 1
        try:
            yield
        finally:
            with self._lock:
                self._subscriptions -= 1

    def ended(self, kind: str, sqlstate: str = SUCCESS) -> None:
        """A statement has ended."""
        with self._lock:
            self._statements[kind, sqlstate] += 1

    @property
    def statements(self) -> dict[tuple[str, str], int]:
        """By kind and SQLSTATE."""
        with self._lock:
            return dict(self._statements)

    @property
    def subscriptions(self) -> int:
        """How many there are now."""
        with self._lock:
            return self._subscriptions


#: As in pg_stat_activity.
State = Literal["active", "idle", "idle in transaction", "idle in transaction (aborted)"]


@dataclass(frozen=True)
class Activity:
    """What a client does. actor: the user who has logged in, None for one who is trusted. began_s: when it connected,
    in seconds since 1970.
    """

    process: int
    user: str
    actor: Actor | None
    application: str
    address: str
    state: State
    began_s: float


class Client:
    """A client that has proved who it is, by whichever protocol."""

    def cancel(self) -> None:
        """Cancels the statement that runs."""
        raise NotImplementedError

    def end(self, err: Error) -> None:
        """Sends the client away: what it runs is cancelled."""
        raise NotImplementedError

    def activity(self) -> Activity | None:
        """What the client does; None before it has said who it is."""
        raise NotImplementedError

    def check_login(self) -> None:
        """Ends it if its user may not stay (`Users.admits`)."""
        raise NotImplementedError


class Clients(Protocol):
    """The clients of the server, and what they did."""

    traffic: Traffic

    def activity(self) -> Sequence[Activity]:
        """What all of them do."""
        ...

    def signal(self, process: int, *, ends: bool) -> bool:
        """Cancels what a client runs, or sends it away; False if there is none of that number. Any thread may ask."""
        ...


_LEAST_TEXT_BYTES: Final = 1 << 10
_LEAST_MEMORY_BYTES: Final = 64 << 20

#: The memory of a word of a statement, with its tokens and its part of the tree.
_WORD_BYTES: Final = 1 << 10

#: A word, a quote or a sign, or blanks as a group.
_WORD: Final = re.compile(r"""'[^']*+(?:'|\Z)|"[^"]*+(?:"|\Z)|\w++|[^\w\s]|(\s++)""")


@dataclass(frozen=True)
class Limits:
    """Limits of the server.

    connections: how many clients at once; members of `admin` may be some more. starting: how many that have not said
    who they are; the oldest goes when there are more. authentication_s: how long a client may take to say who it is.
    slow_client_s: how long it may leave rows untaken. message_bytes: of a message, once it has said who it is.
    requires_tls: connections without encryption are refused. result_size: of one result, as a setting has it, from
    which clients begin. statement_size: of the text of one statement, apart from parameters and rows of COPY.
    statement_memory: of one statement that runs in a process of its own, and of the tree of one statement's text.
    """

    connections: int = 100
    starting: int = 100
    authentication_s: float = 30
    slow_client_s: float = 60
    message_bytes: int = 1 << 28
    requires_tls: bool = False
    result_size: str = "1GB"
    statement_size: str = "16MB"
    statement_memory: str = "1GB"

    def check(self) -> None:
        """INVALID_PARAMETER for a size that is not one, or too small for any statement."""
        for option, found, least in (
            ("--statement-size", self.statement_bytes, _LEAST_TEXT_BYTES),
            ("--statement-memory", self.memory_bytes, _LEAST_MEMORY_BYTES),
        ):
            if found < least:
                raise error("INVALID_PARAMETER", f"{option} must be at least {least:,} bytes")

    @property
    def statement_bytes(self) -> int:
        """The most bytes of the text of a statement."""
        return size("the size of a statement", self.statement_size)

    @property
    def memory_bytes(self) -> int:
        """The most bytes that a statement may take."""
        return size("the memory of a statement", self.statement_memory)

    def check_words(self, text: str) -> None:
        """STATEMENT_LIMIT for a text whose tree would take too much memory."""
        most = self.memory_bytes // _WORD_BYTES
        words = (m for m in _WORD.finditer(text) if m.lastindex is None)
        if len(text) > most and sum(1 for _ in islice(words, most + 1)) > most:
            raise error(
                "STATEMENT_LIMIT",
                "the statement has too many words",
                detail=f"It may have {most:,} words, signs and numbers.",
                hint="Send values as parameters or rows as COPY, or split the statement.",
            )

    def too_long(self, text_bytes: int) -> Error:
        """STATEMENT_LIMIT for a text with too many bytes."""
        return error(
            "STATEMENT_LIMIT",
            "the text of the statement is too long",
            detail=f"It has {text_bytes:,} bytes, and may have {self.statement_bytes:,}.",
            hint="Send values as parameters or rows as COPY, or split the statement.",
        )
