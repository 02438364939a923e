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
        self._applied: dict[str, Wanted] = {}  # entries of the file that were applied
        self._failed: dict[str, tuple[Wanted, str]] = {}
        self._task = PeriodicTask("plugins", FOLLOW_S, self.follow, clock)

    def start(self) -> None:
        self._task.start()
        self._task.wake()

    def stop(self) -> None:
        self._task.stop()

    # plugins file

    def follow(self) -> None:
        """Apply the plugins file if it changed."""
        if self._file.follow():
            self._apply({wanted.name: wanted for wanted in self._file.value})

    def _apply(self, wanted: Mapping[str, Wanted]) -> None:
        before, self._applied = self._applied, dict(wanted)
        for name in before.keys() - wanted.keys():
            self._failed.pop(name, None)
            if name in self._runner.names:
                self._attempt(before[name], lambda old: self._runner.remove(old.name))
        for name, plugin in wanted.items():
            if before.get(name) != plugin or name in self._failed:
                self._attempt(plugin, self._apply_entry)

    def _attempt(self, wanted: Wanted, do: Any) -> None:
        """Call `do` with the plugin; record and log a failure."""
        try:
            do(wanted)
            self._failed.pop(wanted.name, None)
        except HoldfastError as error:
            self._failed[wanted.name] = (wanted, error.message)
            LOG.error("plugin %s: %s; the others go on", wanted.name, error.message)

    def _apply_entry(self, wanted: Wanted) -> None:
        """Add the plugin, or change a plugin of the same name to match the entry."""
        if wanted.name in self._runner.names:
            row = self._runner.row(wanted.name)
            if row["use"] == wanted.use and row["state"] == "on":
                if row["config"] != wanted.config:
                    self._runner.configure(wanted.name, wanted.config)
                return
            self._runner.remove(wanted.name)
        self._runner.add(wanted.name, wanted.use, wanted.config)

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
            {"name": name, "use": wanted.use, "state": "off", "why": why, "config": wanted.config}
            for name, (wanted, why) in list(self._failed.items())
            if name not in there
        ]
        in_file = list(self._applied)
        for row in rows:
            row["source"] = "file" if row["name"] in in_file else "asked"
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


def _named(args: Mapping[str, Any], key: str = "name") -> str:
    value = text(args, key)
    if not value:
        raise InvalidInput(f"`{key}` is missing: say which plugin")
    return value


def _config(args: Mapping[str, Any]) -> dict[str, Any]:
    config = args.get("config", {})
    if not isinstance(config, dict):
        raise InvalidInput("`config` is written {…}")
    return config
