"""The page in a real browser, from disk."""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING, Any

import pytest
from clusterctl.report.page import matrices
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from clusterctl.model.results import PairMatrix, ValidationRecord
    from conftest import Browser

ALL = pytest.mark.parametrize("name", ["healthy", "faulty", "large"])
FACTORS = {"k": 1e3, "M": 1e6, "G": 1e9}

# The middle of a cell, in pixels of the window.
CELL = """
const heat = document.getElementById("heat"), at = heat.querySelector("canvas").getBoundingClientRect();
const { grid, rows, view } = heat.picture;
const place = (name, start) => (rows.indexOf(name) - start + .5) * grid.cell;
return [at.left + grid.left + place(arguments[1], view.left), at.top + grid.top + place(arguments[0], view.top)];
"""
# A copy of the heat map for reading its pixels, since Chromium warns where a canvas on the screen is read often.
COPY = """
const map = document.querySelector("#heat canvas"), pixels = document.createElement("canvas");
[pixels.width, pixels.height] = [map.width, map.height];
const pen = pixels.getContext("2d", { willReadFrequently: true });
pen.drawImage(map, 0, 0);
"""
# The colour in the middle of a cell.
INK = f"""{COPY}
const {{ grid, rows, view }} = document.getElementById("heat").picture;
const scale = map.width / parseFloat(map.style.width);
const place = (name, start, edge) => Math.round((edge + (rows.indexOf(name) - start + .5) * grid.cell) * scale);
const [x, y] = [place(arguments[1], view.left, grid.left), place(arguments[0], view.top, grid.top)];
return Array.from(pen.getImageData(x, y, 1, 1).data);
"""
# Elements that wear the colour of what is bad, and how many pixels of the heat map are rather red than slate.
PAINTED = f"""{COPY}
const probe = document.createElement("i");
probe.style.color = "var(--bad)";
document.body.append(probe);
const bad = getComputedStyle(probe).color, found = [];
probe.remove();
for (const one of document.querySelectorAll("main *")) {{
  const style = getComputedStyle(one), shape = one instanceof SVGElement;
  const worn = [style.backgroundColor, ...(shape ? [style.fill, style.stroke] : [style.color])];
  if (worn.includes(bad)) found.push(one.tagName + " " + one.textContent);
}}
const ink = pen.getImageData(0, 0, map.width, map.height).data;
let red = 0;
for (let i = 0; i < ink.length; i += 4) red += ink[i + 3] === 255 && ink[i] > ink[i + 2] + 30;
return [found, red];
"""


def drawn(browser: Browser) -> list[str]:
    """Wait for the heat map and return its rows, from the top."""
    browser.js(
        "document.documentElement.style.scrollBehavior = 'auto'; document.getElementById('links').scrollIntoView()"
    )
    browser.until(lambda: browser.js("return document.getElementById('heat').picture !== undefined"))
    rows: list[str] = browser.js("return document.getElementById('heat').picture.rows")
    return rows


def see_everything(browser: Browser) -> None:
    """Bring every picture into sight once."""
    height = browser.js("return document.documentElement.scrollHeight")
    for at in range(0, height, 700):
        browser.js("scrollTo({top: arguments[0], behavior: 'instant'})", at)
        browser.js("return new Promise((done) => requestAnimationFrame(() => setTimeout(done, 30)))")
    browser.until(lambda: browser.js("return document.querySelectorAll('.plot:empty').length === 0"))


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
    matrix: PairMatrix = one.checks[-2].matrices[matrices.first(one)]
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
    see_everything(browser)
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
    light, slow = browser.js(paper), browser.js(INK, "node07", "node01")
    browser.one("#theme").click()
    assert browser.js(paper) != light
    assert sum(browser.js(INK, "node07", "node01")[:3]) > sum(slow[:3]) + 100  # slow is far from the background
    assert browser.logs() == ([], [])


