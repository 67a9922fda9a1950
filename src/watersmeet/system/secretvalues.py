"""References to secrets, which stand in options in place of values, and the values, where a client needs them.

The value of a secret can be in the environment or in a file of the process that needs it. Then the database has only
the name of the variable, or the path; both are looked up each time.

A reference names the secret and its database, so that catalogs, plans and intents may carry it to any process that has
opened the database. The value is in a file there (`store.notes`), which only the user can read. What a statement
gives in plain is kept as a secret without a name that anybody knows.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping
from typing import Final

from watersmeet.errors import error
from watersmeet.errors.secretnames import is_secret

HIDDEN: Final = "[HIDDEN]"
#: Begins references. No text of a statement has a zero byte.
_MARK: Final = "\0secret "
#: Begins the names of secrets that no statement can name.
_NAMELESS: Final = "\1"
#: Begin what is stored of secrets whose values are outside.
_PLACES: Final = {"env": "\0env ", "file": "\0file "}
#: By the id of each database that this process has opened: gives the value of a secret.
_READERS: dict[str, Callable[[str], str]] = {}


def nameless() -> str:
    """The name of a new secret that no statement can name."""
    return _NAMELESS + secrets.token_hex(16)


def is_nameless(name: str) -> bool:
    """Whether `nameless` gave the name."""
    return name.startswith(_NAMELESS)


def reference(name: str, database: str = "") -> str:
    """What stands for the value of a secret. database: its id; none in a statement that was only read."""
    return f"{_MARK}{database} {name}"


def referred(text: str) -> str | None:
    """The name of the secret that a text refers to; None for any other text."""
    return text.removeprefix(_MARK).partition(" ")[2] if text.startswith(_MARK) else None


def revealed(text: str) -> str:
    """The value of the secret that a text refers to; any other text as it is.

    The result must not be stored or shown. UNDEFINED_OBJECT if the secret is gone, RUNTIME_UNAVAILABLE if this process
    does not find its value where it should be.
    """
    name = referred(text)
    if name is None:
        return text
    return _looked_up(name, _READERS[text.removeprefix(_MARK).partition(" ")[0]](name))


def outside(backend: str, where: str) -> str:
    """What is stored of a secret whose value is elsewhere. backend: `env`: in a variable; `file`: in a file."""
    return _PLACES[backend] + where


def place_outside(stored: str) -> tuple[str, str] | None:
    """(backend, variable or path) of what is stored of a secret; None if that is its value."""
    return next(((b, stored.removeprefix(mark)) for b, mark in _PLACES.items() if stored.startswith(mark)), None)


def _looked_up(name: str, stored: str) -> str:
    place = place_outside(stored)
    if place is None:
        return stored
    backend, where = place
    try:
        if backend == "env":
            return os.environ[where]
        with open(where, encoding="utf-8") as file:
            return file.read().removesuffix("\n").removesuffix("\r")
    except KeyError:
        lacking = f"the environment variable {where}"
        detail = "This process does not have it."
    except (OSError, UnicodeDecodeError) as cause:
        lacking = f"the file {where}"
        detail = f"{cause.strerror}." if isinstance(cause, OSError) else "It is no text in UTF-8."
    raise error(
        "RUNTIME_UNAVAILABLE",
        f'secret "{name}" can\'t be read: its value is in {lacking}',
        detail=detail,
        hint="Executors of Spark and processes that read need it, too.",
    )


def revealed_options(options: Mapping[str, str]) -> dict[str, str]:
    """Options with the values of the secrets that they refer to, for a client, or for what takes them over. See
    `revealed`.
    """
    return {name: revealed(value) for name, value in options.items()}


def shown(options: Mapping[str, str]) -> dict[str, str]:
    """Options for people and programs that ask for them: without passwords, keys and the like."""
    found = {}
    for name, value in options.items():
        secret = referred(value)
        if secret is not None and not is_nameless(secret):
            found[name] = f"SECRET {secret}"
        else:
            found[name] = HIDDEN if secret is not None or is_secret(name, value) else value
    return found


def serve(database: str, read: Callable[[str], str]) -> None:
    """This process has opened a database whose secrets `read` gives by name."""
    _READERS[database] = read
