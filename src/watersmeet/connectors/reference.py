"""The options of all connectors, for SHOW CONNECTORS and the pages of the reference (`scripts/reference.py`)."""

from __future__ import annotations

from collections.abc import Iterator

from watersmeet.connectors import externalstreams, foreignstreams
from watersmeet.connectors.base.options import OptionSet, OptionSpec
from watersmeet.connectors.databases.captures import TABLE_NAME, TABLE_OPTIONS
from watersmeet.connectors.http import WEBHOOK_OPTIONS
from watersmeet.connectors.messages.mqtt import SOURCE_OPTIONS as MQTT_OPTIONS
from watersmeet.connectors.registry import SINKS, SOURCES, SYSTEMS, TABLES


def option_sets() -> Iterator[tuple[str, str, OptionSet]]:
    """The connector, the use and the options of each set."""
    yield from ((name, "source", SOURCES[name].options) for name in sorted(SOURCES))
    yield "mqtt", "source", MQTT_OPTIONS
    sinks = {name: sink.options for name, sink in SINKS.items()}
    yield from ((name, "sink", known) for name, known in sorted(sinks.items()) if known is not None)
    yield from ((name, "captured database", SYSTEMS[name].known) for name in sorted(SYSTEMS))
    yield "mysql-cdc, postgres-cdc", "captured table", OptionSet("a captured table", (TABLE_NAME, *TABLE_OPTIONS))
    tables = {name: table.options for name, table in TABLES.items()}
    yield from ((name, "external table", known) for name, known in sorted(tables.items()) if known is not None)
    yield "webhook", "table of requests", WEBHOOK_OPTIONS
    yield "kafka", "external stream", externalstreams.STREAM_OPTIONS
    yield "SYS_JDBC", "foreign table", foreignstreams.TABLE_OPTIONS


def rows() -> list[tuple[str, ...]]:
    """The rows of SHOW CONNECTORS: connector, use, option, type, default, whether it is secret, description."""
    return [
        (connector, use, spec.name, type_of(spec), default_of(spec), "yes" if spec.secret else "no", spec.doc)
        for connector, use, known in option_sets()
        for spec in known.shown
    ]


def type_of(spec: OptionSpec) -> str:
    """The type of an option, or the list of its values."""
    if spec.kind == "choice":
        return ", ".join(spec.among)
    if spec.kind == "integer" and spec.unit:
        return f"integer, {spec.unit}"
    return {"prefix": "text", "flag": "boolean"}.get(spec.kind, spec.kind)


def default_of(spec: OptionSpec) -> str:
    """The default of an option as text; empty if it has none."""
    if spec.default is None or spec.default == "":
        return ""
    return str(spec.default).lower() if isinstance(spec.default, bool) else str(spec.default)
