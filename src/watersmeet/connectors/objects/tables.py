"""Objects of S3, and of what speaks its protocol, as a table: what external tables of type s3 show and write.

Timeplus, "S3 External Table".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import pyarrow as pa

from watersmeet.catalog import External, MessageFormat, Table
from watersmeet.connectors.base.options import Options, OptionSet, OptionSpec, refuse
from watersmeet.connectors.base.readers import Condition, Reader
from watersmeet.connectors.files.listing import ObjectListing
from watersmeet.connectors.files.source import FileSource
from watersmeet.connectors.files.tables import Refusing, file_connector, read_files
from watersmeet.connectors.spellings.externalstreams import WRITTEN, properties_file
from watersmeet.errors import error
from watersmeet.objectstores.base import ANONYMOUS, ENVIRONMENT, StoreProblem
from watersmeet.values.types import VARCHAR, Schema

CONFIG_FILE: Final = "config_file"
ENVIRONMENT_SETTING: Final = "use_environment_credentials"
#: Columns that show where a row is from, if they are declared: the part of the place.
PLACES: Final = {"_path": "file", "_file": "base"}
#: Settings that only say how the product reads and writes: what is written is one object for each part of a commit.
_IDLE: Final = re.compile(r"s3_(?:min|max|upload|check)_\w+")
#: By the ending of names: the format.
_ENDINGS: Final = {
    "csv": "CSV",
    "tsv": "TSV",
    "json": "JSONEachRow",
    "jsonl": "JSONEachRow",
    "ndjson": "JSONEachRow",
    "parquet": "Parquet",
    "avro": "Avro",
}
#: Formats in which objects are written, as `catalog.MessageFormat` has them.
_WRITTEN: Final[dict[str, MessageFormat]] = {
    "csv": MessageFormat(encoding="csv", options={"without_header": "true"}),
    "csvwithnames": MessageFormat(encoding="csv"),
    "tsv": MessageFormat(encoding="csv", options={"without_header": "true", "delimiter": "\t"}),
    "tsvwithnames": MessageFormat(encoding="csv", options={"delimiter": "\t"}),
    "jsoneachrow": MessageFormat(encoding="json", options=WRITTEN),
    "parquet": MessageFormat(encoding="parquet"),
}
#: Formats whose columns have names, so that some can be read alone.
_NAMED: Final = ("csvwithnames", "tsvwithnames", "tabseparatedwithnames", "jsoneachrow", "json", "parquet", "avro")
_MAGIC: Final = re.compile(r"[*?{]")
#: What is special for options of files, too.
_SPECIAL: Final = re.compile(r"[*?{\[]")
_RANGE: Final = re.compile(r"(\d+)\.\.(\d+)")
#: The most numbers that `{N..M}` stands for.
_MOST_NUMBERS: Final = 10_000
_PARTITION: Final = "{_partition_id}"


@dataclass(frozen=True)
class ObjectTable:
    """Where the objects of a table are. bucket: as options of connector s3, which say how it is reached, too.
    read_from: a pattern of names; empty where nothing is read. write_to: a name; empty where nothing is written.
    """

    bucket: dict[str, str]
    read_from: str
    write_to: str
    format: str


class ObjectReader(Reader):
    """The rows of all objects that a pattern names."""

    def __init__(self, external: External) -> None:
        self._table = object_table(external.options)

    @property
    def narrows(self) -> bool:  # type: ignore[override]
        """Whether the columns have names in the objects."""
        return self._table.format.lower() in _NAMED

    def columns(self) -> Schema | None:
        return None

    def version(self) -> Any:
        """The objects that there are, with their tags."""
        listing = ObjectListing(self._source(()).options)
        try:
            return sorted((name, stat.size, stat.etag) for name, stat in listing.listed().items())
        except StoreProblem as problem:
            raise problem.as_error() from problem

    def read(self, columns: Schema, conditions: Sequence[Condition] = ()) -> pa.Table:  # noqa: ARG002
        return read_files(self._source(columns), columns, Refusing())

    def statement(self, columns: Schema, conditions: Sequence[Condition]) -> str:  # noqa: ARG002
        """The columns and the objects."""
        return f"columns {', '.join(c.name for c in columns)} of {self._table.read_from}"

    def written(self) -> dict[str, str]:
        """See `connectors.objects.target`."""
        table = self._table
        if not table.write_to:
            return {}
        directory, _, name = table.write_to.rpartition("/")
        return {**table.bucket, "s3.path": directory, "object_name": name}

    def written_format(self) -> MessageFormat | None:
        return _WRITTEN[self._table.format.lower()] if self._table.write_to else None

    def _source(self, columns: Schema) -> FileSource:
        table = self._table
        if not table.read_from:
            refuse("an external table of type s3 that is read needs the setting read_from")
        connector = {
            **file_connector({"data_format": table.format}),
            **table.bucket,
            **_names(table.read_from),
            "settle_ms": "0",
        }
        parts = {c.name: PLACES[c.name] for c in columns if c.name in PLACES and c.type == VARCHAR}
        return FileSource(Table("external", table.read_from, columns, connector=connector, message_parts=parts))


TABLE_OPTIONS: Final = OptionSet(
    "s3 of external tables",
    (
        OptionSpec("bucket", "The bucket; otherwise it is the path of the endpoint."),
        OptionSpec("endpoint", "The URL of the store."),
        OptionSpec("region", "The region of the store."),
        OptionSpec("access_key_id", "The id of the access key.", secret=True),
        OptionSpec("secret_access_key", "The access key.", secret=True),
        OptionSpec(ENVIRONMENT_SETTING, "Whether credentials of the environment are used.", "flag"),
        OptionSpec("read_from", "The objects that are read, as a pattern."),
        OptionSpec("write_to", "The object that is written."),
        OptionSpec("data_format", "The format; otherwise the names of the objects show it.", aliases=("format",)),
        OptionSpec(
            "compression_method", "How objects are packed.", "choice", among=("auto", "none", "gzip"), default="auto"
        ),
    ),
)


def object_table(given: Mapping[str, str]) -> ObjectTable:
    """The settings of a table of type s3. CONNECTOR_OPTION, FEATURE_NOT_SUPPORTED."""
    options = TABLE_OPTIONS.read({n: v for n, v in given.items() if not _IDLE.fullmatch(n)})
    bucket = _bucket(options)
    read_from, write_to = options.text("read_from"), options.text("write_to")
    if not read_from and not write_to:
        refuse("an external table of type s3 needs the setting read_from, or write_to", hint="Write read_from = '…'.")
    named = options.text("data_format")
    table = ObjectTable(bucket, read_from or _read_from(write_to), write_to, named or _format(read_from or write_to))
    compression = options.choice("compression_method")
    zipped = [name for name in (read_from, write_to) if name.endswith(".gz")]
    if (compression == "gzip" and not zipped) or (compression == "none" and zipped):
        raise error(
            "FEATURE_NOT_SUPPORTED",
            f"compression_method = '{compression}' for objects that are called otherwise is not supported",
            hint="Objects whose names end with .gz are packed by gzip, all others are not.",
        )
    if write_to:
        _check_written(table)
    file_connector({"data_format": table.format})
    return table


def with_config_file(given: Mapping[str, str]) -> dict[str, str]:
    """Settings with those of the file that they name, which is read once. CONNECTOR_OPTION."""
    found = dict(given)
    path = found.pop(CONFIG_FILE, None)
    return found if path is None else {**properties_file(CONFIG_FILE, path), **found}


def _bucket(options: Options) -> dict[str, str]:
    """The options of connector s3 that say where objects are, and how they are reached."""
    endpoint, bucket = options.text("endpoint"), options.text("bucket")
    if endpoint and not bucket:  # as it is written for Google's storage
        parts = urlsplit(endpoint)
        bucket, endpoint = parts.path.strip("/"), f"{parts.scheme}://{parts.netloc}"
    if not bucket or "/" in bucket:
        refuse('an external table of type s3 needs the setting "bucket"', hint="Write bucket = '…'.")
    found = {
        "s3.bucket_name": bucket,
        "s3.region_name": options.text("region"),
        "s3.endpoint_url": endpoint or "",
        "s3.credentials.access": options.text("access_key_id"),
        "s3.credentials.secret": options.text("secret_access_key"),
    }
    found = {"connector": "s3", **{name: value for name, value in found.items() if value}}
    if options.flag(ENVIRONMENT_SETTING):
        found[ENVIRONMENT] = "true"
    elif "s3.credentials.access" not in found and "s3.credentials.secret" not in found:
        found[ANONYMOUS] = "true"
    return found


def _format(name: str) -> str:
    ending = name.removesuffix(".gz").rpartition(".")[2].lower()
    if ending not in _ENDINGS:
        refuse(f'the setting data_format is needed, as "{name}" does not say it', hint="Write data_format = 'CSV'.")
    return _ENDINGS[ending]


def _check_written(table: ObjectTable) -> None:
    """FEATURE_NOT_SUPPORTED for what can be read alone."""
    name = table.write_to
    if _PARTITION in name:
        raise error("FEATURE_NOT_SUPPORTED", f"{_PARTITION} in write_to is not supported")
    if _MAGIC.search(name) or name.endswith("/"):
        refuse(f'write_to can\'t be "{name}"', hint="It is a name, such as directory/data.json.")
    if table.format.lower() not in _WRITTEN or name.endswith(".gz"):
        what = f"format {table.format}" if table.format.lower() not in _WRITTEN else "objects that gzip packs"
        raise error(
            "FEATURE_NOT_SUPPORTED",
            f"writing {what} is not supported",
            hint="CSV, CSVWithNames, TSV, TSVWithNames, JSONEachRow and Parquet can be written.",
        )


def _read_from(write_to: str) -> str:
    """The names of what is written, which have something before their ending: see `connectors.objects.target`."""
    directory, slash, name = write_to.rpartition("/")
    stem, point, ending = name.rpartition(".")
    return f"{directory}{slash}{stem}.*.{ending}" if point else f"{directory}{slash}{name}.*"


def _names(pattern: str) -> dict[str, str]:
    """The options of connector s3 for the objects that a pattern names."""
    plain = _SPECIAL.split(pattern, maxsplit=1)[0]
    if plain == pattern:
        return {"match_pattern": pattern}
    directory, slash, _ = plain.rpartition("/")
    rest = "".join(_regex(pattern[len(directory + slash) :]))
    return {"s3.path": directory + slash, "name_regex": rest, "recursive": "true"}


def _regex(pattern: str) -> Iterator[str]:
    """Parts of a regular expression of a pattern in which `*` and `?` don't stand for `/`, `**` does, `{a,b}` is one of
    these, and `{1..12}` a number.
    """
    place = 0
    while place < len(pattern):
        char, following = pattern[place], pattern[place : place + 2]
        if following == "**":
            yield ".*"
            place += 2
            continue
        place += 1
        if char == "*":
            yield "[^/]*"
        elif char == "?":
            yield "[^/]"
        elif char == "{" and "}" in pattern[place:]:
            end = pattern.index("}", place)
            yield _choice(pattern[place:end])
            place = end + 1
        else:
            yield re.escape(char)


def _choice(text: str) -> str:
    numbers = _RANGE.fullmatch(text)
    if numbers is None:
        return "(?:" + "|".join("".join(_regex(part)) for part in text.split(",")) + ")"
    first, last = int(numbers[1]), int(numbers[2])
    if not 0 <= last - first < _MOST_NUMBERS:
        refuse(f'read_from can\'t have "{{{text}}}"', hint=f"It is {{from..to}}, at most {_MOST_NUMBERS} numbers.")
    width = len(numbers[1]) if numbers[1].startswith("0") else 0
    return "(?:" + "|".join(str(n).zfill(width) for n in range(first, last + 1)) + ")"
