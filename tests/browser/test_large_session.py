"""A session of 10,000 events stays usable. The figures are bounds at five times what is aimed at."""

import pytest

from bench.console import fill
from tests.browser.support import Page, seconds
from tests.dev_core.support import running_core

pytestmark = [pytest.mark.browser, pytest.mark.timeout(120)]

EVENTS = 10_000
OPEN_BOUND_S = 5 * 2.0
PAINT_BOUND_MS = 5 * 500


async def _prepared():
    context = running_core()
    core = await context.__aenter__()
    await core.agent()
    session = await core.session()
    turn = await core.say(session)
    await core.ready.core.store.write(lambda tx: fill(tx, session, turn, EVENTS))
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
