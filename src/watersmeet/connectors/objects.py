"""Objects of S3 and compatible stores: external tables of type s3 (Timeplus, "S3 External Table"), and sinks.

The targets `s3`, `gcs` and `azblob` write objects of Parquet, JSON or CSV. Each part of a commit is written once.

    orders/
        day=2024-05-01/s12-00000001-000000000017-000000000000-0.parquet
        .watersmeet/owner                   the sink that owns the directory
        .watersmeet/log/000000000042.json   the newest offset, and the objects added with it

The log is a sequence of objects. An entry is created only if its number is free, so one of several writers creates the
next entry. Opening the target also adds an entry, which fences off all earlier writers. The entry with an offset
commits all rows up to that offset.

Data objects are written before their entry. The name of an object contains the offset of its rows, and an offset always
has the same rows: the next writer reuses or rewrites objects of a writer that failed before its entry. Objects of an
earlier generation are deleted when the first entry of a new one is written, and when the target is opened.
"""

from __future__ import annotations

import datetime as dt
import io
import json
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import urlsplit

import pyarrow as pa

from watersmeet.catalog import External, MessageFormat, Table
from watersmeet.connectors.base.options import Options, OptionSet, OptionSpec, refuse
from watersmeet.connectors.base.sources import Condition, Reader, TableConnector, Unavailable
from watersmeet.connectors.base.targets import Delivery, SinkBatch, SinkOffset, connector_for
from watersmeet.connectors.externalstreams import WRITTEN, properties_file
from watersmeet.connectors.files.connectors import SOURCES as FILE_SOURCES
from watersmeet.connectors.files.listing import ObjectListing
from watersmeet.connectors.files.options import source_options, store_specs
from watersmeet.connectors.files.source import FileSource
from watersmeet.connectors.files.tables import Refusing, file_connector, read_files
from watersmeet.connectors.files.target import FILE_SPECS, STATE, DirectoryTarget, RowFiles, stem_of, unavailable
from watersmeet.errors import Error, error
from watersmeet.objectstores.base import ANONYMOUS, ENVIRONMENT, ObjectPath, StoreProblem, object_path
from watersmeet.objectstores.stores import check_objects, open_store
from watersmeet.system.process import fault
from watersmeet.values.types import VARCHAR, Schema

CONFIG_FILE: Final = "config_file"
ENVIRONMENT_SETTING: Final = "use_environment_credentials"

#: The columns that show the location of a row if they are declared, with the part of its path.
PATH_COLUMNS: Final = {"_path": "file", "_file": "base"}

#: Settings without effect, because each part of a commit is written as one object.
_IDLE: Final = re.compile(r"s3_(?:min|max|upload|check)_\w+")

#: The formats by the ending of names.
_ENDINGS: Final = {
    "csv": "CSV",
    "tsv": "TSV",
    "json": "JSONEachRow",
    "jsonl": "JSONEachRow",
    "ndjson": "JSONEachRow",
    "parquet": "Parquet",
    "avro": "Avro",
}

#: The formats of written objects under the names of `catalog.MessageFormat`.
_WRITTEN: Final[dict[str, MessageFormat]] = {
    "csv": MessageFormat(encoding="csv", options={"without_header": "true"}),
    "csvwithnames": MessageFormat(encoding="csv"),
    "tsv": MessageFormat(encoding="csv", options={"without_header": "true", "delimiter": "\t"}),
    "tsvwithnames": MessageFormat(encoding="csv", options={"delimiter": "\t"}),
    "jsoneachrow": MessageFormat(encoding="json", options=WRITTEN),
    "parquet": MessageFormat(encoding="parquet"),
}

#: The formats with column names, so that a subset of columns can be read.
_NAMED: Final = ("csvwithnames", "tsvwithnames", "tabseparatedwithnames", "jsoneachrow", "json", "parquet", "avro")

_MAGIC: Final = re.compile(r"[*?{]")

#: The characters with a special meaning in the options of files.
_SPECIAL: Final = re.compile(r"[*?{\[]")

_RANGE: Final = re.compile(r"(\d+)\.\.(\d+)")

#: The greatest number of names to which one `{N..M}` can expand.
_MOST_NUMBERS: Final = 10_000

