from __future__ import annotations

import asyncio
import copy
import errno
import os
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from gateway.engine.contract import AbortedEffect, AbortKind, EffectRequest, HostError, ModelCall, Uncertain
from gateway.engine.factory import make_engine
from gateway.main import run
from gateway.recording import recorder as recorder_module
from gateway.recording.folder import ABANDONED_S, RecordingFolder, file_stem
from gateway.recording.format import LEFT_OUT, FormatError, answer_document, read_abort, read_answer
from gateway.recording.left_out import without_environment, without_secrets
from gateway.recording.reader import AbortTold, Answered, RecordingUnreadable, read_recording
from gateway.recording.recorder import Recorder
from gateway.recording.writer import TOO_SLOW, RecordingFile, Writer
from gateway.settings import GatewaySettings, SettingsError, read_settings
from protocol import jsjson
from protocol.canonical import manifest_hash, request_hash
from services.common.process import StartFailed
from tests.gateway.recorded import (
    BEHAVIOURS,
    CLOSE_BOUND_S,
    EFFECTS,
    FIRST_MODEL,
    FIRST_TOOL,
    MANIFEST,
    answers_at_once,
    lines_of,
    record_turn,
    recorder_in,
    says,
    turn,
)
from tests.gateway.support import (
    at_once,
    effect,
    failing,
    gateway,
    logs,
    one_after_another,
    until_aborted,
)
from tests.gateway.virtual_time import run_virtually, virtual_time
from tests.leaks.watch import secret
from tests.vectors.files import records
from tests.vectors.segment_host import play

TOKEN = secret("run-token-4711")
SECRETS = ["s3cret-env", "s3cret-header", "s3cret-query", "s3cret-arg", "s3cret-environment", "s3cret-child"]
WITH_SERVERS: dict[str, Any] = {
    **MANIFEST,
    "capabilities": [
        {
            **MANIFEST["capabilities"][0],
            "mcpServers": {
                "db": {
                    "name": "db",
                    "type": "stdio",
                    "command": "db-server",
                    "args": ["--key", "s3cret-arg"],
                    "env": {"DB_KEY": "s3cret-env"},
                },
                "web": {
                    "name": "web",
                    "type": "sse",
                    "url": "https://example.org/mcp?key=s3cret-query",
                    "headers": {"authorization": "s3cret-header"},
                },
            },
        }
    ],
}


def kinds(lines: list[dict[str, Any]]) -> list[str]:
    return [line["type"] for line in lines]


# What is in a recording


def test_a_run_is_one_file_with_everything_in_order(tmp_path):
    path = record_turn(tmp_path, turn(grant={"token": TOKEN, "tokenExpiresAt": "2026-01-01T00:00:00Z"}))
    lines = lines_of(path)
    assert kinds(lines) == [
        *("recording", "start", "begin"),
        *("effect", "answer"),
        *("effect", "effect", "answer", "answer"),
        *("effect", "answer", "end"),
    ]
    header, start = lines[:2]
    assert header["format"] == 1
    assert (header["runId"], header["sessionId"], header["turnId"], header["epoch"]) == ("r1", "s1", "t1", 1)
    assert (header["tenantId"], header["preference"]) == ("tn_1", "auto")
    assert start["input"]["manifest"] == MANIFEST
    assert start["input"]["checkpoint"]["input"] == "go"
    assert "rootManifest" not in start["input"]["routing"]
    assert lines[-1]["params"]["output"] == "Noted."
    assert "runId" not in lines[-1]["params"]
    assert TOKEN not in path.read_text()


def test_only_the_owner_can_read_a_recording_and_its_name_sorts_by_time(tmp_path):
    folder = tmp_path / "new" / "recordings"
    path = record_turn(folder)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert path.name.endswith("Z-r1.jsonl")
    assert file_stem("20260729T101112131Z", "../../etc/passwd\n") == "20260729T101112131Z-_etc_passwd_"
    assert file_stem("20260729T101112131Z", "//") == "20260729T101112131Z-_"


def test_every_effect_is_whole_and_fits_its_hash(tmp_path):
    recording = read_recording(record_turn(tmp_path))
    assert [one.effect_id for one in recording.effects()] == EFFECTS
    for one in recording.effects():
        assert request_hash(one.document) == one.request_hash
    assert recording.broken is None


