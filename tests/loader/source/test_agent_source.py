"""Loading a model that the agent is still fetching: real agents, real sockets, a slow origin."""

import logging
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import p2pcache
from loadtest.kit.cluster import Agent, clean_environ, free_ports
from p2pcache.agent.embedded import run_embedded
from p2pcache.errors import NotFound, OriginChanged, P2PCacheError, Unreachable
from p2pcache.ids import Ref
from p2pcache.io.http.client import AgentClient
from p2pcache.loader.source import attachment, demand
from p2pcache.loader.source.agent_source import AgentSource
from p2pcache.loader.source.arriving_files import ArrivingFiles
from p2pcache.loader.source.base import Range
from tests.agent.kit import push
from tests.loader.loader_kit import Spec, torch_bytes, write
from tests.loader.source.agent_kit import (
    LAYERS,
    RATE,
    REF,
    agent_settings,
    make_origin,
    origin_bytes,
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, bytes]]:
    return make_origin(tmp_path_factory.mktemp("swarm"))


@pytest.fixture
def agent(tmp_path: Path, model: tuple[Path, dict[str, bytes]]) -> Iterator[str]:
    with run_embedded(agent_settings(tmp_path, model[0])) as socket:
        yield f"unix://{socket}"


def test_tensors_come_while_the_model_arrives(
    agent: str, model: tuple[Path, dict[str, bytes]], caplog: pytest.LogCaptureFixture
) -> None:
    _, bodies = model
    caplog.set_level(logging.INFO, "p2pcache.loader")
    total = sum(map(len, bodies.values()))
    found, at_first = {}, 0
    with p2pcache.iter_tensors(REF, agent=agent) as stream:
        for name, tensor in stream:
            at_first = at_first or origin_bytes(agent)
            found[name] = tensor
    assert {name: torch_bytes(tensor) for name, tensor in found.items()} == bodies
    assert at_first < 0.7 * total
    report = stream.report
    assert report.source.bytes_origin >= 0.8 * total  # the last bytes are counted a moment later
    assert report.source.digest
    assert report.source.verified_chunks > 40
    assert "origin 100%" in caplog.text
    caplog.clear()
    again = p2pcache.load(REF, agent=agent)  # complete by now
    assert {name: torch_bytes(tensor) for name, tensor in again.items()} == bodies
    assert f"loaded {REF}: " in caplog.text  # not the directory in the agent's cache
    assert "disk 100%" in caplog.text


