// One run on the page: its title, its listing and source, and what the step does; the rest is in parts of its own.

const MOVED = { load: "HBM → SRAM", store: "SRAM → HBM", init: "written to HBM" };
const rescaled = (rows) => `${rows} ${rows === 1 ? "row is" : "rows are"} rescaled`;

class View {
  constructor(run, root, which) {
    this.run = run;
    this.root = root;
    this.which = which;
    root.classList.toggle("backward", run.backward);
    this.setHead();
    if (which) this.tellApart();
    this.setListing();
    this.setSource();
    this.grid = new Stage(run, find(".grid", root), root.querySelectorAll(".legend"));
    this.parts = [new Memory(run, root), new Values(run, root), this.grid]; // the picture last: it takes the room left
    const resized = new ResizeObserver(() => this.relight());
    for (const box of [".listing", ".source"]) {
      resized.observe(find(box, root));
      find(box, root).onscroll = ({ target }) => places.get(target)?.set("scroll", target.scrollTop);
    }
    for (const kind of ["svg", "png"]) find(`.save-${kind}`, root).onclick = () => this.grid.save(kind);
    for (const shown of ["listing", "source"]) find(`.show-${shown}`, root).onclick = () => this.showCode(shown);
    find(".slide", root).onclick = () => player.slide("tiles");
    if (!run.listing.length) {
      this.showCode("source");
      find(".show-listing", root).disabled = true;
    }
  }

  setHead() {
    const { title, command, notes } = this.run.about;
    const box = find(".notes", this.root);
    find("h1", this.root).textContent = title;
    this.root.setAttribute("aria-label", this.which ? `${this.which}: ${title}` : title);
    fill(find(".about", this.root), this.problem());
    find(".command", this.root).textContent = command;
    box.hidden = !notes.length;
    box.textContent = notes.join(" ");
  }

  /** Sizes, blocks, dtype and options. */
  problem() {
    const { shape, sizes, cuts, blocks, dtype, options } = this.run.about;
    const usual = Object.entries(shape).filter(([name]) => name !== "d_v" || shape.d_v !== shape.d);
    const each = (pairs) => commas(pairs.map(([name, n]) => [typeset(name), ` = ${count(n)}`]));
    const by = (r, c) => [typeset(r), " × ", typeset(c), ` = ${blocks[r]} × ${blocks[c]}`];
    const inBlocks = cuts.length ? each(cuts) : by("B_r", "B_c");
    const given = options && `; ${options}`;
    return [each(sizes.length ? sizes : usual), "; ", inBlocks, ", ", by("T_r", "T_c"), `; ${dtype}`, given];
  }

  /** Two runs have the same parts: their names say whose they are. */
  tellApart() {
    for (const part of this.root.querySelectorAll("section, [role=region]")) {
      part.setAttribute("aria-label", `${part.getAttribute("aria-label")}, ${this.which.toLowerCase()}`);
    }
  }

  setListing() {
    const lines = this.run.listing.map(([label, mark, indent, text]) => {
      const words = make("span", {}, typeset(text));
      words.style.paddingLeft = `${indent * 0.55}em`;
      return [label, make("li", {}, make("span", { class: "number" }, mark), words)];
    });
    this.lines = new Map(lines);
    fill(find(".listing", this.root), [...this.lines.values()]);
  }

  setSource() {
    this.sourceLines = new Map();
    const box = find(".source", this.root);
    for (const [file, first, lines] of this.run.about.source) {
      box.append(make("span", { class: "file" }, `${file}, from line ${first}`));
      lines.forEach((text, n) => {
        const line = make("span", {}, text || " ");
        this.sourceLines.set(`${file}:${first + n}`, line);
        box.append(line);
      });
    }
  }

  showCode(shown) {
    for (const name of ["listing", "source"]) {
      find(`.${name}`, this.root).hidden = name !== shown;
      find(`.show-${name}`, this.root).setAttribute("aria-pressed", String(name === shown));
    }
    places.clear();
    this.light(this.t ?? 0);
  }

  /** Shows a step. `aside` is what there is to say of it beside another run; `asked`, whether a question is to come. */
  show(t, aside = "", asked = false) {
    this.t = t;
    this.showNow(aside);
    for (const part of this.parts) part.show(t, asked);
    this.light(t);
  }

  /** What the step does: its line, with its text where the listing has none, its loops, and its events by verb. */
  words(t) {
    const { run } = this;
    const [file, line, label] = run.place(t);
    const done = [];
    for (const event of run.eventsAt(t)) {
      const verb = VERBS[run.events.kind[event]];
      if (done.at(-1)?.verb !== verb) done.push({ verb, events: [] });
      done.at(-1).events.push(event);
    }
    const text = this.lines.has(label) ? "" : (this.sourceLines.get(`${file}:${line}`)?.textContent.trim() ?? "");
    const turns = run.turns[label] ?? {};
    const loops = run.loopsAt(t).map(([variable, index]) => [variable, index, turns[variable] ?? index + 1]);
    return { label, text, loops, done };
  }

  showNow(aside) {
    const { run, t } = this;
    const { label, text, loops, done } = this.words(t);
    const around = loops.map(([variable, index, turns], n) => {
      return [n ? ", " : " · ", typeset(variable), ` = ${index + 1} of ${turns}`];
    });
    const what = done.map(({ verb, events }, n) => {
      return [n ? "; " : "", `${verb} `, commas(events.map((event) => typeset(run.nameOf(event))))];
    });
    const line = [make("b", {}, label), text && [" ", make("code", {}, text)]];
    const rises = run.steps.rescaled[t];
    const risen = rises ? [" ", make("b", {}, rescaled(rises))] : "";
    fill(find(".now", this.root), line, around, " · ", what, risen, run.alone ? null : this.ownStep(aside));
    this.showFormula(t);
  }

