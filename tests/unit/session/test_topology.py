"""The picture of a database: what is in it and what feeds what. Covers LS-45's idea for all dialects."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest
from tests.harness import Harness, connect_without_connectors
from typer.testing import CliRunner

import watersmeet
from watersmeet.cli.commands import app

SCRIPT = """
CREATE TABLE o (id INT PRIMARY KEY, c INT, amount INT);
CREATE TABLE c (id INT PRIMARY KEY, name VARCHAR);
CREATE TABLE log (c INT) APPEND ONLY;
CREATE VIEW plain AS SELECT * FROM o WHERE amount > 0;
CREATE VIEW kept AS SELECT * FROM plain;
CREATE MATERIALIZED VIEW joined AS SELECT p.id, c.name, p.amount FROM kept p LEFT JOIN c ON p.c = c.id;
CREATE MATERIALIZED VIEW twice AS SELECT o.id, p.c FROM o JOIN plain p ON o.id = p.id;
CREATE MATERIALIZED VIEW totals AS SELECT name, sum(amount) AS total FROM joined GROUP BY name;
CREATE MATERIALIZED VIEW quiet AS SELECT name FROM c WHERE NOT EXISTS (SELECT 1 FROM log WHERE log.c = c.id);
CREATE MATERIALIZED VIEW pairs AS SELECT a.id, b.id AS other FROM o a JOIN o b ON a.c = b.c;
CREATE MATERIALIZED VIEW copy AS SELECT * FROM totals;
CREATE MATERIALIZED VIEW everything AS SELECT count(*) AS n FROM log;
INSERT INTO o VALUES (1, 1, 5), (2, 1, 6);
INSERT INTO c VALUES (1, 'Ann');
FLUSH;
"""


def edges(dot):
    names = {}
    for line in dot.splitlines():
        if "[label=" in line and "->" not in line:
            names[line.split('"')[1]] = line.split('label="')[1].split("\\n")[0]
    found = []
    for line in dot.splitlines():
        if "->" in line:
            parts = line.split('"')
            found.append((names[parts[1]], names[parts[3]], parts[5] if len(parts) > 5 else ""))
    return sorted(found)


@pytest.mark.parametrize("parallelism", [1, 3])
def test_what_feeds_what(parallelism):
    with watersmeet.connect(runtime="inprocess", parallelism=parallelism) as connection:
        list(connection.execute_script(SCRIPT))
        dot = connection.topology("dot")
    assert edges(dot) == sorted([
        ("o", "plain", ""), ("plain", "kept", ""), ("kept", "joined", "left join on c"),
        ("c", "joined", "left join on id"), ("o", "twice", "inner join on id"), ("plain", "twice", ""),
        ("joined", "totals", "group by name"),
        ("c", "quiet", "anti join on id"), ("log", "quiet", "anti join on c"),
        ("o", "pairs", "inner join on c"),
        ("totals", "copy", ""),
        ("log", "everything", "one group"),
    ])  # fmt: skip
    assert "append-only table" in dot
    assert "2 rows" in dot
    assert 'label="joined\\nmaterialized view\\n2 rows\\nkeeps 3 rows' in dot
    assert 'label="plain\\nview"' in dot


def test_the_command_writes_svg_and_dot(tmp_path):
    path, picture = tmp_path / "db", tmp_path / "t.svg"
    with watersmeet.connect(path, runtime="inprocess", parallelism=2) as connection:
        list(connection.execute_script(SCRIPT))
        svg = connection.topology()
    runner = CliRunner()
    made = runner.invoke(app, ["topology", "--path", str(path), "-o", str(picture)])
    assert made.exit_code == 0, made.output
    assert picture.read_text(encoding="utf-8") == svg
    texts = {t.text for t in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")}
    assert texts >= {"joined", "totals", "left join on id", "materialized view"}
    printed = runner.invoke(app, ["topology", "--path", str(path), "--format", "dot"])
    assert printed.output.startswith('digraph "watersmeet" {')
    assert runner.invoke(app, ["topology", "--path", str(path), "--format", "png"]).exit_code == 2


def test_an_empty_database_and_an_unknown_format():
    with watersmeet.connect(runtime="inprocess") as connection:
        ET.fromstring(connection.topology())
        with pytest.raises(watersmeet.Error, match="unknown format"):
            connection.topology("png")


def test_a_step_that_repartitions_a_topic_is_a_box():
    """LS-34: of two topics the one with fewer partitions is written again."""
    with watersmeet.connect(dialect="lenses", runtime="inprocess", parallelism=1) as connection:
        list(
            connection.execute_script("""
            SET defaults.topic.autocreate=true;
            CREATE TABLE few (_key int, x int) FORMAT (INT, AVRO) PROPERTIES (partitions=1);
            CREATE TABLE many (_key int, y int) FORMAT (INT, AVRO) PROPERTIES (partitions=4);
            INSERT INTO pairs SELECT TABLE few.x, many.y FROM few LEFT JOIN many;""")
        )
        dot = connection.topology("dot")
    assert edges(dot) == [
        ("Repartition", "pairs", "left join on _key"),
        ("few", "Repartition", ""),
        ("many", "pairs", "left join on _key"),
    ]
    assert "4 partitions" in dot


def test_what_views_write_and_what_works_for_them():
    with connect_without_connectors(dialect="timeplus", runtime="inprocess") as connection:
        Harness(connection).set_external("mysql", "shop.p", "id string, name string", [])
        connection.execute("""CREATE STREAM o(id string); CREATE STREAM t(id string);
        CREATE MUTABLE STREAM cache(id string, name string) PRIMARY KEY id;
            CREATE DICTIONARY d(id string, name string) PRIMARY KEY id SOURCE(MYSQL(DB 'shop' TABLE 'p'))
                LAYOUT(MUTABLE_CACHE(STREAM 'cache' UPDATE_FROM_SOURCE true));
            CREATE MATERIALIZED VIEW v INTO t AS SELECT o.id FROM o JOIN d
                ON o.id = d.id SETTINGS join_algorithm = 'direct'""")
        running = connection.execute("SELECT id FROM t")
        dot = connection.topology("dot")
        assert connection.topology()
        assert "?" not in dot
        assert dot.count("into") == 1
        assert "query" in dot
        running.close()


def test_a_transaction_whose_sink_failed_is_drawn():
    with watersmeet.connect(runtime="inprocess") as connection:
        connection.execute("CREATE TABLE t (k int PRIMARY KEY); BEGIN")
        with pytest.raises(watersmeet.Error, match="nix"):
            connection.execute("CREATE SINK s INTO t FROM nix")
        assert connection.topology().startswith("<svg")
