"""A session of 10,000 events stays usable. The figures are bounds at five times what is aimed at."""

import json

import pytest

from services.dev_core.store import effects, events
from services.dev_core.store.effects import Effect
from tests.browser.support import Page, seconds
from tests.dev_core.support import running_core

pytestmark = [pytest.mark.browser, pytest.mark.timeout(120)]

EVENTS = 10_000
OPEN_BOUND_S = 5 * 2.0
PAINT_BOUND_MS = 5 * 500


def fill(tx, session_id, turn_id):
    """Model calls and tool calls as a long turn leaves them."""
    block = {"type": "tool-call", "name": "bash", "args": {"command": "echo"}}
    for number in range(EVENTS // 2):
        model, tool = f"{turn_id}:0:model:{number}", f"{turn_id}:0:tool:{number}"
        answer = {"value": {"output": [{**block, "id": f"c{number}"}], "finishReason": "tool-calls"}}
        result = {
            "value": {"kind": "completed", "output": {"exitCode": 0, "stdout": "x" * 200, "stderr": ""}}
        }
        for effect_id, kind, outcome in ((model, "model", answer), (tool, "tool", result)):
            label = {"effectId": effect_id, "kind": kind, "toolName": "bash", "callId": f"c{number}"}
            effects.insert(
                tx,
                Effect(
                    session_id=session_id,
                    effect_id=effect_id,
                    turn_id=turn_id,
                    segment=0,
                    kind=kind,
                    call_id=None,
                    runner="model" if kind == "model" else "sandbox",
                    status="completed",
                    request_hash="h",
                    started_ms=number * 10,
                    ended_ms=number * 10 + 8,
                    attempts=1,
                    error=None,
                    label=json.dumps(label),
                    request=json.dumps({"toolName": "bash"}),
                    outcome=json.dumps(outcome),
                ),
            )
            event = "message.assistant" if kind == "model" else "tool.completed"
            events.append(tx, session_id, event, turn_id, json.dumps(label), 0, effect_id=effect_id)


async def _prepared():
    context = running_core()
    core = await context.__aenter__()
    await core.agent()
    session = await core.session()
    turn = await core.say(session)
    await core.ready.core.store.write(lambda tx: fill(tx, session, turn))
    return context, core, session


def test_ten_thousand_events_open_and_scroll(browser, loop):
    context, core, session = loop.run(_prepared())
    try:
        page = Page(browser, core.ready.http)

        def opened():
            page.open(f"/sessions/{session}")
            page.wait(lambda: len(page.all("details.call")) >= EVENTS // 2, "every call")

        assert seconds(opened) < OPEN_BOUND_S
        paint = page.run("return performance.getEntriesByName('first-contentful-paint')[0].startTime")
        assert paint < PAINT_BOUND_MS
        longest = browser.execute_async_script(
            """const done = arguments[0]; const root = document.documentElement;
            let last = performance.now(), longest = 0, frames = 0; root.style.scrollBehavior = 'auto';
            function frame(now) {
              longest = Math.max(longest, now - last); last = now;
              root.scrollTop = (frames += 1) * 800;
              if (frames < 60) requestAnimationFrame(frame); else done(longest);
            }
            requestAnimationFrame(frame);"""
        )
        assert longest < 5 * 400
    finally:
        loop.run(context.__aexit__(None, None, None))
