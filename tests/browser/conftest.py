"""One browser for all tests of the console, and one stack of real processes behind it."""

import asyncio
import shlex
import threading

import pytest
from aiohttp import web

from cli.ports import free_ports
from tests.browser.support import Page, start_browser, why_none
from tests.system.support import Stack, calls, counting_manifest

HOSTILE = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
ANSWERS = [
    {"agent": "failing", "failure": {"code": "invalid_request", "message": "No such model."}},
    calls("helper", 0, ("bash", {"command": "sleep 0.3; echo one"}), ("bash", {"command": "echo two"})),
    {"agent": "helper", "step": 1, "answer": "Both are done."},
    calls("hostile", 0, ("bash", {"command": f"echo {shlex.quote(HOSTILE)}"})),
    {
        "agent": "hostile",
        "step": 1,
        "answer": {
            "output": [{"type": "reasoning", "text": HOSTILE}, {"type": "text", "text": HOSTILE}],
            "finishReason": "stop",
        },
    },
    calls("slow", 0, ("bash", {"command": "sleep 60"})),
    calls("asker", 0, ("send_letter", {"to": "Mara"})),
    {"agent": "asker", "step": 1, "answer": "The letter is out."},
    {"answer": "Hello from the script."},
]
STEPS = {
    "kind": "workflow",
    "workflowSchemaVersion": 2,
    "id": "steps",
    "root": {"chain": [{"agent": "one"}, {"agent": "two"}]},
    "agents": {name: {"manifestSchemaVersion": 4, "id": name, "capabilities": []} for name in ("one", "two")},
}
ASKER = {
    "manifestSchemaVersion": 4,
    "id": "asker",
    "capabilities": [
        {
            "id": "post",
            "type": "agent",
            "tools": [{"name": "send_letter", "inputSchema": {"type": "object"}}],
        }
    ],
}


class Loop:
    """An event loop in a thread of its own: the browser's driver blocks, the stack does not."""

    def __init__(self):
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    def run(self, work, bound_s=60):
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(bound_s)

    def close(self):
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


@pytest.fixture(scope="session")
def loop():
    """Where the stack lives."""
    made = Loop()
    yield made
    made.close()


@pytest.fixture(scope="session")
def browser():
    """Chromium, or a skip that names the packages."""
    reason = why_none()
    if reason is not None:
        pytest.skip(reason)
    made = start_browser()
    yield made
    made.quit()


async def _act(request):
    effect = await request.json()
    if "resume" not in effect["context"]:
        asks = {"kind": "approval", "prompt": f"Send a letter to {effect['input']['to']}?"}
        return web.json_response({"value": {"kind": "interaction-required", "interaction": asks}})
    return web.json_response({"value": {"kind": "completed", "output": "sent"}})


async def _start(folder):
    app = web.Application()
    app.router.add_post("/actions", _act)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/actions"
    stack = Stack(folder, ANSWERS, environ={"WHIPPLETREE_GATEWAY_VIEW_PORT": str(free_ports().health)})
    await stack.start()
    async with stack.core() as core:
        for agent in ("helper", "hostile", "slow", "failing", "plain"):
            await core.put_agent(agent, counting_manifest(agent))
        await core._call("PUT", "/v1/agents/asker", {"manifest": ASKER, "actions": {"url": url}})
        await core.put_agent("steps", STEPS)
    return stack, runner


@pytest.fixture(scope="session")
def stack(browser, loop, tmp_path_factory):
    """Five processes and an Action endpoint."""
    folder = tmp_path_factory.mktemp("console")
    made, runner = loop.run(_start(folder), 90)
    yield made
    loop.run(made.stop())
    loop.run(runner.cleanup())


@pytest.fixture
def page(browser, stack):
    """A tab that complains of nothing."""
    browser.get_log("browser")
    made = Page(browser, stack.plan.core_url())
    yield made
    assert made.complaints() == []
