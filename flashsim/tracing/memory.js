// What moved between HBM and SRAM, by array, beside the predicted total; and how full SRAM is.

class Memory {
  constructor(run, root) {
    this.run = run, this.root = root;
    const { arrays, standard, M, shape, sizes, blocks } = run.about, most = Math.ceil(M / (4 * shape.d));
    this.hasForm = arrays.every((array) => array.exact);
    this.expected = arrays.map(({ reads, writes, exact }) => exact ?? [reads, writes]);
    this.expected.push([0, 1].map((side) => this.expected.reduce((sum, pair) => sum + pair[side], 0)));
    this.standard = standard && standard[0] + standard[1];
    this.paperSizes = !sizes.length && blocks.B_c === Math.min(most, shape.N_k) && blocks.B_r === Math.min(most, shape.d, shape.N_q);
    this.setTable(find(".hbm", root));
  }

  setTable(box) {
    const form = this.hasForm ? ["predicted", make("br"), "total"] : ["at the", make("br"), "end"];
    const formHead = (what) => head({ "data-tip": `${what} of the whole run${this.hasForm ? ", by a formula (a closed form)" : ""}` }, form.map((part) => part.cloneNode?.() ?? part));
    const soFar = (what) => head({}, what, make("br"), "so far");
    fill(box.tHead, make("tr", {}, head({}, "array"), head({}, "this", make("br"), "step"), soFar("reads"), formHead("reads"), soFar("writes"), formHead("writes")));
    this.rows = [...this.run.arrays.map(typeset), "total"].map((name, n) => {
      const cells = this.expected[n].flatMap(() => [cell(), cell()]);
      return make("tr", { class: n === this.run.arrays.length ? "sum" : "" }, make("th", { scope: "row" }, name), cell(), cells);
    });
    fill(box.tBodies[0], this.rows);
  }

  /** Shows a step; where a question is `asked` later, without the totals, which may answer it. */
  show(t, asked) {
    if (asked !== this.asked) this.showTotals(asked);
    this.showPeak(t);
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

  showTotals(asked) {
    this.asked = asked;
    this.rows.forEach(({ cells }, n) => this.expected[n].forEach((form, side) => { cells[3 + 2 * side].textContent = asked ? "?" : count(form); }));
  }

  fillRow(n, step, [reads, writes]) {
    const { cells } = this.rows[n];
    cells[1].textContent = step, cells[2].textContent = count(reads), cells[4].textContent = count(writes);
  }

  showPeak(t) {
    const { run } = this, { M, peak } = run.about, used = run.occupancy[t];
    const cause = this.paperSizes && !run.backward ? "line 1's sizes leave no room for ℓ, m and S" : "these blocks leave no room for a tile";
    fill(find(".scale", this.root), used > M ? make("span", { class: "bad" }, `${count(used - M)} elements more than M: ${cause}. `) : "", `In SRAM at most ${count(peak)} of `, typeset("M"), ` = ${count(M)}, ${Math.round((100 * peak) / M)}%.`);
  }

  showVersus(t, sofar) {
    const { run, standard } = this, all = this.expected.at(-1)[0] + this.expected.at(-1)[1];
    const met = t < run.length - 1 || !this.hasForm ? "" : this.equalsForm(t) ? `All ${count(sofar)} equal the prediction. ` : [make("span", { class: "bad" }, "They differ from the prediction."), " "];
    const beside = standard === null ? "" : `Standard attention${run.backward ? "'s backward pass" : ""} makes ${count(standard)}, ${(standard / all).toFixed(2)} times this run's ${count(all)}${run.wins ? `${run.wins}` : ""}.`;
    fill(find(".versus", this.root), met, beside);
  }

  equalsForm(t) {
    return this.run.arrays.every((_, a) => this.run.reads[a][t] === this.expected[a][0] && this.run.writes[a][t] === this.expected[a][1]);
  }
}
