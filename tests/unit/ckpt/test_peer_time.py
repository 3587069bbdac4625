"""Times of agents, whose clocks differ from ours, in our clock."""

from __future__ import annotations

import pytest

from manapy.ckpt import peer_time
from manapy.ckpt.peer_time import WINDOW, PeerTime

HOUR = 3_600_000_000
SLOW, FAST = 400_000, 200  # us that a message travels


class Clock:
    """Our clock. That of the agent differs from it by ``differs``."""

    def __init__(self, differs: int) -> None:
        self.now, self.differs = 2 * HOUR, differs
        self.of_agent = PeerTime()

    def sent(self, ago: int) -> int:
        """What the agent's clock said so long ago."""
        return self.now - ago + self.differs


@pytest.fixture(params=[-HOUR, 0, HOUR])
def clock(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock(request.param)
    monkeypatch.setattr(peer_time, "now", lambda: made.now)
    return made


def test_a_message_that_is_delayed(clock: Clock) -> None:
    for travel in (SLOW, FAST, SLOW):
        clock.of_agent.note(clock.sent(travel))
        clock.now += SLOW
    assert clock.of_agent.here(clock.sent(SLOW)) == clock.now - SLOW + FAST


def test_never_later_than_its_arrival(clock: Clock) -> None:
    """Without earlier messages, or after slower ones only, it is the arrival."""
    assert clock.of_agent.here(clock.sent(SLOW)) == clock.now
    clock.now += SLOW
    assert clock.of_agent.here(clock.sent(FAST)) == clock.now


def test_clocks_that_drift_apart(clock: Clock) -> None:
    """What was said long ago does not count."""
    clock.of_agent.note(clock.sent(FAST))
    for _ in range(3):
        clock.now += WINDOW // 2
        clock.differs -= SLOW
        clock.of_agent.note(clock.sent(FAST))
    assert clock.of_agent.here(clock.sent(0)) == clock.now + FAST - SLOW * 2
    clock.now += WINDOW + 1
    assert clock.of_agent.here(clock.sent(FAST)) == clock.now


def test_lines_of_ranks(clock: Clock) -> None:
    """Only those with a time change."""
    clock.of_agent.note(clock.sent(FAST))
    noticed = clock.sent(SLOW)
    here = clock.now - SLOW + FAST
    assert clock.of_agent.translate(f"LOST {noticed}") == f"LOST {here}"
    assert clock.of_agent.translate(f"DONE 3 {noticed}") == f"DONE 3 {here}"
    for line in ("LOST", "DONE 0", "GONE", f"RESUMED {noticed}"):
        assert clock.of_agent.translate(line) == line
