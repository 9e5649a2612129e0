/* Parses and attention, drawn: shared by the page of `fairseq-syntax show` and the playground of `fairseq-syntax serve`.

   A sentence is what use/pages/page.py makes of an Exhibit: words, tags, counts (pieces of each word), pieces, trees by
   name (heads from 0, a root its own; labels; p; perhaps marks, "changed" for an arc that a person chose), arcs [dependent, head, label, p], outputs by system.
   The page has an element #tip. */
"use strict";
const SVG = "http://www.w3.org/2000/svg";
const KINDS = {encoder: "encoder: source to source", cross: "decoder: target to source", decoder: "decoder: target to target"};
const $ = id => document.getElementById(id);
const percent = p => p === null || p === undefined ? "" : p.toFixed(2).replace(/^0/, "");
const rightToLeft = language => __RIGHT_TO_LEFT__.includes(language);
const unspaced = language => __WITHOUT_SPACES__.includes(language);
/* the words of a text, or its letters where words have no spaces between them */
const unitsOf = (text, language) => unspaced(language) ? [...text] : text.split(/\s+/).filter(Boolean);

function node(parent, name, attributes = {}, text) {
  const made = name === "svg" || parent instanceof SVGElement ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  parent.append(made);
  return made;
}
const pen = document.createElement("canvas").getContext("2d");
function textWidth(text, size, language) {
  /* the style sheet chooses fonts by language: an element tells which */
  const probe = $("tip"), before = probe.lang;
  probe.lang = language || "";
  pen.font = `${size}px ${getComputedStyle(probe).fontFamily}`;
  probe.lang = before;
  return pen.measureText(text).width;
}
function tip(event, text) {
  const box = $("tip");
  box.hidden = !text;
  if (!text) return;
  box.textContent = text;
  box.style.left = Math.max(4, Math.min(event.clientX + 14, innerWidth - box.offsetWidth - 8)) + "px";
  box.style.top = event.clientY + 16 + "px";
}

/* ---- arcs, over words whose middles are at x ---- */
function levels(arcs) {
  /* an arc is above all arcs that it covers */
  const order = arcs.map((_, i) => i).sort((a, b) => Math.abs(arcs[a].i - arcs[a].h) - Math.abs(arcs[b].i - arcs[b].h));
  const heights = new Array(arcs.length).fill(1);
  for (const k of order) {
    const [from, to] = [Math.min(arcs[k].i, arcs[k].h), Math.max(arcs[k].i, arcs[k].h)];
    for (const other of order) {
      if (other === k) break;
      const [a, b] = [Math.min(arcs[other].i, arcs[other].h), Math.max(arcs[other].i, arcs[other].h)];
      if (a < to && b > from) heights[k] = Math.max(heights[k], heights[other] + 1);
    }
  }
  return heights;
}
/* the arcs of a tree, and those that the parser holds for possible with a probability of `least` or more */
function arcsOf(sentence, treeName, least) {
  const tree = sentence.trees[treeName], arcs = [];
  if (!tree) return arcs;
  tree.heads.forEach((h, i) => {
    if (h !== i) arcs.push({i, h, label: tree.labels[i], p: tree.p[i], sure: true, mark: tree.marks && tree.marks[i]});
  });
  if (treeName === "parser") {
    /* the heads of the tree stand in it already; the others are put together over their labels */
    const others = new Map();
    for (const [i, h, label, p] of sentence.arcs) {
      if (h === i || tree.heads[i] === h) continue;
      const key = i + "," + h, before = others.get(key);
      if (!before) others.set(key, {i, h, label, p, best: p, sure: false});
      else { before.p += p; if (p > before.best) { before.best = p; before.label = label; } }
    }
    for (const arc of others.values()) if (arc.p >= least) arcs.push(arc);
  }
  return arcs;
}
const rootsOf = tree => tree.heads.flatMap((h, i) => h === i ? [{i, p: tree.p[i], mark: tree.marks && tree.marks[i]}] : []);
/* a probability says something where it is not 1 */
const arcText = arc => arc.p !== null && arc.p < .995 ? (arc.label + " " + percent(arc.p)).trim() : arc.label;
function arcPath(from, to, base, y) {
  const bend = Math.min(Math.abs(to - from) / 2, 9) * Math.sign(to - from);
  return `M${from},${base} L${from},${y + 8} Q${from},${y} ${from + bend},${y} L${to - bend},${y} Q${to},${y} ${to},${y + 8} L${to},${base - 2}`;
}
function drawArcs(svg, arcs, roots, x, base, step, font) {
  const level = levels(arcs), top = Math.max(0, ...level);
  /* the tree's own arcs last, over the others */
  arcs.map((arc, k) => [arc, k]).sort((a, b) => a[0].sure - b[0].sure).forEach(([arc, k]) => {
    /* beside the middle of the head, where its own arc arrives */
    const to = x[arc.i], from = x[arc.h] + Math.sign(x[arc.i] - x[arc.h]) * 4, y = base - level[k] * step;
    const group = node(svg, "g", {class: "one", "data-i": arc.i, "data-h": arc.h});
    const kind = arc.mark || (arc.sure ? "sure" : "maybe");
    node(group, "path", {class: "arc " + kind, "marker-end": `url(#tip-${kind})`, d: arcPath(from, to, base, y)});
    if (font) node(group, "text", {class: "arclabel", x: (from + to) / 2, y: y - 3, "text-anchor": "middle", "font-size": font}, arcText(arc));
  });
  for (const root of roots) {
    const group = node(svg, "g", {class: "one", "data-i": root.i, "data-h": root.i});
    const y = base - (top + .6) * step;
    const kind = root.mark || "sure";
    node(group, "path", {class: "arc " + kind, "marker-end": `url(#tip-${kind})`, d: `M${x[root.i]},${y} L${x[root.i]},${base - 2}`});
    if (font) node(group, "text", {class: "arclabel", x: x[root.i], y: y - 3, "text-anchor": "middle", "font-size": font},
      arcText({label: "root", p: root.p}));
  }
}
/* in every drawing, so that it can be saved alone; of equal ids on a page any will do, as they are
   alike */
