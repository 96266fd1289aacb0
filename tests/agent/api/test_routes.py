"""The table of routes: OpenAPI and the rights stay as clients know them."""

import inspect
import json
from pathlib import Path

from p2pcache.agent.api.cache_calls import CacheCalls
from p2pcache.agent.api.handlers import Api
from p2pcache.agent.api.openapi import document
from p2pcache.agent.api.pool_calls import PoolCalls
from p2pcache.agent.api.routes import BY_CALL, ROUTES
from tests.agent.kit import agent, client

GOLDEN = Path(__file__).with_name("golden")


def test_openapi_is_the_golden_document() -> None:
    found = json.loads(json.dumps(document()))
    found["info"]["version"] = "VERSION"
    assert found == json.loads((GOLDEN / "openapi.json").read_text())


def test_rights_are_the_golden_ones() -> None:
    """Scope, where it must hold, pool of places, whether many calls a second are usual."""
    rules = {f"{route.method} {route.path}": [*route.rule] for route in ROUTES}
    assert rules == json.loads((GOLDEN / "rights.json").read_text())


def test_each_call_is_in_the_table_once_and_has_a_handler() -> None:
    assert len(BY_CALL) == len(ROUTES)
    for route in ROUTES:
        found = [getattr(each, route.handler, None) for each in (Api, CacheCalls, PoolCalls)]
        assert [inspect.iscoroutinefunction(each) for each in found].count(True) == 1, route
        assert route.method != "GET" or route.body is None


async def test_the_application_and_openapi_have_the_same_routes(tmp_path: Path) -> None:
    async with agent(tmp_path) as app, client(app) as session:
        async with session.get("/openapi.json") as answer:
            paths = (await answer.json())["paths"]
        assert isinstance(app.api, Api)
        routes = {
            (route.method, route.resource.canonical)
            for route in app.api.application("operator").router.routes()
            if route.resource is not None and route.method != "HEAD"
        }
        probes = {
            route.resource.canonical
            for route in app.api.health_application().router.routes()
            if route.resource is not None
        }
    assert routes == {(method.upper(), path) for path, calls in paths.items() for method in calls}
    assert probes == {"/healthz", "/readyz", "/metrics"}
