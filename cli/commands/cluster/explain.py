"""`explain`: say what a pull waits for, or where its time went."""

from typing import Any

import click

from p2pcache.cli.standalone.local_cache import cache_or_agent
from p2pcache.cli.support.client_options import Loaded, client_options
from p2pcache.cli.support.describe import governor_lines, history_result
from p2pcache.cli.support.options import Command, json_option
from p2pcache.cli.support.output import clean, emit, emit_document
from p2pcache.cli.support.ref_argument import REF
from p2pcache.core.host.pull_timeline import PHASES
from p2pcache.core.swarm.snapshot import WAITS
from p2pcache.core.units import format_bytes, format_duration
from p2pcache.ids import Ref

BAR_WIDTH = 30  # characters, for the longest phase
SHOWN_PEERS = 8  # --json has all


@click.command(cls=Command)
@click.argument("ref", type=REF)
@json_option
@client_options("cache_dir")
def explain(ref: str, as_json: bool, loaded: Loaded) -> None:
    """Say what a pull waits for, or where its time went.

    While it runs: what it waits for at this moment, who gives how much, what is in flight, and the
    story of the runs that hold it up. Afterwards: how long each phase took (they follow each other,
    so the longest is what to look at), what was waited for, and who gave the bytes.

    Examples:
      p2pcache explain team/llama:v3
      p2pcache explain team/llama:v3 --json | jq .report.phases
    """
    with cache_or_agent(loaded) as cache:
        found = cache.explain(str(Ref.parse(ref)))
    if as_json:
        emit_document(found)
        return
    digest = str(found.get("digest") or "")[:16]
    lines = [f"{found.get('ref', '?')}" + (f"  blake3:{digest}" if digest else "")]
    if found.get("now"):
        lines += _running(found["now"])
    elif found.get("last"):
        lines += [f"the last pull that ended: {history_result(found['last'])}", *_here(found)]
    if found.get("report"):
        lines += ["", *_report(found["report"])]
    for line in lines:
        emit(clean(line))


def _here(found: dict[str, Any]) -> list[str]:
    """Say how much of the model is here now, unless it is complete.

    The last pull that ended need not be the last one: a killed process writes no end down.
    """
    kept = found.get("here")
    if not kept:
        gone = "here" in found and not found["last"]["code"]
        return ["none of it is in this cache any more"] if gone else []
    if kept["complete"]:
        return []
    done, total = format_bytes(kept["bytes_done"]), format_bytes(kept["bytes_total"])
    return [
        f"now: {done} of {total} are here, and nothing fetches the rest; run: p2pcache pull {found['ref']}"
    ]


def _running(now: dict[str, Any]) -> list[str]:
    """Describe a running pull."""
    done, total = int(now.get("bytes_done", 0)), int(now.get("bytes_total", 0))
    left = now.get("eta_s")
    lines = [
        f"running: {format_bytes(done)} of {format_bytes(total)}, {format_bytes(now.get('rate', 0))}/s"
        + (f", {format_duration(left)} left" if left is not None else ""),
        f"waits for: {now.get('waits', '?')}",
        *([f"storage: {now['trouble']}; it is asked again"] if now.get("trouble") else []),
        *(f"governor: {text}" for text in governor_lines(now.get("governor", {}))),
    ]
    if "runs" not in now:
        return lines
    if now["tracker"]:
        tracker = "connected; no other node can be reached" if now["alone"] else "connected"
    else:
        tracker = "none, no lease counts" if now["alone"] else "gone"
    lines.append(
        f"runs: {now['runs_missing']} of {now['runs']} missing, {now['runs_near']} of them with peers, "
        f"{now['runs_leased']} leased to us; tracker {tracker}"
    )
    lines += ["", *_peers(now["peers"])] if now["peers"] else ["peers: none"]
    lines += [
        "",
        *_in_flight("asked of peers", now["requests"]),
        *_in_flight("read from storage", now["reads"]),
    ]
    for one in now["stuck"]:
        lines += ["", f"run {one['run']}, since the pull began:"]
        lines += [f"  {line}" for line in one["story"]] or ["  nothing has happened to it yet"]
    return lines


def _peers(peers: list[dict[str, Any]]) -> list[str]:
    lines = ["PEER              ADDRESS                     RATE  HAS  ASKED  LOAD"]
    for peer in peers[:SHOWN_PEERS]:
        rate = "-" if peer["rate"] is None else f"{format_bytes(peer['rate'])}/s"
        state = f"  rests {peer['rests_s']} s" if peer["rests_s"] else ""
        state = state if peer.get("delivers", True) else "  delivers nothing"
        lines.append(
            f"{peer['node']:16}  {peer['address']:21} {rate:>10} {peer['useful']:>4} {peer['asked']:>6} "
            f"{peer['load']:>5}{state}"
        )
    return (
        [*lines, f".. and {len(peers) - SHOWN_PEERS} more"] if len(peers) > SHOWN_PEERS else lines
    )


def _in_flight(title: str, some: list[dict[str, Any]]) -> list[str]:
    """Describe the requests or reads in flight by their oldest."""
    if not some:
        return []
    oldest = some[0]
    by = f" from {oldest['node']}" if "node" in oldest else ""
    return [
        f"{title}: {len(some)} runs; the oldest, run {oldest['run']}{by}, for {oldest['seconds']} s"
    ]


def _report(report: dict[str, Any]) -> list[str]:
    """Describe where the time of a pull went."""
    longest = max((phase["seconds"] for phase in report["phases"]), default=0.0) or 1.0
    lines = [f"time to ready: {report['seconds']:.2f} s"]
    for phase in report["phases"]:
        bar = "#" * round(BAR_WIDTH * phase["seconds"] / longest)
        what = PHASES.get(phase["phase"], "")
        lines.append(
            f"  {phase['phase']:11}{phase['seconds']:9.2f} s  {bar:{BAR_WIDTH}}  {what}".rstrip()
        )
    moved = {name: int(report[f"bytes_{name}"]) for name in ("peers", "origin", "local")}
    # Reports that are older than this have no `bytes_had`.
    here = int(report.get("bytes_had", 0)) + moved["local"]
    peers = f"{report['peers_count']} peer{'' if report['peers_count'] == 1 else 's'}"
    lines.append(
        f"bytes: {format_bytes(moved['peers'])} from {peers}, "
        f"{format_bytes(moved['origin'])} from storage, {format_bytes(here)} were here"
    )
    lines += [f"  {peer['node']}  {format_bytes(peer['bytes'])}" for peer in report["peers"]]
    if report["rate"]:
        best = (
            f", {format_bytes(report['peak_rate'])}/s in its best second"
            if report["peak_rate"]
            else ""
        )
        eta = report["eta_node"]
        lines.append(
            f"rate: {format_bytes(report['rate'])}/s{best}"
            + (
                f"; at that throughout it would have taken {eta:.0%} of the time"
                if eta is not None
                else ""
            )
        )
    waited = [f"  {s:8.2f} s  {WAITS.get(what, what)}" for what, s in report["waited"].items()]
    return [*lines, "waited for:", *waited] if waited else lines
