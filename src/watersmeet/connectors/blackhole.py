"""The target `blackhole`, which accepts all rows and stores none. It serves for measurements.

RisingWave, "Sink to blackhole".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from watersmeet.connectors.base.options import OptionSet
from watersmeet.connectors.base.targets import Delivery, SinkBatch, SinkOffset, Target, connector_for

SINK_OPTIONS: Final = OptionSet("blackhole of sinks", ())


class Blackhole(Target):
    """The target, which stores no offset."""

    def __init__(self, delivery: Delivery, database_id: str) -> None:  # noqa: ARG002 - of the contract
        SINK_OPTIONS.read(delivery.connector)

    def open(self, generation: int) -> SinkOffset | None:  # noqa: ARG002 - of the contract
        return None

    def deliver(self, batches: Sequence[SinkBatch]) -> None:
        pass


SINKS: Final = {"blackhole": connector_for(Blackhole, SINK_OPTIONS, remembers=False)}
