// The picture of a step: SRAM with the blocks it holds, HBM with the arrays around the score matrix, and what travels between.

const TRAVEL = 420; // milliseconds
const FATES = { current: "current", done: "done", part: "done in part", ahead: "ahead", skipped: "skipped" };
const MASKED = { all: "", some: " and partial", nothing: " and empty" };
const still = matchMedia("(prefers-reduced-motion: reduce)");

class Stage {
  constructor(run, canvas, legend) {
    this.run = run, this.canvas = canvas, this.legend = legend, this.words = find(".told", canvas.closest("section"));
    canvas.onmousemove = (event) => this.hover(event);
    canvas.onclick = (event) => this.choose(event);
    canvas.onmouseleave = canvas.onblur = () => hideTip();
    canvas.onfocus = () => this.tellCurrent();
    new ResizeObserver(() => { if (this.size && (this.size[0] !== canvas.clientWidth || this.size[1] !== canvas.clientHeight)) this.measure(), this.draw(1); }).observe(canvas);
  }

  /** Fits the drawing to the room there is. */
  measure() {
    this.ink = palette(), (this.ink.rgb = heatOf(this.ink)), (this.ink.heat = this.ink.rgb.map(([r, g, b]) => `rgb(${r} ${g} ${b})`));
    this.drawLegend(); // first, as it leaves the picture its room
    const { canvas, run } = this, width = canvas.clientWidth || 300, height = canvas.clientHeight || 300, pixels = window.devicePixelRatio || 1;
    canvas.width = Math.round(width * pixels), canvas.height = Math.round(height * pixels);
    this.pen = canvas.getContext("2d"), this.pen.setTransform(pixels, 0, 0, pixels, 0, 0);
    this.size = [width, height];
    const across = width > 1.45 * height, share = across ? 0.5 : 0.47, gap = 16;
    const first = (across ? width : height) * share - gap / 2, rest = (across ? width : height) - first - gap;
    this.sram = across ? [0, 0, first, height] : [0, 0, width, first];
    this.hbm = across ? [first + gap, 0, rest, height] : [0, first + gap, width, rest];
    this.measureMatrix();
    this.cell = this.fitting();
  }

  measureMatrix() {
    const [left, top, width, height] = this.hbm, { beside: [down, above] } = this.run, { N_q, N_k } = this.run.about.shape;
    this.pitch = clamp((width * 0.3) / Math.max(down.length, 1), 7, 17), this.pitchAbove = clamp((height * 0.3) / Math.max(above.length, 1), 7, 15);
    this.x0 = left + 8 + down.length * this.pitch + 20, this.y0 = top + 22 + Math.max(above.length * this.pitchAbove, 14) + 3;
    this.x = (left + width - 8 - this.x0) / N_k, this.y = (top + height - 8 - this.y0) / N_q;
    const most = 3 * Math.min(this.x * this.run.about.blocks.B_c, this.y * this.run.about.blocks.B_r); // no tile is longer than thrice its other side
    this.x = Math.min(this.x, most / this.run.about.blocks.B_c), this.y = Math.min(this.y, most / this.run.about.blocks.B_r);
  }

  /** The largest cell with which all that is ever on chip fits into SRAM's box. */
  fitting() {
    const sets = new Map();
    for (let t = 0; t < this.run.length; t++) {
      const held = this.run.events.resident[this.run.steps.last[t]];
      if (!sets.has(held)) sets.set(held, this.shapes(t));
    }
    const shapes = [...new Map([...sets.values()].map((set) => [String(set), set])).values()];
    return Array.from({ length: 60 }, (_, n) => 44 * 0.9 ** n).find((cell) => shapes.every((set) => this.slots(set, cell).fits)) ?? 0.05;
  }

  /** Rows and columns of all that is on chip, and how wide its names are. */
  shapes(t) {
    this.widths ??= new Map();
    return this.run.resident(t).map(([name, size]) => {
      if (!this.widths.has(name)) this.widths.set(name, Math.ceil(write(this.pen, typeset(this.run.names[name]), 0, 0, 12, false, true)));
      return [...this.run.shapeOf(t, [name, size]), this.widths.get(name)];
    });
  }

