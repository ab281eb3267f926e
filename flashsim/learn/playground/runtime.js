// What the translated forms are written in: integers without a limit, one head's problem, and its tiles.

const find = (selector, root = document) => root.querySelector(selector);
const floorDiv = (a, b) => {
  const n = a / b;
  return n * b !== a && a < 0n !== b < 0n ? n - 1n : n;
};
const floorMod = (a, b) => a - floorDiv(a, b) * b;
const largest = (...all) => all.reduce((a, b) => (a > b ? a : b));
const least = (...all) => all.reduce((a, b) => (a < b ? a : b));
/** ⌊√n⌋, by Newton's steps from above. */
function isqrt(n) {
  if (n < 1n) return 0n;
  let x = 1n << BigInt((n.toString(2).length + 1) >> 1);
  for (;;) {
    const next = (x + n / x) >> 1n;
    if (next >= x) return x;
    x = next;
  }
}

const blocksOf = (p, B_r, B_c) => {
  B_r = least(B_r, p.N_q);
  B_c = least(B_c, p.N_k);
  return { B_r, B_c, T_r: floorDiv(p.N_q + B_r - 1n, B_r), T_c: floorDiv(p.N_k + B_c - 1n, B_c) };
};

/**
 * Tiles of S, all or the live ones of a causal mask: the last row of tiles, and the last column, may be smaller.
 *
 * The last row attends to all keys, so its tiles are live. Of the others, column j has those from
 * ⌊(j·B_c − N_k + N_q)/B_r⌋ on.
 */
const tilesOf = (p, rows, columns, live) => {
  const { B_r, B_c, T_r, T_c } = blocksOf(p, rows, columns);
  const dead = (n) => (live ? clippedSum(B_c, p.N_q - p.N_k, B_r, n, T_r - 1n) : 0n);
  const lastRows = p.N_q - (T_r - 1n) * B_r;
  const kindsIn = (first, end, c) => [
    [B_r, c, (T_r - 1n) * (end - first) - dead(end) + dead(first)],
    [lastRows, c, end - first],
  ];
  const kinds = [...kindsIn(0n, T_c - 1n, B_c), ...kindsIn(T_c - 1n, T_c, p.N_k - (T_c - 1n) * B_c)];
  const some = kinds.filter(([, , number]) => number);
  const sum = (of) => some.reduce((total, kind) => total + of(kind), 0n);
  return {
    cut: (r, c) => tilesOf(p, r, c, live),
    A: sum(([r, , n]) => r * n),
    C: sum(([, c, n]) => c * n),
    most: (occupancy) => largest(...some.map(([r, c]) => occupancy(r, c))),
  };
};

/** Tiles of a pass that masks S: as many whole rows as M has room for, or a piece of one. */
const maskingTiles = (p) => (p.M >= p.N_k ? tilesOf(p, floorDiv(p.M, p.N_k), p.N_k) : tilesOf(p, 1n, p.M));

const problemOf = ({ N_q, N_k, d, M, causal }) => {
  const p = { N_q, N_k, d, d_v: d, M, masked: causal };
  return Object.assign(p, { tiles: (B_r, B_c) => tilesOf(p, B_r, B_c) });
};
