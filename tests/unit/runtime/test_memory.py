"""How much memory processes use."""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import subprocess
import sys
import tempfile
import threading

import pytest

from watersmeet.runtime.memory import IdleTimer, Meter, Resident, family, give_back, processes, resident

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/smaps_rollup"), reason="Linux counts it")


def test_own_and_mapped_memory_are_told_apart():
    size_bytes = 16 << 20
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    with tempfile.TemporaryFile(dir="/var/tmp") as file:  # a file in memory would count as own
        file.write(b"x" * size_bytes)
        file.flush()
        before = resident([os.getpid()])
        with (
            mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped,
            mmap.mmap(-1, size_bytes, flags) as own,
        ):
            own[:] = mapped[:]
            now = resident([os.getpid()])
    # A copy in between may be there still; of libraries the share changes as other processes come and go.
    assert 0.8 * size_bytes < now.own_bytes - before.own_bytes < 2.5 * size_bytes
    assert 0.8 * size_bytes < now.mapped_bytes - before.mapped_bytes < 1.5 * size_bytes
    assert now.total_bytes == now.own_bytes + now.mapped_bytes


def test_processes_that_have_ended_count_nothing():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert child.pid in family(os.getpid())
        assert resident([child.pid]).total_bytes > 0
        child.communicate(b"\n")
    assert resident([child.pid]) == Resident()
    assert processes().main == os.getpid()


def test_memory_is_measured_once_a_second():
    now_s = 0.0
    meter = Meter(lambda: now_s)
    first = meter.read()
    assert first.main.own_bytes > 0
    now_s = 0.9
    assert meter.read() is first
    now_s = 1.0
    assert meter.read() is not first


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc keeps what is freed")
def test_what_was_freed_goes_back_to_the_machine():
    """Also what lies below something that is still in use, as most of it does."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    blocks = [libc.malloc(16_000) for _ in range(2000)]
    for block in blocks:
        ctypes.memset(block, 1, 16_000)
    for block in blocks[:-1]:
        libc.free(block)
    before = resident([os.getpid()]).own_bytes
    give_back()
    assert before - resident([os.getpid()]).own_bytes > 25_000_000
    libc.free(blocks[-1])


KEEPING = """
import os
import pyarrow as pa
from watersmeet.runtime.memory import give_back, keep_freed, resident

keep_freed()
sizes = [resident([os.getpid()]).own_bytes]
buffer = pa.allocate_buffer(100_000_000)
memoryview(buffer).cast("B")[::4096] = bytes(-(-100_000_000 // 4096))
del buffer
sizes.append(resident([os.getpid()]).own_bytes)
give_back()
sizes.append(resident([os.getpid()]).own_bytes)
print(*(size - sizes[0] for size in sizes[1:]))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc keeps what is freed")
def test_a_worker_keeps_what_it_has_freed_until_it_gives_it_back():
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", KEEPING], env=environment, capture_output=True, text=True, check=True)
    kept_bytes, left_bytes = map(int, done.stdout.split())
    assert kept_bytes > 90_000_000
    assert left_bytes < 20_000_000


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc keeps what is freed")
def test_a_worker_with_little_memory_gives_back_at_once_what_it_frees():
    text = KEEPING.replace("keep_freed()\n", "keep_freed()\nreturn_freed()\n").replace(
        "import give_back,", "import return_freed, give_back,"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", text], env=environment, capture_output=True, text=True, check=True)
    assert int(done.stdout.split()[0]) < 20_000_000


def test_a_rest_that_is_long_enough_and_one_that_ends_before():
    rested, ended = threading.Event(), threading.Event()
    long, short = IdleTimer(0.0, rested.set), IdleTimer(600.0, ended.set)
    long.begin()
    short.begin()
    assert rested.wait(60)
    short.end()
    assert not ended.is_set()
    assert not any(
        isinstance(t, threading.Timer) and t.interval == 600.0 and not t.finished.is_set()
        for t in threading.enumerate()
    )
