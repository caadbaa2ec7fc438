// What the page does beyond htmx: it draws the chart, pauses, says when it is not live,
// and drops old events.
"use strict";

(() => {
  const points = 600; // ten minutes
  const maxEvents = 200; // rows
  const patience = 5000; // milliseconds without a message
  const live = document.getElementById("live");
  const pause = document.getElementById("pause");
  const chartBox = document.getElementById("chart");
  const missed = new Map(); // the latest text of each panel, while paused
  let paused = false, ended = false, last = Date.now(), said = "";

  const say = (text, stale) => {
    if (text === said) return;
    said = text;
    live.textContent = text;
    live.classList.toggle("stale", stale);
  };

  // The chart, whose colours are those of the style sheet.
  const data = [[], [], []];
  let chart = null;
  const rate = (v) => {
    if (v === null || v === undefined) return "–";
    for (const [unit, size] of [["G", 1e9], ["M", 1e6], ["k", 1e3]]) if (v >= size) return +(v / size).toFixed(1) + " " + unit + "pps";
    return Math.round(v) + " pps";
  };
  const clock = (seconds) => new Date(seconds * 1000).toTimeString().slice(0, 8);
  const draw = () => {
    if (chart) chart.destroy();
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const axis = {stroke: colour("--quiet"), grid: {stroke: colour("--line"), width: 1}, ticks: {stroke: colour("--line"), width: 1}};
    chart = new uPlot({
      width: chartBox.clientWidth || 300, height: 190,
      cursor: {drag: {x: false, y: false}},
      scales: {y: {range: (_, min, max) => [0, Math.max(10, max * 1.1)]}},
      axes: [{...axis, space: 90, incrs: [1, 2, 5, 10, 15, 30, 60, 120], values: (_, all) => all.map(clock)}, {...axis, size: 85, values: (_, all) => all.map(rate)}],
      series: [
        {label: "time", value: (_, v) => (v === null ? "–" : clock(v))},
        {label: "passed", stroke: colour("--passed"), width: 2, value: (_, v) => rate(v)},
        {label: "dropped", stroke: colour("--dropped"), width: 2, dash: [6, 4], value: (_, v) => rate(v)},
      ],
    }, data, chartBox);
  };
  const take = () => {
    const now = document.getElementById("figures");
    if (!now) return;
    const time = +now.dataset.time, n = data[0].length;
    if (n && data[0][n - 1] >= time) return;
    data[0].push(time); data[1].push(+now.dataset.passed); data[2].push(+now.dataset.dropped);
    if (n >= points) data.forEach((series) => series.shift());
    if (chart) chart.setData(data); else draw();
  };
  chartBox.style.height = "auto";
  take();
  new ResizeObserver(() => { if (chart) chart.setSize({width: chartBox.clientWidth || 300, height: 190}); }).observe(chartBox);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { if (chart) draw(); });

  // Messages of the stream.
  document.body.addEventListener("htmx:sseBeforeMessage", (e) => {
    last = Date.now();
    if (!paused) return;
    e.preventDefault();
    if (e.target.id !== "event-rows") missed.set(e.target, e.detail.data);
  });
  document.body.addEventListener("htmx:sseMessage", (e) => {
    if (e.target.id === "p-now") take();
    if (e.target.id === "event-rows") while (e.target.rows.length > maxEvents) e.target.deleteRow(-1);
  });
  document.body.addEventListener("htmx:sseClose", (e) => { if (e.target === document.body) ended = true; });
  setInterval(() => {
    if (ended) say("The session has ended: run weir console for another one.", true);
    else if (paused) say("Paused", true);
    else if (Date.now() - last > patience) say("Not live: nothing was heard since " + new Date(last).toLocaleTimeString(), true);
    else say("Live", false);
  }, 1000);

  pause.hidden = false;
  pause.addEventListener("click", () => {
    paused = !paused;
    pause.setAttribute("aria-pressed", paused);
    pause.textContent = paused ? "Go on" : "Pause";
    if (paused) return;
    for (const [panel, text] of missed) htmx.swap(panel, text, {swapStyle: "innerHTML"});
    missed.clear();
    take();
  });
})();
