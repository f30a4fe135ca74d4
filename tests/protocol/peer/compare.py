"""Our verdicts beside those recorded from the peer.

python -m tests.protocol.peer.compare FOLDER
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from protocol import jsjson
from protocol.js_regex import JsRegex, RegexInvalid, RegexTooCostly
from protocol.json_schema import SchemaUnsupported, Valid, ValidationStopped, compile_schema
from tests.protocol.peer.generate import PATTERN_TEXTS


def records(path: Path) -> Iterator[Any]:
    for line in path.read_bytes().split(b"\n"):
        if line:
            yield jsjson.loads(line)


def schema_faults(record: Any) -> Iterator[str]:
    """Where a recorded schema is judged otherwise."""
    shown = jsjson.dumps(record["schema"])
    try:
        schema = compile_schema(record["schema"])
    except SchemaUnsupported:
        if record["loads"]:
            yield f"does not load: {shown}"
        return
    if not record["loads"]:
        yield f"loads: {shown}"
        return
    for case in record["cases"]:
        found: dict[str, Any] = {"value": case["value"]}
        try:
            verdict = schema.validate(case["value"])
        except ValidationStopped:
            found["stops"] = True
        else:
            found["ok"] = isinstance(verdict, Valid)
            if isinstance(verdict, Valid):
                found["parsed"] = verdict.value
            else:
                found["issues"] = [
                    {"path": issue.path, "code": issue.code, "message": issue.message}
                    for issue in verdict.issues
                ]
        if jsjson.dumps(found) != jsjson.dumps(case):
            yield f"{shown}: {jsjson.dumps(found)} instead of {jsjson.dumps(case)}"


def pattern_faults(record: Any) -> Iterator[str]:
    """Where a recorded pattern is judged otherwise."""
    try:
        regex = JsRegex(record["pattern"])
    except RegexInvalid:
        if record["valid"]:
            yield f"refused: {record['pattern']!r}"
        return
    if not record["valid"]:
        yield f"accepted: {record['pattern']!r}"
        return
    if str(regex) != record["printed"]:
        yield f"printed {regex} instead of {record['printed']}"
    try:
        matches = [text for text in PATTERN_TEXTS if regex.test(text)]
    except RegexTooCostly:
        return
    if matches != record["matches"]:
        yield f"{record['pattern']!r} matches {matches} instead of {record['matches']}"


def main(folder: Path) -> int:
    faults = [fault for record in records(folder / "schemas.jsonl") for fault in schema_faults(record)]
    faults += [fault for record in records(folder / "patterns.jsonl") for fault in pattern_faults(record)]
    print(*faults[:20], f"{len(faults)} differences", sep="\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
