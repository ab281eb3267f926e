// The page: sizes in, tiles, accesses and SRAM out.

const MOST = 10n ** 15n; // of a size that is taken; what is computed from it is exact all the same
const SIZES = { N_q: ["queries", 20], N_k: ["keys", 20], d: ["head width", 9], M: ["SRAM", 20], B_r: ["rows", 14], B_c: ["columns", 14] };

/** A size as it is written, or null where it is none. */
const sizeOf = (text) => (/^[1-9]\d{0,15}$/.test(text) && BigInt(text) <= MOST ? BigInt(text) : null);

/** All that the page says of a setting. Sizes are BigInts. */
function costs(form, sizes, every = false) {
  const p = problemOf(sizes), blocks = blocksOf(p, sizes.B_r, sizes.B_c), live = sizes.causal && form.skips && !every, tiles = tilesOf(p, sizes.B_r, sizes.B_c, live);
  const s = { ...symbolsOf(p.N_q, p.N_k, p.d, p.d_v, p.M, blocks, form.direction), B_r: blocks.B_r, B_c: blocks.B_c, tiles };
  const arrays = Object.keys(form.arrays).map((name) => {
    const more = (sizes.causal && form.masking[name]) || [0n, 0n], moved = (live ? form.live : form.arrays)[name].map((of, at) => of(s) + more[at] * p.N_q * p.N_k);
    return [name, ...moved, form.arrays[name].every((of, at) => of(s) === moved[at])];
  });
  return { blocks, arrays, peak: form.peak(p, blocks, tiles), accesses: arrays.reduce((sum, [, reads, writes]) => sum + reads + writes, 0n) };
}

/** Line 1's block sizes: as printed, or the largest of that shape with which everything fits; [1, 1] where nothing does. */
function lineOne(form, sizes, fit) {
  const { d, M } = sizes, p = problemOf(sizes), of = (rows) => form.line_1(rows, d);
  const fits = (rows) => { const [B_r, B_c] = of(rows); return costs(form, { ...sizes, B_r, B_c }, true).peak <= M; };
  if (!fit) return blocksOf(p, ...of(form.rows(M, d, d)));
  let low = 1n, high = largest(p.N_q, p.N_k) + 1n;
  while (high - low > 1n) { const middle = (low + high) / 2n; if (fits(middle)) low = middle; else high = middle; }
  return blocksOf(p, ...of(low));
}

/** Steps of a slider: 1, 2, 3, 4, 6, 8, 12, … */
const stepped = (n) => (n < 1 ? 1n : n % 2 ? 1n << BigInt((n + 1) / 2) : 3n << BigInt(n / 2 - 1));
const nearest = (value, most) => { let n = 0; while (n < most && stepped(n + 1) <= value) n++; return n; };

