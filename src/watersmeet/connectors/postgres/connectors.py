"""The connectors of PostgreSQL under the names and uses of the registry."""

from __future__ import annotations

from typing import Final

from watersmeet.connectors.base.sources import TableConnector
from watersmeet.connectors.postgres.capture import PostgresSystem
from watersmeet.connectors.postgres.client import SYSTEM, PostgresReader
from watersmeet.connectors.postgres.target import CONNECTORS

SINKS: Final = CONNECTORS
TABLES: Final = {"postgresql": TableConnector(PostgresReader, SYSTEM.options)}
CAPTURES: Final = {"postgres-cdc": PostgresSystem()}
