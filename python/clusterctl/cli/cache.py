"""``clusterctl cache``, packs and locks that controllers share, and ``clusterctl gc``."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path  # noqa: TC003 - typer reads it at run time
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from clusterctl.cli import change, options, output
from clusterctl.cli.output import Format, StreamFormat
from clusterctl.support.errors import ConfigError, ExitCode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from clusterctl.model.shared_cache import EntryName, Statement
    from clusterctl.provisioning.collect import Retention
    from clusterctl.remote.shared_cache.exchange import Exchanged
    from clusterctl.remote.shared_cache.signing import SignatureVerifier
    from clusterctl.remote.shared_cache.store import SharedStore
    from clusterctl.support.errors import ClusterctlError


app = typer.Typer(
    no_args_is_help=True, help="Share compiled software with other controllers: push, pull, list, verify, gc."
)

_WHERE = "Name a folder, http(s)://…, or s3://BUCKET/PREFIX."
Where: TypeAlias = Annotated[str, typer.Argument(metavar="WHERE", help=_WHERE)]
SomeWhere: TypeAlias = Annotated[
    str | None, typer.Argument(metavar="[WHERE]", help=f"{_WHERE} Default: this controller's cache.")
]
Names: TypeAlias = Annotated[
    list[str] | None,
    typer.Argument(metavar="[NAME]...", help="Take software such as openmpi, whole names, or patterns. Default: all."),
]
Signers: TypeAlias = Annotated[
    str,
    typer.Option(
        "--signers",
        metavar="PATH",
        help="Take packs of these signers alone. Default: ~/.config/clusterctl/allowed_signers.",
    ),
]
SigningKey: TypeAlias = Annotated[
    str,
    typer.Option(
        "--signing-key",
        metavar="PATH",
        help="Sign with this key; a public key has ssh-agent sign. Default: ~/.config/clusterctl/signing_key.",
    ),
]
Platforms: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--platform", metavar="PLATFORM", help="Take only packs for this platform; repeat it for several."),
]
Output: TypeAlias = Annotated[Format, typer.Option("--format", help="Print text, or JSON on stdout.")]


@app.command(short_help="Sign packs and locks, and add them to a shared cache.")
def push(
    where: Where,
    names: Names = None,
    platform: Platforms = None,
    signing_key: SigningKey = "",
    signers: Signers = "",
    replace: Annotated[bool, typer.Option("--replace", help="Write also what is there already.")] = False,
    form: Output = Format.TEXT,
) -> int:
    """Sign packs and locks of this controller's cache, and add them to a shared cache.

    What is there already stays as it is. A push that breaks off leaves nothing that a pull would see.
    """
    from clusterctl.remote.shared_cache import exchange, place, signing  # noqa: PLC0415 - see cli.main: --help is quick
    from clusterctl.state import cache_entries, paths  # noqa: PLC0415 - the same

    place.refuse(where)
    signer = signing.Signer(signing_key)
    file = signing.signers_file(signers) if signers or paths.allowed_signers().exists() else None
    verifier = signing.SignatureVerifier(file, signer.public_key())
    wish = exchange.EntryOptions(tuple(names or ()), tuple(platform or ()))
    entries = [
        entry
        for entry in cache_entries.found(paths.cache_dir().value)
        if wish.takes(entry.name) and wish.takes_platform(entry.statement)
    ]
    if not entries:
        asked = f" named {' or '.join(names)}" if names else ""
        raise ConfigError(
            f"{paths.cache_dir().value} has nothing{asked} to push; 'clusterctl cache list' shows what it has."
        )
    outcome = exchange.push(place.opened(where), entries, signer, verifier, _telling(form), replace=replace)
    return _ended(outcome, form, ("pushed", "there already"))


@app.command(short_help="Bring packs and locks of a shared cache to this controller.")
def pull(
    where: Where,
    names: Names = None,
    platform: Platforms = None,
    signers: Signers = "",
    into: Annotated[
        Path | None,
        typer.Option(
            "--into", metavar="PATH", help="Put the packs into this folder. Default: this controller's cache."
        ),
    ] = None,
    pack: Annotated[
        str | None,
        typer.Option("--pack", metavar="NAME", help="Take exactly this pack; it ends well also where WHERE lacks it."),
    ] = None,
    form: Output = Format.TEXT,
) -> int:
    """Bring packs and locks of a shared cache into this controller's cache, where an allowed signer signed them.

    The signature is verified before anything is fetched, and the content is hashed on the way.
    """
    from clusterctl.model.shared_cache import EntryName  # noqa: PLC0415 - see cli.main
    from clusterctl.remote.shared_cache import exchange  # noqa: PLC0415 - the same
    from clusterctl.state import paths  # noqa: PLC0415 - the same

    store, verifier = _store_and_verifier(where, signers)
    cache = into.expanduser() if into is not None else paths.cache_dir().value
    if pack is not None:
        try:
            name = EntryName("pack", pack)
        except ValueError:
            raise typer.BadParameter("it is not the name of a pack", param_hint="--pack") from None
        one = exchange.pull_one(store, name, verifier, cache, _telling(form))
        return _ended(one or exchange.Exchanged(), form, ("pulled", "here already"))
    wish = exchange.EntryOptions(tuple(names or ()), tuple(platform or ()))
    return _ended(exchange.pull(store, wish, verifier, cache, _telling(form)), form, ("pulled", "here already"))


@app.command("list", short_help="Show the entries of a cache and who signed them.")
def list_entries(where: SomeWhere = None, signers: Signers = "", form: Output = Format.TEXT) -> int:
    """Show the entries of a shared cache with their signers, or those of this controller's cache."""
    from clusterctl.remote.shared_cache import exchange  # noqa: PLC0415 - see cli.main
    from clusterctl.state import cache_entries, paths  # noqa: PLC0415 - the same

    problems: list[ClusterctlError] = []
    if where is None:
        rows = [(entry.statement, "") for entry in cache_entries.found(paths.cache_dir().value)]
    else:
        found, problems = exchange.listed(*_store_and_verifier(where, signers))
        rows = [(entry.statement, entry.signer) for entry in found]
    if form is Format.JSON:
        answer = [{**_data(statement), **({"signer": signer} if where else {})} for statement, signer in rows]
        output.data(json.dumps({"entries": answer, "problems": [str(problem) for problem in problems]}))
        return _code(problems)
    from rich.table import Table  # noqa: PLC0415 - text output only

    table = Table(box=None, pad_edge=False)
    for column in ("NAME", "KIND", "PLATFORM", "SIZE", *(["SIGNED BY"] if where else [])):
        table.add_column(column, no_wrap=column in {"NAME", "KIND", "SIZE"}, overflow="fold", vertical="top")
    for statement, signer in rows:
        cells = (statement.entry.name, statement.entry.kind, statement.platform, _size(statement.size), signer)
        table.add_row(*(output.text(cell) for cell in cells[: len(table.columns)]))
    output.answer().print(table)
    return _told(problems)


