# SPDX-License-Identifier: Apache-2.0
"""Whether a server is to be kept running, as its metadata say (`[recovery] ha_key`).

The server's own metadata count first, then the properties of its image, the extra specs of its
flavor, and the metadata of the aggregates its host is in. A level that says nothing, or neither yes
nor no, leaves it to the next one; where no level says anything, the option that asks decides.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from holdfast.model.errors import DriverError
from holdfast.model.host import same
from holdfast.ports.cloud import Cloud, Pool, Server

LOG = logging.getLogger(__name__)
YES: Final = frozenset({"true", "yes", "on", "1", "t", "y"})
NO: Final = frozenset({"false", "no", "off", "0", "f", "n"})


@dataclass(frozen=True)
class HaSetting:
    """`enabled` is None where nothing says so; `source` names the level that does."""

    enabled: bool | None = None
    source: str = ""

    def sentence(self, key: str) -> str:
        return f"{key} is {self.enabled} on its {self.source}"


@dataclass(frozen=True)
class HaSettings:
    """What images and aggregates say; the server brings its own metadata and its flavor's."""

    key: str
    images: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # properties by image id
    pools: Sequence[Pool] = ()

    def of(self, server: Server) -> HaSetting:
        for source, metadata in self._levels(server):
            enabled = _read(metadata, self.key)
            if enabled is not None:
                return HaSetting(enabled, source)
        return HaSetting()

    def _levels(self, server: Server) -> Iterator[tuple[str, Mapping[str, str]]]:
        yield "metadata", server.metadata
        yield "image", self.images.get(server.image_id, {})
        yield "flavor", server.extra_specs
        # of aggregates that contradict each other, the one that keeps it running counts
        ours = [one for one in self.pools if any(same(server.host or "", h) for h in one.hosts)]
        for pool in sorted(ours, key=lambda one: _read(one.metadata, self.key) is not True):
            yield f"aggregate {pool.name}", pool.metadata


def read(
    cloud: Cloud, servers: Iterable[Server], key: str, pools: Sequence[Pool] | None = None
) -> HaSettings:
    """Read the images and aggregates of those servers that do not decide it themselves. An image
    that cannot be read says nothing: a server is not left dead because Glance is away."""
    undecided = [one for one in servers if _read(one.metadata, key) is None]
    images: Mapping[str, Mapping[str, str]] = {}
    if ids := {one.image_id for one in undecided if one.image_id}:
        try:
            images = cloud.servers.image_properties(sorted(ids))
        except DriverError as error:
            LOG.warning("%s of %d images cannot be read: %s", key, len(ids), error)
    found = HaSettings(key, images)
    if all(found.of(one).enabled is not None for one in undecided):
        return found
    return HaSettings(key, images, cloud.pools.list() if pools is None else pools)


def _read(metadata: Mapping[str, str], key: str) -> bool | None:
    said = next((value for name, value in metadata.items() if name.lower() == key.lower()), "")
    word = str(said).strip().lower()
    return word in YES if word in YES | NO else None
