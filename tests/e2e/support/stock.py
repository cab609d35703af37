"""Stock clients of the Pusher protocol, which a script beside drives."""

import json


class Stock:
    """Tells the script beside, and reads what comes of it."""

    def __init__(self, child):
        self.child, self.lines = child, []

    def tell(self, name, *what):
        self.child.stdin.write(json.dumps([name, *what]) + "\n")
        self.child.stdin.flush()

    def wait(self, *line):
        """Waits for a line that begins so, wherever it stands among others; returns the rest of it."""
        while True:
            for at, known in enumerate(self.lines):
                if known[: len(line)] == [*line]:
                    return self.lines.pop(at)[len(line) :]
            text = self.child.stdout.readline()
            assert text, f"the script has ended; {line} has not come, but {self.lines}"
            self.lines.append(json.loads(text))

    def connect(self, name, user, **more):
        self.tell(name, "connect", {"user": user, **more})
        self.wait(name, "state", "connected")

    def follow(self, name, channel):
        self.tell(name, "subscribe", channel)
        return self.wait(name, "event", channel, "pusher:subscription_succeeded")

    def library(self, *what):
        self.tell("library", *what)
        return self.wait("library")
