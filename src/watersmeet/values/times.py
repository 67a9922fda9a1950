"""Units and lengths of time, names of time zones, and the zones in texts of timestamps.

DuckDB reads abbreviations as old names of zones with summer time (`PST` is Los Angeles) or of other places (`BST` is
Dhaka), and `UTC+3` as three hours east, where POSIX has three hours west. It also applies the zone of one text to the
next text without a zone.
"""

from __future__ import annotations

import re
import zoneinfo
from collections.abc import Mapping
from datetime import UTC as _UTC
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Final

#: The abbreviations with a fixed offset, by seconds east of UTC (PostgreSQL 18, appendix B.4, the set `Default`).
_BY_OFFSET: Final = {
    -36000: "HST TAHT",
    -34200: "MART",
    -32400: "AKST GAMT",
    -28800: "AKDT PST",
    -25200: "MST PDT",
    -21600: "CST MDT GALT",
    -18000: "ACT COT CDT EST PET",
    -14400: "BOT EDT AMT AST",
    -12600: "NFT NST",
    -10800: "BRA BRT CLST GFT PMST PYST UYT WGT ADT",
    -9000: "NDT",
    -7200: "BRST FNT PMDT UYST WGST",
    -3600: "EGT FNST AZOT",
    0: "EGST AZOST GMT UCT UT UTC Z ZULU WET",
    3600: "WAT BST CET MET MEZ WETDST",
    7200: "SAST IST BDST CEST CETDST EET MEST MESZ METDST",
    10800: "EAT IDT EEST EETDST FET",
    12600: "IRT",
    14400: "MSD MUT RET SCT",
    16200: "AFT",
    18000: "PKT TJT UZT MUST MVT TFT",
    20700: "NPT",
    21600: "ALMT BDT BTT KGST PKST UZST XJT YEKST",
    23400: "MMT",
    25200: "ALMST ICT WAST CXT",
    28800: "BNT BORT CCT HKT MYT PHT AWST WADT",
    31500: "ACWST",
    32400: "JAYT JST KST ULAST AWSST WDT PWT",
    34200: "ACST CAST",
    36000: "DDUT KDT AEST LIGT CHUT MPT PGT TRUT YAPT",
    37800: "ACSST ACDT CADT LHST SADT",
    39600: "AESST AEDT PONT VUT",
    43200: "NZT FJT GILT MHT NZST TVT WAKT WFT",
    45900: "CHAST",
    46800: "FJST NZDT TOT",
    49500: "CHADT",
}

#: The seconds east of UTC of each abbreviation, in upper case.
ABBREVIATIONS: Final = {name: offset for offset, names in _BY_OFFSET.items() for name in names.split()}

#: Names of the time zone database without a slash, except abbreviations.
_SINGLE: Final = (
    r"CST6CDT Cuba EST5EDT Egypt Eire GB GB-Eire GMT\+0 GMT-0 GMT0 Greenwich Hongkong Iceland Iran Israel Jamaica "
    "Japan Kwajalein Libya MST7MDT NZ NZ-CHAT Navajo PRC PST8PDT Poland Portugal ROC ROK Singapore Turkey Universal "
    "W-SU"
)

#: Matches the form of names in the time zone database, in Python and DuckDB.
ZONE_NAME: Final = f"(?i:[a-z_]+/[a-z0-9_+/-]+|{_SINGLE.replace(' ', '|')})"
_NAMED: Final = re.compile(ZONE_NAME)
_AT_END: Final = rf"[0-9]\s*{ZONE_NAME}\s*$"
_NAMED_AT_END: Final = re.compile(_AT_END)

#: A suffix for texts that DuckDB must reject as times.
NO_TIME: Final = " is no time"

#: A pattern for a zone without a slash at the end of a text.
_SUFFIX: Final = r"[0-9]\s*([A-Za-z]+(?:[+-][0-9:]+)?)\s*$"

_IN_TEXT: Final = re.compile(_SUFFIX)
_DAY: Final = r"\s*[0-9]+[-/. \\][0-9]{1,2}[-/. \\][0-9]{1,2}\s*"
_TIME: Final = r"[0-9][ T]\s*[0-9]{1,2}:[0-9]{2}(:[0-9]{2}(\.[0-9]*)?)?\s*$"


#: Matches texts of local times, which have no zone, in Python and DuckDB.
WITHOUT_ZONE: Final = rf"^{_DAY}$|{_TIME}"

#: The zone of sessions and views that have set no other.
UTC: Final = "UTC"


def is_zone_name(text: str) -> bool:
    """Whether a text has the form of a name of the time zone database."""
    return _NAMED.fullmatch(text) is not None


def with_offset(text: str) -> str:
    """The text of a timestamptz, with an offset instead of an abbreviation; an invalid text for an unknown
    abbreviation.
    """
    found = _IN_TEXT.search(text)
    if found is None or _NAMED_AT_END.search(text):
        return text
    offset = ABBREVIATIONS.get(found[1].upper())
    return text + NO_TIME if offset is None else text[: found.start(1)].rstrip() + _offset_text(offset)


def zone_sql(zone: str) -> str:
    """SQL for DuckDB's name of a zone. It is an invalid name for unknown zones, and for abbreviations whose offset is
    not whole hours.
    """
    names = {s: f"Etc/GMT{-s // 3600:+d}" for s in _BY_OFFSET if s % 3600 == 0}
    return (
        f"CASE WHEN regexp_full_match({zone}, '{ZONE_NAME}') THEN {zone} WHEN regexp_full_match({zone}, '[A-Za-z]+') "
        f"THEN coalesce({_found(zone, names)}, {zone} || '?') ELSE {zone} || '?' END"
    )


