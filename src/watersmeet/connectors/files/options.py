"""The options of the file connector, checked."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Final, Literal, cast, get_args

from watersmeet.catalog import Relation
from watersmeet.connectors.base.options import Options, OptionSet, OptionSpec, refuse
from watersmeet.connectors.base.sources import SourceSpec
from watersmeet.errors.secretnames import is_secret
from watersmeet.formats.jsonpayloads import PATH, ROW_PATH
from watersmeet.formats.xmltext import ATTRIBUTES, ROW_TAGS
from watersmeet.objectstores.base import ANONYMOUS, ENVIRONMENT, Location, ObjectPath, is_url, object_path, option_names
from watersmeet.objectstores.stores import check_objects
from watersmeet.system.process import library
from watersmeet.values.types import Schema

Format = Literal["csv", "json", "parquet", "xml", "avro"]
Identity = Literal["inode", "content", "path"]

_FORMATS: Final[dict[str, Format]] = {
    "csv": "csv",
    "json": "json",
    "jsonl": "json",
    "ndjson": "json",
    "parquet": "parquet",
    "xml": "xml",
    "avro": "avro",
}
#: The formats whose files are read as a whole once they no longer grow.
WHOLE: Final[tuple[Format, ...]] = ("xml", "avro")
#: The options of the readers of JSON and XML (`formats.jsonpayloads`, `formats.xmltext`).
_READERS: Final = (ROW_PATH, ROW_TAGS, ATTRIBUTES)
_MAGIC: Final = re.compile(r"[*?\[]")
DEFAULT_SETTLE_MS: Final = 2000
DEFAULT_INCOMPLETE_MS: Final = 60_000
DEFAULT_REFRESH_S: Final = 60
"""RisingWave's default."""
DEFAULT_MAX_RECORD_BYTES: Final = 16 << 20
_MOST_RECORD_BYTES: Final = 1 << 30
"""The limit of offsets in a text, which have 32 bits."""


@dataclass(frozen=True, slots=True)
class FileOptions:
    """The options of a file source.

    root: the absolute path of the directory. pattern: a glob for the names below it (`/` separates); None for all.
    explicit: whether the source is a single file of this name. null: the unquoted CSV text that means NULL.
    path_identity: the way in which a renamed file is recognized (`listing`). max_record_bytes: the limit above which a
    record of text is rejected unread; a quoted field must also close within this distance from the start of its row.
    name_regex: the regular expression that whole names below `root` must match; None for `pattern`. sorted_by: the
    format of the time in the first group of `name_regex`, by which files are ordered instead of by their change times;
    empty: ordered as text; None: not ordered by names. null_for_bad: whether an unreadable field becomes NULL. repeat:
    the number of times that all files are read again; -1: endlessly. reader: the options of the format's reader. store:
    the object store if files are objects; then root is the prefix of their names: empty, or directories with `/` at the
    end. refresh_s: the interval between listings of objects. incomplete_ms: the time for which the last line of a text
    file waits for its line end if it is not a complete record, or if the file grows.
    """

    root: str
    pattern: str | None
    explicit: str | None
    recursive: bool
    format: Format
    header: bool = True
    delimiter: str = ","
    quote: str = '"'
    null: str = ""
    on_error: str = "skip"
    settle_ms: int = DEFAULT_SETTLE_MS
    max_rows_per_epoch: int | None = None
    path_identity: Identity = "inode"
    max_record_bytes: int = DEFAULT_MAX_RECORD_BYTES
    name_regex: str | None = None
    sorted_by: str | None = None
    null_for_bad: bool = False
    repeat: int = 0
    reader: tuple[tuple[str, str], ...] = ()
    store: Location | None = None
    refresh_s: int = DEFAULT_REFRESH_S
    incomplete_ms: int = 0

    @property
    def names(self) -> re.Pattern[str] | None:
        """The pattern for the names of files that are read; None for all."""
        if self.name_regex is not None:
            return re.compile(self.name_regex)
        return glob_regex(self.pattern) if self.pattern else None


@dataclass(frozen=True)
class FileSpec(SourceSpec):
    """The specification of a source of files.

    columns: all columns of the files. key: the names of the primary key's columns. parts: the part of a row's location
    in each additional column. `name`: the path of the file below the source's directory; `file`: the same, or the whole
    name of an object; `base`: the name without directories; `modified`: the time of the file's last change; `line`: the
    line number; `offset`: the first byte of the line in the uncompressed file, or the number of earlier rows in formats
    without lines.
    """

    kind: ClassVar[str] = "file"
    columns: Schema
    key: tuple[str, ...]
    options: FileOptions
    parts: Mapping[str, str] = field(default_factory=dict)

    @property
    def stops_on_error(self) -> bool:
        """See `SourceSpec`."""
        return self.options.on_error == "stop"


