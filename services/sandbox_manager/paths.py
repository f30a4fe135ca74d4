"""Paths as the tools read them (sandbox-manager 9.1): lexically, without looking at any file."""

from __future__ import annotations

from typing import Final

WORKSPACE: Final = "/workspace"


def resolve(path: str, workspace: str = WORKSPACE) -> str:
    """An absolute path without `.`, `..` and `//`; a slash at the end stays.

    Relative paths start at `workspace`. On a backend whose workspace is another folder, `/workspace` and
    what is under it names that folder. Nothing is confined: that is the sandbox's business.
    """
    if workspace != WORKSPACE and (path == WORKSPACE or path.startswith(WORKSPACE + "/")):
        path = workspace + path[len(WORKSPACE) :]
    if not path.startswith("/"):
        path = f"{workspace}/{path}" if path else workspace
    return normalize(path)


def normalize(path: str) -> str:
    """Node's `path.posix.normalize` of an absolute path."""
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            if parts:
                parts.pop()
        elif part not in {"", "."}:
            parts.append(part)
    plain = "/" + "/".join(parts)
    return plain + "/" if path.endswith("/") and parts else plain


def dirname(path: str) -> str:
    """Node's `path.posix.dirname` of a normalized absolute path."""
    return path.rstrip("/").rpartition("/")[0] or "/"
