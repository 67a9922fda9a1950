"""Content of the past: what it is now, without the changes since."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from watersmeet.catalog import Catalog
from watersmeet.store.manifests import RelationChange
from watersmeet.store.moments import Moment


class PastContent(NamedTuple):
    """The content of a relation as of an earlier moment. name: of its view. upto: the last commit that counts."""

    name: str
    relation_id: str
    upto: int


class Undoing:
    """What was changed since earlier moments. Most of it is read before the content is locked."""

    def __init__(
        self,
        read: Callable[[dict[str, tuple[int, int]]], dict[str, list[RelationChange]]],
        now: Moment,
        catalog: Catalog,
        past: Sequence[PastContent],
    ) -> None:
        """read: the changes of relations by their bounds, as of `Content`. now: up to where it reads at once."""
        self._read = read
        self.past = past
        self._upto = {one.name: max(now.upto(catalog.relations[one.relation_id]), one.upto) for one in past}
        self._before = {
            one.name: read({one.relation_id: (one.upto, self._upto[one.name])}).get(one.relation_id, []) for one in past
        }

    def changes(self, one: PastContent, applied: int) -> list[RelationChange]:
        """The changes since, up to commit `applied`."""
        later = self._read({one.relation_id: (self._upto[one.name], applied)})
        return [*self._before[one.name], *later.get(one.relation_id, [])]
