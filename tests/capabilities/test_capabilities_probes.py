"""The probes: what is missing is said, and nothing of a probe stays."""

from __future__ import annotations

import os
from pathlib import Path

import capabilities
import pytest
from capabilities import (
    CAPABILITIES,
    Absence,
    Capability,
    absence,
    probe_chromium,
    probe_history,
    probe_java,
    probe_loop_device,
    probe_maven,
    probe_network_namespaces,
    probe_nginx,
    probe_postgresql,
    probe_promtool,
)

from servicekit.testing import postgresql


@pytest.fixture
def path_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder in which programs are looked for."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(capabilities, "SYSTEM_FOLDERS", ())
    return tmp_path


def add_program(folder: Path, name: str, prints: str, code: int = 0) -> None:
    (folder / name).write_text(f"#!/bin/sh\necho '{prints}'\nexit {code}\n")
    (folder / name).chmod(0o755)


def test_what_is_not_installed_is_named(path_folder: Path) -> None:
    add_program(path_folder, "mvn", "")
    assert probe_maven() == Absence("not installed: java, javac")
    assert probe_java() == Absence("not installed: java")
    assert probe_loop_device() == Absence("not installed: losetup, mkfs.ext4, mount, umount")
    assert probe_nginx() == Absence("not installed: nginx, openssl")
    assert probe_network_namespaces() == Absence("not installed: ip, tc, iptables")


@pytest.mark.parametrize(
    ("java", "javac", "reason"),
    [
        ('openjdk version "17.0.15" 2025-04-15', "javac 17.0.15", None),
        ('openjdk version "21" 2023-09-19', "javac 21.0.1", None),
        ('openjdk version "11.0.2" 2019-01-15', "javac 17.0.15", "java has to be Java 17"),
        ('java version "1.8.0_292"', "javac 1.8.0_292", "java has to be Java 17"),
        ('openjdk version "17.0.15" 2025-04-15', "javac 11.0.2", "javac has to be Java 17"),
    ],
)
def test_java_has_to_be_17_or_newer(path_folder: Path, java: str, javac: str, reason: str | None) -> None:
    for name, prints in (("mvn", ""), ("java", java), ("javac", javac)):
        add_program(path_folder, name, prints)
    missing = probe_maven()
    assert (missing is None) == (reason is None)
    assert missing is None or (missing.reason.startswith(reason or "") and not missing.for_good)
    assert probe_java() == (missing if reason is None or reason.startswith("java ") else None)


@pytest.mark.parametrize(
    ("printed", "reason"),
    [
        ("postgres (PostgreSQL) 15.13 (Debian 15.13-0+deb12u1)", None),
        ("postgres (PostgreSQL) 18.1", None),
        ("postgres (PostgreSQL) 14.2", "PostgreSQL has to be 15 or newer, and in"),
        ("nonsense", "PostgreSQL has to be 15 or newer, and in"),
    ],
)
def test_postgresql_has_to_be_15_or_newer(
    path_folder: Path, monkeypatch: pytest.MonkeyPatch, printed: str, reason: str | None
) -> None:
    monkeypatch.setattr(postgresql, "DEBIAN_FOLDERS", path_folder / "none")
    monkeypatch.setattr(os, "geteuid", lambda: 1_000)
    assert probe_postgresql() == Absence("not installed: PostgreSQL 15 or newer, with postgres, initdb, psql")
    for name in ("postgres", "initdb", "psql"):
        add_program(path_folder, name, printed)
    missing = probe_postgresql()
    assert missing is None if reason is None else missing is not None and missing.reason.startswith(reason)


