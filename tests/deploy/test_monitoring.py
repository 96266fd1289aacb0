"""deploy/monitoring against the real thing: promtool, a real Prometheus, real daemons."""

import asyncio
import json
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from loadtest.kit.cluster import Cluster, free_ports
from loadtest.kit.daemons import Daemon, wait_until
from loadtest.kit.models import make_model
from p2pcache.core.format.manifest import encode
from p2pcache.io.files.indexing import index_directory
from tests.agent.kit import agent, client
from tests.certs import Authority
from tests.functional.node import push
from tests.tracker.kit import tracker

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "monitoring"
DASHBOARD: dict[str, Any] = json.loads((FOLDER / "dashboard.json").read_text())
ALERTS: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"]
    for rule in group["rules"]
]
EXPRESSIONS = [alert["expr"] for alert in ALERTS] + [
    target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())
]
NOT_OURS = {"up"}
needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None or shutil.which("promtool") is None,
    reason="no prometheus and promtool here; .ci/install-tools installs them",
)


def promtool(*arguments: str, stdin: str | None = None) -> str:
    done = subprocess.run(
        ["promtool", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        cwd=FOLDER,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


# -- the files -------------------------------------------------------------------------------------


@needs_prometheus
def test_alerts_are_rules_and_fire_when_they_should() -> None:
    promtool("check", "rules", "alerts.yaml")
    promtool("test", "rules", "alerts.test.yaml")
    promtool("check", "config", "prometheus.yaml")


def test_every_alert_is_tried_and_says_what_to_do() -> None:
    tried = (FOLDER / "alerts.test.yaml").read_text()
    headings = re.findall(r"^## (\w+)$", (ROOT / "docs" / "runbook.md").read_text(), re.MULTILINE)
    assert headings == [alert["alert"] for alert in ALERTS]  # the same ones, in the same order
    for alert in ALERTS:
        assert f'"{alert["alert"]}"' in tried or alert["alert"] + "\n" in tried, alert["alert"]
        notes = alert["annotations"]
        assert all(notes[name] for name in ("summary", "description", "runbook"))
        site = "{{ with $externalLabels.p2pcache_docs }}{{ . }}"
        assert notes["runbook_url"] == f"{site}/runbook/#{alert['alert'].lower()}{{{{ end }}}}"
        assert alert["labels"]["severity"] in ("warning", "critical")


def test_dashboard_is_whole() -> None:
    assert DASHBOARD["uid"] == "p2pcache"
    assert DASHBOARD["schemaVersion"] >= 36
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
        if panel["type"] != "row":
            assert panel["targets"], panel["title"]
            assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
            assert panel["datasource"]["uid"] == "${datasource}"


# -- the names -------------------------------------------------------------------------------------


async def exposed(tmp_path: Path) -> tuple[str, str]:
    """What a tracker and an agent in mTLS mode tell, with one swarm between them."""
    authority = Authority(tmp_path / "ca")
    files = authority.files("tracker", "tracker")._asdict()
    (tmp_path / "origin").mkdir()
    async with tracker(tmp_path / "origin", **files) as tracking:
        own = authority.files("a")._asdict()
        url = f"https://{tracking.address}"
        async with agent(tmp_path, tracker=url, **own) as app, client(app) as session:
            model = make_model(tmp_path / "model", 1 << 20, shards=1, seed=1)
            manifest, _ = index_directory(model)
            async with session.post("/v1/manifests", data=encode(manifest)) as answer:
                assert answer.status == 200, await answer.text()
            async with asyncio.timeout(30):
                while not tracking.tracking.swarms:
                    await asyncio.sleep(0.05)
            async with session.get("/metrics") as answer:
                of_agent = await answer.text()
            tls = authority.tls("a").now.client
            async with aiohttp.ClientSession() as http:
                async with http.get(f"{url}/metrics", ssl=tls) as answer:
                    return await answer.text(), of_agent


def names(text: str) -> set[str]:
    return {re.match(r"[\w:]+", line)[0] for line in text.splitlines() if line[:1] not in ("", "#")}  # type: ignore[index]


async def test_alerts_and_dashboard_use_names_that_exist(tmp_path: Path) -> None:
    texts = await exposed(tmp_path)
    there = set().union(*map(names, texts)) | families_of(texts) | NOT_OURS
    for expression in EXPRESSIONS:
        used = re.findall(r"\b(?:p2pcache_\w+|process_\w+|up)\b", expression)
        assert used, expression
        assert set(used) <= there, (set(used) - there, expression)


async def test_label_matchers_match_labels_that_exist(tmp_path: Path) -> None:
    """`source="orgin"` is no error to Prometheus: the panel would just stay empty."""
    text = "\n".join(await exposed(tmp_path))
    labels: dict[str, list[dict[str, str]]] = {}
    for name, inner in re.findall(r"^(\w+)\{(.*)\} ", text, re.MULTILINE):
        labels.setdefault(name, []).append(dict(re.findall(r'(\w+)="([^"]*)"', inner)))
    tried = 0
    for expression in EXPRESSIONS:
        for metric, inner in re.findall(r"\b(p2pcache_\w+)\{([^}]*)\}", expression):
            for label, value in re.findall(r'(\w+)\s*=~?\s*"([^"]*)"', inner):
                if label in ("job", "instance") or metric not in labels:
                    continue  # Prometheus adds those; counters that nobody used yet have no sample
                known = {row.get(label, "") for row in labels[metric]} - {""}
                for choice in value.split("|"):
                    assert choice in known, (expression, label, choice, known)
                    tried += 1
    assert tried >= 4


def families_of(texts: tuple[str, str]) -> set[str]:
    """Names of counters with labels that nobody has used yet: they have no sample, only a TYPE line."""
    found = re.findall(r"^# TYPE (\S+) counter$", "\n".join(texts), re.MULTILINE)
    return set(found)


async def test_operations_names_every_metric(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "operations.md").read_text()
    families = re.findall(r"^# TYPE p2pcache_(?:agent|tracker)_(\w+) \w+$", "\n".join(
        await exposed(tmp_path)), re.MULTILINE)  # fmt: skip
    assert len(families) > 50
    missing = [
        name for name in families
        if not re.search(rf"\b{name}\b", text) and not name.startswith("certificate_")
    ]  # fmt: skip
    assert missing == []


@needs_prometheus
async def test_names_and_units_keep_the_conventions(tmp_path: Path) -> None:
    for text in await exposed(tmp_path):
        assert promtool("check", "metrics", stdin=text).strip() == ""
        helps = re.findall(r"^# HELP (\S+) (.+)$", text, re.MULTILINE)
        assert all(
            help_text[-1] == "." for name, help_text in helps if name.startswith("p2pcache_")
        )


# -- a real Prometheus -----------------------------------------------------------------------------


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[Cluster, str]]:
    """A tracker, two agents that listen for Prometheus, and a Prometheus with our files."""
    origin = tmp_path / "origin"
    origin.mkdir()
    port, *health = free_ports(3)
    with ExitStack() as stack:
        made = Cluster(f"file://{origin}", agents=0)
        for number in health:
            made.add_agent("--health-listen", f"127.0.0.1:{number}")
        stack.enter_context(made)
        targets = [f"127.0.0.1:{number}" for number in health]
        config = (FOLDER / "prometheus.yaml").read_text().replace("15s", "1s")
        config = config.replace('"127.0.0.1:7400"', f'"{made.tracker_url.removeprefix("http://")}"')
        config = config.replace('"127.0.0.1:7402"', ", ".join(f'"{t}"' for t in targets))
        (tmp_path / "prometheus.yaml").write_text(config)
        shutil.copy(FOLDER / "alerts.yaml", tmp_path)
        url = f"http://127.0.0.1:{port}"
        command = [
            "prometheus", f"--config.file={tmp_path}/prometheus.yaml",
            f"--storage.tsdb.path={tmp_path}/tsdb", f"--web.listen-address=127.0.0.1:{port}",
        ]  # fmt: skip
        server = Daemon(
            "prometheus", command, tmp_path / "prometheus.log", ready=lambda: ready(url)
        )
        stack.callback(server.stop)
        server.start()
        yield made, url


def ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/-/ready", timeout=1) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def ask(url: str, path: str, **query: str) -> Any:
    with urllib.request.urlopen(
        f"{url}/api/v1/{path}?{urllib.parse.urlencode(query)}", timeout=30
    ) as answer:
        body = json.load(answer)
        assert body["status"] == "success"
        return body["data"]


def value(url: str, expression: str) -> float:
    rows = ask(url, "query", query=expression)["result"]
    return float(rows[0]["value"][1]) if rows else float("nan")


@needs_prometheus
@pytest.mark.slow
def test_a_prometheus_scrapes_it_and_every_expression_means_something(
    cluster: tuple[Cluster, str], tmp_path: Path
) -> None:
    made, url = cluster
    push(made, make_model(tmp_path / "model", 4 << 20, shards=2, seed=1), "team/one:v1")
    size = sum(event["bytes"] for event in made.pull_everywhere("team/one:v1")[:1])
    received = "sum(p2pcache_agent_received_bytes_total)"
    wait_until(lambda: value(url, received) >= 2 * size, 60)
    for expression, expected in (  # each target is scraped in its own time
        ("sum(up)", 3), ('sum(p2pcache_agent_pulls_total{exit_code="0"})', 2),
        ("sum(p2pcache_agent_pull_duration_seconds_count)", 2), ("p2pcache_tracker_members", 2),
    ):  # fmt: skip
        wait_until(lambda e=expression, n=expected: value(url, e) == n, 60)  # type: ignore[misc]
    alpha = (
        'p2pcache_tracker_swarm_received_bytes_total{source="origin"} / on (model, digest) '
        'p2pcache_tracker_swarm_size_bytes{model="team/one:v1"}'
    )
    wait_until(lambda: value(url, alpha) == pytest.approx(1.0, rel=0.02), 60)
    for expression in EXPRESSIONS:
        plain = expression.replace("$__rate_interval", "10s").replace("$node", ".*")
        ask(url, "query", query=plain)  # an error of syntax or matching raises
    assert {rule["health"] for group in ask(url, "rules")["groups"] for rule in group["rules"]} == {
        "ok"
    }
    # Before the first scrape the targets were absent: those alerts are pending until the rules are asked again.
    wait_until(lambda: ask(url, "alerts")["alerts"] == [], 60)
