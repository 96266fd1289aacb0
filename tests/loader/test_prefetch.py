"""Tensors' chunks fetched into an agent's cache."""

from pathlib import Path

import pytest

import p2pcache
from p2pcache.agent.embedded import run_embedded
from p2pcache.errors import NotFound
from p2pcache.ids import Ref
from p2pcache.io.http.client import AgentClient
from p2pcache.loader.prefetch import prefetch_tensors
from tests.loader.loader_kit import torch_bytes
from tests.loader.source.agent_kit import REF, agent_settings, make_origin, origin_bytes


def test_only_matching_tensors_are_fetched(tmp_path: Path) -> None:
    origin, bodies = make_origin(tmp_path)
    with run_embedded(agent_settings(tmp_path, origin)) as socket:
        agent = f"unix://{socket}"
        with pytest.raises(NotFound, match="none of the 24 tensors"):
            list(prefetch_tensors(AgentClient(agent), Ref.parse(REF), ["x.*"]))
        *_, done = prefetch_tensors(AgentClient(agent), Ref.parse(REF), ["layers.[12].w"])
        assert (done["event"], done["tensors"], done["tensors_total"]) == ("done", 2, 24)
        assert done["bytes"] == 2 * 512 * 512 * 2
        fetched = origin_bytes(agent)
        assert fetched < 0.4 * sum(map(len, bodies.values()))
        found = p2pcache.load(REF, filter="layers.[12].w", fetch="needed", agent=agent)
        assert {n: torch_bytes(t) for n, t in found.items()} == {n: bodies[n] for n in found}
        assert origin_bytes(agent) == fetched
