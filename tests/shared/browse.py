"""Opens pages in headless Chromium: python tests/shared/browse.py SCREENSHOTS FILE-OR-FOLDER...

A page is wrong when its console has an error, when it shows no text, when it is wider than the window, when a block or
table is wider than its column, or when a picture or plot has no size. Each page leaves a screenshot. Needs selenium,
chromium and chromedriver. The search is asked for a word of several pages.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.ui import WebDriverWait

WIDTH, HEIGHT = 1280, 1000
TALLEST = 16000  # of a screenshot: Chromium draws no more
SEARCHED, SECONDS = "lanes", 30  # a word of several pages, and the seconds within which the search has found them
# Only files are reached: every host name is unknown, and the proxy is a port without a listener.
ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--proxy-server=127.0.0.1:9",
    f"--window-size={WIDTH},{HEIGHT}",
)
# An <svg> outside of a <figure> is an icon of the theme, and not measured.
MEASURE = """
const wrong = [];
const plots = [...document.querySelectorAll("figure svg, article img, article object, canvas")];
for (const plot of plots) {
    const box = plot.getBoundingClientRect();
    const name = plot.getAttribute("src") || plot.tagName;
    if (box.width < 50 || box.height < 20) wrong.push(`${name} has a box of ${box.width} x ${box.height}`);
    if (plot.tagName === "IMG" && !plot.naturalWidth) wrong.push(`${name} is not a picture`);
}
if (document.body.innerText.trim().length < 40) wrong.push("there is no text");
for (const block of document.querySelectorAll("pre, .table-wrapper")) {
    const beyond = block.scrollWidth - block.clientWidth;
    if (beyond > 1) wrong.push(`${beyond} pixels are hidden of "${block.innerText.trim().slice(0, 40)}"`);
}
const wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
if (wide > 1) wrong.push(`the page is ${wide} pixels wider than the window`);
return [plots.length, wrong, document.documentElement.scrollHeight];
"""


def pages(name: str) -> list[Path]:
    """The file itself, or the pages in this folder."""
    path = Path(name).resolve()
    return sorted(path.rglob("*.html")) if path.is_dir() else [path]


def browse(driver: webdriver.Chrome, page: Path, screenshot: Path) -> tuple[int, list[str]]:
    """The number of pictures on a page, and its faults."""
    driver.set_window_size(WIDTH, HEIGHT)
    if page.name == "search.html":
        driver.get(f"{page.as_uri()}?q={SEARCHED}")
        WebDriverWait(driver, SECONDS).until(lambda _: driver.find_elements("css selector", "#search-results li a"))
    else:
        driver.get(page.as_uri())
    count, wrong, height = driver.execute_script(MEASURE)
    wrong += [
        f"{entry['level']}: {entry['message']}" for entry in driver.get_log("browser") if entry["level"] == "SEVERE"
    ]
    screenshot.parent.mkdir(parents=True, exist_ok=True)
    # The window's own frame takes a part of its height.
    frame = driver.execute_script("return window.outerHeight - window.innerHeight")
    driver.set_window_size(WIDTH, frame + max(HEIGHT, min(height, TALLEST)))
    driver.save_screenshot(str(screenshot))
    return count, wrong


def main(folder: str, *names: str) -> int:
    options = Options()
    options.binary_location = shutil.which("chromium") or "chromium"
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    failures = seen = plots = 0
    with tempfile.TemporaryDirectory() as profile:
        for argument in (*ARGUMENTS, f"--user-data-dir={profile}"):
            options.add_argument(argument)
        driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver") or "chromedriver"))
        try:
            for name in names:
                found = 0
                for page in pages(name):
                    inside = page.relative_to(Path(name).resolve()) if Path(name).is_dir() else Path(page.name)
                    count, wrong = browse(driver, page, Path(folder, "screenshots", inside.with_suffix(".png")))
                    seen, found = seen + 1, found + count
                    failures += bool(wrong)
                    for fault in wrong:
                        print(f"{page}: {fault}", file=sys.stderr)
                if not found:
                    failures += 1
                    print(f"{name}: no picture and no plot was found", file=sys.stderr)
                plots += found
        finally:
            driver.quit()
    print(f"{seen} pages with {plots} pictures and plots, {failures} with faults; screenshots: {folder}/screenshots")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
