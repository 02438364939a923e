# SPDX-License-Identifier: Apache-2.0
"""A service of a host that must run: how it is known, how it is looked at, how it is started."""

from dataclasses import dataclass, field

Command = tuple[str, ...]


@dataclass(frozen=True)
class Service:
    """Commands are given word by word; no shell reads them.

    It is known by its process (`process`, `matching`, `pidfile`: at most one), or by systemd
    (`unit`). What else is said, `socket` and `probe`, must be true on top; if nothing is said at
    all a process of its own name has to be there. Without a restart it is only watched.
    """

    name: str
    process: str = ""  # name or path of its program, or of the script that its program runs
    matching: str = ""  # a regular expression, found somewhere in the command line
    pidfile: str = ""
    unit: str = ""  # of systemd's
    socket: str = ""  # a path at which somebody listens
    probe: Command = ()
    probe_s: float = 5.0
    restart: Command = ()
    before: Command = ()  # the restart; unless it ends well there is none
    after: Command = ()  # a restart that ended well
    restart_s: float = 60.0  # each of these commands gets so long
    as_root: bool = False
    tries: int = 3
    #: After a restart it gets so long to be there.
    patience_s: float = 10.0
    #: Running so long, it counts as well again: whatever dies sooner is still the same trouble.
    stable_s: float = 60.0
    #: Where it never ran, nobody misses it.
    if_seen: bool = False
    line: int = field(default=0, compare=False)  # of the file it was read from

    @property
    def known_by(self) -> str:
        """process nova-compute; unit libvirtd.service, socket /run/libvirt/libvirt-sock"""
        ways = ("process", "matching", "pidfile", "unit", "socket")
        said = [f"{way} {getattr(self, way)}" for way in ways if getattr(self, way)]
        if self.probe:
            said.append(f"command {' '.join(self.probe)}")
        return ", ".join(said) or f"process {self.name}"
