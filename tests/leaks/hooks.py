"""Leads everything that is said in a test run past the watch: output of children, errors of calls, spans, files."""

from __future__ import annotations

import asyncio.subprocess
import os
import secrets
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.leaks.watch import Watch

_BEARER_BYTES = 32
_SAYS = (".log", ".jsonl", ".out", ".txt", ".err")
"""Files of tests that hold what processes said: logs and recordings."""
_RECORDINGS = "recordings"
_MAX_FILE = 64 * 1024 * 1024


def install(watch: Watch) -> Callable[[], None]:
    """Puts the hooks in place; returns how to take them out again."""
    undo: list[Callable[[], None]] = []

    def replace(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        plain = getattr(owner, name)
        setattr(owner, name, make(plain))
        undo.append(lambda: setattr(owner, name, plain))

    def made(plain: Any) -> Any:
        def token_hex(nbytes: int | None = None) -> str:
            token: str = plain(nbytes)
            if nbytes is not None and nbytes >= _BEARER_BYTES:
                watch.learn(token, "a bearer that was made in this process")
            return token

        return token_hex

    def piped(plain: Any) -> Any:
        def pipe_data_received(self: Any, fd: int, data: bytes) -> None:
            watch.said(f"output {fd} of child {id(self):x}", data)
            plain(self, fd, data)

        return pipe_data_received

    def communicated(plain: Any) -> Any:
        def communicate(self: Any, *args: Any, **kwargs: Any) -> Any:
            out, err = plain(self, *args, **kwargs)
            for data in (out, err):
                watch.said("output of a child", data or b"", whole=True)
            return out, err

        return communicate

    replace(secrets, "token_hex", made)
    replace(asyncio.subprocess.SubprocessStreamProtocol, "pipe_data_received", piped)
    replace(subprocess.Popen, "communicate", communicated)
    _install_calls(watch, replace)
    _install_spans(watch, replace)

    def take_out() -> None:
        while undo:
            undo.pop()()

    return take_out


def _install_calls(watch: Watch, replace: Callable[[Any, str, Callable[[Any], Any]], None]) -> None:
    import services.common.grpc_env  # noqa: F401  (before grpc)

    # isort: split
    import grpc

    def failed(plain: Any) -> Any:
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            plain(self, *args, **kwargs)
            watch.said("the error of a call", f"{self.details()} {self.trailing_metadata()}", whole=True)

        return init

    replace(grpc.aio.AioRpcError, "__init__", failed)


def _install_spans(watch: Watch, replace: Callable[[Any, str, Callable[[Any], Any]], None]) -> None:
    from opentelemetry.sdk.trace import Span

    def ended(plain: Any) -> Any:
        def end(self: Any, *args: Any, **kwargs: Any) -> None:
            plain(self, *args, **kwargs)
            watch.said("a span", self.to_json(), whole=True)

        return end

    replace(Span, "end", ended)


def _files(folder: Path) -> Iterator[Path]:
    # A tree that a test made too deep to be read is passed over.
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            if path.suffix in _SAYS or _RECORDINGS in path.parts:
                yield path


def look_at_files(watch: Watch, folder: Path) -> int:
    """Looks at logs and recordings below a folder; how many there were."""
    count = 0
    for path in sorted(_files(folder)):
        try:
            if not path.is_file() or path.is_symlink() or path.stat().st_size > _MAX_FILE:
                continue
            content = path.read_bytes()
        except OSError:
            continue
        count += 1
        watch.said(f"the file {path.relative_to(folder)}", content, whole=True)
    return count
