"""What the direct route is told: providers, models, retries, caps, files (model-executor 13.1 and 13.3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from services.model_executor.direct.caps import Cap

OPENAI, ANTHROPIC = "openai-completions", "anthropic-messages"
APIS: Final = {OPENAI: "https://api.openai.com/v1", ANTHROPIC: "https://api.anthropic.com"}
"""The APIs, each with its vendor's address."""


@dataclass(frozen=True, slots=True)
class Price:
    """USD per million tokens."""

    input: float = 0
    output: float = 0
    cache_read: float = 0
    cache_write: float = 0


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What is known of a model; the defaults hold for one without an entry."""

    context_window: int = 128_000
    max_output_tokens: int = 16_384
    images: bool = True
    reasoning: bool = False
    price: Price | None = None

    @property
    def prices(self) -> Price:
        """The prices; 0 where none are known."""
        return self.price or Price()


@dataclass(frozen=True, slots=True)
class Provider:
    """One provider. `key` None with `needs_key`: its variable is not set, and every call fails with `auth`."""

    name: str
    api: str
    base_url: str
    needs_key: bool = False
    key: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    compat: Mapping[str, Any] = field(default_factory=dict)
    models: Mapping[str, ModelInfo] = field(default_factory=dict)
    key_variable: str | None = None

    @property
    def secrets(self) -> tuple[str, ...]:
        """What may stand in no message: the key and configured header values of 8 and more characters."""
        values = [self.key or "", *self.headers.values()]
        return tuple(sorted((value for value in values if len(value) >= 8), key=len, reverse=True))


@dataclass(frozen=True, slots=True)
class Retry:
    """Attempts of one call in all, and times in milliseconds."""

    attempts: int = 3
    base_delay_ms: int = 2_000
    max_retry_after_ms: int = 60_000
    idle_timeout_ms: int = 300_000
    request_timeout_ms: int = 600_000

    @property
    def limit_ms(self) -> int:
        """A call with all its attempts and waits has ended by then."""
        waits = max(self.max_retry_after_ms, self.base_delay_ms << (self.attempts - 1))
        return self.attempts * self.request_timeout_ms + (self.attempts - 1) * waits + 10_000


@dataclass(frozen=True, slots=True)
class Media:
    """Where files of a prompt are fetched, and a bearer for it.

    The URL has `{artifactId}` and `{version}`, and `{sessionId}` where the server keeps sessions apart.
    """

    url: str
    key: str | None = field(default=None, repr=False)
    key_variable: str | None = None
    timeout_ms: int = 30_000


@dataclass(frozen=True, slots=True)
class Selected:
    """The provider and the model of one call."""

    provider: Provider
    model: str
    info: ModelInfo


@dataclass(frozen=True, slots=True)
class DirectConfig:
    """The whole file. `state_file` None: the default under the root folder.

    `shared_state` false: there are replicas that don't see this file (on other hosts), so a call that core
    calls a re-sent one and that is not in it may have been started there.
    """

    default: str
    providers: Mapping[str, Provider]
    retry: Retry = field(default_factory=Retry)
    state_file: str | None = None
    shared_state: bool = True
    caps: tuple[Cap, ...] = ()
    media: Media | None = None

    def key_variables(self) -> list[str]:
        """The variables that keys were read from, to be forgotten."""
        holders: list[Provider | Media] = list(self.providers.values())
        if self.media is not None:
            holders.append(self.media)
        return [name for one in holders if (name := one.key_variable) is not None]

    @property
    def has_usd_cap(self) -> bool:
        """Every model needs a price then."""
        return any(cap.unit == "usd" for cap in self.caps)

    def select(self, model_id: str | None) -> Selected:
        """The model of an id: `provider/model`, or a model of the default provider."""
        name, slash, rest = (model_id or self.default).partition("/")
        if not slash or name not in self.providers:
            name, rest = self.default.partition("/")[0], model_id or self.default
        provider = self.providers[name]
        return Selected(provider, rest, provider.models.get(rest, ModelInfo()))