@app.command(short_help="Read every content and compare its sha256.")
def verify(where: SomeWhere = None, signers: Signers = "", form: Output = Format.TEXT) -> int:
    """Read every content and compare its sha256 with the signed one, or with this controller's record; ends with 10."""
    from clusterctl.remote.shared_cache import exchange  # noqa: PLC0415 - see cli.main
    from clusterctl.state import cache_entries, paths  # noqa: PLC0415 - the same
    from clusterctl.support.errors import RefusedContentError  # noqa: PLC0415 - the same

    if where is not None:
        store, verifier = _store_and_verifier(where, signers)
        return _ended(exchange.verify(store, verifier, _telling(form)), form, ("sound", ""))
    outcome = exchange.Exchanged()
    for entry in cache_entries.found(paths.cache_dir().value):
        if problem := entry.problem():
            words = f"{entry.name.name}: {problem}; the next provision that needs it makes it anew."
            outcome.problems.append(RefusedContentError(words))
        else:
            outcome.done.append(entry.statement)
    return _ended(outcome, form, ("sound", ""))


@app.command(short_help="Remove old entries of a shared cache.")
def gc(
    where: Where,
    keep: Annotated[
        int, typer.Option("--keep", min=1, metavar="N", help="Keep so many of each software and platform.")
    ] = 2,
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", metavar="AGE", help="Remove only what is older, such as 12h, 30d or 4w."),
    ] = None,
    check: Annotated[bool, typer.Option("--check", "-C", help="Change nothing, and say what would go.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before something is removed.")] = False,
    signers: Signers = "",
    form: Output = Format.TEXT,
) -> int:
    """Remove old entries of a shared cache, and contents that no entry names.

    'clusterctl gc' cleans this controller.
    """
    from clusterctl.provisioning import collect  # noqa: PLC0415 - the same
    from clusterctl.remote.shared_cache import exchange  # noqa: PLC0415 - the same

    try:
        before = None if older_than is None else time.time() - collect.age(older_than)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--older-than") from None
    if not yes and not check and (form is not Format.TEXT or not output.is_interactive()):
        raise ConfigError("cache gc asks before it removes something, and there is no terminal to ask on; give --yes.")
    store, verifier = _store_and_verifier(where, signers)
    going, problems = exchange.old(store, verifier, keep, before)
    if problems:  # the content of a refused entry would count as named by nobody
        raise type(problems[0])(f"{problems[0]} Nothing was removed.")
    if form is Format.TEXT:
        for statement in going.entries:
            output.line(f"{'would go' if check else 'goes'}: {statement.entry.name} ({_size(statement.size)})")
    if check:
        return _removed(going.entries, 0, form, check=True)
    if going.entries and not yes and not typer.confirm("Go on?", default=False, err=True):
        return ExitCode.INTERRUPTED
    return _removed(going.entries, exchange.remove(store, going), form, check=False)


def _removed(entries: Iterable[Statement], freed: int, form: Format, *, check: bool) -> int:
    gone = list(entries)
    if form is Format.JSON:
        output.data(json.dumps({"entries": [_data(statement) for statement in gone], "freed": freed, "check": check}))
    elif not gone and not freed:
        output.line("Nothing to do: no entry is old.")
    elif not check:
        output.line(f"Removed {len(gone)}, and contents of {_size(freed)}.")
    return ExitCode.OK


