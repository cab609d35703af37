"""Publishing, batches and reads against a scripted server, in virtual time."""

import base64
import json
import re
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from throng_client import Draft, Published, ThrongError, User, make_token
from throng_client.errors import STATUSES
from throng_client.options import Options
from throng_client.publishing import publish, publish_batch, publish_volatile
from throng_client.requests import (
    Answer,
    NoAnswer,
    ServerLimits,
    edit,
    read_history,
    read_presence,
    run_blocking,
)
from throng_client.tokens import Tokens

OPTIONS = Options(random=lambda: 1.0)


class Scripted:
    """An exchange that answers by a script; the last entry repeats."""

    def __init__(self, *script, token=None):
        self.script = list(script)
        self.tokens = Tokens(token)
        self.limits = ServerLimits()
        self.sent = []
        self.slept = []
        self.clock = 0.0

    async def send(self, request, timeout):
        self.sent.append(request)
        entry = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if callable(entry):
            entry = entry(request)
        if isinstance(entry, NoAnswer):
            self.clock += timeout if entry.is_late else 0
            raise entry
        return entry

    async def load_token(self, old):
        return self.tokens.load(old)

    async def sleep(self, seconds):
        self.slept.append(seconds)
        self.clock += seconds

    def now(self):
        return self.clock


def answer(status, body, **headers):
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer(status, named, json.dumps(body).encode())


def refusal(status, code, **headers):
    return answer(status, {"error": code, "message": f"refused: {code}"}, **headers)


LATE = NoAnswer("late", was_sent=True, is_late=True)
CUT = NoAnswer("cut", was_sent=True)
NOBODY = NoAnswer("connection refused", was_sent=False)
DONE = answer(201, {"id": "e-1", "subscribers": 2})


def published_with(exchange, options=OPTIONS, **fields):
    return run_blocking(publish(exchange, options, Draft("news", {"a": 1}, **fields)))


def failure_of(exchange, **fields):
    with pytest.raises(ThrongError) as caught:
        published_with(exchange, **fields)
    return caught.value


def test_all_attempts_have_one_key():
    exchange = Scripted(CUT, refusal(503, "busy"), refusal(429, "too_many_requests"), DONE)
    assert published_with(exchange).id == "e-1"
    keys = {request.headers["Idempotency-Key"] for request in exchange.sent}
    assert len(exchange.sent) == 4 and len(keys) == 1


def test_a_message_may_be_named_by_itself():
    exchange = Scripted(answer(200, {"replaces": "e-1", "id": "e-2"}))
    published = Published("e-1", 2)
    assert run_blocking(edit(exchange, OPTIONS, published, Draft("news", "new"))) == "e-2"
    assert exchange.sent[0].path == "/messages?channel=news&id=e-1"


@pytest.mark.parametrize("id", [7, b"e-1", "", "a b", Published(None, 0), {"id": "e-1"}])
def test_what_is_no_id_is_refused_with_a_sentence(id):
    with pytest.raises(TypeError, match=r"id of a message|has no id"):
        run_blocking(edit(Scripted(), OPTIONS, id, Draft("news", "new")))


def test_attempts_back_off_and_obey_the_server():
    exchange = Scripted(CUT, CUT, refusal(503, "busy", retry_after="7"), CUT, DONE)
    published_with(exchange)
    assert exchange.slept == [0.5, 1, 8, 4]


@pytest.mark.parametrize(
    ("script", "outcome"),
    [
        ([LATE], "unknown"),
        ([CUT], "unknown"),
        ([NOBODY], "unpublished"),
        ([refusal(503, "busy")], "unpublished"),
        ([refusal(503, "full"), CUT, refusal(503, "full")], "unknown"),
        # A proxy's error says nothing about what the server behind it did.
        ([Answer(502, {}, b"bad gateway")], "unknown"),
    ],
)
def test_the_outcome_is_said_when_it_gives_up(script, outcome):
    exchange = Scripted(*script)
    error = failure_of(exchange, key="order-7")
    assert (error.code, error.outcome, error.key) == ("timeout", outcome, "order-7")
    assert exchange.clock <= OPTIONS.publish_timeout


def test_a_refusal_ends_it_at_once():
    exchange = Scripted(refusal(413, "too_large"))
    error = failure_of(exchange)
    assert (error.code, error.status, error.outcome) == ("too_large", 413, "unpublished")
    assert len(exchange.sent) == 1 and error.key


def test_a_refusal_after_a_cut_leaves_the_outcome_unknown():
    assert failure_of(Scripted(CUT, refusal(403, "forbidden"))).outcome == "unknown"