function markers(svg) {
  const defs = node(svg, "defs");
  for (const name of ["sure", "maybe", "changed"]) {
    const marker = node(defs, "marker", {id: "tip-" + name, markerWidth: 7, markerHeight: 7, refX: 6, refY: 3.5, orient: "auto", markerUnits: "userSpaceOnUse"});
    node(marker, "path", {d: "M0,0 L7,3.5 L0,7 z"});
  }
}
/* A tree over its words, in a box of its own. Returns its svg, the middles x of the words, the
   height base at which they begin, and how wide each is.
   `least`: of the parser's other arcs to be drawn; 2: none is so probable. */
function drawTree(box, sentence, treeName, {least = 2, language = "", size = 15, step = 21, small = 11, gap = 18} = {}) {
  const tree = sentence.trees[treeName], arcs = arcsOf(sentence, treeName, least);
  /* as wide as the word, its tag, and the labels of arcs to its neighbour */
  const wide = sentence.words.map((w, i) => Math.max(textWidth(w, size, language), textWidth(sentence.tags[i] || "", small)) + gap);
  for (const arc of arcs) if (Math.abs(arc.i - arc.h) === 1) {
    const need = textWidth(arcText(arc), small) + 10, have = (wide[arc.i] + wide[arc.h]) / 2;
    if (need > have) { wide[arc.i] += (need - have); wide[arc.h] += (need - have); }
  }
  let at = 6;
  let x = wide.map(w => { at += w; return at - w / 2; });
  const width = at + 6;
  if (rightToLeft(language)) x = x.map(value => width - value);
  const base = (Math.max(0, ...levels(arcs)) + 1.6) * step + 14;
  const svg = node(box, "svg", {width, height: base + 44, role: "img", "aria-label": "dependency tree"});
  markers(svg);
  drawArcs(svg, arcs, rootsOf(tree), x, base, step, small);
  sentence.words.forEach((word, i) => {
    node(svg, "text", {x: x[i], y: base + 18, "text-anchor": "middle", "font-size": size, lang: language, class: "word", "data-i": i}, word);
    node(svg, "text", {x: x[i], y: base + 34, "text-anchor": "middle", "font-size": small, class: "tag"}, sentence.tags[i] || "");
  });
  svg.querySelectorAll(".word").forEach(word => {
    const i = Number(word.dataset.i);
    word.addEventListener("mousemove", event => { onlyArcsOf(svg, i); tip(event, headsOf(sentence, treeName, i)); });
    word.addEventListener("mouseleave", event => { onlyArcsOf(svg); tip(event); });
  });
  return {svg, x, base, wide};
}
function onlyArcsOf(svg, i) {
  svg.querySelectorAll(".one").forEach(one => one.classList.toggle("dim", i !== undefined && Number(one.dataset.i) !== i));
}
/* a word's possible heads in words */
function headsOf(sentence, treeName, i) {
  const tree = sentence.trees[treeName];
  const mine = sentence.arcs.filter(a => a[0] === i).sort((a, b) => b[3] - a[3]).slice(0, 8);
  const own = tree.heads[i] === i ? "root" : sentence.words[tree.heads[i]] + " " + tree.labels[i];
  return mine.length && treeName === "parser"
    ? mine.map(([, h, label, p]) => `${h === i ? "root" : sentence.words[h]} ${label} ${p.toFixed(3)}`).join("; ") : own;
}

