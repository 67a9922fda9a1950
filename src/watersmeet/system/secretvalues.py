"""References to secrets, which replace their values in options, and the values for clients of other systems.

A reference names the secret and its database, so that catalogs, plans and intents can take it to any process that has
opened the database. The database stores the value in a file that only its user can read, or it only stores the name of
an environment variable or the path of a file, which each use reads again. A secret that a statement contains in clear
text gets a generated name.
"""

from __future__ import annotations

import base64
import hashlib
import os
import secrets
from collections.abc import Callable, Mapping
from typing import Final

from watersmeet.errors import error
from watersmeet.errors.secretnames import is_secret
from watersmeet.system.process import library

HIDDEN: Final = "[HIDDEN]"
#: The prefix of references. Statements can't contain its zero byte.
_MARK: Final = "\0secret "
#: The prefix of generated names.
_NAMELESS: Final = "\1"
#: The prefixes of the stored form of secrets whose values are outside of the database.
_PLACES: Final = {"env": "\0env ", "file": "\0file "}
#: The function that reads the value of a secret, by the id of each database that this process has opened.
_READERS: dict[str, Callable[[str], str]] = {}


def nameless() -> str:
    """A generated name of a secret, which statements can't contain."""
    return _NAMELESS + secrets.token_hex(16)


def is_nameless(name: str) -> bool:
    """Whether a name is generated."""
    return name.startswith(_NAMELESS)


def reference(name: str, database: str = "") -> str:
    """A reference to a secret. database: its id; empty in a statement that was only parsed."""
    return f"{_MARK}{database} {name}"


def referred(text: str) -> str | None:
    """The name of the secret that a text refers to; None for any other text."""
    return text.removeprefix(_MARK).partition(" ")[2] if text.startswith(_MARK) else None


def revealed(text: str) -> str:
    """The value of the secret that a text refers to; any other text unchanged. Never store or show the result.

    Raises UNDEFINED_OBJECT for a dropped secret, RUNTIME_UNAVAILABLE if this process lacks the variable or file of its
    value.
    """
    name = referred(text)
    if name is None:
        return text
    return _looked_up(name, _READERS[text.removeprefix(_MARK).partition(" ")[0]](name))


def external_secret(backend: str, where: str) -> str:
    """The stored form of a secret whose value is outside of the database. backend: `env` (a variable) or `file`."""
    return _PLACES[backend] + where


def external_place(stored: str) -> tuple[str, str] | None:
    """The inverse of `external_secret`: (backend, variable or path); None for a stored value."""
    return next(((b, stored.removeprefix(mark)) for b, mark in _PLACES.items() if stored.startswith(mark)), None)


def _looked_up(name: str, stored: str) -> str:
    place = external_place(stored)
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
        detail = f"{cause.strerror}." if isinstance(cause, OSError) else "It is not UTF-8 text."
    raise error(
        "RUNTIME_UNAVAILABLE",
        f'secret "{name}" can\'t be read: its value is in {lacking}',
        detail=detail,
        hint="Executors of Spark and processes that read need it, too.",
    )


def revealed_options(options: Mapping[str, str]) -> dict[str, str]:
    """Options with the values of their secrets. See `revealed`."""
    return {name: revealed(value) for name, value in options.items()}


def shown(options: Mapping[str, str]) -> dict[str, str]:
    """Options without their secrets, for users."""
    found = {}
    for name, value in options.items():
        secret = referred(value)
        if secret is not None and not is_nameless(secret):
            found[name] = f"SECRET {secret}"
        else:
            found[name] = HIDDEN if secret is not None or is_secret(name, value) else value
    return found


def signed(text: str, key: str) -> tuple[str, str]:
    """The Ed25519 signature of a text in UTF-8, as Base64, and the SHA-256 of the public key's DER form.

    key: a reference to a secret with the private key in the form PEM. Raises INVALID_PARAMETER if it has another form,
    LIBRARY_MISSING, and the errors of `revealed`.
    """
    serialization = library("cryptography.hazmat.primitives.serialization", "signatures")
    ed25519 = library("cryptography.hazmat.primitives.asymmetric.ed25519", "signatures")
    try:
        private = serialization.load_pem_private_key(revealed(key).encode(), password=None)
    except (ValueError, TypeError):  # the text is of another form, or encrypted
        private = None
    if not isinstance(private, ed25519.Ed25519PrivateKey):
        raise error(
            "INVALID_PARAMETER",
            f'secret "{referred(key)}" is not a private key of Ed25519 in the form PEM',
            hint="openssl genpkey -algorithm ed25519 makes one.",
        )
    public = private.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return base64.b64encode(private.sign(text.encode())).decode(), hashlib.sha256(public).hexdigest()


def serve(database: str, read: Callable[[str], str]) -> None:
    """Registers the reader of the secrets of a database that this process has opened."""
    _READERS[database] = read
