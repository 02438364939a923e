# SPDX-License-Identifier: Apache-2.0
"""Ids that users name lead to what they are ids of, or nowhere: we ask with an administrator's
rights, and other addresses of Nova are nobody's business."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.drivers.nova.cloud import NovaCloud
from holdfast.model.errors import NotFound
from tests.cloud.stub import Stub, saying
from tests.cloud.test_edge import config, stub

__all__ = ["stub"]  # so that tests of this file may ask for it

STRANGE = ["detail", "..", "../servers/detail?all_tenants=1", "x?is_public=None", "a/b", "é#"]


@pytest.fixture
def cloud(stub: Stub, tmp_path: Path) -> Iterator[NovaCloud]:
    """Whatever is asked for there are lists of everything, as at Nova's /…/detail."""
    stub.acts = {
        "GET /v2.1/flavors": saying(200, {"flavors": []}),
        "GET /v2.1/servers": saying(200, {"servers": []}),
    }
    with contextlib.closing(NovaCloud(config(tmp_path, stub.server_port))) as made:
        yield made


@pytest.mark.parametrize("strange", STRANGE)
def test_a_strange_id_is_of_nothing_and_asks_for_nothing_else(
    stub: Stub, cloud: NovaCloud, strange: str
) -> None:
    with pytest.raises(NotFound):
        cloud.flavors.show(strange)
    with pytest.raises(NotFound):
        cloud.servers.show(strange)
    asked = [one for one in stub.seen if one.startswith("GET /v2.1/")]
    assert not any("?" in one for one in asked)
    assert all(one.count("/") <= 3 for one in asked)
