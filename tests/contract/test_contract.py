"""GitHub's description, as it was cut, sees what is wrong in a request and in an answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.contract import cut_openapi
from tests.contract.contract import DESCRIPTION, answer_fault, request_fault

pytestmark = pytest.mark.needs_contract
ISSUES, PULLS = "/repos/o/r/issues", "/repos/o/r/pulls"


def body(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


@pytest.mark.parametrize(
    ("method", "target", "sent", "told"),
    [
        ("POST", ISSUES, body(body="b"), "'title' is a required property"),
        ("POST", ISSUES, body(title="t", boddy="b"), "'boddy' was unexpected"),
        ("POST", ISSUES, body(title=["t"]), "is not valid under any of the given schemas"),
        ("POST", PULLS, body(title="t", head="me:b"), "'base' is a required property"),
        ("POST", PULLS, body(title="t", head="me:b", base="main", draft="yes"), "'yes' is not of type 'boolean'"),
        ("POST", "/repos/o/r/issues/seven/comments", body(body="b"), "parameter"),
        ("GET", f"{ISSUES}?state=every", b"", "'every' is not one of"),
        ("GET", f"{ISSUES}?author=me", b"", "unknown query parameters ['author']"),
        ("GET", "/search/issues", b"", "Missing required query parameter"),
        ("GET", "/repos/o/r/isues", b"", "Path not found"),
        ("DELETE", ISSUES, b"", "Operation delete not found"),
    ],
)
def test_a_wrong_request_is_seen(method: str, target: str, sent: bytes, told: str) -> None:
    assert told in request_fault(method, target, sent)


@pytest.mark.parametrize(
    ("method", "target", "sent"),
    [
        ("POST", ISSUES, body(title="t", body="b")),
        (
            *("POST", PULLS),
            body(title="t", body="b", head="me:b", base="main", draft=True, maintainer_can_modify=True),
        ),
        ("POST", "/repos/o/r/issues/7/comments", body(body="b")),
        ("GET", f"{ISSUES}?state=all&creator=me&per_page=100&page=2&sort=created&direction=desc", b""),
        ("GET", "/search/issues?q=repo%3Ao%2Fr+x&per_page=100", b""),
    ],
)
def test_a_right_one_is_not(method: str, target: str, sent: bytes) -> None:
    assert request_fault(method, target, sent) == ""


@pytest.mark.parametrize(
    ("target", "answer", "told"),
    [
        ("/user", b'{"login": "me"}', "'html_url' is a required property"),
        ("/user", b'{"logn": "me"}', "'logn' was unexpected"),
        (ISSUES, b"{}", "is not of type 'array'"),
    ],
)
def test_a_wrong_answer_of_the_fake_is_seen(target: str, answer: bytes, told: str) -> None:
    assert told in answer_fault("GET", target, 200, answer)


def test_the_description_is_only_what_is_used_and_says_where_it_is_from() -> None:
    described = json.loads(DESCRIPTION.read_text(encoding="utf-8"))
    assert {path: tuple(methods) for path, methods in described["paths"].items()} == cut_openapi.USED
    assert described["info"]["x-cut-from"] == "@octokit/openapi@23.0.2, MIT"
    assert described["openapi"].startswith("3.0.")


def test_cutting_takes_prose_away_and_no_constraint() -> None:
    schema = {
        "type": "object",
        "description": "prose",
        "properties": {"title": {"type": "string", "description": "prose", "example": "x", "maxLength": 9}},
        "required": ["title"],
    }
    entry = {
        "type": "object",
        "properties": {"number": {"type": "integer", "example": 1}, "labels": {"type": "array"}},
        "required": ["number", "labels"],
    }
    answer = {"oneOf": [{"$ref": "#/components/schemas/entry"}, {"$ref": "#/components/schemas/entry"}]}
    operation = {
        "operationId": "x/y",
        "summary": "prose",
        "parameters": [{"$ref": "#/components/parameters/owner"}],
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema, "examples": {}}}},
        "responses": {"404": {}, "201": {"content": {"application/json": {"schema": answer}}}},
    }
    paths = {path: dict.fromkeys(methods, operation) for path, methods in cut_openapi.USED.items()}
    owner = {"name": "owner", "in": "path", "required": True, "description": "prose", "schema": {"type": "string"}}
    full = {
        "openapi": "3.0.3",
        "info": {"version": "1"},
        "paths": paths,
        "components": {"parameters": {"owner": owner}, "schemas": {"entry": entry}},
    }
    cut = cut_openapi.cut(full, "package")
    title = {"type": "string", "maxLength": 9}
    body = {"type": "object", "properties": {"title": title}, "additionalProperties": False, "required": ["title"]}
    read = {
        **{"type": "object", "properties": {"number": {"type": "integer"}}},
        **{"additionalProperties": False, "required": ["number"]},
    }
    assert cut["paths"]["/user"]["get"] == {
        "operationId": "x/y",
        "parameters": [{"name": "owner", "in": "path", "required": True, "schema": {"type": "string"}}],
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": {"201": {"description": "", "content": {"application/json": {"schema": read}}}},
    }
