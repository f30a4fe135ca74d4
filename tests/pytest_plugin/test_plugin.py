"""The plugin as pytest finds it once it is installed: by its entry point, in a pytest of its own."""

from __future__ import annotations

import ast
import os
import shutil
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest

from tests.gateway.recorded import FIRST_MODEL, record_turn

pytest_plugins = ("pytester",)

SOURCE = Path(__file__).parents[2] / "pytest-whippletree"
COMMAND = f"{sys.executable} -m cli.main"


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the module and its metadata, as an installer lays them out."""
    folder = tmp_path_factory.mktemp("site")
    project = tomllib.loads((SOURCE / "pyproject.toml").read_text())["project"]
    shutil.copy(SOURCE / "pytest_whippletree.py", folder)
    info = folder / f"pytest_whippletree-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Name: {project['name']}\nVersion: {project['version']}\n")
    points = project["entry-points"]["pytest11"]
    lines = [f"{name} = {module}" for name, module in points.items()]
    (info / "entry_points.txt").write_text("\n".join(["[pytest11]", *lines, ""]))
    return folder


@pytest.fixture
def project(pytester: pytest.Pytester, installed: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A user's project with a recording, and the plugin in its path."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(installed), str(SOURCE.parent)]))
    monkeypatch.setenv("OPENAI_API_KEY", "s3cret")
    pytester.makeini(f"[pytest]\nwhippletree_command = {COMMAND}\n")
    record_turn(pytester.path / "made").rename(pytester.path / "milk.jsonl")
    return pytester


def tried(project: pytest.Pytester, body: str, *, code: int = 0) -> str:
    """Runs one test file of the project; everything it printed."""
    project.makepyfile(test_agent=textwrap.dedent(body))
    result = project.runpytest_subprocess("-p", "no:cacheprovider", timeout=100)
    text = result.stdout.str()
    assert result.ret == code, text
    return text


def test_an_agent_runs_from_a_recording_without_a_key(project):
    tried(
        project,
        """
        def test_it(whippletree_recording):
            agent = whippletree_recording("milk.jsonl")
            assert (agent.agent_id, agent.input) == ("clerk", "go")
            run = agent.run()
            assert (run.status, run.output, run.error) == ("completed", "Noted.", None)
            assert run.calls("note") == [{"text": "milk"}, {"text": "eggs"}]
            assert [effect.kind for effect in run.effects] == ["model", "tool", "tool", "model"]
            assert "OPENAI_API_KEY" not in str(run.effects)
        """,
    )


def test_another_manifest_that_asks_for_the_same_fits(project):
    tried(
        project,
        """
        MANIFEST = {
            "manifestSchemaVersion": 4, "id": "clerk", "description": "New.", "capabilities": [{
                "id": "desk", "type": "agent", "instructions": ["Be terse."],
                "tools": [{"name": "note", "inputSchema": {"type": "object"}}],
            }],
        }

        def test_it(whippletree_recording):
            assert whippletree_recording("milk.jsonl").run(manifest=MANIFEST, input="go").output == "Noted."
        """,
    )


def test_a_changed_prompt_misses_loudly_with_the_difference(project):
    text = tried(
        project,
        """
        import pytest

        MANIFEST = {
            "manifestSchemaVersion": 4, "id": "clerk", "capabilities": [{
                "id": "desk", "type": "agent", "instructions": ["Be verbose."],
                "tools": [{"name": "note", "inputSchema": {"type": "object"}}],
            }],
        }

        def test_it(whippletree_recording):
            whippletree_recording("milk.jsonl").run(manifest=MANIFEST)

        def test_its_parts(whippletree_recording):
            with pytest.raises(AssertionError) as missed:
                whippletree_recording("milk.jsonl").run(input="stop")
            miss = missed.value
            assert (miss.kind, miss.path) == ("model", "input.prompt[1].content[0].text")
            assert (miss.before, miss.after) == ("go", "stop")
        """,
        code=1,
    )
    assert f"The recording does not fit effect {FIRST_MODEL}: it is another request." in text
    assert "at input.prompt[0].content[0].text" in text
    assert 'recorded: "Be terse."' in text
    assert 'now:      "Be verbose."' in text
    assert "1 failed, 1 passed" in text
    assert "def _next" not in text


def test_what_can_not_be_run_says_why(project):
    tried(
        project,
        """
        import pytest
        from pytest_whippletree import RecordingUnusable

        def test_it(whippletree_recording):
            with pytest.raises(RecordingUnusable, match="There is no recording no.jsonl"):
                whippletree_recording("no.jsonl")
            with pytest.raises(RecordingUnusable, match="is not a recording"):
                whippletree_recording("test_agent.py")
            with pytest.raises(RecordingUnusable, match="The agent is refused: Invalid manifest"):
                whippletree_recording("milk.jsonl").run(manifest={})
            with pytest.raises(TypeError):
                whippletree_recording()
        """,
    )


def test_recordings_may_lie_in_a_folder_of_their_own(project):
    (project.path / "tapes").mkdir()
    (project.path / "milk.jsonl").rename(project.path / "tapes" / "eggs.jsonl")
    project.makeini(f"[pytest]\nwhippletree_command = {COMMAND}\nwhippletree_recordings = tapes\n")
    tried(
        project,
        """
        def test_it(whippletree_recording):
            assert whippletree_recording("eggs.jsonl").run().status == "completed"
        """,
    )


ENDLESS = """
import json, sys, time
print(json.dumps({"protocol": 1, "agentId": "a", "input": "go"}), flush=True)
sys.stdin.readline()
while True:
    effect = {"type": "effect", "n": 1, "effectId": "e", "kind": "model", "document": {}}
    print(json.dumps(effect), flush=True)
    time.sleep(0.1)
"""
"""A run that tells of one effect after another and never ends."""


def test_a_command_that_is_not_there_or_says_nothing_is_named(project):
    project.makeini("[pytest]\nwhippletree_command = no-such-whippletree\n")
    body = """
        import pytest
        from pytest_whippletree import RecordingUnusable

        def test_it(whippletree_recording):
            with pytest.raises(RecordingUnusable, match={match!r}):
                whippletree_recording("milk.jsonl").run()
        """
    tried(project, body.format(match="no-such-whippletree can't be started"))
    program = project.makepyfile(silent="import sys; sys.stdin.read()")
    project.makeini(
        f"[pytest]\nwhippletree_command = {sys.executable} {program}\nwhippletree_timeout = 0.2\n"
    )
    tried(project, body.format(match="did not answer within 0.2 s"))
    program.write_text(ENDLESS)
    project.makeini(f"[pytest]\nwhippletree_command = {sys.executable} {program}\nwhippletree_timeout = 2\n")
    tried(project, body.format(match="did not answer within 2 s"))
    program.write_text("raise SystemExit('out of order')")
    project.makeini(f"[pytest]\nwhippletree_command = {sys.executable} {program}\n")
    tried(project, body.format(match="out of order"))


def test_the_plugin_imports_nothing_of_whippletree():
    tree = ast.parse((SOURCE / "pytest_whippletree.py").read_text())
    imported = {
        (node.module or "") if isinstance(node, ast.ImportFrom) else name.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in node.names
    }
    ours = {"protocol", "gateway", "services", "cli", "whippletree"}
    assert not {name.split(".")[0] for name in imported} & ours
    foreign = {name.split(".")[0] for name in imported} - set(sys.stdlib_module_names)
    assert foreign == {"pytest"}


def test_the_plugin_carries_the_license():
    assert (SOURCE / "LICENSE").read_bytes() == (SOURCE.parent / "LICENSE").read_bytes()
