// Click a table's heading to sort by it: figures by their value, texts by their letters.
document.querySelectorAll("table.sortable th").forEach((head) => {
  head.tabIndex = 0;
  const sort = () => {
    const table = head.closest("table"), place = head.cellIndex;
    const down = head.getAttribute("aria-sort") !== "descending";
    table.querySelectorAll("th").forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const key = (row) => row.cells[place].dataset.value ?? row.cells[place].textContent.trim();
    const compare = (a, b) => {
      const [x, y] = [key(a), key(b)], [m, n] = [parseFloat(x), parseFloat(y)];
      if (Number.isNaN(m) !== Number.isNaN(n)) return Number.isNaN(m) ? 1 : -1;
      const order = Number.isNaN(m) ? x.localeCompare(y) : m - n;
      return down ? -order : order;
    };
    const body = table.tBodies[0];
    [...body.rows].sort(compare).forEach((row) => body.append(row));
  };
  head.addEventListener("click", sort);
  head.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(); });
});
