"""What EXPLAIN prints. Covers RW-63, RW-65, RA-31, RA-34."""

from __future__ import annotations

import json

from tests.trees import catalog_of, group, join, project, relation, scan, sink_of, union, values, where

from watersmeet.catalog import MaterializedView, Source
from watersmeet.planner import ExplainOptions, PlanTree, compile_view, explain
from watersmeet.planner.explain import physical_plan

a, b, c = (scan(n) for n in "abc")
CATALOG = catalog_of(
    relation("a", key=("k",)),
    relation("b"),
    relation("c"),
    relation("s", kind=Source, append_only=True),
    relation("m", "o0 int, o1 bigint", MaterializedView),
)


def tree_of(tree, buckets=2, producers=None, **options):
    lines = explain(tree, sink_of(tree), CATALOG, producers or {}, buckets, ExplainOptions(**options))
    return "\n".join(lines[: lines.index("")] if "" in lines else lines)


def test_joins_filters_and_groups():
    tree = group(
        where(
            join(join(a, b, "inner", "a.k = b.k", "a.x > b.x"), c, "left", "b.k == c.k"), "a.y < 10 AND a.x IS NOT NULL"
        ),
        "a.k",
        "sum(c.x); count(*); count(distinct c.y)",
    )
    assert (
        tree_of(tree)
        == """\
StreamMaterialize { columns: [o0, o1, o2, o3], stream_key: [o0], pk_columns: [o0], pk_conflict: NoCheck }
└─StreamHashAgg { group_key: [a.k], aggs: [sum(c.x), count, count(distinct c.y)] }
  └─StreamHashJoin { type: LeftOuter, predicate: a.k IS NOT DISTINCT FROM c.k, output: [a.k, c.x, c.y, b._row_id, c._row_id] }
    ├─StreamFilter { predicate: (a.x > b.x) }
    │ └─StreamHashJoin { type: Inner, predicate: a.k = b.k, output: [a.k, b._row_id] }
    │   ├─StreamExchange { dist: HashShard(a.k) }
    │   │ └─StreamProject { exprs: [a.k, a.x] }
    │   │   └─StreamFilter { predicate: (a.y < 10:Int32) AND IsNotNull(a.x) }
    │   │     └─StreamTableScan { table: a, columns: [k, x, y] }
    │   └─StreamExchange { dist: HashShard(b.k) }
    │     └─StreamTableScan { table: b, columns: [k, x, _row_id] }
    └─StreamExchange { dist: HashShard(c.k) }
      └─StreamTableScan { table: c, columns: [k, x, y, _row_id] }"""  # noqa: E501
    )


def test_one_bucket_shows_the_exchanges_and_reports_none():
    lines = explain(group(a, "a.k"), sink_of(group(a, "a.k")), CATALOG, {}, 1)
    assert any("StreamExchange" in line for line in lines)
    assert "Stages: 1, buckets: 1" in lines
    assert "Exchanges: none" in lines


def test_hidden_row_ids_complete_the_key_of_a_view():
    first = tree_of(project(join(a, b, "inner", "a.k = b.x"), o="a.y")).splitlines()[0]
    assert first == (
        "StreamMaterialize { columns: [o0, a.k(hidden), b._row_id(hidden), b.x(hidden)], "
        "stream_key: [a.k, b._row_id, b.x], pk_columns: [a.k, b._row_id, b.x], pk_conflict: NoCheck }"
    )


def test_append_only_sources():
    s = scan("s", append_only=True)
    text = tree_of(join(s, scan("s", alias="s2", append_only=True), "inner", "s.k = s2.k"))
    assert "StreamHashJoin [append_only] { type: Inner, predicate: s.k = s.k" in text
    assert "StreamSourceScan { source: s, columns: [k, x, y] }" in text
    assert "StreamHashAgg [append_only] { group_key: [s.k], aggs: [count] }" in tree_of(group(s, "s.k"))


