"""Settings of a room: flags > environment (P2PCACHE_*) > TOML file > defaults.

A room describes its settings as a frozen msgspec Struct with defaults; the units are in the
names and decide how text is read: `*_bytes` takes sizes (10GiB), `*_bytes_per_s` rates
(200mbit), `*_s` durations (5m). This module knows no room: the Struct class is an argument.

A key of the file that no setting has is an error that names the nearest known one, but for keys that
the release before had (`retired` of the Struct class): they are passed over. Unknown *variables* are no
error: Kubernetes itself sets P2PCACHE_..._PORT and the like for a service of that name.
"""

import os
import tomllib
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, TypeVar, get_args, get_origin

import msgspec

from p2pcache.core.units import parse_duration, parse_rate, parse_size
from p2pcache.errors import NotAllowed, NotFound, UsageError
from p2pcache.io.byte_order_mark import without_mark

SYSTEM_FILE = Path("/etc/p2pcache/config.toml")
CACHE_DIR = "/var/lib/p2pcache"  # an agent's, unless its settings name another one
PREFIX = "P2PCACHE_"
SECTIONS = ("client", "agent", "tracker", "sources")
LISTS = frozenset({
    "tracker", "client_namespaces", "compile_cache_namespaces", "namespace_quotas", "require_signature",
    "torrent_namespaces",
})  # fmt: skip
"""Settings of several values: a text with commas. The file may have a list, and the flag may be repeated."""
TABLES = frozenset({"require_signature"})
"""Those of them that are NAME=VALUE: the file may have a table of lists."""
MAX_FILE_BYTES = 1 << 20  # a configuration is a page or two; more is the wrong file

S = TypeVar("S", bound=msgspec.Struct)


class Loaded(NamedTuple, Generic[S]):
    """Settings, and where each value came from: `flag`, `environment NAME`, `FILE`, `default`."""

    settings: S
    sources: dict[str, str]


class ConfigFile(NamedTuple):
    """A parsed TOML file: its path (None: there is none) and its sections."""

    path: Path | None
    sections: dict[str, dict[str, Any]]


def find_file(flag: str | None, environ: Mapping[str, str]) -> Path | None:
    """The file to read: `--config`, else P2PCACHE_CONFIG, else the system's if it exists.

    Raises:
        UsageError: as `whole_path`.
    """
    named = flag or environ.get(f"{PREFIX}CONFIG")
    if named:
        return Path(whole_path(named))
    try:
        SYSTEM_FILE.stat()
    except PermissionError:
        return SYSTEM_FILE  # the reader's error says what to do
    except OSError:
        return None
    return SYSTEM_FILE


