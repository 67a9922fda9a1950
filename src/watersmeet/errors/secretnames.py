"""Recognizes options that contain secrets, and removes these secrets from statements and messages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import Final

#: The endings of the names of secret options.
_NAMES: Final = (
    "password", "passwd", "pwd", "secret", "secret_key", "secret_access_key", "secret.key", "access.key", "access_key",
    "access_key_id", "credentials.access", "account_key", "api_key", "private_key", "client_key", "nkey", "jwt",
    "token", "credential", "credentials", "service.account", "jaas.config", ".pem",
)  # fmt: skip
#: The prefix of options that are headers of requests; all of them are secret.
_HEADER: Final = "headers."
#: The option whose value consists of client properties.
_PROPERTIES: Final = "properties"
#: Misspelled endings, which statements and messages must not show either.
_MISSPELLED: Final = r"pas+w\w{0,6}|p\w?s+w\w{0,4}d"
_ENDINGS: Final = "|".join([*(re.escape(name) for name in sorted(_NAMES, key=len, reverse=True)), _MISSPELLED])
#: The secret parameters of URLs, including keys and signatures.
_PARAMETER: Final = rf"[?&;](?:[\w.-]*(?:{_ENDINGS}|signature)|sig|key|apikey)="
#: A URL with a secret.
_URL: Final = re.compile(rf"(?://|^)[^/?#@]*:[^/?#@]+@|{_PARAMETER}", re.IGNORECASE)

#: The beginning of a reference instead of a value: `password = SECRET name`. The name is not secret.
_REFERENCE: Final = "secret"
#: Common words of messages; a value that is one of these is only concealed inside quotes.
_WORDS: Final = ("secret", "password", "token", "credential", "credentials")
#: The length below which values are only concealed in the statement, because in messages they may be parts of other
#: words.
_LEAST_CHARACTERS: Final = 4
#: Limits that keep the search fast: the length of a value, and the number of values after which the rest is concealed.
_MOST_CHARACTERS, _MOST_PLACES = 8_000, 1_000
#: The content of quotes by the rules of all dialects: quotes are doubled, or escaped by a backslash.
_QUOTED: Final = tuple(rf"(?:{c}|''){{0,{_MOST_CHARACTERS}}}" for c in (r"[^']", r"[^'\\]|\\."))


def _secrets(quoted: str) -> re.Pattern[str]:
    """Matches a secret in a statement as a group: the value of a secret option, quoted or after `=`, with signs and
    comments between; the value of a header; a password or a parameter of a URL.
    """
    gap = r"(?:(?!--|/\*)[^\w'\"$,]|--[^\n]{0,200}\n|/\*.{0,200}?\*/)"
    return re.compile(
        rf"""(?:{_ENDINGS})["'`]?{gap}{{1,80}}?(?:AS\s+)?(?:[ebnx]|u&)?
            (?:'(?P<quoted>{quoted})|(?<!{_REFERENCE}\s)"(?P<double>[^"]{{0,{_MOST_CHARACTERS}}})
              |\$(?P<tag>\w*)\$(?P<dollar>.{{0,{_MOST_CHARACTERS}}}?)(?:\$(?P=tag)\$|\Z))
          | (?<![\w.'"`/-])[\w.-]*(?:{_ENDINGS})
            (?:'(?P<close>{quoted})|\$\$(?P<near>.{{0,{_MOST_CHARACTERS}}}?)(?:\$\$|\Z))
          | (?:{_ENDINGS})\s*(?:=|:(?!:))\s*(?!{_REFERENCE}\s+[\w"])(?P<bare>[^\s,;()'"$]{{1,{_MOST_CHARACTERS}}})
          | {_PARAMETER}(?P<parameter>[^\s,;&'"]{{1,{_MOST_CHARACTERS}}})
          | \bHEADER\s*\([^()]*?\bVALUE\s*'(?P<header>{quoted})
          | \bIDENTIFIED\b[^;']{{0,80}}'(?P<identified>{quoted})
          | (?://|')[^\s:/@']*:(?P<url>[^\s@/']+)@""",
        re.IGNORECASE | re.VERBOSE | re.DOTALL,
    )


#: The characters that end the first word of a value.
_WORD_ENDS: Final = re.compile(r"[\s,;()]")
_SECRETS: Final = tuple(_secrets(quoted) for quoted in _QUOTED)
#: Statements and functions of RisingWave and ClickHouse whose secrets have no names.
_NAMELESS: Final = re.compile(
    r"\b(?:CREATE\s+(?:OR\s+REPLACE\s+)?|ALTER\s+)SECRET\b"
    r'|\bVALIDATE\s+(?:SECRET\s+(?:"[^"]*"|[\w.])+\s+)?AS\b'
    r"|\b(?:postgres_query|mysql_query|file_scan)\s*\("
    r"|\b(?:postgresql|mysql|mongodb|redis|s3|gcs|iceberg|deltalake|remote|remotesecure)\s*\((?=\s*')",
    re.IGNORECASE,
)
#: Matches all later quoted texts, except for the location of the value and the name of a header, and the word after AS.
_TEXTS: Final = tuple(
    re.compile(pattern, re.IGNORECASE | re.DOTALL)
    for pattern in (
        *(rf"(?:(?P<option>\b(?:backend|name|path)\s*=\s*|->>\s*)|)'(?P<text>{quoted})'?" for quoted in _QUOTED),
        r"(?P<option>(?!))?\bAS\s+'?(?P<text>[^\s';]+)",
    )
)


def is_secret(option: str, value: str) -> bool:
    """Whether an option is secret because of its name, a secret in a URL, or one of its properties (`a=b;c=d`)."""
    name = option.lower()
    if name == _PROPERTIES:
        pairs = (pair.strip().partition("=") for pair in value.split(";"))
        return any(is_secret(part, given) for part, _, given in pairs)
    return name.endswith(_NAMES) or name.startswith(_HEADER) or _URL.search(value) is not None


def concealed(sql: str, *texts: str | None) -> tuple[str | None, ...]:
    """The statement, and texts about it, without the secrets of the statement.

    In the statement an asterisk replaces each character of a secret, so that spans stay valid. Texts with syntax errors
    are also accepted.
    """
    places = sorted({p for found in _places(sql) for p in islice(found, _MOST_PLACES)})
    values = {value for start, end in places for value in _said(sql[start:end])}
    if len(places) >= _MOST_PLACES:
        places.append((places[-1][0], len(sql)))
    for start, end in places:
        sql = sql[:start] + "*" * (end - start) + sql[end:]
    for value in sorted((v for v in values if len(v) >= _LEAST_CHARACTERS), key=len, reverse=True):
        pattern = rf"(?<=[\"'])({value})(?=[\"'])" if value.lower() in _WORDS else re.escape(value)
        texts = tuple(None if t is None else re.sub(pattern, "***", t) for t in texts)
    return sql, *texts


def _said(value: str) -> tuple[str, ...]:
    """The forms of a value in messages: the value, and its first word, which is the secret if a quote is missing."""
    return value.replace("''", "'"), _WORD_ENDS.split(value, maxsplit=1)[0]


def _places(sql: str) -> Iterator[Iterator[tuple[int, int]]]:
    """The spans of secrets, for each pattern."""
    for pattern in _SECRETS:
        yield _overlapping(pattern, sql)
    made = _NAMELESS.search(sql)
    if made is not None:
        for pattern in _TEXTS:
            yield (t.span("text") for t in pattern.finditer(sql, made.end()) if t["option"] is None)


def _overlapping(pattern: re.Pattern[str], sql: str) -> Iterator[tuple[int, int]]:
    """The spans of the matched groups, which may overlap: a missing quote makes one too long."""
    found = pattern.search(sql)
    while found is not None and found.lastgroup:
        yield found.span(found.lastgroup)
        found = pattern.search(sql, found.start(found.lastgroup))
