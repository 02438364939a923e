# SPDX-License-Identifier: Apache-2.0
"""Documents of alarm rules: read, written, and brought back to what they were. What rules would
have said of the last hour is `rules_preview`'s."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.api.ask import Ask, Reply
from holdfast.api.holdfast_v1 import alarm_rules
from holdfast.console import inside
from holdfast.console.pages import PREFIX, away, page, part
from holdfast.console.problems import by_line, entered
from holdfast.model.alarm_rules import BadRules
from holdfast.model.alarm_rules_scope import ALL
from holdfast.model.errors import HoldfastError, NotFound
from holdfast.model.yaml_lines import MAX_BYTES

#: What a form makes of a text of the largest size.
MOST_BYTES = 3 * MAX_BYTES + 4096
_NEW = """\
rules:
  - id: guest-busy
    on: guest
    field: util_ratio
    when: "> 95%"
    for: 2m
    severity: warning
"""


@dataclass(frozen=True)
class Draft:
    """A document as somebody writes it; `version` is what it replaces, 0: nothing."""

    name: str
    scope: str
    text: str
    version: int

    @property
    def command(self) -> list[str]:
        words = ["holdfast", "rules", "set", self.name or "NAME", "rules.yaml"]
        return [*words, "--scope", self.scope or ALL, "--replaces", str(self.version)]


def show(ask: Ask) -> Reply:
    return page(ask, "rules.html", title="Alarm rules", documents=_documents(ask))


def rows(ask: Ask) -> Reply:
    return part(ask, "rules_rows.html", documents=_documents(ask))


def document(ask: Ask) -> Reply:
    """As it is, or was at ?version=; with all its versions."""
    return page(ask, "rules_document.html", title=f"Rules {ask.path['rules_name']}", **_told(ask))


def state(ask: Ask) -> Reply:
    """What of that changes."""
    return part(ask, "rules_state.html", **_told(ask))


def _told(ask: Ask) -> dict[str, Any]:
    name = ask.path["rules_name"]
    versions = inside.call(ask, alarm_rules.history, path=ask.path)["versions"]
    asked = str(ask.query.get("version", ""))
    wanted = [one for one in versions if str(one["version"]) == asked or not asked]
    if not wanted:
        raise NotFound(f"of rules {name} there is no version {asked[:40]}")
    return {
        "document": wanted[0],
        "versions": versions,
        "latest": versions[0],
        "asked": wanted[0]["version"] if asked else "",
    }


def new(ask: Ask) -> Reply:
    return editor(ask, Draft("", ALL, _NEW, 0))


def edit(ask: Ask) -> Reply:
    one = inside.call(ask, alarm_rules.show, path=ask.path)["alarm_rules"]
    return editor(ask, Draft(one["name"], one["scope"], one["text"], one["version"]))


def save(ask: Ask) -> Reply:
    """What was written comes back with whatever kept it from being saved; for our script, which
    has it still, the reason alone."""
    draft = drafted(ask)
    path = {"rules_name": draft.name}
    body = {"text": draft.text, "scope": draft.scope, "replaces": draft.version}
    try:
        kept = inside.call(ask, alarm_rules.put, path=path, body=body)["alarm_rules"]
    except HoldfastError as error:
        if ask.body.get("part"):
            return part(ask, "rules_preview.html", seen=None, **problems(draft.text, error))
        return editor(ask, draft, error)
    said = f"rules {kept['name']} are at version {kept['version']}; hosts take them up now"
    return away(_place(kept["name"]), said=said)


def roll_back(ask: Ask) -> Reply:
    asked = str(ask.body.get("version", ""))
    body = {"version": int(asked)} if asked.isdecimal() and len(asked) < 10 else {}
    kept = inside.call(ask, alarm_rules.roll_back, path=ask.path, body=body)["alarm_rules"]
    said = f"what version {asked} said is in force again, as version {kept['version']}"
    return away(_place(kept["name"]), said=said)


def delete(ask: Ask) -> Reply:
    name = ask.path["rules_name"]
    inside.call(ask, alarm_rules.delete, path=ask.path)
    return away(f"{PREFIX}/rules", said=f"rules {name} are gone; a roll back brings them again")


# for who writes


def drafted(ask: Ask) -> Draft:
    """What a form says."""
    said: Mapping[str, str] = ask.body
    version = said.get("version", "0")
    return Draft(
        said.get("name", "").strip(),
        said.get("scope", "").strip() or ALL,
        entered(said.get("text", "")),
        int(version) if version.isdecimal() and len(version) < 10 else 0,
    )


def editor(ask: Ask, draft: Draft, error: HoldfastError | None = None, **more: Any) -> Reply:
    title = f"Rules {draft.name}" if draft.version else "New rules"
    shown = {"draft": draft, **problems(draft.text, error), "seen": None, **more}
    known = bool(draft.version and draft.name)
    here = f"{_place(draft.name)}/edit" if known else f"{PREFIX}/rules/new"
    status = error.status if error else 200
    return page(ask, "rules_edit.html", title=title, status=status, here=here, **shown)


def problems(text: str, error: HoldfastError | None) -> dict[str, Any]:
    """Each with its line, as a number and as it stands there; or one sentence."""
    if not isinstance(error, BadRules) or not error.problems:
        return {"problems": [], "why": error.message if error else ""}
    return {"problems": by_line(text, error), "why": ""}


def _documents(ask: Ask) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = inside.call(ask, alarm_rules.index)["alarm_rules"]
    return found


def _place(name: str) -> str:
    return f"{PREFIX}/rules/of/{name}"
