// One run on the page: its title, its listing and source, and what the step does in words; the rest is in parts of its own.

const rescaled = (rows) => `${rows} ${rows === 1 ? "row is" : "rows are"} rescaled`;

class View {
  constructor(run, root, which) {
    this.run = run, this.root = root, this.which = which;
    root.classList.toggle("backward", run.backward);
    this.setHead();
    if (which) this.tellApart();
    this.setListing();
    this.setSource();
    this.grid = new Stage(run, find(".grid", root), find(".legend", root));
    this.parts = [new Memory(run, root), new Values(run, root), this.grid]; // the picture last: it asks how much room is left
    const resized = new ResizeObserver(() => { if (this.t !== undefined) places.clear(), this.light(this.t); });
    for (const box of [".listing", ".source"]) resized.observe(find(box, root));
    for (const kind of ["svg", "png"]) find(`.save-${kind}`, root).onclick = () => this.grid.save(kind);
    find(".slide", root).onclick = () => player.slide("tiles");
    for (const [button, shown] of [[".show-listing", "listing"], [".show-source", "source"]])
      find(button, root).onclick = () => this.showCode(shown);
    for (const box of [find(".listing", root), find(".source", root)]) box.onscroll = () => places.get(box)?.set("scroll", box.scrollTop);
    if (!run.listing.length) this.showCode("source"), (find(".show-listing", root).disabled = true);
  }

  setHead() {
    const { title, shape, sizes: own, cuts, blocks, dtype, options, command, notes } = this.run.about, is = (name, n) => [typeset(name), ` = ${count(n)}`];
    find("h1", this.root).textContent = title;
    this.root.setAttribute("aria-label", this.which ? `${this.which}: ${title}` : title);
    const sizes = own.length ? own.map(([name, n]) => is(name, n)) : Object.entries(shape).filter(([name]) => name !== "d_v" || shape.d_v !== shape.d).map(([name, n]) => is(name, n));
    const by = (r, c) => [typeset(r), " × ", typeset(c), ` = ${blocks[r]} × ${blocks[c]}`];
    fill(find(".about", this.root), commas(sizes), "; ", cuts.length ? commas(cuts.map(([name, n]) => is(name, n))) : by("B_r", "B_c"), ", ", by("T_r", "T_c"), `; ${dtype}`, options && `; ${options}`);
    find(".command", this.root).textContent = command;
    const box = find(".notes", this.root);
    box.hidden = !notes.length;
    box.textContent = notes.join(" ");
  }

  /** Two runs have the same parts: their names say whose they are. */
  tellApart() {
    for (const part of this.root.querySelectorAll("section, [role=region]")) part.setAttribute("aria-label", `${part.getAttribute("aria-label")}, ${this.which.toLowerCase()}`);
  }

