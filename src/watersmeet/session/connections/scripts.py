"""Scripts that run again: statements that the database has run before are skipped.

A CREATE is skipped if its object exists with the same definition. Definitions are compared as parsed, not as bound:
white space, comments and the case of keywords do not matter, and neither do changes of the objects that a query reads.
Values of secret options are not compared, because a stored definition hides them.

The catalog keeps a digest of each CREATE, ALTER, DROP, GRANT, INSERT, UPDATE, DELETE and COPY of a script, in the
commit that has its effect. The digest covers the name of the script's file, the dialect, the words of the statement,
and how often the script contained these words earlier. Changes of rows belong to their table: they are made again in a
table that was dropped and created again.

Scripts are checked in scratch databases, which are empty or have a copy of the objects of a database.
"""

from __future__ import annotations

import difflib
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from watersmeet.catalog import Input, Relation, Sink, SqlFunction, View
from watersmeet.database.definitions import check_replaceable, schema_for, with_dependents
from watersmeet.database.opened import OpenDatabase
from watersmeet.database.sessions.context import Session, error_at
from watersmeet.database.sessions.variables import DIALECT
from watersmeet.dialects.parsing import without_secrets
from watersmeet.dialects.registry import language_named
from watersmeet.dialects.script import read_script, tokenize
from watersmeet.dialects.statements.dml import CopyFrom
from watersmeet.dialects.statements.functions import CreateFunction
from watersmeet.dialects.tree import definitions as df
from watersmeet.dialects.tree import statements as st
from watersmeet.dialects.tree.tokens import spelling
from watersmeet.errors import Error, Span
from watersmeet.session.clauses import without_connector
from watersmeet.session.features.roles import AlterRole, CreateRole
from watersmeet.session.features.sharedoptions import CreateSecret
from watersmeet.store.positions import create_secret, secret_names
from watersmeet.system.process import lazy_import

if TYPE_CHECKING:
    from watersmeet.database import rebuild
else:
    rebuild = lazy_import("watersmeet.database.rebuild")

#: The fields of a statement that hold its spelling, not its meaning.
_WRITTEN: Final = ("text", "sql", "query_text", "if_not_exists", "replaces")

#: These statements may contain passwords, which could be guessed from a fast digest.
_SLOW: Final = (CreateRole, AlterRole)
_ROUNDS: Final = 100_000

#: run: the statement is new. same: its object exists with this definition. ran: it ran before. changed: its object was
#: changed after it ran, or has another definition and the statement has IF NOT EXISTS. differs: its object has another
#: definition.
Action = Literal["run", "same", "ran", "changed", "differs"]


@dataclass(frozen=True, slots=True)
class Step:
    """A statement of a script, and whether it is to run.

    title: that of the existing object. difference: its definition compared with the script's, line by line. problem:
    why the object can't be replaced.
    """

    statement: st.Statement
    action: Action
    title: str = ""
    difference: tuple[str, ...] = ()
    problem: Error | None = None

    @property
    def runs(self) -> bool:
        """Whether the statement is to run."""
        return self.action in ("run", "differs")

    @property
    def changes(self) -> bool:
        """Whether the statement will run, and will change the database."""
        return self.runs and (self.statement.once or isinstance(self.statement, df.Create | df.CreateSchema))


