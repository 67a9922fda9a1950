"""The options of SQLstream's servers of wrapper SYS_JDBC, and of their foreign tables.

SQLstream, "CREATE SERVER", "CREATE FOREIGN TABLE".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from watersmeet.catalog import External
from watersmeet.connectors.base.options import OptionSet, OptionSpec, refuse
from watersmeet.connectors.databases.servers import jdbc_url
from watersmeet.errors import did_you_mean, error

#: The kind of a server of that wrapper.
SYS_JDBC: Final = "SYS_JDBC"
#: Drivers by the beginning of their class: the system.
_DRIVERS: Final = {"org.postgresql.": "postgres", "com.mysql.": "mysql", "org.mariadb.": "mysql"}
_TUNING: Final = "Accepted without effect: how fast rows are read or written."
TABLE_OPTIONS: Final = OptionSet(
    "foreign tables",
    (
        OptionSpec("url", "The URL of the database: `jdbc:postgresql://…` or `jdbc:mysql://…`.", is_needed=True),
        OptionSpec("user_name", "The user, unless the URL has it."),
        OptionSpec("password", "The password of the user, unless the URL has it.", secret=True),
        OptionSpec("driver_class", "The class of the driver, which has to match the URL."),
        OptionSpec("schema_name", "The schema of the table."),
        OptionSpec("table_name", "The table; that of the same name if missing."),
        *(
            OptionSpec(name, _TUNING, is_idle=True)
            for name in ("fetch_size", "transaction_rowcount_limit", "transaction_rowtime_limit", "autocommit")
        ),
    ),
)


def foreign_table(given: Mapping[str, str], name: str) -> External:
    """The table that options name, those of its server included. name: of the foreign table, which the table has unless
    they say another one.

    CONNECTOR_OPTION, FEATURE_NOT_SUPPORTED.
    """
    options = TABLE_OPTIONS.read({n.lower(): v for n, v in given.items()})
    url = options.text("url")
    if not url:
        refuse(
            'a server of wrapper SYS_JDBC needs the option "URL"', hint="Write URL 'jdbc:postgresql://host/database'."
        )
    found = jdbc_url(url, options.given("user_name"), options.given("password"))
    driver = options.text("driver_class")
    meant = next((system for begin, system in _DRIVERS.items() if (driver or "").startswith(begin)), None)
    if driver and meant != found.system:
        refuse(
            f"DRIVER_CLASS can't be {driver}" if meant is None else f"DRIVER_CLASS {driver} is not that of the URL",
            hint="No driver is needed: leave the option out.",
        )
    server = found.server
    is_postgres = found.system == "postgres"
    schema = options.text("schema_name") or (found.properties.get("currentSchema") or "public" if is_postgres else "")
    table = options.text("table_name") or name
    if schema not in ("", server.database) and not is_postgres:
        refuse(
            f'SCHEMA_NAME can\'t be "{schema}": a database of MySQL has no schemas',
            hint="Name the database in the URL, and leave SCHEMA_NAME out.",
        )
    address = f"[{server.host}]:{server.port}" if ":" in server.host else f"{server.host}:{server.port}"
    return External(
        "postgresql" if is_postgres else "mysql",
        f"{schema or server.database}.{table}",
        {
            "address": address,
            "user": server.user,
            "password": server.password,
            "database": server.database,
            **({"schema": schema} if is_postgres else {}),
            "table": table,
            "ssl_mode": server.ssl_mode,
        },
    )


def names_there(columns: Sequence[str], there: Sequence[str]) -> dict[str, str]:
    """By column, its name there, where it differs: names are compared as they are, then without case.

    UNDEFINED_COLUMN for one that is not there, or is there more than once.
    """
    found = {}
    for column in columns:
        near = [column] if column in there else [name for name in there if name.lower() == column.lower()]
        if len(near) != 1:
            raise error(
                "UNDEFINED_COLUMN",
                f'the table has no column "{column}"' if not near else f'column "{column}" may be {" or ".join(near)}',
                hint=did_you_mean(column, there),
            )
        if near[0] != column:
            found[column] = near[0]
    return found