  /** Where blocks of these shapes lie in SRAM's box, in rows, each below its name. */
  slots(shapes, cell) {
    const [left, top, width, height] = this.sram;
    let x = left + 8, y = top + 40, tall = 0;
    const boxes = shapes.map(([rows, cols, name]) => {
      const wide = Math.max(cols * cell, 5), high = Math.max(rows * cell, 5), room = Math.max(wide, name) + 8;
      if (x > left + 8 && x + room > left + width) x = left + 8, y += tall + 25, (tall = 0);
      const box = [x, y + 20, wide, high];
      x += room, tall = Math.max(tall, high);
      return box;
    });
    return { boxes, fits: y + 20 + tall + 5 <= top + height && boxes.every(([x, , wide]) => x + wide <= left + width - 4) };
  }

  /** Shows a step; one step on, its blocks are seen to travel. */
  show(t) {
    if (!this.pen) this.measure();
    const travels = this.t !== undefined && t === this.t + 1 && !still.matches && this.moves(t).length > 0;
    cancelAnimationFrame(this.frame);
    this.t = t;
    const counts = this.tellTiles();
    this.canvas.setAttribute("aria-label", this.told(t, counts));
    if (!travels) return this.draw(1);
    const start = performance.now(), long = Math.min(TRAVEL, 700 / (player?.playing ? player.speed : 1));
    const tick = (now) => {
      const share = clamp((now - start) / long, 0, 1);
      this.draw(share);
      if (share < 1) this.frame = requestAnimationFrame(tick);
    };
    tick(start);
  }

  /** What a step loads and stores: [event, whether to SRAM]. */
  moves(t) { return this.run.eventsAt(t).filter((event) => ["load", "store"].includes(this.run.events.kind[event])).map((event) => [event, this.run.events.kind[event] === "load"]); }

  draw(share, pen = this.pen) {
    const { run, t, ink } = this;
    this.hits = [];
    if (pen === this.pen) pen.clearRect(0, 0, ...this.size);
    const moves = this.moves(t), held = run.resident(t), coming = new Set(share < 1 ? moves.filter(([, load]) => load).map(([event]) => run.events.name[event]) : []);
    this.drawBox(pen, this.hbm, "HBM");
    this.drawMatrix(pen);
    this.drawBox(pen, this.sram, "SRAM");
    this.drawBar(pen, held);
    const { boxes } = this.slots(this.shapes(t), this.cell), made = new Set(run.eventsAt(t).map((event) => run.events.name[event]));
    this.places = new Map(held.map(([name], n) => [name, boxes[n]]));
    held.forEach(([name, size], n) => { if (!coming.has(name)) this.drawBlock(pen, name, size, boxes[n], made.has(name)); });
    for (const [event, load] of moves) this.drawMove(pen, event, load, share);
  }

  drawBox(pen, [x, y, width, height], name) {
    const { ink } = this;
    pen.fillStyle = ink.panel, pen.fillRect(x, y, width, height);
    pen.strokeStyle = ink.faint, pen.lineWidth = 1.5, pen.strokeRect(x + 0.75, y + 0.75, width - 1.5, height - 1.5);
    pen.fillStyle = ink.ink, pen.font = "bold 12px system-ui, sans-serif", pen.textAlign = "left", pen.fillText(name, x + 8, y + 16);
  }

  /** How full SRAM is, block by block, with M's line. */
  drawBar(pen, held) {
    const { run, ink, t } = this, [left, top, width] = this.sram, { M, peak } = run.about, most = Math.max(M, peak), used = run.occupancy[t], scale = (width - 16) / most;
    pen.fillStyle = used > M ? ink.bad : ink.faint, pen.font = `${used > M ? "bold " : ""}12px system-ui, sans-serif`;
    pen.fillText(`${count(used)} of M = ${count(M)}${width > 300 ? ` elements${used > M ? `: ${count(used - M)} too many` : ""}` : ""}`, left + 52, top + 16);
    let x = left + 8;
    pen.strokeStyle = ink.faint, pen.lineWidth = 1, pen.strokeRect(left + 8, top + 23, M * scale, 12);
    for (const [name, size] of held) {
      pen.fillStyle = this.isBlock(name) ? ink.load : ink.chip, pen.fillRect(x, top + 23, Math.max(size * scale - 1, 0.5), 12);
      this.hits.push([x, top + 23, size * scale, 12, () => `${counted(run.plain[name])}: ${count(size)} elements, ${this.isBlock(name) ? "loaded" : "made on chip"}`]);
      x += size * scale;
    }
    if (used > M) hatch(pen, left + 8 + M * scale, top + 21, (used - M) * scale, 16, false, ink.ink), (pen.strokeStyle = ink.bad), (pen.lineWidth = 2), pen.strokeRect(left + 8 + M * scale, top + 21, (used - M) * scale, 16);
    pen.setLineDash(SVG_DASH), strokes(pen, ink.ink, [[left + 8 + M * scale, top + 20], [left + 8 + M * scale, top + 38]]), pen.setLineDash([]);
  }

