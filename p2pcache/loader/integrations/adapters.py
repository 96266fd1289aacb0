"""vLLM's LoRA adapters by p2pcache: who asks the server for the model `team/support:v2` gets that ref's adapter.

vLLM asks its resolvers for each name that it doesn't know, so any client of the server may cause a pull. Hence
only namespaces that the operator named are looked in, and an adapter's configuration comes first: only one
that is for this server's base model is brought.
"""

import asyncio
import json
import logging
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from p2pcache.errors import IntegrityError, NotFound, UsageError
from p2pcache.ids import SCHEME, Ref
from p2pcache.io.disk.disk import disk_errors
from p2pcache.io.models.published_tree import ref_of_tree
from p2pcache.loader.resolve import pull_pinned

log = logging.getLogger(__name__)

NAMESPACES = "P2PCACHE_LORA_NAMESPACES"  # where adapters may come from, separated by commas; none: no adapters
BASES = "P2PCACHE_LORA_BASES"  # further names of the base model, as adapters write it, separated by commas
_CONFIG = "adapter_config.json"
_MAX_CONFIG_BYTES = 1 << 20  # a usual one has 1 KB
_CODE = (
    "*.bin",
    "*.pt",
    "*.pth",
    "*.pkl",
    "*.py",
)  # pickles and sources could run what their author wrote
_THREADS = 2  # pulls at once; further requests wait


class Adapters:
    """Finds adapters by the names that clients of an engine ask for."""

    def __init__(
        self, namespaces: Iterable[str], bases: Iterable[str], agent: str | None = None
    ) -> None:
        """Ask nobody yet.

        Args:
            namespaces: where adapters may come from.
            bases: further names of the base model.
            agent: unix:///PATH or http://HOST:PORT; None: as the settings say.
        """
        self._namespaces = frozenset(each.lower() for each in namespaces)
        self._bases = tuple(bases)
        self._agent = agent

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> "Adapters | None":
        """As P2PCACHE_LORA_NAMESPACES and P2PCACHE_LORA_BASES say; None: no namespace is named."""
        namespaces, bases = (_words(environ.get(name, "")) for name in (NAMESPACES, BASES))
        return cls(namespaces, bases) if namespaces else None

    def find(self, base: str, name: str) -> Path | None:
        """Bring an adapter.

        Args:
            base: the engine's model: a directory, or a name in a hub.
            name: of the adapter, as a client asked for it.

        Returns:
            Its directory; None: the name is no ref of these namespaces, there is no such adapter, or it is
            for another base model.

        Raises:
            P2PCacheError: the agent's own error.
        """
        try:
            ref = Ref.parse(name)
        except UsageError:
            return None
        if "/" not in name or ref.namespace not in self._namespaces:
            return None
        try:
            folder, pinned = pull_pinned(str(ref), include=[_CONFIG], agent=self._agent)
        except NotFound as error:
            log.info("no adapter %s: %s", ref, error)
            return None
        told = _read(folder / _CONFIG)
        kind, wanted = told.get("peft_type"), told.get("base_model_name_or_path")
        if kind != "LORA" or not isinstance(wanted, str) or not self._is_base(wanted, base):
            log.warning(
                "adapter %s isn't taken: it is %r for %r, and this server has %s; %s names what else that "
                "model is called", ref, kind, wanted, base, BASES,
            )  # fmt: skip
            return None
        return pull_pinned(str(pinned), exclude=_CODE, agent=self._agent)[0]

    def _is_base(self, wanted: str, base: str) -> bool:
        own = ref_of_tree(Path(base))
        names = [base, *self._bases, *([own.full_name] if own else [])]
        return _folded(wanted) in map(_folded, names)


def register_resolver() -> None:
    """Let vLLM ask us for adapters, if the environment names namespaces.

    Raises:
        ImportError, AttributeError: this vLLM has no resolvers.
    """
    adapters = Adapters.from_environment(os.environ)
    if adapters is None:
        return
    from vllm.lora.resolver import LoRAResolverRegistry

    LoRAResolverRegistry.register_resolver("p2pcache", make_resolver(adapters))


def make_resolver(adapters: Adapters) -> Any:
    """A resolver as vLLM's registry takes it."""
    from vllm.lora.request import LoRARequest
    from vllm.lora.resolver import LoRAResolver

    threads = ThreadPoolExecutor(_THREADS, "p2pcache-lora")

    class P2PCacheResolver(LoRAResolver):  # type: ignore[misc]  # a class of the engine
        """Finds adapters among refs."""

        async def resolve_lora(self, base_model_name: str, lora_name: str) -> Any:
            """See `LoRAResolver.resolve_lora`."""
            asked = threads.submit(adapters.find, base_model_name, lora_name)
            found = await asyncio.wrap_future(asked)
            if found is None:
                return None
            # vLLM puts its own number in the place of this one.
            return LoRARequest(lora_name=lora_name, lora_int_id=1, lora_path=str(found))

    return P2PCacheResolver()


def _read(path: Path) -> dict[str, Any]:
    with disk_errors(str(path)), path.open("rb") as file:
        data = file.read(_MAX_CONFIG_BYTES + 1)
    try:
        found = json.loads(data) if len(data) <= _MAX_CONFIG_BYTES else None
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise IntegrityError(f"{path}: no JSON object of at most {_MAX_CONFIG_BYTES} bytes")
    return found


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _folded(name: str) -> str:
    """A model's name without its tag, so that a ref and a hub's name compare; other texts as they are."""
    try:
        return Ref.parse(name.removeprefix(SCHEME)).full_name
    except UsageError:
        return name
