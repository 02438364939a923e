# SPDX-License-Identifier: Apache-2.0
"""The audit log: every decision as a sentence, written in the decision's transaction."""

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

#: Audit subject of changes to the list of hosts.
HOSTS = "hosts"

_INSERT = sa.insert(audit)


#: The kind of lines about repairs of a lease's resources. A line about a new state of a lease has
#: the state as its kind, other lines have none.
REPAIR: Final = "repair"


def write(
    conn: Connection,
    at: datetime,
    subject: str,
    project_id: str | None,
    sentence: str,
    kind: str = "",
) -> None:
    write_many(conn, at, [(subject, project_id, sentence)], kind)


def write_many(
    conn: Connection, at: datetime, lines: Sequence[tuple[str, str | None, str]], kind: str = ""
) -> None:
    """Write audit lines of the same kind, each given as subject, project and sentence.

    The actor and the request id come from the thread's oslo context, if there is one.
    """
    common = {"at": at, "kind": kind, **whose()}
    rows = [
        {**common, "subject": subject, "project_id": project_id, "sentence": sentence}
        for subject, project_id, sentence in lines
    ]
    if rows:
        conn.execute(_INSERT, rows)


def whose() -> dict[str, str]:
    """Return the columns actor and request_id of the current request."""
    request = oslo_context.get_current()
    return {
        "actor": (request.user_id if request else None) or "holdfast",
        "request_id": (request.request_id if request else None) or "",
    }


# The audit log for people: decisions, newest first, page by page.
#
# The marker is the id of a line: lines added meanwhile neither repeat nor skip others.
#
#     store.audit.list_all(Wanted(subject="incident:", text="fenced", older_than=4711))


a = audit.c
Line = Mapping[str, Any]
#: Lines per page of an export; each page is a short read of its own.
PORTION: Final = 500
#: Characters that may follow a name in a sentence without being part of the name.
_BEHIND: Final = (set(string.punctuation + string.whitespace) - set("_-")) | set("…→")
_INCIDENT: Final = "incident:"


@dataclass(frozen=True)
class Wanted:
    """Filter of audit lines; None means any.

    `project` selects lines about a project's resources.
    """

    subject: str | None = None  # a trailing colon selects all subjects of that kind
    actor: str | None = None
    project: str | None = None
    kind: str | None = None  # the state that a lease reached, or REPAIR
    text: str | None = None  # anywhere in the sentence, case-insensitive
    since: datetime | None = None
    until: datetime | None = None  # exclusive
    older_than: int | None = None  # line id, exclusive
    newer_than: int | None = None
    limit: int = 100


class AuditStore:
    def __init__(self, database: Database) -> None:
        self._db = database

    def list_all(self, wanted: Wanted) -> Sequence[Line]:
        """Return lines, newest first; with `newer_than` the lines directly after that line."""
        onwards = wanted.newer_than is not None
        order = a.id.asc() if onwards else a.id.desc()
        query = sa.select(audit).where(*_where(wanted)).order_by(order).limit(wanted.limit)
        with self._db.read() as conn:
            lines = [dict(row) for row in conn.execute(query).mappings()]
        return lines[::-1] if onwards else lines

    def pages(self, wanted: Wanted) -> Iterator[Sequence[Line]]:
        """Yield all lines in portions, so that neither a transaction nor memory holds all lines."""
        while found := self.list_all(replace(wanted, limit=PORTION)):
            yield found
            wanted = replace(wanted, older_than=found[-1]["id"])

    def naming(
        self, host: str, since: datetime, until: datetime | None, most: int
    ) -> Sequence[Line]:
        """Return the first lines since then that name the host, oldest first.

        A longer host name with the same beginning does not count. Lines of incidents are left
        out, because incidents show them.
        """
        name = re.compile(rf"(?<![\w.-]){re.escape(host)}(?![\w-])", re.IGNORECASE)
        wanted = Wanted(text=host, since=since, until=until)
        ours = *_where(wanted), _as_word(host), ~a.subject.startswith(_INCIDENT)
        lines: list[Line] = []
        last = 0
        while len(lines) < most and (page := self._from(last, ours)):
            lines += [line for line in page if name.search(line["sentence"])]
            last = page[-1]["id"]
        return lines[:most]

    def _from(self, last: int, ours: Sequence[sa.ColumnElement[bool]]) -> Sequence[Line]:
        query = sa.select(audit).where(a.id > last, *ours).order_by(a.id).limit(PORTION)
        with self._db.read() as conn:
            return [dict(row) for row in conn.execute(query).mappings()]

    def around(self, line_id: int, project: str | None, near: int) -> Sequence[Line]:
        """Return a line with `near` lines before and after.

        Raises NotFound, also for a line of another project.
        """
        own = Wanted(project=project)
        here = self.list_all(replace(own, older_than=line_id + 1, limit=near + 1))
        if not here or here[0]["id"] != line_id:
            raise NotFound(f"there is no line {line_id} in the audit, or no more")
        return [*self.list_all(replace(own, newer_than=line_id, limit=near)), *here]


def _where(wanted: Wanted) -> list[sa.ColumnElement[bool]]:
    conditions: list[sa.ColumnElement[bool]] = []
    if wanted.subject is not None:
        kind = wanted.subject.endswith(":")
        same = a.subject.startswith(wanted.subject, autoescape=True)
        conditions.append(same if kind else a.subject == wanted.subject)
    if wanted.actor is not None:
        conditions.append(a.actor == wanted.actor)
    if wanted.project is not None:
        conditions.append(a.project_id == wanted.project)
    if wanted.kind is not None:
        conditions.append(a.kind == wanted.kind)
    if wanted.text is not None:
        conditions.append(a.sentence.icontains(wanted.text, autoescape=True))
    if wanted.since is not None:
        conditions.append(a.at >= wanted.since)
    if wanted.until is not None:
        conditions.append(a.at < wanted.until)
    if wanted.older_than is not None:
        conditions.append(a.id < wanted.older_than)
    if wanted.newer_than is not None:
        conditions.append(a.id > wanted.newer_than)
    return conditions


def _as_word(name: str) -> sa.ColumnElement[bool]:
    """Build a rough condition that the name ends at a word boundary.

    In a mass failure most host names begin alike.
    """
    behind = [a.sentence.icontains(name + sign, autoescape=True) for sign in sorted(_BEHIND)]
    return sa.or_(a.sentence.iendswith(name, autoescape=True), *behind)
