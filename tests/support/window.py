"""A headless Chromium that notes what its pages ask for and say."""

import json
import shutil
from base64 import b64decode
from contextlib import ExitStack
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self
from urllib.parse import urlsplit

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
HEIGHT = 1000
PATIENCE_S = 90
NOTE_PHASES = """
window.opened = true;
window.phases = [document.body.dataset.phase].filter(Boolean);
const note = () => window.phases.push(document.body.dataset.phase);
new MutationObserver(note).observe(document.body, {attributeFilter: ["data-phase"]});
"""


class Page:
    """A window of its own, with an empty profile."""

    def __init__(self, width: int, *, is_dark: bool = False) -> None:
        self._stack = ExitStack()
        self.folder = Path(self._stack.enter_context(TemporaryDirectory(prefix="fedstrata-browser-")))
        driver = shutil.which("chromedriver")
        assert driver, "these tests need Chromium: apt-get install chromium chromium-driver"
        options = webdriver.ChromeOptions()
        for flag in (*FLAGS, f"--user-data-dir={self.folder / 'profile'}", f"--window-size={max(width, 500)},{HEIGHT}"):
            options.add_argument(flag)
        options.add_experimental_option("prefs", {"download.default_directory": str(self.folder)})
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(driver))
        self._stack.callback(self.driver.quit)
        size = {"width": width, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def open(self, url: str) -> Self:
        """Load a page, and leave marks in it that a reload would take away: that it was opened, and its phases."""
        self.driver.get(url)
        self.run(NOTE_PHASES)
        return self

    def run(self, script: str, *arguments: object) -> Any:
        """What a script returns."""
        return self.driver.execute_script(script, *arguments)

    def until(self, script: str) -> None:
        """Wait until an expression is true in the page."""
        WebDriverWait(self.driver, PATIENCE_S, 0.1).until(lambda _: self.run(f"return Boolean({script})"), script)

    @property
    def text(self) -> str:
        """All that can be read, with plain spaces."""
        said = self.run("return document.body.innerText") + self.figure_text
        return " ".join(said.replace("\u00a0", " ").replace("\u202f", " ").split())

    @property
    def figure_text(self) -> str:
        return str(
            self.run("return [...document.querySelectorAll('svg text')].map((node) => ' ' + node.textContent).join('')")
        )

    def fact(self, name: str) -> str:
        """The value beside a name in the head."""
        (value,) = [
            place.find_element(By.TAG_NAME, "dd").text
            for place in self.driver.find_elements(By.CSS_SELECTOR, "dl.facts > div")
            if place.find_element(By.TAG_NAME, "dt").text == name
        ]
        return value

    @cached_property
    def _asked(self) -> list[str]:
        return []

    @property
    def asked(self) -> set[str]:
        """The hosts that were asked for something; data and blobs are none."""
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                self._asked.append(message["params"]["request"]["url"])
        return {
            urlsplit(url).netloc for url in self._asked if not url.startswith(("data:", "blob:", "file:", "chrome"))
        }

    @property
    def console(self) -> list[str]:
        """What has been said in the console since it was last looked at."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def faults(self) -> list[str]:
        """What axe-core finds that is serious or worse."""
        self.run(files("axe_core_python").joinpath("axe.min.js").read_text(encoding="utf-8"))
        found = self.driver.execute_async_script("axe.run().then(arguments[0])")
        assert len(found["passes"]) > 10
        return [
            f"{fault['id']}: {node['html'][:120]}"
            for fault in found["violations"]
            if fault["impact"] in {"serious", "critical"}
            for node in fault["nodes"]
        ]

    def picture(self, path: Path) -> None:
        """A picture of the whole page, for who wants to look at it."""
        size = self.driver.execute_cdp_cmd("Page.getLayoutMetrics", {})["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        taken = self.driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
        path.write_bytes(b64decode(taken["data"]))
