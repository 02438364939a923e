# SPDX-License-Identifier: Apache-2.0
"""The routes of every page and form of the console.

`_get` shows a page and changes nothing. `_post` takes a form with our token (`api/login`) and
changes data through the API's own handlers.
"""

from collections.abc import Sequence

from holdfast.api.request import Handler, Route
from holdfast.console import (
    alarms,
    audit,
    calendar,
    hosts,
    incidents,
    lease,
    leases,
    live,
    login,
    matrix,
    metrics,
    pages,
    rules,
    search,
    sim,
    switches,
    wall,
    what_if,
)
from holdfast.console.pages import PREFIX

LOOK = "console:look"
MATRIX = "holdfast:monitor:list"
ALARMS, ALARM, ANSWER = "holdfast:alarm:list", "holdfast:alarm:show", "holdfast:alarm:answer"
RULES, WRITE = "holdfast:alarm_rules:show", "holdfast:alarm_rules:update"
PREVIEW, RULES_BYTES = "holdfast:alarm_rules:preview", rules.MOST_BYTES
INCIDENT = f"{PREFIX}/incidents/{{incident_id}}"
LEASE, LEASES = f"{PREFIX}/leases/{{lease_id}}", "reservation:lease:list"
CREATE, UPDATE = "reservation:lease:create", "reservation:lease:update"


def _get(path: str, handler: Handler, rule: str | None, summary: str) -> Route:
    return Route("GET", path, handler, rule, summary, page=True)


def _post(path: str, handler: Handler, rule: str | None, summary: str, max_body: int = 0) -> Route:
    return Route("POST", path, handler, rule, summary, page=True, max_body=max_body)


