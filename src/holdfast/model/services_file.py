# SPDX-License-Identifier: Apache-2.0
"""Files that name the services of a host, read so that every problem is named with its line.

    services:
      - {name: nova-compute, restart: [systemctl, restart, nova-compute]}
      - {name: libvirtd, unit: libvirtd.service, socket: /run/libvirt/libvirt-sock}
      - {name: vswitch, pidfile: /run/openvswitch/ovs-vswitchd.pid, check: [ovs-vsctl, show],
         within: 3s, restart: [systemctl, restart, openvswitch-switch], tries: 2, if_seen: yes}

masakari-monitors' process_list.yaml is a list and is taken as it is. Its commands are text, and are
split as a shell would split them; no shell runs them.
"""

import functools
import os.path
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final

from holdfast.model.matrix import BadStrategy
from holdfast.model.service import Command, Service
from holdfast.model.yaml_fields import Reading, quoted, shown
from holdfast.model.yaml_lines import List, Node, Word

#: How it is known; at most one of them.
WAYS: Final = ("process", "matching", "pidfile", "unit")
SPANS: Final = {
    "within": "probe_s",
    "restart_within": "restart_s",
    "patience": "patience_s",
    "stable": "stable_s",
}
KEYS: Final = ("name", *WAYS, "socket", "check", "restart", "tries", *SPANS, "if_seen")
#: masakari-monitors'. `id` is of its older files, and says nothing.
_COMMANDS: Final = tuple(
    f"{when}{what}_command" for what in ("start", "restart") for when in ("", "pre_", "post_")
)
MASAKARI: Final = ("id", "process_name", *_COMMANDS, "run_as_root")
MOST_TRIES: Final = 20
#: A name becomes part of what is reported.
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9@._+-]{0,99}")
_YES_NO: Final = {"yes": True, "true": True, "on": True, "no": False, "false": False, "off": False}
_INTERPRETER: Final = re.compile(r"(python|perl|ruby|sh|bash|dash|env)[0-9.]*")


class BadServices(BadStrategy):
    """A file of services that cannot be used; `problems` are all that is wrong with it, by line."""

    code = "holdfast.services.invalid"
    title = "The file of services cannot be used"


def parse(data: str | bytes, source: str) -> tuple[Service, ...]:
    """The services, or BadServices with all that is wrong."""
    reading = _Reading()
    return reading.whole(data, reading.services, functools.partial(BadServices.because, source))


