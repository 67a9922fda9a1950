"""From text to typed columns, JSON among it: objects, arrays and jsonb.

Numbers and strings inside of JSON are converted as the same text is elsewhere, with all their digits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.formats.jsonscan import (
    Parts,
    canonical,
    elements,
    first_bytes,
    is_valid,
    members,
    newest,
)
from watersmeet.formats.scalars import Converted, Mask, convert_scalars
from watersmeet.types import JSON_MAX_DEPTH, SqlType, is_json_too_deep

_BRACE, _BRACKET, _NULL = b"{"[0], b"["[0], b"n"[0]


def convert(columns: Sequence[pa.Array], types: Sequence[SqlType]) -> list[Converted]:
    """String columns as `types`. Nested types and jsonb are read from JSON text."""
    plain = [i for i, kind in enumerate(types) if not _is_json(kind)]
    done = dict(zip(plain, convert_scalars([columns[i] for i in plain], [types[i] for i in plain]), strict=True))
    return [done[i] if i in done else _from_text(columns[i], kind) for i, kind in enumerate(types)]


def json_objects(texts: pa.Array, names: Sequence[str], types: Sequence[SqlType]) -> tuple[list[Converted], Mask]:
    """(the members `names` of the JSON objects among `texts` as columns, which texts are no JSON object).

    The columns have no row for what is no object. A member that is missing or null is NULL. Of members with the same
    key the last one counts.
    """
    good = (first_bytes(texts) == _BRACE) & is_valid(texts)
    return _members(texts if good.all() else texts.filter(pa.array(good)), names, types), ~good


def _is_json(kind: SqlType) -> bool:
    return kind.is_nested or kind.name == "jsonb"


def _from_text(texts: pa.Array, kind: SqlType) -> Converted:
    """JSON of which nobody knows whether it is valid."""
    valid = is_valid(texts)
    present = texts.is_valid().to_numpy(zero_copy_only=False)
    wrong = present & ~valid
    known = texts if valid.all() else _spread(texts.filter(pa.array(valid)), valid)
    done = _documents(known) if kind.name == "jsonb" else _nested(known, kind)
    return done if not wrong.any() else Converted(done.column, wrong if done.bad is None else wrong | done.bad)


def _members(objects: pa.StringArray, names: Sequence[str], types: Sequence[SqlType]) -> list[Converted]:
    """Members of valid JSON objects, without NULL."""
    keys, found = members(objects)
    codes = _places(keys, names)
    return _typed([newest(codes, i, found, len(objects)) for i in range(len(names))], types)


def _places(keys: pa.StringArray, names: Sequence[str]) -> npt.NDArray[np.int32]:
    """The place of each key among the names, -1 for those that nobody wants."""
    found = pc.index_in(keys, value_set=pa.array(names, pa.string()))
    result: npt.NDArray[np.int32] = pc.fill_null(found, -1).to_numpy(zero_copy_only=False)
    return result


def _typed(parts: Sequence[Parts], types: Sequence[SqlType]) -> list[Converted]:
    """JSON values as columns."""
    plain = [i for i, kind in enumerate(types) if not _is_json(kind)]
    texts = [_said(parts[i], types[i]) for i in plain]
    done = dict(zip(plain, convert_scalars(texts, [types[i] for i in plain]), strict=True))
    for i, kind in enumerate(types):
        if kind.name == "jsonb":
            done[i] = _documents(parts[i].texts())
        elif kind.is_nested:
            done[i] = _nested(parts[i].texts(), kind)
    return [done[i] for i in range(len(types))]


def _said(part: Parts, kind: SqlType) -> pa.Array:
    """JSON values as text; objects and arrays in their plainest form."""
    texts = part.contents()
    if kind.name != "varchar":
        return texts
    containers = (part.firsts == _BRACE) | (part.firsts == _BRACKET)
    if not containers.any():
        return texts
    chosen = pa.array(containers)
    return pc.replace_with_mask(texts, chosen, canonical(texts.filter(chosen)))


def _documents(texts: pa.StringArray) -> Converted:
    """Valid JSON as jsonb; what nests too deeply is bad."""
    sizes = pc.fill_null(pc.binary_length(texts), 0).to_numpy(zero_copy_only=False)
    long = np.flatnonzero(sizes > 2 * JSON_MAX_DEPTH)
    deep = [row for row in long.tolist() if is_json_too_deep(texts[row].as_py())]
    if not deep:
        return Converted(canonical(texts))
    bad = np.zeros(len(texts), np.bool_)
    bad[deep] = True
    return Converted(canonical(pc.if_else(pa.array(bad), pa.scalar(None, texts.type), texts)), bad)


def _nested(texts: pa.StringArray, kind: SqlType) -> Converted:
    """Arrays and structs from valid JSON; a bad part makes the whole value bad."""
    firsts = first_bytes(texts)
    good = firsts == (_BRACE if kind.name == "struct" else _BRACKET)
    bad = ~good & (firsts != 0) & (firsts != _NULL)
    chosen = texts if good.all() else texts.filter(pa.array(good))
    rows = np.flatnonzero(good)
    if kind.name == "struct":
        parts = _members(chosen, [name for name, _ in kind.fields], [part for _, part in kind.fields])
        for part in parts:
            if part.bad is not None:
                bad[rows[part.bad]] = True
        columns = [part.column if good.all() else _spread(part.column, good) for part in parts]
        column = pa.StructArray.from_arrays(columns, fields=list(kind.arrow), mask=pa.array(~good | bad))
        return Converted(column, bad if bad.any() else None)
    assert kind.element is not None
    found = elements(chosen)
    (element,) = _typed([found], [kind.element])
    if element.bad is not None:
        bad[rows[found.rows[element.bad]]] = True
    offsets = np.zeros(len(texts) + 1, np.int32)
    offsets[1:][good] = np.bincount(found.rows, minlength=len(chosen))
    np.cumsum(offsets, out=offsets)
    column = pa.ListArray.from_arrays(pa.array(offsets), element.column, type=kind.arrow, mask=pa.array(~good | bad))
    return Converted(column, bad if bad.any() else None)


def _spread(column: pa.Array, where: Mask) -> pa.Array:
    """The values of `column` at the places `where`, NULL elsewhere."""
    return column.take(pa.array(np.cumsum(where) - 1, mask=~where))
