// Numbers: what is carried from tile to tile, old and new, and the tiles of a step.

const MOST_ROWS = 32;
const OF_BLOCK = 8;
const OF_TILE = 16;
const OF_GRADIENT = 16; // rows, columns; and rows that take two lines each
const AGES = ["old", "new"];
const VERBS = { init: "initialise", load: "load", compute: "compute", store: "store", post: "post", wait: "wait for" };

class Values {
  constructor(run, root) {
    this.run = run;
    this.root = root;
    this.chosen = null;
    this.narrow = run.follows.filter((one) => one.narrow);
    this.wide = run.follows.filter((one) => !one.narrow);
    this.twoSided = run.follows.some((one) => one.byKey); // blocks of rows and of keys, each with a table of its own
    const of = (byKey) => commas(run.follows.filter((one) => one.byKey === byKey).map(({ name }) => typeset(name)));
    find(".pairs", root).classList.toggle("tall", run.about.blocks.B_r > 8); // of a set height, which spares layouts
    find(".pairs", root).classList.toggle("short", run.about.blocks.B_r <= 2);
    root.style.setProperty("--rows", Math.min(run.about.blocks.B_r, 8.25)); // that tables have room for
    const ofKeys = this.twoSided ? [" of these rows, ", of(true), " of these keys"] : "";
    fill(find(".carried", root), of(false), ofKeys, ": old above new");
    find(".digits", root).onclick = () => player.toggleDigits();
  }

  show(t) {
    if (t !== this.t) this.chosen = null;
    this.t = t;
    const box = find(".pairs", this.root);
    const made = new Set(this.run.eventsAt(t).map((event) => this.run.events.value[event]));
    if (this.twoSided) this.showBlocks(t, box, made);
    else this.showRows(t, box);
    this.showEvents(t);
  }

  none(what) {
    return small(this.run.tiles.length ? `No ${what} on chip in this step.` : "Values were left out.");
  }

  /**
   * What is carried of the row block, row by row: before this tile, and below it now, with the factor of the rescaling.
   * What is wide, such as O, has a table of its own, which goes below the other where there is no room beside it.
   */
  showRows(t, box) {
    const { run } = this;
    const known = (some) => some.map((one) => [one, ...run.pair(one.name, t)]).filter(([, old, now]) => old ?? now);
    const narrow = known(this.narrow);
    const wide = known(this.wide);
    const [, old, now] = narrow[0] ?? wide[0] ?? [];
    const rows = (old ?? now)?.rows ?? 0;
    if (!rows) return fill(box, this.none("row statistics"));
    const first = run.steps.rows[t]?.[0] ?? null;
    const more = rows > MOST_ROWS ? small(`the first ${MOST_ROWS} of ${rows} rows`) : "";
    const left = narrow.length ? this.rowsOf(narrow, this.narrowHeads(narrow), rows, first, true) : "";
    const right = wide.length ? this.rowsOf(wide, this.wideHeads(wide), rows, first, !narrow.length) : "";
    fill(box, left, right, more);
    if (run.steps.rescaled[t] && rows > 4) this.scrollToRisen(box);
  }

  narrowHeads(known) {
    return known.map(([{ name }]) => {
      const rescale = name === this.run.maximum ? head({}, typeset(`e^{${name} − ${name}_new}`)) : "";
      return [head({}, typeset(name)), rescale];
    });
  }

  wideHeads(known) {
    return known.map(([{ name }, old, now]) => {
      const tile = old ?? now;
      return wideHead(tile, "", typeset(name), clipped(tile, OF_BLOCK));
    });
  }

  scrollToRisen(box) {
    const risen = find(".new .rises", box);
    if (!risen || risen.offsetTop + risen.offsetHeight <= box.clientHeight) return;
    box.scrollTop = risen.offsetTop - box.clientHeight / 2;
  }

