"""Enums and domains with drivers that register types of the server."""

from __future__ import annotations

import asyncio
import enum

import asyncpg
import pytest
from psycopg.types.enum import EnumInfo, register_enum

_SCRIPT = """
    CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
    CREATE DOMAIN posint AS int CHECK (VALUE > 0);
    CREATE TABLE t (id posint PRIMARY KEY, m mood, ms mood[]);
    INSERT INTO t VALUES (1, 'ok', '{sad,ok}');
"""


_CATALOG = """
SELECT domain_name, data_type, character_maximum_length FROM information_schema.domains WHERE domain_schema = 'public' ORDER BY 1
SELECT constraint_name, domain_name FROM information_schema.domain_constraints WHERE domain_schema = 'public' AND constraint_name NOT LIKE '%null' ORDER BY 1
SELECT column_name, data_type, domain_name, udt_name FROM information_schema.columns WHERE table_name = 't' AND column_name <> 'f' ORDER BY ordinal_position
SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = 't'::regclass AND attnum > 0 ORDER BY attnum
SELECT typname, typtype, typnotnull, format_type(typbasetype, typtypmod) FROM pg_type WHERE typtype = 'd' AND typnamespace = 2200 ORDER BY 1
SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint WHERE conname IN ('posint_check', 'ten') ORDER BY 1
"""  # noqa: E501


class Mood(enum.Enum):
    sad = "sad"
    ok = "ok"
    happy = "happy"


@pytest.mark.parametrize("binary", [False, True])
def test_psycopg(serving, binary):
    with serving(_SCRIPT).connect(autocommit=True) as client:
        client.execute("SET rw_implicit_flush = true")
        info = EnumInfo.fetch(client, "mood")
        assert info is not None
        assert tuple(info.labels) == ("sad", "ok", "happy")
        register_enum(info, client, Mood)
        cursor = client.cursor(binary=binary)
        assert cursor.execute("SELECT m, ms FROM t").fetchall() == [(Mood.ok, [Mood.sad, Mood.ok])]
        cursor.execute("INSERT INTO t VALUES (%s, %s, %s)", (2, Mood.happy, [Mood.ok]))
        cursor.execute("UPDATE t SET m = %s WHERE m = %s", (Mood.sad, Mood.happy))
        assert cursor.execute("SELECT id, m FROM t WHERE m < %s", (Mood.ok,)).fetchall() == [(2, Mood.sad)]
        assert cursor.execute("SELECT id FROM t WHERE m = ANY(%s)", ([Mood.sad],)).fetchall() == [(2,)]
        assert cursor.execute("SELECT min(m), enum_last(NULL::mood) FROM t").fetchall() == [(Mood.sad, Mood.happy)]


def test_asyncpg(serving):
    async def run(port: int) -> None:
        client = await asyncpg.connect(host="127.0.0.1", port=port, user="x", database="shop")
        await client.execute("SET rw_implicit_flush = true")
        assert tuple(await client.fetchrow("SELECT * FROM t")) == (1, "ok", ["sad", "ok"])
        await client.execute("INSERT INTO t VALUES ($1, $2, $3)", 2, "sad", ["happy"])
        assert await client.fetchval("SELECT ms FROM t WHERE m = $1", "sad") == ["happy"]
        assert await client.fetchval("SELECT count(*) FROM t WHERE m = ANY($1)", ["sad", "ok"]) == 2
        assert await client.fetchval("SELECT $1::mood", "ok") == "ok"
        with pytest.raises(asyncpg.CheckViolationError):
            await client.fetchval("SELECT $1::posint", -1)
        prepared = await client.prepare("SELECT m FROM t WHERE m = $1")
        assert prepared.get_attributes()[0].type.name == "mood"
        assert prepared.get_parameters()[0].name == "mood"
        await client.close()

    asyncio.run(run(serving(_SCRIPT).server.port))


@pytest.mark.postgres
def test_catalog_as_in_postgresql(serving, postgres):
    script = """
        CREATE TYPE mood AS ENUM ('sad', 'ok');
        CREATE DOMAIN posint AS int CHECK (VALUE > 0) CONSTRAINT ten CHECK (VALUE < 10);
        CREATE DOMAIN code AS varchar(5) NOT NULL;
        CREATE DOMAIN good AS mood;
        CREATE DOMAIN few AS int[];
        CREATE TABLE t (id posint, c code, g good, m mood, f few);
    """
    postgres.execute(script)
    with serving(script).connect() as client, postgres.connect() as other:
        for sql in filter(None, _CATALOG.splitlines()):
            assert client.execute(sql).fetchall() == other.execute(sql).fetchall(), sql
