# SPDX-License-Identifier: Apache-2.0
"""/console/search: hosts, leases and incidents by a part of their name.

A unique or exact match opens at once; otherwise the page lists the matches.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from holdfast.api.request import Request, Response
from holdfast.console.pages import PREFIX, away, page, project_scope
from holdfast.model.host import normalise

MOST, LONGEST = 25, 100
HOSTS, LEASES = "holdfast:host:list", "reservation:lease:list"
INCIDENTS = "holdfast:incident:list"


@dataclass(frozen=True)
class Hit:
    """A search result."""

    kind: str
    name: str
    path: str
    state: str
    about: str
    keys: tuple[str, ...]  # an equal search text selects exactly this hit


def show(request: Request) -> Response:
    text = str(request.query.get("q", "")).strip()[:LONGEST]
    hits = _hits(request, text) if text else []
    if path := match_url(hits, text):
        return away(path)
    title = f"Search: {text}" if text else "Search"
    more = MOST in Counter(hit.kind for hit in hits).values()
    return page(request, "search.html", title=title, text=text, hits=hits, more=more)


def match_url(hits: Sequence[Hit], text: str) -> str:
    """Return the page of the only or exact match; empty if ambiguous."""
    exact = [hit for hit in hits if normalise(text) in map(normalise, hit.keys)]
    if len(exact) == 1:
        return exact[0].path
    return hits[0].path if len(hits) == 1 else ""


def _hits(request: Request, text: str) -> list[Hit]:
    store, hits = request.services.store.search, list[Hit]()
    if request.allowed(HOSTS):
        hits += map(_host, store.hosts(text, MOST))
    if request.allowed(LEASES):
        hits += map(_lease, store.leases(text, project_scope(request), MOST))
    if request.allowed(INCIDENTS):
        hits += map(_incident, store.incidents(text, MOST))
    return hits


def _host(row: Mapping[str, Any]) -> Hit:
    name = row["name"]
    path = f"{PREFIX}/hosts/{quote(name, safe='')}"
    return Hit("host", name, path, row["state"], f"in {row['rack'] or row['zone']}", (name,))


def _lease(row: Mapping[str, Any]) -> Hit:
    about = f"project {row['project_id']}, {row['start_date']:%Y-%m-%d %H:%M} to"
    about += f" {row['end_date']:%Y-%m-%d %H:%M} UTC"
    path, keys = f"{PREFIX}/leases/{row['id']}", (row["id"], row["name"])
    return Hit("lease", row["name"], path, row["status"].lower(), about, keys)


def _incident(row: Mapping[str, Any]) -> Hit:
    about = f"{row['opened_at']:%Y-%m-%d %H:%M:%S} UTC: {row['sentence']}"
    path = f"{PREFIX}/incidents/{row['id']}"
    return Hit("incident", row["subject"], path, row["status"], about, (row["id"],))
