"""Schemas that no registry has: in a file, at an address, or written where the format is."""

from __future__ import annotations

import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from functools import cache

from watersmeet.formats.payloads import option_error
from watersmeet.formats.registry import TIMEOUT_SECONDS


def schema_bytes(options: Mapping[str, str]) -> bytes | None:
    """The schema of `schema` (its text) or `schema.location` (file:// or a path, http://, https://); None without them.

    OSError if an address does not answer for now, CONNECTOR_OPTION if there is nothing to be read.
    """
    if "schema" in options:
        return options["schema"].encode()
    location = options.get("schema.location")
    return None if location is None else _at(location)


@cache
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
            raise option_error("schema.location", f"{location} answers with the status {cause.code}") from cause
    if parsed.scheme not in ("", "file"):
        raise option_error("schema.location", f"addresses of {parsed.scheme}:// can't be read", "file:// or http(s)://")
    path = urllib.parse.unquote(parsed.path) if parsed.scheme == "file" else location
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as cause:
        raise option_error("schema.location", f'"{path}" can\'t be read: {cause.strerror}') from cause
