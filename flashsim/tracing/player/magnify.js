/** How much larger all is shown than at a desk, where a page has 1280 × 720: a lecture hall reads it from afar. */
let magnified = 1;

function magnify() {
  magnified = Math.max(1, Math.min(window.innerWidth / 1280, window.innerHeight / 720));
  document.documentElement.style.setProperty("--magnified", magnified);
}
