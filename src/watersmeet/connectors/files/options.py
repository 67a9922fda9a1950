"""The options of the file connector, checked."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Final, Literal, cast, get_args

from watersmeet.catalog import Relation
from watersmeet.connectors.base.options import Options, refuse
from watersmeet.connectors.base.sources import SourceSpec
from watersmeet.extras import library
from watersmeet.formats.jsonpaths import PATH, ROW_PATH
from watersmeet.formats.xmltext import ATTRIBUTES, ROW_TAGS
from watersmeet.objectstores.base import Location, ObjectPath, is_url, object_path, option_names
from watersmeet.types import Schema

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
#: Formats of which a file is read as a whole, once it no longer grows.
WHOLE: Final[tuple[Format, ...]] = ("xml", "avro")
#: Options of the readers of JSON and XML (`formats.jsonpaths`, `formats.xmlpayloads`).
_READERS: Final = (ROW_PATH, ROW_TAGS, ATTRIBUTES)
_MAGIC: Final = re.compile(r"[*?\[]")
DEFAULT_SETTLE_MS: Final = 2000
DEFAULT_INCOMPLETE_MS: Final = 60_000
DEFAULT_REFRESH_S: Final = 60
"""RisingWave's."""
DEFAULT_MAX_RECORD_BYTES: Final = 16 << 20
_MOST_RECORD_BYTES: Final = 1 << 30
"""Places in a text are 32 bits wide."""


