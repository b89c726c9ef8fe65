"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const W = 480, H = 250, LEFT = 60, R = 18, T = 12, B = 30, NS = "http://www.w3.org/2000/svg";
  const DASHES = ["", "6 3", "2 3"];
  const UNITS = { step: "step", seconds: "time", samples: "samples" };
  let axis = "step", log = false;
  const num = (v) => (typeof v === "string" ? Number(v) : v);
  const short = (v, digits = 3) => {
    const a = Math.abs(v);
    for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) if (a >= size) return +(v / size).toPrecision(digits) + unit;
    if (a > 0 && a < 0.01) {
      const power = Math.floor(Math.log10(a) + 1e-9);
      return +(v / 10 ** power).toPrecision(digits) + "e" + power;
    }
    return String(+v.toPrecision(digits));
  };
  const clock = (s, digits) => (s < 120 ? short(s, digits) + " s" : s < 7200 ? short(s / 60, digits) + " min" : short(s / 3600, digits) + " h");
  const labels = (values, text) => {
    let found = [];
    for (let digits = 3; digits < 13; digits++) {
      found = values.map((v) => text(v, digits));
      if (new Set(found).size === found.length) break;
    }
    return found;
  };
  const ticks = (lo, hi) => {
    const span = hi - lo;
    if (!(span > 0)) return [lo];
    const raw = span / 5, p = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 2.5, 5, 10].map((m) => m * p).find((s) => s >= raw * 0.999);
    const out = [];
    for (let i = Math.ceil(lo / step - 1e-9); i <= Math.floor(hi / step + 1e-9); i++) out.push(i * step);
    return out;
  };
  const limits = (lo, hi) => {
    if (!(lo <= hi)) return [0, 1];
    if (lo === hi) { const pad = Math.abs(lo) * 0.1 || 0.5; return [lo - pad, hi + pad]; }
    return [lo, hi];
  };
  const make = (name, attributes, text) => {
    const node = document.createElementNS(NS, name);
    for (const key in attributes) node.setAttribute(key, attributes[key]);
    if (text !== undefined) node.textContent = text;
    return node;
  };
  const xs = (line) => axis === "step" ? line.steps
    : axis === "seconds" ? line.seconds
      : line.steps.map((s) => (line.samples === null ? null : s * line.samples));

  const draw = (figure) => {
    const lines = data[figure.dataset.chart];
    let x0 = Infinity, x1 = -Infinity, y0 = Infinity, y1 = -Infinity;
    const shown = lines.map((line) => {
      const at = xs(line), points = [];
      line.values.forEach((raw, i) => {
        const y = num(raw), x = at[i];
        const ok = x !== null && Number.isFinite(y) && (!log || y > 0);
        const v = ok ? (log ? Math.log10(y) : y) : NaN;
        if (x === null) return;
        points.push([x, v, y]);
        x0 = Math.min(x0, x); x1 = Math.max(x1, x);
        if (ok) { y0 = Math.min(y0, v); y1 = Math.max(y1, v); }
      });
      return { line, points };
    });
    [y0, y1] = limits(y0, y1); [x0, x1] = limits(x0, x1);
    if (x0 > 0 && x0 < x1 / 2) x0 = 0;
    const rows = ticks(y0, y1), columns = ticks(x0, x1);
    const names = labels(rows, (y, digits) => short(log ? 10 ** y : y, digits));
    const L = Math.max(LEFT, 12 + 9 * Math.max(0, ...names.map((name) => name.length)));
    const px = (x) => L + ((x - x0) / (x1 - x0)) * (W - L - R);
    const py = (y) => H - B - ((y - y0) / (y1 - y0)) * (H - T - B);
    const svg = figure.querySelector("svg"), axes = svg.querySelector(".axes"), group = svg.querySelector(".lines");
    axes.replaceChildren(); group.replaceChildren();
    rows.forEach((y, i) => {
      axes.append(make("line", { class: "grid", x1: L, x2: W - R, y1: py(y), y2: py(y) }));
      axes.append(make("text", { x: L - 6, y: py(y) + 4, "text-anchor": "end" }, names[i]));
    });
    axes.append(make("line", { class: "base", x1: L, x2: W - R, y1: H - B, y2: H - B }));
    const below = labels(columns, axis === "seconds" ? clock : short);
    columns.forEach((x, i) => axes.append(make("text", { x: px(x), y: H - 9, "text-anchor": "middle" }, below[i])));
    for (const { line, points } of shown) {
      let d = "", pen = false;
      points.forEach(([x, y], i) => {
        if (!Number.isFinite(y)) { pen = false; return; }
        const follows = i + 1 < points.length && Number.isFinite(points[i + 1][1]);
        d += (pen ? "L" : "M") + px(x).toFixed(1) + " " + py(y).toFixed(1) + (pen || follows ? "" : "h.1");
        pen = true;
      });
      const dash = DASHES[Math.floor(line.run / 8) % 3], more = dash ? { "stroke-dasharray": dash } : {};
      group.append(make("path", { class: "line c" + (line.run % 8), d, ...more }));
    }
    figure.state = { shown, px, x0, x1, svg, L };
  };

  const point = (figure, x) => {
    const { shown, px, svg } = figure.state;
    const near = shown.map(({ line, points }) => {
      let best = null;
      for (const p of points) if (best === null || Math.abs(p[0] - x) < Math.abs(best[0] - x)) best = p;
      return [line, best];
    }).filter(([, p]) => p !== null);
    svg.querySelector(".cursor")?.remove();
    if (!near.length) return;
    const closest = near.reduce((a, b) => (Math.abs(a[1][0] - x) <= Math.abs(b[1][0] - x) ? a : b))[1][0];
    figure.at = closest;
    svg.append(make("line", { class: "cursor", x1: px(closest), x2: px(closest), y1: T, y2: H - B }));
    const where = axis === "seconds" ? clock(closest) : UNITS[axis] + " " + closest.toLocaleString("en");
    const values = near.slice(0, 6).map(([line, p]) => (near.length > 1 ? line.name + " " : "") + +p[2].toPrecision(5));
    figure.querySelector("output").textContent = where + ": " + values.join(", ") + (near.length > 6 ? ", ..." : "");
  };

  const figures = [...document.querySelectorAll("figure[data-chart]")];
  const redraw = () => { for (const figure of figures) { draw(figure); figure.at = null; figure.querySelector("output").textContent = ""; figure.querySelector(".cursor")?.remove(); } };
  for (const figure of figures) {
    draw(figure);
    const box = figure.querySelector(".plot");
    box.tabIndex = 0;
    box.addEventListener("pointermove", (event) => {
      const area = figure.state.svg.getBoundingClientRect();
      const L = figure.state.L, share = (((event.clientX - area.left) / area.width) * W - L) / (W - L - R);
      point(figure, figure.state.x0 + Math.min(1, Math.max(0, share)) * (figure.state.x1 - figure.state.x0));
    });
    box.addEventListener("keydown", (event) => {
      const sorted = [...new Set(figure.state.shown.flatMap(({ points }) => points.map((p) => p[0])))].sort((a, b) => a - b);
      if (!sorted.length) return;
      const now = figure.at == null ? -1 : sorted.indexOf(figure.at), last = sorted.length - 1;
      const to = { ArrowRight: now + 1, ArrowLeft: now - 1, Home: 0, End: last }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      point(figure, sorted[Math.min(last, Math.max(0, to))]);
    });
  }
  const tools = document.querySelector(".tools");
  if (tools) {
    tools.hidden = false;
    for (const button of tools.querySelectorAll("button")) button.addEventListener("click", () => {
      for (const other of button.parentElement.querySelectorAll("button")) other.setAttribute("aria-pressed", String(other === button));
      if (button.dataset.axis) axis = button.dataset.axis;
      if (button.dataset.scale) log = button.dataset.scale === "log";
      redraw();
    });
  }
})();
