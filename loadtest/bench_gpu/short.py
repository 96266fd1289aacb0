"""The short form of the GPU benchmark: an answer in ten minutes, the most important questions first.

Each section has a share of the time that is left; what it doesn't need goes to the later ones, and one that
needs more is cut short. Every measurement is printed and written to the file as soon as it is made.
Ratios are taken within a turn, against the baseline of the section.

    python -m loadtest.bench_gpu --short --json FILE
    python -m loadtest.bench_gpu --short --device cpu --layers 1    # tries the script itself, without a GPU
"""

import json
import os
import random
import selectors
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from loadtest.bench_gpu.ends import Json, shards
from loadtest.bench_gpu.ways import CEILING, MiB

GB = 1e9
MODULE = [sys.executable, "-m"]
WORKERS = 8
HALF_BYTES = 256 * MiB  # of the workers' arena
MOE_FILES, WEIGHT, SCALE = 4, (2048, 7168), (16, 56)  # of one expert's matrix in DeepSeek-V3
SMALL: Json = {
    "threads": 8,
    "read_bytes": 8 * MiB,
    "batch_bytes": 4 * MiB,
    "memory_limit": "256MiB",
}
RINGS: dict[str, Json] = {
    "as it is": {},
    "8 readers, reads of 8 MiB, batches of 4": SMALL,
    **{f"{n} readers": {"threads": n} for n in (4, 8, 16)},
    "2 streams": {"copy_streams": 2},
    **{f"reads of {n} MiB": {"read_bytes": n * MiB} for n in (4, 8)},
    "reads of 32 MiB": {"read_bytes": 32 * MiB, "memory_limit": "1GiB"},
    "12 readers, reads of 16 MiB": {"threads": 12, "memory_limit": "512MiB"},
    "12 readers, reads of 32 MiB": {"threads": 12, "read_bytes": 32 * MiB, "memory_limit": "1GiB"},
    "12 readers, reads of 64 MiB": {"threads": 12, "read_bytes": 64 * MiB, "memory_limit": "2GiB"},
    "batches of 4 MiB": {"batch_bytes": 4 * MiB},
    "batches of 128 MiB": {"batch_bytes": 128 * MiB},
}
MOE: dict[str, Json] = {
    name: RINGS[name]
    for name in ("as it is", "8 readers, reads of 8 MiB, batches of 4", "8 readers", "reads of 8 MiB",
                 "batches of 4 MiB", "batches of 128 MiB")
}  # fmt: skip


class Section(NamedTuple):
    """A part of the short form."""

    name: str
    share: float  # of the time, beside the other sections'
    baseline: str  # the name, or the beginning of the names, that others are compared with
    records: Callable[["Short"], Iterator[Json]]


