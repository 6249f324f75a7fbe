"""Zeroed memory: zeros, writable, and of the size that was asked for."""

from __future__ import annotations

from osenv.memory import zeroed_memory


def test_memory_is_zero_and_keeps_what_is_written() -> None:
    memory = zeroed_memory(10_000)
    assert bytes(memory) == bytes(10_000)
    memory[4_000:4_003] = b"abc"
    assert bytes(memory[4_000:4_003]) == b"abc"
    assert len(memory) == 10_000
