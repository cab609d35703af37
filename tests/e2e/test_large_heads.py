"""The longest head that the settings allow survives every hand-off between threads."""

from support.raw import Raw

HEAD_BYTES = 64 * 1024


def head(server, path, accept):
    """A request of exactly the maximum size, in fields of ordinary length."""
    text = f"GET {path} HTTP/1.1\r\nHost: {server.host}:{server.port}\r\nAccept: {accept}\r\n"
    number = 0
    while len(text) + 2 < HEAD_BYTES:
        name = f"X-{number}: "
        left = HEAD_BYTES - 2 - len(text) - len(name) - 2
        # The remainder must suffice for a field, or be zero.
        count = left if left <= 8000 else min(8000, left - 100)
        text += name + "a" * count + "\r\n"
        number += 1
    assert len(text) + 2 == HEAD_BYTES
    return (text + "\r\n").encode()


def test_the_longest_head_reaches_the_control_plane_and_comes_back(serve, channel):
    server = serve("--workers", 1, "--max-head-bytes", "64KiB")
    with Raw(server) as client:
        for _ in range(2):
            client.send(head(server, "/health", "*/*"))
            assert client.read_response().status == 200
        # And behind another request, at once.
        both = head(server, "/health", "*/*")
        both += head(server, f"/channels/{channel}", "text/event-stream")
        client.send(both)
        assert client.read_response().status == 200
        assert client.read_head().status == 200
        server.publish(channel, "hello")
        assert b"data: hello\n" in client.read_until(b"data: hello\n")
