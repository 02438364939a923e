# SPDX-License-Identifier: Apache-2.0
"""What agents saw, on every database: how it is found, and whether a guest runs again."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

from holdfast.db import Store
from tests.db.test_segments import now

GUEST = f"server:{uuid.UUID(int=7)}"


def say(store: Store, state: str, ago_s: float = 0.0, **more: Any) -> None:
    at = now(store) - timedelta(seconds=ago_s)
    values = {
        "observer": "agent@cmp-1",
        "subject": GUEST,
        "kind": "guest",
        "state": state,
        "since": at,
        "observed_at": at,
        "key": str(uuid.uuid4()),
        "evidence": {"host": "cmp-1"},
        **more,
    }
    store.observations.add(str(uuid.uuid4()), values)


def recovered(store: Store, host: str = "cmp-1", observer: str = "") -> str:
    return store.incidents.guest_recovered_since(GUEST, host, observer=observer)


def test_a_guest_runs_again_if_that_is_the_last_that_is_known_of_it(store: Store) -> None:
    assert recovered(store) == ""
    say(store, "failed", 60)
    assert recovered(store) == ""
    say(store, "well", 30)
    assert recovered(store).endswith("UTC, says agent@cmp-1")
    say(store, "noted", 20)
    say(store, "failed", 40, observer="nova")  # which is older, and came late
    assert recovered(store)
    say(store, "failed", 10, observer="nova")
    assert recovered(store) == ""
    say(store, "well", 5)
    assert recovered(store)
    say(store, "failed", 6)  # of one observer what it says later counts, whatever its clock does
    assert recovered(store) == ""


def test_a_report_that_a_guest_runs_counts_from_its_host_and_from_the_reporter_of_the_failure(
    store: Store,
) -> None:
    say(store, "failed", 60)
    other = {"observer": "agent@cmp-2", "evidence": {"host": "cmp-2"}}
    say(store, "well", 30, **other)
    assert recovered(store) == ""
    assert recovered(store, observer="agent@cmp-1") == ""
    assert recovered(store, "cmp-2")  # where the cloud has it by now
    assert recovered(store, "CMP-2.example.org")
    assert recovered(store, observer="agent@cmp-2")
    say(store, "well", 20, evidence={"host": "Cmp-1.example.org"})
    assert recovered(store) and recovered(store, "cmp-1.example.org")
    assert recovered(store, "cmp-1.elsewhere.org") == ""
    for _ in range(60):
        say(store, "failed", 5, **other)  # another host's reports neither contradict nor hide it
    assert recovered(store)


def test_what_was_seen_is_found_by_its_host_kind_and_state(store: Store) -> None:
    say(store, "noted")
    say(store, "failed", subject="process:cmp-1:libvirtd", kind="process")
    say(store, "noted", observer="agent@cmp-2", evidence={"host": "cmp-2"})
    votes = {"observer": "ctl-1", "subject": "host:cmp-1", "kind": "host_health", "evidence": {}}
    say(store, "well", **votes)

    def found(**wanted: str) -> set[str]:
        rows = store.observations.list_all(**wanted)  # type: ignore[arg-type]
        return {f"{row['observer']} {row['kind']} {row['state']}" for row in rows}

    mine = {"agent@cmp-1 guest noted", "agent@cmp-1 process failed", "ctl-1 host_health well"}
    assert found(host="CMP-1") == mine
    assert found(host="cmp-1", kind="process") == {"agent@cmp-1 process failed"}
    assert found(state="noted") == {"agent@cmp-1 guest noted", "agent@cmp-2 guest noted"}
