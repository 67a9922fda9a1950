"""SUBSCRIBE TO, RECOVER FROM and UNSUBSCRIBE TO.

Proton's parser of them; the ids are those of KILL QUERY.
"""

from __future__ import annotations

from typing import Any, Final

from sqlglot.dialects.dialect import Dialect

from watersmeet.dialects.queries import read_tree
from watersmeet.dialects.statements import Recover, Statement, Subscribe, Unsubscribe
from watersmeet.dialects.tokens import Cursor

#: The first words of the statements.
WORDS: Final = ("RECOVER", "SUBSCRIBE", "UNSUBSCRIBE")


def read_subscription(word: str, cursor: Cursor, grammar: Dialect, base: dict[str, Any]) -> Statement:
    """One of `WORDS`: the cursor stands behind it."""
    if word == "SUBSCRIBE":
        cursor.expect("TO")
        if not any(cursor.at(w) for w in ("SELECT", "WITH", "(")):
            raise cursor.error(hint="Write SUBSCRIBE TO SELECT ….")
        return Subscribe(**base, query=read_tree(cursor.originals(cursor.rest), cursor.text, grammar))
    cursor.expect("FROM" if word == "RECOVER" else "TO")
    query_id = cursor.query_id()
    cursor.end()
    return (Recover if word == "RECOVER" else Unsubscribe)(**base, id=query_id)
