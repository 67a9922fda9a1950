"""Users of a database, for every protocol of the server: logins, sessions, and the wait after failed logins."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from watersmeet.catalog import Role
from watersmeet.catalog.roles import ADMIN, Actor, actor_of, all_of
from watersmeet.database.opened import OpenDatabase
from watersmeet.database.sessions.context import Session
from watersmeet.database.sessions.variables import Variables
from watersmeet.errors import Error, error
from watersmeet.system.passwords import DIGEST, ITERATIONS, SALT_BYTES, Verifier
from watersmeet.system.secretvalues import revealed

#: The number of failed logins before the next ones are delayed: of one address for one user, and for all users.
_FREE_OF_USER: Final = 5

_FREE_OF_ADDRESS: Final = 50

#: The delay after the first failure beyond these; it doubles with each failure, up to the longest.
_FIRST_WAIT_S: Final = 0.125

_LONGEST_WAIT_S: Final = 2.0

#: Failures are forgotten after this time without another one.
_FORGOTTEN_S: Final = 600.0

#: The maximum number of addresses and users in memory. The least recently used is forgotten first.
_MOST: Final = 10_000

#: All addresses of an IPv6 network of this prefix length count as one: a single machine may have them all.
_NETWORK_BITS: Final = 64


@dataclass
class _Failures:
    count: int
    last_s: float


class Guesses:
    """Failed logins by address, and by address and user; other addresses are not delayed. For one event loop.

    An attempt counts as failed from its start, so that concurrent attempts are also limited.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures: OrderedDict[tuple[str, str | None], _Failures] = OrderedDict()

    def wait_s(self, address: str, user: str) -> float:
        """The seconds until the next attempt is admitted; 0 for now."""
        now_s = self._clock()
        waits = (
            (self._failures.get(key), free)
            for key, free in zip(_keys(address, user), (_FREE_OF_USER, _FREE_OF_ADDRESS), strict=True)
        )
        return max((_wait_s(f, free, now_s) for f, free in waits if f is not None), default=0.0)

    def begin(self, address: str, user: str) -> None:
        """Counts an attempt."""
        now_s = self._clock()
        for key in _keys(address, user):
            known = self._failures.pop(key, None)
            count = 0 if known is None or now_s - known.last_s > _FORGOTTEN_S else known.count
            self._failures[key] = _Failures(count + 1, now_s)
        while len(self._failures) > _MOST:
            self._failures.popitem(last=False)

    def succeed(self, address: str, user: str) -> None:
        """Forgets the failures of a user at an address after a successful login."""
        of_user, of_address = _keys(address, user)
        self._failures.pop(of_user, None)
        if (known := self._failures.get(of_address)) is not None:
            known.count -= 1

    async def turn(self, address: str, user: str) -> None:
        """Waits until an attempt is admitted, and counts it."""
        while True:
            left_s = self.wait_s(address, user)
            if not left_s:
                break
            await asyncio.sleep(left_s)
        self.begin(address, user)


def _wait_s(failures: _Failures, free: int, now_s: float) -> float:
    passed_s = now_s - failures.last_s
    beyond = failures.count - free
    if beyond < 0 or passed_s > _FORGOTTEN_S:
        return 0.0
    return max(min(_FIRST_WAIT_S * 2.0 ** min(beyond, 30), _LONGEST_WAIT_S) - passed_s, 0.0)


def _keys(address: str, user: str) -> tuple[tuple[str, str | None], tuple[str, str | None]]:
    """The keys of a user at an address, and of the address."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return (address, user), (address, None)
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is None:
        address = str(ipaddress.ip_network((int(found), _NETWORK_BITS), strict=False))
    return (address, user), (address, None)


log: Final = logging.getLogger(__name__)


@dataclass(frozen=True)
class Login:
    """An authenticated user. verifier: the reference to the password's verifier, which differs for each password."""

    actor: Actor
    verifier: str

    @property
    def name(self) -> str:
        """The name of the user."""
        return self.actor.name


