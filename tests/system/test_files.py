"""Files through the real processes: saved by an agent, exported at a turn's end, worked on by HTTP, removed."""

import aiohttp
import pytest

from tests.system.support import ENDED, Stack, calls, counting_manifest, until

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]

SAVE = {
    "id": "nylorun.artifacts",
    "type": "agent",
    "tools": [{"name": "save_artifact", "description": "Keep a file.", "inputSchema": {"type": "object"}}],
}
ANSWERS = [
    calls(
        "keeper", 0, ("bash", {"command": "mkdir -p outputs && echo out > outputs/o.txt && echo in > i.csv"})
    ),
    calls("keeper", 1, ("save_artifact", {"path": "i.csv", "name": "kept.csv"})),
    {"agent": "keeper", "step": 2, "answer": "Done."},
]


async def test_a_session_keeps_files_and_takes_its_workspace_along(tmp_path):
    stack = Stack(tmp_path, ANSWERS)
    await stack.start()
    try:
        async with stack.core() as core, aiohttp.ClientSession(stack.plan.core_url()) as http:
            manifest = counting_manifest("keeper")
            manifest["capabilities"].append(SAVE)
            await core.put_agent("keeper", manifest)
            session = await core.create_session("keeper")
            await core.send_message(session, "Keep them.")
            ended = await until(lambda: core.session(session), lambda seen: seen["status"] in ENDED)
            assert ended["status"] == "completed", stack.tail()

            base = f"/v1/sessions/{session}"
            async with http.get(f"{base}/artifacts") as answer:
                found = {each["name"]: each for each in (await answer.json())["artifacts"]}
            assert sorted(found) == ["kept.csv", "o.txt"]
            async with http.get(f"{base}/artifacts/{found['o.txt']['artifactId']}/1") as answer:
                assert await answer.text() == "out\n"
            async with http.get(f"{base}/artifacts/{found['kept.csv']['artifactId']}/latest") as answer:
                assert await answer.text() == "in\n"

            write = {"path": "note.txt", "content": "hello\n"}
            async with http.post(f"{base}/workspace/write", json=write) as answer:
                assert (await answer.json())["kind"] == "completed"
            async with http.post(f"{base}/workspace/exec", json={"command": "cat note.txt"}) as answer:
                assert (await answer.json())["output"]["stdout"] == "hello\n"
            async with http.get(f"{base}/workspace/list") as answer:
                entries = (await answer.json())["listing"]["entries"]
            assert [entry["path"] for entry in entries] == ["i.csv", "note.txt", "outputs/o.txt"]

            folders = list((tmp_path / "state").rglob("nylorun-tn_dev-*"))
            assert folders
            async with http.delete(base) as answer:
                assert answer.status == 204, await answer.text()
            assert not any(folder.exists() for folder in folders)
            async with http.get(base) as answer:
                assert answer.status == 404
    finally:
        await stack.stop()
