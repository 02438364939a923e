# SPDX-License-Identifier: Apache-2.0
"""Plugin manager: applies the plugins file and the plugin commands of the admin socket.

The manager follows the plugins file and applies only the entries that changed. A change made on
the agent's socket (`agent/admin.py`) holds until the agent ends, or until the file changes the
entry of the same plugin. A plugin that fails to load is logged and tried again when the file
changes.
"""

import logging
import os
from collections.abc import Mapping
from typing import Any

from holdfast.agent.admin import Handler, only, text
from holdfast.metrics import plugin_code
from holdfast.metrics.plugin_code import Wanted
from holdfast.metrics.plugin_runner import PluginRunner
from holdfast.model.errors import HoldfastError, InvalidInput
from holdfast.runtime.clock import Clock
from holdfast.runtime.documents import Followed
from holdfast.runtime.threads import PeriodicTask

LOG = logging.getLogger(__name__)
#: Seconds between two checks of the file.
FOLLOW_S = 1.0


class PluginsFile(Followed[tuple[Wanted, ...]]):
    """The plugins file; starts without plugins and reads the file on the first `follow`.

    An invalid file must not keep the agent from its other work.
    """

    def __init__(self, path: str | None) -> None:
        super().__init__(None, "plugins", tuple, plugin_code.parse)
        self._path = path
        if path is not None and not os.path.exists(path):
            self.problem = f"plugins file {path} is not there yet"
            LOG.warning("%s: there are none until it is", self.problem)


class PluginManager:
    """Thread that follows the plugins file, and handlers of the socket commands."""

    def __init__(self, runner: PluginRunner, path: str | None, clock: Clock) -> None:
        self._runner = runner
        self._file = PluginsFile(path)
        self._done: dict[str, Wanted] = {}  # entries of the file that were applied
        self._failed: dict[str, tuple[Wanted, str]] = {}
        self._rounds = PeriodicTask("plugins", FOLLOW_S, self.follow, clock)

    def start(self) -> None:
        self._rounds.start()
        self._rounds.wake()

    def stop(self) -> None:
        self._rounds.stop()

    # plugins file

    def follow(self) -> None:
        """Apply the plugins file if it changed."""
        if self._file.follow():
            self._apply({one.name: one for one in self._file.value})

    def _apply(self, wanted: Mapping[str, Wanted]) -> None:
        before, self._done = self._done, dict(wanted)
        for name in before.keys() - wanted.keys():
            self._failed.pop(name, None)
            if name in self._runner.names:
                self._attempt(before[name], lambda one: self._runner.remove(one.name))
        for name, one in wanted.items():
            if before.get(name) != one or name in self._failed:
                self._attempt(one, self._settle)

    def _attempt(self, one: Wanted, do: Any) -> None:
        """Call `do` with the plugin; record and log a failure."""
        try:
            do(one)
            self._failed.pop(one.name, None)
        except HoldfastError as error:
            self._failed[one.name] = (one, error.message)
            LOG.error("plugin %s: %s; the others go on", one.name, error.message)

    def _settle(self, one: Wanted) -> None:
        """Add the plugin, or change a plugin of the same name to match the entry."""
        if one.name in self._runner.names:
            known = self._runner.row(one.name)
            if known["use"] == one.use and known["state"] == "on":
                if known["config"] != one.config:
                    self._runner.configure(one.name, one.config)
                return
            self._runner.remove(one.name)
        self._runner.add(one.name, one.use, one.config)

    # socket commands

    def commands(self) -> Mapping[str, Handler]:
        return {
            "metrics.plugins.list": self.list_all,
            "metrics.plugins.add": self.add,
            "metrics.plugins.configure": self.configure,
            "metrics.plugins.remove": self.remove,
            "metrics.plugins.enable": self.enable,
            "metrics.plugins.reload": self.reload,
        }

    def list_all(self, args: Mapping[str, Any]) -> dict[str, Any]:
        only(args)
        rows = self._runner.rows()
        there = {row["name"] for row in rows}
        rows += [
            {"name": name, "use": one.use, "state": "off", "why": why, "config": one.config}
            for name, (one, why) in list(self._failed.items())
            if name not in there
        ]
        said = list(self._done)
        for row in rows:
            row["source"] = "file" if row["name"] in said else "asked"
        return {"plugins": rows, "problem": self._file.problem or self._runner.problem}

    def add(self, args: Mapping[str, Any]) -> dict[str, Any]:
        only(args, "name", "use", "config")
        name = _named(args)
        self._runner.add(name, _named(args, "use"), _config(args))
        return {"plugin": self._runner.row(name)}

    def configure(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Replace the configuration; with `merge`, change only the given keys."""
        only(args, "name", "config", "merge")
        name, config = _named(args), _config(args)
        if args.get("merge"):
            config = {**self._runner.row(name)["config"], **config}
        self._runner.configure(name, config)
        return {"plugin": self._runner.row(name)}

    def remove(self, args: Mapping[str, Any]) -> dict[str, Any]:
        only(args, "name")
        name = _named(args)
        self._runner.remove(name)
        return {"removed": name}

    def enable(self, args: Mapping[str, Any]) -> dict[str, Any]:
        only(args, "name")
        name = _named(args)
        self._runner.enable(name)
        return {"plugin": self._runner.row(name)}

    def reload(self, args: Mapping[str, Any]) -> dict[str, Any]:
        only(args, "name", "roll_back")
        name = _named(args)
        if args.get("roll_back"):
            self._runner.roll_back(name)
        else:
            self._runner.reload(name)
        return {"plugin": self._runner.row(name)}


def _named(args: Mapping[str, Any], what: str = "name") -> str:
    found = text(args, what)
    if not found:
        raise InvalidInput(f"`{what}` is missing: say which plugin")
    return found


def _config(args: Mapping[str, Any]) -> dict[str, Any]:
    found = args.get("config", {})
    if not isinstance(found, dict):
        raise InvalidInput("`config` is written {…}")
    return found
