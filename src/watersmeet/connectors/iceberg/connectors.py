"""The connectors of Iceberg under the names and uses of the registry."""

from __future__ import annotations

from typing import Final

from watersmeet.connectors.base.sources import TableConnector
from watersmeet.connectors.iceberg.tables import TABLE_OPTIONS, IcebergLog, IcebergReader
from watersmeet.connectors.iceberg.target import CONNECTOR
from watersmeet.connectors.lakes.client import ICEBERG_SOURCE
from watersmeet.connectors.lakes.source import lake_connector

SOURCES: Final = {"iceberg": lake_connector(IcebergLog, ICEBERG_SOURCE)}
SINKS: Final = {"iceberg": CONNECTOR}
TABLES: Final = {"iceberg": TableConnector(IcebergReader, TABLE_OPTIONS)}