class _Reading(Reading):
    def services(self, tree: Node | None) -> tuple[Service, ...]:
        if tree is None or (isinstance(tree, Word) and not tree.text.strip()):
            self.say(0, "it is empty: write services, or do without a file")
            return ()
        if isinstance(tree, Word):
            self.say(tree.line, "a file of services begins with `services:`")
            return ()
        if isinstance(tree, List):
            found = [self._masakari(node) for node in self.items(tree, "processes")]
        else:
            fields = self.fields(tree, ("services",), needed=("services",))
            nodes = self.items(fields.get("services"), "services")
            found = [self._ours(node) for node in nodes]
        services = [one for one in found if one is not None]
        self._check_names(services)
        return tuple(services)

    def _check_names(self, services: Sequence[Service]) -> None:
        lines: dict[str, int] = {}
        for one in services:
            if one.name in lines:
                text = f"{one.name} is there already, in line {lines[one.name]}"
                self.say(one.line, f"{text}: give each a name of its own")
            lines.setdefault(one.name, one.line)

    # our own format

    def _ours(self, node: Node) -> Service | None:
        before = len(self.problems)
        fields = self.fields(node, KEYS, needed=("name",))
        name = self._name(fields.get("name"))
        known = {way: self._text(fields, way) for way in (*WAYS, "socket")}
        self._check_ways(fields, known)
        more: dict[str, Any] = {**known, "probe": self._command(fields, "check")}
        more["restart"] = self._command(fields, "restart") or _systemd(known["unit"])
        more |= {what: self.span(fields[key], 0.0) for key, what in SPANS.items() if key in fields}
        for key in ("within", "restart_within"):
            if key in fields and not more[SPANS[key]]:
                self.say(fields[key].line, f"`{key}` leaves no time at all: write some seconds")
        if "tries" in fields:
            more["tries"] = self._tries(fields["tries"])
        if "if_seen" in fields:
            more["if_seen"] = self._yes_no(fields["if_seen"], "if_seen")
        if len(self.problems) > before:
            return None
        return Service(name, **more, line=node.line)

    def _check_ways(self, fields: Mapping[str, Node], known: Mapping[str, str]) -> None:
        ways = [way for way in WAYS if way in fields]
        if len(ways) > 1:
            text = f"`{ways[1]}` besides `{ways[0]}`: it is known by one of them, keep that one"
            self.say(fields[ways[1]].line, text)
        if known["matching"]:
            try:
                re.compile(known["matching"])
            except (re.error, RecursionError, OverflowError) as error:
                what = f"{quoted(known['matching'])} is no regular expression"
                self.say(fields["matching"].line, f"{what}: {error}")
        for way in ("pidfile", "socket"):
            if known[way] and not known[way].startswith("/"):
                self.say(fields[way].line, f"`{way}` is {quoted(known[way])}: write a whole path")

    def _name(self, node: Node | None) -> str:
        if node is None:
            return ""
        text = node.text.strip() if isinstance(node, Word) else ""
        if not _NAME.fullmatch(text):
            what = "write letters, digits and @ . _ + -, a hundred at most"
            self.say(node.line, f"{shown(node)} is no name: {what}")
        return text

    def _text(self, fields: Mapping[str, Node], name: str) -> str:
        node = fields.get(name)
        if node is None:
            return ""
        if isinstance(node, Word) and node.text.strip():
            return node.text.strip()
        self.say(node.line, f"`{name}` is {shown(node)}: write one word, or leave it out")
        return ""

    def _command(self, fields: Mapping[str, Node], name: str) -> Command:
        """A list: what is not split cannot be split wrongly."""
        node = fields.get(name)
        if node is None:
            return ()
        if isinstance(node, Word):
            text = f"`{name}` is {shown(node)}: write its words as a list, [systemctl, restart, …]"
            self.say(node.line, text)
            return ()
        return self.words(node, name)

    def _tries(self, node: Node) -> int:
        text = node.text.strip() if isinstance(node, Word) else ""
        if not re.fullmatch("[0-9]{1,4}", text) or int(text) > MOST_TRIES:
            self.say(node.line, f"`tries` is {shown(node)}: write 0 to {MOST_TRIES}")
            return 0
        return int(text)

    def _yes_no(self, node: Node, name: str) -> bool:
        word = node.text.strip().lower() if isinstance(node, Word) else ""
        if word not in _YES_NO:
            self.say(node.line, f"`{name}` is {shown(node)}: write yes or no")
        return _YES_NO.get(word, False)

    # masakari-monitors'

    def _masakari(self, node: Node) -> Service | None:
        before = len(self.problems)
        said = self.fields(node, MASAKARI, needed=("process_name",))
        fields = {name: one for name, one in said.items() if not _is_empty(one)}
        if "process_name" in said and "process_name" not in fields:
            self.say(said["process_name"].line, "`process_name` is empty: write it as ps shows it")
        process = self._text(fields, "process_name")
        name = _named(process)
        if process and not _NAME.fullmatch(name):
            self.say(fields["process_name"].line, f"{quoted(process)} has no name to report")
        what = "restart" if "restart_command" in fields else "start"
        commands = [self._split(fields, f"{when}{what}_command") for when in ("pre_", "", "post_")]
        as_root = "run_as_root" in fields and self._yes_no(fields["run_as_root"], "run_as_root")
        if len(self.problems) > before:
            return None
        several = " " in process
        return Service(
            name,
            process="" if several else process,
            matching=re.escape(process) if several else "",
            before=commands[0],
            restart=commands[1],
            after=commands[2],
            as_root=as_root,
            patience_s=5.0,  # as there: an attempt every five seconds
            line=node.line,
        )

    def _split(self, fields: Mapping[str, Node], name: str) -> Command:
        text = self._text(fields, name)
        try:
            return tuple(shlex.split(text))
        except ValueError as error:
            self.say(fields[name].line, f"`{name}` cannot be split into words: {error}")
            return ()


def _systemd(unit: str) -> Command:
    return ("systemctl", "restart", unit) if unit else ()


def _is_empty(node: Node) -> bool:
    return isinstance(node, Word) and node.text.strip() in ("", "~", "null")


def _named(process: str) -> str:
    """nova-compute of /usr/bin/nova-compute, and of /usr/bin/python3 /usr/bin/nova-compute."""
    words = [os.path.basename(word) for word in process.split() if not word.startswith("-")]
    if len(words) > 1 and _INTERPRETER.fullmatch(words[0]):
        return words[1]
    return words[0] if words else ""
