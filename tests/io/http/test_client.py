import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from p2pcache.errors import Conflict, NotAllowed, NotFound, P2PCacheError, Unreachable, UsageError
from p2pcache.io.http.client import AgentClient, read_token
from tests.cli import fake_agent as fakes


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[fakes.FakeAgent]:
    with fakes.fake_agent(tmp_path) as server:
        yield server


def test_a_document(agent: fakes.FakeAgent) -> None:
    agent.document("GET /v1/models", {"models": [{"ref": "a:b"}, "rubbish"]})
    assert AgentClient(agent.address, token="t0ken").models() == [{"ref": "a:b"}]
    assert agent.seen[0][2]["Authorization"] == "Bearer t0ken"


def test_a_query_is_quoted(agent: fakes.FakeAgent) -> None:
    agent.document("GET /v1/model", {})
    AgentClient(agent.address).model("a/b:c@blake3:00")
    assert agent.seen[0][1] == "/v1/model?ref=a%2Fb%3Ac%40blake3%3A00"


def test_what_is_no_text_is_named(agent: fakes.FakeAgent) -> None:
    """It reached the agent as half of a character, and only that was told."""
    url = b"file:///models/\xff".decode(errors="surrogateescape")
    with pytest.raises(UsageError, match=r"models/\\udcff.* isn't UTF-8"):
        list(AgentClient(agent.address).import_model(url, "a:b"))
    with pytest.raises(UsageError, match=r"models/\\udcff.* isn't UTF-8"):
        AgentClient(agent.address).unpin("a:b", url)
    assert not agent.seen


def test_errors_keep_their_class_and_message(agent: fakes.FakeAgent) -> None:
    agent.document("DELETE /v1/model", {"code": 10, "message": "being pulled"}, status=409)
    with pytest.raises(Conflict, match=r"^being pulled$"):
        AgentClient(agent.address).remove("a:b")
    with pytest.raises(NotFound, match="no /v1/status"):
        AgentClient(agent.address).status()


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (500, Unreachable),
        (502, Unreachable),
        (404, Unreachable),
        (301, Unreachable),
        (403, NotAllowed),
        (401, NotAllowed),
    ],
)
def test_an_error_without_json_names_the_status(
    agent: fakes.FakeAgent, status: int, kind: type[P2PCacheError]
) -> None:
    agent.document("GET /v1/status", b"<html>", status=status)
    with pytest.raises(kind):
        AgentClient(agent.address).status()


def test_a_tracker_in_place_of_an_agent(agent: fakes.FakeAgent) -> None:
    """Its status has a `ready`, too, and was shown as that of an agent without a name and a cache."""
    agent.document("GET /v1/status", {"role": "active", "ready": True, "members": 4})
    with pytest.raises(Unreachable, match="is a tracker, no agent; check --agent"):
        AgentClient(agent.address).status()


@pytest.mark.parametrize("status", [404, 502, 503])
@pytest.mark.parametrize("value", [{"error": "no backend"}, {"code": "NO_BACKEND", "message": ""}])
def test_a_proxys_error_in_json_is_no_agents(
    agent: fakes.FakeAgent, status: int, value: dict[str, str]
) -> None:
    agent.document("GET /v1/models", value, status=status)
    with pytest.raises(Unreachable, match="check --agent"):
        AgentClient(agent.address).models()


@pytest.mark.parametrize("body", [b"", b"[1]", b"<html>", b"\xff", b"[" * 100_000])
def test_an_answer_that_is_no_object(agent: fakes.FakeAgent, body: bytes) -> None:
    agent.document("GET /v1/status", body)
    with pytest.raises(Unreachable, match=r"no agent.s API"):
        AgentClient(agent.address).status()


def test_records_of_another_shape(agent: fakes.FakeAgent) -> None:
    agent.document("GET /v1/pulls", {"pulls": 3})
    with pytest.raises(P2PCacheError, match="another release"):
        AgentClient(agent.address).pulls()


def test_a_stream_ends_with_done(agent: fakes.FakeAgent, tmp_path: Path) -> None:
    events = [fakes.resolved(), fakes.progress(10), fakes.done(tmp_path)]
    agent.stream("POST /v1/pull", events)
    assert list(AgentClient(agent.address).pull("llama")) == events
    assert agent.bodies == [b'{"ref": "llama", "force_generation": false}']