def test_a_prompt_that_goes_on_is_written_once(tmp_path):
    long = "x" * 20_000
    path = record_turn(tmp_path, turn(long), {**BEHAVIOURS, FIRST_MODEL: says("unused")})
    assert path.read_text().count(long) == 3  # the input, the prompt, the transcript's edit
    path = record_turn(tmp_path, turn(long, run_id="r2"))
    assert path.read_text().count(long) == 3
    first, last = (line for line in lines_of(path) if line.get("kind") == "model")
    assert "input" in first["document"]
    assert last["more"]["like"] == FIRST_MODEL
    assert [item["kind"] for item in last["more"]["prompt"]] == ["message", "tool-result", "tool-result"]


@pytest.mark.parametrize(
    ("before", "after", "whole"),
    [
        ([b'{"prompt":[', b"1", b'],"tools":[]}'], [b'{"prompt":[', b"1", b",2", b'],"tools":[]}'], False),
        ([b'{"prompt":[', b"1", b'],"tools":[]}'], [b'{"prompt":[', b"1", b'],"tools":[]}'], False),
        ([b'{"prompt":[', b'],"tools":[]}'], [b'{"prompt":[', b"2", b'],"tools":[]}'], True),
        ([b'{"prompt":[', b"1", b'],"tools":[]}'], [b'{"prompt":[', b"3", b",2", b'],"tools":[]}'], True),
        ([b'{"prompt":[', b"1", b'],"tools":[]}'], [b'{"prompt":[', b"1", b",2", b'],"tools":[3]}'], True),
        ([b'{"prompt":[1],"tools":[]}'], [b'{"prompt":[1,2],"tools":[]}'], True),
        (
            [b'{"prompt":[', b"1", b'],"tools":[', b"]}"],
            [b'{"prompt":[', b"1", b'],"tools":[', b",2", b"]}"],
            True,
        ),
    ],
)
def test_only_a_prompt_with_more_at_its_end_is_told_by_the_earlier_one(before, after, whole):
    from gateway.recording.prompts import Prompts

    prompts = Prompts()
    first = prompts.line_end("e1", b'{"kind":"model"}', before)
    assert jsjson.loads(b"{" + first + b"}") == {
        "document": {"kind": "model", "input": jsjson.loads(b"".join(before))}
    }
    second: Any = b"{" + prompts.line_end("e2", b'{"kind":"model"}', after) + b"}"
    if whole:
        assert second == b'{"document":{"kind":"model","input":' + b"".join(after) + b"}}"
    else:
        told: Any = jsjson.loads(second)
        expected: Any = jsjson.loads(b"".join(after))
        base: Any = jsjson.loads(b"".join(before))
        assert told["more"]["like"] == "e1"
        assert base["prompt"] + told["more"]["prompt"] == expected["prompt"]


@virtual_time
async def test_session_tools_transcript_and_snapshot_are_recorded_as_they_were_used(tmp_path):
    manifest = WITH_SERVERS
    tools = [
        {"capabilityId": "desk", "name": "db__look", "inputSchema": {"type": "object"}, "serverName": "db"}
    ]
    async with gateway(at_once()) as gw:
        gw.host.recorder = recorder = recorder_in(tmp_path)
        answers_at_once(gw.core)
        gw.core.auto["session.mcp"] = {"snapshot": {"mcpTools": ["kept"]}, "sessionTools": tools}
        gw.core.auto["transcript.read"] = {"cursor": 7, "entries": [{"n": 1}, {"n": 1.5}]}
        core = await gw.core.connection()
        state = {"version": 1, "transcript": []}
        given = turn("go", manifest, checkpoint={"state": state}, transcript={"cursor": 7})
        core.answer(await core.expect("lease"), given)
        await core.seen("turn.completed")
    assert recorder.close(CLOSE_BOUND_S)
    (path,) = tmp_path.iterdir()
    start = lines_of(path)[1]
    assert start["input"]["sessionTools"] == tools
    assert start["input"]["routing"]["mcpSnapshot"] == {"mcpTools": ["kept"]}
    assert start["transcript"] == [{"n": 1}, {"n": 1.5}]