def test_eight_loaders_cost_one_fetch(agent: str, model: tuple[Path, dict[str, bytes]]) -> None:
    _, bodies = model
    found: list[dict[str, Any]] = []
    threads = [
        threading.Thread(target=lambda: found.append(p2pcache.load(REF, agent=agent)))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 8
    assert all({n: torch_bytes(t) for n, t in each.items()} == bodies for each in found)
    assert origin_bytes(agent) <= 1.01 * sum(map(len, bodies.values()))


def test_only_a_stage_is_fetched(agent: str, model: tuple[Path, dict[str, bytes]]) -> None:
    _, bodies = model
    names = {f"layers.{i}.w" for i in range(5, 9)}
    found = p2pcache.load(
        REF, filter=[f"layers.{i}.w" for i in range(5, 9)], fetch="needed", agent=agent
    )
    assert {n: torch_bytes(t) for n, t in found.items()} == {n: bodies[n] for n in names}
    assert origin_bytes(agent) < 0.35 * sum(map(len, bodies.values()))


def test_only_a_rank_s_rows_are_fetched(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    specs = [Spec(f"layers.{i}.q_proj.weight", "BF16", (2048, 1024)) for i in range(2)]
    bodies = write(tmp_path / "model/model.safetensors", specs)
    push(tmp_path / "origin", tmp_path / "model", REF)
    axis = p2pcache.ParallelAxis("tensor", 1, 4, dim=0, names="*q_proj*")
    with run_embedded(agent_settings(tmp_path, tmp_path / "origin")) as socket:
        agent = f"unix://{socket}"
        found = p2pcache.load(REF, parallel=axis, fetch="needed", agent=agent)
        fetched = origin_bytes(agent)
    share = {name: len(body) // 4 for name, body in bodies.items()}
    assert {n: torch_bytes(t) for n, t in found.items()} == {
        n: bodies[n][share[n] : 2 * share[n]] for n in bodies
    }
    assert fetched <= 1.3 * sum(share.values())  # and the chunks at the edges, and the header's


def test_demanded_bytes_come_first(agent: str, model: tuple[Path, dict[str, bytes]]) -> None:
    _, bodies = model
    with p2pcache.safe_open(REF, agent=agent) as opened:
        last = f"layers.{LAYERS - 1}.w"
        assert torch_bytes(opened.get_tensor(last)) == bodies[last]
        assert origin_bytes(agent) < 0.8 * sum(map(len, bodies.values()))


def test_without_neighbours_a_load_demands_its_tensors(
    agent: str, model: tuple[Path, dict[str, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demand, "PATIENCE_S", 60.0)  # it isn't what helps
    _, bodies = model
    last = [f"layers.{i}.w" for i in range(LAYERS - 6, LAYERS)]
    with p2pcache.iter_tensors(REF, agent=agent, filter=last) as stream:
        found = {name: torch_bytes(tensor) for name, tensor in stream}
        taken = origin_bytes(agent)
    assert found == {name: bodies[name] for name in last}
    assert taken < 0.8 * sum(map(len, bodies.values()))  # in file order it would be all of it


def test_a_missing_model_and_a_missing_agent(agent: str, tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        p2pcache.load("team/none:v1", agent=agent)
    with pytest.raises(Unreachable):
        p2pcache.load(REF, agent=f"unix://{tmp_path}/nobody.sock")


def test_an_invisible_models_directory_is_named(agent: str, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="P2PCACHE_MODELS_DIR"):
        AgentSource.attach(
            AgentClient(agent), Ref.parse(REF), needed=False, models_dir=tmp_path / "elsewhere"
        )


# -- the agent dies ------------------------------------------------------------------------------


def described(tmp: Path, origin: Path, rate: int = RATE) -> Agent:
    """An agent in a process of its own, that can be killed."""
    flags = ["--listen", f"127.0.0.1:{free_ports(1)[0]}", "--origin", origin.as_uri(),
             "--min-free-bytes", "0", "--origin-bytes-per-s", str(rate)]  # fmt: skip
    return Agent("agent", tmp / "home", flags, environ=clean_environ(tmp))


@pytest.fixture
def daemon(tmp_path: Path, model: tuple[Path, dict[str, bytes]]) -> Iterator[Agent]:
    agent = described(tmp_path, model[0])
    agent.start()
    yield agent
    agent.stop()


def kill_after(agent: Agent, tensors: int, again: bool = False) -> dict[str, Any]:
    """Load; kill the agent when so many tensors were delivered."""
    found: dict[str, Any] = {}
    with p2pcache.iter_tensors(REF, agent=agent.url) as stream:
        for name, tensor in stream:
            found[name] = tensor
            if len(found) == tensors:
                agent.kill()
                if again:
                    agent.start(wait=False)
    found["notes"] = stream.report.source.notes
    return found


def test_a_load_attaches_again_to_an_agent_that_comes_back(
    daemon: Agent, model: tuple[Path, dict[str, bytes]]
) -> None:
    found = kill_after(daemon, 3, again=True)
    notes = found.pop("notes")
    assert {n: torch_bytes(t) for n, t in found.items()} == model[1]
    assert notes == ["attached again to an agent that was lost"]


def test_a_tag_that_moved_while_the_agent_was_away_changes_no_load(tmp_path: Path) -> None:
    """It ended with exit 6, though all of the model was still there."""
    (tmp_path / "own").mkdir()
    origin, bodies = make_origin(tmp_path / "own")
    agent = described(tmp_path, origin)
    write(tmp_path / "new.safetensors", [Spec("w", "BF16", (8, 8))], seed=7)
    (tmp_path / "other").mkdir()
    (tmp_path / "new.safetensors").rename(tmp_path / "other/model.safetensors")
    agent.start()
    try:
        found: dict[str, Any] = {}
        with p2pcache.iter_tensors(REF, agent=agent.url) as stream:
            for name, tensor in stream:
                found[name] = torch_bytes(tensor)
                if len(found) == 3:
                    agent.kill()
                    push(origin, tmp_path / "other", REF)
                    agent.start(wait=False)
        assert found == bodies
        assert "attached again to an agent that was lost" in stream.report.source.notes
        (row,) = AgentClient(agent.url).models()
        assert row["digest"] == stream.report.source.digest, "the other one wasn't begun"
    finally:
        agent.stop()


@pytest.mark.slow
def test_demands_are_repeated_to_an_agent_that_comes_back(
    tmp_path: Path, model: tuple[Path, dict[str, bytes]]
) -> None:
    _, bodies = model
    last, total = f"layers.{LAYERS - 1}.w", sum(map(len, bodies.values()))
    agent = described(tmp_path, model[0], RATE // 4)  # 12 s in file order
    found: list[bytes] = []
    agent.start()
    try:
        with p2pcache.safe_open(REF, agent=agent.url) as opened:
            thread = threading.Thread(
                target=lambda: found.append(torch_bytes(opened.get_tensor(last)))
            )
            thread.start()
            thread.join(0.1)  # the tensor alone takes half a second
            agent.kill()
            assert thread.is_alive()
            agent.start()
            thread.join(60)
            assert found == [bodies[last]]
            assert origin_bytes(agent.url) < 0.6 * total
    finally:
        agent.stop()


def test_an_agent_that_stays_away_is_replaced_by_the_origin(
    daemon: Agent,
    model: tuple[Path, dict[str, bytes]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(attachment, "REATTACH_S", 0.5)
    monkeypatch.setenv("P2PCACHE_ORIGIN", model[0].as_uri())
    found = kill_after(daemon, 3)
    notes = found.pop("notes")
    assert {n: torch_bytes(t) for n, t in found.items()} == model[1]
    assert notes == ["the agent was lost; the rest came from the origin"]
    lost, gone = (record.message for record in caplog.records if record.levelname == "WARNING")
    assert lost.endswith("; going on with what is here")
    assert gone.endswith(f"; the rest comes from {model[0].as_uri()}")
    assert (lost + gone).count(";") == 2  # no advice: nobody has to do anything


def test_without_an_origin_the_error_says_what_to_do(
    daemon: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attachment, "REATTACH_WITHOUT_ORIGIN_S", 0.5)
    with pytest.raises(Unreachable, match="P2PCACHE_ORIGIN"):
        kill_after(daemon, 3)


def test_an_agent_that_dies_before_its_answer_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(attachment, "REATTACH_WITHOUT_ORIGIN_S", 0.5)
    path = tmp_path / "a.sock"

    def die(server: socket.socket) -> None:
        connection, _ = server.accept()
        connection.recv(65536)
        path.unlink()
        connection.close()

    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        thread = threading.Thread(target=die, args=(server,))
        thread.start()
        with pytest.raises(Unreachable, match="start one"):
            p2pcache.load(REF, agent=f"unix://{path}")
        thread.join(30)
    assert "; trying again for 0.5 s" in caplog.text  # else a minute of silence


def test_wrong_bytes_of_the_origin_end_the_load(
    daemon: Agent,
    model: tuple[Path, dict[str, bytes]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import shutil

    false = tmp_path / "false"
    shutil.copytree(model[0], false)
    for blob in (false / "p2pcache/v1/blobs").iterdir():
        blob.chmod(0o644)
        blob.write_bytes(bytes(blob.stat().st_size))
    monkeypatch.setattr(attachment, "REATTACH_S", 0.5)
    monkeypatch.setenv("P2PCACHE_ORIGIN", false.as_uri())
    with pytest.raises(OriginChanged):
        kill_after(daemon, 3)


def test_bytes_withdrawn_during_a_read_are_read_again(
    agent: str, model: tuple[Path, dict[str, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = AgentSource.attach(AgentClient(agent), Ref.parse(REF), needed=False)
    wanted = Range("model-0.safetensors", 0, 100_000)
    while not source.wait([wanted], 1.0):
        pass
    good = bytearray(100_000)
    source.read(wanted.path, 0, [memoryview(good)])
    reads = []
    board = source._files.board
    assert board is not None

    def withdrawals(_self: object) -> int:
        reads.append(1)
        return min(len(reads), 3)  # changes during the first read and the second

    monkeypatch.setattr(type(board), "withdrawals", property(withdrawals))
    data = bytearray(100_000)
    source.read(wanted.path, 0, [memoryview(data)[:33], memoryview(data)[33:]])
    assert data == good
    assert len(reads) >= 5
    source.close()
    source.close()


def test_a_read_that_waits_for_withdrawn_bytes_ends_with_the_load(
    agent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ArrivingFiles, "read_files", lambda *_: False)
    source = AgentSource.attach(AgentClient(agent), Ref.parse(REF), needed=False)
    monkeypatch.setattr(source, "available", lambda *_: False)
    errors: list[BaseException] = []

    def read() -> None:
        try:
            source.read("model-0.safetensors", 0, [memoryview(bytearray(8))])
        except P2PCacheError as error:
            errors.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    thread.join(0.3)
    assert thread.is_alive()
    source.stop()
    thread.join(30)
    assert len(errors) == 1
    source.close()
