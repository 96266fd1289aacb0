"""A typo in a ref is answered with what there is."""

from pathlib import Path

import pytest

from p2pcache.errors import NotAllowed
from p2pcache.io.origins.repo import OriginRepo
from tests.agent.kit import agent, client, make_model, pull, push


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    model = make_model(tmp_path / "model", {"a": b"1"})
    for ref in ("team/llama:v1", "team/llama:v2", "secret/llama:v9"):
        push(tmp_path / "origin", model, ref)
    return tmp_path / "origin"


async def test_storage_knows_the_tags(tmp_path: Path, origin: Path) -> None:
    async with agent(tmp_path, origin=origin.as_uri()) as app:
        told = (await pull(app, "team/llama:v3"))["message"]
        assert "team/llama has the tags v2, v1" in told or "the tags v1, v2" in told
        told = (await pull(app, "team/lama:v2"))["message"]
        assert told.endswith("; did you mean team/llama:v2?")
        assert "secret" not in told  # another namespace is nobody's business


async def test_the_cache_knows_its_names(tmp_path: Path, origin: Path) -> None:
    async with agent(tmp_path, origin=origin.as_uri()) as app:
        assert (await pull(app, "team/llama:v1"))["event"] == "done"
        async with client(app) as session:
            async with session.delete("/v1/model?ref=team/llama:v7") as answer:
                assert "team/llama has the tag v1" in (await answer.json())["message"]


async def test_keys_that_may_not_list_give_no_hint(
    tmp_path: Path, origin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise NotAllowed("ListBucket")

    monkeypatch.setattr(OriginRepo, "refs", refused)
    async with agent(tmp_path, origin=origin.as_uri()) as app:
        told = await pull(app, "team/llama:v3")
        assert (told["code"], "tags" in told["message"]) == (3, False)
