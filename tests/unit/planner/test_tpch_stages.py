"""How many stages TPC-H's queries take: the reading one, then one for each change of key that the query can't avoid.

`python -m tests.unit.planner.test_tpch_stages` prints the counts of all queries that can be views.
"""

from __future__ import annotations

import re

import pytest
from tests.tpch.data import QUERIES, SCHEMA

import watersmeet
from watersmeet.circuit.operators import Exchange
from watersmeet.dialects.parsing import parse
from watersmeet.maintenance.views import bind_view
from watersmeet.planner import assemble, compile_view
from watersmeet.planner.explain import physical_plan

#: Stages, joins on the longest way, by query. Why there can't be fewer stages:
FEWEST = {
    1: (2, 0),  # groups
    2: (4, 4),  # suppkey | regionkey, nationkey, partkey with the smallest cost of each part
    3: (3, 2),  # custkey, orderkey; the groups are where the orders are
    4: (3, 1),  # orderkey, priority
    5: (4, 3),  # custkey | suppkey | regionkey, nationkey, n_name
    6: (2, 0),  # one row
    7: (5, 3),  # six inputs in a row by five keys are three changes; nations and year
    8: (5, 3),  # eight inputs by seven keys are three changes; year
    9: (4, 3),  # orderkey | partkey | nationkey, suppkey, nation and year
    10: (3, 2),  # nationkey | orderkey, custkey; the groups are where the customers are
    11: (5, 2),  # suppkey, nationkey, one row, which is copied to every part
    12: (3, 1),  # orderkey, mode
    13: (3, 1),  # custkey, count
    14: (3, 1),  # partkey, one row
    15: (4, 2),  # suppkey, the greatest revenue, which is a key
    16: (4, 2),  # partkey, suppkey, the groups
    17: (3, 2),  # partkey with its average, one row
    18: (3, 3),  # orderkey with its three uses, custkey; the groups are where the customers are
    19: (3, 1),  # partkey (the factor of all branches of OR), one row
    20: (3, 3),  # partkey | nationkey, suppkey: the sums are spread by a part of their key
    21: (4, 4),  # orderkey with its four uses | nationkey, suppkey, name
    22: (3, 1),  # custkey | one row, which is copied to where the groups are
}


def counted(number: int) -> tuple[int, int]:
    """Stages and join height of a query as a view."""
    with watersmeet.connect(runtime="inprocess", parallelism=2) as connection:
        list(connection.execute_script(SCHEMA))
        query = re.sub(r"LIMIT \d+", "", QUERIES[number])
        session = connection._session
        bound = bind_view(session, parse(f"CREATE MATERIALIZED VIEW q AS {query}", "risingwave")[0])
        circuit = assemble([compile_view(bound.tree, bound.relation, {})], 2)
        crossing = {circuit.stages[o.id] for o in circuit.operators if isinstance(o, Exchange)}
        assert crossing == set(range(circuit.last_stage)), "every stage has something to send"
        plan = physical_plan(bound.tree, bound.relation, session.catalog, {})
        return circuit.last_stage + 1, plan.join_height


@pytest.mark.parametrize("number", FEWEST)
def test_fewest_stages(number):
    assert counted(number) == FEWEST[number]


if __name__ == "__main__":
    for n in QUERIES:
        try:
            print(n, *counted(n))
        except watersmeet.Error as refused:
            print(n, refused.condition)
