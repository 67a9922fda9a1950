"""What one client may know of the others, and do to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from watersmeet.catalog.roles import Actor
from watersmeet.errors import Error
from watersmeet.server.traffic import Traffic

#: As in pg_stat_activity.
State = Literal["active", "idle", "idle in transaction", "idle in transaction (aborted)"]


@dataclass(frozen=True)
class Activity:
    """What a client does. actor: the user who has logged in, None for one who is trusted. began_s: when it connected,
    in seconds since 1970.
    """

    process: int
    user: str
    actor: Actor | None
    application: str
    address: str
    state: State
    began_s: float


class Client:
    """A client that has proved who it is, by whichever protocol."""

    def cancel(self) -> None:
        """Cancels the statement that runs."""
        raise NotImplementedError

    def end(self, err: Error) -> None:
        """Sends the client away: what it runs is cancelled."""
        raise NotImplementedError

    def activity(self) -> Activity | None:
        """What the client does; None before it has said who it is."""
        raise NotImplementedError

    def check_login(self) -> None:
        """Ends it if its user may not stay (`Users.admits`)."""
        raise NotImplementedError


class Clients(Protocol):
    """The clients of the server, and what they did."""

    traffic: Traffic

    def activity(self) -> Sequence[Activity]:
        """What all of them do."""
        ...

    def signal(self, process: int, *, ends: bool) -> bool:
        """Cancels what a client runs, or sends it away; False if there is none of that number. Any thread may ask."""
        ...
