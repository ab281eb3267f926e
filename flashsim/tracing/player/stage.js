// The picture of a step: SRAM with the blocks it holds, HBM with its arrays, the scores' tiles, and what travels.

const TRAVEL = 420; // milliseconds
const CAPTION = 24; // pixels of height below a picture that is saved
const still = matchMedia("(prefers-reduced-motion: reduce)");

class Stage {
  constructor(run, canvas, legends) {
    this.run = run;
    this.canvas = canvas;
    this.legends = legends;
    this.words = find(".told", canvas.closest("section"));
    canvas.onmousemove = (event) => this.hover(event);
    canvas.onclick = (event) => this.choose(event);
    canvas.onmouseleave = canvas.onblur = () => hideTip();
    canvas.onfocus = () => this.tellCurrent();
    new ResizeObserver(() => this.resize()).observe(canvas);
  }

  resize() {
    if (!this.size) return;
    const [width, height] = this.size;
    if (width === this.canvas.clientWidth && height === this.canvas.clientHeight) return;
    this.measure();
    this.draw(1);
  }

  /** Fits the drawing to the room there is. */
  measure() {
    this.ink = inks();
    for (const legend of this.legends) drawLegend(this.run, this.ink, legend); // first: it leaves the picture its room
    const width = this.canvas.clientWidth || 300;
    const height = this.canvas.clientHeight || 300;
    this.size = [width, height];
    this.pen = sharpPen(this.canvas, width, height);
    this.layout = new Layout(this.run, this.pen, width, height);
  }

  /** Shows a step; one step on, its blocks are seen to travel. */
  show(t) {
    if (!this.pen) this.measure();
    const travels = t === this.t + 1 && !still.matches && this.moves(t).length > 0;
    cancelAnimationFrame(this.frame);
    this.t = t;
    this.words.textContent = tellTiles(this.run, t);
    this.canvas.setAttribute("aria-label", tellPicture(this.run, t));
    if (travels) this.travel();
    else this.draw(1);
  }

  travel() {
    const start = performance.now();
    const duration = Math.min(TRAVEL, 700 / (player?.playing ? player.speed : 1));
    const tick = (now) => {
      const share = clamp((now - start) / duration, 0, 1);
      this.draw(share);
      if (share < 1) this.frame = requestAnimationFrame(tick);
    };
    tick(start);
  }

  /** What a step loads and stores: [event, whether to SRAM]. */
  moves(t) {
    const { kind } = this.run.events;
    const moving = this.run.eventsAt(t).filter((event) => kind[event] === "load" || kind[event] === "store");
    return moving.map((event) => [event, kind[event] === "load"]);
  }

  /** Draws the step, its moves done by a share from 0 to 1. */
  draw(share, pen = this.pen) {
    const { layout, ink } = this;
    this.hits = []; // what hovering finds, the uppermost last
    if (pen === this.pen) pen.clearRect(0, 0, ...this.size);
    drawMemory(pen, layout.outline, "HBM", ink);
    this.drawMatrix(pen);
    drawMemory(pen, outlineOf(layout.sram), "SRAM", ink);
    this.drawBar(pen);
    this.drawResidents(pen, share);
    for (const [event, load] of this.moves(this.t)) this.drawMove(pen, event, load, share);
  }

  /** How full SRAM is, block by block, with M's line. */
  drawBar(pen) {
    const { run, ink } = this;
    const { M, peak } = run.about;
    const used = run.occupancy[this.t];
    const [left, top, width] = this.layout.sram;
    const scale = (width - 16) / Math.max(M, peak);
    const full = left + 8 + M * scale;
    this.drawUsed(pen, used, M);
    strokeBox(pen, [left + 8, top + 23, M * scale, 12], ink.faint, 1);
    this.drawShares(pen, [left + 8, top + 23], scale);
    if (used > M) {
      hatch(pen, full, top + 21, (used - M) * scale, 16, false, ink.ink);
      strokeBox(pen, [full, top + 21, (used - M) * scale, 16], ink.bad, 2);
    }
    pen.setLineDash(SVG_DASH);
    strokes(pen, ink.ink, line(full, top + 20, full, top + 38));
    pen.setLineDash([]);
  }

