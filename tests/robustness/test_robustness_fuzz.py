"""Figure G9 in small: 100,000 fuzzed inputs; and the fuzzing itself reaches what it is after."""

from __future__ import annotations

import pytest
from fuzz import INPUTS, run_fuzz, try_input
from fuzz_targets import Target, documents, targets
from mutations import mutate

from mq_broker.store.state_files import decode_document
from osenv import SeededRng


@pytest.mark.parametrize("seed", range(1, 11))
def test_fuzzed_bytes_are_accepted_or_rejected_and_nothing_else(seed: int) -> None:
    outcome = run_fuzz(seed, INPUTS)
    assert outcome.violations == (), f"again: .venv/bin/python tests/robustness/runner.py --replay fuzz {seed}"
    assert outcome.executed == INPUTS
    for target in targets():  # inputs that are all rejected at the door would test the door alone
        assert outcome.counts[f"{target.name} accepted"] > 0
        assert outcome.counts[f"{target.name} rejected"] > 0


def test_the_corpus_is_accepted_as_it_is() -> None:
    for target in targets():
        accepted = [try_input(target, data) for data in target.corpus]
        assert "accepted" in accepted
        assert not any(result.startswith("!") for result in accepted), (target.name, accepted)


def test_a_state_document_with_any_other_byte_is_rejected() -> None:
    data = documents()[0]
    assert decode_document(data)
    accepted = []
    for at in range(len(data)):
        for xor in range(1, 256):
            try:
                decode_document(data[:at] + bytes((data[at] ^ xor,)) + data[at + 1 :])
            except ValueError:
                continue
            accepted.append((at, xor))
    assert accepted == []


def test_an_error_that_is_not_documented_is_a_violation() -> None:
    def check(data: bytes) -> bool:
        return data[1_000_000] == 0

    assert try_input(Target("bad", [b""], check), b"x") == "!IndexError: index out of range"


def test_a_seed_makes_the_same_inputs_again() -> None:
    def inputs() -> list[bytes]:
        rng = SeededRng(5)
        return [mutate(rng, [b"abcdefgh", b"12345"]) for _ in range(200)]

    assert inputs() == inputs()
    assert len(set(inputs())) > 100
