"use strict";
(() => {
  const all = (query, root = document) => [...root.querySelectorAll(query)];
  const one = (query, root = document) => root.querySelector(query);

  // Light, dark, or as the system says.
  const root = document.documentElement;
  const keep = (theme) => { try { localStorage.setItem("theme", theme); } catch { /* a file may have no storage */ } };
  const kept = () => { try { return localStorage.getItem("theme"); } catch { return null; } };
  const dark = () => (root.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const show = (theme) => { if (theme) root.dataset.theme = theme; one("#theme").textContent = dark() ? "Light" : "Dark"; };
  show(kept());
  one("#theme").addEventListener("click", () => { const next = dark() ? "light" : "dark"; keep(next); show(next); });

  // The section that is being read.
  const links = new Map(all("nav a").map((a) => [a.getAttribute("href").slice(1), a]));
  if ("IntersectionObserver" in window) {
    const seen = new IntersectionObserver((entries) => {
      for (const entry of entries) if (entry.isIntersecting) {
        links.forEach((a) => a.classList.remove("here"));
        links.get(entry.target.id)?.classList.add("here");
      }
    }, { rootMargin: "-20% 0px -70% 0px" });
    all("section").forEach((section) => seen.observe(section));
  }

  // Tables: a click on a heading sorts, numbers largest first.
  for (const table of all("table.sortable")) {
    const heads = all("th", table);
    heads.forEach((head, column) => one("button", head).addEventListener("click", () => {
      const number = head.classList.contains("n");
      const before = head.getAttribute("aria-sort");
      const descending = before ? before === "ascending" : number;
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", descending ? "descending" : "ascending");
      const key = (row) => { const cell = row.cells[column]; return number ? Number(cell.dataset.v ?? cell.textContent) : cell.textContent; };
      const body = one("tbody", table);
      const rows = [...body.rows].map((row) => [key(row), row]);
      rows.sort(([a], [b]) => (number ? a - b : a.localeCompare(b, "en", { numeric: true })) * (descending ? -1 : 1));
      body.append(...rows.map(([, row]) => row));
    }));
  }
  const search = one("#search");
  const operators = all("#operator-table tbody tr");
  search.addEventListener("input", () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    for (const row of operators) {
      row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
      count += !row.hidden;
    }
    one("#found").textContent = words.length ? `${count} of ${operators.length}` : "";
  });

  // Tabs and copy buttons.
  for (const tabs of all(".tabs")) {
    const list = all('[role="tab"]', tabs);
    const choose = (chosen) => list.forEach((tab) => {
      tab.setAttribute("aria-selected", tab === chosen);
      tab.tabIndex = tab === chosen ? 0 : -1;
      one("#" + tab.getAttribute("aria-controls")).hidden = tab !== chosen;
    });
    list.forEach((tab, index) => {
      tab.addEventListener("click", () => choose(tab));
      tab.addEventListener("keydown", (event) => {
        const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (step) { const next = list[(index + step + list.length) % list.length]; choose(next); next.focus(); }
      });
    });
  }
  const copied = async (text) => {
    try { await navigator.clipboard.writeText(text); return true; } catch { /* not allowed in some files: the old way */ }
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  };
  for (const button of all(".copy")) button.addEventListener("click", async () => {
    const done = await copied(one("pre", button.closest("figure")).textContent);
    button.textContent = done ? "Copied" : "Select and copy";
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
  one("#download").addEventListener("click", (event) => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([one("#plan").textContent], { type: "application/json" }));
    link.download = event.target.dataset.name;
    link.click();
    URL.revokeObjectURL(link.href);
  });

  // Timeline: only what moves is scaled, along the time axis; numbers appear where there is room for them.
  const NS = "http://www.w3.org/2000/svg";
  const figure = one("#timeline-figure");
  const svg = one("svg", figure);
  const moving = one("#timeline-moving");
  const left = 64, width = svg.viewBox.baseVal.width, room = width - left;
  const view = { scale: 1, from: left };
  const operations = all(".op", moving).flatMap((path) => {
    const micro = path.dataset.micro.split(" "), chunk = path.dataset.chunk?.split(" ");
    const stage = path.parentNode.dataset.stage;
    return [...path.getAttribute("d").matchAll(/M([\d.e+-]+) ([\d.e+-]+)h([\d.e+-]+)v([\d.e+-]+)/g)].map((m, i) => (
      { x: +m[1], y: +m[2], w: +m[3], h: +m[4], kind: path.dataset.kind, micro: micro[i], chunk: chunk?.[i], stage }));
  });
  const numbers = document.createElementNS(NS, "g");
  moving.parentNode.append(numbers);
  const labels = all("text", moving).map((label) => ({ label, x: +label.getAttribute("x") }));
  const strip = one(".torn-strip", moving), torn = strip ? [+strip.getAttribute("x"), +strip.getAttribute("x") + +strip.getAttribute("width")] : [0, 0];
  const widths = operations.map((op) => op.w).sort((a, b) => a - b), typical = widths[widths.length >> 1];
  const draw = () => {
    view.scale = Math.min(Math.max(view.scale, 1), 400);
    view.from = Math.min(Math.max(view.from, left), left + room - room / view.scale);
    const shift = left - view.from * view.scale;
    moving.setAttribute("transform", `matrix(${view.scale} 0 0 1 ${shift} 0)`);
    for (const { label, x } of labels) label.setAttribute("transform", `translate(${x} 0) scale(${1 / view.scale} 1) translate(${-x} 0)`);
    figure.classList.toggle("dense", typical * view.scale < 5);
    numbers.replaceChildren();
    const visible = operations.filter((op) => (op.x >= torn[1] || op.x + op.w <= torn[0]) && op.h >= 10 && op.w * view.scale > 13 && op.x + op.w > view.from && op.x < view.from + room / view.scale);
    if (visible.length < 900) for (const op of visible) {
      const label = document.createElementNS(NS, "text");
      label.setAttribute("class", "micro");
      label.setAttribute("text-anchor", "middle");
      label.setAttribute("x", (op.x + op.w / 2) * view.scale + shift);
      label.setAttribute("y", op.y + op.h / 2 + 3.5);
      label.textContent = op.micro;
      if (op.micro.length * 6 < op.w * view.scale) numbers.append(label);
    }
    figure.dataset.scale = view.scale.toFixed(3);
  };
  const at = (event) => {
    const box = svg.getBoundingClientRect();
    return { x: (event.clientX - box.left) * width / box.width, y: (event.clientY - box.top) * width / box.width };
  };
  const zoom = (factor, x) => {
    const place = view.from + (x - left) / view.scale;
    view.scale = Math.min(Math.max(view.scale * factor, 1), 400);
    view.from = place - (x - left) / view.scale;
    draw();
  };
  figure.addEventListener("wheel", (event) => {
    if (event.deltaY > 0 && view.scale <= 1) return;
    event.preventDefault();
    zoom(Math.exp(-event.deltaY * 0.002), Math.max(left, at(event).x));
  }, { passive: false });
  let held = null;
  figure.addEventListener("pointerdown", (event) => { held = { x: at(event).x, from: view.from }; figure.setPointerCapture?.(event.pointerId); });
  figure.addEventListener("pointerup", () => { held = null; });
  figure.addEventListener("pointermove", (event) => {
    const { x, y } = at(event);
    if (held) { view.from = held.from - (x - held.x) / view.scale; draw(); return; }
    const place = view.from + (x - left) / view.scale;
    const op = x < left ? null : operations.find((o) => place >= o.x && place <= o.x + o.w && y >= o.y && y <= o.y + o.h);
    one("#timeline-says").textContent = op ? `stage ${op.stage}, micro-batch ${op.micro}${op.chunk ? `, chunk ${op.chunk}` : ""}, ${op.kind}` : "";
  });
  figure.addEventListener("dblclick", () => { view.scale = 1; view.from = left; draw(); });
  figure.addEventListener("keydown", (event) => {
    const middle = left + room / 2;
    const keys = { "+": () => zoom(1.5, middle), "=": () => zoom(1.5, middle), "-": () => zoom(1 / 1.5, middle),
      ArrowLeft: () => { view.from -= room / view.scale / 10; draw(); }, ArrowRight: () => { view.from += room / view.scale / 10; draw(); } };
    if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
  });
  draw();

  // Mesh: the peers of the chip that is pointed at.
  const mesh = one("#mesh");
  const drawing = one("svg", mesh);
  const chips = [...one(".chips", mesh).getAttribute("d").matchAll(/M([\d.]+) ([\d.]+)/g)].map((m) => [+m[1], +m[2]]);
  const cell = +mesh.dataset.cell, size = +mesh.dataset.size;
  const axes = mesh.dataset.axes.split(" ").filter(Boolean).map((text) => { const [name, ways, stride] = text.split(":"); return { name, ways: +ways, stride: +stride }; });
  const square = (chip) => (chips[chip] ? `M${chips[chip][0]} ${chips[chip][1]}h${size}v${size}h-${size}z` : "");
  const light = (chip) => {
    for (const { name, ways, stride } of axes) {
      const first = chip - (Math.floor(chip / stride) % ways) * stride;
      one(`[data-axis="${name}"]`, mesh).setAttribute("d", Array.from({ length: ways }, (_, rank) => square(first + rank * stride)).join(""));
    }
    one(".self", mesh).setAttribute("d", square(chip));
    mesh.dataset.chip = chip;
  };
  drawing.addEventListener("pointermove", (event) => {
    const box = drawing.getBoundingClientRect(), scale = drawing.viewBox.baseVal.width / box.width;
    const x = (event.clientX - box.left) * scale, y = (event.clientY - box.top) * scale;
    const chip = chips.findIndex(([a, b]) => x >= a && x <= a + cell && y >= b && y <= b + cell);
    if (chip >= 0) light(chip);
  });
})();