class Playground {
  constructor() {
    this.sizes = { N_q: 1024n, N_k: 1024n, causal: false, d: 64n, M: 25600n, B_r: 64n, B_c: 64n };
    this.inputs = Object.entries(SIZES).map(([name, [what, doublings]]) => this.addSize(name, what, 2 * doublings - 1));
    find("#algorithm").onchange = () => this.show();
    find("#causal").onchange = (event) => this.set("causal", event.target.checked);
    find("#paper").onclick = () => this.take(false);
    find("#fit").onclick = () => this.take(true);
    window.addEventListener("resize", () => this.show());
    window.addEventListener("hashchange", ({ newURL }) => { this.read(new URL(newURL).hash), this.show(); });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.show());
    if (!this.read()) Object.assign(this.sizes, lineOne(this.form, this.sizes, true));
    this.show();
  }

  get form() { return FORMS[Number(find("#algorithm").value)]; }

  addSize(name, what, most) {
    const letter = name.split("_"), label = make("span", {}, make("i", {}, letter[0]), letter[1] ? make("sub", {}, make("i", {}, letter[1])) : "", " ", make("small", {}, what));
    const range = make("input", { type: "range", min: 0, max: most, "aria-label": `${name}, ${what}` }), number = make("input", { type: "number", min: 1, max: String(MOST), "aria-label": `${name}, ${what}, exactly`, inputmode: "numeric" });
    range.oninput = () => this.set(name, stepped(Number(range.value)));
    number.oninput = () => {
      const size = sizeOf(number.value);
      number.setAttribute("aria-invalid", String(size === null));
      if (size !== null) this.set(name, size);
      else clearTimeout(this.linking), find("#said").textContent = `${name} is ${number.value || "empty"}; expected a whole number from 1 to ${grouped.format(MOST)}.`;
    };
    find("#sizes").append(make("div", { class: "size" }, label, range, number));
    return { name, range, number, most };
  }

  set(name, value) { this.sizes[name] = value, this.show(); }

  take(fit) {
    const { B_r, B_c } = lineOne(this.form, this.sizes, fit);
    Object.assign(this.sizes, { B_r, B_c }), this.show();
  }

  /** What the address asks for: #algorithm=flash&N=1024. Returns whether it asks. */
  read(hash = location.hash) {
    const asked = new URLSearchParams(hash.slice(1));
    const at = FORMS.findIndex((form) => form.name === asked.get("algorithm") && form.direction === (asked.get("direction") ?? "forward"));
    if (at >= 0) find("#algorithm").value = at;
    for (const name of Object.keys(SIZES)) {
      const size = asked.get(name) ?? (name.startsWith("N") ? asked.get("N") : "");
      this.sizes[name] = sizeOf(size ?? "") ?? this.sizes[name];
    }
    if (asked.has("causal")) this.sizes.causal = asked.get("causal") === "true";
    return [...asked].length > 0;
  }

  show() {
    const { form, sizes } = this, found = costs(form, sizes), standard = FORMS.find((one) => one.name === "standard" && one.direction === form.direction);
    for (const { name, range, number, most } of this.inputs) {
      range.value = nearest(sizes[name], most), range.setAttribute("aria-valuetext", grouped.format(sizes[name]));
      if (number.value !== String(sizes[name])) number.value = String(sizes[name]), number.setAttribute("aria-invalid", "false");
    }
    find("#causal").checked = sizes.causal;
    this.showTiles(found.blocks), this.showPeak(found.peak, sizes.M), this.showAccesses(found);
    this.showVersus(form, found.accesses, standard);
    clearTimeout(this.linking);
    this.linking = setTimeout(() => {
      find("#said").textContent = `${grouped.format(found.accesses)} accesses; SRAM ${grouped.format(found.peak)} of ${grouped.format(sizes.M)}.`;
      try { history.replaceState(null, "", `#${new URLSearchParams({ algorithm: form.name, direction: form.direction, ...Object.fromEntries(Object.entries(sizes).map(([name, n]) => [name, String(n)])) })}`); } catch { /* a frame without an address */ }
    }, 300);
  }

  showVersus(form, accesses, standard) {
    const backward = form.direction === "backward" ? ", backward," : "", { accesses: its, peak } = costs(standard, { ...this.sizes, ...lineOne(standard, this.sizes, true) });
    const said = peak > this.sizes.M ? `Of standard attention${backward} no blocks fit into M = ${grouped.format(this.sizes.M)}.`
      : `Standard attention${backward} with the largest blocks that fit makes ${grouped.format(its)}: ${Number((1000n * its) / accesses) / 1000} times as many.`;
    find("#versus").replaceChildren(form === standard ? "" : said);
  }

  showTiles({ B_r, B_c, T_r, T_c }) {
    const canvas = find("#matrix"), pixels = window.devicePixelRatio || 1, width = canvas.clientWidth, height = canvas.clientHeight, pen = canvas.getContext("2d");
    canvas.width = width * pixels, canvas.height = height * pixels, pen.scale(pixels, pixels);
    const [N_q, N_k] = [Number(this.sizes.N_q), Number(this.sizes.N_k)], [across, down] = [Math.min(width, 2 * height) - 2, height - 2], [tall, wide] = [(Number(B_r) / N_q) * down, (Number(B_c) / N_k) * across];
    pen.fillStyle = color("--tile"), pen.fillRect(1, 1, across, down), (pen.strokeStyle = color("--faint"));
    if (this.sizes.causal) { // keys behind a query's own position
      pen.fillStyle = color("--ground"), pen.beginPath();
      if (N_k >= N_q) pen.moveTo(1 + (1 - N_q / N_k) * across, 1);
      else pen.moveTo(1, 1), pen.lineTo(1, 1 + (1 - N_k / N_q) * down);
      pen.lineTo(1 + across, 1 + down), pen.lineTo(1 + across, 1), pen.fill();
    }
    const rows = Number(T_r), columns = Number(T_c), order = this.form.outer;
    pen.beginPath();
    if (tall >= 3) for (let i = 0; i <= rows; i++) pen.moveTo(1, 1 + Math.min(i * tall, down)), pen.lineTo(1 + across, 1 + Math.min(i * tall, down));
    if (wide >= 3) for (let j = 0; j <= columns; j++) pen.moveTo(1 + Math.min(j * wide, across), 1), pen.lineTo(1 + Math.min(j * wide, across), 1 + down);
    pen.stroke();
    if (tall >= 16 && wide >= 26 && order) {
      pen.fillStyle = color("--ink"), pen.font = "12px system-ui, sans-serif", pen.textAlign = "center";
      const live = (i, j) => !this.sizes.causal || !this.form.skips || Math.min((i + 1) * Number(B_r), N_q) - N_q + N_k > j * Number(B_c);
      let visited = 0;
      for (let n = 0; n < rows * columns; n++) {
        const [i, j] = order === "rows" ? [Math.floor(n / columns), n % columns] : [n % rows, Math.floor(n / rows)];
        if (live(i, j)) pen.fillText(String(++visited), 1 + (j * wide + Math.min((j + 1) * wide, across)) / 2, 5 + (i * tall + Math.min((i + 1) * tall, down)) / 2);
      }
    }
    const said = `${grouped.format(T_r)} × ${grouped.format(T_c)} tiles of ${grouped.format(B_r)} × ${grouped.format(B_c)}`, how = { rows: "row by row", columns: "column by column" }[order];
    canvas.setAttribute("aria-label", said + (how ? `, ${how}` : ""));
    find("#tiles").textContent = `: ${said}${how ? `, visited ${how}` : ""}`;
  }

  showPeak(peak, M) {
    const most = peak > M ? peak : M, percent = (n) => `${Number((10000n * n) / most) / 100}%`, over = peak > M;
    find("#used").style.width = percent(peak), find("#limit").style.left = `calc(${percent(M)} - 2px)`;
    find("#used").classList.toggle("over", over);
    find("#peak").replaceChildren(`: at most ${grouped.format(peak)} of M = ${grouped.format(M)}`, over ? make("span", { class: "bad" }, `: ${grouped.format(peak - M)} too many, a run refuses these blocks`) : `, ${Number((1000n * peak) / M) / 10}%`);
  }

  showAccesses({ arrays, accesses }) {
    const widest = arrays.map(([, reads, writes]) => reads + writes).reduce((a, b) => (a > b ? a : b), 1n);
    const rows = arrays.map(([name, reads, writes, asFormula]) => {
      const bars = [reads, writes].map((n) => { const part = make("i"); part.style.width = `${Number((10000n * n) / widest) / 100}%`; return part; }), [of, to] = this.form.texts[name];
      return make("tr", {}, make("th", { scope: "row" }, typeset(name)), make("td", {}, grouped.format(reads)), make("td", {}, grouped.format(writes)), make("td", { class: "share" }, make("div", {}, bars)), make("td", { class: "formula" }, typeset(of), to === "0" ? "" : [" ; ", typeset(to)], asFormula ? "" : " without the mask"));
    });
    const sum = (at) => grouped.format(arrays.reduce((total, array) => total + array[at], 0n));
    find("#accesses tbody").replaceChildren(...rows, make("tr", { class: "sum" }, make("th", { scope: "row" }, "all"), make("td", {}, sum(1)), make("td", {}, sum(2)), make("td"), make("td", { class: "formula" }, `${grouped.format(accesses)} accesses`)));
  }
}

const playground = new Playground();
document.documentElement.dataset.ready = String(Math.round(performance.now()));
