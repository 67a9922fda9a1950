"""The catalog of a database at one version, and the list of all kinds of relations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from watersmeet.catalog.parts import COMMON_SCHEMA, is_temporary
from watersmeet.catalog.relations import Relation
from watersmeet.catalog.roles import Role, RoleChange, changed, language_of
from watersmeet.catalog.rowless import (
    Connection,
    DomainType,
    EnumType,
    FormatSchema,
    NamedCollection,
    NamedSubscription,
    NumberSequence,
    PausedQuery,
    Server,
    Sink,
    SinkConflicts,
    SinkQuery,
    SqlFunction,
)
from watersmeet.catalog.tables import (
    AddressRanges,
    CapturedDatabase,
    CapturedTable,
    DictionaryTable,
    ExternalTable,
    Index,
    LateRows,
    QuerySource,
    ReceivedSource,
    ReceivedTable,
    Source,
    Stream,
    Table,
    TopicTable,
    WebhookTable,
    late_rows_of,
)
from watersmeet.catalog.views import (
    CacheFill,
    DictionaryView,
    ExternalView,
    MaterializedView,
    Processor,
    Pump,
    Query,
    StoppedPump,
    Subscription,
    TopicWriter,
    View,
)
from watersmeet.values.serialization import from_json, kinds, to_json
from watersmeet.values.times import UTC


@dataclass(frozen=True, slots=True)
class Catalog:
    """All relations of a database at one version. It is immutable: every change returns a new catalog.

    schemas: all schemas but the default one, in order of creation. path: the schemas in which the current session or
    view looks up unqualified names; not stored. zone: the zone of the current session or view; not stored.
    actual: the real catalog if this is the catalog as seen by a view; then
    `first` has the ids of the relations with precedence in name lookup. functions: the SQL functions by id. callable:
    the ids of the functions that the text of the current view or function can call; None: all that are not dropped.
    roles: the roles by name. granted: the ids of the relations that the session may see; None: all. retention_us: the
    retention of history; None: the default. late_rows_us: the same for late rows; 0: none are kept.
    verify_rate: how many views are verified in an hour. verify_key: the secret with the key that signs the results.
    ran: the digests of script statements that were already run, by the id of the changed relation or "". filling: the
    left out views that are being filled, in a catalog of relations that can be read; not stored.
    """

    version: int = 0
    next_number: int = 1
    relations: dict[str, Relation] = field(default_factory=dict)
    """The relations by id, in order of creation."""
    schemas: tuple[str, ...] = ()
    path: tuple[str, ...] = (COMMON_SCHEMA,)
    zone: str = UTC
    actual: Catalog | None = None
    first: frozenset[str] = frozenset()
    functions: dict[str, SqlFunction] = field(default_factory=dict)
    callable: frozenset[str] | None = None
    roles: dict[str, Role] = field(default_factory=dict)
    granted: frozenset[str] | None = None
    retention_us: int | None = None
    late_rows_us: int | None = None
    verify_rate: int = 0
    verify_key: str = ""
    ran: dict[str, tuple[str, ...]] = field(default_factory=dict)
    filling: tuple[Relation, ...] = ()
    _forms: dict[str, tuple[Relation, Any]] = field(default_factory=dict, compare=False, repr=False)
    """Relations with their JSON forms by id, of which consecutive catalogs share nearly all."""

    def seen_by(self, view: Relation) -> Catalog:
        """The catalog with the names in a view's text: renamed relations have their earlier names, and functions are
        those with which the view was created.
        """
        actual = self.actual or self
        words = {
            i: replace(actual.relations[i].renamed(k.columns), name=k.name, schema=k.schema)
            for i, k in view.known.items()
            if i in actual.relations
        }
        return replace(
            actual,
            path=view.path,
            zone=view.zone,
            relations={**actual.relations, **words},
            actual=actual,
            first=frozenset(words),
            callable=frozenset(view.functions),
            granted=None,
        )

    def seen_in(self, function: SqlFunction) -> Catalog:
        """The catalog with the names in a function's body."""
        return replace(self, path=function.path, callable=frozenset(function.functions))

    def function(self, name: str, schema: str | None = None) -> SqlFunction | None:
        """The SQL function with the name of a call, regardless of the arguments; or None."""
        places = self.path if schema is None else (schema,)
        known = self.functions.values()
        named = [
            f
            for f in known
            if f.name == name
            and f.schema in places
            and (not f.dropped if self.callable is None else f.id in self.callable)
        ]
        return min(named, key=lambda f: places.index(f.schema), default=None)

    def with_functions(self, functions: Iterable[SqlFunction]) -> Catalog:
        """A catalog with functions that are added, or replaced if their ids exist."""
        return replace(self, version=self.version + 1, functions={**self.functions, **{f.id: f for f in functions}})

    def _kept_functions(self) -> list[SqlFunction]:
        """All functions except for dropped ones that nothing calls."""
        # a staged relation may call functions of its transaction
        needed = {i for r in self.relations.values() for i in r.functions if i in self.functions}
        needed |= {f.id for f in self.functions.values() if not f.dropped}
        pending = list(needed)
        while pending:
            below = set(self.functions[pending.pop()].functions) - needed
            needed |= below
            pending += below
        return [f for i, f in self.functions.items() if i in needed]

    def with_roles(self, changes: Iterable[RoleChange]) -> Catalog:
        """A catalog with changed roles."""
        return replace(self, version=self.version + 1, roles=changed(self.roles, changes))

    def _kept_roles(self) -> list[Role]:
        """All roles without grants on dropped relations."""
        return [
            replace(r, grants={i: p for i, p in r.grants.items() if i in self.relations or language_of(i)})
            for r in self.roles.values()
        ]

    @property
    def follows_epochs(self) -> bool:
        """Whether the catalog has views, so that tables are shown as of the epoch that views reflect."""
        return any(isinstance(r, MaterializedView) and r.ready for r in self.relations.values())

    @property
    def as_stored(self) -> Catalog:
        """The catalog with the column names of data and plans."""
        if not any(r.stored for r in self.relations.values()):
            return self
        return replace(self, relations={i: r.as_stored for i, r in self.relations.items()})

    def shows(self, relation: Relation) -> bool:
        """Whether a relation is visible to the session; an index is visible if its table is."""
        if is_temporary(relation.schema) and relation.schema not in self.path:
            return False
        if self.granted is None or relation.id in self.granted:
            return True
        return isinstance(relation, Index) and relation.depends_on[0] in self.granted

    def knows(self, relation_ids: Iterable[str]) -> bool:
        """Whether relations and all their inputs are visible to the session, so that SHOW may show their
        definitions.
        """
        return self.granted is None or all(self.shows(self.relations[i]) for i in self.upstream(relation_ids))

    @property
    def shown(self) -> Iterator[Relation]:
        """The relations visible to the session."""
        return (r for r in self.relations.values() if self.shows(r))

    def by_name(self, name: str, schema: str | None = None, *, folded: bool = False) -> Relation | None:
        """The relation called `name` in `schema`, or in the first schema of the path that has one; else None.

        folded: whether the name was written without quotes, so that case is ignored. Names of relations in a schema
        always differ in more than case.
        """
        places = self.path if schema is None else (schema,)
        named = [
            r
            for r in self.relations.values()
            if r.is_named
            and r.schema in places
            and (r.name == name or (folded and r.name.lower() == name.lower()))
            and self.shows(r)
        ]
        return min(named, key=lambda r: (r.id not in self.first, places.index(r.schema)), default=None)

    def with_schemas(self, schemas: tuple[str, ...]) -> Catalog:
        """The catalog with these schemas instead of its own."""
        return replace(self, version=self.version + 1, schemas=schemas)

    def with_retention(self, retention_us: int | None) -> Catalog:
        """A catalog with another retention of history."""
        return replace(self, version=self.version + 1, retention_us=retention_us)

    def with_late_rows(self, late_rows_us: int | None) -> Catalog:
        """A catalog that keeps late rows for another time."""
        return replace(self, version=self.version + 1, late_rows_us=late_rows_us)

    def with_verify_rate(self, verify_rate: int) -> Catalog:
        """A catalog whose views are verified continuously."""
        return replace(self, version=self.version + 1, verify_rate=verify_rate)

    def with_verify_key(self, verify_key: str) -> Catalog:
        """A catalog whose verifications are signed."""
        return replace(self, version=self.version + 1, verify_key=verify_key)

    def with_ran(self, ran: Mapping[str, Sequence[str]]) -> Catalog:
        """A catalog with more digests of statements that were run, and without those of dropped relations."""
        known = {"", *self.relations, *self.functions}
        found = {i: (*self.ran.get(i, ()), *ran.get(i, ())) for i in {**self.ran, **ran} if i in known}
        return replace(self, ran=found)

    def new_id(self, kind: type[Relation], after: int = 0) -> str:
        """The id of the next relation, whose kind is `kind`. after: the number of relations that will precede it."""
        return f"{kind.family[0]}{self.next_number + after}"

    def with_relation(self, *relations: Relation) -> Catalog:
        """A catalog with relations, which are added, or replaced if their ids exist. Sources and views that drop late
        rows get entries for these.
        """
        version, number, known = self.version + 1, self.next_number, dict(self.relations)
        for relation in relations:
            before = known.get(relation.id)
            number += before is None
            since = before.since if before is not None and before.is_there else version
            known[relation.id] = replace(relation, since=since) if relation.is_there else relation
            number = _put_late_rows(known, relation, before, number, version)
        return replace(self, version=version, next_number=number, relations=known)

    def redefined(self, relations: Iterable[Relation]) -> Catalog:
        """A catalog in which relations, inputs first, replace those with their ids. They and the relations that depend
        on them follow all others, so that each relation still follows those that it reads.
        """
        moved = {r.id: r for r in relations}
        for reader in self.dependents(*moved):
            moved.setdefault(reader.id, reader)
        version = self.version + 1
        for relation in list(moved.values()):
            if isinstance(relation, MaterializedView):
                moved[relation.id] = replace(relation, defined=version)
        known = {i: r for i, r in self.relations.items() if i not in moved}
        known |= moved
        number = self.next_number
        for relation in moved.values():
            number = _put_late_rows(known, relation, self.relations.get(relation.id), number, version)
        return replace(self, version=version, next_number=number, relations=known)

    def without(self, ids: set[str]) -> Catalog:
        """A catalog without the relations `ids`."""
        kept = {i: r for i, r in self.relations.items() if i not in ids}
        return replace(self, version=self.version + 1, relations=kept)

    def dependents(self, *relation_ids: str) -> list[Relation]:
        """The relations that read one of `relation_ids`, directly or indirectly, in order of creation."""
        reached: set[str] = set()
        nearest = {*relation_ids}
        while nearest:  # a replaced view may read relations created later
            nearest = {r.id for r in self.relations.values() if nearest & set(r.depends_on)} - reached
            reached |= nearest
        return [r for r in self.relations.values() if r.id in reached]

    def with_enum(self, enum: Relation) -> list[Relation]:
        """The relations with columns of an enum or a domain; empty for other relations."""
        if isinstance(enum, DomainType):
            return [r for r in self.relations.values() if any(d.name == enum.shown for d in r.domains.values())]
        if not isinstance(enum, EnumType):
            return []
        return [r for r in self.relations.values() if any(c.type.has_enum(enum.shown) for c in r.columns)]

    def upstream(self, relation_ids: Iterable[str], *, writers: bool = False) -> set[str]:
        """`relation_ids` and the ids of their direct and indirect inputs.

        writers: whether to include the views that write one of these, with their inputs.
        """
        found: set[str] = set()
        pending = list(relation_ids)
        while pending:
            relation_id = pending.pop()
            if relation_id not in found and relation_id in self.relations:
                found.add(relation_id)
                pending += self.relations[relation_id].depends_on
                if writers:
                    pending += [r.id for r in self.relations.values() if r.feeds == relation_id]
        return found

    def to_json(self) -> Any:
        """A JSON value from which `from_json` restores the catalog as all sessions see it."""
        functions, roles = tuple(self._kept_functions()), tuple(self._kept_roles())
        stored = _Stored(
            self.version,
            self.next_number,
            self.schemas,
            (),
            functions,
            roles,
            self.retention_us,
            self.ran,
            self.late_rows_us,
            self.verify_rate,
            self.verify_key,
        )
        forms = self._forms
        for relation in self.relations.values():
            known = forms.get(relation.id)
            if known is None or known[0] is not relation:
                forms[relation.id] = relation, to_json(relation)
        for name in forms.keys() - self.relations.keys():
            del forms[name]
        return {**to_json(stored), "relations": [forms[i][1] for i in self.relations]}

    @staticmethod
    def from_json(value: Any) -> Catalog:
        """The inverse of `to_json`."""
        stored = from_json(_Stored, value)
        return Catalog(
            stored.version,
            stored.next_number,
            {r.id: r for r in stored.relations},
            stored.schemas,
            functions={f.id: f for f in stored.functions},
            roles={r.name: r for r in stored.roles},
            retention_us=stored.retention_us,
            late_rows_us=stored.late_rows_us,
            verify_rate=stored.verify_rate,
            verify_key=stored.verify_key,
            ran=stored.ran,
        )


