# SPDX-License-Identifier: Apache-2.0
"""The tables of the simulated cloud.

Two kinds of truth live side by side: what the cloud *says* (`servers.status`, the columns of
services in `hosts`) and what *is* (`hosts.powered`, `domains`). Times are seconds since the epoch.
`hosts.failed_at` is since when nothing is heard of the host: it has no power, or it is cut off;
`hosts.changed_at`, when somebody last changed its service. `cuts` are cables: of a host that is
heard on its other networks. `servers.crashed` is 1 of a guest that died, 2 of one that was removed.
"""

VERSION = 4

STATEMENTS = (
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "CREATE TABLE calls (name TEXT PRIMARY KEY, count INTEGER NOT NULL)",
    """CREATE TABLE effects (
        id INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL,
        call TEXT NOT NULL, subject TEXT NOT NULL)""",
    """CREATE TABLE hosts (
        id INTEGER PRIMARY KEY AUTOINCREMENT, uuid TEXT NOT NULL UNIQUE,
        name TEXT NOT NULL UNIQUE, short TEXT NOT NULL,
        hypervisor_hostname TEXT NOT NULL, hypervisor_short TEXT NOT NULL,
        hypervisor_type TEXT NOT NULL, hypervisor_version INTEGER NOT NULL,
        cpu_info TEXT NOT NULL, zone TEXT NOT NULL, rack TEXT NOT NULL,
        vcpus INTEGER NOT NULL, memory_mb INTEGER NOT NULL, local_gb INTEGER NOT NULL,
        inventories TEXT NOT NULL DEFAULT '{}', traits TEXT NOT NULL DEFAULT '[]',
        powered INTEGER NOT NULL DEFAULT 1, failed_at REAL, restarted_at REAL,
        enabled INTEGER NOT NULL DEFAULT 1, disabled_reason TEXT NOT NULL DEFAULT '',
        forced_down INTEGER NOT NULL DEFAULT 0, changed_at REAL NOT NULL DEFAULT 0,
        generation INTEGER NOT NULL DEFAULT 0)""",
    "CREATE INDEX hosts_short ON hosts (short)",
    "CREATE INDEX hosts_hypervisor_short ON hosts (hypervisor_short)",
    """CREATE TABLE cuts (
        host_id INTEGER NOT NULL REFERENCES hosts (id), network TEXT NOT NULL,
        PRIMARY KEY (host_id, network))""",
    """CREATE TABLE pools (
        id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE,
        metadata TEXT NOT NULL)""",
    """CREATE TABLE pool_hosts (
        pool_id INTEGER NOT NULL REFERENCES pools (id),
        host_id INTEGER NOT NULL REFERENCES hosts (id),
        PRIMARY KEY (pool_id, host_id))""",
    """CREATE TABLE servers (
        id TEXT PRIMARY KEY, name TEXT NOT NULL, project_id TEXT NOT NULL,
        host_id INTEGER REFERENCES hosts (id), status TEXT NOT NULL,
        vcpus INTEGER NOT NULL, memory_mb INTEGER NOT NULL, disk_gb INTEGER NOT NULL,
        flavor TEXT NOT NULL, metadata TEXT NOT NULL,
        user_id TEXT NOT NULL DEFAULT '', created_at REAL NOT NULL,
        locked INTEGER NOT NULL DEFAULT 0, locked_reason TEXT NOT NULL DEFAULT '',
        crashed INTEGER NOT NULL DEFAULT 0,
        task_state TEXT, finish_at REAL, next_status TEXT,
        dest_host_id INTEGER REFERENCES hosts (id))""",
    "CREATE INDEX servers_host ON servers (host_id)",
    "CREATE INDEX servers_dest ON servers (dest_host_id)",
    "CREATE INDEX servers_finish ON servers (finish_at) WHERE finish_at IS NOT NULL",
    """CREATE TABLE domains (
        server_id TEXT NOT NULL REFERENCES servers (id) ON DELETE CASCADE,
        host_id INTEGER NOT NULL REFERENCES hosts (id),
        PRIMARY KEY (server_id, host_id))""",
    "CREATE INDEX domains_host ON domains (host_id)",
    """CREATE TABLE migrations (
        id INTEGER PRIMARY KEY AUTOINCREMENT, server_id TEXT NOT NULL,
        source_id INTEGER NOT NULL REFERENCES hosts (id),
        dest_id INTEGER REFERENCES hosts (id), type TEXT NOT NULL,
        status TEXT NOT NULL, created_at REAL NOT NULL, run_at REAL NOT NULL,
        cleaned INTEGER NOT NULL DEFAULT 0)""",
    "CREATE INDEX migrations_source ON migrations (source_id)",
    "CREATE INDEX migrations_server ON migrations (server_id)",
    """CREATE TABLE images (
        id TEXT PRIMARY KEY, name TEXT NOT NULL, server_id TEXT NOT NULL,
        created_at REAL NOT NULL)""",
    "CREATE INDEX images_server ON images (server_id, name)",
    """CREATE TABLE flavors (
        id TEXT PRIMARY KEY, name TEXT NOT NULL UNIQUE, vcpus INTEGER NOT NULL,
        memory_mb INTEGER NOT NULL, disk_gb INTEGER NOT NULL, public INTEGER NOT NULL,
        extra_specs TEXT NOT NULL)""",
    """CREATE TABLE flavor_access (
        flavor_id TEXT NOT NULL REFERENCES flavors (id) ON DELETE CASCADE,
        project_id TEXT NOT NULL, PRIMARY KEY (flavor_id, project_id))""",
    """CREATE TABLE inventories (
        host_id INTEGER NOT NULL REFERENCES hosts (id), resource_class TEXT NOT NULL,
        total INTEGER NOT NULL, PRIMARY KEY (host_id, resource_class))""",
    """CREATE TABLE server_groups (
        id TEXT PRIMARY KEY, name TEXT NOT NULL, policy TEXT NOT NULL,
        project_id TEXT NOT NULL, UNIQUE (project_id, name))""",
    """CREATE TABLE addresses (
        id TEXT PRIMARY KEY, network_id TEXT NOT NULL, address TEXT NOT NULL,
        project_id TEXT NOT NULL, tags TEXT NOT NULL,
        server_id TEXT REFERENCES servers (id) ON DELETE SET NULL,
        UNIQUE (network_id, address))""",
    "CREATE TABLE networks (id TEXT PRIMARY KEY)",
    """CREATE TABLE subnets (
        id TEXT PRIMARY KEY, network_id TEXT NOT NULL REFERENCES networks (id),
        cidr TEXT NOT NULL, gateway TEXT, pools TEXT NOT NULL)""",
    """CREATE TABLE volumes (
        id TEXT PRIMARY KEY, name TEXT NOT NULL, project_id TEXT NOT NULL,
        size_gb INTEGER NOT NULL)""",
    """CREATE TABLE attachments (
        volume_id TEXT NOT NULL REFERENCES volumes (id) ON DELETE CASCADE,
        server_id TEXT NOT NULL REFERENCES servers (id) ON DELETE CASCADE,
        PRIMARY KEY (volume_id, server_id))""",
)
