"""Verifiers of passwords and the exchange of messages by SCRAM-SHA-256 (RFC 5802, RFC 7677).

With a verifier, a server can check a password without knowing it. PostgreSQL writes it as
`SCRAM-SHA-256$iterations:salt$stored key:server key`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
import stringprep
import unicodedata
from dataclasses import dataclass
from typing import Final

from watersmeet.errors import Error, error

MECHANISM: Final = "SCRAM-SHA-256"
DIGEST: Final = "sha256"
ITERATIONS: Final = 4096
SALT_BYTES: Final = 16
_NONCE_BYTES: Final = 18
_MOST_ITERATIONS: Final = 1_000_000


@dataclass(frozen=True)
class Verifier:
    """A verifier, which checks passwords."""

    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes

    @classmethod
    def of(cls, password: str, *, salt: bytes | None = None, iterations: int = ITERATIONS) -> Verifier:
        """The verifier of a password, with a new salt."""
        salt = secrets.token_bytes(SALT_BYTES) if salt is None else salt
        salted = hashlib.pbkdf2_hmac(DIGEST, _prepared(password).encode(), salt, iterations)
        client_key = hmac.digest(salted, b"Client Key", DIGEST)
        return cls(iterations, salt, hashlib.sha256(client_key).digest(), hmac.digest(salted, b"Server Key", DIGEST))

    @classmethod
    def read(cls, text: str) -> Verifier:
        """Parses PostgreSQL's form of a verifier. Raises INVALID_PARAMETER."""
        try:
            mechanism, numbers, keys = text.split("$")
            iterations, salt = numbers.split(":")
            stored, server = keys.split(":")
            found = cls(int(iterations), decoded(salt), decoded(stored), decoded(server))
        except ValueError as cause:
            raise error("INVALID_PARAMETER", "a password's verifier can't be read") from cause
        if mechanism != MECHANISM:
            raise error("INVALID_PARAMETER", f"a password's verifier is of {mechanism[:20]}, not of {MECHANISM}")
        sizes = len(found.stored_key) == len(found.server_key) == hashlib.sha256().digest_size
        if not sizes or not found.salt or not 1 <= found.iterations <= _MOST_ITERATIONS:
            raise error("INVALID_PARAMETER", "a password's verifier can't be read")
        return found

    @classmethod
    def given(cls, text: str) -> Verifier:
        """The verifier for the text after PASSWORD: that of a password, or the text itself, because psql sends
        verifiers.

        Raises FEATURE_NOT_SUPPORTED for MD5.
        """
        if text.startswith(f"{MECHANISM}$"):
            return cls.read(text)
        if len(text) == 35 and text.startswith("md5"):
            raise error("FEATURE_NOT_SUPPORTED", "passwords by MD5 are not supported", hint="Give the password itself.")
        return cls.of(text)

    def accepts(self, password: str) -> bool:
        """Whether a password is correct, for clients that send it in clear text over an encrypted connection."""
        made = self.of(password, salt=self.salt, iterations=self.iterations)
        return hmac.compare_digest(made.stored_key, self.stored_key)

    def __str__(self) -> str:
        salt, stored, server = map(encoded, (self.salt, self.stored_key, self.server_key))
        return f"{MECHANISM}${self.iterations}:{salt}${stored}:{server}"


class Exchange:
    """The four messages of SCRAM, without channel binding. Raises PROTOCOL_VIOLATION."""

    def __init__(self, verifier: Verifier, client_first: str) -> None:
        flag, _, rest = client_first.partition(",")
        if flag not in ("n", "y"):
            raise _violation("channel binding is not supported", detail="The client asks for it.")
        name, _, self._bare = rest.partition(",")
        if name and not name.startswith("a="):
            raise _violation("a message of SCRAM can't be read")
        attributes = _attributes(self._bare)
        if "r" not in attributes:
            raise _violation("a message of SCRAM has no nonce")
        self._verifier = verifier
        self._header = f"{flag},{name},"
        self._nonce = attributes["r"] + encoded(secrets.token_bytes(_NONCE_BYTES))
        self.server_first = f"r={self._nonce},s={encoded(verifier.salt)},i={verifier.iterations}"
        self.server_final = ""

    def check(self, client_final: str) -> bool:
        """Whether the client has proved that it knows the password."""
        attributes = _attributes(client_final)
        if attributes.get("c") != encoded(self._header.encode()) or attributes.get("r") != self._nonce:
            raise _violation("a message of SCRAM does not belong to those before it")
        without = client_final[: client_final.rfind(",p=")]
        said = f"{self._bare},{self.server_first},{without}".encode()
        try:
            proof = decoded(attributes.get("p", ""))
        except ValueError:
            raise _violation("the proof of a message of SCRAM can't be read") from None
        signature = hmac.digest(self._verifier.stored_key, said, DIGEST)
        if len(proof) != len(signature):
            return False
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        self.server_final = f"v={encoded(hmac.digest(self._verifier.server_key, said, DIGEST))}"
        return hmac.compare_digest(hashlib.sha256(client_key).digest(), self._verifier.stored_key)


def _attributes(text: str) -> dict[str, str]:
    return {part[:1]: part[2:] for part in text.split(",") if part[1:2] == "="}


def _violation(message: str, detail: str | None = None) -> Error:
    return error("PROTOCOL_VIOLATION", message, detail=detail)


def encoded(data: bytes) -> str:
    """Bytes in base64, as in messages of SCRAM."""
    return base64.b64encode(data).decode()


def decoded(text: str) -> bytes:
    """The inverse of `encoded`. Raises ValueError."""
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as cause:
        raise ValueError(text) from cause


def _prepared(password: str) -> str:
    """The password prepared by RFC 4013 (SASLprep). A prohibited password stays unchanged, as in PostgreSQL."""
    mapped = "".join(" " if stringprep.in_table_c12(c) else c for c in password if not stringprep.in_table_b1(c))
    normal = unicodedata.normalize("NFKC", mapped)
    forbidden = (
        stringprep.in_table_c12, stringprep.in_table_c21_c22, stringprep.in_table_c3, stringprep.in_table_c4,
        stringprep.in_table_c5, stringprep.in_table_c6, stringprep.in_table_c7, stringprep.in_table_c8,
        stringprep.in_table_c9, stringprep.in_table_a1,
    )  # fmt: skip
    return password if not normal or any(check(c) for c in normal for check in forbidden) else normal
