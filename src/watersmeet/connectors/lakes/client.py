"""Clients of lake tables, and the options of sources and sinks of lakes with the names that libraries use."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, cast, get_args
from urllib.parse import quote

from watersmeet.connectors.base.options import Options, OptionSet, OptionSpec, refuse
from watersmeet.connectors.base.sources import SourceSpec
from watersmeet.errors import Error, did_you_mean, error
from watersmeet.objectstores.base import HDFS, Location, check_endpoint, is_local, is_url
from watersmeet.system import process
from watersmeet.system.secretvalues import revealed
from watersmeet.values.types import Schema

#: The Delta Lake library's names of the options of stores.
DELTA_STORES: Final = {
    "s3.endpoint": "AWS_ENDPOINT_URL",
    "s3.access.key": "AWS_ACCESS_KEY_ID",
    "s3.secret.key": "AWS_SECRET_ACCESS_KEY",
    "s3.region": "AWS_REGION",
    "gcs.service.account": "GOOGLE_SERVICE_ACCOUNT_KEY",
}

ICEBERG_STORES: Final = {
    "s3.endpoint": "s3.endpoint",
    "s3.region": "s3.region",
    "s3.access.key": "s3.access-key-id",
    "s3.secret.key": "s3.secret-access-key",
}

"""The Iceberg library's names of the options of stores."""

ICEBERG_CATALOGS: Final = {
    "catalog.uri": "uri",
    "catalog.credential": "credential",
    "catalog.token": "token",
    "catalog.scope": "scope",
    "catalog.oauth2_server_uri": "oauth2-server-uri",
    "warehouse.path": "warehouse",
    "catalog.rest.sigv4_enabled": "rest.sigv4-enabled",
    "catalog.rest.signing_region": "rest.signing-region",
    "catalog.rest.signing_name": "rest.signing-name",
}

"""The Iceberg library's names of the options of catalogs."""

_STORE_OPTIONS: Final = (
    OptionSpec("s3.endpoint", "The URL of the server of S3's protocol."),
    OptionSpec("s3.region", "The region of S3."),
    OptionSpec("s3.access.key", "The id of the access key of S3.", secret=True),
    OptionSpec("s3.secret.key", "The access key of S3.", secret=True),
)

DELTA_OPTIONS: Final = (
    OptionSpec("location", "The directory or URL of the table.", is_needed=True),
    *_STORE_OPTIONS,
    OptionSpec("gcs.service.account", "The key of a service account of Google Cloud, as JSON.", secret=True),
)

"""The options that locate a Delta Lake table."""

ICEBERG_CATALOG: Final = OptionSet(
    "iceberg of connections",
    (
        *_STORE_OPTIONS,
        OptionSpec("s3.path.style.access", "Accepted without effect: the library chooses the style.", is_idle=True),
        OptionSpec("catalog.type", "The type of the catalog: `rest`, or `jdbc` for one in a database.", is_needed=True),
        OptionSpec("catalog.name", "The name of the catalog.", default="watersmeet"),
        OptionSpec("catalog.uri", "The URL of the catalog.", is_needed=True),
        OptionSpec("catalog.credential", "The credential of a REST catalog, as `id:secret`.", secret=True),
        OptionSpec("catalog.token", "The token of a REST catalog.", secret=True),
        OptionSpec("catalog.scope", "The scope of the token."),
        OptionSpec("catalog.oauth2_server_uri", "The URL of the server that issues tokens."),
        OptionSpec("catalog.rest.sigv4_enabled", "Whether requests to the catalog are signed by AWS's method."),
        OptionSpec("catalog.rest.signing_region", "The region of the signature."),
        OptionSpec("catalog.rest.signing_name", "The service of the signature."),
        OptionSpec("catalog.jdbc.user", "The user of a catalog in a database."),
        OptionSpec("catalog.jdbc.password", "The password of that user.", secret=True),
        OptionSpec("warehouse.path", "The directory or URL of the warehouse.", is_needed=True),
    ),
)

"""The options that locate an Iceberg catalog and its store."""

ICEBERG_TABLE: Final = OptionSet(
    "iceberg",
    (
        OptionSpec("database.name", "The namespace of the table.", is_needed=True),
        OptionSpec("table.name", "The table.", is_needed=True),
    ),
)