def test_what_a_check_names_is_red_and_slow_is_stronger_than_fast(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["faulty"])
    drawn(browser)
    named = browser.all("#node-table tr.named td:first-child")
    assert {one.text for one in named} == {"node07", "node03", "node08"}
    assert {one.text for one in browser.all(".topology .bad text, .topology .end text")} == {one.text for one in named}
    for pair in (("node07", "node01"), ("node03", "node08")):
        red, _, blue, _ = browser.js(INK, *pair)
        assert red > blue + 60, pair
    for pair in (("node01", "node02"), ("node11", "node14"), ("node16", "node05")):
        red, _, blue, _ = browser.js(INK, *pair)
        assert min(red, blue) > 200, pair  # pale, on the light page
        assert abs(red - blue) < 20, pair


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_pass_paints_no_node_however_much_its_figures_differ(
    browser: Browser, pages: dict[str, Path], theme: str
) -> None:
    browser.open(pages["noisy"])
    if browser.js("return document.documentElement.dataset.theme") != theme:
        browser.one("#theme").click()
    see_everything(browser)
    drawn(browser)
    assert browser.one(".word").text == "PASS"
    assert browser.js(PAINTED) == [[], 0]
    assert "can detect 12 % (bandwidth) on links: the cores were busy" in browser.one("#todo").text
    assert not browser.all(".topology")
    browser.open(pages["faulty"])
    drawn(browser)
    found, red = browser.js(PAINTED)
    assert len(found) > 20  # it would be seen
    assert red > 1000


def test_a_link_that_fails_one_way_has_an_arrow_to_the_receiver(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["one way"])
    (line,) = browser.all(".topology line.bad[marker-end]")
    place = (
        "const all = [...document.querySelectorAll('.topology g')];"
        "const circle = all.find((each) => each.textContent.includes(arguments[0])).querySelector('circle');"
        "return [circle.getAttribute('cx'), circle.getAttribute('cy')].map(Number);"
    )
    x1, y1, x2, y2 = (float(line.get_attribute(name)) for name in ("x1", "y1", "x2", "y2"))
    assert [x1, y1] == browser.js(place, "node4")
    assert [x2, y2] == pytest.approx(browser.js(place, "node2"), abs=12)
    assert "node4 → node2" in browser.one(".chip.bad").text
    assert not browser.all(".topology line:not([marker-end]).bad")


def test_a_culprit_that_is_not_known_is_not_painted(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["unknown"])
    assert "Next step: run it again with --search." in browser.one("#todo").text
    assert "culprit not known" in browser.one(".chips").text
    assert not browser.all(".chip.bad")
    assert not browser.all("#node-table tr.named")


def test_a_part_of_the_heat_map_can_be_seen_alone(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["large"])
    rows = drawn(browser)
    from_at, to_at = browser.js(CELL, rows[4], rows[6]), browser.js(CELL, rows[8], rows[15])
    drag = ActionChains(browser.driver, duration=20)
    pointer = drag.w3c_actions.pointer_action
    pointer.move_to_location(round(from_at[0]), round(from_at[1]))
    pointer.pointer_down()
    pointer.move_to_location(round(to_at[0]), round(to_at[1]))
    pointer.pointer_up()
    drag.perform()
    view = "return document.getElementById('heat').picture.view"
    assert browser.js(view) == {"top": 4, "left": 6, "down": 5, "across": 10}
    assert rows[5] in hover(browser, rows[5], rows[9])
    browser.one("#heat").send_keys(Keys.ESCAPE)
    assert browser.js(view) == {"top": 0, "left": 0, "down": 40, "across": 40}


@pytest.mark.parametrize("name", ["faulty", "large", "noisy"])
def test_a_narrow_window_needs_no_scrolling_sideways(browser: Browser, pages: dict[str, Path], name: str) -> None:
    metrics = {"width": 400, "height": 900, "deviceScaleFactor": 1, "mobile": True}
    browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        browser.open(pages[name])
        see_everything(browser)
        assert browser.js("return document.documentElement.scrollWidth") <= 400
        assert browser.one(".word").size["height"] < 60  # the verdict is one line
    finally:
        browser.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_it_prints_with_every_picture(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["faulty"])
    printed = browser.driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})
    assert len(base64.b64decode(printed["data"])) > 50_000
    assert browser.js("return document.querySelectorAll('.plot:empty').length") == 0


