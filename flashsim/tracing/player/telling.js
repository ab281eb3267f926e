// A step in words: for ears, and for what is hovered over.

const FATES = { current: "current", done: "done", part: "done in part", ahead: "ahead", skipped: "skipped" };
const MASKED = { all: "", some: " and partial", nothing: " and empty" };
const FORBIDDEN = { all: "", some: "\nthe mask forbids part of it", nothing: "\nthe mask forbids all of it" };

/** What a step does: its line, the turns of its loops, and its tile where these do not say it; then its events. */
function tellStep(view, aside) {
  const { run, t } = view;
  const { label, loops, done } = view.words(t);
  const turns = loops.map(([name, index, all]) => `${name} = ${index + 1} of ${all}`);
  const where = [`Step ${t}`, label, ...turns, tellTileBeside(loops, run.steps.tile[t])].filter(Boolean).join(", ");
  const what = done.map(({ verb, events }) => {
    return `${verb} ${events.map((event) => counted(run.plainName(event))).join(", ")}`;
  });
  const rises = run.steps.rescaled[t];
  return [
    `${where}: ${aside ? `${aside}; ` : ""}${what.join("; ")}.`,
    rises ? `${rescaled(rises)}.` : "",
    `SRAM ${run.occupancy[t]} of ${run.about.M}.`,
  ].filter(Boolean).join(" ");
}

function tellTileBeside(loops, tile) {
  const { i, j } = Object.fromEntries(loops);
  return tile && (i !== tile[0] || j !== tile[1]) ? `tile ${tile.map((n) => n + 1).join(", ")}` : "";
}

/** How many tiles are of which fate at step t. */
function countFates(run, t) {
  const counts = { current: 0, done: 0, part: 0, skipped: 0, ahead: 0 };
  for (const [i, j] of tileIndices(run)) counts[run.fate(i, j, t)]++;
  return counts;
}

/** All tiles' indices, row by row. */
function tileIndices(run) {
  const { T_r, T_c } = run.about.blocks;
  return Array.from({ length: T_r * T_c }, (_, n) => [Math.floor(n / T_c), n % T_c]);
}

function tellPicture(run, t) {
  const counts = countFates(run, t);
  const tile = run.steps.tile[t];
  const { T_r, T_c } = run.about.blocks;
  const fates = [
    !tile && counts.current ? `${counts.current} current; ` : "",
    tile ? `current tile row ${tile[0] + 1}, column ${tile[1] + 1}; ` : "",
    `${counts.done} done, `,
    counts.part ? `${counts.part} done in part, ` : "",
    `${counts.skipped} skipped, ${counts.ahead} ahead`,
  ];
  return `Score matrix of ${T_r} by ${T_c} tiles${run.stored ? "" : `, computed, ${run.kept}`}: ${fates.join("")}`;
}

/** The tiles row by row, and what is on chip. */
function tellTiles(run, t) {
  const { T_r, T_c } = run.about.blocks;
  const fateOf = (i, j) => FATES[run.fate(i, j, t)] + MASKED[run.leaves(i, j)];
  const rows = Array.from({ length: T_r }, (_, i) => {
    const fates = Array.from({ length: T_c }, (_, j) => fateOf(i, j));
    return `Row ${i + 1}: ${ranges(fates)}.`;
  });
  const held = run.resident(t).map(([name, size]) => `${counted(run.plain[name])} ${size}`);
  const inSram = held.join(", ") || "nothing";
  return `Tiles by row and column. ${rows.join(" ")} ${tellStrips(run, t)} In SRAM: ${inSram}.`;
}

/** Which rows and columns of tiles have something on chip, as the strips show. */
function tellStrips(run, t) {
  const found = [0, 1].map((side) => {
    const span = side ? run.steps.cols[t] : run.steps.rows[t];
    const size = side ? run.about.blocks.B_c : run.about.blocks.B_r;
    const held = run.beside[side].filter((array) => run.onChip(array, t));
    if (!span || !held.length) return "";
    const first = Math.floor(span[0] / size) + 1;
    const last = Math.ceil(span[1] / size);
    const names = held.map((array) => run.plain[run.names.indexOf(array)] ?? array);
    return `${names.join(", ")} of ${side ? "column" : "row"} ${first}${last > first ? ` to ${last}` : ""}`;
  });
  return `On chip: ${found.filter(Boolean).join("; ") || "none of them"}.`;
}

function tellTile(run, t, i, j) {
  const { B_r, B_c, T_c } = run.about.blocks;
  const { N_q, N_k } = run.about.shape;
  const [rows, columns] = run.about.words;
  const span = (n, size, end) => `${n * size} to ${Math.min((n + 1) * size, end) - 1}`;
  const visits = run.visits[i * T_c + j].map(([start]) => start);
  return [
    `tile (i, j) = (${i + 1}, ${j + 1}): ${FATES[run.fate(i, j, t)]}`,
    `\n${rows} ${span(i, B_r, N_q)}, ${columns} ${span(j, B_c, N_k)}`,
    FORBIDDEN[run.leaves(i, j)],
    visits.length ? `\nat step ${visits.join(", ")}` : "",
  ].join("");
}

/** A block of an array in HBM: of which rows or columns, and whether it is on chip. */
function tellStrip(run, array, n, side, [first, end], onChip) {
  const block = counted(`${array}[${n}]`);
  const now = onChip ? `, on chip now, ${onChip === "made" ? "made there" : onChip}` : "";
  return `${block} in HBM: ${run.about.words[side]} ${first} to ${end - 1}${now}`;
}

/** What is on chip under this name, [its index, elements]. */
function tellResident(run, [name, size]) {
  return `${counted(run.plain[name])}: ${amount(size)}`;
}

/** The element of a tile that a point of its box lies on. */
function tellElement(run, name, tile, [x, y, width, height], px, py) {
  const r = clamp(Math.floor(((py - y) * tile.rows) / height), 0, tile.rows - 1);
  const c = clamp(Math.floor(((px - x) * tile.cols) / width), 0, tile.cols - 1);
  const value = exactly(tile.data[r * tile.cols + c]);
  const element = `${counted(run.plain[name])}, row ${r}, column ${c} of the block: ${value}`;
  return `${element}\n${tile.rows} × ${tile.cols} elements, ${tellOrigin(run, name)}`;
}

const tellOrigin = (run, name) => (run.isBlock(name) ? "loaded" : "made on chip");

/** "1 to 3 done, 4 ahead" of done, done, done, ahead. */
function ranges(words) {
  const found = [];
  let start = 0;
  for (let n = 0; n < words.length; n++) {
    if (words[n + 1] === words[n]) continue;
    found.push(`${start + 1}${n > start ? ` to ${n + 1}` : ""} ${words[n]}`);
    start = n + 1;
  }
  return found.join(", ");
}

/** Whether two tips of numbers tell the same, but for names and rounding. */
function tellAlike(one, other) {
  if (one === other || !one || !other) return one === other;
  const [mine, its] = [one, other].map((tip) => tip.slice(tip.lastIndexOf(": ") + 2).split(" → "));
  const numeric = (text) => Number(text.replace("−", "-").replace("∞", "Infinity"));
  return mine.length === its.length && mine.every((text, n) => sameNumber(numeric(text), numeric(its[n])));
}
