"""Runs Debian's Chromium through playwright, and reports defects of pages."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

AXE = Path(__file__).parents[2] / "out/axe/node_modules/axe-core/axe.min.js"
CHROMIUM = os.environ.get("LOCKSTEP_CHROMIUM") or shutil.which("chromium") or "/usr/bin/chromium"
LOOKS: dict[str, dict[str, Any]] = {
    "light": {"color_scheme": "light", "viewport": {"width": 1200, "height": 900}},
    "dark": {"color_scheme": "dark", "viewport": {"width": 1200, "height": 900}},
    "phone": {"color_scheme": "light", "viewport": {"width": 390, "height": 844}, "device_scale_factor": 2},
}


WIDTHS = (360, 390, 768, 1280)
"""The widths of windows at which nothing may be cut: two phones, a tablet, a desk."""
CUT = """() => {
  for (const details of document.querySelectorAll("details")) details.open = true;
  const name = (e) => `${e.tagName.toLowerCase()}.${e.getAttribute("class")} ${e.textContent.trim().slice(0, 60)}`;
  const found = [], wide = document.documentElement.clientWidth;
  for (const e of document.body.querySelectorAll("*")) {
    const box = e.getBoundingClientRect();
    if (!box.width || !box.height || e.closest(".skip") || e.closest(".uplot")) continue;
    const frame = e.ownerSVGElement ? e.ownerSVGElement.getBoundingClientRect() : { left: 0, right: wide };
    const beyond = Math.max(box.right - frame.right, frame.left - box.left);
    if (beyond > 1) found.push(`${name(e)}: ${beyond.toFixed(1)} px beyond its edge`);
    const boxed = getComputedStyle(e).display !== "inline" && !(e instanceof SVGElement);
    const inside = e.scrollWidth - e.clientWidth;
    if (boxed && inside > 1) found.push(`${name(e)}: its content is ${inside} px too wide`);
  }
  return found;
}"""
"""Opens what is folded, and returns each element that reaches beyond the window or its picture, or whose content does
not fit into it."""


@contextmanager
def started() -> Iterator[Any]:
    """Yields a headless browser."""
    from playwright.sync_api import sync_playwright

    assert Path(CHROMIUM).exists(), "no Chromium: `apt-get install chromium`, or name one in LOCKSTEP_CHROMIUM"
    with sync_playwright() as driver:
        # As root, Chromium runs without its own sandbox.
        running = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield running
        running.close()


def opened(browser: Any, url: str, **options: Any) -> tuple[Any, list[str]]:
    """Opens a page in a new context; returns it with the list of its console errors."""
    context = browser.new_context(locale="en-US", reduced_motion="reduce", **options)
    said: list[str] = []
    return another(context, url, said), said


def another(context: Any, url: str, said: list[str]) -> Any:
    """Opens one more page in a context; its console errors are appended to `said`."""
    page = context.new_page()
    page.on("console", lambda m: said.append(f"{m.type}: {m.text}") if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda e: said.append(f"exception: {e}"))
    page.goto(url, wait_until="load")
    return page


def serious(page: Any) -> list[str]:
    """Returns the serious and critical findings of axe, and the pixels by which a page is wider than its window."""
    assert AXE.exists(), "no axe-core: run `make test-pages`, which fetches it"
    wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    faults = [f"{wide} px too wide"] if wide > 1 else []
    page.evaluate(AXE.read_text())
    found = page.evaluate("axe.run().then((r) => r.violations)")
    return faults + [
        f"axe {v['impact']} {v['id']}: {v['nodes'][0]['html'][:160]}"
        for v in found
        if v["impact"] in ("serious", "critical")
    ]


def cut(page: Any) -> list[str]:
    """Returns what is cut on a page, or can be seen only by scrolling to the side."""
    return list(page.evaluate(CUT))
