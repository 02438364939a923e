# SPDX-License-Identifier: Apache-2.0
"""What happens by itself: deletes, actions and evacuations that became due since the last look.

There is no background thread. A server under way has `finish_at`, `next_status` and perhaps
`dest_host_id`; every transaction first settles what is due by its own time. What needs a host that
has no power waits for it, as a message to a dead nova-compute does.
"""

import sqlite3

#: Forget what was under way.
IDLE = "task_state = NULL, finish_at = NULL, next_status = NULL, dest_host_id = NULL"

PENDING = "('accepted', 'running')"


def settle(db: sqlite3.Connection, now: float) -> None:
    """Bring the world up to now."""
    db.execute(
        "UPDATE migrations SET status = 'running' WHERE status = 'accepted' AND run_at <= ?",
        (now,),
    )
    due = db.execute(
        "SELECT s.*, h.powered FROM servers s"
        " LEFT JOIN hosts h ON h.id = COALESCE(s.dest_host_id, s.host_id)"
        " WHERE s.finish_at <= ?",
        (now,),
    ).fetchall()
    for server in due:
        if not (server["powered"] or _needs_no_host(server)):
            continue
        if server["task_state"] == "deleting":
            db.execute("DELETE FROM servers WHERE id = ?", (server["id"],))
        else:
            _finish(db, server)


def _needs_no_host(server: sqlite3.Row) -> bool:
    """It is on none and goes to none; or it was to move, and there was no room."""
    return server["host_id"] is server["dest_host_id"] is None or server["next_status"] == "ERROR"


def _finish(db: sqlite3.Connection, server: sqlite3.Row) -> None:
    status, server_id = server["next_status"], server["id"]
    host_id = server["dest_host_id"] or server["host_id"]
    if server["task_state"] == "rebuilding":
        # The domain on the source is not ours to end: if that host still has power, nobody
        # fenced it, and a start at the target makes the server run twice. Tests look for that.
        ended = "failed" if status == "ERROR" else "done"
        db.execute(
            f"UPDATE migrations SET status = ? WHERE server_id = ? AND status IN {PENDING}",
            (ended, server_id),
        )
    elif server["task_state"] != "image_snapshot":
        db.execute(
            "DELETE FROM domains WHERE server_id = ? AND host_id = ?",
            (server_id, server["host_id"]),
        )
    if status == "ACTIVE":
        db.execute("INSERT OR IGNORE INTO domains VALUES (?, ?)", (server_id, host_id))
    if status == "SHELVED_OFFLOADED":
        host_id = None
    db.execute(
        f"UPDATE servers SET status = ?, host_id = ?, {IDLE} WHERE id = ?",
        (status, host_id, server_id),
    )
