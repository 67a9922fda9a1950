"""The target `blackhole`: takes everything and keeps nothing. For measuring.

RisingWave, "Sink to blackhole".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from watersmeet.connectors.base.options import OptionSet
from watersmeet.connectors.base.targets import Connector, Delivery, SinkBatch, SinkOffset, Target

SINK_OPTIONS: Final = OptionSet("blackhole of sinks", ())


class Blackhole:
    """See `base.targets.Target`. It remembers no offset."""

    def open(self, generation: int) -> SinkOffset | None:  # noqa: ARG002 - of the contract
        return None

    def deliver(self, batches: Sequence[SinkBatch]) -> None:
        pass

    def rest(self) -> None:
        pass

    def close(self) -> None:
        pass


def _check(delivery: Delivery) -> None:
    SINK_OPTIONS.read(delivery.connector)


def _open(delivery: Delivery, database_id: str, stopping: Callable[[], bool]) -> Target:  # noqa: ARG001 - of the contract
    return Blackhole()


SINKS: Final = {"blackhole": Connector(_check, _open, remembers=False, options=SINK_OPTIONS)}
