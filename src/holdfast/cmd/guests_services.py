# SPDX-License-Identifier: Apache-2.0
"""`holdfast guests services check`: which services of a host a file would have watched."""

import argparse
import shlex
from typing import Any

from holdfast.client.commands import ListCommand, Table, rows
from holdfast.client.commands.matrix import listed
from holdfast.model import services_file
from holdfast.model.errors import InvalidInput
from holdfast.model.service import Service
from holdfast.model.services_file import BadServices
from holdfast.model.yaml_lines import MAX_BYTES

_SERVICE = ("line", "name", "known_by", "restart", "tries", "patience_s", "stable_s", "missed")


class Check(ListCommand):
    """Check a file of services and list what would be watched, without asking any server.

    Our own format is taken, and masakari-monitors' process_list.yaml. What is wrong is listed with
    its lines, all of it, and the command ends with 1. Nothing is looked for and nothing is
    restarted.
    """

    example = """  holdfast guests services check /etc/holdfast/services.yaml
  holdfast guests services check /etc/masakarimonitors/process_list.yaml"""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("file", help="a file of services in YAML")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        name = parsed_args.file
        try:
            with open(name, "rb") as file:
                found = services_file.parse(file.read(MAX_BYTES + 1), name)
        except OSError as error:
            raise InvalidInput(f"cannot read {name}: {error.strerror}") from error
        except BadServices as error:
            raise InvalidInput("\n".join(listed(name, error))) from error
        self.tell(parsed_args, f"{name} can be used")
        return rows(_SERVICE, [_row(one) for one in found])


def _row(service: Service) -> dict[str, Any]:
    commands = (service.before, service.restart, service.after)
    root = " (as root)" if service.as_root else ""
    restart = "; then ".join(shlex.join(one) for one in commands if one)
    return {
        "line": service.line,
        "name": service.name,
        "known_by": service.known_by,
        "restart": f"{restart}{root}" if restart else "never: it is only watched",
        "tries": service.tries if service.restart else "",
        "patience_s": service.patience_s if service.restart else "",
        "stable_s": service.stable_s,
        "missed": "if it ever ran" if service.if_seen else "always",
    }