def test_figures_that_no_machine_has_neither_stop_the_page_nor_hold_it(
    browser: Browser, pages: dict[str, Path]
) -> None:
    browser.open(pages["extreme"])
    assert browser.js("return document.documentElement.dataset.ready") == "yes"
    see_everything(browser)
    assert browser.logs() == ([], [])


def test_a_page_that_asks_the_network_or_complains_would_be_seen(browser: Browser, tmp_path: Path) -> None:
    bad = tmp_path / "bad.html"
    bad.write_text('<img src="http://127.0.0.1:9/x.png"><script>console.error("oh");</script>')
    browser.open(bad)
    fetched, said = browser.logs()
    assert fetched == ["http://127.0.0.1:9/x.png"]
    assert any("oh" in words for words in said)


# --- what was cut, empty or too pale ---

# Columns of the page's tables in which no cell of the body says anything.
EMPTY = """
const empty = [];
for (const details of document.querySelectorAll("details")) details.open = true;
for (const table of document.querySelectorAll("table")) {
  const rows = [...table.tBodies[0].rows];
  for (let at = 0; at < table.tHead.rows[0].cells.length; at++)
    if (rows.length && rows.every((row) => !row.cells[at].textContent.trim()))
      empty.push(table.tHead.rows[0].cells[at].textContent);
}
return empty;
"""
# Elements outside of the window and of every table that scrolls, and words broken over two lines that should not be.
CUT = """
const cut = document.documentElement.scrollWidth > innerWidth ? ["the page"] : [];
for (const one of document.querySelectorAll("main *, header *"))
  if (!one.closest(".scroll") && one.getBoundingClientRect().right > innerWidth + 1)
    cut.push(one.tagName + " " + one.textContent);
const word = document.querySelector(".word"), line = parseFloat(getComputedStyle(word).lineHeight) || 27 * 1.55;
const pad = parseFloat(getComputedStyle(word).paddingTop) * 2;
if (word.clientHeight - pad > 1.5 * line) cut.push("the verdict is broken");
return cut;
"""


@pytest.fixture
def window(browser: Browser) -> Iterator[Callable[[int], None]]:
    """Give the window a width in pixels, also one below the least of Chromium's own window."""

    def width(pixels: int) -> None:
        size = {"width": pixels, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
        browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    yield width
    browser.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.parametrize("pixels", [400, 1280])
@pytest.mark.parametrize("name", ["healthy", "faulty", "large", "skipped"])
def test_nothing_is_cut_and_no_column_is_empty(
    browser: Browser, pages: dict[str, Path], window: Callable[[int], None], name: str, pixels: int
) -> None:
    window(pixels)
    browser.open(pages[name])
    assert browser.js(EMPTY) == []
    assert browser.js(CUT) == []
    scrolls = browser.js(
        "const one = document.querySelector('.scroll'); one.scrollLeft = 1e6; return [one.scrollLeft, one.scrollWidth]"
    )
    assert (scrolls[0] > 0) == (pixels == 400), "a narrow window scrolls the table, not the page"
    if name == "skipped":
        assert "nccl and gpu_mpi skipped: no GPU; torchrun skipped: no PyTorch." in browser.one("h1").text


def test_a_link_at_the_median_stands_out_of_a_light_page(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["healthy"])
    if browser.js("return document.documentElement.dataset.theme") != "light":
        browser.one("#theme").click()
    rows = drawn(browser)
    paper = browser.js("return getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
    ink = browser.js(INK, rows[0], rows[1])
    assert all(of_paper - of_ink > 25 for of_paper, of_ink in zip(paper, ink[:3], strict=True)), (paper, ink)
