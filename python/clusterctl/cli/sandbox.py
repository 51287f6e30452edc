"""``clusterctl sandbox``: a cluster of containers on this machine."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from pathlib import Path  # noqa: TC003 - typer reads the annotation while running
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from clusterctl import sandbox
from clusterctl.cli import output as screen
from clusterctl.cli.output import Format
from clusterctl.sandbox.model import EXTRAS, IMAGES, MAX_NODES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console

app = typer.Typer(no_args_is_help=True, help="A cluster of containers on this machine, to try things on.")


Name = Annotated[str, typer.Option("--name", metavar="NAME", help="Name the sandbox; several can be up side by side.")]
Output = Annotated[Format, typer.Option("--format", help="Print text, or the sandbox as JSON on stdout.")]


@app.command()
def up(
    name: Name = "sandbox",
    nodes: Annotated[int, typer.Option("--nodes", metavar="N", help=f"Make so many nodes, 1 to {MAX_NODES}.")] = 4,
    image: Annotated[
        list[str],
        typer.Option(
            "--image",
            metavar="|".join(IMAGES),
            help="Use this image; repeat it to mix images, which are dealt in turn.",
        ),
    ] = ["debian12"],  # noqa: B006 - typer copies the default
    inventory: Annotated[
        Path | None,
        typer.Option("--inventory", metavar="PATH", help="Write the inventory here. Default: beside the state."),
    ] = None,
    extras: Annotated[
        list[str] | None,
        typer.Option("--with", metavar="|".join(EXTRAS), help="Add a real Slurm: its controller runs on node1."),
    ] = None,
    ipv6: Annotated[bool, typer.Option("--ipv6", help="Give the nodes addresses of IPv6 alone.")] = False,
    output: Output = Format.TEXT,
) -> None:
    """Start the sandbox, or mend and grow the one that is there."""
    console = screen.console()
    spec = sandbox.SandboxSpec(name, nodes, tuple(image), inventory, tuple(extras or ()), ipv6=ipv6)
    started = time.monotonic()
    with _progress(console) as report:
        ready = sandbox.up(spec, report)
    if output is Format.JSON:
        typer.echo(ready.model_dump_json(indent=2))
        return
    _show(console, ready)
    option = "" if name == "sandbox" else f" --name {name}"
    console.print(f"Sandbox '{name}' is up ({time.monotonic() - started:.1f} s).", highlight=False)
    for line in (f"inventory  {ready.inventory}", f"next       clusterctl provision {ready.inventory}"):
        screen.line(f"  {line}")
    if "slurm" in ready.extras:
        line = f"  Slurm      clusterctl validate {ready.inventory} --via slurm --submit-host node1"
        screen.line(line)
    console.print(f"  log in     clusterctl sandbox ssh{option} node1", highlight=False)
    console.print(f"  clean up   clusterctl sandbox down{option}", highlight=False)
    if words := sandbox.advice(ready):
        screen.line(words)


@app.command()
def status(name: Name = "sandbox", output: Output = Format.TEXT) -> None:
    """Show the nodes and whether they answer."""
    found = sandbox.status(name)
    if output is Format.JSON:
        typer.echo(found.model_dump_json(indent=2))
        return
    _show(screen.answer(), found)
    screen.answer_line(f"inventory  {found.inventory}")


@app.command(short_help="Log in to a node, or run a command there.")
def ssh(
    node: Annotated[str, typer.Argument(metavar="NODE", help="Name the node, for example node2.")],
    command: Annotated[
        list[str] | None, typer.Argument(metavar="COMMAND", help="Run this command there. Default: a login shell.")
    ] = None,
    name: Name = "sandbox",
) -> None:
    """Log in to a node, or run a command there: clusterctl sandbox ssh node2 'cd /tmp; ls'.

    As with ssh, the node's shell gets the words joined by blanks. Options of the command go behind '--'.
    """
    found = sandbox.load(name)
    argv = [*sandbox.ssh_command(found, found.node(node), ()), *(command or [])]
    os.execvp(argv[0], argv)  # noqa: S606 - the terminal, the signals and the exit code become ssh's own


@app.command()
def down(name: Name = "sandbox") -> None:
    """Remove the sandbox and everything that belongs to it."""
    console = screen.console()
    with _progress(console) as report:
        removed = sandbox.down(name, report)
    console.print(f"Sandbox '{name}' is gone." if removed else f"There is no sandbox '{name}'.", highlight=False)


def _show(console: Console, found: sandbox.Sandbox) -> None:
    table = Table(box=None, pad_edge=False)
    for heading in ("node", "address", "image", "state"):
        table.add_column(heading)
    for node in found.nodes:
        table.add_row(node.name, node.address, node.image, node.state)
    console.print(table, highlight=False)


@contextmanager
def _progress(console: Console) -> Iterator[Callable[[str], None]]:
    """Show each step: as one living line on a terminal, line by line elsewhere."""
    if not console.is_terminal:
        yield screen.line
        return
    started = time.monotonic()
    with console.status("looking at podman") as line:

        def report(text: str) -> None:
            line.update(f"{escape(text)} ({time.monotonic() - started:.0f} s)")

        yield report
