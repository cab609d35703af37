"""Reading what others have published."""

import random
from decimal import Decimal

import pytest
from throng_client.decoding import Fault, read_elements, read_frame, read_json, read_object

ENVELOPE = '{"type":"message","channel":"a","id":"e-1","time":1,"data":%s,"after":[2]}'


@pytest.mark.parametrize(
    ("data", "value"),
    [
        ('"x"', "x"),
        ("9" * 5_000, Decimal("9" * 5_000)),
        ('{"n":[-%s]}' % ("1" * 4_301), {"n": [Decimal("-" + "1" * 4_301)]}),
        (r'"half \ud83d"', "half \ufffd"),
        (r'"\udc00\ud83d\ude00\ud83d"', "\ufffd\U0001f600\ufffd"),
        (r'{"\uD83D":"\\ud83d"}', {"\ufffd": "\\ud83d"}),
    ],
)
def test_what_json_allows_is_read(data, value):
    read = read_object(ENVELOPE % data)
    assert read["data"] == value and read["after"] == [2]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ("[" * 100_000 + "]" * 100_000, "nested too deeply"),
        ('{"a":' * 90_000 + "1" + "}" * 90_000, "nested too deeply"),
        ('"\\x"', "escape"),
        ("NaN", "NaN is no JSON"),
        ("[1,]", "line 1 column"),
    ],
)
def test_a_member_that_cannot_be_read_hides_no_other(data, reason):
    read = read_object(ENVELOPE % data)
    fault = read.pop("data")
    assert isinstance(fault, Fault) and reason in fault.reason and fault.text == data
    assert read == {"type": "message", "channel": "a", "id": "e-1", "time": 1, "after": [2]}


def test_what_is_cut_has_the_members_before():
    text = ENVELOPE % '"x"'
    whole = read_object(text)
    for end in range(len(text)):
        try:
            read = read_object(text[:end])
        except ValueError:
            assert end == 0
            continue
        for name, value in read.items():
            assert isinstance(value, Fault) or value == whole[name] or name == "time"


def test_bytes_that_are_no_text_are_a_fault_where_they_are():
    read = read_object((ENVELOPE % '["?"]').encode().replace(b"?", b"\xff"))
    assert read["data"].reason == "the text is not UTF-8"
    assert (read["id"], read["after"]) == ("e-1", [2])


def test_elements_are_read_one_by_one():
    deep = "[" * 100_000 + "]" * 100_000
    read = read_elements(f"[{ENVELOPE % 1}, {ENVELOPE % deep},{ENVELOPE % 3}]")
    assert [isinstance(each["data"], Fault) for each in read] == [False, True, False]


def test_what_cannot_be_read_in_a_frame_with_many_hides_nothing_else():
    deep = "[" * 100_000 + "]" * 100_000
    items = ['[7,1,"a"]', f"[7,2,{deep},5]", '[8,3,{"b":"]["},6,{"encoding":"base64"}]', "[7,-4]"]
    asks, first, bad, other, skipped = read_frame(f"[1,{','.join(items)}]")
    assert (asks, first, skipped) == (1, [7, 1, "a"], [7, -4])
    assert other == [8, 3, {"b": "]["}, 6, {"encoding": "base64"}]
    assert bad[:2] == [7, 2] and isinstance(bad[2], Fault) and bad[3] == 5
    text = f"[0,[7,1,[2],3],[7,2,{deep}],[7,3,4]]"
    for end in (2, 10, 20, 100_000, len(text) - 1):
        with pytest.raises(ValueError):
            read_frame(text[:end])


@pytest.mark.parametrize("text", ["", "null", "5", "[]", '"x"', "\x00", "<html>"])
def test_what_is_no_object_raises_a_value_error(text):
    with pytest.raises(ValueError):
        read_object(text)


@pytest.mark.parametrize("seed", range(200))
def test_damage_raises_nothing_but_value_errors(seed):
    dice = random.Random(seed)
    text = list(ENVELOPE % dice.choice(['{"a":[1,"b\\ud83d"]}', '"\\"x"', "1" * 5_000]))
    for _ in range(dice.randint(1, 8)):
        text[dice.randrange(len(text))] = dice.choice('{}[]",:\\u\ud83d0e.\x00')
    damaged = "".join(text)
    for given in (damaged, damaged.encode(errors="surrogatepass")):
        try:
            read = read_object(given)
        except ValueError:
            continue
        assert isinstance(read, dict)
    try:
        read_json(damaged)
    except ValueError:
        pass
