"""Cut GitHub's official OpenAPI description to what is used here, without its prose: ``github_openapi.json``.

    npm install --ignore-scripts @octokit/openapi@23.0.2
    python tests/contract/cut_openapi.py node_modules/@octokit/openapi

Requests are kept whole: every parameter and the body's schema. Of the answers only the 2xx is kept, and of it only the
fields that ``upstream_patch.github`` reads. Constraints stay as they are, and one is added: a field that is not
described is a fault, in a request's body and in an answer (GitHub itself drops it silently).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

CUT = Path(__file__).with_name("github_openapi.json")
USED = {
    "/user": ("get",),
    "/repos/{owner}/{repo}": ("get",),
    "/repos/{owner}/{repo}/branches/{branch}": ("get",),
    "/repos/{owner}/{repo}/issues": ("get", "post"),
    "/repos/{owner}/{repo}/issues/{issue_number}/comments": ("get", "post"),
    "/repos/{owner}/{repo}/pulls": ("get", "post"),
    "/search/issues": ("get",),
}
READ = frozenset(
    (
        *("login", "full_name", "owner", "default_branch", "archived", "has_issues", "fork", "parent", "commit", "sha"),
        *("number", "html_url", "title", "body", "user", "state", "created_at", "pull_request"),
        *("total_count", "incomplete_results", "items"),
    )
)
PROSE = frozenset(("description", "summary", "example", "examples", "externalDocs", "title", "discriminator"))


def cut(full: dict[str, Any], package: str) -> dict[str, Any]:
    """The part of a description that ``USED`` names, with every reference resolved in place."""
    paths = {}
    for path, methods in USED.items():
        paths[path] = {method: _operation(full, full["paths"][path][method]) for method in methods}
    info = {"title": "GitHub v3 REST API, cut", "version": full["info"]["version"], "x-cut-from": package}
    return {"openapi": full["openapi"], "info": info, "servers": [{"url": "http://127.0.0.1"}], "paths": paths}


def _operation(full: dict[str, Any], operation: dict[str, Any]) -> dict[str, Any]:
    code = next(code for code in operation["responses"] if code.startswith("2"))
    answer = _resolved(full, operation["responses"][code])["content"]["application/json"]["schema"]
    kept: dict[str, Any] = {
        "operationId": operation["operationId"],
        "parameters": [_plain(full, parameter) for parameter in operation.get("parameters", ())],
    }
    if "requestBody" in operation:
        kept["requestBody"] = _plain(full, operation["requestBody"])
    schema = _read_fields(full, answer)
    kept["responses"] = {code: {"description": "", "content": {"application/json": {"schema": schema}}}}
    return kept


def _resolved(full: dict[str, Any], node: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in node:
        target: Any = full
        for part in node["$ref"].removeprefix("#/").split("/"):
            target = target[part]
        node = target
    return node


def _plain(full: dict[str, Any], node: Any) -> Any:
    """Without prose and extensions. A property may be called like prose: names under ``properties`` are kept."""
    if isinstance(node, list):
        return [_plain(full, part) for part in node]
    if not isinstance(node, dict):
        return node
    result: dict[str, Any] = {}
    for key, value in _resolved(full, node).items():
        if key == "properties":
            result[key] = {name: _plain(full, schema) for name, schema in value.items()}
            result.setdefault("additionalProperties", False)
        elif key not in PROSE and not key.startswith("x-"):
            result[key] = _plain(full, value)
    return result


def _read_fields(full: dict[str, Any], node: dict[str, Any]) -> dict[str, Any]:
    """An answer's schema with the fields of ``READ`` only."""
    node = _resolved(full, node)
    result: dict[str, Any] = {}
    for key, value in node.items():
        if key == "properties":
            result[key] = {name: _read_fields(full, schema) for name, schema in value.items() if name in READ}
            result["additionalProperties"] = False
        elif key == "required":
            result[key] = [name for name in value if name in READ]
        elif key == "items":
            result[key] = _read_fields(full, value)
        elif key in ("oneOf", "anyOf", "allOf"):
            schemas = [_read_fields(full, schema) for schema in value]
            if all(schema == schemas[0] for schema in schemas):  # they differed in fields that are not read
                result |= schemas[0]
            else:
                result[key] = schemas
        elif key not in PROSE and not key.startswith("x-") and key != "additionalProperties":
            result[key] = value
    if not result.get("required", True):
        del result["required"]  # an empty list is not allowed
    return result


def main() -> None:
    package = Path(sys.argv[1])
    described = json.loads((package / "package.json").read_text(encoding="utf-8"))
    full = json.loads((package / "generated" / "api.github.com.json").read_text(encoding="utf-8"))
    text = json.dumps(cut(full, f"{described['name']}@{described['version']}, {described['license']}"), indent=1)
    CUT.write_text(text + "\n", encoding="utf-8")
    print(f"{CUT}: {len(text)} characters")


if __name__ == "__main__":
    main()
