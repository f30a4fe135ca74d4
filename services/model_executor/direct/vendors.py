"""The two vendors' SDKs: imported on first use, told everything, asked for plain events (model-executor 13.8).

No type of an SDK leaves this module.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextvars import ContextVar
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, Final, Protocol

from services.common import telemetry
from services.common.logs import trace_context
from services.common.metadata import TRACEPARENT
from services.common.urls import without_password
from services.model_executor.direct.answer import Gathered
from services.model_executor.direct.anthropic_answer import AnthropicStream
from services.model_executor.direct.anthropic_request import anthropic_request
from services.model_executor.direct.config import ANTHROPIC, Provider
from services.model_executor.direct.failures import CallRefused, ProviderFailed, error_fields
from services.model_executor.direct.openai_answer import OpenAiStream
from services.model_executor.direct.openai_request import openai_request
from services.model_executor.direct.prompt import Call

MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024
_DRAIN_S: Final = 0.25
_NO_KEY: Final = "none"
_ENVIRONMENT: Final = ("OPENAI_", "ANTHROPIC_")
_CREDENTIALS: Final = ("authorization", "x-api-key")
_PING: Final = b"event: ping"
_on_ping: ContextVar[Callable[[], None]] = ContextVar("on_ping")
"""What a sign of life in the answer that is read does. The SDK keeps pings to itself, and while a model thinks for
minutes there may be nothing else."""


class Stream(Protocol):
    """An answer in the making."""

    @property
    def complete(self) -> bool:
        """All of the answer is there; nothing that matters follows."""
        ...

    @property
    def usable(self) -> bool:
        """The answer can be given though its stream broke off."""
        ...

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

    async def complete(self, call: Call) -> Gathered:
        """One attempt. Raises CallRefused, ProviderFailed; the latter also when no event came for `idle_s`."""
        if not telemetry.current.enabled:
            return await self._complete(call)
        model = call.selected.model
        attributes: dict[str, str | int] = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": self._provider.name,
            "gen_ai.request.model": model,
        }
        with telemetry.current.span(f"chat {model}", attributes, trace_context.get()) as trace:
            before = trace_context.set(trace)
            try:
                gathered = await self._complete(call)
            finally:
                trace_context.reset(before)
            if (usage := gathered.usage) is not None:
                attributes["gen_ai.usage.input_tokens"] = usage.input + usage.cached + usage.cache_write
                attributes["gen_ai.usage.output_tokens"] = usage.output
            return gathered

    async def _complete(self, call: Call) -> Gathered:
        is_anthropic = self._provider.api == ANTHROPIC
        body = anthropic_request(call) if is_anthropic else openai_request(call)
        stream: Stream = AnthropicStream(call) if is_anthropic else OpenAiStream(call)
        client = await self.prepared()
        path = "/v1/messages" if is_anthropic else "/chat/completions"
        now = asyncio.get_running_loop().time
        headers: Mapping[str, str] = {}
        idle = asyncio.timeout(self._idle_s)

        def lives() -> None:
            idle.reschedule(now() + self._idle_s)

        token = _on_ping.set(lives)
        try:
            async with idle, self._events(client, path, body) as (headers, events):
                lives()
                async for event in events:
                    lives()
                    stream.take(event)
                    if stream.complete:
                        await _drain(events)
                        break
        except TimeoutError:
            if not stream.usable:
                raise self._silent() from None
        except ProviderFailed as failed:
            if failed.phase not in ("lost", "timeout") or not stream.usable:
                raise
        finally:
            _on_ping.reset(token)
        return stream.finish(headers.get("request-id" if is_anthropic else "x-request-id", ""))

    async def close(self) -> None:
        """Closes connections."""
        if self._client is not None:
            await self._client.close()

    @contextlib.asynccontextmanager
    async def _events(
        self, client: Any, path: str, body: Any
    ) -> AsyncIterator[tuple[Mapping[str, str], AsyncIterator[Any]]]:
        """The headers and the events of an answer. Raises CallRefused, ProviderFailed."""
        sdk, transport = self._sdk, self._transport
        answered = False
        try:
            events = await client.post(
                path, cast_to=object, body=body, stream=True, stream_cls=sdk.AsyncStream[object]
            )
            answered = True
            try:
                yield events.response.headers, events
            finally:
                await events.close()
        except sdk.APIStatusError as error:
            raise _status_failed(error) from None
        except (sdk.APITimeoutError, transport.TimeoutException) as error:
            if isinstance(error.__cause__ or error, transport.ConnectTimeout):
                raise self._unreachable(error) from None
            raise self._silent() from None
        except (sdk.APIConnectionError, transport.HTTPError) as error:
            # Out of the middle of a stream the HTTP library's own errors come through.
            if not answered and isinstance(error.__cause__ or error, transport.ConnectError):
                raise self._unreachable(error) from None
            cause = type(error.__cause__ or error).__name__
            raise ProviderFailed("lost", f"The provider {self._provider.name} was lost: {cause}.") from None
        except sdk.APIError as error:
            message, type_, code = error_fields(error.body)
            raise ProviderFailed("event", message or str(error), type_=type_, code=code) from None
        except (ValueError, RecursionError):
            # Not UTF-8, not JSON, or JSON that nests too deep.
            raise ProviderFailed("lost", "The provider's stream can't be read.") from None

    def _silent(self) -> ProviderFailed:
        return ProviderFailed("timeout", f"The provider sent nothing for {self._idle_s:g} s.")

    def _unreachable(self, error: BaseException) -> ProviderFailed:
        cause = error.__cause__ or error
        why = " ".join(str(cause).split())[:200] or type(cause).__name__
        return ProviderFailed(
            "connect",
            f"The provider {self._provider.name} can't be reached at {without_password(self._provider.base_url)} "
            f"({why}): start its server, or correct the address.",
        )

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
            trace = trace_context.get() if telemetry.current.enabled else None
            if trace is not None:
                request.headers.setdefault(TRACEPARENT, trace)
            for name, value in wanted.items():
                request.headers[name] = value

        http = transport.AsyncClient(
            trust_env=False,
            follow_redirects=False,
            # None is kept: calls of everybody share this client, and one that is no ASCII would break all of them.
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
            verify=provider.base_url.startswith("https:"),
            timeout=transport.Timeout(self._idle_s, pool=None),
            limits=transport.Limits(max_connections=None, max_keepalive_connections=100),
            event_hooks={"request": [set_credentials], "response": [_limit]},
        )
        make = self._sdk.AsyncAnthropic if provider.api == ANTHROPIC else self._sdk.AsyncOpenAI
        with _own_environment():
            client = make(
                api_key=provider.key or _NO_KEY,
                base_url=provider.base_url,
                max_retries=0,
                timeout=transport.Timeout(self._idle_s, pool=None),
                http_client=http,
            )
        client._make_sse_decoder = _decoder_of(client._make_sse_decoder)
        return client


def _decoder_of(make: Callable[[], Any]) -> Callable[[], Any]:
    """Decoders of server-sent events that pass over events without data, as the standard has it.

    The SDKs' own give them out (after a comment or a line of `retry`), and then fail on them as on bad JSON.
    """

    def made() -> Any:
        decoder = make()
        decode = decoder.decode

        def with_data(line: str) -> Any:
            event = decode(line)
            return event if event is not None and event.data else None

        decoder.decode = with_data
        return decoder

    return made


async def _limit(response: Any) -> None:
    """Bounds what is read of an answer, after it was unpacked."""
    read, lives = response.aiter_bytes, _on_ping.get()

    async def bounded(chunk_size: int | None = None) -> AsyncIterator[bytes]:
        size = 0
        async with contextlib.aclosing(read(chunk_size)) as pieces:
            async for piece in pieces:
                size += len(piece)
                if size > MAX_ANSWER_BYTES:
                    raise CallRefused(
                        "transient", f"The provider's answer has over {MAX_ANSWER_BYTES} bytes."
                    )
                if _PING in piece:
                    lives()
                yield piece

    response.aiter_bytes = bounded


async def _drain(events: AsyncIterator[Any]) -> None:
    """Reads a stream to its end, so that its connection can be used again; not for long."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_DRAIN_S):
            async for _ in events:
                pass


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
