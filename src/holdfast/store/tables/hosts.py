# SPDX-License-Identifier: Apache-2.0
"""Hosts: the one list of compute hosts, and what is known of each."""

from sqlalchemy import (
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
    Column("vcpus_ratio", Float, nullable=False, default=1.0),
    Column("memory_ratio", Float, nullable=False, default=1.0),
    Column("disk_ratio", Float, nullable=False, default=1.0),
    Column("vcpus_reserved", Integer, nullable=False, default=0),
    Column("memory_mb_reserved", Integer, nullable=False, default=0),
    Column("local_gb_reserved", Integer, nullable=False, default=0),
    Column("state", String(16), nullable=False, default="up"),
    Column("state_since", UtcDateTime),
    flag("enrolled"),
    flag("reservable"),
    Column("generation", BigInteger, nullable=False, default=0),
    *times(),
    Index("ix_hosts_enrolled", "enrolled", "reservable"),
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
