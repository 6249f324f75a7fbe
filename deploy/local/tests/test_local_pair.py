"""Two logs on disk: the same, or where they begin to differ."""

from __future__ import annotations

from pathlib import Path

import pytest

from hourglass_local.pair import first_difference

FILE_BYTES = 1_000


def store(folder: Path, log: bytes, begin: int = 0) -> Path:
    """A store whose log has these bytes, in files of a thousand; those before `begin` are gone."""
    (folder / "commitlog").mkdir(parents=True)
    for offset in range(begin, len(log), FILE_BYTES):
        content = log[offset : offset + FILE_BYTES].ljust(FILE_BYTES, b"\0")
        (folder / "commitlog" / f"{offset:020}").write_bytes(content)
    return folder


LOG = bytes(number % 251 for number in range(2_500))


def test_logs_with_the_same_bytes_do_not_differ(tmp_path: Path) -> None:
    one, other = store(tmp_path / "one", LOG), store(tmp_path / "other", LOG)
    assert first_difference(one, other, len(LOG)) is None


@pytest.mark.parametrize("at", [0, 999, 1_000, 2_499])
def test_the_first_byte_that_differs_is_told(tmp_path: Path, at: int) -> None:
    changed = LOG[:at] + bytes([LOG[at] ^ 1]) + LOG[at + 1 :]
    one, other = store(tmp_path / "one", LOG), store(tmp_path / "other", changed)
    assert first_difference(one, other, len(LOG)) == at
    assert first_difference(one, other, at) is None


def test_files_that_one_of_them_has_deleted_are_not_compared(tmp_path: Path) -> None:
    one, other = store(tmp_path / "one", LOG, begin=1_000), store(tmp_path / "other", b"x" * 1_000 + LOG[1_000:])
    assert first_difference(one, other, len(LOG)) is None
    assert first_difference(other, one, len(LOG)) is None


def test_log_that_does_not_reach_so_far_is_an_error(tmp_path: Path) -> None:
    one, other = store(tmp_path / "one", LOG), store(tmp_path / "other", LOG[:1_000])
    with pytest.raises(FileNotFoundError, match="do not both reach to 2,500"):
        first_difference(one, other, len(LOG))
