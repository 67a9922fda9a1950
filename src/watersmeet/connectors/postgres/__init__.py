"""PostgreSQL: client, types, content of tables, target, change data capture by logical replication."""

from typing import Final

from watersmeet.connectors.base.sources import TableConnector
from watersmeet.connectors.postgres.capture import PostgresSystem
from watersmeet.connectors.postgres.client import SYSTEM, PostgresReader
from watersmeet.connectors.postgres.target import CONNECTORS

SINKS: Final = CONNECTORS
TABLES: Final = {"postgresql": TableConnector(PostgresReader, SYSTEM.options)}
CAPTURES: Final = {"postgres-cdc": PostgresSystem()}