_PARTITION: Final = "{_partition_id}"


@dataclass(frozen=True)
class ObjectTable:
    """The location of the objects of a table. bucket: the bucket as options of the connector s3, including credentials.
    read_from: a pattern of names; empty if nothing is read. write_to: a name; empty if nothing is written.
    """

    bucket: dict[str, str]
    read_from: str
    write_to: str
    format: str


class ObjectReader(Reader):
    """The rows of all objects that match a pattern."""

    def __init__(self, external: External) -> None:
        self._table = object_table(external.options)

    @property
    def takes_pushdown(self) -> bool:  # type: ignore[override]
        """Whether the columns have names in the objects."""
        return self._table.format.lower() in _NAMED

    def columns(self) -> Schema | None:
        return None

    def version(self) -> Any:
        """The existing objects with their tags."""
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
        """See `ObjectTarget`."""
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
        parts = {c.name: PATH_COLUMNS[c.name] for c in columns if c.name in PATH_COLUMNS and c.type == VARCHAR}
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
    """The location in the settings of a table of type s3. Raises CONNECTOR_OPTION, FEATURE_NOT_SUPPORTED."""
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
    """Settings with those of their config file, which is read once. Raises CONNECTOR_OPTION."""
    found = dict(given)
    path = found.pop(CONFIG_FILE, None)
    return found if path is None else {**properties_file(CONFIG_FILE, path), **found}


def _bucket(options: Options) -> dict[str, str]:
    """The options of the connector s3 that locate a bucket and give access to it."""
    endpoint, bucket = options.text("endpoint"), options.text("bucket")
    if endpoint and not bucket:  # the form of URLs of Google's storage
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
    """Raises FEATURE_NOT_SUPPORTED for locations and formats that can only be read."""
    name = table.write_to
    if _PARTITION in name:
        raise error("FEATURE_NOT_SUPPORTED", f"{_PARTITION} in write_to is not supported")
    if _MAGIC.search(name) or name.endswith("/"):
        refuse(f'write_to can\'t be "{name}"', hint="It is a name, such as directory/data.json.")
    if table.format.lower() not in _WRITTEN or name.endswith(".gz"):
        what = f"format {table.format}" if table.format.lower() not in _WRITTEN else "objects that gzip segments"
        raise error(
            "FEATURE_NOT_SUPPORTED",
            f"writing {what} is not supported",
            hint="CSV, CSVWithNames, TSV, TSVWithNames, JSONEachRow and Parquet can be written.",
        )


def _read_from(write_to: str) -> str:
    """The pattern of written objects, whose names contain a part number before the ending."""
    directory, slash, name = write_to.rpartition("/")
    stem, point, ending = name.rpartition(".")
    return f"{directory}{slash}{stem}.*.{ending}" if point else f"{directory}{slash}{name}.*"


def _names(pattern: str) -> dict[str, str]:
    """The options of the connector s3 for the objects that match a pattern."""
    plain = _SPECIAL.split(pattern, maxsplit=1)[0]
    if plain == pattern:
        return {"match_pattern": pattern}
    directory, slash, _ = plain.rpartition("/")
    rest = "".join(_regex(pattern[len(directory + slash) :]))
    return {"s3.path": directory + slash, "name_regex": rest, "recursive": "true"}


def _regex(pattern: str) -> Iterator[str]:
    """The parts of the regular expression of a pattern in which `*` and `?` don't match `/`, `**` does, `{a,b}` matches
    one of these, and `{1..12}` a number.
    """
    offset = 0
    while offset < len(pattern):
        char, following = pattern[offset], pattern[offset : offset + 2]
        if following == "**":
            yield ".*"
            offset += 2
            continue
        offset += 1
        if char == "*":
            yield "[^/]*"
        elif char == "?":
            yield "[^/]"
        elif char == "{" and "}" in pattern[offset:]:
            end = pattern.index("}", offset)
            yield _choice(pattern[offset:end])
            offset = end + 1
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


_NAME: Final = "object_name"

#: The number of objects that are written concurrently.
_WRITERS: Final = 8


