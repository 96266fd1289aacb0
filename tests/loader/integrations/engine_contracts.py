"""What vLLM's and SGLang's own source does with our plugins; test_engines.py runs it in processes of its own.

`python -m tests.loader.integrations.engine_contracts vllm|sglang ROOT AGENT` prints a line of JSON: each case with ""
or its traceback. ROOT has each model's directory, and one without its weights.
"""

import io
import json
import logging
import re
import sys
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from p2pcache.errors import IntegrityError, UsageError
from tests.loader.integrations import engine_shells
from tests.loader.loader_kit import torch_bytes


class Given(NamedTuple):
    """A model that nobody has asked the agent for; each number is another one."""

    root: Path
    agent: str
    number: int = 0

    @property
    def whole(self) -> str:
        """A directory with all of the model."""
        return str(self.root / f"whole-{self.number}")

    @property
    def small(self) -> str:
        """One without its weights."""
        return str(self.root / f"small-{self.number}")

    @property
    def ref(self) -> str:
        return f"team/moe-{self.number}:v1"

    @property
    def extra(self) -> dict[str, Any]:
        return {"ref": self.ref, "agent": self.agent}


class Model(nn.Module):  # type: ignore[misc]
    """Takes weights as an engine's model does."""

    def __init__(self, given: Given, *, without: str = "~") -> None:
        super().__init__()
        self.known = {
            name: tensor
            for path in sorted(Path(given.whole).glob("*.safetensors"))
            for name, tensor in load_file(path).items()
            if without not in name
        }
        self.found: dict[str, torch.Tensor] = {}

    def named_parameters(self, *_: Any, **__: Any) -> Any:
        return self.known.items()

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        self.found = dict(weights)  # held to the end: they must own their memory
        return set(self.found)

    def check(self, prefix: str = "") -> None:
        found = {n.removeprefix(prefix): t for n, t in self.found.items() if n.startswith(prefix)}
        assert found.keys() == self.known.keys(), found.keys() ^ self.known.keys()
        assert all(torch_bytes(found[name]) == torch_bytes(self.known[name]) for name in found)


def raises(kind: type[Exception], part: str, call: Callable[[], Any]) -> None:
    with pytest.raises(kind, match=re.escape(part)):
        call()


