"""The targets by connector."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from watersmeet.errors import did_you_mean, error
from watersmeet.objectstores.base import is_url
from watersmeet.sinks.base import Delivery, RowChange, Target


@dataclass(frozen=True)
class Connector:
    """How a target is made.

    check: of a delivery that is about to be created, raises CONNECTOR_OPTION for options that are wrong, and other
    errors for what never works. open: the target of a delivery; nothing is connected before `Target.open`. database_id:
    of the database, which no other one has. stopping: whether calls that wait should give up. remembers: the target
    keeps places, as its contract says. One that does not gets each portion once, and after a crash the last ones again.
    append: adds the rows of a statement, all or none; None: statements can't write there. change: changes what the
    function returns, all or none; that gets the keys of the table without NULL, as sets of names, and from its call on
    nobody else changes the table. None: statements can't change rows there.
    """

    check: Callable[[Delivery], None]
    open: Callable[[Delivery, str, Callable[[], bool]], Target]
    remembers: bool = True
    append: Callable[[Delivery, pa.Table], None] | None = None
    change: Callable[[Delivery, Callable[[Sequence[frozenset[str]]], RowChange]], None] | None = None


#: By the value of the option `connector`: the module that has its `CONNECTOR`.
_MODULES: Final[dict[str, str]] = {
    "azblob": "watersmeet.sinks.objects",
    "blackhole": "watersmeet.sinks.blackhole",
    "clickhouse": "watersmeet.sinks.clickhouse",
    "deltalake": "watersmeet.sinks.delta",
    "file": "watersmeet.sinks.files",
    "fs": "watersmeet.sinks.files",
    "gcs": "watersmeet.sinks.objects",
    "iceberg": "watersmeet.sinks.iceberg",
    "jdbc": "watersmeet.sinks.jdbc",
    "kafka": "watersmeet.sinks.kafka",
    "posix_fs": "watersmeet.sinks.files",
    "mysql": "watersmeet.sinks.mysql",
    "postgres": "watersmeet.sinks.postgres",
    "postgresql": "watersmeet.sinks.postgres",
    "rotating_file": "watersmeet.sinks.rotating",
    "s3": "watersmeet.sinks.objects",
}
#: Those of other programs.
_REGISTERED: Final[dict[str, Connector]] = {}


def register(name: str, connector: Connector) -> None:
    """Adds a connector, or replaces the one of that name."""
    _REGISTERED[name] = connector


def connector_of(delivery: Delivery) -> Connector:
    """The connector of a delivery. CONNECTOR_OPTION if there is none of that name."""
    name = delivery.connector.get("connector", "").lower()
    return connector_named(name, is_object=is_url(delivery.connector.get("path", "")))


def connector_named(name: str, *, is_object: bool = False) -> Connector:
    """The connector of that name. is_object: connector `file` with a URL as its path. CONNECTOR_OPTION."""
    if name in _REGISTERED:
        return _REGISTERED[name]
    if name not in _MODULES:
        known = {*_MODULES, *_REGISTERED}
        raise error(
            "CONNECTOR_OPTION",
            f'there is no connector "{name}" of sinks',
            hint=did_you_mean(name, known) or f"The connectors are: {', '.join(sorted(known))}.",
        )
    is_object = is_object and _MODULES[name] == _MODULES["file"]
    found: Connector = importlib.import_module(_MODULES["s3" if is_object else name]).CONNECTOR
    return found


def check_options(delivery: Delivery, known: tuple[str, ...], *, prefixes: tuple[str, ...] = ()) -> None:
    """CONNECTOR_OPTION for an option of the connector that is not among `known`, and does not begin as one of
    `prefixes`.
    """
    for option in delivery.connector:
        if option != "connector" and option not in known and not option.startswith(prefixes or ("\0",)):
            raise error(
                "CONNECTOR_OPTION",
                f'connector {delivery.connector["connector"]} of sinks has no option "{option}"',
                hint=did_you_mean(option, known),
            )