  isBlock(name) { return this.run.names[name].includes("["); }

  /** A block on chip: its name, its elements as heat, and a frame that says whether this step brought or made it. */
  drawBlock(pen, name, size, box, fresh) {
    const { run, ink, t } = this, [x, y, width, height] = box, tile = run.valueAt(t, name), of = run.quantities[name];
    pen.fillStyle = ink.ink, write(pen, typeset(run.names[name]), x, y - 7, 12);
    if (tile && tile.data.length === size) drawHeat(pen, tile, box, run.most.get(of), ink);
    else pen.fillStyle = this.isBlock(name) ? ink.load : ink.chip, pen.fillRect(...box);
    pen.strokeStyle = fresh ? ink.current : this.isBlock(name) ? ink.load : ink.chip, pen.lineWidth = fresh ? 2.5 : 1.2, pen.strokeRect(x - 0.5, y - 0.5, width + 1, height + 1);
    this.hits.push([...box, (px, py) => this.tellElement(name, size, tile, box, px, py), name]);
    const row = player?.row;
    if (fresh && tile && row !== undefined && tile.rows > 1 && row < tile.rows) pen.strokeStyle = ink.ink, (pen.lineWidth = 1), pen.strokeRect(x - 2.5, y + (row * height) / tile.rows, width + 5, height / tile.rows);
  }

  tellElement(name, size, tile, [x, y, width, height], px, py) {
    const { run } = this, said = `${counted(run.plain[name])}: ${count(size)} elements`;
    if (!tile) return said;
    const r = clamp(Math.floor(((py - y) * tile.rows) / height), 0, tile.rows - 1), c = clamp(Math.floor(((px - x) * tile.cols) / width), 0, tile.cols - 1);
    return `${counted(run.plain[name])}, row ${r}, column ${c} of the block: ${exactly(tile.data[r * tile.cols + c])}\n${tile.rows} × ${tile.cols} elements, ${this.isBlock(name) ? "loaded" : "made on chip"}`;
  }

  /** Where an event's block lies in HBM. */
  placeOf(event) {
    const { run } = this, array = run.nameOf(event).split("[")[0], side = run.sideOf.get(array), [top, bottom, left, right] = run.events.where[event] ?? [0, 0, 0, 0];
    if (side === 0) return this.strip(array, top, bottom);
    if (side === 1) return this.strip(array, top, bottom);
    if (side === 2) return [this.x0 + left * this.x, this.y0 + top * this.y, (right - left) * this.x, (bottom - top) * this.y];
    return [this.hbm[0] + this.hbm[2] - 40, this.hbm[1] + 5, 30, 12];
  }

  strip(array, first, end) {
    const { run } = this, n = run.beside[0].indexOf(array), m = run.beside[1].indexOf(array);
    if (n >= 0) return [this.hbm[0] + 8 + n * this.pitch, this.y0 + first * this.y, this.pitch - 3, (end - first) * this.y];
    return [this.x0 + first * this.x, this.hbm[1] + 22 + m * this.pitchAbove, (end - first) * this.x, this.pitchAbove - 3];
  }