@dataclass(frozen=True, slots=True)
class FileOptions:
    """What the user said about a file source.

    root: the directory, absolute. pattern: glob of the names below it (`/` separates), None for all.
    explicit: the source is one file of that name. null: CSV text that means NULL if not quoted.
    path_identity: by what a file is known when its name is new (`identity`).
    max_record_bytes: a longer record of text is set aside without being read; a quoted field that isn't closed within
    so many bytes of its row's beginning never will be. name_regex: what the names below `root` match as a whole, None
    for `pattern`. sorted_by: how the first group of `name_regex` is read as a time, by which files are then in order
    and no longer by the time at which they changed; empty: as text; None: they are not sorted so. null_for_bad: a field
    that can't be read is NULL. repeat: how often all files are read once more after all were read; -1: for ever.
    reader: options of the format's reader. store: where the files are objects; then root is what their names begin with
    there: empty, or directories with `/` at the end. refresh_s: how often objects are listed. incomplete_ms: how long
    the last line of a text file waits for its line end if it is not a complete record, or if the file grows.
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
        """What names match that are meant; None for all."""
        if self.name_regex is not None:
            return re.compile(self.name_regex)
        return glob_regex(self.pattern) if self.pattern else None


@dataclass(frozen=True)
class FileSpec(SourceSpec):
    """Of files. columns: all that the files have. key: the names of those of the primary key. parts: by further column,
    what it shows of the place of a row: of its file the `name` below the directory of the source, as `file` (of an
    object the whole name), as `base` (without directories), and the time at which it changed (`modified`); the `line`,
    and the `offset`: at which byte of the unpacked file it begins, or how many rows come before it where rows are not
    lines.
    """

    kind: ClassVar[str] = "file"
    columns: Schema
    key: tuple[str, ...]
    options: FileOptions
    parts: Mapping[str, str] = field(default_factory=dict)


def file_options(relation: Relation) -> FileOptions:
    """The options of `relation`, whose connector is `file`. Raises CONNECTOR_OPTION."""
    options = Options(relation.connector)
    options.text("connector")
    objects = object_path(relation.connector)
    for name in option_names(relation.connector):
        options.text(name)
    root, pattern, explicit = _place(options) if objects is None else _object_place(options, objects)
    everything = objects is not None and not objects.path
    recursive = options.flag("recursive") or everything or "/" in (pattern or "")
    kind = _format(options, explicit or pattern)
    header, delimiter, quote, null = True, ",", '"', ""
    if kind == "csv":
        given = options.flag("csv.header", "has_header", "header")
        without = options.flag("without_header")
        if given is not None and without is not None and given == without:
            refuse("options csv.header and without_header contradict each other")
        header = given if given is not None else not without
        delimiter = options.character("delimiter", "csv.delimiter", default=",")
        quote = options.character("quote", "csv.quote", default='"', empty=True)
        null = options.text("null", "csv.null", "null_string") or ""
        if delimiter == quote:
            refuse("options delimiter and quote are the same character")
    on_error = options.choice("on_error", among=("skip", "stop"), default="skip")
    settle_ms = options.integer("settle_ms", default=DEFAULT_SETTLE_MS, minimum=0)
    max_rows = options.integer("max_rows_per_epoch", minimum=1)
    identity = cast("Identity", options.choice("path_identity", among=get_args(Identity), default="inode"))
    max_record = options.integer(
        "max_record_bytes", default=DEFAULT_MAX_RECORD_BYTES, minimum=1, maximum=_MOST_RECORD_BYTES
    )
    name_regex, sorted_by = options.text("name_regex"), options.text("sorted_by")
    _check_names(name_regex, sorted_by)
    refresh_s = DEFAULT_REFRESH_S
    if objects is not None:
        # An object is there as a whole, and keeps its name.
        settle_ms, identity = 0, "path"
        refresh_s = options.integer("refresh.interval.sec", default=DEFAULT_REFRESH_S, minimum=1) or 1
        if pattern is not None and relation.connector.get("match_pattern"):
            name_regex, pattern, recursive = glob_regex(pattern, crosses=True).pattern, None, True
    incomplete_ms = options.integer("incomplete_ms", default=DEFAULT_INCOMPLETE_MS if settle_ms else 0, minimum=0)
    null_for_bad = options.flag("null_for_bad") or False
    repeat = options.integer("repeat", default=0, minimum=-1)
    if repeat and settle_ms:
        refuse("option repeat is for files that don't change", hint="Add settle_ms = 0.")
    reader = {name: value for name in _READERS if (value := options.text(name)) is not None}
    reader |= {PATH + name: value for name, value in options.under(PATH).items()}
    options.finish(relation.connector.get("connector", "file"))
    if kind == "avro":
        library("fastavro", "files of Avro")
    assert settle_ms is not None
    assert incomplete_ms is not None
    assert max_record is not None
    assert repeat is not None
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
        on_error,
        settle_ms,
        max_rows,
        identity,
        max_record,
        name_regex,
        sorted_by,
        null_for_bad,
        repeat,
        tuple(sorted(reader.items())),
        None if objects is None else objects.location,
        refresh_s,
        incomplete_ms,
    )


def _check_names(name_regex: str | None, sorted_by: str | None) -> None:
    """CONNECTOR_OPTION for a regular expression that is none, or has no group for the time."""
    try:
        groups = 0 if name_regex is None else re.compile(name_regex).groups
    except re.error as problem:
        refuse(f'option name_regex can\'t be "{name_regex}"', detail=str(problem))
    if sorted_by is not None and not groups:
        refuse("option sorted_by needs a name_regex with a group, which is the time")


def absolute_path(path: str) -> str:
    """The path or pattern, independent of the directory in which the process was started; a URL as it is."""
    return path if is_url(path) else os.path.abspath(os.path.expanduser(path))


def _place(options: Options) -> tuple[str, str | None, str | None]:
    """(root directory, pattern, name of a single file)."""
    path = options.text("path", "posix_fs.root")
    pattern = options.text("match_pattern")
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
    """(what names begin with, pattern, name of a single object). A path that ends as files do is one object.

    A `match_pattern` is one of whole names in the bucket, in which `*` and `?` stand for `/`, too.
    """
    options.text("path")
    path, pattern = objects.path, options.text("match_pattern")
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
    """The format that is said, or else the one that the name of the files shows."""
    said = options.text("format")
    encode = options.text("encode")
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
    """The regular expression of a glob over relative paths: `**/` any directories, `*` and `?` within a name.

    crosses: `*` and `?` stand for `/`, too.
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
