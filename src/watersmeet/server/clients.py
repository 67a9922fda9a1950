"""What one client may know of the others, and do to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from watersmeet.server.traffic import Traffic

#: As in pg_stat_activity.
State = Literal["active", "idle", "idle in transaction", "idle in transaction (aborted)"]


@dataclass(frozen=True)
class Activity:
    """What a client does. began_s: when it connected, in seconds since 1970."""

    process: int
    user: str
    application: str
    address: str
    state: State
    began_s: float


class Clients(Protocol):
    """The clients of the server, and what they did."""

    traffic: Traffic

    def activity(self) -> Sequence[Activity]:
        """What all of them do."""
        ...

    def signal(self, process: int, *, ends: bool) -> bool:
        """Cancels what a client runs, or sends it away; False if there is none of that number. Any thread may ask."""
        ...
