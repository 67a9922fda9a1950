"""Reads XML payloads and documents as rows, and writes rows as elements.

The standard library's C parser parses each payload. Document types are rejected, so that entities are never expanded.
Names are compared without their namespaces.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from xml.etree import ElementTree as ET

import numpy as np
import pyarrow as pa

from watersmeet.errors import error
from watersmeet.formats.convert import MessageRules, convert, json_values
from watersmeet.formats.payloads import Read, spread
from watersmeet.formats.valuetexts import Converted, literal, plain_text
from watersmeet.formats.writers import SqlWriter, places
from watersmeet.values.types import Field, Schema, SqlType

#: The options: the comma-separated paths of elements that are rows; whether columns may be attributes of these; and the
#: prefix of a column's name for the path of the column.
ROW_TAGS: Final = "row_tags"

ATTRIBUTES: Final = "use_attributes"
PATH: Final = "path."
_STEP: Final = re.compile(r"(?:[\w.\-]+:)?(\w[\w.\-]*|\*)(\[\d+\])?")
_DECLARATION: Final = re.compile(rb"\s*<\?xml[^>]*\?>")
_ENCODING: Final = re.compile(rb"""<\?xml[^>]*encoding\s*=\s*["']([\w.\-]+)""")

#: The encodings in which a document type has the same bytes as in ASCII.
_ASCII: Final = (b"utf-8", b"us-ascii", b"iso-8859-1")

_Find = Callable[[ET.Element, ET.Element], str | ET.Element | None]


class _RefusedError(Exception):
    """The reason why a payload is rejected."""


class XmlReader:
    """Reads elements whose children or attributes are the columns. A payload may have several roots.

    Without `row_tags` the root is the row. A struct or array column consists of the child elements of its element, or
    of all elements with its name. Raises FEATURE_NOT_SUPPORTED for a path that has more than steps.
    """

    def __init__(self, fields: Sequence[Field], options: Mapping[str, str]) -> None:
        self._fields = fields
        self._rows = [_row_path(p.strip()) for p in options.get(ROW_TAGS, "").split(",") if p.strip()]
        has_attributes = options.get(ATTRIBUTES, "").lower() == "true"
        self._finds = [
            _by_path(options[PATH + f.name], f.name, [r for r, _ in self._rows])
            if PATH + f.name in options
            else _by_name(f.name, has_attributes=has_attributes)
            for f in fields
        ]

    def read(self, payloads: pa.BinaryArray) -> Read:
        cells: list[list[str | None]] = [[] for _ in self._fields]
        places: list[int] = []
        reasons: dict[int, str] = {}
        writers = [_json_text if f.type.is_nested else _text for f in self._fields]
        for place, payload in enumerate(payloads.to_pylist()):
            try:
                rows = [(row, root) for root in _parsed(payload) for row in self._rows_of(root)]
            except _RefusedError as why:
                reasons[place] = str(why)
                continue
            if not rows:
                reasons[place] = f"xml: there is no element {' or '.join(p for p, _ in self._rows)}"
            for row, root in rows:
                for column, find, write, values in zip(self._fields, self._finds, writers, cells, strict=True):
                    values.append(write(find(row, root), column, row))
            places += [place] * len(rows)
        return Read(self._converted(cells), np.array(places, np.int64), reasons)

    def _rows_of(self, root: ET.Element) -> list[ET.Element]:
        if not self._rows:
            return [root]
        return [row for _, find in self._rows for row in find(root)]

    def _converted(self, cells: Sequence[list[str | None]]) -> list[Converted]:
        texts = [pa.array(values, pa.string()) for values in cells]
        plain = [i for i, f in enumerate(self._fields) if not f.type.is_nested]
        done = dict(zip(plain, convert([texts[i] for i in plain], [self._fields[i].type for i in plain]), strict=True))
        for i, column in enumerate(self._fields):
            if i not in done:
                there = np.flatnonzero(texts[i].is_valid().to_numpy(zero_copy_only=False))
                done[i] = spread(
                    json_values(texts[i].take(pa.array(there)), column.type, MessageRules()), there, len(texts[i])
                )
        return [done[i] for i in range(len(self._fields))]