def test_root_needs_a_user_who_runs_postgresql(path_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("postgres", "initdb", "psql"):
        add_program(path_folder, name, "postgres (PostgreSQL) 15.13")
    monkeypatch.setattr(postgresql, "DEBIAN_FOLDERS", path_folder / "none")
    monkeypatch.setattr(postgresql, "SYSTEM_USER", "nobody-has-this-name")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert probe_postgresql() == Absence("PostgreSQL rejects root, and there is no user nobody-has-this-name")


def test_chromium_has_to_start_and_to_have_chinese_characters(path_folder: Path) -> None:
    assert probe_chromium() == Absence("not installed: chromium")
    add_program(path_folder, "chromium", "", code=1)
    assert probe_chromium() == Absence("not installed: fc-list")
    add_program(path_folder, "fc-list", "")
    assert probe_chromium() == Absence("chromium --version failed: ")
    add_program(path_folder, "chromium", "Chromium 156.0.8078.79")
    assert probe_chromium() == Absence("not installed: a font with Chinese characters")
    add_program(path_folder, "fc-list", "NotoSansCJK-Regular.ttc")
    assert probe_chromium() is None


def test_a_shallow_clone_has_no_history_and_nothing_installs_it(path_folder: Path) -> None:
    assert probe_history() == Absence("not installed: git")
    add_program(path_folder, "git", "false")
    assert probe_history() is None
    for printed, code in (("true", 0), ("", 128)):
        add_program(path_folder, "git", printed, code)
        missing = probe_history()
        assert missing is not None
        assert missing.for_good


@pytest.mark.parametrize(
    ("printed", "reason"),
    [
        ("promtool, version 2.42.0+ds (branch: debian/sid, revision: 2.42.0+ds-5+deb12u1)", None),
        ("promtool, version 3.5.0 (branch: HEAD)", None),
        ("promtool, version 2.9.2", "promtool has to be of Prometheus 2.42"),
        ("nonsense", "promtool has to be of Prometheus 2.42"),
    ],
)
def test_promtool_has_to_be_of_prometheus_2_42_or_newer(path_folder: Path, printed: str, reason: str | None) -> None:
    assert probe_promtool() == Absence("not installed: promtool")
    add_program(path_folder, "promtool", printed)
    missing = probe_promtool()
    assert missing is None if reason is None else missing is not None and missing.reason.startswith(reason)


def test_a_loop_device_that_the_kernel_rejects_is_no_fault_of_what_is_installed(
    path_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("losetup", "mkfs.ext4", "mount", "umount"):
        add_program(path_folder, name, "rejected", code=int(name == "losetup"))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    missing = probe_loop_device()
    assert missing is not None
    assert missing.for_good
    monkeypatch.setattr(os, "geteuid", lambda: 1_000)
    assert probe_loop_device() == Absence("only root may mount", for_good=True)


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [("netns?add?*", "ip netns add failed: "), ("*type?veth*", "link add wire type veth peer name other failed: ")],
)
def test_a_namespace_that_the_kernel_rejects_is_no_fault_of_what_is_installed(
    path_folder: Path, monkeypatch: pytest.MonkeyPatch, pattern: str, reason: str
) -> None:
    for name in ("iptables", "tc"):
        add_program(path_folder, name, "")
    done = path_folder / "done"
    (path_folder / "ip").write_text(f'#!/bin/sh\necho "$*" >>{done}\ncase "$*" in {pattern}) exit 1;; esac\n')
    (path_folder / "ip").chmod(0o755)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    missing = probe_network_namespaces()
    assert missing is not None
    assert missing.for_good
    assert reason in missing.reason
    added, *_, last = [line.split() for line in done.read_text().splitlines()] * 2
    assert (last == ["netns", "delete", added[-1]]) == ("veth" in pattern)
    monkeypatch.setattr(os, "geteuid", lambda: 1_000)
    assert probe_network_namespaces() == Absence("only root may make network namespaces", for_good=True)


def test_a_probe_that_gives_up_what_can_be_installed_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Capability("wrong", (), may_lack_for_good=False, probe=lambda: Absence("no reason", for_good=True))
    monkeypatch.setitem(CAPABILITIES, "wrong", wrong)
    with pytest.raises(AssertionError, match="can be installed"):
        absence("wrong")
