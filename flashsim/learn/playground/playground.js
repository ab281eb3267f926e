// The page: sizes in, tiles, accesses and SRAM out.

const MOST = 10n ** 15n; // of a size that is taken; what is computed from it is exact all the same
const SIZES = {
  N_q: ["queries", 20],
  N_k: ["keys", 20],
  d: ["head width", 9],
  M: ["SRAM", 20],
  B_r: ["rows", 14],
  B_c: ["columns", 14],
};

/** A size as it is written, or null where it is none. */
const sizeOf = (text) => (/^[1-9]\d{0,15}$/.test(text) && BigInt(text) <= MOST ? BigInt(text) : null);

/** All that the page says of a setting. Sizes are BigInts. */
function costs(form, sizes, every = false) {
  const p = problemOf(sizes);
  const blocks = blocksOf(p, sizes.B_r, sizes.B_c);
  const live = sizes.causal && form.skips && !every;
  const tiles = tilesOf(p, sizes.B_r, sizes.B_c, live);
  const { B_r, B_c } = blocks;
  const s = { ...symbolsOf(p.N_q, p.N_k, p.d, p.d_v, p.M, blocks, form.direction), B_r, B_c, tiles };
  const arrays = Object.keys(form.arrays).map((name) => {
    const more = (sizes.causal && form.masking[name]) || [0n, 0n];
    const moved = (live ? form.live : form.arrays)[name].map((of, at) => of(s) + more[at] * p.N_q * p.N_k);
    return [name, ...moved, form.arrays[name].every((of, at) => of(s) === moved[at])];
  });
  const accesses = arrays.reduce((sum, [, reads, writes]) => sum + reads + writes, 0n);
  return { blocks, arrays, accesses, peak: form.peak(p, blocks, tiles) };
}

/** Line 1's block sizes: as printed, or the largest of that shape with which all fits; [1, 1] where nothing does. */
function lineOne(form, sizes, fit) {
  const { d, M } = sizes;
  const p = problemOf(sizes);
  const of = (rows) => form.line_1(rows, d);
  const fits = (rows) => {
    const [B_r, B_c] = of(rows);
    return costs(form, { ...sizes, B_r, B_c }, true).peak <= M;
  };
  if (!fit) return blocksOf(p, ...of(form.rows(M, d, d)));
  let low = 1n;
  let high = largest(p.N_q, p.N_k) + 1n;
  while (high - low > 1n) {
    const middle = (low + high) / 2n;
    if (fits(middle)) low = middle;
    else high = middle;
  }
  return blocksOf(p, ...of(low));
}

/** Steps of a slider: 1, 2, 3, 4, 6, 8, 12, … */
function stepped(n) {
  if (n < 1) return 1n;
  return n % 2 ? 1n << BigInt((n + 1) / 2) : 3n << BigInt(n / 2 - 1);
}

/** The slider's step that is nearest to a value from below. */
function nearest(value, most) {
  let n = 0;
  while (n < most && stepped(n + 1) <= value) n++;
  return n;
}

/** M/d² at a step of its slider, four to a doubling, the last of which is the paper's Figure 2's. */
const shareAt = (step) => FIGURE_2.share * 2 ** ((step - FIGURE_2.steps) / 4);

const say = (n) => grouped.format(n);

/** a of b, BigInts, in percent, to two digits. */
const percent = (a, b) => `${Number((10000n * a) / b) / 100}%`;

