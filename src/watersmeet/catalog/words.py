"""What kinds of relations are called."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: What DROP and ALTER say. `any view`: VIEW where that is said of materialized ones, too; `topic`: TABLE where that is
#: said of all that is read as a topic.
DropWord = Literal[
    "table",
    "source",
    "view",
    "materialized view",
    "index",
    "stream",
    "dictionary",
    "any view",
    "topic",
    "pump",
    "sink",
    "server",
    "connection",
    "format schema",
    "named collection",
    "subscription",
]


@dataclass(frozen=True, slots=True)
class Words:
    """What a kind is called by messages and statements.

    what: in messages. role: where it runs and reads others, and where a statement makes it; the same if not given.
    show: the lists of SHOW that it is in. show_create: behind SHOW CREATE. drop: behind DROP and ALTER. Of several
    words the first is the best one. A kind without these is hidden: no statement can name it.
    """

    what: str
    role: str = ""
    show: tuple[str, ...] = ()
    show_create: tuple[str, ...] = ()
    drop: tuple[DropWord, ...] = ()

    def __post_init__(self) -> None:
        if not self.role:
            object.__setattr__(self, "role", self.what)


def one(word: str) -> str:
    """The word with its article."""
    return f"{'an' if word[0] in 'aeio' else 'a'} {word}"
