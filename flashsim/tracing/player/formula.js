// What a line computed, for one element: its formula with this step's numbers.

const MOST_TERMS = 4;
const SIGNS = { "+": [1, " + "], "-": [1, " − "], "*": [2, " · "], "/": [2, " / "] };
const APPLIED = { "+": (a, b) => a + b, "-": (a, b) => a - b, "*": (a, b) => a * b, "/": (a, b) => a / b };
/** Functions that leave a number as it is, but for those named here. */
const GUARDS = { finite: (x) => (x === -Infinity ? 0 : x), nonzero: (x) => x || 1, at_most_0: (x) => Math.min(x, 0) };

/**
 * Spells one element of a tree out: its value x, null where that is not known; the nodes that say it; and how tight
 * those bind, from 1, a sum, to 3. `look` finds the tile of a name, `known` has the numbers of others.
 */
class Speller {
  constructor(look, known) {
    this.look = look;
    this.known = known;
  }

  element(tree, r, c) {
    const [kind, a, b] = tree;
    if (kind === "name") return this.ofName(tree, r, c);
    if (kind === "number") return { x: a, say: [number(a)], tight: 3 };
    if (kind === "T") return this.element(a, c, r);
    if (kind === "@") return this.inner(a, b, r, c);
    if (kind === "call") return this.called(a, b, r, c);
    return this.signed(kind, this.element(a, r, c), this.element(b, r, c));
  }

  ofName(tree, r, c) {
    const name = tree[1];
    const tile = this.look(tree);
    const x = tile && tile.data[Math.min(r, tile.rows - 1) * tile.cols + Math.min(c, tile.cols - 1)];
    if (name === "tau") return { x: null, say: ["τ"], tight: 3 };
    if (tile) return { x, say: [number(x)], tight: x < 0 ? 1.5 : 3 };
    const known = this.known.get(name) ?? null;
    return { x: known, say: [known === null ? typeset(name) : String(known)], tight: 3 };
  }

  signed(kind, left, right) {
    const [tight, sign] = SIGNS[kind];
    const after = tight + 0.6; // what follows a sign and has one of its own is put in brackets
    const x = left.x === null || right.x === null ? null : APPLIED[kind](left.x, right.x);
    return { x, say: [inside(left, tight), sign, inside(right, after)], tight };
  }

  /** Row r of a times column c of b. */
  inner(a, b, r, c) {
    const term = (k) => this.signed("*", this.element(a, r, k), this.element(b, k, c));
    return this.sum(Array.from({ length: this.columns(a) }, (_, k) => term(k)));
  }

  sum(terms) {
    const x = terms.some((term) => term.x === null) ? null : terms.reduce((sum, term) => sum + term.x, 0);
    const shown = terms.slice(0, MOST_TERMS).map((term, n) => [n ? " + " : "", inside(term, n ? 1.6 : 1)]);
    const more = terms.length > MOST_TERMS ? ` + … (${terms.length} terms)` : "";
    return { x, say: [shown, more], tight: terms.length > 1 ? 1 : (terms[0]?.tight ?? 3) };
  }

  called(name, args, r, c) {
    const row = () => Array.from({ length: this.columns(args[0]) }, (_, k) => this.element(args[0], r, k));
    if (name === "rowsum") return this.sum(row());
    if (name === "rowmax") return this.largest(row());
    if (name === "product") return this.element(["@", ...args], r, c);
    if (name === "gated") return this.element(["*", ...args], r, c);
    const [one, two] = args.map((argument) => this.element(argument, r, c));
    if (name === "maximum") return this.largest([one, two]);
    if (name === "relu") return this.largest([one, ZERO]);
    if (name === "exp") return this.exponential(one);
    if (name.startsWith("dropout")) return { x: null, say: ["dropout"], tight: 3 }; // a factor by position
    if (name in GUARDS) return this.guarded(GUARDS[name], one);
    return { x: name === "log" ? applied(Math.log, one) : null, say: [`${name}(`, one?.say ?? "", ")"], tight: 3 };
  }

  exponential(power) {
    return { x: applied(Math.exp, power), say: [make("i", {}, "e"), make("sup", {}, power.say)], tight: 3 };
  }

  guarded(guard, part) {
    const x = applied(guard, part);
    return x === part.x ? part : { x, say: [number(x)], tight: 3 };
  }

  largest(parts) {
    const x = parts.some((part) => part.x === null) ? null : Math.max(...parts.map((part) => part.x));
    const shown = parts.slice(0, 2 * MOST_TERMS).map((part) => part.say);
    const more = parts.length > shown.length ? `, … ${parts.length} in all` : "";
    return { x, say: ["max(", commas(shown), more, ")"], tight: 3 };
  }

  /** How many columns a tree's value has. */
  columns(tree) {
    const [kind, a, b] = tree;
    if (kind === "name") return this.look(tree)?.cols ?? 1;
    if (kind === "T") return this.rows(a);
    if (kind === "@") return this.columns(b);
    if (kind === "number") return 1;
    if (kind !== "call") return Math.max(this.columns(a), this.columns(b));
    if (a === "rowmax" || a === "rowsum") return 1;
    return a === "product" ? this.columns(b[1]) : Math.max(1, ...b.map((one) => this.columns(one)));
  }

  rows(tree) {
    if (tree[0] === "name") return this.look(tree)?.rows ?? 1;
    return tree[0] === "T" ? this.columns(tree[1]) : 1;
  }
}

const ZERO = { x: 0, say: ["0"], tight: 3 };
const applied = (f, { x }) => (x === null ? null : f(x));
const inside = ({ say, tight }, least) => (tight < least ? ["(", say, ")"] : say);

/** The formula of what an event computed, for one row and column; null where there is none, or it would not be so. */
function spellOut(run, event, row, col) {
  const formula = formulaOf(run, event);
  const made = run.tiles[run.events.value[event]];
  if (!formula || !made) return null;
  const r = Math.min(row, made.rows - 1);
  const c = Math.min(col, made.cols - 1);
  const turns = new Map([...run.about.cuts, ...run.loops[run.events.loops[event]]]);
  const { x, say } = new Speller((name) => lastBefore(run, event, name, turns), turns).element(formula, r, c);
  const is = made.data[r * made.cols + c];
  if (x !== null && !nearly(x, is)) return null; // a name that stands for two blocks
  const column = made.cols > 1 ? make("span", { class: "about" }, ` column ${c}`) : "";
  return [typeset(run.nameOf(event)), column, " = ", say, " = ", make("b", {}, number(is))];
}

const nearly = (x, is) => Object.is(x, is) || Math.abs(x - is) <= 1e-3 * Math.max(1, Math.abs(is));

/** The formula of the line that an event happened at; undefined where there is none. */
function formulaOf(run, event) {
  const [file, line] = run.places[run.events.place[event]];
  const name = run.nameOf(event);
  const found = run.spelled.find(([at, first, last, target]) => {
    return at === file && first <= line && line <= last && target === name;
  });
  return found?.[4];
}

/** The value that a name of a formula had when the event computed with it; null where that is not known. */
function lastBefore(run, event, [, wanted, quantity, variable], turns) {
  const block = variable ? `, ${turns.get(variable)}]` : "["; // of X_i[c], the one of this turn
  const isBlock = (e) => {
    return run.events.kind[e] === "load" && run.nameOf(e).includes(block) && run.quantityOf(e) === quantity;
  };
  for (let e = event - 1; e >= 0; e--) {
    const value = run.tiles[run.events.value[e]];
    if (value && (run.nameOf(e) === wanted || isBlock(e))) return value;
  }
  return null;
}
