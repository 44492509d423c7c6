"""The server of the page: JSON from `Content`, the static files, and nothing else. It only reads."""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from omg.utils.settings import UserError
from omg.view.content import Content

STATIC = Path(__file__).parent / "static"
LOCAL = ("localhost", "127.0.0.1", "[::1]")
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data: blob:; style-src 'self' 'unsafe-inline'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


def make_app(root: Path, token: str | None = None) -> Starlette:
    """The application. With a token every answer with content needs it; without one only local names are answered."""
    content = Content(root)

    def answer(read: Callable[[Request], Any]) -> Callable[[Request], Any]:
        async def endpoint(request: Request) -> Response:
            given = request.headers.get("x-token", "").encode()
            if token is not None and not hmac.compare_digest(given, token.encode()):
                return JSONResponse({"error": "the address needs its token: use the one that omg view printed."}, 403)
            try:
                found = await run_in_threadpool(read, request)
            except UserError as error:
                return JSONResponse({"error": str(error)}, 400)
            except OSError as error:
                return JSONResponse({"error": f"cannot read: {error.strerror or error}."}, 400)
            if isinstance(found, Response):
                return found
            body = json.dumps(_finite(found), default=str, separators=(",", ":")).encode()
            stamp = hashlib.sha256(body).hexdigest()[:16]
            if request.headers.get("if-none-match") == stamp:
                return Response(status_code=304)
            return Response(body, media_type="application/json", headers={"ETag": stamp, "Cache-Control": "no-cache"})

        return endpoint

    def curves(request: Request) -> Any:
        return content.curves(*_chosen(request))

    def figure(request: Request) -> Response:
        kind = request.query_params.get("format", "png")
        if kind not in ("png", "svg"):
            raise UserError("a figure is png or svg.")
        with tempfile.TemporaryDirectory() as folder:
            path = content.figure(*_chosen(request), Path(folder) / f"curves.{kind}")
            media = "image/png" if kind == "png" else "image/svg+xml"
            headers = {"Content-Disposition": f'attachment; filename="curves.{kind}"'}
            return Response(path.read_bytes(), media_type=media, headers=headers)

    async def page(request: Request) -> Response:
        return FileResponse(STATIC / "index.html")

    routes = [
        Route("/", page),
        Route("/api/runs", answer(lambda r: content.runs())),
        Route("/api/config", answer(lambda r: content.config(_one(r)))),
        Route("/api/curves", answer(curves)),
        Route("/api/figure", answer(figure)),
        Route("/api/episodes", answer(lambda r: content.episodes())),
        Route("/api/episode", answer(lambda r: content.episode(_one(r)))),
        Route("/api/partners", answer(lambda r: content.partners())),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]
    return Starlette(routes=routes, middleware=[Middleware(_Guard, local_only=token is None)])


class _Guard:
    """Adds headers; without a token refuses names that are not local, which another site could point here."""

    def __init__(self, app: Any, local_only: bool):
        self.app, self.local_only = app, local_only

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        host = dict(scope["headers"]).get(b"host", b"").decode("latin-1")
        if self.local_only and host.rpartition(":")[0] not in LOCAL and host not in LOCAL:
            await JSONResponse({"error": "this server answers to localhost only."}, 403)(scope, receive, send)
            return

        async def with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                extra = [(k.lower().encode(), v.encode()) for k, v in HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", []), *extra]}
            await send(message)

        await self.app(scope, receive, with_headers)


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: they are sent as null."""
    if isinstance(value, dict):
        return {str(key): _finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _one(request: Request) -> str:
    name = request.query_params.get("id")
    if not name:
        raise UserError("which one? id is missing.")
    return name


def _chosen(request: Request) -> tuple[list[str], str | None, str, str, float]:
    """The runs, the number, the grouping, the axis and the smoothing of a figure."""
    query = request.query_params
    try:
        smooth = float(query.get("smooth", 0))
    except ValueError as error:
        raise UserError("smooth is a number.") from error
    if not 0 <= smooth < 1:
        raise UserError("smooth is 0 or more, and below 1.")
    return query.getlist("id"), query.get("metric") or None, query.get("by", "config"), query.get("x", "steps"), smooth
