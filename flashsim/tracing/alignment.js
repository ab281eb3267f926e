// Two runs in step: which step of the second goes with a step of the first.

/**
 * Which step of `right` shows what step t of `left` does: `to[t]`. In runs of one algorithm it is the same line in the
 * same turn of the loops; else, within the same tile, the step that has made the same quantity. A step that `right`
 * lacks is `missing`; there, as between tiles, `right` stays where it is.
 */
class Alignment {
  constructor(left, right) {
    this.left = left;
    this.right = right;
    this.to = new Int32Array(left.length);
    this.missing = new Uint8Array(left.length);
    this.sameLines =
      left.about.algorithm === right.about.algorithm &&
      left.about.direction === right.about.direction &&
      String(Object.values(left.about.blocks)) === String(Object.values(right.about.blocks));
    this.refused = this.refusal();
    if (this.sameLines) this.byLine();
    else if (!this.refused) this.byTile();
    this.to[left.length - 1] = right.length - 1; // at the end, both are
  }

  refusal() {
    const runs = [this.left, this.right];
    const [a, b] = runs.map((run) => run.about.shape);
    if (a.N_q !== b.N_q || a.N_k !== b.N_k) return "The two runs are of different sizes: they have no tiles in common.";
    return runs.every((run) => run.tileStarts.length) ? "" : "One of the runs does not go by tiles.";
  }

  byLine() {
    const keys = (run) => {
      const seen = new Map();
      return Array.from({ length: run.length }, (_, t) => {
        const line = `${run.place(t)[2]}|${run.loopsAt(t)}`;
        const n = seen.get(line) ?? 0;
        seen.set(line, n + 1);
        return `${line}|${n}`;
      });
    };
    const at = new Map(keys(this.right).map((key, t) => [key, t]));
    let held = 0;
    keys(this.left).forEach((key, t) => {
      if (at.has(key)) held = at.get(key);
      else this.missing[t] = 1;
      this.to[t] = held;
    });
  }

  byTile() {
    this.reached = new Map(); // where right has got to, by tile
    let held = 0;
    for (let t = 0; t < this.left.length; t++) {
      if (this.left.reaches[t]) held = this.within(t) ?? held;
      this.to[t] = held;
    }
  }

  /** The step of right's for step t of left's, within the same tile; null where right has no such tile. */
  within(t) {
    const { left, right, reached } = this;
    const query = left.steps.rows[t][0];
    const key = left.steps.cols[t][0];
    const mine = left.visitsOf(query, key);
    const its = right.visitsOf(query, key);
    if (!its.length) {
      this.missing[t] = 1;
      return null;
    }
    const tile = `${query},${key}`;
    const nth = mine.findIndex(([start, end]) => start <= t && t <= end);
    const paired = mine.length === its.length;
    const visits = paired ? [its[nth]] : its;
    const begins = paired ? t === mine[nth][0] : !reached.has(tile);
    const ends = t === mine[nth][1] && (paired || nth === mine.length - 1);
    const from = begins ? visits[0][0] : reached.get(tile);
    const step = ends ? visits.at(-1)[1] : Math.max(from, this.made(t, visits) ?? from);
    reached.set(tile, step);
    return step;
  }

  /** The last step in these visits of right's that makes what left makes in step t: by name, or else by quantity. */
  made(t, visits) {
    const { left, right } = this;
    const results = (run, at) => run.eventsAt(at).filter((event) => run.events.kind[event] === "compute");
    const wanted = results(left, t).at(-1);
    if (wanted === undefined) return null;
    const name = left.nameOf(wanted);
    const quantity = left.quantityOf(wanted);
    let like = null;
    for (const [start, end] of [...visits].reverse()) {
      for (let u = end; u >= start; u--) {
        const made = results(right, u);
        if (made.some((event) => right.nameOf(event) === name)) return u;
        if (like === null && made.some((event) => right.quantityOf(event) === quantity)) like = u;
      }
    }
    return like;
  }

  /** The first step of left's whose results differ from right's, for runs of one algorithm; −1 if there is none. */
  firstDifference() {
    if (!this.sameLines) return -1;
    for (let t = 0; t < this.left.length; t++) {
      if (this.missing[t]) return t;
      const mine = resultAt(this.left, t);
      const its = resultAt(this.right, this.to[t]);
      if (mine && its && !equal(mine.data, its.data)) return t;
    }
    return this.left.length === this.right.length ? -1 : this.left.length - 1;
  }
}

const resultAt = (run, t) => run.tiles[run.events.value[run.steps.last[t]]];
const equal = (a, b) => a.length === b.length && a.every((value, n) => Object.is(value, b[n]));