  /** A block between HBM and SRAM: an arrow, and until it has arrived the block itself. */
  drawMove(pen, event, load, share) {
    const { run, ink, t } = this, name = run.events.name[event], from = this.placeOf(event);
    const same = load ? name : run.resident(t).findLast(([held]) => run.quantities[held] === run.quantityOf(event))?.[0];
    const slot = this.places.get(same) ?? [this.sram[0] + this.sram[2] / 2 - 8, this.sram[1] + this.sram[3] - 20, 16, 16];
    const middle = ([x, y, width, height]) => [x + width / 2, y + height / 2], stroke = load ? ink.load : ink.chip;
    pen.strokeStyle = stroke, pen.lineWidth = 2.5, pen.strokeRect(...from);
    pen.globalAlpha = 0.75, arrow(pen, ...(load ? [middle(from), middle(slot)] : [middle(slot), middle(from)]), stroke), pen.globalAlpha = 1;
    if (share >= 1) return;
    const ease = share * share * (3 - 2 * share), [a, b] = load ? [from, slot] : [slot, from], box = a.map((start, n) => start + (b[n] - start) * ease), tile = run.tiles[run.events.value[event]];
    if (tile) drawHeat(pen, tile, box, run.most.get(run.quantityOf(event)), ink);
    else pen.fillStyle = stroke, pen.fillRect(...box);
    pen.strokeStyle = stroke, pen.lineWidth = 2, pen.strokeRect(...box);
  }

  drawMatrix(pen) {
    const { run, ink, t } = this, { T_r, T_c } = run.about.blocks;
    for (const [side, arrays] of [run.beside[0], run.beside[1]].entries()) for (const array of arrays) this.drawStrip(pen, array, side);
    let current = null;
    for (let i = 0; i < T_r; i++)
      for (let j = 0; j < T_c; j++) {
        const fate = run.fate(i, j, t), box = this.box(i, j);
        if (fate === "current") current = box;
        drawTile(pen, box, fate, run.leaves(i, j), ink);
        this.hits.push([...box, () => this.describe(i, j)]);
      }
    const kept = run.beside[2], rest = run.beside[3];
    pen.fillStyle = ink.faint, write(pen, [this.hbm[2] > 230 ? `${run.about.sizes.length ? "" : "score "}matrix, by tiles` : "", [...kept, ...rest].length ? [this.hbm[2] > 230 ? "; here too: " : "also ", commas([...kept, ...rest].map(typeset))] : ""].flat(Infinity).filter(Boolean), this.hbm[0] + 46, this.hbm[1] + 16, 11.5);
    this.drawRegion(pen, current);
  }

  drawStrip(pen, array, side) {
    const { run, ink, t } = this, { B_r, B_c, T_r, T_c } = run.about.blocks, { N_q, N_k } = run.about.shape;
    const [size, number, end] = side ? [B_c, T_c, N_k] : [B_r, T_r, N_q], span = side ? run.steps.cols[t] : run.steps.rows[t], here = run.onChip(array, t);
    for (let n = 0; n < number; n++) {
      const first = n * size, last = Math.min(first + size, end), [x, y, width, height] = this.strip(array, first, last);
      pen.lineWidth = 1, pen.strokeStyle = ink.faint, pen.fillStyle = ink.load;
      if (here && touches(span, first, last)) pen.fillRect(x, y, width, height);
      if (width > 3 && height > 3) pen.strokeRect(x + 0.5, y + 0.5, width - 1, height - 1);
      this.hits.push([x, y, width, height, () => `${counted(`${array}[${n}]`)} in HBM: ${run.about.words[+side]} ${first} to ${last - 1}${here && touches(span, first, last) ? ", on chip now" : ""}`]);
    }
    const [x, y, width, height] = this.strip(array, 0, 0), name = typeset(array), wanted = side ? Math.min(12, height + 3) : 12, small = side ? wanted : Math.min(12, (12 * (this.pitch + 1)) / write(pen, name, 0, 0, 12, false, true)), wide = write(pen, name, 0, 0, small, false, true);
    if (small < 6) return; // hovering tells
    pen.fillStyle = ink.ink, write(pen, name, side ? x - wide - 4 : x + (width - wide) / 2, side ? y + height - 1 : y - 4, small);
  }

