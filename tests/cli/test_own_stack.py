"""The end of a stack that a command started for itself."""

import asyncio
import os
import signal
import sys

import pytest

from cli.own_stack import _stop

pytestmark = [pytest.mark.system, pytest.mark.timeout(60)]

STUBBORN = """
import signal, sys
seen = []
def note(number, frame):
    seen.append(number)
    print("stopping", flush=True)
    if len(seen) == 2:
        sys.exit(7)
signal.signal(signal.SIGTERM, note)
print("up", flush=True)
while True:
    signal.pause()
"""


async def test_ctrl_c_during_the_stop_is_handed_on_and_ends_it_at_once():
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", STUBBORN), stdout=asyncio.subprocess.PIPE, start_new_session=True
    )
    assert await process.stdout.readline() == b"up\n"
    stopping = asyncio.create_task(_stop(process))
    assert await asyncio.wait_for(process.stdout.readline(), 30) == b"stopping\n"
    assert not stopping.done()
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.wait_for(stopping, 30)
    assert process.returncode == 7
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
