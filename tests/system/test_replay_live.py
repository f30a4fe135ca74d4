"""A recorded run goes on for real, through services that run: what was recorded does not happen again."""

import json
import subprocess
import sys

import pytest

from cli.stack import GATEWAY, process_specs
from tests.system.support import Stack, calls, counting_manifest, until

pytestmark = [pytest.mark.system, pytest.mark.timeout(180)]

AGENT = "clerk"


def answers(journal):
    """What the recorded turn is answered, and what the changed one is."""
    append = ("counting__append", {"file": str(journal), "line": "live"})
    look = ("bash", {"command": "ls -A; pwd > here; cat here"})
    return [
        calls(AGENT, 0, ("bash", {"command": "echo kept > note"})),
        calls(
            AGENT, 1, ("counting__append", {"file": str(journal), "line": "recorded"}), text='"exitCode":0'
        ),
        calls(AGENT, 1, append, look, text="Disk full"),
        {"agent": AGENT, "step": 2, "text": "appended", "answer": "All done."},
        {"agent": AGENT, "step": 2, "answer": "Gone on."},
    ]


def lines(path):
    return path.read_text().splitlines() if path.exists() else []


async def recorded_turn(stack, folder):
    async with stack.core() as core:
        await core.put_agent(AGENT, counting_manifest(AGENT))
        session = await core.create_session(AGENT)
        await core.send_message(session, "go")
        view = await until(
            lambda: core.session(session), lambda seen: seen["status"] in ("completed", "failed")
        )
    assert view["lastTurn"]["result"]["output"] == "All done."

    async def files():
        return sorted(folder.glob("*.jsonl"))

    (path,) = await until(files, bool)
    return path


def replay(stack, *words):
    (gateway,) = (spec for spec in process_specs(stack.plan) if spec.name == GATEWAY)
    return subprocess.run(
        [sys.executable, "-m", "cli.main", "replay", *map(str, words)],
        env=dict(gateway.environ),
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


async def test_a_changed_run_goes_on_with_live_answers_and_repeats_nothing_recorded(tmp_path):
    journal, recordings = tmp_path / "journal", tmp_path / "recordings"
    stack = Stack(tmp_path, answers(journal), environ={"WHIPPLETREE_RECORD_DIR": str(recordings)})
    await stack.start()
    try:
        path = await recorded_turn(stack, recordings)
        workspaces = sorted(stack.plan.state.root.glob("sandboxes/nylorun-*"))
        assert (len(workspaces), lines(journal)) == (1, ["recorded"])
        full = tmp_path / "full.json"
        full.write_text(
            json.dumps({"value": {"kind": "failed", "code": "disk.full", "message": "Disk full"}})
        )
        manifest = tmp_path / "manifest.json"
        manifest.write_text(json.dumps(counting_manifest(AGENT)))

        bare = replay(stack, path, "--set", f"2={full}")
        assert bare.returncode == 2, bare.stdout + bare.stderr
        assert "LIVE" not in bare.stdout
        secretless = replay(stack, path, "--set", f"2={full}", "--live")
        assert secretless.returncode == 2, secretless.stdout + secretless.stderr
        assert "name the agent's whole manifest with --manifest FILE" in secretless.stdout
        assert lines(journal) == ["recorded"]

        done = replay(stack, path, "--set", f"2={full}", "--live", "--manifest", manifest)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "LIVE from here on." in done.stdout
        assert done.stdout.splitlines()[-1] == 'the end: completed, output "Gone on."'
        assert done.stdout.count(" live: ") == 4, "two model calls, an MCP tool and a command"
        assert lines(journal) == ["recorded", "live"]
        assert '"exitCode":0' in done.stdout
        assert "note" not in done.stdout.split(" live: ")[3], "the command saw a workspace of its own"
        assert done.stderr == ""
        assert sorted(stack.plan.state.root.glob("sandboxes/nylorun-*")) == workspaces
        (note,) = workspaces[0].glob("**/note")
        assert note.read_text() == "kept\n"
    finally:
        await stack.stop()