def test_a_streams_error_is_raised_after_its_earlier_events(agent: fakes.FakeAgent) -> None:
    agent.stream(
        "POST /v1/pull", [fakes.resolved(), {"event": "error", "code": 3, "message": "gone"}]
    )
    events = AgentClient(agent.address).pull("llama")
    assert next(events)["event"] == "resolved"
    with pytest.raises(NotFound, match=r"^gone$"):
        next(events)


@pytest.mark.parametrize("cut", [True, False])
def test_a_stream_that_breaks_off_is_unreachable_and_can_be_resumed(
    agent: fakes.FakeAgent, cut: bool
) -> None:
    agent.stream("POST /v1/pull", [fakes.resolved()], cut=cut)
    with pytest.raises(Unreachable, match="again to resume"):
        list(AgentClient(agent.address).pull("llama"))


@pytest.mark.parametrize(
    "line", [b"rubbish\n", b"{}\n", b'{"event": 3}\n', b"x" * (1 << 20) + b"\n"]
)
def test_a_line_that_is_no_event(agent: fakes.FakeAgent, line: bytes) -> None:
    agent.stream("POST /v1/pull", [line])
    with pytest.raises(P2PCacheError, match="isn't an event"):
        list(AgentClient(agent.address).pull("llama"))


def test_a_blob_is_sent_whole(agent: fakes.FakeAgent, tmp_path: Path) -> None:
    data = bytes(range(256)) * 80_000  # over two slices
    (tmp_path / "blob").write_bytes(data)
    agent.document("PUT *", {"bytes": len(data)})
    told: list[int] = []
    with (tmp_path / "blob").open("rb") as file:
        AgentClient(agent.address).put_blob("aa", "bb", file, len(data), told.append)
    assert agent.bodies == [data]
    assert sum(told) == len(data)
    assert len(told) > 1
    assert agent.seen[0][1] == "/v1/blobs/aa/bb"


def test_an_empty_blob(agent: fakes.FakeAgent, tmp_path: Path) -> None:
    (tmp_path / "blob").touch()
    agent.document("PUT *", {"bytes": 0})
    with (tmp_path / "blob").open("rb") as file:
        AgentClient(agent.address).put_blob("aa", "bb", file, 0, lambda _count: None)
    assert agent.bodies == [b""]


def test_a_refusal_before_the_blob_is_sent_is_heard(agent: fakes.FakeAgent, tmp_path: Path) -> None:
    def refuse(handler: fakes.Handler) -> None:
        handler.answer(507, {"code": 5, "message": "disk full"})
        handler.connection.shutdown(socket.SHUT_RDWR)

    agent.replies["PUT *"] = refuse
    (tmp_path / "blob").write_bytes(bytes(32 << 20))
    with (
        (tmp_path / "blob").open("rb") as file,
        pytest.raises(P2PCacheError, match="disk full") as caught,
    ):
        AgentClient(agent.address).put_blob("aa", "bb", file, 32 << 20, lambda _count: None)
    assert caught.value.exit_code == 5


def test_a_file_that_became_shorter(agent: fakes.FakeAgent, tmp_path: Path) -> None:
    agent.document("PUT *", {})
    (tmp_path / "blob").write_bytes(b"short")
    with (tmp_path / "blob").open("rb") as file, pytest.raises(UsageError, match="shorter"):
        AgentClient(agent.address).put_blob("aa", "bb", file, 100, lambda _count: None)


def test_nobody_there(tmp_path: Path) -> None:
    with pytest.raises(Unreachable, match="p2pcache agent"):
        AgentClient(f"unix://{tmp_path}/none.sock").status()
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(tmp_path / "stale.sock"))
    with pytest.raises(Unreachable, match="p2pcache agent"):
        AgentClient(f"unix://{tmp_path}/stale.sock").status()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(Unreachable):
        AgentClient(f"http://127.0.0.1:{port}").status()


def test_an_agent_that_hangs(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "s"))
        silent.listen()
        with pytest.raises(Unreachable, match="doesn't answer"):
            AgentClient(f"unix://{tmp_path}/s", answer_s=0.1).status()


def test_over_tcp() -> None:
    def serve() -> None:
        peer, _ = listener.accept()
        with peer:
            peer.recv(65536)
            peer.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n{"ready":1}')

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        assert AgentClient(f"http://127.0.0.1:{listener.getsockname()[1]}").status() == {"ready": 1}
        thread.join()


