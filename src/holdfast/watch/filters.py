# SPDX-License-Identifier: Apache-2.0
"""The filters in force: the operator's file for guests, followed as it changes. One that cannot be
leaves the old one in force and says so."""

from holdfast.model import guest_filter_file
from holdfast.model.guest_filter import Filter
from holdfast.watch.followed import Followed


class FilterFile(Followed[Filter]):
    """Without a file, the default set."""

    def __init__(self, path: str | None) -> None:
        super().__init__(path, "filters", guest_filter_file.default, guest_filter_file.parse)

    @property
    def filters(self) -> Filter:
        return self.value
