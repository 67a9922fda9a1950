"""Schemas that no registry has: in a file, at an address, in an object store, or written where the format is."""

from __future__ import annotations

import base64
import urllib.error
import urllib.parse
import urllib.request
import zlib
from collections.abc import Mapping
from typing import Final

from watersmeet import storage
from watersmeet.formats.payloads import option_error
from watersmeet.formats.registry import TIMEOUT_SECONDS
from watersmeet.objectstores.base import is_url

_LOCATION: Final = "schema.location"
#: The option that keeps the schema of a location as it was when the relation was created.
KEPT_SCHEMA: Final = "schema.kept"


def with_kept_schema(options: Mapping[str, str]) -> dict[str, str]:
    """The options with the schema at their location as it is now, unless they keep one: what messages mean must not
    depend on when, and where, they are read.

    Raises as `schema_bytes`.
    """
    if _LOCATION not in options or KEPT_SCHEMA in options:
        return dict(options)
    return {**options, KEPT_SCHEMA: base64.b64encode(zlib.compress(_at(options[_LOCATION]))).decode()}


def schema_bytes(options: Mapping[str, str]) -> bytes | None:
    """The schema of `schema` (its text) or `schema.location`: the one that is kept, else the one that is there now.
    None without them. Locations are paths and URLs: file, http, https, s3, gs, az.

    OSError if an address does not answer for now, CONNECTOR_OPTION if there is nothing to be read.
    """
    if "schema" in options:
        return options["schema"].encode()
    if KEPT_SCHEMA in options:
        return zlib.decompress(base64.b64decode(options[KEPT_SCHEMA]))
    return None if _LOCATION not in options else _at(options[_LOCATION])


def _at(location: str) -> bytes:
    parsed = urllib.parse.urlsplit(location)
    if parsed.scheme in ("http", "https"):
        try:
            with urllib.request.urlopen(location, timeout=TIMEOUT_SECONDS) as answer:  # noqa: S310 -- http(s), checked
                found: bytes = answer.read()
                return found
        except urllib.error.HTTPError as cause:
            if cause.code >= 500:
                raise
            raise option_error(_LOCATION, f"{location} answers with the status {cause.code}") from cause
    if is_url(location):
        try:
            return storage.read_file(storage.place_at(location))
        except FileNotFoundError as cause:
            raise option_error(_LOCATION, f"there is no object {location}") from cause
    if parsed.scheme not in ("", "file"):
        hint = "file://, http(s)://, s3://, gs://, az:// or hdfs://"
        raise option_error(_LOCATION, f"addresses of {parsed.scheme}:// can't be read", hint)
    path = urllib.parse.unquote(parsed.path) if parsed.scheme == "file" else location
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as cause:
        raise option_error(_LOCATION, f'"{path}" can\'t be read: {cause.strerror}') from cause
