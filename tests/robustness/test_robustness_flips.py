"""Figure G5 in small: 500 bytes of a store flipped, a tenth of them whole sectors;
and the judge sees each kind of wrong.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from flip_faults import byte_count, flip, random_sector
from flip_store import LAYOUT
from flips import judges, random_fault, run_trials

from osenv import SeededRng

FLIPS = 250


@pytest.mark.parametrize("seed", range(1, 3))
def test_a_damaged_byte_is_noticed_and_costs_at_most_its_own_record(seed: int) -> None:
    outcome = run_trials(random_fault(seed, number) for number in range(FLIPS))
    assert not outcome.violations, "\n".join(outcome.violations)
    assert outcome.executed == FLIPS
    assert outcome.counts["quarantined"] > FLIPS // 4
    assert outcome.counts["meaningless"] < FLIPS // 3


def test_both_images_hold_everything_that_there_is() -> None:
    clean, killed = (judge.image for judge in judges())
    for image in (clean, killed):
        assert 800_000 < byte_count(image) < 1_200_000
        assert len(image.records) > 400
        assert len(image.blanks) >= 5
        names = {path.relative_to(LAYOUT.root).parts[0] for path in image.files}
        assert names >= {"commitlog", "consumequeue", "index", "config", "checkpoint", "watermark", "lock"}
        assert {path.name for path in image.files if path.suffix == ".bak"} >= {"topics.json.bak", "checkpoint.bak"}
    assert LAYOUT.abort in killed.files
    assert LAYOUT.abort not in clean.files
    assert killed.files[LAYOUT.checkpoint] != clean.files[LAYOUT.checkpoint]


def test_bytes_mean_something_exactly_where_something_was_written() -> None:
    image = judges()[0].image
    used = {path: [at for stretch in image.used(path) for at in stretch] for path in image.files}
    log_bytes = sum(len(used[path]) for path in image.files if path.parent == LAYOUT.commit_log)
    assert log_bytes == sum(record.size for record in image.records) + 8 * len(image.blanks)
    queue_bytes = sum(len(used[path]) for path in image.files if path.is_relative_to(LAYOUT.consume_queues))
    assert queue_bytes == 20 * len(image.records)
    assert len(used[LAYOUT.checkpoint]) == 124
    assert used[LAYOUT.watermark] == [*range(12), *range(512, 524)]
    for path, content in image.files.items():
        if path.suffix == ".json":
            assert len(used[path]) == len(content)
        unused = bytes(content[at] for at in sorted(set(range(len(content))) - set(used[path])))
        assert not unused.strip(b"\0") or path.suffix == ".bak"


def test_the_judge_sees_a_lost_a_wrong_and_a_misplaced_record() -> None:
    judge = judges()[0]
    key = ("orders", 0)
    data = judge.reference.records[key]
    size = int.from_bytes(data[:4], "big")
    fault = flip(judge.image, LAYOUT.watermark, 100, 1)  # a byte that means nothing

    def problems(changed: bytes) -> list[str]:
        seen = replace(judge.reference, records={**judge.reference.records, key: changed})
        return judge._problems(seen, fault, [])

    assert problems(data) == []
    assert "has lost [0], of which no byte was hit" in problems(data[size:])[0]
    assert "at 0 that was not stored there" in problems(data[: size - 30] + b"?" + data[size - 29 :])[0]
    moved = data[:20] + (7).to_bytes(8, "big") + data[28:]
    assert "at 7 that was not stored there" in problems(moved)[0]
    assert "at -1 that was not stored there" in problems(data[:-1])[0]


def test_the_judge_sees_unnoticed_damage() -> None:
    judge = judges()[0]
    record = judge.image.records[0]
    path, at = judge.image.log_file(record.log_offset)
    untouched = flip(judge.image, path, at, 0)  # the bytes are what they were: there is nothing to notice
    assert judge._shown(replace(judge.reference, final={}), untouched) == ""
    assert judge._shown(judge.reference, untouched) == "healed"
    assert judge._shown(replace(judge.reference, quarantined=1), untouched) == "quarantined"
    assert judge._shown(replace(judge.reference, reports=["bad"]), untouched) == "reported"
    really = flip(judge.image, path, at, 1)
    assert judge._shown(replace(judge.reference, final={}), really) == "found by dump_log"


def test_the_judge_sees_states_and_keys_that_are_wrong() -> None:
    judge = judges()[0]
    fault = flip(judge.image, LAYOUT.watermark, 100, 1)
    states = {**judge.reference.states, "consumerOffset.json": {}}
    assert "consumerOffset.json says {}" in judge._problems(replace(judge.reference, states=states), fault, [])[0]
    name = judge.keys[0]
    stranger = replace(judge.reference, by_key={name: [1]})
    assert f"key {name} found [1]" in judge._problems(stranger, fault, [])[0]
    missed = replace(judge.reference, by_key={name: []})
    assert f"key {name} was not found" in judge._problems(missed, fault, [])[0]


def test_a_fault_hits_the_records_whose_bytes_it_changes() -> None:
    image = judges()[0].image
    for record in image.records[::50]:
        path, at = image.log_file(record.log_offset)
        assert image.hit(path, [at]) == image.hit(path, [at + record.size - 1]) == [record]
    blank = image.blanks[0]
    path, at = image.log_file(blank.log_offset)
    assert image.hit(path, [at]) == []
    rng = SeededRng(1)
    for _ in range(100):
        fault = random_sector(image, rng)
        disk = image.disk.fork()
        fault.apply(disk)
        content = disk.contents()[fault.path]
        assert len(content) == len(image.files[fault.path])
        changed = [at for at, byte in enumerate(content) if byte != image.files[fault.path][at]]
        assert changed == fault.positions
        assert changed
