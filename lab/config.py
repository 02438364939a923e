# SPDX-License-Identifier: Apache-2.0
"""The configuration files of the cloud's services."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence

from lab.place import COMPUTES, PASSWORD, REGION, ROOT, Place, write

Value = str | int | Sequence[str]
Settings = Mapping[str, Value]
Sections = Mapping[str, Settings]

OUR_FILTER = "holdfast.nova.scheduler_filter.HoldfastFilter"
OUR_FILTER_FILE = ROOT / "src" / "holdfast" / "nova" / "scheduler_filter.py"
# before Nova's application, in both pipelines: a server create may ask for a lease
OUR_PIPE = """
[filter:holdfast]
paste.filter_factory = holdfast.nova.api_filter:filter_factory
"""
OUR_REGION = "house"  # where tests register the Holdfast that they run
FILTERS = (
    "ComputeFilter",
    "ComputeCapabilitiesFilter",
    "ImagePropertiesFilter",
    "ServerGroupAntiAffinityFilter",
    "ServerGroupAffinityFilter",
    "SameHostFilter",
    "DifferentHostFilter",
    "AggregateInstanceExtraSpecsFilter",
    "AggregateMultiTenancyIsolation",
)
UWSGI: Mapping[str, Value] = {
    "master": "true",
    "die-on-term": "true",
    "enable-threads": "true",
    "need-app": "true",
    "lazy-apps": "true",
    "processes": 1,
    "worker-reload-mercy": 5,
    "buffer-size": 65535,
    "post-buffering": 65536,
    # its HTTP server closes after each answer: say so, or clients meet a reset
    "add-header": "Connection: close",
    "log-format": '%(method) %(uri) %(status) %(msecs) ms "%(uagent)"',
}
# what logs to its standard error logs to its part's file
LOGGING: Mapping[str, Value] = {"use_stderr": "true"}
POOL: Mapping[str, Value] = {"max_pool_size": 10, "max_overflow": 30}


def ini(sections: Sections) -> str:
    """The text of a file; a sequence becomes one line per value."""
    lines = []
    for section, options in sections.items():
        lines.append(f"[{section}]")
        for name, value in options.items():
            values = [value] if isinstance(value, str | int) else value
            lines += [f"{name} = {one}" for one in values]
        lines.append("")
    return "\n".join(lines)


def write_all(place: Place) -> None:
    """Write every file; those that say the same as before are written all the same."""
    files = {
        "uwsgi.ini": {"uwsgi": UWSGI},
        "keystone/keystone.conf": keystone(place),
        "placement/placement.conf": placement(place),
        "glance/glance-api.conf": glance(place),
        "neutron/neutron.conf": neutron(place),
        "nova/nova.conf": nova(place),
        "nova/nova-api.conf": {"holdfast": {"region_name": OUR_REGION}},
        "nova-cell0.conf": {"database": {"connection": place.database_url("nova_cell0")}},
    }
    for number, host in enumerate(COMPUTES, 1):
        files[f"nova-compute-{number}.conf"] = compute(place, host)
    for name, sections in files.items():
        file = place.etc / name
        file.parent.mkdir(parents=True, exist_ok=True)
        write(file, ini(sections))
    if (place.venv / "etc").exists():
        copy_pastes(place)


def copy_pastes(place: Place) -> None:
    """The pipelines that the packages bring, beside the files that go with them."""
    for service, name in (
        ("nova", "api-paste.ini"),
        ("neutron", "api-paste.ini"),
        ("glance", "glance-api-paste.ini"),
    ):
        shutil.copy(place.venv / "etc" / service / name, place.etc / service / name)
    paste = place.etc / "nova" / "api-paste.ini"
    app = " osapi_compute_app_v21"
    write(paste, paste.read_text().replace(app + "\n", f" holdfast{app}\n") + OUR_PIPE)


def login(place: Place, user: str) -> dict[str, Value]:
    """How a service logs in at Keystone."""
    return {
        "auth_url": place.auth_url,
        "auth_type": "password",
        "project_domain_name": "Default",
        "user_domain_name": "Default",
        "project_name": "service",
        "username": user,
        "password": PASSWORD,
        "region_name": REGION,
    }


def authtoken(place: Place, user: str, service_type: str) -> dict[str, Value]:
    """How a service checks the tokens of its callers."""
    return {
        **login(place, user),
        "www_authenticate_uri": place.auth_url,
        "service_token_roles": "service",
        "service_token_roles_required": "true",
        "service_type": service_type,
    }


def keystone(place: Place) -> Sections:
    """Fernet tokens of a working day, cheap password hashes, answers remembered."""
    folder = place.etc / "keystone"
    return {
        "DEFAULT": LOGGING,
        "database": {"connection": place.database_url("keystone"), **POOL},
        "token": {"provider": "fernet", "expiration": 8 * 3600},
        "fernet_tokens": {"key_repository": str(folder / "fernet-keys")},
        "fernet_receipts": {"key_repository": str(folder / "fernet-keys")},
        "credential": {"key_repository": str(folder / "credential-keys")},
        "identity": {"password_hash_rounds": 4},  # else a quarter of a second per login
        "cache": {"enabled": "true", "backend": "dogpile.cache.memory"},
    }


def placement(place: Place) -> Sections:
    """Placement's API."""
    return {
        "DEFAULT": LOGGING,
        "placement_database": {"connection": place.database_url("placement"), **POOL},
        "api": {"auth_strategy": "keystone"},
        "keystone_authtoken": authtoken(place, "placement", "placement"),
    }


