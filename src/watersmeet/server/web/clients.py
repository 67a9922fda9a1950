"""Clients of HTTP: a tab, a subscription, or one request that runs statements."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from aiohttp import web

from watersmeet.catalog.roles import OWNER
from watersmeet.errors import Error
from watersmeet.server.clients import Activity, Client, State
from watersmeet.server.connection import Service
from watersmeet.server.users import Login, expired
from watersmeet.server.web.worksheets import Worksheet
from watersmeet.session.access.context import Session

#: Names of clients, as `pg_stat_activity.application_name` has them.
CONSOLE: Final = "console"
REQUEST: Final = "http request"
SUBSCRIPTION: Final = "http subscription"


def is_gone(request: web.Request) -> bool:
    """Whether the client of a request has hung up."""
    return request.transport is None or request.transport.is_closing()


class WebClient(Client):
    """One client of HTTP, from its request to the end of the answer.

    worksheet: that runs its statements. ended: an event when it was sent away; failure: why.
    """

    def __init__(self, service: Service, request: web.Request, login: Login | None, application: str) -> None:
        """Enters the service. TOO_MANY_CONNECTIONS."""
        self.worksheet: Worksheet | None = None
        self.ended = asyncio.Event()
        self.failure: Error | None = None
        self.login = login
        self._service = service
        self._application = application
        self._address = request.remote or ""
        self._began_s = time.time()
        self.process, _ = service.enter(self, login)

    def leave(self) -> None:
        """The end."""
        self._service.leave(self.process)

    def cancel(self) -> None:
        if self.worksheet is not None:
            self.worksheet.cancel()

    def end(self, err: Error) -> None:
        self.failure = err
        self.cancel()
        self.ended.set()

    def activity(self) -> Activity:
        login, session = self.login, self._session
        user, actor = (OWNER, None) if login is None else (login.name, login.actor)
        application = self._application if session is None else session.variables.get("application_name")
        works = self._application == SUBSCRIPTION or (self.worksheet is not None and self.worksheet.is_busy)
        in_transaction = session is not None and session.transaction is not None
        state: State = "active" if works else "idle in transaction" if in_transaction else "idle"
        return Activity(self.process, user, actor, application, self._address, state, self._began_s)

    def check_login(self) -> None:
        session = self._session
        if session is not None and session.puts_roles:
            return  # the answer to its own statement comes first
        if self.failure is None and not self._service.users.admits(self.login):
            self.end(expired(self.login))

    @property
    def _session(self) -> Session | None:
        return None if self.worksheet is None else self.worksheet.session
