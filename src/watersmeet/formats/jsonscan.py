"""Finds the members of JSON objects and the elements of JSON arrays.

All texts are scanned together as bytes with NumPy. Values are not parsed: digits are kept (DuckDB's JSON functions read
a number with a fraction as a double), the last of equal keys can be used, and nesting has no limit. The texts must be
valid JSON; see `is_valid`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.formats.valuetexts import Mask, evaluate
from watersmeet.values.packing import offsets

Places = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

_QUOTE, _BACKSLASH, _COMMA, _COLON = b'",:'[0], b"\\"[0], b","[0], b":"[0]
_STEP: Final = np.zeros(256, np.int8)
_STEP[list(b"{[")] = 1
_STEP[list(b"}]")] = -1
_TOKEN: Final = _STEP != 0
_TOKEN[list(b'",:')] = True
_SPACE: Final = np.zeros(256, np.bool_)
_SPACE[list(b" \t\r\n")] = True

_LAX: Final = r"(?i),[ \t\r\n]*[}\]]|nan|inf"
"""Invalid JSON (RFC 8259) that DuckDB accepts: commas before a closing bracket, NaN and Infinity."""
_STRING: Final = r'"(?:[^"\\]|\\.)*"'


def is_valid(texts: pa.StringArray) -> Mask:
    """The mask of texts that are JSON by RFC 8259; NULL is not."""
    (found,) = evaluate([texts], ["json_valid(t0)"])
    valid: Mask = np.array(pc.fill_null(found, fill_value=False).to_numpy(zero_copy_only=False))
    odd = pc.fill_null(pc.match_substring_regex(texts, _LAX), fill_value=False).to_numpy(zero_copy_only=False) & valid
    if odd.any():
        without = pc.replace_substring_regex(texts.filter(pa.array(odd)), _STRING, '""')
        valid[odd] = ~pc.match_substring_regex(without, _LAX).to_numpy(zero_copy_only=False)
    return valid


def first_bytes(texts: pa.StringArray) -> Bytes:
    """The first byte of each text other than white space; 0 for none, and for NULL."""
    data, offsets = content(texts)
    result = np.zeros(len(texts), np.uint8)
    starts = _skip_space(data, offsets[:-1].copy(), offsets[1:])
    some = starts < offsets[1:]
    if texts.null_count:
        some &= texts.is_valid().to_numpy(zero_copy_only=False)
    result[some] = data[starts[some]]
    return result


def unquoted(texts: pa.StringArray) -> pa.StringArray:
    """The contents of strings of JSON."""
    data, bounds = content(texts)
    return Parts(data, np.arange(len(texts)), bounds[:-1], bounds[1:]).contents()


@dataclass(frozen=True)
class Parts:
    """Values in JSON texts. rows: the number of each value's text, ascending. Value i is bytes [starts[i], ends[i]) of
    `data`; a missing value is empty.
    """

    data: Bytes
    rows: Places
    starts: Places
    ends: Places

    def __len__(self) -> int:
        return len(self.starts)

    @cached_property
    def firsts(self) -> Bytes:
        """The first byte of each value, which determines its kind; 0 for a missing value."""
        if not len(self.data):
            return np.zeros(len(self), np.uint8)
        return np.where(self.ends > self.starts, self.data[np.minimum(self.starts, len(self.data) - 1)], 0)

    def texts(self) -> pa.StringArray:
        """The values as written; NULL for null and missing ones."""
        return self._cut(self.starts, self.ends)

    def contents(self) -> pa.StringArray:
        """Like `texts`, but with unquoted and unescaped strings."""
        quoted = (self.firsts == _QUOTE).astype(np.int64)
        found = self._cut(self.starts + quoted, self.ends - quoted)
        escaped = quoted.astype(np.bool_) & _holds(self.data, _BACKSLASH, self.starts, self.ends)
        if not escaped.any():
            return found
        written = self.texts().filter(pa.array(escaped))
        (said,) = evaluate([written], ["t0 ->> '$'"])
        return pc.replace_with_mask(found, pa.array(escaped), said)

    def _cut(self, starts: Places, ends: Places) -> pa.StringArray:
        null = (self.firsts == b"n"[0]) | (self.firsts == 0)
        return cut(self.data, starts, ends, null if null.any() else None)


def cut(data: Bytes, starts: Places, ends: Places, null: Mask | None = None) -> pa.StringArray:
    """The bytes [starts[i], ends[i]) as strings. They ascend and don't overlap."""
    count = len(starts)
    if not count:
        return pa.array([], pa.string())
    offsets = np.empty(2 * count, np.int32)
    offsets[0::2], offsets[1::2] = starts, ends
    # every other piece lies between two of the strings
    pieces = pa.StringArray.from_buffers(2 * count - 1, pa.py_buffer(offsets), pa.py_buffer(data))
    return pieces.take(pa.array(np.arange(0, 2 * count, 2), mask=null))


