// The score matrix, by tiles.

/** The score matrix as a grid of tiles, Q and O along its rows, K and V along its columns. */
class Grid {
  constructor(run, canvas, legend) {
    this.run = run, this.canvas = canvas;
    canvas.onmousemove = (event) => this.hover(event);
    canvas.onmouseleave = canvas.onblur = () => hideTip();
    canvas.onfocus = () => this.tellCurrent();
    this.legend = legend, this.words = find(".told", canvas.parentElement);
  }

  /** Fits the drawing to the width there is. */
  measure() {
    const { N_q, N_k } = this.run.about.shape, width = this.canvas.clientWidth || 300;
    this.pitch = this.run.backward ? 20 : 16; // from one of the arrays beside it to the next
    const edge = this.run.beside[0].length * this.pitch + 14;
    const room = width - edge - 2, tallest = clamp(window.innerHeight * 0.4, 180, 300) * (this.run.alone ? 0.87 : 0.68) - (this.run.backward ? 56 : 0);
    const scale = Math.min(room / N_k, tallest / N_q);
    this.x = clamp(scale, Math.min(60 / N_k, room / N_k), room / N_k), this.y = clamp(scale, Math.min(24 / N_q, tallest / N_q), tallest / N_q);
    if (N_k * this.x < room && N_q / N_k < 0.5) this.x = room / N_k;
    this.edge = edge, this.wide = N_k * this.x, this.tall = N_q * this.y;
    const pixels = window.devicePixelRatio || 1, height = Math.ceil(this.tall + edge + 2);
    this.canvas.style.height = `${height}px`;
    this.canvas.width = Math.round(width * pixels), this.canvas.height = Math.round(height * pixels);
    this.pen = this.canvas.getContext("2d");
    this.pen.setTransform(pixels, 0, 0, pixels, 0, 0);
    this.size = [width, height];
    this.ink = palette();
    this.drawLegend();
  }

  show(t) {
    if (!this.pen) this.measure();
    this.t = t;
    const { pen, run } = this, { T_r, T_c } = run.about.blocks;
    pen.clearRect(0, 0, ...this.size);
    this.drawEdges(t);
    const counts = { current: 0, done: 0, part: 0, skipped: 0, ahead: 0 };
    let current = null;
    const rows = [];
    for (let i = 0; i < T_r; i++) {
      const words = [];
      for (let j = 0; j < T_c; j++) {
        const fate = run.fate(i, j, t), box = this.box(i, j);
        counts[fate]++;
        if (fate === "current") current = box;
        drawTile(pen, box, fate, run.leaves(i, j), this.ink);
        words.push(FATES[fate] + MASKED[run.leaves(i, j)]);
      }
      rows.push(`Row ${i}: ${ranges(words)}.`);
    }
    this.drawRegion(t, current);
    this.canvas.setAttribute("aria-label", this.told(t, counts));
    this.words.textContent = `Tiles by row and column. ${rows.join(" ")} ${this.toldEdges(t)}`;
  }

  told(t, counts) {
    const tile = this.run.steps.tile[t], { T_r, T_c } = this.run.about.blocks;
    const where = tile ? `current tile row ${tile[0]}, column ${tile[1]}; ` : counts.current ? `${counts.current} current; ` : "";
    return `Score matrix of ${T_r} by ${T_c} tiles: ${where}${counts.done} done, ${counts.part ? `${counts.part} done in part, ` : ""}${counts.skipped} skipped, ${counts.ahead} ahead`;
  }

  /** Which rows and columns of tiles have something on chip, as the bars at the edges show. */
  toldEdges(t) {
    const { run } = this, { B_r, B_c } = run.about.blocks, found = [];
    run.beside.forEach((arrays, side) => {
      const span = side ? run.steps.cols[t] : run.steps.rows[t], size = side ? B_c : B_r, held = arrays.filter((array) => run.onChip(array, t));
      if (!span || !held.length) return;
      const first = Math.floor(span[0] / size), last = Math.ceil(span[1] / size) - 1;
      found.push(`${held.join(", ")} of ${side ? "column" : "row"} ${first}${last > first ? ` to ${last}` : ""}`);
    });
    return `On chip: ${found.join("; ") || "none of them"}.`;
  }

  box(i, j) {
    const { B_r, B_c } = this.run.about.blocks, { N_q, N_k } = this.run.about.shape;
    const top = i * B_r * this.y, left = j * B_c * this.x;
    return [this.edge + left, this.edge + top, Math.min((j + 1) * B_c, N_k) * this.x - left, Math.min((i + 1) * B_r, N_q) * this.y - top];
  }

