"""The web application: routes, error handlers, middleware, shutdown, and the pages at ``/`` and ``/docs``."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
import shlex
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import jinja2
from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse
from markupsafe import Markup, escape
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Route

from fairseq_syntax import __version__
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.use.pages.page import self_contained
from fairseq_syntax.use.serving import libretranslate
from fairseq_syntax.use.serving.guard import Guard, HostNames, in_time, refusal
from fairseq_syntax.use.serving.messages import (
    REQUEST_EXAMPLES,
    Health,
    ModelInfo,
    Models,
    Reason,
    TranslateAnswer,
    TranslateRequest,
    validated,
)
from fairseq_syntax.use.serving.service import Service

DESCRIPTION = (
    "Translation by models that know syntax. Errors are answered with a JSON object whose `detail` and `error` are the "
    "reason (only `error`, if the request is LibreTranslate's)."
)
REASONS: dict[int | str, dict[str, Any]] = {
    status: {"model": Reason, "description": text}
    for status, text in {
        413: "The request is too large",
        422: "The request cannot be understood, or a sentence cannot be parsed or translated",
        503: "Too much is waiting; try again later",
        504: "The translation took too long",
    }.items()
}
# Validated by hand, since LibreTranslate's requests have the same path.
BODY = {"schema": TranslateRequest.model_json_schema(), "examples": REQUEST_EXAMPLES}


def create_app(
    service: Service,
    *,
    timeout: float = 30.0,
    max_bytes: int = 1 << 20,
    hosts: Sequence[str] | None = None,
    examples: Sequence[str] = (),
) -> FastAPI:
    """Create the application, which closes the service when it stops.

    Args:
        timeout: maximum time per request, in seconds
        max_bytes: maximum size of a request's body
        hosts: accepted host names (:func:`~fairseq_syntax.use.serving.guard.allowed_hosts`); None accepts any
        examples: example sentences on the page
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        # uvicorn shuts the application down after the open requests have been answered.
        await asyncio.to_thread(service.close, 0.1)

    app = FastAPI(
        title="fairseq-syntax",
        version=__version__,
        description=DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,  # FastAPI's own pages load scripts from a CDN
        redoc_url=None,
    )
    page, page_policy = playground(models_of(service), examples)

    @app.post(
        "/translate",
        response_model=TranslateAnswer,
        responses=REASONS,
        openapi_extra={"requestBody": {"required": True, "content": {"application/json": BODY}}},
        summary="Translate sentences",
    )
    async def translate(request: Request) -> Any:
        """Translate one or several sentences, given as text, tokens or parses, with one or several models.

        A JSON body or a form with `q`, `source` and `target` is answered in LibreTranslate's format.
        """
        try:
            body = await request.body()
        except ClientDisconnect:  # in the middle of the body, or uvicorn has rejected a malformed one
            return Response(status_code=499)
        if (answer := await libretranslate.answer(service, request, body, timeout)) is not None:
            return answer
        work = service.translate(validated(TranslateRequest, body), deadline=time.monotonic() + timeout)
        return await in_time(work, request, timeout)

    @app.get("/languages", summary="The languages, as LibreTranslate answers them")
    async def languages() -> list[dict[str, Any]]:
        return libretranslate.languages_of(service)

    @app.get("/health", summary="Whether the server works")
    async def health() -> Health:
        return Health(status="ok", waiting=service.accepted)

    @app.get("/models", summary="The loaded models")
    async def models() -> Models:
        return models_of(service)

    @app.get(
        "/metrics",
        response_class=Response,
        summary="Counters for Prometheus",
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    )
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/docs", response_class=HTMLResponse, include_in_schema=False)
    async def docs() -> HTMLResponse:
        policy = "default-src 'none'; style-src 'unsafe-inline'"
        return HTMLResponse(api_page(app.openapi()), headers={"content-security-policy": policy})

    @app.get("/", response_class=HTMLResponse, summary="A page to try the models on")
    async def index() -> HTMLResponse:
        headers = {"content-security-policy": page_policy, "cache-control": "no-cache"}
        return HTMLResponse(page, headers=headers)

    @app.exception_handler(SyntaxDataError)
    async def bad_data(_: Request, error: SyntaxDataError) -> JSONResponse:
        return refusal(error.message + (f" ({error.hint})" if error.hint else ""), 422)

    @app.exception_handler(HTTPException)
    async def refused(_: Request, error: HTTPException) -> JSONResponse:
        return refusal(error.detail, error.status_code, error.headers)

    @app.exception_handler(Exception)
    async def defect(*_: Any) -> JSONResponse:
        return refusal("a defect of the server; its log says more", 500)

    # The middleware added last is outermost, so requests rejected for their host are counted too.
    app.add_middleware(HostNames, hosts=hosts)
    paths = frozenset(app.openapi()["paths"])
    for route in app.routes:  # after the description, which would have them twice
        if isinstance(route, Route) and route.methods and "GET" in route.methods:
            route.methods.add("HEAD")  # which proxies and monitors ask with
    app.add_middleware(Guard, max_bytes=max_bytes, metrics=service.metrics, paths=paths)
    return app


def models_of(service: Service) -> Models:
    """Descriptions of the loaded models."""
    models = service.models.values()
    return Models(
        models=[
            ModelInfo(
                name=model.name,
                systems=model.systems,
                needs=sorted(model.needs),
                source_lang=model.source_lang,
                target_lang=model.target_lang,
                parameters=model.parameters(),
                attention=model.shows_attention,
            )
            for model in models
        ],
        parser=service.source.parser.options.parser if service.source.parser is not None else None,
        relations=sorted({relation for model in models for relation in model.relations()}),
    )


def playground(models: Models, examples: Sequence[str] = ()) -> tuple[str, str]:
    """The page for these models and example sentences, and a content security policy that allows its script alone."""
    page = self_contained(
        Path(__file__).with_name("playground.html"),
        title="fairseq-syntax playground",
        data={**models.model_dump(), "examples": list(examples)},
    )
    # The data are in a script element whose type is not executable.
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts)
    policy = (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return page, policy


def kind_of(schema: Mapping[str, Any]) -> str:
    """The type of a field in words, from its JSON Schema."""
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(map(kind_of, schema["anyOf"])))
    if schema.get("type") == "array":
        return f"list of {kind_of(schema.get('items', {}))}"
    return {"object": "object", "null": "null"}.get(schema.get("type", "object"), schema.get("type", "object"))


def api_page(description: Mapping[str, Any]) -> str:
    """Render an OpenAPI description as a self-contained page with paths, examples and responses."""
    page = jinja2.Environment(autoescape=True)
    page.filters["json"] = partial(json.dumps, ensure_ascii=False, indent=1)
    page.filters["quoted"] = lambda value: shlex.quote(json.dumps(value, ensure_ascii=False))
    page.filters["kind"] = kind_of
    page.filters["marked"] = lambda text: Markup(re.sub("`([^`]*)`", r"<code>\1</code>", str(escape(text))))
    return page.from_string(Path(__file__).with_name("api.html").read_text(encoding="utf-8")).render(api=description)
