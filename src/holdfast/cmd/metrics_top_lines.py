# SPDX-License-Identifier: Apache-2.0
"""The guests of a host as lines for a terminal: columns that fit, names that do no harm. Pure."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from holdfast.model.printable import fit, printable, width

Said = Mapping[str, Any]
#: A name is cut down to so much before a column is left out.
LEAST_NAME: Final = 12
MOST_NAME: Final = 40
UNKNOWN: Final = "-"


def percent(value: float) -> str:
    return f"{value * 100:.1f}" if value < 10 else f"{value * 100:.0f}"


def short(value: float) -> str:
    """1536: 1.5k"""
    for sign in ("", "k", "M", "G", "T"):
        if abs(value) < 999.5:
            plain = not sign and (value == int(value) or abs(value) >= 99.5)
            return f"{value:.0f}{sign}" if plain or abs(value) >= 99.5 else f"{value:.1f}{sign}"
        value /= 1000
    return f"{value:.0f}P"


def binary(value: float) -> str:
    """1073741824: 1.0Gi"""
    for sign in ("", "Ki", "Mi", "Gi", "Ti"):
        if abs(value) < 1023.5:
            return f"{value:.0f}{sign}" if not sign or value >= 99.5 else f"{value:.1f}{sign}"
        value /= 1024
    return f"{value:.0f}Pi"


def ratio(value: float) -> str:
    return f"{value:.2f}"


class Column(NamedTuple):
    head: str
    key: str
    show: Callable[[float], str]
    columns: int


#: In the order in which they stand; where there is no room, the last go first, but alarms stay.
COLUMNS: Final = (
    Column("CPU%", "cpu", percent, 6),
    Column("STEAL%", "steal", percent, 6),
    Column("MEM", "mem", binary, 7),
    Column("ALARMS", "alarms", lambda value: f"{value:.0f}", 6),
    Column("RX b/s", "rx_bps", short, 7),
    Column("TX b/s", "tx_bps", short, 7),
    Column("OF", "contract", ratio, 5),
    Column("RD B/s", "rd_bytes", short, 7),
    Column("WR B/s", "wr_bytes", short, 7),
    Column("RD/s", "rd_iops", short, 6),
    Column("WR/s", "wr_iops", short, 6),
)
PROJECT: Final = 16


def screen(said: Said, columns: int, lines: int | None = None) -> list[str]:
    """At most so many lines, of exactly or less so many columns."""
    guests: Sequence[Said] = said["guests"]
    name, project, shown = layout(guests, columns)
    head = [*_summary(said), ""]
    heads = [fit("NAME", name)]
    if project:
        heads.append(fit("PROJECT", project))
    heads += [one.head.rjust(one.columns) for one in shown]
    head.append(" ".join(heads))
    room = len(guests) if lines is None else max(0, lines - len(head))
    if room < len(guests):
        room = max(0, room - 1)
    found = head + [_line(one, name, project, shown) for one in guests[:room]]
    left = said["total"] - min(room, len(guests))
    if left > 0:
        found.append(f"and {left} more")
    return [fit(line, columns).rstrip() for line in found][:lines]


def layout(guests: Sequence[Said], columns: int) -> tuple[int, int, list[Column]]:
    """How wide names and projects are, 0: not shown, and which numbers there is room for."""
    longest = max((width(_name(one)) for one in guests), default=0)
    name = max(LEAST_NAME, min(MOST_NAME, longest))
    shown = list(COLUMNS)
    project = PROJECT if any(one["project"] for one in guests) else 0

    def taken(name: int) -> int:
        beside = 1 + project if project else 0
        return name + beside + sum(one.columns + 1 for one in shown)

    while taken(LEAST_NAME) > columns and (project or len(shown) > 1):
        if project:
            project = 0
        else:
            shown.pop()
    return min(name, max(1, columns - taken(0))), project, shown


def _summary(said: Said) -> list[str]:
    node: Said = said["node"]
    parts = [f"{printable(said['host'])}: {said['total']} guests"]
    if node["cpu_util_ratio"] is not None:
        parts.append(f"CPU {percent(node['cpu_util_ratio'])} %")
    if node["load1"] is not None:
        parts.append(f"load {node['load1']:.2f}")
    if node["mem_total_bytes"] is not None and node["mem_free_bytes"] is not None:
        parts.append(f"{binary(node['mem_free_bytes'])} of {binary(node['mem_total_bytes'])} free")
    parts.append(f"{said['alarms']} alarms" if said["alarms"] != 1 else "1 alarm")
    return [", ".join(parts) + f", at {str(said['at'])[11:19]}"]


def _line(row: Said, name: int, project: int, shown: Sequence[Column]) -> str:
    cells = [fit(_name(row), name)]
    if project:
        cells.append(fit(printable(row["project"]), project))
    for one in shown:
        value = row[one.key]
        cells.append((UNKNOWN if value is None else one.show(value)).rjust(one.columns))
    stale = f"  {printable(row['stale'])}" if row["stale"] else ""
    return " ".join(cells) + stale


def _name(row: Said) -> str:
    return printable(row["name"]) or str(row["uuid"])
