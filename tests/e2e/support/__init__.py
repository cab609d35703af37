"""What the end-to-end tests share: the server under test, raw sockets, and the four transports."""

# Every wait for something that should happen ends after this long, on however slow a machine. It is
# a limit for failures, not a pace: nothing waits for it when all is well.
PATIENCE_SECONDS = 20