@virtual_time
async def test_aborts_failures_and_known_outcomes_are_recorded_in_their_order(tmp_path):
    async with gateway(make_engine=make_engine) as gw:
        gw.host.recorder = recorder = recorder_in(tmp_path)
        answers_at_once(gw.core)
        gw.fake.behaviours |= {**BEHAVIOURS, FIRST_TOOL: until_aborted, EFFECTS[2]: failing("broken pipe")}
        first = turn()
        core = await gw.core.connection()
        core.answer(await core.expect("lease"), first)
        await gw.fake.started[FIRST_TOOL].wait()
        core.tell("cancel", runId="r1", reason="cancel")
        await core.seen("turn.waiting", runId="r1")
        hashes = {
            frame["p"]["effect"]["effectId"]: frame["p"]["requestHash"]
            for frame in core.frames
            if frame.get("m") == "effect.intent"
        }
        known = {
            "effectId": FIRST_MODEL,
            "requestHash": hashes[FIRST_MODEL],
            "outcome": {"value": BEHAVIOURS[FIRST_MODEL]},
        }
        gw.fake.behaviours |= BEHAVIOURS
        core.answer(await core.expect("lease"), turn(run_id="r2", outcomes=[known]))
        await core.seen("turn.completed", runId="r2")
    assert recorder.close(CLOSE_BOUND_S)
    one, two = (read_recording(path) for path in sorted(tmp_path.iterdir(), key=lambda path: path.name[-8:]))
    told = [moment.told for moment in one.moments]
    (aborted,) = [index for index, each in enumerate(told) if isinstance(each, AbortTold)]
    assert told[aborted].abort.kind is AbortKind.CANCEL
    answers = {each.effect_id: each.answer for each in told if isinstance(each, Answered)}
    assert isinstance(answers[EFFECTS[2]], Uncertain)
    assert one.end.params["status"] == "uncertain"
    assert [(effect.effect_id, effect.known) for effect in two.effects()] == [
        (FIRST_MODEL, True),
        *((effect_id, False) for effect_id in EFFECTS[1:]),
    ]
    assert two.segment().outcomes[FIRST_MODEL].outcome == known["outcome"]


@virtual_time
async def test_a_run_that_is_given_back_keeps_what_it_would_have_said(tmp_path):
    async with gateway(make_engine=make_engine) as gw:
        gw.host.recorder = recorder = recorder_in(tmp_path)
        answers_at_once(gw.core)
        gw.fake.behaviours[FIRST_MODEL] = until_aborted
        core = await gw.core.connection()
        core.answer(await core.expect("lease"), turn())
        await gw.fake.started[FIRST_MODEL].wait()
        core.tell("cancel", runId="r1", reason="ownership.lost")
        await core.seen("lease.release")
    assert recorder.close(CLOSE_BOUND_S)
    (path,) = tmp_path.iterdir()
    last = lines_of(path)[-1]
    assert (last["type"], last["released"]) == ("end", "ownership.lost")
    assert last["params"]["effectIds"] == [FIRST_MODEL]


def test_a_refused_run_is_recorded_too(tmp_path):
    given = turn(checkpoint={"engineVersion": "hosted-999"})
    lines = lines_of(record_turn(tmp_path, given, ends_with="turn.failed"))
    assert kinds(lines) == ["recording", "start", "begin", "end"]
    assert lines[-1]["params"]["thrown"]["code"] == "execution.incompatible"


def test_nothing_is_recorded_unless_it_is_asked_for():
    settings = read_settings(SETTINGS)
    assert settings.record_folder is None


def test_the_engine_never_changes_what_a_recording_still_holds():
    """The writer's thread makes text of the start and of the output later than the engine uses them."""
    folder = Path(__file__).parents[1] / "vectors" / "data"
    for path in [*sorted((folder / "segments").glob("[!f]*.json")), folder / "random" / "agents-00.jsonl"]:
        cases = (
            [record for _, record in records(path)]
            if path.suffix == ".jsonl"
            else [jsjson.loads(path.read_bytes())]
        )
        for case in cases:
            for step in case["steps"]:
                manifest = step["input"].get("manifest", case["manifest"])
                given, answers = step["input"], step.get("answers", {})
                before = copy.deepcopy((manifest, given, answers))
                play("agent", manifest, given, answers)
                assert (manifest, given, answers) == before


# Secrets


