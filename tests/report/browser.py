"""A headless Chromium, driven through chromedriver's W3C interface."""

from __future__ import annotations

import base64
import contextlib
import json
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
]


class Programs(NamedTuple):
    """The paths of what is needed."""

    browser: str
    driver: str


def installed() -> Programs | None:
    """The programs, or None if one is missing."""
    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    return Programs(browser, driver) if browser and driver else None


class Browser:
    """A session: one window.

    Args:
        url: of the session at chromedriver.
    """

    def __init__(self, url: str) -> None:
        self.url = url

    def open(self, page: Path) -> None:
        """Load a page from the disk."""
        _call(f"{self.url}/url", {"url": page.as_uri()})

    def run(self, script: str, *arguments: Any) -> Any:
        """What a JavaScript function's body returns."""
        return _call(f"{self.url}/execute/sync", {"script": script, "args": arguments})

    def command(self, name: str, **parameters: Any) -> Any:
        """A command of the DevTools protocol."""
        return _call(f"{self.url}/goog/cdp/execute", {"cmd": name, "params": parameters})

    def width(self, pixels: int, height: int = 844) -> None:
        """Lay out for a screen of this width."""
        self.command(
            "Emulation.setDeviceMetricsOverride", width=pixels, height=height, deviceScaleFactor=1, mobile=pixels < 600
        )

    def media(self, scheme: str = "light", media: str = "screen") -> None:
        """Prefer a colour scheme, or print."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.command("Emulation.setEmulatedMedia", media=media, features=features)

    def log(self, kind: str) -> list[dict[str, Any]]:
        """What the console (``browser``) or DevTools (``performance``) said since it was last asked."""
        found: list[dict[str, Any]] = _call(f"{self.url}/se/log", {"type": kind})
        return found

    def requests(self) -> list[str]:
        """Addresses that were asked for since the log was last read."""
        messages = [json.loads(entry["message"])["message"] for entry in self.log("performance")]
        return [one["params"]["request"]["url"] for one in messages if one["method"] == "Network.requestWillBeSent"]

    def screenshot(self, file: Path) -> None:
        """Write what is seen as PNG."""
        file.write_bytes(base64.b64decode(_call(f"{self.url}/screenshot")))


def _call(url: str, content: Any = None, method: str | None = None) -> Any:
    data = None if content is None else json.dumps(content).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read())["value"]


@contextlib.contextmanager
def browser(programs: Programs, profile: Path) -> Iterator[Browser]:
    """Start a browser with an empty profile, and end it."""
    driver = subprocess.Popen([programs.driver, "--port=0"], stdout=subprocess.PIPE, text=True)
    try:
        assert driver.stdout is not None
        port = next(
            found[1] for line in driver.stdout if (found := re.search(r"started successfully on port (\d+)", line))
        )
        root = f"http://127.0.0.1:{port}/session"
        options = {"binary": programs.browser, "args": [*FLAGS, f"--user-data-dir={profile}"]}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"}}
        session = f"{root}/{_call(root, {'capabilities': {'alwaysMatch': wanted}})['sessionId']}"
        try:
            yield Browser(session)
        finally:
            _call(session, method="DELETE")
    finally:
        driver.terminate()
        driver.communicate()