  setListing() {
    const lines = this.run.listing.map(([label, mark, indent, text]) => {
      const words = make("span", {}, typeset(text));
      words.style.paddingLeft = `${indent * 0.55}em`;
      return [label, make("li", {}, make("span", { class: "number" }, mark), words)];
    });
    this.lines = new Map(lines);
    fill(find(".listing", this.root), lines.map(([, line]) => line));
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

  /** Shows a step. `aside` is what there is to say of it beside another run; `asked`, whether a question comes first. */
  show(t, aside = "", asked = false) {
    this.t = t;
    this.showNow(aside);
    for (const part of this.parts) part.show(t, asked);
    this.light(t);
  }

  /** What the step does: its line, with its text where the listing has none, its loops, and its events by what they do. */
  words(t) {
    const { run } = this, [file, line, label] = run.place(t), done = [];
    for (const event of run.eventsAt(t)) {
      const verb = VERBS[run.events.kind[event]];
      if (done.at(-1)?.verb !== verb) done.push({ verb, events: [] });
      done.at(-1).events.push(event);
    }
    const text = this.lines.has(label) ? "" : this.sourceLines.get(`${file}:${line}`)?.textContent.trim() ?? "";
    const turns = run.turns[label] ?? {}, loops = run.loopsAt(t).map(([variable, index]) => [variable, index, turns[variable] ?? index + 1]);
    return { label, text, loops, done };
  }

  showNow(aside) {
    const { run, t } = this, { label, text, loops, done } = this.words(t);
    const own = run.alone ? null : make("span", { class: "own" }, aside && [make("b", {}, aside), " · "], `its step ${t} of ${run.length - 1}`);
    const around = loops.map(([variable, index, turns], n) => [n ? ", " : " · ", typeset(variable), ` = ${index + 1} of ${turns}`]);
    const what = done.map(({ verb, events }, n) => [n ? "; " : "", `${verb} `, commas(events.map((event) => typeset(run.nameOf(event))))]);
    const rises = run.steps.rescaled[t];
    fill(find(".now", this.root), make("b", {}, label), text && [" ", make("code", {}, text)], around, " · ", what, rises ? [" ", make("b", {}, rescaled(rises))] : "", own);
    this.showFormula(t);
  }

  /** The formulas of the step with the numbers of one row; of loads and stores, what they move. */
  showFormula(t) {
    const { run } = this, events = run.eventsAt(t), rows = run.steps.rows[t], row = player?.row ?? this.risingRow(t);
    const lines = events.map((event) => run.events.kind[event] === "compute" ? spellOut(run, event, row, 0) : null).filter(Boolean);
    const moved = { load: "HBM → SRAM", store: "SRAM → HBM", init: "written to HBM" }, sums = new Map();
    for (const event of events) if (moved[run.events.kind[event]]) sums.set(run.events.kind[event], [...(sums.get(run.events.kind[event]) ?? []), run.events.elements[event]]);
    const travels = [...sums].map(([kind, sizes]) => make("p", {}, `${moved[kind]}: ${sizes.length > 1 ? `${sizes.map(count).join(" + ")} = ` : ""}${count(sizes.reduce((a, b) => a + b, 0))} elements`));
    const tall = Math.max(1, ...events.map((event) => run.tiles[run.events.value[event]]?.rows ?? 1)), button = make("button", { class: "row", title: "Another row of the block" }, `row ${rowName(rows && rows[1] - rows[0] === tall ? rows[0] : null, row)}`);
    button.onclick = () => { player.chooseRow((row + 1) % tall), find(".row", this.root)?.focus(); };
    fill(find(".formula", this.root), travels, lines.length ? make("div", { class: "spelled" }, tall > 1 ? button : "", make("div", {}, lines.map((line) => make("p", {}, line)))) : "");
  }

  /** The first row of the block whose maximum rises in this step; else the first. */
  risingRow(t) {
    const [old, now] = this.run.steps.pairs[this.run.maximum] ? this.run.pair(this.run.maximum, t) : [];
    return old && now && this.run.steps.moved[t] ? Math.max(0, now.data.findIndex((x, n) => x > old.data[n])) : 0;
  }

  light(t) {
    for (const line of this.lit ?? []) line.classList.remove("on"), line.removeAttribute("aria-current");
    const { run } = this, places = run.eventsAt(t).map((event) => run.places[run.events.place[event]]);
    this.lit = [this.lines.get(run.place(t)[2]), ...new Set(places.map(([file, n]) => this.sourceLines.get(`${file}:${n}`)))].filter(Boolean);
    for (const lit of this.lit) lit.classList.add("on"), lit.setAttribute("aria-current", "step");
    for (const list of [".listing", ".source"]) { const here = this.lit.filter((line) => line.parentElement.matches(list)); if (here.length) intoView(here); }
  }
}

/** Scrolls only the list that the lines are in, and only if it must: so that all are seen, or else the first. Asking where lines are costs a layout, so it is kept. */
function intoView(lines) {
  const box = lines[0].parentElement;
  if (box.hidden) return;
  if (!places.has(box)) places.set(box, new Map([...box.children].map((child) => [child, [child.offsetTop - box.offsetTop, child.offsetHeight]])).set("height", box.clientHeight).set("scroll", box.scrollTop));
  const known = places.get(box), height = known.get("height"), scroll = known.get("scroll"), [top] = known.get(lines[0]), [last, tall] = known.get(lines.at(-1)), high = last + tall - top;
  if (top >= scroll && top + high <= scroll + height) return;
  box.scrollTop = Math.max(0, high <= height ? top - (height - high) / 3 : top), known.set("scroll", box.scrollTop);
}

const places = new Map();
