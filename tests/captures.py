"""Databases of `tests.servers` as captured sources: the same words for all systems."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from scripts.servers import mariadb, postgres

from tests.servers import MysqlDatabase, PostgresDatabase
from tests.waiting import until as _until

Database = PostgresDatabase | MysqlDatabase


def is_postgres(database: Database) -> bool:
    return isinstance(database, PostgresDatabase)


def schema(database: Database) -> str:
    """The schema of its tables, as messages name it."""
    return "public" if is_postgres(database) else database.name


def series(database: Database, count: int) -> str:
    """A table of the numbers from 1 on, in a column `seq`."""
    return f"generate_series(1, {count}) AS g(seq)" if is_postgres(database) else f"seq_1_to_{count}"


def options(database: Database, **more: object) -> str:
    """WITH (...) of a source, or of a table that is its own source."""
    connector, module = ("postgres-cdc", postgres) if is_postgres(database) else ("mysql-cdc", mariadb)
    found = {"connector": connector, "hostname": "127.0.0.1", "port": database.server.port, "username": module.USER,
        "password": module.PASSWORD, "database.name": database.name, **more}  # fmt: skip
    return "WITH (" + ", ".join(f"{n} = '{v}'" for n, v in found.items()) + ")"


def own_options(database: Database, **more: object) -> str:
    """Those of a table that is its own source."""
    slot = {"slot.name": f"own_{database.name}"} if is_postgres(database) else {}
    return options(database, **{**slot, **more})


def source(opened: Any, database: Database, **more: object) -> str:
    """Creates the source `there`; the name of its slot, if the system has slots."""
    slot = f"s_{database.name}"
    given = {"slot.name": slot, **more} if is_postgres(database) else more
    opened.execute(f"CREATE SOURCE there {options(database, **given)}")
    return slot


def ask(database: Database, query: str) -> list[tuple[Any, ...]]:
    """The rows that the server gives."""
    if isinstance(database, MysqlDatabase):
        return list(database.execute(query))
    with database.connect() as connection:
        return connection.execute(query).fetchall()


def rows(opened: Any, query: str, *, stops: bool = False) -> list[tuple[Any, ...]]:
    """The rows of a query, with all changes that the server has made. stops: tables may have stopped."""
    cursor = opened.cursor()
    cursor.execute("FLUSH")
    wrong = [n for n in cursor.notices if "waited for" in n or (not stops and "follows no more" in n)]
    assert not wrong, cursor.notices
    cursor.execute(query)
    return cursor.fetchall()


def where(opened: Any) -> tuple[str, str]:
    """The state of the only source, and the reason."""
    ((_, state, why, *_),) = opened.execute("SHOW SOURCES").fetchall()
    return state, why


def until(opened: Any, state: str, said: str = "") -> str:
    """Waits until the only source has that state with that reason; the reason."""
    found: list[tuple[str, str]] = []

    def is_there() -> bool:
        found[:] = [where(opened)]
        return found[0][0] == state and said in (found[0][1] or "")

    _until(is_there)
    return found[0][1]


def publication(database: PostgresDatabase) -> str:
    """The name of the only publication."""
    ((name,),) = ask(database, "SELECT pubname FROM pg_publication")
    return name


def left_over(database: Database) -> list[tuple[Any, ...]]:
    """The objects of sources on the server: slots and publications."""
    if not is_postgres(database):
        return []
    slots = "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"
    return ask(database, f"{slots} UNION ALL SELECT pubname FROM pg_publication")


def create_again(database: Database, table: str, columns: str) -> None:
    """Drops a captured table and creates another one of that name, which is published as the old one was."""
    database.execute(f"DROP TABLE {table}; CREATE TABLE {table} ({columns})")
    if isinstance(database, PostgresDatabase):
        database.execute(f"ALTER PUBLICATION {publication(database)} ADD TABLE {table}")


class User:
    """A user with the rights that a capture needs, and the tables a and b; the password is `first-secret`."""

    def __init__(self, database: Database) -> None:
        self.database, self.name = database, f"u_{database.name}"
        tables = "CREATE TABLE a (i int PRIMARY KEY); CREATE TABLE b (i int PRIMARY KEY, v varchar(9))"
        if is_postgres(database):
            database.execute(
                f"CREATE ROLE {self.name} LOGIN PASSWORD 'first-secret' REPLICATION;"
                f"GRANT CREATE ON DATABASE {database.name} TO {self.name}; GRANT CREATE ON SCHEMA public TO {self.name}"
            )
            database.execute(f"SET ROLE {self.name}; {tables}")
        else:
            database.execute(
                f"{tables}; CREATE USER {self.name} IDENTIFIED BY 'first-secret';"
                f"GRANT REPLICATION SLAVE ON *.* TO {self.name}; GRANT SELECT ON {database.name}.a TO {self.name};"
                f"GRANT SELECT ON {database.name}.b TO {self.name}"
            )
        database.execute(f"INSERT INTO b SELECT seq, 'old' FROM {series(database, 50)}")

    def grant(self, right: str = "GRANT SELECT ON {schema}.b TO {user}") -> None:
        """Gives a right, or takes it."""
        self.database.execute(right.format(schema=schema(self.database), user=self.name))

    def alter(self, done: str) -> None:
        """Changes what the user may do from its next connection on."""
        self.database.execute(f"ALTER {'ROLE' if is_postgres(self.database) else 'USER'} {self.name} {done}")

    def end_connections(self) -> None:
        is_role = is_postgres(self.database)
        ended = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{self.name}'"
        self.database.execute(ended if is_role else f"KILL USER {self.name}")

    def drop(self) -> None:
        if is_postgres(self.database):
            self.database.execute(f"SELECT pg_drop_replication_slot('s_{self.database.name}')")
            self.database.execute(f"DROP OWNED BY {self.name} CASCADE; DROP ROLE {self.name}")
        else:
            self.database.execute(f"DROP USER {self.name}")


@contextmanager
def user_of(database: Database) -> Iterator[User]:
    """A user for the time of a test."""
    user = User(database)
    try:
        yield user
    finally:
        user.drop()


_SYSTEMS = {"postgres": pytest.mark.postgres, "mysql": pytest.mark.mysql}


def of(system: str, *values: object, own: bool = False, marks: Sequence[pytest.MarkDecorator] = ()) -> Any:
    """A case of `on_each`: a database of that system, and further values. own: on a server of this test alone."""
    return pytest.param(f"own_{system}" if own else system, *values, marks=(_SYSTEMS[system], *marks))


def on_each(names: str = "there", cases: Sequence[Any] = (), *, own: bool = False) -> pytest.MarkDecorator:
    """Parametrizes a test over databases, the fixture `there`, and the values that `names` lists after it."""
    cases = cases or [of(system, own=own) for system in _SYSTEMS]
    return pytest.mark.parametrize(names, cases, indirect=["there"])