def test_no_token_and_no_declared_secret_is_in_the_file(tmp_path):
    child = {
        "manifestSchemaVersion": 4,
        "id": "scout",
        "description": "Looks.",
        "capabilities": [
            {
                "id": "c",
                "type": "agent",
                "mcpServers": {
                    "x": {"name": "x", "type": "stdio", "command": "x", "env": {"K": "s3cret-child"}}
                },
            }
        ],
    }
    from protocol.manifests.agent import DELEGATE_INPUT_SCHEMA

    tool = {"name": "scout", "description": "Looks.", "inputSchema": DELEGATE_INPUT_SCHEMA, "agent": child}
    desk = WITH_SERVERS["capabilities"][0]
    manifest = {**WITH_SERVERS, "capabilities": [{**desk, "tools": [*desk["tools"], tool]}]}
    given = turn(
        "go",
        manifest,
        grant={"token": TOKEN},
        routing={
            "sandbox": {"ownerId": "o", "environment": {"API_KEY": "s3cret-environment"}},
            "rootManifest": manifest,
        },
    )

    def prepare(gw: Any) -> None:
        gw.core.auto["session.mcp"] = {"snapshot": {}, "sessionTools": []}

    path = record_turn(tmp_path, given, prepare=prepare)
    text = path.read_text()
    assert [secret for secret in [*SECRETS, TOKEN] if secret in text] == []
    start = lines_of(path)[1]
    servers = start["input"]["manifest"]["capabilities"][0]["mcpServers"]
    assert servers["db"] == {
        "name": "db",
        "type": "stdio",
        "command": "db-server",
        "args": [LEFT_OUT, LEFT_OUT],
        "env": {"DB_KEY": LEFT_OUT},
    }
    assert servers["web"]["url"] == LEFT_OUT
    assert start["manifestHash"] == manifest_hash(manifest) != manifest_hash(start["input"]["manifest"])
    assert sorted(start["leftOut"]) == [
        "/manifest/capabilities/0/mcpServers/db/args/0",
        "/manifest/capabilities/0/mcpServers/db/args/1",
        "/manifest/capabilities/0/mcpServers/db/env/DB_KEY",
        "/manifest/capabilities/0/mcpServers/web/headers/authorization",
        "/manifest/capabilities/0/mcpServers/web/url",
        "/manifest/capabilities/0/tools/1/agent/capabilities/0/mcpServers/x/env/K",
        "/routing/sandbox/environment/API_KEY",
    ]


def test_a_root_manifest_of_its_own_loses_its_secrets_too(tmp_path):
    def prepare(gw: Any) -> None:
        gw.core.auto["session.mcp"] = {"snapshot": {}, "sessionTools": []}

    path = record_turn(tmp_path, turn(routing={"rootManifest": WITH_SERVERS}), prepare=prepare)
    text = path.read_text()
    assert [secret for secret in SECRETS if secret in text] == []
    assert "/routing/rootManifest/capabilities/0/mcpServers/web/url" in lines_of(path)[1]["leftOut"]


def test_servers_of_agents_inside_workflows_are_found_at_any_depth():
    server = {"name": "x", "type": "sse", "url": "https://k", "headers": {"a": "s3cret"}}
    agent = {"id": "a", "capabilities": [{"id": "c", "mcpServers": {"x": server}}]}
    document: Any = agent
    for _ in range(200):
        document = {"kind": "workflow", "agents": {"a": document}}
    clean, places = without_secrets(document)
    assert len(places) == 2
    assert "s3cret" not in jsjson.dumps(clean)
    assert "s3cret" in jsjson.dumps(document)


def test_a_manifest_without_secrets_stays_the_same_object():
    schema = {"properties": {"mcpServers": {"x": {"env": {"a": "kept"}}}}}
    manifest = {"capabilities": [{"tools": [{"name": "t", "inputSchema": schema}]}, "odd"], "agents": [1]}
    assert without_secrets(manifest) == (manifest, [])
    assert without_secrets(manifest)[0] is manifest
    assert without_environment({"ownerId": "o"}) == ({"ownerId": "o"}, [])


# Limits and faults


def outputs_with(recorder: Recorder, plan: Any = None, **options: Any) -> list[str]:
    """The methods core got in a run that is recorded."""

    async def scenario() -> list[str]:
        async with gateway(plan or one_after_another(effect("e1"), effect("e2")), **options) as gw:
            gw.host.recorder = recorder
            answers_at_once(gw.core)
            core = await gw.leased()
            await core.seen("turn.completed")
            return core.methods()

    methods: list[str] = run_virtually(scenario())
    return methods


WHOLE_RUN = ["effect.intent", "effect.outcome", "effect.intent", "effect.outcome", "turn.completed"]


