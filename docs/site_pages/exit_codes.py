"""Reference of exit codes, made from ExitCode and the text below each of its members."""

from __future__ import annotations

import ast
import inspect

from clusterctl.support.errors import ExitCode

from site_pages import markdown

_INTRODUCTION = """\
# Exit codes

This page is made from the program itself. The numbers are part of the public interface.
`clusterctl run`, `clusterctl jobs logs -f` and `clusterctl launch` also pass on the exit code of your program.
"""


def page() -> str:
    """Return the whole page as Markdown."""
    rows = [(markdown.code(str(code), f"code-{code}"), markdown.code(name), text) for name, code, text in members()]
    return "\n".join([_INTRODUCTION, *markdown.table(("code", "name", "meaning"), rows)])


def members() -> list[tuple[str, int, str]]:
    """Return name, number and meaning of every exit code, aliases included, as they stand in the source."""
    body = ast.parse(inspect.getsource(ExitCode)).body[0]
    if not isinstance(body, ast.ClassDef):
        raise TypeError("The source of ExitCode is not a class.")
    found = []
    for statement, following in zip(body.body, [*body.body[1:], None], strict=True):
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            name = statement.targets[0].id
            text = ""
            if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                text = " ".join(str(following.value.value).split())
            found.append((name, int(ExitCode[name]), text))
    return found
