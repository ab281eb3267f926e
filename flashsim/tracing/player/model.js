"use strict";
// A recorded run, made ready when the page opens, so that going to any step takes the same time.

const find = (selector, root = document) => root.querySelector(selector);
const clamp = (n, low, high) => Math.max(low, Math.min(high, n));

function bytesOf(base64) {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
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
    this.findPlaces();
    this.findValues();
  }

  place(t) {
    return this.places[this.events.place[this.steps.first[t]]];
  }

  loopsAt(t) {
    return this.loops[this.events.loops[this.steps.first[t]]];
  }

  eventsAt(t) {
    const found = [];
    for (let e = this.steps.first[t]; e <= this.steps.last[t]; e++) found.push(e);
    return found;
  }

  resident(t) {
    return this.held[this.events.resident[this.steps.last[t]]];
  }

  nameOf(event) {
    return this.names[this.events.name[event]];
  }

  plainName(event) {
    return this.plain[this.events.name[event]];
  }

  quantityOf(event) {
    return this.quantities[this.events.name[event]];
  }

  /** Which arrays HBM's picture has beside the rows (0), above the columns (1), in the matrix (2), and apart (3). */
  findPlaces() {
    this.sideOf = new Map(this.about.arrays.map(({ name, kind }) => [name, sideOf(...kind)]));
    this.beside = [0, 1, 2, 3].map((side) => this.arrays.filter((name) => this.sideOf.get(name) === side));
    this.stored = this.beside[2].length > 0; // a matrix as large as the scores is in HBM
    const strips = this.beside[3].includes("S") && !this.about.sizes.length; // of S, which pass through HBM
    this.kept = strips ? "stored in strips" : "never stored";
  }

  findValues() {
    this.valued = this.names.map(() => []); // of each name, the events with a value
    this.most = new Map(); // of each quantity, the largest finite value
    this.events.value.forEach((value, event) => {
      if (value < 0) return;
      const of = this.quantityOf(event);
      this.valued[this.events.name[event]].push(event);
      this.most.set(of, Math.max(this.most.get(of) ?? 0, largestFinite(this.tiles[value].data)));
    });
  }

  /** What the block or tile of this name holds after step t; undefined where that is not known. */
  valueAt(t, name) {
    return this.tiles[this.events.value[this.valued[name].findLast((event) => event <= this.steps.last[t])]];
  }

  /** Rows and columns of a resident: its value's; or, without values, about a square. */
  shapeOf(t, [name, size]) {
    const tile = this.valueAt(t, name);
    const square = Math.ceil(Math.sqrt(size));
    return tile && tile.data.length === size ? [tile.rows, tile.cols] : [Math.ceil(size / square), square];
  }

  /** A followed quantity before this tile and now. */
  pair(name, t) {
    return this.steps.pairs[name].map((column) => this.tiles[column[t]]);
  }

  /** Whether what is on chip under this name is a block of an array, and not made there. */
  isBlock(name) {
    return this.names[name].includes("[");
  }

  /** Whether a block of this array is on chip: "loaded" from HBM, or "made" there; "" if it is not. */
  onChip(array, t) {
    const isOf = ([name]) => this.quantities[name] === array && !this.names[name].endsWith("_ij");
    const held = this.resident(t).filter(isOf);
    if (!held.length) return "";
    return held.some(([name]) => this.isBlock(name)) ? "loaded" : "made";
  }

  /** Reads and writes so far at the end of each step, by array; and how full SRAM is. */
  sumCounters() {
    const n = this.length;
    const { kind, name, elements } = this.events;
    const zero = () => this.arrays.map(() => new Float64Array(n));
    this.reads = zero();
    this.writes = zero();
    this.accesses = new Float64Array(n);
    this.occupancy = new Float64Array(n);
    const at = this.names.map((block) => this.arrays.indexOf(block.split("[")[0]));
    const read = new Float64Array(this.arrays.length);
    const written = new Float64Array(this.arrays.length);
    for (let t = 0; t < n; t++) {
      for (let e = this.steps.first[t]; e <= this.steps.last[t]; e++) {
        if (kind[e] === "load") read[at[name[e]]] += elements[e];
        else if (kind[e] === "store" || kind[e] === "init") written[at[name[e]]] += elements[e];
      }
      let sum = 0;
      for (let a = 0; a < this.arrays.length; a++) {
        this.reads[a][t] = read[a];
        this.writes[a][t] = written[a];
        sum += read[a] + written[a];
      }
      this.accesses[t] = sum;
      this.occupancy[t] = this.resident(t).reduce((all, [, size]) => all + size, 0);
    }
  }

  /** At which steps each tile's visits begin and end: it is done when all have ended. A visit may be of many tiles. */
  findVisits() {
    const { T_r, T_c } = this.about.blocks;
    this.visits = Array.from({ length: T_r * T_c }, () => []);
    this.tileStarts = [];
    this.reaches = Array.from({ length: this.length }, (_, t) => this.reach(t));
    for (let t = 0; t < this.length; t++) {
      const here = this.reaches[t];
      if (!here || (t > 0 && this.sameVisit(t - 1, t))) continue;
      let end = t;
      while (end + 1 < this.length && this.sameVisit(end, end + 1)) end++;
      this.tileStarts.push(t);
      for (let i = here[0]; i < here[1]; i++) {
        for (let j = here[2]; j < here[3]; j++) this.visits[i * T_c + j].push([t, end]);
      }
    }
  }

  sameVisit(t, next) {
    return String(this.reaches[t]) === String(this.reaches[next]) && this.steps.turn[t] === this.steps.turn[next];
  }

  /** The tiles that what is on chip is of, as [first row of tiles, end, first column, end]; null where that is none. */
  reach(t) {
    const rows = this.steps.rows[t];
    const cols = this.steps.cols[t];
    const { B_r, B_c, T_r, T_c } = this.about.blocks;
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
    if (!visits.length) return this.tileStarts.length ? "skipped" : "ahead"; // rows from anywhere are of no tile
    if (visits.at(-1)[1] < t) return "done";
    return visits[0][1] < t ? "part" : "ahead";
  }

  /** What the mask leaves of a tile: "all", "some" or "nothing". */
  leaves(i, j) {
    return this.about.tiles ? ["nothing", "all", "some"][this.about.tiles[i][j]] : "all";
  }
}

function sideOf(rows, cols) {
  if (cols === "N_k") return rows === "N_q" ? 2 : 3;
  if (rows === "N_q") return 0;
  return rows === "N_k" ? 1 : 3;
}

function largestFinite(data) {
  let most = 0;
  for (const x of data) {
    const size = Math.abs(x);
    if (size > most && size < Infinity) most = size;
  }
  return most;
}

function decodeTiles({ values, shapes, about }) {
  const bytes = bytesOf(values);
  const flat = about.dtype === "float64" ? new Float64Array(bytes.buffer) : new Float32Array(bytes.buffer);
  let start = 0;
  return shapes.map(([rows, cols]) => {
    const data = flat.subarray(start, start + rows * cols);
    start += rows * cols;
    return { rows, cols, data };
  });
}

/** The sets of residents as [index of its name, elements]. */
function decodeResidents({ residents }) {
  const held = [];
  for (const [same, ...entries] of residents) {
    const now = held.length ? held[held.length - 1].slice(0, same) : [];
    for (let n = 0; n < entries.length; n += 2) now.push([entries[n], entries[n + 1]]);
    held.push(now);
  }
  return held;
}
