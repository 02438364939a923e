# SPDX-License-Identifier: Apache-2.0
"""[enforcement]: limits on leases besides capacity. See docs/operate/enforcement.md."""

from oslo_config import cfg, types

GROUP = "enforcement"
_NUMBERS = ("leases", "hosts", "host_hours")


class Override(types.ConfigType):
    """Option type for a project's own limits, written `project:leases=5:hosts=10`.

    >>> Override()("a1b2:leases=5:host_hours=-1")
    ('a1b2', {'leases': 5, 'host_hours': -1})
    """

    def __init__(self) -> None:
        super().__init__(type_name="project:name=number:…")

    def __call__(self, text: str) -> tuple[str, dict[str, int]]:
        project, *pairs = (part.strip() for part in text.split(":"))
        numbers = dict(self._number(text, pair) for pair in pairs)
        if not project or not numbers:
            raise ValueError(f"{text} must be <project id>:leases=5:hosts=10:host_hours=1000")
        return project, numbers

    def _number(self, text: str, pair: str) -> tuple[str, int]:
        name, _, number = pair.partition("=")
        if name not in _NUMBERS or not number.removeprefix("-").isdecimal():
            raise ValueError(f"{text}: {pair} must be one of {', '.join(_NUMBERS)}, = and a number")
        return name, int(number)

    def _formatter(self, value: tuple[str, dict[str, int]]) -> str:
        project, numbers = value
        return ":".join([project, *(f"{name}={number}" for name, number in numbers.items())])


OPTS = [
    cfg.ListOpt(
        "enabled_filters",
        default=[],
        mutable=True,
        help="Filters that every new or changed lease must pass, in this order: duration, "
        "external, or other entry points of the group holdfast.enforcement.",
    ),
    cfg.IntOpt(
        "max_lease_duration",
        default=-1,
        min=-1,
        mutable=True,
        help="Filter duration: seconds that a lease may last. -1: no limit.",
    ),
    cfg.ListOpt(
        "max_lease_duration_exempt_project_ids",
        default=[],
        mutable=True,
        help="Filter duration: projects without a limit.",
    ),
    cfg.URIOpt(
        "external_service_base_endpoint",
        schemes=["http", "https"],
        mutable=True,
        help="Filter external: URL of the deciding service. Holdfast sends POST to check-create, "
        "check-update and on-end below this URL.",
    ),
    cfg.StrOpt(
        "external_service_token",
        secret=True,
        mutable=True,
        help="Filter external: value of the header X-Auth-Token.",
    ),
    cfg.FloatOpt(
        "external_service_timeout_s",
        default=5.0,
        min=0.1,
        max=30.0,
        mutable=True,
        help="Filter external: seconds that one request may take in total. Must be shorter than "
        "rpc_timeout together with the rest of a request.",
    ),
    cfg.StrOpt(
        "external_service_cafile",
        mutable=True,
        help="Filter external: CA certificates of the service. Default: the CA certificates of "
        "the system.",
    ),
    cfg.StrOpt(
        "external_service_auth_url",
        default="",
        mutable=True,
        help="Filter external: Keystone URL of users and projects, which the request's context "
        "contains.",
    ),
    cfg.IntOpt(
        "max_leases",
        default=1000,
        min=-1,
        mutable=True,
        help="Unfinished leases that a project may have. -1: no limit.",
    ),
    cfg.IntOpt(
        "max_hosts",
        default=-1,
        min=-1,
        mutable=True,
        help="Whole hosts that the current and future leases of a project may hold together. -1: "
        "no limit.",
    ),
    cfg.IntOpt(
        "max_host_hours",
        default=-1,
        min=-1,
        mutable=True,
        help="Hours of whole hosts that the future of a project's leases may hold. -1: no limit.",
    ),
    cfg.Opt(
        "quota_overrides",
        type=types.List(item_type=Override()),
        default=[],
        mutable=True,
        help="Limits of single projects, -1 for no limit: <project "
        "id>:leases=5:hosts=10:host_hours=1000,<another>:hosts=-1",
    ),
]
