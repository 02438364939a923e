# SPDX-License-Identifier: Apache-2.0
"""What happens to segments, their hosts and reports is told, in the transaction in which it
happens: that it began and that it ended. What was refused is told in one of its own."""

from datetime import datetime

from sqlalchemy.engine import Connection

from holdfast.model.errors import HoldfastError
from holdfast.ports.herald import END, ERROR, START, Fault, Happening, Herald, Values
from holdfast.store.database import Database
from holdfast.store.work import put


def done(
    conn: Connection,
    herald: Herald,
    what: tuple[str, str],
    values: tuple[Values, Values],
    now: datetime,
) -> None:
    """`what`: noun and action; `values`: as it began, as it is now."""
    before, after = values
    put(conn, herald.contract(Happening(*what, START, before), now), now)
    put(conn, herald.contract(Happening(*what, END, after), now), now)


def refused(
    database: Database, what: tuple[str, str], values: Values, error: HoldfastError
) -> None:
    now, herald = database.now(), database.herald
    fault = Fault(type(error).__name__, error.message)
    news = (
        *herald.contract(Happening(*what, START, values), now),
        *herald.contract(Happening(*what, ERROR, values, fault), now),
    )
    if news:
        database.retry(lambda conn: put(conn, news, now))
