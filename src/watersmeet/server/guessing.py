"""Failed logins, and the waits that they impose on later ones, so that guessing passwords is slow."""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

#: Failed logins of one address before the next ones wait: under one name, and under all names together.
_FREE_OF_USER: Final = 5
_FREE_OF_ADDRESS: Final = 50
#: The wait after the first failure beyond these; it doubles with each one, up to the longest.
_FIRST_WAIT_S: Final = 0.125
_LONGEST_WAIT_S: Final = 2.0
#: Failures are forgotten after this time without another one.
_FORGOTTEN_S: Final = 600.0
#: Addresses and names that are remembered. The longest unused one is forgotten first.
_MOST: Final = 10_000
#: All addresses of an IPv6 network of this size count as one: a single machine may have them all.
_NETWORK_BITS: Final = 64


@dataclass
class _Failures:
    count: int
    last_s: float


class Guesses:
    """Failed logins by address, and by address and user. An address does not slow down the others. For one event loop.

    An attempt counts as failed from its beginning, so that many attempts at the same time gain nothing.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures: OrderedDict[tuple[str, str | None], _Failures] = OrderedDict()

    def wait_s(self, address: str, user: str) -> float:
        """Seconds until the next attempt is let through; 0: now."""
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
        """Forgets the failures of a user at an address: the attempt was right."""
        of_user, of_address = _keys(address, user)
        self._failures.pop(of_user, None)
        if (known := self._failures.get(of_address)) is not None:
            known.count -= 1

    async def turn(self, address: str, user: str) -> None:
        """Waits until an attempt is let through, and counts it."""
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
