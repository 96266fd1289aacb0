"""The OpenAPI document of the agent's API, made from the table of routes (docs/api.md is the prose)."""

import msgspec

import p2pcache
from p2pcache.agent.api.routes import JSON, OCTETS, ROUTES, Route

_KINDS: dict[object, str] = {str: "string", bool: "boolean", int: "integer", float: "number"}


def document() -> dict[str, object]:
    """OpenAPI 3.1, as a JSON-able dict."""
    paths: dict[str, dict[str, object]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {"title": "p2pcache agent", "version": p2pcache.__version__},
        "paths": paths,
        "components": {"schemas": {"Error": {
            "type": "object", "required": ["code", "message"],
            "properties": {"code": {"type": "integer"}, "message": {"type": "string"}},
        }}},
    }  # fmt: skip


def _operation(route: Route) -> dict[str, object]:
    method, path = route.method.lower(), route.path
    parameters: list[dict[str, object]] = [
        {"name": part[1:-1], "in": "path", "required": True, "schema": {"type": "string"}}
        for part in path.split("/") if part.startswith("{")
    ]  # fmt: skip
    if route.query is not None:
        name, required = route.query
        parameters.append(
            {"name": name, "in": "query", "required": required, "schema": {"type": "string"}}
        )
    error = {"content": {JSON: {"schema": {"$ref": "#/components/schemas/Error"}}}}
    operation: dict[str, object] = {
        "summary": route.doc,
        "operationId": f"{method}_{path.strip('/').replace('/', '_').replace('{', '').replace('}', '')}",
        "parameters": parameters,
        "responses": {
            "200": {"description": "as asked", "content": {route.answer: {}}},
            "default": {"description": "an error, with the exit code of its cause", **error},
        },
    }
    if route.body is not None:
        content: dict[str, object] = (
            {OCTETS: {}} if route.body == "bytes" else {JSON: {"schema": _schema(route.body)}}
        )
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _schema(body: type[msgspec.Struct]) -> dict[str, object]:
    fields = msgspec.structs.fields(body)
    return {
        "type": "object", "additionalProperties": False,
        "required": [field.name for field in fields if field.required],
        "properties": {field.name: {"type": _kind(field.type)} for field in fields},
    }  # fmt: skip


def _kind(annotation: object) -> str:
    """The JSON type of a field; lists are the only other ones in bodies."""
    bare = getattr(annotation, "__origin__", annotation)  # of `Annotated`, and of `list[..]`
    return _KINDS.get(bare, "array")
