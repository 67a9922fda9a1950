"""The effects of statements in the log on tables: changes of columns, and unlogged changes of rows.

MariaDB, "ALTER TABLE", "RENAME TABLE", "TRUNCATE TABLE". It only parses the parts that determine whether a table can
still be captured.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

_TOKEN: Final = re.compile(
    r"""\s+|--[ \t][^\n]*|\#[^\n]*|/\*(?![!M]).*?\*/|/\*M?!\d*|\*/
    |(?P<quoted>`(?:[^`]|``)*`)|(?P<text>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
    |(?P<word>[\w$\x80-\U0010ffff]+)|(?P<sign>.)""",
    re.VERBOSE | re.DOTALL,
)
_DML: Final = ("INSERT", "UPDATE", "DELETE", "REPLACE", "LOAD", "MERGE", "WITH")
#: The parts of a table besides columns whose changes affect no row.
_PARTS: Final = (
    *("INDEX", "KEY", "UNIQUE", "FULLTEXT", "SPATIAL", "VECTOR", "CONSTRAINT", "FOREIGN", "CHECK", "PERIOD", "SYSTEM"),
)
#: The clauses for the whole table that change no row.
_SETTINGS: Final = (
    *("COMMENT", "AUTO_INCREMENT", "ENGINE", "ROW_FORMAT", "ORDER", "DISABLE", "ENABLE", "FORCE", "ALGORITHM", "LOCK"),
    *("STATS_PERSISTENT", "STATS_AUTO_RECALC", "STATS_SAMPLE_PAGES", "KEY_BLOCK_SIZE", "PAGE_COMPRESSED", "CHECKSUM"),
    *("ENCRYPTED", "ENCRYPTION_KEY_ID", "PAGE_COMPRESSION_LEVEL", "MAX_ROWS", "MIN_ROWS", "AVG_ROW_LENGTH", "WAIT"),
    *("NOWAIT", "DEFAULT", "CHARACTER", "CHARSET", "COLLATE", "ANALYZE", "REBUILD", "OPTIMIZE", "REPAIR"),
    *("REORGANIZE", "COALESCE", "PARTITION", "IMPORT", "TABLESPACE"),
)
#: The values that older rows have in a NOT NULL column without a default.
_IMPLICIT: Final = {
    **dict.fromkeys(
        *(
            ["TINYINT", "SMALLINT", "MEDIUMINT", "INT", "INTEGER", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL", "NUMERIC"],
            "0",
        )
    ),
    **dict.fromkeys(["BOOL", "BOOLEAN", "BIT", "REAL", "DEC", "FIXED"], "0"),
    **dict.fromkeys(["CHAR", "VARCHAR", "TEXT", "TINYTEXT", "MEDIUMTEXT", "LONGTEXT"], ""),
}


@dataclass(frozen=True)
class AddedColumn:
    """An added column. value: the text of the value in older rows; None is NULL. why: the reason why older rows have no
    common value.
    """

    name: str
    value: str | None
    why: str = ""


@dataclass(frozen=True)
class Effects:
    """The effects by schema and name of tables. stopped: the reasons why tables can no longer be captured; a table `*`
    means all tables of the schema.
    """

    truncated: set[tuple[str, str]] = field(default_factory=set)
    stopped: dict[tuple[str, str], str] = field(default_factory=dict)
    added: dict[tuple[str, str], list[AddedColumn]] = field(default_factory=dict)
    touched: dict[tuple[str, str], dict[str, str]] = field(default_factory=dict)
    """The changed columns, whose readers stop, with the kind of change."""
    mentioned: frozenset[str] = frozenset()
    """The names in a statement that changes rows and was not logged as rows."""

    def __bool__(self) -> bool:
        return bool(self.truncated or self.stopped or self.added or self.touched or self.mentioned)


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str

    @property
    def word(self) -> str:
        """The token as a keyword."""
        return self.text.upper() if self.kind in ("word", "sign") else ""


def effects(statement: str, schema: str, *, ansi_quotes: bool = False) -> Effects:
    """The effects of a statement. schema: the schema of unqualified tables."""
    tokens = [*_tokens(statement, ansi_quotes=ansi_quotes)]
    found = Effects()
    words = [t.word for t in tokens]
    if not tokens:
        return found
    if words[0] in _DML:
        return Effects(mentioned=frozenset(t.text for t in tokens if t.kind in ("word", "quoted")))
    offset = 1
    if words[0] == "TRUNCATE":
        table, _ = _name(tokens, _skip(words, offset, "TABLE"), schema)
        found.truncated.add(table)
    elif words[0] == "RENAME" and words[1:2] in (["TABLE"], ["TABLES"]):
        for part in _parts(tokens[2:]):
            table, _ = _name(part, _skip([t.word for t in part], 0, "IF", "EXISTS"), schema)
            found.stopped[table] = "was renamed"
    elif words[0] == "DROP" and words[1:2] in (["DATABASE"], ["SCHEMA"]):
        found.stopped[tokens[_skip(words, 2, "IF", "EXISTS")].text, "*"] = "was dropped"
    elif words[0] in ("DROP", "CREATE") and (offset := _skip(words, 1, "OR", "REPLACE", "TEMPORARY")) < len(words):
        if words[offset] in ("TABLE", "TABLES") and "TEMPORARY" not in words[1:offset]:
            rest = tokens[_skip(words, offset + 1, "IF", "NOT", "EXISTS") :]
            if words[0] == "CREATE":
                table, _ = _name(rest, 0, schema)
                if "REPLACE" in words[1:offset]:
                    found.stopped[table] = "was dropped and created again"
            else:
                for part in _parts(rest):
                    table, _ = _name(part, 0, schema)
                    found.stopped[table] = "was dropped"
    elif (
        words[0] == "ALTER"
        and (offset := _skip(words, 1, "ONLINE", "IGNORE")) < len(words)
        and words[offset] == "TABLE"
    ):
        table, offset = _name(tokens, _skip(words, offset + 1, "IF", "EXISTS"), schema)
        for part in _parts(tokens[offset:]):
            _alter(part, table, found)
    return found


def savepoint(statement: str) -> str:
    """The name in SAVEPOINT in the server's form, or in ROLLBACK TO in the client's form."""
    found = [t for t in _tokens(statement, ansi_quotes=True) if t.text != ";"]
    return found[-1].text.lower()


def _tokens(statement: str, *, ansi_quotes: bool) -> Iterator[_Token]:
    for match in _TOKEN.finditer(statement):
        kind, text = match.lastgroup, match.group()
        if kind is None:
            continue
        if kind == "quoted" or (kind == "text" and ansi_quotes and text[0] == '"'):
            quote = text[0]
            yield _Token("quoted", text[1:-1].replace(2 * quote, quote))
        elif kind == "text":
            quote = text[0]
            plain = text[1:-1].replace(2 * quote, quote)
            yield _Token("text", re.sub(r"\\(.)", _unescaped, plain, flags=re.DOTALL))
        else:
            yield _Token(kind, text)


def _unescaped(match: re.Match[str]) -> str:
    escapes = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a"}
    return escapes.get(match[1], match[1])


def _skip(words: Sequence[str], offset: int, *optional: str) -> int:
    while offset < len(words) and words[offset] in optional:
        offset += 1
    return offset


def _name(tokens: Sequence[_Token], offset: int, schema: str) -> tuple[tuple[str, str], int]:
    """The schema and the name, and the offset after them."""
    if offset >= len(tokens):
        return (schema, ""), offset
    if offset + 2 < len(tokens) and tokens[offset + 1].text == "." and tokens[offset + 1].kind == "sign":
        return (tokens[offset].text, tokens[offset + 2].text), offset + 3
    return (schema, tokens[offset].text), offset + 1


def _parts(tokens: Sequence[_Token]) -> Iterator[Sequence[_Token]]:
    """The parts between commas outside of parentheses."""
    depth, begin = 0, 0
    for i, token in enumerate(tokens):
        if token.kind != "sign":
            continue
        depth += (token.text == "(") - (token.text == ")")
        if token.text == "," and depth == 0:
            yield tokens[begin:i]
            begin = i + 1
    if tokens[begin:]:
        yield tokens[begin:]


def _alter(part: Sequence[_Token], table: tuple[str, str], found: Effects) -> None:
    """One change of ALTER TABLE."""
    words = [t.word for t in part]
    first, second = words[0], words[1] if len(words) > 1 else ""
    column = _skip(words, 1, "COLUMN", "IF", "EXISTS", "NOT")
    if first == "ADD" and second == "PARTITION":
        return
    if first == "ADD" and second not in (*_PARTS, "PRIMARY"):
        if column < len(words) and words[column] == "(":
            for one in _parts(part[column + 1 : _end(part, column)]):
                _add_column(one, table, found)
        else:
            _add_column(part[column:], table, found)
    elif first == "DROP" and second in ("PARTITION", "PRIMARY"):
        found.stopped[table] = "lost a partition" if second == "PARTITION" else "has another primary key"
    elif first == "ADD" and second == "PRIMARY":
        found.stopped[table] = "has another primary key"
    elif first == "ALTER" and second not in _PARTS:
        return  # changes a default, which existing rows don't get
    elif first in ("ADD", "DROP", "RENAME", "ALTER") and second in _PARTS:
        return
    elif first == "RENAME" and second != "COLUMN":
        found.stopped[table] = "was renamed"
    elif first in ("DROP", "RENAME", "CHANGE", "MODIFY"):
        changed = f"was changed by ALTER TABLE … {first}, which may have changed its values"
        done = {"DROP": "is gone", "RENAME": "has another name"}.get(first, changed)
        name = part[column].text if column < len(part) else ""
        found.touched.setdefault(table, {})[name.lower()] = done
    elif first in ("TRUNCATE", "EXCHANGE", "CONVERT", "DISCARD") and second != "TO":
        found.stopped[table] = "lost rows that its log does not name"
    elif first == "CONVERT":
        found.touched.setdefault(table, {})[""] = "has another charset now"
    elif first not in _SETTINGS:
        found.stopped[table] = f"was changed by ALTER TABLE … {' '.join(t.text for t in part[:2])}"


def _end(part: Sequence[_Token], opening: int) -> int:
    """The index of the parenthesis that closes another."""
    depth = 0
    for i in range(opening, len(part)):
        depth += (part[i].text == "(") - (part[i].text == ")") if part[i].kind == "sign" else 0
        if depth == 0:
            return i
    return len(part)


def _add_column(part: Sequence[_Token], table: tuple[str, str], found: Effects) -> None:
    if not part:
        return
    name, words = part[0].text, [t.word for t in part]
    found.added.setdefault(table, []).append(_added(name, part, words))


def _added(name: str, part: Sequence[_Token], words: Sequence[str]) -> AddedColumn:
    own = "each row got a value of its own"
    if "AS" in words[1:] or "AUTO_INCREMENT" in words or "SERIAL" in words:
        return AddedColumn(name, None, own)
    if "DEFAULT" in words[1:]:
        offset = words.index("DEFAULT", 1) + 1
        sign = ""
        if offset < len(words) and words[offset] in ("-", "+"):
            sign, offset = words[offset].strip("+"), offset + 1
        value = part[offset] if offset < len(part) else None
        if value is not None and value.kind == "text":
            return AddedColumn(name, value.text)
        if value is not None and words[offset] == "NULL":
            return AddedColumn(name, None)
        if value is not None and words[offset] in ("TRUE", "FALSE"):
            return AddedColumn(name, "1" if words[offset] == "TRUE" else "0")
        if value is not None and value.kind == "word" and value.text[0].isdecimal():
            fraction = words[offset + 2] if words[offset + 1 : offset + 2] == ["."] and offset + 2 < len(words) else ""
            text = f"{value.text}.{fraction}" if fraction else value.text
            if text.replace(".", "").isdecimal():
                return AddedColumn(name, sign + text)
        return AddedColumn(name, None, own)
    if any(words[i : i + 2] == ["NOT", "NULL"] for i in range(len(words))):
        kind = words[1] if len(words) > 1 else ""
        if kind in _IMPLICIT:
            return AddedColumn(name, _IMPLICIT[kind])
        return AddedColumn(name, None, "it takes no NULL and has no default")
    return AddedColumn(name, None)
