# SPDX-License-Identifier: Apache-2.0
"""`holdfast config sample`: every option with its help and default, from the options themselves."""

import argparse
import io
import sys

from cliff.command import Command

from holdfast.client.commands import Base


def sample() -> str:
    from oslo_config import cfg, generator

    conf = cfg.ConfigOpts()
    generator.register_cli_opts(conf)
    conf(["--namespace", "holdfast", "--namespace", "oslo.log"], default_config_files=[])
    text = io.StringIO()
    generator.generate(conf, output_file=text)
    return text.getvalue()


class Sample(Base, Command):
    """Print a sample configuration file: every option with its help and default."""

    example = "  holdfast config sample > holdfast.conf"

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("--output", metavar="FILE", help="write here instead of to the screen")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        text = sample()
        if parsed_args.output:
            with open(parsed_args.output, "w") as file:
                file.write(text)
        else:
            sys.stdout.write(text)
