from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.thorough import examples

from watersmeet.formats import csvtext
from watersmeet.formats.csvtext import Dialect, scan_rows

COMMA = Dialect()


def rows(text: bytes, dialect: Dialect = COMMA, *, final: bool = True) -> list[bytes]:
    index = scan_rows(text, dialect, final=final)
    return [text[s:e] for s, e in zip(index.starts, index.ends, strict=True)]


def by_rules(text: bytes, dialect: Dialect = COMMA, *, final: bool = True) -> tuple[list[int], list[int], int]:
    return csvtext._by_rules(text, 0, dialect, final=final)


@pytest.mark.parametrize(
    ("text", "expected", "bad"),
    [
        (b"", [], []),
        (b"a,b\nc,d\n", [b"a,b\n", b"c,d\n"], []),
        (b"a,b\r\nc,d", [b"a,b\r\n", b"c,d"], []),
        (b'1,"x\ny"\n2,z\n', [b'1,"x\ny"\n', b"2,z\n"], []),
        (b'1,"x""\n""y"\n2,""\n', [b'1,"x""\n""y"\n', b'2,""\n'], []),
        (b'1,5" nail\n2,z\n', [b'1,5" nail\n', b"2,z\n"], []),
        (b'1,"never closed\n2,"x"\n3,y\n', [b'1,"never closed\n', b'2,"x"\n', b"3,y\n"], [0]),
        (b'1,"a"junk\n2,z\n', [b'1,"a"junk\n', b"2,z\n"], [0]),
        (b"1,a\rb\n2,z\n", [b"1,a\rb\n", b"2,z\n"], [0]),
        (b'1,"a\rb"\n2,z\n', [b'1,"a\rb"\n', b"2,z\n"], []),
        (b"\n\na\n", [b"\n", b"\n", b"a\n"], []),
    ],
)
def test_rows_of_a_whole_text(text: bytes, expected: list[bytes], bad: list[int]) -> None:
    assert rows(text) == expected
    assert scan_rows(text, COMMA, final=True).bad.tolist() == bad


@pytest.mark.parametrize(
    ("text", "complete"),
    [
        (b"a,b\nc,d", 4),
        (b'1,x\n2,"open\nstill open\n', 4),
        (b'1,x\n2,"closed"', 4),
        (b'1,x\n2,"closed"\r', 4),
        (b'1,"bad"x\n2,y\n', 13),
    ],
)
def test_rows_that_may_still_change_are_left_out(text: bytes, complete: int) -> None:
    assert scan_rows(text, COMMA, final=False).complete == complete


def test_a_quote_open_for_too_long_is_one_bad_line() -> None:
    text = b'1,"open\n' + b"2,x\n" * 20
    short = Dialect(max_row_bytes=32)
    index = scan_rows(text, short, final=False)
    assert (index.bad.tolist(), index.complete, len(index)) == ([0], len(text), 21)
    closed = text + b'3,"y"\n'
    assert scan_rows(closed, short, final=True).bad.tolist() == [0]


def test_without_quotes_every_newline_ends_a_row() -> None:
    assert rows(b'1,"a\nb"\n', Dialect(quote="")) == [b'1,"a\n', b'b"\n']


@examples(600)
@given(st.text(alphabet='ab,"\n\r', max_size=40), st.booleans())
@example('a"\n"', False)
@example('""\n"', True)
def test_numpy_and_rules_agree(text: str, final: bool) -> None:
    data = text.encode()
    index = scan_rows(data, COMMA, final=final)
    ends, bad, complete = by_rules(data, final=final)
    assert (index.ends.tolist(), index.bad.tolist(), index.complete) == (ends, bad, complete)


@examples(300)
@given(st.text(alphabet='a,"\n\r', max_size=30), st.text(alphabet='a,"\n\r', max_size=30))
def test_complete_rows_do_not_change_when_text_follows(first: str, more: str) -> None:
    data = (first + more).encode()
    early = scan_rows(first.encode(), COMMA, final=False)
    late = scan_rows(data, COMMA, final=True)
    assert late.ends.tolist()[: len(early)] == early.ends.tolist()
    # A worker that sees only the rows up to the cut finds the same ones.
    cut = scan_rows(first.encode()[: early.complete], COMMA, final=True)
    assert (cut.ends.tolist(), cut.bad.tolist()) == (early.ends.tolist(), early.bad.tolist())
