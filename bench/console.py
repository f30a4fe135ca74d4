"""How soon the console is there, and how it copes with a long session.

A development core in this process serves it on loopback to a headless Chromium (Debian's chromium and
chromium-driver). All times are the browser's own: the first contentful paint of the page of sessions, then a
session of --events events is opened, and scrolled from its beginning for --frames frames, by half a window in
each.

Figures: `paint_ms` and `session_paint_ms` (medians; first contentful paint of the page of sessions and of the
session's), `open_ms` (median; from the start of the navigation to the frame after the last call of the session
is in the page), `paint_worst_ms`, `open_worst_ms`, `scroll_frame_ms_p50`, `scroll_frame_ms_p99` and
`scroll_worst_frame_ms` (of all rounds together), `events`. Without a screen's pace a frame takes 16.7 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import shutil
import statistics
from dataclasses import dataclass, field
from typing import Any, Final

from bench.environment import run_on_uvloop
from bench.processes import NotReady
from bench.result import BenchResult, percentile
from cli.core_client import CoreClient
from services.dev_core.main import Ready
from services.dev_core.main import run as run_core
from services.dev_core.settings import Address, Settings
from services.dev_core.store import effects, events
from services.dev_core.store.effects import Effect

BOUND_S: Final = 60.0
AGENT: Final = "bench"
_MANIFEST: Final = {"manifestSchemaVersion": 4, "id": AGENT, "capabilities": []}
_PROGRAMS: Final = ("chromium", "chromedriver")

_WATCH: Final = """
  const calls = document.getElementsByClassName("call");
  const watch = new MutationObserver(() => {
    if (calls.length < %d) return;
    watch.disconnect();
    requestAnimationFrame(() => { window.allThere = performance.now(); });
  });
  watch.observe(document, { childList: true, subtree: true });
"""
"""Runs before the page's own script, and notes when the last call is there."""

_THERE: Final = "return window.allThere ?? null"
_PAINT: Final = "return performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null"
_SCROLL: Final = """
  const [frames, done] = arguments;
  const root = document.documentElement, spent = [];
  root.style.scrollBehavior = "auto";
  root.scrollTop = 0;
  const step = innerHeight / 2;
  let last = null;
  function frame(now) {
    if (last !== null) spent.push(now - last);
    last = now;
    root.scrollTop += step;
    if (spent.length < frames) requestAnimationFrame(frame); else done(spent);
  }
  requestAnimationFrame(frame);
"""


@dataclass(slots=True)
class _Seen:
    paint: list[float] = field(default_factory=list)
    session_paint: list[float] = field(default_factory=list)
    opened: list[float] = field(default_factory=list)
    frames: list[float] = field(default_factory=list)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of this benchmark."""
    parser.add_argument("--events", type=int, default=10_000, help="of the session (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="how often it is done (default %(default)s)")
    parser.add_argument("--frames", type=int, default=120, help="of one scroll (default %(default)s)")


def run(flags: argparse.Namespace) -> BenchResult:
    """Measures. Raises NotReady without Chromium or its driver."""
    missing = [name for name in _PROGRAMS if shutil.which(name) is None]
    if missing:
        raise NotReady(f"needs {', '.join(missing)} (on Debian: chromium, chromium-driver)")
    seen = run_on_uvloop(lambda: _measure(max(flags.events, 2), max(flags.rounds, 1), max(flags.frames, 2)))
    return BenchResult(
        "console",
        {
            "events": float(flags.events),
            "paint_ms": statistics.median(seen.paint),
            "paint_worst_ms": max(seen.paint),
            "session_paint_ms": statistics.median(seen.session_paint),
            "open_ms": statistics.median(seen.opened),
            "open_worst_ms": max(seen.opened),
            "scroll_frame_ms_p50": percentile(seen.frames, 0.5),
            "scroll_frame_ms_p99": percentile(seen.frames, 0.99),
            "scroll_worst_frame_ms": max(seen.frames),
        },
    )


async def _measure(count: int, rounds: int, frames: int) -> _Seen:
    stop = asyncio.Event()
    ready: asyncio.Future[Ready] = asyncio.get_running_loop().create_future()
    anywhere = Address("127.0.0.1", 0)
    settings = Settings(http=anywhere, harness=anywhere, harness_token=secrets.token_hex(32))
    serving = asyncio.create_task(run_core(settings, stop, ready.set_result))
    try:
        core = await _ready(serving, ready)
        async with CoreClient(core.http) as client:
            await client.put_agent(AGENT, _MANIFEST)
            session = await client.create_session(AGENT)
            turn = await client.send_message(session, "go")
        await core.core.store.write(lambda tx: fill(tx, session, turn, count))
        return await asyncio.to_thread(_look, core.http, session, count // 2, rounds, frames)
    finally:
        stop.set()
        await asyncio.wait({serving}, timeout=BOUND_S)


async def _ready(serving: asyncio.Task[None], ready: asyncio.Future[Ready]) -> Ready:
    waited: set[asyncio.Future[Any]] = {serving, ready}
    await asyncio.wait(waited, timeout=BOUND_S, return_when=asyncio.FIRST_COMPLETED)
    if serving.done():
        await serving
    if not ready.done():
        raise NotReady("the development core did not get ready")
    return ready.result()


def fill(tx: Any, session_id: str, turn_id: str, count: int) -> None:
    """So many events in the log: model calls and tool calls, half each, as a long turn leaves them."""
    block = {"type": "tool-call", "name": "bash", "args": {"command": "echo"}}
    for number in range(count // 2):
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


def _look(url: str, session: str, calls: int, rounds: int, frames: int) -> _Seen:
    """In a thread: the driver blocks."""
    browser = _browser()
    try:
        browser.set_script_timeout(BOUND_S)
        seen = _Seen()
        for _ in range(rounds):
            browser.get(f"{url}/")
            seen.paint.append(_number(browser, _PAINT, "a paint"))
            script = browser.execute_cdp_cmd(
                "Page.addScriptToEvaluateOnNewDocument", {"source": _WATCH % calls}
            )
            browser.get(f"{url}/sessions/{session}")
            seen.opened.append(_number(browser, _THERE, "the last call"))
            seen.session_paint.append(_number(browser, _PAINT, "a paint"))
            browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", script)
            seen.frames += browser.execute_async_script(_SCROLL, frames)
        return seen
    finally:
        browser.quit()


def _browser() -> Any:
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    options.binary_location = shutil.which("chromium") or ""
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(flag)
    options.add_argument("--window-size=1200,1000")
    return webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))


def _number(browser: Any, script: str, what: str) -> float:
    """What the script gives, once it gives a number. Raises NotReady."""
    from selenium.common.exceptions import TimeoutException
    from selenium.webdriver.support.ui import WebDriverWait

    try:
        return float(WebDriverWait(browser, BOUND_S, 0.05).until(lambda _: browser.execute_script(script)))
    except TimeoutException:
        raise NotReady(f"the browser did not show {what} within {BOUND_S:g} s") from None
