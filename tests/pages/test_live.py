"""A lie as it happens: the demo's processes, followed in Chromium; then its market, as somebody finds it with a URL.

make test-pages
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from lockstep.chain import games
from lockstep.chain.addresses import Addresses
from lockstep.chain.contracts import Contracts
from lockstep.chain.rpc import connect
from lockstep.protocol.dispute.moves import Convicted
from lockstep.protocol.types import GameId
from tests.support import chromium

pytestmark = [pytest.mark.slow, pytest.mark.chain, pytest.mark.pages, pytest.mark.timeout(2400)]

PICTURES = Path(__file__).parents[2] / "out/pages"
PATIENCE = 900
"""Seconds for a part of the demo, on a machine that does other things."""
CHECKED = re.compile(
    r"MATCH (?P<game>[0-9a-f]{64}): step (?P<step>\d+) of Program (?P<program>\w+), "
    r"op (?P<op>\d+) \(\w+ (?P<name>[^)]*)\), element (?P<element>\d+)(?:, chunk (?P<chunk>\d+))?: claimed "
    r"(?P<claimed>0x[0-9a-f]{8}), the contract computed (?P<contract>0x[0-9a-f]{8}), "
    r"this machine (?P<computed>0x[0-9a-f]{8})"
)


@dataclass
class Lie:
    """A market in which somebody lied, and what was seen of it meanwhile."""

    work: Path
    local: Path
    url: str = ""
    """The pages' address, while the market is kept."""
    told: dict[str, Any] = field(default_factory=dict)
    """`data` of the demo."""
    live: dict[str, Any] = field(default_factory=dict)

    def start(self, *arguments: str, **more: Any) -> subprocess.Popen[str]:
        environment = {**os.environ, "LOCKSTEP_LOCAL": str(self.local), "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(
            [sys.executable, "-m", "lockstep.cli.main", *arguments], cwd=self.work, env=environment,
            stdin=subprocess.DEVNULL, text=True, **more,
        )  # fmt: skip

    def run(self, *arguments: str) -> Any:
        """Data of a command with --json."""
        process = self.start(*arguments, "--json", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        out, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, out + err
        return json.loads(out)["data"]

    @property
    def game(self) -> str:
        """The page of the only game."""
        [game] = self.told["games"]
        return f"{self.url}/disputes/0x{game['game'].removeprefix('0x')}"

    @property
    def job(self) -> str:
        return "0x" + str(self.told["job"]).removeprefix("0x")


@pytest.fixture(scope="module")
def lie(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lie]:
    """The demo with a lie, watched while it goes on; then its market, kept."""
    folder = tmp_path_factory.mktemp("live")
    (folder / "work").mkdir()
    lie = Lie(folder / "work", folder / "local")
    out, err = folder / "out", folder / "err"
    try:
        with out.open("w") as stdout, err.open("w") as stderr:
            demo = lie.start("demo", "--keep", "--no-browser", "--json", stdout=stdout, stderr=stderr)
        try:
            lie.live = _watched(browser, _pages(demo, err))
            assert demo.wait(PATIENCE) == 0, out.read_text() + err.read_text()[-2000:]
        finally:
            demo.terminate()
            demo.wait(60)
        lie.told = json.loads(out.read_text())["data"]
        lie.url = lie.told["pages"].rstrip("/")
        yield lie
    finally:
        lie.start("local", "down").wait(120)


def _pages(demo: subprocess.Popen[str], err: Path) -> str:
    """The address that the demo prints before anybody has submitted a job."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        found = re.search(r"pages (http://\S+?)/: watch it", err.read_text())
        if found:
            return found[1]
        assert demo.poll() is None, err.read_text()[-2000:]
        time.sleep(0.2)
    raise AssertionError(f"no pages within {PATIENCE} s: {err.read_text()[-2000:]}")


def _watched(browser: Any, url: str) -> dict[str, Any]:
    """Runs, disputes, a run and its game, each opened once; what they say once the contract has spoken."""
    listed, said = chromium.opened(browser, f"{url}/disputes")
    listed.set_default_timeout(PATIENCE * 1000)
    runs = chromium.another(listed.context, f"{url}/", said)
    live: dict[str, Any] = {
        "said": said,
        "at_first": [listed.locator("main .empty").inner_text(), runs.locator("main .empty").first.inner_text()],
    }
    pages = [listed, runs]
    for page in pages:
        page.set_default_timeout(PATIENCE * 1000)
        page.get_by_text("Live.").wait_for()
        page.evaluate("window.kept = true")
    path = runs.locator(".card h2 a").first.get_attribute("href")
    pages.append(run := chromium.another(listed.context, url + path, said))
    run.set_default_timeout(PATIENCE * 1000)
    run.evaluate("window.kept = true")
    live["claims_at_first"] = run.locator("svg a[href^='/claims/']").count()
    path = listed.locator("tbody a[href^='/disputes/']").first.get_attribute("href")
    pages.append(game := chromium.another(listed.context, url + path, said))
    game.set_default_timeout(PATIENCE * 1000)
    game.evaluate("window.kept = true")
    live["moves_at_first"] = int(figures(game)["moves"])
    game.locator("#contract").wait_for()
    game.get_by_role("heading", name=re.compile("fraud")).wait_for()
    listed.locator("tbody tr", has_text="fraud").wait_for()
    run.locator(".legend .s-convicted").wait_for()
    PICTURES.mkdir(parents=True, exist_ok=True)
    game.screenshot(path=str(PICTURES / "live-dispute.png"), full_page=True)
    run.screenshot(path=str(PICTURES / "live-run.png"), full_page=True)
    live |= {
        "game": path.rpartition("/")[2], "values": values(game), "moves": int(figures(game)["moves"]),
        "claims": run.locator("svg a[href^='/claims/']").count(),
        "kept": [page.evaluate("window.kept === true") for page in pages],
    }  # fmt: skip
    # Whoever looks on is not told of what ends with the demo.
    listed.context.close()
    live["said"] = list(said)
    return live


def figures(page: Any) -> dict[str, str]:
    """The figures of a page by their names."""
    script = "Object.fromEntries([...document.querySelectorAll('.figures > div')].map((d) => \
        [d.querySelector('dt').textContent.trim(), d.querySelector('dd').textContent.trim()]))"
    return dict(page.evaluate(script))


def values(page: Any) -> dict[str, int]:
    """The bits that were claimed, and the contract's."""
    return {name: int(page.locator(f"#{name}").text_content(), 16) for name in ("claimed", "contract")}


def test_pages_follow_a_lie_without_a_reload(lie: Lie) -> None:
    live = lie.live
    assert live["said"] == [], "zero console errors"
    assert live["at_first"] == [
        "Nobody has challenged a claim yet.", "No job was submitted yet. This one trains a small model:",
    ]  # fmt: skip
    assert live["kept"] == [True] * 4, "disputes, runs, the run and its game were loaded once"
    assert live["claims"] > live["claims_at_first"], "cells came while it was looked at"
    assert live["moves"] >= live["moves_at_first"]
    [game] = lie.told["games"]
    assert live["game"].removeprefix("0x") == game["game"].removeprefix("0x")
    assert live["values"] == {"claimed": int(game["claimed_bits"], 16), "contract": int(game["contract_bits"], 16)}
    print(json.dumps({k: v for k, v in live.items() if k != "at_first"}))


def test_the_page_shows_the_number_of_the_event(browser: Any, lie: Lie) -> None:
    shown = lie.run("dispute", "show", lie.told["games"][0]["game"])
    state = lie.run("local", "status")
    addresses = Addresses.load(lie.local / "deployment.json")
    contracts = Contracts.at(connect(state["rpc"], addresses.chain_id), addresses)
    game = GameId(bytes.fromhex(lie.live["game"].removeprefix("0x")))
    log = games.log(contracts.game, game, addresses.block)
    [finding] = [event.finding for event in log if isinstance(event, Convicted)]
    page, said = chromium.opened(browser, lie.game)
    found, place = values(page), figures(page)
    for which, of_event in (("claimed", finding.claimed_bits), ("contract", finding.contract_bits)):
        assert found[which] == int.from_bytes(of_event[-4:], "big") == int(shown[f"{which}_bits"], 16)
    assert found["claimed"] != found["contract"]
    assert (place["Program"], place["step"].split(" of ")[0]) == (shown["program"], str(shown["step"]))
    assert (place["op"], place["module path"]) == (str(shown["op"]["index"]), shown["op"]["name"])
    assert int(place["op"]) == finding.position
    assert int(place["element"]) == finding.element == shown["element"]
    assert place["chunk"] == ("–" if shown["chunk"] is None else str(shown["chunk"]))
    assert int(place["moves"]) == len(shown["moves"])
    assert said == []
    page.context.close()


def test_losses_of_the_page_are_those_of_metrics(browser: Any, lie: Lie) -> None:
    losses = [point["loss"] for point in lie.run("train", "metrics", lie.told["job"])["losses"]]
    assert len(losses) > 1
    page, said = chromium.opened(browser, f"{lie.url}/runs/{lie.job}")
    third = page.locator("section[aria-labelledby=loss-title] tbody td:nth-child(3)")
    exact = "cells => cells.map((cell) => cell.title)"
    # The coordinator computes them after each merge, one by one.
    until = time.monotonic() + PATIENCE
    while len(ours := third.evaluate_all(exact)) < len(losses) and time.monotonic() < until:
        time.sleep(2)
        page.reload()
    assert ours == [str(loss) for loss in losses]
    assert [float(text).hex() for text in ours] == [loss.hex() for loss in losses], "to the bit"
    print(f"{len(losses)} losses to the bit, the last {ours[-1]}")
    assert said == []
    page.context.close()


def copied(page: Any) -> str:
    """Returns the text that the page's button puts onto the clipboard."""
    page.get_by_role("button", name="Copy").last.click()
    page.get_by_role("button", name="Copied").wait_for()
    return str(page.evaluate("navigator.clipboard.readText()"))


@pytest.fixture
def stranger(tmp_path: Path) -> Callable[[str], subprocess.CompletedProcess[str]]:
    """Pastes a line into a shell whose user has nothing of the market: no key, no home, no settings."""
    environment = {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": str(tmp_path), "OMP_NUM_THREADS": "1",
        "LOCKSTEP_LOCAL": str(tmp_path / "no-market"),
    }  # fmt: skip

    def pasted(line: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            line, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE
        )

    return pasted


def test_a_bystander_with_a_url_comes_to_the_number_by_links_and_computes_it_by_the_copied_command(
    browser: Any, lie: Lie, stranger: Any
) -> None:
    page, said = chromium.opened(browser, lie.url)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("navigation").get_by_role("link", name="Disputes").click()
    page.locator("tbody tr", has_text="fraud").locator("a[href^='/disputes/']").first.click()
    page.locator("#contract").wait_for()
    found, place, line = values(page), figures(page), copied(page)
    claim = page.locator("main .sub a[href^='/claims/']").get_attribute("href").rpartition("/")[2]
    game = lie.live["game"].removeprefix("0x")
    assert line == f"lockstep dispute check {game} --network {lie.url}"

    done = stranger(line)
    assert done.returncode == 0, done.stdout + done.stderr
    print(f"{line}: {done.stdout.strip()}")
    checked = CHECKED.search(done.stdout)
    assert checked is not None, done.stdout
    assert checked["game"] == game
    assert int(checked["claimed"], 16) == found["claimed"]
    assert int(checked["computed"], 16) == int(checked["contract"], 16) == found["contract"]
    assert checked["step"] == place["step"].split(" of ")[0]
    assert [checked[name] for name in ("program", "op", "name", "element")] == [
        place[name] for name in ("Program", "op", "module path", "element")
    ]
    assert (checked["chunk"] or "–") == place["chunk"]

    # The claim itself is a link further on; its command tells the lie by its own exit code.
    page.locator("main .sub a[href^='/claims/']").click()
    page.get_by_role("heading", name="Claim:").wait_for()
    line = copied(page)
    assert line == f"lockstep replay {claim.removeprefix('0x')} --network {lie.url}"
    done = stranger(line)
    assert done.returncode == 10, done.stdout + done.stderr
    assert f"computed 0x{found['contract']:08x}, the contract 0x{found['contract']:08x}" in done.stdout
    assert said == []
    page.context.close()


def test_every_pages_command_works_as_it_is_copied(browser: Any, lie: Lie, stranger: Any) -> None:
    page, said = chromium.opened(browser, lie.url)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    losses = [point["loss"] for point in lie.run("train", "metrics", lie.told["job"])["losses"]]
    for path, shows in (
        ("/", lie.told["job"].removeprefix("0x")[:8]),
        ("/disputes", lie.live["game"].removeprefix("0x")[:8]),
        ("/chain", "StakeVault"),
        ("/economy", " events"),
        (f"/runs/{lie.job}", ""),
    ):
        page.goto(lie.url + path, wait_until="load")
        line = copied(page)
        assert line.endswith(f" --network {lie.url}"), line
        if path.startswith("/runs/"):
            done = stranger(f"{line} --json")
            assert [point["loss"].hex() for point in json.loads(done.stdout)["data"]["losses"]] == [
                loss.hex() for loss in losses
            ], "to the bit, from a URL alone"
        else:
            done = stranger(line)
        assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
        assert shows in done.stdout, f"{line}: {done.stdout}"
    assert said == []
    page.context.close()


@pytest.mark.parametrize("look", chromium.LOOKS)
def test_every_page_of_a_live_market_is_without_faults(browser: Any, lie: Lie, look: str) -> None:
    first, _ = chromium.opened(browser, lie.game)
    claim = first.locator("main .sub a[href^='/claims/']").get_attribute("href")
    worker = first.locator("main .sub a[href^='/accounts/']").last.get_attribute("href")
    first.context.close()
    paths = ["/", f"/runs/{lie.job}", "/accounts", worker, "/disputes", f"/disputes/{lie.live['game']}", claim,
             "/economy", "/chain", "/status"]  # fmt: skip
    faults: list[str] = []
    for path in paths:
        page, said = chromium.opened(browser, lie.url + path, **chromium.LOOKS[look])
        page.wait_for_timeout(400)
        faults += [f"{path} {look}: {fault}" for fault in [*said, *chromium.serious(page)]]
        page.context.close()
    assert faults == [], "\n".join(faults)