  drawUsed(pen, used, M) {
    const [left, top, width] = this.layout.sram;
    const over = used > M ? `: ${count(used - M)} too many` : "";
    pen.fillStyle = over ? this.ink.bad : this.ink.faint;
    pen.font = `${over ? "bold " : ""}12px system-ui, sans-serif`;
    const unit = width > 300 ? ` elements${over}` : "";
    pen.fillText(`${count(used)} of M = ${count(M)}${unit}`, left + 52, top + 16);
  }

  drawShares(pen, [left, top], scale) {
    const { run } = this;
    let x = left;
    for (const [name, size] of run.resident(this.t)) {
      fillBox(pen, [x, top, Math.max(size * scale - 1, 0.5), 12], this.colourOf(name));
      const said = `${tellResident(run, [name, size])}, ${tellOrigin(run, name)}`;
      this.hits.push({ box: [x, top, size * scale, 12], tell: () => said });
      x += size * scale;
    }
  }

  colourOf(name) {
    return this.run.isBlock(name) ? this.ink.load : this.ink.chip;
  }

  /** What is on chip, but for what is still on its way there. */
  drawResidents(pen, share) {
    const { run, t } = this;
    const held = run.resident(t);
    const { boxes } = this.layout.slots(this.layout.shapes(t));
    const made = new Set(run.eventsAt(t).map((event) => run.events.name[event]));
    const loads = this.moves(t).filter(([, load]) => load);
    const coming = new Set(share < 1 ? loads.map(([event]) => run.events.name[event]) : []);
    this.places = new Map(held.map(([name], n) => [name, boxes[n]]));
    held.forEach(([name, size], n) => {
      if (!coming.has(name)) this.drawBlock(pen, name, size, boxes[n], made.has(name));
    });
  }

  /** A block on chip: its name, its elements as heat, and a frame that says whether this step brought or made it. */
  drawBlock(pen, name, size, box, fresh) {
    const { run, ink } = this;
    const [x, y, width, height] = box;
    const tile = run.valueAt(this.t, name);
    pen.fillStyle = ink.ink;
    write(pen, typeset(run.names[name]), x, y - 7, 12);
    if (tile && tile.data.length === size) drawHeat(pen, tile, box, run.most.get(run.quantities[name]), ink);
    else fillBox(pen, box, this.colourOf(name));
    const edge = [x - 0.5, y - 0.5, width + 1, height + 1];
    strokeBox(pen, edge, fresh ? ink.current : this.colourOf(name), fresh ? 2.5 : 1.2);
    const tell = (px, py) => (tile ? tellElement(run, name, tile, box, px, py) : tellResident(run, [name, size]));
    this.hits.push({ box, tell, name });
    if (fresh && tile) this.drawChosenRow(pen, tile, box);
  }

  drawChosenRow(pen, tile, [x, y, width, height]) {
    const row = player?.row;
    if (row === undefined || tile.rows === 1 || row >= tile.rows) return;
    const high = height / tile.rows;
    strokeBox(pen, [x - 2.5, y + (row * height) / tile.rows, width + 5, high], this.ink.ink, 1);
  }

  /** A block between HBM and SRAM: an arrow, and until it has arrived the block itself. */
  drawMove(pen, event, load, share) {
    const colour = load ? this.ink.load : this.ink.chip;
    const there = this.layout.placeOf(event);
    const here = this.places.get(this.nameOnChip(event, load)) ?? this.layout.doorOfSram;
    const [from, to] = load ? [there, here] : [here, there];
    strokeBox(pen, there, colour, 2.5);
    pen.globalAlpha = 0.75;
    arrow(pen, middleOf(from), middleOf(to), colour);
    pen.globalAlpha = 1;
    if (share < 1) this.drawOnItsWay(pen, event, between(from, to, share), colour);
  }

  /** Under which name a block that moves is on chip; what is stored was made last of its quantity. */
  nameOnChip(event, load) {
    const { run } = this;
    if (load) return run.events.name[event];
    const alike = run.resident(this.t).findLast(([held]) => run.quantities[held] === run.quantityOf(event));
    return alike?.[0];
  }

