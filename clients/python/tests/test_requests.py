"""Publishing, batches and reads against a scripted server, in virtual time."""

import json

import pytest
from throng_client import Draft, ThrongError, User
from throng_client.options import Options
from throng_client.publishing import publish, publish_batch
from throng_client.requests import Answer, NoAnswer, ServerLimits, run_blocking
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
    assert (request.path, request.headers["Throng-Exclude"]) == ("/users/a%2Fb", "c1")


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
