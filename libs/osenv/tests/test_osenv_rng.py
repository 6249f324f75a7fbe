"""Random numbers: repeatable from the seed, or not at all."""

from __future__ import annotations

from osenv import Rng, SeededRng, SystemRng


def draw(rng: Rng) -> tuple[float, int, str, bytes]:
    return rng.random(), rng.randrange(0, 10**9), rng.choice("abcdef"), rng.randbytes(8)


def test_same_seed_gives_the_same_numbers() -> None:
    assert draw(SeededRng(42)) == draw(SeededRng(42)) != draw(SeededRng(43))
    assert SeededRng(42).seed_used == 42


def test_system_numbers_do_not_repeat() -> None:
    assert draw(SystemRng()) != draw(SystemRng())
