// What moved and what is held over all steps, as two curves.

/** HBM accesses so far and SRAM occupancy over all steps, drawn once; the step is a line over them. */
class Sparks {
  constructor(runs, canvas) {
    this.runs = runs;
    this.canvas = canvas;
    this.lanes = runs[0].lanes && new Lanes(runs[0].lanes, this);
    if (!this.lanes) return;
    canvas.style.height = `${CURVES + this.lanes.height}px`;
    canvas.setAttribute("aria-label", "HBM accesses, SRAM occupancy, and a lane for each device, over the steps");
  }

  /** Over how many steps each run is drawn: over as many as the longer has, or each over its own. */
  spread(lengths) {
    this.lengths = lengths;
    this.base = null;
  }

  measure() {
    this.width = this.canvas.clientWidth;
    this.height = this.canvas.clientHeight;
    this.curves = this.height - (this.lanes?.height ?? 0);
    this.pixels = (window.devicePixelRatio || 1) * magnified;
    this.ink = inks();
    sharpPen(this.canvas, this.width, this.height);
    this.base = document.createElement("canvas");
    const pen = sharpPen(this.base, this.width, this.height);
    const most = Math.max(...this.runs.map((run) => run.accesses[run.length - 1]), 1);
    const full = Math.max(...this.runs.map((run) => Math.max(run.about.peak, run.about.M)), 1);
    this.runs.forEach((run, n) => {
      this.line(pen, run.occupancy, full, this.ink["spark-2"], n, 1);
      this.line(pen, run.accesses, most, this.ink.spark, n, 1.8);
    });
    this.name(pen, most, Math.max(...this.runs.map((run) => run.about.peak)));
    this.lanes?.base(pen);
  }

  at(t, n) {
    return 8 + (this.lengths[n] > 1 ? (t / (this.lengths[n] - 1)) * (this.width - 16) : 0);
  }

  line(pen, column, most, stroke, n, width) {
    pen.strokeStyle = stroke;
    pen.lineWidth = width;
    pen.setLineDash(n ? SVG_DASH : []);
    pen.beginPath();
    for (let t = 0; t < column.length; t++)
      pen.lineTo(this.at(t, n), this.curves - 2 - (column[t] / most) * (this.curves - 17));
    pen.stroke();
  }

  name(pen, most, peak) {
    pen.font = "11px system-ui, sans-serif";
    const narrow = this.width < 500;
    const dashes = this.runs.length > 1 ? `; dashed: ${narrow ? "second" : "the second run"}` : "";
    const [moved, held] = narrow ? ["HBM", "SRAM"] : ["HBM accesses so far", "SRAM in use"];
    const texts = [
      [`━ ${moved}, up to ${count(most)}`, this.ink.spark],
      [`─ ${held}, up to ${count(peak)}${dashes}`, this.ink["spark-2"]],
    ];
    if (this.lanes) {
      texts.push(["▪ post", this.ink.hot], ["▪ wait", this.ink.cold]);
      texts.push([narrow ? "━ sent" : "━ in flight", this.ink.current]);
    }
    let x = 8;
    for (const [text, fill] of texts) {
      pen.fillStyle = fill;
      pen.fillText(text, x, 10);
      x += pen.measureText(text).width + 16;
    }
  }

  /** Draws both curves, and where each run is. */
  draw(steps) {
    if (!this.base) this.measure();
    if (!this.canvas.width || !this.canvas.height) {
      this.base = null; // in a frame that is not shown yet
      return;
    }
    const pen = this.canvas.getContext("2d");
    pen.setTransform(1, 0, 0, 1, 0, 0);
    pen.clearRect(0, 0, this.canvas.width, this.canvas.height);
    pen.drawImage(this.base, 0, 0);
    this.lanes?.flying(pen, steps[0]);
    pen.strokeStyle = this.ink.current;
    pen.lineWidth = 2 * this.pixels;
    steps.forEach((t, n) => {
      pen.setLineDash(n ? SVG_DASH.map((part) => part * this.pixels) : []);
      pen.beginPath();
      pen.moveTo(this.at(t, n) * this.pixels, 0);
      pen.lineTo(this.at(t, n) * this.pixels, this.canvas.height);
      pen.stroke();
    });
    pen.setLineDash([]);
  }

  stepAt(x) {
    return clamp(Math.round(((x - 8) / (this.width - 16)) * (this.lengths[0] - 1)), 0, this.lengths[0] - 1);
  }
}
