"""When a WebSocket is asked for a sign of life, and when it is lost."""

import pytest
from throng_client.options import Options
from throng_client.pulse import Pulse


@pytest.fixture
def pulse():
    """One with a heartbeat of 25 s and requests of 10 s, on which a frame arrives at 0."""
    made = Pulse(Options(heartbeat=25, request_timeout=10))
    made.heard(0)
    return made


def test_a_silent_server_is_asked_after_28_s_and_lost_after_30_s(pulse):
    assert (pulse.due, pulse.is_waiting) == (28, False)
    pulse.pinged(28)
    pulse.left(28)
    pulse.came_back(28)
    assert (pulse.due, pulse.is_waiting) == (30, True)
    # Unless nobody has read, so that it may lie ready.
    pulse.left(29)
    pulse.came_back(40)
    assert pulse.due == 45


def test_a_heartbeat_in_place_of_a_pong_gives_it_more_time_and_no_second_life(pulse):
    pulse.pinged(28)
    pulse.heard(29)
    assert pulse.due == 38
    pulse.heard(37)
    assert (pulse.due, pulse.is_waiting) == (38, True)
    pulse.answered(37.5, is_complete=True)
    assert (pulse.due, pulse.is_waiting) == (37 + 28, False)


def test_frames_do_not_hide_an_unanswered_command(pulse):
    pulse.asked(1)
    for second in range(2, 11):
        pulse.asked(second)
        pulse.heard(second)
        assert pulse.due == 11


def test_the_answer_to_one_command_gives_the_next_its_time(pulse):
    pulse.asked(1)
    pulse.asked(2)
    pulse.heard(9)
    pulse.answered(9, is_complete=False)
    assert pulse.due == 19


def test_an_unanswered_request_of_another_connection_has_its_own_time(pulse):
    pulse.doubted(6, 11)
    pulse.heard(7)
    assert (pulse.due, pulse.is_waiting) == (11, True)
    pulse.answered(8, is_complete=True)
    assert not pulse.is_waiting
    # An answer takes some time, however late it is asked for.
    pulse.doubted(20, 11)
    assert pulse.due == 22


def test_time_in_which_nobody_reads_does_not_count(pulse):
    pulse.asked(0)
    pulse.came_back(1)
    pulse.left(2)
    pulse.came_back(100)
    assert pulse.due == 108
    pulse.left(101)
    pulse.came_back(103)
    assert pulse.due == 110


def test_what_is_asked_while_nobody_reads_counts_from_then_on(pulse):
    pulse.left(0)
    pulse.doubted(95, 100)
    pulse.came_back(100)
    assert pulse.due == 105


def test_a_heartbeat_that_may_lie_ready_is_not_late(pulse):
    pulse.left(0)
    pulse.came_back(100)
    assert (pulse.due, pulse.is_waiting) == (105, False)


def test_without_heartbeats_silence_means_nothing():
    pulse = Pulse(Options(heartbeat=0))
    pulse.heard(0)
    assert pulse.due is None
