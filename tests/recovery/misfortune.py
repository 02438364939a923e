# SPDX-License-Identifier: Apache-2.0
"""One recovery with its misfortunes, all of them by one seed: the play of test_seeds.py."""

import contextlib
import random
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.model.errors import Conflict, DriverError, Unavailable
from holdfast.recovery import context
from tests.leases.house import CLAIM_S, Killed, Manager
from tests.recovery.house import HealHouse

DEAD = "cmp-1"
HOSTS = (DEAD, "cmp-2", "cmp-3", "cmp-4", "cmp-5")
SPARES = ("spare-1", "spare-2", "spare-3")
METHODS = ("auto", "auto_priority", "reserved_host", "rh_priority")
WORK = (
    context.INTAKE,
    context.RECOVER_HOST,
    context.RECOVER_GUEST,
    context.RECOVER_PROCESS,
    context.MOVE,
)
#: Calls of which some fail, hang or lose their answer, where not all do.
SOME = ("moves.evacuate", "servers.start", "servers.lock", "services.force_down", "servers.show")
#: After so many changes nothing more befalls managers: what is open must end.
CALM_AFTER = 200
MOST_TURNS = 1500


@dataclass
class Server:
    id: str
    name: str
    host: str
    runs: bool
    locked: bool


class Chance:
    """What may happen whenever a manager has changed something: the `Points` of a house."""

    statements = False

    def __init__(self, play: "Play") -> None:
        self._play = play

    def before(self, what: str) -> None:
        pass

    def after(self, what: str) -> None:
        self._play.at(what)


