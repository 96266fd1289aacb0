"""Tiny Llamas, an adapter of one, and what transformers says to a prompt."""

import json
import shutil
from pathlib import Path
from typing import Any

PROMPTS = ("Hello, world", "abcdefg")
TOKENS = 24
_SHARD = "6MB"
_RANK, _ALPHA = 4, 8  # of the adapter
_FIRST, _LAST = 256, 257  # ids of the marks around a text, after those of the 256 bytes


def make_llama(folder: Path, hidden: int = 256, layers: int = 8) -> Path:
    """A Llama in shards of 6 MB, of 24.7 MB as it comes, with a tokenizer of bytes; seeded.

    In float32 and with wide weights: two programs that add in another order still agree on each token.
    """
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    config = LlamaConfig(
        vocab_size=512, hidden_size=hidden, intermediate_size=hidden * 11 // 4, num_hidden_layers=layers,
        num_attention_heads=hidden // 64, num_key_value_heads=hidden // 128, max_position_embeddings=512,
        initializer_range=0.08, bos_token_id=_FIRST, eos_token_id=_LAST, dtype="float32",
    )  # fmt: skip
    torch.manual_seed(7)
    LlamaForCausalLM(config).save_pretrained(folder, max_shard_size=_SHARD)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {letter: number for number, letter in enumerate([*letters, "<s>", "</s>"])}
    tokenizer = Tokenizer(models.BPE(vocab=words, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>"
    ).save_pretrained(folder)
    return folder


def make_next_step(folder: Path, before: Path) -> Path:
    """The same model after a little training: the last layer's weights are others, all else is equal."""
    import torch
    from transformers import LlamaForCausalLM

    shutil.copytree(before, folder)
    model = LlamaForCausalLM.from_pretrained(before)
    torch.manual_seed(8)
    with torch.no_grad():
        for weight in model.model.layers[-1].mlp.parameters():
            weight.normal_(std=0.08)
    model.save_pretrained(folder, max_shard_size=_SHARD)
    return folder


def make_adapter(folder: Path, model: Path, base: str) -> Path:
    """An adapter as PEFT writes it, strong enough to change what the model says.

    Args:
        folder: it is made here.
        model: a directory, whose shapes it has.
        base: what its configuration calls the model.
    """
    import torch
    from safetensors.torch import save_file
    from transformers import LlamaConfig

    config = LlamaConfig.from_pretrained(model)
    dice = torch.Generator().manual_seed(9)
    weights = {}
    for layer in range(config.num_hidden_layers):
        for name, (outer, inner) in _adapted(config).items():
            place = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            weights[f"{place}.lora_A.weight"] = torch.randn(_RANK, inner, generator=dice) * 0.2
            weights[f"{place}.lora_B.weight"] = torch.randn(outer, _RANK, generator=dice) * 0.2
    folder.mkdir()
    save_file(weights, folder / "adapter_model.safetensors")
    told = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": base, "bias": "none",
        "r": _RANK, "lora_alpha": _ALPHA, "target_modules": list(_adapted(config)),
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(told))
    return folder


def _adapted(config: Any) -> dict[str, tuple[int, int]]:
    """Name -> (rows, columns) of the weights that the adapter changes."""
    head = config.hidden_size // config.num_attention_heads
    keys = config.num_key_value_heads * head
    return {
        "q_proj": (config.hidden_size, config.hidden_size),
        "v_proj": (keys, config.hidden_size),
    }


def _add(model: Any, adapter: Path) -> None:
    """Add an adapter to transformers' model, by the definition: W + alpha / r * B A."""
    import torch
    from safetensors.torch import load_file

    weights = load_file(adapter / "adapter_model.safetensors")
    with torch.no_grad():
        for name, down in weights.items():
            if ".lora_A." in name:
                place = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
                up = weights[name.replace(".lora_A.", ".lora_B.")]
                model.get_submodule(place).weight += _ALPHA / _RANK * up @ down


def expected(folder: Path, adapter: Path | None = None) -> list[list[int]]:
    """The tokens that transformers puts after each prompt, the likeliest each time.

    Args:
        folder: of the model.
        adapter: one that is added to it; None: none.
    """
    from transformers import AutoTokenizer, LlamaForCausalLM

    model, tokenizer = (
        LlamaForCausalLM.from_pretrained(folder),
        AutoTokenizer.from_pretrained(folder),
    )
    if adapter is not None:
        _add(model, adapter)
    found = []
    for prompt in PROMPTS:
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        told = model.generate(ids, max_new_tokens=TOKENS, do_sample=False)
        found.append([int(token) for token in told[0][ids.shape[1] :]])
    return found
