# SPDX-License-Identifier: Apache-2.0
"""HTTP to an address that was looked at first: the name is resolved once, every address behind it
is judged, and the connection goes to one of these and nowhere else.

So neither a name that points into our own network, nor one that points elsewhere a moment later,
nor a redirect makes us talk to whom we should not.
"""

import http.client
import ipaddress
import socket
import ssl
from collections.abc import Sequence
from typing import Any

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

#: Never, whoever asks: this network, link-local (metadata services), multicast, reserved, and
#: IPv6 that is IPv4 in disguise (6to4, Teredo, NAT64), for who knows where that ends.
_NEVER = [
    ipaddress.ip_network(text)
    for text in (
        "0.0.0.0/8",
        "169.254.0.0/16",
        "224.0.0.0/4",
        "240.0.0.0/4",
        "::/128",
        "64:ff9b::/96",
        "64:ff9b:1::/48",
        "2001::/32",
        "2002::/16",
        "fd00:ec2::254/128",
        "fe80::/10",
        "ff00::/8",
    )
]
_COMPATIBLE = ipaddress.ip_network("::/96")
_LOOPBACK = ipaddress.ip_address("::1")
#: Our own machine and networks, and what is nobody's: only where that is allowed.
_PRIVATE = [
    ipaddress.ip_network(text)
    for text in (
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "2001::/23",
        "2001:db8::/32",
        "3fff::/20",
    )
]
#: What the world's IPv6 addresses begin with.
_WORLD = ipaddress.ip_network("2000::/3")


class Refused(Exception):
    """An address that must not be spoken to; the sentence says which and why."""


def judge(address: Address, allow_private: bool) -> str | None:
    """Why this address must not be spoken to; None if it may."""
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return judge(address.ipv4_mapped, allow_private)
    compatible = address in _COMPATIBLE and address != _LOOPBACK
    if compatible or any(address in network for network in _NEVER):
        return "is link-local, multicast or reserved"
    if allow_private:
        return None
    if any(address in network for network in _PRIVATE):
        return "is private or loopback"
    if address.version == 6 and address not in _WORLD:
        return "is not of the public internet"
    return None


def resolve(host: str, port: int, allow_private: bool) -> Sequence[tuple[Any, ...]]:
    """Where the name leads, as getaddrinfo says it; Refused if any of it is out of bounds."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError as error:
        raise Refused(f"{host} is not the name of a host") from error
    for *_rest, where in found:
        text = str(where[0])
        why = judge(ipaddress.ip_address(text.partition("%")[0]), allow_private)
        if why is not None:
            raise Refused(f"{host} leads to {text}, which {why}")
    return found


class PinnedConnection(http.client.HTTPConnection):
    """A connection to the first of these addresses that answers; TLS asks for the name."""

    def __init__(
        self,
        host: str,
        port: int,
        addresses: Sequence[tuple[Any, ...]],
        timeout_s: float,
        tls: ssl.SSLContext | None,
    ) -> None:
        super().__init__(host, port, timeout=timeout_s)
        self._addresses = addresses
        self._seconds = timeout_s
        self._tls = tls
        if tls is not None:
            self.default_port = 443  # so that Host names no port that is the usual one

    def connect(self) -> None:
        error: OSError = OSError("no address")
        for family, kind, protocol, _name, where in self._addresses:
            plain = socket.socket(family, kind, protocol)
            try:
                plain.settimeout(self._seconds)
                plain.connect(where)
                self.sock = plain
                if self._tls is not None:
                    self.sock = self._tls.wrap_socket(plain, server_hostname=self.host)
                return
            except OSError as failed:
                plain.close()
                error = failed
        raise error

    def abort(self) -> None:
        """End it from another thread: whoever reads from it hears that it is over."""
        sock = self.sock
        if sock is None:
            return
        try:
            sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # over already
