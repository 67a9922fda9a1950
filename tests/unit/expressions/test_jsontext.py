"""JSON in its kept form, against Python's reader, which keeps the last of equal keys, and against that of sources."""

from __future__ import annotations

import json
import random

import pyarrow as pa
import pytest

from watersmeet.formats.jsonscan import canonical as sources_form
from watersmeet.formats.jsonscan import canonical_text as canonical


def document(source: random.Random, depth: int) -> str:
    """JSON with few keys, so that some are equal, and with marks inside of strings."""
    space = source.choice(["", " ", "\n"])
    if depth == 0 or source.random() < 0.2:
        return source.choice(["null", "-1.50", "true", '"{[,"', r'"\"a\":"', "{}", "[]", '""'])
    parts = [document(source, depth - 1) for _ in range(source.randint(0, 4))]
    if source.random() < 0.3:
        return "[" + f"{space},{space}".join(parts) + "]"
    keys = [
        source.choice(['"a"', r'"\u0061"', '"b,"', r'"b\","', '"{"', '"a b"', '"a!"', '"é"', r'"a\n"']) for _ in parts
    ]
    return "{" + space + f"{space},".join(f"{k}:{space}{p}" for k, p in zip(keys, parts, strict=True)) + "}"


@pytest.mark.parametrize("start", [0, pytest.param(200, marks=pytest.mark.slow)])
def test_the_last_of_equal_keys_stays_and_keys_are_in_order(start):
    for seed in range(start, start + 200):
        text = document(random.Random(seed), 4)
        found = canonical(text)
        assert json.loads(found) == json.loads(text), text

        def once(pairs):
            assert len(dict(pairs)) == len(pairs), text
            keys = [k.encode() for k, _ in pairs]
            assert keys == sorted(keys), text
            return dict(pairs)

        json.loads(found, object_pairs_hook=once)


def test_the_form_is_that_of_sources():
    texts = [document(random.Random(seed), 4) for seed in range(300)]
    assert [canonical(t) for t in texts] == sources_form(pa.array(texts)).to_pylist()


def test_white_space_goes_and_digits_stay():
    text = ' {"a" : 1.500, "A": [ {"a": 12345678901234567890.10} , {"a": 3e5}], "b": "x\\"y  \\u00e9"} '
    assert canonical(text) == '{"A":[{"a":12345678901234567890.10},{"a":3e5}],"a":1.500,"b":"x\\"y  é"}'
