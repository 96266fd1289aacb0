"""A tiny Llama, what transformers says to a prompt, and a real vLLM server to compare with."""

import json
import os
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loadtest.kit.cluster import Cluster, free_ports, healthy
from loadtest.kit.daemons import Daemon, wait_until

VENV = Path(__file__).resolve().parents[2] / ".engines" / "vllm-server"  # .ci/install_vllm.py
PROMPTS = ("Hello, world", "abcdefg")
TOKENS = 24
START_S = 900.0  # vLLM imports itself in three processes; two busy cores need minutes for that
ASK_S = 120.0
_FIRST, _LAST = 256, 257  # ids of the marks around a text, after those of the 256 bytes


def make_llama(folder: Path) -> Path:
    """A Llama of 24.7 MB in five shards, with a tokenizer of bytes; seeded.

    In float32 and with wide weights: two programs that add in another order still agree on each token.
    """
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    config = LlamaConfig(
        vocab_size=512, hidden_size=256, intermediate_size=704, num_hidden_layers=8,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512,
        initializer_range=0.08, bos_token_id=_FIRST, eos_token_id=_LAST, dtype="float32",
    )  # fmt: skip
    torch.manual_seed(7)
    LlamaForCausalLM(config).save_pretrained(folder, max_shard_size="6MB")
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {letter: number for number, letter in enumerate([*letters, "<s>", "</s>"])}
    tokenizer = Tokenizer(models.BPE(vocab=words, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>"
    ).save_pretrained(folder)
    return folder


def expected(folder: Path) -> list[list[int]]:
    """The tokens that transformers puts after each prompt, the likeliest each time."""
    from transformers import AutoTokenizer, LlamaForCausalLM

    model, tokenizer = (
        LlamaForCausalLM.from_pretrained(folder),
        AutoTokenizer.from_pretrained(folder),
    )
    found = []
    for prompt in PROMPTS:
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        told = model.generate(ids, max_new_tokens=TOKENS, do_sample=False)
        found.append([int(token) for token in told[0][ids.shape[1] :]])
    return found


class Server(Daemon):
    """`vllm serve`, as a user starts it."""

    def __init__(
        self, name: str, cluster: Cluster, model: str, flags: Sequence[str] = (), *,
        eager: bool = True, environ: dict[str, str] | None = None,
    ) -> None:  # fmt: skip
        """Describe it.

        Args:
            name: for messages.
            cluster: where its log and cache are, and whose environment it has.
            model: a directory.
            flags: more flags of `vllm serve`.
            eager: don't compile, which is quicker to start.
            environ: added to its environment.
        """
        (port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{port}"
        self.model, self.flags = model, list(flags)
        common = ["--served-model-name", "tiny", "--dtype", "float32", "--max-model-len", "128",
                  "--host", "127.0.0.1", "--port", str(port)]  # fmt: skip
        command = [str(VENV / "bin" / "vllm"), "serve", model, *common, *flags]
        super().__init__(
            name, [*command, *(["--enforce-eager"] if eager else [])],
            cluster.root / f"vllm-{name.replace(' ', '-')}.log",
            ready=lambda: healthy(f"{self.url}/health"),
            environ=engine_environ(cluster) | (environ or {}),
        )  # fmt: skip

    def serve(self) -> None:
        """Start it and wait until it is healthy.

        Raises:
            StartError: it ended, or takes too long.
        """
        self.start(wait=False)
        self.wait_ready(START_S)

    def fails(self, *parts: str) -> None:
        """Start it, see it end by itself with a failure, and find these words in what it said."""
        self.start(wait=False)
        wait_until(lambda: not self.alive, START_S)
        assert self.process is not None
        assert self.process.returncode, f"{self.name} ended well; {self.tail()}"
        for part in parts:
            assert part in self.log(), f"{self.name} didn't say {part!r}; {self.tail()}"

    def answers(self) -> list[list[int]]:
        """The tokens that it puts after each prompt."""
        return [self._answer(prompt) for prompt in PROMPTS]

    def _answer(self, prompt: str) -> list[int]:
        asked = {"model": "tiny", "prompt": prompt, "max_tokens": TOKENS, "temperature": 0,
                 "return_token_ids": True}  # fmt: skip
        request = urllib.request.Request(
            f"{self.url}/v1/completions", json.dumps(asked).encode(),
            {"Content-Type": "application/json"},
        )  # fmt: skip
        try:
            with urllib.request.urlopen(request, timeout=ASK_S) as answer:
                told: dict[str, Any] = json.load(answer)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{self.name}: {error}: {error.read()[:500]!r}") from None
        return [int(token) for token in told["choices"][0]["token_ids"]]


def engine_environ(cluster: Cluster) -> dict[str, str]:
    """For whatever runs where vLLM is installed: offline, and small."""
    return cluster.environ | {
        "PATH": f"{VENV / 'bin'}:{os.environ['PATH']}",
        "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CACHE_ROOT": str(cluster.root / "vllm-cache"),
    }  # fmt: skip
