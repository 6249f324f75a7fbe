"""docs/glossary.md has one word for one thing, and no source has the words that it replaces."""

from __future__ import annotations

import importlib
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GLOSSARY = ROOT / "docs" / "glossary.md"
COLUMNS = 5
TERMS_MIN = 120
WORDS_MIN = 18
# A process has a name and is "it". These stand for persons, whom a sentence should name, too.
PRONOUNS = re.compile(r"\b(nobody|somebody|whoever|anybody)\b", re.IGNORECASE)
# Two words for one thing each, until docs/adr/0157: what of them is left is a name of another system or a contract.
OLD_STEMS = re.compile(r"[\w.-]*(?:refus|slave)[\w-]*", re.IGNORECASE)
KEPT = {  # in which files: which names
    "": [
        r"ConnectionRefusedError|Connection refused|ConnectError\(\"refused\"\)|# refused, or TimeoutError",
        r"\bREFUSE\b",  # unconsumedDeleteGuard, advertisedAddressCheck
        r"hourglass[._]store[._]writes[._]refused|BrokerWritesRefused",
        r"(?<![A-Za-z_])SLAVE(?![A-Za-z_])|FLUSH_SLAVE_TIMEOUT|SLAVE_NOT_AVAILABLE|BecomeSlave\w*|BECOME_SLAVE",
        r"slaveTimeout|slaveReadEnable|haMaxTimeSlaveNotCatchup|haSlaveFallbehindMax|enableSlaveActingMaster",
        r"offsetCheckInSlave|\bslave_timeout\b|\bslave_read_enable\b|\bha_max_time_slave_not_catchup\b|2m-noslave",
        r"hourglass[._]replication[._]slave[\w.]*|BrokerSlaveNotInSync|BrokerSlaveCutOff",
        r"readFromSlave",
        r"produce-64-(?:no|async|sync)-slave|refused_gateway_events|\"write_refusal\"|`write_refusal`",
        r"\brefused_events\b|\bRefusedEventAnswer\b",
    ],
    "docs/reference/mqadmin.md": [r"replayed, refused\)|`slaves`"],
    "docs/adr/README.md": [r"Say reject for refuse, and replica for slave"],
    "docs/adr/0062-one-bookkeeper.md": [r"\bREFUSED\b"],
    "docs/runbooks/PaymentsFailing.md": [r"\bREFUSED\b"],
    "libs/mqclient/": [r"\"BrokerRefusedError\""],
    "libs/mqremoting/src/mqremoting/__init__.py": [r"\bRefusedError\b"],
    "libs/pyspark-mq/src/pyspark_mq/__init__.py": [r"\bReadRefusedError\b"],
    "libs/servicekit/src/servicekit/errors.py": [r"\bRefusedError\b"],
    "loadtest/": [  # workloads, and members of their results and of the load's
        r"(?<=[\"'])(?:refused|refusals|refused_after_ms|refusals_that_say_too_little|(?:orders_)?refused_share)(?=[\"'])",
        r"slave_rss_peak_mib|\bworkload\.slave\b|\bself\.slave\b|^ *slave: |^comparison: slaves",
        r"(?<=[\"'])(?:slaves?|no-slave|sync-slave)\b|comparison: slaves",
    ],
    "services/analytics/src/analytics/": [r"--from-slave|\bfrom_slave\b"],
    "services/mq-broker/tests/test_broker_metrics.py": [r"\"slave\.(?:id|replica)\""],
    "services/payments/": [r"\bREFUSED\b"],
    "tests/robustness/test_system_replication.py": [r"\"Refused\""],
    "tools/invariants/": [r"\bREFUSED\b"],
    "tools/mqadmin/": [r"\"(?:refused|slaves|slaves now)\"|orders  refused  too"],
}
RECORDS = (  # of what was, and the texts that name the old words
    ":!docs/evidence", ":!tests/fixtures", ":!*_pb2*", ":!docs/glossary.md", ":!docs/adr/0157*", ":!CHANGELOG.md",
    ":!tests/architecture/test_glossary.py",
)  # fmt: skip
PAGES = ("services/orders/src/orders/pages/texts_en.py",)  # sentences for buyers


def rows() -> list[list[str]]:
    lines = GLOSSARY.read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    return [row for row in cells if row[0] != "term"]


def replaced_words() -> list[str]:
    return [word for row in rows() for word in re.findall(r"`([^`]+)`", row[4])]


def test_every_term_has_its_meaning_its_chinese_word_and_its_source() -> None:
    assert len(rows()) >= TERMS_MIN
    for row in rows():
        assert len(row) == COLUMNS, row
        assert all(row[:4]), row
    assert [name for name, count in Counter(row[0] for row in rows()).items() if count > 1] == []


def without_kept_names(path: str, text: str, used: set[str] | None = None) -> str:
    for place, names in KEPT.items():
        for name in names if path.startswith(place) else ():
            text, count = re.subn(name, "", text, flags=re.MULTILINE)
            if count and used is not None:
                used.add(place + name)
    return text


def test_replaced_words_do_not_come_back() -> None:
    listed = subprocess.run(["git", "ls-files", "*/src/*.py"], cwd=ROOT, check=True, capture_output=True, text=True)
    texts = {path: (ROOT / path).read_text(encoding="utf-8") for path in listed.stdout.split()}
    text = "\n".join(without_kept_names(path, source) for path, source in texts.items())
    words = replaced_words()
    assert len(words) >= WORDS_MIN
    # A public name may stand in quotes for one version, as the alias that it is.
    assert [word for word in words if re.search(rf"(?<![\"\w]){word}\b", text)] == []


@pytest.mark.parametrize(
    ("module", "old", "current"),
    [
        ("mqremoting", "RefusedError", "RejectedError"),
        ("pyspark_mq", "ReadRefusedError", "ReadRejectedError"),
        ("servicekit.errors", "RefusedError", "RejectedError"),
    ],
)
def test_a_public_name_of_before_says_what_it_is_now(module: str, old: str, current: str) -> None:
    loaded = importlib.import_module(module)
    with pytest.warns(DeprecationWarning, match=rf"^{module}\.{old} is {module}\.{current} now$"):
        assert getattr(loaded, old) is getattr(loaded, current)
    with pytest.raises(AttributeError, match=f"module '{module}' has no attribute 'Nothing'"):
        _ = loaded.Nothing


def test_what_is_left_of_an_old_word_is_a_name_that_stays() -> None:
    command = ["git", "grep", "-lIiE", "refus|slave", "--", ".", *RECORDS]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    used: set[str] = set()
    found = [
        f"{path}: {word}"
        for path in listed.stdout.split()
        for word in OLD_STEMS.findall(without_kept_names(path, (ROOT / path).read_text(encoding="utf-8"), used))
    ]
    assert found == []
    assert {place + name for place, names in KEPT.items() for name in names} == used, "a name is gone: remove it here"


def test_sentences_name_their_subject() -> None:
    """Sources, documents and files of deployment; decisions (docs/adr) are records of their time."""
    kinds = ["*/src/*.py", "*.md", "*.proto", "*.toml", "*.yml", "*.yaml", "*.conf", ":!docs/adr", ":!*_pb2*"]
    listed = subprocess.run(["git", "ls-files", *kinds], cwd=ROOT, check=True, capture_output=True, text=True)
    paths = [path for path in listed.stdout.split() if path not in PAGES]
    assert len(paths) > len(PAGES)
    found = [
        f"{path}:{number}: {line.strip()}"
        for path in paths
        for number, line in enumerate((ROOT / path).read_text(encoding="utf-8").splitlines(), 1)
        if PRONOUNS.search(line)
    ]
    assert found == []
