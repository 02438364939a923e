# SPDX-License-Identifier: Apache-2.0
"""What monitors see and say of one host, brought together: `ports.votes.Votes` in SQL."""

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from holdfast.model.host import normalise
from holdfast.model.operation import Claim, Operation
from holdfast.model.votes import Ballot, Word
from holdfast.store import audit
from holdfast.store.database import Database
from holdfast.store.host_rows import by_name
from holdfast.store.monitors import MonitorStore
from holdfast.store.observations import HOST, known_name, words
from holdfast.store.operations import update_claimed
from holdfast.store.tables import hosts
from holdfast.store.work import put


class VoteStore:
    def __init__(self, database: Database, monitors: MonitorStore) -> None:
        self._db = database
        self._monitors = monitors

    def ballot(self, host: str) -> Ballot:
        now, listed = self._monitors.listed(registered=True)
        views = [one.view for one in listed if one.view is not None]
        with self._db.read() as conn:
            name = known_name(conn, host)
            called = {view.picture.name(name) for view in views}
            said = words(conn, {normalise(host), name, *(own for own in called if own)})
        latest: dict[str, Word] = {}
        for word in (one for some in said.values() for one in some):
            before = latest.get(word.observer)
            if before is None or word.at > before.at:
                latest[word.observer] = word
        return Ballot(name, now, len(listed), views, latest)

    def is_known(self, host: str) -> bool:
        query = sa.select(hosts.c.name).where(by_name(host))
        with self._db.read() as conn:
            found = conn.execute(query).scalars().all()
        return normalise(host) in found or len(found) == 1

    def remember(
        self, claim: Claim, payload: Mapping[str, Any], say: str, then: Sequence[Operation] = ()
    ) -> None:
        def action(conn: Connection) -> None:
            now = self._db.now(conn)
            update_claimed(conn, claim, payload=dict(payload), updated_at=now)
            put(conn, then, now)
            if say:
                audit.write(conn, now, f"{HOST}{payload['host']}", None, say)

        self._db.retry(action)
