"""The connectors of ClickHouse under the names and uses of the registry."""

from __future__ import annotations

from typing import Final

from watersmeet.connectors.base.sources import TableConnector
from watersmeet.connectors.clickhouse.client import SYSTEM, ClickhouseReader
from watersmeet.connectors.clickhouse.target import CONNECTOR

SINKS: Final = {"clickhouse": CONNECTOR}
TABLES: Final = {"clickhouse": TableConnector(ClickhouseReader, SYSTEM.options)}
