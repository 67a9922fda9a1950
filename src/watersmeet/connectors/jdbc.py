"""The sink connector `jdbc`, which writes a table of the database at a URL.

RisingWave, "Sink data from RisingWave to PostgreSQL", "Sink data from RisingWave to MySQL with the JDBC connector".
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from watersmeet.connectors.base.options import OptionSet, OptionSpec
from watersmeet.connectors.base.targets import Delivery, check_form
from watersmeet.connectors.databases.servers import jdbc_url
from watersmeet.connectors.databases.targets import DatabaseTarget, TargetTable, database_connector
from watersmeet.connectors.mysql.target import MysqlTarget
from watersmeet.connectors.postgres.target import PostgresTarget
from watersmeet.errors import error

SINK_OPTIONS: Final = OptionSet(
    "jdbc of sinks",
    (
        OptionSpec("jdbc.url", "The URL of the database: `jdbc:postgresql://…` or `jdbc:mysql://…`.", is_needed=True),
        OptionSpec("user", "The user, unless the URL has it."),
        OptionSpec("password", "The password of the user, unless the URL has it.", secret=True),
        OptionSpec("schema.name", "The schema of the table."),
        OptionSpec("table.name", "The table, which must exist.", is_needed=True),
    ),
)


def jdbc_target(delivery: Delivery, database_id: str) -> DatabaseTarget[Any]:
    """The target in the options of a delivery. Raises CONNECTOR_OPTION, FEATURE_NOT_SUPPORTED."""
    check_form(delivery)
    options = SINK_OPTIONS.read(delivery.connector)
    url = jdbc_url(options.needed("jdbc.url"), options.given("user"), options.given("password"))
    table, schema = options.needed("table.name"), options.given("schema.name")
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


SINKS: Final = {"jdbc": replace(database_connector(jdbc_target, SINK_OPTIONS), append=None, change=None)}
