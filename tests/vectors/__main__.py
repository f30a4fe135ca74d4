"""Runs recorded vectors: `python -m tests.vectors [--whole] DIR...`

DIR is a folder of vectors or a part of one (a folder of one kind, a single file). Prints what failed, then
one line per kind and one in all; the exit status is 1 when anything failed, 2 when the path is wrong.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.vectors.case import Case
from tests.vectors.files import kind_of, vector_files
from tests.vectors.registry import load_runners, run_file

DATA = Path(__file__).parent / "data"
_DETAIL_LIMIT = 400
_VERDICTS = ("passed", "failed", "not built")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the vectors named on the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.vectors", description=__doc__)
    parser.add_argument("paths", nargs="*", type=Path, default=[DATA], metavar="DIR")
    parser.add_argument("--whole", action="store_true", help="print the details of failures uncut")
    options = parser.parse_args(arguments)
    runners = load_runners()
    counts: dict[str, Counter[str]] = {}
    for root in options.paths:
        if not root.exists():
            print(f"no such file or folder: {root}", file=sys.stderr)
            return 2
        for path in vector_files(root):
            kind = kind_of(path)
            if kind is None or kind not in runners:
                print(f"not known: {path}")
                continue
            count = counts.setdefault(kind, Counter())
            for case in run_file(runners[kind], kind, path):
                count[case.verdict] += 1
                if case.verdict == "failed":
                    print(_failure(kind, case, None if options.whole else _DETAIL_LIMIT))
    for kind, count in sorted(counts.items()):
        print(_line(kind, count))
    total = sum(counts.values(), Counter())
    print(_line("total", total))
    return 1 if total["failed"] else 0


def _failure(kind: str, case: Case, limit: int | None) -> str:
    text = f"failed: {kind}: {case.name}"
    if case.detail:
        text += f": {case.detail[:limit]}"
    return text.encode("utf-8", "backslashreplace").decode()


def _line(name: str, count: Counter[str]) -> str:
    return f"{name}: {', '.join(f'{count[verdict]} {verdict}' for verdict in _VERDICTS)}"


if __name__ == "__main__":
    sys.exit(main())