@pytest.mark.parametrize(
    ("data", "body", "content_type"),
    [
        ("hä", "hä".encode(), "text/plain; charset=utf-8"),
        (b"\x00\xff", b"\x00\xff", "application/octet-stream"),
        ({"a": [1, None]}, b'{"a":[1,null]}', "application/json"),
        (3, b"3", "application/json"),
    ],
)
def test_data_keeps_its_kind(data, body, content_type):
    exchange = Scripted(DONE)
    run_blocking(publish(exchange, OPTIONS, Draft(User("a/b"), data, exclude="c1")))
    (request,) = exchange.sent
    assert (request.body, request.headers["Content-Type"]) == (body, content_type)
    assert (request.path, request.headers["Throng-Exclude"]) == ("/publish?user=a%2Fb", "c1")


def test_a_refused_token_is_replaced_once():
    made = iter(["one", "two"])
    exchange = Scripted(refusal(401, "token_expired"), DONE, token=lambda: next(made))
    published_with(exchange)
    shown = [request.headers["Authorization"] for request in exchange.sent]
    assert shown == ["Bearer one", "Bearer two"]


def test_a_revoked_token_is_not_replaced():
    exchange = Scripted(refusal(401, "token_revoked"), token=lambda: "one")
    assert failure_of(exchange).code == "token_revoked"


def test_no_token_is_an_error_and_a_failure_is_retried():
    assert failure_of(Scripted(DONE, token=lambda: None)).code == "no_token"
    results = iter([RuntimeError("login is down"), "one"])

    def token():
        result = next(results)
        if isinstance(result, Exception):
            raise result
        return result

    assert published_with(Scripted(DONE, token=token)).id == "e-1"


def lines_of(request):
    return [json.loads(line) for line in request.body.splitlines()]


def accept_all(request):
    lines = [{"id": f"e-{line['data']}", "subscribers": 0} for line in lines_of(request)]
    return Answer(200, {}, "\n".join(map(json.dumps, lines)).encode())


def test_a_batch_is_split_and_its_results_keep_their_order():
    exchange = Scripted(accept_all)
    drafts = [Draft("news", number) for number in range(2_500)]
    results = run_blocking(publish_batch(exchange, OPTIONS, drafts))
    assert [result.id for result in results] == [f"e-{number}" for number in range(2_500)]
    assert [len(lines_of(request)) for request in exchange.sent] == [1_000, 1_000, 500]


def test_only_lines_that_may_succeed_are_sent_again():
    def refuse_some(request):
        lines = [{"error": "busy", "message": "wait"}, {"error": "bad_json", "message": "no"}]
        lines.append({"id": "e-2", "subscribers": 0})
        return Answer(200, {}, "\n".join(map(json.dumps, lines)).encode())

    exchange = Scripted(refuse_some, accept_all)
    drafts = [Draft("a", 0), Draft("a", 1, key="k"), Draft("a", 2)]
    first, second, third = run_blocking(publish_batch(exchange, OPTIONS, drafts))
    assert (first.id, third.id) == ("e-0", "e-2")
    assert (second.code, second.outcome, second.key) == ("bad_json", "unpublished", "k")
    again = lines_of(exchange.sent[1])
    assert [line["key"] for line in again] == [lines_of(exchange.sent[0])[0]["key"]]


def test_each_message_of_a_lost_batch_has_its_outcome():
    results = run_blocking(publish_batch(Scripted(CUT), OPTIONS, [Draft("a", 0), Draft("a", 1)]))
    assert [(each.code, each.outcome) for each in results] == [("timeout", "unknown")] * 2
    assert results[0].key != results[1].key


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, b""),
        (403, b"<html>Forbidden"),
        (404, b'{"error":"not_found"}'),
        (404, b'{"error":"not_found","message":"of another program","status":404}'),
        (403, b'{"error":"no_such_code","message":"x"}'),
        (403, b'{"error":"not_found","message":"the status of another code"}'),
        (405, b'{"error":5,"message":"x"}'),
        (413, b"[" * 5_000),
        (301, b""),
    ],
)
def test_what_a_proxy_refuses_is_tried_again(status, body):
    exchange = Scripted(Answer(status, {}, body), DONE)
    assert published_with(exchange).id == "e-1"
    error = failure_of(Scripted(Answer(status, {}, body)))
    assert (error.code, error.outcome) == ("timeout", "unknown")
    assert f"a proxy or another server answered {status}" in error.message


@pytest.mark.parametrize(
    ("target", "code"),
    [
        ("", "bad_name"),
        ("a//b", "bad_name"),
        ("a/../b", "bad_name"),
        ("a\n", "bad_name"),
        ("ä" * 128, "bad_name"),
        ("cut \ud83d", "bad_utf8"),
        (User("cut \ud83d"), "bad_utf8"),
    ],
)
def test_bad_names_fail_at_the_call(target, code):
    exchange = Scripted(DONE)
    for work in (
        lambda: publish(exchange, OPTIONS, Draft(target, "x")),
        lambda: read_history(exchange, OPTIONS, target, None, None, None),
        lambda: read_presence(exchange, OPTIONS, target, None, None),
    ):
        with pytest.raises(ThrongError) as refused:
            run_blocking(work())
        assert refused.value.code == code
    assert exchange.sent == []


