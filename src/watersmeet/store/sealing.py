"""Files of JSON that say where they belong: a checksum covers the content, the file's name and the database's id."""

from __future__ import annotations

import json
import zlib
from typing import Any

from watersmeet.errors import error


def sealed(value: Any, place: str, database: str) -> bytes:
    """Three lines: where the file belongs, `value` as compact JSON, and the checksum of both.

    place: folder and name. database: the id of the database.
    """
    header = json.dumps({"file": place, "database": database}, separators=(",", ":"))
    text = f"{header}\n{json.dumps(value, separators=(',', ':'))}".encode()
    return b"%s\n%08x\n" % (text, zlib.crc32(text))


def unsealed(data: bytes, place: str, database: str) -> Any:
    """The inverse of `sealed`.

    DATABASE_DAMAGED, naming the file, if the checksum does not fit, or if it is a copy of another file.
    """
    text, _, checksum = data.rstrip(b"\n").rpartition(b"\n")
    header, _, value = text.partition(b"\n")
    if not value or checksum != b"%08x" % zlib.crc32(text):
        raise error("DATABASE_DAMAGED", f"{place} is damaged: its checksum does not fit its content")
    said = json.loads(header)
    if said["file"] != place:
        raise error("DATABASE_DAMAGED", f"{place} is damaged: its content is that of {said['file']}")
    if said["database"] != database:
        raise error("DATABASE_DAMAGED", f"{place} is damaged: it is a file of another database")
    return json.loads(value)
