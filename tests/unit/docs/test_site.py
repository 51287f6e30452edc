"""The site: generated pages hold everything, a dead link fails the build, nothing is loaded from elsewhere."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from clusterctl.cli.commands import COMMANDS
from site_pages import assets, commands, exit_codes, generated, links, records, repository, variables

pytestmark = pytest.mark.programs

ROOT = repository.ROOT
LISTED = [name for name, command in COMMANDS.items() if not getattr(command, "hidden", False)]


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return generated.pages()


def test_every_option_of_every_command_has_its_row(pages: dict[str, str]) -> None:
    places = [place for place in pages if place.startswith("reference/commands/")]
    assert [Path(place).stem for place in places] == LISTED
    text = "\n".join(pages[place] for place in places)
    rows = {anchor: name for name, anchor in re.findall(r"^\| `([^`]+)`\{ #(\S+) \}", text, flags=re.MULTILINE)}
    rows |= dict(re.findall(r"^\| <code id=\"(\S+)\">(.+?)</code>", text, flags=re.MULTILINE))
    shown = {anchor: re.split(r"[ ,/]+", name) for anchor, name in rows.items()}
    found = commands.parameters()
    assert [name for name in LISTED if f"](commands/{name}.md#{name})" not in pages["reference/commands.md"]] == []
    assert {"provision--limit", "sandbox-up--nodes", "nightly-enable--at", "run--np"} <= set(found)
    assert {anchor: names for anchor, names in found.items() if not set(names) <= set(shown.get(anchor, ()))} == {}
    assert re.search(r"^\| `-l, --limit PATTERN`.* \| .*[Oo]nly these hosts\. \|", text, flags=re.MULTILINE)


def test_every_option_is_explained_by_a_sentence(pages: dict[str, str]) -> None:
    text = "\n".join(page for place, page in pages.items() if place.startswith("reference/commands/"))
    rows = re.findall(r"^\| (`.+?`\{ #\S+ \}|<code.+?</code>) \| (.*?) \| ", text, flags=re.MULTILINE)
    assert len(rows) > 300
    assert [row for row in rows if not re.fullmatch(r"[A-Z].+\.", row[1])] == []
    assert [row for row in rows if re.search(r"\b(FILE|FOLDER|DIR|TEXT|INTEGER)\b", row[0])] == []


def test_every_variable_of_every_role_has_its_row(pages: dict[str, str]) -> None:
    text = pages["reference/variables.md"]
    rows = set(re.findall(r"^\| `(\w+)`\{ #\1 \} \|", text, flags=re.MULTILINE))
    assert rows == {*variables.names(ROOT / "roles"), *(name for name, *_others in variables.OF_THE_INVENTORY)}
    assert variables.order(ROOT / "roles")[0] == "preflight"
    assert re.search(r"^\| `openmpi_version`.* \| `5\.0\.7` \|", text, flags=re.MULTILINE)


def test_every_word_of_the_inventory_has_its_row() -> None:
    read = (ROOT / "python/clusterctl/inventory/templates.py").read_text(encoding="utf-8")
    shown = (ROOT / "inventories/example/inventory.ini").read_text(encoding="utf-8")
    words = {*re.findall(r'"(cluster_\w+|slots)"', read), *re.findall(r"\b(cluster_\w+|slots)\b", shown)}
    assert {"slots", "cluster_address", "cluster_user_keys", "cluster_aliases"} <= words
    assert words - {name for name, *_others in variables.OF_THE_INVENTORY} == set()


def test_every_field_of_every_record_has_its_row(pages: dict[str, str]) -> None:
    text = pages["reference/record.md"]
    missing = [
        f"{model.__name__}.{field}"
        for model in records.models()
        for field in records.fields(model)
        if f"{{ #{model.__name__}.{field} }}" not in text
    ]
    assert missing == []
    assert "[CheckResult](#checkresult)" in text


def test_every_exit_code_says_what_it_means() -> None:
    found = exit_codes.members()
    assert ("UNREACHABLE", 4) in {(name, code) for name, code, _ in found}
    assert ("USAGE", 2) in {(name, code) for name, code, _ in found}  # an alias, which an enumeration leaves out
    assert [name for name, _, text in found if not text.endswith(".")] == []


def test_the_how_tos_stand_in_groups_of_five_to_eight() -> None:
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2])
    (groups,) = (part["How-to"] for part in nav if "How-to" in part)
    sizes = {name: len(pages) for group in groups for name, pages in group.items()}
    assert {name: size for name, size in sizes.items() if not 5 <= size <= 8} == {}


def test_every_command_stands_in_the_navigation(pages: dict[str, str]) -> None:
    nav = [{"Reference": [{"Commands": commands.PAGE}, "reference/terms.md"]}]
    (changed,) = commands.in_navigation(nav, pages)
    listed, others = changed["Reference"]
    assert listed["Commands"][0] == commands.PAGE
    assert {"run": "reference/commands/run.md"} in listed["Commands"]
    assert len(listed["Commands"]) == len(LISTED) + 1
    assert others == "reference/terms.md"


def test_troubleshooting_names_checks_that_exist_and_every_command() -> None:
    text = (ROOT / "docs/how-to/troubleshooting.md").read_text(encoding="utf-8")
    for command, page in (("doctor", "doctor.md"), ("validate", "validation.md")):
        known = (ROOT / "docs/reference" / page).read_text(encoding="utf-8")
        rows = re.findall(r"^\| ((?:`[^`]+`(?:, )?)+) \|", known, re.MULTILINE)
        names = {name for row in rows for name in re.findall(r"`([^`]+)`", row)}
        named = re.findall(rf"`{command}`: ((?:`[^`]+`(?:, )?)+)", text)
        assert len(named) >= 5
        assert {name for one in named for name in re.findall(r"`([^`]+)`", one)} - names == set()
    used = re.findall(r"^\$ clusterctl (\S+)|`clusterctl (\w+)", text, re.MULTILINE)
    assert {first or second for first, second in used} <= set(COMMANDS)


def test_the_two_cures_of_a_hanging_mpirun_refer_to_each_other() -> None:
    setting, wait, figures = "roles/fabric/README.md", "docs/reference/launch-lines.md", "docs/measured/commands.md"
    linked = {
        page: {repository.target(page, link) for link in links.links((ROOT / page).read_text(encoding="utf-8"))}
        for page in (setting, wait, figures)
    }
    assert {wait, figures} <= linked[setting]
    assert {setting, figures} <= linked[wait]
    assert wait in linked[figures]


def test_a_page_is_the_same_on_every_machine(pages: dict[str, str]) -> None:
    assert [place for place, text in pages.items() if str(ROOT) in text or f"{Path.home()}/" in text] == []


def test_the_build_fails_at_a_dead_link_a_dead_anchor_and_a_page_outside_the_navigation(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    shutil.copytree(ROOT / "docs", docs, ignore=shutil.ignore_patterns("site_*", "__pycache__"))
    (docs / "how-to" / "run.md").write_text(
        "# Run\n\n[a](gone.md) [b](doctor.md#gone) [c](../../roles/gone/README.md)\n"
    )
    (docs / "how-to" / "lonely.md").write_text("# Lonely\n")
    settings = (
        (ROOT / "mkdocs.yml").read_text(encoding="utf-8").replace("docs/site_hook.py", f"{ROOT}/docs/site_hook.py")
    )
    (tmp_path / "mkdocs.yml").write_text(settings)
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict"],
        cwd=tmp_path,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert built.returncode != 0
    for words in ("gone.md", "doctor.md#gone", "roles/gone", "lonely.md"):
        assert words in built.stderr, built.stderr


def test_what_is_loaded_from_elsewhere_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<link rel="canonical" href="https://a.example/"><link rel="stylesheet" href="//b.example/x.css">'
        '<script src="https://c.example/x.js"></script><script src="own.js"></script><a href="https://d.example/">d</a>'
        '<img src="http://e.example/x.png"><p style="background: url(https://f.example/x.png)">'
    )
    (tmp_path / "a.css").write_text("@import 'https://g.example/x.css'; a { background: url(own.png) }")
    assert {address.split("/")[2] for _, address in assets.remote(tmp_path)} == {
        "b.example", "c.example", "e.example", "f.example", "g.example",
    }  # fmt: skip


def test_pre_commit_runs_the_linters_of_make_lint() -> None:
    recipe = re.search(r"^lint:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert recipe is not None
    wanted = [line.replace("$(BIN)", ".venv/bin") for line in re.findall(r"(?:\t|; )(\$\(BIN\)/[^;\n]+)", recipe[1])]
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"][0]["hooks"]
    assert [hook["entry"] for hook in hooks] == wanted