class Playground {
  constructor() {
    this.sizes = { ...REFERENCE, causal: false, B_r: 64n, B_c: 64n };
    this.sizing = "fit"; // or "paper", or "given"
    this.inputs = Object.entries(SIZES).map(([name, [what, doublings]]) => this.addSize(name, what, 2 * doublings - 1));
    find("#algorithm").onchange = () => this.resize();
    find("#causal").onchange = (event) => this.set("causal", event.target.checked);
    find("#paper").onclick = () => this.take("paper");
    find("#fit").onclick = () => this.take("fit");
    find("#saved").oninput = (event) => this.share(Number(event.target.value));
    window.addEventListener("resize", () => {
      magnify();
      this.show();
    });
    magnify();
    window.addEventListener("hashchange", ({ newURL }) => {
      this.read(new URL(newURL).hash);
      this.resize();
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.show());
    this.read();
    this.resize();
  }

  get form() {
    return FORMS[Number(find("#algorithm").value)];
  }

  addSize(name, what, most) {
    const range = make("input", { type: "range", min: 0, max: most, "aria-label": `${name}, ${what}` });
    const exactly = { "aria-label": `${name}, ${what}, exactly`, inputmode: "numeric" };
    const number = make("input", { type: "number", min: 1, max: String(MOST), ...exactly });
    range.oninput = () => this.set(name, stepped(Number(range.value)));
    number.oninput = () => this.setExactly(name, number);
    find("#sizes").append(make("div", { class: "size" }, this.label(name, what), range, number));
    return { name, range, number, most };
  }

  label(name, what) {
    const [letter, index] = name.split("_").map((part) => make("i", {}, part));
    return make("span", {}, letter, index ? make("sub", {}, index) : "", " ", make("small", {}, what));
  }

  setExactly(name, number) {
    const size = sizeOf(number.value);
    number.setAttribute("aria-invalid", String(size === null));
    if (size !== null) return this.set(name, size);
    clearTimeout(this.linking);
    const given = `${name} is ${number.value || "empty"}`;
    find("#said").textContent = `${given}; expected a whole number from 1 to ${say(MOST)}.`;
  }

  set(name, value) {
    this.sizes[name] = value;
    if (name.startsWith("B_")) this.sizing = "given";
    this.resize();
  }

  /** Chooses the blocks anew, unless they are given, and shows all. */
  resize() {
    if (this.sizing !== "given") {
      const { B_r, B_c } = lineOne(this.form, this.sizes, this.sizing === "fit");
      Object.assign(this.sizes, { B_r, B_c });
    }
    this.show();
  }

  /** Takes the M at a step of M/d², and the largest blocks that fit. */
  share(step) {
    const d = Number(this.sizes.d);
    this.sizes.M = BigInt(Math.max(1, Math.round(shareAt(step) * d * d)));
    this.take("fit");
  }

  take(sizing) {
    this.sizing = sizing;
    this.resize();
  }

  /** Takes what the address asks for: #algorithm=flash&N=1024. Without block sizes, they are the largest that fit. */
  read(hash = location.hash) {
    const asked = new URLSearchParams(hash.slice(1));
    const direction = asked.get("direction") ?? "forward";
    const at = FORMS.findIndex((form) => form.name === asked.get("algorithm") && form.direction === direction);
    if (at >= 0) find("#algorithm").value = at;
    for (const name of Object.keys(SIZES)) {
      const size = asked.get(name) ?? (name.startsWith("N") ? asked.get("N") : "");
      this.sizes[name] = sizeOf(size ?? "") ?? this.sizes[name];
    }
    if (asked.has("causal")) this.sizes.causal = asked.get("causal") === "true";
    const given = asked.has("B_r") || asked.has("B_c");
    const sizing = asked.get("sizing") ?? (given ? "given" : "fit");
    this.sizing = ["fit", "paper"].includes(sizing) ? sizing : "given";
  }

  /** Whether a run would be refused: line 1's sizes may exceed M, no others. */
  refuses(peak) {
    return peak > this.sizes.M && this.sizing !== "paper";
  }

  show() {
    const { form, sizes } = this;
    const found = costs(form, sizes);
    const refused = this.refuses(found.peak);
    this.inputs.forEach((input) => this.showSize(input));
    find("#causal").checked = sizes.causal;
    this.showTiles(found.blocks);
    this.showPeak(found.peak, sizes.M, refused);
    if (refused) find("#accesses tbody").replaceChildren(refusal(found.peak, sizes.M));
    else this.showAccesses(found);
    this.showVersus(refused ? null : found.accesses);
    const moved = refused ? "no run" : `${say(found.accesses)} accesses`;
    find("#sum").textContent = `${moved}; SRAM ${percent(found.peak, sizes.M)} of M`;
    clearTimeout(this.linking);
    this.linking = setTimeout(() => {
      find("#said").textContent = `${moved}; SRAM ${say(found.peak)} of ${say(sizes.M)}.`;
      writeAddress(this.address);
    }, 300);
  }

  get address() {
    const { name: algorithm, direction } = this.form;
    const sizing = this.sizing === "given" ? {} : { sizing: this.sizing };
    return `#${new URLSearchParams({ algorithm, direction, ...this.sizes, ...sizing })}`;
  }

  showSize({ name, range, number, most }) {
    const size = this.sizes[name];
    range.value = nearest(size, most);
    range.setAttribute("aria-valuetext", say(size));
    if (number.value === String(size)) return;
    number.value = String(size);
    number.setAttribute("aria-invalid", "false");
  }

  /** Compares with standard attention. Of a run that is refused there are no accesses, null. */
  showVersus(accesses) {
    const { form, sizes } = this;
    const standard = FORMS.find((one) => one.name === "standard" && one.direction === form.direction);
    const its = costs(standard, { ...sizes, ...lineOne(standard, sizes, true) });
    const backward = form.direction === "backward" ? ", backward," : "";
    const times = accesses === null ? 0 : Number((1000n * its.accesses) / accesses) / 1000;
    const makes = `with the largest blocks that fit makes ${say(its.accesses)}: ${times} times as many.`;
    const share = Number(sizes.M) / Number(sizes.d) ** 2;
    const step = FIGURE_2.steps + 4 * Math.log2(share / FIGURE_2.share);
    find("#saved").value = Math.round(step);
    find("#share").textContent = Number(share.toPrecision(3));
    const follows = ` The factor follows M/d², here ${Number(share.toPrecision(3))}.`;
    const last = Math.round(step) === FIGURE_2.steps ? ` That is ${FIGURE_2.measurement}` : "";
    const said =
      its.peak > sizes.M
        ? `Of standard attention${backward} no blocks fit into M = ${say(sizes.M)}.`
        : `Standard attention${backward} ${makes}${follows}${last}`;
    const nothing = form === standard || (accesses === null && its.peak <= sizes.M);
    find("#versus").replaceChildren(nothing ? "" : said);
  }

  showTiles(blocks) {
    const canvas = find("#matrix");
    const pen = sharpPen(canvas, canvas.clientWidth, canvas.clientHeight);
    const matrix = this.matrixOf(blocks, canvas.clientWidth, canvas.clientHeight);
    fillBox(pen, [1, 1, matrix.across, matrix.down], color("--tile"));
    if (this.sizes.causal) drawFuture(pen, matrix);
    pen.strokeStyle = color("--faint");
    drawCuts(pen, matrix);
    if (matrix.tall >= 16 && matrix.wide >= 26 && this.form.outer) this.numberTiles(pen, matrix);
    this.tellTiles(canvas, blocks);
  }

  /** Sizes as numbers, and the picture's: how long rows and columns of the matrix are, and those of a tile. */
  matrixOf(blocks, width, height) {
    const [N_q, N_k] = [Number(this.sizes.N_q), Number(this.sizes.N_k)];
    const [B_r, B_c] = [Number(blocks.B_r), Number(blocks.B_c)];
    const across = Math.min(width, 2 * height) - 2;
    const down = height - 2;
    const [rows, columns] = [Number(blocks.T_r), Number(blocks.T_c)];
    return { N_q, N_k, B_r, B_c, rows, columns, across, down, tall: (B_r / N_q) * down, wide: (B_c / N_k) * across };
  }

  /** Numbers tiles in the order in which they are visited. */
  numberTiles(pen, { N_q, N_k, B_r, B_c, rows, columns, across, down, tall, wide }) {
    const skips = this.sizes.causal && this.form.skips;
    const live = (i, j) => !skips || Math.min((i + 1) * B_r, N_q) - N_q + N_k > j * B_c;
    const byRow = (n) => [Math.floor(n / columns), n % columns];
    const byColumn = (n) => [n % rows, Math.floor(n / rows)];
    const nth = this.form.outer === "rows" ? byRow : byColumn;
    const tiles = Array.from({ length: rows * columns }, (_, n) => nth(n)).filter(([i, j]) => live(i, j));
    pen.fillStyle = color("--ink");
    pen.font = "12px system-ui, sans-serif";
    pen.textAlign = "center";
    tiles.forEach(([i, j], n) => {
      const x = (j * wide + Math.min((j + 1) * wide, across)) / 2;
      const y = (i * tall + Math.min((i + 1) * tall, down)) / 2;
      pen.fillText(String(n + 1), 1 + x, 5 + y);
    });
  }

  tellTiles(canvas, { B_r, B_c, T_r, T_c }) {
    const said = `${say(T_r)} × ${say(T_c)} tiles of ${say(B_r)} × ${say(B_c)}`;
    const how = { rows: "row by row", columns: "column by column" }[this.form.outer];
    canvas.setAttribute("aria-label", said + (how ? `, ${how}` : ""));
    find("#tiles").textContent = `: ${said}${how ? `, visited ${how}` : ""}`;
  }

  showPeak(peak, M, refused) {
    const most = largest(peak, M);
    const over = peak > M;
    const excess = say(peak - M);
    const said = refused ? "too many, a run refuses these blocks" : "over M, as line 1 is printed";
    const many = `: ${excess} ${said}`;
    const used = over ? make("span", { class: "bad" }, many) : `, ${Number((1000n * peak) / M) / 10}%`;
    find("#used").style.width = percent(peak, most);
    find("#used").classList.toggle("over", over);
    find("#limit").style.left = `calc(${percent(M, most)} - 2px)`;
    find("#peak").replaceChildren(`: at most ${say(peak)} of M = ${say(M)}`, used);
  }

  showAccesses({ arrays, accesses }) {
    const widest = largest(1n, ...arrays.map(([, reads, writes]) => reads + writes));
    const rows = arrays.map((array) => this.accessesOf(array, widest));
    const sum = (at) => say(arrays.reduce((total, array) => total + array[at], 0n));
    const all = formulaCell(`${say(accesses)} accesses`);
    rows.push(make("tr", { class: "sum" }, rowHead("all"), cell({}, sum(1)), cell({}, sum(2)), cell(), all));
    find("#accesses tbody").replaceChildren(...rows);
  }

  accessesOf([name, reads, writes, asFormula], widest) {
    const [of, to] = this.form.texts[name];
    const bars = make("div", {}, bar(reads, widest), bar(writes, widest));
    const written = to === "0" ? "" : [" ; ", typeset(to)];
    const formula = formulaCell(typeset(of), written, asFormula ? "" : " without the mask");
    const numbers = [cell({}, say(reads)), cell({}, say(writes)), cell({ class: "share" }, bars)];
    return make("tr", {}, rowHead(typeset(name)), numbers, formula);
  }
}

/** What stands in the place of the accesses of a run that is refused. */
function refusal(peak, M) {
  const said = `A run refuses these blocks: they need ${say(peak - M)} elements more than M = ${say(M)}.`;
  return make("tr", { class: "refused" }, cell({ colspan: "5" }, said));
}

const rowHead = (...content) => make("th", { scope: "row" }, ...content);
const formulaCell = (...content) => cell({ class: "formula" }, ...content);

function bar(n, widest) {
  const part = make("i");
  part.style.width = percent(n, widest);
  return part;
}

/** The keys behind a query's own position. */
function drawFuture(pen, { N_q, N_k, across, down }) {
  pen.fillStyle = color("--ground");
  pen.beginPath();
  if (N_k >= N_q) pen.moveTo(1 + (1 - N_q / N_k) * across, 1);
  else {
    pen.moveTo(1, 1);
    pen.lineTo(1, 1 + (1 - N_k / N_q) * down);
  }
  pen.lineTo(1 + across, 1 + down);
  pen.lineTo(1 + across, 1);
  pen.fill();
}

/** Lines between rows and between columns of tiles, where they are not too narrow to be seen. */
function drawCuts(pen, { rows, columns, across, down, tall, wide }) {
  pen.beginPath();
  for (let i = 0; tall >= 3 && i <= rows; i++) {
    const y = 1 + Math.min(i * tall, down);
    pen.moveTo(1, y);
    pen.lineTo(1 + across, y);
  }
  for (let j = 0; wide >= 3 && j <= columns; j++) {
    const x = 1 + Math.min(j * wide, across);
    pen.moveTo(x, 1);
    pen.lineTo(x, 1 + down);
  }
  pen.stroke();
}

const playground = new Playground();
document.documentElement.dataset.ready = String(Math.round(performance.now()));
