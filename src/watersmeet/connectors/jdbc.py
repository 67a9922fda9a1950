"""The connector `jdbc` of sinks: a table of the database that a URL names.

RisingWave, "Sink data from RisingWave to PostgreSQL", "Sink data from RisingWave to MySQL with the JDBC connector".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from watersmeet.connectors.base.targets import Connector, Delivery, Target, check_options
from watersmeet.connectors.databases.servers import jdbc_url
from watersmeet.connectors.databases.targets import DatabaseTarget, TargetTable, check, check_form, needed
from watersmeet.connectors.mysql.target import MysqlTarget
from watersmeet.connectors.postgres.target import PostgresTarget
from watersmeet.errors import error

_OPTIONS: Final = ("jdbc.url", "user", "password", "schema.name", "table.name")


def jdbc_target(delivery: Delivery, database_id: str) -> DatabaseTarget[Any]:
    """The target that the options of a delivery name. CONNECTOR_OPTION, FEATURE_NOT_SUPPORTED."""
    check_form(delivery)
    check_options(delivery, _OPTIONS)
    given = delivery.connector
    url = jdbc_url(needed(given, "jdbc.url"), given.get("user"), given.get("password"))
    table, schema = needed(given, "table.name"), given.get("schema.name")
    if url.system == "postgres":
        found = TargetTable(url.server, schema or url.properties.get("currentSchema") or "public", table)
        return PostgresTarget(delivery, database_id, found)
    if schema not in (None, url.server.database):
        raise error(
            "CONNECTOR_OPTION",
            f'schema.name can\'t be "{schema}": a database of MySQL has no schemas',
            hint="Name the database in jdbc.url, and leave schema.name out.",
        )
    return MysqlTarget(delivery, database_id, TargetTable(url.server, url.server.database, table))


def _check(delivery: Delivery) -> None:
    check(jdbc_target(delivery, ""))


def _open(delivery: Delivery, database_id: str, stopping: Callable[[], bool]) -> Target:
    del stopping
    return jdbc_target(delivery, database_id)


CONNECTOR: Final = Connector(_check, _open)
