// The step that is shown, and all that changes it.

const NONE = {
  rescale: "No row that has a maximum gets a larger one in this run: nothing is rescaled.",
  max: "No row's maximum rises in this run.",
};
const SCROLLS = { ArrowLeft: [-60, 0], ArrowRight: [60, 0], ArrowUp: [0, -60], ArrowDown: [0, 60] };
const NO_MAXIMUM = "A backward pass has no running maximum: it takes the forward pass's row statistics.";

/**
 * Of two runs the step t is the first one's, and the second shows the step that goes with it, by tile; or else the
 * step of the same number, by time.
 */
class Player {
  constructor(runs) {
    this.runs = runs;
    this.t = 0;
    this.playing = false;
    this.list = this.linked().steps.sort((a, b) => a - b);
    this.none = {}; // of the kinds of steps that these runs lack: why
    magnify();
    for (const run of runs) run.alone = runs.length === 1;
    single = runs.every((run) => run.about.dtype === "float32");
    fewer = runs.length - 1;
    this.pair = runs.length > 1 ? new Alignment(...runs) : null;
    this.views = runs.map((run, n) => this.addView(run, runs.length > 1 ? ["First run", "Second run"][n] : ""));
    find("#views").classList.toggle("two", runs.length > 1);
    this.showRun(0);
    this.slide(this.linked().panel, false);
    this.sparks = new Sparks(runs, find("#sparks"));
    this.difference = this.pair ? this.pair.firstDifference() : -1;
    const alike = runs.length > 1 && runs[0].about.algorithm === runs[1].about.algorithm;
    if (alike) markChanges(this.views, this.pair.tried);
    this.lesson = new Lesson();
    this.lesson.show(this.linked().t === null && !matchMedia("(max-width: 640px)").matches);
    this.setControls();
    const byTime = !this.pair || this.pair.refused || this.linked().by === "time";
    this.follow(byTime ? "time" : "tile");
    this.go(this.linked().t ?? 0);
  }

  /** Goes on to step t, unless a question lies on the way: then that is asked first. */
  onTo(t) {
    const stop = this.lesson.nextStop(this.t);
    if (stop > t) return this.go(t);
    if (this.playing) this.play(false);
    this.lesson.ask(stop, () => this.go(stop));
  }

  addView(run, which) {
    const root = find("#view").content.cloneNode(true).firstElementChild;
    find("#views").append(root);
    return new View(run, root, which);
  }