ICEBERG_OPTIONS: Final = (*ICEBERG_CATALOG.specs, *ICEBERG_TABLE.specs)

"""The options that locate an Iceberg table."""

#: The library's names of RisingWave's catalog types.
_TYPES: Final = {"rest": "rest", "jdbc": "sql", "sql": "sql"}

#: Errors that indicate defects of the code, never caused by a catalog or a store.
_MISTAKES: Final = (TypeError, AttributeError, AssertionError)

#: Escape sequences for terminal colors.
_STYLE: Final = re.compile(r"\x1b\[[0-9;]*m")

_LACKING_TYPES: Final = ("storage", "hive", "glue", "snowflake")


def delta_library(module: str = "deltalake") -> Any:
    """A module of the Delta Lake library. Raises LIBRARY_MISSING."""
    return process.library(module, "tables of Delta Lake")


def delta_location(options: Mapping[str, str]) -> str:
    """The absolute directory or the URL of a table. Raises CONNECTOR_OPTION if it is missing."""
    location = options.get("location", "")
    if not location:
        raise error("CONNECTOR_OPTION", "connector deltalake needs the option location", hint="Add location = '…'.")
    return location if "://" in location else str(Path(location).expanduser().absolute())


def delta_storage(options: Mapping[str, str]) -> dict[str, str]:
    """The options of the table's store in the form of the library."""
    storage = {theirs: revealed(options[ours]) for ours, theirs in DELTA_STORES.items() if options.get(ours)}
    endpoint = storage.get("AWS_ENDPOINT_URL", "")
    check_endpoint(endpoint)
    if endpoint.startswith("http://"):
        storage["AWS_ALLOW_HTTP"] = "true"
    return storage


def delta_problem(location: str, storage: Mapping[str, str], cause: BaseException) -> str:
    """The reason of an error of the library in one line: missing S3 credentials, or the innermost cause."""
    lines = [_STYLE.sub("", line).strip(" ↳") for line in str(cause).splitlines() if line.strip()]
    if "loading credentials" in str(cause) and location.startswith(("s3://", "s3a://")):
        given = {**os.environ, **storage}
        names = ("s3.access.key", "s3.secret.key", "s3.region")
        lacking = [name for name in names if not given.get(DELTA_STORES[name])]
        return f"there are no credentials; set {', '.join(lacking or names)}, or AWS's variables of the environment"
    if len(lines) < 2:
        return first_line(cause)
    return f"{lines[0]}: {lines[-1]}"


@dataclass(frozen=True)
class IcebergLocation:
    """The location of an Iceberg table. catalog: the catalog's name. properties: the properties of the library's
    catalog. table: namespace and name.
    """

    catalog: str
    properties: dict[str, str] = field(repr=False)
    table: tuple[str, str]

    @property
    def what(self) -> str:
        """The table, for messages."""
        return f'Iceberg table "{".".join(self.table)}"'


def iceberg_library(module: str) -> Any:
    """A module of the Iceberg library. Raises LIBRARY_MISSING."""
    return process.library(module, "tables of Iceberg")


def iceberg_catalog(location: IcebergLocation) -> Any:
    """The library's catalog. Raises LIBRARY_MISSING and errors of the library."""
    return iceberg_library("pyiceberg.catalog").load_catalog(location.catalog, **location.properties)


@contextmanager
def iceberg_explained(
    location: IcebergLocation, passing: Callable[[str], Exception], *others: type[BaseException]
) -> Iterator[None]:
    """Converts errors of the library to CONNECTOR_OPTION or, if temporary, by `passing`. Watersmeet's errors and
    `others` stay.
    """
    exceptions = iceberg_library("pyiceberg.exceptions")
    kept: tuple[type[BaseException], ...] = (Error, *others, *_MISTAKES)
    try:
        yield
    except kept:
        raise
    except (exceptions.UnauthorizedError, exceptions.ForbiddenError, exceptions.OAuthError) as cause:
        raise error(
            "CONNECTOR_OPTION",
            f'catalog "{location.catalog}" of {location.what} refuses the user',
            detail=first_line(cause),
            hint="Check catalog.credential and catalog.token.",
        ) from cause
    except Exception as cause:  # errors of catalogs, stores and their clients, which have no common base class
        raise passing(f"{location.what} can't be read or written: {first_line(cause)}") from cause


