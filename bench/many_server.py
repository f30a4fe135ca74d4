"""An MCP server of some 10 MB that tells when it was opened, and that may be hard to get rid of.

    python -S -I bench/many_server.py JOURNAL [stubborn] [forks]

The journal gets a line for each process: its id, and for the server when it was started and when it answered
`initialize` (seconds since boot). `stubborn` ignores the end of its input and SIGTERM; `forks`
starts a process that does the same.
"""

import json
import os
import signal
import sys
import time
from typing import Any

_LIFE_SECONDS = 3600


def born() -> float:
    """When the kernel started this process, in seconds since boot: the end of that tick of its clock."""
    with open("/proc/self/stat", "rb") as file:
        ticks = int(file.read().rpartition(b")")[2].split()[19])
    return (ticks + 1) / os.sysconf("SC_CLK_TCK")


def note(journal: str, *words: object) -> None:
    """Adds a line in one write."""
    descriptor = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(descriptor, (" ".join(map(str, words)) + "\n").encode())
    os.close(descriptor)


def sleep_on() -> None:
    """Stays, whatever is asked."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(_LIFE_SECONDS)


def main() -> None:
    """Answers until the input ends."""
    journal, how = sys.argv[1], sys.argv[2:]
    if "stubborn" in how:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "forks" in how and os.fork() == 0:
        note(journal, os.getpid())
        sleep_on()
    for line in sys.stdin.buffer:
        message: dict[str, Any] = json.loads(line)
        if "id" not in message:
            continue
        result: dict[str, Any] = {"tools": [{"name": "idle", "inputSchema": {"type": "object"}}]}
        if message["method"] == "initialize":
            result = {
                "protocolVersion": message["params"]["protocolVersion"],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "many", "version": "1"},
            }
            note(journal, os.getpid(), born(), time.clock_gettime(time.CLOCK_BOOTTIME))
        answer = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result})
        sys.stdout.buffer.write(answer.encode() + b"\n")
        sys.stdout.buffer.flush()
    if "stubborn" in how:
        sleep_on()


if __name__ == "__main__":
    main()
