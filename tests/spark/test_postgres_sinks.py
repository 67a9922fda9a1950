"""Results that are kept in PostgreSQL, on Spark."""

from __future__ import annotations

from scripts.servers.postgres import PASSWORD, USER

import watersmeet
from watersmeet.sinkwriters.writers import SinkWriters


def test_views_of_two_dialects_keep_tables_there(tmp_path, postgres):
    postgres.execute(
        "CREATE TABLE joined (id int PRIMARY KEY, name text, amount int); CREATE TABLE paid (id int, amount int)"
    )
    where = f"'127.0.0.1', port = '{postgres.server.port}', user = '{USER}', password = '{PASSWORD}'"
    with watersmeet.connect(tmp_path / "db", runtime="spark", parallelism=2) as connection:
        connection.execute(f"""
            CREATE TABLE names (id int PRIMARY KEY, name varchar);
            CREATE TABLE amounts (id int PRIMARY KEY, amount int);
            CREATE SINK kept AS SELECT n.id, name, amount FROM names n LEFT JOIN amounts a ON a.id = n.id
                WITH (connector = 'postgres', host = {where}, database = '{postgres.name}', table = 'joined',
                    type = 'upsert', primary_key = 'id');
            SET dialect = 'timeplus';
            CREATE EXTERNAL TABLE paid SETTINGS type='postgresql', address='127.0.0.1:{postgres.server.port}',
                user='{USER}', password='{PASSWORD}', database='{postgres.name}';
            CREATE STREAM payments(id int32, amount int32);
            CREATE MATERIALIZED VIEW large INTO paid AS SELECT id, amount FROM payments WHERE amount > 100;
            SET dialect = 'risingwave'
        """)
        for step in range(3):
            connection.execute(f"""
                INSERT INTO names SELECT i, 'n' || (i + {step}) FROM generate_series({step}, 500) AS g(i);
                INSERT INTO amounts SELECT i, i * {step} FROM generate_series(0, 300) AS g(i);
                DELETE FROM names WHERE id < {10 * step};
                INSERT INTO payments (id, amount) SELECT i, i FROM generate_series(0, 200) AS g(i)
            """)
        connection.execute("FLUSH")
        session = connection._session
        for relation in session.catalog.relations.values():
            assert session.database.service(SinkWriters).wait(relation.id, 120)
        wanted = connection.execute(
            "SELECT n.id, name, amount FROM names n LEFT JOIN amounts a ON a.id = n.id ORDER BY 1"
        ).fetchall()
        with postgres.connect() as there:
            assert there.execute("SELECT * FROM joined ORDER BY id").fetchall() == wanted
            assert there.execute("SELECT count(*), min(amount), sum(amount) FROM paid").fetchall() == [
                (300, 101, 3 * sum(range(101, 201)))
            ]
