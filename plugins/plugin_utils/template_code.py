# SPDX-License-Identifier: GPL-3.0-or-later
"""Keep the code that Jinja makes of a template, so that it is made once and not once for each task of each host.

Ansible forks a worker for each task of each host, and each worker compiles each template that it meets, each time that
it meets it. That is most of what a worker does. The code depends on the text and on settings alone, never on variables.

The code of templates that are in files of this collection stays in a folder from run to run. All other templates may
hold what a user keeps secret, so their code stays in the memory of its process.
"""

from __future__ import annotations

import contextlib
import hashlib
import marshal
import os
import tempfile
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible_collections.clusterctl.hpc.plugins.plugin_utils import kept_folder
from jinja2.environment import TemplateExpression

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType

_SETTINGS = (
    "block_start_string",
    "block_end_string",
    "variable_start_string",
    "variable_end_string",
    "comment_start_string",
    "comment_end_string",
    "line_statement_prefix",
    "line_comment_prefix",
    "trim_blocks",
    "lstrip_blocks",
    "newline_sequence",
    "keep_trailing_newline",
    "optimized",
    "autoescape",
    "is_async",
)
_made: ContextVar[list[CodeType] | None] = ContextVar("_made", default=None)


class Store:
    """Code by its key: in memory, and in a folder where that is asked for."""

    def __init__(self, folder: Path) -> None:
        """Keep the folder, which this user alone may write."""
        self._folder = folder
        self._known: dict[str, CodeType] = {}

    def find(self, key: str, *, on_disk: bool) -> CodeType | None:
        """Return the code of a key; None where it has to be made."""
        found = self._known.get(key)
        if found is None and on_disk:
            found = self._read(key)
            if found is not None:
                self._known[key] = found
        return found

    def keep(self, key: str, code: CodeType, *, on_disk: bool) -> None:
        """Keep the code of a key; a folder that cannot be written changes nothing else."""
        self._known[key] = code
        if not on_disk:
            return
        with contextlib.suppress(OSError):
            handle, name = tempfile.mkstemp(dir=self._folder)
            try:
                with os.fdopen(handle, "wb") as stream:
                    stream.write(marshal.dumps(code))
                Path(name).replace(self._folder / key)
            except OSError:
                Path(name).unlink()
                raise

    def _read(self, key: str) -> CodeType | None:
        try:
            handle = os.open(self._folder / key, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            with os.fdopen(handle, "rb") as stream:
                found = marshal.loads(stream.read())  # noqa: S302 - of this user's own folder
        except (OSError, ValueError, EOFError, TypeError):
            return None
        return found if hasattr(found, "co_code") else None


def use() -> bool:
    """Have Ansible keep the code of templates where something is to be kept; tells whether it does.

    It works with the templating of ansible-core 2.19 and later. With an earlier one, nothing changes.
    """
    folder = kept_folder.of("templates", "filter", "test")  # what Jinja passes to a filter is part of the code
    if folder is None:
        return False
    try:
        origin = kept_folder.origin_reader()
        from ansible._internal._templating import _jinja_bits as bits  # noqa: PLC0415 - not in 2.18

        environment, context, config = bits.AnsibleEnvironment, bits._TemplateCompileContext, bits._TemplateConfig  # noqa: SLF001
        if "compile" in vars(environment) or environment._debuggable_template_source:  # noqa: SLF001 - used already
            return False
    except (ImportError, AttributeError):
        return False

    def settings(of: Any) -> tuple[Any, ...]:
        escapes = context.current(optional=True)
        own = tuple(getattr(of, name) for name in _SETTINGS)
        return (*own, sorted(of.extensions), escapes and escapes.escape_backslashes, config.allow_embedded_templates)

    _patch(environment, Store(folder), origin, settings)
    return True


def _patch(
    environment: Any, store: Store, origin: Callable[[str], str], settings: Callable[[Any], tuple[Any, ...]]
) -> None:
    """Put the store before the two methods of Jinja that make code."""
    make, make_expression = environment.compile, environment.compile_expression

    def compile_template(self: Any, source: Any, *args: Any, **options: Any) -> Any:
        if args or options:  # a file that a template includes, or source text of Python
            return make(self, source, *args, **options)
        if not isinstance(source, str):
            code = make(self, source)
            into = _made.get()
            if into is not None:
                into.append(code)
            return code
        key, on_disk = _key("template", source, settings(self)), kept_folder.holds(origin(source))
        found = store.find(key, on_disk=on_disk)
        if found is None:
            found = make(self, source)
            store.keep(key, found, on_disk=on_disk)
        return found

    def compile_expression(self: Any, source: str, undefined_to_none: bool = True) -> Any:
        key, on_disk = _key("expression", source, settings(self)), kept_folder.holds(origin(source))
        found = store.find(key, on_disk=on_disk)
        if found is not None:
            template = self.template_class.from_code(self, found, self.make_globals(None), None)
            return TemplateExpression(template, undefined_to_none)
        into: list[CodeType] = []
        token = _made.set(into)
        try:
            expression = make_expression(self, source, undefined_to_none)
        finally:
            _made.reset(token)
        if len(into) == 1:
            store.keep(key, into[0], on_disk=on_disk)
        return expression

    environment.compile = compile_template
    environment.compile_expression = compile_expression


def _key(kind: str, source: str, settings: tuple[Any, ...]) -> str:
    return hashlib.sha256(repr((kind, str(source), settings)).encode()).hexdigest()
