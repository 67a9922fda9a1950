"""The connectors of MySQL and MariaDB under the names and uses of the registry."""

from __future__ import annotations

from typing import Final

from watersmeet.connectors.base.sources import TableConnector
from watersmeet.connectors.mysql.capture import MysqlSystem
from watersmeet.connectors.mysql.client import SYSTEM, MysqlReader
from watersmeet.connectors.mysql.target import CONNECTOR

SINKS: Final = {"mysql": CONNECTOR}
TABLES: Final = {"mysql": TableConnector(MysqlReader, SYSTEM.options)}
CAPTURES: Final = {"mysql-cdc": MysqlSystem()}
