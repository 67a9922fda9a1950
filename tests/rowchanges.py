"""Random changes of the rows of a table, as Debezium writes them, and a plain model of the table."""

from __future__ import annotations

import base64
import json
import random
from typing import Any

from tests.messages_reference import PLACEHOLDERS

COLUMNS = "id int PRIMARY KEY, name varchar, bio varchar, raw bytea"

Row = tuple[int, str | None, str | None, bytes | None]


class RowChanges:
    """rows: what the table has after all changes so far. dead: the numbers of changes that found no row."""

    def __init__(self, seed: int, keys: int = 6) -> None:
        self._random = random.Random(seed)
        self._keys = keys
        self._count = 0
        self.rows: dict[int, Row] = {}
        self.dead: list[int] = []

    def messages(self, count: int) -> list[tuple[bytes, bytes | None]]:
        """Further changes: (key, value)."""
        return [self._message() for _ in range(count)]

    def _message(self) -> tuple[bytes, bytes | None]:
        rng, number = self._random, self._count
        self._count += 1
        key = rng.randrange(self._keys)
        said = json.dumps({"id": key}).encode()
        pick = rng.random()
        if pick < 0.04:
            self.rows.clear()
            return said, change("t")
        if pick < 0.07:
            return said, None
        if pick < 0.2:
            self.rows.pop(key, None)
            return said, change("d", {"id": key})
        name, bio, raw = rng.choice(["a", "b", None]), f"bio {number}", b"%d" % number
        unsent = rng.choice([(), (), ("bio",), ("raw",), ("bio", "raw")])
        after: dict[str, Any] = {"id": key, "name": name, "bio": bio, "raw": base64.b64encode(raw).decode()}
        for column in unsent:
            after[column] = PLACEHOLDERS[column == "raw"]
        if unsent and key not in self.rows:
            self.dead.append(number)
        else:
            _, _, old_bio, old_raw = self.rows.get(key, (key, None, None, None))
            self.rows[key] = (key, name, old_bio if "bio" in unsent else bio, old_raw if "raw" in unsent else raw)
        return said, change("u", None, after)

    def listed(self) -> list[Row]:
        """The rows, by key."""
        return [self.rows[key] for key in sorted(self.rows)]


def change(op: str, before: Any = None, after: Any = None) -> bytes:
    """The value of a message."""
    return json.dumps({"op": op, "before": before, "after": after}).encode()
