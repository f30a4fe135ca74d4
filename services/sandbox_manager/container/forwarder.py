"""The program in the container beside a workspace's: from a port of their shared network to the proxy's socket.

Started as `python3 -I -S -c SOURCE`; it imports the standard library alone and decides nothing: what may be
reached is decided by the proxy, in the manager's process.
"""

import asyncio
import contextlib

PORT = 3128
SOCKET = "/run/egress/proxy.sock"
READ_BYTES = 65536


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Passes on what comes, and its end."""
    while data := await reader.read(READ_BYTES):
        writer.write(data)
        await writer.drain()
    with contextlib.suppress(OSError, RuntimeError):
        writer.write_eof()


async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Serves one connection until both directions have ended, or one has failed."""
    with contextlib.suppress(OSError):
        try:
            there, to_there = await asyncio.open_unix_connection(SOCKET)
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(copy(reader, to_there))
                    group.create_task(copy(there, writer))
            except* OSError:
                pass  # one end is gone
            finally:
                to_there.close()
        finally:
            writer.close()


async def main() -> None:
    """Serves until it is killed."""
    server = await asyncio.start_server(connection, "127.0.0.1", PORT)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