def _put_late_rows(
    known: dict[str, Relation], owner: Relation, before: Relation | None, number: int, version: int
) -> int:
    """Adds the entries for the late rows of `owner`, and removes those of operators that it no longer has.

    before: its earlier definition. number: that of the next relation. Returns the number after that of the added
    entries.
    """
    made = late_rows_of(owner)
    if not made and not (isinstance(before, MaterializedView) and before.late):
        return number
    earlier = {r.number: r for r in known.values() if isinstance(r, LateRows) and r.owner == owner.id}
    for late in made:
        before = earlier.get(late.number)
        if before is not None and before.operator == late.operator:
            known[before.id] = replace(late, id=before.id, since=before.since)
            del earlier[late.number]
        else:
            known[f"{LateRows.family[0]}{number}"] = replace(late, id=f"{LateRows.family[0]}{number}", since=version)
            number += 1
    for gone in earlier.values():
        del known[gone.id]
    return number


@dataclass(frozen=True)
class _Stored:
    """The stored part of a catalog."""

    version: int
    next_number: int
    schemas: tuple[str, ...] = ()
    relations: tuple[Relation, ...] = ()
    functions: tuple[SqlFunction, ...] = ()
    roles: tuple[Role, ...] = ()
    retention_us: int | None = None
    ran: dict[str, tuple[str, ...]] = field(default_factory=dict)
    late_rows_us: int | None = None
    verify_rate: int = 0
    verify_key: str = ""


