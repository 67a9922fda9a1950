"""The scan of JSON texts finds what Python's json finds."""

from __future__ import annotations

import json
import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.thorough import examples

from watersmeet.formats.jsonscan import canonical, elements, is_valid, members, newest
from watersmeet.formats.valuetexts import evaluate, spaced
from watersmeet.system.duckdbs import spaced_sql


class Pairs(list[Any]):
    """The members of an object, some with the same key."""


TEXT = st.text(alphabet='ab"\\{}[],: \n\té\u2028😀\x00', max_size=5)
VALUE = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from([0.5, 1e22]) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.lists(st.tuples(TEXT, inner), max_size=4).map(Pairs),
    max_leaves=8,
)


def written(value: Any, space: str, *, ascii_only: bool) -> str:
    def go(v: Any) -> str:
        if isinstance(v, Pairs):
            inside = f"{space},{space}".join(f"{go(k)}{space}:{space}{go(x)}" for k, x in v)
            return f"{{{space}{inside}{space}}}"
        if isinstance(v, list):
            return f"[{space}{f'{space},{space}'.join(map(go, v))}{space}]"
        return json.dumps(v, ensure_ascii=ascii_only)

    return go(value)


SPACE = st.sampled_from(["", " ", "\n\t ", "    "])


@examples(200)
@given(st.lists(VALUE, max_size=4), SPACE, st.booleans())
def test_canonical(values: list[Any], space: str, ascii_only: bool) -> None:
    texts = [space + written(v, space, ascii_only=ascii_only) + space for v in values]
    column = pa.array([*texts, None], pa.string())
    assert is_valid(column).tolist() == [True] * len(texts) + [False]
    expected = [json.dumps(json.loads(text), separators=(",", ":"), ensure_ascii=False) for text in texts]
    found = canonical(column)
    found.validate(full=True)
    # The last of equal keys keeps its own place, in Python the place of the first.
    assert [None if t is None else json.loads(t) for t in found.to_pylist()] == [*map(json.loads, texts), None]
    assert [None if t is None else len(t) for t in found.to_pylist()] == [*map(len, expected), None]


@examples(200)
@given(st.lists(st.lists(st.tuples(TEXT, VALUE), max_size=4).map(Pairs), max_size=5), SPACE, st.booleans(), TEXT)
def test_members(values: list[Any], space: str, ascii_only: bool, wanted: str) -> None:
    texts = [space + written(v, space, ascii_only=ascii_only) for v in values]
    keys, found = members(pa.array(texts, pa.string()))
    assert keys.to_pylist() == [k for v in values for k, _ in v]
    assert found.rows.tolist() == [i for i, v in enumerate(values) for _ in v]
    plain = [json.loads(written(x, "", ascii_only=True)) for v in values for _, x in v]
    assert [None if x is None else json.loads(x) for x in found.texts().to_pylist()] == plain
    codes = pa.array([0 if k == wanted else -1 for k in keys.to_pylist()], pa.int32()).to_numpy()
    last = newest(codes, 0, found, len(values)).texts().to_pylist()
    assert [None if x is None else json.loads(x) for x in last] == [json.loads(t).get(wanted) for t in texts]


@examples(200)
@given(st.lists(st.lists(VALUE, max_size=4), max_size=5), SPACE, st.booleans())
def test_elements(values: list[Any], space: str, ascii_only: bool) -> None:
    texts = [space + written(v, space, ascii_only=ascii_only) for v in values]
    found = elements(pa.array(texts, pa.string()))
    assert found.rows.tolist() == [i for i, v in enumerate(values) for _ in v]
    plain = [json.loads(written(x, "", ascii_only=True)) for v in values for x in v]
    assert [None if x is None else json.loads(x) for x in found.texts().to_pylist()] == plain
    said = [x if isinstance(x, str) else "" for x in plain]
    strings = [x if isinstance(p, str) else "" for x, p in zip(found.contents().to_pylist(), plain, strict=True)]
    assert strings == said


@pytest.mark.parametrize(
    "text", ["[1,]", '{"a":1 , }', "NaN", "[-Infinity]", "[nan]", '["a", inf]', "[,]", "{,}", "", " ", "01"]
)
def test_what_is_no_json(text: str) -> None:
    assert is_valid(pa.array([text, '["NaN,]"]', text])).tolist() == [False, True, False]


def test_text_of_jsonb_has_blanks_behind_colons_and_commas() -> None:
    source = random.Random(4)

    def document(depth: int) -> object:
        kind = source.random()
        if depth == 0 or kind < 0.4:
            return source.choice([1, -2.5, None, True, 'a,b: "c\\ ', "", " ", ",", ":", "\\", "ü"])
        if kind < 0.7:
            return [document(depth - 1) for _ in range(source.randrange(4))]
        return {source.choice(["a", "b,c", '"', ":", " x"]): document(depth - 1) for _ in range(source.randrange(4))}

    documents = [document(4) for _ in range(300)]
    expected = [json.dumps(d, ensure_ascii=False) for d in documents]
    texts = pa.array([json.dumps(d, ensure_ascii=False, separators=(",", ":")) for d in documents])
    assert spaced(texts).to_pylist() == spaced(pa.array(expected)).to_pylist() == expected
    (column,) = evaluate([texts], [spaced_sql("t0")])
    assert column.to_pylist() == expected
