"""A headless Chromium, driven over its DevTools socket: what the page's tests need and no more."""

import asyncio
import base64
import contextlib
import json
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
START_S = 20.0
ANSWER_S = 15.0


class Page:
    """One tab. Keeps what it requested and what its console said."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.requests: list[str] = []
        self.complaints: list[str] = []  # errors and warnings of console, page and network
        self._socket = socket
        self._number = 0
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}

    async def listen(self) -> None:
        """Take in what the browser says, until it ends."""
        async for frame in self._socket:
            said = json.loads(frame.data)
            if "id" in said:
                self._answers.pop(said["id"]).set_result(said)
            else:
                self._note(said["method"], said["params"])

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One DevTools command."""
        self._number += 1
        answer = self._answers[self._number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": self._number, "method": method, "params": parameters})
        async with asyncio.timeout(ANSWER_S):
            said: dict[str, Any] = await answer
        assert "error" not in said, said["error"]
        result: dict[str, Any] = said["result"]
        return result

    async def open(
        self, url: str, *, width: int = 1200, height: int = 900, dark: bool = False
    ) -> None:
        """Go to a page, as a screen of that size shows it."""
        for domain in ("Runtime", "Page", "Network", "Log"):
            await self.call(f"{domain}.enable")
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])
        await self.call("Page.navigate", url=url)
        await self.wait("location.protocol != 'about:' && document.readyState == 'complete'")

    async def run(self, expression: str) -> Any:
        """The value of a JavaScript expression, promises awaited."""
        answer = await self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    async def wait(self, expression: str, limit_s: float = 20.0) -> Any:
        """Until the expression is true; its value."""
        async with asyncio.timeout(limit_s):
            while not (value := await self.run(expression)):
                await asyncio.sleep(0.1)
        return value

    async def picture(self, path: Path) -> None:
        """A PNG of the whole page."""
        shot = await self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def _note(self, method: str, said: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(said["request"]["url"])
        elif method == "Runtime.consoleAPICalled" and said["type"] in (
            "error",
            "warning",
            "assert",
        ):
            self.complaints.append(str(said["args"]))
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(str(said["exceptionDetails"]))
        elif method == "Log.entryAdded" and said["entry"]["level"] in ("error", "warning"):
            self.complaints.append(f"{said['entry']['text']} {said['entry'].get('url', '')}")


@contextlib.asynccontextmanager
async def browser() -> AsyncIterator[Page]:
    """A fresh Chromium with one empty tab; gone at the end."""
    assert CHROMIUM is not None
    with tempfile.TemporaryDirectory(
        prefix="p2pc-chromium-", ignore_cleanup_errors=True
    ) as profile:
        process = subprocess.Popen(
            [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             "--no-first-run", "--disable-background-networking", "--disable-component-update",
             f"--user-data-dir={profile}", "--remote-debugging-port=0", "about:blank"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            async with aiohttp.ClientSession() as http:
                port = await _port(Path(profile) / "DevToolsActivePort")
                async with http.get(f"http://127.0.0.1:{port}/json/list") as answer:
                    tabs = [tab for tab in await answer.json() if tab["type"] == "page"]
                url = tabs[0]["webSocketDebuggerUrl"]
                async with http.ws_connect(url, max_msg_size=64 << 20) as socket:
                    page = Page(socket)
                    async with asyncio.TaskGroup() as tasks:
                        listener = tasks.create_task(page.listen())
                        try:
                            yield page
                        finally:
                            listener.cancel()
        finally:
            process.kill()
            process.wait()


async def _port(file: Path) -> int:
    async with asyncio.timeout(START_S):
        while not (file.exists() and file.read_text().strip()):
            await asyncio.sleep(0.05)
    return int(file.read_text().split()[0])
