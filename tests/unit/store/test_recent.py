"""The cache that is bounded by bytes."""

from __future__ import annotations

from watersmeet.store.segments import Recent


def test_the_oldest_go_first():
    recent = Recent(10)
    recent.put("a", 1, 4)
    recent.put("b", 2, 4)
    assert recent.get("a") == 1
    recent.put("c", 3, 4)
    assert [recent.get(k) for k in "abc"] == [1, None, 3]
    assert (len(recent), recent.size_bytes, recent.oldest) == (2, 8, 1)


def test_a_value_that_is_replaced_counts_once():
    recent = Recent(10)
    for size_bytes in (3, 9, 5):
        recent.put("a", size_bytes, size_bytes)
        assert (recent.get("a"), recent.size_bytes) == (size_bytes, size_bytes)
    recent.clear()
    assert (len(recent), recent.size_bytes, recent.oldest) == (0, 0, None)


def test_the_newest_stays_however_large():
    recent = Recent(10)
    recent.put("a", 1, 4)
    recent.put("b", 2, 100)
    assert [recent.get(k) for k in "ab"] == [None, 2]
