import asyncio
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from services.sandbox_manager.records import RecordStore, RecordsUnreadable, load_records
from tests.sandbox_manager.support import BOUND, Clock

KEY = "nylorun-tn_a-0000000000000001"
OTHER = "nylorun-tn_a-0000000000000002"
LOST = "nylorun-tn_a-0000000000000003"


async def _load(folder: Path, clock: Clock | None = None) -> RecordStore:
    return await load_records(folder / "records.json", (clock or Clock()).text, lambda: "stamp")


async def _put(store: RecordStore, key: str, state: Any = "running", **more: Any) -> None:
    await store.put(key, session_id="s1", sandbox_id=None, backend="virtual", state=state, **more)


def _stored(folder: Path) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = json.loads((folder / "records.json").read_text())["records"]
    return records


async def test_a_record_is_written_whole_with_its_members_in_order(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "sandboxes"
    clock = Clock()
    store = await _load(folder, clock)
    await store.put(KEY, session_id="s1", sandbox_id="box", backend="virtual", state="creating", image="i")
    file = folder / "records.json"
    assert file.read_text() == (
        '{"records":[{"key":"nylorun-tn_a-0000000000000001","sessionId":"s1","sandboxId":"box",'
        '"backend":"virtual","image":"i","state":"creating","createdAt":"2026-01-02T03:04:40.000Z",'
        '"updatedAt":"2026-01-02T03:04:40.000Z"}]}'
    )
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert os.listdir(folder) == ["records.json"]


async def test_an_update_keeps_its_place_its_birth_and_its_image(tmp_path: Path) -> None:
    clock = Clock()
    store = await _load(tmp_path, clock)
    await _put(store, KEY, image="first")
    await _put(store, OTHER, image="second")
    clock.ms += 1000
    await _put(store, KEY, "stopped")
    first, second = _stored(tmp_path)
    assert (first["key"], first["image"], first["state"]) == (KEY, "first", "stopped")
    assert first["createdAt"] != first["updatedAt"]
    assert second["key"] == OTHER
    assert "sandboxId" not in second


async def test_a_new_record_without_an_image_has_an_empty_one(tmp_path: Path) -> None:
    store = await _load(tmp_path)
    await _put(store, KEY)
    assert _stored(tmp_path)[0]["image"] == ""


async def test_records_survive_a_restart(tmp_path: Path) -> None:
    store = await _load(tmp_path)
    await _put(store, KEY, image="i")
    again = await _load(tmp_path)
    assert [record.document() for record in again.all()] == [record.document() for record in store.all()]
    assert again.existed(KEY)
    assert not again.existed(OTHER)


async def test_deleting_writes_only_when_there_was_something(tmp_path: Path) -> None:
    store = await _load(tmp_path)
    await store.delete(KEY)
    assert not (tmp_path / "records.json").exists()
    await _put(store, KEY)
    await store.delete(KEY)
    assert _stored(tmp_path) == []


async def test_a_failed_write_fails_its_own_change_and_the_next_one_writes_everything(tmp_path: Path) -> None:
    folder = tmp_path / "sandboxes"
    store = await _load(folder)
    folder.write_text("in the way")
    with pytest.raises(FileExistsError):
        await _put(store, KEY)
    folder.unlink()
    await _put(store, OTHER)
    assert [record["key"] for record in _stored(folder)] == [KEY, OTHER]


async def test_changes_at_once_are_written_in_order(tmp_path: Path) -> None:
    store = await _load(tmp_path)
    async with asyncio.timeout(BOUND), asyncio.TaskGroup() as group:
        for number in range(40):
            group.create_task(_put(store, f"nylorun-tn_a-{number:016x}"))
    assert [record["key"] for record in _stored(tmp_path)] == [f"nylorun-tn_a-{n:016x}" for n in range(40)]


async def test_the_last_of_two_records_of_a_key_wins(tmp_path: Path) -> None:
    store = await _load(tmp_path)
    await _put(store, KEY, image="old")
    document = _stored(tmp_path)[0]
    twice = {"records": [document, {**document, "key": OTHER}, {**document, "image": "new"}]}
    (tmp_path / "records.json").write_text(json.dumps(twice))
    again = await _load(tmp_path)
    assert [(record.key, record.image) for record in again.all()] == [(KEY, "new"), (OTHER, "old")]


@pytest.mark.spec("sandbox-manager:19.7", "operations:13.25")
@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"",
        b"[]",
        b'{"records":{}}',
        b'{"records":[{"key":"k"}]}',
        b'{"records":[],"more":1}',
        b"\xff\xfe",
        b'{"records":[{"key":"k","sessionId":"s","backend":"virtual","image":"","state":"odd",'
        b'"createdAt":"","updatedAt":""}]}',
    ],
)
async def test_a_malformed_file_is_set_aside_for_the_last_state_and_the_folders(
    tmp_path: Path, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    store = await _load(tmp_path)
    await _put(store, KEY, image="i")
    await _load(tmp_path)  # a start keeps the state that it found
    (tmp_path / LOST).mkdir()
    (tmp_path / KEY).mkdir()
    (tmp_path / "records.json").write_bytes(content)
    capsys.readouterr()
    again = await _load(tmp_path)
    assert capsys.readouterr().out.count("sandbox_records_malformed") == 1
    assert (tmp_path / "records.json.bad-stamp").read_bytes() == content
    assert [record.key for record in again.all()] == [KEY]
    assert again.existed(LOST)
    assert not again.existed(OTHER)
    await _put(again, OTHER)
    assert [record["key"] for record in _stored(tmp_path)] == [KEY, OTHER]
    assert stat.S_IMODE((tmp_path / "records.json").stat().st_mode) == 0o600
    assert again.existed(LOST)
    await again.delete(LOST)
    assert not again.existed(LOST)


@pytest.mark.spec("sandbox-manager:19.7")
async def test_a_file_that_can_t_be_read_stops_the_start_and_is_named(tmp_path: Path) -> None:
    (tmp_path / "records.json").mkdir()
    with pytest.raises(RecordsUnreadable, match=r"records\.json"):
        await _load(tmp_path)


async def test_without_a_last_state_a_malformed_file_leaves_the_folders(tmp_path: Path) -> None:
    (tmp_path / LOST).mkdir()
    (tmp_path / "records.json").write_text("{")
    (tmp_path / "records.json.prev").write_text("[")
    store = await _load(tmp_path)
    assert store.all() == []
    assert store.existed(LOST)


async def test_a_file_that_was_cut_anywhere_loses_no_record_of_the_last_start(tmp_path: Path) -> None:
    store = await _load(tmp_path)
    await _put(store, KEY, image="é")
    await _put(store, OTHER)
    await _load(tmp_path)
    whole = (tmp_path / "records.json").read_bytes()
    (tmp_path / LOST).mkdir()
    for cut in range(len(whole)):
        (tmp_path / "records.json").write_bytes(whole[:cut])
        again = await _load(tmp_path)
        assert [record.key for record in again.all()] == [KEY, OTHER]
        assert (tmp_path / "records.json").read_bytes() == whole
        assert again.existed(LOST)


async def test_folders_count_as_long_as_a_malformed_file_is_kept(tmp_path: Path) -> None:
    (tmp_path / "records.json").write_text("{")
    (tmp_path / LOST).mkdir()
    assert (await _load(tmp_path)).existed(LOST)
    assert (await _load(tmp_path)).existed(LOST)
    (tmp_path / "records.json.bad-stamp").unlink()
    assert not (await _load(tmp_path)).existed(LOST)


async def test_what_a_killed_writer_left_is_taken_away(tmp_path: Path) -> None:
    (tmp_path / "records.json.4711.tmp").write_text("{")
    (tmp_path / "records.json.prev.4711.tmp").write_text("{")
    await _load(tmp_path)
    assert list(tmp_path.iterdir()) == []
