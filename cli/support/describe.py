"""An agent's answers in words, as several commands print them: status, history, the state of a model."""

import time
from typing import Any

from p2pcache.cli.support.output import clean
from p2pcache.core.units import counted, format_bytes, format_duration
from p2pcache.errors import Cancelled


def status_lines(state: dict[str, Any], address: str) -> list[tuple[str, str]]:
    """Return a status as lines (label, text) that are safe for a terminal.

    Args:
        state: the agent's answer; fields that it lacks are left out.
        address: of the agent.
    """
    tracker, origin, cache = (_part(state, key) for key in ("tracker", "origin", "cache"))
    ready = "ready" if state.get("ready") else "not ready"
    if state.get("ready") and origin.get("refused"):
        ready = "refused by storage, peers alone can bring models"
    up = f", up {format_duration(state['uptime_s'])}" if "uptime_s" in state else ""
    place = " / ".join(str(state[key]) for key in ("site", "rack") if state.get(key))
    node = f"{state.get('node', '?')} at {state.get('address') or '-'}"
    lines = [
        ("agent:", f"{ready}, version {state.get('version', '?')}{up}, at {address}"),
        *(("", str(reason)) for reason in state.get("reasons", ())),
        *(("warning:", str(warning)) for warning in state.get("warnings", ())),
        ("node:", " ".join(filter(None, (state.get("name"), node, place and f"({place})")))),
        ("tracker:", _tracker(tracker)),
        ("origin:", origin.get("url") or "none"),
        ("cache:", _cache(cache, state.get("models", 0))),
        ("traffic:", _traffic(_part(state, "bytes"))),
        *(("governor:", text) for text in governor_lines(_part(state, "governor"))),
    ]  # fmt: skip
    return [(label, clean(text)) for label, text in lines]


def _traffic(moved: dict[str, Any]) -> str:
    """Say the bytes since the agent's start."""
    peers, origin = int(moved.get("peer", 0)), int(moved.get("origin", 0))
    share = f" ({peers / (peers + origin):.0%})" if peers + origin else ""
    return (
        f"{format_bytes(peers)} from peers{share}, {format_bytes(origin)} from storage, "
        f"{format_bytes(int(moved.get('served', 0)))} served"
    )


def governor_lines(state: dict[str, Any]) -> list[str]:
    """Say what holds a node back, or what the governor can't see; no line at full speed."""
    share = float(state.get("share", 1.0))
    if share < 1:
        cause = f": {state['cause']}" if state.get("cause") else ", and growing"
        up, disk = (format_bytes(state.get(f"{way}_bytes_per_s", 0)) for way in ("upload", "disk"))
        rates = f"{up}/s up, {disk}/s to disk, {state.get('upload_slots', '?')} uploads"
        return [f"{share:.0%} of full speed is left for us{cause}; {rates}"]
    return [f"can't see: {text}" for text in state.get("blind", ())]


def _cache(state: dict[str, Any], models: object) -> str:
    cached, free = (format_bytes(state.get(key, 0)) for key in ("cached_bytes", "free_bytes"))
    return f"{state.get('dir', '?')}: {cached} in {counted(models, 'model')}, {free} free"


def _tracker(state: dict[str, Any]) -> str:
    if not state.get("url"):
        return "none: this agent works alone"
    beat = float(state.get("last_heartbeat") or 0)
    heard = f", heartbeat {format_duration(max(0.0, time.time() - beat))} ago" if beat else ""
    if state.get("connected"):
        return f"{state['url']} (connected{heard})"
    since = float(state.get("changed_at") or 0)
    lost = f" for {format_duration(max(0.0, time.time() - since))}" if since else ""
    return f"{state['url']} (not connected{lost}{heard})"


def _part(state: dict[str, Any], key: str) -> dict[str, Any]:
    value = state.get(key)
    return value if isinstance(value, dict) else {}


def history_result(row: dict[str, Any]) -> str:
    """Say how a row of the history ended: `done`, or that somebody ended it, or the exit code and why."""
    if not row["code"]:
        return "done"
    times = f" ({row['times']} times)" if row["times"] > 1 else ""
    if row["code"] == Cancelled.exit_code:
        return f"cancelled{times}: {row['message']}"
    return f"exit {row['code']}{times}: {row['message']}"


def model_state(model: dict[str, Any]) -> str:
    """Say "complete", which share or part of a model is here, or that it was evicted."""
    if model.get("remote"):
        return "remote"
    if model["complete"]:
        return "complete"
    share = model["bytes_done"] / max(1, model["bytes"])
    if model.get("partly_evicted"):
        return f"remote, {less_than_all(share)} left"
    if model.get("kept") == "part":
        return f"part, {less_than_all(share)}"
    return f"{min(share, 0.99):.0%}, incomplete"


def less_than_all(share: float) -> str:
    """Say a share as a percentage: what isn't all is never 100 %, however little is missing."""
    return f"{min(share, 0.999):.1%}"


def format_ago(unix_s: float) -> str:
    """Say how long ago something was; "-": never."""
    if not unix_s:
        return "-"
    return f"{format_duration(max(0.0, time.time() - unix_s))} ago"
