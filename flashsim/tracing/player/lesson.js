// A lesson beside the run: moments that its text points at, and stops that ask a question on the way.

class Lesson {
  constructor() {
    this.box = find("#lesson");
    const moments = [...document.querySelectorAll("#lesson .moments a")];
    const stops = [...document.querySelectorAll("template.stop")];
    this.moments = moments.map((link) => [Number(link.hash.slice(3)), link.parentElement]); // [step, its entry]
    this.stops = stops.map((stop) => [Number(stop.dataset.step), stop.content]);
  }

  /** Opens the text, but not for those who came by a link to a step. */
  show(open) {
    if (!this.box) return;
    this.box.open = open;
    find("#moment").hidden = find("#next-moment").hidden = !this.moments.length;
  }

  close() {
    if (this.box) this.box.open = false;
  }

  hasMoment(t) {
    return this.moments.some(([at]) => at === t);
  }

  /** The step of the next question after t: until it is asked, what would answer it is not shown. */
  nextStop(t) {
    return Math.min(...this.stops.map(([at]) => at).filter((at) => at > t));
  }

  /** Says at a moment what there is to see, and marks it in the list. Returns what it says. */
  showMoment(t) {
    const here = this.moments.find(([at]) => at === t)?.[1];
    const box = find("#moment");
    for (const [at, entry] of this.moments) {
      entry.classList.toggle("here", entry === here);
      entry.classList.toggle("later", at >= this.nextStop(t));
    }
    const asks = this.nextStop(t) < Infinity;
    for (const answer of document.querySelectorAll("#lesson .after")) answer.hidden = asks;
    box.classList.toggle("here", here !== undefined);
    fill(box, here ? [...here.lastElementChild.cloneNode(true).childNodes] : "");
    return here ? ` ${here.lastElementChild.textContent}` : "";
  }

  /** Asks the question of the stop at this step, once; `then` is called when it is answered or skipped. */
  ask(step, then) {
    const n = this.stops.findIndex(([at]) => at === step);
    const dialog = find("#stop");
    const [question, ...answers] = this.stops[n][1].cloneNode(true).children;
    const because = answers.pop();
    fill(find("#stop-asks"), ...question.childNodes);
    fill(find("#stop-because"));
    fill(find("#stop-choices"), answers);
    find("#stop-on").textContent = "skip";
    find("#stop-on").onclick = () => dialog.close();
    for (const choice of answers) choice.onclick = () => this.answer(choice, because);
    dialog.onclose = () => {
      this.stops.splice(n, 1);
      then();
    };
    dialog.showModal();
  }

  answer(choice, because) {
    const right = "right" in choice.dataset;
    const box = find("#stop-because");
    choice.classList.add(right ? "right" : "wrong");
    fill(box, make("b", {}, right ? "Yes. " : "No. "), ...because.cloneNode(true).childNodes);
    find("#stop-on").textContent = "show";
    box.focus(); // so that it is read
  }
}
