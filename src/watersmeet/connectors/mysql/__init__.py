"""MySQL and MariaDB: client, types, content of tables, target, change data capture from MariaDB's binary log."""

from typing import Final

from watersmeet.connectors.base.sources import TableConnector
from watersmeet.connectors.mysql.capture import MysqlSystem
from watersmeet.connectors.mysql.client import SYSTEM, MysqlReader
from watersmeet.connectors.mysql.target import CONNECTOR

SINKS: Final = {"mysql": CONNECTOR}
TABLES: Final = {"mysql": TableConnector(MysqlReader, SYSTEM.options)}
CAPTURES: Final = {"mysql-cdc": MysqlSystem()}
