"""What `p2pcache run` makes of an engine's command line."""

from pathlib import Path

import pytest

from p2pcache.errors import UsageError
from p2pcache.loader.integrations import launch

HERE = Path("/cache/models/qwen/qwen3-8b/@ab")
FILES = ["config.json", "model-1.safetensors"]


def nothing(_: str) -> bool:
    return False


@pytest.mark.parametrize(
    ("line", "engine", "text", "made"),
    [
        ("vllm serve Qwen/Qwen3-8B --port 80", "vllm", "Qwen/Qwen3-8B",
         f"vllm serve {HERE} --port 80 --served-model-name Qwen/Qwen3-8B"),
        ("/opt/bin/vllm serve --model=team/m:v3", "vllm", "team/m:v3",
         f"/opt/bin/vllm serve --model={HERE} --served-model-name team/m"),
        ("python -m vllm.entrypoints.openai.api_server --model p2pcache://team/m --served-model-name x", "vllm",
         "team/m", f"python -m vllm.entrypoints.openai.api_server --model {HERE} --served-model-name x"),
        ("python -m sglang.launch_server --model-path team/m --served_model_name=x", "sglang", "team/m",
         f"python -m sglang.launch_server --model-path {HERE} --served_model_name=x"),
        ("./mine --model team/m", "", "team/m", f"./mine --model {HERE}"),
    ],
)  # fmt: skip
def test_the_directory_takes_the_refs_place(line: str, engine: str, text: str, made: str) -> None:
    argv = line.split()
    assert launch.engine_of(argv) == engine
    found = launch.find_model(argv, nothing)
    assert found is not None
    assert found.text == text
    assert launch.with_model(argv, found, HERE, stream=False) == made.split()


@pytest.mark.parametrize(
    "line",
    ["vllm serve /models/llama", "vllm serve --port 80 team/m", "vllm bench team/m", "serve", "vllm serve s3://b/m",
     "mine p2pcache://team/m"],
)  # fmt: skip
def test_no_model_is_guessed(line: str) -> None:
    assert launch.find_model(line.split(), nothing) is None


def test_a_path_that_exists_is_no_ref() -> None:
    assert launch.find_model(["vllm", "serve", "team/m"], {"team/m"}.__contains__) is None


def test_addresses_are_replaced_wherever_they_stand() -> None:
    argv = ["vllm", "serve", "team/m", "--speculative-config", '{"model": "p2pcache://team/draft:v1", "n": 3}',
            "--lora-modules", "a=p2pcache://team/a", "b=p2pcache://team/a"]  # fmt: skip
    model = launch.find_model(argv, nothing)
    assert launch.other_refs(argv, model) == ["team/draft:v1", "team/a"]
    made = launch.replace_others(argv, {"team/draft:v1": Path("/d"), "team/a": Path("/a")})
    assert made[4:] == ['{"model": "/d", "n": 3}', "--lora-modules", "a=/a", "b=/a"]
    assert launch.other_refs(["mine", "p2pcache://team/m/"], None) == ["team/m/"]
    with pytest.raises(UsageError, match="a/b/c"):
        launch.other_refs(["mine", "p2pcache://a/b/c"], None)


def test_streaming_takes_our_load_format() -> None:
    argv = ["vllm", "serve", "team/m", "--load_format", "auto", "-tp", "2"]
    model = launch.find_model(argv, nothing)
    assert model is not None
    assert launch.with_model(argv, model, HERE, stream=True) == [
        "vllm", "serve", str(HERE), "-tp", "2", "--served-model-name", "team/m", "--load-format", "p2pcache",
    ]  # fmt: skip
    sglang = ["sglang", "serve", "--model-path", "team/m"]
    model = launch.find_model(sglang, nothing)
    assert model is not None
    assert launch.with_model(sglang, model, HERE, stream=True)[4:] == [
        "--served-model-name",
        "team/m",
    ]
    assert launch.streaming_environment("sglang") == {"P2PCACHE_SGLANG": "1"}


@pytest.mark.parametrize(
    ("line", "files", "why"),
    [
        ("vllm serve team/m", FILES, ""),
        ("vllm serve team/m --load-format=p2pcache", FILES, ""),
        ("vllm serve team/m --load-format fastsafetensors", FILES, "--load-format fastsafetensors"),
        ("sglang serve --model-path team/m --load-format safetensors", FILES, ""),
        ("vllm serve team/m", ["config.json", "m.gguf"], "its weights aren't safetensors"),
        ("vllm serve team/m", ["unet/m.safetensors"], "its weights aren't safetensors"),
        ("mine --model team/m", FILES, "no engine"),
    ],
)
def test_when_weights_can_be_streamed(line: str, files: list[str], why: str) -> None:
    found = launch.may_stream(line.split(), files)
    assert found.startswith(why)
    assert bool(found) == bool(why)
