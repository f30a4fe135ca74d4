"""Reads the direct route's TOML file (model-executor 13.1): every member is known and checked."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from services.common.urls import parse_url
from services.model_executor.direct.caps import SCOPES, UNITS, Cap
from services.model_executor.direct.config import APIS, DirectConfig, Media, ModelInfo, Price, Provider, Retry

COMPAT: Final[Mapping[str, type | tuple[str, ...]]] = {
    "usage_in_stream": bool,
    "developer_role": bool,
    "max_tokens_field": ("max_tokens", "max_completion_tokens"),
    "native_schema": bool,
    "prompt_cache_key": bool,
    "finish_reason": bool,
    "thinking": ("adaptive", "budget"),
}
MAX_FILE_BYTES: Final = 1024 * 1024
MAX_KEY_BYTES: Final = 64 * 1024
_ROOT: Final = {"route", "default", "providers", "retry", "state_file", "shared_state", "caps", "media"}
_PROVIDER: Final = {"api", "base_url", "api_key_file", "api_key_env", "headers", "compat", "models"}
_MODEL: Final = {"context_window", "max_output_tokens", "input", "reasoning", "price"}
_MEDIA: Final = {"resolver", "url", "api_key_file", "api_key_env", "timeout_ms"}
_PRICE: Final = ("input", "output", "cache_read", "cache_write")
_HEADER: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_RETRY: Final = {
    "attempts": (1, 20),
    "base_delay_ms": (0, 600_000),
    "max_retry_after_ms": (0, 86_400_000),
    "idle_timeout_ms": (50, 3_600_000),
    "request_timeout_ms": (50, 86_400_000),
}


class ConfigInvalid(ValueError):
    """The file can't be used; the text names the place and quotes no secret."""


def load_config(path: str, environ: Mapping[str, str]) -> DirectConfig:
    """Reads a file and the keys it names. Raises ConfigInvalid."""
    return read_config(_read(path, MAX_FILE_BYTES), environ)


