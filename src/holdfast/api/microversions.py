# SPDX-License-Identifier: Apache-2.0
"""The header `OpenStack-API-Version: <service> X.Y`: read, checked, answered.

Each contract has its own service type and range; a header that speaks of another service is not
ours to judge.
"""

import re
from dataclasses import dataclass

import falcon

from holdfast.model.errors import HoldfastError

HEADER = "OpenStack-API-Version"
Version = tuple[int, int]


class NotAcceptable(HoldfastError):
    """The version asked for is outside the range that the version document names."""

    code = "holdfast.microversion.range"
    status = 406
    title = "Version not supported"


class Malformed(HoldfastError):
    """The header is of the form `OpenStack-API-Version: <service> X.Y`, or `latest`."""

    code = "holdfast.microversion.malformed"
    status = 400
    title = "Malformed version"


@dataclass(frozen=True)
class Contract:
    prefix: str
    service: str
    lowest: Version
    highest: Version

    def negotiate(self, header: str | None) -> Version:
        """The version a request asks for; the lowest when it asks for none."""
        for part in (header or "").split(","):
            words = part.split()
            if not words or words[0].lower() != self.service:
                continue
            asked = " ".join(words[1:])
            if asked.lower() == "latest":
                return self.highest
            if not re.fullmatch(r"[0-9]{1,4}\.[0-9]{1,4}", asked):
                raise Malformed(f"{HEADER}: {asked[:40]!r} is not of the form X.Y")
            major, minor = (int(number) for number in asked.split("."))
            if not self.lowest <= (major, minor) <= self.highest:
                raise NotAcceptable(
                    f"Version {major}.{minor} is not supported; the minimum is"
                    f" {text(self.lowest)} and the maximum {text(self.highest)}"
                )
            return major, minor
        return self.lowest


CONTRACTS = (
    Contract("/reservation/v1", "reservation", (1, 0), (1, 1)),
    Contract("/instance-ha/v1", "instance-ha", (1, 0), (1, 4)),
    Contract("/holdfast/v1", "holdfast", (1, 0), (1, 0)),
)


def text(version: Version) -> str:
    return f"{version[0]}.{version[1]}"


def contract_of(path: str) -> Contract | None:
    return next((c for c in CONTRACTS if path.startswith(c.prefix)), None)


class Middleware:
    def process_resource(
        self, req: falcon.Request, resp: falcon.Response, _resource: object, _params: object
    ) -> None:
        contract = contract_of(req.path)
        if contract is None:
            return
        resp.append_header("Vary", HEADER)
        version = contract.negotiate(req.get_header(HEADER))
        req.context.microversion = version
        resp.set_header(HEADER, f"{contract.service} {text(version)}")
