"""Who a client is: SCRAM-SHA-256 (RFC 5802, RFC 7677)."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Awaitable, Callable
from typing import Final

from watersmeet.passwords import DIGEST, MECHANISM, Verifier, decoded, encoded
from watersmeet.server.messages import Body, authentication, violation
from watersmeet.server.users import Login, Users, refused

Ask = Callable[[bytes], Awaitable[bytes]]
Tell = Callable[[bytes], None]

_NONCE_BYTES: Final = 18


async def authenticate(users: Users, name: str, address: str, ask: Ask, tell: Tell) -> Login | None:
    """The user who has proved to be that one; None where nobody needs to. After failures of its address, it waits.

    AUTHENTICATION_FAILED for a wrong password, and in the same way for a user that there is not.
    """
    if not users.need_passwords:
        return None
    body = Body(await ask(authentication(10, MECHANISM.encode() + b"\0\0")))
    if body.text() != MECHANISM:
        raise violation("the client chose a mechanism of authentication that was not offered")
    first = _text(body.value() or b"")
    login, verifier = users.find(name)
    exchange = Exchange(verifier, first)
    final = _text(await ask(authentication(11, exchange.server_first.encode())))
    await users.guesses.turn(address, name)
    proved = exchange.check(final)
    if login is None or not proved:
        raise refused(name)
    users.guesses.succeed(address, name)
    tell(authentication(12, exchange.server_final.encode()))
    return login


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
        self._nonce = attributes["r"] + encoded(secrets.token_bytes(_NONCE_BYTES))
        self.server_first = f"r={self._nonce},s={encoded(verifier.salt)},i={verifier.iterations}"
        self.server_final = ""

    def check(self, client_final: str) -> bool:
        """Whether the client knows the password."""
        attributes = _attributes(client_final)
        if attributes.get("c") != encoded(self._header.encode()) or attributes.get("r") != self._nonce:
            raise violation("a message of SCRAM does not belong to those before it")
        without = client_final[: client_final.rfind(",p=")]
        said = f"{self._bare},{self.server_first},{without}".encode()
        try:
            proof = decoded(attributes.get("p", ""))
        except ValueError:
            raise violation("the proof of a message of SCRAM can't be read") from None
        signature = hmac.digest(self._verifier.stored_key, said, DIGEST)
        if len(proof) != len(signature):
            return False
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        self.server_final = f"v={encoded(hmac.digest(self._verifier.server_key, said, DIGEST))}"
        return hmac.compare_digest(hashlib.sha256(client_key).digest(), self._verifier.stored_key)


def _attributes(text: str) -> dict[str, str]:
    return {part[:1]: part[2:] for part in text.split(",") if part[1:2] == "="}


def _text(said: bytes) -> str:
    try:
        return said.decode("utf-8")
    except UnicodeDecodeError:
        raise violation("a message of SCRAM is no text") from None
