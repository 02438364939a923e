# SPDX-License-Identifier: Apache-2.0
"""/console/live and /console/changes: what changed, for pages that are open."""

from holdfast.api.ask import Ask, Reply
from holdfast.console.live import Feed
from holdfast.console.pages import HEADERS
from holdfast.console.refusals import STREAM


def live(ask: Ask) -> Reply:
    """A stream of events; 503 when all are taken, and the page asks instead."""
    feed: Feed = ask.services.feed
    tab = ask.query.get("tab", "")
    since = ask.known or ask.query.get("since", "")
    stream = feed.stream(since, ask.caller.user_id, tab[:64])
    headers = {**HEADERS, "X-Accel-Buffering": "no"}
    return Reply(headers=headers, content_type=STREAM, stream=stream)


def index(ask: Ask) -> Reply:
    at, topics = ask.services.feed.since(ask.query.get("since", ""))
    return Reply({"at": at, "topics": topics}, headers=HEADERS)
