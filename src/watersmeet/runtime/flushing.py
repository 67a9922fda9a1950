"""Planning until everything that was there at some moment is planned."""

from __future__ import annotations

import time

from watersmeet.runtime.coordinator import Coordinator
from watersmeet.runtime.intents import Intent

#: A file whose end may still be written is waited for so long at most.
MAX_SETTLE_US = 2_000_000


class Flush:
    """One flush: `plan` until it says that everything visible at the beginning is planned."""

    def __init__(self) -> None:
        self._deadline_us = time.time_ns() // 1000 + MAX_SETTLE_US
        self._looked = False
        self.is_planned = False
        self.again_us: int | None = None
        """When to plan again, if there was nothing to do but something is about to be complete."""

    def plan(self, coordinator: Coordinator) -> Intent | None:
        """The next intent; None if there is nothing to do now."""
        if coordinator.must_drain:
            return None  # Which says nothing about what has come.
        if (change := coordinator.plan_split()) is not None:
            return change
        now_us = time.time_ns() // 1000
        filling = coordinator.backfill is not None
        intent = coordinator.plan(now_us, fresh=not self._looked)
        if filling:
            return intent  # A backfill goes first; it says nothing about what has come meanwhile.
        self._looked = True
        if coordinator.inputs.more and intent is not None:
            return intent
        next_us = coordinator.inputs.next_us
        if next_us is not None and now_us < next_us <= self._deadline_us:
            self.again_us = next_us
            self._looked = False
            return intent
        self.is_planned = True
        return intent
