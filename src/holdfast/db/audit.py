# SPDX-License-Identifier: Apache-2.0
"""Every decision as a sentence, written in the transaction that carries it out."""

import re
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa
from oslo_context import context as oslo_context
from sqlalchemy.engine import Connection

from holdfast.db.engine import Database
from holdfast.db.tables import audit
from holdfast.model.errors import NotFound

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


# The audit for people: which decisions were taken, the newest first, page by page.
#
# The marker is the id of a line: lines that come meanwhile neither repeat nor skip others.
#
#     store.audit.list_all(Wanted(subject="incident:", text="fenced", older_than=4711))


a = audit.c
Line = Mapping[str, Any]
#: Lines of one page of an export: each page is a short look of its own.
PORTION: Final = 500
#: What may stand behind a name in a sentence without being part of it.
_BEHIND: Final = (set(string.punctuation + string.whitespace) - set("_-")) | set("…→")
_INCIDENT: Final = "incident:"


@dataclass(frozen=True)
class Wanted:
    """Which lines; None: any. `project` are those about a project's own things."""

    subject: str | None = None  # one that ends with a colon: all of that kind
    actor: str | None = None
    project: str | None = None
    text: str | None = None  # anywhere in the sentence, in capitals or not
    since: datetime | None = None
    until: datetime | None = None  # not itself
    older_than: int | None = None  # ids, not themselves
    newer_than: int | None = None
    limit: int = 100


class AuditStore:
    def __init__(self, database: Database) -> None:
        self._db = database

    def list_all(self, wanted: Wanted) -> Sequence[Line]:
        """The newest first; with `newer_than` those that follow that line at once."""
        onwards = wanted.newer_than is not None
        order = a.id.asc() if onwards else a.id.desc()
        query = sa.select(audit).where(*_where(wanted)).order_by(order).limit(wanted.limit)
        with self._db.read() as conn:
            found = [dict(row) for row in conn.execute(query).mappings()]
        return found[::-1] if onwards else found

    def pages(self, wanted: Wanted) -> Iterator[Sequence[Line]]:
        """All of them, a portion at a time: nobody holds the database, or all lines, meanwhile."""
        while found := self.list_all(replace(wanted, limit=PORTION)):
            yield found
            wanted = replace(wanted, older_than=found[-1]["id"])

    def naming(
        self, host: str, since: datetime, until: datetime | None, most: int
    ) -> Sequence[Line]:
        """The first lines since then that name that host itself, not one whose name begins alike,
        the oldest first; of incidents none: theirs are told with them."""
        name = re.compile(rf"(?<![\w.-]){re.escape(host)}(?![\w-])", re.IGNORECASE)
        wanted = Wanted(text=host, since=since, until=until)
        ours = *_where(wanted), _as_word(host), ~a.subject.startswith(_INCIDENT)
        found: list[Line] = []
        last = 0
        while len(found) < most and (page := self._from(last, ours)):
            found += [one for one in page if name.search(one["sentence"])]
            last = page[-1]["id"]
        return found[:most]

    def _from(self, last: int, ours: Sequence[sa.ColumnElement[bool]]) -> Sequence[Line]:
        query = sa.select(audit).where(a.id > last, *ours).order_by(a.id).limit(PORTION)
        with self._db.read() as conn:
            return [dict(row) for row in conn.execute(query).mappings()]

    def around(self, line_id: int, project: str | None, near: int) -> Sequence[Line]:
        """One line with some before and after it. NotFound, also of another project's."""
        own = Wanted(project=project)
        here = self.list_all(replace(own, older_than=line_id + 1, limit=near + 1))
        if not here or here[0]["id"] != line_id:
            raise NotFound(f"there is no line {line_id} in the audit, or no more")
        return [*self.list_all(replace(own, newer_than=line_id, limit=near)), *here]


def _where(wanted: Wanted) -> list[sa.ColumnElement[bool]]:
    found: list[sa.ColumnElement[bool]] = []
    if wanted.subject is not None:
        kind = wanted.subject.endswith(":")
        same = a.subject.startswith(wanted.subject, autoescape=True)
        found.append(same if kind else a.subject == wanted.subject)
    if wanted.actor is not None:
        found.append(a.actor == wanted.actor)
    if wanted.project is not None:
        found.append(a.project_id == wanted.project)
    if wanted.text is not None:
        found.append(a.sentence.icontains(wanted.text, autoescape=True))
    if wanted.since is not None:
        found.append(a.at >= wanted.since)
    if wanted.until is not None:
        found.append(a.at < wanted.until)
    if wanted.older_than is not None:
        found.append(a.id < wanted.older_than)
    if wanted.newer_than is not None:
        found.append(a.id > wanted.newer_than)
    return found


def _as_word(name: str) -> sa.ColumnElement[bool]:
    """Roughly: that it ends where a name ends. In a storm most names begin alike."""
    behind = [a.sentence.icontains(name + one, autoescape=True) for one in sorted(_BEHIND)]
    return sa.or_(a.sentence.iendswith(name, autoescape=True), *behind)
