# SPDX-License-Identifier: Apache-2.0
"""Alarm rule documents, with every version.

The API writes them itself, without a manager; agents fetch the rules that apply to their host.
"""

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from holdfast.alarms import scopes
from holdfast.alarms.scopes import Document
from holdfast.db import audit
from holdfast.db.engine import Database
from holdfast.db.tables import agents, alarm_rules
from holdfast.model.errors import Conflict, NotFound

r = alarm_rules.c
Row = Mapping[str, Any]
#: Older versions are deleted.
MOST_VERSIONS = 100


class AlarmRuleStore:
    def __init__(self, database: Database) -> None:
        self._db = database

    def put(self, document: Document, author: str, expected: int | None = None) -> Row:
        """Store a new version of the document, unless text and scope are unchanged.

        `expected` is the version that the caller replaces; Conflict if another version is
        current. InvalidInput if the document, with the others, exceeds the limits of some
        host's agent.
        """

        def action(conn: Connection) -> Row:
            old = _latest(conn, document.name)
            current = 0 if old is None or old["removed"] else old["version"]
            if expected is not None and expected != current:
                raise Conflict(
                    f"rules {document.name} are at version {current}, not {expected}:"
                    " read them again"
                )
            content = (document.text, str(document.scope))
            if old is not None and current and (old["text"], old["scope"]) == content:
                return old
            _check_together(conn, document)
            return self._add(conn, old, document, author)

        return self._db.retry(action)

    def roll_back(self, name: str, version: int | None, author: str) -> Row:
        """Restore the previous version, or the given version, as a new version.

        The restored version is checked like any other.
        """

        def action(conn: Connection) -> Row:
            old = _latest(conn, name)
            if old is None:
                raise NotFound(f"no rules {name}")
            query = sa.select(alarm_rules).where(r.name == name, r.removed.is_(False))
            if version is not None:
                query = query.where(r.version == version)
            elif old["removed"]:
                query = query.order_by(r.version.desc())
            else:
                query = query.where(r.version < old["version"], _differs(old))
                query = query.order_by(r.version.desc())
            row = conn.execute(query.limit(1)).mappings().first()
            if row is None:
                missing = (
                    f"no version {version}" if version is not None else "nothing before this one"
                )
                raise NotFound(f"of rules {name} there is {missing}")
            again = _document(dict(row))
            _check_together(conn, again)
            return self._add(conn, old, again, author)

        return self._db.retry(action)

    def remove(self, name: str, author: str) -> None:
        def action(conn: Connection) -> None:
            old = _latest(conn, name)
            if old is None or old["removed"]:
                raise NotFound(f"no rules {name}")
            gone = Document(name, scopes.scope(old["scope"]), 0, "")
            self._add(conn, old, gone, author, removed=True)

        self._db.retry(action)

    def all(self) -> Sequence[Row]:
        """Return the current version of every document."""
        with self._db.read() as conn:
            return _all(conn)

    def documents(self) -> Sequence[Document]:
        return [_document(row) for row in self.all()]

    def show(self, name: str, version: int | None = None) -> Row:
        """Return the current version, or the given version; NotFound."""
        query = sa.select(alarm_rules).where(r.name == name, r.removed.is_(False))
        mine = r.latest.is_(True) if version is None else r.version == version
        with self._db.read() as conn:
            row = conn.execute(query.where(mine)).mappings().first()
        if row is None:
            at = f" at version {version}" if version is not None else ""
            raise NotFound(f"no rules {name}{at}")
        return dict(row)

    def history(self, name: str) -> Sequence[Row]:
        """Return all versions, newest first; NotFound."""
        query = sa.select(alarm_rules).where(r.name == name).order_by(r.version.desc())
        with self._db.read() as conn:
            rows = [dict(row) for row in conn.execute(query).mappings()]
        if not rows:
            raise NotFound(f"no rules {name}")
        return rows

    def _add(
        self,
        conn: Connection,
        old: Row | None,
        document: Document,
        author: str,
        *,
        removed: bool = False,
    ) -> Row:
        now = self._db.now(conn)
        version = old["version"] + 1 if old else 1
        row = {
            "id": str(uuid.uuid4()),
            "name": document.name,
            "version": version,
            "scope": str(document.scope),
            "text": document.text,
            "removed": removed,
            "latest": True,
            "author": author,
            "created_at": now,
        }
        ours = sa.update(alarm_rules).where(r.name == document.name, r.latest.is_(True))
        conn.execute(ours.values(latest=False, updated_at=now))
        conn.execute(sa.insert(alarm_rules).values(**row))
        oldest = version - MOST_VERSIONS
        conn.execute(sa.delete(alarm_rules).where(r.name == document.name, r.version <= oldest))
        what = "taken away" if removed else f"version {version} for {row['scope']}"
        audit.write(
            conn, now, f"alarm-rules:{document.name}", None, f"alarm rules {document.name}: {what}"
        )
        return row


def _all(conn: Connection) -> Sequence[Row]:
    query = sa.select(alarm_rules).where(r.latest.is_(True), r.removed.is_(False))
    return [dict(row) for row in conn.execute(query.order_by(r.name)).mappings()]


def _check_together(conn: Connection, document: Document) -> None:
    rows = conn.execute(sa.select(agents.c.host, agents.c.details))
    hosts = [(row.host, row.details.get("rule_groups", ())) for row in rows]
    scopes.check_together(document, [_document(row) for row in _all(conn)], hosts)


def _latest(conn: Connection, name: str) -> Row | None:
    query = sa.select(alarm_rules).where(r.name == name).order_by(r.version.desc()).limit(1)
    row = conn.execute(query).mappings().first()
    return None if row is None else dict(row)


def _differs(old: Row) -> sa.ColumnElement[bool]:
    return sa.or_(r.text != old["text"], r.scope != old["scope"])


def _document(row: Row) -> Document:
    return Document(row["name"], scopes.scope(row["scope"]), row["version"], row["text"])