  drawOnItsWay(pen, event, box, colour) {
    const { run } = this;
    const tile = run.tiles[run.events.value[event]];
    if (tile) drawHeat(pen, tile, box, run.most.get(run.quantityOf(event)), this.ink);
    else fillBox(pen, box, colour);
    strokeBox(pen, box, colour, 2);
  }

  drawMatrix(pen) {
    const { run, ink, t } = this;
    for (const side of [0, 1]) for (const array of run.beside[side]) this.drawStrip(pen, array, side);
    for (const [i, j] of tileIndices(run)) {
      const box = this.layout.tile(i, j);
      drawTile(pen, box, run.fate(i, j, t), run.leaves(i, j), ink);
      this.hits.push({ box, tell: () => tellTile(run, t, i, j) });
    }
    this.nameMatrix(pen);
    this.drawRegion(pen);
  }

  nameMatrix(pen) {
    const { run } = this;
    const [left, top, width] = this.layout.hbm;
    const wide = width > 230;
    pen.fillStyle = this.ink.faint;
    if (!run.stored) {
      const what = run.about.sizes.length ? "matrix, by tiles" : "S, by tiles";
      const { x0, y0 } = this.layout;
      const room = (text) => write(pen, [text], 0, 0, 11.5, false, true) <= left + width - x0;
      const said = [`${what}: computed, ${run.kept}`, `${what}: ${run.kept}`, run.kept];
      write(pen, [said.find(room) ?? ""], x0, y0 - 6, 11.5);
    }
    const also = [...run.beside[2], ...run.beside[3]].map(typeset);
    const name = wide && run.stored ? `${run.about.sizes.length ? "" : "score "}matrix, by tiles` : "";
    const others = also.length ? [wide && run.stored ? "; here too: " : "also ", commas(also)] : [];
    write(pen, listed([name, others]), left + 46, top + 16, 11.5);
  }

  /** An array beside the rows (side 0) or above the columns (side 1), block by block; what is on chip is filled. */
  drawStrip(pen, array, side) {
    const { run, ink, t } = this;
    const { B_r, B_c, T_r, T_c } = run.about.blocks;
    const { N_q, N_k } = run.about.shape;
    const [size, number, end] = side ? [B_c, T_c, N_k] : [B_r, T_r, N_q];
    const span = side ? run.steps.cols[t] : run.steps.rows[t];
    const onChip = run.onChip(array, t);
    for (let n = 0; n < number; n++) {
      const first = n * size;
      const last = Math.min(first + size, end);
      const box = this.layout.strip(array, first, last);
      const [x, y, width, height] = box;
      const here = touches(span, first, last) ? onChip : "";
      if (here) fillBox(pen, box, onChip === "loaded" ? ink.load : ink.chip);
      if (width > 3 && height > 3) strokeBox(pen, [x + 0.5, y + 0.5, width - 1, height - 1], ink.faint, 1);
      this.hits.push({ box, tell: () => tellStrip(run, array, n, side, [first, last], here) });
    }
    this.nameStrip(pen, array, side);
  }

  /** An array's name in the room that there is; where that is too small, hovering tells it. */
  nameStrip(pen, array, side) {
    const [x, y, width, height] = this.layout.strip(array, 0, 0);
    const name = typeset(array);
    const widthAt = (size) => write(pen, name, 0, 0, size, false, true);
    const size = Math.min(12, side ? height + 3 : (12 * (this.layout.pitch + 1)) / widthAt(12));
    if (size < 6) return;
    const left = side ? x - widthAt(size) - 4 : x + (width - widthAt(size)) / 2;
    pen.fillStyle = this.ink.ink;
    write(pen, name, left, side ? y + height - 1 : y - 4, size);
  }

  /** Outlines what is worked on: a tile, or the rows or columns on chip. */
  drawRegion(pen) {
    const { run, t } = this;
    const current = run.reaches[t] !== null;
    const rows = run.steps.rows[t];
    const cols = run.steps.cols[t];
    if (!rows && !cols) return;
    const box = this.layout.part(rows ?? [0, run.about.shape.N_q], cols ?? [0, run.about.shape.N_k]);
    pen.setLineDash(current ? [] : SVG_DASH);
    strokeBox(pen, box, this.ink.current, current ? 3 : 1.5);
    pen.setLineDash([]);
  }

