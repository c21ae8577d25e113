#!/usr/bin/env python3
"""Every case of tests/cases/http and json against the running server, over real sockets."""

import subprocess
import sys

sys.path.insert(0, __file__.rsplit("/", 1)[0] + "/it")
from world import PATIENT, ROOT, World

ACTIVITY = 1001


def main():
    with World("cases") as world:
        for sku, total in ((2001, 100_000), (2002, 100_000), (2009, 0)):
            # A fixed window, so that a second run finds the same sales.
            world.sale(total, activity=ACTIVITY, sku=sku, starts="2020-01-01T00:00:00Z", ends="2099-01-01T00:00:00Z")
        server = world.start("all", server__head_timeout_ms=3000, server__body_timeout_ms=3000, **PATIENT)
        cases = ROOT / "tests" / "cases"
        done = subprocess.run([sys.executable, cases / "run_http.py", cases, server.host, str(server.port)],
                              capture_output=True, text=True, check=False)
        print(done.stdout, done.stderr, sep="")
        assert done.returncode == 0, "cases differ"
        assert server.metric("seckill_task_panics_total") == 0
        assert server.stop() == 0, server.tail()


if __name__ == "__main__":
    main()