class Short:
    """One run of it."""

    def __init__(
        self, folder: Path, moe: Path, device: str, turns: int, loaders: Sequence[str]
    ) -> None:
        """`loaders`: those that are installed."""
        self.folder, self.moe, self.device = folder, moe, device
        self.turns, self.loaders = turns, loaders
        self.until = time.monotonic()  # the section's end

    def rows_of(self, module: str, job: Json) -> Iterator[Json]:
        """What a process says, a line each, until it ends or its time is up."""
        process = self._start(module, job, sys.stderr)
        try:
            while (line := self._line(process)) is not None:
                if not line:
                    if process.wait():
                        yield {
                            "name": job["what"],
                            "turn": 0,
                            "failed": f"exit {process.returncode}",
                        }
                    return
                yield json.loads(line)
            yield {"name": job["what"], "turn": 0, "failed": "cut short: its time was up"}
        finally:
            _end([process])

    def _start(self, module: str, job: Json, errors: Any) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [*MODULE, f"loadtest.bench_gpu.{module}", json.dumps(job | {"device": self.device})],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
        )  # fmt: skip

    def _line(self, process: "subprocess.Popen[str]") -> str | None:
        """The next line; "" at the end; None when the section's time is up."""
        assert process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            if not selector.select(max(0.0, self.until - time.monotonic())):
                return None
        return process.stdout.readline()

    def experiment(self, what: str, folder: Path, **more: Any) -> Iterator[Json]:
        """One of `ways`."""
        job = {"what": what, "folder": str(folder), "turns": self.turns, **more}
        return self.rows_of("ways", job)

    def page_cache(self) -> Iterator[Json]:
        """Each loader in a process of its own, the first load and the second."""
        size = sum(path.stat().st_size for path in shards(self.folder))
        copy = {"what": "copy", "bytes": size, "slot_bytes": 8 * MiB, "slots": 4, "streams": 1}
        jobs: dict[str, Json] = {CEILING: copy | {"pinned": True},
                                 "copies, not pinned": copy | {"pinned": False}}  # fmt: skip
        for loader in self.loaders:
            jobs[loader] = {
                "what": "load",
                "loader": loader,
                "folder": str(self.folder),
                "again": True,
            }
        digests: dict[str, str] = {}
        for turn in range(1, self.turns + 1):
            for name, job in list(jobs.items()):
                for told in self.rows_of("ends", job | {"check": turn == 1}):
                    if "seconds" not in told:
                        yield told | {"name": name, "turn": turn}
                        if "cut" in told["failed"]:
                            return
                        del jobs[name]  # it doesn't run here
                        continue
                    digests |= {name: told["digest"]} if "digest" in told else {}
                    more = {key: told[key] for key in ("cpu_s",) if key in told}
                    yield {"name": name, "turn": turn, "seconds": told["seconds"], "bytes": size,
                           "wrong": len(set(digests.values())) > 1, **more}  # fmt: skip
                    if "again_s" in told:
                        yield {"name": f"{name}, again", "turn": turn, "seconds": told["again_s"],
                               "bytes": size}  # fmt: skip

    def workers(self) -> Iterator[Json]:
        """Eight workers at once; the slowest counts."""
        count = 2 if self.device == "cpu" else WORKERS
        size = sum(path.stat().st_size for path in shards(self.folder))
        with tempfile.TemporaryDirectory(prefix="p2pcache-bench-", dir="/dev/shm") as shared:
            for name, nbytes in (
                ("arena", 2 * HALF_BYTES),
                ("counts", count * os.sysconf("SC_PAGESIZE")),
            ):
                with (Path(shared) / name).open("wb") as file:
                    file.truncate(nbytes)
            jobs = [{"folder": str(self.folder), "rank": i, "size": count, "shared": shared}
                    for i in range(count)]  # fmt: skip
            processes = [self._start("workers", job, sys.stderr) for job in jobs]
            try:
                yield from self._tell(processes, size)
            finally:
                _end(processes)

    def _tell(self, processes: "list[subprocess.Popen[str]]", size: int) -> Iterator[Json]:
        ready = self._answers(processes)
        if ready is None:
            yield {"name": "workers", "turn": 0, "failed": "they weren't ready in time"}
            return
        yield {"name": "pin the arena", "turn": 1, "bytes": 2 * HALF_BYTES,
               "seconds": max(told["pin_s"] for told in ready)}  # fmt: skip
        seen: dict[str, list[str]] = {}
        names = ready[0]["ways"]
        for turn in range(self.turns + 1):
            for name in [*names[turn % len(names) :], *names[: turn % len(names)]]:
                for process in processes:
                    assert process.stdin is not None
                    process.stdin.write(f"{name}\n")
                    process.stdin.flush()
                told = self._answers(processes)
                if told is None:
                    yield {"name": name, "turn": turn, "failed": "cut short: its time was up"}
                    return
                if "an eighth of the tensors" not in name:
                    seen[name] = [each["digest"] for each in told]
                yield {"name": name, "turn": turn, "bytes": size,
                       "seconds": max(each["seconds"] for each in told),
                       "wrong": any(found != seen[names[0]] for found in seen.values())
                       if names[0] in seen else False}  # fmt: skip

    def _answers(self, processes: "list[subprocess.Popen[str]]") -> list[Json] | None:
        found = []
        for process in processes:
            line = self._line(process)
            if not line:
                return None
            found.append(json.loads(line))
        return found


SECTIONS = (
    Section("page cache", 4, CEILING, Short.page_cache),
    Section("moe", 2, CEILING, lambda s: s.experiment(
        "loads", s.moe, settings=MOE, loaders=[n for n in s.loaders if not n.startswith("p2pcache")])),
    Section("engines", 1.5, "mapping, copied", lambda s: s.experiment("engines", s.folder)),
    Section("8 workers", 2.5, "mapping, copied", Short.workers),
    Section("rings", 1.5, CEILING, lambda s: s.experiment("loads", s.folder, settings=RINGS)),
    Section("ceilings", 1.5, "copies of 8 MiB, 1 streams", lambda s: s.experiment("ceilings", s.folder)),
    Section("registration", 0.7, "", lambda s: s.experiment("registration", s.folder)),
    Section("both", 1.5, CEILING, lambda s: s.experiment("both", s.folder)),
    Section("straight", 1.5, CEILING, lambda s: s.experiment("straight", s.folder)),
    Section("calls", 0.5, "", lambda s: s.experiment("calls", s.folder)),
)  # fmt: skip


def run(
    short: Short, minutes: float, head: str, out: Path | None, sections: Sequence[str] = ()
) -> list[Json]:
    """All sections, or those named. The file has `head` and all records so far.

    Returns:
        The records; each has its `section`.
    """
    chosen = [section for section in SECTIONS if not sections or section.name in sections]
    end = time.monotonic() + 60 * minutes
    found: list[Json] = []
    for number, section in enumerate(chosen):
        began = time.monotonic()
        left = end - began
        short.until = began + left * section.share / sum(other.share for other in chosen[number:])
        print(f"{section.name}: at most {short.until - began:.0f} s", file=sys.stderr)
        for record in section.records(short):
            found.append({"section": section.name, **record})
            _say(found[-1])
            if out is not None:
                out.write_text(json.dumps({"head": head, "records": found}, indent=0))
    return found


