// The conversation on the page. Caller's words grow as they are confirmed; the agent's words light
// up as they are heard, and what was cut off stays dim and struck through.

import { waterfall } from "./waterfall.js";
import { t } from "./words.js";

const make = (tag, className) => {
  const element = document.createElement(tag);
  if (className) element.className = className;
  return element;
};

export class Transcript {
  constructor(list, announce) {
    this.list = list;
    this.announce = announce;
    this.turns = new Map();
    this.replies = new Map();
  }

  // A new call begins below what was said before: a reconnect does not wipe the page.
  newCall() {
    this.turns.clear();
    this.replies.clear();
  }

  add(kind, who) {
    const follow = this.atEnd();
    const item = make("li", kind);
    const name = make("span", "who");
    name.textContent = who;
    const text = make("p");
    item.append(name, text);
    this.list.append(item);
    this.follow(follow);
    return { item, text };
  }

  atEnd() {
    const { scrollHeight, scrollTop, clientHeight } = document.scrollingElement;
    const box = this.list;
    return scrollHeight - scrollTop - clientHeight < 120
      && box.scrollHeight - box.scrollTop - box.clientHeight < 120;
  }

  follow(wanted) {
    if (!wanted) return;
    this.list.scrollTop = this.list.scrollHeight;
    this.list.lastElementChild?.scrollIntoView({ block: "nearest" });
  }

  partial(turn, confirmed, tail) {
    const follow = this.atEnd();
    if (!this.turns.has(turn)) {
      const entry = this.add("caller", t("you"));
      entry.sure = make("span");
      entry.guess = make("span", "guess");
      entry.text.append(entry.sure, entry.guess);
      entry.item.classList.add("open");
      this.turns.set(turn, entry);
    }
    const entry = this.turns.get(turn);
    const glue = confirmed && tail && !/\s$/.test(confirmed) && !/^\s/.test(tail) ? " " : "";
    entry.sure.textContent = confirmed + glue;
    entry.guess.textContent = tail;
    this.follow(follow);
  }

  final(turn, text) {
    if (!text) {
      this.turns.get(turn)?.item.remove();
      this.turns.delete(turn);
      return;
    }
    this.partial(turn, text, "");
    this.turns.get(turn).item.classList.remove("open");
    this.announce(`${t("you")}: ${text}`);
  }

  // What the caller typed.
  written(text) {
    this.add("caller", t("you")).text.textContent = text;
  }

  reopened(turn) {
    this.turns.get(turn)?.item.classList.add("open");
  }

  reply(n) {
    const entry = { written: "", heard: 0 };
    this.replies.set(n, entry);
  }

  text(n, delta) {
    const entry = this.replies.get(n);
    if (!entry) return;
    const follow = this.atEnd();
    if (!entry.item) {
      Object.assign(entry, this.add("agent", t("agent")));
      entry.lit = make("span", "heard");
      entry.rest = make("span", "rest");
      entry.text.append(entry.lit, entry.rest);
    }
    entry.written += delta;
    this.paint(entry);
    this.follow(follow);
  }

  heard(n, chars) {
    const entry = this.replies.get(n);
    if (!entry?.item) return;
    entry.heard = chars;
    this.paint(entry);
  }

  paint(entry) {
    const space = entry.written.slice(entry.heard).match(/^\s*/)[0].length;
    entry.lit.textContent = entry.written.slice(0, entry.heard + space);
    entry.rest.textContent = entry.written.slice(entry.heard + space);
  }

  done(n, status, heard) {
    const entry = this.replies.get(n);
    if (!entry?.item) return;
    if (status === "completed") {
      entry.heard = entry.written.length;
    } else {
      entry.heard = Math.min(heard.length, entry.written.length);
      entry.item.classList.add("cut");
      entry.rest.title = t("not_heard");
      if (!entry.heard) entry.item.classList.add("unheard");
    }
    this.paint(entry);
    this.announce(`${t("agent")}: ${entry.written.slice(0, entry.heard)}`);
  }

  trace(data) {
    const entry = this.replies.get(data.reply);
    const chart = entry?.item && waterfall(data);
    if (!chart) return;
    const follow = this.atEnd();
    entry.item.append(chart);
    this.follow(follow);
  }
}
