"""The gateway's own page in a real browser, over real processes."""

import os

import pytest

from tests.browser.support import Page

pytestmark = [pytest.mark.browser, pytest.mark.timeout(120)]

SECRET = "a message for nobody else"


@pytest.fixture
def view(browser, stack):
    """A tab on the gateway's page that complains of nothing."""
    browser.get_log("browser")
    made = Page(browser, f"http://127.0.0.1:{stack.plan.environ['WHIPPLETREE_GATEWAY_VIEW_PORT']}")
    yield made
    assert made.complaints() == []


def shot(page, name):
    """A picture for people, where a folder for it is named."""
    folder = os.environ.get("WHIPPLETREE_TEST_SCREENSHOTS")
    if folder:
        page.browser.save_screenshot(f"{folder}/{name}.png")


def test_a_run_is_seen_with_its_open_command_and_then_with_its_outcome_and_never_its_content(
    view, stack, loop
):
    async def said():
        async with stack.core() as core:
            session = await core.create_session("slow")
            await core.send_message(session, SECRET)
            return session

    async def cancelled(session):
        async with stack.core() as core:
            await core.cancel(session)

    session = loop.run(said())
    view.open("/")
    view.see(session, "table[aria-label='Current runs'] td")
    view.see("executing", "table[aria-label='Current runs'] .tag")
    view.wait(lambda: len(view.all(".card .tag.serving")) == 3, "three replicas serving")
    view.wait(lambda: view.all("figure .spark"), "a histogram")
    shot(view, "gateway-view")
    text = view.run("return document.documentElement.outerHTML")
    assert SECRET not in text
    assert "sleep 60" not in text
    size = view.browser.get_window_size()
    view.browser.set_window_size(390, 800)
    try:
        assert view.run("return document.documentElement.scrollWidth <= innerWidth")
        view.browser.execute_cdp_cmd(
            "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
        )
        assert view.run("return getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 26)"
        shot(view, "gateway-view-phone-dark")
    finally:
        view.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
        view.browser.set_window_size(size["width"], size["height"])
    loop.run(cancelled(session))
    view.see(session, "table[aria-label='Runs that ended'] td")
    # Of a command that was ended the gateway can't say what it did; the core calls the turn cancelled.
    view.see("uncertain", "table[aria-label='Runs that ended'] .tag")
    shot(view, "gateway-view-ended")
