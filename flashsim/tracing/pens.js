// What pictures are drawn with: a canvas's pen, or one that makes SVG of the same strokes; symbols, heat and hatching.

const SVG = "http://www.w3.org/2000/svg";

/** Draws as a canvas's context does, as far as pictures here need it, into an SVG element. */
class SvgPen {
  constructor(width, height, measure) {
    Object.assign(this, { measure, dash: [], path: "", lineWidth: 1, textAlign: "left", globalAlpha: 1 });
    this.root = document.createElementNS(SVG, "svg");
    for (const [name, value] of Object.entries({ xmlns: SVG, width, height, viewBox: `0 0 ${width} ${height}` })) this.root.setAttribute(name, value);
  }

  add(tag, attributes, text = "") {
    const made = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, typeof value === "number" ? Math.round(value * 100) / 100 : value);
    if (this.globalAlpha < 1) made.setAttribute("opacity", this.globalAlpha);
    made.textContent = text;
    this.root.append(made);
  }

  get line() { return { fill: "none", stroke: this.strokeStyle, "stroke-width": this.lineWidth, "stroke-dasharray": this.dash.join(" ") || "none" }; }
  fillRect(x, y, width, height) { this.add("rect", { x, y, width: Math.max(0, width), height: Math.max(0, height), fill: this.fillStyle }); }
  strokeRect(x, y, width, height) { this.add("rect", { x, y, width: Math.max(0, width), height: Math.max(0, height), ...this.line }); }
  setLineDash(dash) { this.dash = dash; }
  beginPath() { this.path = ""; }
  moveTo(x, y) { this.path += `M${x.toFixed(2)} ${y.toFixed(2)}`; }
  lineTo(x, y) { this.path += `${this.path ? "L" : "M"}${x.toFixed(2)} ${y.toFixed(2)}`; }
  stroke() { this.add("path", { d: this.path, ...this.line }); }
  fill() { this.add("path", { d: this.path, fill: this.fillStyle }); }
  measureText(text) { this.measure.font = this.font; return this.measure.measureText(text); }
  fillText(text, x, y) {
    const [, face, size, family] = this.font.match(/^(italic |bold |)([\d.]+)px (.*)$/);
    this.add("text", { x, y, fill: this.fillStyle, "font-size": Number(size), "font-family": family, "font-style": face === "italic " ? "italic" : "normal", "font-weight": face === "bold " ? "bold" : "normal", "text-anchor": this.textAlign === "center" ? "middle" : "start" }, text);
  }
}

/** Writes symbols as they are set in the listing; returns their width. A `dry` run only measures. */
function write(pen, nodes, x, y, size, italic = false, dry = false) {
  let at = x;
  for (const node of nodes) {
    const text = typeof node === "string" ? node : node.nodeType === 3 ? node.data : null, { tagName: tag, className: name } = node;
    if (text !== null) {
      pen.font = `${italic ? "italic " : ""}${size}px ${italic ? "serif" : "system-ui, sans-serif"}`, pen.textAlign = "left";
      if (!dry) pen.fillText(text, at, y);
      at += pen.measureText(text).width;
    } else if (name === "ss") at += Math.max(...[...node.childNodes].map((child) => write(pen, [child], at, y, size, italic, dry)));
    else {
      const lower = tag === "SUB", higher = tag === "SUP", small = lower || higher ? 0.72 : 1;
      const width = write(pen, [...node.childNodes], at, y + (lower ? 0.25 : higher ? -0.4 : 0) * size, size * small, italic || tag === "I", dry);
      if (name === "tilde" && !dry) pen.font = `${size}px serif`, pen.fillText("~", at + width / 2 - size * 0.25, y - size * 0.5);
      at += width;
    }
  }
  return at - x;
}

function palette() {
  return Object.fromEntries(["ink", "faint", "grid", "panel", "ground", "load", "chip", "done", "part", "current", "bad", "mark", "spark", "second", "hot", "cold"].map((name) => [name, color(`--${name === "second" ? "spark-2" : name}`)]));
}

/** Colours from −1 to 1, in 41 steps: cold, the panel's, hot. */
function heatOf(ink) {
  const rgb = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)), [cold, none, hot] = [ink.cold, ink.panel, ink.hot].map(rgb);
  return Array.from({ length: 41 }, (_, n) => {
    const share = Math.abs(n - 20) / 20, end = n < 20 ? cold : hot;
    return [...none.map((from, i) => Math.round(from + (end[i] - from) * share)), 255];
  });
}

const bitmaps = new WeakMap(); // of tiles that were drawn, one pixel an element

