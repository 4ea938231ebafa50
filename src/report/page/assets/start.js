// Draws every chart, and again where its width, the color scheme or the medium changes.
const plots = new Map();
function draw(figure) {
  plots.get(figure)?.destroy();
  plots.set(figure, build(figure));
}
document.documentElement.classList.add("scripted");
const figures = [...document.querySelectorAll("figure[data-kind]")];
for (const figure of figures) {
  const plot = figure.querySelector(".plot");
  draw(figure);
  let width = plot.clientWidth;
  new ResizeObserver(() => {
    if (plot.clientWidth === width || plot.clientWidth === 0 || document.documentElement.classList.contains("paper")) return;
    width = plot.clientWidth;
    draw(figure);
  }).observe(plot);
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => figures.forEach(draw));
// Paper is white, whatever the screen shows, and narrower.
const paper = (is) => () => {
  document.documentElement.classList.toggle("paper", is);
  figures.forEach(draw);
};
addEventListener("beforeprint", paper(true));
addEventListener("afterprint", paper(false));

function table(figure) {
  const rows = rowNames(figure);
  const columns = parsed(figure, "data");
  const head = [...(rows.length ? [figure.querySelector("thead th").textContent] : []), ...names(figure)];
  const row = (_, at) => [...(rows.length ? [rows[at] ?? ""] : []), ...columns.map((column) => column[at] ?? "")];
  return [head, ...columns[0].map(row)].map((cells) => cells.join("\t")).join("\n") + "\n";
}

// Browsers without a clipboard for this page still copy a selection.
async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = element("textarea", document.body);
    area.value = text;
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}
for (const button of document.querySelectorAll("button.copy")) {
  button.hidden = false;
  button.addEventListener("click", async () => {
    const label = button.textContent;
    const done = await copied(table(button.closest("figure")));
    button.focus();
    button.textContent = done ? "Copied" : "Not copied: the browser refuses";
    setTimeout(() => (button.textContent = label), 2000);
  });
}
document.body.dataset.ready = "";
