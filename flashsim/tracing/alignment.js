// Two runs in step: which step of the second goes with a step of the first.

/**
 * Which step of `right` shows what step t of `left` does: `to[t]`. In runs of one algorithm it is the same line in the same
 * turn of the loops; else, within the same tile, the step that has made the same quantity. What `right` has no step for is
 * `missing`, and there, as between tiles, it stays where it is.
 */
class Alignment {
  constructor(left, right) {
    this.left = left, this.right = right;
    this.to = new Int32Array(left.length), this.missing = new Uint8Array(left.length);
    this.sameLines = left.about.algorithm === right.about.algorithm && left.about.direction === right.about.direction && String(Object.values(left.about.blocks)) === String(Object.values(right.about.blocks));
    this.refused = this.refusal();
    if (this.sameLines) this.byLine();
    else if (!this.refused) this.byTile();
    this.to[left.length - 1] = right.length - 1; // at the end, both are
  }

  refusal() {
    const [a, b] = [this.left, this.right].map((run) => run.about.shape);
    if (a.N_q !== b.N_q || a.N_k !== b.N_k) return "The two runs are of different sizes: they have no tiles in common.";
    return [this.left, this.right].every((run) => run.tileStarts.length) ? "" : "One of the runs does not go by tiles.";
  }

  byLine() {
    const keys = (run) => {
      const seen = new Map();
      return Array.from({ length: run.length }, (_, t) => {
        const line = `${run.place(t)[2]}|${run.loopsAt(t)}`, n = seen.get(line) ?? 0;
        return seen.set(line, n + 1), `${line}|${n}`;
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
    const { left, right, to } = this, places = new Map(); // where right has got to, by tile
    let held = 0;
    for (let t = 0; t < left.length; t++) {
      if (left.reaches[t]) {
        const query = left.steps.rows[t][0], key = left.steps.cols[t][0], tile = `${query},${key}`;
        const mine = left.visitsOf(query, key), its = right.visitsOf(query, key);
        if (!its.length) this.missing[t] = 1;
        else {
          const nth = mine.findIndex(([start, end]) => start <= t && t <= end), paired = mine.length === its.length;
          const visits = paired ? [its[nth]] : its, last = visits[visits.length - 1][1];
          const from = (paired ? t === mine[nth][0] : !places.has(tile)) ? visits[0][0] : places.get(tile);
          const ends = t === mine[nth][1] && (paired || nth === mine.length - 1);
          held = ends ? last : Math.max(from, this.made(t, visits) ?? from);
          places.set(tile, held);
        }
      }
      to[t] = held;
    }
  }

  /** The last step of these visits of right's that makes what left makes in step t: by its name, or else by its quantity. */
  made(t, visits) {
    const { left, right } = this, results = (run, at) => run.eventsAt(at).filter((event) => run.events.kind[event] === "compute");
    const wanted = results(left, t).at(-1);
    if (wanted === undefined) return null;
    let like = null, same = null;
    for (const [start, end] of visits)
      for (let u = start; u <= end; u++)
        for (const made of results(right, u)) {
          if (right.nameOf(made) === left.nameOf(wanted)) same = u;
          if (right.quantityOf(made) === left.quantityOf(wanted)) like = u;
        }
    return same ?? like;
  }

  /** The first step of left's whose results differ from right's, for runs of one algorithm; −1 if there is none. */
  firstDifference() {
    if (!this.sameLines) return -1;
    for (let t = 0; t < this.left.length; t++) {
      if (this.missing[t]) return t;
      const [x, y] = [[this.left, t], [this.right, this.to[t]]].map(([run, at]) => run.tiles[run.events.value[run.steps.last[at]]]);
      if (x && y && (x.data.length !== y.data.length || x.data.some((value, n) => !Object.is(value, y.data[n])))) return t;
    }
    return this.left.length === this.right.length ? -1 : this.left.length - 1;
  }
}