  /** What a mouse is over, and where in the picture it is. */
  hitAt(event) {
    const [x, y] = within(this.canvas, event);
    return [this.hits?.findLast(({ box }) => contains(box, x, y)), x, y];
  }

  hover(event) {
    const [hit, x, y] = this.hitAt(event);
    if (hit) showTip(hit.tell(x, y), event.clientX, event.clientY);
    else hideTip();
  }

  /** A click on a row of a block has the formula say that row's numbers. */
  choose(event) {
    const [hit, , y] = this.hitAt(event);
    const tile = hit?.name === undefined ? null : this.run.valueAt(this.t, hit.name);
    if (!tile) return;
    const [, top, , height] = hit.box;
    player.chooseRow(clamp(Math.floor(((y - top) * tile.rows) / height), 0, tile.rows - 1));
  }

  /** For the keyboard: what hovering over the current tile tells. */
  tellCurrent() {
    const tile = this.run.steps.tile[this.t];
    const { left, top } = this.canvas.getBoundingClientRect();
    const [x, y] = [left + this.layout.x0 * magnified, top + this.layout.y0 * magnified];
    if (tile) showTip(tellTile(this.run, this.t, ...tile), x, y);
  }

  /** Has the picture of this step saved as a file, "svg" or "png". */
  async save(kind) {
    const name = `${this.run.about.algorithm.replace(/\W+/g, "_")}-step-${this.t}.${kind}`;
    download(name, kind === "svg" ? this.asSvg() : await this.asPng());
  }

  asSvg() {
    const [width, height] = this.size;
    const pen = new SvgPen(width, height + CAPTION, document.createElement("canvas").getContext("2d"));
    this.drawWithCaption(pen);
    return new Blob([new XMLSerializer().serializeToString(pen.root)], { type: "image/svg+xml" });
  }

  asPng() {
    const [width, height] = this.size;
    const canvas = make("canvas", { width: 3 * width, height: 3 * (height + CAPTION) });
    const pen = canvas.getContext("2d");
    pen.setTransform(3, 0, 0, 3, 0, 0);
    this.drawWithCaption(pen);
    return new Promise((done) => canvas.toBlob(done));
  }

  /** The picture, with what the step does below it. */
  drawWithCaption(pen) {
    const [width, height] = this.size;
    const said = find(".now", this.canvas.closest("article")).childNodes;
    fillBox(pen, [0, 0, width, height + CAPTION], this.ink.ground);
    this.draw(1, pen);
    pen.fillStyle = this.ink.ink;
    write(pen, [`step ${this.t} · `, ...said], 8, height + 16, 12);
  }
}

const outlineOf = ([x, y, width, height]) => [[x, y], [x + width, y], [x + width, y + height], [x, y + height], [x, y]];

/** A memory within its outline, corners from the upper left one round to it. */
function drawMemory(pen, outline, name, ink) {
  const [[x, y]] = outline;
  const inside = outline.map(([across, down]) => [
    across + (across === x ? 0.75 : -0.75),
    down + (down === y ? 0.75 : -0.75),
  ]);
  pen.fillStyle = ink.panel;
  strokes(pen, ink.faint, inside);
  pen.fill();
  strokes(pen, ink.faint, inside);
  pen.fillStyle = ink.ink;
  pen.font = "bold 12px system-ui, sans-serif";
  pen.textAlign = "left";
  pen.fillText(name, x + 8, y + 16);
}

function download(name, blob) {
  const link = make("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

const touches = (span, start, end) => span !== null && span[0] < end && start < span[1];
const middleOf = ([x, y, width, height]) => [x + width / 2, y + height / 2];
const contains = ([left, top, width, height], x, y) => left <= x && x < left + width && top <= y && y < top + height;

/** A box on its way from one to another, slow at first and at last. */
function between(from, to, share) {
  const ease = share * share * (3 - 2 * share);
  return from.map((start, n) => start + (to[n] - start) * ease);
}
