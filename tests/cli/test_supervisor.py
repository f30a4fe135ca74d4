import asyncio
import os
import signal
import sys
import textwrap

import pytest

from cli.stack import ProcessSpec
from cli.supervisor import Supervisor
from services.common.process import StartFailed


def spec(name, code):
    return ProcessSpec(
        name, (sys.executable, "-S", "-c", textwrap.dedent(code)), {"PATH": os.environ["PATH"]}
    )


SERVING = """
import signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
print("serving", flush=True)
signal.sigwait({signal.SIGTERM})
print("stopped", flush=True)
"""


class Lines:
    def __init__(self):
        self.seen = []
        self._changed = asyncio.Condition()

    def __call__(self, name, line):
        self.seen.append((name, line))
        asyncio.get_running_loop().create_task(self._tell())

    async def _tell(self):
        async with self._changed:
            self._changed.notify_all()

    async def until(self, predicate):
        async with asyncio.timeout(20), self._changed:
            await self._changed.wait_for(lambda: predicate(self.seen))


async def test_processes_stop_in_order_with_the_gateway_first_and_the_core_last():
    lines, stop = Lines(), asyncio.Event()
    supervisor = Supervisor([spec(name, SERVING) for name in ("dev-core", "mcp-pool", "gateway")], lines)
    run = asyncio.create_task(supervisor.run(stop))
    await lines.until(lambda seen: sum(line == "serving" for _, line in seen) == 3)
    stop.set()
    await asyncio.wait_for(run, 20)
    assert [name for name, line in lines.seen if line == "stopped"] == ["gateway", "mcp-pool", "dev-core"]


async def test_a_killed_process_is_started_again():
    lines, stop = Lines(), asyncio.Event()
    supervisor = Supervisor([spec("gateway", SERVING)], lines)
    run = asyncio.create_task(supervisor.run(stop))
    await lines.until(lambda seen: ("gateway", "serving") in seen)
    os.kill(supervisor.pid("gateway"), signal.SIGKILL)
    await lines.until(lambda seen: seen.count(("gateway", "serving")) == 2)
    assert any(name == "up" and "killed by signal 9" in line for name, line in lines.seen)
    stop.set()
    await asyncio.wait_for(run, 20)
    assert supervisor.starts("gateway") == 2


async def test_a_process_that_refuses_its_configuration_ends_the_whole_stack():
    lines = Lines()
    broken = spec("gateway", "import sys; print('TOKEN is required.', file=sys.stderr); sys.exit(1)")
    supervisor = Supervisor([spec("dev-core", SERVING), broken], lines)
    with pytest.raises(StartFailed, match=r"gateway could not start: TOKEN is required\."):
        await asyncio.wait_for(supervisor.run(asyncio.Event()), 20)
    assert supervisor.pid("dev-core") is None