class ObjectTarget(DirectoryTarget):
    """A directory of objects. With the option `object_name`, such as `data.json`, several targets share a directory:
    its parts are prefix and ending of the names of objects, and each target has its own log.
    """

    def __init__(self, delivery: Delivery, database_id: str) -> None:
        directory, files = _directory(delivery)
        self._connector = delivery.connector
        self._store = open_store(directory.location)
        self._root = "".join(f"{part}/" for part in directory.path.split("/") if part)
        super().__init__(delivery, database_id, files, f"{directory.location.url}/{self._root}")
        self._state = f"{self._root}{STATE}"
        stem, _ = _object_name(delivery)
        if stem:
            self._name = f"{stem}{database_id}-{delivery.target_id}"
            self._state += f"/{self._name}"
        self._writer = ""
        self._number = 0
        """The number of the newest known entry."""

    def look(self) -> None:
        """Raises CONNECTOR_OPTION, and RUNTIME_UNAVAILABLE if the store is unavailable or refuses access."""
        check_objects(self._connector)

    def open(self, generation: int) -> SinkOffset | None:
        with unavailable(self._shown):
            self._claim()
            self._writer = secrets.token_hex(8)
            self._generation = generation
            self._number = self._last_number()
            while True:
                newest: dict[str, Any] = {"generation": 0, "offset": None}
                if self._number:
                    newest = self._entry(self._number)
                if newest["generation"] > generation:
                    raise self._fenced()
                self._newest = None if newest["offset"] is None else SinkOffset(*newest["offset"])
                fault("objects.looked")
                if self._add([]):
                    break
                self._number += 1  # another writer was first
            fault("objects.fenced")
            self._has_older = True
            self._remove_generations()
            return self._newest

    def _deliver(self, batches: Sequence[SinkBatch]) -> None:
        if self._exists(self._number + 1):
            raise self._fenced()
        names = self._write(batches)
        fault("objects.written")
        before, self._newest = self._newest, batches[-1].offset
        try:
            added = self._add(names, batches[-1].time_us)
        except BaseException:
            self._newest = before
            raise
        if not added:
            self._withdraw(names)
            raise self._fenced()
        fault("objects.committed")
        self._remove_generations()

    def _claim(self) -> None:
        """Raises CONNECTOR_OPTION if the directory belongs to another sink."""
        name = f"{self._state}/owner"
        try:
            owner = self._store.get(name)
        except FileNotFoundError:
            self._store.create(name, self._owner_file())
            owner = self._store.get(name)
        self._check_owner(owner)

    def _write(self, batches: Sequence[SinkBatch]) -> list[str]:
        """Writes the objects of batches; returns their names."""
        pieces = [piece for p in batches for piece in self._files.pieces(self._stem(p.offset), self._files.rows(p))]
        if len(pieces) == 1:
            self._write_piece(*pieces[0])
        elif pieces:
            with ThreadPoolExecutor(min(_WRITERS, len(pieces))) as pool:
                for _ in pool.map(lambda piece: self._write_piece(*piece), pieces):
                    fault("objects.one written")
        return [name for name, _ in pieces]

    def _write_piece(self, name: str, rows: pa.Table) -> None:
        data = io.BytesIO()
        self._files.write(data, rows)
        self._store.create(self._root + name, data.getvalue())  # an existing object has the same rows

    def _stem(self, offset: SinkOffset) -> str:
        return f"{self._name}-{stem_of(offset)}"

    def _entry_name(self, number: int) -> str:
        return f"{self._state}/log/{number:012}.json"

    def _last_number(self) -> int:
        """The number of the newest entry, or 0. Numbers have no gaps, so binary search finds it."""
        step = 1
        while self._exists(step):
            step *= 2
        last = step // 2  # a number that exists, or 0
        while step > last + 1:
            middle = (last + step) // 2
            if self._exists(middle):
                last = middle
            else:
                step = middle
        return last

    def _entry(self, number: int) -> dict[str, Any]:
        """An entry of the log. Raises Unavailable if a newer generation has removed it meanwhile."""
        try:
            found: dict[str, Any] = json.loads(self._store.get(self._entry_name(number)))
        except FileNotFoundError:
            raise Unavailable(f"the log of {self._shown} changes") from None
        return found

    def _exists(self, number: int) -> bool:
        try:
            self._store.stat(self._entry_name(number))
        except FileNotFoundError:
            return False
        return True

    def _add(self, names: list[str], time_us: int | None = None) -> bool:
        """Creates the next entry, with the newest offset and the objects added with it; False if another writer has
        created it.
        """
        number = self._number + 1
        entry = {
            "generation": self._generation,
            "offset": self._newest,
            "time_us": time_us,
            "objects": names,
            "writer": self._writer,
        }
        if not self._store.create(self._entry_name(number), json.dumps(entry).encode()):
            # an earlier attempt may have succeeded although its answer was lost
            found = self._entry(number)
            if (found["writer"], found["objects"]) != (self._writer, names):
                return False
        self._number = number
        return True

    def _withdraw(self, names: list[str]) -> None:
        """Deletes this writer's objects if a newer generation took over. In the same generation the other writer's
        objects are identical.
        """
        if self._entry(self._last_number())["generation"] > self._generation:
            self._store.delete(self._root + name for name in names)

    def _remove_generations(self) -> None:
        """Deletes the objects of earlier generations, because the newest one begins with the whole content."""
        if self._newest is None or self._newest.generation < self._generation or not self._has_older:
            return
        own = f"{self._name}-{self._generation:08}-"
        if self._generation > 1:
            listed = [name for name, _ in self._store.list(self._root.rstrip("/"))]
            begin = len(self._root)
            ours = [n for n in listed if n.rpartition("/")[2].startswith(f"{self._name}-") and STATE not in n[begin:]]
            self._store.delete(n for n in ours if n.rpartition("/")[2] < own)
        fault("objects.removed")
        self._has_older = False

    def _fenced(self) -> Error:
        return error(
            "WRITER_FENCED",
            f'another process delivers to "{self._shown}" now',
            hint="Nothing is lost: it goes on where this one was.",
        )


