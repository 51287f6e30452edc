"""A headless Chromium of the distribution, and pages of made-up records for it to open from disk."""

from __future__ import annotations

import itertools
import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from clusterctl.model.results import CheckResult, Culprit, Fineness, Verdict
from clusterctl.report import page
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import records
from clusterctl.model.results import ValidationRecord

SHAPES = {
    "healthy": records.Shape(16),
    "faulty": records.Shape(16, slow=((6, 0.1),), links=((2, 7, 0.35),)),
    "large": records.Shape(512, slow=((16, 0.1), (300, 0.6)), links=((100, 411, 0.4),)),
}
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--window-size=1280,1000",
)
_WAIT_S = 20.0


@dataclass
class Browser:
    """A driver that remembers what the pages fetched and complained about."""

    driver: webdriver.Chrome
    fetched: list[str] = field(default_factory=list)

    def open(self, path: Path) -> None:
        """Open a file and wait until its script has come to its end."""
        self.logs()
        self.driver.get(path.as_uri())
        self.until(lambda: self.js("return document.readyState === 'complete'"))

    def js(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def until(self, condition: Any) -> Any:
        return WebDriverWait(self.driver, _WAIT_S, poll_frequency=0.05).until(lambda _driver: condition())

    def all(self, selector: str) -> list[Any]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector: str) -> Any:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def logs(self) -> tuple[list[str], list[str]]:
        """Return what was fetched from elsewhere than the disk, and what the console complained of, since last time."""
        fetched = []
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] in {"Network.requestWillBeSent", "Network.webSocketCreated"}:
                address = message["params"].get("url") or message["params"]["request"]["url"]
                if not address.startswith(("file:", "data:", "blob:", "chrome:", "about:")):
                    fetched.append(address)
        said = [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] in {"SEVERE", "WARNING"}]
        return fetched, said


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    chromium, driver = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")
    assert chromium, "there is no chromium; 'make browser' installs it"
    assert driver, "there is no chromedriver; 'make browser' installs it"
    options = Options()
    options.binary_location = chromium
    for flag in (*_FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    started = webdriver.Chrome(options=options, service=Service(driver))
    yield Browser(started)
    started.quit()


@pytest.fixture(scope="session")
def made() -> dict[str, ValidationRecord]:
    return {name: records.record(shape) for name, shape in SHAPES.items()} | {
        "noisy": _noisy(),
        "one way": _fails(Culprit(kind="one_way", nodes=("node4", "node2"), words="node2 hears nothing of node4")),
        "unknown": _fails(next_step="run it again with --search."),
        "extreme": _extreme(),
        "skipped": _skipped(),
    }


def _extreme() -> ValidationRecord:
    """Return a record with figures that no machine has: the least and the greatest that a file can hold."""
    one = records.record(records.Shape(6))
    values = itertools.cycle((5e-324, 1e-200, 1.7e308, 0.0))
    checks = [
        check.model_copy(
            update={"figures": tuple(figure.model_copy(update={"value": next(values)}) for figure in check.figures)}
        )
        for check in one.checks
    ]
    trends = []
    for trend in one.trends:
        value = next(values)
        points = tuple(point.model_copy(update={"value": value}) for point in trend.points)
        trends.append(trend.model_copy(update={"points": points}))
    return one.model_copy(update={"checks": tuple(checks), "trends": tuple(trends)})


def _skipped() -> ValidationRecord:
    """Return a record of nodes without GPUs, whose headline is long."""
    one = records.record(records.Shape(6))
    reasons = {"nccl": "no GPU on node[1-6]", "gpu_mpi": "no GPU on node[1-6]", "torchrun": "no PyTorch on node[1-6]"}
    skips = [CheckResult(check=name, verdict=Verdict.SKIP, reason=words) for name, words in reasons.items()]
    return one.model_copy(update={"checks": (*one.checks, *skips)})


def _noisy() -> ValidationRecord:
    """Return a record that passed though one node and one link have half of the others' figures."""
    one = records.record(records.Shape(6, slow=((3, 0.5),), links=((0, 5, 0.5),)))
    fineness = Fineness(kind="link", quantity="bandwidth", fraction=0.12, why="the cores were busy")
    calm = {"verdict": Verdict.PASS, "culprits": (), "comparisons": (), "hosts": (), "fineness": (fineness,)}
    checks = tuple(check.model_copy(update=calm) for check in one.checks)
    return one.model_copy(update={"checks": checks, "verdict": Verdict.PASS})


def _fails(*culprits: Culprit, next_step: str = "") -> ValidationRecord:
    """Return a record whose first collective hung."""
    one = records.record(records.Shape(6))
    hung = CheckResult(
        check="hello",
        verdict=Verdict.FAIL,
        reason="no answer from 12 ranks",
        hosts=one.hosts,
        culprits=culprits,
        next_step=next_step,
        evidence=("PRTE has lost communication with node1",),
    )
    return one.model_copy(update={"checks": (hung, *one.checks), "verdict": Verdict.FAIL})


@pytest.fixture(scope="session")
def pages(made: dict[str, ValidationRecord], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    for name, one in made.items():
        log = {"pairs": "what the ranks said\n</pre><b>not bold</b>\n"}
        (folder / f"{name}.html").write_text(page.document(one, log), encoding="utf-8")
    return {name: folder / f"{name}.html" for name in made}
