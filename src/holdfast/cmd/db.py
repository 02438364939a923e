# SPDX-License-Identifier: Apache-2.0
"""`holdfast db sync` and `db version`: the schema of the configured database."""

import argparse
from typing import Any

from cliff.command import Command
from cliff.show import ShowOne

from holdfast import conf as configuration
from holdfast.client.commands import Base


def config_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config",
        metavar="FILE",
        action="append",
        help="configuration file (default: holdfast.conf in /etc/holdfast or ~/.holdfast)",
    )


class Sync(Base, Command):
    """Bring the database to the version of this program. Safe to repeat."""

    example = "  holdfast db sync --config /etc/holdfast/holdfast.conf"

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        config_option(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        from holdfast.service import Core
        from holdfast.store import migrations

        conf = configuration.load([], parsed_args.config)
        conf.set_override("timeout_s", 0, group="database")  # a migration may take its time
        core = Core(conf)
        try:
            print(migrations.sync(core.store.database))
        finally:
            core.close()


class Version(Base, ShowOne):
    """Show the version the database is at, and the one this program needs."""

    example = "  holdfast db version -f json"

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        config_option(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        from holdfast.service import Core
        from holdfast.store import migrations

        core = Core(configuration.load([], parsed_args.config))
        try:
            found, wanted = migrations.version(core.store.database), migrations.head()
        finally:
            core.close()
        self.exit_code = 0 if found == wanted else 1
        advice = "none" if found == wanted else "run `holdfast db sync`"
        return ("database", "program", "to_do"), (found or "empty", wanted, advice)