def _directory(delivery: Delivery) -> tuple[ObjectPath, RowFiles]:
    """The location of the objects, and their form. Raises CONNECTOR_OPTION, FEATURE_NOT_SUPPORTED."""
    directory = object_path(delivery.connector)
    assert directory is not None
    known = sink_options(delivery.connector)
    return directory, RowFiles(delivery, known, _object_name(delivery)[1])


def sink_options(connector: Mapping[str, str]) -> OptionSet:
    """The options of a sink that writes objects of the store `connector`."""
    return OptionSet(
        f"{connector['connector']} of sinks",
        (
            OptionSpec("path", "The URL of a directory, instead of bucket and path."),
            *store_specs(connector),
            OptionSpec(_NAME, "How names of objects begin and end; several sinks then share a directory."),
            *FILE_SPECS,
        ),
    )


def _object_name(delivery: Delivery) -> tuple[str, str | None]:
    """The prefix and the ending of names (None: from the format), which are the defaults without the option."""
    name = delivery.connector.get(_NAME, "")
    stem, point, ending = name.rpartition(".")
    return (f"{stem}.", ending) if point else (f"{name}." if name else "", "" if name else None)


def _append(delivery: Delivery, rows: pa.Table) -> None:
    """Writes rows as one object, whose name contains the time, so that names are ordered by time."""
    directory, files = _directory(delivery)
    if not len(rows):
        return
    stem, _ = _object_name(delivery)
    now = f"{dt.datetime.now(dt.UTC):%Y%m%d%H%M%S%f}"
    ((name, rows),) = files.pieces(f"{stem}{now}-{secrets.token_hex(8)}", rows)
    data = io.BytesIO()
    files.write(data, rows)
    try:
        open_store(directory.location).create((directory / name).path, data.getvalue())
    except StoreProblem as problem:
        raise problem.as_error() from problem


SOURCES: Final = {
    name: replace(FILE_SOURCES["file"], options=source_options(name, store_specs({"connector": name})))
    for name in ("azblob", "gcs", "s3", "s3_v2")
}
SINKS: Final = {
    name: replace(connector_for(ObjectTarget, sink_options({"connector": name})), append=_append)
    for name in ("azblob", "gcs", "s3")
}
TABLES: Final = {"s3": TableConnector(ObjectReader, TABLE_OPTIONS)}
