"""The page in a real browser, from disk."""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING, Any

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

if TYPE_CHECKING:
    from pathlib import Path

    from clusterctl.model.results import PairMatrix, ValidationRecord
    from conftest import Browser

ALL = pytest.mark.parametrize("name", ["healthy", "faulty", "large"])
FACTORS = {"k": 1e3, "M": 1e6, "G": 1e9}

# The middle of a cell, in pixels of the window.
CELL = """
const heat = document.getElementById("heat"), at = heat.getBoundingClientRect(), layout = heat._fullLayout;
const place = (axis, name) => axis._offset + axis.c2p(axis._categories.indexOf(name));
return [at.left + place(layout.xaxis, arguments[1]), at.top + place(layout.yaxis, arguments[0])];
"""


def drawn(browser: Browser) -> list[str]:
    """Wait for the heat map and return its rows, from the top."""
    browser.js(
        "document.documentElement.style.scrollBehavior = 'auto'; document.getElementById('links').scrollIntoView()"
    )
    browser.until(
        lambda: browser.js("return document.querySelector('#heat .hm image, #heat .heatmaplayer image') !== null")
    )
    rows: list[str] = browser.js("return document.getElementById('heat')._fullLayout.yaxis._categories")
    return rows


def hover(browser: Browser, one: str, other: str) -> str:
    x, y = browser.js(CELL, one, other)
    ActionChains(browser.driver, duration=20).move_by_offset(0, 0).perform()
    move(browser, x + 2, y + 1)
    move(browser, x, y)
    browser.until(lambda: browser.one("#tip").is_displayed() and one in browser.one("#tip").text)
    text: str = browser.one("#tip").text
    return text


def move(browser: Browser, x: float, y: float) -> None:
    actions = ActionChains(browser.driver, duration=20)
    actions.w3c_actions.pointer_action.move_to_location(round(x), round(y))
    actions.perform()


def bandwidth(text: str) -> float:
    found = re.search(r"([\d.]+) ([kMG])B/s", text)
    assert found, text
    return float(found[1]) * FACTORS[found[2]]


def measured(one: ValidationRecord, names: tuple[str, str]) -> float:
    matrix: PairMatrix = one.checks[-2].matrices[-1]
    ends = {matrix.nodes.index(name) for name in names}
    return next(
        value
        for first, second, value in zip(matrix.first, matrix.second, matrix.value, strict=True)
        if {first, second} == ends
    )


@ALL
def test_it_opens_from_disk_and_asks_nobody(browser: Browser, pages: dict[str, Path], name: str) -> None:
    browser.open(pages[name])
    assert browser.js("return document.documentElement.dataset.ready") == "yes"
    height = browser.js("return document.documentElement.scrollHeight")
    for at in range(0, height, 700):  # every picture comes into sight
        browser.js("scrollTo({top: arguments[0], behavior: 'instant'})", at)
        browser.js("return new Promise((done) => requestAnimationFrame(() => setTimeout(done, 30)))")
    browser.until(lambda: browser.js("return document.querySelectorAll('.plot:not(.js-plotly-plot)').length === 0"))
    fetched, said = browser.logs()
    assert fetched == []
    assert said == []


@ALL
def test_the_verdict_is_first_and_what_to_do_second(
    browser: Browser, pages: dict[str, Path], made: dict[str, ValidationRecord], name: str
) -> None:
    browser.open(pages[name])
    assert browser.one(".word").text == made[name].verdict.value
    todo = [one.text for one in browser.all(".todo .lead")]
    assert [one.words for one in made[name].checks[-2].culprits] == sorted(
        (words for words in todo if "is slow" in words),
        key=[one.words for one in made[name].checks[-2].culprits].index,
    )
    assert ("Nothing." in browser.one("#todo").text) == (name == "healthy")
    assert browser.one(".verdict").location["y"] < browser.one("#todo").location["y"] < 400


@ALL
def test_hovering_the_heat_map_gives_the_figures(
    browser: Browser, pages: dict[str, Path], made: dict[str, ValidationRecord], name: str
) -> None:
    browser.open(pages[name])
    rows = drawn(browser)
    if name != "healthy":
        worst = {host for one in made[name].checks[-2].culprits for host in one.nodes}
        assert set(rows[: len(worst)]) == worst  # bad nodes stand out: they are the first rows
    for pair in ((rows[0], rows[5]), (rows[3], rows[1])):
        text = hover(browser, *pair)
        assert all(node in text for node in pair)
        assert bandwidth(text) == pytest.approx(measured(made[name], pair), rel=0.005)
        assert "the median of" in text
    assert pair[0] in browser.one("#readout").text


