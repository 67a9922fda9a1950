"""Who a client is: SCRAM-SHA-256 with verifiers (RFC 5802, RFC 7677), or trust.

A verifier lets the server check a password, but not know it: PostgreSQL's form of it is
`SCRAM-SHA-256$iterations:salt$stored key:server key`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import os
import secrets
import stringprep
import unicodedata
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from watersmeet.errors import Error, error
from watersmeet.server.messages import Body, authentication, violation

Ask = Callable[[bytes], Awaitable[bytes]]
Tell = Callable[[bytes], None]

_MECHANISM: Final = "SCRAM-SHA-256"
_ITERATIONS: Final = 4096
_SALT_BYTES: Final = 16
_DIGEST: Final = "sha256"


@dataclass(frozen=True)
class Verifier:
    """What a password is checked by."""

    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes

    @classmethod
    def of(cls, password: str, *, salt: bytes | None = None, iterations: int = _ITERATIONS) -> Verifier:
        """The verifier of a password, with a new salt."""
        salt = secrets.token_bytes(_SALT_BYTES) if salt is None else salt
        salted = hashlib.pbkdf2_hmac(_DIGEST, _prepared(password).encode(), salt, iterations)
        client_key = hmac.digest(salted, b"Client Key", _DIGEST)
        return cls(iterations, salt, hashlib.sha256(client_key).digest(), hmac.digest(salted, b"Server Key", _DIGEST))

    @classmethod
    def read(cls, text: str) -> Verifier:
        """From PostgreSQL's form. INVALID_PARAMETER."""
        try:
            mechanism, numbers, keys = text.split("$")
            iterations, salt = numbers.split(":")
            stored, server = keys.split(":")
            found = cls(int(iterations), _decoded(salt), _decoded(stored), _decoded(server))
        except ValueError as cause:
            raise error("INVALID_PARAMETER", "a password's verifier can't be read") from cause
        if mechanism != _MECHANISM:
            raise error("INVALID_PARAMETER", f"a password's verifier is of {mechanism}, not of {_MECHANISM}")
        return found

    def __str__(self) -> str:
        salt, stored, server = map(_encoded, (self.salt, self.stored_key, self.server_key))
        return f"{_MECHANISM}${self.iterations}:{salt}${stored}:{server}"


class NoPasswords:
    """Trusts everybody: for clients of this machine."""

    async def authenticate(self, user: str, ask: Ask, tell: Tell) -> None:
        """Lets the client in."""
        del user, ask, tell


class Authenticator:
    """Lets those in who know the password of their user. users: verifiers by name."""

    def __init__(self, users: Mapping[str, Verifier]) -> None:
        self._users = users
        self._secret = secrets.token_bytes(32)

    async def authenticate(self, user: str, ask: Ask, tell: Tell) -> None:
        """AUTHENTICATION_FAILED for a wrong password, and in the same way for a user that there is not."""
        body = Body(await ask(authentication(10, _MECHANISM.encode() + b"\0\0")))
        if body.text() != _MECHANISM:
            raise violation("the client chose a mechanism of authentication that was not offered")
        first = _text(body.value() or b"")
        verifier = self._users.get(user)
        mock = Verifier(_ITERATIONS, hmac.digest(self._secret, user.encode(), _DIGEST)[:_SALT_BYTES], b"", b"")
        exchange = Exchange(verifier or mock, first)
        final = _text(await ask(authentication(11, exchange.server_first.encode())))
        proved = exchange.check(final)
        if verifier is None or not proved:
            raise error("AUTHENTICATION_FAILED", f'password authentication failed for user "{user}"')
        tell(authentication(12, exchange.server_final.encode()))


class Exchange:
    """The four messages of SCRAM, without channel binding. Raises PROTOCOL_VIOLATION for what is none of them."""

    def __init__(self, verifier: Verifier, client_first: str) -> None:
        flag, _, rest = client_first.partition(",")
        if flag not in ("n", "y"):
            raise violation("channel binding is not supported", detail="The client asks for it.")
        name, _, self._bare = rest.partition(",")
        if name and not name.startswith("a="):
            raise violation("a message of SCRAM can't be read")
        attributes = _attributes(self._bare)
        if "r" not in attributes:
            raise violation("a message of SCRAM has no nonce")
        self._verifier = verifier
        self._header = f"{flag},{name},"
        self._nonce = attributes["r"] + _encoded(secrets.token_bytes(18))
        self.server_first = f"r={self._nonce},s={_encoded(verifier.salt)},i={verifier.iterations}"
        self.server_final = ""

    def check(self, client_final: str) -> bool:
        """Whether the client knows the password."""
        attributes = _attributes(client_final)
        if attributes.get("c") != _encoded(self._header.encode()) or attributes.get("r") != self._nonce:
            raise violation("a message of SCRAM does not belong to those before it")
        without = client_final[: client_final.rfind(",p=")]
        said = f"{self._bare},{self.server_first},{without}".encode()
        try:
            proof = _decoded(attributes.get("p", ""))
        except ValueError:
            raise violation("the proof of a message of SCRAM can't be read") from None
        signature = hmac.digest(self._verifier.stored_key, said, _DIGEST)
        if len(proof) != len(signature):
            return False
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        self.server_final = f"v={_encoded(hmac.digest(self._verifier.server_key, said, _DIGEST))}"
        return hmac.compare_digest(hashlib.sha256(client_key).digest(), self._verifier.stored_key)


def read_users(path: Path) -> dict[str, Verifier]:
    """The users of a file: JSON, verifiers by name. INVALID_PARAMETER if it can't be read."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {str(name): Verifier.read(str(text)) for name, text in found.items()}
    except (OSError, ValueError, AttributeError, Error) as cause:
        raise error("INVALID_PARAMETER", f"the users of {path} can't be read") from cause


def write_users(path: Path, users: Mapping[str, Verifier]) -> None:
    """Replaces the file of the users, which is for the user of this process alone."""
    temporary = path.with_name(path.name + f".{os.getpid()}")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as out:
        json.dump({name: str(verifier) for name, verifier in sorted(users.items())}, out, indent=1)
        out.flush()
        os.fsync(out.fileno())
    temporary.replace(path)


def _attributes(text: str) -> dict[str, str]:
    return {part[:1]: part[2:] for part in text.split(",") if part[1:2] == "="}


def _text(said: bytes) -> str:
    try:
        return said.decode("utf-8")
    except UnicodeDecodeError:
        raise violation("a message of SCRAM is no text") from None


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as cause:
        raise ValueError(text) from cause


def _prepared(password: str) -> str:
    """RFC 4013 (SASLprep); a password that it forbids stands as it is, as in PostgreSQL."""
    mapped = "".join(" " if stringprep.in_table_c12(c) else c for c in password if not stringprep.in_table_b1(c))
    normal = unicodedata.normalize("NFKC", mapped)
    forbidden = (
        stringprep.in_table_c12, stringprep.in_table_c21_c22, stringprep.in_table_c3, stringprep.in_table_c4,
        stringprep.in_table_c5, stringprep.in_table_c6, stringprep.in_table_c7, stringprep.in_table_c8,
        stringprep.in_table_c9, stringprep.in_table_a1,
    )  # fmt: skip
    return password if not normal or any(check(c) for c in normal for check in forbidden) else normal
