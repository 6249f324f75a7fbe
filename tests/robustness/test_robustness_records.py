"""Figure G12 in small: 20,000 records judged by all who read them; and a part that disagrees is noticed."""

from __future__ import annotations

import pytest
from record_differential import run_records
from record_samples import sample

from osenv import SeededRng

RECORDS = 5_000  # of each seed


@pytest.mark.parametrize("seed", range(1, 5))
def test_all_who_read_a_record_agree(seed: int) -> None:
    outcome = run_records(seed, RECORDS)
    assert outcome.violations == ()
    assert outcome.executed >= RECORDS
    assert outcome.counts["accepted"] > RECORDS // 4  # and what is rejected is enough to be told apart
    assert outcome.counts["rejected"] > RECORDS // 10
    assert outcome.counts["copies"] > RECORDS // 4


@pytest.mark.parametrize(
    ("name", "other", "sentence"),
    [
        ("mq_broker.core.batches.PRODUCER_PROPERTIES_BYTES_MAX", 65_535, "an unacceptable batch is accepted"),
        ("mq_broker.core.batches.PRODUCER_PROPERTIES_BYTES_MAX", 32_078, "an acceptable batch is rejected"),
        ("mq_broker.core.batches.RESERVED", frozenset(), "an unacceptable batch is accepted"),
        ("mq_broker.core.batches.KEYS_MAX", 127, "an acceptable batch is rejected"),
        ("mq_broker.core.batches.TAG_BYTES_MAX", 1 << 20, "an unacceptable batch is accepted"),
        ("mq_broker.store.reader.tag_hash", lambda data, start, end: 0, "what was read is not proven"),
        ("mq_broker.store.recovery.entry_tags_code", lambda record: 0, "recovery makes other entries"),
        ("mq_broker.store.log_feed.entry_tags_code", lambda record: 0, "a replica has other entries"),
        ("mq_broker.core.batches._KEYS", b"KEY\x01", "the index has other keys"),
    ],
)
def test_a_part_with_a_definition_of_its_own_is_noticed(
    monkeypatch: pytest.MonkeyPatch, name: str, other: object, sentence: str
) -> None:
    monkeypatch.setattr(name, other)
    (violation,) = run_records(1, 4 * RECORDS).violations
    assert sentence in violation


def test_a_seed_makes_the_same_batches_again() -> None:
    assert [sample(SeededRng(seed)) for seed in range(200)] == [sample(SeededRng(seed)) for seed in range(200)]
