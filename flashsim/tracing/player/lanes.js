// A lane for each of several devices, below the curves: what each of its steps does, and messages from lane to lane.

const CURVES = 40; // pixels
const LANE = 15;
const LANE_INKS = { post: "hot", wait: "cold", load: "load", store: "load", init: "load", compute: "chip" };

/** Steps go by each device's own number: all are as if they ran side by side. */
class Lanes {
  constructor({ rank, kinds, messages }, sparks) {
    Object.assign(this, { rank, kinds, messages, sparks });
    this.height = kinds.length * LANE + 8;
  }

  middle(device) {
    return this.sparks.curves + 6 + device * LANE + LANE / 2;
  }

  base(pen) {
    const { ink, lengths } = this.sparks;
    pen.font = "10px system-ui, sans-serif";
    this.kinds.forEach((steps, device) => {
      const y = this.middle(device);
      steps.forEach((kind, t) => {
        const wide = Math.max(1, this.sparks.at(1, 0) - this.sparks.at(0, 0) - 0.5);
        pen.fillStyle = ink[LANE_INKS[kind]];
        if (t < lengths[0]) pen.fillRect(this.sparks.at(t, 0), y - 3, wide, 6);
      });
      pen.fillStyle = device === this.rank ? ink.current : ink.faint;
      pen.fillText(String(device), 0, y + 3);
    });
    pen.globalAlpha = 0.35;
    for (const message of this.messages) this.line(pen, message, ink.ink, 1);
    pen.globalAlpha = 1;
  }

  line(pen, [from, posted, to, arrived], stroke, width) {
    pen.strokeStyle = stroke;
    pen.lineWidth = width;
    pen.setLineDash([]);
    pen.beginPath();
    pen.moveTo(this.sparks.at(posted, 0), this.middle(from));
    pen.lineTo(this.sparks.at(arrived, 0), this.middle(to));
    pen.stroke();
  }

  /** Messages that are posted and not yet waited for. */
  flying(pen, step) {
    const { pixels, ink } = this.sparks;
    pen.scale(pixels, pixels);
    for (const message of this.messages)
      if (message[1] <= step && step < message[3]) this.line(pen, message, ink.current, 2.5);
    pen.setTransform(1, 0, 0, 1, 0, 0);
  }
}
