// What the translated forms are written in: integers without a limit, one head's problem, and its tiles.

const floorDiv = (a, b) => { const n = a / b; return n * b !== a && a < 0n !== b < 0n ? n - 1n : n; };
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
  B_r = least(B_r, p.N_q), B_c = least(B_c, p.N_k);
  return { B_r, B_c, T_r: floorDiv(p.N_q + B_r - 1n, B_r), T_c: floorDiv(p.N_k + B_c - 1n, B_c) };
};

/** All tiles of S: the last row of tiles, and the last column, may be smaller. */
const tilesOf = (p, B_r, B_c) => {
  const { T_r, T_c } = blocksOf(p, B_r, B_c), rows = [p.N_q - (T_r - 1n) * B_r], columns = [p.N_k - (T_c - 1n) * B_c];
  if (T_r > 1n) rows.push(B_r);
  if (T_c > 1n) columns.push(B_c);
  return { most: (occupancy) => largest(...rows.flatMap((r) => columns.map((c) => occupancy(r, c)))) };
};

const problemOf = (N, d, M) => {
  const p = { N_q: N, N_k: N, d, d_v: d, M };
  return Object.assign(p, { tiles: (B_r, B_c) => tilesOf(p, B_r, B_c) });
};
