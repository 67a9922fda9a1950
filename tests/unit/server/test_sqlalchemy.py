"""Queries that SQLAlchemy writes, in which each constant is a parameter, give what they give from PostgreSQL."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import psycopg
import sqlalchemy as sa
from sqlalchemy import func as f
from sqlalchemy.dialects import postgresql as pg

TABLE = sa.Table(
    "t",
    sa.MetaData(),
    sa.Column("id", sa.BigInteger, primary_key=True),
    sa.Column("n", sa.Numeric),
    sa.Column("d", sa.Double),
    sa.Column("name", sa.String),
    sa.Column("ts", sa.DateTime),
    sa.Column("tz", sa.DateTime(timezone=True)),
    sa.Column("a", pg.ARRAY(sa.Integer)),
    sa.Column("j", pg.JSONB),
)
SHOP = """
CREATE TABLE t (id bigint PRIMARY KEY, n numeric, d double precision, name varchar, ts timestamp, tz timestamptz,
    a int[], j jsonb);
INSERT INTO t VALUES
    (1, 2.5, 2.5, 'a-b', '2024-01-02 03:04:05', '2024-01-02 03:04:05+00', '{1,2}', '{"k": [1, 2], "m": {"x": "y"}}'),
    (2, 1.5, 7.5, 'b-c', '2024-02-03 13:14:15', '2024-02-03 23:04:05+00', '{3}', '{"m": 1}')
"""
C = TABLE.c
_BY_ID = {"order_by": C.id}

QUERIES = {
    "date_trunc": sa.select(f.date_trunc("month", C.ts), f.date_trunc("day", C.tz, "Asia/Tokyo")),
    "date_part": sa.select(f.date_part("hour", C.ts), sa.extract("month", C.ts)),
    "formats": sa.select(
        f.to_char(C.ts, "YYYY-MM"), f.to_date("2024-03", "YYYY-MM"), f.encode(f.decode("ff", "hex"), "hex")
    ),
    "lag": sa.select(f.lag(C.id, 1).over(**_BY_ID), f.lag(C.id, 1, 0).over(**_BY_ID), f.lead(C.id, 2).over(**_BY_ID)),
    "ntile": sa.select(f.ntile(2).over(**_BY_ID), f.nth_value(C.id, 2).over(**_BY_ID)),
    "frames": sa.select(f.sum(C.id).over(**_BY_ID, rows=(-1, 0)), f.count().over(**_BY_ID, rows=(0, 1))),
    "percentiles": sa.select(f.percentile_cont(0.5).within_group(C.d), f.percentile_disc(0.25).within_group(C.d)),
    "fetch": sa.select(C.id).order_by(C.id).fetch(1),
    "with ties": sa.select(C.id).order_by(C.id).offset(1).fetch(1, with_ties=True),
    "aggregates": sa.select(
        f.string_agg(C.name, pg.aggregate_order_by(sa.literal(", "), C.name)), f.count().filter(C.id > 1)
    ),
    "regular expressions": sa.select(
        f.regexp_replace(C.name, "[ab]", "x", "g"), f.regexp_match(C.name, "(.)-(.)"), C.name.regexp_match("^a")
    ),
    "patterns": sa.select(C.name.ilike("%A%"), C.name.like("a/-%", escape="/"), C.name.contains("-", autoescape=True)),
    "texts": sa.select(
        f.split_part(C.name, "-", 1),
        f.lpad(C.name, 5, "x"),
        f.left(C.name, 2),
        f.concat(C.name, "-", C.id),
        C.name + "x",
        f.format("%s: %s", C.name, C.id),
    ),
    "numbers": sa.select(
        f.round(C.n, 0), C.id % 2, f.greatest(C.id, 2), f.coalesce(C.n, 0), f.width_bucket(C.d, 0, 10, 4)
    ),
    "elements": sa.select(C.a[1], C.a[2], f.array_length(C.a, 1), f.array_to_string(C.a, ", ")),
    "arrays": sa.select(C.a.contains([1]), C.a.overlap([3, 4]), sa.literal(2) == sa.any_(C.a)),
    "documents": sa.select(C.j["k"], C.j["m"]["x"], C.j["k"][0], C.j[("m", "x")].as_string()),
    "keys": sa.select(C.j.has_key("k"), C.j.has_any(pg.array(["k", "m"])), C.j.contains({"m": 1})),
    "times": sa.select(
        C.ts + dt.timedelta(hours=1),
        f.age(C.ts, dt.datetime(2020, 1, 1)),
        f.timezone("UTC", C.tz),
        f.date_bin(dt.timedelta(minutes=5), C.ts, dt.datetime(2020, 1, 1)),
        C.ts.between(dt.datetime(2024, 2, 1), dt.date(2025, 1, 1)),
    ),
    "conditions": sa.select(C.id).where(
        C.id.in_([1, 3]), sa.tuple_(C.id, C.name).in_([(1, "a-b")]), C.id.is_distinct_from(2)
    ),
    "cases": sa.select(sa.case((C.id == 1, "x"), else_="y"), sa.cast(C.id, sa.String), f.nullif(C.id, 2)),
    "literals": sa.select(sa.literal("x"), sa.literal(1), sa.literal(True), sa.literal(dt.date(2020, 1, 1)), sa.null()),
    "collations": sa.select(sa.collate(C.name, "C")).order_by(sa.collate(C.name, "C").desc()),
    "unions": sa.union_all(sa.select(C.id), sa.select(sa.literal(5, sa.BigInteger))),
    "series": sa.select(f.generate_series(1, 3).table_valued("x").render_derived()),
    "values": sa.select(
        sa.values(sa.column("a", sa.Integer), sa.column("b", sa.String), name="v").data([(1, "x"), (2, "y")])
    ),
}


def plain(rows) -> list:
    """Rows in one order; numbers of one value are equal, whatever their scale."""
    found = [tuple(v.normalize() if isinstance(v, Decimal) else v for v in row) for row in rows]
    return sorted(found, key=repr)


def of_psycopg(client: psycopg.Connection) -> dict[str, list]:
    engine = sa.create_engine("postgresql+psycopg://", creator=lambda: client, poolclass=sa.StaticPool)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as session:
        return {name: plain(session.execute(query).all()) for name, query in QUERIES.items()}


def test_queries_of_sqlalchemy_give_what_postgresql_gives(serving, postgres):
    served = serving(SHOP + "; FLUSH")
    with psycopg.connect(postgres.server.url(postgres.name), autocommit=True) as client:
        client.execute(SHOP)
        wanted = of_psycopg(client)
    with served.connect(autocommit=True) as client:
        assert of_psycopg(client) == wanted
