# SPDX-License-Identifier: Apache-2.0
"""[enforcement]: limits on leases besides capacity. See docs/enforcement.md."""

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
        help="Filters every new or changed lease must pass, in this order: duration, external, "
        "or one that somebody installed (entry points of holdfast.enforcement).",
    ),
    cfg.IntOpt(
        "max_lease_duration",
        default=-1,
        min=-1,
        mutable=True,
        help="duration: seconds a lease may last; -1: as long as it likes.",
    ),
    cfg.ListOpt(
        "max_lease_duration_exempt_project_ids",
        default=[],
        mutable=True,
        help="duration: projects whose leases may last as long as they like.",
    ),
    cfg.URIOpt(
        "external_service_base_endpoint",
        schemes=["http", "https"],
        mutable=True,
        help="external: the service that decides; POST to check-create, check-update and on-end "
        "below this address.",
    ),
    cfg.StrOpt(
        "external_service_token",
        secret=True,
        mutable=True,
        help="external: sent as X-Auth-Token.",
    ),
    cfg.FloatOpt(
        "external_service_timeout_s",
        default=5.0,
        min=0.1,
        max=30.0,
        mutable=True,
        help="external: how long one question may take, whatever the service does. Together with "
        "the rest of a request it must stay below rpc_timeout.",
    ),
    cfg.StrOpt(
        "external_service_cafile",
        mutable=True,
        help="external: who signed the service's certificate; default: as this system trusts.",
    ),
    cfg.StrOpt(
        "external_service_auth_url",
        default="",
        mutable=True,
        help="external: the Keystone that users and projects belong to, told in the context.",
    ),
    cfg.IntOpt(
        "max_leases",
        default=-1,
        min=-1,
        mutable=True,
        help="Leases a project may have that are not over; -1: as many as it likes.",
    ),
    cfg.IntOpt(
        "max_hosts",
        default=-1,
        min=-1,
        mutable=True,
        help="Whole hosts that a project's leases may hold, now and ahead together; -1: no limit.",
    ),
    cfg.IntOpt(
        "max_host_hours",
        default=-1,
        min=-1,
        mutable=True,
        help="Hours of whole hosts that a project's leases may have ahead; -1: no limit.",
    ),
    cfg.Opt(
        "quota_overrides",
        type=types.List(item_type=Override()),
        default=[],
        mutable=True,
        help="Projects with numbers of their own, -1 for no limit: "
        "<project id>:leases=5:hosts=10:host_hours=1000,<another>:hosts=-1",
    ),
]
