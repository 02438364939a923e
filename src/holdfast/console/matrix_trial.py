# SPDX-License-Identifier: Apache-2.0
"""Two strategies side by side: what each says of every combination, how many hosts are in it now,
and for which of them something else would follow. Values in, values out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.model.matrix import ALERT, NONE, RECOVERY, UNDECIDED, Answer, Strategy


@dataclass(frozen=True)
class Row:
    """One health of the networks, by name: what is said of it, now and then."""

    health: Mapping[str, str]
    hosts: Sequence[str]
    now: Answer
    then: Answer

    @property
    def differs(self) -> bool:
        return (self.now.action, self.now.for_s) != (self.then.action, self.then.for_s)


@dataclass(frozen=True)
class Trial:
    networks: Sequence[str]
    rows: Sequence[Row]
    warning: str = ""  # names the rows that the new strategy leaves out

    @property
    def changed(self) -> Sequence[Row]:
        """Rows that differ, with hosts in them."""
        return [row for row in self.rows if row.differs and row.hosts]

    @property
    def differing(self) -> int:
        return sum(row.differs for row in self.rows)

    def becoming(self, action: str) -> list[str]:
        """Hosts about which that would be done, and is not now."""
        rows = [r for r in self.rows if r.then.action == action != r.now.action]
        return [host for row in rows for host in row.hosts]

    @property
    def sentence(self) -> str:
        if not self.differing:
            return "It says the same of every combination as the strategy in force."
        many = "1 row differs" if self.differing == 1 else f"{self.differing} rows differ"
        moved = [
            f"{len(found)} {word}" for action, word in _WORDS if (found := self.becoming(action))
        ]
        later = sum(len(row.hosts) for row in self.changed if row.now.action == row.then.action)
        moved += [f"{later} would wait for another time"] if later else []
        if not moved:
            return f"{many}; for no host anything would change now."
        return f"{many}; of the hosts as they are now, {', '.join(moved)}."


_WORDS = (
    (RECOVERY, "would be recovered"),
    (ALERT, "would raise an alert"),
    (NONE, "would be left alone"),
    (UNDECIDED, "would be undecided"),
)


def compare(now: Strategy, then: Strategy, shown: Mapping[str, Any]) -> Trial:
    """`shown`: the matrix as the API shows it, with the hosts of each row."""
    blind = shown["blind"]
    rows = [
        Row(
            one["health"],
            one["hosts"],
            now.answer(one["health"], blind),
            then.answer(one["health"], blind),
        )
        for one in (*shown["rows"], *shown["undecided"])
    ]
    return Trial(now.networks, rows, then.warning)