def members(texts: pa.StringArray) -> tuple[pa.StringArray, Parts]:
    """The unescaped keys and the values of JSON objects. Keys are never NULL."""
    tokens = _Tokens.of(texts)
    left, right, rows = tokens.parts()
    some = right > left + 1
    left, right, rows = left[some], right[some], rows[some]
    opening, closing = tokens.places[left + 1], tokens.places[left + 2]
    return _keys(tokens.data, opening, closing), tokens.values(left + 3, right, rows)


def elements(texts: pa.StringArray) -> Parts:
    """The values of JSON arrays."""
    tokens = _Tokens.of(texts)
    found = tokens.values(*tokens.parts())
    some = found.ends > found.starts
    if some.all():
        return found
    return Parts(found.data, found.rows[some], found.starts[some], found.ends[some])


def newest(codes: npt.NDArray[np.int32], wanted: int, found: Parts, count: int) -> Parts:
    """The last value in each of `count` texts whose key has the code `wanted`."""
    which = np.flatnonzero(codes == wanted)
    if not len(which):
        nowhere = np.zeros(count, np.int64)
        return Parts(found.data, np.arange(count), nowhere, nowhere)
    place = np.full(count, -1, np.int64)
    place[found.rows[which]] = which  # the last of several values for a row
    rows = np.arange(count, dtype=np.int64)
    missing = place < 0
    if not missing.any():
        return Parts(found.data, rows, found.starts[place], found.ends[place])
    # a missing value is empty and follows the previous value, so that positions ascend
    seen = np.maximum.accumulate(np.where(missing, 0, found.ends[place]))
    return Parts(
        found.data, rows, np.where(missing, seen, found.starts[place]), np.where(missing, seen, found.ends[place])
    )


def member(objects: pa.StringArray, name: str) -> pa.StringArray:
    """The member `name` of JSON objects; NULL if it is null or missing."""
    keys, found = members(objects)
    codes = pc.equal(keys, name).cast(pa.int32()).to_numpy()
    return newest(codes, 1, found, len(objects)).texts()


def first_deep(texts: pa.StringArray, name: str) -> pa.StringArray:
    """The first member `name` in JSON objects and arrays at any depth; a direct member precedes all others. NULL if it
    is null or missing.
    """
    tokens = _Tokens.of(texts)
    colons = np.flatnonzero(tokens.kinds == _COLON)
    keys = _keys(tokens.data, tokens.places[colons - 2], tokens.places[colons - 1])
    colons = colons[pc.equal(keys, name).to_numpy(zero_copy_only=False)]
    rows = np.searchsorted(tokens.offsets, tokens.places[colons], "right") - 1
    order = np.lexsort((colons, tokens.depths[colons] > 1, rows))
    colons, rows = colons[order], rows[order]
    first = np.diff(rows, prepend=-1) != 0
    colons, rows = colons[first], rows[first]
    ends = np.zeros(len(colons), np.int64)
    for depth in np.unique(tokens.depths[colons]).tolist():
        at = tokens.depths[colons] == depth
        bounds = np.flatnonzero(((tokens.kinds == _COMMA) & (tokens.depths == depth)) | (tokens.depths < depth))
        ends[at] = bounds[np.searchsorted(bounds, colons[at])]
    found = tokens.values(colons, ends, rows).texts()
    take = np.full(len(texts), -1, np.int64)
    take[rows] = np.arange(len(rows))
    return found.take(pa.array(take, mask=take < 0))


def canonical(texts: pa.StringArray) -> pa.StringArray:
    """JSON texts in the stored form of jsonb: compact, with the keys of each object in the order of their bytes."""
    if texts.null_count:
        return pc.replace_with_mask(texts, texts.is_valid(), canonical(texts.drop_null()))
    return _sorted(compact(texts))