  setControls() {
    this.setButtons();
    this.setPair();
    this.setNone();
    const scrub = find("#scrub");
    scrub.oninput = () => this.go(Number(scrub.value));
    document.addEventListener("keydown", (event) => this.key(event));
    window.addEventListener("hashchange", ({ newURL }) => this.followLink(new URL(newURL).hash));
    window.addEventListener("resize", () => this.redraw());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.redraw());
    if (matchMedia("(prefers-reduced-motion: reduce)").matches) find("#speed").value = "2";
    this.setPointer();
  }

  setButtons() {
    const press = {
      first: () => this.go(0),
      last: () => this.go(this.length - 1),
      back: () => this.move(-1),
      forward: () => this.move(1),
      "tile-back": () => this.tile(-1),
      "tile-on": () => this.tile(1),
      play: () => this.play(!this.playing),
      "next-hbm": () => this.next("hbm"),
      "next-rescale": () => this.next("rescale"),
      "next-max": () => this.next("max"),
      "next-difference": () => this.go(this.difference),
      leave: () => this.slide(""),
      "next-moment": () => this.next("moment"),
    };
    for (const [id, act] of Object.entries(press)) find(`#${id}`).onclick = act;
  }

  /** What only two runs have. */
  setPair() {
    find("#next-difference").hidden = this.difference < 0;
    find("#in-step").hidden = !this.pair;
    find("#which").hidden = !this.pair;
    for (const n of [0, 1]) find(`#run-${n}`).onclick = () => this.showRun(n);
    for (const by of ["tile", "time"]) find(`#by-${by}`).onclick = () => this.choose(by);
    if (this.pair?.refused) find("#by-tile").title = this.pair.refused;
  }

  /** Which buttons have no use in these runs, and why. */
  setNone() {
    const backward = this.runs.every((run) => run.backward);
    for (const [what, column] of [["max", "moved"], ["rescale", "rescaled"]]) {
      if (this.runs.some((run) => run.steps[column].some(Boolean))) continue;
      this.none[what] = backward ? NO_MAXIMUM : NONE[what];
      find(`#next-${what}`).title = this.none[what];
    }
  }

  /** Follows a link to a step; its address is given, as the page's may have been written since. */
  followLink(hash) {
    const { panel, t, steps } = this.linked(hash);
    this.list = steps.sort((a, b) => a - b);
    this.slide(panel, false);
    this.go(t ?? this.t);
  }

  /** Where there is room for one run only, this is the one. */
  showRun(n) {
    find("#views").dataset.run = n;
    for (const one of [0, 1]) find(`#run-${one}`).setAttribute("aria-pressed", String(one === n));
  }

  /** Shows one panel alone, "tiles", "code", "values" or "memory", as a slide; "" is all of them. */
  slide(panel, said = true) {
    const known = ["tiles", "code", "values", "memory"].includes(panel) ? panel : "";
    if ((document.body.dataset.panel ?? "") === known) return;
    if (known) document.body.dataset.panel = known;
    else delete document.body.dataset.panel;
    find("#leave").hidden = !known;
    if (said) {
      this.link();
      this.redraw();
    }
    if (said && known) this.say("One panel. Escape shows all.");
  }

  /** Has the formulas say this row's numbers, until another step. */
  chooseRow(row) {
    this.row = row;
    for (const view of this.views) {
      view.showFormula(view.t);
      view.grid.draw(1);
    }
  }

  /** Has the second run follow the first by "tile", or by "time". */
  follow(by) {
    const lengths = this.runs.map((run) => run.length);
    const most = Math.max(...lengths);
    this.by = by;
    this.length = by === "tile" ? lengths[0] : most;
    this.sparks.spread(by === "tile" ? lengths : lengths.map(() => most));
    find("#scrub").max = this.length - 1;
    for (const one of ["tile", "time"]) find(`#by-${one}`).setAttribute("aria-pressed", String(one === by));
    find("#by-tile").setAttribute("aria-disabled", String(Boolean(this.pair?.refused)));
  }

  choose(by) {
    if (by === "tile" && this.pair.refused) return this.say(this.pair.refused);
    this.follow(by);
    this.go(this.t);
  }

  /** The step of each run at step t, and what there is to say of the second's. */
  stepsAt(t) {
    if (this.by === "tile") return [t, this.pair.to[t]];
    return this.runs.map((run) => Math.min(t, run.length - 1));
  }

  /** Marks the values of the run on trial that differ from the other's at the same line of the same turn. */
  markDifferences() {
    if (!this.pair?.alike) return;
    const together = this.by === "tile" && !this.pair.missing[this.t];
    for (const part of [".pairs td", ".tile td"]) {
      const [mine, its] = this.views.map((view) => [...view.root.querySelectorAll(part)]);
      const comparable = together && mine.length === its.length;
      const differs = (n) => comparable && !tellAlike(mine[n].dataset.tip, its[n].dataset.tip);
      [mine, its][this.pair.tried].forEach((cell, n) => cell.classList.toggle("differs", differs(n)));
    }
  }

  aside(n, t) {
    if (this.by === "time") return t >= this.runs[n].length ? "ended" : "";
    if (n === 0 || !this.pair.missing[t]) return "";
    const tile = this.runs[0].steps.tile[t];
    const skips = tile && !this.runs[1].visitsOf(this.runs[0].steps.rows[t][0], this.runs[0].steps.cols[t][0]).length;
    return skips ? `tile (${tile.map((n) => n + 1).join(", ")}) is skipped here` : "no such step here";
  }

  setPointer() {
    const sparks = find("#sparks");
    const drag = (event) => {
      if (event.buttons) this.go(this.sparks.stepAt(within(sparks, event)[0]));
    };
    sparks.addEventListener("pointerdown", drag);
    sparks.addEventListener("pointermove", drag);
    document.addEventListener("mouseover", (event) => {
      const told = event.target.closest?.("[data-tip]");
      if (told) showTip(told.dataset.tip, event.clientX, event.clientY);
      else if (!event.target.classList?.contains("grid")) hideTip();
    });
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.tagName === "SELECT" || find("#stop").open) return;
    if (event.key === "Escape") {
      hideTip();
      return this.slide("");
    }
    if (event.shiftKey && SCROLLS[event.key] && event.target.matches(".scroll, .listing, .source, .formula")) {
      event.preventDefault();
      return event.target.scrollBy(...SCROLLS[event.key]);
    }
    const press = {
      ArrowLeft: () => this.move(-1),
      ArrowRight: () => this.move(1),
      ArrowUp: () => this.tile(-1),
      ArrowDown: () => this.tile(1),
      Home: () => this.go(0),
      End: () => this.go(this.length - 1),
      " ": () => this.play(!this.playing),
      PageUp: () => this.listed(-1), PageDown: () => this.listed(1),
    };
    if (event.key === " " && ["BUTTON", "SUMMARY"].includes(event.target.tagName)) return; // the button's own
    if (!press[event.key]) return;
    event.preventDefault();
    press[event.key]();
  }

  move(steps) {
    this.onTo(this.t + steps);
  }

  /** To the next or previous tile's first step, in the first run. */
  tile(direction) {
    const starts = this.runs[0].tileStarts;
    if (direction > 0) this.go(starts.find((start) => start > this.t) ?? this.length - 1);
    else this.go(starts.findLast((start) => start < this.t) ?? 0);
  }

  /** To the next or previous step of the list, as a presenter's remote asks for; where it ends, it stays. */
  listed(direction) {
    const moments = this.lesson.moments.map(([at]) => at);
    const known = [this.list, moments, this.runs[0].tileStarts].find((steps) => steps.length) ?? [];
    this.go((direction > 0 ? known.find((t) => t > this.t) : known.findLast((t) => t < this.t)) ?? this.t);
  }

  next(what) {
    const t = this.findNext(what);
    if (t === null) this.say(this.none[what] ?? "There is none after this step.");
    else this.onTo(t);
  }

  findNext(what) {
    if (this.none[what]) return null;
    const runs = this.by === "tile" ? this.runs.slice(0, 1) : this.runs; // by tile, the first leads
    for (let t = this.t + 1; t < this.length; t++) {
      if (runs.some((run) => t < run.length && this.is(what, run, t))) return t;
    }
    return null;
  }

  is(what, run, t) {
    if (what === "moment") return this.lesson.hasMoment(t);
    if (what === "rescale") return run.steps.rescaled[t] > 0;
    if (what === "max") return run.moves[t] && !this.sameTile(run, t);
    return run.accesses[t] > run.accesses[t - 1];
  }

  sameTile(run, t) {
    return this.t < run.length && run.steps.turn[t] === run.steps.turn[this.t];
  }

  go(step) {
    const t = clamp(step, 0, this.length - 1);
    if (t !== this.t) delete this.row;
    if (t > 0 && this.t === 0) this.lesson.close(); // whoever opens it again keeps it
    this.t = t;
    const steps = this.stepsAt(this.t);
    find("#where").textContent = `step ${this.t} of ${this.length - 1}`;
    const moment = this.lesson.showMoment(t);
    const asked = this.lesson.nextStop(t) < Infinity;
    this.views.forEach((view, n) => view.show(steps[n], this.aside(n, t), asked)); // once all else has its room
    this.markDifferences();
    this.sparks.draw(steps);
    for (const what of ["hbm", "rescale", "max", "moment"]) {
      this.mark(`next-${what}`, this.playing || this.findNext(what) !== null);
    }
    this.sayStep(moment);
    if (!this.playing) this.link();
  }

  /** Has the step said once: by the slider where that is in use, else by the page; while it plays, by neither. */
  sayStep(moment) {
    const scrub = find("#scrub");
    const sliding = document.activeElement === scrub;
    const { label } = this.views[0].words(this.views[0].t);
    const words = this.playing ? "" : this.spoken() + moment;
    scrub.value = this.t;
    scrub.setAttribute("aria-valuetext", sliding && words ? words : `step ${this.t} of ${this.length - 1}, ${label}`);
    if (!this.playing) this.say(sliding ? "" : words);
  }

  /** The step in words, of both runs; where the second does the same, no more than that. */
  spoken() {
    const said = this.views.map((view, n) => tellStep(view, this.aside(n, this.t)));
    if (said.length === 1) return said[0];
    return `First run: ${said[0]} Second run: ${said[0] === said[1] ? "the same." : said[1]}`;
  }

  /** Greys a button out without taking it from the keyboard's way. */
  mark(id, useful) {
    find(`#${id}`).setAttribute("aria-disabled", String(!useful));
    find(`#${id}`).style.opacity = useful ? "" : "0.5";
  }

  toggleDigits() {
    allDigits = !allDigits;
    for (const button of document.querySelectorAll(".digits")) button.setAttribute("aria-pressed", String(allDigits));
    this.go(this.t);
  }

  say(text) {
    find("#said").textContent = text;
  }

  /** Puts the step into the address, a moment later: browsers limit how often. */
  link() {
    clearTimeout(this.linking);
    this.linking = setTimeout(() => writeAddress(this.address), 200);
  }

  get address() {
    const { panel } = document.body.dataset;
    const by = this.pair && this.by === "time" ? "&by=time" : "";
    const steps = this.list.length ? `&steps=${this.list}` : "";
    return `#t=${this.t}${by}${panel ? `&panel=${panel}` : ""}${steps}`;
  }

  /** What the address asks for: #t=30&by=time&panel=tiles&steps=3,21,30. */
  linked(hash = location.hash) {
    const asked = new URLSearchParams(hash.slice(1));
    const t = asked.get("t");
    const steps = (asked.get("steps") ?? "").split(",").filter((step) => /^\d+$/.test(step)).map(Number);
    return { t: /^\d+$/.test(t ?? "") ? Number(t) : null, by: asked.get("by"), panel: asked.get("panel") ?? "", steps };
  }

  play(on) {
    if (on && this.t === this.length - 1) this.go(0);
    this.playing = on;
    const button = find("#play");
    button.textContent = on ? "▮▮" : "▶";
    button.setAttribute("aria-label", on ? "Pause" : "Play");
    if (!on) return this.go(this.t);
    this.playFrom(performance.now());
    requestAnimationFrame((now) => this.tick(now));
  }

  playFrom(now) {
    this.started = now;
    this.from = this.t;
    this.speed = Number(find("#speed").value);
  }

  tick(now) {
    if (!this.playing) return;
    if (Number(find("#speed").value) !== this.speed) this.playFrom(now);
    const t = this.from + Math.max(0, Math.floor(((now - this.started) / 1000) * this.speed));
    if (t !== this.t) this.onTo(Math.min(t, this.length - 1));
    if (!this.playing) return;
    if (this.t >= this.length - 1) this.play(false);
    else requestAnimationFrame((later) => this.tick(later));
  }

  redraw() {
    magnify();
    places.clear();
    for (const view of this.views) view.grid.measure();
    this.sparks.base = null;
    this.go(this.t);
  }
}

let player;

async function open() {
  try {
    if (!("DecompressionStream" in window)) throw new Error("it needs a browser of 2023 or later");
    const data = await unzipped(find("#trace").textContent.trim());
    player = new Player(data.map((one) => new Recorded(one)));
    document.documentElement.dataset.ready = String(Math.round(performance.now()));
  } catch (error) {
    const message = find("#message");
    message.hidden = false;
    message.textContent = `This page cannot show its trace: ${error.message}.`;
    throw error;
  }
}

open();
