"""Headless Chromium, driven by its own driver, for tests of the console and its pictures.

Both have to be on the machine (Debian and Ubuntu: `apt install chromium chromium-driver`): nothing is downloaded.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from scripts.servers.archives import ServerUnavailableError
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

_PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
)  # fmt: skip
WAIT_S = 30


@contextmanager
def chromium() -> Iterator[Chrome]:
    """A Chromium with a profile of its own. ServerUnavailableError where there is none."""
    program = next((found for name in _PROGRAMS if (found := shutil.which(name))), None)
    driver = shutil.which("chromedriver")
    if program is None or driver is None:
        raise ServerUnavailableError("apt install chromium chromium-driver")
    with tempfile.TemporaryDirectory(prefix="watersmeet-browser-", ignore_cleanup_errors=True) as profile:
        options = ChromeOptions()
        options.binary_location = program
        for option in (*_OPTIONS, f"--user-data-dir={profile}"):
            options.add_argument(option)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        made = Chrome(options=options, service=Service(driver))
        try:
            made.set_script_timeout(WAIT_S)
            made.set_page_load_timeout(WAIT_S)
            yield made
        finally:
            made.quit()


class Browser:
    """A page of Chromium."""

    def __init__(self, driver: Chrome) -> None:
        self.driver = driver

    def open(self, url: str, *, width: int = 1440, height: int = 900, scheme: str = "light") -> None:
        """Shows an address in a window of that size, on a system that is light or dark."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
        self.driver.get(url)

    def all(self, selector: str) -> list[WebElement]:
        """The elements of a selector of CSS, as they are now."""
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def find(self, selector: str, text: str | None = None) -> WebElement:
        """The first element of a selector, with that text: as soon as it is there."""
        found: list[WebElement] = []

        def there() -> bool:
            found[:] = [e for e in self.all(selector) if text is None or self.text(e).strip() == text]
            return bool(found)

        self.until(there, f"{selector} {text or ''}")
        return found[0]

    def text(self, element: WebElement) -> str:
        """The text of an element, of one of a drawing, too."""
        return str(self.driver.execute_script("return arguments[0].textContent", element))

    def click(self, selector: str, text: str | None = None) -> None:
        """Clicks an element as a user does it."""
        element = self.find(selector, text)
        if element.tag_name in ("g", "svg"):  # has no place of its own
            self.run("arguments[0].dispatchEvent(new MouseEvent('click', {bubbles: true}))", element)
        else:
            element.click()

    def keys(self, *keys: str) -> None:
        """Presses keys where the focus is."""
        self.driver.switch_to.active_element.send_keys(*keys)

    def run(self, script: str, *arguments: Any) -> Any:
        """What a script returns."""
        return self.driver.execute_script(script, *arguments)

    def until(self, true: Callable[[], Any], what: str = "it") -> Any:
        """Waits until something is true; it."""
        end = time.monotonic() + WAIT_S
        while True:
            try:
                if found := true():
                    return found
            except StaleElementReferenceException:  # an element was drawn anew
                pass
            if time.monotonic() > end:
                raise AssertionError(f"{what} never was; the page: {self.run('return document.body.innerText')[:1500]}")
            time.sleep(0.05)

    def complaints(self) -> list[str]:
        """What the page wrote to the console as errors since the last call."""
        return [line["message"] for line in self.driver.get_log("browser") if line["level"] == "SEVERE"]