class _Tree(ET.TreeBuilder):
    def doctype(self, name: str, *_: str | None) -> None:
        """Rejects document types before they are read."""
        raise _RefusedError(f"xml: a document type ({name}) is not read")


def _parsed(payload: bytes) -> Sequence[ET.Element]:
    """The roots of a payload. Raises _RefusedError."""
    try:
        roots: Sequence[ET.Element] = [_document(payload)]
    except ET.ParseError as cause:
        if cause.code != 9:  # the error "junk after document element" may mean another document
            raise _RefusedError(f"xml: {cause}") from cause
        try:
            roots = list(_document(b"<_>" + _DECLARATION.sub(b"", payload) + b"</_>"))
        except (ET.ParseError, ValueError, LookupError):
            raise _RefusedError(f"xml: {cause}") from cause
    except (ValueError, LookupError) as cause:  # raised for an unknown encoding
        raise _RefusedError(f"xml: {cause}") from cause
    if b":" in payload or b"\0" in payload:
        for root in roots:
            for element in root.iter():
                _without_namespaces(element)
    return roots


def _document(payload: bytes) -> ET.Element:
    encoding = _ENCODING.match(payload.lstrip(b"\xef\xbb\xbf \t\r\n"))
    is_ascii = (encoding[1].lower() if encoding else b"utf-8") in _ASCII and b"\0" not in payload
    if is_ascii and b"<!DOCTYPE" not in payload:
        return ET.fromstring(payload)  # noqa: S314 - without a document type there are no entities
    return ET.fromstring(payload, ET.XMLParser(target=_Tree()))  # noqa: S314


def _without_namespaces(element: ET.Element) -> None:
    if isinstance(element.tag, str):
        element.tag = element.tag.rpartition("}")[2]
    for name in [n for n in element.attrib if "}" in n]:
        element.attrib.setdefault(name.rpartition("}")[2], element.attrib.pop(name))


def _row_path(path: str) -> tuple[str, Callable[[ET.Element], list[ET.Element]]]:
    """The path, and a function from a root to its rows: `/a/b` starts at the root, `b` and `//b` match at any depth."""
    steps = _steps(path.removeprefix("//").removeprefix("/"), path, "rows")
    inner = "/".join(steps[1:])
    if path.startswith("//") or not path.startswith("/"):
        return path, lambda root: [row for e in root.iter(steps[0]) for row in (e.findall(inner) if inner else [e])]
    return path, lambda root: [] if steps[0] not in (root.tag, "*") else root.findall(inner) if inner else [root]


def _by_path(path: str, column: str, rows: Sequence[str]) -> _Find:
    """Finds a column by its path from the row, or from the root if the path doesn't begin with the path of rows."""
    rest = path.strip()
    within = next((r for r in sorted(rows, key=len, reverse=True) if rest == r or rest.startswith(f"{r}/")), None)
    absolute = within is None and rest.startswith("/") and not rest.startswith("//")
    rest = rest if within is None else rest[len(within) :].removeprefix("/")
    is_deep = rest.startswith(("//", ".//"))
    steps = [s for s in rest.lstrip("./").removesuffix("/text()").split("/") if s != "text()" and s]
    attribute = steps.pop()[1:] if steps and steps[-1].startswith("@") else None
    steps = _steps("/".join(steps), path, f'column "{column}"') if steps else []
    inner = "/".join(steps)
    if inner and is_deep:
        inner = f".//{inner}"

    def find(row: ET.Element, root: ET.Element) -> str | ET.Element | None:
        found: ET.Element | None = row
        if absolute:
            below = "/".join(steps[1:])
            found = None if steps[0] not in (root.tag, "*") else root.find(below) if below else root
        elif inner:
            found = row.find(inner)
        if attribute is None or found is None:
            return found
        return found.get(attribute.rpartition(":")[2])

    return find


def _steps(path: str, whole: str, what: str) -> list[str]:
    """The steps of a path without namespace prefixes. Raises FEATURE_NOT_SUPPORTED."""
    found = [_STEP.fullmatch(step) for step in path.split("/")]
    if not all(found):
        raise error(
            "FEATURE_NOT_SUPPORTED",
            f'the path "{whole}" of {what} is not supported',
            hint="A path is names of elements with / between them, with [1], // and, last, @attribute.",
        )
    return [f"{step[1]}{step[2] or ''}" for step in found if step]


