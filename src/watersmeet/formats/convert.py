"""Converts text to typed columns, including JSON: objects, arrays and jsonb.

Numbers and strings in JSON are converted like other text, with all their digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.formats.jsonscan import (
    Parts,
    Places,
    canonical,
    compact,
    content,
    elements,
    first_bytes,
    is_valid,
    members,
    newest,
)
from watersmeet.formats.valuetexts import (
    FIRST_DAY,
    FIRST_US,
    LAST_DAY,
    LAST_US,
    Converted,
    Mask,
    convert_scalars,
    evaluate,
)
from watersmeet.values.times import DAY_US
from watersmeet.values.types import BIGINT, JSON_MAX_DEPTH, SqlType, is_json_too_deep

_BRACE, _BRACKET, _NULL, _QUOTE = b'{[n"'
_NUMBERS: Final = np.zeros(256, np.bool_)
_NUMBERS[list(b"-0123456789")] = True
_BOOLEANS: Final = np.zeros(256, np.bool_)
_BOOLEANS[list(b"tfn\0")] = True
_ZONED: Final = r"(?i):[0-9]{2}(?:[.,][0-9]+)?\s*(?:z|utc|[+-][0-9]{2}(?::?[0-9]{2}){0,2})\s*$"

#: The unit of numbers for timestamptz: by their size, milliseconds, microseconds, or not allowed. With
#: utc_without_suffix they are not allowed, and texts without a time zone are in UTC.
TimeNumbers = Literal["guess_number_unit", "milli", "micro", "utc_string", "utc_without_suffix"]


@dataclass(frozen=True)
class MessageRules:
    """The conversion of JSON values in messages to columns, where it differs from files.

    Keys match regardless of case if no key is equal. Only true and false are booleans. Numbers are dates (days), times
    (microseconds) and timestamps. Structs are also read from texts that are JSON objects. Source: RisingWave, "Ingest
    JSON data". times: the meaning of numbers and texts as timestamptz. base64: whether bytea is in Base64. json_texts:
    whether jsonb is a text.
    """

    times: TimeNumbers = "guess_number_unit"
    base64: bool = False
    json_texts: bool = False


#: None: the rules of files.
Rules = MessageRules | None


def convert(columns: Sequence[pa.Array], types: Sequence[SqlType]) -> list[Converted]:
    """Converts string columns to `types`. Nested types and jsonb are read from JSON text."""
    plain = [i for i, kind in enumerate(types) if not _is_json(kind)]
    done = dict(zip(plain, convert_scalars([columns[i] for i in plain], [types[i] for i in plain]), strict=True))
    return [done[i] if i in done else _from_text(columns[i], kind) for i, kind in enumerate(types)]


def json_objects(
    texts: pa.Array, names: Sequence[str], types: Sequence[SqlType], rules: Rules = None
) -> tuple[list[Converted], Mask]:
    """The members `names` of the JSON objects in `texts` as columns, and the mask of texts that are not JSON objects.

    The columns have rows only for objects. A missing or null member is NULL. The last of equal keys counts.
    """
    good = (first_bytes(texts) == _BRACE) & is_valid(texts)
    return _members(texts if good.all() else texts.filter(pa.array(good)), names, types, rules), ~good


def json_values(texts: pa.Array, kind: SqlType, rules: Rules) -> Converted:
    """Valid JSON texts, without NULL, as a column."""
    data, offsets = content(pc.utf8_trim(texts, " \t\r\n"))
    part = Parts(data, np.arange(len(texts), dtype=np.int64), offsets[:-1], offsets[1:])
    return _typed([part], [kind], rules)[0]


def _is_json(kind: SqlType) -> bool:
    return kind.is_nested or kind.name == "jsonb"


def _from_text(texts: pa.Array, kind: SqlType) -> Converted:
    """A column from texts that may be invalid JSON."""
    valid = is_valid(texts)
    present = texts.is_valid().to_numpy(zero_copy_only=False)
    wrong = present & ~valid
    known = texts if valid.all() else _spread(texts.filter(pa.array(valid)), valid)
    done = _documents(known) if kind.name == "jsonb" else _nested(known, kind, None)
    return done.with_bad(wrong)


def _members(objects: pa.StringArray, names: Sequence[str], types: Sequence[SqlType], rules: Rules) -> list[Converted]:
    """Members of valid JSON objects, without NULL."""
    keys, found = members(objects)
    codes = _positions(keys, names)
    parts = [newest(codes, i, found, len(objects)) for i in range(len(names))]
    if rules is not None and (codes < 0).any():
        _match_in_any_case(parts, keys, codes, names, found)
    return _typed(parts, types, rules)


def _match_in_any_case(
    parts: list[Parts], keys: pa.StringArray, codes: npt.NDArray[np.int32], names: Sequence[str], found: Parts
) -> None:
    """For objects without a key that equals a name, use the last key that equals it except for case."""
    lower = [name.lower() for name in names]
    folded = _positions(pc.utf8_lower(keys), sorted(set(lower)))
    for code, name in enumerate(sorted(set(lower))):
        alike = folded == code
        for i in [i for i, other in enumerate(lower) if other == name]:
            exact = codes == i
            if not (alike & ~exact).any():
                continue
            has_exact = np.zeros(len(parts[i]), np.bool_)
            has_exact[found.rows[exact]] = True
            wanted = exact | (alike & ~has_exact[found.rows])
            parts[i] = newest(wanted.astype(np.int32), 1, found, len(parts[i]))


def _positions(keys: pa.StringArray, names: Sequence[str]) -> npt.NDArray[np.int32]:
    """The position of each key among the names, -1 for others."""
    found = pc.index_in(keys, value_set=pa.array(names, pa.string()))
    result: npt.NDArray[np.int32] = pc.fill_null(found, -1).to_numpy(zero_copy_only=False)
    return result


def _typed(parts: Sequence[Parts], types: Sequence[SqlType], rules: Rules) -> list[Converted]:
    """JSON values converted to columns."""
    done: dict[int, Converted] = {}
    if rules is not None:
        done = {i: found for i, kind in enumerate(types) if (found := _by_rules(parts[i], kind, rules)) is not None}
    plain = [i for i, kind in enumerate(types) if not _is_json(kind) and i not in done]
    texts = [_said(parts[i], types[i]) for i in plain]
    done.update(zip(plain, convert_scalars(texts, [types[i] for i in plain]), strict=True))
    for i, kind in enumerate(types):
        if i in done:
            continue
        done[i] = _documents(parts[i].texts()) if kind.name == "jsonb" else _nested(parts[i].texts(), kind, rules)
    return [done[i] for i in range(len(types))]


def _by_rules(part: Parts, kind: SqlType, rules: MessageRules) -> Converted | None:
    """JSON values as a column if the rules of messages differ from those of files, else None."""
    quoted = part.firsts == _QUOTE
    if kind.name == "boolean":
        odd = ~_BOOLEANS[part.firsts]
        return _except(part.contents(), kind, odd) if odd.any() else None
    if kind.name in ("date", "time", "timestamp", "timestamptz"):
        return _moments(part, kind, rules)
    if kind.name == "bytea" and rules.base64:
        (column,) = evaluate([_where(part.contents(), quoted)], ["TRY(from_base64(t0))"])
        return Converted(column, _lost(part, column))
    if kind.name == "struct" or (kind.name == "jsonb" and rules.json_texts):
        if not quoted.any():
            return None
        texts, said = part.texts(), part.contents()
        wrong = quoted & ~is_valid(said)
        texts = _where(pc.if_else(pa.array(quoted), said, texts), ~wrong)
        found = _documents(texts) if kind.name == "jsonb" else _nested(texts, kind, rules)
        return found.with_bad(wrong)
    return None


def are_zoned(texts: pa.StringArray, rules: MessageRules) -> Mask:
    """The mask of texts that have a time zone or need none."""
    if rules.times == "utc_without_suffix":
        return np.ones(len(texts), np.bool_)
    zoned: Mask = pc.fill_null(pc.match_substring_regex(texts, _ZONED), fill_value=True).to_numpy(zero_copy_only=False)
    return zoned


def _moments(part: Parts, kind: SqlType, rules: MessageRules) -> Converted | None:
    """Dates, times and timestamps from numbers and texts."""
    numbers = _NUMBERS[part.firsts]
    texts = part.contents()
    wrong = np.zeros(len(part), np.bool_)
    if kind.name == "timestamptz":
        wrong = ~are_zoned(texts, rules) & ~numbers
    if not numbers.any():
        return _except(texts, kind, wrong) if wrong.any() else None
    found = _except(texts, kind, wrong | numbers)
    whole = convert_scalars([_where(texts, numbers)], [BIGINT])[0].column
    said = moments_of(whole, kind, rules)
    fits = said.column.is_valid()
    bad = numbers & ~fits.to_numpy(zero_copy_only=False)
    assert found.bad is not None
    return Converted(pc.if_else(fits, said.column, found.column), (found.bad & ~numbers) | bad)


def moments_of(numbers: pa.Array, kind: SqlType, rules: MessageRules) -> Converted:
    """Whole numbers (int64) converted to dates, times or timestamps."""
    values = pc.fill_null(numbers, 0).to_numpy(zero_copy_only=False)
    null = numbers.is_null().to_numpy(zero_copy_only=False)
    values, fits = _from_numbers(values, kind, rules)
    values = np.where(fits, values, 0)
    column = pa.array(values.astype(np.int32) if kind.name == "date" else values, mask=null | ~fits).view(kind.arrow)
    bad = ~fits & ~null
    return Converted(column, bad if bad.any() else None)


def _from_numbers(values: Places, kind: SqlType, rules: MessageRules) -> tuple[Places, Mask]:
    """The days or microseconds, and the mask of those in range.

    Source of the sizes that determine the unit: RisingWave, "Ingest JSON data", timestamptz.handling.mode.
    """
    if kind.name == "date":
        return values, (values >= FIRST_DAY) & (values <= LAST_DAY)
    if kind.name == "time":
        return values, (values >= 0) & (values < DAY_US)
    mode = rules.times if kind.name == "timestamptz" else "guess_number_unit"
    if mode == "micro":
        return values, (values >= FIRST_US) & (values <= LAST_US)
    if mode == "milli":
        return values * 1000, (values >= FIRST_US // 1000) & (values <= LAST_US // 1000)
    if mode != "guess_number_unit":
        return values, np.zeros(len(values), np.bool_)
    e11, e14, e17 = 10**11, 10**14, 10**17
    micros = np.select(
        [values < e11, values < e14, values < e17], [values * 1_000_000, values * 1000, values], values // 1000
    )
    return micros, values >= 0


def _except(texts: pa.Array, kind: SqlType, wrong: Mask) -> Converted:
    """Text converted to a scalar type; non-NULL values in the mask `wrong` are bad."""
    present = texts.is_valid().to_numpy(zero_copy_only=False)
    (found,) = convert_scalars([_where(texts, ~wrong)], [kind])
    return Converted(found.column, (wrong & present) if found.bad is None else (wrong & present) | found.bad)


def _where(texts: pa.Array, mask: Mask) -> pa.Array:
    """The values, with NULL where the mask is not true."""
    return texts if mask.all() else pc.if_else(pa.array(mask), texts, pa.scalar(None, texts.type))


def _lost(part: Parts, column: pa.Array) -> Mask | None:
    bad: Mask = column.is_null().to_numpy(zero_copy_only=False) & (part.firsts != 0) & (part.firsts != _NULL)
    return bad if bad.any() else None


def _said(part: Parts, kind: SqlType) -> pa.Array:
    """JSON values as text; objects and arrays in compact form, with their keys in the order of the message."""
    texts = part.contents()
    if kind.name != "varchar":
        return texts
    containers = (part.firsts == _BRACE) | (part.firsts == _BRACKET)
    if not containers.any():
        return texts
    chosen = pa.array(containers)
    return pc.replace_with_mask(texts, chosen, compact(texts.filter(chosen)))


def _documents(texts: pa.StringArray) -> Converted:
    """Valid JSON as jsonb; too deeply nested values are bad."""
    sizes = pc.fill_null(pc.binary_length(texts), 0).to_numpy(zero_copy_only=False)
    long = np.flatnonzero(sizes > 2 * JSON_MAX_DEPTH)
    deep = [row for row in long.tolist() if is_json_too_deep(texts[row].as_py())]
    if not deep:
        return Converted(canonical(texts))
    bad = np.zeros(len(texts), np.bool_)
    bad[deep] = True
    return Converted(canonical(pc.if_else(pa.array(bad), pa.scalar(None, texts.type), texts)), bad)


def _nested(texts: pa.StringArray, kind: SqlType, rules: Rules) -> Converted:
    """Arrays and structs from valid JSON. A bad part makes the whole value bad."""
    firsts = first_bytes(texts)
    good = firsts == (_BRACKET if kind.name == "array" else _BRACE)
    bad = ~good & (firsts != 0) & (firsts != _NULL)
    chosen = texts if good.all() else texts.filter(pa.array(good))
    rows = np.flatnonzero(good)
    if kind.name == "struct":
        parts = _members(chosen, [name for name, _ in kind.fields], [part for _, part in kind.fields], rules)
        for part in parts:
            if part.bad is not None:
                bad[rows[part.bad]] = True
        columns = [part.column if good.all() else _spread(part.column, good) for part in parts]
        column = pa.StructArray.from_arrays(columns, fields=list(kind.arrow), mask=pa.array(~good | bad))
        return Converted(column, bad if bad.any() else None)
    assert kind.element is not None
    if kind.name == "map":
        keys, found = _newest_members(chosen)
        (key,) = convert_scalars([keys], [kind.entry[0]])
        (item,) = _typed([found], [kind.entry[1]], rules)
        entries = pa.StructArray.from_arrays([key.column, item.column], fields=list(kind.element.arrow))
        masks = [part.bad for part in (key, item) if part.bad is not None]
        element = Converted(entries, np.logical_or.reduce(masks) if masks else None)
    else:
        found = elements(chosen)
        (element,) = _typed([found], [kind.element], rules)
    if element.bad is not None:
        bad[rows[found.rows[element.bad]]] = True
    offsets = np.zeros(len(texts) + 1, np.int32)
    offsets[1:][good] = np.bincount(found.rows, minlength=len(chosen))
    np.cumsum(offsets, out=offsets)
    column = pa.ListArray.from_arrays(pa.array(offsets), element.column, type=kind.arrow, mask=pa.array(~good | bad))
    return Converted(column, bad if bad.any() else None)


def _newest_members(objects: pa.StringArray) -> tuple[pa.StringArray, Parts]:
    """The keys and values of JSON objects, in order; the last of equal keys."""
    keys, found = members(objects)
    codes = keys.dictionary_encode().indices.to_numpy()
    _, last = np.unique((found.rows * (len(keys) + 1) + codes)[::-1], return_index=True)
    if len(last) == len(keys):
        return keys, found
    kept = np.sort(len(keys) - 1 - last)
    return keys.take(pa.array(kept)), Parts(found.data, found.rows[kept], found.starts[kept], found.ends[kept])


def _spread(column: pa.Array, where: Mask) -> pa.Array:
    """The values of `column` at the places `where`, NULL elsewhere."""
    return column.take(pa.array(np.cumsum(where) - 1, mask=~where))
