// Numbers: what is carried from tile to tile, old and new, and the tiles of a step.

const MOST_ROWS = 32, OF_BLOCK = 8, OF_TILE = 16, OF_GRADIENT = 16; // rows, columns; and rows that take two lines each
const VERBS = { init: "initialise", load: "load", compute: "compute", store: "store" };

class Values {
  constructor(run, root) {
    this.run = run, this.root = root, this.chosen = null;
    this.narrow = run.follows.filter((one) => one.narrow), this.wide = run.follows.filter((one) => !one.narrow);
    this.twoSided = run.follows.some((one) => one.byKey); // blocks of rows and of keys, each with a table of its own
    const of = (byKey) => commas(run.follows.filter((one) => one.byKey === byKey).map(({ name }) => typeset(name)));
    find(".pairs", root).classList.toggle("tall", run.about.blocks.B_r > 8); // of a set height, which spares layouts
    find(".pairs", root).classList.toggle("short", run.about.blocks.B_r <= 2);
    root.style.setProperty("--rows", Math.min(run.about.blocks.B_r, 8.25)); // that tables have room for
    fill(find(".carried", root), of(false), this.twoSided ? [" of these rows, ", of(true), " of these keys"] : "", ": old above new");
    find(".digits", root).onclick = () => player.toggleDigits();
  }

  show(t) {
    if (t !== this.t) this.chosen = null;
    this.t = t;
    const box = find(".pairs", this.root), made = new Set(this.run.eventsAt(t).map((event) => this.run.events.value[event]));
    if (this.twoSided) this.showBlocks(t, box, made);
    else this.showRows(t, box);
    this.showEvents(t);
  }

  none(what) { return small(this.run.tiles.length ? `No ${what} on chip in this step.` : "Values were left out."); }

  /** What is carried of the row block, row by row: before this tile, and below it now, with the factor of the rescaling. */
  /** What is wide, such as O, has a table of its own, which goes below the other where there is no room beside it. */
  showRows(t, box) {
    const { run } = this, known = (some) => some.map((one) => [one, ...run.pair(one.name, t)]).filter(([, old, now]) => old ?? now);
    const narrow = known(this.narrow), wide = known(this.wide), [, old, now] = narrow[0] ?? wide[0] ?? [], rows = (old ?? now)?.rows ?? 0;
    if (!rows) return fill(box, this.none("row statistics"));
    const first = run.steps.rows[t]?.[0] ?? null, top = [];
    for (const [{ name }] of narrow) {
      top.push(head({}, typeset(name)));
      if (name === run.maximum) top.push(head({}, typeset(`e^{${name} − ${name}_new}`)));
    }
    const O = wide.map(([{ name }, old, now]) => wideHead(old ?? now, "", typeset(name), clipped(old ?? now, OF_BLOCK)));
    fill(box, narrow.length ? this.rowsOf(narrow, top, rows, first, true) : "", wide.length ? this.rowsOf(wide, O, rows, first, !narrow.length) : "",
      rows > MOST_ROWS ? small(`the first ${MOST_ROWS} of ${rows} rows`) : "");
    const risen = run.steps.rescaled[t] && rows > 4 ? find(".new .rises", box) : null;
    if (risen && risen.offsetTop + risen.offsetHeight > box.clientHeight) box.scrollTop = risen.offsetTop - box.clientHeight / 2;
  }

  /** A table of the old and the new rows of some quantities, with or without the rows' names. */
  rowsOf(known, top, rows, first, named) {
    const body = [], label = (r) => (named ? make("th", { scope: "rowgroup", rowspan: 2 }, first === null ? "" : String(first + r)) : "");
    for (let r = 0; r < Math.min(rows, MOST_ROWS); r++) {
      const [before, after] = ["old", "new"].map((age, n) => known.flatMap(([one, ...ages]) => this.rowCells(one, ages, n, r, first, age)));
      body.push(make("tr", { class: "old" }, label(r), before), make("tr", { class: "new" }, after));
    }
    return table(`Old and new ${known.map(([{ plain }]) => plain).join(", ")} of these rows`, [named ? head({}, "row") : "", ...top], body);
  }

  /** One row's cells of one quantity, old (n = 0) or new (n = 1). */
  rowCells({ name, plain, narrow }, ages, n, r, first, age) {
    const tile = ages[n], maximum = name === this.run.maximum, [from, to] = ages.map((one) => one?.data[r]);
    if (!narrow) return tile && r < tile.rows ? tileCells(tile, r, `${plain} ${age}`, first, OF_BLOCK, true) : [cell({ colspan: Math.min((ages[0] ?? ages[1]).cols, OF_BLOCK) }, "\u00a0")];
    const rises = maximum && to > from, x = tile?.data[r], all = ages.filter(Boolean).map((one) => exactly(one.data[r])).join(" → ");
    const cells = [cell({ class: rises ? "rises" : "", "data-tip": `${plain}, row ${rowName(first, r)}: ${all}` }, x === undefined ? "\u00a0" : number(x), rises && n ? " ↑" : "")];
    if (maximum && !n) cells.push(cell({ class: "factor", rowspan: 2 }, from === undefined || to === undefined ? "" : number(factor(from, to))));
    return cells;
  }

