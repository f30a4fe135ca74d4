"""SIGKILL of the gateway and of the core at each effect of a flow: it ends as if nothing was.

The flow: a function that makes a list, an agent for each of two items, an agent that a function sends back
once, and a tool. A process is killed when an effect was just asked for, so after the one before it was recorded.
"""

import asyncio

import pytest
import pytest_asyncio

from cli.stack import CORE, GATEWAY
from tests.dev_core.endpoint import endpoint
from tests.dev_core.flow_player import FN, workflow
from tests.system.support import ENDED, Stack, patiently, until

pytestmark = [
    pytest.mark.faults,
    pytest.mark.system,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(120),
]

FLOW = workflow(
    {
        "chain": [
            {"map": {"each": {"agent": "w"}}, "input": FN, "id": "m"},
            {"loop": {"run": {"agent": "e", "input": FN}, "verify": FN, "max": 3}, "id": "l"},
            {"tool": {"name": "send"}},
        ]
    },
    "w",
    "e",
    name="killed-flow",
)
EFFECTS = [
    "m:input:fn:-",
    "w[0]:agent:-",
    "w[1]:agent:-",
    "e:input:fn:1",
    "e:agent:1",
    "l:verify:verify:1",
    "e:input:fn:2",
    "e:agent:2",
    "l:verify:verify:2",
    "send:tool:-",
]
OUTPUT = "sent: second draft"


def function(intent):
    """What the application's functions and its tool answer."""
    given = intent["input"]
    match intent["key"]:
        case "m:input":
            return ["x", "y"]
        case "e:input":
            return given["input"] if given["input"] == "again" else ", ".join(given["input"])
        case "l:verify":
            return {"pass": True} if given["iteration"] == 2 else {"pass": False, "feedback": "again"}
        case "send":
            return {"kind": "completed", "output": f"sent: {given}"}
    raise AssertionError(intent)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def actions():
    async with endpoint() as made:

        async def script(intent):
            await asyncio.sleep(0.03)  # long enough for a kill to meet it; nothing waits for it
            return await made.answer(200, {"value": function(intent)})(intent)

        made.script = script
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory, actions):
    answers = [
        {"agent": "w", "delayMs": 50, "answer": "said"},
        {"agent": "e", "text": "said, said", "delayMs": 50, "answer": "first draft"},
        {"agent": "e", "text": "again", "delayMs": 50, "answer": "second draft"},
    ]
    core_settings = {"WHIPPLETREE_CORE_LEASE_MS": "1500"}
    stack = Stack(tmp_path_factory.mktemp("stack"), answers, core_settings=core_settings)
    await stack.start()
    async with stack.core() as core:
        await core.put_agent(FLOW["id"], FLOW, actions.url)
    yield stack
    await stack.stop()


@pytest.fixture(autouse=True)
def _log_of_a_failure(request, stack):
    mark = len(stack.log)
    yield
    print("\n" + stack.tail(min(80, len(stack.log) - mark)))


@pytest.mark.parametrize("index", range(len(EFFECTS)))
@pytest.mark.parametrize("process", [GATEWAY, CORE])
async def test_a_killed_process_changes_nothing_of_a_flow(stack, actions, process, index):
    actions.posts.clear()
    async with stack.core() as core:
        session = await patiently(lambda: core.create_session(FLOW["id"]))
        turn = await patiently(lambda: core.send_message(session, "go"))

        await until(lambda: core.effects(session, turn), lambda seen: len(seen) > index, pause=0.003)
        assert stack.kill(process) is not None
        view = await until(lambda: core.session(session), lambda seen: seen["status"] in ENDED)
        effects = await patiently(lambda: core.effects(session, turn))

    asked = [effect["effectId"].removeprefix(f"{turn}:0:flow:") for effect in effects]
    assert asked == EFFECTS
    posts = {key.removeprefix(f"{turn}:0:flow:"): count for key, count in actions.posts.items()}
    sent = posts.pop("send:tool:-", 0)
    if view["status"] == "uncertain":
        # The core was killed with the tool under way: it may have run, so it isn't called again.
        assert process == CORE
        assert effects[-1]["status"] == "uncertain"
        assert sent <= 1
        return
    assert sent == 1
    assert view["status"] == "completed", view
    assert view["lastTurn"]["result"]["output"] == OUTPUT
    assert [effect["status"] for effect in effects] == ["completed"] * len(EFFECTS)
    assert len(posts) == 5
    assert max(posts.values()) <= (1 if process == GATEWAY else 2)