def iceberg_catalog_type(given: Mapping[str, str]) -> str:
    """The library's name for the catalog type in the options, after a check that they also locate the catalog.

    Raises CONNECTOR_OPTION and FEATURE_NOT_SUPPORTED.
    """
    kind = given.get("catalog.type", "storage").lower()
    if kind in _LACKING_TYPES:
        raise error(
            "FEATURE_NOT_SUPPORTED",
            f"catalogs of type {kind} are not supported",
            hint="catalog.type = 'rest' and 'jdbc' are.",
        )
    if kind not in _TYPES:
        raise error("CONNECTOR_OPTION", f'catalog.type can\'t be "{kind}"', hint=did_you_mean(kind, _TYPES))
    for name in ("catalog.uri", "warehouse.path"):
        _needed(given, name)
    return _TYPES[kind]


def iceberg_location(given: Mapping[str, str]) -> IcebergLocation:
    """The location of a table in options. Raises CONNECTOR_OPTION, FEATURE_NOT_SUPPORTED."""
    kind = iceberg_catalog_type(given)
    names = {**ICEBERG_STORES, **ICEBERG_CATALOGS}
    properties = {theirs: revealed(given[ours]) for ours, theirs in names.items() if given.get(ours)}
    properties["type"] = kind
    uri = revealed(given["catalog.uri"])
    properties["uri"] = uri if kind == "rest" else _uri(uri, given)
    return IcebergLocation(
        given.get("catalog.name", "watersmeet"),
        properties,
        (_needed(given, "database.name"), _needed(given, "table.name")),
    )


def _uri(uri: str, given: Mapping[str, str]) -> str:
    """The address of a catalog in a database in SQLAlchemy's form; JDBC URLs are converted."""
    plain = uri.removeprefix("jdbc:")
    user, password = given.get("catalog.jdbc.user"), given.get("catalog.jdbc.password")
    system, _, rest = plain.partition("://")
    if system == "postgresql":
        who = f"{quote(user, safe='')}:{quote(revealed(password or ''), safe='')}@" if user else ""
        return f"postgresql+psycopg://{who}{rest}"
    if plain.startswith("sqlite:") and "://" not in plain:
        return f"sqlite:///{plain.removeprefix('sqlite:')}"
    if system == "sqlite":
        return plain
    raise error(
        "FEATURE_NOT_SUPPORTED",
        f"a catalog in {system.partition('+')[0] or 'such a database'} is not supported",
        hint="jdbc:postgresql://… and jdbc:sqlite:… are.",
    )


def _needed(options: Mapping[str, str], name: str) -> str:
    if not options.get(name):
        raise error("CONNECTOR_OPTION", f"connector iceberg needs the option {name}", hint=f"Add {name} = '…'.")
    return options[name]


def first_line(cause: BaseException) -> str:
    """The message of a library's error in one line."""
    return (str(cause).strip().splitlines() or [type(cause).__name__])[0]


OnDelete = Literal["stop", "skip", "follow"]
#: The settings of a `Location`.
Settings = tuple[tuple[str, str], ...]

#: The option with the version after which reading begins, which CREATE adds if there is no snapshot.
START: Final = "start.version"

#: The option with the field ids of columns as JSON, which CREATE adds for Iceberg tables.
IDS: Final = "column.ids"

DEFAULT_REFRESH_S: Final = 10

#: The options of stores under the names of the library that reads objects.
_SETTINGS: Final = {
    "s3.endpoint": "endpoint",
    "s3.access.key": "access_key_id",
    "s3.secret.key": "secret_access_key",
    "s3.region": "region",
    "gcs.service.account": "service_account_key",
}


@dataclass(frozen=True, slots=True)
class LakeOptions:
    """The options of a lake source.

    root: the absolute directory of the table, or the prefix of its objects; empty if its files are URLs of stores.
    store: the object store of a table of objects. settings: the access to the stores of its files. ids: the field id of
    each column; empty if columns are matched by name. on_delete: the effect of a version that removes rows. snapshot:
    whether existing rows are read first. start: without snapshot, the version after which reading begins; None: not
    known yet. refresh_s: how often a remote table is polled for new versions.
    """

    root: str
    store: Location | None
    settings: Settings = field(repr=False)
    ids: tuple[tuple[str, int], ...]
    is_far: bool
    on_delete: OnDelete
    on_error: str
    snapshot: bool
    start: int | None
    refresh_s: int


