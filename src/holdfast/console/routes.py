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
    matrix,
    metrics,
    pages,
    rules,
    search,
    sim,
    switches,
    wall,
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
    _get(f"{PREFIX}/static/{{name}}", pages.show, None, "Style sheet, script or image"),
    _get(f"{PREFIX}/login", pages.show_login, None, "Login form"),
    _post(f"{PREFIX}/login", pages.log_in, None, "Log in"),
    _post(f"{PREFIX}/logout", pages.log_out, None, "Log out"),
    _post(f"{PREFIX}/theme", pages.choose_theme, None, "Choose a theme"),
    _get(f"{PREFIX}/live", live.live, LOOK, "Event stream of changed topics"),
    _get(f"{PREFIX}/changes", live.index, LOOK, "Changed topics, for polling"),
    _get("/", wall.show, LOOK, "Wall: every host as a tile"),
    _get(f"{PREFIX}/wall/tiles", wall.fresh, LOOK, "Changed tiles of the wall"),
    _get(f"{PREFIX}/story", wall.show_story, sim.CHANGE, "Steps of the demo"),
    _post(f"{PREFIX}/sim", sim.do, sim.CHANGE, "Inject or remove a fault"),
    _get(f"{PREFIX}/hosts/{{host}}", hosts.show, wall.LIST, "Host page"),
    _get(f"{PREFIX}/hosts/{{host}}/body", hosts.body, wall.LIST, "Body of the host page"),
    _get(f"{PREFIX}/search", search.show, LOOK, "Search of hosts, leases and incidents"),
    _get(f"{PREFIX}/what-if", hosts.what_if, wall.PLAN, "Effects of assumed host failures"),
    _get(f"{PREFIX}/matrix", matrix.show, MATRIX, "HA matrix with the hosts of each row"),
    _get(f"{PREFIX}/matrix/table", matrix.table, MATRIX, "Table of the HA matrix"),
    _get(f"{PREFIX}/matrix/row", matrix.row, MATRIX, "Hosts of a row"),
    _post(f"{PREFIX}/matrix/try", matrix.try_it, MATRIX, "Test an HA matrix", matrix.MOST_BYTES),
    _post(f"{PREFIX}/matrix/file", matrix.download, MATRIX, "Download", matrix.MOST_BYTES),
    _get(f"{PREFIX}/metrics", metrics.show, ALARMS, "Hosts with agents and alarms"),
    _get(f"{PREFIX}/metric-rows", metrics.rows, metrics.SAMPLES, "Table of hosts"),
    _get(f"{PREFIX}/metrics/{{host}}", metrics.host, metrics.SAMPLES, "Last hour of a host"),
    _get(f"{PREFIX}/metrics/{{host}}/figures", metrics.figures, metrics.SAMPLES, "Charts"),
    _post(
        f"{PREFIX}/metrics/{{host}}/watch",
        metrics.watch_host,
        metrics.SAMPLES,
        "Request live metrics",
    ),
    _get(f"{PREFIX}/alarms", alarms.show, ALARMS, "Alarms"),
    _get(f"{PREFIX}/alarms/rows", alarms.rows, ALARMS, "Table of alarms"),
    _get(f"{PREFIX}/alarms/{{alarm_id}}", alarms.show_alarm, ALARM, "Alarm page"),
    _get(f"{PREFIX}/alarms/{{alarm_id}}/state", alarms.state, ALARM, "Body of the alarm page"),
    _post(f"{PREFIX}/alarms/{{alarm_id}}/ack", alarms.acknowledge, ANSWER, "Acknowledge an alarm"),
    _post(f"{PREFIX}/alarms/{{alarm_id}}/mute", alarms.mute, ANSWER, "Mute an alarm"),
    _post(f"{PREFIX}/alarms/{{alarm_id}}/end", alarms.end, ANSWER, "End an alarm"),
    _get(f"{PREFIX}/rules", rules.show, "holdfast:alarm_rules:list", "Rules documents"),
    _get(f"{PREFIX}/rules/rows", rules.rows, "holdfast:alarm_rules:list", "Table of documents"),
    _get(f"{PREFIX}/rules/new", rules.new, WRITE, "Form for new rules"),
    _post(f"{PREFIX}/rules/preview", rules.show_preview, PREVIEW, "Preview rules", RULES_BYTES),
    _post(f"{PREFIX}/rules/save", rules.save, WRITE, "Save rules", RULES_BYTES),
    _get(f"{PREFIX}/rules/of/{{rules_name}}", rules.document, RULES, "Rules document"),
    _get(f"{PREFIX}/rules/of/{{rules_name}}/state", rules.state, RULES, "Body of the document"),
    _get(f"{PREFIX}/rules/of/{{rules_name}}/edit", rules.edit, WRITE, "Form to edit rules"),
    _post(f"{PREFIX}/rules/of/{{rules_name}}/rollback", rules.roll_back, WRITE, "Roll back rules"),
    _post(f"{PREFIX}/rules/of/{{rules_name}}/delete", rules.delete, WRITE, "Delete rules"),
    _get(f"{PREFIX}/incidents", incidents.index, "holdfast:incident:list", "List of incidents"),
    _get(f"{PREFIX}/incidents/list", incidents.listed, "holdfast:incident:list", "Tables"),
    _get(f"{INCIDENT}", incidents.show, "holdfast:incident:show", "Incident page"),
    _get(f"{INCIDENT}/body", incidents.body, "holdfast:incident:show", "Body of the page"),
    _post(f"{INCIDENT}/retry", incidents.retry, "holdfast:incident:retry", "Retry recovery"),
    _post(f"{INCIDENT}/abort", incidents.abort, "holdfast:incident:abort", "Abort recovery"),
    _post(f"{INCIDENT}/confirm-off", incidents.confirm_off, "holdfast:incident:confirm-off",
          "Confirm that the host is off"),
    _post(f"{INCIDENT}/approve", incidents.approve, "holdfast:incident:approve",
          "Approve a mass failure"),
    _get(f"{PREFIX}/switches", switches.show, "holdfast:pause:list", "Pauses, windows, approvals"),
    _get(f"{PREFIX}/switches/body", switches.body, "holdfast:pause:list", "Tables of switches"),
    _get(f"{PREFIX}/switches/banner", switches.banner, "holdfast:pause:list", "Banner of pauses"),
    _post(f"{PREFIX}/switches/pause", switches.pause, "holdfast:pause:create", "Pause recovery"),
    _post(f"{PREFIX}/switches/resume", switches.resume, "holdfast:pause:delete", "Resume recovery"),
    _post(f"{PREFIX}/switches/approve", switches.approve, "holdfast:incident:approve",
          "Approve a mass failure"),
    _post(f"{PREFIX}/switches/maintenance", switches.maintenance, "holdfast:maintenance:create",
          "Add a maintenance window"),
    _post(f"{PREFIX}/switches/maintenance/{{window_id}}/end", switches.end_window,
          "holdfast:maintenance:delete", "End a maintenance window"),
    _get(f"{PREFIX}/audit", audit.index, "holdfast:audit:list", "Audit log"),
    _get(f"{PREFIX}/audit/lines", audit.lines, "holdfast:audit:list", "Lines of the audit log"),
    _get(f"{PREFIX}/audit.json", audit.as_json, "holdfast:audit:list", "Export as JSON"),
    _get(f"{PREFIX}/audit.csv", audit.as_csv, "holdfast:audit:list", "Export as CSV"),
    _get(f"{PREFIX}/calendar", calendar.show, LEASES, "Calendar of hosts, pools or leases"),
    _get(f"{PREFIX}/calendar/board", calendar.board, LEASES, "Rows of the calendar"),
    _get(f"{PREFIX}/leases", leases.index, LEASES, "List of leases"),
    _get(f"{PREFIX}/leases/rows", leases.rows, LEASES, "Rows of the list"),
    _get(f"{PREFIX}/leases/new", leases.new, CREATE, "Form for a new lease"),
    _post(f"{PREFIX}/leases", leases.create, CREATE, "Check or book a lease"),
    _get(LEASE, lease.show, "reservation:lease:show", "Lease page"),
    _get(f"{LEASE}/state", lease.state, "reservation:lease:show", "Body of the lease page"),
    _get(f"{LEASE}/dates", lease.dates_form, UPDATE, "Form for other dates"),
    _post(LEASE, lease.change, UPDATE, "Preview or make a change"),
    _post(f"{LEASE}/end", lease.end, UPDATE, "End a lease now"),
    _post(f"{LEASE}/delete", lease.delete, "reservation:lease:delete", "Delete a lease"),
    _post(f"{LEASE}/acknowledge", lease.acknowledge, "holdfast:lease:acknowledge",
          "Acknowledge replaced resources"),
)
# fmt: on
