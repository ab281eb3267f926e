// Where a step's picture has its parts: the two memories, the score matrix with the arrays beside it, blocks on chip.
// A box is [left, top, width, height].

const BETWEEN = 16; // the two memories
const LARGEST_CELL = 44;
const SMALLEST_CELL = 0.05;
const LONGEST_TILE = 3; // times its other side
const ASIDE = 22; // what is computed and never stored lies this far below HBM's upper part

class Layout {
  constructor(run, pen, width, height) {
    this.run = run;
    this.pen = pen;
    this.nameWidths = new Map();
    this.placeMemories(width, height);
    this.placeMatrix();
    this.cell = this.fittingCell();
  }

  /** SRAM beside HBM where there is room, else above it. */
  placeMemories(width, height) {
    if (width > 1.45 * height) {
      const first = width * 0.5 - BETWEEN / 2;
      this.sram = [0, 0, first, height];
      this.hbm = [first + BETWEEN, 0, width - first - BETWEEN, height];
    } else {
      const first = height * 0.47 - BETWEEN / 2;
      this.sram = [0, 0, width, first];
      this.hbm = [0, first + BETWEEN, width, height - first - BETWEEN];
    }
  }

  placeMatrix() {
    const [left, top, width, height] = this.hbm;
    const [down, above] = this.run.beside;
    const { shape, blocks } = this.run.about;
    const names = down.map((array) => write(this.pen, typeset(array), 0, 0, 12, false, true));
    this.pitch = clamp((width * 0.3) / Math.max(down.length, 1), 7, Math.max(17, ...names));
    this.pitchAbove = clamp((height * 0.3) / Math.max(above.length, 1), 7, 15);
    this.x0 = left + 8 + down.length * this.pitch + 20;
    this.y0 = top + 22 + Math.max(above.length * this.pitchAbove, 14) + 3 + (this.run.stored ? 0 : ASIDE);
    const x = (left + width - 8 - this.x0) / shape.N_k;
    const y = (top + height - 8 - this.y0) / shape.N_q;
    const longest = LONGEST_TILE * Math.min(x * blocks.B_c, y * blocks.B_r);
    this.x = Math.min(x, longest / blocks.B_c);
    this.y = Math.min(y, longest / blocks.B_r);
  }

  /** HBM's outline: around the matrix where that is stored; else above and beside it. */
  get outline() {
    const [left, top, width, height] = this.hbm;
    const [right, bottom] = [left + width, top + height];
    const inner = [[right, this.y0 - ASIDE], [this.x0 - 9, this.y0 - ASIDE], [this.x0 - 9, bottom]];
    return [[left, top], [right, top], ...(this.run.stored ? [[right, bottom]] : inner), [left, bottom], [left, top]];
  }

  /** The largest cell with which all that is ever on chip fits into SRAM. */
  fittingCell() {
    const sets = new Map();
    for (let t = 0; t < this.run.length; t++) {
      const held = this.run.events.resident[this.run.steps.last[t]];
      if (!sets.has(held)) sets.set(held, this.shapes(t));
    }
    const different = [...new Map([...sets.values()].map((set) => [String(set), set])).values()];
    const cells = Array.from({ length: 60 }, (_, n) => LARGEST_CELL * 0.9 ** n);
    return cells.find((cell) => different.every((set) => this.slots(set, cell).fits)) ?? SMALLEST_CELL;
  }

  /** Of all that is on chip: rows, columns, and how wide the name is. */
  shapes(t) {
    return this.run.resident(t).map(([name, size]) => [...this.run.shapeOf(t, [name, size]), this.nameWidth(name)]);
  }

  nameWidth(name) {
    if (!this.nameWidths.has(name)) {
      const width = write(this.pen, typeset(this.run.names[name]), 0, 0, 12, false, true);
      this.nameWidths.set(name, Math.ceil(width));
    }
    return this.nameWidths.get(name);
  }

  /** Where blocks of these shapes lie in SRAM, in rows, each below its name. */
  slots(shapes, cell = this.cell) {
    const [left, top, width, height] = this.sram;
    let x = left + 8;
    let y = top + 40;
    let tall = 0;
    const boxes = shapes.map(([rows, cols, name]) => {
      const wide = Math.max(cols * cell, 5);
      const high = Math.max(rows * cell, 5);
      const room = Math.max(wide, name) + 8;
      if (x > left + 8 && x + room > left + width) {
        x = left + 8;
        y += tall + 25;
        tall = 0;
      }
      const box = [x, y + 20, wide, high];
      x += room;
      tall = Math.max(tall, high);
      return box;
    });
    const inHeight = y + 20 + tall + 5 <= top + height;
    const inWidth = boxes.every(([x, , wide]) => x + wide <= left + width - 4);
    return { boxes, fits: inHeight && inWidth };
  }

  /** Rows and columns of the score matrix, as a box. */
  part([top, bottom], [left, right]) {
    return [this.x0 + left * this.x, this.y0 + top * this.y, (right - left) * this.x, (bottom - top) * this.y];
  }

  tile(i, j) {
    const { B_r, B_c } = this.run.about.blocks;
    const { N_q, N_k } = this.run.about.shape;
    return this.part([i * B_r, Math.min((i + 1) * B_r, N_q)], [j * B_c, Math.min((j + 1) * B_c, N_k)]);
  }

  /** A part of an array that stands beside the rows of the score matrix, or above its columns. */
  strip(array, first, end) {
    const [down, above] = this.run.beside;
    const n = down.indexOf(array);
    if (n >= 0) {
      const left = this.hbm[0] + 8 + n * this.pitch;
      return [left, this.y0 + first * this.y, this.pitch - 3, (end - first) * this.y];
    }
    const top = this.hbm[1] + 22 + above.indexOf(array) * this.pitchAbove;
    return [this.x0 + first * this.x, top, (end - first) * this.x, this.pitchAbove - 3];
  }

  /** Where an event's block lies in HBM. */
  placeOf(event) {
    const array = this.run.nameOf(event).split("[")[0];
    const [top, bottom, left, right] = this.run.events.where[event] ?? [0, 0, 0, 0];
    const side = this.run.sideOf.get(array);
    if (side === 0 || side === 1) return this.strip(array, top, bottom);
    if (side === 2) return this.part([top, bottom], [left, right]);
    return [this.hbm[0] + this.hbm[2] - 40, this.hbm[1] + 5, 30, 12];
  }

  /** Where what is not seen on chip leaves SRAM. */
  get doorOfSram() {
    const [left, top, width, height] = this.sram;
    return [left + width / 2 - 8, top + height - 20, 16, 16];
  }
}
