"""A limit of rows a second keeps the pace, whatever a slice has, and loses nothing."""

import pytest

from watersmeet.catalog import Source
from watersmeet.connectors.base.sources import LimitedSource
from watersmeet.connectors.registry import open_source
from watersmeet.errors import Error
from watersmeet.values.times import SECOND_US
from watersmeet.values.types import BIGINT, Field


def source(tmp_path, limit, rows=1000):
    (tmp_path / "f.csv").write_text("v\n" + "".join(f"{i:09d}\n" for i in range(rows)))
    options = {"connector": "file", "path": str(tmp_path), "format": "csv", "settle_ms": "0"}
    return open_source(
        Source("s1", "s", (Field("v", BIGINT),), connector=options | {"source_rate_limit": limit}, append_only=True)
    )


def taken(limited, moments_us):
    """The rows of a poll at each of these moments; the position at the end."""
    position, found = None, []
    for now_us in moments_us:
        poll = limited.poll(position, 1_000_000, 1 << 30, now_us, fresh=True)
        if poll.slices:
            limited.accept(poll.slices)
            position = poll.position
        found.append(poll.rows)
    return found


def test_a_second_gives_what_the_limit_allows(tmp_path):
    begin = 10**15
    limited = source(tmp_path, "100", rows=350)
    found = taken(limited, [begin + i * SECOND_US // 10 for i in range(100)])
    assert sum(found) >= 350
    # Estimates of rows may be off by a few; nothing comes faster than a second's rows at once and the rate after that.
    for i in range(len(found)):
        assert sum(found[: i + 1]) <= 100 + 10 * i + 20


def test_after_a_pause_no_more_than_one_second_is_made_up(tmp_path):
    begin = 10**15
    limited = source(tmp_path, "100")
    first, second = taken(limited, [begin, begin + 3600 * SECOND_US])
    assert first <= 120
    assert second <= 120


def test_a_held_back_source_says_when_it_goes_on(tmp_path):
    limited = source(tmp_path, "100")
    poll = limited.poll(None, 1_000_000, 1 << 30, 10**15, fresh=True)
    assert not poll.more
    assert 10**15 < poll.next_us <= 10**15 + SECOND_US // 2
    limited.accept(poll.slices)
    assert limited.poll(poll.position, 1_000_000, 1 << 30, poll.next_us, fresh=True).rows >= 1


def test_zero_pauses_and_says_so(tmp_path):
    limited = source(tmp_path, "0")
    assert taken(limited, [10**15, 10**15 + 60 * SECOND_US]) == [0, 0]
    assert limited.status()["state"] == "paused"


def test_default_is_no_limit(tmp_path):
    assert not isinstance(source(tmp_path, "DEFAULT"), LimitedSource)


@pytest.mark.parametrize("limit", ["-2", "1.5", "fast", ""])
def test_other_limits_are_refused(tmp_path, limit):
    with pytest.raises(Error, match="source_rate_limit can't be"):
        source(tmp_path, limit)
