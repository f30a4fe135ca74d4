"""The console in a real browser, over real processes."""

import pytest
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

from tests.browser.conftest import HOSTILE

pytestmark = [pytest.mark.browser, pytest.mark.timeout(120)]


def started(page, agent):
    """Starts a session by hand."""
    page.open("/")
    choice = page.wait(lambda: (page.all("select#agent") or [None])[0], "the choice of agents")
    Select(choice).select_by_value(agent)
    page.press("Start")
    page.wait(lambda: "/sessions/" in page.browser.current_url, "the session's page")


def test_two_tools_at_once_are_seen_in_the_conversation_and_side_by_side_in_the_timeline(page):
    started(page, "helper")
    page.say("parallel please")
    page.see("Both are done.")
    page.see("completed", ".turn .head")
    assert [text.split()[0] for text in page.texts("details.call > summary")] == ["bash", "bash"]
    page.wait(lambda: len(page.all(".bar")) == 4, "four bars")
    script = """return [...document.querySelectorAll('.bar.sandbox rect')].map((bar) => {
      const box = bar.getBoundingClientRect(); return [box.left, box.right, box.top]; })"""
    (left, right, top), (other_left, _, other_top) = page.run(script)
    assert other_left < right
    assert left < right
    assert top != other_top


def test_a_tool_call_shows_its_input_and_output_and_a_bar_its_documents(page):
    started(page, "helper")
    page.say("parallel please")
    page.see("Both are done.")
    page.click(lambda: page.all("details.call > summary")[1], "the second call")
    page.see("echo two", "details.call pre")
    page.see('"stdout": "two\\n"', "details.call pre")
    bar = page.wait(lambda: (page.all(".bar.sandbox") or [None])[0], "a bar")
    page.run("arguments[0].focus()", bar)
    bar.send_keys(Keys.ENTER)
    page.see("Outcome", "dialog[open]")
    page.press("Close")
    page.wait(lambda: not page.all("dialog"), "the dialog gone")


def test_a_workflow_shows_its_stages_and_its_output(page):
    started(page, "steps")
    page.say("go")
    page.see("Workflow", ".item.assistant .who")
    page.see("Hello from the script.", ".item.assistant .text")
    page.see("completed", ".turn .head")
    assert [text.split()[:2] for text in page.texts("details.call > summary")] == [
        ["agent", "one"],
        ["agent", "two"],
    ]


def test_an_approval_is_asked_and_given(page):
    started(page, "asker")
    page.say("write to Mara")
    page.see("Send a letter to Mara?", ".ask")
    page.press("Approve")
    page.see("The letter is out.")
    page.see("You approved.")


def test_a_failure_says_in_plain_words_what_went_wrong(page):
    started(page, "failing")
    page.say("now")
    page.see("No such model.", ".problem")
    page.see("failed", ".turn .head")
    page.wait(lambda: not page.all("form.composer button[disabled]"), "the composer")


def test_a_turn_is_cancelled(page):
    started(page, "slow")
    page.say("please")
    page.wait(lambda: page.all(".bar.sandbox.open"), "the command under way")
    page.press("Cancel the turn")
    page.see("cancelled", ".turn .head")
    page.wait(lambda: not page.all("form.composer button[disabled]"), "the composer")


def test_hostile_content_is_shown_and_never_run(page):
    started(page, "hostile")
    page.say(HOSTILE)
    page.wait(lambda: len([t for t in page.texts(".turn .text") if HOSTILE in t]) == 3, "three texts")
    page.click(lambda: page.all("details.call > summary")[0], "the call")
    page.see("owned", "details.call pre")
    assert page.browser.title == "Session – Whippletree"
    assert page.all("main script, main img") == []


def test_a_killed_service_is_seen_in_the_fleet_and_back(page, stack):
    def instances():
        script = """return [...document.querySelectorAll('.card dt')].filter((e) => e.textContent === 'instance')
          .map((e) => e.nextSibling.textContent)"""
        found = page.run(script)
        return found if len(found) == 3 else []

    page.open("/fleet")
    page.wait(lambda: len(page.all(".card .tag.serving")) == 3, "three replicas serving")
    before = instances()
    stack.kill("mcp-pool")
    page.wait(lambda: instances() not in ([], before), "another instance")
    page.wait(lambda: len(page.all(".card .tag.serving")) == 3, "three replicas again")


def test_a_killed_core_is_seen_and_the_page_goes_on(page, stack):
    started(page, "plain")
    page.wait(lambda: "live" in page.texts("#connection")[0], "live")
    stack.kill("dev-core")
    page.wait(lambda: "lost" in page.texts("#connection")[0], "the loss")
    page.wait(lambda: "live" in page.texts("#connection")[0], "live again")
    page.say("hello")
    page.see("Hello from the script.")
    page.complaints()  # The browser notes the requests that failed meanwhile.


def test_an_agent_is_added_by_its_manifest(page):
    page.open("/agents")
    page.press("Save")
    page.wait(lambda: "hello" in page.texts("td"), "the new agent")
    text = page.all("textarea#manifest")[0]
    text.send_keys("x")
    page.press("Save")
    page.see("This is not JSON", ".problem")


def test_the_pages_can_be_used_with_the_keyboard_alone(page):
    page.open("/")
    page.wait(lambda: page.all("select#agent"), "the page")
    names = []
    active = page.browser.switch_to.active_element
    for _ in range(8):
        active.send_keys(Keys.TAB)
        active = page.browser.switch_to.active_element
        names.append(active.tag_name)
    assert {"a", "select", "button"} <= set(names)
    unnamed = page.run(
        """return [...document.querySelectorAll('button,select,input,textarea,a')].filter((e) =>
        !(e.textContent.trim() || e.getAttribute('aria-label') || (e.labels && e.labels.length))).length"""
    )
    assert unnamed == 0


@pytest.mark.parametrize("path", ["/", "/agents", "/fleet"])
def test_a_phone_shows_the_pages_without_scrolling_sideways(page, path):
    size = page.browser.get_window_size()
    page.browser.set_window_size(390, 800)
    try:
        page.open(path)
        page.see("", "main h1")
        assert page.run("return document.documentElement.scrollWidth <= innerWidth")
    finally:
        page.browser.set_window_size(size["width"], size["height"])
