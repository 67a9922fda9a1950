"""PostgreSQL's keywords as names: those that it does not reserve name columns, tables and aliases."""

from __future__ import annotations

import pytest

import watersmeet
from watersmeet.dialects.parsing import parse
from watersmeet.dialects.tree.statements import Refused

#: PostgreSQL 18, pg_get_keywords(): words that may name columns, tables and aliases (unreserved, and those that can't
#: name functions or types).
NAMES = """
    abort absent absolute access action add admin after aggregate also alter always asensitive assertion assignment
    at atomic attach attribute backward before begin between bigint bit boolean breadth by cache call called cascade
    cascaded catalog chain char character characteristics checkpoint class close cluster coalesce columns comment
    comments commit committed compression conditional configuration conflict connection constraints content continue
    conversion copy cost csv cube current cursor cycle data database day deallocate dec decimal declare defaults
    deferred definer delete delimiter delimiters depends depth detach dictionary disable discard document domain
    double drop each empty enable encoding encrypted enforced enum error escape event exclude excluding exclusive
    execute exists explain expression extension external extract family filter finalize first float following force
    format forward function functions generated global granted greatest grouping groups handler header hold hour
    identity if immediate immutable implicit import include including increment indent index indexes inherit
    inherits inline inout input insensitive insert instead int integer interval invoker isolation json json_array
    json_arrayagg json_exists json_object json_objectagg json_query json_scalar json_serialize json_table json_value
    keep key keys label language large last leakproof least level listen load local location lock locked logged
    mapping match matched materialized maxvalue merge merge_action method minute minvalue mode month move name names
    national nchar nested new next nfc nfd nfkc nfkd no none normalize normalized nothing notify nowait nullif nulls
    numeric object objects of off oids old omit operator option options ordinality others out over overlay
    overriding owned owner parallel parameter parser partial partition passing password path period plan plans
    policy position preceding precision prepare prepared preserve prior privileges procedural procedure procedures
    program publication quote quotes range read real reassign recursive ref referencing refresh reindex relative
    release rename repeatable replace replica reset restart restrict return returns revoke role rollback rollup
    routine routines row rows rule savepoint scalar schema schemas scroll search second security sequence sequences
    serializable server session set setof sets share show simple skip smallint snapshot source sql stable standalone
    start statement statistics stdin stdout storage stored strict string strip subscription substring support sysid
    system tables tablespace target temp template temporary text ties time timestamp transaction transform treat
    trigger trim truncate trusted type types uescape unbounded uncommitted unconditional unencrypted unknown
    unlisten unlogged until update vacuum valid validate validator value values varchar varying version view views
    virtual volatile whitespace within without work wrapper write xml xmlattributes xmlconcat xmlelement xmlexists
    xmlforest xmlnamespaces xmlparse xmlpi xmlroot xmlserialize xmltable year yes zone
""".split()
#: Words that only AS and a dot may precede: reserved ones, and those that may name functions and types.
RESERVED = """
    all analyse analyze and any array as asc asymmetric authorization binary both case cast check collate collation
    column concurrently constraint create cross current_catalog current_date current_role current_schema
    current_time current_timestamp current_user default deferrable desc distinct do else end except false fetch for
    foreign freeze from full grant group having ilike in initially inner intersect into is isnull join lateral
    leading left like limit localtime localtimestamp natural not notnull null offset on only or order outer overlaps
    placing primary references returning right select session_user similar some symmetric system_user table
    tablesample then to trailing true union unique user using variadic verbose when where window with
""".split()
#: Words that can't be an alias of a column without AS.
WITH_AS = """
    array as char character create day except fetch filter for from grant group having hour intersect into isnull
    limit minute month notnull offset on order over overlaps precision returning second to union varying where
    window with within without year
""".split()