def _say(record: Json) -> None:
    told = record.get("failed") or (
        f"{record['seconds']:.4f} s, {_gb_per_s(record['bytes'], record['seconds']):.2f} GB/s"
    )
    wrong = ", WRONG BYTES" if record.get("wrong") else ""
    print(f"  {record['section']}, turn {record['turn']}, {record['name']}: {told}{wrong}",
          file=sys.stderr, flush=True)  # fmt: skip


def _gb_per_s(nbytes: int, seconds: float) -> float:
    """A rate; of a call that took no measurable time it says little, but the table is written."""
    return nbytes / GB / max(seconds, 1e-9)


def rows(records: Sequence[Json]) -> list[Json]:
    """Of each name the median of the turns after turn 0, and the median ratio to its baseline's rate."""
    found: list[Json] = []
    baselines = {section.name: section.baseline for section in SECTIONS}
    for section in dict.fromkeys(record["section"] for record in records):
        mine = [r for r in records if r["section"] == section]
        for name in dict.fromkeys(r["name"] for r in mine):
            runs = {r["turn"]: r["seconds"] for r in mine if r["name"] == name and "seconds" in r}
            later = {turn: s for turn, s in runs.items() if turn} or runs
            row: Json = {"section": section, "name": name}
            if not later:
                row["failed"] = next(r["failed"] for r in mine if r["name"] == name)
                found.append(row)
                continue
            nbytes = next(r["bytes"] for r in mine if r["name"] == name and "bytes" in r)
            row |= {"seconds": [round(s, 4) for s in later.values()], "first_s": runs.get(0),
                    "gb_per_s": round(_gb_per_s(nbytes, statistics.median(later.values())), 2)}  # fmt: skip
            base = {r["turn"]: _gb_per_s(r["bytes"], r["seconds"]) for r in mine
                    if "seconds" in r and _is_baseline(r["name"], name, baselines[section])}  # fmt: skip
            ratios = [
                _gb_per_s(nbytes, s) / base[turn] for turn, s in later.items() if turn in base
            ]
            if ratios:
                row["of_baseline"] = round(statistics.median(ratios), 3)
            found.append(row)
    return found


def _is_baseline(name: str, other: str, baseline: str) -> bool:
    """Baselines of several kinds in one section begin alike and end as those that are compared with them."""
    if not baseline or name == baseline:
        return bool(baseline)
    kind = name.removeprefix(baseline)
    return kind != name and other.endswith(kind)


def show(found: Sequence[Json], head: str) -> None:
    """The table."""
    print(head)
    print(f"{'section':12} {'what':40} {'GB/s':>7} {'of baseline':>11}  seconds (first; later)")
    for row in found:
        if "failed" in row:
            print(f"{row['section']:12} {row['name']:40} {row['failed']}")
            continue
        first = f"{row['first_s']:.3f}; " if row["first_s"] is not None else ""
        print(f"{row['section']:12} {row['name']:40} {row['gb_per_s']:7.2f} "
              f"{row.get('of_baseline', '')!s:>11}  {first}"
              f"{', '.join(f'{s:.4f}' for s in row['seconds'])}")  # fmt: skip


def make_moe(folder: Path, pairs: int) -> None:
    """A model of DeepSeek-V3's layout: FP8 matrices of 14.7 MB, each with 3.5 KB of scales."""
    block = random.Random(1).randbytes(16 * MiB)
    big, small = WEIGHT[0] * WEIGHT[1], 4 * SCALE[0] * SCALE[1]
    for number in range(MOE_FILES):
        table, end = {}, 0
        for i in range(number, pairs, MOE_FILES):
            name = f"model.layers.{number}.mlp.experts.{i}.w"
            for suffix, dtype, shape, nbytes in (
                ("weight", "F8_E4M3", WEIGHT, big), ("weight_scale_inv", "F32", SCALE, small)
            ):  # fmt: skip
                table[f"{name}.{suffix}"] = {"dtype": dtype, "shape": shape,
                                             "data_offsets": [end, end + nbytes]}  # fmt: skip
                end += nbytes
        header = json.dumps(table).encode()
        header += b" " * (-len(header) % 8)
        with (folder / f"model-{number}.safetensors").open("wb") as file:
            file.write(struct.pack("<Q", len(header)) + header)
            for at in range(0, end, len(block)):
                turned = number * 257 + at // len(block)  # no two blocks of a file alike
                file.write((block[turned:] + block[:turned])[: end - at])


def _end(processes: "list[subprocess.Popen[str]]") -> None:
    for process in processes:
        if process.poll() is None:
            process.kill()
    for process in processes:
        process.communicate()


def device_name(word: str) -> str:
    """What it is called in the head."""
    if word == "cpu":
        return "DRY RUN on a CPU, no figure counts"
    name: str = torch.cuda.get_device_name(word)
    return name
