# SPDX-License-Identifier: Apache-2.0
"""Ports of a cloud that plain libvirt has nothing for: there is none of it, and none can be made.

Lists are empty, because recovery and chores look at them; every wish is refused for good.
"""

from collections.abc import Mapping, Sequence
from typing import NoReturn

from holdfast.drivers.cloud.libvirt.line import failed
from holdfast.model.errors import NotFound
from holdfast.ports.cloud import (
    Address,
    Flavor,
    Inventory,
    Pool,
    ServerGroup,
    Subnet,
    Volume,
)


def refused(what: str) -> NoReturn:
    raise failed(f"plain libvirt {what}", retryable=False)


def _nothing_to_reserve() -> NoReturn:
    refused("has no pools, flavors, slots or addresses, so nothing can be reserved on it")


class NoPools:
    def list(self) -> Sequence[Pool]:
        return []

    def find(self, name: str) -> Pool | None:
        return None

    def create(self, name: str, metadata: Mapping[str, str]) -> Pool:
        _nothing_to_reserve()

    def set_metadata(self, pool_id: str, metadata: Mapping[str, str]) -> None:
        _nothing_to_reserve()

    def tell(self, pool_id: str) -> None:
        _nothing_to_reserve()

    def add_host(self, pool_id: str, host: str) -> None:
        _nothing_to_reserve()

    def remove_host(self, pool_id: str, host: str) -> None:
        """It is in none."""

    def delete(self, pool_id: str) -> None:
        """It is gone."""


class NoFlavors:
    def list(self) -> Sequence[Flavor]:
        return []

    def show(self, flavor_id: str) -> Flavor:
        raise NotFound(f"there is no flavor {flavor_id}: plain libvirt has none")

    def create(self, flavor: Flavor) -> None:
        _nothing_to_reserve()

    def delete(self, flavor_id: str) -> None:
        """It is gone."""

    def add_access(self, flavor_id: str, project_id: str) -> None:
        _nothing_to_reserve()

    def remove_access(self, flavor_id: str, project_id: str) -> None:
        """Nobody has any."""


class NoSlots:
    def inventory(self, host: str, resource_class: str) -> Inventory:
        _nothing_to_reserve()

    def set_inventory(
        self, host: str, resource_class: str, total: int, generation: int
    ) -> Inventory:
        _nothing_to_reserve()

    def drop_class(self, resource_class: str) -> None:
        """Nobody knows it."""

    def create_group(self, name: str, policy: str, project_id: str) -> ServerGroup:
        _nothing_to_reserve()

    def groups(self) -> Sequence[ServerGroup]:
        return []

    def delete_group(self, group_id: str) -> None:
        """It is gone."""


class NoAddresses:
    def list(self) -> Sequence[Address]:
        return []

    def create(
        self, network_id: str, address: str, project_id: str, tags: Sequence[str]
    ) -> Address:
        _nothing_to_reserve()

    def delete(self, address_id: str) -> None:
        """It is gone."""

    def subnets(self, network_id: str) -> Sequence[Subnet]:
        raise NotFound(f"there is no network {network_id}: plain libvirt has no floating addresses")


class NoVolumes:
    def list(self, *, server_id: str | None = None) -> Sequence[Volume]:
        return []