def test_a_range_over_one_row_is_a_dynamic_filter():
    text = tree_of(project(where(join(a, group(scan("a", alias="z"), "", "max(z.x)"), "inner"), "a.x > g0"), o="a.k"))
    assert "StreamDynamicFilter { predicate: (a.x > max(a.x)), output: [a.k] }" in text
    assert "├─StreamExchange { dist: HashShard(a.k, a.x) }" in text
    assert "└─StreamExchange { dist: Broadcast }" in text
    assert "StreamSimpleAgg { aggs: [max(a.x)] }" in text
    assert "StreamBroadcastJoin { type: LeftOuter, predicate: true" in tree_of(join(a, group(b, ""), "left"))


def test_unions_values_and_semi_joins():
    text = tree_of(union(project(join(a, b, "semi", "a.k = b.k"), z="a.k"), values([[1], [2]])))
    assert "StreamUnion { all: true }" in text
    assert "StreamValues { rows: [[1:Int32], [2:Int32]] }" in text
    assert "type: LeftSemi" in text


def test_a_view_is_a_leaf():
    base_tree = group(a, "a.k", "sum(a.x)")
    base = compile_view(base_tree, sink_of(base_tree, "m"), {})
    text = tree_of(join(scan("m", "o0 int, o1 bigint"), b, "inner", "m.o0 = b.k"), producers={"m": base})
    assert "├─StreamTableScan { table: m, columns: [o0, o1] }" in text
    assert "predicate: m.o0 = b.k" in text
    assert "StreamHashAgg" not in text


def test_logical_plan():
    assert (
        tree_of(project(where(join(a, b, "left", "a.k = b.k"), "b.x > 1"), o="a.x + 1"), level="logical")
        == """\
LogicalProject { exprs: [(a.x + 1:Int32)] }
└─LogicalJoin { type: Inner, on: (a.k = b.k), output: [a.k, a.x, b.k, b.x] }
  ├─LogicalScan { table: a, columns: [a.k, a.x] }
  └─LogicalFilter { predicate: (b.x > 1:Int32) }
    └─LogicalScan { table: b, columns: [b.k, b.x] }"""
    )


def test_costs_of_a_view():
    tree = join(a, b, "inner", "a.k = b.k")
    lines = explain(tree, sink_of(tree), CATALOG, {}, 2)
    costs = lines[lines.index("") + 1 :]
    assert costs[0] == "Stages: 2, buckets: 2"
    assert [line.split(": ", 1)[1] for line in costs if line.startswith("  exchange-")] == [
        "stage 0 to 1, HashShard(a.k), columns [a.k, a.x, a.y]",
        "stage 0 to 1, HashShard(b.k), columns [b.k, b.x, b.y]",
    ]
    [made] = [o.id for o in compile_view(tree, sink_of(tree), {}) if o.kind == "join"]
    assert [line.split(": ", 1)[1] for line in costs if line.startswith("  arrange-")] == [
        (
            f"key [a.k], columns [a.k, a.x, a.y]; unbounded: keeps every row of the input that is not deleted; "
            f"read by {made}"
        ),
        (
            f"key [b.k], columns [b.k, b.x, b.y]; unbounded: keeps every row of the input that is not deleted; "
            f"read by {made}"
        ),
    ]
    stateless = explain(where(a, "a.x > 1"), sink_of(a), CATALOG, {}, 2)
    assert stateless[-1] == "Arrangements: none, no state is kept"


def test_json_and_verbose_and_distsql():
    tree = group(join(a, b, "inner", "a.k = b.k"), "a.k", "max(b.x)")
    value = json.loads("\n".join(explain(tree, sink_of(tree), CATALOG, {}, 2, ExplainOptions(format="json"))))
    assert value["plan"]["name"] == "StreamMaterialize"
    assert value["plan"]["children"][0]["fields"]["group_key"] == "[a.k]"
    assert {x["operator"].split("-")[0] for x in value["arrangements"]} == {"arrange", "aggregate"}
    text = tree_of(tree, verbose=True)
    assert "pk: [_row_id], append_only: false, id: scan-" in text
    lines = explain(tree, sink_of(tree), CATALOG, {}, 2, ExplainOptions(level="distsql"))
    assert sum(line.startswith("  stage 1: StreamHash") for line in lines) == 2