  /** A table of the old and the new rows of some quantities, with or without the rows' names. */
  rowsOf(known, top, rows, first, named) {
    const body = [];
    for (let r = 0; r < Math.min(rows, MOST_ROWS); r++) {
      const before = known.map(([one, ...ages]) => this.rowCells(one, ages, 0, r, first));
      const after = known.map(([one, ...ages]) => this.rowCells(one, ages, 1, r, first));
      const label = named ? rowHead(first, r) : "";
      body.push(make("tr", { class: "old" }, label, before), make("tr", { class: "new" }, after));
    }
    const names = known.map(([{ plain }]) => plain).join(", ");
    return table(`Old and new ${names} of these rows`, [named ? head({}, "row") : "", top], body);
  }

  /** One row's cells of one quantity, old (n = 0) or new (n = 1). */
  rowCells({ name, plain, narrow }, ages, n, r, first) {
    const tile = ages[n];
    if (!narrow) {
      if (tile && r < tile.rows) return tileCells(tile, r, `${plain} ${AGES[n]}`, first, OF_BLOCK, true);
      return cell({ colspan: Math.min((ages[0] ?? ages[1]).cols, OF_BLOCK) }, "\u00a0");
    }
    const x = tile?.data[r];
    const [from, to] = ages.map((one) => one?.data[r]);
    const maximum = name === this.run.maximum;
    const rises = maximum && to > from;
    const both = ages.filter(Boolean).map((one) => exactly(one.data[r])).join(" → ");
    const marks = { class: rises ? "rises" : "", "data-tip": `${plain}, row ${rowName(first, r)}: ${both}` };
    const own = cell(marks, x === undefined ? "\u00a0" : number(x), rises && n ? " ↑" : "");
    return maximum && n === 0 ? [own, factorCell(from, to)] : [own];
  }

  /** What is carried of the rows and of the keys, a table each, old above new; what this step made is marked. */
  showBlocks(t, box, made) {
    const { run, wide } = this;
    const column = this.narrow[0]?.name; // it goes beside the first block
    const tiles = (name) => (run.steps.pairs[name] ?? []).map((side) => side[t]).filter((tile) => tile >= 0);
    const none = wide.map(({ name }, n) => !tiles(name).length && (n > 0 || !tiles(column).length));
    const nothing = none.every(Boolean);
    const keys = wide.map(({ name, byKey }, n) => {
      const held = [...tiles(name), "", ...(n ? [] : tiles(column))];
      const fresh = held.map((tile) => made.has(tile));
      return String([held, fresh, n ? "" : nothing, run.steps[byKey ? "cols" : "rows"][t], allDigits]);
    });
    if (!find(".gradients", box)) {
      fill(box, make("div", { class: "gradients" }, wide.map(() => make("div"))));
      this.shown = [];
    }
    wide.forEach((one, n) => {
      if (this.shown[n] === keys[n]) return; // few change
      this.shown[n] = keys[n];
      const place = find(".gradients", box).children[n];
      if (!none[n]) fill(place, this.block(one, n ? undefined : column, t, made));
      else fill(place, n ? "" : this.noneOf(one, nothing));
    });
  }

  noneOf({ name }, nothing) {
    if (nothing) return this.none("gradients");
    return make("p", { class: "about wait" }, "No ", typeset(name), " on chip in this step.");
  }

  /** The table of a block of rows or keys, with a column beside it where it has one. */
  block({ name, byKey }, column, t, made) {
    const { run } = this;
    const word = byKey ? "key" : "row";
    const first = run.steps[byKey ? "cols" : "rows"][t]?.[0] ?? null;
    const fresh = (of) => made.has(run.steps.pairs[of][1][t]);
    const [old, now] = run.pair(name, t);
    const [before, after] = column ? run.pair(column, t) : [];
    const beside = after ?? before;
    const mark = after && fresh(column) ? "rises" : "";
    const tall = (old ?? now ?? beside)?.rows ?? 0;
    const top = [
      head({}, word),
      beside ? head({ class: mark }, typeset(column)) : "",
      old ?? now ? this.blockHead(name, old ?? now, now && fresh(name) ? " rises" : "") : "",
    ];
    const body = [];
    for (let r = 0; r < Math.min(tall, OF_GRADIENT); r++) {
      const own = beside ? besideCell(column, beside, r, first, mark) : "";
      const cells = [old, now].map((tile, n) => blockCells(tile, r, `${name} ${AGES[n]}`, first, word));
      body.push(make("tr", { class: "old" }, rowHead(first, r), own, cells[0]), make("tr", { class: "new" }, cells[1]));
    }
    const more = tall > OF_GRADIENT ? small(`the first ${OF_GRADIENT} of ${tall} ${word}s`) : "";
    return [table(`${name} of these ${word}s, old and new`, top, body), more];
  }

