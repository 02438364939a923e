# SPDX-License-Identifier: Apache-2.0
"""What becomes of one call: a pure decision from settings, a timeout and four dice."""

from dataclasses import dataclass

from holdfast.drivers.cloud.sim.settings import Settings


@dataclass(frozen=True)
class Dice:
    """Numbers in [0, 1). A call throws all four, so that a seed replays whatever is set."""

    failure: float
    loss: float
    coin: float
    jitter: float


@dataclass(frozen=True)
class Fate:
    wait_s: float = 0.0  # before the effect
    refusal: str = ""  # raised after that wait, in place of the effect
    wait_after: bool = False  # until the call's timeout, once the effect is done
    loss: str = ""  # raised in place of the reply


FINE = Fate()
PEACE = Settings()


def decide(settings: Settings, call: str, timeout_s: float, dice: Dice) -> Fate:
    """First match wins: down, too slow for the timeout, failed, reply lost, fine."""
    if settings == PEACE or not settings.applies_to(call):
        return FINE
    if settings.down:
        return Fate(refusal=f"{call}: the cloud is down")
    swing = settings.latency_jitter * (2 * dice.jitter - 1)
    wait_s = settings.latency_s * (1 + swing) + settings.hang_s
    if wait_s >= timeout_s:
        slow = f"{call}: no answer within {timeout_s:g} s"
        if dice.coin < 0.5:
            return Fate(wait_after=True, loss=slow)
        return Fate(wait_s=timeout_s, refusal=slow)
    if dice.failure < settings.failure_rate:
        return Fate(wait_s=wait_s, refusal=f"{call}: failed, nothing was changed")
    if dice.loss < settings.lost_reply_rate:
        return Fate(wait_s=wait_s, loss=f"{call}: no reply")
    return Fate(wait_s=wait_s) if wait_s else FINE
