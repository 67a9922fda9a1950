"""What a catalog delivers. No other module knows what in a catalog is delivered."""

from __future__ import annotations

from watersmeet.catalog import Catalog, Sink
from watersmeet.sinks.base import Delivery


def deliveries(catalog: Catalog) -> list[Delivery]:
    """All deliveries of what is committed; a sink that an open transaction has made is not among them."""
    return [delivery_of(r) for r in catalog.relations.values() if isinstance(r, Sink) and not r.staged]


def delivery_of(sink: Sink) -> Delivery:
    """What a sink delivers."""
    return Delivery(
        sink.id,
        sink.title,
        sink.delivers,
        sink.columns,
        sink.primary_key,
        sink.connector,
        sink.format,
        sink.force_append_only,
        sink.target_id,
        sink.generation,
    )
