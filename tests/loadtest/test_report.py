"""The report: whatever storms wrote becomes one page that needs nothing else, and that a browser shows."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from loadtest.kit.results import read
from loadtest.report.__main__ import main, page
from loadtest.report.plots import Plot, bars, ticks
from p2pcache.errors import UsageError
from tests.tracker.browser import CHROMIUM, browser


def result(nodes: int, **changes: Any) -> dict[str, Any]:
    """What a storm writes, in small."""
    t_last = 24.0 + nodes / 10
    rival = {
        "size_bytes": 1000, "t_lb": 23.0, "t_last": 30.0, "t_median": 29.0, "alpha_interface": 1.4,
        "cpu_busy": 0.85, "cpu_s_per_gb": 9.0, "failure": "", "eta": 23 / 30, "void": True,
    }  # fmt: skip
    failed = rival | {"eta": None, "t_last": None, "t_median": None, "failure": "n1 ended <early>"}
    return {
        "eta": 23 / t_last, "alpha": 1.0003, "alpha_interface": 1.05, "t_last": t_last, "t_median": t_last,
        "t_lb": 23.0, "cpu_busy": 0.5, "void": False, "cpu_s_per_gb": 10.0, "size_bytes": 1000, "chunks": 10,
        "goodput_node": 6e6, "goodput_origin": 6e6, "plan": {"nodes": nodes, "faults": []},
        "counted_nodes": list(range(nodes)),
        "nodes": [
            {"node": n, "started_s": 0.0, "ended_s": t_last, "code": 0,
             "curve": [[t, int(1000 * t / t_last)] for t in range(25)] + [[t_last, 1000]]}
            for n in range(nodes)
        ],
        "origin_curve": [[0.0, 500], [12.0, 1000], [23.0, 1550]], "story": ["3.5 s: <b>n1</b> is killed"],
        "failures": ["n1 & n2 </style> differ"], "rivals": {"libtorrent": rival, "aria2": failed},
    } | changes  # fmt: skip


def write(tmp_path: Path, *results: dict[str, Any]) -> list[str]:
    paths = [tmp_path / f"{number}.json" for number in range(len(results))]
    for path, data in zip(paths, results, strict=True):
        path.write_text(json.dumps(data))
    return [str(path) for path in paths]


def test_a_page_is_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    faulty = result(
        8, plan={"nodes": 8, "faults": ["kill-node"]}, eta=None, t_last=None, t_median=None
    )
    files = write(tmp_path, result(2), result(8), faulty)
    out = tmp_path / "report.html"
    assert main([*files, "-o", str(out)]) == 0
    text = out.read_text()
    assert str(out) in capsys.readouterr().out
    assert "<b>n1</b>" not in text
    assert "n1 &amp; n2 &lt;/style&gt; differ" in text
    assert "kill-node" in text
    for word in ("http://", "https://", "src=", "@import", "url("):
        assert word not in text
    for svg in text.split("<svg")[1:]:
        ET.fromstring("<svg" + svg.partition("</svg>")[0] + "</svg>")


def test_a_storm_in_racks_is_a_chapter_of_its_own(tmp_path: Path) -> None:
    plan = {"nodes": 8, "faults": [], "racks": 2}
    racks = result(
        8,
        plan=plan,
        beta=1.34,
        beta_data=1.02,
        goodput_uplink=4.3e6,
        rivals={},
        alpha_interface=1.7,
    )
    storms = [read(Path(path)) for path in write(tmp_path, result(2), result(4), racks)]
    text = page(storms)
    assert "8 nodes in 2 racks at 48 Mbit/s" in text
    assert "uplinks at 34 Mbit/s" in text
    assert "beta 1.34 on the wire, 1.02 of the model" in text
    top = text[: text.index("<h2>2 nodes at")]
    assert "with 4 nodes: eta of the last node" in top, "another network than the others'"
    assert "1.700" not in top
    assert "8 in 2 racks" in text[text.index("All figures") :]
    assert "with 8 nodes" in page(storms[2:]), "alone it is the headline"


def test_void_headlines_say_so(tmp_path: Path) -> None:
    void, fine = (result(n, void=v, rivals={}) for n, v in ((8, True), (2, False)))
    says = '<p class="wrong">Void: '
    assert says in page([read(Path(p)) for p in write(tmp_path, void)])
    assert says not in page([read(Path(p)) for p in write(tmp_path, void, fine)])


def test_a_fleet_is_counted_by_its_agents(tmp_path: Path) -> None:
    fleet = result(4, what="fleet", rivals={}, eta=1.4, cpu_busy=None, cpu_s_per_gb=None)
    del fleet["alpha_interface"]
    text = page([read(Path(p)) for p in write(tmp_path, fleet)])
    assert "left the origin (alpha), as the agents count them" in text
    assert "nothing beats the bound" in text
    both = page([read(Path(p)) for p in write(tmp_path, fleet, result(2))])
    assert "of the bound with 2 nodes" in both, "an eta above 1 is no headline"
    assert "headers included" in page([read(Path(p)) for p in write(tmp_path, result(4))])


def test_one_result_alone_is_enough(tmp_path: Path) -> None:
    alone = result(4, rivals={}, story=[], failures=[], origin_curve=[])
    (path,) = write(tmp_path, alone)
    text = page([read(Path(path))])
    assert "Against the number of nodes" not in text
    assert "WRONG" not in text


def test_other_files_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("", "[]", "{}", '{"size_bytes": "x"}', json.dumps(result(2) | {"nodes": [1]})):
        (tmp_path / "r.json").write_text(text)
        with pytest.raises(UsageError, match="isn't the JSON of a storm"):
            read(tmp_path / "r.json")
    assert main([str(tmp_path / "r.json"), "-o", str(tmp_path / "o.html")]) == 2
    assert main([str(tmp_path / "none.json"), "-o", str(tmp_path / "o.html")]) == 2
    assert "report: " in capsys.readouterr().err


def test_ticks_are_round_and_enough() -> None:
    assert ticks(23.7) == [0, 5, 10, 15, 20, 25]
    assert ticks(1.2) == [0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2]
    for high in (0.003, 0.9, 1.0, 7.0, 99.0, 100.0, 12345.0):
        found = ticks(high)
        assert found[-1] >= high * (1 - 1e-9)
        assert 3 <= len(found) <= 8
    assert ticks(0.0) == [0.0, 1.0]


def test_charts_stay_inside() -> None:
    plot = Plot([1, 2, 4], [0, 1], even=True, x_label="n", title="t")
    assert plot.x(1) < plot.x(2) < plot.x(4)
    assert plot.y(0) > plot.y(1)
    assert 'aria-label="a &lt; b"' in bars([("x", 0.0, "ours", "0")], title="a < b")


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium: make tools")
@pytest.mark.slow
async def test_a_browser_shows_it_without_complaint(tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    assert main([*write(tmp_path, result(2), result(8)), "-o", str(out)]) == 0
    async with browser() as tab:
        for width, dark in ((1200, False), (420, True)):
            await tab.open(out.as_uri(), width=width, dark=dark)
            assert await tab.run("document.querySelectorAll('svg').length") >= 8
            assert await tab.run("document.documentElement.scrollWidth") <= width
            drawn = "[...document.querySelectorAll('svg')].every(s => s.getBoundingClientRect().width > 200)"
            assert await tab.run(drawn)
            boxes = "[...document.querySelectorAll('svg text')].map(t => t.getBoundingClientRect())"
            least = await tab.run(f"Math.min(...{boxes}.map(b => b.height))")
            assert least >= 10, "print on a telephone, too, can be read"
            assert await tab.run(f"{boxes}.every(b => b.left >= 0 && b.right <= innerWidth)")
        assert tab.complaints == []
        assert set(tab.requests) == {out.as_uri()}
