# SPDX-License-Identifier: Apache-2.0
"""What the cloud says of a guest that was reported dead: whether it has the guest on the host that
reports it, and whether the guest is one that was recovered already.
"""

from datetime import datetime, timedelta
from typing import Final

from holdfast.heal.desk import Desk
from holdfast.model.errors import NotFound
from holdfast.model.host import same
from holdfast.ports.cloud import Server
from holdfast.work.kind import NotYet, Run

#: While one of these tasks is under way, the guest may be on either host.
MOVING: Final = ("migrating", "resize_prep", "resize_migrating", "resize_migrated", "resize_finish")
#: Nobody but its people makes a server so: whatever was found of its guest, it shall be off.
#: SHUTOFF is not among them, for so the cloud calls what died as well.
OFF_BY_WISH: Final = ("SUSPENDED", "SHELVED", "SHELVED_OFFLOADED", "SOFT_DELETED", "DELETED")
#: How long Nova may call a guest ACTIVE that died: nova-compute itself waits 15 s.
NOVA_LAG_S: Final = 20.0
#: How far the clocks of a sender and of the database differ without being wrong.
CLOCK_ERROR: Final = timedelta(seconds=1)
LOOK_S, BUSY_S = 2.0, 2.0


def server_of(desk: Desk, run: Run, server_id: str) -> Server | None:
    """None: the cloud knows no such server."""
    try:
        return desk.hands(run).servers.show(server_id)
    except NotFound:
        return None


def why_not_there(server_id: str, server: Server | None, host: str) -> str:
    """Why a report from that host about the server leads to nothing; empty if the cloud has the
    server there. NotYet while the server moves: a guest that is gone on one of the two hosts may
    run on the other."""
    if server is None:
        return f"the cloud knows no server {server_id}"
    if server.status in OFF_BY_WISH:
        return f"the cloud says that server {server_id} shall be off: it is {server.status}"
    if server.task_state in MOVING:
        raise NotYet(f"server {server_id} is {server.task_state}: where it will be decides", BUSY_S)
    return why_elsewhere(server, host)


def why_elsewhere(server: Server, host: str) -> str:
    """Empty if the cloud has the server on that host."""
    if same(server.host or "", host):
        return ""
    return f"the cloud says that server {server.id} is on {server.host or 'no host'}"


def crashed_at(
    desk: Desk, run: Run, subject: str, dated: datetime, received_at: datetime
) -> datetime:
    """When the crash happened that a report tells of. A date in the future is cut to the time of
    receipt.

    A sender whose clock is ahead cannot say whether it tells of a crash that was recovered since or
    of a new one. If a recovery of the guest was verified lately, the cloud decides: a new crash
    shows within NOVA_LAG_S (NotYet until then). If it does not, the report is dated before that
    recovery.
    """
    if dated <= received_at + CLOCK_ERROR:
        return min(dated, received_at)
    incidents, settings = desk.incidents, desk.settings
    window = max(dated - received_at, timedelta(seconds=settings.duplicate_interval_s))
    if incidents.recovered_since(subject, received_at - window) is None:
        return received_at
    server = server_of(desk, run, subject.removeprefix("server:"))
    if server is None or server.status != "ACTIVE" or (server.live and not server.powered):
        return received_at
    if not server.live and incidents.now() < received_at + timedelta(seconds=NOVA_LAG_S):
        said = f"the report is dated {(dated - received_at).total_seconds():.0f} s in the future"
        raise NotYet(f"{said}: does the cloud see the guest die again?", LOOK_S)
    return received_at - window
