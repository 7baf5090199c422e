"use strict";
// The page tells everything without this: here are sorting and copying.

const compare = (first, second) => {
  const [a, b] = [Number(first), Number(second)];
  return Number.isNaN(a) || Number.isNaN(b) ? first.localeCompare(second) : a - b;
};

const sort = (table, column, isUp) => {
  const body = table.tBodies[0];
  const rows = Array.from(body.rows, (row) => [row.cells[column].dataset.key, row]);
  // What was not measured stays at the end, whichever way.
  rows.sort(([a], [b]) => (a === "") - (b === "") || (isUp ? compare(a, b) : compare(b, a)));
  body.append(...rows.map(([, row]) => row));
};

for (const table of document.querySelectorAll("table.sortable")) {
  const headings = Array.from(table.tHead.rows[0].cells);
  headings.forEach((heading, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => {
      const isUp = heading.getAttribute("aria-sort") !== "ascending";
      headings.forEach((other) => other.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", isUp ? "ascending" : "descending");
      sort(table, column, isUp);
    });
  });
}

const copy = async (element) => {
  if (navigator.clipboard) {
    return navigator.clipboard.writeText(element.textContent);
  }
  // Older browsers, and pages that are not trusted with the clipboard.
  getSelection().selectAllChildren(element);
  if (!document.execCommand("copy")) {
    throw new Error("the selection stays, to be copied by hand");
  }
};

for (const button of document.querySelectorAll("button.copy")) {
  button.hidden = false;
  button.addEventListener("click", async () => {
    const says = (text) => { button.textContent = text; };
    try {
      await copy(button.parentElement.querySelector("code"));
      says("Copied");
    } catch {
      getSelection().selectAllChildren(button.parentElement.querySelector("code"));
      says("Selected");
    }
    setTimeout(says, 2000, "Copy");
  });
}

// Paper has no folds.
addEventListener("beforeprint", () => document.querySelectorAll("section > details").forEach((details) => { details.open = true; }));