def read_config(text: str, environ: Mapping[str, str]) -> DirectConfig:
    """Reads a file's text. Raises ConfigInvalid."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        # A part of the text may be a secret in the wrong place; the library quotes a character at most.
        raise ConfigInvalid(f"it is not TOML: {error}") from None
    except (ValueError, RecursionError):
        raise ConfigInvalid("it is not TOML: a number is too long, or something nests too deep") from None
    _known(document, "", _ROOT)
    if document.get("route", "direct") != "direct":
        raise ConfigInvalid('route must be "direct"; the process\'s own setting names the route')
    providers = {
        name: _provider(name, value, environ) for name, value in _table(document, "providers", "").items()
    }
    default = document.get("default")
    if not isinstance(default, str) or not default.partition("/")[2]:
        raise ConfigInvalid('default must be "provider/model"')
    if default.partition("/")[0] not in providers:
        raise ConfigInvalid(f"default names the provider {default.partition('/')[0]}, which has no table")
    state_file = document.get("state_file")
    if state_file is not None and not (isinstance(state_file, str) and state_file.startswith("/")):
        raise ConfigInvalid("state_file must be an absolute path")
    shared = document.get("shared_state", True)
    if not isinstance(shared, bool):
        raise ConfigInvalid("shared_state must be true or false")
    config = DirectConfig(
        default,
        providers,
        _retry(_table(document, "retry", "")),
        state_file,
        shared,
        _caps(_table(document, "caps", "")),
        _media(_table(document, "media", ""), environ),
    )
    if config.has_usd_cap:
        _check_prices(config)
    return config


def _caps(value: Mapping[str, Any]) -> tuple[Cap, ...]:
    known = {f"{scope}_{unit}": (scope, unit) for scope in SCOPES for unit in UNITS}
    _known(value, "caps.", set(known))
    for name, limit in value.items():
        if isinstance(limit, bool) or not isinstance(limit, int | float) or not 0 <= limit < 1e15:
            raise ConfigInvalid(f"caps.{name} must be a number from 0")
    return tuple(Cap(*known[name], float(limit)) for name, limit in value.items())


def _check_prices(config: DirectConfig) -> None:
    """A cap in US dollars counts nothing for a model without a price."""
    selected = config.select(None)
    if selected.info.price is None:
        raise ConfigInvalid(
            f"caps in USD need prices: add [providers.{selected.provider.name}.models."
            f'"{selected.model}"] with price (all 0 for a free one), or use caps in tokens'
        )
    for provider in config.providers.values():
        for name, info in provider.models.items():
            if info.price is None:
                raise ConfigInvalid(
                    f'caps in USD need prices: providers.{provider.name}.models."{name}" has no price (all 0 for '
                    "a free one); or use caps in tokens"
                )


def _media(value: Mapping[str, Any], environ: Mapping[str, str]) -> Media | None:
    _known(value, "media.", _MEDIA)
    resolver = value.get("resolver", "none")
    if resolver == "none":
        return None
    if resolver != "http":
        raise ConfigInvalid('media.resolver must be "none" or "http"')
    url = value.get("url")
    parts = parse_url(url) if isinstance(url, str) else None
    if not isinstance(url, str) or parts is None or parts.scheme not in ("http", "https"):
        raise ConfigInvalid("media.url must be an http or https URL")
    for name in ("{artifactId}", "{version}"):
        if name not in url.partition("://")[2].partition("/")[2]:
            raise ConfigInvalid(f"media.url must have {name} in its path")
    _, key = _key(value, "media", environ)
    if value.get("api_key_env") is not None and key is None:
        raise ConfigInvalid(f"media.api_key_env names {value['api_key_env']}, which is not set")
    timeout_ms = _whole(value, "timeout_ms", "media.", 30_000, 50, 600_000)
    return Media(url, key, value.get("api_key_env"), timeout_ms)


def _provider(name: str, value: Any, environ: Mapping[str, str]) -> Provider:
    path = f"providers.{name}"
    if not name or "/" in name:
        raise ConfigInvalid(
            f"{path}: a provider's name has no / and is not empty, or no model id could name it"
        )
    if not isinstance(value, dict):
        raise ConfigInvalid(f"{path} must be a table")
    _known(value, f"{path}.", _PROVIDER)
    api = value.get("api")
    if not isinstance(api, str) or api not in APIS:
        raise ConfigInvalid(f"{path}.api must be one of {', '.join(APIS)}")
    base_url = value.get("base_url", APIS[api])
    parts = parse_url(base_url) if isinstance(base_url, str) else None
    if parts is None or parts.scheme not in ("http", "https"):
        raise ConfigInvalid(f"{path}.base_url must be an http or https URL")
    headers = _table(value, "headers", f"{path}.")
    for header, text in headers.items():
        if _HEADER.fullmatch(header) is None:
            raise ConfigInvalid(f"{path}.headers: {header!r} is no name of a header")
        if not isinstance(text, str) or not _is_header_text(text):
            raise ConfigInvalid(f"{path}.headers.{header} must be a text in printable ASCII")
    models = {
        model: _model(f'{path}.models."{model}"', entry)
        for model, entry in _table(value, "models", f"{path}.").items()
    }
    needs_key, key = _key(value, path, environ)
    return Provider(
        name,
        api,
        base_url.rstrip("/"),
        needs_key,
        key,
        headers,
        _compat(_table(value, "compat", f"{path}."), f"{path}.compat."),
        models,
        value.get("api_key_env"),
    )


def _key(value: Mapping[str, Any], path: str, environ: Mapping[str, str]) -> tuple[bool, str | None]:
    file, variable = value.get("api_key_file"), value.get("api_key_env")
    if file is not None and variable is not None:
        raise ConfigInvalid(f"{path} has api_key_file and api_key_env; leave one out")
    if file is None and variable is None:
        return False, None
    if not isinstance(file if variable is None else variable, str):
        raise ConfigInvalid(f"{path}.{'api_key_file' if variable is None else 'api_key_env'} must be a text")
    if variable is not None:
        key = environ.get(variable, "").strip()
        if not _is_header_text(key):
            raise ConfigInvalid(f"{path}.api_key_env: the key must be one line of printable ASCII")
        return True, key or None
    try:
        key = _read(str(file), MAX_KEY_BYTES).strip()
    except ConfigInvalid as error:
        raise ConfigInvalid(f"{path}.api_key_file: {error}") from None
    if not key:
        raise ConfigInvalid(f"{path}.api_key_file names an empty file")
    if not _is_header_text(key):
        raise ConfigInvalid(f"{path}.api_key_file: the key must be one line of printable ASCII")
    return True, key


def _is_header_text(text: str) -> bool:
    return text.isascii() and text.isprintable()


def _model(path: str, value: Any) -> ModelInfo:
    if not isinstance(value, dict):
        raise ConfigInvalid(f"{path} must be a table")
    _known(value, f"{path}.", _MODEL)
    inputs = value.get("input", ["text", "image"])
    if not isinstance(inputs, list) or not all(one in ("text", "image") for one in inputs):
        raise ConfigInvalid(f'{path}.input must be a list of "text" and "image"')
    reasoning = value.get("reasoning", False)
    if not isinstance(reasoning, bool):
        raise ConfigInvalid(f"{path}.reasoning must be true or false")
    price = _table(value, "price", f"{path}.")
    _known(price, f"{path}.price.", set(_PRICE))
    for name, number in price.items():
        if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number < 1e9:
            raise ConfigInvalid(f"{path}.price.{name} must be a number from 0")
    known = ModelInfo()
    return ModelInfo(
        _whole(value, "context_window", f"{path}.", known.context_window, 1, 10**9),
        _whole(value, "max_output_tokens", f"{path}.", known.max_output_tokens, 1, 10**9),
        "image" in inputs,
        reasoning,
        Price(**price) if "price" in value else None,
    )


def _compat(value: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    _known(value, path, set(COMPAT))
    for name, given in value.items():
        allowed = COMPAT[name]
        if isinstance(allowed, tuple):
            if given not in allowed:
                raise ConfigInvalid(f"{path}{name} must be one of {', '.join(allowed)}")
        elif not isinstance(given, allowed):
            raise ConfigInvalid(f"{path}{name} must be true or false")
    return value


def _retry(value: Mapping[str, Any]) -> Retry:
    _known(value, "retry.", set(_RETRY))
    known = Retry()
    return Retry(
        **{name: _whole(value, name, "retry.", getattr(known, name), *span) for name, span in _RETRY.items()}
    )


def _whole(value: Mapping[str, Any], name: str, path: str, default: int, low: int, high: int) -> int:
    number = value.get(name, default)
    if isinstance(number, bool) or not isinstance(number, int) or not low <= number <= high:
        raise ConfigInvalid(f"{path}{name} must be a whole number from {low} to {high}")
    return number


def _table(value: Mapping[str, Any], name: str, path: str) -> dict[str, Any]:
    table = value.get(name, {})
    if not isinstance(table, dict):
        raise ConfigInvalid(f"{path}{name} must be a table")
    return table


def _known(value: Mapping[str, Any], path: str, names: set[str]) -> None:
    for name in value:
        if name not in names:
            raise ConfigInvalid(f"{path}{name} is not known; known are {', '.join(sorted(names))}")


def _read(path: str, limit: int) -> str:
    try:
        with Path(path).open("rb") as file:
            content = file.read(limit + 1)
    except OSError as error:
        raise ConfigInvalid(f"{path} can't be read: {error.strerror or type(error).__name__}") from None
    except ValueError:
        raise ConfigInvalid(f"{path!r} is no path") from None
    if len(content) > limit:
        raise ConfigInvalid(f"{path} is larger than {limit} bytes")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise ConfigInvalid(f"{path} is not UTF-8") from None
