"""Parts of files that are read past the machine's cache."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.thorough import examples

from watersmeet.errors import Error
from watersmeet.system import blobs
from watersmeet.system.blobs import DirectBlob

CONTENT = np.random.default_rng(5).integers(1, 256, 300_000, np.uint8)


@pytest.fixture(scope="module", params=["direct", "through the cache"])
def path(request, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        if request.param != "direct":
            patch.delattr(os, "O_DIRECT", raising=False)
        found = tmp_path_factory.mktemp("direct") / "some.run"
        found.write_bytes(CONTENT.tobytes())
        yield found


@examples(60)
@given(
    st.integers(0, 9000),
    st.integers(0, 290_000),
    st.lists(st.tuples(st.integers(0, 290_000), st.integers(0, 50_000)), max_size=8),
    st.sampled_from([4096, 1 << 20]),
    st.sampled_from([0, 1 << 16]),
)
def test_what_was_fetched_is_there(path, offset, length, asked, request_bytes, gap_bytes):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blobs, "_REQUEST_BYTES", request_bytes)
        patch.setattr(blobs, "_GAP_BYTES", gap_bytes)
        patch.setattr(blobs, "_LARGE_BYTES", 8192)
        length = min(length, len(CONTENT) - offset)
        blob = DirectBlob(path, offset, length)
        assert blob.buffer.size == length
        ranges = np.array([(min(b, length), min(b + n, length)) for b, n in asked], np.int64).reshape(-1, 2)
        here = np.frombuffer(blob.buffer, np.uint8)
        for _ in range(2):
            assert blob.missing_bytes(ranges) >= max((e - b for b, e in ranges.tolist()), default=0)
            blob.fetch([(blob, ranges)])
            for begin, end in ranges.tolist():
                assert (here[begin:end] == CONTENT[offset + begin : offset + end]).all()
            blob.drop()
            assert not here.any()


def test_a_file_that_is_gone_or_became_shorter(tmp_path):
    path = tmp_path / "some.run"
    with pytest.raises(FileNotFoundError):
        DirectBlob(path, 0, 10)
    path.write_bytes(bytes(20_000))
    blob = DirectBlob(path, 0, 20_000)
    os.truncate(path, 9000)
    blob.fetch([(blob, np.array([[0, 8000]]))])
    with pytest.raises(Error, match=r"some\.run is shorter than it was") as found:
        blob.fetch([(blob, np.array([[0, 20_000]]))])
    assert found.value.condition == "STATE_DAMAGED"
    path.unlink()
    blob.fetch([(blob, np.array([[0, 8000]]))])
