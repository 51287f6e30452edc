"""Hook of MkDocs: adds the generated pages and the READMEs of the repository, and refuses assets of other machines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, InclusionLevel
from site_pages import assets, commands, generated, links, repository

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Give headings the anchors that GitHub gives them, and each command its place in the navigation."""
    config.mdx_configs.setdefault("toc", {})["slugify"] = links.slug
    config.nav = commands.in_navigation(config.nav or [], commands.pages())
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add every page that does not lie in docs/."""
    made = generated.pages()
    texts = {f"docs/{place}": text for place, text in made.items()}
    for file in files.documentation_pages():
        texts[f"docs/{file.src_uri}"] = file.content_string
    brought = repository.pages()
    for source, place in brought.items():
        texts[source] = made[place] = (repository.ROOT / source).read_text(encoding="utf-8")
    for place, text in made.items():
        files.append(File.generated(config, place, content=text))
    for source, place in repository.linked_sources(texts).items():
        if place.endswith(".md"):
            text = repository.source_page(source)
            files.append(File.generated(config, place, content=text, inclusion=InclusionLevel.NOT_IN_NAV))
        else:
            files.append(File.generated(config, place, abs_src_path=str(repository.ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001 - mkdocs names them
    """Point links that leave docs/ at the pages that the site has for those files."""
    origins = {place: source for source, place in repository.pages().items()}
    place = page.file.src_uri
    if place.startswith("source/"):
        return markdown
    return repository.on_site(origins.get(place, f"docs/{place}"), place, markdown)


def on_post_build(config: MkDocsConfig) -> None:
    """Fail where a page would load anything from another machine."""
    site = Path(config.site_dir)
    found = [f"{path.relative_to(site)}: {address}" for path, address in assets.remote(site)]
    if found:
        raise PluginError("The site must open without a network, but loads these:\n" + "\n".join(found))