def compact(texts: pa.StringArray) -> pa.StringArray:
    """JSON texts without white space and needless escapes, with the last of equal keys. None of them is NULL."""
    return _last_keys(_plain(_without_space(texts)))


def content(texts: pa.StringArray) -> tuple[Bytes, Places]:
    """The bytes of all texts, and the beginning of each text and the end."""
    data = texts.buffers()[2]
    if data is None or not len(texts):
        return np.zeros(0, np.uint8), np.zeros(len(texts) + 1, np.int64)
    bounds = offsets(texts)
    return np.frombuffer(data, np.uint8)[bounds[0] : bounds[-1]], bounds - bounds[0]


def _strings(data: Bytes, offsets: Places) -> pa.StringArray:
    return pa.StringArray.from_buffers(
        len(offsets) - 1, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(np.ascontiguousarray(data))
    )


def _without(data: Bytes, offsets: Places, dropped: Places) -> pa.StringArray:
    """The texts without the bytes at some ascending positions."""
    keep = np.ones(len(data), np.bool_)
    keep[dropped] = False
    return _strings(data[keep], offsets - np.searchsorted(dropped, offsets))


def _skip_space(data: Bytes, starts: Places, ends: Places) -> Places:
    """Moves `starts` past white space, at most to `ends`. Changes the array."""
    if not len(data):
        return starts
    last = len(data) - 1
    blank = _SPACE[data[np.minimum(starts, last)]] & (starts < ends)
    starts[blank] += 1
    blank &= _SPACE[data[np.minimum(starts, last)]] & (starts < ends)
    if blank.any():
        solid = np.append(np.flatnonzero(~_SPACE[data]), len(data))
        starts[blank] = np.minimum(solid[np.searchsorted(solid, starts[blank])], ends[blank])
    return starts


def _drop_space(data: Bytes, starts: Places, ends: Places) -> Places:
    """Moves `ends` before white space, at least to `starts`. Changes the array."""
    blank = ends > starts
    blank[blank] = _SPACE[data[ends[blank] - 1]]
    if blank.any():
        solid = np.concatenate([[-1], np.flatnonzero(~_SPACE[data])])
        ends[blank] = np.maximum(solid[np.searchsorted(solid, ends[blank]) - 1] + 1, starts[blank])
    return ends


def _holds(data: Bytes, byte: int, starts: Places, ends: Places) -> Mask:
    """The mask of ranges that contain the byte."""
    places = np.flatnonzero(data == byte)
    if not len(places):
        return np.zeros(len(starts), np.bool_)
    return np.searchsorted(places, starts) < np.searchsorted(places, ends)


def _keys(data: Bytes, opening: Places, closing: Places) -> pa.StringArray:
    return Parts(data, opening, opening, closing + 1).contents()


@dataclass(frozen=True)
class _Tokens:
    """Brackets, commas, colons and the quotes of strings: positions, bytes, and the depth after them."""

    data: Bytes
    offsets: Places
    places: Places
    kinds: Bytes
    depths: npt.NDArray[np.int32]

    @staticmethod
    def of(texts: pa.StringArray) -> _Tokens:
        data, offsets = content(texts)
        places = np.flatnonzero(_TOKEN[data])
        backslashes = np.flatnonzero(data == _BACKSLASH)
        if len(backslashes):
            begins = np.diff(backslashes, prepend=-2) != 1
            run = backslashes[begins][np.cumsum(begins) - 1]
            escaped = backslashes[(backslashes - run) % 2 == 0] + 1
            escaped = escaped[data[escaped] == _QUOTE]
            places = np.delete(places, np.searchsorted(places, escaped))
        kinds = data[places]
        quotes = kinds == _QUOTE
        # the sum is odd after an opening quote and may overflow
        outside = quotes | (np.cumsum(quotes, dtype=np.uint8) % 2 == 0)
        places, kinds = places[outside], kinds[outside]
        return _Tokens(data, offsets, places, kinds, np.cumsum(_STEP[kinds], dtype=np.int32))

    def parts(self) -> tuple[Places, Places, Places]:
        """The left token, right token and text of each part between brackets and commas of the outermost level."""
        top = (self.depths == 1) & ((self.kinds == _COMMA) | (_STEP[self.kinds] == 1))
        bounds = np.flatnonzero(top | (self.depths == 0))
        ends = self.depths[bounds] == 0
        rows = np.cumsum(ends)[~ends]
        left = np.flatnonzero(~ends)
        return bounds[left], bounds[left + 1], rows

    def values(self, left: Places, right: Places, rows: Places) -> Parts:
        """The value between each pair of tokens."""
        starts, ends = self.places[left] + 1, self.places[right].copy()
        tokens = right > left + 1
        starts[tokens] = self.places[left[tokens] + 1]
        ends[tokens] = self.places[right[tokens] - 1] + 1
        return Parts(self.data, rows, _skip_space(self.data, starts, ends), _drop_space(self.data, starts, ends))


