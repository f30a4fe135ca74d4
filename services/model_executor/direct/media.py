"""Files of a prompt: which may go to a provider, and where their bytes come from (model-executor 10 and 13.3)."""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final
from urllib.parse import quote

import aiohttp
from yarl import URL

from services.model_executor.direct.config import Media, Retry
from services.model_executor.direct.failures import CallRefused

MAX_FILE_BYTES: Final = 8 * 1024 * 1024
MAX_FILES_BYTES: Final = 64 * 1024 * 1024
"""Of all files of one call together."""
IMAGES: Final = frozenset({"image/png", "image/jpeg", "image/webp", "image/gif"})
_TEXTS: Final = frozenset(
    {
        "application/json",
        "application/xml",
        "application/yaml",
        "application/x-yaml",
        "application/javascript",
        "application/x-javascript",
        "application/ecmascript",
    }
)
_AGAIN: Final = frozenset({408, 425, 429})


@dataclass(frozen=True, slots=True)
class Reference:
    """A file that a prompt refers to. `version` is its JSON value as text."""

    artifact_id: str
    version: str
    name: str
    media_type: str

    @property
    def is_image(self) -> bool:
        """An image that providers take."""
        return self.media_type in IMAGES

    @property
    def is_text(self) -> bool:
        """Goes along as text."""
        kind = self.media_type
        return kind.startswith("text/") or kind in _TEXTS or kind.endswith(("+json", "+xml"))

    @property
    def shown(self) -> str:
        """How messages call it."""
        return (self.name or self.artifact_id)[:200]


@dataclass(frozen=True)
class File:
    """A file's bytes."""

    reference: Reference
    content: bytes

    @cached_property
    def base64(self) -> str:
        """As both APIs take images."""
        return base64.b64encode(self.content).decode("ascii")

    @cached_property
    def text(self) -> str:
        """A text with its name on top."""
        return f"File {self.reference.shown}:\n{self.content.decode('utf-8', 'replace')}"


Files = Mapping[Reference, File]


def reference_of(part: Mapping[str, Any]) -> Reference:
    """The reference of a media part. Raises CallRefused."""
    reference, media_type = part.get("reference"), part.get("mediaType")
    if not isinstance(reference, dict) or not isinstance(media_type, str):
        raise CallRefused("invalid_request", "A file in the prompt has no reference.")
    artifact_id, version, name = (reference.get(key) for key in ("artifactId", "version", "name"))
    if (
        not isinstance(artifact_id, str)
        or not artifact_id
        or isinstance(version, bool)
        or not isinstance(version, str | int)
    ):
        raise CallRefused("invalid_request", "A file in the prompt has no artifact and version.")
    kind = media_type.partition(";")[0].strip().lower()
    return Reference(artifact_id, str(version), name if isinstance(name, str) else "", kind)


def check_reference(reference: Reference, takes_images: bool) -> None:
    """Raises CallRefused for a file that a model can't be given."""
    if reference.is_text or (reference.is_image and takes_images):
        return
    if reference.is_image:
        raise CallRefused(
            "invalid_request", f"The model takes no images, and the prompt has one: {reference.shown}."
        )
    raise CallRefused(
        "invalid_request", f"A file of type {reference.media_type[:100]} can't be given to a model."
    )


class Fetcher:
    """Fetches files over HTTP; without `media` every file is refused. `sleep` (seconds) is for tests."""

    def __init__(
        self, media: Media | None, retry: Retry, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self._media = media
        self._retry = retry
        self._sleep = sleep
        self._made: aiohttp.ClientSession | None = None

    @property
    def limit_ms(self) -> int:
        """All files of a call are there by then, or it has failed."""
        if self._media is None:
            return 0
        waits = sum(self._retry.base_delay_ms << number for number in range(self._retry.attempts - 1))
        return self._retry.attempts * self._media.timeout_ms + waits

    async def fetch(self, session_id: str, references: Iterable[Reference]) -> Files:
        """The files of a session's call. Raises CallRefused."""
        wanted = list(dict.fromkeys(references))
        if not wanted:
            return {}
        media = self._media
        if media is None:
            raise CallRefused(
                "invalid_request",
                f"The prompt has a file ({wanted[0].shown}), and the model configuration says not where files "
                'are fetched: set [media] resolver = "http".',
            )
        files: dict[Reference, File] = {}
        left = MAX_FILES_BYTES
        try:
            async with asyncio.timeout(self.limit_ms / 1000):
                for reference in wanted:
                    content = await self._one(media, session_id, reference)
                    left -= len(content)
                    if left < 0:
                        raise CallRefused(
                            "invalid_request", f"The files of the prompt have over {MAX_FILES_BYTES} bytes."
                        )
                    files[reference] = File(reference, content)
        except TimeoutError:
            raise _unavailable(wanted[len(files)], "no answer in time") from None
        return files

    async def close(self) -> None:
        """Closes connections."""
        if self._made is not None:
            await self._made.close()

    async def _one(self, media: Media, session_id: str, reference: Reference) -> bytes:
        url = _filled(media.url, session_id, reference)
        number = 0
        while True:
            number += 1
            try:
                return await self._attempt(media, url, reference)
            except CallRefused as refused:
                if not refused.retryable or number >= self._retry.attempts:
                    raise
            await self._sleep(self._retry.base_delay_ms * 2 ** (number - 1) / 1000)

    async def _attempt(self, media: Media, url: str, reference: Reference) -> bytes:
        headers = {} if media.key is None else {"Authorization": f"Bearer {media.key}"}
        try:
            async with (
                asyncio.timeout(media.timeout_ms / 1000),
                self._session().get(URL(url, encoded=True), headers=headers, allow_redirects=False) as answer,
            ):
                status = answer.status
                if status != 200:
                    if status >= 500 or status in _AGAIN:
                        raise _unavailable(reference, f"status {status}")
                    raise CallRefused(
                        "invalid_request", f"The file {reference.shown} can't be had: status {status}."
                    )
                content = bytearray()
                async for piece in answer.content.iter_any():
                    content += piece
                    if len(content) > MAX_FILE_BYTES:
                        raise CallRefused(
                            "invalid_request",
                            f"The file {reference.shown} has over {MAX_FILE_BYTES} bytes.",
                        )
                return bytes(content)
        except TimeoutError:
            raise _unavailable(reference, "no answer in time") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _unavailable(reference, type(error).__name__) from None

    def _session(self) -> aiohttp.ClientSession:
        if self._made is None:
            self._made = aiohttp.ClientSession(
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,
                timeout=aiohttp.ClientTimeout(total=None),
            )
        return self._made


def _filled(template: str, session_id: str, reference: Reference) -> str:
    values = {"sessionId": session_id, "artifactId": reference.artifact_id, "version": reference.version}
    # In one pass: an id that looks like a placeholder stays an id.
    return re.sub(
        r"\{(sessionId|artifactId|version)\}", lambda found: quote(values[found[1]], safe=""), template
    )


def _unavailable(reference: Reference, reason: str) -> CallRefused:
    return CallRefused(
        "transient", f"The file {reference.shown} can't be fetched now: {reason}.", retryable=True
    )
