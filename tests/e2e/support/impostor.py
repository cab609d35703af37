"""A new process that speaks the protocol of upgrades and fails at a step of it."""

import os

from .upgrades import PROTOCOL

# A new process that takes everything, and fails after a step.
IMPOSTOR = '''#!/usr/bin/env python3
import os, signal, socket, struct, threading

class Channel:
    def __init__(self, socket):
        self.socket, self.bytes, self.descriptors, self.memories = socket, b"", [], 0

    def say(self, kind, content=b""):
        self.socket.sendall(struct.pack("<IBH", len(content), kind, 0) + content)

    def fill(self, count):
        while len(self.bytes) < count:
            piece, descriptors, _, _ = socket.recv_fds(self.socket, 65536, 253)
            if not piece:
                os._exit(1)
            self.bytes += piece
            self.descriptors += descriptors

    def hear(self):
        self.fill(7)
        length, kind, count = struct.unpack("<IBH", self.bytes[:7])
        self.fill(7 + length)
        content, self.bytes = self.bytes[7:7 + length], self.bytes[7 + length:]
        descriptors, self.descriptors = self.descriptors[:count], self.descriptors[count:]
        self.memories += kind == 11 and content != b"sockets"
        return content, descriptors

    def hear_all(self):
        """Messages until one without content. Keeps the descriptors open."""
        self.taken = []
        while (message := self.hear())[0]:
            self.taken += message[1]

    def hear_worker(self):
        self.hear()
        self.hear_all()

def all_at_once(hear):
    readers = [threading.Thread(target=hear, args=[worker]) for worker in of_workers]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()

def tell(*words):
    # At once: the log of the server goes to the same pipe.
    os.write(1, " ".join(["impostor:", *words, "\\n"]).encode())

def fail_at(step):
    if step == "{last}":
        tell(step)
        if "{how}" == "waits":
            while (number := signal.sigwait(HEARD)) != signal.SIGTERM:
                tell("heard", signal.Signals(number).name)
            tell("ended by", signal.Signals(number).name)
        os._exit(1)

# So that it does not outlive a test that has failed.
signal.alarm(300)
HEARD = [signal.SIGTERM, signal.SIGHUP]
signal.pthread_sigmask(signal.SIG_BLOCK, HEARD)
channel = Channel(socket.socket(fileno=0))
channel.say(1, b"throng" + struct.pack("<HHI", {protocol}, 65535, 0))
workers = struct.unpack("<I", channel.hear()[0][:4])[0]
channel.say(3)
of_workers = [Channel(socket.socket(fileno=channel.hear()[1][0])) for _ in range(workers)]
while channel.hear()[1]:  # Segments of logs, which come ahead.
    pass
all_at_once(Channel.hear_all)  # And so do sockets.
tell("sockets", str(sum(len(worker.taken) for worker in of_workers)))
fail_at("copied")
channel.say(10)
fail_at("ahead")
for _ in [*"{node}".split(), "logs", "kept subscriptions", "presence events"]:
    while channel.hear()[0]:
        pass
channel.hear()  # The file of revocations, if there is one.
while channel.hear()[0]:  # What the control plane has counted.
    pass
all_at_once(Channel.hear_worker)
tell("memories", str(sum(worker.memories for worker in of_workers)))
if "{last}" == "thawed":
    # With its end closed already, the last word cannot reach it.
    channel.socket.shutdown(socket.SHUT_RD)
channel.say(6)
fail_at("thawed")
channel.hear()
fail_at("commit")
'''


def replace_by_impostor(path, last, how="ends", is_node=False):
    """The next process of the file is one that fails after the step `last`."""
    text = IMPOSTOR.replace("{last}", last).replace("{how}", how)
    text = text.replace("{node}", "node" if is_node else "")
    impostor = path.with_name("impostor")
    impostor.write_text(text.replace("{protocol}", str(PROTOCOL)))
    impostor.chmod(0o755)
    os.replace(impostor, path)