  blockHead(name, tile, mark) {
    const old = make("span", { class: "old" }, "old,");
    return wideHead(tile, mark, typeset(name), ": ", old, ` new${clipped(tile, OF_BLOCK)}`);
  }

  showEvents(t) {
    const { run } = this;
    const events = run.eventsAt(t);
    const box = find(".events", this.root);
    this.chosen ??= events.findLast((event) => run.events.value[event] >= 0) ?? events[0];
    fill(box, events.map((event) => this.eventButton(event, t, box)));
    this.showTile(run.tiles[run.events.value[this.chosen]], run.nameOf(this.chosen), run.plainName(this.chosen));
  }

  eventButton(event, t, box) {
    const { run } = this;
    const verb = `${VERBS[run.events.kind[event]]} `;
    const size = ` · ${count(run.events.elements[event])}`;
    const pressed = { "aria-pressed": String(event === this.chosen) };
    const button = make("button", pressed, verb, typeset(run.nameOf(event)), size);
    button.onclick = () => {
      this.chosen = event;
      this.showEvents(t);
      player.markDifferences();
      find('[aria-pressed="true"]', box)?.focus();
    };
    return button;
  }

  showTile(tile, name, plain) {
    const box = find(".tile", this.root);
    if (!tile) return fill(box, small("No values are kept of ", typeset(name), "."));
    const rows = Math.min(tile.rows, MOST_ROWS);
    const lines = Array.from({ length: rows }, (_, r) => make("tr", {}, tileCells(tile, r, plain, 0, OF_TILE, false)));
    const shown = table(plain, null, lines);
    const all = rows === tile.rows && tile.cols <= OF_TILE;
    shown.setAttribute("role", "table");
    const part = `shown: ${rows} × ${Math.min(tile.cols, OF_TILE)} of ${tile.rows} × ${tile.cols}`;
    fill(box, shown, all ? "" : small(part));
  }
}

const clipped = (tile, most) => (tile.cols > most ? ` (first ${most} of ${tile.cols})` : "");
const wideHead = (tile, marks, ...content) =>
  head({ scope: "colgroup", class: `gap wide${marks}`, colspan: Math.min(tile.cols, OF_BLOCK) }, ...content);

/** e^(m − m_new), 0 for a row that had no maximum yet. */
const factor = (from, to) => (from === -Infinity ? 0 : Math.exp(from - to));

function factorCell(from, to) {
  return cell({ class: "factor", rowspan: 2 }, from === undefined || to === undefined ? "" : number(factor(from, to)));
}

/** What row r of a block is called whose first row is `first`; null where nothing on chip says which rows it is of. */
const rowName = (first, r) => (first === null ? `${r} of its block` : String(first + r));

const rowHead = (first, r) =>
  make("th", { scope: "rowgroup", rowspan: 2 }, first === null ? "" : String(first + r));

function besideCell(name, tile, r, first, mark) {
  const x = tile.data[r];
  const tip = `${name}, row ${rowName(first, r)}: ${exactly(x)}`;
  return cell({ rowspan: 2, class: mark, "data-tip": tip }, number(x));
}

function blockCells(tile, r, name, first, word) {
  return tile && r < tile.rows ? tileCells(tile, r, name, first, OF_BLOCK, true, word) : cell({}, "\u00a0");
}

/** The cells of a tile's row, up to `most`; `gap` has the first keep its distance. */
function tileCells(tile, r, name, first, most, gap, word = "row") {
  const values = [...tile.data.subarray(r * tile.cols, r * tile.cols + Math.min(tile.cols, most))];
  const row = `${name}, ${word} ${rowName(first, r)}`;
  return values.map((x, c) => {
    const tip = `${row}, column ${c}: ${exactly(x)}`;
    return cell({ class: gap && c === 0 ? "gap" : "", "data-tip": tip }, number(x));
  });
}
