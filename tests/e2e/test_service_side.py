"""What the JavaScript package has for applications, against the real server."""

from support import TIMEOUT_SECONDS
from support.access import SECRET, server_key
from support.application import LONGEST_DEADLINE, NEW


def test_an_application_publishes_signs_tokens_and_verifies_callouts(serve, node, tmp_path):
    key, table = server_key(tmp_path, "app", "publish")
    environment = {"KEY": key, "TOKEN_SECRET": SECRET, "WEBHOOK_SECRET": NEW}
    program = node("service-side.mjs", environment=environment)
    receiver = program.stdout.readline().strip()
    assert receiver, "the program has ended"
    callout = f"[[callouts]]\nurl = '{receiver}'\nsecrets = ['{NEW}']\n{LONGEST_DEADLINE}\ndecides = ['subscribe']"
    keys = f"[[token-keys]]\nsecret = '{SECRET}'"
    (tmp_path / "throng.toml").write_text(f"{table}\n{callout}\nmatch = 'rooms/*'\n\n{keys}\n")
    server = serve()
    program.communicate(f"{server.url}\n", timeout=TIMEOUT_SECONDS * 5)
    assert program.returncode == 0
