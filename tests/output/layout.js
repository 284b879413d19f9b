// Measures the layout of a page in a frame of a given width. The result is one JSON object in #result.

const FRAME = document.getElementById("page");

/** Part of a box that its scrolling or clipping ancestors leave visible. */
function visible(box, element, view) {
  let { left, right, top, bottom } = box;
  for (let it = element; it && it !== view.document.body; it = it.parentElement) {
    const style = view.getComputedStyle(it);
    if (style.overflowX === "visible" && style.overflowY === "visible") continue;
    const clip = it.getBoundingClientRect();
    left = Math.max(left, clip.left);
    right = Math.min(right, clip.right);
    top = Math.max(top, clip.top);
    bottom = Math.min(bottom, clip.bottom);
  }
  return { left, right, top, bottom };
}

/** Visible boxes of the lines of text of a page. */
function textBoxes(view) {
  const { document } = view;
  const texts = document.createTreeWalker(document.getElementById("main"), NodeFilter.SHOW_TEXT);
  const boxes = [];
  while (texts.nextNode()) {
    const { currentNode: text } = texts;
    const element = text.parentElement;
    const isShown = text.textContent.trim() !== "" && !element.closest("title, .hidden")
      && element.checkVisibility({ visibilityProperty: true, contentVisibilityAuto: true });
    if (!isShown) continue;
    const range = document.createRange();
    range.selectNodeContents(text);
    for (const line of range.getClientRects()) {
      const box = visible(line, element, view);
      if (box.right - box.left > 1 && box.bottom - box.top > 1) boxes.push({ ...box, text: text.textContent.trim() });
    }
  }
  return boxes.sort((a, b) => a.top - b.top);
}

/** Pairs of texts, of which one covers the other. */
function overlaps(boxes) {
  const found = [];
  boxes.forEach((a, at) => {
    for (let next = at + 1; next < boxes.length && boxes[next].top < a.bottom; next += 1) {
      const b = boxes[next];
      const width = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const height = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (width > 2 && height > 5) found.push(`${a.text} / ${b.text}`);
    }
  });
  return found;
}

function isShort(place) {
  return place.textContent.split("/").at(-1).length < 24;
}

function measure(view) {
  const { document, innerWidth } = view;
  const all = [...document.querySelectorAll("body *")];
  const name = (it) => `${it.tagName}.${it.getAttribute("class") ?? ""}`;
  const nodes = [...document.querySelectorAll(".node")];
  const outside = (node) => {
    const frame = node.querySelector("rect").getBoundingClientRect();
    return [...node.querySelectorAll("text")].filter((it) => it.getBoundingClientRect().right > frame.right);
  };
  // Letters of the timeline in pixels of the screen.
  const lanes = document.querySelector(".lanes svg");
  return {
    width: innerWidth,
    document: document.documentElement.scrollWidth,
    overlaps: overlaps(textBoxes(view)),
    scrolls: all.filter((it) => it.scrollWidth > it.clientWidth + 1 && /auto|scroll/.test(view.getComputedStyle(it).overflowX)).map(name),
    broken: all.filter((it) => it.matches(".sides .place code") && isShort(it) && it.getClientRects().length > 1).map((it) => it.textContent),
    outside: nodes.flatMap(outside).map((it) => it.textContent),
    graph: document.querySelector(".graph")?.scrollWidth ?? 0,
    scale: lanes ? lanes.clientWidth / lanes.viewBox.baseVal.width : 1,
  };
}

FRAME.addEventListener("load", () => setTimeout(() => {
  document.getElementById("result").textContent = JSON.stringify(measure(FRAME.contentWindow));
}, 500));