def test_512_nodes_can_all_be_seen(browser: Browser, pages: dict[str, Path], made: dict[str, ValidationRecord]) -> None:
    browser.open(pages["large"])
    assert len(drawn(browser)) == 40
    browser.one("#order [data-order=name]").click()
    browser.until(lambda: len(drawn(browser)) == 512)
    text = hover(browser, "node101", "node412")
    assert bandwidth(text) == pytest.approx(measured(made["large"], ("node101", "node412")), rel=0.005)


def test_another_size_is_another_picture(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["faulty"])
    drawn(browser)
    browser.one("#matrix button:first-child").click()
    assert browser.one("#matrix [aria-pressed=true]").text == "latency 1 B"
    rows = drawn(browser)
    assert " us" in hover(browser, rows[0], rows[1])
    assert browser.all("#worst li")[0].text.startswith("node07 ↔ node[01-06,08-16]")


def test_the_keyboard_reaches_every_cell(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["faulty"])
    rows = drawn(browser)
    heat = browser.one("#heat")
    browser.js("arguments[0].focus()", heat)
    heat.send_keys(Keys.ARROW_DOWN)
    assert rows[0] in browser.one("#readout").text
    heat.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_DOWN)
    said = browser.one("#readout .who").text
    assert said == f"{rows[1]} ↔ {rows[2]}"


@ALL
def test_the_filter_keeps_what_is_named(browser: Browser, pages: dict[str, Path], name: str) -> None:
    browser.open(pages[name])
    total = len(browser.all(".check"))
    box = browser.one("#filter")
    box.send_keys("pairs")
    assert [one.get_attribute("id") for one in shown(browser, ".check")] == ["check-pairs"]
    assert "1 of" in browser.one("#check-count").text
    box.send_keys(Keys.ESCAPE)
    assert len(shown(browser, ".check")) == total
    box.send_keys("node07" if name != "large" else "node017")
    assert [row.text.split()[0] for row in browser.all("#node-table tbody tr")] == [box.get_attribute("value")]
    assert [one.get_attribute("id") for one in shown(browser, ".check")] == (
        [] if name == "healthy" else ["check-pairs"]
    )
    box.send_keys(Keys.ESCAPE)


def shown(browser: Browser, selector: str) -> list[Any]:
    return [one for one in browser.all(selector) if one.get_attribute("hidden") is None]


def test_verdicts_filter_too_and_logs_are_text(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["faulty"])
    browser.js("document.querySelector('#verdicts [data-verdict=FAIL]').click()")
    assert {one.get_attribute("data-verdict") for one in shown(browser, ".check")} == {"FAIL"}
    browser.js("document.querySelectorAll('#check-pairs, #check-pairs details').forEach((one) => { one.open = true; })")
    logs = [one.text for one in browser.all("#check-pairs pre")]
    assert any("</pre><b>not bold</b>" in text for text in logs)


def test_light_and_dark(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["faulty"])
    drawn(browser)
    paper = "return getComputedStyle(document.body).backgroundColor"
    light = browser.js(paper)
    browser.one("#theme").click()
    assert browser.js(paper) != light
    assert browser.js("return document.getElementById('heat').data[0].colorscale[0][1]") == "#ff8a70"
    assert browser.logs() == ([], [])


def test_it_prints_with_every_picture(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["faulty"])
    printed = browser.driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})
    assert len(base64.b64decode(printed["data"])) > 50_000
    assert browser.js("return document.querySelectorAll('.plot:not(.js-plotly-plot)').length") == 0


def test_a_page_that_asks_the_network_or_complains_would_be_seen(browser: Browser, tmp_path: Path) -> None:
    bad = tmp_path / "bad.html"
    bad.write_text('<img src="http://127.0.0.1:9/x.png"><script>console.error("oh");</script>')
    browser.open(bad)
    fetched, said = browser.logs()
    assert fetched == ["http://127.0.0.1:9/x.png"]
    assert any("oh" in words for words in said)
