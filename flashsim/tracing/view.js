// The player's second part: what a step looks like. Numbers, the listing's mathematics, a run on the page, the score matrix.

const SVG_DASH = [4, 3];
const EDGES = { forward: [["Q", "O"], ["K", "V"]], backward: [["Q", "O", "dO", "dQ"], ["K", "V", "dK", "dV"]] }; // by row, by column
const BY_KEY = ["dK", "dV"];
const grouped = new Intl.NumberFormat("en-US");
const count = (n) => (n < 1000 ? String(n) : grouped.format(n));
const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** Content as a list of nodes and texts, without what is empty. */
const listed = (content) => content.flat(Infinity).filter((part) => part !== null && part !== undefined && part !== "");

/** Fills an element. Text stays text: nothing that a trace says is ever read as HTML, and the page's policy forbids it. */
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
const symbol = (letter) => make("i", {}, letter);
const table = (name, top, body) => make("table", { "aria-label": name }, top && make("thead", {}, make("tr", {}, top)), make("tbody", {}, body));
const commas = (parts) => parts.map((part, n) => [n ? ", " : "", part]);

let allDigits = false, single = true; // whether values are shown in full, and whether they are float32

/** The fewest digits that say which number it is. */
function exactly(x) {
  if (!Number.isFinite(x)) return number(x);
  let digits = 6, text = String(x);
  if (single && text.length > 8) do text = String(Number(x.toPrecision(digits))); while (Math.fround(Number(text)) !== x && digits++ < 9);
  return text.replace("-", "−");
}

function number(x) {
  if (x === Infinity) return "∞";
  if (x === -Infinity) return "−∞";
  if (Number.isNaN(x)) return "NaN";
  if (x === 0) return "0";
  if (allDigits) return exactly(x);
  const size = Math.abs(x);
  const text = size >= 1e5 || size < 1e-4 ? x.toExponential(2) : x.toFixed(size >= 1000 ? 1 : size >= 100 ? 2 : size >= 10 ? 3 : 4);
  return text.replace("-", "−");
}

// ------------------------------------------------------------------------------------------------------------- math

const UPRIGHT = new Set(["new", "masked", "dropped", "drop", "parts"]);
const SCRIPTS = "(?:[_^](?:\\{[^}]*\\}|[A-Za-z0-9]+))";
const SYMBOL = new RegExp(`(?<![A-Za-z\\u0303'’])(QK|PV|d?[A-Za-zℓΣ]\\u0303?)(?![A-Za-z\\u0303])(${SCRIPTS}*)|(\\))(${SCRIPTS}+)`, "gu");
const WORDS = new Set(["a", "A", "I", "do"]);

function scripted(scripts) {
  const parts = { _: [], "^": [] };
  for (const [, mark, , braced, bare] of scripts.matchAll(/([_^])(\{([^}]*)\}|([A-Za-z0-9]+))/gu)) {
    const text = braced ?? bare;
    parts[mark] = UPRIGHT.has(text) ? [text] : /^[A-Za-z]+$/.test(text) ? [symbol(text)] : typeset(text);
  }
  const above = parts["^"].length ? make("sup", {}, parts["^"]) : null, below = parts._.length ? make("sub", {}, parts._) : null;
  return above && below ? [make("span", { class: "ss" }, above, below)] : [below ?? above];
}

/** Sets a letter, with its tilde drawn above it: few fonts have one that fits. */
function lettered(letter) {
  if (!letter.endsWith("\u0303")) return [symbol(letter)];
  const before = letter.slice(0, -2);
  return [before && symbol(before), make("span", { class: "tilde" }, symbol(letter.at(-2)))];
}

/** Sets a line of the listing: symbols in italics, with their indices and exponents. */
function typeset(line) {
  const text = line.normalize("NFD"), found = [];
  let end = 0;
  for (const { 0: whole, 1: letter, 2: scripts, 3: closing, 4: after, index } of text.matchAll(SYMBOL)) {
    found.push(text.slice(end, index));
    if (closing) found.push(closing, scripted(after));
    else if (!scripts && WORDS.has(letter)) found.push(whole);
    else found.push(make("span", { class: "symbol" }, lettered(letter), scripted(scripts)));
    end = index + whole.length;
  }
  return [...found, text.slice(end)];
}

