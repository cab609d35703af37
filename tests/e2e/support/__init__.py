"""What the end-to-end tests share: the server under test, raw sockets, and the four transports."""

import ssl

# Every wait for an expected event fails after this time, also on a slow machine. It limits failures
# only: a test that passes does not wait for it.
TIMEOUT_SECONDS = 120

# For HTTP clients that do not speak TLS: without a context, httpx loads the certificates that this machine
# trusts for each client, which takes 20 ms.
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
