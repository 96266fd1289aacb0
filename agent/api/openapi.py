"""The OpenAPI document of the local API, made from one table (docs/api.md is the prose)."""

import p2pcache

_NDJSON = "application/x-ndjson"
_JSON = "application/json"

# method, path, summary, body fields (name -> type, "?" = optional) or "bytes", answer type
_CALLS: tuple[tuple[str, str, str, dict[str, str] | str | None, str], ...] = (
    ("get", "/healthz", "The process answers", None, _JSON),
    ("get", "/readyz", "Ready, or reasons why not; ?model=REF asks for one model", None, _JSON),
    ("get", "/metrics", "Prometheus text", None, "text/plain"),
    ("get", "/openapi.json", "This document", None, _JSON),
    ("post", "/v1/pull", "Pull a model; NDJSON events until done or error",
     {"ref": "string", "force_generation": "boolean?", "include": "array?", "exclude": "array?",
      "background": "boolean?"}, _NDJSON),
    ("post", "/v1/warm", "Fetch a model behind all pulls: here, or on so many nodes of the cluster",
     {"ref": "string", "replicas": "integer?"}, _JSON),
    ("post", "/v1/load", "Read a model while it arrives; NDJSON events until done or error",
     {"ref": "string", "needed": "boolean?"}, _NDJSON),
    ("post", "/v1/demand", "Runs that an attached loader needs, [[start, end], ..]",
     {"load": "string", "runs": "array", "urgent": "boolean?"}, _JSON),
    ("get", "/v1/models", "Models of this cache", None, _JSON),
    ("get", "/v1/model", "One model with its files; ?ref=", None, _JSON),
    ("delete", "/v1/model", "Remove a tag, and with the last one the model; ?ref=", None, _JSON),
    ("get", "/v1/pulls", "Pulls that run now", None, _JSON),
    ("get", "/v1/explain", "What a pull waits for, or where its time went; ?ref=", None, _JSON),
    ("get", "/v1/history", "What ended on this node, the newest first; ?limit=", None, _JSON),
    ("get", "/v1/nodes", "Members of the cluster", None, _JSON),
    ("get", "/v1/locate", "Nodes that have a model; ?ref=", None, _JSON),
    ("get", "/v1/status", "This node's state", None, _JSON),
    ("post", "/v1/manifests", "Begin a push; which blobs are missing?", "bytes", _JSON),
    ("put", "/v1/blobs/{manifest}/{blob}", "Send one blob of a push", "bytes", _JSON),
    ("post", "/v1/push", "Upload and move the tag; NDJSON events",
     {"ref": "string", "digest": "string", "force": "boolean?", "repair": "boolean?"}, _NDJSON),
    ("post", "/v1/prune", "Remove what nothing names", {"dry_run": "boolean?", "all": "boolean?"}, _JSON),
    ("post", "/v1/verify", "Prove every chunk again; NDJSON events", {"ref": "string"}, _NDJSON),
    ("post", "/v1/linger", "Wait until other nodes hold what this one holds",
     {"digest": "string", "seconds": "number"}, _JSON),
    ("post", "/v1/pressure", "How the engine on this host does: 0 well, 1 as bad as it should ever be",
     {"level": "number"}, _JSON),
)  # fmt: skip
_QUERY = {("get", "/readyz"): ("model", False), ("get", "/v1/model"): ("ref", True),
          ("get", "/v1/locate"): ("ref", True), ("get", "/v1/explain"): ("ref", True),
          ("get", "/v1/history"): ("limit", False),
          ("delete", "/v1/model"): ("ref", True)}  # fmt: skip


def document() -> dict[str, object]:
    """OpenAPI 3.1, as a JSON-able dict."""
    paths: dict[str, dict[str, object]] = {}
    for method, path, summary, body, answer in _CALLS:
        paths.setdefault(path, {})[method] = _operation(method, path, summary, body, answer)
    return {
        "openapi": "3.1.0",
        "info": {"title": "p2pcache agent", "version": p2pcache.__version__},
        "paths": paths,
        "components": {"schemas": {"Error": {
            "type": "object", "required": ["code", "message"],
            "properties": {"code": {"type": "integer"}, "message": {"type": "string"}},
        }}},
    }  # fmt: skip


def _operation(
    method: str, path: str, summary: str, body: dict[str, str] | str | None, answer: str
) -> dict[str, object]:
    parameters: list[dict[str, object]] = [
        {"name": part[1:-1], "in": "path", "required": True, "schema": {"type": "string"}}
        for part in path.split("/") if part.startswith("{")
    ]  # fmt: skip
    if (method, path) in _QUERY:
        name, required = _QUERY[method, path]
        parameters.append(
            {"name": name, "in": "query", "required": required, "schema": {"type": "string"}}
        )
    error = {"content": {_JSON: {"schema": {"$ref": "#/components/schemas/Error"}}}}
    operation: dict[str, object] = {
        "summary": summary,
        "operationId": f"{method}_{path.strip('/').replace('/', '_').replace('{', '').replace('}', '')}",
        "parameters": parameters,
        "responses": {
            "200": {"description": "as asked", "content": {answer: {}}},
            "default": {"description": "an error, with the exit code of its cause", **error},
        },
    }
    if body is not None:
        operation["requestBody"] = {"required": True, "content": _body(body)}
    return operation


def _body(body: dict[str, str] | str) -> dict[str, object]:
    if isinstance(body, str):
        return {"application/octet-stream": {}}
    return {_JSON: {"schema": {
        "type": "object", "additionalProperties": False,
        "required": [name for name, kind in body.items() if not kind.endswith("?")],
        "properties": {name: {"type": kind.rstrip("?")} for name, kind in body.items()},
    }}}  # fmt: skip
