"""Bad requests over real sockets: each gets the documented status and message, and is counted.

A bystander is subscribed all the while, and hears a message after each case.
"""

import json

import pytest

from support.raw import Raw
from support.server import eventually
from support.transports import subscribe

MESSAGE_BYTES_MAX = 64 * 1024
BATCH_BYTES_MAX = 8 * 1024 * 1024
HEAD_BYTES_MAX = 16 * 1024


@pytest.fixture(scope="module")
def bystander_connection(server):
    with subscribe("websocket", server, "/channels/bystander") as connection:
        yield connection


@pytest.fixture(autouse=True)
def bystander(server, bystander_connection, request):
    yield
    server.publish("bystander", request.node.name)
    assert bystander_connection.take(1) == [request.node.name]


def refusals(server):
    """The sum of all counters of refused requests and errors."""
    words = ("refused", "error", "rejected")
    return sum(n for name, n in server.metrics().items() if any(word in name for word in words))


def assert_counted(server, before):
    """Waits for a counter to increase; it may do so after the client has the response."""
    eventually(lambda: refusals(server) > before, "a counter of refusals to go up")


def assert_refused(server, data, status, code):
    """Sends bytes on a new connection and checks the whole response."""
    before = refusals(server)
    with Raw(server) as connection:
        text = data.decode("latin-1") if isinstance(data, bytes) else data
        connection.send_anyway(text.replace("{host}", connection.host).encode("latin-1"))
        response = connection.read_response()
    assert (response.status, response.json()["error"]) == (status, code), response
    assert_one_sentence(response.json()["message"])
    assert response.header("Content-Type").startswith("application/json")
    assert_counted(server, before)
    return response


def assert_one_sentence(message):
    assert 5 < len(message) < 300 and "\n" not in message and ". " not in message, message


def get(target, headers=""):
    return f"GET {target} HTTP/1.1\r\nHost: {{host}}\r\n{headers}\r\n"


def post(headers, body="", target="/channels/x"):
    return f"POST {target} HTTP/1.1\r\nHost: {{host}}\r\n{headers}\r\n{body}"


