// Acts on a report as a person would and writes down what happens; the test compares.
addEventListener("load", async () => {
  const one = (query) => document.querySelector(query), all = (query) => [...document.querySelectorAll(query)];
  const wait = (ms) => new Promise((done) => setTimeout(done, ms));
  const click = (element) => element.dispatchEvent(new MouseEvent("click", { bubbles: true }));
  try {
    seen.sections = all("section").map((s) => [s.id, s.getBoundingClientRect().height]);
    seen.drawings = all("svg").map((s) => [s.id, s.getBoundingClientRect().width, s.getBoundingClientRect().height]);
    seen.wide = document.documentElement.scrollWidth - innerWidth;
    seen.study = all("#study-table tbody tr").length;

    const figure = one("#timeline-figure"), box = figure.getBoundingClientRect();
    const place = { clientX: box.left + box.width / 2, clientY: box.top + 12, bubbles: true, cancelable: true, pointerId: 1 };
    const moving = () => one("#timeline-moving").getAttribute("transform").match(/[-\d.e]+/g).map(Number);
    seen.before = moving();
    figure.dispatchEvent(new WheelEvent("wheel", { ...place, deltaY: -600 }));
    seen.zoomed = moving();
    seen.numbers = all(".micro").map((t) => t.textContent);
    figure.dispatchEvent(new PointerEvent("pointermove", place));
    seen.says = one("#timeline-says").textContent;
    figure.dispatchEvent(new PointerEvent("pointerdown", place));
    figure.dispatchEvent(new PointerEvent("pointermove", { ...place, clientX: place.clientX - 80 }));
    figure.dispatchEvent(new PointerEvent("pointerup", place));
    seen.dragged = moving();
    figure.dispatchEvent(new KeyboardEvent("keydown", { key: "+", bubbles: true }));
    seen.keyed = moving();
    figure.dispatchEvent(new MouseEvent("dblclick", place));
    seen.whole = moving();

    const column = (table, index) => all(`#${table} tbody tr`).map((row) => row.cells[index].textContent.trim());
    const heads = all("#operator-table th button");
    seen.heads = heads.map((h) => h.textContent);
    seen.values = all("#operator-table tbody tr").map((row) => +row.cells[4].dataset.v);
    click(heads[4]); seen.down = all("#operator-table tbody tr").map((row) => +row.cells[4].dataset.v);
    click(heads[4]); seen.up = all("#operator-table tbody tr").map((row) => +row.cells[4].dataset.v);
    click(heads[1]); seen.names = column("operator-table", 1);
    seen.sorted = one("#operator-table th[aria-sort]").textContent;
    const search = one("#search");
    search.value = "attn"; search.dispatchEvent(new Event("input"));
    seen.found = all("#operator-table tbody tr").filter((row) => !row.hidden).map((row) => row.textContent);
    search.value = ""; search.dispatchEvent(new Event("input"));
    seen.all = all("#operator-table tbody tr").filter((row) => !row.hidden).length;

    const tabs = all('[role="tab"]');
    seen.tabs = [];
    for (const tab of tabs) {
      click(tab);
      seen.tabs.push([tab.textContent, all('[role="tabpanel"]').filter((p) => !p.hidden).map((p) => p.textContent.trim())]);
    }
    tabs[0].dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight", bubbles: true }));
    seen.arrow = one('[role="tab"][aria-selected="true"]').textContent;

    let copied = "";
    document.addEventListener("copy", () => { copied = String(getSelection()) || document.activeElement.value || ""; });
    const write = navigator.clipboard?.writeText;
    if (write) navigator.clipboard.writeText = (text) => { copied = text; return Promise.resolve(); };
    click(all(".copy")[0]);
    await wait(50);
    seen.copied = copied;
    seen.copyLabel = all(".copy")[0].textContent;

    let blob = null, name = null;
    const make = URL.createObjectURL;
    URL.createObjectURL = (given) => { blob = given; return make.call(URL, given); };
    HTMLAnchorElement.prototype.click = function () { name = this.download; };
    click(one("#download"));
    seen.download = [name, (await blob.text()) === one("#plan").textContent];

    const background = () => getComputedStyle(document.body).backgroundColor;
    seen.colors = [background()];
    click(one("#theme")); seen.colors.push(background());
    click(one("#theme")); seen.colors.push(background());

    const mesh = one("#mesh svg"), chips = one(".chips"), rect = mesh.getBoundingClientRect();
    const [x, y] = [...chips.getAttribute("d").matchAll(/M([\d.]+) ([\d.]+)/g)].at(-1).slice(1).map(Number);
    const scale = rect.width / mesh.viewBox.baseVal.width;
    mesh.dispatchEvent(new PointerEvent("pointermove", { clientX: rect.left + (x + 1) * scale, clientY: rect.top + (y + 1) * scale }));
    seen.chip = Number(one("#mesh").dataset.chip);
    seen.resources = performance.getEntriesByType("resource").map((entry) => entry.name);
  } catch (error) { seen.errors.push(String(error.stack)); }
  const out = document.createElement("pre");
  out.id = "seen";
  out.textContent = JSON.stringify(seen);
  document.body.append(out);
});
