"""Quotas of namespaces where copies come in: real agents at a real tracker."""

from pathlib import Path

import pytest

from p2pcache.errors import UsageError
from tests.agent.jobs.test_pushes import push_layout, push_through
from tests.agent.kit import agent, pull
from tests.tracker.kit import tracker


async def test_copies_of_a_namespace_are_counted_over_the_pool(tmp_path: Path) -> None:
    layout = push_layout(tmp_path)
    size = layout.manifest.size_bytes
    origin = tmp_path / "origin"
    origin.mkdir()
    quota = f"library={2 * size + 100},other=1"
    async with tracker(origin, namespace_quotas=quota) as one:
        url = f"http://{one.address}"
        async with (
            agent(tmp_path, "a", tracker=url) as a,
            agent(tmp_path, "b", tracker=url) as b,
            agent(tmp_path, "c", tracker=url) as c,
        ):
            assert (await push_through(a, layout))["event"] == "done"
            assert (await pull(b, "m"))["event"] == "done"
            refused = await pull(c, "m")
            assert refused["code"] == 5, refused
            assert "quota of namespace library" in refused["message"]
            assert not c.store.models(), "nothing is left of it"
            again = await pull(b, "m")
            assert again["event"] == "done", "what is here is no new copy"


async def test_without_quotas_nobody_is_refused(tmp_path: Path) -> None:
    layout = push_layout(tmp_path)
    origin = tmp_path / "origin"
    origin.mkdir()
    async with (
        tracker(origin) as one,
        agent(tmp_path, "a", tracker=f"http://{one.address}") as a,
    ):
        assert (await push_through(a, layout))["event"] == "done"


async def test_a_push_over_the_quota_reaches_no_storage(tmp_path: Path) -> None:
    layout = push_layout(tmp_path)
    origin = tmp_path / "origin"
    origin.mkdir()
    async with (
        tracker(origin, namespace_quotas="library=1KB") as one,
        agent(tmp_path, "a", tracker=f"http://{one.address}") as a,
    ):
        refused = await push_through(a, layout)
        assert refused["code"] == 5, refused
        assert not list(origin.rglob("blobs/*"))
        assert not a.store.models(), "nor is anything of it left on the node"
        assert not a.store.usage().filled_bytes


async def test_a_refused_name_costs_a_model_none_of_its_others(tmp_path: Path) -> None:
    layout = push_layout(tmp_path)
    origin = tmp_path / "origin"
    origin.mkdir()
    async with (
        tracker(origin, namespace_quotas="team=1KB") as one,
        agent(tmp_path, "a", tracker=f"http://{one.address}") as a,
    ):
        assert (await push_through(a, layout))["event"] == "done"
        assert (await push_through(a, layout, ref="team/m"))["code"] == 5
        (known,) = a.store.models()
        assert known.complete
        assert not a.downloads.busy(), "a push that was refused is over"
        assert (await pull(a, "m"))["event"] == "done"


async def test_a_quota_that_makes_no_sense_ends_the_start(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="namespace_quotas"):
        async with tracker(tmp_path, namespace_quotas="team"):
            pass