  /** Tells the tiles in words, row by row, and what is on chip; returns how many tiles are of which fate. */
  tellTiles() {
    const { run, t } = this, { T_r, T_c } = run.about.blocks, counts = { current: 0, done: 0, part: 0, skipped: 0, ahead: 0 }, rows = [];
    for (let i = 0; i < T_r; i++) {
      const words = [];
      for (let j = 0; j < T_c; j++) {
        const fate = run.fate(i, j, t);
        counts[fate]++, words.push(FATES[fate] + MASKED[run.leaves(i, j)]);
      }
      rows.push(`Row ${i + 1}: ${ranges(words)}.`);
    }
    const held = run.resident(t).map(([name, size]) => `${counted(run.plain[name])} ${size}`).join(", ");
    this.words.textContent = `Tiles by row and column. ${rows.join(" ")} ${this.toldEdges(t)} In SRAM: ${held || "nothing"}.`;
    return counts;
  }

  told(t, counts) {
    const tile = this.run.steps.tile[t], { T_r, T_c } = this.run.about.blocks;
    const where = tile ? `current tile row ${tile[0] + 1}, column ${tile[1] + 1}; ` : counts.current ? `${counts.current} current; ` : "";
    return `Score matrix of ${T_r} by ${T_c} tiles: ${where}${counts.done} done, ${counts.part ? `${counts.part} done in part, ` : ""}${counts.skipped} skipped, ${counts.ahead} ahead`;
  }

  /** Which rows and columns of tiles have something on chip, as the strips show. */
  toldEdges(t) {
    const { run } = this, { B_r, B_c } = run.about.blocks, found = [];
    run.beside.slice(0, 2).forEach((arrays, side) => {
      const span = side ? run.steps.cols[t] : run.steps.rows[t], size = side ? B_c : B_r, held = arrays.filter((array) => run.onChip(array, t));
      if (!span || !held.length) return;
      const first = Math.floor(span[0] / size) + 1, last = Math.ceil(span[1] / size);
      found.push(`${held.map((array) => run.plain[run.names.indexOf(array)] ?? array).join(", ")} of ${side ? "column" : "row"} ${first}${last > first ? ` to ${last}` : ""}`);
    });
    return `On chip: ${found.join("; ") || "none of them"}.`;
  }

  box(i, j) {
    const { B_r, B_c } = this.run.about.blocks, { N_q, N_k } = this.run.about.shape, top = i * B_r * this.y, left = j * B_c * this.x;
    return [this.x0 + left, this.y0 + top, Math.min((j + 1) * B_c, N_k) * this.x - left, Math.min((i + 1) * B_r, N_q) * this.y - top];
  }

  /** Outlines what is worked on: a tile, or the rows or columns on chip. */
  drawRegion(pen, current) {
    const { run, t } = this, rows = run.steps.rows[t], cols = run.steps.cols[t];
    if (!current && !rows && !cols) return;
    const [top, bottom] = rows ?? [0, run.about.shape.N_q], [left, right] = cols ?? [0, run.about.shape.N_k];
    pen.strokeStyle = this.ink.current, pen.lineWidth = current ? 3 : 1.5;
    pen.setLineDash(current ? [] : SVG_DASH);
    pen.strokeRect(this.x0 + left * this.x, this.y0 + top * this.y, (right - left) * this.x, (bottom - top) * this.y);
    pen.setLineDash([]);
  }

  /** Only what occurs in this run is explained. */
  drawLegend() {
    const { run } = this, { T_r, T_c } = run.about.blocks, occurs = new Set(["current", "done", "ahead"]);
    for (let i = 0; i < T_r; i++)
      for (let j = 0; j < T_c; j++) {
        if (run.leaves(i, j) !== "all") occurs.add(run.leaves(i, j));
        if (!run.visits[i * T_c + j].length && run.tileStarts.length) occurs.add("skipped");
        if (run.visits[i * T_c + j].length > 1) occurs.add("part");
      }
    const entries = { ...FATES, nothing: "empty", some: "partial" };
    const heat = ["negative", "positive"].map((text, n) => this.legendItem(text, (pen) => { pen.fillStyle = this.ink.heat[n * 40], pen.fillRect(1, 1, 14, 14); }));
    const bar = [["loaded", "load"], ["made", "chip"]].map(([text, name]) => this.legendItem(text, (pen) => { pen.fillStyle = this.ink[name], pen.fillRect(1, 1, 14, 14); }));
    this.legend.replaceChildren(...Object.entries(entries).filter(([name]) => occurs.has(name)).map(([name, text]) => this.legendItem(text, (pen) => {
      const isMask = name === "nothing" || name === "some";
      drawTile(pen, [1, 1, 14, 14], isMask ? "ahead" : name, isMask ? name : "all", this.ink);
      if (name === "current") pen.strokeStyle = this.ink.current, (pen.lineWidth = 2.5), pen.strokeRect(1.5, 1.5, 13, 13);
    })), ...bar, ...heat);
  }

