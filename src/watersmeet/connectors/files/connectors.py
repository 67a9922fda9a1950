"""The connectors of files, by the name and the use that the registry knows."""

from __future__ import annotations

from typing import Final

from watersmeet.connectors.base.sources import SourceConnector, TableConnector
from watersmeet.connectors.files import rotating
from watersmeet.connectors.files.options import FileSpec, files_begun, source_options
from watersmeet.connectors.files.reading import read_file_slice
from watersmeet.connectors.files.source import FileSource
from watersmeet.connectors.files.tables import FileReader
from watersmeet.connectors.files.target import CONNECTOR
from watersmeet.values.slices import AsideSlice, FileSlice, RenamingSlice

_SOURCE: Final = SourceConnector(
    FileSource,
    FileSpec,
    (FileSlice, AsideSlice, RenamingSlice),
    read_file_slice,
    source_options("file"),
    files_begun,
)
SOURCES: Final = {"file": _SOURCE, "posix_fs": _SOURCE}
SINKS: Final = {"file": CONNECTOR, "fs": CONNECTOR, "posix_fs": CONNECTOR, "rotating_file": rotating.CONNECTOR}
TABLES: Final = {"file": TableConnector(FileReader)}