/** Sets a name of the program: m_tilde_ij as m̃ with index ij, K[0] as K[0]. */
function named(name) {
  const at = name.indexOf("[");
  if (at >= 0) return [named(name.slice(0, at)), name.slice(at)];
  let [base, ...rest] = name.split("_");
  if (base === "log" && rest.length) base = "log " + rest.shift();
  if (base === "l") base = "ℓ";
  if (rest[0] === "tilde") base += "\u0303", rest.shift();
  const above = rest.filter((part) => UPRIGHT.has(part)).join(" ");
  const below = rest.filter((part) => !UPRIGHT.has(part)).join(" ");
  return [lettered(base), scripted((below ? `_{${below}}` : "") + (above ? `^{${above}}` : ""))];
}

const plain = (name) => name.replace(/^l(?=[[_]|$)/, "ℓ");

// -------------------------------------------------------------------------------------------------------- its view

const VERBS = { init: "initialise", load: "load", compute: "compute", store: "store" };

/** A name in SRAM's bar. What is too wide is not shown: of K[0] the index first, then all. */
const inBar = (name) => name.split(/(?=\[)/).map((part) => make("span", {}, part[0] === "[" ? part : named(part)));

const rescaled = (rows) => `${rows} ${rows === 1 ? "row is" : "rows are"} rescaled`;

/** One run on the page. */
class View {
  constructor(run, root, which) {
    this.run = run, this.root = root, this.chosen = null, this.which = which;
    root.classList.toggle("backward", run.backward);
    this.setHead();
    if (which) this.tellApart();
    this.setListing();
    this.setSource();
    this.setCounters();
    this.grid = new Grid(run, find(".grid", root), find(".legend", root));
    for (const [button, shown] of [[".show-listing", "listing"], [".show-source", "source"]])
      find(button, root).onclick = () => this.showCode(shown);
    const gradients = () => [named("dQ"), " of these rows, ", named("dK_tilde"), " and ", named("dV_tilde"), " of these keys"];
    fill(find(".carried", root), run.backward ? gradients() : "m, ℓ, O of these rows", ": old → new");
    find(".digits", root).onclick = () => player.toggleDigits();
    for (const box of [find(".listing", root), find(".source", root)]) box.onscroll = () => places.get(box)?.set("scroll", box.scrollTop);
    if (!run.about.listing.length) this.showCode("source"), (find(".show-listing", root).disabled = true);
  }

  setHead() {
    const { title, shape, blocks, dtype, options, command, notes } = this.run.about;
    find("h1", this.root).textContent = title;
    this.root.setAttribute("aria-label", this.which ? `${this.which}: ${title}` : title);
    const sizes = `N_q = ${count(shape.N_q)}, N_k = ${count(shape.N_k)}, d = ${shape.d}${shape.d_v === shape.d ? "" : `, d_v = ${shape.d_v}`}`;
    const tiles = `B_r × B_c = ${blocks.B_r} × ${blocks.B_c}, T_r × T_c = ${blocks.T_r} × ${blocks.T_c}`;
    fill(find(".about", this.root), typeset(sizes), "; ", typeset(tiles), `; ${dtype}`, options && `; ${options}`);
    find(".command", this.root).textContent = command;
    const box = find(".notes", this.root);
    box.hidden = !notes.length;
    box.textContent = notes.join(" ");
  }

  /** Two runs have the same parts: their names say whose they are. */
  tellApart() {
    for (const part of this.root.querySelectorAll("section, [role=region]")) part.setAttribute("aria-label", `${part.getAttribute("aria-label")}, ${this.which.toLowerCase()}`);
  }

  setListing() {
    this.lines = this.run.about.listing.map((line) => {
      const [, mark, space, text] = line.match(/^(Require:|\(?\d+\)?)(\s*)(.*)$/) ?? [null, "", "", line];
      const require = mark === "Require:", words = make("span", {}, require ? "Require: " : "", typeset(text));
      words.style.paddingLeft = `${require ? 0 : Math.max(0, mark.length + space.length - 3) * 0.55}em`;
      return make("li", {}, make("span", { class: "number" }, require ? "" : mark), words);
    });
    find(".listing", this.root).replaceChildren(...this.lines);
  }

  setSource() {
    this.sourceLines = new Map();
    const box = find(".source", this.root);
    for (const [file, first, lines] of this.run.about.source) {
      box.append(make("span", { class: "file" }, `${file}, from line ${first}`));
      lines.forEach((text, n) => {
        const line = make("span", {}, text || " ");
        this.sourceLines.set(`${file}:${first + n}`, line);
        box.append(line);
      });
    }
  }

  setCounters() {
    const box = find(".hbm", this.root), exact = this.run.about.arrays.every((array) => array.exact), form = exact ? "closed form" : "at the end";
    const formHead = (what) => head({ "data-tip": `${what} of the whole run${exact ? ", from a formula" : ""}` }, form);
    const soFar = (what) => head({}, what, make("br"), "so far");
    fill(find("thead", box), make("tr", {}, head({}, "array"), head({}, "this step"), soFar("reads"), formHead("reads"), soFar("writes"), formHead("writes")));
    const names = [...this.run.about.arrays.map((array) => named(array.name)), "total"];
    fill(find("tbody", box), names.map((name, n) => make("tr", { class: n === names.length - 1 ? "sum" : "" }, make("th", { scope: "row" }, name), Array.from({ length: 5 }, () => cell()))));
    this.counters = [...box.tBodies[0].rows].map((row) => [...row.cells].slice(1));
    const { arrays, standard } = this.run.about;
    const expected = arrays.map(({ reads, writes, exact: form }) => form ?? [reads, writes]);
    expected.push([0, 1].map((side) => expected.reduce((sum, pair) => sum + pair[side], 0)));
    this.expected = expected, this.hasForm = exact;
    const { M, shape, blocks } = this.run.about, most = Math.ceil(M / (4 * shape.d));
    this.paperSizes = blocks.B_c === Math.min(most, shape.N_k) && blocks.B_r === Math.min(most, shape.d, shape.N_q);
    this.counters.forEach((cells, n) => { cells[2].textContent = count(expected[n][0]), cells[4].textContent = count(expected[n][1]); });
    this.standard = standard && standard[0] + standard[1];
  }

  /** Beside a run of standard attention, that is what this one is compared to, with its blocks. */
  beside(other) {
    if (other.about.algorithm === "standard" && other.backward === this.run.backward) this.standard = other.accesses[other.length - 1];
  }

  showCode(shown) {
    for (const name of ["listing", "source"]) {
      find(`.${name}`, this.root).hidden = name !== shown;
      find(`.show-${name}`, this.root).setAttribute("aria-pressed", String(name === shown));
    }
    places.clear();
    this.light(this.t ?? 0);
  }

  /** Shows a step. `aside` is what there is to say of it beside another run. */
  show(t, aside = "") {
    if (t !== this.t) this.chosen = null;
    this.t = t;
    this.showNow(aside);
    this.light(t);
    this.grid.draw(t);
    this.showSram(t);
    this.showHbm(t);
    this.showPairs(t);
    this.showEvents(t);
  }

  /** What the step does, in words. */
  words(t) {
    const { run } = this, loops = run.loopsAt(t).map(([name, index]) => `${name} = ${index}`).join(", ");
    const done = [];
    for (const event of run.eventsAt(t)) {
      const verb = VERBS[run.events.kind[event]], name = plain(run.nameOf(event));
      if (done.length && done[done.length - 1].verb === verb) done[done.length - 1].names.push(name);
      else done.push({ verb, names: [name] });
    }
    return { label: run.place(t)[2] ?? "set-up", loops, done };
  }

  showNow(aside) {
    const { label, loops, done } = this.words(this.t);
    const own = this.run.alone ? null : make("span", { class: "own" }, aside && [make("b", {}, aside), " · "], `its step ${this.t} of ${this.run.length - 1}`);
    const what = done.map(({ verb, names }, n) => [n ? "; " : "", `${verb} `, commas(names.map((name) => named(name.replace("ℓ", "l"))))]);
    const rises = this.run.steps.rescaled[this.t];
    fill(find(".now", this.root), make("b", {}, label), loops && [" · ", typeset(loops)], " · ", what, rises ? [" ", make("b", {}, rescaled(rises))] : "", own);
  }

  light(t) {
    for (const line of this.lit ?? []) line.classList.remove("on"), line.removeAttribute("aria-current");
    const { run } = this, [file, , label] = run.place(t), line = this.lines[run.lineOf.get(label)];
    const numbers = run.eventsAt(t).map((event) => run.places[run.events.place[event]]);
    this.lit = [line, ...new Set(numbers.map(([where, n]) => this.sourceLines.get(`${where}:${n}`)))].filter(Boolean);
    for (const lit of this.lit) lit.classList.add("on"), lit.setAttribute("aria-current", "step"), intoView(lit);
  }

  showSram(t) {
    const { run } = this, { M, peak } = run.about, most = Math.max(M, peak), held = run.resident(t), used = run.occupancy[t];
    const percent = (n) => `${(100 * n) / most}%`;
    fill(find(".bar", this.root), held.map(([name, size]) => {
      const loaded = name.includes("["), tip = `${plain(name)}: ${count(size)} elements, ${loaded ? "loaded" : "made on chip"}`;
      const block = make("span", { class: loaded ? "" : "made", "data-tip": tip }, inBar(name));
      block.style.width = percent(size);
      return block;
    }));
    find(".bar", this.root).setAttribute("aria-label", `On chip: ${held.map(([name, size]) => `${plain(name)} ${size}`).join(", ") || "nothing"}`);
    find(".line", this.root).style.left = `calc(${percent(M)} - 2px)`;
    const over = find(".over", this.root);
    over.hidden = used <= M;
    over.style.left = percent(M), over.style.width = percent(Math.max(used - M, 0));
    find(".fill", this.root).textContent = `${count(used)} of M = ${count(M)} elements in use`;
    const cause = this.paperSizes && !run.backward ? "line 1's sizes leave no room for ℓ, m and S" : "these blocks leave no room for a tile";
    const excess = used > M ? make("span", { class: "bad", "data-tip": cause }, `${count(used - M)} more than M`, why(`: ${cause}`), ". ") : "";
    fill(find(".scale", this.root), excess, "peak", why(" of the run"), ` ${count(peak)}, ${Math.round((100 * peak) / M)}% of `, symbol("M"), " (dashed", why(" line"), ")");
  }

  showHbm(t) {
    const { run } = this, sums = [0, 0, 0];
    run.arrays.forEach((_, a) => {
      const now = [run.reads[a][t], run.writes[a][t]], before = t ? [run.reads[a][t - 1], run.writes[a][t - 1]] : [0, 0];
      const read = now[0] - before[0], written = now[1] - before[1];
      this.fillRow(a, read, written, ...now);
      sums[0] += read + written, sums[1] += now[0], sums[2] += now[1];
    });
    const total = run.arrays.length;
    this.fillRow(total, sums[0], 0, sums[1], sums[2], sums[0] ? count(sums[0]) : "");
    this.showVersus(t, sums[1] + sums[2]);
  }

  fillRow(n, read, written, reads, writes, text) {
    const cells = this.counters[n];
    cells[0].textContent = text ?? [read ? `read ${count(read)}` : "", written ? `write ${count(written)}` : ""].filter(Boolean).join(", ");
    cells[1].textContent = count(reads), cells[3].textContent = count(writes);
    cells[0].parentElement.classList.toggle("active", text === undefined && read + written > 0);
  }

  showVersus(t, sofar) {
    const { run } = this, end = t === run.length - 1, want = this.expected[this.expected.length - 1], all = want[0] + want[1];
    const met = !end || !this.hasForm ? "" : this.equalsForm(t) ? " They equal the closed form." : [" ", make("span", { class: "bad" }, "They differ from the closed form.")];
    const standard = this.standard === null || run.about.algorithm === "standard" ? "" : ` Standard attention${run.backward ? "'s backward pass" : ""} makes ${count(this.standard)}, ${(this.standard / all).toFixed(2)} times this run's ${count(all)}.`;
    fill(find(".versus", this.root), `${count(sofar)} accesses so far.`, met, standard);
  }

  equalsForm(t) {
    return this.run.arrays.every((_, a) => this.run.reads[a][t] === this.expected[a][0] && this.run.writes[a][t] === this.expected[a][1]);
  }

  /** m, ℓ, O (or L) of the row block, before this tile and now, row by row, with the factor of the rescaling. */
  showPairs(t) {
    const box = find(".pairs", this.root), { run } = this;
    if (run.backward) return this.showGradients(t, box);
    const columns = ["m", "l", "L"].map((name) => [name, ...run.pair(name, t)]).filter(([, old, now]) => (old ?? now)?.cols === 1);
    const O = run.pair("O", t), rows = (columns[0]?.[1] ?? columns[0]?.[2] ?? O[0] ?? O[1])?.rows ?? 0;
    if (!rows) {
      fill(box, small(run.tiles.length ? "No row statistics on chip in this step." : "Values were left out."));
      return;
    }
    const first = run.steps.rows[t]?.[0] ?? null, top = [head({}, "row")];
    for (const [name] of columns) {
      top.push(head({}, named(name)));
      if (name === "m") top.push(head({}, typeset("e^{m − m_new}")));
    }
    for (const side of [0, 1]) if (O[side]) top.push(head({ scope: "colgroup", class: "gap wide", colspan: Math.min(O[side].cols, OF_O) }, symbol("O"), ` ${side ? "new" : "old"}${clipped(O[side], OF_O)}`));
    const body = [];
    for (let r = 0; r < Math.min(rows, 32); r++) body.push(this.pairRow(r, first, columns, O));
    fill(box, table("Old and new of these rows", top, body), rows > 32 ? small(`the first 32 of ${rows} rows`) : "");
  }

  /** D and dQ of the rows, dK̃ and dṼ of the keys, before this tile and now; what this step made is marked. */
  showGradients(t, box) {
    const { run } = this, made = new Set(run.eventsAt(t).map((event) => run.events.value[event])), names = ["dQ", ...BY_KEY];
    const tiles = (name) => (run.steps.pairs[name] ?? []).map((column) => column[t]).filter((tile) => tile >= 0);
    const none = names.map((name) => !tiles(name).length && (name !== "dQ" || !tiles("D").length)), nothing = none.every(Boolean);
    const keys = names.map((name, n) => String([n ? "" : [tiles("D"), nothing], tiles(name), run.steps[n ? "cols" : "rows"][t], allDigits].flat(2)) + [...tiles(name), ...tiles("D")].map((tile) => made.has(tile)));
    if (!find(".gradients", box)) fill(box, make("div", { class: "gradients" }, names.map(() => make("div")))), (this.shown = []);
    names.forEach((name, n) => {
      if (this.shown[n] === keys[n]) return; // few change
      this.shown[n] = keys[n];
      const said = nothing ? small(run.tiles.length ? "No gradients on chip in this step." : "Values were left out.") : make("p", { class: "about wait" }, "No ", symbol("dQ"), " on chip in this step.");
      fill(find(".gradients", box).children[n], none[n] ? (n ? "" : said) : this.gradient(name, t, made));
    });
  }

  gradient(name, t, made) {
    const { run } = this, sides = run.pair(name, t), rows = (sides[0] ?? sides[1])?.rows ?? 0, byKey = BY_KEY.includes(name), word = byKey ? "key" : "row";
    const [from, D] = byKey ? [] : run.pair("D", t), shown = D ?? from, tall = rows || shown?.rows || 0;
    const first = run.steps[byKey ? "cols" : "rows"][t]?.[0] ?? null, top = [head({}, word)], body = [], [old, now] = sides;
    const fresh = now && made.has(run.steps.pairs[name][1][t]), freshD = D && made.has(run.steps.pairs.D[1][t]), cols = (old ?? now)?.cols ?? 0;
    if (shown) top.push(head({ class: freshD ? "rises" : "" }, named("D")));
    if (cols) top.push(head({ scope: "colgroup", class: `gap wide${fresh ? " rises" : ""}`, colspan: Math.min(cols, OF_O) }, named(name), ": ", make("span", { class: "old" }, "old,"), ` new${clipped(old ?? now, OF_O)}`));
    const cells = (tile, r, age) => (tile && r < tile.rows ? tileCells(tile, r, `${name} ${age}`, first, OF_O, true, word) : cell({}, "\u00a0"));
    for (let r = 0; r < Math.min(tall, OF_GRADIENT); r++) {
      const own = shown && cell({ rowspan: 2, class: freshD ? "rises" : "", "data-tip": `D, row ${rowName(first, r)}: ${exactly(shown.data[r])}` }, number(shown.data[r]));
      body.push(make("tr", { class: "old" }, make("th", { scope: "rowgroup", rowspan: 2 }, first === null ? "" : String(first + r)), own, cells(old, r, "old")));
      body.push(make("tr", { class: "new" }, cells(now, r, "new")));
    }
    return [table(`${name} of these ${word}s, old and new`, top, body), tall > OF_GRADIENT ? small(`the first ${OF_GRADIENT} of ${tall} ${word}s`) : ""];
  }

  pairRow(r, first, columns, O) {
    const cells = [make("th", { scope: "row" }, first === null ? "" : String(first + r))];
    for (const [name, old, now] of columns) {
      const from = old?.data[r], to = now?.data[r], rises = name === "m" && to > from;
      const shown = from === undefined ? `→ ${number(to)}` : to === undefined ? number(from) : `${number(from)} → ${number(to)}`;
      const tip = `${plain(name)}, row ${rowName(first, r)}: ${[from, to].filter((x) => x !== undefined).map(exactly).join(" → ")}`;
      cells.push(cell({ class: rises ? "rises" : "", "data-tip": tip }, `${shown}${rises ? " ↑" : ""}`));
      if (name === "m") cells.push(cell({ class: "factor" }, from === undefined || to === undefined ? "" : number(factor(from, to))));
    }
    for (const tile of O) if (tile && r < tile.rows) cells.push(tileCells(tile, r, "O", first, OF_O, true));
    return make("tr", {}, cells);
  }

  showEvents(t) {
    const { run } = this, events = run.eventsAt(t), box = find(".events", this.root);
    const withValues = events.filter((event) => run.events.value[event] >= 0);
    if (this.chosen === null) this.chosen = withValues[withValues.length - 1] ?? events[0];
    const buttons = events.map((event) => {
      const button = make("button", { "aria-pressed": String(event === this.chosen) }, `${VERBS[run.events.kind[event]]} `, named(run.nameOf(event)), ` · ${count(run.events.elements[event])}`);
      button.onclick = () => { this.chosen = event, this.showEvents(t), player.markDifferences(), find('[aria-pressed="true"]', box)?.focus(); };
      return button;
    });
    box.replaceChildren(...buttons);
    this.showTile(run.events.value[this.chosen], run.nameOf(this.chosen));
  }

  showTile(value, name) {
    const box = find(".tile", this.root), tile = this.run.tiles[value];
    if (!tile) return fill(box, small("No values are kept of ", named(name), "."));
    const rows = Math.min(tile.rows, 32), lines = [];
    for (let r = 0; r < rows; r++) lines.push(make("tr", {}, tileCells(tile, r, name, 0, OF_TILE, false)));
    const shown = table(plain(name), null, lines), all = rows === tile.rows && tile.cols <= OF_TILE;
    shown.setAttribute("role", "table");
    fill(box, shown, all ? "" : small(`shown: ${rows} × ${Math.min(tile.cols, OF_TILE)} of ${tile.rows} × ${tile.cols}`));
  }
}

const OF_O = 8, OF_TILE = 16, OF_GRADIENT = 16; // columns shown; and rows, each of two lines
const clipped = (tile, most) => (tile.cols > most ? ` (first ${most} of ${tile.cols})` : "");

/** e^(m − m_new), 0 for a row that had no maximum yet. */
function factor(from, to) { return from === -Infinity ? 0 : Math.exp(from - to); }

/** What row r of a block is called whose first row is `first`; null where nothing on chip says which rows it is of. */
const rowName = (first, r) => (first === null ? `${r} of its block` : String(first + r));

function tileCells(tile, r, name, first, most, gap, word = "row") {
  const cells = [];
  for (let c = 0; c < Math.min(tile.cols, most); c++) {
    const x = tile.data[r * tile.cols + c];
    cells.push(cell({ class: gap && c === 0 ? "gap" : "", "data-tip": `${plain(name)}, ${word} ${rowName(first, r)}, column ${c}: ${exactly(x)}` }, number(x)));
  }
  return cells;
}

/** Scrolls only the list that the line is in, and only if it must. Asking where lines are costs a layout, so it is kept. */
function intoView(line) {
  const box = line.parentElement;
  if (box.hidden) return;
  if (!places.has(box)) places.set(box, new Map([...box.children].map((child) => [child, [child.offsetTop - box.offsetTop, child.offsetHeight]])).set("height", box.clientHeight).set("scroll", box.scrollTop));
  const known = places.get(box), [top, tall] = known.get(line), height = known.get("height"), scroll = known.get("scroll");
  if (top < scroll || top + tall > scroll + height) box.scrollTop = Math.max(0, top - height / 3), known.set("scroll", Math.max(0, top - height / 3));
}

const places = new Map();

// --------------------------------------------------------------------------------------------- the score matrix

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
    const edge = EDGES[this.run.about.direction][0].length * this.pitch + 14;
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

  draw(t) {
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
    EDGES[run.about.direction].forEach((arrays, side) => {
      const span = side ? run.steps.cols[t] : run.steps.rows[t], size = side ? B_c : B_r, held = arrays.filter((array) => this.onChip(array, t));
      if (!span || !held.length) return;
      const first = Math.floor(span[0] / size), last = Math.ceil(span[1] / size) - 1;
      found.push(`${held.join(", ")} of ${side ? "column" : "row"} ${first}${last > first ? ` to ${last}` : ""}`);
    });
    return `On chip: ${found.join("; ") || "none of them"}.`;
  }

  onChip(array, t) { return this.run.resident(t).some(([name]) => quantity(name) === array && /\[|_[ij](_new)?$/.test(name)); }

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
    const [beside, above] = EDGES[run.about.direction], { pitch } = this;
    beside.forEach((array, n) => {
      for (let i = 0; i < T_r; i++) {
        const top = i * B_r, end = Math.min(top + B_r, N_q), here = this.onChip(array, t) && touches(run.steps.rows[t], top, end);
        this.drawBlock(2 + n * pitch, this.edge + top * this.y, pitch - 3, (end - top) * this.y, here);
      }
      this.drawName(array, 2 + n * pitch + (pitch - 4) / 2, this.edge - 5);
    });
    above.forEach((array, n) => {
      for (let j = 0; j < T_c; j++) {
        const left = j * B_c, end = Math.min(left + B_c, N_k), here = this.onChip(array, t) && touches(run.steps.cols[t], left, end);
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

// ----------------------------------------------------------------------------------------------------- sparklines

/** HBM accesses so far and SRAM occupancy over all steps, drawn once; the step is a line over them. */
class Sparks {
  constructor(runs, canvas) { this.runs = runs, this.canvas = canvas; }

  /** Over how many steps each run is drawn: over as many as the longer has, or each over its own. */
  spread(lengths) { this.lengths = lengths, (this.base = null); }

  measure() {
    const width = this.canvas.clientWidth, height = this.canvas.clientHeight, pixels = window.devicePixelRatio || 1;
    this.canvas.width = width * pixels, this.canvas.height = height * pixels;
    this.width = width, this.height = height, this.pixels = pixels;
    this.base = document.createElement("canvas");
    this.base.width = this.canvas.width, this.base.height = this.canvas.height;
    const pen = this.base.getContext("2d"), ink = palette();
    pen.scale(pixels, pixels);
    this.ink = ink;
    const most = Math.max(...this.runs.map((run) => run.accesses[run.length - 1]), 1), full = Math.max(...this.runs.map((run) => Math.max(run.about.peak, run.about.M)), 1);
    this.runs.forEach((run, n) => {
      this.line(pen, run.occupancy, full, ink.second, n, 1);
      this.line(pen, run.accesses, most, ink.spark, n, 1.8);
    });
    this.name(pen, ink, most, full);
  }

  at(t, n) { return 8 + (this.lengths[n] > 1 ? (t / (this.lengths[n] - 1)) * (this.width - 16) : 0); }

  line(pen, column, most, stroke, n, width) {
    pen.strokeStyle = stroke, pen.lineWidth = width;
    pen.setLineDash(n ? SVG_DASH : []);
    pen.beginPath();
    for (let t = 0; t < column.length; t++) pen.lineTo(this.at(t, n), this.height - 2 - (column[t] / most) * (this.height - 17));
    pen.stroke();
  }

  name(pen, ink, most, full) {
    pen.font = "11px system-ui, sans-serif";
    const dashes = this.runs.length > 1 ? "; dashed: the second run" : "";
    const texts = [[`━ HBM accesses so far, up to ${count(most)}`, ink.spark], [`─ SRAM in use, up to ${count(full)}${dashes}`, ink.second]];
    let x = 8;
    for (const [text, fill] of texts) (pen.fillStyle = fill), pen.fillText(text, x, 10), (x += pen.measureText(text).width + 16);
  }

  /** Draws both curves, and where each run is. */
  draw(steps) {
    if (!this.base) this.measure();
    if (!this.canvas.width || !this.canvas.height) { this.base = null; return; } // in a frame that is not shown yet
    const pen = this.canvas.getContext("2d");
    pen.setTransform(1, 0, 0, 1, 0, 0);
    pen.clearRect(0, 0, this.canvas.width, this.canvas.height);
    pen.drawImage(this.base, 0, 0);
    pen.strokeStyle = this.ink.current, pen.lineWidth = 2 * this.pixels;
    steps.forEach((t, n) => {
      pen.setLineDash(n ? SVG_DASH.map((part) => part * this.pixels) : []);
      pen.beginPath(), pen.moveTo(this.at(t, n) * this.pixels, 0), pen.lineTo(this.at(t, n) * this.pixels, this.canvas.height), pen.stroke();
    });
    pen.setLineDash([]);
  }

  stepAt(x) { return clamp(Math.round(((x - 8) / (this.width - 16)) * (this.lengths[0] - 1)), 0, this.lengths[0] - 1); }
}

function showTip(text, x, y) {
  const tip = find("#tip");
  tip.textContent = text, tip.hidden = false;
  const left = Math.min(x + 14, window.innerWidth - tip.offsetWidth - 6);
  tip.style.left = `${Math.max(4, left)}px`;
  tip.style.top = `${y + 18 + tip.offsetHeight > window.innerHeight ? y - tip.offsetHeight - 10 : y + 16}px`;
}

function hideTip() { find("#tip").hidden = true; }
