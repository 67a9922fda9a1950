"""The data files of a table of a lake: they are written once."""

from __future__ import annotations

import os
from typing import BinaryIO, Final
from urllib.parse import unquote, urlparse

from watersmeet.objectstores import ObjectFile, StoreProblem
from watersmeet.slices import LakeFile
from watersmeet.sources.cutting import open_file
from watersmeet.sources.lakes.options import LakeOptions
from watersmeet.sources.lakes.versions import LakeProblem
from watersmeet.sources.parquetfooter import Footer, read_footer

#: By other schemes of URLs, what they are here.
_SCHEMES: Final = {"s3a": "s3", "s3n": "s3", "gcs": "gs"}


def open_data(options: LakeOptions, file: LakeFile) -> BinaryIO:
    """A data file, for reading. LakeProblem if it is not there, or can't be read for now.

    Objects are not asked for before they are read.
    """
    store = options.store
    try:
        if store is None:
            found = open_file(options.root, _local(file.path))
            size_bytes = os.fstat(found.fileno()).st_size
            if size_bytes != file.size_bytes:
                found.close()
                raise LakeProblem(
                    f"data file {file.path} has {size_bytes} bytes, not {file.size_bytes} as the table says",
                    passes=False,
                )
            return found
        return ObjectFile(store, _key(options, file.path), file.size_bytes, None)
    except OSError as cause:
        raise data_problem(file, cause) from cause


def data_problem(file: LakeFile, cause: OSError) -> LakeProblem:
    """What it means that a data file can't be read."""
    if isinstance(cause, FileNotFoundError):
        return LakeProblem(f"data file {file.path} is gone, as VACUUM removes those of old versions", passes=False)
    why = str(cause) if isinstance(cause, StoreProblem) else cause.strerror or str(cause)
    return LakeProblem(f"data file {file.path} can't be read: {why}", passes=True)


def footer_of(options: LakeOptions, file: LakeFile) -> Footer:
    """What the footer of a data file says. LakeProblem."""
    found = open_data(options, file)
    with found:
        try:
            footer = read_footer(found, file.size_bytes)
            if isinstance(found, ObjectFile):
                found.check()
        except OSError as cause:
            raise data_problem(file, cause) from cause
    if footer is None:
        raise LakeProblem(f"data file {file.path} is damaged, or not one of Parquet", passes=False)
    return footer


def _local(path: str) -> str:
    """The path of a file: as it is in a log, or a URL."""
    if path.startswith("file:"):
        path = urlparse(path).path
    elif "://" in path:
        raise LakeProblem(f"data file {path} is not where the table is", passes=False)
    return unquote(path)


def _key(options: LakeOptions, path: str) -> str:
    """The name of an object."""
    assert options.store is not None
    scheme, separator, rest = path.partition("://")
    if not separator:
        return f"{options.root}/{unquote(path)}" if options.root else unquote(path)
    bucket, _, key = rest.partition("/")
    if f"{_SCHEMES.get(scheme, scheme)}://{bucket}" != options.store.url:
        raise LakeProblem(f"data file {path} is not where the table is", passes=False)
    return unquote(key)
