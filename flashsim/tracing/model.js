"use strict";
// The player's first part: one or two recorded runs, made ready when the page opens, so that going to any step takes the same
// time; and which step of the second goes with a step of the first.

const find = (selector, root = document) => root.querySelector(selector);
const clamp = (n, low, high) => Math.max(low, Math.min(high, n));

function bytesOf(base64) {
  const text = atob(base64), bytes = new Uint8Array(text.length);
  for (let n = 0; n < text.length; n++) bytes[n] = text.charCodeAt(n);
  return bytes;
}

async function unzipped(base64) {
  const stream = new Blob([bytesOf(base64)]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

/** A recorded run with the state at every step. */
class Recorded {
  constructor(data) {
    Object.assign(this, data);
    this.length = this.steps.first.length;
    this.tiles = decodeTiles(this);
    this.held = decodeResidents(this);
    this.arrays = this.about.arrays.map((array) => array.name);
    this.sumCounters();
    this.findVisits();
    this.moves = this.steps.moved.map((rows, t) => rows > 0 && this.steps.tile[t] !== null);
    this.backward = this.about.direction === "backward";
    this.lineOf = new Map(this.about.listing.map((line, n) => [labelOf(line), n]));
  }

  place(t) { return this.places[this.events.place[this.steps.first[t]]]; }
  lastPlace(t) { return this.places[this.events.place[this.steps.last[t]]]; }
  loopsAt(t) { return this.loops[this.events.loops[this.steps.first[t]]]; }
  eventsAt(t) {
    const found = [];
    for (let e = this.steps.first[t]; e <= this.steps.last[t]; e++) found.push(e);
    return found;
  }
  resident(t) { return this.held[this.events.resident[this.steps.last[t]]]; }
  nameOf(event) { return this.names[this.events.name[event]]; }
  pair(name, t) {
    const columns = this.steps.pairs[name];
    return columns ? [this.tiles[columns[0][t]], this.tiles[columns[1][t]]] : [undefined, undefined];
  }

  /** Reads and writes so far at the end of each step, by array; and how full SRAM is. */
  sumCounters() {
    const n = this.length, { kind, name, elements } = this.events;
    const zero = () => this.arrays.map(() => new Float64Array(n));
    this.reads = zero(), this.writes = zero();
    this.accesses = new Float64Array(n), this.occupancy = new Float64Array(n);
    const at = this.names.map((block) => this.arrays.indexOf(block.split("[")[0]));
    const read = new Float64Array(this.arrays.length), written = new Float64Array(this.arrays.length);
    for (let t = 0; t < n; t++) {
      for (let e = this.steps.first[t]; e <= this.steps.last[t]; e++) {
        if (kind[e] === "load") read[at[name[e]]] += elements[e];
        else if (kind[e] === "store" || kind[e] === "init") written[at[name[e]]] += elements[e];
      }
      let sum = 0;
      for (let a = 0; a < this.arrays.length; a++) {
        this.reads[a][t] = read[a], this.writes[a][t] = written[a];
        sum += read[a] + written[a];
      }
      this.accesses[t] = sum;
      this.occupancy[t] = this.resident(t).reduce((all, [, size]) => all + size, 0);
    }
  }

  /** At which steps each tile's visits begin and end: a tile is done when all have ended. One visit may be of many tiles. */
  findVisits() {
    const { T_r, T_c } = this.about.blocks;
    this.visits = Array.from({ length: T_r * T_c }, () => []);
    this.tileStarts = [], this.reaches = Array.from({ length: this.length }, (_, t) => this.reach(t));
    for (let t = 0; t < this.length; t++) {
      const here = this.reaches[t];
      if (!here || (t > 0 && this.sameVisit(t - 1, t))) continue;
      let end = t;
      while (end + 1 < this.length && this.sameVisit(end, end + 1)) end++;
      this.tileStarts.push(t);
      for (let i = here[0]; i < here[1]; i++) for (let j = here[2]; j < here[3]; j++) this.visits[i * T_c + j].push([t, end]);
    }
  }

  sameVisit(t, next) { return String(this.reaches[t]) === String(this.reaches[next]) && this.steps.turn[t] === this.steps.turn[next]; }

  /** The tiles that what is on chip is of, as [first row of tiles, end, first column, end]; null where that is none. */
  reach(t) {
    const rows = this.steps.rows[t], cols = this.steps.cols[t], { B_r, B_c, T_r, T_c } = this.about.blocks;
    const span = ([first, end], size, most) => [Math.floor(first / size), Math.min(Math.ceil(end / size), most)];
    return rows && cols ? [...span(rows, B_r, T_r), ...span(cols, B_c, T_c)] : null;
  }

  /** The visits, first step and last, of the tile that holds this query and this key. */
  visitsOf(query, key) {
    const { B_r, B_c, T_c } = this.about.blocks;
    return this.visits[Math.floor(query / B_r) * T_c + Math.floor(key / B_c)] ?? [];
  }

  /** What became of a tile by step t: "current", "done", "part", "skipped" or "ahead". */
  fate(i, j, t) {
    const here = this.reaches[t];
    if (here && here[0] <= i && i < here[1] && here[2] <= j && j < here[3]) return "current";
    const visits = this.visits[i * this.about.blocks.T_c + j];
    if (!visits.length) return "skipped";
    if (visits[visits.length - 1][1] < t) return "done";
    return visits[0][1] < t ? "part" : "ahead";
  }

  /** What the mask leaves of a tile: "all", "some" or "nothing". */
  leaves(i, j) { return this.about.tiles ? ["nothing", "all", "some"][this.about.tiles[i][j]] : "all"; }
}

function decodeTiles({ values, shapes, about }) {
  const bytes = bytesOf(values), flat = about.dtype === "float64" ? new Float64Array(bytes.buffer) : new Float32Array(bytes.buffer);
  let start = 0;
  return shapes.map(([rows, cols]) => ({ rows, cols, data: flat.subarray(start, (start += rows * cols)) }));
}

function decodeResidents({ residents, names }) {
  const held = [];
  for (const [same, ...entries] of residents) {
    const now = held.length ? held[held.length - 1].slice(0, same) : [];
    for (let n = 0; n < entries.length; n += 2) now.push([names[entries[n]], entries[n + 1]]);
    held.push(now);
  }
  return held;
}

/** "line 9" for a line of the listing that begins with 9, "equation 4" for (4). */
function labelOf(line) {
  const first = line.trim().split(/\s/)[0];
  return first.startsWith("(") ? `equation ${first.slice(1, -1)}` : `line ${first}`;
}

// ------------------------------------------------------------------------------------------------ two runs in step

/** A result's quantity, whatever the line that makes it calls it: O for O_i_new, P for P_tilde_ij, dQ for dq_i. */
function quantity(name) {
  const base = name.replace(/^log_/, "").split(/[_[]/)[0];
  return { o: "O", dq: "dQ", dk: "dK", dv: "dV" }[base] ?? base;
}

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
    const { left, right } = this, results = (run, at) => run.eventsAt(at).filter((event) => run.events.kind[event] === "compute").map((event) => run.nameOf(event));
    const wanted = results(left, t).at(-1);
    if (!wanted) return null;
    let like = null, same = null;
    for (const [start, end] of visits)
      for (let u = start; u <= end; u++)
        for (const name of results(right, u)) {
          if (name === wanted) same = u;
          if (quantity(name) === quantity(wanted)) like = u;
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