class ScriptRun:
    """The statements of a script, compared with the objects of a database.

    name: that of the script's file, without its folder. replaces: definitions are compared even if their statement ran
    before, and those that differ are replaced.
    """

    def __init__(
        self,
        session: Session,
        name: str,
        statements: Sequence[st.Statement],
        *,
        replaces: bool = False,
        of: OpenDatabase | None = None,
    ) -> None:
        """of: the database that recorded which statements ran; by default, that of the session."""
        self.name = name
        self.replaces = replaces
        self.skipped = 0
        self._session = session
        self._recorded = of or session.database
        self._statements = list(st.single(statements))
        self._places = {id(s): place for place, s in enumerate(self._statements)}
        self._digests = list(self._digested())
        self._altering = [p for p, s in enumerate(self._statements) if isinstance(s, df.Drop | df.Alter)]
        self._gone: set[str] = set()

    def _digested(self) -> Iterator[str | None]:
        """For each statement its digest, or None if the catalog keeps none of it."""
        salt = self._recorded.layout.id.encode()
        dialect, counts = self._session.dialect, Counter[str]()
        for statement in self._statements:
            if isinstance(statement, st.SetVariable) and statement.name == DIALECT and statement.value:
                dialect = statement.value.lower()
            if not (statement.once or isinstance(statement, df.Create)):
                yield None
                continue
            words = spelling(tokenize(statement.sql, language_named(dialect)))
            counts[words] += 1
            content = "\0".join((self.name, dialect, words, str(counts[words]))).encode()
            rounds = _ROUNDS if isinstance(statement, _SLOW) else 1
            yield hashlib.pbkdf2_hmac("sha256", content, salt, rounds).hex()[:20]

    def step(self, statement: st.Statement) -> Step:
        """The step for a statement, given the current catalog."""
        session = self._session
        if isinstance(statement, df.Create) and not isinstance(statement, df.CreateProcessor):
            return self._create(statement)
        if isinstance(statement, df.CreateSchema):
            return Step(statement, "same" if statement.name.name in session.catalog.schemas else "run")
        if isinstance(statement, CreateRole):
            exists = statement.name.name in session.catalog.roles
        elif isinstance(statement, CreateSecret):
            exists = statement.name.name in secret_names(session.database.layout)
        else:
            exists = True
        if exists and self._ran(statement, target := self.target(statement)):
            return Step(statement, "ran")
        name = _target_name(statement)
        removed = exists and name is not None and target is None and self._later(statement, name, removes=True)
        return Step(statement, "ran" if removed else "run")

    def _create(self, statement: df.Create) -> Step:
        existing = self._existing(statement)
        name = st.Name(statement.name, statement.name_span, schema=statement.schema)
        if existing is None:
            return Step(statement, "ran" if self._later(statement, name, removes=True) else "run")
        title = f"function {existing.signature}" if isinstance(existing, SqlFunction) else existing.title
        ran, dialect = self._ran(statement, existing), self._session.dialect
        if _same(existing, statement, dialect):
            return Step(statement, "same", title)
        if ran and self._later(statement, name, removes=False):
            return Step(statement, "ran", title)
        difference = tuple(_difference(without_secrets(existing.sql, dialect), without_secrets(statement.sql, dialect)))
        if not self.replaces and (ran or statement.if_not_exists):
            return Step(statement, "changed", title, difference)
        return Step(statement, "run" if statement.replaces else "differs", title, difference)

    def _later(self, statement: st.Statement, name: st.Name, *, removes: bool) -> bool:
        """Whether a later statement of the script altered the relation when the script last ran.

        removes: only count statements after which no relation has the name.
        """
        place = self._places[id(statement)]
        later = (self._statements[p] for p in self._altering if p > place)
        wanted = (name.schema, name.name)
        return any(wanted in (_removed(s) if removes else _altered(s)) and self._ran(s, None) for s in later)

    def _existing(self, statement: df.Create) -> Relation | SqlFunction | None:
        try:
            schema = schema_for(self._session, statement)
        except Error:  # the script creates the schema later
            return None
        catalog = self._session.catalog
        if isinstance(statement, CreateFunction):
            return catalog.function(statement.name, schema)
        found = catalog.by_name(statement.name, schema)
        return None if found is None or found.id in self._gone else found

    def target(self, statement: st.Statement) -> Relation | SqlFunction | None:
        """The relation that a statement has written, altered or created; None if it does not exist."""
        if isinstance(statement, df.Create) and not isinstance(statement, df.CreateProcessor):
            return self._existing(statement)
        name = _target_name(statement)
        found = None if name is None else self._session.find(name)
        return None if found is None or found.id in self._gone else found

    def _ran(self, statement: st.Statement, target: Relation | SqlFunction | None) -> bool:
        """Whether the statement ran before on the relation `target`; None: on any existing relation."""
        digest, ran = self._digests[self._places[id(statement)]], self._session.database.catalog.ran
        if target is not None:
            return digest in ran.get(target.id, ())
        return any(digest in found for i, found in ran.items() if i not in self._gone)

    def expect(self, statement: st.Statement) -> None:
        """From now on, treats the relations that the statement drops or renames as dropped."""
        if isinstance(statement, df.Drop | df.RenameRelation):
            catalog = self._session.catalog
            named = (catalog.by_name(n, s) for s, n in _removed(statement))
            gone = [r.id for r in named if r is not None]
            gone += [d.id for i in gone for d in catalog.dependents(i) if isinstance(statement, df.Drop)]
            self._gone.update(gone)

    def notes(self, statements: Iterable[st.Statement]) -> bool:
        """Whether the catalog records the run of at least one of the statements."""
        return any(self._digests[self._places[id(s)]] is not None for s in statements)

    def note(self, statement: st.Statement, before: Relation | SqlFunction | None) -> None:
        """Records in the open transaction that a statement ran. before: its target before it ran."""
        digest, transaction = self._digests[self._places[id(statement)]], self._session.transaction
        if digest is None or transaction is None:
            return
        target = self.target(statement) if isinstance(statement, df.Create) else before
        found = transaction.ran.setdefault("" if target is None else target.id, [])
        if isinstance(statement, df.CreateProcessor) and before is not None and before is not target:
            # The processor has replaced its topic.
            found += [*self._session.database.catalog.ran.get(before.id, ()), *transaction.ran.get(before.id, ())]
        found.append(digest)


