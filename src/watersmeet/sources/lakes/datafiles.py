"""The data files of a table of a lake: they are written once."""

from __future__ import annotations

import os
from typing import BinaryIO, Final

from watersmeet.objectstores.access import ObjectFile
from watersmeet.objectstores.base import Location, StoreProblem, is_url
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
    store, name = _place(options, file.path)
    try:
        if store is None:
            found = open_file(options.root, name)
            size_bytes = os.fstat(found.fileno()).st_size
            if size_bytes != file.size_bytes:
                found.close()
                raise LakeProblem(
                    f"data file {file.path} has {size_bytes} bytes, not {file.size_bytes} as the table says",
                    passes=False,
                )
            return found
        return ObjectFile(store, name, file.size_bytes, None)
    except OSError as cause:
        raise data_problem(file, cause) from cause


def data_problem(file: LakeFile, cause: OSError) -> LakeProblem:
    """What it means that a data file can't be read."""
    if isinstance(cause, FileNotFoundError):
        return LakeProblem(
            f"data file {file.path} is gone, as VACUUM and the expiry of snapshots remove those of old versions",
            passes=False,
        )
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


def _place(options: LakeOptions, path: str) -> tuple[Location | None, str]:
    """(store, name) of a file; of one of this machine (None, its path). LakeProblem for one that may not be read."""
    scheme, separator, rest = path.partition(":")
    if separator and scheme == "file":
        path = "/" + rest.lstrip("/")
    elif separator and rest.startswith("//"):
        bucket, _, name = rest[2:].partition("/")
        url = f"{_SCHEMES.get(scheme, scheme)}://{bucket}"
        if not is_url(url):
            raise LakeProblem(f"data file {path} is in a store of kind {scheme}, which is not supported", passes=False)
        return Location(url, options.settings), name
    elif options.store is not None:
        return options.store, f"{options.root}/{path}" if options.root else path
    if options.store is not None or not options.root:
        raise LakeProblem(f"data file {path} is of this machine, and the table is in a store", passes=False)
    return None, path