def test_something_that_is_no_http_server() -> None:
    def serve() -> None:
        peer, _ = listener.accept()
        with peer:
            peer.recv(65536)
            peer.sendall(b"SSH-2.0-OpenSSH\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(Unreachable, match="is no agent"):
            AgentClient(f"http://127.0.0.1:{listener.getsockname()[1]}").status()
        thread.join()


@pytest.mark.parametrize(
    "address",
    [
        "",
        "agent",
        "unix:relative",
        "unix://host/path",
        "http://host",
        "https://h:1",
        "http://h:99999",
        "http://h:1/x",
        "http://[:1",
    ],
)
def test_not_an_address(address: str) -> None:
    with pytest.raises(UsageError, match="unix:///PATH or http://HOST:PORT"):
        AgentClient(address)


def test_tokens(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("abc.def\n")
    assert read_token(str(path)) == "abc.def"
    assert read_token("") == ""
    for encoding in ("utf-8-sig", "utf-16"):  # as editors on Windows save it
        path.write_bytes("abc.def\r\n".encode(encoding))
        assert read_token(str(path)) == "abc.def"
    path.write_text("two words\n")
    with pytest.raises(UsageError) as caught:
        read_token(str(path))
    assert "two words" not in str(caught.value)
    path.write_text("a\r\nX-Evil: 1")
    with pytest.raises(UsageError):
        read_token(str(path))
    with pytest.raises(NotAllowed, match="No such file"):
        read_token(str(tmp_path / "none"))


def test_a_failed_stream_leaves_no_socket_open(agent: fakes.FakeAgent) -> None:
    """Whoever keeps the error keeps its frames, and those must not keep a socket."""
    events: list[object] = [{"event": "error", "code": 7, "message": "no"}]
    agent.stream("POST /v1/pull", events, pause_s=0.5)
    with pytest.raises(P2PCacheError) as caught:
        list(AgentClient(agent.address).pull("a:b"))
    frames = [entry.frame for entry in caught.traceback]
    exchange = next(f.f_locals["exchange"] for f in frames if "exchange" in f.f_locals)
    response = exchange._response
    assert response is not None
    assert response.isclosed()


def test_a_busy_agent_is_asked_again(
    agent: fakes.FakeAgent, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    slept: list[float] = []
    monkeypatch.setattr("p2pcache.io.http.endpoint.time.sleep", slept.append)
    calls = 0

    def busy_twice(handler: fakes.Handler) -> None:
        nonlocal calls
        calls += 1
        handler.body()
        if calls % 3:
            handler.send_response(429 if calls % 2 else 503)
            handler.send_header("Retry-After", "7")
            handler.send_header("Content-Length", "0")
            handler.end_headers()
        elif handler.command == "POST":
            handler.begin_stream()
            handler.event(fakes.done(tmp_path))
            handler.end_stream()
        else:
            handler.answer(200, {"models": []})

    for call in ("GET *", "POST *", "PUT *"):
        agent.replies[call] = busy_twice
    client = AgentClient(agent.address)
    assert client.models() == []
    assert [event["event"] for event in client.pull("a")] == ["done"]
    (tmp_path / "blob").write_bytes(b"x" * 100)
    told: list[int] = []
    with (tmp_path / "blob").open("rb") as file:
        client.put_blob("aa", "bb", file, 100, told.append)
    assert sum(told) == 100
    assert len(slept) == 6
    assert all(7 <= pause <= 14 for pause in slept)


def test_patience_ends(agent: fakes.FakeAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("p2pcache.io.http.endpoint.RETRY_S", 0.5)

    def busy(handler: fakes.Handler) -> None:
        handler.send_response(503)
        handler.send_header("Retry-After", "3600")
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    agent.replies["GET *"] = busy
    with pytest.raises(Unreachable, match="busy"):
        AgentClient(agent.address).models()


def test_an_agent_that_is_not_ready_is_not_busy(agent: fakes.FakeAgent) -> None:
    agent.document("GET /v1/nodes", {"code": 8, "message": "no tracker"}, status=503)
    with pytest.raises(Unreachable, match="no tracker"):
        AgentClient(agent.address).nodes()
