// What is in SRAM, and what moved between it and HBM, by array, beside the closed form.

class Memory {
  constructor(run, root) {
    this.run = run, this.root = root;
    const { arrays, standard, M, shape, blocks } = run.about, most = Math.ceil(M / (4 * shape.d));
    this.hasForm = arrays.every((array) => array.exact);
    this.expected = arrays.map(({ reads, writes, exact }) => exact ?? [reads, writes]);
    this.expected.push([0, 1].map((side) => this.expected.reduce((sum, pair) => sum + pair[side], 0)));
    this.standard = standard && standard[0] + standard[1];
    this.paperSizes = blocks.B_c === Math.min(most, shape.N_k) && blocks.B_r === Math.min(most, shape.d, shape.N_q);
    this.setTable(find(".hbm", root));
  }

  setTable(box) {
    const form = this.hasForm ? "closed form" : "at the end";
    const formHead = (what) => head({ "data-tip": `${what} of the whole run${this.hasForm ? ", from a formula" : ""}` }, form);
    const soFar = (what) => head({}, what, make("br"), "so far");
    fill(box.tHead, make("tr", {}, head({}, "array"), head({}, "this step"), soFar("reads"), formHead("reads"), soFar("writes"), formHead("writes")));
    this.rows = [...this.run.arrays.map(typeset), "total"].map((name, n) => {
      const cells = this.expected[n].flatMap((form) => [cell(), cell({}, count(form))]);
      return make("tr", { class: n === this.run.arrays.length ? "sum" : "" }, make("th", { scope: "row" }, name), cell(), cells);
    });
    fill(box.tBodies[0], this.rows);
  }

  show(t) {
    this.showSram(t);
    const { run } = this, at = (sums, t) => (t < 0 ? 0 : sums[t]), all = [0, 0, 0, 0];
    run.arrays.forEach((_, a) => {
      const now = [run.reads[a][t], run.writes[a][t]], step = [now[0] - at(run.reads[a], t - 1), now[1] - at(run.writes[a], t - 1)];
      [...step, ...now].forEach((n, i) => (all[i] += n));
      const said = step.map((n, side) => n && `${side ? "write" : "read"} ${count(n)}`).filter(Boolean).join(", ");
      this.fillRow(a, said, now), this.rows[a].classList.toggle("active", said !== "");
    });
    const [read, written, ...sums] = all;
    this.fillRow(run.arrays.length, read + written ? count(read + written) : "", sums);
    this.showVersus(t, sums[0] + sums[1]);
  }

  fillRow(n, step, [reads, writes]) {
    const { cells } = this.rows[n];
    cells[1].textContent = step, cells[2].textContent = count(reads), cells[4].textContent = count(writes);
  }

  showSram(t) {
    const { run, root } = this, { M, peak } = run.about, most = Math.max(M, peak), held = run.resident(t), used = run.occupancy[t];
    const percent = (n) => `${(100 * n) / most}%`;
    fill(find(".bar", root), held.map(([name, size]) => {
      const loaded = run.names[name].includes("["), tip = `${run.plain[name]}: ${count(size)} elements, ${loaded ? "loaded" : "made on chip"}`;
      const block = make("span", { class: loaded ? "" : "made", "data-tip": tip }, inBar(run.names[name]));
      block.style.width = percent(size);
      return block;
    }));
    find(".bar", root).setAttribute("aria-label", `On chip: ${held.map(([name, size]) => `${run.plain[name]} ${size}`).join(", ") || "nothing"}`);
    find(".line", root).style.left = `calc(${percent(M)} - 2px)`;
    const over = find(".over", root);
    over.hidden = used <= M;
    over.style.left = percent(M), over.style.width = percent(Math.max(used - M, 0));
    find(".fill", root).textContent = `${count(used)} of M = ${count(M)} elements in use`;
    const cause = this.paperSizes && !run.backward ? "line 1's sizes leave no room for ℓ, m and S" : "these blocks leave no room for a tile";
    const excess = used > M ? make("span", { class: "bad", "data-tip": cause }, `${count(used - M)} more than M`, why(`: ${cause}`), ". ") : "";
    fill(find(".scale", root), excess, "peak", why(" of the run"), ` ${count(peak)}, ${Math.round((100 * peak) / M)}% of `, typeset("M"), " (dashed", why(" line"), ")");
  }

  showVersus(t, sofar) {
    const { run, standard } = this, all = this.expected.at(-1)[0] + this.expected.at(-1)[1];
    const met = t < run.length - 1 || !this.hasForm ? "" : this.equalsForm(t) ? " They equal the closed form." : [" ", make("span", { class: "bad" }, "They differ from the closed form.")];
    const beside = standard === null ? "" : ` Standard attention${run.backward ? "'s backward pass" : ""} makes ${count(standard)}, ${(standard / all).toFixed(2)} times this run's ${count(all)}.`;
    fill(find(".versus", this.root), `${count(sofar)} accesses so far.`, met, beside);
  }

  equalsForm(t) {
    return this.run.arrays.every((_, a) => this.run.reads[a][t] === this.expected[a][0] && this.run.writes[a][t] === this.expected[a][1]);
  }
}

/** A name in SRAM's bar. What is too wide is not shown: of K[0] the index first, then all. */
const inBar = (name) => name.split(/(?=\[)/).map((part) => make("span", {}, typeset(part)));