def test_a_pattern_is_no_name_to_publish_to():
    exchange = Scripted(DONE)
    with pytest.raises(ThrongError, match="no patterns") as refused:
        run_blocking(publish(exchange, OPTIONS, Draft("prices/*", "x")))
    assert refused.value.code == "bad_name" and exchange.sent == []


def test_text_that_utf_8_cannot_hold_fails_at_the_call():
    exchange = Scripted(DONE)
    for data in ("cut \ud83d", {"text": "cut \ud83d"}, {"cut \ud83d": 1}):
        with pytest.raises(ThrongError) as refused:
            run_blocking(publish(exchange, OPTIONS, Draft("a", data, key="k")))
        error = refused.value
        assert (error.code, error.outcome, error.key) == ("bad_utf8", "unpublished", "k")
    assert exchange.sent == []


def test_a_message_beyond_the_known_limit_fails_at_the_call():
    exchange = Scripted(DONE)
    exchange.limits.message_bytes_max = 10
    with pytest.raises(ThrongError) as refused:
        run_blocking(publish(exchange, OPTIONS, Draft("a", "x" * 11)))
    assert (refused.value.code, refused.value.outcome) == ("too_large", "unpublished")
    assert exchange.sent == []
    assert run_blocking(publish(exchange, OPTIONS, Draft("a", "x" * 10))).id == "e-1"


def test_a_bad_message_of_a_batch_has_its_error_in_its_place():
    drafts = [Draft("a", 0), Draft("", 1, key="k"), Draft("a", "\ud83d"), Draft("a", 3)]
    results = run_blocking(publish_batch(Scripted(accept_all), OPTIONS, drafts))
    assert [getattr(each, "code", "") for each in results] == ["", "bad_name", "bad_utf8", ""]
    assert [getattr(each, "id", "") for each in results] == ["e-0", "", "", "e-3"]
    assert (results[1].key, results[1].outcome) == ("k", "unpublished")


@pytest.mark.parametrize(
    ("given", "sent"), [(2, "2"), (0.2, "1"), (timedelta(minutes=1.01), "61"), (None, None)]
)
def test_a_message_expires(given, sent):
    exchange = Scripted(DONE)
    published_with(exchange, expires_in=given)
    assert exchange.sent[0].headers.get("Throng-Expires-In") == sent
    batch = Scripted(accept_all)
    run_blocking(publish_batch(batch, OPTIONS, [Draft("a", 1, expires_in=given)]))
    assert lines_of(batch.sent[0])[0].get("expires_in") == (None if sent is None else int(sent))


@pytest.mark.parametrize("expires_in", [0, -1, 31_536_001, float("nan"), float("inf")])
def test_an_expiry_that_the_server_refuses_fails_at_the_call(expires_in):
    with pytest.raises(ValueError, match="expires_in"):
        published_with(Scripted(DONE), expires_in=expires_in)


def test_an_event_and_tags_are_headers_and_fields():
    labels = {"event": "Größe", "tags": {"symbol": "ACMÉ", "n": 2}}
    exchange = Scripted(DONE)
    published_with(exchange, **labels)
    headers = exchange.sent[0].headers
    assert headers["Throng-Event"] == "Größe".encode()
    assert json.loads(headers["Throng-Tags"]) == labels["tags"]
    batch = Scripted(answer(200, {"id": "k-1", "subscribers": 0}))
    run_blocking(publish_batch(batch, OPTIONS, [Draft("a", 1, **labels)]))
    line = lines_of(batch.sent[0])[0]
    assert (line["event"], line["tags"]) == (labels["event"], labels["tags"])


@pytest.mark.parametrize(
    "labels", [{"event": "a\nb"}, {"tags": {"a": float("nan")}}, {"tags": {"a": object()}}]
)
def test_labels_that_no_header_can_have_fail_at_the_call(labels):
    with pytest.raises((ValueError, TypeError)):
        published_with(Scripted(DONE), **labels)


def publish_volatile_with(*script, **fields):
    exchange = Scripted(*script)
    published = run_blocking(publish_volatile(exchange, OPTIONS, Draft("news", "typing", **fields)))
    return exchange, published


def test_a_volatile_message_has_no_key_and_no_id():
    answered = answer(201, {"volatile": True, "subscribers": 2})
    exchange, published = publish_volatile_with(answered, exclude="c1")
    assert (published.id, published.subscribers, published.duplicate) == (None, 2, False)
    assert exchange.sent[0].path == "/channels/news?volatile=true"
    headers = {"Content-Type": "text/plain; charset=utf-8", "Throng-Exclude": "c1"}
    assert exchange.sent[0].headers == headers