  /** Outlines what is worked on: a tile, or the rows or columns on chip. */
  drawRegion(t, current) {
    const { pen, run } = this, rows = run.steps.rows[t], cols = run.steps.cols[t];
    if (!current && !rows && !cols) return;
    const [top, bottom] = rows ?? [0, run.about.shape.N_q], [left, right] = cols ?? [0, run.about.shape.N_k];
    pen.strokeStyle = this.ink.current, pen.lineWidth = current ? 3 : 1.5;
    pen.setLineDash(current ? [] : SVG_DASH);
    pen.strokeRect(this.edge + left * this.x, this.edge + top * this.y, (right - left) * this.x, (bottom - top) * this.y);
    pen.setLineDash([]);
  }

  /** Q, O (and dO, dQ) beside the rows and K, V (and dK, dV) above the columns, in blocks; those on chip are filled. */
  drawEdges(t) {
    const { run } = this, { B_r, B_c, T_r, T_c } = run.about.blocks, { N_q, N_k } = run.about.shape;
    const [beside, above] = run.beside, { pitch } = this;
    beside.forEach((array, n) => {
      for (let i = 0; i < T_r; i++) {
        const top = i * B_r, end = Math.min(top + B_r, N_q), here = run.onChip(array, t) && touches(run.steps.rows[t], top, end);
        this.drawBlock(2 + n * pitch, this.edge + top * this.y, pitch - 3, (end - top) * this.y, here);
      }
      this.drawName(array, 2 + n * pitch + (pitch - 4) / 2, this.edge - 5);
    });
    above.forEach((array, n) => {
      for (let j = 0; j < T_c; j++) {
        const left = j * B_c, end = Math.min(left + B_c, N_k), here = run.onChip(array, t) && touches(run.steps.cols[t], left, end);
        this.drawBlock(this.edge + left * this.x, 2 + n * 16, (end - left) * this.x, 13, here);
      }
      this.drawName(array, this.edge - 10, 2 + n * 16 + 11);
    });
  }

  drawBlock(x, y, width, height, filled) {
    const { pen, ink } = this;
    pen.lineWidth = 1, pen.strokeStyle = ink.faint, pen.fillStyle = ink.load;
    if (filled) pen.fillRect(x, y, width, height);
    if (width > 3 && height > 3) pen.strokeRect(x + 0.5, y + 0.5, width - 1, height - 1);
  }

  drawName(name, x, y) {
    this.pen.fillStyle = this.ink.ink, this.pen.font = "italic 13px serif", this.pen.textAlign = "center";
    this.pen.fillText(name, x, y);
  }

  /** Only what occurs in this run is explained. */
  drawLegend() {
    const { run } = this, { T_r, T_c } = run.about.blocks, occurs = new Set(["current", "done", "ahead"]);
    for (let i = 0; i < T_r; i++)
      for (let j = 0; j < T_c; j++) {
        if (run.leaves(i, j) !== "all") occurs.add(run.leaves(i, j));
        if (!run.visits[i * T_c + j].length) occurs.add("skipped");
        if (run.visits[i * T_c + j].length > 1) occurs.add("part");
      }
    const entries = { ...FATES, nothing: "masked", some: "masked in part" };
    const items = Object.entries(entries).filter(([name]) => occurs.has(name)).map(([name, text]) => this.legendItem(name, text));
    this.legend.replaceChildren(...items);
  }

  legendItem(name, text) {
    const item = document.createElement("li"), canvas = document.createElement("canvas"), isMask = name === "nothing" || name === "some";
    canvas.width = canvas.height = 32;
    canvas.setAttribute("aria-hidden", "true");
    const pen = canvas.getContext("2d");
    pen.setTransform(2, 0, 0, 2, 0, 0);
    drawTile(pen, [1, 1, 14, 14], isMask ? "ahead" : name, isMask ? name : "all", this.ink);
    if (name === "current") pen.strokeStyle = this.ink.current, (pen.lineWidth = 2.5), pen.strokeRect(1.5, 1.5, 13, 13);
    item.append(canvas, text);
    return item;
  }

  hover(event) {
    const box = this.canvas.getBoundingClientRect(), { B_r, B_c, T_r, T_c } = this.run.about.blocks;
    const col = (event.clientX - box.left - this.edge) / this.x, row = (event.clientY - box.top - this.edge) / this.y;
    const i = Math.floor(row / B_r), j = Math.floor(col / B_c);
    if (i < 0 || j < 0 || i >= T_r || j >= T_c) return hideTip();
    showTip(this.describe(i, j), event.clientX, event.clientY);
  }

