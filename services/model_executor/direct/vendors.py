"""The two vendors' SDKs: imported on first use, told everything, asked for plain events (model-executor 13.8).

No type of an SDK leaves this module.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Final, Protocol

from services.model_executor.direct.answer import Gathered
from services.model_executor.direct.anthropic_answer import AnthropicStream
from services.model_executor.direct.anthropic_request import anthropic_request
from services.model_executor.direct.config import ANTHROPIC, Provider
from services.model_executor.direct.failures import CallRefused, ProviderFailed, error_fields
from services.model_executor.direct.openai_answer import OpenAiStream
from services.model_executor.direct.openai_request import openai_request
from services.model_executor.direct.prompt import Call

_NO_KEY: Final = "none"
_ENVIRONMENT: Final = ("OPENAI_", "ANTHROPIC_")
_CREDENTIALS: Final = ("authorization", "x-api-key")


class Stream(Protocol):
    """An answer in the making."""

    def take(self, event: Any) -> None:
        """Takes one event."""
        ...

    def finish(self, request_id: str) -> Gathered:
        """The answer. Raises CallRefused, ProviderFailed."""
        ...


class Vendor:
    """One provider through its vendor's SDK. `idle_s` bounds every wait for a byte."""

    def __init__(self, provider: Provider, idle_s: float) -> None:
        self._provider = provider
        self._idle_s = idle_s
        self._client: Any = None
        self._sdk: Any = None
        self._transport: Any = None
        self._making = asyncio.Lock()

    async def complete(self, call: Call, progress: Callable[[], None]) -> Gathered:
        """One attempt; `progress` is called at each event. Raises CallRefused, ProviderFailed."""
        provider = self._provider
        is_anthropic = provider.api == ANTHROPIC
        body = anthropic_request(call) if is_anthropic else openai_request(call)
        stream: Stream = AnthropicStream(call) if is_anthropic else OpenAiStream(call)
        client = await self.prepared()
        async with self._events(client, "/v1/messages" if is_anthropic else "/chat/completions", body) as got:
            response, events = got
            progress()
            async for event in events:
                progress()
                stream.take(event)
        name = "request-id" if is_anthropic else "x-request-id"
        return stream.finish(response.headers.get(name, ""))

    async def close(self) -> None:
        """Closes connections."""
        if self._client is not None:
            await self._client.close()

    @contextlib.asynccontextmanager
    async def _events(self, client: Any, path: str, body: Any) -> AsyncIterator[tuple[Any, Any]]:
        sdk = self._sdk
        try:
            events = await client.post(
                path, cast_to=object, body=body, stream=True, stream_cls=sdk.AsyncStream[object]
            )
            try:
                yield events.response, events
            finally:
                await events.close()
        except sdk.APIStatusError as error:
            raise _status_failed(error) from None
        except sdk.APITimeoutError:
            raise ProviderFailed("timeout", f"The provider sent nothing for {self._idle_s:g} s.") from None
        except sdk.APIConnectionError as error:
            cause = type(error.__cause__).__name__ if error.__cause__ is not None else "connection error"
            raise ProviderFailed("lost", f"The provider can't be reached or was lost: {cause}.") from None
        except self._transport.TimeoutException:
            raise ProviderFailed("timeout", f"The provider sent nothing for {self._idle_s:g} s.") from None
        except self._transport.HTTPError as error:
            # Out of the middle of a stream the HTTP library's own errors come through.
            raise ProviderFailed("lost", f"The provider was lost: {type(error).__name__}.") from None
        except sdk.APIError as error:
            message, type_, code = error_fields(error.body)
            raise ProviderFailed("event", message or str(error), type_=type_, code=code) from None

    async def prepared(self) -> Any:
        """The client; the first time it takes seconds. Raises CallRefused without the vendor's package."""
        if self._client is None:
            async with self._making:
                if self._client is None:
                    # Takes seconds the first time: not on the loop.
                    self._sdk, self._transport = await asyncio.to_thread(_import, self._provider.api)
                    self._client = self._make(self._transport)
        return self._client

    def _make(self, transport: Any) -> Any:
        provider = self._provider
        wanted = {name.lower(): value for name, value in provider.headers.items()}

        async def set_credentials(request: Any) -> None:
            for name in _CREDENTIALS:
                if name not in wanted and (provider.key is None or name == "x-api-key"):
                    request.headers.pop(name, None)
            for name, value in wanted.items():
                request.headers[name] = value

        http = transport.AsyncClient(
            trust_env=False,
            follow_redirects=False,
            verify=provider.base_url.startswith("https:"),
            timeout=transport.Timeout(self._idle_s, pool=None),
            limits=transport.Limits(max_connections=None, max_keepalive_connections=100),
            event_hooks={"request": [set_credentials]},
        )
        make = self._sdk.AsyncAnthropic if provider.api == ANTHROPIC else self._sdk.AsyncOpenAI
        with _own_environment():
            return make(
                api_key=provider.key or _NO_KEY,
                base_url=provider.base_url,
                max_retries=0,
                timeout=transport.Timeout(self._idle_s, pool=None),
                http_client=http,
            )


@contextlib.contextmanager
def _own_environment() -> Iterator[None]:
    """The SDKs look into the environment for headers, addresses and profiles: they see nothing of theirs."""
    hidden = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith(_ENVIRONMENT)}
    try:
        yield
    finally:
        os.environ.update(hidden)


def _import(api: str) -> tuple[Any, Any]:
    """The SDK and its HTTP library. Raises CallRefused when the extra is not installed."""
    name = "anthropic" if api == ANTHROPIC else "openai"
    try:
        return importlib.import_module(name), importlib.import_module("httpx2")
    except ImportError:
        raise CallRefused(
            "invalid_request",
            f"The package {name} is not installed: pip install 'whippletree[{name}]'.",
        ) from None


def _status_failed(error: Any) -> ProviderFailed:
    response = error.response
    headers = {name.lower(): value for name, value in response.headers.items()}
    message, type_, code = error_fields(error.body)
    status: int = error.status_code
    text = message or _plain(error.body) or f"The provider answered {status}."
    if status < 400:
        return ProviderFailed("event", text, type_=type_, code=code, headers=headers)
    return ProviderFailed(
        "status",
        text,
        status=status,
        type_=type_,
        code=code,
        headers=headers,
        empty=error.body in (None, "", b""),
    )


def _plain(body: Any) -> str:
    return body if isinstance(body, str) else ""