def _store_and_verifier(where: str, signers: str) -> tuple[SharedStore, SignatureVerifier]:
    """Return the shared cache, and what judges its entries; what the user got wrong comes before any network."""
    from clusterctl.remote.shared_cache import place, signing  # noqa: PLC0415 - see cli.main

    place.refuse(where)
    verifier = signing.SignatureVerifier(signing.signers_file(signers))
    return place.opened(where), verifier


def _telling(form: Format) -> Callable[[str, Statement], None]:
    def tell(what: str, statement: Statement) -> None:
        if form is Format.TEXT:
            output.line(f"{what} {statement.entry.name} ({_size(statement.size)})")

    return tell


def _ended(outcome: Exchanged, form: Format, words: tuple[str, str]) -> int:
    """Say what happened, and return the exit code."""
    done, there = words
    if form is Format.JSON:
        answer: dict[str, Any] = {done: [_data(statement) for statement in outcome.done]}
        answer |= {there: [_data(statement) for statement in outcome.there]} if there else {}
        output.data(json.dumps({**answer, "problems": [str(problem) for problem in outcome.problems]}))
        return _code(outcome.problems)
    total = sum(statement.size for statement in outcome.done)
    line = f"{len(outcome.done)} {done} ({_size(total)})"
    output.line(f"{line}, {len(outcome.there)} {there}." if there else f"{line}.")
    return _told(outcome.problems)


def _told(problems: list[ClusterctlError]) -> int:
    for problem in problems:
        output.line(f"clusterctl: {problem}")
    return _code(problems)


def _code(problems: list[ClusterctlError]) -> int:
    """Return the exit code: what is refused weighs more than what cannot be reached."""
    return max((int(problem.exit_code) for problem in problems), default=int(ExitCode.OK))


def _data(statement: Statement) -> dict[str, Any]:
    name: EntryName = statement.entry
    return {
        "kind": name.kind,
        "name": name.name,
        "platform": statement.platform,
        "key": statement.key,
        "sha256": statement.sha256,
        "bytes": statement.size,
    }


def _size(count: int) -> str:
    from clusterctl.provisioning import collect  # noqa: PLC0415 - see cli.main

    return collect.size_words(count)


# --- ``clusterctl gc`` ------------------------------------------------------------------------------------------------


def collect_artifacts(
    which: options.OneInventoryGroup,
    how: change.ChangeGroup,
    limit: options.Limit = None,
    keep: Annotated[
        int, typer.Option("--keep", min=2, metavar="N", help="Keep so many different sets of versions, 2 or more.")
    ] = 2,
    older_than: Annotated[
        str | None,
        typer.Option(
            "--older-than",
            metavar="AGE",
            help="Remove only what is older, such as 12h, 30d or 4w; also sources and wheels.",
        ),
    ] = None,
    check: Annotated[bool, typer.Option("--check", "-C", help="Change nothing, and say what would go.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before something is removed.")] = False,
    form: options.StreamForm = StreamFormat.TEXT,
) -> int:
    """Remove old versions of artifacts from nodes and from the cache.

    What a link leads to, what a process uses, and the newest sets of every cluster of this controller stay, so that
    'rollback' to the one before works. Without INVENTORY, only the controller's cache is looked at.
    """
    from clusterctl.provisioning import collect  # noqa: PLC0415 - only the command needs it

    try:
        limits = collect.Retention(keep, None if older_than is None else collect.age(older_than))
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--older-than") from None
    if not yes and not check and (form is not StreamFormat.TEXT or not output.is_interactive()):
        raise ConfigError("gc asks before it removes something, and there is no terminal to ask on; give --yes.")
    if which.named is None and not which.more:
        return _of_cache(limits, form, check=check, ask=not yes)
    request = collect.CollectRequest(
        inventory=which.sources,
        limits=limits,
        check=check,
    )
    with change.observer_for(form, ask=not (yes or check)) as observer:
        record = collect.collect(how.asked(request, limit), observer)
    return change.show(record, form)


def _of_cache(limits: Retention, form: StreamFormat, *, check: bool, ask: bool) -> int:
    """Remove old files of the controller's cache alone."""
    from clusterctl.provisioning import collect  # noqa: PLC0415 - only the command needs it

    files = collect.old_cache_files(limits)
    lines = collect.artifact_lines({}, files) or ["Nothing to do: the cache has nothing old."]
    if form is StreamFormat.TEXT:
        for line in lines:
            output.line(line)
    if files and not check:
        if ask and not typer.confirm("Go on?", default=False, err=True):
            return ExitCode.INTERRUPTED
        gone, _ = collect.remove(files)
        files = gone
    if form is not StreamFormat.TEXT:
        answer = [{"kind": file.kind, "name": file.name, "bytes": file.size} for file in files]
        sys.stdout.write(json.dumps({"cache": answer, "check": check}) + "\n")
    return ExitCode.OK
