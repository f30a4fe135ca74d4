"""A whole stack on the direct route: no kill, move or restart asks a provider twice (model-executor 13.7)."""

import asyncio
import base64
import json

import aiohttp
import pytest
import pytest_asyncio

from cli.model_choice import choose_model
from cli.stack import GATEWAY, MODEL
from tests.common.support import until as soon
from tests.doubles.http import serving
from tests.doubles.providers import ProviderDouble, openai_text
from tests.leaks.watch import secret
from tests.system.model_stack import ModelStack

pytestmark = [
    pytest.mark.faults,
    pytest.mark.system,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(120),
]
KEY = secret("sk-key-of-the-stack-0123456789")


class Gated(ProviderDouble):
    """Answers when the test says so."""

    def renew(self):
        self.go = asyncio.Event()
        self.requests.clear()
        self.lost = 0

        async def reply(wire):
            await self.go.wait()
            await openai_text()(wire)

        self.replies = [reply]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def made(tmp_path_factory):
    provider = Gated()
    provider.renew()
    async with serving(provider):
        folder = tmp_path_factory.mktemp("direct")
        stack = ModelStack(folder, {})
        environ = {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": f"{provider.origin}/v1"}
        choice = choose_model("openai/m", environ, stack.plan.state.path, stack.plan.core_url())
        stack.choose(choice)
        await stack.start()
        yield stack, provider
        provider.go.set()
        await stack.stop()


@pytest_asyncio.fixture(loop_scope="module")
async def stack(made):
    stack, provider = made
    provider.renew()
    stack.provider = provider
    mark = len(stack.log)
    yield stack
    print("\n" + stack.tail(min(60, len(stack.log) - mark)))
    assert not any(KEY in line for _, line in stack.log)


async def asked(stack, at=None):
    """A turn whose model call is at the provider."""
    session = await stack.session(at)
    await stack.say(session)
    await soon(lambda: stack.provider.requests)
    return session


async def completed(stack, session):
    stack.provider.go.set()
    view = await stack.ended(session)
    assert view["status"] == "completed", view
    assert view["lastTurn"]["result"]["output"] == "hello"
    assert len(stack.provider.requests) == 1


async def lost(stack, session):
    """The turn failed, nothing was asked again, and the session goes on."""
    view = await stack.ended(session)
    assert view["status"] == "failed", view
    assert view["lastTurn"]["result"]["error"]["code"] == "model.transient"
    assert len(stack.provider.requests) == 1
    stack.provider.go.set()
    turn = await stack.say(session, "and now?")
    view = await stack.ended(session, turn)
    assert view["status"] == "completed", view
    assert len(stack.provider.requests) == 2


async def test_a_killed_gateway_joins_its_running_call(stack):
    session = await asked(stack)
    stack.kill(GATEWAY)
    await soon(stack.joined)
    await completed(stack, session)


@pytest.mark.parametrize("who", [(MODEL,), (GATEWAY, MODEL)], ids="+".join)
async def test_a_killed_executor_s_call_is_lost_and_the_session_goes_on(stack, who):
    session = await asked(stack)
    for name in who:
        assert stack.kill(name) is not None
    await lost(stack, session)


async def test_a_killed_gateway_joins_its_call_where_it_runs_though_a_replica_was_added(stack):
    session = await asked(stack, at=stack.second)
    async with stack.second_executor():
        stack.kill(GATEWAY)
        await soon(lambda: any("model_call_joined_elsewhere" in line for _, line in stack.log))
        await completed(stack, session)


async def test_both_killed_while_a_replica_was_added_the_call_is_lost_there_too(stack):
    session = await asked(stack, at=stack.second)
    async with stack.second_executor():
        stack.kill(GATEWAY)
        stack.kill(MODEL)
        await lost(stack, session)


async def test_a_call_of_an_executor_that_moves_to_another_address_is_not_sent_again_there(stack):
    session = await asked(stack)
    async with stack.second_executor():
        stack.kill(MODEL)
        await lost(stack, session)


async def test_a_stopped_executor_s_call_is_given_up_and_the_session_goes_on(stack):
    session = await asked(stack)
    stack.stop_process(MODEL)
    await lost(stack, session)


async def test_a_cancel_closes_the_provider_s_connection(stack):
    session = await asked(stack)
    await stack.cancel(session)
    await soon(lambda: stack.provider.lost == 1)
    assert (await stack.ended(session))["status"] == "cancelled"
    assert len(stack.provider.requests) == 1


async def test_a_file_of_the_core_goes_along_in_a_message(stack):
    image = b"\x89PNG\r\n\x1a\n" + bytes(range(200))
    stack.provider.go.set()
    session = await stack.session()
    async with aiohttp.ClientSession() as http:
        url = f"{stack.plan.core_url()}/v1/sessions/{session}"
        async with http.post(
            f"{url}/artifacts?name=a.png", data=image, headers={"Content-Type": "image/png"}
        ) as answer:
            artifact = await answer.json()
        reference = {"artifactId": artifact["artifactId"], "version": artifact["version"]}
        part = {"type": "media", "mediaType": "image/png", "reference": reference}
        async with http.post(
            f"{url}/messages", json={"content": [{"type": "text", "text": "see"}, part]}
        ) as answer:
            assert answer.status == 202, await answer.text()
    view = await stack.ended(session)
    assert view["status"] == "completed", view
    [body] = stack.provider.bodies
    assert base64.b64encode(image).decode() in json.dumps(body)
