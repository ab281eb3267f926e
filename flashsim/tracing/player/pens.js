// What pictures are drawn with: a canvas's pen, or one that makes SVG of the same strokes; symbols, heat and hatching.

const SVG = "http://www.w3.org/2000/svg";

/** Draws as a canvas's context does, as far as pictures here need it, into an SVG element. */
class SvgPen {
  constructor(width, height, measure) {
    Object.assign(this, { measure, dash: [], path: "", lineWidth: 1, textAlign: "left", globalAlpha: 1 });
    this.root = document.createElementNS(SVG, "svg");
    for (const [name, value] of Object.entries({ xmlns: SVG, width, height, viewBox: `0 0 ${width} ${height}` }))
      this.root.setAttribute(name, value);
  }

  add(tag, attributes, text = "") {
    const made = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes))
      made.setAttribute(name, typeof value === "number" ? Math.round(value * 100) / 100 : value);
    if (this.globalAlpha < 1) made.setAttribute("opacity", this.globalAlpha);
    made.textContent = text;
    this.root.append(made);
  }

  get stroked() {
    return {
      fill: "none",
      stroke: this.strokeStyle,
      "stroke-width": this.lineWidth,
      "stroke-dasharray": this.dash.join(" ") || "none",
    };
  }
  fillRect(x, y, width, height) {
    this.add("rect", { x, y, width: Math.max(0, width), height: Math.max(0, height), fill: this.fillStyle });
  }
  strokeRect(x, y, width, height) {
    this.add("rect", { x, y, width: Math.max(0, width), height: Math.max(0, height), ...this.stroked });
  }
  setLineDash(dash) {
    this.dash = dash;
  }
  beginPath() {
    this.path = "";
  }
  moveTo(x, y) {
    this.path += `M${x.toFixed(2)} ${y.toFixed(2)}`;
  }
  lineTo(x, y) {
    this.path += `${this.path ? "L" : "M"}${x.toFixed(2)} ${y.toFixed(2)}`;
  }
  stroke() {
    this.add("path", { d: this.path, ...this.stroked });
  }
  fill() {
    this.add("path", { d: this.path, fill: this.fillStyle });
  }
  measureText(text) {
    this.measure.font = this.font;
    return this.measure.measureText(text);
  }
  fillText(text, x, y) {
    const [, face, size, family] = this.font.match(/^(italic |bold |)([\d.]+)px (.*)$/);
    this.add(
      "text",
      {
        x,
        y,
        fill: this.fillStyle,
        "font-size": Number(size),
        "font-family": family,
        "font-style": face === "italic " ? "italic" : "normal",
        "font-weight": face === "bold " ? "bold" : "normal",
        "text-anchor": this.textAlign === "center" ? "middle" : "start",
      },
      text,
    );
  }
}

const SCRIPTS = { SUB: [0.72, 0.25], SUP: [0.72, -0.4] }; // their size and how far down they are, in sizes of the text

/** Writes symbols as they are set in the listing; returns their width. A `dry` run only measures. */
function write(pen, nodes, x, y, size, italic = false, dry = false) {
  let at = x;
  for (const node of nodes) at += writeNode(pen, node, at, y, size, italic, dry);
  return at - x;
}

function writeNode(pen, node, x, y, size, italic, dry) {
  const text = typeof node === "string" ? node : node.nodeType === Node.TEXT_NODE ? node.data : null;
  if (text !== null) return writeText(pen, text, x, y, size, italic, dry);
  const children = [...node.childNodes];
  if (node.className === "ss")
    return Math.max(...children.map((child) => write(pen, [child], x, y, size, italic, dry)));
  const [smaller, down] = SCRIPTS[node.tagName] ?? [1, 0];
  const width = write(pen, children, x, y + down * size, size * smaller, italic || node.tagName === "I", dry);
  if (node.className === "tilde" && !dry) {
    pen.font = `${size}px serif`;
    pen.fillText("~", x + width / 2 - size * 0.25, y - size * 0.5);
  }
  return width;
}

function writeText(pen, text, x, y, size, italic, dry) {
  pen.font = `${italic ? "italic " : ""}${size}px ${italic ? "serif" : "system-ui, sans-serif"}`;
  pen.textAlign = "left";
  if (!dry) pen.fillText(text, x, y);
  return pen.measureText(text).width;
}

const INKS = "ink faint grid panel ground load chip done part current bad mark spark spark-2 hot cold".split(" ");
const HEATS = 41; // colours from −1 to 1: cold, the panel's, hot

/** The page's colours by name, and those of heat as numbers and as CSS. */
function inks() {
  const ink = Object.fromEntries(INKS.map((name) => [name, color(`--${name}`)]));
  const [cold, none, hot] = [ink.cold, ink.panel, ink.hot].map(numbersOf);
  const middle = (HEATS - 1) / 2;
  ink.rgb = Array.from({ length: HEATS }, (_, n) => {
    const share = Math.abs(n - middle) / middle;
    const end = n < middle ? cold : hot;
    return [...none.map((from, i) => Math.round(from + (end[i] - from) * share)), 255];
  });
  ink.heat = ink.rgb.map(([r, g, b]) => `rgb(${r} ${g} ${b})`);
  return ink;
}

const numbersOf = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));

/** Which of the colours of heat is a value's. */
const heatOf = (value, most) => (most ? clamp(Math.round((20 * value) / most), -20, 20) : 0) + 20;

