# SPDX-License-Identifier: Apache-2.0
"""Every decision as a sentence, written in the transaction that carries it out."""

from collections.abc import Sequence
from datetime import datetime

import sqlalchemy as sa
from oslo_context import context as oslo_context
from sqlalchemy.engine import Connection

from holdfast.store.tables import audit

#: Who comes and goes, of all hosts together.
HOSTS = "hosts"

_INSERT = sa.insert(audit)


def write(
    conn: Connection, at: datetime, subject: str, project_id: str | None, sentence: str
) -> None:
    write_many(conn, at, [(subject, project_id, sentence)])


def write_many(conn: Connection, at: datetime, said: Sequence[tuple[str, str | None, str]]) -> None:
    """Subject, project and sentence of each. The request in whose name this happens is the thread's
    oslo context, if there is one."""
    common = {"at": at, **whose()}
    rows = [
        {**common, "subject": subject, "project_id": project_id, "sentence": sentence}
        for subject, project_id, sentence in said
    ]
    if rows:
        conn.execute(_INSERT, rows)


def whose() -> dict[str, str]:
    """The columns that say in whose name something happens."""
    request = oslo_context.get_current()
    return {
        "actor": (request.user_id if request else None) or "holdfast",
        "request_id": (request.request_id if request else None) or "",
    }
