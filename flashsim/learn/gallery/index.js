// A lesson's links to its neighbours lead here, as #prev=causal or #next=causal: only this page knows their order.
const [way, lesson] = location.hash.slice(1).split("=");
const lessons = [...document.querySelectorAll("article")].map((article) => article.id);
const at = lessons.indexOf(lesson);
const neighbour = at < 0 ? undefined : lessons[at + { prev: -1, next: 1 }[way]];
if (neighbour) location.replace(`${neighbour}.html`);
const asked = document.getElementById(way);
if (asked?.matches("article")) asked.querySelector("details").open = true; // a link to one lesson here
magnify();
window.addEventListener("resize", magnify);
