"""Messages in CSV and TSV."""

from __future__ import annotations

import pytest
from tests.unit.formats.messages import columns, decode, messages, reasons, rows

from watersmeet.catalog import MessageFormat
from watersmeet.errors import Error
from watersmeet.values import types as t

CSV = MessageFormat(encoding="csv")
COLUMNS = columns(a=t.BIGINT, b=t.VARCHAR)


def test_fields_are_columns() -> None:
    batch = messages(["1,x", "2,\n", '3,""', '4,"a,""b"""', "5,y\r\n", None, ',"é"'])
    found = decode(batch, COLUMNS, CSV)
    expected = [(1, "x"), (2, None), (3, ""), (4, 'a,"b"'), (5, "y"), (None, None), (None, "é")]
    assert (rows(found), found.places.tolist(), reasons(found)) == (expected, list(range(7)), {})


def test_a_newline_in_quotes_is_part_of_the_field() -> None:
    assert rows(decode(messages(['1,"x\ny"', "2,z"]), COLUMNS, CSV)) == [(1, "x\ny"), (2, "z")]


def test_garbage_sets_aside_its_message_alone() -> None:
    batch = messages(["1,x", '2,"x', '3,y"', '"4",z', "5", "", "6,x,y", b"\xff,x", "7,x\n8,y", '9,"a"b', "x,y", "10,w"])
    found = decode(batch, COLUMNS, CSV)
    # A quote inside of a field that does not begin with one is a character.
    assert rows(found) == [(1, "x"), (3, 'y"'), (4, "z"), (10, "w")]
    assert reasons(found) == {
        1: "csv: a quote is not closed, or followed by other text",
        4: "csv: 1 fields instead of 2",
        5: "csv: no row",
        6: "csv: 3 fields instead of 2",
        7: "encoding: not UTF-8",
        8: "csv: several rows in a message",
        9: "csv: a quote is not closed, or followed by other text",
        10: 'value: column "a" is not bigint',
    }


def test_many_rows() -> None:
    batch = messages(["1,x\n\n2,y\n", "3,z", "4,a\n5"])
    found = decode(batch, COLUMNS, MessageFormat(encoding="csv", many_rows=True))
    assert (rows(found), found.places.tolist()) == ([(1, "x"), (2, "y"), (3, "z")], [0, 0, 1])
    assert reasons(found) == {2: "csv: 1 fields instead of 2"}


def test_another_delimiter() -> None:
    form = MessageFormat(encoding="csv", options={"delimiter": ";", "without_header": "true"})
    assert rows(decode(messages(["1;x,y"]), COLUMNS, form)) == [(1, "x,y")]


@pytest.mark.parametrize("options", [{"delimiter": ""}, {"delimiter": '"'}, {"without_header": "false"}])
def test_options_that_cannot_be(options: dict[str, str]) -> None:
    with pytest.raises(Error, match=next(iter(options))):
        decode(messages([]), COLUMNS, MessageFormat(encoding="csv", options=options))


def test_tsv() -> None:
    batch = messages(["1\tx", "2\t\\N", "3\t", '4\t"a\\tb\\\\n"', "5"])
    found = decode(batch, COLUMNS, MessageFormat(encoding="tsv"))
    assert rows(found) == [(1, "x"), (2, None), (3, ""), (4, '"a\tb\\n"')]
    assert list(reasons(found)) == [4]
