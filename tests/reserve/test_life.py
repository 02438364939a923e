# SPDX-License-Identifier: Apache-2.0
"""The life of a lease, end to end in one thread: what the owner sees and what the cloud is told."""

from datetime import timedelta

import pytest

from tests.reserve.house import BOB, House
