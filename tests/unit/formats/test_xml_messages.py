"""Messages in XML."""

from __future__ import annotations

import pytest
from tests.unit.formats.messages import columns, decode, messages, reasons, rows

from watersmeet.catalog import MessageFormat
from watersmeet.errors import Error
from watersmeet.values import types as t

COLUMNS = columns(a=t.BIGINT, b=t.VARCHAR)


def form(**options: str) -> MessageFormat:
    named = {n.replace("path_", "path."): v for n, v in options.items()}
    return MessageFormat(encoding="xml", options=named, bad_field="null")


def test_children_of_the_root_are_columns() -> None:
    batch = messages(
        [
            "<r><a>1</a><b>x</b></r>",
            "<?xml version='1.0' encoding='UTF-8'?>\n<r><B>ü&amp;<i>y</i></B><a> 2 </a></r>",
            "<r><a/><b/></r>",
            "<r><a>no</a><!-- nothing --></r>",
            "<r xmlns:n='urn:n'><n:a>3</n:a><a>4</a><b><![CDATA[<z>]]></b></r>",
            None,
        ]
    )
    found = decode(batch, COLUMNS, form())
    assert rows(found) == [(1, "x"), (2, "ü&y"), (None, ""), (None, None), (3, "<z>"), (None, None)]
    assert reasons(found) == {}


def test_rows_are_elements_at_paths() -> None:
    batch = messages(["<t><r><a>1</a></r><r><a>2</a></r><x><r><a>3</a></r></x></t>", "<u/>"])
    found = decode(batch, COLUMNS, form(row_tags="/t/r"))
    assert (rows(found), found.places.tolist()) == ([(1, None), (2, None)], [0, 0])
    assert reasons(found) == {1: "xml: there is no element /t/r"}
    assert rows(decode(batch, COLUMNS, form(row_tags="r"))) == [(1, None), (2, None), (3, None)]
    assert rows(decode(batch, COLUMNS, form(row_tags="//x/r, /u"))) == [(3, None), (None, None)]


def test_columns_are_at_paths() -> None:
    text = "<t at='9'><h>top</h><r id='5'><p><q>x</q><q>y</q></p></r></t>"
    for a, b, expected in [
        ("/t/r/@id", "/t/r/p/q", (5, "x")),
        ("@id", "p/q[2]", (5, "y")),
        ("/t/@at", "/t/h", (9, "top")),
        ("/t/r/@none", ".//q/text()", (None, "x")),
        ("//none", "p", (None, "xy")),
    ]:
        found = decode(messages([text]), COLUMNS, form(row_tags="/t/r", path_a=a, path_b=b))
        assert rows(found) == [expected]


def test_attributes_may_be_columns() -> None:
    batch = messages(["<r a='1'><b>x</b></r>", "<r A='2' b='y'/>"])
    assert rows(decode(batch, COLUMNS, form(use_attributes="true"))) == [(1, "x"), (2, "y")]
    assert rows(decode(batch, COLUMNS, form())) == [(None, "x"), (None, None)]


def test_several_documents_in_a_message() -> None:
    batch = messages(["<r><a>1</a></r>\n<?xml version='1.0'?><r><a>2</a></r>", "<r/>junk"])
    found = decode(batch, COLUMNS, form())
    assert (rows(found), found.places.tolist()) == ([(1, None), (2, None), (None, None)], [0, 0, 1])


def test_structs_and_arrays() -> None:
    fields = columns(
        s=t.SqlType("struct", fields=(("x", t.BIGINT), ("y", t.VARCHAR))), l=t.SqlType("array", element=t.INTEGER)
    )
    found = decode(messages(["<r><s><x>1</x><y>v</y></s><l>1</l><l>2</l></r>", "<r/>"]), fields, form())
    assert rows(found) == [({"x": 1, "y": "v"}, [1, 2]), (None, None)]


def test_garbage_sets_aside_its_message_alone() -> None:
    batch = messages(["<r><a>1</a></r>", "<r>", "", "text", b"<r>\xff</r>", "<r><a>2</a></r>"])
    found = decode(batch, COLUMNS, form())
    assert rows(found) == [(1, None), (2, None)]
    assert set(reasons(found)) == {1, 2, 3, 4}


BOMB = '<!DOCTYPE r [<!ENTITY a "xxxxxxxx"><!ENTITY b "&a;&a;&a;">]><r><b>&b;</b></r>'


@pytest.mark.parametrize(
    "payload",
    [
        BOMB.encode(),
        BOMB.encode("utf-16"),
        b'<!DOCTYPE r SYSTEM "file:///etc/passwd"><r/>',
        b"<?xml version='1.0' encoding='cp037'?>".decode().encode("cp037") + BOMB.encode("cp037"),
    ],
)
def test_document_types_are_never_read(payload: bytes) -> None:
    found = decode(messages([payload]), COLUMNS, form())
    assert rows(found) == []
    assert "xml: " in reasons(found)[0]


@pytest.mark.parametrize("path", ["/t/r[@x='1']", "a|b", "count(a)", "/t/../a", "ancestor::t"])
def test_paths_that_are_refused(path: str) -> None:
    with pytest.raises(Error, match="FEATURE_NOT_SUPPORTED") as refused:
        decode(messages([]), COLUMNS, form(path_a=path))
    assert f'"{path}"' in refused.value.message
