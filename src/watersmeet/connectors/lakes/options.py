"""The options of sources of lakes, checked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final, Literal, cast, get_args

from watersmeet.connectors.base.options import Options, OptionSet, OptionSpec, refuse
from watersmeet.connectors.base.sources import SourceSpec
from watersmeet.connectors.lakes.client import DELTA_OPTIONS, ICEBERG_OPTIONS, delta_location, iceberg_place
from watersmeet.errors import error
from watersmeet.objectstores.base import HDFS, Location, is_local, is_url
from watersmeet.values.types import Schema

OnDelete = Literal["stop", "skip", "follow"]
Settings = tuple[tuple[str, str], ...]
"""Those of a `Location`."""
START: Final = "start.version"
"""The option that CREATE adds where no snapshot is wanted: the version behind which reading begins."""
IDS: Final = "column.ids"
"""The option that CREATE adds for tables of Iceberg: by column, its id there, JSON."""
DEFAULT_REFRESH_S: Final = 10
#: What our options of stores are called by the library that reads objects.
_SETTINGS: Final = {
    "s3.endpoint": "endpoint",
    "s3.access.key": "access_key_id",
    "s3.secret.key": "secret_access_key",
    "s3.region": "region",
    "gcs.service.account": "service_account_key",
}


@dataclass(frozen=True, slots=True)
class LakeOptions:
    """What the user said about a source of a lake.

    root: where the table is: a directory, absolute, or what the names of its objects begin with; empty: its files have
    URLs of stores. store: where it is made of objects. settings: how the stores of its files are reached. ids: by
    column, its id in the table; empty where columns are known by their names. on_delete: what happens at a version that
    removes rows. snapshot: whether the rows that are there come first. start: otherwise, the version behind which
    reading begins; None: not known yet. refresh_s: how often a table that is far, where it takes time to ask, is asked
    for new versions.
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
    """Of tables of lakes. columns: all that are read. key: the names of those of the primary key."""

    kind: ClassVar[str] = "lake"
    columns: Schema
    key: tuple[str, ...]
    options: LakeOptions


#: What sources of both systems have.
_SHARED: Final = (
    OptionSpec(
        "on_delete",
        "What a version that removes rows does: it stops the source, is skipped, or is followed.",
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
    """The options of a source. may_lose_rows: whether rows of what it feeds may go. CONNECTOR_OPTION,
    FEATURE_NOT_SUPPORTED.
    """
    settings = _settings(connector)
    ids: dict[str, int] = {}
    store = None
    if connector["connector"].lower() == "iceberg":
        options = ICEBERG_SOURCE.read(connector)
        iceberg_place(connector)
        ids = json.loads(options.text(IDS) or "{}")
        root = "/" if is_local(connector["warehouse.path"]) else ""
        is_far = True
    else:
        options = DELTA_SOURCE.read(connector)
        store, root = _delta_place(connector, settings)
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


def _delta_place(connector: Mapping[str, str], settings: Settings) -> tuple[Location | None, str]:
    """(store, root) of a table of Delta Lake. CONNECTOR_OPTION."""
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
