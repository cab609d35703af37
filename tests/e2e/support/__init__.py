"""What the end-to-end tests share: the server under test, raw sockets, and the four transports."""

# Every wait for an expected event fails after this time, also on a slow machine. It limits failures
# only: a test that passes does not wait for it.
TIMEOUT_SECONDS = 20
