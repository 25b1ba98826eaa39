"""Time limits of calls: how long a call may take, and how long a parent waits before it answers."""

UPGRADE_S = 180.0  # time for which pods may have different experiments during the upgrade of a release
CALL_S = 30.0  # deadline of a call with a small message
HOLD_S = 20.0  # least time for which a parent holds a call before it answers `waiting`
# Time for which a child waits for an answer before training. If the parent is gone, the connection's pings show it
# within half a minute. If the parent is slow, repeated calls would make it slower.
PATIENCE_S = 3_600.0
ASKED_PER_S = 5.0  # most repeated calls per second of all children whose calls a parent holds
SLOWEST_BYTES_PER_S = 32_000.0  # slowest link for which the deadline of a payload is sufficient


def payload_timeout_s(payload_bytes: int, held_s: float = HOLD_S) -> float:
    """Return the deadline, in seconds, of a call with a payload. The deadline includes the time `held_s` for which the
    parent may wait before it answers.
    """
    return CALL_S + held_s + payload_bytes / SLOWEST_BYTES_PER_S


def hold_s(children: int) -> float:
    """Return how many seconds a parent with this many children waits before it answers that there is nothing new.

    >>> hold_s(100), hold_s(2_000)
    (20.0, 400.0)
    """
    return min(max(HOLD_S, children / ASKED_PER_S), PATIENCE_S / 2)
