"""Sorted distinct numbers, beside a set."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from watersmeet.kernel.arrays.columns import distinct


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
@given(values=st.lists(st.integers(0, 20) | st.integers(0, 2**63 - 1)), ordered=st.booleans())
def test_those_of_a_set_in_order(dtype, values, ordered):
    found = distinct(np.array(sorted(values) if ordered else values, dtype))
    assert found.dtype == dtype
    assert found.tolist() == sorted(set(values))