  legendItem(text, draw) {
    const canvas = make("canvas", { width: 32, height: 32, "aria-hidden": "true" }), pen = canvas.getContext("2d");
    pen.setTransform(2, 0, 0, 2, 0, 0);
    draw(pen);
    return make("li", {}, canvas, text);
  }

  hitAt(event) {
    const box = this.canvas.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    return [this.hits?.findLast(([left, top, width, height]) => left <= x && x < left + width && top <= y && y < top + height), x, y];
  }

  hover(event) {
    const [hit, x, y] = this.hitAt(event);
    if (hit) showTip(hit[4](x, y), event.clientX, event.clientY);
    else hideTip();
  }

  /** A click on a row of a block has the formula say that row's numbers. */
  choose(event) {
    const [hit, , y] = this.hitAt(event), tile = hit?.[5] === undefined ? null : this.run.valueAt(this.t, hit[5]);
    if (tile) player.chooseRow(clamp(Math.floor(((y - hit[1]) * tile.rows) / hit[3]), 0, tile.rows - 1));
  }

  /** For the keyboard: what hovering over the current tile tells. */
  tellCurrent() {
    const tile = this.run.steps.tile[this.t], box = this.canvas.getBoundingClientRect();
    if (tile) showTip(this.describe(...tile), box.left + this.x0, box.top + this.y0);
  }

  describe(i, j) {
    const { run } = this, { B_r, B_c } = run.about.blocks, { N_q, N_k } = run.about.shape, { t } = this;
    const span = (n, size, end) => `${n * size} to ${Math.min((n + 1) * size, end) - 1}`, visits = run.visits[i * run.about.blocks.T_c + j];
    const masked = { all: "", some: "\nthe mask forbids part of it", nothing: "\nthe mask forbids all of it" }[run.leaves(i, j)];
    return `tile (i, j) = (${i + 1}, ${j + 1}): ${FATES[run.fate(i, j, t)]}\n${run.about.words[0]} ${span(i, B_r, N_q)}, ${run.about.words[1]} ${span(j, B_c, N_k)}${masked}${visits.length ? `\nat step ${visits.map(([start]) => start).join(", ")}` : ""}`;
  }

  /** Has the picture of this step saved as a file, "svg" or "png", with what the step does below it. */
  async save(kind) {
    const [width, height] = this.size, tall = height + 24, name = `${this.run.about.algorithm.replace(/\W+/g, "_")}-step-${this.t}.${kind}`;
    const picture = (pen) => {
      pen.fillStyle = this.ink.ground, pen.fillRect(0, 0, width, tall), this.draw(1, pen), (pen.fillStyle = this.ink.ink);
      write(pen, [`step ${this.t} · `, ...find(".now", this.canvas.closest("article")).childNodes], 8, height + 16, 12);
    };
    if (kind === "svg") {
      const pen = new SvgPen(width, tall, document.createElement("canvas").getContext("2d"));
      picture(pen);
      return download(name, new Blob([new XMLSerializer().serializeToString(pen.root)], { type: "image/svg+xml" }));
    }
    const canvas = make("canvas", { width: 3 * width, height: 3 * tall }), pen = canvas.getContext("2d");
    pen.setTransform(3, 0, 0, 3, 0, 0), picture(pen);
    download(name, await new Promise((done) => canvas.toBlob(done)));
  }
}

function download(name, blob) {
  const link = make("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

/** "1 to 3 done, 4 ahead" of done, done, done, ahead. */
function ranges(words) {
  const found = [];
  for (let n = 0, start = 0; n < words.length; n++)
    if (words[n + 1] !== words[n]) found.push(`${start + 1}${n > start ? ` to ${n + 1}` : ""} ${words[n]}`), (start = n + 1);
  return found.join(", ");
}

const touches = (span, start, end) => span !== null && span[0] < end && start < span[1];
