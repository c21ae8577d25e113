#!/usr/bin/env python3
"""The dashboard in a real browser during a real sale on the services: its numbers are those of the metrics and of PostgreSQL.

Pictures of it, light, dark and as on a phone, are left in .stack/it/dashboard.
"""

import sys
import threading
import time

sys.path.insert(0, __file__.rsplit("/", 1)[0] + "/it")
from browser import Browser  # noqa: E402
from world import ROOT, Click, World, drive, wait_for  # noqa: E402

UNITS, BUYERS, RATE = 2_500, 4_000, 500
TOKEN = "a-token-of-thirty-two-characters"
PICTURES = ROOT / ".stack" / "it" / "dashboard"


def shown_sale(browser, sale, column):
    """A number of the sale's row."""
    return browser.run("""
        for (const row of document.querySelectorAll("#sales tbody tr"))
          if (row.cells[0].textContent === arguments[0]) return Number(row.querySelector("output." + arguments[1]).dataset.value);
        return null""", f"{sale[0]} / {sale[1]}", column)


def widths(browser):
    """The page and the window: nothing may stick out sideways."""
    return browser.run("return [document.documentElement.scrollWidth, window.innerWidth]")


def main():
    with World("dashboard") as world, Browser() as browser:
        world.end_other_sales()
        process = world.start("all", shards__count=2, recovery__reconcile_ms=500, admin__token="")
        sale = world.sale(UNITS)
        browser.open(f"http://{process.admin}/")
        wait_for("a ready lamp", lambda: browser.text("#ready") == "ready", 15)
        clicks = [Click(user) for user in range(1, BUYERS + 1)]
        load = threading.Thread(target=drive, args=([process], sale, clicks), kwargs={"rate": RATE}, daemon=True)
        load.start()
        peak, moved, left = 0.0, set(), []
        while load.is_alive():
            for tile in ("clicks", "accepted", "sold_out", "created", "p50", "p99", "p999", "creation"):
                if (browser.value("#" + tile) or 0) > 0:
                    moved.add(tile)
            peak = max(peak, browser.value("#clicks") or 0)
            left.append(shown_sale(browser, sale, "left"))
            time.sleep(0.3)
        load.join()
        assert 0.5 * RATE < peak < 2 * RATE, f"{peak} clicks a second shown, {RATE} made"
        assert len(moved) == 8, f"only these moved: {sorted(moved)}"
        falling = [value for value in left if value is not None]
        assert falling == sorted(falling, reverse=True) and len(set(falling)) > 3, falling

        wait_for("all orders", lambda: world.orders(sale) == UNITS, 30)
        totals = {"#funnel-accepted": "seckill_reservation_created_total", "#funnel-sent": "seckill_mq_sent_messages_total",
                  "#funnel-made": "seckill_order_created_total", "#funnel-visible": "seckill_result_projected_total"}
        for selector, name in totals.items():
            wait_for(f"{selector} as {name}", lambda s=selector, n=name: browser.value(s) == process.metric(n), 15)
        assert browser.value("#funnel-made") == world.orders(sale) == UNITS
        sold = world.count(f"SELECT sold_stock FROM seckill_inventory WHERE sku_id = {sale[1]}")
        wait_for("the sale's row", lambda: (shown_sale(browser, sale, "left"), shown_sale(browser, sale, "ordered"))
                 == (world.stock(sale), sold), 10)
        assert browser.value("#discrepancy") == process.metric("seckill_inventory_discrepancy") == 0
        rows = browser.run("return document.querySelectorAll('#shards tbody tr').length")
        assert rows == 2, rows
        lamps = browser.run("return [...document.querySelectorAll('#breakers .lamp')].map(lamp => lamp.textContent)")
        assert lamps == ["2 closed"] * 3, lamps

        # By keyboard: p pauses, the tab key reaches every control and every table that scrolls.
        browser.keys("p")
        assert browser.text("#pause") == "Go on"
        browser.keys("p")
        reached = set()
        for _ in range(12):
            browser.keys("\ue004")
            reached.add(browser.run("const e = document.activeElement; return e.id || e.getAttribute('aria-label') || e.className"))
        assert {"pause", "theme", "Sales", "Shards"} <= reached, reached

        browser.run("document.activeElement.blur(); scrollTo(0, 0)")
        for scheme in ("light", "dark"):
            browser.scheme(scheme)
            browser.size(1400, 1250)
            time.sleep(0.3)
            browser.picture(PICTURES / f"{scheme}.png")
        browser.size(390, 2600)
        time.sleep(0.3)
        browser.picture(PICTURES / "phone.png")
        page, window = widths(browser)
        assert page <= window, f"the page is {page} wide in a window of {window}"
        assert browser.complaints() == [], browser.complaints()
        assets = browser.run("return performance.getEntriesByType('resource').map(entry => entry.name)")
        assert all(name.startswith(f"http://{process.admin}/debug/overview") for name in assets), set(assets)
        assert process.stop() == 0, process.tail()

        # A breaker that opens shows, and so does what was logged.
        scene = world.start("query", shards__count=1, admin__token=TOKEN)
        browser.size(1400, 1000)
        browser.open(f"http://{scene.admin}/")
        wait_for("the question", lambda: browser.run("return !document.getElementById('gate').hidden"), 10)
        browser.keys("not the token\n")
        wait_for("a no", lambda: browser.text("#denied") != "", 10)
        browser.run("document.getElementById('token').value = ''; document.getElementById('token').focus()")
        browser.keys(TOKEN + "\n")
        wait_for("the figures", lambda: browser.text("#ready") == "ready", 10)
        assert scene.stop() == 0
    print(f"{UNITS} orders watched at {peak:.0f} clicks a second; pictures in {PICTURES.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
