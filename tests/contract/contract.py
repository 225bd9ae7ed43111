"""GitHub's own description of its interface, cut (``cut_openapi.py``), as a judge of requests and answers."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

if TYPE_CHECKING:  # else where it is used: a machine without it collects the tests, and skips them
    from openapi_core import OpenAPI
    from openapi_core.datatypes import RequestParameters

HOST = "http://127.0.0.1"
DESCRIPTION = Path(__file__).with_name("github_openapi.json")


@dataclass
class _Request:
    """What openapi-core asks of a request."""

    method: str
    path: str
    parameters: RequestParameters
    body: bytes | None
    content_type: str = "application/json"
    host_url: str = HOST


@dataclass
class _Answer:
    """What openapi-core asks of an answer."""

    data: bytes
    status_code: int
    content_type: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)


@lru_cache(maxsize=1)
def _described() -> Any:
    return json.loads(DESCRIPTION.read_text(encoding="utf-8"))


@lru_cache(maxsize=1)
def _judge() -> OpenAPI:
    from openapi_core import OpenAPI

    return OpenAPI.from_dict(_described())


@lru_cache(maxsize=4096)
def request_fault(method: str, target: str, body: bytes) -> str:
    """Why GitHub's description does not allow a request; empty where it does. An unknown query parameter is a fault."""
    from openapi_core.exceptions import OpenAPIError

    request = _request(method, target, body)
    try:
        _judge().validate_request(request)
    except OpenAPIError as error:
        return _told(error)
    known = _names(method, request.path)
    asked = dict(parse_qsl(urlsplit(target).query, keep_blank_values=True))
    unknown = [name for name in asked if name not in known]
    return f"unknown query parameters {unknown}" if unknown else ""


@lru_cache(maxsize=4096)
def answer_fault(method: str, target: str, status: int, answer: bytes) -> str:
    """The same for the fake's own answer."""
    from openapi_core.exceptions import OpenAPIError

    try:
        _judge().validate_response(_request(method, target, b""), _Answer(answer, status))
    except OpenAPIError as error:
        return _told(error)
    return ""


def _request(method: str, target: str, body: bytes) -> _Request:
    from openapi_core.datatypes import RequestParameters
    from werkzeug.datastructures import ImmutableMultiDict

    parts = urlsplit(target)
    query: ImmutableMultiDict[str, str] = ImmutableMultiDict(parse_qsl(parts.query, keep_blank_values=True))
    return _Request(method.lower(), parts.path, RequestParameters(query=query), body or None)


def _names(method: str, path: str) -> set[str]:
    asked = path.split("/")
    for template, operations in _described()["paths"].items():
        parts = template.split("/")
        if len(parts) == len(asked) and all(
            part.startswith("{") or part == given for part, given in zip(parts, asked, strict=True)
        ):
            return {parameter["name"] for parameter in operations[method.lower()]["parameters"]}
    return set()


def _told(error: BaseException) -> str:
    """An error with the schema's own words, which openapi-core keeps in its cause."""
    details: tuple[Any, ...] = tuple(getattr(error.__cause__, "schema_errors", getattr(error, "schema_errors", ())))
    return "; ".join([str(error).partition(":")[0], *(detail.message for detail in details)])
