# SPDX-License-Identifier: Apache-2.0
"""`holdfast config sample`, `db sync` and `db version`: configuration and database schema."""

import argparse
import io
import sys
from typing import Any

from holdfast import conf as configuration
from holdfast.cli import Base, ShowCommand, arg


def sample() -> str:
    from oslo_config import cfg, generator

    conf = cfg.ConfigOpts()
    generator.register_cli_opts(conf)
    conf(["--namespace", "holdfast", "--namespace", "oslo.log"], default_config_files=[])
    text = io.StringIO()
    generator.generate(conf, output_file=text)
    return text.getvalue()


class Sample(Base):
    """Print a sample configuration file: every option with help and default."""

    example = "  holdfast config sample > holdfast.conf"
    arguments = (arg("--output", metavar="FILE", help="write here instead of to the screen"),)

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        text = sample()
        if parsed_args.output:
            with open(parsed_args.output, "w") as file:
                file.write(text)
        else:
            sys.stdout.write(text)


# holdfast db sync, holdfast db version: the schema of the configured database


CONFIG = arg(
    "--config-file",
    "--config",
    dest="config",
    metavar="FILE",
    action="append",
    help="configuration file (default: holdfast.conf in /etc/holdfast or ~/.holdfast)",
)


class Sync(Base):
    """Upgrade the database schema to the version of this program. Safe to repeat."""

    example = "  holdfast db sync --config /etc/holdfast/holdfast.conf"
    arguments = (CONFIG,)

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        from holdfast.app.service import Core
        from holdfast.db import migrations

        conf = configuration.load([], parsed_args.config)
        conf.set_override("timeout_s", 0, group="database")  # a migration may take long
        core = Core(conf)
        try:
            print(migrations.sync(core.store.database))
        finally:
            core.close()


class Version(ShowCommand):
    """Show the schema version of the database and the version this program needs."""

    example = "  holdfast db version -f json"
    arguments = (CONFIG,)

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        from holdfast.app.service import Core
        from holdfast.db import migrations

        core = Core(configuration.load([], parsed_args.config))
        try:
            current, wanted = migrations.version(core.store.database), migrations.head()
        finally:
            core.close()
        self.exit_code = 0 if current == wanted else 1
        advice = "none" if current == wanted else "run `holdfast db sync`"
        return ("database", "program", "to_do"), (current or "empty", wanted, advice)
