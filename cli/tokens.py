"""`whippletree tokens DIR`: makes the tokens that the processes of a stack share."""

from __future__ import annotations

import sys
from pathlib import Path

from cli.state import TOKEN_NAMES, make_token

CONTAINER_TOKENS = (*TOKEN_NAMES, "core")
"""Besides the tokens of `up`, the one that people present to a development core in a container."""


def run_tokens(folder: Path) -> int:
    """Writes one file per token (0600) and keeps those that are there; the exit code."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in CONTAINER_TOKENS:
            make_token(folder / name)
    except OSError as error:
        print(f"The tokens can't be written to {folder}: {error}", file=sys.stderr)
        return 1
    print(f"The tokens are in {folder}: {', '.join(CONTAINER_TOKENS)}.")
    return 0
