"""A headless Chromium, and what tests ask of a page."""

import shutil
import time

from selenium import webdriver
from selenium.common.exceptions import ElementClickInterceptedException, StaleElementReferenceException
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

BOUND_S = 20
NEEDED = ("chromium", "chromedriver")


def why_none() -> str | None:
    """Why no browser can be started here; None when it can."""
    missing = [name for name in NEEDED if shutil.which(name) is None]
    return f"needs {', '.join(missing)} (on Debian: chromium, chromium-driver)" if missing else None


def start_browser(width: int = 1200, height: int = 1000) -> webdriver.Chrome:
    """A browser whose console is kept."""
    options = Options()
    options.binary_location = shutil.which("chromium") or ""
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(flag)
    options.add_argument(f"--window-size={width},{height}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))


class Page:
    """One tab. Everything waits until it is there, and fails after BOUND_S."""

    def __init__(self, browser, url):
        self.browser = browser
        self.url = url

    def open(self, path):
        self.browser.get(self.url + path)

    def wait(self, look, what):
        return WebDriverWait(self.browser, BOUND_S, 0.05).until(lambda _: look(), what)

    def all(self, css):
        return self.browser.find_elements(By.CSS_SELECTOR, css)

    def texts(self, css):
        script = "return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)"
        return self.browser.execute_script(script, css)

    def see(self, text, css="main"):
        return self.wait(lambda: any(text in found for found in self.texts(css)), f"{text!r} in {css}")

    def click(self, look, what):
        """Clicks what `look` finds, once it is there and nothing lies over it."""

        def clicked():
            try:
                found = look()
                if not found:
                    return False
                self.run("arguments[0].scrollIntoView({block: 'center'})", found)
                found.click()
            except (ElementClickInterceptedException, StaleElementReferenceException):
                return False
            return True

        self.wait(clicked, what)

    def press(self, text):
        """Clicks the button with that text."""

        def look():
            found = [each for each in self.all("button") if each.text == text and each.is_enabled()]
            return found[0] if found else None

        self.click(look, f"button {text!r}")

    def say(self, text):
        box = self.wait(lambda: (self.all("form.composer textarea") or [None])[0], "the composer")
        box.send_keys(text)
        self.wait(lambda: self.run("return arguments[0].value", box) == text, "the message in the composer")
        self.press("Send")
        self.wait(lambda: self.run("return arguments[0].value", box) == "", "the message sent")

    def complaints(self):
        """What the browser's console says: nothing, on a page that is right."""
        return [entry["message"] for entry in self.browser.get_log("browser") if entry["level"] == "SEVERE"]

    def run(self, script, *arguments):
        return self.browser.execute_script(script, *arguments)


def seconds(action):
    """How long an action took."""
    began = time.monotonic()
    action()
    return time.monotonic() - began