# fmt: off
ROUTES: Sequence[Route] = (
    _get(f"{PREFIX}/static/{{name}}", pages.show, None, "A style or a script"),
    _get(f"{PREFIX}/login", login.show, None, "The form to log in"),
    _post(f"{PREFIX}/login", login.enter, None, "Log in"),
    _post(f"{PREFIX}/logout", login.leave, None, "Log out"),
    _post(f"{PREFIX}/theme", login.theme, None, "Choose a theme"),
    _get(f"{PREFIX}/live", live.live, LOOK, "What changes, as it does"),
    _get(f"{PREFIX}/changes", live.index, LOOK, "What changed, for who asks"),
    _get("/", wall.show, LOOK, "The wall: every host as a tile"),
    _get(f"{PREFIX}/wall/tiles", wall.fresh, LOOK, "What of the wall has changed"),
    _get(f"{PREFIX}/story", wall.show_story, sim.CHANGE, "What follows from what was broken"),
    _post(f"{PREFIX}/sim", sim.do, sim.CHANGE, "Break or repair a simulated host"),
    _get(f"{PREFIX}/hosts/{{host}}", hosts.show, wall.LIST, "A host, and why it stands so"),
    _get(f"{PREFIX}/hosts/{{host}}/body", hosts.body, wall.LIST, "What changes of a host"),
    _get(f"{PREFIX}/search", search.show, LOOK, "Hosts, leases and incidents by a few letters"),
    _get(f"{PREFIX}/what-if", what_if.show, wall.PLAN, "What would follow if hosts died"),
    _get(f"{PREFIX}/matrix", matrix.show, MATRIX, "The strategy, and who is in which row"),
    _get(f"{PREFIX}/matrix/table", matrix.table, MATRIX, "The table of the strategy"),
    _get(f"{PREFIX}/matrix/row", matrix.row, MATRIX, "The hosts of one row"),
    _post(f"{PREFIX}/matrix/try", matrix.try_it, MATRIX, "Try a strategy", matrix.MOST_BYTES),
    _post(f"{PREFIX}/matrix/file", matrix.download, MATRIX, "As a file", matrix.MOST_BYTES),
    _get(f"{PREFIX}/metrics", metrics.show, ALARMS, "Hosts, their agents and their numbers"),
    _get(f"{PREFIX}/metric-rows", metrics.rows, metrics.SAMPLES, "The table of hosts"),
    _get(f"{PREFIX}/metrics/{{host}}", metrics.host, metrics.SAMPLES, "The last hour of a host"),
    _get(f"{PREFIX}/metrics/{{host}}/figures", metrics.figures, metrics.SAMPLES, "Its pictures"),
    _post(
        f"{PREFIX}/metrics/{{host}}/look",
        metrics.watch_host,
        metrics.SAMPLES,
        "Have its agent send samples",
    ),
    _get(f"{PREFIX}/alarms", alarms.show, ALARMS, "Alarms"),
    _get(f"{PREFIX}/alarms/rows", alarms.rows, ALARMS, "The table of alarms"),
    _get(f"{PREFIX}/alarms/{{alarm_id}}", alarms.one, ALARM, "An alarm, and what was said of it"),
    _get(f"{PREFIX}/alarms/{{alarm_id}}/state", alarms.state, ALARM, "How an alarm stands"),
    _post(f"{PREFIX}/alarms/{{alarm_id}}/ack", alarms.acknowledge, ANSWER, "Take care of it"),
    _post(f"{PREFIX}/alarms/{{alarm_id}}/mute", alarms.mute, ANSWER, "Mute it"),
    _post(f"{PREFIX}/alarms/{{alarm_id}}/end", alarms.end, ANSWER, "End it"),
    _get(f"{PREFIX}/rules", rules.show, "holdfast:alarm_rules:list", "Documents of alarm rules"),
    _get(f"{PREFIX}/rules/rows", rules.rows, "holdfast:alarm_rules:list", "The table of them"),
    _get(f"{PREFIX}/rules/new", rules.new, WRITE, "Write alarm rules"),
    _post(f"{PREFIX}/rules/preview", rules.show_preview, PREVIEW, "Try rules", RULES_BYTES),
    _post(f"{PREFIX}/rules/save", rules.save, WRITE, "Keep alarm rules", RULES_BYTES),
    _get(f"{PREFIX}/rules/of/{{rules_name}}", rules.document, RULES, "Rules, and what they were"),
    _get(f"{PREFIX}/rules/of/{{rules_name}}/state", rules.state, RULES, "What changes of them"),
    _get(f"{PREFIX}/rules/of/{{rules_name}}/edit", rules.edit, WRITE, "Edit rules"),
    _post(f"{PREFIX}/rules/of/{{rules_name}}/rollback", rules.roll_back, WRITE, "Roll back"),
    _post(f"{PREFIX}/rules/of/{{rules_name}}/delete", rules.delete, WRITE, "Take rules away"),
    _get(f"{PREFIX}/incidents", incidents.index, "holdfast:incident:list", "What died"),
    _get(f"{PREFIX}/incidents/list", incidents.listed, "holdfast:incident:list", "The tables"),
    _get(f"{INCIDENT}", incidents.show, "holdfast:incident:show", "An incident"),
    _get(f"{INCIDENT}/body", incidents.body, "holdfast:incident:show", "What changes of it"),
    _post(f"{INCIDENT}/retry", incidents.retry, "holdfast:incident:retry", "Try again"),
    _post(f"{INCIDENT}/abort", incidents.abort, "holdfast:incident:abort", "Begin nothing more"),
    _post(f"{INCIDENT}/confirm-off", incidents.confirm_off, "holdfast:incident:confirm-off",
          "Say that its host is off"),
    _post(f"{INCIDENT}/approve", incidents.approve, "holdfast:incident:approve",
          "Say that so much did fail"),
    _get(f"{PREFIX}/switches", switches.show, "holdfast:pause:list", "The switches of recovery"),
    _get(f"{PREFIX}/switches/body", switches.body, "holdfast:pause:list", "How they stand"),
    _get(f"{PREFIX}/switches/banner", switches.banner, "holdfast:pause:list", "Where it is paused"),
    _post(f"{PREFIX}/switches/pause", switches.pause, "holdfast:pause:create", "Pause recovery"),
    _post(f"{PREFIX}/switches/resume", switches.resume, "holdfast:pause:delete", "Let it go on"),
    _post(f"{PREFIX}/switches/approve", switches.approve, "holdfast:incident:approve",
          "Say that so much did fail"),
    _post(f"{PREFIX}/switches/maintenance", switches.maintenance, "holdfast:maintenance:create",
          "Leave something alone"),
    _post(f"{PREFIX}/switches/maintenance/{{window_id}}/end", switches.end_window,
          "holdfast:maintenance:delete", "End a maintenance window"),
    _get(f"{PREFIX}/audit", audit.index, "holdfast:audit:list", "Every decision as a sentence"),
    _get(f"{PREFIX}/audit/lines", audit.lines, "holdfast:audit:list", "The lines alone"),
    _get(f"{PREFIX}/audit.json", audit.as_json, "holdfast:audit:list", "All of it as JSON"),
    _get(f"{PREFIX}/audit.csv", audit.as_csv, "holdfast:audit:list", "All of it as CSV"),
    _get(f"{PREFIX}/calendar", calendar.show, LEASES, "Hosts, pools or leases by time"),
    _get(f"{PREFIX}/calendar/board", calendar.board, LEASES, "The rows of the calendar"),
    _get(f"{PREFIX}/leases", leases.index, LEASES, "The list of leases"),
    _get(f"{PREFIX}/leases/rows", leases.rows, LEASES, "The rows of the list"),
    _get(f"{PREFIX}/leases/new", leases.new, CREATE, "The form that books"),
    _post(f"{PREFIX}/leases", leases.create, CREATE, "Check a lease, or book it"),
    _get(LEASE, lease.show, "reservation:lease:show", "One lease"),
    _get(f"{LEASE}/state", lease.state, "reservation:lease:show", "What changes of it"),
    _get(f"{LEASE}/dates", lease.dates_form, UPDATE, "The form that changes it"),
    _post(LEASE, lease.change, UPDATE, "Preview a change, or make it"),
    _post(f"{LEASE}/end", lease.end, UPDATE, "End it now"),
    _post(f"{LEASE}/delete", lease.delete, "reservation:lease:delete", "Delete it"),
    _post(f"{LEASE}/acknowledge", lease.acknowledge, "holdfast:lease:acknowledge",
          "Say that it was seen that it got something else"),
)
# fmt: on