#: The kinds of relations, each of which is stored under the name of its `entry`.
KINDS: Final[tuple[type[Relation], ...]] = (
    Table,
    Stream,
    TopicTable,
    ExternalTable,
    DictionaryTable,
    AddressRanges,
    CapturedTable,
    WebhookTable,
    ReceivedTable,
    ReceivedSource,
    Source,
    QuerySource,
    LateRows,
    CapturedDatabase,
    View,
    ExternalView,
    DictionaryView,
    StoppedPump,
    MaterializedView,
    Pump,
    Processor,
    TopicWriter,
    Query,
    Subscription,
    CacheFill,
    Index,
    Sink,
    SinkQuery,
    SinkConflicts,
    PausedQuery,
    Server,
    Connection,
    FormatSchema,
    NamedCollection,
    NamedSubscription,
    NumberSequence,
    EnumType,
    DomainType,
)

kinds(Relation, {c.entry: c for c in KINDS}, by="entry")

#: The words for kinds in standard SQL.
FAMILIES: Final = tuple(dict.fromkeys(c.family for c in KINDS))

#: The lists of SHOW.
SHOWN: Final = tuple(dict.fromkeys(w for c in KINDS for w in c.words.show))

#: The words after SHOW CREATE.
SHOWN_CREATED: Final = tuple(dict.fromkeys(w for c in KINDS for w in c.words.show_create))
