"""Files of a prompt on the direct route (model-executor 10 and 13.3)."""

import base64
import contextlib
from dataclasses import dataclass, field
from typing import Any

import pytest

from services.model_executor.direct.media import MAX_FILE_BYTES
from tests.doubles.http import HttpDouble, Request, Wire, serving
from tests.doubles.providers import anthropic, anthropic_text, openai_text
from tests.leaks.watch import secret
from tests.model_executor.direct import messages, of, openai
from tests.model_executor.support import assistant, document, text, user

ARTIFACT_KEY = secret("art-secret-key-0123456789")
PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
BOTH = pytest.mark.parametrize("made", [openai, messages])


@dataclass
class Artifacts(HttpDouble):
    """The Runtime API's artifacts: bodies by path, or a status; `first` answers come before."""

    files: dict[str, Any] = field(default_factory=dict)
    first: list[int] = field(default_factory=list)

    async def serve(self, request: Request, wire: Wire) -> None:
        found = self.first.pop(0) if self.first else self.files.get(request.target, 404)
        if isinstance(found, int):
            await wire.answer(found, b"secret text of the server", {"location": "/elsewhere"})
        else:
            await wire.answer(200, found, {"content-type": "application/octet-stream"})


def media(kind="image/png", artifact="a/1", version=2, **more):
    reference = {"artifactId": artifact, "version": version, **more}
    return {"type": "media", "mediaType": kind, "reference": reference}


def said(*parts):
    return {"kind": "message", "role": "user", "content": list(parts)}


def reply(made):
    return openai_text() if made is openai else anthropic(anthropic_text())


@contextlib.asynccontextmanager
async def asked(made, files, first=(), timeout_ms=30_000, **parts):
    async with serving(Artifacts(files=files, first=list(first))) as artifacts:
        after = (
            f'[media]\nresolver = "http"\nurl = "{artifacts.origin}/artifacts/{{artifactId}}/v/{{version}}"\n'
            f'api_key_env = "KEY"\ntimeout_ms = {timeout_ms}\n'
        )
        async with made(reply(made), key=ARTIFACT_KEY, after=after, **parts) as it:
            it.artifacts = artifacts
            yield it


@BOTH
async def test_images_and_texts_go_along_in_their_places(made):
    files = {"/artifacts/a%2F1/v/2": PNG, "/artifacts/notes/v/1": b'{"a":1}'}
    prompt = said(text("look"), media(), media("application/json; x=y", "notes", 1, name="n.json"), media())
    async with asked(made, files) as it:
        assert (await it.ask(document(prompt)))["output"][0]["text"] == "hello"
        data = base64.b64encode(PNG).decode()
        note = {"type": "text", "text": 'File n.json:\n{"a":1}'}
        content = it.double.bodies[0]["messages"][0]["content"]
        if made is openai:
            image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
            assert content == [text("look"), image, note, image]
        else:
            source = {"type": "base64", "media_type": "image/png", "data": data}
            last = {"type": "image", "source": source, "cache_control": {"type": "ephemeral"}}
            assert content == [text("look"), {"type": "image", "source": source}, note, last]
        assert len(it.artifacts.requests) == 2
        assert it.artifacts.requests[0].headers["authorization"] == f"Bearer {ARTIFACT_KEY}"


@BOTH
async def test_images_of_tool_results_stand_where_each_api_takes_them(made):
    def result(call_id, *parts):
        return {
            "kind": "tool-result",
            "toolCallId": call_id,
            "toolName": "t",
            "status": "completed",
            "content": list(parts),
        }

    calls = [{"type": "tool-call", "id": f"c{n}", "name": "t", "args": {}} for n in (1, 2)]
    prompt = (
        user("go"),
        assistant(*calls, media()),
        result("c1", text("seen"), media()),
        result("c2", media()),
    )
    async with asked(made, {"/artifacts/a%2F1/v/2": PNG}) as it:
        await it.ask(document(*prompt))
        sent = it.double.bodies[0]["messages"]
        if made is openai:
            assert [message["role"] for message in sent] == ["user", "assistant", "tool", "tool", "user"]
            assert sent[2]["content"] == "seen"
            assert sent[3]["content"] == "(see the image below)"
            assert [part["type"] for part in sent[4]["content"]] == ["image_url", "image_url"]
        else:
            first, second = sent[2]["content"]
            assert [block["type"] for block in first["content"]] == ["text", "image"]
            assert [block["type"] for block in second["content"]] == ["image"]


