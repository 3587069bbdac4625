// The timeline and the heatmap of a report: drawn on canvases from the columns of numbers that report.py put into the page.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const tip = document.getElementById("tip");
const ARRAYS = { u1: Uint8Array, i1: Int8Array, u2: Uint16Array, i2: Int16Array, u4: Uint32Array, i4: Int32Array, f4: Float32Array, f8: Float64Array };
const LEFT = 130, BOTTOM = 22; // pixels for names of rows, and for the axis
const OPEN = 1, NONBLOCKING = 2, KNOWN = 4, FAILED = 8, STOPPED = 16;
const ANY = -32767, NULL = -32766;

const column = ({ type, values }) => new ARRAYS[type](Uint8Array.from(atob(values), (c) => c.charCodeAt(0)).buffer);
const columns = (object) => Object.fromEntries(Object.entries(object).map(([name, value]) => [name, column(value)]));

function span(ns) {
  for (const [unit, length] of [["ns", 1], ["µs", 1e3], ["ms", 1e6]]) if (ns < 1000 * length) return `${+(ns / length).toPrecision(3)} ${unit}`;
  return ns < 120e9 ? `${+(ns / 1e9).toPrecision(4)} s` : `${(ns / 60e9).toFixed(1)} min`;
}

function bytes(count) {
  const power = count < 1000 ? 0 : Math.min(4, Math.floor(Math.log10(count) / 3));
  return `${+(count / 1000 ** power).toPrecision(3)} ${["bytes", "kB", "MB", "GB", "TB"][power]}`;
}