class FullDisk(RecordingFolder):
    """Writes half of what it is given once it is full, as a disk does."""

    def __init__(self, path: Path, after: int) -> None:
        super().__init__(path, max_bytes=1 << 20)
        self.left = after

    def _write(self, descriptor: int, name: str, data: bytes) -> None:
        self.left -= 1
        if self.left >= 0:
            super()._write(descriptor, name, data)
            return
        super()._write(descriptor, name, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(name))


@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_full_disk_costs_the_recording_one_warning_and_nothing_of_the_run(tmp_path, monkeypatch, after):
    monkeypatch.setattr("gateway.recording.writer._GATHER_BYTES", 1)
    folder = FullDisk(tmp_path, after)
    folder.prepare()
    recorder = Recorder(folder, max_file_bytes=1 << 20, made="x")
    with logs() as captured:
        assert outputs_with(recorder) == WHOLE_RUN
        assert outputs_with(recorder) == WHOLE_RUN
        assert recorder.close(CLOSE_BOUND_S)
    warnings = [entry for entry in captured if entry["event"] == "harness_recording_failed"]
    assert [entry["error"] for entry in warnings] == ["No space left on device"]
    assert list(tmp_path.iterdir()) == []


def test_a_recording_that_is_taken_away_is_not_made_again(tmp_path):
    folder = RecordingFolder(tmp_path, max_bytes=1 << 20)
    folder.prepare()
    name = folder.create("20260729T101112131Z-r", b"1")
    (tmp_path / name).unlink()
    with pytest.raises(FileNotFoundError):
        folder.append(name, b"2")
    folder.discard(name)
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_is_too_long_is_cut_where_the_file_is_full(tmp_path):
    recorder = recorder_in(tmp_path, max_file_bytes=1900)
    assert outputs_with(recorder) == WHOLE_RUN
    assert recorder.close(CLOSE_BOUND_S)
    (path,) = tmp_path.iterdir()
    lines = lines_of(path)
    assert lines[-1] == {"type": "cut", "reason": "the file's size limit is reached"}
    assert path.stat().st_size <= 1900
    recording = read_recording(path)
    assert recording.cut is not None
    assert recording.broken is None


def test_a_run_that_does_not_even_begin_leaves_no_file(tmp_path):
    recorder = recorder_in(tmp_path, max_file_bytes=1100)
    assert outputs_with(recorder) == WHOLE_RUN
    assert recorder.close(CLOSE_BOUND_S)
    assert list(tmp_path.iterdir()) == []