#: The options that specify the location of objects and the access to them.
_STORE_DOCS: Final = {
    "s3.bucket_name": "The bucket.",
    "s3.path": "The directory or pattern in the bucket.",
    "s3.region_name": "The region.",
    "s3.endpoint_url": "The URL of a server of S3's protocol.",
    "s3.credentials.access": "The id of the access key.",
    "s3.credentials.secret": "The access key.",
    "gcs.bucket_name": "The bucket.",
    "gcs.path": "The directory or pattern in the bucket.",
    "gcs.credential": "The key of a service account, as JSON.",
    "azblob.container_name": "The container.",
    "azblob.path": "The directory or pattern in the container.",
    "azblob.endpoint_url": "The URL of the account.",
    "azblob.credentials.account_name": "The name of the account.",
    "azblob.credentials.account_key": "The key of the account.",
    ENVIRONMENT: "Whether credentials of the environment are used.",
    ANONYMOUS: "Whether requests have no credentials.",
}


def store_specs(connector: Mapping[str, str]) -> tuple[OptionSpec, ...]:
    """The options of the object store that a connector's options specify; none for files."""
    return tuple(OptionSpec(n, _STORE_DOCS[n], secret=is_secret(n, "")) for n in option_names(connector))


#: RisingWave, "Ingest data from S3 buckets"; names with underscores are extensions.
_SPECS: Final = (
    OptionSpec("path", "The directory, file or pattern, or the URL of objects.", aliases=("posix_fs.root",)),
    OptionSpec("match_pattern", "A pattern of names below the path; of objects, of whole names."),
    OptionSpec("recursive", "Whether files in directories below are read.", "flag"),
    OptionSpec("format", "The format: csv, json, parquet, xml or avro; otherwise names of files show it."),
    OptionSpec("encode", "The format, as ENCODE writes it."),
    OptionSpec(
        "csv.header", "Whether files begin with a header.", "flag", aliases=("has_header", "header"), default=True
    ),
    OptionSpec("without_header", "Whether files have no header.", "flag"),
    OptionSpec(
        "delimiter", "The character between fields of CSV.", "character", aliases=("csv.delimiter",), default=","
    ),
    OptionSpec(
        "quote", "The character around fields of CSV; may be empty.", "character", aliases=("csv.quote",), default='"'
    ),
    OptionSpec("null", "The text of CSV that is NULL unless quoted.", aliases=("csv.null", "null_string")),
    OptionSpec(
        "on_error",
        "Whether a record that can't be read becomes a dead letter, or stops the source.",
        "choice",
        among=("skip", "stop"),
        default="skip",
    ),
    OptionSpec(
        "settle_ms",
        "How long a file must be unchanged before it is complete.",
        "integer",
        default=DEFAULT_SETTLE_MS,
        minimum=0,
        unit="ms",
    ),
    OptionSpec("max_rows_per_epoch", "The most rows of an epoch.", "integer", minimum=1, unit="rows"),
    OptionSpec(
        "path_identity",
        "How a file with a new name is identified.",
        "choice",
        among=get_args(Identity),
        default="inode",
    ),
    OptionSpec(
        "max_record_bytes",
        "A longer record of text is a dead letter.",
        "integer",
        default=DEFAULT_MAX_RECORD_BYTES,
        minimum=1,
        maximum=_MOST_RECORD_BYTES,
        unit="bytes",
    ),
    OptionSpec("name_regex", "A regular expression that whole names below the path match."),
    OptionSpec(
        "sorted_by", "The format of the time that is the first group of name_regex; files are read in its order."
    ),
    OptionSpec(
        "refresh.interval.sec",
        "How often objects are listed.",
        "integer",
        default=DEFAULT_REFRESH_S,
        minimum=1,
        unit="s",
    ),
    OptionSpec(
        "incomplete_ms",
        "How long the last line of a text file waits for its end; 0 if settle_ms is.",
        "integer",
        minimum=0,
        unit="ms",
    ),
    OptionSpec("null_for_bad", "Whether a field that can't be read is NULL.", "flag"),
    OptionSpec("repeat", "How often all files are read again; -1: for ever.", "integer", default=0, minimum=-1),
    OptionSpec(ROW_PATH, "The path of the rows in a document of JSON."),
    OptionSpec(ROW_TAGS, "The elements of XML that are rows."),
    OptionSpec(ATTRIBUTES, "How attributes of XML become columns."),
    OptionSpec(PATH, "The path of a column in a document, by its name.", "prefix"),
)


