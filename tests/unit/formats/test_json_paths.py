"""Messages in JSON whose rows and columns are at paths."""

from __future__ import annotations

from decimal import Decimal

import pytest
from tests.unit.formats.messages import columns, decode, messages, reasons, rows

from watersmeet.catalog import MessageFormat
from watersmeet.errors import Error
from watersmeet.values import types as t

COLUMNS = columns(a=t.BIGINT, b=t.VARCHAR)


def form(row_path: str = "$", **paths: str) -> MessageFormat:
    options = {"row_path": row_path, **{f"path.{column}": path for column, path in paths.items()}}
    return MessageFormat(options=options, bad_field="null")


def test_columns_are_deeper_in_the_message() -> None:
    batch = messages(['{"x":{"y":[{"z":1},{"z":2}]},"b":"v"}', '{"x":null,"B":"w"}', '{"x":[1]}', "{}"])
    found = decode(batch, COLUMNS, form(a="$.x['y'][1].z"))
    assert (rows(found), reasons(found)) == ([(2, "v"), (None, "w"), (None, None), (None, None)], {})


def test_numbers_keep_their_digits_on_the_way() -> None:
    fields = columns(n=t.SqlType("numeric", 20, 2))
    found = decode(messages(['{"x":{"n":99999999999999.99}}']), fields, form(n="$.x.n"))
    assert rows(found) == [(Decimal("99999999999999.99"),)]


def test_two_dots_lead_to_the_first_member_of_that_name() -> None:
    batch = messages(
        [
            '{"x":{"a":1},"a":2}',
            '{"x":[{"y":{"a":3}},{"a":4}]}',
            '{"x":{"a":{"a":5}},"b":"a"}',
            '{"x":"\\"a\\": 6"}',
            '{"a":null,"x":{"a":7}}',
        ]
    )
    found = decode(batch, COLUMNS, form(a="$..a"))
    assert rows(found) == [(2, None), (3, None), (None, "a"), (None, None), (None, None)]
    nested = decode(messages(['{"x":{"a":{"c":{"a":1}}}}']), COLUMNS, form(a="$..c.a"))
    assert rows(nested) == [(1, None)]


def test_rows_are_deeper_in_the_message() -> None:
    batch = messages(['{"t":[{"a":1},{"a":2,"b":"x"}]}', '{"t":[]}', '{"t":{"a":3}}', '{"t":[4]}', '{"u":1}'])
    found = decode(batch, COLUMNS, form("$.t[*]"))
    assert (rows(found), found.places.tolist()) == ([(1, None), (2, "x")], [0, 0])
    assert reasons(found) == {3: "json: a row is not a JSON object"}
    assert rows(decode(batch, COLUMNS, form("$.t"))) == [(1, None), (2, "x"), (3, None)]
    absolute = decode(batch, COLUMNS, form("$.t[:]", b="$.t[:].a"))
    assert rows(absolute) == [(1, "1"), (2, "2")]


def test_garbage_sets_aside_its_message_alone() -> None:
    batch = messages(['{"a":1}', "{", "5", b"\xff", '{"a":2}\n{"a":3}', '[{"a":4}]', '{"a":"x"}', None])
    found = decode(batch, COLUMNS, form())
    assert rows(found) == [(1, None), (2, None), (3, None), (4, None), (None, None), (None, None)]
    assert found.places.tolist() == [0, 4, 4, 5, 6, 7]
    assert set(reasons(found)) == {1, 2, 3}


@pytest.mark.parametrize("path", ["a", "$.a b", "$.a[?(@.x)]", "$.*", "$.a[*].b", "$.", "$a"])
def test_paths_that_are_refused(path: str) -> None:
    with pytest.raises(Error, match="FEATURE_NOT_SUPPORTED") as refused:
        decode(messages([]), COLUMNS, form(a=path))
    assert f'"{path}"' in refused.value.message
