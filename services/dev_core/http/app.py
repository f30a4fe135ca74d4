"""The HTTP server: what every request passes through before its handler, and how errors are answered."""

from __future__ import annotations

import hashlib
import hmac
from typing import Any, Final

import yarl
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from protocol import jsjson
from protocol.jsjson import JsonDepthError, JsonError
from services.common.console.files import SAFE_HEADERS
from services.common.hosts import HostCheck
from services.common.logs import error_text, get_logger
from services.dev_core.console.pages import is_console
from services.dev_core.given import MAX_GIVEN_DEPTH, read_given
from services.dev_core.problems import Problem
from services.dev_core.store.transaction import StoreFailed

MAX_BODY_BYTES: Final = 16 * 1024 * 1024
_READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
KEYS_PATH: Final = "/.well-known/jwks.json"
_OPEN_PATHS: Final = frozenset({"/health", KEYS_PATH})


def json_response(value: Any, status: int = 200) -> web.Response:
    """A JSON answer; RawJson inside is written as it is."""
    return web.Response(
        body=jsjson.dumps_bytes(value), status=status, content_type="application/json", charset="utf-8"
    )


def problem_response(problem: Problem) -> web.Response:
    """`{error: {code, message}}`."""
    response = json_response({"error": {"code": problem.code, "message": problem.message}}, problem.status)
    if problem.code == "unauthorized":
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


async def read_body(request: web.Request) -> tuple[Any, int]:
    """The parsed JSON body and its size in bytes. Raises Problem."""
    try:
        data = await request.read()
    except web.HTTPRequestEntityTooLarge:
        raise Problem("too_large", f"A body has at most {MAX_BODY_BYTES} bytes.") from None
    if not data.strip():
        raise Problem("invalid", "The body is empty: send a JSON object.")
    try:
        return read_given(data), len(data)
    except JsonDepthError:
        raise Problem("invalid", f"The body nests deeper than {MAX_GIVEN_DEPTH} levels.") from None
    except JsonError as error:
        raise Problem("invalid", f"The body is not JSON: {error}.") from None


def make_app(hosts: HostCheck, token: str | None) -> web.Application:
    """An application without routes."""
    return web.Application(
        middlewares=[_answer_errors, _check_host(hosts), _check_token(token), _check_origin, _check_encoding],
        client_max_size=MAX_BODY_BYTES,
    )


@web.middleware
async def _answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        response = await handler(request)
    except Problem as problem:
        response = problem_response(problem)
    except web.HTTPNotFound:
        text = f"There is no {request.path}: GET /openapi.json describes what there is."
        response = problem_response(Problem("not_found", text))
    except web.HTTPMethodNotAllowed as error:
        allowed = ", ".join(sorted(error.allowed_methods))
        response = problem_response(
            Problem("method_not_allowed", f"{request.path} takes {allowed}, not {request.method}.")
        )
        response.headers["Allow"] = allowed
    except StoreFailed as error:
        get_logger().error("store_failed", error=error_text(error))
        response = problem_response(
            Problem("unavailable", "The core's database refused the request; its log says why.")
        )
    except web.HTTPException:
        raise
    except ConnectionError:
        raise
    except Exception as error:  # noqa: BLE001  (the edge: no text of an unforeseen error leaves)
        get_logger().error("http_request_failed", path=request.path, error=error_text(error))
        response = problem_response(Problem("internal", "The core failed to serve the request."))
    if not response.prepared:
        for name, value in SAFE_HEADERS.items():
            response.headers.setdefault(name, value)
    return response


def _check_host(hosts: HostCheck) -> Middleware:
    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if not hosts.allows(request.headers.get("Host")):
            raise Problem(
                "host_not_allowed",
                "This core does not answer to that Host header: use localhost with its port, or add the "
                "name:port to WHIPPLETREE_CORE_ALLOWED_HOSTS.",
            )
        return await handler(request)

    return check


def _check_token(token: str | None) -> Middleware:
    known = None if token is None else hashlib.sha256(token.encode()).digest()

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if known is not None and request.path not in _OPEN_PATHS and not is_console(request.path):
            scheme, _, given = request.headers.get("Authorization", "").partition(" ")
            digest = hashlib.sha256(given.strip().encode("utf-8", "surrogateescape")).digest()
            if scheme.lower() != "bearer" or not hmac.compare_digest(digest, known):
                raise Problem(
                    "unauthorized", "This core wants `Authorization: Bearer <WHIPPLETREE_CORE_TOKEN>`."
                )
        return await handler(request)

    return check


@web.middleware
async def _check_origin(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuses what another site's page sends in a person's browser."""
    if request.method not in _READS:
        origin = request.headers.get("Origin")
        site = request.headers.get("Sec-Fetch-Site", "none")
        if (origin is not None and not _same_origin(origin, request.host)) or site not in (
            "none",
            "same-origin",
        ):
            raise Problem("cross_site", "Pages of other sites may not write to this core.")
    return await handler(request)


@web.middleware
async def _check_encoding(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuses bodies that are packed: the server does not unpack them, so that a small one stays small."""
    encoding = request.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise Problem("invalid", "Bodies are taken as they are: send it unpacked, without Content-Encoding.")
    return await handler(request)


def _same_origin(origin: str, host: str) -> bool:
    try:
        url = yarl.URL(origin)
    except ValueError:
        return False
    return url.scheme in ("http", "https") and origin.partition("://")[2].lower() == host.lower()
