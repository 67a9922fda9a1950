"""Views get other queries on Spark, while other views read them."""

from __future__ import annotations

import pytest
from tests.property.test_redefined_views import run

pytestmark = pytest.mark.spark


def test_views_have_the_rows_of_their_queries(tmp_path):
    run(1, tmp_path / "db", "spark")