class SlowDisk(RecordingFolder):
    """Writes nothing until it is let."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, max_bytes=1 << 20)
        self.let = threading.Event()

    def create(self, stem: str, first: bytes) -> str:
        assert self.let.wait(60)
        return super().create(stem, first)


def test_a_disk_that_can_not_keep_up_cuts_the_recording_and_not_the_run(tmp_path):
    folder = SlowDisk(tmp_path)
    folder.prepare()
    recorder = Recorder(folder, max_file_bytes=1 << 20, made="x")
    recorder._writer = Writer(folder, max_file_bytes=1 << 20, max_waiting_lines=4)
    assert outputs_with(recorder) == WHOLE_RUN
    assert not recorder.close(0.0)
    folder.let.set()
    assert recorder.close(CLOSE_BOUND_S)
    (path,) = tmp_path.iterdir()
    assert lines_of(path)[-1] == {"type": "cut", "reason": TOO_SLOW}


def test_what_waits_for_the_disk_is_bounded_in_bytes(tmp_path):
    folder = SlowDisk(tmp_path)
    folder.prepare()
    writer = Writer(folder, max_file_bytes=1 << 20, max_waiting_bytes=100)
    small, large = RecordingFile("20260729T101112131Z-a"), RecordingFile("20260729T101112131Z-b")
    writer.put(small, lambda: b"{}", 60)
    writer.put(large, lambda: b"{}", 60)
    assert large.closed
    writer.put(large, lambda: b"{}", 1)
    writer.put(small, lambda: b"{}", 30, last=True)
    folder.let.set()
    assert writer.close(CLOSE_BOUND_S)
    assert [path.name for path in tmp_path.iterdir()] == ["20260729T101112131Z-a.jsonl"]


def test_a_disk_that_hangs_holds_on_to_a_bounded_number_of_lines(tmp_path):
    folder = SlowDisk(tmp_path)
    folder.prepare()
    writer = Writer(folder, max_file_bytes=1 << 20, max_waiting_lines=3)
    files = [RecordingFile(f"20260729T101112131Z-{number}") for number in range(20)]
    writer.put(files[0], lambda: b"{}", 1 << 30)
    for file in files:
        writer.put(file, lambda: b"{}", 1)
    assert all(file.closed for file in files[3:])
    assert len(writer._waiting.lines) <= 6
    folder.let.set()
    assert writer.close(CLOSE_BOUND_S)


def test_what_can_not_be_written_down_ends_the_recording_and_not_the_run(tmp_path):
    recorder = recorder_in(tmp_path)

    def odd(segment: Any) -> Any:
        segment.observe(EffectRequest("e0", "tool", {"input": object()}, "0" * 64), False)
        return (yield from one_after_another(effect("e1"), effect("e2"))(segment))

    with logs() as captured:
        assert outputs_with(recorder, odd) == WHOLE_RUN
        assert recorder.close(CLOSE_BOUND_S)
    assert [entry["log_level"] for entry in captured if "recording" in entry["event"]] == ["warning"]
    (path,) = tmp_path.iterdir()
    assert lines_of(path)[-1] == {"type": "cut", "reason": "something could not be recorded"}


def test_what_the_thread_can_not_write_down_is_dropped(tmp_path):
    recorder = recorder_in(tmp_path)

    def odd(segment: Any) -> Any:
        call = ModelCall([b"not ", "bytes"])  # type: ignore[list-item]
        segment.observe(EffectRequest("e0", "model", {}, "0" * 64, call), False)
        return (yield from one_after_another(effect("e1"), effect("e2"))(segment))

    with logs() as captured:
        assert outputs_with(recorder, odd) == WHOLE_RUN
        assert recorder.close(CLOSE_BOUND_S)
    assert [entry["log_level"] for entry in captured if "recording" in entry["event"]] == ["warning"]
    assert list(tmp_path.iterdir()) == []


def test_after_the_end_nothing_is_taken_any_more(tmp_path):
    recorder = recorder_in(tmp_path)
    assert recorder.close(CLOSE_BOUND_S)
    assert outputs_with(recorder) == WHOLE_RUN
    assert list(tmp_path.iterdir()) == []


# The folder


def make(folder: Path, name: str, size: int) -> Path:
    path = folder / name
    path.write_bytes(b"x" * size)
    return path


def test_the_oldest_recordings_make_room_and_nothing_else_does(tmp_path):
    old = make(tmp_path, "20250101T000000000Z-a.jsonl", 400)
    mid = make(tmp_path, "20250102T000000000Z-b.jsonl", 400)
    foreign = make(tmp_path, "20240101T000000000Z-notes.txt", 5000)
    notes = make(tmp_path, "aaa.jsonl", 5000)
    folder = RecordingFolder(tmp_path, max_bytes=1000)
    folder.prepare()
    name = folder.create("20260101T000000000Z-c", b"y" * 300)
    assert (old.exists(), mid.exists()) == (False, True)
    folder.append(name, b"y" * 500)
    assert not mid.exists()
    assert folder.finish(name) == "20260101T000000000Z-c.jsonl"
    assert foreign.exists()
    assert notes.exists()


def test_recordings_under_way_are_kept_and_a_folder_too_small_for_them_says_so(tmp_path):
    other = make(tmp_path, "20250101T000000000Z-a.jsonl.part", 400)
    folder = RecordingFolder(tmp_path, max_bytes=1000)
    folder.prepare()
    name = folder.create("20260101T000000000Z-c", b"y" * 500)
    with pytest.raises(OSError, match="limit"):
        folder.append(name, b"y" * 200)
    assert other.exists()


def test_a_recording_that_its_process_left_behind_is_dropped_after_a_day(tmp_path):
    other = make(tmp_path, "20250101T000000000Z-a.jsonl.part", 900)
    os.utime(other, (1_000_000, 1_000_000))
    folder = RecordingFolder(tmp_path, max_bytes=1000, clock=lambda: 1_000_000 + ABANDONED_S)
    folder.prepare()
    folder.create("20260101T000000000Z-c", b"y" * 500)
    assert not other.exists()


def test_the_number_of_recordings_is_limited_too(tmp_path):
    folder = RecordingFolder(tmp_path, max_bytes=1 << 20, max_files=2)
    folder.prepare()
    for number in range(5):
        folder.finish(folder.create(f"2026010{number}T000000000Z-c", b"1"))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "20260103T000000000Z-c.jsonl",
        "20260104T000000000Z-c.jsonl",
    ]


def test_what_other_gateways_wrote_counts_after_a_minute(tmp_path):
    now = [1_000_000.0]
    folder = RecordingFolder(tmp_path, max_bytes=1000, clock=lambda: now[0])
    folder.prepare()
    mine = folder.create("20260101T000000000Z-c", b"y" * 100)
    theirs = make(tmp_path, "20250101T000000000Z-a.jsonl", 900)
    now[0] += 61
    folder.create("20260102T000000000Z-d", b"y" * 100)
    assert not theirs.exists()
    folder.append(mine, b"y")
    assert (tmp_path / mine).stat().st_size == 101


def test_a_name_that_is_taken_gets_a_number(tmp_path):
    folder = RecordingFolder(tmp_path, max_bytes=1000)
    folder.prepare()
    one, two = (folder.create("20260101T000000000Z-c", b"1") for _ in range(2))
    assert (one, two) == ("20260101T000000000Z-c.jsonl.part", "20260101T000000000Z-c-2.jsonl.part")
    folder.finish(one)
    three = folder.create("20260101T000000000Z-c", b"1")
    assert three == "20260101T000000000Z-c-3.jsonl.part"
    assert [folder.finish(name) for name in (two, three)] == [
        "20260101T000000000Z-c-2.jsonl",
        "20260101T000000000Z-c-3.jsonl",
    ]
    assert len(list(tmp_path.iterdir())) == 3


def test_a_link_in_the_place_of_a_recording_is_not_followed(tmp_path):
    target = make(tmp_path, "target.txt", 0)
    folder = RecordingFolder(tmp_path, max_bytes=1000)
    folder.prepare()
    name = folder.create("20260101T000000000Z-c", b"1")
    (tmp_path / name).unlink()
    (tmp_path / name).symlink_to(target)
    with pytest.raises(OSError, match="symbolic links"):
        folder.append(name, b"2")
    assert target.read_bytes() == b""


# Reading


def test_answers_are_read_as_they_were_written():
    from gateway.engine.contract import Abort, Completed, Pending

    for answer in (
        Completed({"value": 1, "statePatch": {}}),
        Pending(),
        Uncertain(),
        HostError("internal", "no"),
        HostError(None, "no"),
        AbortedEffect(Abort(AbortKind.CANCEL, "stop")),
    ):
        assert read_answer(answer_document(answer)) == answer


@pytest.mark.parametrize(
    "document",
    [
        None,
        {},
        {"status": "completed"},
        {"status": "completed", "outcome": {}},
        {"status": "failed"},
        {"status": []},
    ],
)
def test_an_odd_answer_is_refused(document):
    with pytest.raises(FormatError):
        read_answer(document)


def test_an_odd_abort_is_refused():
    for document in (
        {"kind": "cancel"},
        {"kind": "bored", "message": ""},
        {"kind": ["cancel"], "message": ""},
    ):
        with pytest.raises(FormatError):
            read_abort(document)


def test_a_file_of_any_other_kind_is_refused_in_a_sentence(tmp_path, monkeypatch):
    path = record_turn(tmp_path)
    whole = path.read_bytes().split(b"\n")

    def refusal(*lines: bytes) -> str:
        path.write_bytes(b"\n".join(lines) + b"\n")
        with pytest.raises(RecordingUnreadable) as refused:
            read_recording(path)
        return str(refused.value)

    assert "is not a recording" in refusal(b"")
    assert "is not a recording" in refusal(b"[1]")
    assert "is not a recording" in refusal(b'{"type":"start"}')
    assert "is not a recording" in refusal(b"\xff\xfe")
    assert "breaks off" in refusal(whole[0])
    assert "is not a recording" in refusal(whole[0], b'{"type":"begin"}')
    assert "format 2" not in refusal(whole[0].replace(b'"format":1', b'"format":1.5'), whole[1])
    newer = refusal(whole[0].replace(b'"format":1', b'"format":2'), whole[1])
    assert "has the format 2 (whippletree 9.9.9 made it); this build reads format 1" in newer
    for name in (b'"manifest":', b'"checkpoint":', b'"outcomes":', b'"options":'):
        assert "is damaged" in refusal(whole[0], whole[1].replace(name, b'"other":'))
    assert "is damaged" in refusal(whole[0], whole[1].replace(b'"engine":"agent"', b'"engine":"motor"'))
    assert "is damaged" in refusal(whole[0], whole[1].replace(b'"outcomes":[]', b'"outcomes":[{}]'))
    for member, other in (
        (b'"routing":{', b'"routing":5,"odd":{'),
        (b'"sessionTools":[]', b'"sessionTools":{}'),
        (b'"leftOut":[]', b'"leftOut":5'),
        (b'"leftOut":[]', b'"leftOut":[5]'),
        (b'"leftOut":[]', b'"leftOut":[],"manifestHash":5'),
    ):
        assert member in whole[1]
        assert "is damaged" in refusal(whole[0], whole[1].replace(member, other))
    monkeypatch.setattr("gateway.recording.reader.MAX_FILE_BYTES", 10)
    assert "is larger than 10 bytes" in refusal(*whole)


def test_a_file_that_breaks_off_is_read_up_to_there(tmp_path, monkeypatch):
    path = record_turn(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-40])
    recording = read_recording(path)
    assert recording.broken == "line 12, the last one, is not whole"
    assert len(recording.effects()) == 4
    path.write_bytes(b"\n".join(whole.split(b"\n")[:-3]) + b"\n")
    assert read_recording(path).broken == "it stops before the end of its run"
    path.write_bytes(whole + b'{"type":"begin","now":1}\n')
    assert read_recording(path).broken == "line 13 comes after the end"
    path.write_bytes(whole.replace(b'{"type":"begin","now"', b'{"type":"begin","then"'))
    assert read_recording(path).broken == "line 3: now is not a number"
    path.write_bytes(whole.replace(b'"like":"t1:', b'"like":"t9:'))
    assert "a prompt goes on" not in str(read_recording(path).broken)
    assert "one that is not there" in str(read_recording(path).broken)
    monkeypatch.setattr("gateway.recording.reader.MAX_LINE_BYTES", 2000)
    path.write_bytes(whole.replace(b'"Noted."', b'"' + b"N" * 3000 + b'"', 1))
    assert "is longer than 2000 bytes" in str(read_recording(path).broken)


def test_lines_and_members_of_later_builds_are_left_alone(tmp_path):
    path = record_turn(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(
        whole.replace(b'{"type":"begin"', b'{"type":"weather","is":"fine"}\n{"type":"begin","new":1')
    )
    recording = read_recording(path)
    assert recording.broken is None
    assert len(recording.effects()) == 4


# Settings and process

SETTINGS = {
    "NYLORUN_HARNESS_URL": "ws://runtime:4200/nylorun/harness/v1",
    "NYLORUN_HARNESS_TOKEN": "ab" * 32,
    "NYLORUN_GATES_URL": "http://gates:4100",
}


def test_the_settings_name_a_folder_and_two_limits():
    settings = read_settings(
        {
            **SETTINGS,
            "WHIPPLETREE_RECORD_DIR": " recordings ",
            "WHIPPLETREE_RECORD_FILE_BYTES": "65536",
            "WHIPPLETREE_RECORD_DIR_BYTES": "131072",
        }
    )
    assert settings.record_folder == "recordings"
    assert (settings.record_file_bytes, settings.record_folder_bytes) == (65536, 131072)
    with pytest.raises(SettingsError, match="WHIPPLETREE_RECORD_FILE_BYTES"):
        read_settings({**SETTINGS, "WHIPPLETREE_RECORD_FILE_BYTES": "1"})


async def test_a_folder_that_can_not_be_used_is_one_line_that_names_the_setting(tmp_path):
    blocker = make(tmp_path, "file", 1)
    settings = GatewaySettings(
        "ws://127.0.0.1:1/nylorun/harness/v1", "ab" * 32, record_folder=str(blocker / "x")
    )
    with pytest.raises(StartFailed, match="WHIPPLETREE_RECORD_DIR"):
        await run(settings, None, None, asyncio.Event())  # type: ignore[arg-type]


def test_stamps_are_in_utc_with_milliseconds():
    assert recorder_module.wall_clock_stamp(1_785_319_872.131) == (
        "2026-07-29T10:11:12.131Z",
        "20260729T101112131Z",
    )
