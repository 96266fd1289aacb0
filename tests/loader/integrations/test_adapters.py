"""Which LoRA adapters an engine's clients may get."""

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from p2pcache.agent.embedded import run_embedded
from p2pcache.errors import IntegrityError, Unreachable
from p2pcache.loader.integrations.adapters import Adapters
from p2pcache.loader.resolve import snapshot
from tests.agent.kit import make_model, push
from tests.loader.source.agent_kit import agent_settings

GOOD = {"peft_type": "LORA", "base_model_name_or_path": "Qwen/Qwen3-8B", "r": 8}


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Has adapters and a base model that nobody has asked for."""
    root = tmp_path_factory.mktemp("adapters")
    for name, config in {
        "good": json.dumps(GOOD),
        "ours": json.dumps(GOOD | {"base_model_name_or_path": "p2pcache://team/base:v1"}),
        "elsewhere": json.dumps(GOOD | {"base_model_name_or_path": "org/other"}),
        "nameless": json.dumps({"peft_type": "LORA"}),
        "prefix": json.dumps(GOOD | {"peft_type": "PREFIX_TUNING"}),
        "odd": "[]",
    }.items():
        files = {"adapter_config.json": config.encode(), "adapter_model.safetensors": b"w" * 5000,
                 "adapter_model.bin": b"pickle"}  # fmt: skip
        (root / name).mkdir()
        push(root / "origin", make_model(root / name, files), f"team/{name}:v1")
    (root / "base").mkdir()
    push(root / "origin", make_model(root / "base", {"config.json": b"{}"}), "team/base:v1")
    with run_embedded(agent_settings(root, root / "origin")) as socket:
        yield f"unix://{socket}"


def adapters(agent: str, *bases: str) -> Adapters:
    return Adapters(["Team"], bases, agent)


def test_an_adapter_of_the_base_model_comes_without_its_pickle(agent: str) -> None:
    for base, more in (("qwen/qwen3-8B", ()), ("/models/qwen", ("x", "Qwen/Qwen3-8B"))):
        found = adapters(agent, *more).find(base, "team/Good:v1")
        assert found is not None
        assert {path.name for path in found.iterdir()} == {
            "adapter_config.json",
            "adapter_model.safetensors",
        }


def test_the_directory_of_a_ref_is_known_as_the_base(agent: str) -> None:
    base = snapshot("team/base:v1", agent=agent)
    assert adapters(agent).find(str(base), "team/ours:v1") is not None
    assert adapters(agent).find(str(base), "team/good:v1") is None


@pytest.mark.parametrize("name", ["elsewhere", "nameless", "prefix"])
def test_what_does_not_fit_is_not_brought(
    agent: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "p2pcache"):
        assert adapters(agent).find("Qwen/Qwen3-8B", f"team/{name}:v1") is None
    assert f"adapter team/{name}:v1 isn't taken" in caplog.text


def test_names_that_are_none_of_ours(agent: str) -> None:
    base = "Qwen/Qwen3-8B"
    assert adapters(agent).find(base, "team/nobody:v1") is None
    assert (
        adapters(agent).find(base, "team/base:v1") is None
    )  # a model without an adapter's configuration
    with pytest.raises(IntegrityError, match="no JSON object"):
        adapters(agent).find(base, "team/odd:v1")
    nobody = adapters("unix:///nobody.sock")  # asked for none of these
    for name in ("other/good:v1", "good", "../team/good", "team/good/more", "s3://team/good"):
        assert nobody.find(base, name) is None
    with pytest.raises(Unreachable):
        nobody.find(base, "team/good")


@pytest.mark.parametrize(
    ("told", "wanted"),
    [({}, None), ({"P2PCACHE_LORA_NAMESPACES": " , "}, None),
     ({"P2PCACHE_LORA_NAMESPACES": "Team, b", "P2PCACHE_LORA_BASES": "x"}, (frozenset({"team", "b"}), ("x",)))],
)  # fmt: skip
def test_without_namespaces_there_are_no_adapters(told: dict[str, str], wanted: Any) -> None:
    found = Adapters.from_environment(told)
    assert (found and (found._namespaces, found._bases)) == wanted
