"""A real browser, driven over WebDriver (<https://www.w3.org/TR/webdriver2/>). Standard library only; needs Debian's chromium-driver."""

import base64
import contextlib
import json
import pathlib
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

import ports


class Browser:
    """One window of Chromium without a screen. A context manager."""

    def __init__(self):
        driver = shutil.which("chromedriver")
        assert driver, "chromedriver is not installed: run tests/stack install"
        [self.port] = ports.unused()
        self.profile = tempfile.mkdtemp(prefix="seckill-browser-")
        self.driver = subprocess.Popen([driver, f"--port={self.port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end = time.monotonic() + 20
        while True:
            with contextlib.suppress(OSError):
                if self._http("GET", "/status")["ready"]:
                    break
            assert time.monotonic() < end, "chromedriver does not answer"
            time.sleep(0.1)
        # Without the sandbox, as tests may run as root in a container; without the network beyond this machine.
        arguments = ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--hide-scrollbars",
                     f"--user-data-dir={self.profile}", "--window-size=1400,1000", "--no-first-run",
                     "--disable-background-networking", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]
        made = self._http("POST", "/session", {"capabilities": {"alwaysMatch": {
            "browserName": "chrome", "goog:chromeOptions": {"args": arguments}, "goog:loggingPrefs": {"browser": "ALL"}}}})
        self.session = f"/session/{made['sessionId']}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.suppress(Exception):
            self._http("DELETE", self.session)
        self.driver.terminate()
        self.driver.wait(10)
        shutil.rmtree(self.profile, ignore_errors=True)

    def _http(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, {"Content-Type": "application/json"},
                                         method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                return json.load(reply)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{method} {path}: {error.read().decode()[:600]}") from None

    def open(self, url):
        self._http("POST", self.session + "/url", {"url": url})

    def run(self, script, *arguments):
        """Runs the body of a function in the page; what it returns."""
        return self._http("POST", self.session + "/execute/sync", {"script": script, "args": list(arguments)})

    def text(self, selector):
        return self.run("const node = document.querySelector(arguments[0]); return node && node.textContent", selector)

    def value(self, selector):
        """The number behind what is shown; None while there is none."""
        value = self.run("const node = document.querySelector(arguments[0]); return node && node.dataset.value", selector)
        return float(value) if value not in (None, "") else None

    def keys(self, text):
        """Typed at whatever has the focus."""
        actions = [{"type": kind, "value": key} for key in text for kind in ("keyDown", "keyUp")]
        self._http("POST", self.session + "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def size(self, width, height):
        self._http("POST", self.session + "/chromium/send_command", {"cmd": "Emulation.setDeviceMetricsOverride", "params": {
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}})

    def scheme(self, name):
        """light | dark"""
        self._http("POST", self.session + "/chromium/send_command", {"cmd": "Emulation.setEmulatedMedia", "params": {
            "features": [{"name": "prefers-color-scheme", "value": name}]}})

    def picture(self, path):
        """The window as PNG."""
        path = pathlib.Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(self._http("GET", self.session + "/screenshot")))

    def complaints(self):
        """What the page wrote to the console as a warning or an error."""
        entries = self._http("POST", self.session + "/se/log", {"type": "browser"})
        return [entry["message"] for entry in entries if entry["level"] in ("WARNING", "SEVERE")]