def steps_of(session: Session, name: str, text: str, *, replaces: bool = False) -> list[Step]:
    """The steps of a script, without running them; only its SET statements take effect in the session."""
    statements = session.parse(text)
    run = ScriptRun(session, name, statements, replaces=replaces)
    found = []
    for statement in st.single(statements):
        if isinstance(statement, st.SetVariable) and statement.name in (DIALECT, "search_path"):
            _set(session, statement)
        step = run.step(statement)
        if step.action == "run":
            run.expect(statement)
        elif step.action == "differs" and replaces:
            try:
                check_replacing(session, step)
            except Error as err:
                step = replace(step, problem=err)
        found.append(step)
    return found


def check_definitions(session: Session, name: str, text: str, file: str, path: str) -> None:
    """Raises DUPLICATE_OBJECT if a script defines objects in another way than the database does.

    file: the script's, with its folder. path: the database's.
    """
    differing = [s for s in steps_of(session, name, text) if s.action == "differs"]
    if not differing:
        return
    first = differing[0].statement
    assert isinstance(first, df.Create)
    shown = [line for s in differing for line in (f"{s.title}, in the database and in the script:", *s.difference)]
    raise error_at(
        first,
        first.name_span,
        "DUPLICATE_OBJECT",
        f"{differing[0].title} already exists with another definition",
        detail="\n".join([*shown, "Nothing of the script was done."]),
        hint=f"watersmeet migrate {file} --path {path} shows what would change, and replaces views if you confirm it.",
    )


def _set(session: Session, statement: st.SetVariable) -> None:
    """Follows SET dialect and SET search_path; a schema that does not exist yet leaves an empty path."""
    if statement.name == DIALECT:
        session.variables.set(DIALECT, statement.value)
    elif statement.schema is not None:
        session.variables.set("search_path", '"' + statement.schema.name.replace('"', '""') + '"')
    else:
        session.variables.set("search_path", statement.value)


def check_replacing(session: Session, step: Step) -> None:
    """Raises FEATURE_NOT_SUPPORTED if replacing an object would lose rows, CATALOG_TYPE_MISMATCH for another kind,
    DEPENDENT_OBJECTS.
    """
    statement = step.statement
    assert isinstance(statement, df.Create)
    if isinstance(statement, CreateFunction):
        return
    existing = session.catalog.by_name(statement.name, schema_for(session, statement))
    if existing is None:
        return
    check_replaceable(statement, existing)
    if existing.is_stored and not existing.is_fed_by_circuit:
        raise error_at(
            statement,
            statement.name_span,
            "FEATURE_NOT_SUPPORTED",
            f"replacing {existing.title} is not supported, because its rows would be lost",
            detail="\n".join(("In the database and in the script:", *step.difference)),
            hint="Use ALTER, or DROP it first.",
        )
    if not isinstance(existing, View):
        with_dependents(session, [existing], statement, cascade=False, verb="replace")


