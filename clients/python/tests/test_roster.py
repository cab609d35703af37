"""The members of a channel, as a cursor keeps them."""

from throng_client.cursor import Cursor
from throng_client.messages import Absence


def followed():
    cursor = Cursor("room", None)
    cursor.follow("e-0", recovered=None)
    return cursor


def see(cursor, event, user=None, info=None, **more):
    fields = {"type": "presence", "channel": "room", "event": event, "id": "e-1", "time": 7}
    fields.update(more)
    if user is not None:
        fields["member"] = {"user": user} if info is None else {"user": user, "info": info}
    return cursor.see(fields)


def test_nothing_is_told_before_the_list_is_complete():
    cursor = followed()
    told = [
        see(cursor, *each)
        for each in (("join", "ann", {"n": 1}), ("leave", "zoe"), ("join", "bob"))
    ]
    assert told == [[], [], []]
    [first] = see(cursor, "state")
    assert (first.users, first.connections, first.joined) == (["ann", "bob"], 2, [])
    assert first.members["ann"].info == {"n": 1}
    assert see(cursor, "update", "ann", {"n": 1}) == []
    [changed] = see(cursor, "update", "ann", {"n": 2})
    assert (changed.updated, changed.joined, changed.left) == (["ann"], [], [])
    [joined] = see(cursor, "join", "cy")
    assert joined.joined == ["cy"]
    [left] = see(cursor, "leave", "bob")
    assert left.left == [Absence("bob", 7)]
    assert list(first.members) == ["ann", "bob"], "what was told does not change"


def test_a_list_that_comes_again_tells_the_difference():
    cursor = followed()
    for user in ("ann", "bob", "cy"):
        see(cursor, "join", user)
    see(cursor, "state")
    cursor.follow("e-0", recovered=True)
    assert see(cursor, "join", "ann") == see(cursor, "join", "bob") == []
    [again] = see(cursor, "state")
    assert ([each.user for each in again.left], again.joined) == (["cy"], [])
    assert cursor.seen_at == "e-1"


def test_a_list_of_a_node_that_is_cut_off_is_partial_until_the_next_one():
    cursor = followed()
    see(cursor, "join", "ann")
    [first] = see(cursor, "state", partial=True)
    [joined] = see(cursor, "join", "bob")
    assert (first.partial, joined.partial) == (True, True)
    cursor.follow("e-0", recovered=True)
    see(cursor, "join", "ann")
    see(cursor, "join", "bob")
    [whole] = see(cursor, "state")
    assert (whole.partial, whole.users, whole.joined) == (False, ["ann", "bob"], [])


def test_a_list_that_becomes_partial_or_whole_is_told():
    cursor = followed()
    assert see(cursor, "partial", partial=True) == []
    see(cursor, "join", "ann")
    see(cursor, "state")
    [partial] = see(cursor, "partial", partial=True)
    assert (partial.partial, partial.users, partial.joined) == (True, ["ann"], [])
    assert see(cursor, "partial", partial=True) == []
    # As after a poll that has failed: what comes is no list.
    cursor.follow("e-0", recovered=True)
    see(cursor, "leave", "ann")
    [joined] = see(cursor, "join", "bob")
    assert (joined.partial, joined.users) == (True, ["bob"])
    [whole] = see(cursor, "whole")
    assert (whole.partial, whole.users, whole.joined, whole.left) == (False, ["bob"], [], [])
    assert see(cursor, "whole") == []
