"""Errors of accepting a connection, such as a lack of descriptors: logged once in a while, and survived."""

from __future__ import annotations

import asyncio
import errno
import logging
import time
from typing import Any, Final

log: Final = logging.getLogger(__name__)

#: Errors after which the event loop listens again, a second later.
_LACKING: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
#: The least time between two messages.
_PAUSE_S: Final = 60.0


class AcceptErrors:
    """The exception handler of an event loop that listens. Other errors go to the handler before it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._before = loop.get_exception_handler()
        self._logged_s: float | None = None
        loop.set_exception_handler(self)

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Logs an error of the loop."""
        cause = context.get("exception")
        if not isinstance(cause, OSError) or cause.errno not in _LACKING or "socket" not in context:
            if self._before is None:
                loop.default_exception_handler(context)
            else:
                self._before(loop, context)
            return
        now_s = time.monotonic()
        if self._logged_s is None or now_s - self._logged_s >= _PAUSE_S:
            self._logged_s = now_s
            log.warning("a connection can't be accepted: %s. Retrying every second.", cause.strerror)