@BOTH
@pytest.mark.parametrize(
    ("part", "files", "says"),
    [
        (media("application/pdf"), {}, "type application/pdf"),
        (media(), {}, "status 404"),
        (media(), {"/artifacts/a%2F1/v/2": 403}, "status 403"),
        (media(), {"/artifacts/a%2F1/v/2": 302}, "status 302"),
        (media(), {"/artifacts/a%2F1/v/2": bytes(MAX_FILE_BYTES + 1)}, "over 8388608 bytes"),
        ({"type": "media", "mediaType": "image/png", "reference": "x"}, {}, "no reference"),
        ({"type": "media", "mediaType": "image/png", "reference": {"artifactId": 1}}, {}, "no artifact"),
    ],
)
async def test_a_file_that_is_missing_foreign_too_big_or_of_another_kind_is_an_invalid_request(
    made, part, files, says
):
    async with asked(made, files) as it:
        outcome = await it.ask(document(said(part)))
        assert of(outcome) == ("invalid_request", False)
        assert says in outcome["message"]
        assert "secret" not in outcome["message"]
        assert it.double.requests == []


async def test_a_file_of_exactly_the_limit_goes_through_and_all_of_a_call_have_a_limit_too(monkeypatch):
    path = "/artifacts/a%2F1/v/2"
    async with asked(openai, {path: b"x" * MAX_FILE_BYTES}) as it:
        assert (await it.ask(document(said(media("text/plain")))))["output"]
    monkeypatch.setattr("services.model_executor.direct.media.MAX_FILES_BYTES", 10)
    async with asked(openai, {path: b"12345", "/artifacts/b/v/1": b"123456"}) as it:
        outcome = await it.ask(document(said(media("text/plain"), media("text/plain", "b", 1))))
        assert of(outcome) == ("invalid_request", False)
        assert "over 10 bytes" in outcome["message"]


async def test_an_image_for_a_model_without_image_input_is_not_even_fetched():
    async with asked(openai, {}, model='input = ["text"]') as it:
        outcome = await it.ask(document(said(media())))
        assert of(outcome) == ("invalid_request", False)
        assert it.artifacts.requests == []


async def test_a_url_may_name_the_session_and_odd_ids_stay_in_their_place():
    async with serving(Artifacts(files={"/s%2F1/%7Bversion%7D/latest": b"x"})) as artifacts:
        after = (
            f'[media]\nresolver="http"\nurl="{artifacts.origin}/{{sessionId}}/{{artifactId}}/{{version}}"\n'
        )
        async with openai(openai_text(), after=after) as it:
            call = document(said(media("text/plain", "{version}", "latest")))
            assert (await it.ask(call, session_id="s/1"))["output"]


@BOTH
async def test_without_a_place_to_fetch_from_the_failure_says_what_to_set(made):
    async with made(reply(made)) as it:
        outcome = await it.ask(document(said(media(name="a.png"))))
        assert of(outcome) == ("invalid_request", False)
        assert "[media] resolver" in outcome["message"]
        assert "a.png" in outcome["message"]
        assert it.double.requests == []


async def test_a_server_that_is_busy_is_asked_again_and_one_that_stays_so_is_transient():
    path = "/artifacts/a%2F1/v/2"
    async with asked(openai, {path: PNG}, first=[503, 429]) as it:
        assert (await it.ask(document(said(media()))))["output"]
        assert len(it.artifacts.requests) == 3
        assert it.waits == [0.001, 0.002]
    async with asked(openai, {path: 500}) as it:
        assert of(await it.ask(document(said(media())))) == ("transient", True)
        assert len(it.artifacts.requests) == 3


async def test_a_server_that_is_gone_or_silent_is_transient():
    async with asked(openai, {}, retry="attempts = 1") as it:
        it.artifacts._server.close()
        await it.artifacts._server.wait_closed()
        assert of(await it.ask(document(said(media())))) == ("transient", True)

    @dataclass
    class Silent(Artifacts):
        async def serve(self, request, wire):
            await wire.gone.wait()

    async with serving(Silent()) as artifacts:
        after = (
            f'[media]\nresolver="http"\nurl="{artifacts.origin}/{{artifactId}}/{{version}}"\ntimeout_ms=50\n'
        )
        async with openai(openai_text(), after=after, retry="attempts = 1") as it:
            outcome = await it.ask(document(said(media())))
            assert of(outcome) == ("transient", True)
            assert "no answer in time" in outcome["message"]
