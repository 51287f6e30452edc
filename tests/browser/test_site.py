"""The documentation site in a browser: no page scrolls sideways; tables and blocks are whole on a usual screen."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Browser

ROOT = Path(__file__).resolve().parents[2]
PAGES = (
    "index",
    "explanation/detection",
    "how-to/doctor",
    "how-to/existing-python",
    "how-to/run",
    "how-to/slurm",
    "how-to/troubleshooting",
    "how-to/train-for-days",
    "measured/detection",
    "measured/scale",
    "measured/where-it-ran",
    "project/changelog",
    "reference/commands",
    "reference/commands/provision",
    "reference/commands/run",
    "reference/nodes",
    "reference/variables",
)
# A script of the theme puts each table into a box that scrolls.
WRAPPED = """
return [...document.querySelectorAll('article table')]
    .every(table => table.closest('.md-typeset__scrollwrap, .highlight'));
"""
TOO_WIDE = """
return [...document.querySelectorAll('.md-typeset__scrollwrap, pre code')]
    .filter(one => one.scrollWidth > one.clientWidth + 1).map(one => one.innerText.slice(0, 60));
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    argv = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    subprocess.run(
        argv, cwd=ROOT, check=True, capture_output=True, timeout=300, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    )
    return folder


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1280])
def test_no_page_scrolls_sideways(browser: Browser, site: Path, width: int, scheme: str) -> None:
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    feature = {"name": "prefers-color-scheme", "value": scheme}
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    try:
        wide = {}
        for page in PAGES:
            browser.open(site / f"{page}.html")
            browser.until(lambda: browser.js(WRAPPED))
            if browser.js("return document.documentElement.scrollWidth") > width:
                wide[page] = "it scrolls sideways"
            elif width > 1000 and (cut := browser.js(TOO_WIDE)):
                wide[page] = f"a table or a block is cut: {cut[0]}"
        assert wide == {}
        fetched, said = browser.logs()
        assert (fetched, said) == ([], [])
    finally:
        browser.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