  /** What is carried of the rows and of the keys, a table each, old above new; what this step made is marked. */
  showBlocks(t, box, made) {
    const { run, wide } = this, column = this.narrow[0]?.name; // it goes beside the first block
    const tiles = (name) => (run.steps.pairs[name] ?? []).map((side) => side[t]).filter((tile) => tile >= 0);
    const none = wide.map(({ name }, n) => !tiles(name).length && (n > 0 || !tiles(column).length)), nothing = none.every(Boolean);
    const keys = wide.map(({ name, byKey }, n) => {
      const held = [...tiles(name), "", ...(n ? [] : tiles(column))];
      return String([held, held.map((tile) => made.has(tile)), n ? "" : nothing, run.steps[byKey ? "cols" : "rows"][t], allDigits]);
    });
    if (!find(".gradients", box)) fill(box, make("div", { class: "gradients" }, wide.map(() => make("div")))), (this.shown = []);
    wide.forEach((one, n) => {
      if (this.shown[n] === keys[n]) return; // few change
      this.shown[n] = keys[n];
      const said = nothing ? this.none("gradients") : make("p", { class: "about wait" }, "No ", typeset(one.name), " on chip in this step.");
      fill(find(".gradients", box).children[n], none[n] ? (n ? "" : said) : this.block(one, n ? undefined : column, t, made));
    });
  }

  block({ name, byKey }, column, t, made) {
    const { run } = this, [old, now] = run.pair(name, t), fresh = (of) => Boolean(of) && made.has(run.steps.pairs[of][1][t]);
    const one = old ?? now, [before, after] = column ? run.pair(column, t) : [], own = after ?? before, word = byKey ? "key" : "row";
    const tall = one?.rows ?? own?.rows ?? 0, first = run.steps[byKey ? "cols" : "rows"][t]?.[0] ?? null, top = [head({}, word)], body = [];
    const mark = after && fresh(column) ? "rises" : "";
    if (own) top.push(head({ class: mark }, typeset(column)));
    if (one) top.push(wideHead(one, now && fresh(name) ? " rises" : "", typeset(name), ": ", make("span", { class: "old" }, "old,"), ` new${clipped(one, OF_BLOCK)}`));
    const cells = (tile, r, age) => (tile && r < tile.rows ? tileCells(tile, r, `${name} ${age}`, first, OF_BLOCK, true, word) : cell({}, "\u00a0"));
    for (let r = 0; r < Math.min(tall, OF_GRADIENT); r++) {
      const beside = own && cell({ rowspan: 2, class: mark, "data-tip": `${column}, row ${rowName(first, r)}: ${exactly(own.data[r])}` }, number(own.data[r]));
      body.push(make("tr", { class: "old" }, make("th", { scope: "rowgroup", rowspan: 2 }, first === null ? "" : String(first + r)), beside, cells(old, r, "old")));
      body.push(make("tr", { class: "new" }, cells(now, r, "new")));
    }
    return [table(`${name} of these ${word}s, old and new`, top, body), tall > OF_GRADIENT ? small(`the first ${OF_GRADIENT} of ${tall} ${word}s`) : ""];
  }

  showEvents(t) {
    const { run } = this, events = run.eventsAt(t), box = find(".events", this.root);
    this.chosen ??= events.findLast((event) => run.events.value[event] >= 0) ?? events[0];
    fill(box, events.map((event) => {
      const button = make("button", { "aria-pressed": String(event === this.chosen) }, `${VERBS[run.events.kind[event]]} `, typeset(run.nameOf(event)), ` · ${count(run.events.elements[event])}`);
      button.onclick = () => { this.chosen = event, this.showEvents(t), player.markDifferences(), find('[aria-pressed="true"]', box)?.focus(); };
      return button;
    }));
    this.showTile(run.tiles[run.events.value[this.chosen]], run.nameOf(this.chosen), run.plainName(this.chosen));
  }

  showTile(tile, name, plain) {
    const box = find(".tile", this.root);
    if (!tile) return fill(box, small("No values are kept of ", typeset(name), "."));
    const rows = Math.min(tile.rows, MOST_ROWS), lines = Array.from({ length: rows }, (_, r) => make("tr", {}, tileCells(tile, r, plain, 0, OF_TILE, false)));
    const shown = table(plain, null, lines), all = rows === tile.rows && tile.cols <= OF_TILE;
    shown.setAttribute("role", "table");
    fill(box, shown, all ? "" : small(`shown: ${rows} × ${Math.min(tile.cols, OF_TILE)} of ${tile.rows} × ${tile.cols}`));
  }
}

const clipped = (tile, most) => (tile.cols > most ? ` (first ${most} of ${tile.cols})` : "");
const wideHead = (tile, marks, ...content) => head({ scope: "colgroup", class: `gap wide${marks}`, colspan: Math.min(tile.cols, OF_BLOCK) }, ...content);

/** e^(m − m_new), 0 for a row that had no maximum yet. */
function factor(from, to) { return from === -Infinity ? 0 : Math.exp(from - to); }

/** What row r of a block is called whose first row is `first`; null where nothing on chip says which rows it is of. */
const rowName = (first, r) => (first === null ? `${r} of its block` : String(first + r));

function tileCells(tile, r, name, first, most, gap, word = "row") {
  const cells = [];
  for (let c = 0; c < Math.min(tile.cols, most); c++) {
    const x = tile.data[r * tile.cols + c];
    cells.push(cell({ class: gap && c === 0 ? "gap" : "", "data-tip": `${name}, ${word} ${rowName(first, r)}, column ${c}: ${exactly(x)}` }, number(x)));
  }
  return cells;
}