@functools.cache
def source_options(connector: str, names: tuple[OptionSpec, ...] = ()) -> OptionSet:
    """The options of a source. connector: the connector's name. names: the names of the object store's options."""
    return OptionSet(connector, (*names, *_SPECS))


def file_options(relation: Relation) -> FileOptions:
    """The options of `relation`, whose connector reads files. Raises CONNECTOR_OPTION."""
    connector = relation.connector
    objects = object_path(connector)
    options = source_options(connector.get("connector", "file"), store_specs(connector)).read(connector)
    options.check()
    root, pattern, explicit = _place(options) if objects is None else _object_place(options, objects)
    everything = objects is not None and not objects.path
    recursive = options.flag("recursive") or everything or "/" in (pattern or "")
    kind = _format(options, explicit or pattern)
    header, delimiter, quote, null = True, ",", '"', ""
    if kind == "csv":
        header = options.flag("csv.header")
        if options.given("without_header") is not None:
            if options.given("csv.header") is not None and header == options.flag("without_header"):
                refuse("options csv.header and without_header contradict each other")
            header = not options.flag("without_header")
        delimiter, quote = options.character("delimiter"), options.character("quote", empty=True)
        null = options.text("null")
        if delimiter == quote:
            refuse("options delimiter and quote are the same character")
    else:
        _refuse_given(options, ("csv.header", "without_header", "delimiter", "quote", "null"), "files of CSV have it")
    if objects is None:
        _refuse_given(options, ("refresh.interval.sec",), "objects have it")
    settle_ms = options.number("settle_ms")
    identity = cast("Identity", options.choice("path_identity"))
    name_regex, sorted_by = options.given("name_regex"), options.given("sorted_by")
    _check_names(name_regex, sorted_by)
    if objects is not None:
        # An object is complete and keeps its name.
        settle_ms, identity = 0, "path"
        if pattern is not None and connector.get("match_pattern"):
            name_regex, pattern, recursive = glob_regex(pattern, crosses=True).pattern, None, True
    incomplete_ms = options.integer("incomplete_ms")
    repeat = options.number("repeat")
    if repeat and settle_ms:
        refuse("option repeat is for files that don't change", hint="Add settle_ms = 0.")
    reader = {name: value for name in _READERS if (value := options.given(name)) is not None}
    reader |= {PATH + name: value for name, value in options.under(PATH).items()}
    if kind == "avro":
        library("fastavro", "files of Avro")
    return FileOptions(
        root,
        pattern,
        explicit,
        recursive,
        kind,
        header,
        delimiter,
        quote,
        null,
        options.choice("on_error"),
        settle_ms,
        options.integer("max_rows_per_epoch"),
        identity,
        options.number("max_record_bytes"),
        name_regex,
        sorted_by,
        options.flag("null_for_bad"),
        repeat,
        tuple(sorted(reader.items())),
        None if objects is None else objects.location,
        options.number("refresh.interval.sec") if objects is not None else DEFAULT_REFRESH_S,
        incomplete_ms if incomplete_ms is not None else DEFAULT_INCOMPLETE_MS if settle_ms else 0,
    )


def files_begun(relation: Relation) -> dict[str, str]:
    """The options that CREATE stores, with absolute paths. Raises CONNECTOR_OPTION, and RUNTIME_UNAVAILABLE if objects
    can't be listed.
    """
    check_objects(relation.connector)
    paths = {n: absolute_path(v) for n, v in relation.connector.items() if n in ("path", "posix_fs.root")}
    return {**relation.connector, **paths}


def _refuse_given(options: Options, names: tuple[str, ...], why: str) -> None:
    """Raises CONNECTOR_OPTION if one of some options is set."""
    for name in names:
        if options.given(name) is not None:
            refuse(f'connector file has no option "{name}" here', hint=f"Only {why}.")


