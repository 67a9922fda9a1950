"""References to secrets, which stand in options in place of values, and the values, where a client needs them.

A reference names the secret and its database, so that catalogs, plans and intents may carry it to any process that has
opened the database. The value is in a file there (`store.secretfiles`), which only the user can read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

HIDDEN: Final = "[HIDDEN]"
#: How the names of options end whose values nobody else should see.
_SECRET: Final = (
    "password",
    "secret",
    "secret.key",
    "access.key",
    "access_key",
    "account_key",
    "gcs.credential",
    "service.account",
    "token",
    "credentials",
    ".pem",
    "jdbc.url",  # which may have a password in it
)
#: Begins references. No text of a statement has a zero byte.
_MARK: Final = "\0secret "
#: By the id of each database that this process has opened: gives the value of a secret.
_READERS: dict[str, Callable[[str], str]] = {}


def reference(name: str, database: str = "") -> str:
    """What stands for the value of a secret. database: its id; none in a statement that was only read."""
    return f"{_MARK}{database} {name}"


def referred(text: str) -> str | None:
    """The name of the secret that a text refers to; None for any other text."""
    return text.removeprefix(_MARK).partition(" ")[2] if text.startswith(_MARK) else None


def revealed(text: str) -> str:
    """The value of the secret that a text refers to; any other text as it is.

    The result must not be stored or shown. UNDEFINED_OBJECT if the secret is gone.
    """
    name = referred(text)
    if name is None:
        return text
    return _READERS[text.removeprefix(_MARK).partition(" ")[0]](name)


def shown(options: Mapping[str, str]) -> dict[str, str]:
    """Options for people and programs that ask for them: without passwords, keys and the like."""
    return {
        name: f"SECRET {secret}"
        if (secret := referred(value)) is not None
        else HIDDEN
        if name.endswith(_SECRET)
        else value
        for name, value in options.items()
    }


def serve(database: str, read: Callable[[str], str]) -> None:
    """This process has opened a database whose secrets `read` gives by name."""
    _READERS[database] = read
