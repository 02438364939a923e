# SPDX-License-Identifier: Apache-2.0
"""What happens by itself: deletes, actions and moves that became due since the last look.

There is no background thread. A server under way has `finish_at`, `next_status` and perhaps
`dest_host_id`; every transaction first settles what is due by its own time. What needs a host that
is silent waits for it, as a message to a dead nova-compute does.
"""

import sqlite3

#: Forget what was under way.
IDLE = "task_state = NULL, finish_at = NULL, next_status = NULL, dest_host_id = NULL"

PENDING = "('accepted', 'running')"


def is_behind(db: sqlite3.Connection, now: float) -> bool:
    """Whether there may be something to settle."""
    return db.execute(_ANYTHING, (now, now)).fetchone() is not None


_ANYTHING = (
    "SELECT 1 FROM servers WHERE finish_at <= ?"
    " UNION ALL SELECT 1 FROM migrations WHERE status = 'accepted' AND run_at <= ? LIMIT 1"
)


def settle(db: sqlite3.Connection, now: float) -> None:
    """Bring the world up to now."""
    if not is_behind(db, now):
        return
    db.execute(
        "UPDATE migrations SET status = 'running' WHERE status = 'accepted' AND run_at <= ?",
        (now,),
    )
    due = db.execute(
        "SELECT s.*, there.failed_at AS lost_there, here.failed_at AS lost_here FROM servers s"
        " LEFT JOIN hosts there ON there.id = COALESCE(s.dest_host_id, s.host_id)"
        " LEFT JOIN hosts here ON here.id = s.host_id"
        " WHERE s.finish_at <= ?",
        (now,),
    ).fetchall()
    for server in due:
        if _waits(server):
            continue
        if server["task_state"] == "deleting":
            db.execute("DELETE FROM servers WHERE id = ?", (server["id"],))
        elif server["task_state"] == "migrating":
            _arrive(db, server)
        else:
            _finish(db, server)


def _waits(server: sqlite3.Row) -> bool:
    """Whether a host that has to do something is silent. None has, where an evacuation found no
    room; to move a running server takes both."""
    if server["next_status"] == "ERROR":
        return False
    if server["task_state"] == "migrating" and server["lost_here"] is not None:
        return True
    return server["lost_there"] is not None


def _arrive(db: sqlite3.Connection, server: sqlite3.Row) -> None:
    """A live migration ends: the guest goes on elsewhere, or where it is if there was no room. One
    that died meanwhile cannot move."""
    runs = db.execute(
        "UPDATE domains SET host_id = ? WHERE server_id = ? AND host_id = ?",
        (server["dest_host_id"] or server["host_id"], server["id"], server["host_id"]),
    ).rowcount
    moved = bool(runs and server["dest_host_id"])
    db.execute(
        f"UPDATE migrations SET status = ? WHERE server_id = ? AND status IN {PENDING}",
        ("done" if moved else "failed", server["id"]),
    )
    db.execute(
        f"UPDATE servers SET status = ?, host_id = ?, {IDLE} WHERE id = ?",
        (
            server["next_status"] if runs else "SHUTOFF",
            server["dest_host_id"] if moved else server["host_id"],
            server["id"],
        ),
    )


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
