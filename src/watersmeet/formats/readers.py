"""Which reader the payloads of an encoding have."""

from __future__ import annotations

from collections.abc import Sequence

from watersmeet.catalog import Encoding, MessageFormat
from watersmeet.errors import error
from watersmeet.formats.jsonpayloads import JsonKeyReader, JsonReader, message_rules
from watersmeet.formats.payloads import PayloadReader
from watersmeet.formats.scalarpayloads import ScalarReader
from watersmeet.types import Field


def open_value_reader(fields: Sequence[Field], form: MessageFormat) -> PayloadReader:
    """A reader of values in the encoding of `form`. Raises as `open_decoder` does."""
    encoding = form.encoding
    if encoding == "json":
        framed = "schema.registry" in form.options
        return JsonReader(fields, message_rules(form.options), many_rows=form.many_rows, framed=framed)
    if encoding in ("bytes", "string", "int", "long"):
        return ScalarReader(fields, encoding)
    raise _unknown(encoding)


def open_key_reader(fields: Sequence[Field], form: MessageFormat, *, whole: bool) -> PayloadReader:
    """A reader of keys, one row for each. whole: the one field is the key, not a part of it that has its name."""
    encoding = form.key_encoding or form.encoding
    if encoding == "json":
        framed = "schema.registry" in form.options
        return JsonKeyReader(fields, message_rules(form.options), whole=whole, framed=framed)
    if encoding in ("bytes", "string", "int", "long"):
        return ScalarReader(fields, encoding)
    raise _unknown(encoding)


def _unknown(encoding: Encoding) -> Exception:
    return error("FEATURE_NOT_SUPPORTED", f"messages in {encoding.upper()} can't be read yet")
