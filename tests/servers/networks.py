# SPDX-License-Identifier: Apache-2.0
"""Hosts on several networks, each host a network namespace: cables that can be cut, one way or
both, and links that lose packets.

A namespace lives as long as a thread of ours is in it, so that none can outlive the tests, however
they end; nothing has a name that another run could have too.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from tests.servers.base import Missing, search_path, which

T = TypeVar("T")
CLONE_NEWNET = 0x40000000
#: Both ways a packet can go, and the hook at which it is met.
WAYS = {"in": ("input", "iifname"), "out": ("output", "oifname")}


class NotRoot(Missing):
    """Namespaces need more rights than we have."""

    def __init__(self) -> None:
        """Say so."""
        Exception.__init__(self, "network namespaces need root: run the tests as root")


class Namespace:
    """A network of its own, with one thread in it."""

    def __init__(self) -> None:
        """Make it; only its loopback is there, and up."""
        self._inside = ThreadPoolExecutor(1, "namespace", initializer=_leave_the_network)
        self.thread = self.do(threading.get_native_id)
        self.ip("link set lo up")

    def do(self, call: Callable[[], T]) -> T:
        """Do something inside. Sockets and processes made there stay there."""
        return self._inside.submit(call).result()

    def run(self, command: Sequence[str], given: str = "") -> None:
        """Run a command inside, to its end."""
        done = self.do(
            lambda: subprocess.run(
                command,
                input=given,
                text=True,
                capture_output=True,
                timeout=90,
                check=False,
                env={"PATH": search_path(), "LANG": "C"},
            )
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}\n{given}")

    def ip(self, *lines: str) -> None:
        """Commands of iproute2, one after the other."""
        self.run(["ip", "-batch", "-"], "".join(f"{line}\n" for line in lines))

    def forward(self, port: int) -> Forward:
        """Make 127.0.0.1:port of our own network reachable inside, at the same address."""
        return Forward(self, port)

    def close(self) -> None:
        """Leave it: it goes when the last process in it has gone."""
        self._inside.shutdown()


def _leave_the_network() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "unshare")


class Forward:
    """Carries connections from a namespace to our own network, byte by byte."""

    def __init__(self, inside: Namespace, port: int) -> None:
        """From now on."""
        self._port = port
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._listener = inside.do(lambda: socket.create_server(("127.0.0.1", port), backlog=64))
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return  # closed
            try:
                far = socket.create_connection(("127.0.0.1", self._port), 60)
            except OSError:
                near.close()
                continue
            far.settimeout(None)
            with self._lock:
                self._open |= {near, far}
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._carry, args=(source, sink), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Nothing goes through any more."""
        # close alone does not wake who waits in accept
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            ended, self._open = self._open, set()
        for each in ended:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


class Networks:
    """Some hosts on some networks, each network a switch; addresses 10.(201+n).0.(11+h)."""

    def __init__(self, hosts: Sequence[str], networks: Sequence[str]) -> None:
        """Nothing is made yet."""
        self.hosts = tuple(hosts)
        self.networks = tuple(networks)
        self.inside: dict[str, Namespace] = {}
        self._switches: dict[str, Namespace] = {}
        self._loss: dict[str, dict[tuple[str, str], int]] = {}

    def start(self) -> None:
        """Make everything: all cables are plugged in."""
        for program, package in (("ip", "iproute2"), ("nft", "nftables")):
            if which(program) is None:
                raise Missing(package, package)
        if os.geteuid() != 0:
            raise NotRoot()
        try:
            self._make()
        except BaseException:
            self.close()
            raise

    def _make(self) -> None:
        for host in self.hosts:
            self.inside[host] = Namespace()
        for network in self.networks:
            switch = self._switches[network] = Namespace()
            lines = ["link add br0 type bridge", "link set br0 up"]
            for host in self.hosts:
                lines += [
                    f"link add {host} type veth peer name {network}"
                    f" netns {self.inside[host].thread}",
                    f"link set {host} master br0 up",
                ]
            switch.ip(*lines)
        for host in self.hosts:
            self.inside[host].ip(
                *(f"addr add {self.address(host, net)}/24 dev {net}" for net in self.networks),
                *(f"link set {net} up" for net in self.networks),
            )

    def address(self, host: str, network: str) -> str:
        """Of a host on a network."""
        return f"10.{201 + self.networks.index(network)}.0.{11 + self.hosts.index(host)}"

    def unplug(self, host: str, network: str) -> None:
        """Pull the cable out of the switch."""
        self._switches[network].ip(f"link set {host} down")

    def plug(self, host: str, network: str) -> None:
        """Put it back."""
        self._switches[network].ip(f"link set {host} up")

    def lose(self, host: str, network: str, way: str, percent: int) -> None:
        """Of what the host receives ("in") or sends ("out") on a network, lose so much; all of it
        is a cut of one way, 0 ends it."""
        assert way in WAYS, way
        self._loss.setdefault(host, {})[network, way] = percent
        rules = "".join(
            f"add rule inet loss {way} {WAYS[way][1]} {network}"
            f" {'' if percent == 100 else f'numgen random mod 100 < {percent} '}drop\n"
            for (network, way), percent in self._loss[host].items()
            if percent
        )
        chains = "".join(
            f"add chain inet loss {way} {{ type filter hook {hook} priority 0; }}\n"
            for way, (hook, _) in WAYS.items()
        )
        fresh = "add table inet loss\ndelete table inet loss\nadd table inet loss\n"
        self.inside[host].run(["nft", "-f", "-"], fresh + chains + rules)

    def mend(self) -> None:
        """Everything as in the beginning."""
        for host, ways in list(self._loss.items()):
            for network, way in [key for key, percent in ways.items() if percent]:
                self.lose(host, network, way, 0)
        for network in self.networks:
            self._switches[network].ip(*(f"link set {host} up" for host in self.hosts))

    def close(self) -> None:
        """Leave nothing."""
        for each in (*self.inside.values(), *self._switches.values()):
            each.close()
        self.inside, self._switches = {}, {}