HEADS = {
    "not HTTP at all": ("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400, "bad_request"),
    "words only": ("hello server\r\n\r\n", 400, "bad_request"),
    "header without colon": (get("/channels/x", "Nonsense\r\n"), 400, "bad_request"),
    "space before colon": (get("/channels/x", "Accept : a\r\n"), 400, "bad_request"),
    "header without name": (get("/channels/x", ": a\r\n"), 400, "bad_request"),
    "NUL in a value": (get("/channels/x", "Accept: a\0b\r\n"), 400, "bad_request"),
    "space in the target": (get("/channels/x y"), 400, "bad_request"),
    "no Host": ("GET /channels/x HTTP/1.1\r\n\r\n", 400, "bad_request"),
    "two Hosts": (get("/channels/x", "Host: other.example\r\n"), 400, "bad_request"),
    "HTTP/2": ("GET /channels/x HTTP/2.0\r\nHost: {host}\r\n\r\n", 505, "bad_version"),
    "HTTP/1.7": ("GET /channels/x HTTP/1.7\r\nHost: {host}\r\n\r\n", 505, "bad_version"),
    "a header too large": (
        get("/channels/x", f"X: {'x' * HEAD_BYTES_MAX}\r\n"),
        431,
        "head_too_large",
    ),
    "headers too many": (
        get("/channels/x", "".join(f"X-{n}: 1\r\n" for n in range(2000))),
        431,
        "head_too_large",
    ),
    "a target too long": (get(f"/channels/{'x' * HEAD_BYTES_MAX}"), 414, "uri_too_long"),
    "a publish with a head too large": (
        post(f"Content-Length: 1\r\nX: {'x' * HEAD_BYTES_MAX}\r\n", "x"),
        431,
        "head_too_large",
    ),
}


@pytest.mark.parametrize("case", HEADS)
def test_a_bad_head_is_refused(server, case):
    data, status, code = HEADS[case]
    assert_refused(server, data, status, code)


def test_the_largest_head_is_accepted(server):
    with Raw(server) as connection:
        head = get("/health").replace("{host}", connection.host)
        filler = "X: " + "x" * (HEAD_BYTES_MAX - len(head) - len("X: \r\n"))
        connection.send(head[:-2] + filler + "\r\n\r\n")
        assert connection.read_response().status == 200


CHUNKED = "Transfer-Encoding: chunked\r\n"
LENGTHS = {
    "both lengths": (post(CHUNKED + "Content-Length: 3\r\n", "0\r\n\r\n"), 400, "bad_length"),
    "two lengths": (post("Content-Length: 3\r\nContent-Length: 4\r\n", "abc"), 400, "bad_length"),
    "a list of lengths": (post("Content-Length: 3, 4\r\n", "abc"), 400, "bad_length"),
    "a negative length": (post("Content-Length: -1\r\n"), 400, "bad_length"),
    "a signed length": (post("Content-Length: +3\r\n", "abc"), 400, "bad_length"),
    "a hexadecimal length": (post("Content-Length: 0x3\r\n", "abc"), 400, "bad_length"),
    "an empty length": (post("Content-Length: \r\n"), 400, "bad_length"),
    "a length with a space": (post("Content-Length: 1 2\r\n", "abc"), 400, "bad_length"),
    "a length beyond 64 bits": (post(f"Content-Length: 1{'0' * 25}\r\n"), 400, "bad_length"),
    "gzip": (post("Transfer-Encoding: gzip\r\n"), 501, "not_implemented"),
    "gzip, chunked": (post("Transfer-Encoding: gzip, chunked\r\n"), 501, "not_implemented"),
    "xchunked": (post("Transfer-Encoding: xchunked\r\n"), 501, "not_implemented"),
    "chunk size of words": (post(CHUNKED, "xyz\r\nabc\r\n"), 400, "bad_length"),
    "negative chunk size": (post(CHUNKED, "-3\r\nabc\r\n"), 400, "bad_length"),
    "empty chunk size": (post(CHUNKED, "\r\nabc\r\n"), 400, "bad_length"),
    "prefixed chunk size": (post(CHUNKED, "0x3\r\nabc\r\n0\r\n\r\n"), 400, "bad_length"),
    "chunk size beyond 64 bits": (post(CHUNKED, f"1{'0' * 20}\r\nabc"), 400, "bad_length"),
    "chunk without its end": (post(CHUNKED, "3\r\nabcd\r\n0\r\n\r\n"), 400, "bad_length"),
    "body over the limit": (
        post(f"Content-Length: {MESSAGE_BYTES_MAX + 1}\r\n"),
        413,
        "too_large",
    ),
    "absurd body": (post("Content-Length: 999999999999\r\n"), 413, "too_large"),
    "chunked body over the limit": (
        post(CHUNKED, f"{MESSAGE_BYTES_MAX + 1:x}\r\n{'x' * (MESSAGE_BYTES_MAX + 1)}\r\n0\r\n\r\n"),
        413,
        "too_large",
    ),
    "batch over the limit": (
        post(f"Content-Length: {BATCH_BYTES_MAX + 1}\r\n", target="/publish"),
        413,
        "too_large",
    ),
}


@pytest.mark.parametrize("case", LENGTHS)
def test_a_bad_body_length_is_refused(server, case):
    data, status, code = LENGTHS[case]
    assert_refused(server, data, status, code)
    assert server.history("x")["messages"] == [], "a refused body was published"


@pytest.mark.parametrize("lengths", ["Content-Length: 5\r\nTransfer-Encoding: chunked\r\n"])
@pytest.mark.parametrize("target", ["/channels/x", "/channels/x?wait=1", "/health"])
def test_contradicting_lengths_allow_no_request_smuggling(server, lengths, target):
    """The server closes the connection, and does not parse the following bytes as a request."""
    with Raw(server) as connection:
        connection.send(
            f"GET {target} HTTP/1.1\r\nHost: {connection.host}\r\n{lengths}\r\n"
            f"0\r\n\r\nPOST /channels/x HTTP/1.1\r\nHost: {connection.host}\r\n"
            "Content-Length: 8\r\n\r\nsmuggled"
        )
        response = connection.read_response()
        assert response.status == 400 and response.json()["error"] == "bad_length"
        assert connection.is_ended()
    assert server.history("x")["messages"] == []


def test_valid_forms_of_chunked_are_accepted(server, channel):
    for form in ("chunked", "Chunked", " chunked "):
        with Raw(server) as connection:
            connection.send(
                f"POST /channels/{channel} HTTP/1.1\r\nHost: {connection.host}\r\n"
                f"Transfer-Encoding:{form}\r\n\r\n3;name=value\r\none\r\nA\r\n and a ten\r\n"
                "0\r\nTrailer: x\r\n\r\n"
            )
            assert connection.read_response().status == 201
    assert {m["data"] for m in server.history(channel)["messages"]} == {"one and a ten"}


def test_the_largest_message_is_accepted(server, channel):
    server.publish(channel, b"x" * MESSAGE_BYTES_MAX)
    response = server.http.post(f"/channels/{channel}", content=b"x" * (MESSAGE_BYTES_MAX + 1))
    assert response.status_code == 413 and response.json()["error"] == "too_large"


NAMES = {
    "empty": "",
    "256 bytes": "x" * 256,
    "256 bytes of UTF-8": "%C3%BC" * 128,
    "not UTF-8": "%FF%FE",
    "cut UTF-8": "%C3",
    "overlong UTF-8": "%C0%AF",
    "surrogate": "%ED%A0%80",
    "NUL": "a%00b",
    "line feed": "a%0Ab",
    "DEL": "a%7Fb",
    "C1 control": "a%C2%85b",
    "escape without digits": "a%zz",
    "cut escape": "a%4",
    "dot": "%2E",
    "dot dot": "%2E%2E",
    "dot dot inside": "a%2F..%2Fb",
    "dot inside": "a%2F.%2Fb",
    "slash at the start": "%2Fa",
    "slash at the end": "a%2F",
    "two slashes": "a%2F%2Fb",
}


@pytest.mark.parametrize("kind", ["channels", "users"])
@pytest.mark.parametrize("case", NAMES)
def test_a_bad_name_is_refused(server, case, kind):
    """Subscribing, publishing and reading apply the same rules to names."""
    target = f"/{kind}/{NAMES[case]}"
    assert_refused(server, get(target), 400, "bad_name")
    assert_refused(server, post("Content-Length: 1\r\n", "x", target), 400, "bad_name")
    if NAMES[case]:
        assert_refused(server, get(target + "/history"), 400, "bad_name")
        assert_refused(server, get(target + "/presence"), 400, "bad_name")


@pytest.mark.parametrize("case", NAMES)
def test_a_bad_name_in_a_query_is_refused(server, case):
    assert_refused(server, get(f"/subscribe?channel=a&channel={NAMES[case]}"), 400, "bad_name")
    assert_refused(server, get(f"/channels/x?user={NAMES[case]}"), 400, "bad_name")


def test_raw_dot_segments_are_not_resolved(server):
    for target in ("/channels/..", "/channels/../chat", "/channels/a/../b", "/../etc/passwd"):
        with Raw(server) as connection:
            connection.request("GET", target, {"Connection": "close"})
            response = connection.read_response()
            assert response.status in (400, 404), (target, response)
            assert_one_sentence(response.json()["message"])


def test_the_longest_name_is_accepted(server):
    assert server.publish("n" * 255, "x")["subscribers"] == 0
    assert server.publish("ü" * 127, "x")["subscribers"] == 0


IDS = ["xyz", "k3v9x2-", "-5", "k3v9x2--1", "k3v9x2-1x", f"k3v9x2-{10**30}", "k3v9x2-1,k3v9x2-2"]


@pytest.mark.parametrize("id", IDS)
def test_a_malformed_id_is_refused(server, id):
    for target in ("/channels/x", "/users/x", "/channels/x?wait=1"):
        joint = "&" if "?" in target else "?"
        assert_refused(server, get(f"{target}{joint}since={id}"), 400, "bad_id")
    assert_refused(server, get("/channels/x", f"Last-Event-ID: {id}\r\n"), 400, "bad_id")
    assert_refused(server, get(f"/channels/x/history?after={id}"), 400, "bad_id")
    assert_refused(server, get(f"/channels/x/history?before={id}"), 400, "bad_id")


def test_fewer_ids_than_channels_are_refused(server):
    target = "/subscribe?channel=a&channel=b&since=k3v9x2-1"
    assert_refused(server, get(target), 400, "bad_id")


PARAMETERS = [
    "/channels/x?wait=soon",
    "/channels/x?wait=301",
    "/channels/x?wait=-1",
    "/channels/x?history=all",
    "/channels/x?history=-1",
    "/channels/x?transport=pigeon",
    "/channels/x?envelope=maybe",
    "/channels/x?welcome=perhaps",
    "/subscribe",
    "/subscribe?user=a&user=b",
    "/channels/x/history?limit=-1",
    "/channels/x/history?limit=1001",
    "/channels/x/history?limit=few",
    "/channels/x/history?before=k3v9x2-1&after=k3v9x2-1",
    "/channels/x/presence?limit=0",
]


@pytest.mark.parametrize("target", PARAMETERS, ids=lambda target: target[:50])
def test_a_bad_parameter_is_refused(server, target):
    assert_refused(server, get(target), 400, "bad_parameter")


def test_more_channels_than_a_connection_may_follow_are_refused(server):
    target = "/subscribe?" + "&".join(f"channel=c{n}" for n in range(129))
    assert_refused(server, get(target), 400, "too_many_channels")


def body(content, type):
    return post(f"Content-Type: {type}\r\nContent-Length: {len(content)}\r\n", content)


BODIES = {
    "cut JSON": (body('{"a":', "application/json"), "bad_json"),
    "empty JSON": (body("", "application/json"), "bad_json"),
    "two JSON values": (body("1 2", "application/json"), "bad_json"),
    "JSON with a comma too many": (body("[1,]", "application/ld+json"), "bad_json"),
    "JSON that is not UTF-8": (body('"\xff"', "application/json"), "bad_json"),
    "text that is not UTF-8": (body("\xff", "text/plain"), "bad_utf8"),
    "nothing said, not UTF-8": (post("Content-Length: 1\r\n", "\xff"), "bad_utf8"),
}


@pytest.mark.parametrize("case", BODIES)
def test_a_bad_body_is_refused(server, case):
    data, code = BODIES[case]
    assert_refused(server, data, 400, code)
    assert server.history("x")["messages"] == []


BATCH_LINES = {
    '{"channel":"x"': "bad_json",
    "nonsense": "bad_json",
    "[]": "bad_json",
    '{"channel":"","data":1}': "bad_name",
    '{"channel":"a/../b","data":1}': "bad_name",
    '{"data":1}': "bad_request",
    '{"channel":"x","user":"y","data":1}': "bad_request",
    '{"channel":"x"}': "bad_request",
    '{"channel":7,"data":1}': "bad_request",
    '{"channel":"x","data":"!!","encoding":"base64"}': "bad_request",
    '{"channel":"x","data":1,"encoding":"rot13"}': "bad_request",
    json.dumps({"channel": "x", "data": "x" * (MESSAGE_BYTES_MAX + 1)}): "too_large",
}


def test_a_bad_batch_line_is_answered_with_its_error(server, channel):
    """A bad line does not affect the other lines."""
    good = json.dumps({"channel": channel, "data": "good"})
    content = "".join(f"{line}\n{good}\n" for line in BATCH_LINES)
    response = server.http.post("/publish", content=content)
    assert response.status_code == 200
    answers = [json.loads(line) for line in response.text.splitlines()]
    codes = [answer.get("error") for answer in answers[::2]]
    assert dict(zip(BATCH_LINES, codes)) == BATCH_LINES
    for answer in answers[::2]:
        assert_one_sentence(answer["message"])
    assert all("id" in answer for answer in answers[1::2])
    assert server.history("x")["messages"] == []


def test_a_slow_head_gets_408(serve):
    server = serve("--head-timeout", "1s")
    for start in ("", "GET /channels/x HT", "GET /channels/x HTTP/1.1\r\nHost: x\r\n"):
        before = refusals(server)
        with Raw(server) as connection:
            connection.send(start)
            if start:
                response = connection.read_response()
                assert (response.status, response.json()["error"]) == (408, "too_slow")
                assert_counted(server, before)
            connection.read_to_end()


def test_a_trickling_head_gets_408(serve):
    """The deadline applies to the whole head; single bytes do not extend it."""
    server = serve("--head-timeout", "1s")
    with Raw(server) as connection:
        connection.socket.settimeout(0.05)
        head = iter("GET /channels/x HTTP/1.1\r\nHost: x\r\n" + "X: 1\r\n" * 100000)
        answer = b""
        while b"\r\n\r\n" not in answer:
            try:
                connection.send_anyway(next(head))
                answer += connection.socket.recv(4096)
            except TimeoutError:
                continue
            except ConnectionResetError:
                break
        assert answer.startswith(b"HTTP/1.1 408 ")


def test_a_connection_without_the_announced_body_is_closed(serve):
    server = serve("--head-timeout", "1s", "--idle-timeout", "1s")
    with Raw(server) as connection:
        connection.send(
            f"POST /channels/x HTTP/1.1\r\nHost: {connection.host}\r\nContent-Length: 5\r\n\r\nab"
        )
        response = connection.read_response()
        assert response.status == 408 and response.json()["error"] == "too_slow"
        assert connection.is_ended()
    assert server.history("x")["messages"] == []
