#!/usr/bin/env python3
"""Carries the suite's connections to a server over TLS, which the suite itself no longer speaks: prints
the port where it listens. Usage: tls-proxy.py HOST:PORT"""

import asyncio
import contextlib
import ssl
import sys

READ_BYTES = 64 * 1024


async def copy(reader, writer):
    with contextlib.suppress(OSError):
        while data := await reader.read(READ_BYTES):
            writer.write(data)
            await writer.drain()
    # The other side ends, too: the suite notices who has closed first.
    with contextlib.suppress(OSError):
        writer.close()


async def main():
    host, port = sys.argv[1].rsplit(":", 1)
    # The certificate is made for the run.
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE

    async def carry(reader, writer):
        secure = await asyncio.open_connection(host, port, ssl=context)
        await asyncio.gather(copy(reader, secure[1]), copy(secure[0], writer))

    server = await asyncio.start_server(carry, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


asyncio.run(main())
