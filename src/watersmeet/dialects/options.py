"""What DDL and the other statements share: options, values, the error for what is lacking."""

from __future__ import annotations

from typing import Final

from watersmeet.dialects.tokens import Cursor, span_of
from watersmeet.errors import Error, Span, error
from watersmeet.secretvalues import reference

#: Tokens in quotes: a string, one with escapes (`E'\\t'`), a name.
_QUOTED: Final = ("STRING", "BYTE_STRING", "IDENTIFIER")
#: Options that are paths of files, beside each of which another one takes the content.
_FILES: Final = ("ssl.ca.location", "ssl.certificate.location", "ssl.key.location")


def not_supported(feature: str, text: str, span: Span | None, *, hint: str | None = None) -> Error:
    """The error that Watersmeet lacks a feature of the dialect."""
    return error("FEATURE_NOT_SUPPORTED", f"{feature} is not supported", hint=hint, sql=text, span=span)


def read_options(cursor: Cursor, spans: dict[str, Span] | None = None) -> dict[str, str]:
    """`(name = value, …)`; names may contain dots and are lower-cased. spans: gets the place of each option."""
    cursor.expect("(")
    options: dict[str, str] = {}
    while not cursor.at(")"):
        tokens = cursor.until("=", ",")
        key = "".join(t.text for t in tokens).lower()
        if not key or not cursor.take("="):
            raise cursor.error(detail="An option is written name = 'value'.")
        if key in options:
            raise error("CONNECTOR_OPTION", f'option "{key}" is given twice', sql=cursor.text, span=span_of(tokens))
        secret = _read_secret(cursor)
        if secret is not None and cursor.at("AS", "FILE"):
            key = _as_content(cursor, key, span_of(tokens))
        options[key] = secret or read_value(cursor)
        if spans is not None:
            spans[key] = span_of([*tokens, cursor.tokens[cursor.index - 1]])
        if not cursor.take(","):
            break
    cursor.expect(")")
    return options


def _read_secret(cursor: Cursor) -> str | None:
    """`SECRET name` as a reference; None if something else is there."""
    if not cursor.at("SECRET") or cursor.at("SECRET", ",") or cursor.at("SECRET", ")"):
        return None
    cursor.index += 1
    return reference(cursor.name().name)


def _as_content(cursor: Cursor, key: str, span: Span) -> str:
    """The option that takes the content of a file in place of the option `key`, which takes its path: `SECRET name AS
    FILE` says that the secret is the content.
    """
    cursor.index += 2
    if not key.endswith(_FILES):
        hint = "It is for " + ", ".join(f"properties.{name}" for name in _FILES) + "."
        raise not_supported(f"SECRET … AS FILE of option {key}", cursor.text, span, hint=hint)
    return f"{key.removesuffix('location')}pem"


def read_setting(cursor: Cursor, settings: dict[str, str]) -> str:
    """`name = value`, added to `settings`: the name in lower case. CONNECTOR_OPTION if it is there already."""
    name = cursor.name(reserved=True)
    cursor.expect("=")
    setting = name.name.lower()
    if setting in settings:
        raise error("CONNECTOR_OPTION", f'option "{name.name}" is given twice', sql=cursor.text, span=name.span)
    settings[setting] = read_value(cursor)
    return setting


def read_value(cursor: Cursor) -> str:
    """A string, a number or a word as text."""
    sign = "-" if cursor.take("-") else ""
    token = cursor.current
    if token is None or not (token.text[:1].isalnum() or token.token_type.name in _QUOTED):
        raise cursor.error(detail="A value was expected here.")
    cursor.index += 1
    return sign + str(token.text)
