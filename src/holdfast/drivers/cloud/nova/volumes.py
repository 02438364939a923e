# SPDX-License-Identifier: Apache-2.0
"""The Nova side of the Volumes port: Cinder, where the catalog has one.

Tests on a real cloud prove that a catalog without block storage is said in a sentence; the lab has
no Cinder. The list was tried by hand on the API of Cinder 29 (all projects, pages of three, one
volume of two servers), with volumes that no backend had made.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from openstack.connection import Connection

from holdfast.drivers.cloud.nova.edge import Edge, failed, pages
from holdfast.ports.cloud import Volume

#: What catalogs call it, newest name first.
NAMES = ("block-storage", "block-store", "volumev3")


class NovaVolumes:
    def __init__(self, edge: Edge) -> None:
        self._edge = edge

    def list(self, *, server_id: str | None = None) -> Sequence[Volume]:
        """Cinder knows no question by server, so all are read."""
        with self._edge.call("volumes.list", server_id or "") as cloud:
            _must_be_there(cloud)
            found = pages(
                cloud.block_storage,
                "/volumes/detail",
                "volumes",
                params={"all_tenants": "1"},
            )
            volumes = [_volume(one) for one in found]
        return [one for one in volumes if server_id is None or server_id in one.server_ids]


def _must_be_there(cloud: Connection) -> None:
    if not {entry["type"] for entry in cloud.service_catalog} & set(NAMES):
        raise failed("the catalog has no block storage", retryable=False)


def _volume(body: Mapping[str, Any]) -> Volume:
    return Volume(
        id=body["id"],
        name=body["name"] or "",
        project_id=body["os-vol-tenant-attr:tenant_id"],
        size_gb=body["size"],
        server_ids=tuple(sorted(one["server_id"] for one in body["attachments"])),
        status=body["status"],
    )
