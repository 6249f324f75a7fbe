"""Memory: zeros are zeros, writable, and of the size that was asked for; what is freed is used again."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from osenv.process import zeroed_memory


def test_memory_is_zero_and_keeps_what_is_written() -> None:
    memory = zeroed_memory(10_000)
    assert bytes(memory) == bytes(10_000)
    memory[4_000:4_003] = b"abc"
    assert bytes(memory[4_000:4_003]) == b"abc"
    assert len(memory) == 10_000


FRAMES = """
import resource, sys
from osenv.process import set_malloc_trim_threshold
def frames(count):
    for _ in range(count):
        [b"x" * 300_000 for _ in range(4)]
if sys.argv[1] == "keeps" and not set_malloc_trim_threshold(8 << 20, 4 << 20):
    sys.exit("the C library could not be told")
frames(10)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
frames(100)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told")
def test_freed_memory_is_used_again_without_page_faults() -> None:
    run = subprocess.run([sys.executable, "-c", FRAMES, "keeps"], capture_output=True, text=True, check=True)
    assert int(run.stdout) < 1_000  # otherwise about 260 pages a frame are given back and taken again
