"""The main job against a real S3 server, also while it fails; counted by the server itself."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtest.kit.cluster import Cluster
from loadtest.kit.daemons import wait_until
from loadtest.kit.faultproxy import FaultProxy
from loadtest.kit.models import check_tree, total_bytes
from loadtest.kit.seaweed import Seaweed
from tests.functional.node import Pull, bytes_done, push


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seaweed]:
    with Seaweed(tmp_path_factory.mktemp("s3")) as server:
        yield server


def test_each_byte_leaves_s3_once(s3: Seaweed, model: Path) -> None:
    with Cluster(s3.url(), agents=3, environ=s3.env()) as cluster:
        push(cluster, model, "team/one:v1")
        before = s3.counters().sent
        for event in cluster.pull_everywhere("team/one:v1"):
            check_tree(Path(event["path"]), model)
        read = s3.counters().sent - before
        assert total_bytes(model) <= read <= 1.02 * total_bytes(model)


def test_what_is_kept_lies_in_s3(s3: Seaweed, other_model: Path) -> None:
    with Cluster(s3.url("models", "kept"), agents=2, environ=s3.env()) as cluster:
        push(cluster, other_model, "team/one:v1")

        def parts() -> list[int]:
            return [sum(m["bytes_done"] for m in a.client.models()) for a in cluster.agents]

        def listed() -> list[str]:
            rows = json.loads(cluster.run("keep", "--list", "--json").stdout)["keeps"]
            return [row["state"] for row in rows]

        cluster.run("keep", "team/one:v1", "--copies", "1")
        wait_until(lambda: listed() == ["kept"], 20)
        assert sum(parts()) == total_bytes(other_model)
        cluster.run("keep", "team/one:v1", "--off")
        assert listed() == []
        wait_until(lambda: not any(parts()), 20)


def test_push_and_pull_with_no_daemon(s3: Seaweed, other_model: Path, tmp_path: Path) -> None:
    with Cluster(s3.url("models", "nested/prefix"), agents=0, environ=s3.env()) as cluster:
        environ = {"P2PCACHE_ORIGIN": cluster.origin}
        cluster.run("push", str(other_model), "solo", agent=None, environ=environ)
        result = cluster.run(
            "pull", "solo", "--to", str(tmp_path / "to"), agent=None, environ=environ
        )
        check_tree(Path(result.stdout.strip()), other_model)


def test_wrong_credentials_are_exit_4_and_never_shown(s3: Seaweed, other_model: Path) -> None:
    wrong = s3.env() | {"AWS_SECRET_ACCESS_KEY": "notthesecret" * 3}
    with Cluster(s3.url(), agents=0, environ=wrong) as cluster:
        result = cluster.run("push", str(other_model), "x", "--origin", cluster.origin,
                             agent=None, code=4)  # fmt: skip
        assert wrong["AWS_SECRET_ACCESS_KEY"] not in result.stderr
        assert "AWS_" in result.stderr


def test_the_doctor_tries_the_credentials(s3: Seaweed) -> None:
    """The tracker's origin, with this command's own keys: good, wrong, none."""
    good = s3.env()
    wrong = good | {"AWS_SECRET_ACCESS_KEY": "notthesecret" * 3}
    none = good | {
        "AWS_ACCESS_KEY_ID": "",
        "AWS_SECRET_ACCESS_KEY": "",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    with Cluster(s3.url(), agents=0, environ=good) as cluster:
        flags = ["doctor", "--tracker", cluster.tracker_url, "--cluster-key-file", str(cluster.key_file),
                 "--cache-dir", str(cluster.root)]  # fmt: skip
        report = cluster.run(*flags, agent=None).stdout
        assert f"origin       {cluster.origin} lists in" in report
        assert "within 1 s of the origin's" in report
        for environ in (wrong, none):
            bad = cluster.run(*flags, agent=None, environ=environ, code=4).stdout
            assert "fail  origin" in bad
            assert "AWS_" in bad
            assert "notthesecret" not in bad


@pytest.mark.timeout(150)  # a frozen body is noticed after 10 s, and a busy machine is slow
@pytest.mark.parametrize("kind", ["busy", "reset", "truncate", "freeze"])
def test_a_failing_origin_delays_and_harms_nothing(
    s3: Seaweed, model: Path, tmp_path: Path, kind: str
) -> None:
    size = total_bytes(model)
    flags = ("--origin-bytes-per-s", "6MiB")
    with (
        FaultProxy(tmp_path / "proxy", ("127.0.0.1", s3.port)) as proxy,
        Cluster(s3.url(), environ=s3.env() | {"AWS_ENDPOINT_URL": proxy.endpoint},
                agent_flags=flags) as cluster,
    ):  # fmt: skip
        push(cluster, model, f"fault/{kind}:v1")
        before = proxy.counters()["blob_bytes"]
        pulls = [Pull(agent, f"fault/{kind}:v1") for agent in cluster.agents]
        wait_until(lambda: bytes_done(cluster.agents[0]) > size // 4, 60)
        proxy.fault(kind, seconds=2)
        for pull in pulls:
            done = pull.wait(45)  # where the one was barred, the other found slow eight times: 87 s
            check_tree(pull.agent.tree(str(done["path"])), model)
        assert proxy.counters()["hits"].get(kind, 0) > 0, "the fault never struck"
        # Of 96 chunks 16 are in flight when it strikes; what was half sent is sent again.
        assert proxy.counters()["blob_bytes"] - before <= 1.2 * size
