// What the page does beyond htmx: it draws the charts, pauses, dims itself while weir does
// not answer, drops old events, and follows the sliders.
"use strict";

(() => {
  const points = 600; // ten minutes
  const maxEvents = 200; // rows
  const patience = 5000; // milliseconds without a message
  const live = document.getElementById("live");
  const pause = document.getElementById("pause");
  const missed = new Map(); // the latest text of each panel, while paused
  let paused = false, ended = false, last = Date.now(), said = "";

  const say = (text, stale) => {
    if (text === said) return;
    said = text;
    live.textContent = text;
    live.classList.toggle("stale", stale);
  };

  // What is shown is old: it says so, and nothing can be clicked.
  const gone = document.getElementById("gone");
  let since = "";
  const dim = (text) => {
    if (text === since) return;
    since = text;
    gone.textContent = text;
    document.body.classList.toggle("dim", text !== "");
  };

  // The charts, with the style sheet's colours.
  const rate = (v) => {
    if (v === null || v === undefined) return "–";
    for (const [unit, size] of [["G", 1e9], ["M", 1e6], ["k", 1e3]]) if (v >= size) return +(v / size).toFixed(1) + " " + unit + "pps";
    return Math.round(v) + " pps";
  };
  const charts = [];
  const newChart = (id, data, letters, incrs, height, zooms) => {
    const box = document.getElementById(id);
    if (!box) return {draw() {}, set() {}};
    const clock = (seconds) => {
      const date = new Date(seconds * 1000), time = date.toTimeString().slice(0, letters);
      return plot && plot.scales.x.max - plot.scales.x.min > 172800 ? date.toLocaleDateString() : time;
    };
    const size = () => ({width: box.clientWidth || 300, height});
    let plot = null, zoomed = false, marks = [];
    // Changes are vertical lines, and the nearest one is named.
    const lines = (u) => {
      const {left, top, width, height} = u.bbox;
      u.ctx.save();
      u.ctx.strokeStyle = getComputedStyle(document.documentElement).getPropertyValue("--warn").trim();
      u.ctx.lineWidth = 1;
      u.ctx.setLineDash([]);
      for (const [time] of marks) {
        const x = Math.round(u.valToPos(time, "x", true)) + 0.5;
        if (x < left || x > left + width) continue;
        u.ctx.beginPath();
        u.ctx.moveTo(x, top);
        u.ctx.lineTo(x, top + height);
        u.ctx.stroke();
      }
      u.ctx.restore();
    };
    const nearest = (time, span) => {
      const near = marks.filter((m) => Math.abs(m[0] - time) < span / 100).sort((a, b) => Math.abs(a[0] - time) - Math.abs(b[0] - time))[0];
      const text = document.getElementById("mark");
      if (near && text) text.textContent = new Date(near[0] * 1000).toLocaleString() + ": " + near[1];
    };
    const chart = {
      draw() {
        if (plot) plot.destroy();
        const style = getComputedStyle(document.documentElement);
        const colour = (name) => style.getPropertyValue(name).trim();
        const axis = {stroke: colour("--quiet"), grid: {stroke: colour("--line"), width: 1}, ticks: {stroke: colour("--line"), width: 1}};
        plot = new uPlot({
          ...size(),
          hooks: {draw: [lines], setCursor: [(u) => { if (u.cursor.left >= 0) nearest(u.posToVal(u.cursor.left, "x"), u.scales.x.max - u.scales.x.min); }],
            setScale: [(u, key) => { if (key === "x") zoomed = zooms && data[0].length > 0 && (u.scales.x.min > data[0][0] || u.scales.x.max < data[0].at(-1)); }]},
          cursor: {drag: {x: zooms, y: false}},
          legend: {show: zooms},
          scales: {y: {range: (_, min, max) => [0, Math.max(10, max * 1.1)]}},
          axes: [{...axis, size: 34, space: 90, incrs, values: (_, all) => all.map(clock)}, {...axis, size: 85, space: 25, values: (_, all) => all.map(rate)}],
          series: [
            {label: "time", value: (_, v) => (v === null ? "–" : clock(v))},
            {label: "passed", stroke: colour("--passed"), width: 2, points: {show: false}, value: (_, v) => rate(v)},
            {label: "dropped", stroke: colour("--dropped"), width: 2, dash: [6, 4], points: {show: false}, value: (_, v) => rate(v)},
          ],
        }, data, box);
      },
      set(points, changes = []) {
        data = points;
        marks = changes;
        if (plot) plot.setData(data, !zoomed); else chart.draw();
      },
    };
    new ResizeObserver(() => { if (plot) plot.setSize(size()); }).observe(box);
    charts.push(chart);
    return chart;
  };
  const now = newChart("chart", [], 8, [1, 2, 5, 10, 15, 30, 60, 120], 100, false);
  const past = newChart("past", [], 5, [60, 300, 600, 1800, 3600, 7200, 14400, 86400, 432000], 190, true);
  const data = JSON.parse(document.getElementById("chart")?.dataset.points || "[[],[],[]]");
  const take = () => {
    const figures = document.getElementById("figures");
    if (!figures) return;
    const time = +figures.dataset.time, n = data[0].length;
    if (n && data[0][n - 1] >= time) return;
    data[0].push(time); data[1].push(+figures.dataset.passed); data[2].push(+figures.dataset.dropped);
    if (n >= points) data.forEach((series) => series.shift());
    now.set(data);
  };
  const takePast = () => {
    const history = document.getElementById("history"), box = document.getElementById("past");
    const points = history ? JSON.parse(history.dataset.points) : [[]];
    if (box) box.hidden = points[0].length < 3 || points[1].filter((v) => v !== null).length < 3; // no curve yet
    if (history && !box.hidden) past.set(points, JSON.parse(history.dataset.marks));
  };
  take();
  takePast();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => charts.forEach((chart) => chart.draw()));

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
  // What answers, but not to this session, does not come back.
  document.body.addEventListener("htmx:sseError", async () => {
    const answer = await fetch(location.pathname, {method: "HEAD"}).catch(() => null);
    if (answer?.status === 403) ended = true;
  });
  document.body.addEventListener("htmx:afterSwap", (e) => { if (e.target.id === "p-history") takePast(); });
  // The lists and the history are asked for again and again.
  document.body.addEventListener("htmx:beforeRequest", (e) => {
    if ((paused || since) && e.target.matches("#lists-poll, #history-form") && !e.detail.requestConfig.triggeringEvent) e.preventDefault();
  });
  if (document.body.hasAttribute("sse-connect")) setInterval(() => {
    const silent = Date.now() - last > patience;
    if (ended) dim("The session has ended. weir console on the host prints a URL for another one.");
    else dim(silent ? "weir has not answered since " + new Date(last).toLocaleTimeString() + ". What is shown is old. The page goes on by itself as soon as weir answers." : "");
    if (ended) say("The session has ended", true);
    else if (silent) say("Not live", true);
    else if (paused) say("Paused", true);
    else say("Live", false);
  }, 500);

  // A question is answered at once by the keyboard.
  document.body.addEventListener("htmx:afterSettle", (e) => { if (e.target.id === "result") document.getElementById("sure")?.focus(); });

  // Moving a slider changes the plan's options.
  document.getElementById("plan-form")?.addEventListener("input", (e) => {
    const given = document.getElementById("given-" + e.target.dataset.given);
    if (given) given.checked = true;
  });

  pause.hidden = !document.body.hasAttribute("sse-connect");
  pause.addEventListener("click", () => {
    paused = !paused;
    pause.setAttribute("aria-pressed", paused);
    pause.textContent = paused ? "Go on" : "Pause";
    if (paused) return;
    for (const [panel, text] of missed) htmx.swap(panel, text, {swapStyle: "innerHTML"});
    missed.clear();
    take();
    takePast();
  });
})();
