"""The kernel's stamps on the monotonic clock, while the wall clock is set."""

from __future__ import annotations

from servewise.net import Clock

WALL = 1_700_000_000_000_000_000
S, MS = 1_000_000_000, 1_000_000


class Clocks:
    """A machine's two clocks; the wall clock can be set."""

    def __init__(self) -> None:
        self.now = 5 * S
        self.wall_offset = WALL

    def monotonic(self) -> int:
        self.now += 50
        return self.now

    def wall(self) -> int:
        self.now += 50
        return self.now + self.wall_offset

    def make(self) -> Clock:
        return Clock(self.monotonic, self.wall)


def test_stamps_come_onto_the_monotonic_clock() -> None:
    clocks = Clocks()
    clock = clocks.make()
    came = clocks.now
    clocks.now += 3 * MS
    assert abs(clock.received(came + WALL, came - MS, clocks.now) - came) < 1_000


def test_small_changes_are_followed() -> None:
    clocks = Clocks()
    clock = clocks.make()
    for _ in range(1000):
        clocks.now += 10 * MS
        clocks.wall_offset += 5_000
        clock.sync()
        came = clocks.now
        assert abs(clock.received(came + clocks.wall_offset, came - MS, came + MS) - came) < 1_000
    assert clock.steps == 0


def test_stamps_are_not_believed_for_a_second_after_a_step() -> None:
    for step in (-3600 * S, -2 * MS, 2 * MS, 3600 * S):
        clocks = Clocks()
        clock = clocks.make()
        clocks.now += 10 * MS
        before = clocks.now + clocks.wall_offset
        clocks.wall_offset += step
        clock.sync()
        assert clock.steps == 1
        assert clock.received(before, clocks.now - 20 * MS, clocks.now) == -1
        clocks.now += 1100 * MS
        clock.sync()
        assert clock.steps == 1
        came = clocks.now
        assert abs(clock.received(came + clocks.wall_offset, came - MS, came + MS) - came) < 1_000


def test_a_stamp_that_cannot_be_true_is_not_believed() -> None:
    clocks = Clocks()
    clock = clocks.make()
    now = clocks.now
    assert clock.received(now + WALL + 300 * MS, now - MS, now) == -1
    assert clock.received(now + WALL - 300 * MS, now - MS, now) == -1
    assert clock.received(now + WALL + 100_000, now - MS, now) == now
    assert clock.received(now + WALL - MS - 100_000, now - MS, now) == now - MS


def test_being_put_aside_between_two_readings_is_no_step() -> None:
    clocks = Clocks()
    delays = iter([0] * 8 + [40 * MS, 0, 500_000])

    def wall() -> int:
        at = clocks.wall()
        clocks.now += next(delays, 0)
        return at

    clock = Clock(clocks.monotonic, wall)
    for _ in range(20):
        clock.sync()
    assert clock.steps == 0
    came = clocks.now
    assert abs(clock.received(came + WALL, came - MS, came + MS) - came) < 1_000