def _by_name(name: str, *, has_attributes: bool) -> _Find:
    """The child or attribute with a name, else with this name in another case."""
    folded = name.lower()

    def find(row: ET.Element, root: ET.Element) -> str | ET.Element | None:
        del root
        if has_attributes and name in row.attrib:
            return row.attrib[name]
        found = row.find(name) if _STEP.fullmatch(name) else None
        if found is not None:
            return found
        if has_attributes:
            same = next((v for n, v in row.attrib.items() if n.lower() == folded), None)
            if same is not None:
                return same
        return next((e for e in row if isinstance(e.tag, str) and e.tag.lower() == folded), None)

    return find


def _text(found: str | ET.Element | None, column: Field, row: ET.Element) -> str | None:
    """The text of a column. An empty element is an empty text for text columns, else NULL."""
    del row
    if found is None:
        return None
    said = found if isinstance(found, str) else "".join(found.itertext()) if len(found) else found.text or ""
    return said if column.type.name == "varchar" else said.strip() or None


def _json_text(found: str | ET.Element | None, column: Field, row: ET.Element) -> str | None:
    """An element as JSON for a column that is a struct or an array."""
    if found is None:
        return None
    return json.dumps(_value(found, column.type, row))


def _value(found: str | ET.Element, kind: SqlType, parent: ET.Element) -> Any:
    if isinstance(found, str):
        return found
    if kind.element is not None:
        alike = [e for e in parent if e.tag == found.tag] or [found]
        return [_value(e, kind.element, found) for e in alike]
    if kind.name == "struct":
        inner = {name: _by_name(name, has_attributes=True)(found, found) for name, _ in kind.fields}
        return {n: None if inner[n] is None else _value(inner[n], t, found) for n, t in kind.fields}  # type: ignore[arg-type]
    said = "".join(found.itertext())
    return said if kind.name == "varchar" else said.strip() or None


#: The options: the comma-separated elements around a row, outermost first; the elements around all rows of a file or
#: the row of a message; and the prefix of a column's name for the elements around its value.
ROW_ELEMENTS: Final = "row_elements"

DATA_ELEMENTS: Final = "data_elements"
ELEMENTS: Final = "elements."
_NAME: Final = re.compile(r"[^\W\d][\w.\-]*")

#: The replacement of characters that XML 1.0 can't contain.
_REPLACEMENT: Final = "�"

_NEVER: Final = "[\\x00-\\x08\\x0B\\x0C\\x0E-\\x1F￾￿]"
_ESCAPED: Final = (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("\r", "&#13;"))


def xml_writer(columns: Schema, options: Mapping[str, str]) -> SqlWriter:
    """Writes an element for each row, `row` by default, with one for each value that is not NULL.

    Raises CONNECTOR_OPTION for invalid names of elements.
    """
    parts = []
    for place, column in zip(places(columns), columns, strict=True):
        begin, end = tags(options.get(ELEMENTS + column.name, column.name))
        text = plain_text(place, column.type)
        if column.type.name in ("varchar", "jsonb") or column.type.is_nested:
            for character, escaped in _ESCAPED:
                text = f"replace({text}, {_character(character)}, {literal(escaped)})"
            text = f"regexp_replace({text}, {literal(_NEVER)}, {literal(_REPLACEMENT)}, 'g')"
        parts.append(f"coalesce({literal(begin)} || {text} || {literal(end)}, '')")
    begin, end = tags(options.get(ROW_ELEMENTS, "row"))
    return SqlWriter(columns, f"concat({literal(begin)}, {', '.join([*parts, literal(end)])})")


def tags(elements: str) -> tuple[str, str]:
    """The opening and the closing tags. Raises CONNECTOR_OPTION."""
    names = [n.strip() for n in elements.split(",")]
    _check(names)
    return "".join(f"<{n}>" for n in names), "".join(f"</{n}>" for n in reversed(names))


def _check(names: Sequence[str]) -> None:
    for name in names:
        if not _NAME.fullmatch(name):
            raise error("CONNECTOR_OPTION", f'XML can\'t have an element "{name}"', hint="Name another one.")


def _character(character: str) -> str:
    return literal(character) if character.isprintable() else f"chr({ord(character)})"