@dataclass(frozen=True)
class LakeSpec(SourceSpec):
    """The specification of a lake table. columns: all columns that are read. key: the names of the primary key's
    columns.
    """

    kind: ClassVar[str] = "lake"
    columns: Schema
    key: tuple[str, ...]
    options: LakeOptions

    @property
    def stops_on_error(self) -> bool:
        """See `SourceSpec`."""
        return self.options.on_error == "stop"


#: The options of the sources of both systems.
_SHARED: Final = (
    OptionSpec(
        "on_delete",
        "The effect of a version that removes rows: it stops the source, is skipped, or is followed.",
        "choice",
        among=get_args(OnDelete),
        default="stop",
    ),
    OptionSpec(
        "on_error",
        "Whether a row that can't be read becomes a dead letter, or stops the source.",
        "choice",
        among=("skip", "stop"),
        default="skip",
    ),
    OptionSpec("snapshot", "Whether the rows that exist already are read.", "flag", default=True),
    OptionSpec(
        "refresh.interval.sec",
        "How often a table in a store or catalog is asked for new versions.",
        "integer",
        default=DEFAULT_REFRESH_S,
        minimum=1,
        unit="s",
    ),
    OptionSpec(START, "The version after which reading begins, with snapshot = 'false'.", "integer", minimum=0),
)

DELTA_SOURCE: Final = OptionSet("deltalake", (*DELTA_OPTIONS, *_SHARED))

ICEBERG_SOURCE: Final = OptionSet(
    "iceberg", (*ICEBERG_OPTIONS, *_SHARED, OptionSpec(IDS, "The ids of columns in the table.", is_internal=True))
)


def lake_options(connector: Mapping[str, str], *, may_lose_rows: bool) -> LakeOptions:
    """The options of a source. may_lose_rows: whether the relation that it feeds accepts deletions. Raises
    CONNECTOR_OPTION, FEATURE_NOT_SUPPORTED.
    """
    settings = _settings(connector)
    ids: dict[str, int] = {}
    store = None
    if connector["connector"].lower() == "iceberg":
        options = ICEBERG_SOURCE.read(connector)
        iceberg_location(connector)
        ids = json.loads(options.text(IDS) or "{}")
        root = "/" if is_local(connector["warehouse.path"]) else ""
        is_far = True
    else:
        options = DELTA_SOURCE.read(connector)
        store, root = _delta_location(connector, settings)
        is_far = store is not None
    found = LakeOptions(
        root,
        store,
        settings,
        tuple(sorted(ids.items())),
        is_far,
        _on_delete(options, may_lose_rows=may_lose_rows),
        options.choice("on_error"),
        options.flag("snapshot"),
        options.integer(START),
        options.number("refresh.interval.sec"),
    )
    if found.start is not None and found.snapshot:
        refuse(f"option {START} needs snapshot = 'false'")
    return found


def _delta_location(connector: Mapping[str, str], settings: Settings) -> tuple[Location | None, str]:
    """The store and the root of a Delta Lake table. Raises CONNECTOR_OPTION."""
    location = delta_location(connector)
    if is_url(location) and not location.startswith(HDFS):
        scheme, _, rest = location.partition("://")
        bucket, _, root = rest.rstrip("/").partition("/")
        return Location(f"{scheme}://{bucket}", settings), root
    if "://" in location:
        refuse(f'location can\'t be "{location}"', hint="It is a directory, or a URL of s3, gs or az.")
    return None, location


def _settings(connector: Mapping[str, str]) -> Settings:
    return tuple(sorted((known, connector[name]) for name, known in _SETTINGS.items() if connector.get(name)))


def _on_delete(options: Options, *, may_lose_rows: bool) -> OnDelete:
    found = cast("OnDelete", options.choice("on_delete"))
    if found == "follow" and not may_lose_rows:
        raise error(
            "FEATURE_NOT_SUPPORTED",
            "on_delete = 'follow' is not supported but for tables",
            detail="Rows of a source, and of an APPEND ONLY table, are never removed.",
            hint="CREATE TABLE … WITH (…) follows what is deleted.",
        )
    return found
