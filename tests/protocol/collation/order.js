// Records how Node's own ICU orders every code point, and some random strings (see generate.py).
"use strict";
const fs = require("fs");

const variant = new Intl.Collator("en-US");
const accent = new Intl.Collator("en-US", { sensitivity: "accent" });
const base = new Intl.Collator("en-US", { sensitivity: "base" });

// The level at which two strings differ: 1 letters, 2 accents, 3 the rest, 0 not at all.
function level(x, y) {
  return base.compare(x, y) ? 1 : accent.compare(x, y) ? 2 : variant.compare(x, y) ? 3 : 0;
}

function codePoints() {
  const text = Array.from({ length: 0x110000 }, (_, i) =>
    i >= 0xd800 && i <= 0xdfff ? String.fromCharCode(i) : String.fromCodePoint(i),
  );
  const sorted = text.map((_, i) => i).sort((x, y) => variant.compare(text[x], text[y]) || x - y);
  const assigned = /\P{Cn}/u;
  return sorted.map((c, i) => [
    c,
    i ? level(text[sorted[i - 1]], text[c]) : 0,
    assigned.test(text[c]) ? 1 : 0,
    level(text[c], ""),
  ]);
}

// Strings in Node's order; those that compare equal stand in one inner array.
function strings(list) {
  const groups = [];
  for (const text of list.sort(variant.compare)) {
    const last = groups.at(-1);
    if (last && variant.compare(last[0], text) === 0) last.push(text);
    else groups.push([text]);
  }
  return groups;
}

const [, , what, from, to] = process.argv;
const result = what === "code-points" ? codePoints() : strings(JSON.parse(fs.readFileSync(from, "utf8")));
fs.writeFileSync(what === "code-points" ? from : to, JSON.stringify(result));