#: A query for each place of a word that names a column of t with the value {i}.
OF_COLUMNS = (
    "SELECT {w} FROM t",
    "SELECT q.a FROM (SELECT {w}, 1 FROM t) AS q(a, b)",
    "SELECT t.{w} FROM t",
    "SELECT {w} AS {w} FROM t",
    "SELECT {w} FROM t WHERE {w} = {i}",
    "SELECT {w} FROM t WHERE absent >= 0 AND {w} IN ({i})",
    "SELECT {w} FROM t ORDER BY {w} DESC",
    "SELECT {w} FROM t GROUP BY {w}",
    "SELECT sum({w}) FROM t",
    "SELECT {w} + 0 FROM t",
    "SELECT ({w}) FROM t",
    "SELECT {w}::int FROM t",
    "SELECT coalesce({w}, 7) FROM t",
    "SELECT CASE WHEN {w} = {i} THEN {w} ELSE 1 END FROM t",
    "SELECT {w} FROM (SELECT {i} AS {w}) AS s",
    "SELECT s.{w} FROM (SELECT {w} FROM t) s",
)
#: A query for each place of a word that names a relation, with the result {i}.
OF_RELATIONS = (
    "SELECT {w}.a FROM (SELECT {i} AS a) AS {w}",
    "SELECT {w}.{w} FROM t AS {w} WHERE {w}.{w} = {i}",
    "WITH {w} AS (SELECT {i} AS a) SELECT a FROM {w}",
    "WITH {w} AS (SELECT {i} AS a), s AS (SELECT a FROM {w} WHERE a >= 0) SELECT s.a FROM s JOIN {w} ON s.a = {w}.a",
)
#: The same, where a word that also is an operator can't stand.
BARE_RELATIONS = (
    "SELECT {w}.{w} FROM t {w} WHERE {w}.{w} = {i}",
    "SELECT {w}.a FROM (SELECT {i} AS a) {w}",
)
#: Reserved words that are no alias without AS, although PostgreSQL takes them.
NO_ALIASES = """
    and between collate cross distinct else ilike in inner join lateral like not only or outer select tablesample then
    using values variadic when
""".split()


#: Words that the grammar of queries uses in another way.
SPECIAL = """
    absent alter at between by cube current date day drop exclude filter first format if insert interval key lock month
    over partition path period range recursive revoke rollback rollup row rows second session set time timestamp type
    value values window year
""".split()


@pytest.fixture(scope="module")
def cursor():
    names = [w for w in SPECIAL if w not in RESERVED]
    with watersmeet.connect(runtime="inprocess", parallelism=1) as connection:
        cursor = connection.cursor()
        cursor.execute(f"CREATE TABLE t ({', '.join(f'{w} int' for w in names)})")
        cursor.execute(f"INSERT INTO t ({', '.join(names)}) VALUES ({', '.join(str(i) for i, _ in enumerate(names))})")
        yield cursor


def forms(word):
    found = [*OF_COLUMNS, *OF_RELATIONS, *(() if word == "between" else BARE_RELATIONS)]
    return [
        form.format(w=word, i=names_of_special().index(word) if word in names_of_special() else 1) for form in found
    ]


def names_of_special():
    return [w for w in SPECIAL if w not in RESERVED]


@pytest.mark.parametrize("word", NAMES)
def test_words_that_are_not_reserved_are_names(word):
    table = "t" if word == "values" else word  # the grammar reads rows of VALUES there
    others = (
        f"CREATE TABLE {word} (a int, {word} int, PRIMARY KEY ({word}))",
        f"INSERT INTO {table} (a, {word}) VALUES (1, 2)",
        f"UPDATE {table} SET {word} = {word} + 1 WHERE {word} = 1",
        f"DELETE FROM {table} WHERE {word} > 1",
        f"ALTER TABLE {word} ADD COLUMN {word} int",
        f"CREATE VIEW {word} AS SELECT {word} FROM t",
    )
    for sql in (*forms(word), *others):
        (statement,) = parse(sql)
        assert not isinstance(statement, Refused), sql
    (inserted,) = parse(others[1])
    assert [c.name for c in inserted.columns] == ["a", word]


@pytest.mark.parametrize("word", names_of_special())
def test_the_names_mean_their_columns_and_relations(cursor, word):
    queries = [f"SELECT * FROM ({form}) AS q(found)" for form in forms(word)]
    cursor.execute(" UNION ALL ".join(queries))
    assert {row[0] for row in cursor.fetchall()} == {names_of_special().index(word)}


@pytest.mark.parametrize("words", [NAMES, RESERVED], ids=["names", "reserved"])
def test_every_word_is_an_alias_after_as(words):
    for word in words:
        (statement,) = parse(f"SELECT 1 AS {word}, a AS {word}, t.{word} FROM t")
        assert [e.alias_or_name for e in statement.query.expressions] == [word] * 3


def test_words_are_aliases_without_as_where_they_are_in_postgresql():
    for word in [w for w in (*NAMES, *RESERVED) if w not in (*WITH_AS, *NO_ALIASES, "isnull", "notnull")]:
        (statement,) = parse(f"SELECT 1 {word}, a {word} FROM t")
        assert [e.alias_or_name for e in statement.query.expressions] == [word, word]


def test_the_lists_are_postgresqls(postgres):
    with postgres.connect() as connection:
        rows = connection.execute("SELECT word, catcode, barelabel FROM pg_get_keywords() ORDER BY word").fetchall()
    assert [word for word, code, _ in rows if code in "UC"] == NAMES
    assert [word for word, code, _ in rows if code in "TR"] == RESERVED
    assert [word for word, _, bare in rows if not bare] == WITH_AS
