# SPDX-License-Identifier: Apache-2.0
"""Client library for the Holdfast API; the `holdfast` commands use the library, too.

from holdfast.client import Client

client = Client("http://127.0.0.1:8780", user="ana", password=secret)
lease = client.leases.find("training")
client.leases.update(lease["id"], end_date="2027-01-31 18:00")

Calls return plain dicts and raise `ClientError`s. The library talks HTTP; of the server's code it
shares only `holdfast.model`, which is pure.
"""

from holdfast.client.client import Client
from holdfast.client.errors import (
    BadRequest,
    ClientError,
    Conflict,
    Forbidden,
    NotFound,
    NotReachable,
    NotUnique,
    ServerError,
    Unauthorized,
    Unavailable,
)

__all__ = [
    "BadRequest",
    "Client",
    "ClientError",
    "Conflict",
    "Forbidden",
    "NotFound",
    "NotReachable",
    "NotUnique",
    "ServerError",
    "Unauthorized",
    "Unavailable",
]
