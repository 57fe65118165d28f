// A field that filters the rows of all tables of a page, where they have many rows.
const MANY = 25;

document.addEventListener("DOMContentLoaded", () => {
  const article = document.querySelector(".md-content article");
  const tables = [...article.querySelectorAll("table:not([class])")];
  const rows = tables.flatMap((table) => [...table.tBodies].flatMap(labelled));
  if (rows.length < MANY) return;

  const field = document.createElement("input");
  Object.assign(field, { type: "search", className: "table-filter", placeholder: "Filter the rows of this page" });
  field.setAttribute("aria-label", field.placeholder);
  const longest = tables.reduce((one, other) => (other.rows.length > one.rows.length ? other : one));
  const before = tables.length > 5 ? article.querySelector("h2") : (longest.closest(".md-typeset__scrollwrap") ?? longest);
  before.before(field);
  const sections = [...article.querySelectorAll("h2, h3")].map((heading) => [heading, parts(heading)]);

  field.addEventListener("input", () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const [row, text] of rows) row.hidden = !words.every((word) => text.includes(word));
    // While rows are filtered, only sections with a table that has some of them are shown.
    for (const [heading, elements] of sections) {
      const shown = !words.length || elements.some((element) => element.querySelector("tbody tr:not([hidden])"));
      for (const element of [heading, ...elements]) element.hidden = !shown;
    }
    for (const table of tables) {
      const empty = !table.querySelector("tbody tr:not([hidden])");
      (table.closest(".md-typeset__scrollwrap") ?? table).hidden = empty;
    }
  });
});

/** Rows with their text in lower case; an empty first cell denotes that of the row above. */
function labelled(body) {
  let first = "";
  return [...body.rows].map((row) => {
    first = row.cells[0].textContent.trim() || first;
    return [row, `${first} ${row.textContent}`.toLowerCase()];
  });
}

/** The elements below a heading, up to the next heading of its level or above. */
function parts(heading) {
  const found = [];
  for (let next = heading.nextElementSibling; next && !(next.tagName <= heading.tagName && /^H\d$/.test(next.tagName)); ) {
    found.push(next);
    next = next.nextElementSibling;
  }
  return found;
}