/* ---- attention ---- */
function weightsOf(layer) {
  if (!layer.values) {
    const raw = atob(layer.data);
    layer.values = Uint8Array.from(raw, c => c.charCodeAt(0));
  }
  return layer.values;
}
const systemsOf = sentence => Object.keys(sentence.outputs).filter(name => Object.keys(sentence.outputs[name].attention).length);
/* Panels to choose a system, a kind, a layer and a head in, with the heat map under the tree.
   options: languages {src, tgt}; tree, its name; width, of the window where it is narrow; scale(), "map" or "one"; changed(panel, key, value), after which the
   caller draws again. */
function drawPanels(box, sentence, panels, options) {
  const place = focusIn(box);
  box.replaceChildren();
  for (const panel of panels) {
    const all = settle(panel, sentence), layer = all[panel.kind][panel.layer];
    const frame = node(box, "div", {class: "panel"}), choice = node(frame, "div", {class: "choice"});
    const set = (key, read = Number) => value => options.changed(panel, key, read(value));
    if (systemsOf(sentence).length > 1 || !options.hideSystem)
      choose(choice, "system", systemsOf(sentence).map(s => [s, s]), panel.system, set("system", String));
    choose(choice, "kind", Object.keys(all).map(k => [k, KINDS[k]]), panel.kind, set("kind", String));
    choose(choice, "layer", all[panel.kind].map((_, i) => [i, i]), panel.layer, set("layer"));
    choose(choice, "head", Array.from({length: layer.heads}, (_, i) => [i, i]), panel.head, set("head"));
    const minis = node(frame, "div", {class: "minis"});
    for (let head = 0; head < layer.heads; head++) drawMini(minis, panel, layer, head, options);
    drawHeat(node(frame, "div", {class: "scroll"}), sentence, panel, layer, options);
  }
  const again = place && box.children[place.panel] && controlsOf(box.children[place.panel])[place.control];
  if (again) again.focus({preventScroll: true});
}
/* where the focus is among the panels' controls, all of which are made anew in every drawing */
const controlsOf = frame => [...frame.querySelectorAll("select, canvas")];
function focusIn(box) {
  const panel = [...box.children].findIndex(frame => frame.contains(document.activeElement));
  return panel < 0 ? null : {panel, control: controlsOf(box.children[panel]).indexOf(document.activeElement)};
}
function settle(panel, sentence) {
  const systems = systemsOf(sentence);
  if (!systems.includes(panel.system)) panel.system = systems[0];
  const all = sentence.outputs[panel.system].attention;
  if (!all[panel.kind]) panel.kind = Object.keys(all)[0];
  panel.layer = Math.min(panel.layer, all[panel.kind].length - 1);
  panel.head = Math.min(panel.head, all[panel.kind][panel.layer].heads - 1);
  return all;
}
function choose(parent, title, options, value, change) {
  const label = node(parent, "label", {}, title + " ");
  const select = node(label, "select", {class: title});
  for (const [key, text] of options) node(select, "option", {value: key}, text);
  select.value = value;
  select.addEventListener("change", () => change(select.value));
}
function largest(layer, head, scale) {
  if (scale === "one") return 1;
  const size = layer.rows * layer.columns;
  /* a quarter at least, lest a head that attends to all alike look like one that attends to all strongly */
  return weightsOf(layer).subarray(head * size, (head + 1) * size).reduce((most, weight) => Math.max(most, weight), 64) / 255;
}
function drawMini(parent, panel, layer, head, options) {
  const figure = node(parent, "figure");
  const canvas = node(figure, "canvas", {width: layer.columns, height: layer.rows, tabindex: 0, role: "button", "aria-label": "head " + head,
    "aria-pressed": head === panel.head, class: head === panel.head ? "on" : ""});
  node(figure, "figcaption", {}, "head " + head);
  const pixels = canvas.getContext("2d"), image = pixels.createImageData(layer.columns, layer.rows), values = weightsOf(layer);
  const size = layer.rows * layer.columns, top = largest(layer, head, options.scale());
  const flip = rightToLeft(options.languages.src) && panel.kind !== "decoder";
  /* a canvas knows no variables of the style sheet, whose colours are written with six digits */
  const colour = getComputedStyle(document.documentElement).getPropertyValue("--blue").trim();
  const blue = [1, 3, 5].map(at => parseInt(colour.slice(at, at + 2), 16));
  for (let k = 0; k < size; k++) {
    const row = Math.floor(k / layer.columns), column = k % layer.columns;
    const target = row * layer.columns + (flip ? layer.columns - 1 - column : column);
    const w = values[head * size + k] / 255 / top;
    image.data.set([...blue, 255 * w], 4 * target);
  }
  pixels.putImageData(image, 0, 0);
  const pick = () => options.changed(panel, "head", head);
  canvas.addEventListener("click", pick);
  canvas.addEventListener("keydown", event => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); pick(); } });
}
function drawHeat(parent, sentence, panel, layer, options) {
  const {src, tgt} = options.languages;
  const output = sentence.outputs[panel.system];
  /* what the decoder reads: </s>, which ends the pieces, and those before each step */
  const read = [...output.pieces.slice(-1), ...output.pieces.slice(0, -1)];
  const [rows, columns] = {encoder: [sentence.pieces, sentence.pieces], cross: [output.pieces, sentence.pieces], decoder: [read, read]}[panel.kind];
  const columnLang = panel.kind === "decoder" ? tgt : src, rowLang = panel.kind === "encoder" ? src : tgt;
  const flip = rightToLeft(src) && panel.kind !== "decoder";
  /* at their largest: the size of the letters depends on the cells, for which these leave room */
  const names = Math.max(...rows.map(r => textWidth(r, 13, rowLang))) + 12, room = Math.min(560, (options.width || Infinity) - names - 24);
  const cell = Math.max(11, Math.min(24, Math.floor(Math.min(room / columns.length, 560 / rows.length)))), size = Math.min(13, cell);
  const left = Math.max(...rows.map(r => textWidth(r, size, rowLang))) + 12;
  const tall = Math.max(...columns.map(c => textWidth(c, size, columnLang))) + 12;
  const X = j => left + (flip ? columns.length - 1 - j : j) * cell;
  const tree = panel.kind !== "decoder" ? sentence.trees[options.tree] : undefined, step = Math.max(11, cell * .8);
  const arcs = tree ? arcsOf(sentence, options.tree, 2) : [];
  const top = tall + (tree ? (Math.max(0, ...levels(arcs)) + 1.7) * step : 0);
  const svg = node(parent, "svg", {width: left + columns.length * cell + 24, height: top + rows.length * cell + 8, role: "img",
    "aria-label": `attention of ${panel.system}, ${panel.kind}, layer ${panel.layer}, head ${panel.head}`});
  markers(svg);
  if (tree) {
    /* a word's arc begins over the middle of its pieces */
    let piece = 0;
    const middles = sentence.counts.map(n => { const m = (X(piece) + X(piece + n - 1) + cell) / 2; piece += n; return m; });
    drawArcs(svg, arcs, rootsOf(tree), middles, top - tall + 2, step, cell >= 16 ? 9.5 : 0);
  }
  columns.forEach((text, j) => {
    const x = X(j) + cell / 2 + size * .35, y = top - 5;
    node(svg, "text", {x, y, "font-size": size, transform: `rotate(-90 ${x} ${y})`, direction: "ltr", lang: columnLang, "data-column": j}, text);
  });
  rows.forEach((text, i) => node(svg, "text", {x: left - 6, y: top + i * cell + cell / 2 + size * .35, "font-size": size, "text-anchor": "end",
    lang: rowLang, direction: "ltr", "data-row": i}, text));
  const most = largest(layer, panel.head, options.scale());
  const values = weightsOf(layer), at = panel.head * layer.rows * layer.columns;
  const value = (i, j) => values[at + i * layer.columns + j] / 255;
  const cells = node(svg, "g", {class: "cells"});
  /* the ground, which the pointer meets where no cell is drawn */
  node(cells, "rect", {x: left, y: top, width: columns.length * cell, height: rows.length * cell, class: "empty"});
  for (let i = 0; i < rows.length; i++) for (let j = 0; j < columns.length; j++) {
    const w = value(i, j);
    /* weights are multiples of 1/255: all but 0 */
    if (w > .003) node(cells, "rect", {x: X(j), y: top + i * cell, width: cell - .5, height: cell - .5, "fill-opacity": w / most});
  }
  const legend = node(parent, "div", {class: "note legend"});
  node(legend, "span", {}, "0");
  node(legend, "span", {class: "ramp"});
  node(legend, "span", {}, most.toFixed(2));
  cells.addEventListener("mousemove", event => {
    const box = svg.getBoundingClientRect();
    let j = Math.floor((event.clientX - box.left - left) / cell), i = Math.floor((event.clientY - box.top - top) / cell);
    if (flip) j = columns.length - 1 - j;
    tip(event, rows[i] !== undefined && columns[j] !== undefined ? `${rows[i]} → ${columns[j]}: ${value(i, j).toFixed(3)}` : "");
  });
  cells.addEventListener("mouseleave", event => tip(event));
}