def vllm_cases(given: Given) -> dict[str, Callable[[], None]]:
    base = "vllm.model_executor.model_loader"
    real = ["base_loader", "default_loader", "ep_weight_filter", "weight_utils", "reload.inplace"]
    engine_shells.install(
        ["vllm"],
        ["vllm.plugins", "vllm.config.load", "vllm.config.utils", "vllm.lora.request", "vllm.lora.resolver",
         base, *(f"{base}.{r}" for r in real)],
    )  # fmt: skip
    import vllm.envs
    import vllm.plugins

    vllm.envs.VLLM_USE_MODELSCOPE = False
    from vllm.config.load import LoadConfig
    from vllm.model_executor import model_loader as loaders
    from vllm.model_executor.model_loader import default_loader, weight_utils
    from vllm.model_executor.model_loader.base_loader import BaseModelLoader
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

    from p2pcache.loader.integrations import vllm as ours

    def listed(model_name_or_path: str, allow_patterns: list[str], **_: Any) -> list[str]:
        return [str(p) for each in allow_patterns for p in Path(model_name_or_path).glob(each)]

    default_loader.list_filtered_repo_files = listed
    weight_utils._get_available_ram_bytes = lambda: 1 << 40
    vllm.envs.VLLM_PLUGINS = None
    lines = io.StringIO()
    logging.getLogger("vllm").addHandler(logging.StreamHandler(lines))
    logging.getLogger("vllm").setLevel(logging.INFO)
    config = SimpleNamespace(quantization=None, is_moe=False, multimodal_config=None, revision=None)

    def loader(**extra: Any) -> Any:
        told = LoadConfig(load_format="P2PCache", model_loader_extra_config=extra)
        return loaders.get_model_loader(told)

    def load(model: Model, path: str, **extra: Any) -> Any:
        used = loader(**extra)
        used.load_weights(model, SimpleNamespace(**vars(config), model=path))
        return used

    def registered() -> None:
        for _ in range(2):
            vllm.plugins.plugins_loaded = False
            vllm.plugins.load_general_plugins()
        assert issubclass(loaders._LOAD_FORMAT_TO_MODEL_LOADER["p2pcache"], DefaultModelLoader)
        assert type(loader()).__name__ == "P2PCacheModelLoader"

    def extra_config() -> None:
        raises(
            UsageError,
            "unknown reff; known: ref,",
            lambda: loader(reff="x", num_threads=4),
        )
        raises(UsageError, "memory_limit", lambda: loader(memory_limit=True))
        assert loader(enable_weights_track=False).enable_weights_track is False
        raises(UsageError, "load_format", lambda: loader(load_format="p2pcache"))
        assert loader(load_format="fastsafetensors").load_config.load_format == "fastsafetensors"

    def directory() -> None:
        model = Model(given)
        used = load(model, given.whole)
        model.check()
        assert used.counter_before_loading_weights > 0
        # our line, by vLLM's handler
        assert f"{given.whole} is complete: vLLM reads it itself" in lines.getvalue()
        model = Model(given)
        load(model, given.whole, device="cuda")
        model.check()
        on_gpu = torch.cuda.is_available()
        assert all(tensor.is_cuda == on_gpu for tensor in model.found.values())
        assert ("weights go through host memory: device 'cuda'" in lines.getvalue()) != on_gpu

    def streamed() -> None:
        model = Model(given)
        load(model, given.small, **given.extra)
        model.check()
        assert f"loaded {given.ref}@" in lines.getvalue()

    def streamed_again() -> None:
        model, lines_before = Model(given), len(lines.getvalue())
        used = load(model, given.small, **given.extra)
        used.download_model(SimpleNamespace(model=given.small, revision=None))
        model.check()
        assert "is complete: vLLM reads it itself" in lines.getvalue()[lines_before:]

    def tied() -> None:
        told: list[Any] = []
        DefaultModelLoader.load_model = lambda _, **k: told.append(k["model_config"])
        for path, flag in ((given.small, True), (given.small, False), (given.whole, True)):
            text = SimpleNamespace(tie_word_embeddings=flag)
            hf = SimpleNamespace(tie_word_embeddings=flag, get_text_config=lambda text=text: text)
            model = SimpleNamespace(
                model=path, hf_config=hf, word_embeddings_untied_by_checkpoint=False
            )
            loader(**given.extra).load_model(vllm_config=None, model_config=model)
        untied = [m.word_embeddings_untied_by_checkpoint for m in told]
        assert untied == [True, False, False]  # of a whole directory vLLM has seen the headers
        assert [m.hf_config.tie_word_embeddings for m in told] == [False, False, True]
        assert not told[0].hf_config.get_text_config().tie_word_embeddings

    def reloaded() -> None:
        """As `collective_rpc("reload_weights", kwargs={"weights_path": REF})`: a model that nobody has pulled."""
        from vllm.model_executor.model_loader.reload.inplace import reload_weights

        one = given._replace(number=4)
        told = LoadConfig(load_format="p2pcache", model_loader_extra_config=given.extra)
        of_model = SimpleNamespace(**vars(config), model=given.small, model_weights="x")
        whole = SimpleNamespace(model_config=of_model, load_config=told, lora_config=None)
        for arrives in (True, False):
            model, before = Model(one), len(lines.getvalue())
            reload_weights(whole, model, None, f"team/moe-{one.number}:v1", True)
            model.check()
            said = lines.getvalue()[before:]
            assert (f"loaded {one.ref}@" in said) == arrives
            assert ("is complete: vLLM reads it itself" in said) != arrives
        assert of_model.model == one.ref

    def draft() -> None:
        """A draft's directory, pulled without its weights, says whose they are; `ref` is the target's."""
        from p2pcache.loader.resolve import snapshot

        one = given._replace(number=5)
        folder = snapshot(one.ref, exclude="*.safetensors", agent=one.agent)
        model = Model(one)
        load(model, str(folder), **given.extra)
        model.check()

    def adapters() -> None:
        import asyncio
        import os

        from vllm.lora.resolver import LoRAResolverRegistry

        from p2pcache.loader.integrations.adapters import NAMESPACES, register_resolver

        assert not LoRAResolverRegistry.get_supported_resolvers()  # no namespace was named
        os.environ |= {NAMESPACES: "team", "P2PCACHE_AGENT": given.agent}
        register_resolver()
        (name,) = LoRAResolverRegistry.get_supported_resolvers()
        ask = LoRAResolverRegistry.get_resolver(name).resolve_lora
        found = asyncio.run(ask("org/base", "team/adapter:v1"))
        assert (found.lora_name, found.lora_int_id) == ("team/adapter:v1", 1)
        assert (Path(found.lora_path) / "adapter_model.safetensors").is_file()
        assert asyncio.run(ask("org/base", "org/adapter")) is None
        assert asyncio.run(ask("org/another", "team/adapter:v1")) is None

    def missing() -> None:
        model = Model(given)
        model.known["not.there"] = torch.zeros(1)
        raises(ValueError, "not.there", lambda: load(model, given.whole))

    def filters() -> None:
        one = given._replace(number=3)
        used = loader(**one.extra)
        used.local_expert_ids = {0}
        source = DefaultModelLoader.Source(
            one.small, None, prefix="a.", is_unused_weight=lambda name: "norm" in name
        )
        names = {name for name, _ in used._get_weights_iterator(source)}
        everything = Model(one, without="norm").known
        assert names == {"a." + n for n in everything if "experts.1." not in n or "scale" in n}

    def encoder_only() -> None:
        """What --mm-encoder-only drops is the same, streamed or not."""
        names, one = [], given._replace(number=1)
        for path in (one.whole, one.small):
            used = loader(**one.extra)
            used._encoder_only_lm_prefixes = ("model.layers.0.", "model.mtp.layers.0.")
            source = DefaultModelLoader.Source(path, None)
            names.append({name for name, _ in used._get_weights_iterator(source)})
        assert names[0] == names[1]
        assert "lm_head.weight" in names[0]
        assert not any(".layers.0." in name for name in names[0])
        assert f"loaded {one.ref}@" in lines.getvalue()

    def secondary() -> None:
        model = Model(given)
        model.secondary_weights = [DefaultModelLoader.Source(given.small, None, prefix="b.")]
        load(model, given.whole, enable_weights_track=False, **given.extra)
        model.check("b.")
        assert len(model.found) == 2 * len(model.known)

    def not_ours() -> None:
        used, asked = loader(**given.extra), []

        def prepare(model: str, *_: Any) -> None:
            asked.append(model)
            raise KeyError

        used._prepare_weights = prepare
        raises(
            KeyError,
            "",
            lambda: used._get_weights_iterator(DefaultModelLoader.Source("org/draft", None)),
        )
        odd = DefaultModelLoader.Source(given.whole, None, subfolder="text_encoder")
        raises(KeyError, "", lambda: used._get_weights_iterator(odd))
        mistral = Path(given.whole).with_name("mistral")
        mistral.mkdir()
        for name in ("model.safetensors", "consolidated.safetensors"):
            (mistral / name).touch()
        both = DefaultModelLoader.Source(str(mistral), None)
        raises(KeyError, "", lambda: used._get_weights_iterator(both))
        assert asked == ["org/draft", given.whole, str(mistral)]
        assert used.load_config.load_format == "auto"  # which vLLM's own way knows
        arriving = given._replace(number=2)
        odd.model_or_path = arriving.small
        raises(
            UsageError,
            "text_encoder",
            lambda: loader(**arriving.extra)._get_weights_iterator(odd),
        )

    def another_version() -> None:
        other = Path(given.small).with_name("other")
        other.mkdir()
        (other / "config.json").write_text('{"model_type": "other"}')
        raises(
            IntegrityError, "the tag moved", lambda: load(Model(given), str(other), **given.extra)
        )

    def public_base() -> None:
        assert ours.is_known_loader(DefaultModelLoader)
        assert not ours.is_known_loader(
            type("Changed", (), {"_get_weights_iterator": lambda self: None})
        )
        model, told = Model(given), LoadConfig(model_loader_extra_config=given.extra)
        ours.plain_loader(BaseModelLoader)(told).load_weights(
            model, SimpleNamespace(model=given.small)
        )
        model.check()

    return {
        f.__name__: f
        for f in (registered, extra_config, directory, streamed, streamed_again, reloaded, tied, missing, filters,
                  encoder_only, secondary, not_ours, another_version, public_base, adapters, draft)
    }  # fmt: skip


