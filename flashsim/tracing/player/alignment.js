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
    this.like = new Map(); // of each event of left's, right's that makes or moves the same; undefined: none does
    this.alike =
      left.about.algorithm === right.about.algorithm &&
      left.about.direction === right.about.direction &&
      String(Object.values(left.about.blocks)) === String(Object.values(right.about.blocks));
    this.tried = left.about.title.endsWith(`, beside ${right.about.title}`) ? 0 : 1; // a student's, or a planted bug's
    this.refused = this.refusal();
    if (this.alike) this.byResult();
    else if (!this.refused) this.byTile();
    this.to[left.length - 1] = right.length - 1; // at the end, both are
  }

  refusal() {
    const runs = [this.left, this.right];
    const [a, b] = runs.map((run) => run.about.shape);
    if (a.N_q !== b.N_q || a.N_k !== b.N_k) return "The two runs are of different sizes: they have no tiles in common.";
    return runs.every((run) => run.tileStarts.length) ? "" : "One of the runs does not go by tiles.";
  }

  /** By what a step makes or moves last, in the same turn of the loops, whatever its line is called. */
  byResult() {
    const at = new Map();
    for (let t = 0; t < this.right.length; t++) for (const event of this.right.eventsAt(t)) at.set(event, t);
    const its = new Map([...resultsOf(this.right)].map(([event, key]) => [key, event]));
    for (const [event, key] of resultsOf(this.left)) this.like.set(event, its.get(key));
    let held = 0;
    for (let t = 0; t < this.left.length; t++) {
      const like = this.like.get(this.left.steps.last[t]);
      if (like === undefined) this.missing[t] = 1;
      else held = at.get(like);
      this.to[t] = held;
    }
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

  /**
   * The first step of left's whose result differs from right's, for runs of one algorithm; −1: none. What right
   * never computes is left's own affair; what it never moves is a difference, and what it moves and left does not.
   */
  firstDifference() {
    if (!this.alike) return -1;
    const { left } = this;
    for (let t = 0; t < left.length; t++) {
      if (left.eventsAt(t).some((event) => this.differs(event))) return t;
    }
    return this.lacks() ? left.length - 1 : -1;
  }

  differs(event) {
    const { left, right } = this;
    const like = this.like.get(event);
    if (like === undefined) return left.events.kind[event] !== "compute";
    const [mine, its] = [valueOf(left, event), valueOf(right, like)];
    return Boolean(mine && its) && !isGiven(left, event) && !sameNumbers(mine.data, its.data);
  }

  /** Whether right moves blocks, of arrays that left has, that left does not move. */
  lacks() {
    const { left, right } = this;
    const mine = new Set(resultsOf(left).values());
    return [...resultsOf(right)].some(([event, key]) => {
      const moves = right.events.kind[event] !== "compute" && left.arrays.includes(arrayOf(right, event));
      return moves && !mine.has(key);
    });
  }
}

const arrayOf = (run, event) => run.nameOf(event).split("[")[0];

/** Whether a load is of an operand: one of two algorithms may get Q scaled. */
function isGiven(run, event) {
  const loaded = run.events.kind[event] === "load" && arrayOf(run, event);
  return run.about.arrays.some(({ name, role }) => name === loaded && role === "input");
}

/** What each event of a run makes or moves: by its loops and its name, without what says whose block it is. */
function resultsOf(run) {
  const seen = new Map();
  const found = new Map();
  for (let t = 0; t < run.length; t++) {
    for (const event of run.eventsAt(t)) {
      const name = run.nameOf(event).replace(/_(ij|i|j)(?=_|$)/g, "");
      const key = `${run.loopsAt(t)}|${run.events.kind[event]}|${name}`;
      const n = seen.get(key) ?? 0;
      seen.set(key, n + 1);
      found.set(event, `${key}|${n}`);
    }
  }
  return found;
}

const valueOf = (run, event) => run.tiles[run.events.value[event]];

/** Whether all numbers are equal but for rounding. */
const sameNumbers = (a, b) => a.length === b.length && a.every((value, n) => sameNumber(value, b[n]));
const sameNumber = (x, y) => Object.is(x, y) || Math.abs(x - y) <= 1e-5 * Math.max(1, Math.abs(x), Math.abs(y));