def with_offset_sql(text: str) -> str:
    """SQL that applies `with_offset` to a column of texts, and appends the offset of UTC to texts without a zone."""
    name = f"regexp_extract({text}, '{_SUFFIX}', 1)"
    return (
        f"CASE WHEN regexp_matches({text}, '{_SUFFIX}') AND NOT regexp_matches({text}, '{_AT_END}') THEN "
        f"coalesce(regexp_replace({text}, '\\s*[A-Za-z]+([+-][0-9:]+)?\\s*$', '') || "
        f"{_found(name, {s: _offset_text(s) for s in _BY_OFFSET})}, {text} || '{NO_TIME}') "
        f"WHEN regexp_full_match({text}, '{_DAY}') THEN concat(trim({text}), ' 00:00:00+00') "
        f"WHEN regexp_matches({text}, '{_TIME}') THEN concat(trim({text}), "
        f"CASE WHEN regexp_matches({text}, ':[0-9]+:') THEN '' ELSE ':00' END, '+00') ELSE {text} END"
    )


def _found(name: str, values: Mapping[int, str]) -> str:
    """SQL for the value that belongs to the offset of an abbreviation, or NULL. All values are in one text, because a
    CASE with a branch for each offset would take long to plan.
    """
    table = "".join(f"|{n}={value}" for s, value in values.items() for n in _BY_OFFSET[s].split())
    return f"nullif(regexp_extract('{table}|', concat('[|]', upper({name}), '=([^|]*)'), 1), '')"


def _offset_text(seconds: int) -> str:
    minutes = abs(seconds) // 60
    return f"{'-' if seconds < 0 else '+'}{minutes // 60:02d}:{minutes % 60:02d}"


def shown_offset(seconds: int) -> str:
    """An offset in PostgreSQL's form, `+05:30`: with minutes and seconds only where they are not 0."""
    hours, rest = divmod(abs(seconds), 3600)
    minutes = f":{rest // 60:02}" if rest else ""
    return f"{'-' if seconds < 0 else '+'}{hours:02}{minutes}{f':{rest % 60:02}' if rest % 60 else ''}"


SECOND_US: Final = 1_000_000
#: The length of a day, which is always the same, because all times are computed in UTC.
DAY_US: Final = 86_400_000_000

#: The length of each unit in microseconds.
UNITS_US: Final = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": SECOND_US,
    "minute": 60 * SECOND_US,
    "hour": 3600 * SECOND_US,
    "day": DAY_US,
    "week": 7 * DAY_US,
}

#: The units of abbreviations.
ABBREVIATED: Final = {
    "us": "microsecond",
    "ms": "millisecond",
    "s": "second",
    "m": "minute",
    "h": "hour",
    "d": "day",
    "w": "week",
}

_LENGTHS_US: Final = {
    **UNITS_US,
    **{short: UNITS_US[unit] for short, unit in ABBREVIATED.items()},
    **{short: UNITS_US[unit] for short, unit in (("usec", "microsecond"), ("msec", "millisecond"), ("sec", "second"))},
    **{short: UNITS_US[unit] for short, unit in (("min", "minute"), ("hr", "hour"))},
}

_PART: Final = re.compile(r"\s*([+-]?\d+)\s*([a-z]+)(?=[\s\d]|$)")


def unit_us(word: str) -> int | None:
    """The length of a unit by its name (`s`, `sec`, `second`, `seconds`, in any case); None for an unknown name."""
    word = word.lower()
    return _LENGTHS_US.get(word) or _LENGTHS_US.get(word.removesuffix("s"))


def length_us(text: str) -> int | None:
    """The length of a text like `1 hour 30 minutes`, `1h30m` or `-5s` in microseconds; None for other texts."""
    text = text.strip().lower()
    total, at = 0, 0
    while at < len(text):
        part = _PART.match(text, at)
        unit = None if part is None else unit_us(part[2])
        if part is None or unit is None:
            return None
        total += int(part[1]) * unit
        at = part.end()
    return total if text else None


def length_text(length_us: int) -> str:
    """The text of a length (0 or more) as a whole number of the largest possible unit: `90 minutes`."""
    unit, size_us = next((u, n) for u, n in sorted(UNITS_US.items(), key=lambda p: -p[1]) if length_us % n == 0)
    if not length_us:
        unit, size_us = "second", SECOND_US
    count = length_us // size_us
    return f"{count} {unit}{'' if count == 1 else 's'}"


#: The days on which the offset of a zone must be the same for it to count as fixed.
_FIRST_DAY: Final = datetime(2024, 1, 1, tzinfo=_UTC)
_DAYS: Final = 366 * 20


@lru_cache(maxsize=64)
def fixed_offset_us(zone: str) -> int | None:
    """The microseconds east of UTC of a zone without summer time; None for other zones."""
    info = zoneinfo.ZoneInfo(zone)
    found = {(_FIRST_DAY + timedelta(days=day)).astimezone(info).utcoffset() for day in range(0, _DAYS, 5)}
    offset = found.pop()
    return None if found or offset is None else offset // timedelta(microseconds=1)