def _check_names(name_regex: str | None, sorted_by: str | None) -> None:
    """Raises CONNECTOR_OPTION for an invalid regular expression, or one without a group for the time."""
    try:
        groups = 0 if name_regex is None else re.compile(name_regex).groups
    except re.error as problem:
        refuse(f'option name_regex can\'t be "{name_regex}"', detail=str(problem))
    if sorted_by is not None and not groups:
        refuse("option sorted_by needs a name_regex with a group, which is the time")


def absolute_path(path: str) -> str:
    """The path or pattern made independent of the process's working directory. A URL stays unchanged."""
    return path if is_url(path) else os.path.abspath(os.path.expanduser(path))


def _place(options: Options) -> tuple[str, str | None, str | None]:
    """The root directory, the pattern, and the name of a single file."""
    path = options.text("path")
    pattern = options.given("match_pattern")
    if not path:
        refuse("connector file needs the option path", hint="Add path = '<directory, file or glob pattern>'.")
    place = Path(absolute_path(path))
    parts = place.parts
    magic = next((i for i, part in enumerate(parts) if _MAGIC.search(part)), None)
    if magic is not None and not place.exists():
        if pattern is not None:
            refuse("path is a pattern and match_pattern is given too", hint="Give a directory as path.")
        pattern = "/".join(parts[magic:])
        place = Path(*parts[:magic])
    if place.is_file():
        if pattern is not None:
            refuse("path is a file and match_pattern is given too", hint="Give a directory as path.")
        return str(place.parent), None, place.name
    if not place.is_dir():
        refuse(f'path "{place}" does not exist', hint="Create the directory first; files may come later.")
    return str(place), pattern, None


def _object_place(options: Options, objects: ObjectPath) -> tuple[str, str | None, str | None]:
    """The prefix of names, the pattern, and the name of a single object. A path with the ending of a file is a single
    object.

    A `match_pattern` applies to whole names in the bucket, where `*` and `?` also match `/`.
    """
    path, pattern = objects.path, options.given("match_pattern")
    if pattern is not None and path:
        refuse("path and match_pattern are given", hint="Write the pattern as part of one of them.")
    parts = (pattern or path).lstrip("/").split("/")
    magic = next((i for i, part in enumerate(parts) if _MAGIC.search(part)), None)
    if magic is not None:
        return "".join(f"{p}/" for p in parts[:magic]), "/".join(parts[magic:]), None
    suffix = Path(parts[-1].removesuffix(".gz")).suffix.lower().lstrip(".")
    if parts[-1] and (pattern is not None or suffix in _FORMATS):
        return "".join(f"{p}/" for p in parts[:-1]), None, parts[-1]
    return "".join(f"{p}/" for p in parts if p), None, None


def _format(options: Options, name: str | None) -> Format:
    """The format in the options, else the one that follows from the name of the files."""
    said = options.given("format")
    encode = options.given("encode")
    if encode is not None:
        if said is not None and said.lower() != "plain":
            refuse(f"format {said} is not supported by connector file", hint="Write FORMAT PLAIN ENCODE CSV.")
        said = encode
    if said is not None:
        if said.lower() not in _FORMATS:
            refuse(
                f'format "{said}" is not supported by connector file',
                hint="It must be csv, json, parquet, xml or avro.",
            )
        return _FORMATS[said.lower()]
    suffixes = Path((name or "").removesuffix(".gz")).suffix.lower().lstrip(".")
    if suffixes in _FORMATS:
        return _FORMATS[suffixes]
    return refuse("connector file needs a format", hint="Write FORMAT PLAIN ENCODE CSV, JSON, PARQUET, XML or AVRO.")


def glob_regex(pattern: str, *, crosses: bool = False) -> re.Pattern[str]:
    """The regular expression of a glob over relative paths, where `**/` matches any directories, and `*` and `?` match
    within a name.

    crosses: whether `*` and `?` also match `/`.
    """
    out = []
    within = "." if crosses else "[^/]"
    i = 0
    while i < len(pattern):
        if pattern.startswith("**/", i):
            out.append("(?:.*/)?")
            i += 3
            continue
        char = pattern[i]
        i += 1
        if char == "*":
            out.append(f"{within}*")
        elif char == "?":
            out.append(within)
        elif char == "[" and "]" in pattern[i + 1 :]:
            end = pattern.index("]", i + 1)
            inner = pattern[i:end].replace("\\", "\\\\")
            out.append("[" + ("^" + inner[1:] if inner.startswith("!") else inner) + "]")
            i = end + 1
        else:
            out.append(re.escape(char))
    return re.compile("".join(out))