def read_file(path: Path | None) -> ConfigFile:
    """Parse a TOML file; sections are checked here, keys where they are used.

    Raises:
        NotFound: a file that was named is not there.
        NotAllowed: it can't be read.
        UsageError: not TOML, or an unknown section.
    """
    if path is None:
        return ConfigFile(None, {})
    try:
        with path.open("rb") as file:
            text = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise NotFound(f"no configuration file {path}; check --config or {PREFIX}CONFIG") from None
    except OSError as error:
        denied = isinstance(error, PermissionError)
        remedy = (
            "run this as root or as a member of group p2pcache" if denied
            else f"check --config or {PREFIX}CONFIG"
        )  # fmt: skip
        raise NotAllowed(
            f"can't read configuration file {path}: {error.strerror}; {remedy}"
        ) from None
    if len(text) > MAX_FILE_BYTES:
        raise UsageError(f"{path}: over 1 MiB; is it a configuration file?")
    try:
        tables = tomllib.loads(without_mark(text).decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{path}: not valid TOML: {error}") from None
    for name, table in tables.items():
        if name not in SECTIONS or not isinstance(table, dict):
            word = f"section {name!r}{_nearest(name, SECTIONS)}"
            if not isinstance(table, dict):
                word = f"key {name!r} outside of a section"
            raise UsageError(
                f"{path}: unknown {word}; sections are [client], [agent], [tracker] and [sources.NAME]"
            )
    return ConfigFile(path, tables)


def load(
    kind: type[S],
    section: str,
    *,
    file: ConfigFile,
    environ: Mapping[str, str] = os.environ,
    flags: Mapping[str, Any] | None = None,
    flag_names: Mapping[str, str] | None = None,
) -> Loaded[S]:
    """The settings of one room.

    Args:
        kind: the room's Struct class.
        section: its section of the file.
        file: from `read_file`.
        environ: environment variables; an empty value counts as not set.
        flags: values from the command line by field name; None counts as not given.
        flag_names: how messages name those flags whose name isn't the field's.

    Raises:
        UsageError: an unknown key or a bad value; says where it came from.
    """
    fields = {f.name: f for f in msgspec.structs.fields(kind)}
    table = file.sections.get(section, {})
    retired: frozenset[str] = getattr(kind, "retired", frozenset())
    _refuse_unknown(file.path, section, table.keys() - retired, fields)
    values: dict[str, Any] = {}
    sources = dict.fromkeys(fields, "default")
    names = flag_names or {}
    for name, field in fields.items():
        variable = PREFIX + name.upper()
        if flags and flags.get(name) is not None:
            sources[name], raw = "flag", flags[name]
            label = names.get(name) or f"--{name.replace('_', '-')}"
        elif environ.get(variable):
            sources[name], raw, label = f"environment {variable}", environ[variable], variable
        elif name in table:
            sources[name], raw = str(file.path), table[name]
            label = f"{file.path}: [{section}] {name}"
        else:
            continue
        values[name] = _convert(label, name, raw, field.type)
    try:
        return Loaded(kind(**values), sources)
    except (ValueError, TypeError) as error:
        raise UsageError(f"[{section}] settings: {error}") from None


def load_tables(kind: type[S], section: str, file: ConfigFile) -> dict[str, S]:
    """The settings of each table of a section, such as `[sources.NAME]`, by name. No variable changes them.

    Raises:
        UsageError: an unknown key or a bad value.
    """
    found: dict[str, S] = {}
    for name, table in file.sections.get(section, {}).items():
        where = f"{section}.{name}"
        if not isinstance(table, dict):
            raise UsageError(
                f"{file.path}: [{section}] has the key {name!r}; expected [{section}.NAME]"
            )
        fields = {f.name: f for f in msgspec.structs.fields(kind)}
        _refuse_unknown(file.path, where, table.keys(), fields)
        try:
            found[name] = msgspec.convert(table, kind)
        except msgspec.ValidationError as error:
            raise UsageError(f"{file.path}: [{where}]: {error}") from None
    return found


def check_sections(file: ConfigFile, kinds: Mapping[str, type[msgspec.Struct]]) -> None:
    """Validate every section of a file, used by this command or not.

    Raises:
        UsageError: as `load`.
    """
    for section in file.sections.keys() & kinds.keys():
        load(kinds[section], section, file=file, environ={})


def unknown_variables(
    environ: Mapping[str, str], kinds: Mapping[str, type[msgspec.Struct]]
) -> list[str]:
    """P2PCACHE_* variables that no setting has: perhaps misspelt, perhaps Kubernetes' own."""
    known = {PREFIX + f.name.upper() for k in kinds.values() for f in msgspec.structs.fields(k)}
    return sorted(v for v in environ if v.startswith(PREFIX) and v not in known)


def whole_path(text: str) -> str:
    """A path with this user's home directory in place of a leading `~`: files and units pass by no shell.

    Raises:
        UsageError: it begins with another user's home, or this user has none.
    """
    first, slash, rest = text.partition("/")
    if first == "~":
        try:
            return f"{home_dir()}{slash}{rest}"
        except UsageError as error:
            raise UsageError(f"{text!r}: {error}; give the whole path") from None
    if first.startswith("~"):
        raise UsageError(f"{text!r}: only ~/ is known here, this user's home; give the whole path")
    return text


def home_dir() -> Path:
    """This user's home directory.

    Raises:
        UsageError: there is none, or HOME isn't a whole path.
    """
    home = os.environ.get("HOME")
    if home is not None and not home.startswith("/"):
        raise UsageError(f"no home directory: HOME is {home!r}, which is no whole path")
    try:
        return Path.home()
    except RuntimeError:
        raise UsageError(
            f"no home directory: user {os.getuid()} has no entry in /etc/passwd, and HOME isn't set"
        ) from None


def redacted(value: object) -> str:
    """A value fit for a terminal or a log: a password inside a URL is not shown."""
    text = str(value)
    scheme, mark, rest = text.partition("://")
    authority = rest.partition("/")[0]
    port = authority.rpartition(":")[2] if ":" in authority and authority[0] != "[" else ""
    if "@" not in authority and port and not port.isdigit():
        authority = rest  # a password with a slash in it, which should have been written %2F
    if mark and "@" in authority:
        return f"{scheme}://***@{rest[authority.rindex('@') + 1 :]}"
    return text


def _convert(label: str, name: str, raw: object, kind: object) -> Any:
    """One value as its field's type; text is read by the unit in the field's name."""
    words = get_args(kind) if get_origin(kind) is Literal else ()
    if name in TABLES and isinstance(raw, dict):
        raw = [f"{key}={one}" for key, all_ in raw.items() for one in _as_list(all_)]
    if name in LISTS and isinstance(raw, list | tuple) and all(isinstance(r, str) for r in raw):
        raw = ",".join(raw)
    try:
        raw = whole_path(raw) if isinstance(raw, str) else raw
        if isinstance(raw, str) and name.endswith("_bytes_per_s"):
            return parse_rate(raw)
        if isinstance(raw, str) and name.endswith("_bytes"):
            return parse_size(raw)
        if isinstance(raw, str) and name.endswith("_s"):
            raw = parse_duration(raw)
        if isinstance(raw, str) and name.endswith("_level"):
            raw = raw.lower()  # as every other program's INFO
        if isinstance(raw, str) and kind is bool:
            raw = raw.strip().lower()
            raw = {"yes": "true", "on": "true", "no": "false", "off": "false"}.get(raw, raw)
        value: Any = msgspec.convert(raw, kind, strict=not isinstance(raw, str))
    except UsageError as error:
        raise UsageError(f"{label}: {error}") from None
    except msgspec.ValidationError as error:
        if words:
            raise UsageError(f"{label}: {redacted(raw)!r} is none of {', '.join(words)}") from None
        raise UsageError(f"{label}: {redacted(raw)!r} doesn't fit: {error}") from None
    if isinstance(value, int | float) and value < 0:
        raise UsageError(f"{label}: {raw!r} is negative")
    return value


def _as_list(value: object) -> list[object]:
    return list(value) if isinstance(value, list) else [value]


def _refuse_unknown(
    path: Path | None, section: str, keys: AbstractSet[str], known: Mapping[str, object]
) -> None:
    for key in sorted(keys):
        if key not in known:
            raise UsageError(
                f"{path}: [{section}] has an unknown key {key!r}{_nearest(key, known)}"
            )


def _nearest(word: str, known: Mapping[str, object] | tuple[str, ...]) -> str:
    import difflib  # only where there is something to complain about

    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""
