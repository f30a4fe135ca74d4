"""Frames that break the rules, and what they do to the connection (harness-api 2)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from services.dev_core.harness import connection
from tests.dev_core.support import BOUND_S, HELPER, CoreClient, Harness, Refused, eventually, running_core


async def close_of(harness: Harness) -> tuple[int, str]:
    async with asyncio.timeout(BOUND_S):
        await harness.closed.wait()
        await harness.socket.wait_closed()
    received = harness.socket.protocol.close_rcvd
    assert received is not None
    return received.code, received.reason


@pytest.mark.spec("harness-api:10.3")
@pytest.mark.parametrize("text", [b"{}", "{", "\ufeff{}", "", "NaN", '{"t":"ping"} x'])
async def test_what_is_not_json_text_closes_with_1007(core: CoreClient, text: str | bytes) -> None:
    harness = await core.connect()
    await harness.raw(text)
    assert await close_of(harness) == (1007, "Harness API frames are JSON text")


@pytest.mark.spec("harness-api:10.4")
@pytest.mark.parametrize(
    "text",
    [
        "null",
        "1",
        '"x"',
        "[]",
        "{}",
        '{"t":"other"}',
        '{"t":"res","id":3,"ok":true}',
        '{"t":"res","id":1.5,"ok":true,"r":{}}',
        '{"t":"ping","x":1}',
        '{"t":"msg","m":"","p":{}}',
        '{"t":"abort","id":"1"}',
        '{"t":"req","id":"1","m":"x","p":{}}',
    ],
)
async def test_an_invalid_frame_that_can_not_be_answered_closes_with_1000(
    core: CoreClient, text: str
) -> None:
    harness = await core.connect()
    await harness.raw(text)
    code, reason = await close_of(harness)
    assert code == 1000
    assert reason.startswith("invalid frame: ")
    assert len(reason.encode()) <= 122


@pytest.mark.spec("harness-api:10.4")
@pytest.mark.parametrize(
    "frame",
    [
        '{"t":"req","id":77,"m":"lease"}',
        '{"t":"req","id":77,"m":"lease","p":{},"x":1}',
        '{"t":"req","id":77,"m":"unheard.of","p":{}}',
        '{"t":"req","id":77,"m":"workspace.report","p":{}}',
        '{"t":"req","id":77,"m":"lease","p":{"slots":0}}',
        '{"t":"req","id":77,"m":"lease","p":{"extra":1}}',
        '{"t":"req","id":77,"m":"effect.outcome","p":{"runId":"r","effectId":"e","value":1,"error":"x"}}',
        '{"t":"req","id":77,"m":"effect.outcome","p":{"runId":"r","effectId":"e"}}',
        f'{{"t":"req","id":77,"m":"event","p":{"[" * 1000}{"]" * 1000}}}',
    ],
)
async def test_a_bad_request_is_answered_invalid_and_the_connection_stays(
    core: CoreClient, frame: str
) -> None:
    harness = await core.connect()
    harness._next = 76
    _, answer = harness.start("hello", {"api": 1})
    assert harness._next == 77
    with pytest.raises(Refused) as caught:
        await answer
    assert caught.value.code == "invalid"
    future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    harness._pending[77] = ("lease", future)
    await harness.raw(frame)
    with pytest.raises(Refused) as caught:
        async with asyncio.timeout(BOUND_S):
            await future
    assert caught.value.code == "invalid"
    harness._next = 100
    assert (await harness.hello())["api"] == 1


@pytest.mark.spec("harness-api:10.5")
async def test_what_means_nothing_to_core_is_ignored(core: CoreClient) -> None:
    harness = await core.connect()
    for frame in (
        {"t": "res", "id": 9, "ok": True, "r": {}},
        {"t": "res", "id": 9, "ok": False, "e": {"code": "internal", "message": "x"}},
        {"t": "abort", "id": 99},
        {"t": "msg", "m": "cancel", "p": {"runId": "r", "reason": "cancel"}},
        {"t": "msg", "m": "unheard.of", "p": None},
        {"t": "ping"},
    ):
        await harness.raw(json.dumps(frame))
    assert (await harness.hello())["tenantId"]


@pytest.mark.spec("harness-api:10.35")
async def test_a_message_over_64_mib_closes_with_1009(core: CoreClient) -> None:
    harness = await core.connect()
    await harness.raw('"' + "x" * (64 * 1024 * 1024) + '"')
    assert (await close_of(harness))[0] == 1009


async def test_a_harness_says_hello_before_it_leases(core: CoreClient) -> None:
    harness = await core.connect(hello=False)
    with pytest.raises(Refused, match="invalid"):
        await harness.ask("lease", {})
    answer = await harness.hello()
    assert answer == {"api": 1, "tenantId": "tn_dev", "sandbox": {"backend": None}, "renewEveryMs": 10000}


async def test_a_second_outstanding_lease_is_refused(core: CoreClient) -> None:
    harness = await core.connect()
    harness.start("lease", {})
    with pytest.raises(Refused, match="outstanding"):
        await harness.ask("lease", {})


@pytest.mark.spec("harness-api:10.32")
async def test_a_silent_harness_is_dropped_and_one_that_answers_pings_is_not() -> None:
    async with running_core(ping_ms=30, silence_ms=90) as core:
        silent = await core.connect()
        answering = await core.connect()
        silent.socket.transport.pause_reading()

        async def one_left() -> bool:
            return bool((await core.get("/health")).body["harness"]["harnesses"] == 1)

        await eventually(one_left, "the silent harness is dropped")
        assert await answering.hello()
        silent.socket.transport.resume_reading()


async def test_messages_in_fragments_are_taken_in_their_order(core: CoreClient) -> None:
    harness = await core.connect(hello=False)
    text = '{"t":"req","id":1,"m":"hello","p":{"api":1,"name":"x","version":"0","capabilities":{}}}'
    future: asyncio.Future[dict[str, object]] = asyncio.get_running_loop().create_future()
    harness._pending[1] = ("hello", future)
    harness._next = 1

    async def pieces() -> AsyncIterator[str]:
        for start in range(0, len(text), 7):
            yield text[start : start + 7]

    await harness.socket.send(pieces())
    # In one piece, and only served when the hello before it was.
    _, lease = harness.start("lease", {})
    async with asyncio.timeout(BOUND_S):
        assert (await future)["api"] == 1
    await core.agent()
    await core.say(await core.session())
    async with asyncio.timeout(BOUND_S):
        assert (await lease)["run"]["epoch"] == 1


async def test_text_that_is_not_utf8_closes_with_1007(core: CoreClient) -> None:
    harness = await core.connect()
    async with harness.socket.send_context():
        harness.socket.protocol.send_text(b'"\xff"')
    assert (await close_of(harness))[0] == 1007


async def test_many_requests_at_once_are_all_answered(
    core: CoreClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "MAX_IN_FLIGHT", 8)
    await core.agent(HELPER)
    await core.say(await core.session("helper"))
    harness = await core.connect()
    lease = await harness.lease()
    answers = [
        harness.start("effect.intent", lease.ask_intent(lease.call("bash", f"c{n}", "box")))[1]
        for n in range(500)
    ]
    async with asyncio.timeout(3 * BOUND_S):
        assert {answer["status"] for answer in await asyncio.gather(*answers)} == {"execute"}
