"""Which transport is used, without a network."""

from throng_client.transports import STABLE, UPGRADE_AFTER, Choice, Next

ALL = ["websocket", "sse", "poll"]


def lost(choice, *, lived=None, now=0.0, is_failure=True, is_unusable=False):
    return choice.lost(is_failure=is_failure, is_unusable=is_unusable, lived=lived, now=now)


def on_sse():
    """A choice that has fallen back to SSE, which works."""
    choice = Choice(ALL, 3)
    assert lost(choice, is_unusable=True) is Next.ASK
    choice.answered(0.1)
    assert lost(choice) is Next.AT_ONCE
    choice.opened()
    assert choice.transport == "sse"
    return choice


def test_a_fresh_connection_after_an_answer_decides():
    choice = Choice(ALL, 3)
    assert [lost(choice) for _ in range(2)] == [Next.BACKOFF, Next.ASK]
    choice.answered(0.1)
    assert choice.transport == "websocket", "it was the network"
    choice.opened()
    assert lost(choice, lived=STABLE) is Next.BACKOFF
    assert choice.transport == "websocket"


def test_without_an_answer_nobody_is_blamed():
    choice = Choice(ALL, 3)
    for _ in range(20):
        lost(choice)
    assert choice.transport == "websocket"


def test_deaths_within_seconds_are_failures_and_later_ones_are_not():
    choice = Choice(ALL, 3)
    for _ in range(10):
        choice.opened()
        assert lost(choice, lived=STABLE) is Next.BACKOFF
    choice.opened()
    assert lost(choice, lived=0.3) is Next.BACKOFF
    choice.opened()
    assert lost(choice, lived=0.3) is Next.ASK
    choice.answered(0.1)
    choice.opened()
    assert lost(choice, lived=0.3) is Next.AT_ONCE
    assert choice.transport == "sse"


def test_a_death_after_an_attempt_that_did_not_open_is_the_first_one():
    choice = Choice(ALL, 3)
    assert lost(choice, is_unusable=True) is Next.ASK
    choice.answered(0.1)
    choice.opened()
    assert lost(choice, lived=1.0) is Next.BACKOFF
    assert choice.transport == "websocket"


def test_what_the_server_says_is_no_failure():
    choice = Choice(ALL, 3)
    for _ in range(10):
        choice.opened()
        assert lost(choice, lived=0.1, is_failure=False) is Next.BACKOFF
    assert choice.transport == "websocket"


def test_the_first_transport_is_tried_at_the_next_reconnect():
    choice = on_sse()
    assert lost(choice, lived=1.0, now=1) is Next.BACKOFF
    assert choice.transport == "websocket"
    choice.opened()
    assert lost(choice, lived=STABLE, now=20) is Next.BACKOFF
    assert choice.transport == "websocket"


def test_a_failed_trial_goes_back_at_once_and_the_next_one_waits():
    choice = on_sse()
    for attempt, pause in enumerate([10, 20, 40, 80, 160, UPGRADE_AFTER]):
        now = 1_000.0 * attempt
        lost(choice, lived=1.0, now=now)
        assert choice.transport == "websocket"
        assert lost(choice, now=now) is Next.AT_ONCE
        assert choice.transport == "sse"
        choice.opened()
        lost(choice, lived=STABLE, now=now + pause - 1)
        assert choice.transport == "sse"
        choice.opened()


def test_a_trial_that_dies_goes_back_to_what_works():
    choice = on_sse()
    choice.promoted()
    assert choice.transport == "websocket"
    assert lost(choice, lived=0.3, now=200) is Next.AT_ONCE
    assert choice.transport == "sse"


def test_if_none_works_it_begins_anew():
    choice = Choice(ALL, 3)
    seen = set()
    for _ in range(30):
        seen.add(choice.transport)
        if lost(choice) is Next.ASK:
            choice.answered(0.1)
    assert seen == set(ALL)
    choice = Choice(["websocket"], 3)
    assert [lost(choice) for _ in range(5)] == [Next.BACKOFF] * 5


def test_time_outs_grow_and_follow_the_line():
    choice = Choice(["websocket"], 3)
    times = []
    for _ in range(6):
        times.append(choice.open_timeout)
        lost(choice)
    assert times == [3, 6, 12, 24, 30, 30]
    choice.opened()
    assert choice.open_timeout == 3
    choice = Choice(ALL, 3)
    lost(choice, is_unusable=True)
    # Two round trips of 3.4 s over a new connection.
    choice.answered(6.8)
    assert choice.open_timeout >= 2 * 6.8
    assert Choice(ALL, 60).open_timeout == 60