@pytest.mark.parametrize(
    ("entry", "code", "outcome"),
    [
        (CUT, "timeout", "unknown"),
        (NOBODY, "timeout", "unpublished"),
        (refusal(503, "busy"), "busy", "unpublished"),
        (refusal(400, "bad_request"), "bad_request", "unpublished"),
        (Answer(502, {}, b"bad gateway"), "http_502", "unknown"),
        # It is not from Throng.
        (answer(200, {}), "timeout", "unknown"),
    ],
)
def test_a_volatile_message_has_one_attempt(entry, code, outcome):
    exchange = Scripted(entry, answer(201, {"volatile": True, "subscribers": 2}))
    with pytest.raises(ThrongError) as caught:
        run_blocking(publish_volatile(exchange, OPTIONS, Draft("news", "typing")))
    error = caught.value
    assert (error.code, error.outcome, error.key) == (code, outcome, None)
    assert len(exchange.sent) == 1 and not exchange.slept


@pytest.mark.parametrize("fields", [{"key": "k"}, {"expires_in": 5}])
def test_a_volatile_message_with_a_key_or_an_expiry_fails_at_the_call(fields):
    with pytest.raises(ValueError, match="volatile"):
        publish_volatile_with(DONE, **fields)


def test_a_function_converts_what_is_no_json():
    data = {"at": datetime(2026, 1, 2), "price": Decimal("1.5")}
    with pytest.raises(TypeError, match="default=str"):
        run_blocking(publish(Scripted(DONE), OPTIONS, Draft("a", data)))
    exchange = Scripted(DONE)
    options = Options(default=str)
    run_blocking(publish(exchange, options, Draft("a", data)))
    assert exchange.sent[0].body == b'{"at":"2026-01-02 00:00:00","price":"1.5"}'


def test_a_pause_that_took_too_long_sends_nothing_more():
    class Slow(Scripted):
        async def sleep(self, seconds):
            await super().sleep(seconds + OPTIONS.publish_timeout)

    exchange = Slow(NOBODY)
    error = failure_of(exchange)
    assert (error.code, error.outcome, len(exchange.sent)) == ("timeout", "unpublished", 1)


def test_history_has_what_can_be_read():
    envelope = '{"type":"message","channel":"a","id":"e-%d","time":1,"data":%s}'
    data = ["1", "[" * 100_000 + "]" * 100_000, "9" * 5_000]
    messages = ",".join(envelope % each for each in enumerate(data))
    page = f'{{"channel":"a","id":"e-9","messages":[{messages}],"more":false}}'
    exchange = Scripted(Answer(200, {}, page.encode()))
    history = run_blocking(read_history(exchange, OPTIONS, "a", None, None, None))
    assert [each.data for each in history.messages] == [1, Decimal("9" * 5_000)]
    assert [(each.id, each.channel) for each in history.unreadable] == [("e-1", "a")]


@pytest.mark.parametrize(
    ("token", "said"),
    [
        ("", "an empty text"),
        ("<!doctype html><html>log in", "a page of HTML"),
        ('{"token":"x"}', "JSON"),
        ({"token": "x"}, "a dict in the place of a token; return its token"),
        (b"x", "a bytes in the place of a token"),
    ],
)
def test_what_is_no_token_is_named(token, said):
    error = failure_of(Scripted(DONE, token=lambda: token))
    assert error.outcome == "unpublished" and said in error.message


def test_an_expired_token_is_replaced_before_it_is_sent(monkeypatch):
    clock = [1_000.0]
    monkeypatch.setattr("throng_client.tokens.time.time", lambda: clock[0])
    made = []

    def token():
        made.append(make_token("s" * 32, expires_in=60, now=int(clock[0]) - 500))
        return made[-1]

    exchange = Scripted(DONE, token=token)
    for at in (1_000.0, 1_059.0, 1_061.0):
        clock[0] = at
        published_with(exchange)
    shown = [request.headers["Authorization"].removeprefix("Bearer ") for request in exchange.sent]
    assert len(made) == 2 and shown == [made[0], made[0], made[1]]


def test_users_may_be_numbers():
    assert User(7) == User("7") and Draft(User(7), 1).target.name == "7"
    body = make_token("s" * 32, user=7).split(".")[1]
    assert json.loads(base64.urlsafe_b64decode(body + "=="))["sub"] == "7"
    for user in (None, True, 1.5, ["ann"]):
        with pytest.raises(TypeError, match="a user is a str or an int"):
            User(user)


def test_the_error_codes_are_those_of_the_reference():
    reference = (Path(__file__).parents[3] / "docs" / "reference" / "http.md").read_text()
    table = re.findall(r"^\| `([a-z0-9_]+)` \| (\d{3}) \|", reference, re.MULTILINE)
    assert {code: int(status) for code, status in table} == STATUSES
