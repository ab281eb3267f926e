// What a line computed, for one element: its formula with this step's numbers.

const MOST_TERMS = 4;
const SIGNS = { "+": [1, " + "], "-": [1, " − "], "*": [2, " · "], "/": [2, " / "] };
const APPLIED = { "+": (a, b) => a + b, "-": (a, b) => a - b, "*": (a, b) => a * b, "/": (a, b) => a / b };
/** Functions that leave a number as it is, but for those named here. */
const GUARDS = { finite: (x) => (x === -Infinity ? 0 : x), nonzero: (x) => x || 1, at_most_0: (x) => Math.min(x, 0) };

/**
 * Spells one element of a tree out: its value, null where that is not known; the nodes that say it; and how tightly those bind,
 * from 1, a sum, to 3. `look` finds the value of a name.
 */
class Speller {
  constructor(look, known) { this.look = look, this.known = known; }

  element(tree, r, c) {
    const [kind, a, b] = tree;
    if (kind === "name") return this.ofName(tree, r, c);
    if (kind === "number") return { x: a, say: [number(a)], tight: 3 };
    if (kind === "T") return this.element(a, c, r);
    if (kind === "@") return this.sum(Array.from({ length: this.columns(a) }, (_, k) => this.product(this.element(a, r, k), this.element(b, k, c))));
    return kind === "call" ? this.called(a, b, r, c) : this.signed(kind, this.element(a, r, c), this.element(b, r, c));
  }

  ofName(tree, r, c) {
    const name = tree[1], tile = this.look(tree), x = tile ? tile.data[Math.min(r, tile.rows - 1) * tile.cols + Math.min(c, tile.cols - 1)] : null;
    if (name === "tau") return { x: null, say: ["τ"], tight: 3 };
    if (!tile && this.known.has(name)) return { x: this.known.get(name), say: [String(this.known.get(name))], tight: 3 };
    return tile ? { x, say: [number(x)], tight: x < 0 ? 1.5 : 3 } : { x: null, say: [typeset(name)], tight: 3 };
  }

  signed(kind, left, right) {
    const [tight, sign] = SIGNS[kind], after = tight + 0.6; // what follows a sign and has one of its own is put in brackets
    return { x: left.x === null || right.x === null ? null : APPLIED[kind](left.x, right.x), say: [inside(left, tight), sign, inside(right, after)], tight };
  }

  product(left, right) { return this.signed("*", left, right); }

  sum(terms) {
    const x = terms.some((term) => term.x === null) ? null : terms.reduce((sum, term) => sum + term.x, 0);
    const shown = terms.slice(0, MOST_TERMS).map((term, n) => [n ? " + " : "", inside(term, n ? 1.6 : 1)]);
    return { x, say: [shown, terms.length > MOST_TERMS ? ` + … (${terms.length} terms)` : ""], tight: terms.length > 1 ? 1 : terms[0]?.tight ?? 3 };
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
    if (name === "tril") return c > r ? ZERO : one;
    if (name === "unless_none" && two.x !== null) return two.x === 2 ** 32 - 1 ? ZERO : one;
    if (name === "at_label" && two.x !== null) return two.x === this.element(args[2], r, c).x + c ? one : ZERO;
    if (name === "exp") return { x: one.x === null ? null : Math.exp(one.x), say: [make("i", {}, "e"), make("sup", {}, one.say)], tight: 3 };
    if (name.startsWith("dropout")) return { x: null, say: ["dropout"], tight: 3 }; // a factor by position, whatever the tile holds
    if (name in GUARDS) { const x = one.x === null ? null : GUARDS[name](one.x); return x === one.x ? one : { x, say: [number(x)], tight: 3 }; }
    return { x: name === "log" && one.x !== null ? Math.log(one.x) : null, say: [`${name}(`, one?.say ?? "", ")"], tight: 3 };
  }

  largest(parts) {
    const x = parts.some((part) => part.x === null) ? null : Math.max(...parts.map((part) => part.x)), shown = parts.slice(0, 2 * MOST_TERMS);
    return { x, say: ["max(", commas(shown.map((part) => part.say)), parts.length > shown.length ? `, … ${parts.length} in all` : "", ")"], tight: 3 };
  }

  /** How many columns a tree's value has. */
  columns(tree) {
    const [kind, a, b] = tree;
    if (kind === "name") return this.look(tree)?.cols ?? 1;
    if (kind === "T") return this.rows(a);
    if (kind === "call") return ["rowmax", "rowsum"].includes(a) ? 1 : a === "product" ? this.columns(b[1]) : Math.max(1, ...b.map((one) => this.columns(one)));
    return kind === "@" ? this.columns(b) : kind === "number" ? 1 : Math.max(this.columns(a), this.columns(b));
  }

  rows(tree) { return tree[0] === "name" ? this.look(tree)?.rows ?? 1 : tree[0] === "T" ? this.columns(tree[1]) : 1; }
}

const ZERO = { x: 0, say: ["0"], tight: 3 };
const inside = ({ say, tight }, least) => (tight < least ? ["(", say, ")"] : say);

/** The formula of what an event computed, for one row and column; null where its line has none, or where it would not be so. */
function spellOut(run, event, row, col) {
  const [file, line] = run.places[run.events.place[event]], name = run.nameOf(event), made = run.tiles[run.events.value[event]];
  const found = run.spelled.find(([at, first, last, target]) => at === file && first <= line && line <= last && target === name);
  if (!found || !made) return null;
  const turns = new Map([...run.about.cuts, ...run.loops[run.events.loops[event]]]);
  const look = ([, wanted, quantity, variable]) => {
    const block = variable ? `, ${turns.get(variable)}]` : "["; // of X_i[c], the one of this turn
    for (let e = event - 1; e >= 0; e--) {
      const value = run.tiles[run.events.value[e]], same = run.nameOf(e) === wanted || (run.events.kind[e] === "load" && run.nameOf(e).includes(block) && run.quantityOf(e) === quantity);
      if (value && same) return value;
    }
    return null;
  };
  const r = Math.min(row, made.rows - 1), c = Math.min(col, made.cols - 1), { x, say } = new Speller(look, turns).element(found[4], r, c), is = made.data[r * made.cols + c];
  if (x !== null && !Object.is(x, is) && !(Math.abs(x - is) <= 1e-3 * Math.max(1, Math.abs(is)))) return null; // a name that stands for two blocks
  return [typeset(name), made.cols > 1 ? make("span", { class: "about" }, ` column ${c}`) : "", " = ", say, " = ", make("b", {}, number(is))];
}
