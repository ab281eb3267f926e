// What moved between HBM and SRAM, by array, beside the predicted total; and how full SRAM is.

class Memory {
  constructor(run, root) {
    this.run = run;
    this.root = root;
    const { arrays, standard, M, shape, sizes, blocks } = run.about;
    const most = Math.ceil(M / (4 * shape.d));
    this.hasForm = arrays.every((array) => array.exact);
    this.expected = arrays.map(({ reads, writes, exact }) => exact ?? [reads, writes]);
    this.expected.push([0, 1].map((side) => this.expected.reduce((sum, pair) => sum + pair[side], 0)));
    this.standard = standard && standard[0] + standard[1];
    const [B_r, B_c] = [Math.min(most, shape.d, shape.N_q), Math.min(most, shape.N_k)];
    this.paperSizes = !sizes.length && blocks.B_c === B_c && blocks.B_r === B_r;
    this.setTable(find(".hbm", root));
  }

  setTable(box) {
    const total = this.hasForm ? ["predicted", "total"] : ["at the", "end"];
    const formula = this.hasForm ? ", by a formula (a closed form)" : "";
    const onTwoLines = ([first, second]) => [first, make("br"), second];
    const of = (what) => [
      head({}, onTwoLines([what, "so far"])),
      head({ "data-tip": `${what} of the whole run${formula}` }, onTwoLines(total)),
    ];
    const step = head({}, onTwoLines(["this", "step"]));
    fill(box.tHead, make("tr", {}, head({}, "array"), step, of("reads"), of("writes")));
    this.rows = this.run.arrays.map((array) => this.row("", typeset(array)));
    this.rows.push(this.row("sum", "total"));
    fill(box.tBodies[0], this.rows);
  }

  /** A row of cells: what the step moves, then reads and writes, so far and in all. */
  row(kind, name) {
    const cells = Array.from({ length: 5 }, () => cell());
    return make("tr", { class: kind }, make("th", { scope: "row" }, name), cells);
  }

  /** Shows a step; where a question is `asked` later, without the totals, which may answer it. */
  show(t, asked) {
    if (asked !== this.asked) this.showTotals(asked);
    this.showPeak(t);
    const { run } = this;
    const at = (sums, t) => (t < 0 ? 0 : sums[t]);
    const all = [0, 0, 0, 0];
    run.arrays.forEach((_, a) => {
      const now = [run.reads[a][t], run.writes[a][t]];
      const step = [now[0] - at(run.reads[a], t - 1), now[1] - at(run.writes[a], t - 1)];
      for (const [i, n] of [...step, ...now].entries()) all[i] += n;
      const said = step.map((n, side) => n && `${side ? "write" : "read"} ${count(n)}`).filter(Boolean).join(", ");
      this.fillRow(a, said, now);
      this.rows[a].classList.toggle("active", said !== "");
    });
    const [read, written, ...sums] = all;
    this.fillRow(run.arrays.length, read + written ? count(read + written) : "", sums);
    this.showVersus(t, sums[0] + sums[1]);
  }

  showTotals(asked) {
    this.asked = asked;
    this.rows.forEach(({ cells }, n) => {
      const [reads, writes] = this.expected[n];
      cells[3].textContent = asked ? "?" : count(reads);
      cells[5].textContent = asked ? "?" : count(writes);
    });
  }

  fillRow(n, step, [reads, writes]) {
    const { cells } = this.rows[n];
    cells[1].textContent = step;
    cells[2].textContent = count(reads);
    cells[4].textContent = count(writes);
  }

  showPeak(t) {
    const { M, peak } = this.run.about;
    const share = Math.round((1000 * peak) / M) / 10;
    const most = [`In SRAM at most ${count(peak)} of `, typeset("M"), ` = ${count(M)}, ${share}%.`];
    fill(find(".scale", this.root), this.tooMany(this.run.occupancy[t] - M), most);
  }

  tooMany(over) {
    if (over <= 0) return "";
    const byLine1 = this.paperSizes && !this.run.backward;
    const cause = byLine1 ? "line 1's sizes leave no room for ℓ, m and S" : "these blocks leave no room for a tile";
    return make("span", { class: "bad" }, `${count(over)} elements more than M: ${cause}. `);
  }

  showVersus(t, sofar) {
    const ended = t === this.run.length - 1 && this.hasForm;
    fill(find(".versus", this.root), ended ? this.verdict(t, sofar) : "", this.besideStandard());
  }

  verdict(t, sofar) {
    if (this.equalsForm(t)) return `All ${count(sofar)} equal the prediction. `;
    return [make("span", { class: "bad" }, "They differ from the prediction."), " "];
  }

  besideStandard() {
    const { run, standard } = this;
    if (standard === null) return "";
    const [reads, writes] = this.expected.at(-1);
    const all = reads + writes;
    const pass = run.backward ? "'s backward pass" : "";
    const times = `${(standard / all).toFixed(2)} times this run's ${count(all)}`;
    return `Standard attention${pass} makes ${count(standard)}, ${times}${run.wins ?? ""}.`;
  }

  equalsForm(t) {
    return this.run.arrays.every(
      (_, a) => this.run.reads[a][t] === this.expected[a][0] && this.run.writes[a][t] === this.expected[a][1],
    );
  }
}