def test_plan_trees_can_be_asked():
    tree = join(join(a, b, "left", "a.k = b.k"), c, "left", "b.x = c.x")
    plan = physical_plan(tree, sink_of(tree), CATALOG, {})
    assert (plan.joins, plan.join_height) == (2, 2)
    assert [n.name for n in plan.walk()].count("StreamTableScan") == 3
    leaf = PlanTree("A", (("x", "1"),))
    assert PlanTree("B", inputs=(leaf, PlanTree("C", inputs=(leaf,)))).lines() == [
        "B",
        "├─A { x: 1 }",
        "└─C",
        "  └─A { x: 1 }",
    ]


def test_trace_shows_every_rewrite_that_changes_the_plan():
    tree = project(where(join(join(a, b, "inner"), c, "left", "b.k = c.k"), "a.k = b.k AND c.x > 1"), o="a.x")
    lines = explain(tree, sink_of(tree), CATALOG, {}, 2, ExplainOptions(level="logical", trace=True))
    steps = [line[:-1] for line in lines if line.endswith(":")]
    assert steps[0] == "Begin"
    assert {"Push Filters", "Prune Columns"} <= set(steps)
    assert len(set(steps)) >= 3
    first = lines[2 : lines.index("", 2)]
    assert any("type: LeftOuter" in line for line in first)
    assert not any("type: LeftOuter" in line for line in lines[lines.index("Push Filters:") :]), "c.x > 1 rejects NULLs"
    value = json.loads(
        "\n".join(explain(tree, sink_of(tree), CATALOG, {}, 2, ExplainOptions(format="json", trace=True)))
    )
    assert [t["step"] for t in value["trace"]] == steps
    assert value["trace"][-1]["plan"]["name"] == "LogicalProject"
    assert value["plan"]["name"] == "StreamMaterialize"


def test_the_json_form_is_stable():
    tree = group(join(a, b, "inner", "a.k = b.k"), "a.x")
    value = json.loads(
        "\n".join(explain(tree, sink_of(tree), CATALOG, {}, 2, ExplainOptions(format="json", level="distsql")))
    )
    assert {k: type(v).__name__ for k, v in value.items()} == {
        "version": "int",
        "level": "str",
        "plan": "dict",
        "buckets": "int",
        "stages": "list",
        "transfers": "list",
        "arrangements": "list",
        "operators": "list",
    }
    assert set(value["plan"]) == {"name", "flags", "fields", "children"}
    assert set(value["transfers"][0]) == {"operator", "stages", "distribution", "columns"}
    assert set(value["arrangements"][0]) == {"operator", "readers", "key", "columns", "bound", "append_only", "shared"}
    assert {o["stage"] for o in value["operators"]} == {0, 1, 2}
    assert [len(ids) for ids in value["stages"]] == [sum(o["stage"] == n for o in value["operators"]) for n in range(3)]
    logical = json.loads(
        "\n".join(explain(tree, sink_of(tree), CATALOG, {}, 2, ExplainOptions(format="json", level="logical")))
    )
    assert set(logical) == {"version", "level", "plan"}


def test_dot():
    tree = join(a, b, "inner", "a.k = b.k")
    lines = explain(tree, sink_of(tree), CATALOG, {}, 2, ExplainOptions(format="dot"))
    assert lines[0] == 'digraph "plan" {'
    assert any('label="StreamHashJoin\\ntype: Inner\\npredicate: a.k = b.k' in line for line in lines)
    assert '  "n1" -> "n0";' in lines
    assert lines[-1] == "}"
