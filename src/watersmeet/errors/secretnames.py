"""Which options are secrets, by their names, and texts without the secrets that stand in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import Final

#: How the names of options end whose values nobody else should see.
_NAMES: Final = (
    "password",
    "passwd",
    "pwd",
    "secret",
    "secret_key",
    "secret_access_key",
    "secret.key",
    "access.key",
    "access_key",
    "access_key_id",
    "credentials.access",
    "account_key",
    "api_key",
    "private_key",
    "token",
    "credential",
    "credentials",
    "service.account",
    "jaas.config",
    ".pem",
)
#: How those of headers of requests begin.
_HEADER: Final = "headers."
#: The option whose value is properties of the client.
_PROPERTIES: Final = "properties"
_ENDINGS: Final = "|".join(re.escape(name) for name in sorted(_NAMES, key=len, reverse=True))
#: Parameters of URLs that are secret, too: keys and signatures.
_PARAMETER: Final = rf"[?&;](?:[\w.-]*(?:{_ENDINGS}|signature)|sig|key|apikey)="
#: A URL with a secret.
_URL: Final = re.compile(rf"(?://|^)[^/?#@]*:[^/?#@]+@|{_PARAMETER}", re.IGNORECASE)

#: Names a secret in place of a value: `password = SECRET name`. The name is none.
_REFERENCE: Final = "secret"
#: Messages have these words for their own sake, so of values that are one of them only quoted ones are concealed.
_WORDS: Final = ("secret", "password", "token", "credential", "credentials")
#: What is shorter may be part of any word, and is only concealed where it stands.
_LEAST_CHARACTERS: Final = 4
#: So many characters of a value are concealed, and so many values; behind those everything is. So no text takes long.
_MOST_CHARACTERS, _MOST_PLACES = 8_000, 1_000
#: How texts in quotes go on: with a quote that is doubled, or behind a backslash. Dialects and kinds of texts differ,
#: and what is concealed needn't be right: so both are.
_QUOTED: Final = tuple(rf"(?:{c}|''){{0,{_MOST_CHARACTERS}}}" for c in (r"[^']", r"[^'\\]|\\."))


def _secrets(quoted: str) -> re.Pattern[str]:
    """The secrets of a statement, each in a group: the values of options by the ends of their names, quoted or behind
    `=`, whatever stands between that is no word and no comma; those of headers; passwords and parameters of URLs.
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


#: What ends a word of a value.
_WORD_ENDS: Final = re.compile(r"[\s,;()]")
_SECRETS: Final = tuple(_secrets(quoted) for quoted in _QUOTED)
#: Where values have no names: a statement, and functions of RisingWave's and ClickHouse's, which are not here.
_NAMELESS: Final = re.compile(
    r"\b(?:CREATE\s+(?:OR\s+REPLACE\s+)?|ALTER\s+)SECRET\b|\b(?:postgres_query|mysql_query|file_scan)\s*\("
    r"|\b(?:postgresql|mysql|mongodb|redis|s3|gcs|iceberg|deltalake|remote|remotesecure)\s*\((?=\s*')",
    re.IGNORECASE,
)
#: All texts behind those, but for those that say where the value is; and the word behind AS.
_TEXTS: Final = tuple(
    re.compile(pattern, re.IGNORECASE | re.DOTALL)
    for pattern in (
        *(rf"(?:(?P<option>\b(?:backend|name|path)\s*=\s*)|)'(?P<text>{quoted})'?" for quoted in _QUOTED),
        r"(?P<option>(?!))?\bAS\s+'?(?P<text>[^\s';]+)",
    )
)


def is_secret(option: str, value: str) -> bool:
    """Whether the value of an option is nobody else's: by its name, or as it is a URL with a secret, or has properties
    (`a=b;c=d`) one of which is secret.
    """
    name = option.lower()
    if name == _PROPERTIES:
        pairs = (pair.strip().partition("=") for pair in value.split(";"))
        return any(is_secret(part, given) for part, _, given in pairs)
    return name.endswith(_NAMES) or name.startswith(_HEADER) or _URL.search(value) is not None


def concealed(sql: str, *texts: str | None) -> tuple[str | None, ...]:
    """The statement and the texts about it without the secrets that the statement holds: the values of options such as
    `password = '…'`, and the password of a URL. In the statement each becomes as many asterisks, so that places stay.

    The statement may be wrong in any way.
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
    """How messages may have a value: as it is, and its first word, which is the secret where a quote is missing."""
    return value.replace("''", "'"), _WORD_ENDS.split(value, maxsplit=1)[0]


def _places(sql: str) -> Iterator[Iterator[tuple[int, int]]]:
    """Where secrets stand, by each way to find them."""
    for pattern in _SECRETS:
        yield _overlapping(pattern, sql)
    made = _NAMELESS.search(sql)
    if made is not None:
        for pattern in _TEXTS:
            yield (t.span("text") for t in pattern.finditer(sql, made.end()) if t["option"] is None)


def _overlapping(pattern: re.Pattern[str], sql: str) -> Iterator[tuple[int, int]]:
    """The places of the groups. One may be in another, which a missing quote has made too long."""
    found = pattern.search(sql)
    while found is not None and found.lastgroup:
        yield found.span(found.lastgroup)
        found = pattern.search(sql, found.start(found.lastgroup))