  /** For the keyboard: what hovering over the current tile tells. */
  tellCurrent() {
    const tile = this.run.steps.tile[this.t], box = this.canvas.getBoundingClientRect();
    if (tile) showTip(this.describe(...tile), box.left + this.edge, box.top + 8);
  }

  describe(i, j) {
    const { run } = this, { B_r, B_c } = run.about.blocks, { N_q, N_k } = run.about.shape, { t } = this;
    const span = (n, size, end) => `${n * size} to ${Math.min((n + 1) * size, end) - 1}`, visits = run.visits[i * run.about.blocks.T_c + j];
    const masked = { all: "", some: "\nthe mask forbids part of it", nothing: "\nthe mask forbids all of it" }[run.leaves(i, j)];
    return `tile (i, j) = (${i}, ${j}): ${FATES[run.fate(i, j, t)]}\nqueries ${span(i, B_r, N_q)}, keys ${span(j, B_c, N_k)}${masked}${visits.length ? `\nat step ${visits.map(([start]) => start).join(", ")}` : ""}`;
  }
}

const FATES = { current: "current", done: "done", part: "done in part", ahead: "ahead", skipped: "skipped" };
const MASKED = { all: "", some: " and masked in part", nothing: " and masked" };

/** "0 to 2 done, 3 ahead" of done, done, done, ahead. */
function ranges(words) {
  const found = [];
  for (let n = 0, start = 0; n < words.length; n++)
    if (words[n + 1] !== words[n]) found.push(`${start}${n > start ? ` to ${n}` : ""} ${words[n]}`), (start = n + 1);
  return found.join(", ");
}

const touches = (span, start, end) => span !== null && span[0] < end && start < span[1];

function palette() {
  return { ink: color("--ink"), faint: color("--faint"), grid: color("--grid"), panel: color("--panel"), load: color("--load"), chip: color("--chip"), done: color("--done"), part: color("--part"), current: color("--current"), spark: color("--spark"), second: color("--spark-2") };
}

/** Fills say how far a tile is, and marks say it again; hatching says what the mask forbids. */
function drawTile(pen, [x, y, width, height], fate, leaves, ink) {
  pen.fillStyle = { done: ink.done, part: ink.part, current: ink.panel, skipped: ink.panel, ahead: ink.panel }[fate];
  pen.fillRect(x, y, width, height);
  if (leaves !== "all") hatch(pen, x, y, width, height, leaves === "some", ink.faint);
  pen.strokeStyle = ink.grid, pen.lineWidth = 1;
  if (width > 4 && height > 4) pen.strokeRect(x + 0.5, y + 0.5, width - 1, height - 1);
  if (fate === "skipped") cross(pen, x, y, width, height, ink.faint);
  if (fate === "done" && Math.min(width, height) >= 9) tick(pen, x, y, width, height, ink.ink);
}

function hatch(pen, x, y, width, height, half, stroke) {
  pen.save();
  pen.beginPath();
  if (half) pen.moveTo(x + width, y), pen.lineTo(x + width, y + height), pen.lineTo(x, y), pen.closePath();
  else pen.rect(x, y, width, height);
  pen.clip();
  pen.strokeStyle = stroke, pen.lineWidth = 1;
  pen.beginPath();
  for (let d = 0; d < width + height; d += 5) pen.moveTo(x + d, y), pen.lineTo(x + d - height, y + height);
  pen.stroke();
  pen.restore();
}

function cross(pen, x, y, width, height, stroke) {
  const arm = Math.min(width, height, 24) * 0.28, cx = x + width / 2, cy = y + height / 2;
  pen.strokeStyle = stroke, pen.lineWidth = 1.5;
  pen.beginPath();
  pen.moveTo(cx - arm, cy - arm), pen.lineTo(cx + arm, cy + arm), pen.moveTo(cx - arm, cy + arm), pen.lineTo(cx + arm, cy - arm);
  pen.stroke();
}

function tick(pen, x, y, width, height, stroke) {
  const arm = Math.min(width, height, 24) * 0.22, cx = x + width / 2, cy = y + height / 2;
  pen.strokeStyle = stroke, pen.lineWidth = 1.5;
  pen.beginPath();
  pen.moveTo(cx - arm, cy), pen.lineTo(cx - arm * 0.3, cy + arm * 0.8), pen.lineTo(cx + arm, cy - arm * 0.8);
  pen.stroke();
}