def _target_name(statement: st.Statement) -> st.Name | None:
    """The name of the relation whose rows or definition a statement changes."""
    if isinstance(statement, st.Insert | st.Update | st.Delete | st.MergeInto | CopyFrom):
        return statement.table
    if isinstance(statement, df.Merge):
        return statement.insert.table
    if isinstance(statement, df.Alter):
        return statement.name
    if isinstance(statement, df.CreateProcessor):
        return st.Name(statement.name, statement.name_span, schema=statement.schema)
    return None


def _removed(statement: st.Statement) -> set[tuple[str | None, str]]:
    """The names that no relation has once the statement has run, with their schemas as written."""
    if isinstance(statement, df.Drop):
        return {(n.schema, n.name) for n in statement.names}
    return _altered(statement) if isinstance(statement, df.RenameRelation) else set()


def _altered(statement: st.Statement) -> set[tuple[str | None, str]]:
    return {(statement.name.schema, statement.name.name)} if isinstance(statement, df.Alter) else set()


def _same(existing: Relation | SqlFunction, statement: df.Create, dialect: str) -> bool:
    """Whether a statement has the definition of an existing object."""
    if existing.dialect != dialect:
        return False
    text = without_secrets(statement.sql, dialect)
    stored = without_secrets(existing.sql, dialect)
    if stored == text:
        return True
    language = language_named(dialect)
    try:
        one, other = (_form(read_script(t, language)[-1]) for t in (stored, text))
    except Error:  # the script's text begins with a clause that the stored text lacks
        return False
    return bool(one == other)


def _form(value: Any) -> Any:
    """A part of a statement without positions and spelling; trees of queries stay unchanged, because they compare
    without these.
    """
    if is_dataclass(value) and not isinstance(value, type):
        found = [(f.name, _form(getattr(value, f.name))) for f in fields(value) if f.name not in _WRITTEN]
        return None if isinstance(value, Span) else (type(value), found)
    if isinstance(value, Mapping):
        return {k: _form(v) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return [_form(v) for v in value]
    return value


def _difference(old: str, new: str) -> Iterator[str]:
    """The lines of both texts; "-" precedes those only in the old text, "+" those only in the new one."""
    before, after = ([line.rstrip() for line in text.strip().splitlines()] for text in (old, new))
    old_keys, new_keys = ([" ".join(line.split()) for line in lines] for lines in (before, after))
    for kind, i, j, k, m in difflib.SequenceMatcher(None, old_keys, new_keys, autojunk=False).get_opcodes():
        if kind == "equal":
            yield from (f"  {line}" for line in after[k:m])
        else:
            yield from (f"- {line}" for line in before[i:j])
            yield from (f"+ {line}" for line in after[k:m])


@contextmanager
def scratch_database(objects_of: OpenDatabase | None = None) -> Iterator[OpenDatabase]:
    """An empty database in this process, or one with the objects of another database, without rows and connectors."""
    with closing(OpenDatabase(None, parallelism=1, files=objects_of is None or objects_of.files)) as database:
        if objects_of is not None:
            _copy_objects(objects_of, database)
        yield database


def _copy_objects(existing: OpenDatabase, database: OpenDatabase) -> None:
    """Gives an empty database the objects of another one: relations, functions, roles, and the names of secrets.

    Queries that run and views that are still being filled are left out. Views are planned again, without their state.
    """
    known = existing.catalog.relations.values()
    left_out = {r.id for r in known if (r.hidden and not r.owner) or not r.ready}
    catalog = existing.catalog.without(left_out)
    relations = {i: _unconnected(r) for i, r in catalog.relations.items()}
    database.change_catalog(replace(catalog, relations=relations))
    database.plans.replace_all(rebuild.plans_made_anew(database.catalog), database.buckets)
    database.circuit.reinstall()
    for name in secret_names(existing.layout):
        create_secret(database.layout, name, "")


def _unconnected(relation: Relation) -> Relation:
    """The relation without its connector; a sink without connector delivers nothing."""
    if isinstance(relation, Sink):
        return replace(relation, connector={"connector": "blackhole"})
    return without_connector(relation) if isinstance(relation, Input) and relation.connector else relation
