// What the picture's colours and marks mean.

const SWATCH = [1, 1, 14, 14];

/** Only what occurs in this run is explained. */
function drawLegend(run, ink, box) {
  const occurs = occurring(run);
  const fates = Object.keys(FATES).filter((fate) => occurs.has(fate));
  const masked = Object.entries({ empty: "nothing", partial: "some" }).filter(([, leaves]) => occurs.has(leaves));
  const filled = { loaded: ink.load, made: ink.chip, negative: ink.heat[0], positive: ink.heat[40] };
  fill(box, [
    fates.map((fate) => legendItem(FATES[fate], (pen) => drawFate(pen, fate, ink))),
    masked.map(([text, leaves]) => legendItem(text, (pen) => drawTile(pen, SWATCH, "ahead", leaves, ink))),
    Object.entries(filled).map(([text, colour]) => legendItem(text, (pen) => fillBox(pen, SWATCH, colour))),
  ]);
}

/** Fates, and what masks leave of tiles. */
function occurring(run) {
  const found = new Set(["current", "done", "ahead"]);
  for (const [i, j] of tileIndices(run)) {
    const visits = run.visits[i * run.about.blocks.T_c + j];
    if (!visits.length && run.tileStarts.length) found.add("skipped");
    if (visits.length > 1) found.add("part");
    found.add(run.leaves(i, j));
  }
  return found;
}

function drawFate(pen, fate, ink) {
  drawTile(pen, SWATCH, fate, "all", ink);
  if (fate === "current") strokeBox(pen, [1.5, 1.5, 13, 13], ink.current, 2.5);
}

function legendItem(text, draw) {
  const canvas = make("canvas", { width: 32, height: 32, "aria-hidden": "true" });
  const pen = canvas.getContext("2d");
  pen.setTransform(2, 0, 0, 2, 0, 0);
  draw(pen);
  return make("li", {}, canvas, text);
}
