"""A client that does nothing but ask: raw HTTP over kept connections, so that the server is what is measured.

`python -m bench.load <host> <port> <path> <key> <connections> <seconds>` prints the number of good answers.
"""

import asyncio
import sys
import time


async def ask(host: str, port: int, request: bytes, until: float) -> int:
    """Ask again as soon as the answer is there; how often it was good."""
    reader, writer = await asyncio.open_connection(host, port)
    answers = 0
    try:
        while time.monotonic() < until:
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            await reader.readexactly(length)
            if not head.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(head.decode())
            answers += 1
    finally:
        writer.close()
    return answers


async def main(host: str, port: int, path: str, key: str, connections: int, seconds: float) -> int:
    request = f"GET {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {key}\r\n\r\n".encode()
    until = time.monotonic() + seconds
    return sum(await asyncio.gather(*(ask(host, port, request, until) for _ in range(connections))))


if __name__ == "__main__":
    import uvloop

    host, port, path, key, connections, seconds = sys.argv[1:]
    print(uvloop.run(main(host, int(port), path, key, int(connections), float(seconds))))
