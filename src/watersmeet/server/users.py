"""Who may connect to a database, and as whom: for every protocol of the server."""

from __future__ import annotations

import hmac
import logging
import secrets
from typing import Final

from watersmeet.catalog import Role
from watersmeet.catalog.roles import ADMIN, all_of
from watersmeet.database.opened import OpenDatabase
from watersmeet.errors import Error, error
from watersmeet.passwords import DIGEST, ITERATIONS, SALT_BYTES, Verifier
from watersmeet.secretvalues import revealed
from watersmeet.session.access.context import Session
from watersmeet.session.access.variables import Variables

log: Final = logging.getLogger(__name__)


class Users:
    """The users of a database, as its catalog has them now.

    trusts: whether everybody is let in, and may do everything, while nobody has a password.
    """

    def __init__(self, database: OpenDatabase, *, trusts: bool) -> None:
        self._database = database
        self._trusts = trusts
        self._secret = secrets.token_bytes(32)

    @property
    def exist(self) -> bool:
        """Whether anybody can log in."""
        return any(role.login and role.verifier for role in self._database.catalog.roles.values())

    @property
    def need_passwords(self) -> bool:
        """Whether clients have to prove who they are."""
        return not self._trusts or self.exist

    def verifier(self, name: str) -> Verifier | None:
        """By what the password of a user is checked; None: there is no such user, or no password."""
        role = self._database.catalog.roles.get(name)
        if role is None or not role.login or not role.verifier:
            return None
        try:
            return Verifier.read(revealed(role.verifier))
        except (Error, OSError):
            log.exception("the verifier of a password can't be read")
            return None

    def mark(self, name: str) -> str:
        """A text that is another one whenever the password of a user has changed."""
        role = self._database.catalog.roles.get(name)
        return "" if role is None else role.verifier

    def mock(self, name: str) -> Verifier:
        """A verifier that no password has, for a user that there is not: the same each time."""
        salt = hmac.digest(self._secret, name.encode(), DIGEST)[:SALT_BYTES]
        return Verifier(ITERATIONS, salt, b"", b"")

    def check(self, name: str, password: str) -> None:
        """AUTHENTICATION_FAILED for a wrong password, and in the same way for a user that there is not."""
        verifier = self.verifier(name)
        if not (verifier or self.mock(name)).accepts(password) or verifier is None:
            raise refused(name)

    def role(self, name: str) -> Role:
        """A user who has logged in. AUTHENTICATION_FAILED for one who is gone since."""
        found = self._database.catalog.roles.get(name)
        if found is None or not found.login:
            raise refused(name)
        return found

    def is_admin(self, name: str) -> bool:
        """Whether a user may do everything."""
        return ADMIN in all_of(self._database.catalog.roles, name)

    def session(self, name: str | None, dialect: str, *, files: bool) -> Session:
        """A session of a user; None: of one who is trusted. files: see `Session`."""
        return Session(self._database, Variables(dialect), files=files, user=name, role=name)


def refused(name: str) -> Error:
    """AUTHENTICATION_FAILED of a user."""
    return error("AUTHENTICATION_FAILED", f'password authentication failed for user "{name}"')
