"""Tables of lakes: the connectors for them, and what their libraries call the options that sources and sinks share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from watersmeet import extras
from watersmeet.errors import error
from watersmeet.secretvalues import revealed

CONNECTORS: Final = {"delta": "Delta Lake", "deltalake": "Delta Lake", "iceberg": "Apache Iceberg"}
"""By connector, whose tables it reads."""
#: What the library of Delta Lake calls the options of stores.
DELTA_STORES: Final = {
    "s3.endpoint": "AWS_ENDPOINT_URL",
    "s3.access.key": "AWS_ACCESS_KEY_ID",
    "s3.secret.key": "AWS_SECRET_ACCESS_KEY",
    "s3.region": "AWS_REGION",
    "gcs.service.account": "GOOGLE_SERVICE_ACCOUNT_KEY",
}


def delta_library(module: str = "deltalake") -> Any:
    """A module of the library of Delta Lake. LIBRARY_MISSING."""
    return extras.library(module, "tables of Delta Lake")


def delta_location(options: Mapping[str, str]) -> str:
    """The directory, absolute, or the URL of a table. CONNECTOR_OPTION without one."""
    location = options.get("location", "")
    if not location:
        raise error("CONNECTOR_OPTION", "connector deltalake needs the option location", hint="Add location = '…'.")
    return location if "://" in location else str(Path(location).expanduser().absolute())


def delta_storage(options: Mapping[str, str]) -> dict[str, str]:
    """The options of its store, as the library takes them."""
    storage = {theirs: revealed(options[ours]) for ours, theirs in DELTA_STORES.items() if options.get(ours)}
    if storage.get("AWS_ENDPOINT_URL", "").startswith("http://"):
        storage["AWS_ALLOW_HTTP"] = "true"
    return storage


def first_line(cause: BaseException) -> str:
    """What an error of a library says, in one line."""
    return (str(cause).strip().splitlines() or [type(cause).__name__])[0]
