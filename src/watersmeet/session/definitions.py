"""What an open transaction makes, alters and drops.

What it makes is staged: the engine fills it, rows are committed to it, and only this transaction sees it. So that
nothing is left to be done at COMMIT but to store one catalog, in which it is there for all. What is altered or dropped
stays as it is until then.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from watersmeet.catalog import Catalog, Relation, SqlFunction


@dataclass
class Definitions:
    """The difference between the catalog that all see and the one that the transaction sees.

    made, dropped: ids. altered: by id, relations as they are to be. schemas: those that there are to be, None: as there
    are. stopped: ids of relations that stay, and are no longer fed by the circuit. functions: of SQL, by id, as they
    are to be.
    """

    made: set[str] = field(default_factory=set)
    altered: dict[str, Relation] = field(default_factory=dict)
    dropped: set[str] = field(default_factory=set)
    schemas: tuple[str, ...] | None = None
    stopped: set[str] = field(default_factory=set)
    functions: dict[str, SqlFunction] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.made or self.altered or self.dropped or self.schemas is not None or self.functions)

    def seen(self, catalog: Catalog) -> Catalog:
        """The catalog as the transaction sees it, and as its COMMIT makes it."""
        if not self:
            return catalog
        relations = {
            i: self.altered.get(i, replace(r, hidden=False, staged=False) if i in self.made else r)
            for i, r in catalog.relations.items()
            if i not in self.dropped
        }
        schemas = catalog.schemas if self.schemas is None else self.schemas
        functions = {**catalog.functions, **self.functions}
        return replace(catalog, relations=relations, schemas=schemas, functions=functions)

    def put(self, relation: Relation, catalog: Catalog) -> Relation | None:
        """Take a relation in, new or in the place of the one with its id.

        Returns it as the catalog that all see is to have it; None if that has to wait for COMMIT.
        """
        known = catalog.relations.get(relation.id)
        if known is not None and not known.hidden:
            self.altered[relation.id] = relation
            return None
        if relation.hidden:
            return relation
        self.made.add(relation.id)
        return replace(relation, hidden=True, staged=True)

    def drop(self, ids: Iterable[str], catalog: Catalog) -> set[str]:
        """Take relations out; those that can go at once, as nobody else sees them."""
        gone = {i for i in ids if i in catalog.relations and catalog.relations[i].hidden}
        later = {i for i in ids if i in catalog.relations} - gone
        # What works for a view that others see goes when that goes.
        gone -= {i for i in gone if catalog.relations[i].owner in later}
        self.dropped |= set(ids) - gone
        self.made -= gone
        return gone