def _without_space(texts: pa.StringArray) -> pa.StringArray:
    """JSON texts without white space between tokens."""
    data, offsets = content(texts)
    spaces = np.flatnonzero(_SPACE[data])
    if not len(spaces):
        return texts
    tokens = _Tokens.of(texts)
    quotes = tokens.places[tokens.kinds == _QUOTE]
    return _without(data, offsets, spaces[np.searchsorted(quotes, spaces) % 2 == 0])


def _plain(texts: pa.StringArray) -> pa.StringArray:
    """JSON texts whose strings have only necessary escapes."""
    data, offsets = content(texts)
    if not (data == _BACKSLASH).any():
        return texts
    tokens = _Tokens.of(texts)
    quotes = tokens.places[tokens.kinds == _QUOTE]
    opening, closing = quotes[0::2], quotes[1::2] + 1
    escaped = _holds(data, _BACKSLASH, opening, closing)
    opening, closing = opening[escaped], closing[escaped]
    (said,) = evaluate([cut(data, opening, closing)], ["CAST(json(t0) AS VARCHAR)"])
    # the texts are divided into escaped strings and the ranges between them, which end at the bounds of texts
    bounds = np.sort(np.concatenate([offsets, opening, closing]))
    bounds = bounds[np.diff(bounds, prepend=-1) != 0]
    pieces = _strings(data, bounds)
    strings = np.zeros(len(pieces), np.bool_)
    strings[np.searchsorted(bounds, opening)] = True
    changed, places = content(pc.replace_with_mask(pieces, pa.array(strings), said))
    return _strings(changed, places[np.searchsorted(bounds, offsets)])


def _last_keys(texts: pa.StringArray) -> pa.StringArray:
    """Plain and compact JSON texts with only the last of equal keys."""
    tokens = _Tokens.of(texts)
    # after sorting by depth, the members of an object directly follow its bracket
    order = np.argsort(tokens.depths, kind="stable")
    kinds = tokens.kinds[order]
    colons, commas = np.flatnonzero(kinds == _COLON), np.flatnonzero(kinds == _COMMA)
    if len(colons) < 2:
        return texts
    parents = np.cumsum(_STEP[kinds] == 1)[colons]
    colon = order[colons]
    ascending = np.argsort(colon)
    keys = cut(tokens.data, tokens.places[colon[ascending] - 2], tokens.places[colon[ascending] - 1])
    codes = np.empty(len(colon), np.int64)
    codes[ascending] = keys.dictionary_encode().indices.to_numpy()
    same = parents * (codes.max() + 1) + codes
    sorted_ = np.argsort(same, kind="stable")
    again = np.flatnonzero(same[sorted_[1:]] == same[sorted_[:-1]])
    if not len(again):
        return texts
    older = sorted_[again]
    comma = order[commas[np.searchsorted(commas, colons[older])]]
    steps = np.zeros(len(tokens.data) + 1, np.int64)
    np.add.at(steps, tokens.places[colon[older] - 2], 1)
    np.add.at(steps, tokens.places[comma] + 1, -1)
    return _without(tokens.data, tokens.offsets, np.flatnonzero(np.cumsum(steps)[:-1]))


