# SPDX-License-Identifier: Apache-2.0
"""`holdfast keystone register`: catalog entries and the service user of Holdfast in Keystone."""

import argparse
import os
import sys
from typing import Any

from holdfast.cli import Base, arg, typed
from holdfast.client import auth, catalog
from holdfast.client.auth import read_password
from holdfast.client.catalog import ROLES, Identity, ServiceUser
from holdfast.client.errors import ClientError

ADDRESS = typed(catalog.base_address)


class Register(Base):
    """Register Holdfast in Keystone's catalog, and create the service user if named.

    The command needs administrator credentials: the OS_* variables, or a cloud of clouds.yaml.
    Safe to repeat: each line says what was created, corrected, or already correct.
    """

    example = """\
  holdfast keystone register --public-url https://cloud.example.org:8780 --dry-run
  holdfast keystone register --public-url https://cloud.example.org:8780 \\
      --internal-url http://10.0.0.11:8780 --region RegionOne \\
      --service-user holdfast --service-password-file /etc/holdfast/password"""
    arguments = (
        arg(
            "--public-url",
            type=ADDRESS,
            metavar="URL",
            help="where clients reach Holdfast, without /reservation/v1 (--url does as well)",
        ),
        *(
            arg(f"--{name}-url", type=ADDRESS, metavar="URL", help="default: the public one")
            for name in catalog.INTERFACES[1:]
        ),
        arg("--region", help="default: OS_REGION_NAME, or the only one there is"),
        arg("--os-cloud", metavar="NAME", help="the cloud of clouds.yaml to use"),
        arg("--service-user", metavar="USER", help="make this user, whom Holdfast works as"),
        arg(
            "--service-password-file",
            metavar="FILE",
            help="its first line is that user's password; - reads standard input",
        ),
        arg("--service-project", default="service", metavar="PROJECT"),
        arg("--service-domain", default="Default", metavar="DOMAIN"),
        arg(
            "--service-role",
            action="append",
            metavar="ROLE",
            help=f"may be repeated; default: {' and '.join(ROLES)}",
        ),
        arg(
            "--replace",
            action="store_true",
            help="disable endpoints of these types in the region that are in the way",
        ),
        arg("--dry-run", action="store_true", help="only say what would be done"),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        args = parsed_args
        urls = self._urls(args)
        env = dict(os.environ)
        if args.os_cloud:
            env["OS_CLOUD"] = args.os_cloud
        if not auth.wanted(env):
            raise ClientError(
                "there are no credentials for Keystone: set the OS_* variables of an"
                " administrator, or name a cloud of clouds.yaml with --os-cloud"
            )
        password = _password(args.service_password_file)
        session: Any = auth.connect(env)
        identity = Identity(session.session, dry_run=args.dry_run, say=print)
        region = catalog.choose_region(args.region or session.region_name, identity)
        plans = [catalog.read_catalog(kind, urls, region, identity) for kind in catalog.KINDS]
        catalog.refuse_rivals(plans, region, replace=args.replace)
        for kind, plan in zip(catalog.KINDS, plans, strict=True):
            catalog.enter(kind, plan, region, identity)
        if args.service_user:
            catalog.add(self._user(args, password), identity)

    def _user(self, args: argparse.Namespace, password: str | None) -> ServiceUser:
        return ServiceUser(
            name=args.service_user,
            password=password,
            project=args.service_project,
            domain=args.service_domain,
            roles=tuple(args.service_role or ROLES),
        )

    def _urls(self, args: argparse.Namespace) -> dict[str, str]:
        public = args.public_url
        if not public and self.app.options.url:
            try:
                public = catalog.base_address(self.app.options.url)
            except ValueError as error:
                self.parser.error(f"argument --url: {error}")
        if not public:
            self.parser.error("--public-url is needed: where do clients reach Holdfast?")
        if args.service_password_file and not args.service_user:
            self.parser.error("--service-password-file is of use with --service-user only")
        return {
            "public": public,
            "internal": args.internal_url or public,
            "admin": args.admin_url or public,
        }


def _password(path: str | None) -> str | None:
    if path != "-":
        return read_password(path) if path else None
    if sys.stdin.isatty():
        import getpass

        return getpass.getpass("password of the service user: ")
    password = sys.stdin.readline().rstrip("\r\n")
    if not password:
        raise ClientError("there is no password on standard input")
    return password