def glance(place: Place) -> Sections:
    """Glance's API, images in files."""
    folder = place.folder / "images"

    def store(name: str) -> dict[str, Value]:
        (folder / name).mkdir(parents=True, exist_ok=True)
        return {"filesystem_store_datadir": str(folder / name)}

    return {
        "DEFAULT": {**LOGGING, "enabled_backends": "file:file"},
        "database": {"connection": place.database_url("glance"), **POOL},
        "glance_store": {"default_backend": "file"},
        "file": store("file"),
        "os_glance_staging_store": store("staging"),
        "os_glance_tasks_store": store("tasks"),
        "paste_deploy": {
            "flavor": "keystone",
            "config_file": str(place.etc / "glance" / "glance-api-paste.ini"),
        },
        "keystone_authtoken": authtoken(place, "glance", "image"),
    }


def neutron(place: Place) -> Sections:
    """Neutron's API with networks that exist in its database only: there are no agents."""
    unlimited = ("network", "subnet", "port", "router", "floatingip", "security_group")
    return {
        "DEFAULT": {
            **LOGGING,
            "core_plugin": "ml2",
            "service_plugins": "router",
            "auth_strategy": "keystone",
            "transport_url": place.transport_url,
            "api_paste_config": str(place.etc / "neutron" / "api-paste.ini"),
            "state_path": str(place.folder / "neutron"),
            "dhcp_agent_notification": "false",
            "notify_nova_on_port_status_changes": "false",
            "notify_nova_on_port_data_changes": "false",
        },
        "database": {"connection": place.database_url("neutron"), **POOL},
        "ml2": {
            "type_drivers": "local,flat",
            "tenant_network_types": "local",
            "mechanism_drivers": "",
            "extension_drivers": "port_security",
        },
        "quotas": {f"quota_{name}": -1 for name in unlimited},
        "oslo_concurrency": {"lock_path": str(place.folder / "locks")},
        "keystone_authtoken": authtoken(place, "neutron", "network"),
    }


def nova(place: Place) -> Sections:
    """What all programs of Nova share."""
    user = login(place, "nova")
    return {
        "DEFAULT": {
            **LOGGING,
            "state_path": str(place.folder / "nova"),
            "transport_url": place.transport_url,
            "my_ip": "127.0.0.1",
            "compute_driver": "fake.FakeDriverWithoutFakeNodes",
            # a killed compute is down in Nova's eyes after 11 to 15 s
            "report_interval": 4,
            "service_down_time": 15,
            "rpc_response_timeout": 30,
            # else new hosts are looked for only after a random part of a minute
            "periodic_fuzzy_delay": 0,
            **QUIET,
        },
        # small on purpose: who does not page misses something here already
        "api": {"auth_strategy": "keystone", "max_limit": 20},
        "wsgi": {"api_paste_config": str(place.etc / "nova" / "api-paste.ini")},
        "api_database": {"connection": place.database_url("nova_api"), **POOL},
        "database": {"connection": place.database_url("nova"), **POOL},
        "conductor": {"workers": 1},
        "scheduler": {"workers": 1, "discover_hosts_in_cells_interval": 5},
        "filter_scheduler": filters(),
        "quota": {f"{name}": -1 for name in QUOTAS},
        "vnc": {"enabled": "false"},
        "placement": user,
        "glance": user,
        "neutron": user,
        "service_user": {**user, "send_service_user_token": "true"},
        "oslo_concurrency": {"lock_path": str(place.folder / "locks")},
        "notifications": {
            "notification_format": "versioned",
            "notify_on_state_change": "vm_and_task_state",
            "versioned_notifications_topics": "versioned_notifications",
        },
        "oslo_messaging_notifications": {"driver": "messagingv2"},
        "keystone_authtoken": authtoken(place, "nova", "compute"),
    }


QUOTAS = (
    "instances",
    "cores",
    "ram",
    "metadata_items",
    "injected_files",
    "server_groups",
    "server_group_members",
    "key_pairs",
)
# periodic work that a fake hypervisor has no use for, and long farewells
QUIET: Mapping[str, Value] = {
    "sync_power_state_interval": -1,
    "heal_instance_info_cache_interval": -1,
    "running_deleted_instance_poll_interval": 0,
    "graceful_shutdown_timeout": 5,
    "manager_shutdown_timeout": 3,
}


def filters() -> dict[str, Value]:
    """The scheduler's filters: Nova's usual ones, and ours once it is there."""
    ours = [OUR_FILTER] if OUR_FILTER_FILE.exists() else []
    names = [name.rpartition(".")[2] for name in ours]
    return {
        "available_filters": ["nova.scheduler.filters.all_filters", *ours],
        "enabled_filters": ",".join([*FILTERS, *names]),
    }


def compute(place: Place, host: str) -> Sections:
    """One compute host."""
    state = place.folder / "nova" / host
    state.mkdir(parents=True, exist_ok=True)
    return {
        "DEFAULT": {"host": host, "state_path": str(state)},
        "oslo_concurrency": {"lock_path": str(state / "locks")},
    }