def _sorted(texts: pa.StringArray) -> pa.StringArray:
    """Compact JSON texts with the members of each object in the order of their keys.

    Members keep their lengths, so each byte moves by the sum of the distances of the members that contain it.
    """
    tokens = _Tokens.of(texts)
    # after sorting by depth, the members of an object directly follow its bracket
    order = np.argsort(tokens.depths, kind="stable")
    kinds = tokens.kinds[order]
    places = np.flatnonzero(kinds == _COLON)
    if len(places) < 2:
        return texts
    parents, colons = (np.cumsum(_STEP[kinds] == 1) - 1)[places], order[places]
    starts = tokens.places[colons - 2]
    ascending = np.argsort(starts)
    keys = _keys(tokens.data, starts[ascending], tokens.places[colons[ascending] - 1]).dictionary_encode()
    ranks = np.empty(len(keys.dictionary), np.int64)
    ranks[pc.sort_indices(keys.dictionary).to_numpy()] = np.arange(len(ranks))
    codes = np.empty(len(colons), np.int64)
    codes[ascending] = ranks[keys.indices.to_numpy()]
    slots = np.lexsort((codes, parents))
    if (slots == np.arange(len(slots))).all():
        return texts
    last = np.append(parents[1:] != parents[:-1], True)
    closes = np.flatnonzero(_STEP[tokens.kinds] == -1)
    closes = tokens.places[closes[np.argsort(tokens.depths[closes], kind="stable")]]
    ends = np.where(last, closes[parents], np.append(starts[1:], 0) - 1)
    return _strings(_moved(tokens.data, starts, ends, slots, last), tokens.offsets)


def _moved(data: Bytes, starts: Places, ends: Places, slots: Places, last: Mask) -> Bytes:
    """The bytes with members in other places: member `slots[i]` in place i. last: whether a place is the last of its
    object; commas follow all others.
    """
    lengths = (ends - starts)[slots]
    first = np.append(True, last[:-1])
    passed = np.cumsum(lengths + 1) - lengths - 1  # of all places before
    group = np.cumsum(first) - 1
    begins = starts[first][group] + passed - passed[first][group]
    steps = np.zeros(len(data) + 1, np.int64)
    np.add.at(steps, starts[slots], begins - starts[slots])
    np.add.at(steps, ends[slots], starts[slots] - begins)
    commas = ends[~last]
    distances = (begins + lengths)[~last] - commas
    np.add.at(steps, commas, distances)
    np.add.at(steps, commas + 1, -distances)
    moved = np.empty_like(data)
    moved[np.arange(len(data)) + np.cumsum(steps)[:-1]] = data
    return moved


_TOKENS: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[ \t\r\n]+|[{}\[\],:]|[^"{}\[\],: \t\r\n]+', re.DOTALL)


def canonical_text(text: str) -> str:
    r"""Valid JSON in the stored form of jsonb: without white space and needless escapes, with the last of equal keys,
    and with keys in the order of their bytes, as in RisingWave.

    The same as `canonical` for a single text.

    >>> canonical_text('{"b": 1.50, "a": {"c": 1, "c": 2}, "\\u0062": [3]}')
    '{"a":{"c":2},"b":[3]}'
    """
    #: The members of the enclosing objects (by their keys) and arrays, and the last key of each.
    around: list[tuple[dict[str, str] | list[str], list[str]]] = []
    whole = ""
    for token in _TOKENS.findall(text):
        sign = token[0]
        if sign in "{[":
            around.append(({} if sign == "{" else [], []))
            continue
        if sign in " \t\r\n,:":
            continue
        if sign in "}]":
            members, _ = around.pop()
            value = _sorted_object(members) if isinstance(members, dict) else f"[{','.join(members)}]"
        else:
            value = _plain_string(token) if sign == '"' else token
        if not around:
            whole = value
            continue
        members, key = around[-1]
        if isinstance(members, list):
            members.append(value)
        elif key:
            members[key.pop()] = value
        else:
            key.append(value)
    return whole


def _sorted_object(members: dict[str, str]) -> str:
    """The text of an object with sorted keys."""
    order = sorted(members, key=lambda key: json.loads(key, strict=False).encode("utf-8", "surrogatepass"))
    return "{" + ",".join(f"{key}:{members[key]}" for key in order) + "}"


def _plain_string(string: str) -> str:
    """A string of JSON without unnecessary escapes."""
    if "\\" not in string:
        return string
    plain = json.dumps(json.loads(string, strict=False), ensure_ascii=False)
    return string if re.search("[\ud800-\udfff]", plain) else plain