def sglang_cases(given: Given) -> dict[str, Callable[[], None]]:
    import os

    engine_shells.install(
        ["sglang", "orjson"],
        ["sglang.srt.plugins", "sglang.srt.plugins.hook_registry", "sglang.srt.environ",
         "sglang.srt.configs.load_config", "sglang.srt.model_loader.loader",
         "sglang.srt.model_loader.weight_utils",
         "sglang.srt.model_executor.model_runner_components.weight_updater"],
    )  # fmt: skip
    os.environ |= {
        "P2PCACHE_SGLANG": "1", "P2PCACHE_SGLANG_REF": given.ref, "P2PCACHE_AGENT": given.agent,
    }  # fmt: skip
    import sglang.srt.plugins as plugins
    from sglang.srt.configs.load_config import LoadConfig
    from sglang.srt.model_loader import loader as loaders

    from p2pcache.loader.integrations import sglang as ours
    from p2pcache.loader.integrations.weights import EngineSettings

    # shells' answers
    loaders.get_bool_env_var, loaders.get_server_args = lambda *_: False, lambda: None
    told = ("disable_mmap", "prefetch_checkpoints", "prefetch_num_threads", "drop_cache_after_load")
    settings = SimpleNamespace(**{f"weight_loader_{name}": 0 for name in told})
    loaders.get_model = lambda: settings
    lines = io.StringIO()
    prepared: list[str] = []
    own = loaders.DefaultModelLoader._prepare_weights

    def prepare(self: Any, model: str, *args: Any, **kwargs: Any) -> Any:
        prepared.append(model)
        return own(self, model, *args, **kwargs)

    loaders.DefaultModelLoader._prepare_weights = prepare

    def weights(path: str, **more: Any) -> Any:
        used = loaders.DefaultModelLoader(LoadConfig(**more))
        config = SimpleNamespace(model_path=path, revision=None, hf_config=SimpleNamespace())
        return used._get_all_weights(config, nn.Module())

    def hooked() -> None:
        for _ in range(2):
            plugins.load_plugins()
        method = loaders.DefaultModelLoader._get_weights_iterator
        assert hasattr(method, "__wrapped__")
        assert not hasattr(method.__wrapped__, "__wrapped__")  # once
        # as SGLang's configure_logger does it, which runs after the plugins
        logging.basicConfig(stream=lines, level=logging.INFO, force=True)

    def directory() -> None:
        model = Model(given)
        model.load_weights(weights(given.whole, load_format="safetensors"))
        assert f"{given.whole} is complete: SGLang reads it itself" in lines.getvalue()
        model.check()
        assert prepared[-1] == given.whole  # SGLang's own checks of the directory ran

    def streamed() -> None:
        model = Model(given)
        model.load_weights(weights(given.small))
        assert f"weights come by p2pcache from {given.ref}@" in lines.getvalue()
        model.check()
        assert prepared[-1] != given.small

    def streamed_again() -> None:
        model, before = Model(given), len(prepared)
        model.load_weights(weights(given.small))
        model.check()
        assert len(prepared) == before + 1  # by now it is complete
        assert Path(prepared[-1]).name.startswith("@")

    def updated() -> None:
        """As POST /update_weights_from_disk with a ref: a model that nobody has pulled."""
        from contextlib import nullcontext

        from sglang.srt.model_executor.model_runner_components import weight_updater

        # shells' answers
        weight_updater._unsupported_derived_weight_cache_error = lambda _: None
        weight_updater.set_default_torch_dtype = lambda _: nullcontext()
        weight_updater.get_pp_stage_load_group = lambda: None
        weight_updater.get_model_loader = lambda config, _: loaders.DefaultModelLoader(config)
        weight_updater.get_available_gpu_memory = lambda *_, **__: 0.0
        one, model = given._replace(number=4), Model(given._replace(number=4))
        told: list[Any] = []
        loaders.DefaultModelLoader.restore_weights_before_loading = staticmethod(lambda *_: None)
        loaders.DefaultModelLoader.load_weights_and_postprocess = staticmethod(
            lambda model, weights, _: model.load_weights(weights)
        )
        updater = SimpleNamespace(
            _assert_weight_cache_inactive=lambda _: None, device="cpu", gpu_id=0, get_model=lambda: model,
            model_config=SimpleNamespace(model_path="", revision=None, hf_config=SimpleNamespace(), dtype=None),
            update_model_fields=lambda *_, **fields: told.append(fields["model_path"]),
        )  # fmt: skip
        done = weight_updater.WeightUpdater.update_weights_from_disk(updater, one.ref, "auto")
        assert done == (True, "Succeeded to update model weights."), done
        model.check()
        assert told == [one.ref]

    def draft() -> None:
        one = given._replace(number=1)
        source = loaders.DefaultModelLoader.Source(one.small, None)
        used = loaders.DefaultModelLoader(LoadConfig(draft_model_idx=1))
        settings, unwanted = EngineSettings(one.ref, one.agent), engine_shells.anything("unwanted")
        found = {name for name, _ in ours.around(settings, unwanted, used, source)}
        mine = {n for n in Model(one).known if ".mtp." in n}
        assert "model.mtp.layers.0.w" in found
        assert len(found & mine) == 1
        assert "model.norm.weight" in found

    def not_ours() -> None:
        one = given._replace(number=2)
        source = loaders.DefaultModelLoader.Source(one.small, None)
        used = loaders.DefaultModelLoader(LoadConfig(load_format="pt"))
        settings, unwanted = EngineSettings(one.ref, one.agent), engine_shells.anything("unwanted")
        raises(
            UsageError, "--load-format pt", lambda: ours.around(settings, unwanted, used, source)
        )
        raises(
            RuntimeError, given.whole, lambda: next(iter(weights(given.whole, load_format="pt")))
        )

    return {
        f.__name__: f
        for f in (hooked, directory, streamed, streamed_again, updated, draft, not_ours)
    }


def main(engine: str, root: str, agent: str) -> None:
    """Run all cases of an engine, in order."""
    results = {}
    cases = {"vllm": vllm_cases, "sglang": sglang_cases}[engine](Given(Path(root), agent))
    for name, case in cases.items():
        try:
            case()
            results[name] = ""
        except Exception:  # noqa: BLE001  # told to the test
            results[name] = traceback.format_exc()
    sys.stdout.write(json.dumps(results) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