const bitmaps = new WeakMap(); // of tiles that were drawn, one pixel an element

/** A tile as a picture of its own size; what is not finite is left out. */
function bitmapOf(tile, most, ink) {
  if (bitmaps.get(tile)?.ink !== ink) {
    const canvas = document.createElement("canvas");
    canvas.width = tile.cols;
    canvas.height = tile.rows;
    const pen = canvas.getContext("2d");
    const image = pen.createImageData(tile.cols, tile.rows);
    tile.data.forEach((value, n) => {
      if (Number.isFinite(value)) image.data.set(ink.rgb[heatOf(value, most)], 4 * n);
    });
    pen.putImageData(image, 0, 0);
    bitmaps.set(tile, { canvas, ink, finite: tile.data.every(Number.isFinite) });
  }
  return bitmaps.get(tile);
}

/** A tile's elements as heat, with numbers where they have room; what is not finite is hatched. */
function drawHeat(pen, tile, box, most, ink) {
  const [x, y, width, height] = box;
  const across = width / tile.cols;
  const down = height / tile.rows;
  const written = across >= 29 && down >= 11;
  fillBox(pen, box, ink.panel);
  if (pen.drawImage && !written) {
    const { canvas, finite } = bitmapOf(tile, most, ink);
    pen.imageSmoothingEnabled = false;
    pen.drawImage(canvas, x, y, width, height);
    if (finite) return;
  }
  tile.data.forEach((value, n) => {
    const left = x + (n % tile.cols) * across;
    const top = y + Math.floor(n / tile.cols) * down;
    drawElement(pen, value, [left, top, across, down], most, ink, written);
  });
}

function drawElement(pen, value, box, most, ink, written) {
  const [left, top, across, down] = box;
  if (!Number.isFinite(value)) return hatch(pen, ...box, false, ink.faint);
  const heat = heatOf(value, most);
  if (heat !== 20) fillBox(pen, box, ink.heat[heat]);
  if (!written) return;
  pen.fillStyle = ink.ink;
  pen.font = "9.5px system-ui, sans-serif";
  pen.textAlign = "center";
  pen.fillText(brief(value), left + across / 2, top + down / 2 + 3.5);
}

/** A number in four or five characters. */
function brief(x) {
  const size = Math.abs(x);
  const tiny = x !== 0 && size < 0.005;
  const digits = size >= 100 ? 0 : size >= 10 ? 1 : 2;
  return (size >= 1000 || tiny ? x.toExponential(0) : x.toFixed(digits)).replace("-", "−");
}

/** Fills say how far a tile is, and marks say it again; hatching says what the mask forbids. */
function drawTile(pen, box, fate, leaves, ink) {
  const [x, y, width, height] = box;
  fillBox(pen, box, { done: ink.done, part: ink.part }[fate] ?? ink.panel);
  if (leaves !== "all") hatch(pen, ...box, leaves === "some", ink.faint);
  if (width > 4 && height > 4) strokeBox(pen, [x + 0.5, y + 0.5, width - 1, height - 1], ink.grid, 1);
  const arm = Math.min(width, height, 24) * 0.25;
  if (fate === "skipped") cross(pen, x + width / 2, y + height / 2, arm, ink.faint);
  if (fate === "done" && Math.min(width, height) >= 9) tick(pen, x + width / 2, y + height / 2, arm, ink.ink);
}

function cross(pen, x, y, arm, stroke) {
  strokes(pen, stroke, line(x - arm, y - arm, x + arm, y + arm), line(x - arm, y + arm, x + arm, y - arm));
}

function tick(pen, x, y, arm, stroke) {
  const bottom = [x - arm * 0.3, y + arm * 0.8];
  strokes(pen, stroke, [[x - arm, y], bottom, [x + arm, y - arm * 0.8]]);
}

const line = (x, y, toX, toY) => [[x, y], [toX, toY]];

function strokes(pen, stroke, ...lines) {
  pen.strokeStyle = stroke;
  pen.lineWidth = 1.5;
  pen.beginPath();
  for (const line of lines) line.forEach(([x, y], n) => (n ? pen.lineTo(x, y) : pen.moveTo(x, y)));
  pen.stroke();
}

/** Lines x + y = d over a box, or over its half above the diagonal. */
function hatch(pen, x, y, width, height, half, stroke) {
  pen.strokeStyle = stroke;
  pen.lineWidth = 1;
  pen.beginPath();
  for (let d = 3; d < width + height; d += 5) {
    const t = d / (width + height);
    const from = half ? [width * t, height * t] : d <= height ? [0, d] : [d - height, height];
    const to = d <= width ? [d, 0] : [width, d - width];
    pen.moveTo(x + from[0], y + from[1]);
    pen.lineTo(x + to[0], y + to[1]);
  }
  pen.stroke();
}

function arrow(pen, [x, y], [to, down], stroke) {
  const length = Math.hypot(to - x, down - y) || 1;
  const [u, v] = [(to - x) / length, (down - y) / length];
  strokes(pen, stroke, line(x, y, to, down));
  pen.fillStyle = stroke;
  pen.beginPath();
  pen.moveTo(to, down);
  pen.lineTo(to - 8 * u - 4 * v, down - 8 * v + 4 * u);
  pen.lineTo(to - 8 * u + 4 * v, down - 8 * v - 4 * u);
  pen.fill();
}
