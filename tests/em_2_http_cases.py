#!/usr/bin/env python3
"""Embedded: every case of tests/cases/http and json, as against the services."""

import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "it"))
from embedded import Server  # noqa: E402  (the path is set just above)

# 2020 to 2099, in Unix milliseconds.
WINDOW = {"start_ms": 1_577_836_800_000, "end_ms": 4_070_908_800_000}


def main():
    with tempfile.TemporaryDirectory(prefix="seckill-cases-") as name:
        server = Server(pathlib.Path(name), server__head_timeout_ms=3000, server__body_timeout_ms=3000)
        for sku, total in ((2001, 100_000), (2002, 100_000), (2009, 0)):
            server.open_sale(sku, total, activity=1001, **WINDOW)
        cases = ROOT / "tests" / "cases"
        host, port = server.public.split(":")
        done = subprocess.run([sys.executable, cases / "run_http.py", cases, host, port], capture_output=True, text=True,
                              check=False)
        print(done.stdout, done.stderr, sep="")
        assert done.returncode == 0, "cases differ"
        server.stop()


if __name__ == "__main__":
    main()
