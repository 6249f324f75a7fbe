"""Consumer groups whose topic, clock, disk and client ids change, under random histories."""

from __future__ import annotations

from collections.abc import Callable

from elastic_histories import run_sample


def test_groups_keep_their_promises_while_everything_around_them_changes(
    record_property: Callable[[str, object], None],
) -> None:
    record_property("figure", run_sample())