/** A tile as a picture of its own size; what is not finite is left out. */
function bitmapOf(tile, most, ink) {
  if (bitmaps.get(tile)?.ink !== ink) {
    const canvas = document.createElement("canvas");
    canvas.width = tile.cols, canvas.height = tile.rows;
    const pen = canvas.getContext("2d"), image = pen.createImageData(tile.cols, tile.rows);
    tile.data.forEach((value, n) => { if (Number.isFinite(value)) image.data.set(ink.rgb[most ? clamp(Math.round((20 * value) / most), -20, 20) + 20 : 20], 4 * n); });
    pen.putImageData(image, 0, 0), bitmaps.set(tile, { canvas, ink, finite: tile.data.every(Number.isFinite) });
  }
  return bitmaps.get(tile);
}

/** A tile's elements as heat, with numbers where they have room; what is not finite is hatched. */
function drawHeat(pen, tile, [x, y, width, height], most, ink) {
  const across = width / tile.cols, down = height / tile.rows, written = across >= 29 && down >= 11;
  pen.fillStyle = ink.panel, pen.fillRect(x, y, width, height);
  if (pen.drawImage && !written) {
    const { canvas, finite } = bitmapOf(tile, most, ink);
    pen.imageSmoothingEnabled = false, pen.drawImage(canvas, x, y, width, height);
    if (finite) return;
  }
  for (let r = 0; r < tile.rows; r++)
    for (let c = 0; c < tile.cols; c++) {
      const value = tile.data[r * tile.cols + c], left = x + c * across, top = y + r * down;
      if (!Number.isFinite(value)) { hatch(pen, left, top, across, down, false, ink.faint); continue; }
      const share = most ? Math.round((20 * value) / most) : 0;
      if (share) pen.fillStyle = ink.heat[clamp(share, -20, 20) + 20], pen.fillRect(left, top, across, down);
      if (written) pen.fillStyle = ink.ink, pen.font = "9.5px system-ui, sans-serif", pen.textAlign = "center", pen.fillText(brief(value), left + across / 2, top + down / 2 + 3.5);
    }
}

/** A number in four or five characters. */
const brief = (x) => (Math.abs(x) >= 1000 || (x && Math.abs(x) < 0.005) ? x.toExponential(0) : x.toFixed(Math.abs(x) >= 100 ? 0 : Math.abs(x) >= 10 ? 1 : 2)).replace("-", "−");

/** Fills say how far a tile is, and marks say it again; hatching says what the mask forbids. */
function drawTile(pen, [x, y, width, height], fate, leaves, ink) {
  pen.fillStyle = { done: ink.done, part: ink.part }[fate] ?? ink.panel;
  pen.fillRect(x, y, width, height);
  if (leaves !== "all") hatch(pen, x, y, width, height, leaves === "some", ink.faint);
  pen.strokeStyle = ink.grid, pen.lineWidth = 1;
  if (width > 4 && height > 4) pen.strokeRect(x + 0.5, y + 0.5, width - 1, height - 1);
  const arm = Math.min(width, height, 24) * 0.25, cx = x + width / 2, cy = y + height / 2;
  if (fate === "skipped") strokes(pen, ink.faint, [[cx - arm, cy - arm], [cx + arm, cy + arm]], [[cx - arm, cy + arm], [cx + arm, cy - arm]]);
  if (fate === "done" && Math.min(width, height) >= 9) strokes(pen, ink.ink, [[cx - arm, cy], [cx - arm * 0.3, cy + arm * 0.8], [cx + arm, cy - arm * 0.8]]);
}

function strokes(pen, stroke, ...lines) {
  pen.strokeStyle = stroke, pen.lineWidth = 1.5;
  pen.beginPath();
  for (const line of lines) line.forEach(([x, y], n) => (n ? pen.lineTo(x, y) : pen.moveTo(x, y)));
  pen.stroke();
}

/** Lines x + y = d over a box, or over its half above the diagonal. */
function hatch(pen, x, y, width, height, half, stroke) {
  pen.strokeStyle = stroke, pen.lineWidth = 1;
  pen.beginPath();
  for (let d = 3; d < width + height; d += 5) {
    const t = d / (width + height), from = half ? [width * t, height * t] : d <= height ? [0, d] : [d - height, height];
    const to = d <= width ? [d, 0] : [width, d - width];
    pen.moveTo(x + from[0], y + from[1]), pen.lineTo(x + to[0], y + to[1]);
  }
  pen.stroke();
}

function arrow(pen, [x, y], [to, down], stroke) {
  const length = Math.hypot(to - x, down - y) || 1, [u, v] = [(to - x) / length, (down - y) / length];
  strokes(pen, stroke, [[x, y], [to, down]]);
  pen.fillStyle = stroke, pen.beginPath(), pen.moveTo(to, down), pen.lineTo(to - 8 * u - 4 * v, down - 8 * v + 4 * u), pen.lineTo(to - 8 * u + 4 * v, down - 8 * v - 4 * u), pen.fill();
}
