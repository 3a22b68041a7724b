// What scripts add to the pages: copying, curves to point at, and news as it comes. Without them everything is there.
"use strict";
(() => {
  const seen = new WeakSet();
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  const copying = () => {
    if (!navigator.clipboard) return;
    for (const button of document.querySelectorAll("button[data-copy]")) {
      button.hidden = false;
      if (seen.has(button)) continue;
      seen.add(button);
      button.addEventListener("click", async () => {
        await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent);
        button.textContent = "Copied";
        setTimeout(() => { button.textContent = "Copy"; }, 1500);
      });
    }
  };

  const WHOLE = Array.from({ length: 15 }, (_, i) => [1, 2, 5].map((n) => n * 10 ** i)).flat();

  const pick = {
    step: (p) => p.step, tokens: (p) => p.tokens, time: (p, first) => (p.time - first.time) / 3600,
    cost: (p, first, unit) => Number(p.cost) / unit, round: (p) => p.round, loss: (p) => p.loss,
    rate: (p) => (p.tokens === null || !["lead", "final"].includes(p.state) ? null : p.tokens / Math.max(1, p.updated - p.started)),
  };

  const plot = async (figure) => {
    if (seen.has(figure) || !figure.querySelector("svg.chart") || !window.uPlot) return;
    seen.add(figure);
    const { plot: path, rows: name, x, y, name: label, unit } = figure.dataset;
    const answer = await fetch(path, { headers: { Accept: "application/json" } });
    if (!answer.ok) return;
    const rows = (await answer.json())[name];
    const points = rows.map((p) => [pick[x](p, rows[0], Number(unit)), pick[y](p, rows[0])])
      .filter(([a, b]) => typeof a === "number" && typeof b === "number");
    if (points.length < 2 || !figure.isConnected) return;
    // A step or a round has no half.
    const whole = points.every(([a]) => Number.isInteger(a));
    const width = () => Math.max(240, figure.clientWidth - 2 * parseFloat(getComputedStyle(figure).paddingLeft));
    const axis = { stroke: colour("--soft"), grid: { stroke: colour("--rule"), width: 1 }, ticks: { stroke: colour("--rule") } };
    const place = document.createElement("div");
    figure.append(place);
    const options = {
      width: width(), height: 280, scales: { x: { time: false } }, axes: [{ ...axis, label, ...(whole ? { incrs: WHOLE } : {}) }, { ...axis, size: 64 }],
      series: [{ label }, { label: y === "rate" ? "tokens/s" : "loss", stroke: colour(y === "rate" ? "--b" : "--a"), width: 2, value: (_, v) => (v === null ? "–" : String(v)) }],
    };
    const drawn = new window.uPlot(options, [points.map((p) => p[0]), points.map((p) => p[1])], place);
    for (const svg of figure.querySelectorAll("svg.chart")) {
      svg.setAttribute("hidden", "");
      svg.classList.add("replaced");
    }
    new ResizeObserver(() => { if (figure.isConnected && drawn.width !== width()) drawn.setSize({ width: width(), height: 280 }); }).observe(figure);
  };

  const enhance = () => {
    copying();
    for (const figure of document.querySelectorAll("figure[data-plot]")) plot(figure).catch(() => {});
  };

  // -- news

  let timer = 0;
  const renew = () => {
    clearTimeout(timer);
    timer = setTimeout(() => {
      const main = document.getElementById("main");
      // What somebody reads or has opened is not taken away.
      if (document.hidden || main.querySelector("details[open]") || String(getSelection())) { renew(); return; }
      window.htmx.ajax("GET", location.pathname + location.search, { target: "#main", select: "#main", selectOOB: "#index", swap: "outerHTML" })
        .then(enhance).catch(() => {});
    }, 1500);
  };

  const concerns = (news) => {
    const [, kind, id] = location.pathname.split("/");
    if (kind === "runs" && id) return news.job === id;
    if (kind === "disputes" && id) return news.game === id;
    return kind !== "status";
  };

  const listen = () => {
    const main = document.getElementById("main");
    if (!window.EventSource || !window.htmx || main.dataset.live !== "on") return;
    const live = document.getElementById("live");
    const source = new EventSource("/api/v1/stream");
    source.addEventListener("open", () => { live.textContent = "Live."; });
    source.addEventListener("error", () => { live.textContent = "Reconnecting."; });
    source.addEventListener("chain", (message) => { if (concerns(JSON.parse(message.data))) renew(); });
    source.addEventListener("reset", renew);
    addEventListener("pagehide", () => source.close());
  };

  document.addEventListener("DOMContentLoaded", () => { enhance(); listen(); });
})();
