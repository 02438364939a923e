# SPDX-License-Identifier: Apache-2.0
"""Hosts: the one list of compute hosts, and what is known of each."""

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    String,
    Table,
    Text,
    UniqueConstraint,
)

from holdfast.store.tables.base import Id, UtcDateTime, flag, metadata, times

hosts = Table(
    "hosts",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("uuid", Id, nullable=False, unique=True),
    Column("name", String(255), nullable=False, unique=True),  # normalised
    Column("hypervisor_hostname", String(255), nullable=False),
    Column("service_host", String(255), nullable=False),
    Column("hypervisor_type", String(64), nullable=False, default=""),
    Column("hypervisor_version", Integer, nullable=False, default=0),
    Column("cpu_info", Text, nullable=False),
    Column("region", String(255), nullable=False, default=""),
    Column("zone", String(255), nullable=False, default=""),
    Column("rack", String(255), nullable=False, default=""),
    Column("vcpus", Integer, nullable=False, default=0),
    Column("memory_mb", Integer, nullable=False, default=0),
    Column("local_gb", Integer, nullable=False, default=0),
    Column("inventories", JSON, nullable=False, default=dict),  # by resource class
    Column("state", String(16), nullable=False, default="up"),
    Column("state_since", UtcDateTime),
    Column("standing", JSON),  # what the state rests on: model/standing.py
    flag("enrolled"),
    flag("reservable"),
    # Grows with every change of the row or of who holds the host; `touched_at` says when.
    Column("generation", BigInteger, nullable=False, default=0),
    Column("touched_at", UtcDateTime, nullable=False),
    *times(),
    Index("ix_hosts_enrolled", "enrolled", "reservable"),
    Index("ix_hosts_touched", "touched_at"),
)

properties = Table(
    "properties",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("resource_type", String(66), nullable=False),
    Column("name", String(64), nullable=False),
    flag("private"),
    *times(),
    UniqueConstraint("resource_type", "name"),
)

host_capabilities = Table(
    "host_capabilities",
    metadata,
    Column("host_id", ForeignKey("hosts.id", ondelete="CASCADE"), primary_key=True),
    Column("name", String(64), primary_key=True),
    Column("text", Text, nullable=False),
    Column("number", Float),
    Index("ix_host_capabilities_name", "name"),
)

host_traits = Table(
    "host_traits",
    metadata,
    Column("host_id", ForeignKey("hosts.id", ondelete="CASCADE"), primary_key=True),
    Column("trait", String(255), primary_key=True),
)
