"""Take the documents' screenshots again: `make screenshots`.

Run the example `digits` and draw its live page into docs/page.png and its report into docs/report.png. Chromium and
chromedriver must be installed.
"""

import json
import shutil
import subprocess
import sys
from base64 import b64decode
from pathlib import Path
from tempfile import TemporaryDirectory

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.wait import WebDriverWait

DOCS = Path(__file__).resolve().parents[1] / "docs"
WIDTH, HEIGHT = 1280, 900  # in CSS pixels
GLOBAL_ROUNDS = 200
SHOWN_ROUND = 130  # the screenshot is taken when this global round is done
PATIENCE_S = 300
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars")
ROUND_DONE = "return Number((/global round (\\d+)/.exec(document.body.innerText) || [0, 0])[1])"


def main() -> None:
    """Run `digits` twice: a long run for the live page, and the example as it is for the report."""
    with TemporaryDirectory(prefix="fedstrata-screenshots-") as folder:
        browser = _browser()
        try:
            _draw_live_page(browser, Path(folder))
            _draw_report(browser, Path(folder))
        finally:
            browser.quit()


def _browser() -> webdriver.Chrome:
    """Open a window in light colours."""
    driver = shutil.which("chromedriver")
    if driver is None:
        sys.exit("screenshots: chromedriver is missing; install Debian's packages chromium and chromium-driver")
    options = webdriver.ChromeOptions()
    for flag in (*FLAGS, f"--window-size={WIDTH},{HEIGHT}"):
        options.add_argument(flag)
    browser = webdriver.Chrome(options=options, service=Service(driver))
    size = {"width": WIDTH, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    light = [{"name": "prefers-color-scheme", "value": "light"}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": light})
    return browser


def _draw_live_page(browser: webdriver.Chrome, folder: Path) -> None:
    """Draw the page of a run that goes on."""
    slow = ["training.optimiser.learning_rate=0.005", f"training.global_rounds={GLOBAL_ROUNDS}"]
    words = ["digits", "--out", str(folder / "live"), "--page", "--json", *(w for key in slow for w in ("--set", key))]
    with subprocess.Popen([sys.executable, "-m", "emulator", "run", *words], stdout=subprocess.PIPE, text=True) as run:
        try:
            browser.get(next(event["url"] for event in map(json.loads, run.stdout or ()) if event["event"] == "page"))
            WebDriverWait(browser, PATIENCE_S, 0.1).until(lambda _: browser.execute_script(ROUND_DONE) >= SHOWN_ROUND)
            _draw(browser, DOCS / "page.png")
        finally:
            run.terminate()


def _draw_report(browser: webdriver.Chrome, folder: Path) -> None:
    """Draw the report of a finished run."""
    words = ["run", "digits", "--out", str(folder / "finished"), "--quiet"]
    subprocess.run([sys.executable, "-m", "emulator", *words], check=True)
    browser.get((folder / "finished" / "report.html").as_uri())
    WebDriverWait(browser, PATIENCE_S, 0.1).until(
        lambda _: browser.execute_script("return document.querySelector('section svg') !== null")
    )
    _draw(browser, DOCS / "report.png")


def _draw(browser: webdriver.Chrome, path: Path) -> None:
    """Write what the window shows as a picture."""
    path.write_bytes(b64decode(browser.execute_cdp_cmd("Page.captureScreenshot", {})["data"]))
    print(path)


if __name__ == "__main__":
    main()
