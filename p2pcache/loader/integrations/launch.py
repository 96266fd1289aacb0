"""An engine's command line: where it names its model, and how it is told to stream it.

A model is named by an argument `p2pcache://REF`, wherever it stands, or by a ref where engines have their
model: after `serve`, or after `--model` or `--model-path`.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path, PurePath
from typing import NamedTuple

from p2pcache.ids import SCHEME, Ref, is_ref, spelled

ENGINES = ("vllm", "sglang")
_ADDRESS = re.compile(
    re.escape(SCHEME) + r"([A-Za-z0-9._/-]+(?::[A-Za-z0-9._-]+)?(?:@blake3:[0-9a-f]{64})?)"
)
_MODEL_FLAGS = ("--model", "--model-path")
_SERVED, _FORMAT = "--served-model-name", "--load-format"
# Formats of an engine that leave the choice to us: any other one is the operator's wish.
_STREAMABLE = {"vllm": ("auto", "p2pcache"), "sglang": ("auto", "safetensors")}


class Found(NamedTuple):
    """The model of a command line."""

    at: int  # number of the argument
    prefix: str  # what stands before the ref in the argument, such as "--model="
    text: str  # the ref as it is written


def engine_of(argv: Sequence[str]) -> str:
    """The engine that a command line starts; "": none that is known here."""
    words = [PurePath(word).name.partition(".")[0] for word in argv[:4] if not word.startswith("-")]
    return next((word for word in words if word in ENGINES), "")


def find_model(argv: Sequence[str], exists: Callable[[str], bool]) -> Found | None:
    """Where the model stands, if it is named by a ref.

    Args:
        argv: the command and its arguments.
        exists: whether a text is the path of something.
    """
    for index, word in enumerate(argv):
        flag, mark, value = word.partition("=")
        if mark and flag in _MODEL_FLAGS:
            found = Found(index, f"{flag}=", value)
        elif index and argv[index - 1] in ("serve", *_MODEL_FLAGS) and not word.startswith("-"):
            found = Found(index, "", word)
        else:
            continue
        if found.text.startswith(SCHEME):
            return found._replace(text=found.text.removeprefix(SCHEME).rstrip("/"))
        if is_ref(found.text) and not exists(found.text):
            return found
    return None


def other_refs(argv: Sequence[str], model: Found | None) -> list[str]:
    """The refs of all other addresses in the arguments: of drafts, adapters, or any model of an unknown engine.

    Raises:
        UsageError: an address without a ref.
    """
    found: dict[str, None] = {}
    for index, word in enumerate(argv):
        if model is None or index != model.at:
            found |= dict.fromkeys(_ADDRESS.findall(word))
    for text in found:
        Ref.parse(text.rstrip("/"))
    return list(found)


def replace_others(argv: Sequence[str], directories: dict[str, Path]) -> list[str]:
    """Put directories in place of addresses.

    Args:
        argv: the command and its arguments.
        directories: by the text of the ref, as `other_refs` has it.
    """

    def directory(match: re.Match[str]) -> str:
        return str(directories.get(match[1], match[0]))

    return [_ADDRESS.sub(directory, word) for word in argv]


def may_stream(argv: Sequence[str], files: Sequence[str]) -> str:
    """Why an engine must get the whole model first; "": it can take weights while they arrive.

    Args:
        argv: the command and its arguments.
        files: paths of the model's files.
    """
    engine = engine_of(argv)
    if not engine:
        return "no engine that streams"
    if not any("/" not in path and path.endswith(".safetensors") for path in files):
        return "its weights aren't safetensors beside its config.json"
    wanted = _value(argv, _FORMAT)
    if wanted is not None and wanted not in _STREAMABLE[engine]:
        return f"{_FORMAT} {wanted}"
    return ""


def with_model(argv: Sequence[str], model: Found, directory: Path, *, stream: bool) -> list[str]:
    """The command line with a directory in the ref's place.

    Clients of the engine go on to name the model as the ref was written, unless the operator chose a name.

    Args:
        argv: the command and its arguments.
        model: where the ref stands.
        directory: of the model; to stream, one without its weights.
        stream: weights come while they arrive.
    """
    made = list(argv)
    made[model.at] = f"{model.prefix}{directory}"
    engine = engine_of(argv)
    if engine and _value(argv, _SERVED) is None:
        made += [_SERVED, spelled(model.text)]
    if stream and engine == "vllm" and _value(argv, _FORMAT) != "p2pcache":
        made = _without(made, _FORMAT)
        made += [_FORMAT, "p2pcache"]
    return made


def streaming_environment(engine: str) -> dict[str, str]:
    """What an engine's environment needs so that its plugin is on."""
    return {"P2PCACHE_SGLANG": "1"} if engine == "sglang" else {}


def cache_environment(engine: str, directory: Path) -> dict[str, str]:
    """Where an engine and its compilers look for what they compiled."""
    found = {"TRITON_CACHE_DIR": str(directory / "triton")}
    if engine == "vllm":
        return found | {"VLLM_CACHE_ROOT": str(directory)}
    return found | {"TORCHINDUCTOR_CACHE_DIR": str(directory / "inductor")}


def _value(argv: Sequence[str], flag: str) -> str | None:
    """The value of a flag, "--flag value" or "--flag=value"; engines read "_" in a flag as "-"."""
    for index, word in enumerate(argv):
        name, mark, value = word.partition("=")
        if name.startswith("--") and name.replace("_", "-") == flag:
            return value if mark else next(iter(argv[index + 1 : index + 2]), "")
    return None


def _without(argv: Sequence[str], flag: str) -> list[str]:
    """The arguments without a flag that has a value."""
    found: list[str] = []
    skip = False
    for word in argv:
        name, mark, _ = word.partition("=")
        if skip:
            skip = False
        elif name.replace("_", "-") == flag:
            skip = not mark
        else:
            found.append(word)
    return found
