"""The README is short, in the order of a stranger's questions, and what it names exists."""

from __future__ import annotations

import re

from clusterctl.cli.commands import COMMANDS
from site_pages import links, repository

README = (repository.ROOT / "README.md").read_text(encoding="utf-8")
MOST_WORDS = 600
NEEDS_NO_ROW = {"version", "inventory-of", "hardware"}
SECTIONS = [
    "Is it for you?",
    "Install",
    "Eight machines",
    "What you see",
    "No machines?",
    "What changes on nodes",
    "Commands",
    "Beside alternatives",
    "Read on",
]


def section(name: str, text: str = README) -> str:
    return text.partition(f"\n## {name}\n")[2].partition("\n## ")[0]


def minutes(text: str) -> list[float]:
    """Return the times of a text such as ``11 min 32 s``."""
    return [int(found[1]) + int(found[2]) / 60 for found in re.finditer(r"(\d+) min (\d+) s", text)]


def test_it_is_short_and_in_the_order_of_the_questions() -> None:
    assert len(README.split()) <= MOST_WORDS
    assert re.findall(r"^## (.+)$", README, re.MULTILINE) == SECTIONS
    assert "not Cluster API's clusterctl" in README.partition("\n## ")[0]


def test_every_command_stands_in_a_group_and_exists() -> None:
    rows = re.findall(r"^\| (?!group|---)[^|]+ \| (.+) \|$", section("Commands"), re.MULTILINE)
    named = re.findall(r"`([\w-]+)`", " ".join(rows))
    assert len(rows) == 4
    assert len(named) == len(set(named))
    assert set(named) - set(COMMANDS) == set()
    assert set(COMMANDS) - set(named) <= NEEDS_NO_ROW


def test_commands_of_the_examples_exist() -> None:
    used = re.findall(r"^\$ clusterctl (\S+)", README, re.MULTILINE)
    assert used == ["doctor", "provision", "run"]
    makefile = (repository.ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"make ([a-z-]+)", README)
    assert {"demo", "demo-clean", "wheel"} <= set(targets)
    assert [one for one in targets if f"\n{one}:" not in makefile] == []


def test_the_inventory_has_six_lines() -> None:
    found = re.search(r"```ini\n(.*?)```", section("Eight machines"), re.DOTALL)
    assert found
    assert len([line for line in found[1].splitlines() if line]) == 6


def test_what_you_see_is_of_the_run_in_the_picture() -> None:
    found = re.search(r"```text\n(.*?)```", section("What you see"), re.DOTALL)
    assert found
    picture = (repository.ROOT / "docs/pictures/provision.svg").read_text(encoding="utf-8")
    shown = re.sub(r"<[^>]+>", "", picture)
    lines = found[1].splitlines()
    assert len(lines) == 6
    assert [line for line in lines if line not in shown] == []


def test_the_times_are_those_that_were_measured() -> None:
    measured = section("The demo", (repository.ROOT / "docs/measured/provisioning.md").read_text(encoding="utf-8"))
    empty_cache = [minutes(row.split("|")[2])[0] for row in measured.splitlines() if row.startswith("| provision of")]
    said = re.search(r"\[(\d+) to (\d+) minutes\]", section("Eight machines"))
    assert said
    assert len(empty_cache) == 2
    assert int(said[1]) == round(min(empty_cache))
    assert max(empty_cache) <= int(said[2])


def test_where_to_look_has_every_page_that_the_readme_names() -> None:
    index = (repository.ROOT / "docs/index.md").read_text(encoding="utf-8")
    there = {f"docs/{one.path}" for one in links.links(section("Where to look", index))}
    named = {one.path for one in links.links(README) if one.path.startswith("docs/")}
    assert named - there - {"docs/index.md", "docs/pictures/provision.svg", "docs/measured/README.md"} == set()
