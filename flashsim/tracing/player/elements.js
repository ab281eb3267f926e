// What a page is built of: elements, numbers, names set as mathematics, and pens for its pictures.

const SVG_DASH = [4, 3];
const grouped = new Intl.NumberFormat("en-US");
const count = (n) => (n < 1000 ? String(n) : grouped.format(n));
const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** Content as a list of nodes and texts, without what is empty. */
const listed = (content) => content.flat(Infinity).filter((part) => part !== null && part !== undefined && part !== "");

/** Fills an element. Text stays text: nothing that a trace says is read as HTML, and the page's policy forbids it. */
const fill = (box, ...content) => box.replaceChildren(...listed(content));

/** A new element with attributes, but for empty ones, and content. */
function make(tag, attributes = {}, ...content) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) if (value !== "") made.setAttribute(name, value);
  made.append(...listed(content));
  return made;
}

const cell = (attributes, ...content) => make("td", attributes, ...content);
const head = (attributes, ...content) => make("th", { scope: "col", ...attributes }, ...content);
const small = (...content) => make("p", { class: "about" }, ...content);
const why = (...content) => make("span", { class: "why" }, ...content);
const table = (name, top, body) =>
  make("table", { "aria-label": name }, top && make("thead", {}, make("tr", {}, top)), make("tbody", {}, body));
const commas = (parts) => parts.map((part, n) => [n ? ", " : "", part]);

const typesetTexts = new Map([...find("#typeset").content.children].map((set) => [set.dataset.text, set]));

/** A phrase, a line of the listing or a name of the program as it is set in print; K[0] as the paper's K_1. */
function typeset(text) {
  const set = typesetTexts.get(text);
  const at = text.indexOf("[");
  const index = fromOne(text.slice(at));
  if (!set && at >= 0) return [...typeset(text.slice(0, at)), index ? make("sub", {}, index) : text.slice(at)];
  return set ? [...set.cloneNode(true).childNodes] : [text];
}

/** How many elements, in words. */
function amount(n) {
  return `${count(n)} element${n === 1 ? "" : "s"}`;
}

/** The program's "[0,2]" as the paper counts: "1, 3"; "" for what is not an index. */
function fromOne(index) {
  if (!/^\[\d+(, ?\d+)*\]$/.test(index)) return "";
  return index.slice(1, -1).split(",").map((n) => Number(n) + 1).join(", ");
}

/** A block's name in plain text, as the paper counts: K_1 for K[0]. */
function counted(name) {
  const at = name.indexOf("[");
  const index = at < 0 ? "" : fromOne(name.slice(at));
  return index ? `${name.slice(0, at)}_${index}` : name;
}

let allDigits = false; // whether values are shown in full
let single = true; // whether they are float32
let fewer = 0; // by how many digits values are shorter, beside a second run's

/** The fewest digits that say which number it is. */
function exactly(x) {
  if (!Number.isFinite(x)) return number(x);
  const whole = String(x);
  const text = single && whole.length > 8 ? shortestSingle(x) : whole;
  return text.replace("-", "−");
}

/** A float32 in the fewest digits that are read as it again: nine do. */
function shortestSingle(x) {
  for (let digits = 6; digits < 9; digits++) {
    const near = Number(x.toPrecision(digits));
    if (Math.fround(near) === x) return String(near);
  }
  return String(Number(x.toPrecision(9)));
}

function number(x) {
  if (x === Infinity) return "∞";
  if (x === -Infinity) return "−∞";
  if (Number.isNaN(x)) return "NaN";
  if (x === 0) return "0";
  if (allDigits) return exactly(x);
  const size = Math.abs(x);
  const digits = (size >= 1000 ? 1 : size >= 100 ? 2 : size >= 10 ? 3 : 4) - fewer;
  const text = size >= 1e5 || size < 10 ** (fewer - 4) ? x.toExponential(2 - fewer) : x.toFixed(digits);
  return text.replace("-", "−");
}

function showTip(text, x, y) {
  const tip = find("#tip");
  tip.textContent = text;
  tip.hidden = false;
  const [wide, high, at, down] = [window.innerWidth, window.innerHeight, x, y].map((size) => size / magnified);
  tip.style.left = `${Math.max(4, Math.min(at + 14, wide - tip.offsetWidth - 6))}px`;
  tip.style.top = `${down + 18 + tip.offsetHeight > high ? down - tip.offsetHeight - 10 : down + 16}px`;
}

/** Where an event is in an element, in the element's own pixels. */
function within(element, { clientX, clientY }) {
  const { left, top } = element.getBoundingClientRect();
  return [(clientX - left) / magnified, (clientY - top) / magnified];
}

function hideTip() {
  find("#tip").hidden = true;
}

/** Puts a hash into the page's address, as a link to what is shown. */
function writeAddress(hash) {
  try {
    history.replaceState(null, "", hash);
  } catch {
    // a frame without an address
  }
}

/** A canvas's pen for a drawing of this size, as sharp as the screen. */
function sharpPen(canvas, width, height) {
  const pixels = (window.devicePixelRatio || 1) * magnified;
  canvas.width = Math.round(width * pixels);
  canvas.height = Math.round(height * pixels);
  const pen = canvas.getContext("2d");
  pen.setTransform(pixels, 0, 0, pixels, 0, 0);
  return pen;
}

function fillBox(pen, box, colour) {
  pen.fillStyle = colour;
  pen.fillRect(...box);
}

function strokeBox(pen, box, colour, width) {
  pen.strokeStyle = colour;
  pen.lineWidth = width;
  pen.strokeRect(...box);
}