class Users:
    """The users of a database, from its present catalog.

    trusts: whether all clients are admitted, with all privileges, while no user has a password. guesses: failed logins,
    which delay the next ones.
    """

    def __init__(self, database: OpenDatabase, *, trusts: bool) -> None:
        self.guesses = Guesses()
        self._database = database
        self._trusts = trusts
        self._secret = secrets.token_bytes(32)
        self._read: tuple[Mapping[str, Role] | None, dict[str, tuple[Login, Verifier | None]]] = (None, {})

    @property
    def exist(self) -> bool:
        """Whether there are users who can log in."""
        return bool(self._known)

    @property
    def need_passwords(self) -> bool:
        """Whether clients must authenticate."""
        return not self._trusts or self.exist

    @property
    def _known(self) -> dict[str, tuple[Login, Verifier | None]]:
        """All users with a password by name; None if its verifier can't be read now.

        All are read at once when roles have changed, so that the time of a look-up reveals nothing about a name.
        """
        roles = self._database.catalog.roles
        if self._read[0] is not roles:
            before = dict(self._read[1].values())
            found = {}
            for role in roles.values():
                if role.login and role.verifier:
                    login = Login(Actor(role.name, role.identity), role.verifier)
                    found[role.name] = (login, before.get(login) or self._verifier(role.verifier))
            self._read = (roles, found)
        return self._read[1]

    @staticmethod
    def _verifier(reference: str) -> Verifier | None:
        try:
            return Verifier.read(revealed(reference))
        except (Error, OSError):
            log.exception("the verifier of a password can't be read")
            return None

    def find(self, name: str) -> tuple[Login | None, Verifier]:
        """(user, verifier of its password); for an unknown user, None and a verifier that accepts no password."""
        login, verifier = self._known.get(name, (None, None))
        if login is not None and verifier is None:
            verifier = self._verifier(login.verifier)
            self._read[1][name] = (login, verifier)
        return (None, self._mock(name)) if verifier is None else (login, verifier)

    def _mock(self, name: str) -> Verifier:
        """A verifier that accepts no password: always the same for a name, and like that of a real user."""
        digest = hmac.digest(self._secret, name.encode(), DIGEST)
        known = [verifier for _, verifier in self._read[1].values() if verifier is not None]
        like = known[int.from_bytes(digest[-4:]) % len(known)] if known else None
        iterations, size = (ITERATIONS, SALT_BYTES) if like is None else (like.iterations, len(like.salt))
        salt = (digest * (size // len(digest) + 1))[:size]
        return Verifier(iterations, salt, secrets.token_bytes(len(digest)), secrets.token_bytes(len(digest)))

    def check(self, name: str, password: str) -> Login:
        """The user with this password. Raises AUTHENTICATION_FAILED, also for an unknown user."""
        login, verifier = self.find(name)
        if not verifier.accepts(password) or login is None:
            raise refused(name)
        return login

    def admits(self, login: Login | None, session: Session | None = None) -> bool:
        """Whether an authenticated user may stay: it exists and may log in, with the password that it gave or one that
        it set in the session. login: None for a trusted client.
        """
        if login is None:
            return not self.need_passwords
        now = self._known.get(login.name)
        if now is None or now[0].actor != login.actor:
            return False
        return now[0] == login or (session is not None and now[0].verifier in session.verifiers)

    def role(self, login: Login) -> Role:
        """The role of an authenticated user. Raises AUTHENTICATION_FAILED if it was dropped since."""
        roles = self._database.catalog.roles
        if actor_of(roles, login.name) != login.actor or not roles[login.name].login:
            raise refused(login.name)
        return roles[login.name]

    def is_admin(self, login: Login | None) -> bool:
        """Whether a client may do everything: a trusted client, or a member of `admin`."""
        return login is None or ADMIN in all_of(self._database.catalog.roles, login.name)

    def session(self, login: Login | None, variables: Variables, *, files: bool) -> Session:
        """A session of a user; None for a trusted client. files: see `Session`."""
        actor = None if login is None else login.actor
        waits = self._database.runtime == "inprocess" and not self._database.read_only
        return Session(self._database, variables, files=files, user=actor, role=actor, waits=waits)


def refused(name: str) -> Error:
    """The error AUTHENTICATION_FAILED for a user."""
    return error("AUTHENTICATION_FAILED", f'password authentication failed for user "{name}"')


def expired(login: Login | None) -> Error:
    """The error ADMIN_SHUTDOWN for a user who is no longer admitted."""
    if login is None:
        return error(
            "ADMIN_SHUTDOWN",
            "terminating connection: the database has users now",
            hint="Log in as one of them. Several users can be created in one transaction.",
        )
    return error(
        "ADMIN_SHUTDOWN",
        f'terminating connection: user "{login.name}" was dropped, renamed, or given a new password or NOLOGIN',
        hint="Log in again.",
    )