  /** Which of its own steps a run beside another shows. */
  ownStep(aside) {
    const said = aside && [make("b", {}, aside), " · "];
    return make("span", { class: "own" }, " ", said, `its step ${this.t} of ${this.run.length - 1}`);
  }

  /** The formulas of the step with the numbers of one row; of loads and stores, what they move. */
  showFormula(t) {
    const { run } = this;
    const row = player?.row ?? this.risingRow(t);
    const results = run.eventsAt(t).filter((event) => run.events.kind[event] === "compute");
    const formulas = results.map((event) => spellOut(run, event, row, 0)).filter(Boolean);
    const lines = make("div", {}, formulas.map((formula) => make("p", {}, formula)));
    const spelled = formulas.length ? make("div", { class: "spelled" }, this.rowButton(t, row), lines) : "";
    fill(find(".formula", this.root), this.travels(t), spelled);
  }

  /** How many elements move in the step, and from where to where. */
  travels(t) {
    const { kind, elements } = this.run.events;
    const events = this.run.eventsAt(t);
    const kinds = [...new Set(events.map((event) => kind[event]))].filter((one) => Object.hasOwn(MOVED, one));
    return kinds.map((wanted) => {
      const sizes = events.filter((event) => kind[event] === wanted).map((event) => elements[event]);
      const terms = sizes.length > 1 ? `${sizes.map(count).join(" + ")} = ` : "";
      const sum = sizes.reduce((a, b) => a + b, 0);
      return make("p", {}, `${MOVED[wanted]}: ${terms}${amount(sum)}`);
    });
  }

  /** Which row of the block the formulas are of, and a way to the next; "" where it has one row. */
  rowButton(t, row) {
    const { run } = this;
    const tall = Math.max(1, ...run.eventsAt(t).map((event) => run.tiles[run.events.value[event]]?.rows ?? 1));
    if (tall === 1) return "";
    const rows = run.steps.rows[t];
    const first = rows && rows[1] - rows[0] === tall ? rows[0] : null;
    const said = `row ${rowName(first, row)}`;
    const button = make("button", { class: "row", title: "Another row of the block" }, said);
    button.onclick = () => {
      player.chooseRow((row + 1) % tall);
      find(".row", this.root)?.focus();
    };
    return button;
  }

  /** The first row of the block whose maximum rises in this step; else the first. */
  risingRow(t) {
    const { run } = this;
    const [old, now] = run.steps.pairs[run.maximum] ? run.pair(run.maximum, t) : [];
    if (!old || !now || !run.steps.moved[t]) return 0;
    return Math.max(0, now.data.findIndex((x, n) => x > old.data[n]));
  }

  relight() {
    if (this.t === undefined) return;
    places.clear();
    this.light(this.t);
  }

  light(t) {
    for (const line of this.lit ?? []) {
      line.classList.remove("on");
      line.removeAttribute("aria-current");
    }
    const { run } = this;
    const placesInSource = run.eventsAt(t).map((event) => run.places[run.events.place[event]]);
    const inSource = new Set(placesInSource.map(([file, n]) => this.sourceLines.get(`${file}:${n}`)));
    this.lit = [this.lines.get(run.place(t)[2]), ...inSource].filter(Boolean);
    for (const lit of this.lit) {
      lit.classList.add("on");
      lit.setAttribute("aria-current", "step");
    }
    for (const list of [".listing", ".source"]) {
      const here = this.lit.filter((line) => line.parentElement.matches(list));
      if (here.length) intoView(here);
    }
  }
}

/** Where a list's lines are, from its top: asking costs a layout, so it is kept. */
const places = new Map();

function placesIn(box) {
  if (!places.has(box)) {
    const lines = [...box.children].map((line) => [line, [line.offsetTop - box.offsetTop, line.offsetHeight]]);
    places.set(box, new Map(lines).set("height", box.clientHeight).set("scroll", box.scrollTop));
  }
  return places.get(box);
}

/** Scrolls only the list that the lines are in, and only if it must: so that all are seen, or else the first. */
function intoView(lines) {
  const box = lines[0].parentElement;
  if (box.hidden) return;
  const known = placesIn(box);
  const height = known.get("height");
  const scroll = known.get("scroll");
  const [top] = known.get(lines[0]);
  const [last, tall] = known.get(lines.at(-1));
  const high = last + tall - top;
  if (top >= scroll && top + high <= scroll + height) return;
  box.scrollTop = Math.max(0, high <= height ? top - (height - high) / 3 : top);
  known.set("scroll", box.scrollTop);
}

/** Two runs of one algorithm whose texts differ: shows the texts, with the lines that differ marked, unless most do; in
 * red those of the run on trial. */
function markChanges([a, b], tried) {
  const linesOf = (view) => [...view.sourceLines.values()];
  const differing = (view, other) => {
    const known = new Set(linesOf(other).map((line) => line.textContent));
    return linesOf(view).filter((line) => !known.has(line.textContent));
  };
  const changed = [...differing(a, b), ...differing(b, a)];
  if (!changed.length) return;
  const most = changed.length > linesOf(a).length;
  for (const line of most ? [] : changed) {
    line.classList.add([a, b][tried].root.contains(line) ? "changed" : "instead");
    line.dataset.tip = "differs from the other run";
  }
  for (const view of [a, b]) view.showCode("source");
}