function show(event, text) {
  tip.textContent = text;
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - width - 8))}px`;
  tip.style.top = `${event.clientY + 18 + height > innerHeight ? Math.max(4, event.clientY - height - 10) : event.clientY + 18}px`;
}

function prepare(canvas, height) {
  const scale = devicePixelRatio || 1, width = canvas.parentElement.clientWidth;
  canvas.style.height = `${height}px`;
  canvas.width = width * scale;
  canvas.height = height * scale;
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  pen.clearRect(0, 0, width, height);
  pen.font = "11px system-ui, sans-serif";
  pen.textBaseline = "middle";
  return [pen, width];
}

function names(pen, rows, height) {
  let last = -Infinity;
  pen.fillStyle = "#57606a";
  pen.textAlign = "right";
  for (let i = 0; i < rows.length; i++) {
    const y = Math.max(6, (i + 0.5) * height);
    if (y - last < 11) continue; // no room
    pen.fillText(rows[i], LEFT - 6, y, LEFT - 8);
    last = y;
  }
}

// ---- timeline

function timeline() {
  const canvas = document.getElementById("timeline");
  if (!canvas) return () => {};
  const marks = columns(data.marks), rows = data.lanes, height = Math.max(3, Math.min(24, 560 / rows.length));
  const first = Array.from({ length: rows.length + 1 }, (_, row) => below(marks.lane, 0, marks.lane.length, row));
  let from = 0, to = data.span, drag = null;

  // the first index in [lo, hi) whose value is at least `value`, or hi
  function below(array, lo, hi, value) {
    while (lo < hi) {
      const middle = (lo + hi) >> 1;
      if (array[middle] < value) lo = middle + 1;
      else hi = middle;
    }
    return lo;
  }

  function draw() {
    const [pen, width] = prepare(canvas, rows.length * height + BOTTOM), right = width - 6;
    const x = (t) => LEFT + ((t - from) / (to - from)) * (right - LEFT);
    const room = height > 8 ? height - 2 : height - 0.5;
    names(pen, rows, height);
    axis(pen, x, right);
    pen.save();
    pen.beginPath();
    pen.rect(LEFT, 0, right - LEFT, rows.length * height);
    pen.clip();
    for (let row = 0; row < rows.length; row++) {
      const top = row * height;
      for (let i = Math.max(first[row], below(marks.begin, first[row], first[row + 1], from) - 1); i < first[row + 1] && marks.begin[i] <= to; i++) {
        const begin = x(marks.begin[i]), wide = Math.max(x(marks.begin[i] + marks.length[i]) - begin, 0.4);
        const colour = data.kinds[marks.kind[i]][1];
        if (marks.calls[i] > 1 && room < 8) // as dark as they are busy
          block(begin, top, wide, room, colour, Math.min(1, (marks.inside[i] - 0.65 * marks.waited[i]) / Math.max(marks.length[i], 1)));
        else if (marks.calls[i] > 1) { // stacked, by share of the time
          const whole = Math.max(marks.length[i], 1), busy = room * marks.inside[i] / whole, waiting = room * marks.waited[i] / whole;
          block(begin, top + room - busy, wide, waiting, colour, 0.35);
          block(begin, top + room - busy + waiting, wide, busy - waiting, colour, 1);
        } else if (marks.bits[i] & OPEN) {
          block(begin, top, wide, room, "#cf222e", 0.45);
          block(begin, top, Math.min(wide, 3), room, colour, 1);
        } else {
          const waiting = marks.length[i] > 0 ? wide * Math.min(marks.waited[i] / marks.length[i], 1) : 0;
          block(begin, top, waiting, room, colour, 0.35);
          block(begin + waiting, top, wide - waiting, room, colour, 1);
        }
      }
    }
    for (const { at, text } of data.flags) {
      block(x(at), 0, 1.5, rows.length * height, "#cf222e", 1);
      pen.textAlign = "left";
      pen.fillText(text, x(at) + 4, 7);
    }
    if (drag && !drag.pan) block(Math.min(drag.x, drag.now), 0, Math.abs(drag.now - drag.x), rows.length * height, "#1f6fc4", 0.2);
    pen.restore();

    function block(left, top, wide, high, colour, alpha) {
      pen.globalAlpha = alpha;
      pen.fillStyle = colour;
      pen.fillRect(left, top, wide, high);
      pen.globalAlpha = 1;
    }
  }

  function axis(pen, x, right) {
    const rough = ((to - from) * 110) / (right - LEFT), power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((n) => n * power).find((s) => s >= rough);
    const bottom = rows.length * height;
    pen.textAlign = "center";
    for (let t = Math.ceil(from / step) * step; t <= to; t += step) {
      pen.fillStyle = "#eaeef2";
      pen.fillRect(x(t), 0, 1, bottom);
      pen.fillStyle = "#57606a";
      pen.fillText(span(t), Math.min(x(t), right - 20), bottom + 12);
    }
    pen.fillStyle = "#b3bac2";
    for (const t of data.iterations) if (t >= from && t <= to) pen.fillRect(x(t), 0, 0.7, bottom);
  }

  function view(begin, end) {
    const length = Math.min(Math.max(end - begin, 50), data.span);
    from = Math.max(0, Math.min(begin, data.span - length));
    to = from + length;
    draw();
  }

  function when(event) {
    const box = canvas.getBoundingClientRect();
    return from + ((event.clientX - box.left - LEFT) / (box.width - 6 - LEFT)) * (to - from);
  }

  function at(event) {
    const box = canvas.getBoundingClientRect(), row = Math.floor((event.clientY - box.top) / height), t = when(event);
    if (row < 0 || row >= rows.length || event.clientX - box.left < LEFT) return "";
    const next = below(marks.begin, first[row], first[row + 1], t), near = (2 * (to - from)) / box.width;
    const over = next < first[row + 1] && marks.begin[next] - t < near ? next : next - 1; // the next one, if it is only just missed
    if (over >= first[row] && t <= marks.begin[over] + marks.length[over] + near) return `${rows[row]}\n${describe(marks, over)}`;
    const begin = over >= first[row] ? marks.begin[over] + marks.length[over] : NaN, end = next < first[row + 1] ? marks.begin[next] : data.span;
    return `${rows[row]}\n${begin === begin ? `outside MPI, for ${span(end - begin)} from ${span(begin)} on` : "no call yet"}`;
  }

  canvas.addEventListener("pointerdown", (event) => {
    const x = event.clientX - canvas.getBoundingClientRect().left;
    drag = { x, now: x, t: when(event), pan: event.shiftKey };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!drag) return show(event, at(event));
    drag.now = event.clientX - canvas.getBoundingClientRect().left;
    if (drag.pan) view(from + drag.t - when(event), to + drag.t - when(event));
    else draw();
    return undefined;
  });
  canvas.addEventListener("pointerup", (event) => {
    const done = drag;
    drag = null;
    if (done && !done.pan && Math.abs(done.now - done.x) > 4) view(Math.min(done.t, when(event)), Math.max(done.t, when(event)));
    else draw();
  });
  canvas.addEventListener("pointerleave", () => { tip.textContent = ""; });
  canvas.addEventListener("dblclick", () => view(0, data.span));
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    const factor = 1.0015 ** event.deltaY, t = when(event);
    view(t - (t - from) * factor, t + (to - t) * factor);
  }, { passive: false });
  for (const button of document.querySelectorAll("button[data-zoom]")) {
    button.addEventListener("click", () => {
      const half = ((to - from) / 2) * Number(button.dataset.zoom), middle = (from + to) / 2;
      view(middle - half, middle + half);
    });
  }
  addEventListener("resize", draw);
  draw();
  return (begin, end) => { view(begin - (end - begin) * 0.1, end + (end - begin) * 0.1); canvas.scrollIntoView({ block: "center" }); };
}

function describe(marks, i) {
  const call = (op, nonblocking) => { const name = data.ops[op]; return `MPI_${nonblocking ? `I${name[0].toLowerCase()}${name.slice(1)}` : name}`; };
  const when = `at ${span(marks.begin[i])}, for ${span(marks.length[i])}`;
  if (marks.calls[i] > 1)
    return `${marks.calls[i]} short calls, the longest ${call(marks.op[i], false)}\n${when}: ${span(marks.inside[i])} in MPI, ${span(marks.waited[i])} of it waiting`;
  const lines = [], bits = marks.bits[i], peer = marks.peer[i], what = marks.of[i] || marks.op[i];
  const other = peer === ANY ? "any rank" : peer === NULL ? "no rank" : `rank ${peer}`;
  const post = marks.of[i] ? ` for its ${call(marks.of[i], true)}` : "";
  const preposition = data.sends.includes(what) ? " to" : data.receives.includes(what) ? " from" : "";
  const end = peer < ANY ? "" : preposition ? `${preposition} ${other}` : peer >= 0 ? `, root or target ${peer}` : "";
  lines.push(`${call(marks.op[i], bits & NONBLOCKING)}${post}${end}${end && marks.tag[i] >= 0 ? `, tag ${marks.tag[i]}` : ""}, ${bytes(marks.bytes[i])}`);
  if (marks.comm[i] >= 0) lines.push(`on ${data.comms[marks.comm[i]]}`);
  if (marks.iteration && marks.iteration[i] >= 0) {
    const micro = marks.micro[i] >= 0 ? `micro-batch ${marks.micro[i]}` : "";
    lines.push([`iteration ${marks.iteration[i]}`, micro, data.phases[marks.phase[i]]].filter((text) => text).join(", "));
  }
  if (bits & OPEN) lines.push(`${when}: has not returned`);
  else if (bits & KNOWN) {
    const waited = marks.waited[i] ? `waited ${span(marks.waited[i])} for rank ${marks.who[i]}` : "no wait";
    lines.push(`${when}: ${waited}, transfer ${span(Math.max(marks.length[i] - marks.waited[i], 0))}`);
  } else lines.push(when);
  if (bits & FAILED) lines.push("returned an error");
  if (bits & STOPPED) lines.push("a checkpoint or a restart fell into it");
  return lines.join("\n");
}

// ---- heatmap

function heatmap(zoom) {
  const canvas = document.getElementById("heatmap");
  if (!canvas) return;
  const heat = data.heat, { value, ratio, begin, end } = columns(heat.cells);
  const wide = heat.columns.length, height = Math.max(4, Math.min(20, 420 / heat.rows.length));

  function colour(i) {
    const shown = ratio ? ratio[i] : value[i];
    if (shown !== shown) return "#e1e4e8";
    if (!ratio) return mix([255, 255, 255], [31, 79, 160], shown);
    const off = Math.max(-1, Math.min(1, Math.log2(shown)));
    return off > 0 ? mix([255, 248, 232], [178, 24, 43], off) : mix([255, 248, 232], [33, 102, 172], -off);
  }
  const mix = (a, b, share) => `rgb(${a.map((c, k) => Math.round(c + (b[k] - c) * share)).join(",")})`;

  function draw() {
    const [pen, width] = prepare(canvas, heat.rows.length * height + BOTTOM), cell = (width - 6 - LEFT) / wide;
    names(pen, heat.rows, height);
    for (let i = 0; i < value.length; i++) {
      pen.fillStyle = colour(i);
      pen.fillRect(LEFT + (i % wide) * cell, Math.floor(i / wide) * height, Math.max(cell - (cell > 4 ? 0.6 : 0), 0.5), height - (height > 6 ? 0.6 : 0));
    }
    pen.fillStyle = "#57606a";
    pen.textAlign = "center";
    for (let k = 0; k < wide; k += Math.ceil((ratio ? 34 : 90) / cell))
      pen.fillText(ratio ? heat.columns[k] : span(begin[k]), LEFT + (k + 0.5) * cell, heat.rows.length * height + 12);
  }

  function place(event) {
    const box = canvas.getBoundingClientRect();
    const row = Math.floor((event.clientY - box.top) / height), k = Math.floor(((event.clientX - box.left - LEFT) / (box.width - 6 - LEFT)) * wide);
    return row >= 0 && row < heat.rows.length && k >= 0 && k < wide ? [row, k] : null;
  }

  canvas.addEventListener("pointermove", (event) => {
    const found = place(event);
    if (!found) return show(event, "");
    const [row, k] = found, i = row * wide + k, where = ratio ? `iteration ${heat.columns[k]}` : `${span(begin[k])} to ${span(end[k])}`;
    const what = ratio ? `${span(value[i] * 1e9)} of own work, ${+ratio[i].toPrecision(3)} times what is usual in its stage` : `${(100 * value[i]).toFixed(0)} % of the time in MPI`;
    return show(event, `${heat.rows[row]}, ${where}\n${value[i] === value[i] ? what : "not known"}`);
  });
  canvas.addEventListener("pointerleave", () => { tip.textContent = ""; });
  canvas.addEventListener("click", (event) => { const found = place(event); if (found) zoom(begin[found[1]], end[found[1]]); });
  addEventListener("resize", draw);
  draw();
}

heatmap(timeline());
