# SPDX-License-Identifier: Apache-2.0
"""Which members of a cluster accept a TCP connection, all asked at once.

>>> address("10.0.0.1", 8301), address("cmp-1", 8301)
(('10.0.0.1', 8301), None)
"""

import contextlib
import errno
import ipaddress
import selectors
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

Address = tuple[str, int]
#: So many connections are under way at most; each is a file descriptor.
MOST_AT_ONCE: Final = 256
#: Linux: a port is chosen by destination too, so that thousands of probes do not use up all ports.
_IP_BIND_ADDRESS_NO_PORT: Final = 24


@dataclass(frozen=True)
class Probe:
    """Who accepted a connection, and who was asked and did not."""

    answered: set[str] = field(default_factory=set)
    silent: set[str] = field(default_factory=set)


def address(host: Any, port: Any) -> Address | None:
    """An IP address and a port as an agent says them; None if they are none."""
    if not isinstance(host, str) or not isinstance(port, int) or not 0 < port < 65536:
        return None
    try:
        return str(ipaddress.ip_address(host)), port
    except ValueError:
        return None


def probe(
    asked: Mapping[str, Address], source: str, enough: int, left: Callable[[], float]
) -> Probe:
    """Connect from the address `source` to these, in their order, until `enough` have answered or
    no time is left. OSError if nothing can be sent from that address."""
    made = Probe()
    names = iter(asked)
    with contextlib.ExitStack() as opened, selectors.DefaultSelector() as selector:
        while len(made.answered) < enough:
            _begin(asked, names, source, made, selector, opened)
            if not selector.get_map():
                break
            seconds = left()
            # when we get no processor for a while, answers that came meanwhile still count
            for key, _ in selector.select(max(0.0, seconds)):
                line: Any = key.fileobj
                selector.unregister(line)
                if line.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
                    made.silent.discard(key.data)
                    made.answered.add(key.data)
                line.close()  # in order: agents log a connection that is reset
            if seconds <= 0:
                break
    return made


def _begin(
    asked: Mapping[str, Address],
    names: Iterator[str],
    source: str,
    made: Probe,
    selector: selectors.BaseSelector,
    opened: contextlib.ExitStack,
) -> None:
    """Have as many connections under way as may be; whoever is asked is silent at first."""
    while len(selector.get_map()) < MOST_AT_ONCE and (name := next(names, None)) is not None:
        line = opened.enter_context(_socket(source))
        made.silent.add(name)
        if line.connect_ex(asked[name]) in (0, errno.EINPROGRESS):
            selector.register(line, selectors.EVENT_WRITE, name)
        else:
            line.close()


def _socket(source: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in source else socket.AF_INET
    line = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        with contextlib.suppress(OSError):
            line.setsockopt(socket.IPPROTO_IP, _IP_BIND_ADDRESS_NO_PORT, 1)
        line.bind((source, 0))
    except BaseException:
        line.close()
        raise
    return line