class Play:
    """One seed."""

    def __init__(self, seed: int, house: HealHouse, say: Callable[[str], None]) -> None:
        self.dice = random.Random(seed)
        self.house, self.say = house, say
        self.db = sqlite3.connect(house.path / "cloud.db")
        self.book = sqlite3.connect(house.path / "holdfast.db")
        self.points = 0  # so often something was changed by now
        self.inside = 0  # how many managers are being interrupted
        self.killed = 0
        self.failures: Counter[str] = Counter()  # by subject: so many incidents there must be
        self.dead = {DEAD}
        self.on_since: float | None = None  # since when the source has power again
        self.target_died = False
        self.later: list[tuple[int, str, Callable[[], None]]] = []
        self.servers: list[Server] = []
        self.api = house.m  # takes reports, and lives
        self.managers = [self._manager() for _ in range(3)]

    def close(self) -> None:
        self.db.close()
        self.book.close()

    # the story

    def tell(self) -> None:
        dice, sim = self.dice, self.house.sim
        sim.change(
            action_s=dice.choice([0.0, 0.5, 3.0]), service_down_s=dice.choice([0.0, 0.0, 60.0])
        )
        for number in range(dice.choice([1, 1, 1, 2, 3])):
            self._boot(f"web-{number}", DEAD)
        if dice.random() < 0.3:
            self._boot("other", "cmp-2")
        kind = dice.choices(("host", "guest", "process"), (6, 3, 1))[0]
        self.say(f"{kind}: {[(s.name, s.host, s.runs, s.locked) for s in self.servers]}")
        self._misfortune()
        {"host": self._host, "guest": self._guest, "process": self._process}[kind]()
        self._go_on()
        if kind == "guest" and dice.random() < 0.4 and not self.dead:
            self._crash_again()
        self.check_end()
        left = not self._stayed() and not self._withdrawn()
        if kind == "host" and dice.random() < 0.2 and left:
            self._bring_back()

    def _bring_back(self) -> None:
        """When it is over, the host that died is repaired and used again; nobody moves for it."""
        self.say("the source is repaired")
        self.house.sim.recover_host(DEAD)
        used = "SELECT 1 FROM hosts WHERE name = ? AND enabled AND NOT forced_down"
        for _turn in range(100):
            pause = self.turn(self.dice.choice(self.managers))
            if self.db.execute(used, [DEAD]).fetchone():
                break
            self.house.clock.advance(min(pause, 60.0) + 1.0)
        else:
            raise AssertionError(f"{DEAD} is not used again")
        self.dead.discard(DEAD)
        for server in self.servers:
            assert self.house.server(server.id)["host"] not in {DEAD, *self.dead}

    def _boot(self, name: str, host: str) -> None:
        dice, sim = self.dice, self.house.sim
        ha = {"HA_Enabled": "true"} if name == "web-0" or dice.random() < 0.5 else {}
        made = Server(
            sim.boot(name, "alpha", host, 1, 512, 1, metadata=ha).id,
            *(name, host, name == "web-0" or dice.random() < 0.7, dice.random() < 0.1),
        )
        cloud = self.house.m.cloud
        if not made.runs:
            sim.change(action_s=0.0)
            cloud.servers.stop(made.id)
            cloud.servers.show(made.id)
        if made.locked:
            cloud.servers.lock(made.id, "by its owner")
        self.servers.append(made)

    def _misfortune(self) -> None:
        """Faults of the cloud, for a while."""
        dice, sim = self.dice, self.house.sim
        faults: dict[str, Any] = {}
        if dice.random() < 0.4:
            faults["failure_rate"] = dice.choice([0.1, 0.3])
        if dice.random() < 0.4:
            faults["lost_reply_rate"] = dice.choice([0.1, 0.3])
        if dice.random() < 0.2:
            faults["latency_s"] = dice.choice([0.2, 2.0])
        if dice.random() < 0.1:
            faults |= {"hang_s": 60.0, "only_calls": [dice.choice(SOME)]}
        elif faults and dice.random() < 0.3:
            faults["only_calls"] = dice.sample(SOME, 2)
        if faults:
            self.say(f"faults {faults}")
            sim.change(**faults)
            none = {"failure_rate": 0.0, "lost_reply_rate": 0.0, "latency_s": 0.0, "hang_s": 0.0}
            self._soon("faults end", lambda: sim.change(**none, only_calls=[]) and None, 20, 60)

    def _host(self) -> None:
        dice, sim = self.dice, self.house.sim
        how = dice.choice([sim.fail_host, sim.fail_host, sim.cut_host])
        self.say(f"{how.__name__} {DEAD}")
        how(DEAD)
        self.failures[f"host:{DEAD}"] = 1
        fence = dice.random()
        if fence < 0.15:
            sim.change(fence_lies=True)
            self._soon("the fence is honest", lambda: sim.change(fence_lies=False) and None, 5, 20)
        elif fence < 0.3 and not sim.settings().only_calls and not sim.settings().failure_rate:
            sim.change(only_calls=["fence.off", "fence.power"], failure_rate=0.7)
            self._soon("the fence is well", lambda: sim.change(failure_rate=0.0) and None, 5, 20)
        if dice.random() < 0.25:
            self._soon("the source returns", self._return)
        if dice.random() < 0.25:
            self._soon("a target dies", self._kill_target, 10, 60)
        if dice.random() < 0.1:
            self._soon("a guest is reported too", lambda: self._report_guest(self.servers[0]), 0, 9)
        self._ten_times(lambda more: self.house.report(DEAD, at=self.began, **more))

    def _guest(self) -> None:
        self.dead.clear()
        server = self.servers[0]
        self.house.sim.crash_server(server.id)
        self.failures[f"server:{server.id}"] = 1
        self._ten_times(lambda more: self._report_guest(server))

    def _process(self) -> None:
        self.dead.clear()
        self.failures[f"process:{DEAD}:nova-compute"] = 1
        said = {"process_name": "nova-compute", "event": "STOPPED"}
        self._ten_times(lambda more: self.house.notify("PROCESS", DEAD, said | more, self.began))

    def _crash_again(self) -> None:
        """The same server dies once more: that is another failure."""
        server = self.servers[0]
        self.house.clock.advance(5)
        self.say("it crashes again")
        self.house.sim.crash_server(server.id)
        self.failures[f"server:{server.id}"] = 2
        self.began = self.house.clock.now()
        host = self.house.server(server.id)["host"]
        self._ten_times(lambda more: self._report_guest(server, host))
        self._go_on()

    def _return(self) -> None:
        """Not before we have looked at what ran on it: nobody could know afterwards."""
        begun = "SELECT 1 FROM incidents WHERE subject = ? AND status != 'open'"
        if self.later and not self.book.execute(begun, [f"host:{DEAD}"]).fetchone():
            return self._soon("the source returns", self._return, 1, 30)
        self.house.sim.recover_host(DEAD)
        self.on_since = self.house.clock.monotonic()
        # who reported it says so: a host that was not cut by then is left alone
        back = {"event": "STARTED", "host_status": "NORMAL", "cluster_status": "ONLINE"}
        self._soon("it is reported to run", lambda: self._tell_started(back), 0, 20)

    def _tell_started(self, said: dict[str, str]) -> None:
        self.house.notify("COMPUTE_HOST", DEAD, said)

    def _kill_target(self) -> None:
        """Some other host, if possible one that a server is on its way to."""
        query = "SELECT h.name FROM servers s JOIN hosts h ON h.id = s.dest_host_id"
        moving = [name for (name,) in self.db.execute(query)]
        name = self.dice.choice(moving or ["cmp-2", "cmp-3"])
        self.say(f"{name} dies")
        self.house.sim.fail_host(name)
        self.dead.add(name)
        self.target_died = True
        self.failures[f"host:{name}"] = 1
        at = self.house.clock.now()

        def told() -> None:
            with contextlib.suppress(Conflict):
                self.house.report(name, at=at)

        self._soon(f"{name} is reported", told, 0, 20)

    def _report_guest(self, server: Server, host: str = DEAD) -> None:
        self.house.report_guest(host, server.id, at=self.began)

    def _ten_times(self, report: Callable[[Mapping[str, str]], Any]) -> None:
        """The same report, now and at nine other moments; some are worded otherwise."""
        report({})
        for number in range(9):
            other = {"cluster_status": "ONLINE"} if number % 3 == 0 else {}
            self._soon(f"report {number + 2}", lambda other=other: report(other) and None, 0, 90)

    def _soon(self, what: str, act: Callable[[], None], least: int = 0, most: int = 80) -> None:
        self.later.append((self.points + self.dice.randint(least, most), what, act))

    # time

    def _manager(self) -> Manager:
        made = self.house.manager(Chance(self))  # type: ignore[arg-type]
        made.runner._free = self.dice.randint(1, 3)
        self.house.m = self.api
        return made

    def _go_on(self) -> None:
        """Until nothing is left to do."""
        clock, dice = self.house.clock, self.dice
        for _turn in range(MOST_TURNS):
            pause = self.turn(dice.choice(self.managers))
            if self._is_over():
                if not self.later:
                    return
                self._happen(min(self.later)[0])
                continue
            clock.advance(min(pause, 60.0) + dice.choice([0.0, 0.3, 2.0, 5.0]))
        rows = self.book.execute("SELECT subject, status, sentence FROM incidents").fetchall()
        raise AssertionError(f"it never ends: {self._open()}, {rows}")

    def _is_over(self) -> bool:
        return not self._open()

    def _open(self) -> list[Any]:
        marks = ",".join("?" * len(WORK))
        query = f"SELECT key, status, sentence FROM operations WHERE is_open AND kind IN ({marks})"
        return self.book.execute(query, WORK).fetchall()

    def turn(self, manager: Manager) -> float:
        """One look of a manager at what is due; seconds until the next."""
        try:
            return manager.loop.cycle()
        except Killed:
            self.killed += 1
            self.say(f"{manager.name} is dead")
            manager.die()
            self.managers[self.managers.index(manager)] = self._manager()
            return 0.0
        except Unavailable:
            return 1.0  # the loop itself got no answer
        finally:
            self.check_now()

    def at(self, what: str) -> None:
        """A manager has just changed something."""
        self.points += 1
        self.check_now(what)
        self._happen(self.points)
        if self.points > CALM_AFTER:
            return
        roll, clock = self.dice.random(), self.house.clock
        if roll < 0.012 and self.killed < 4:
            raise Killed
        if roll < 0.024:
            self.say(f"no answer {what}")
            if "commit" in what:
                raise Unavailable(f"no answer {what}")
            raise DriverError("test", f"no answer {what}", retryable=True)
        if roll < 0.036 and "commit" in what and not self.inside:
            self.say(f"hangs {what}")
            clock.advance(CLAIM_S * 1.3)
        if roll < 0.10 and self.inside < 2:
            self.inside += 1
            self.turn(self.dice.choice(self.managers[self.inside :]))
            self.inside -= 1

    def _happen(self, points: int) -> None:
        due = [one for one in self.later if one[0] <= points]
        self.later = [one for one in self.later if one[0] > points]
        for _at, what, act in due:
            self.say(what)
            with contextlib.suppress(Conflict):
                act()

    # what must be

    def check_now(self, what: str = "") -> None:
        twice = "SELECT server_id FROM domains GROUP BY server_id HAVING count(*) > 1"
        assert not (found := self.db.execute(twice).fetchall()), f"{found} run twice"
        if what != "moves.evacuate":
            return
        query = (
            "SELECT h.name, h.powered FROM migrations m JOIN hosts h ON h.id = m.source_id"
            " ORDER BY m.id DESC LIMIT 1"
        )
        host, powered = self.db.execute(query).fetchone()
        fresh = self.on_since is not None and self.house.clock.monotonic() - self.on_since < 3
        assert not powered or (host == DEAD and fresh), f"left {host}, which has power"

    def check_end(self) -> None:
        house = self.house
        now = {server["id"]: server for server in house.sim.world()["servers"]}
        self.check_now()
        if self._stayed() or self._withdrawn():
            self.dead.discard(DEAD)
        for server in self.servers:
            self._check_server(server, now[server.id])
        self._check_rows()

    def _check_server(self, server: Server, now: Mapping[str, Any]) -> None:
        house, gone = self.house, server.host in self.dead
        if server.host == DEAD and self._withdrawn():
            assert now["host"] == DEAD, f"{server} left a host that is well: {now}"
            return
        wanted = "ACTIVE" if server.runs else "SHUTOFF"
        assert (now["status"], now["task_state"]) == (wanted, None), f"{server} is {now}"
        running = [now["host"]] if server.runs else []
        assert house.sim.running(server.id) == running, f"{server} is {now}"
        reason = "by its owner" if server.locked else ""
        assert (bool(now["locked"]), now["locked_reason"]) == (server.locked, reason), now
        assert now["host"] not in self.dead, f"{server} is still on {now['host']}"
        query = "SELECT status, count(*) FROM migrations WHERE server_id = ? GROUP BY status"
        moves = dict(self.db.execute(query, [server.id]).fetchall())
        if not self.target_died and not self._stayed():
            assert moves == ({"done": 1} if gone else {}), f"{server} was moved: {moves}"

    def _stayed(self) -> bool:
        """Whether the source returned, and servers that had found no room were started there."""
        query = "SELECT 1 FROM incidents WHERE subject = ? AND sentence LIKE 'recovered in place%'"
        return self.book.execute(query, [f"host:{DEAD}"]).fetchone() is not None

    def _withdrawn(self) -> bool:
        """Whether the source returned before it was cut, and the report was withdrawn."""
        query = (
            "SELECT 1 FROM incidents WHERE subject = ? AND sentence LIKE '%is well again before%'"
        )
        return self.book.execute(query, [f"host:{DEAD}"]).fetchone() is not None

    def rows(self) -> Iterator[str]:
        """What is written down, for people."""
        for query in (
            "SELECT id, subject, status, sentence, details FROM incidents",
            "SELECT incident_id, server_name, source_host, dest_host, status, was, message"
            " FROM vmoves",
        ):
            yield from map(str, self.book.execute(query))

    def _check_rows(self) -> None:
        # A late report of a failure that was withdrawn makes all sources be asked, and ends so too.
        query = (
            "SELECT subject, count(DISTINCT CASE WHEN sentence LIKE '%is well again before%'"
            " THEN 'withdrawn' ELSE id END) FROM incidents GROUP BY subject"
        )
        found = {subject: count for subject, count in self.book.execute(query)}
        extra = {one for one in found if one.startswith("server:")} - set(self.failures)
        assert {k: v for k, v in found.items() if k not in extra} == self.failures, found
        for query in (
            "SELECT subject, status, sentence FROM incidents"
            " WHERE status NOT IN ('recovered', 'explained')"
            " AND sentence NOT LIKE '%is well again before%'",
            "SELECT type, status, message FROM notifications WHERE status != 'finished'"
            " AND message NOT LIKE '%is well again before%'"
            " AND message NOT LIKE 'the report is % s old, and cmp-1 is contradicted%'",
            "SELECT server_name, status, message, was FROM vmoves"
            " WHERE status NOT IN ('succeeded', 'ignored') OR message IS NULL",
        ):
            rows = self.book.execute(query).fetchall()
            assert not rows, rows

    @property
    def began(self) -> Any:
        return self._began

    @began.setter
    def began(self, value: Any) -> None:
        self._began = value
