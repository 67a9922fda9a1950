"""Places in the logs of MariaDB: the last transaction of each domain.

MariaDB, "Global Transaction ID".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Gtid(NamedTuple):
    """One transaction. Its number in the domain only grows, whichever server it was on."""

    domain: int
    server: int
    number: int


@dataclass(frozen=True)
class Gtids:
    """The last transactions, by domain."""

    last: dict[int, Gtid]

    @classmethod
    def parsed(cls, text: str) -> Gtids:
        """As the server writes them: `0-1-17,3-2-5`."""
        found = (Gtid(*map(int, part.split("-"))) for part in text.replace("\n", "").split(",") if part.strip())
        return cls({g.domain: g for g in found})

    def __str__(self) -> str:
        return ",".join("-".join(map(str, g)) for _, g in sorted(self.last.items()))

    def behind(self, transaction: Gtid) -> Gtids:
        """With one transaction more."""
        return Gtids({**self.last, transaction.domain: transaction})

    def has(self, other: Gtids) -> bool:
        """Whether every transaction of `other` is among these."""
        return all(d in self.last and self.last[d].number >= g.number for d, g in other.last.items())
