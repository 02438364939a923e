# SPDX-License-Identifier: Apache-2.0
"""Health for machines: /healthcheck (answers), /livez (the loop turns), /readyz (can work)."""

from collections.abc import Callable, Sequence

from holdfast.api.ask import Ask, Handler, Reply, Route
from holdfast.api.metrics import Metrics
from holdfast.model.errors import HoldfastError

_CONTENT = "text/plain; version=0.0.4; charset=utf-8"


def healthcheck(_ask: Ask) -> Reply:
    return Reply(b"OK", content_type="text/plain")


def livez(ask: Ask) -> Reply:
    """503 when the loop of due work has stopped coming round: restart me."""
    if ask.services.loop_age_s is None:
        return Reply({"status": "ok", "loop": "none in this process"})
    age, most = ask.services.loop_age_s(), ask.services.conf.manager.livez_max_age_s
    ok = age <= most
    body = {"status": "ok" if ok else "stuck", "loop_age_s": round(age, 3), "max_age_s": most}
    return Reply(body, status=200 if ok else 503)


def readyz(ask: Ask) -> Reply:
    """503 while something we need is away; says what."""
    checks = {
        "database": _state(ask.services.store.database.ping),
        "rpc": _state(ask.services.manager.ping),
    }
    ok = all(state == "ok" for state in checks.values())
    return Reply({"status": "ok" if ok else "not ready", **checks}, status=200 if ok else 503)


def _state(check: Callable[[], object]) -> str:
    try:
        check()
    except HoldfastError as error:
        return error.message
    return "ok"


def routes(metrics: Metrics) -> Sequence[Route]:
    """Open to everybody, as probes and Prometheus expect; numbers and states, no names."""
    answers: list[tuple[str, Handler, str]] = [
        ("/healthcheck", healthcheck, "Whether the server answers"),
        ("/livez", livez, "Whether the loop of due work comes round"),
        ("/readyz", readyz, "Whether database and managers can be reached"),
        ("/metrics", lambda _ask: Reply(metrics.text(), content_type=_CONTENT), "Prometheus"),
    ]
    return [Route("GET", path, handler, None, summary) for path, handler, summary in answers]
