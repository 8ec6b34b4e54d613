// Copies a block of code without prompts and output, and gives the cells of wide tables the name of their column, which narrow
// screens show in place of a head (compfed.css). Without this script the pages are complete.
(function () {
  "use strict";

  function code(text) {
    var lines = text.replace(/\n$/, "").split("\n");
    if (!/^>>> /.test(lines[0])) return lines.join("\n");
    return lines.filter(function (line) { return /^(>>>|\.\.\.)/.test(line); })
      .map(function (line) { return line.slice(4); }).join("\n");
  }

  function copy(text) {
    if (navigator.clipboard && window.isSecureContext) return navigator.clipboard.writeText(text);
    var area = document.createElement("textarea"); // a page that was opened from the disk
    area.value = text;
    area.style.position = "fixed";
    document.body.appendChild(area);
    area.select();
    var done = document.execCommand("copy");
    area.remove();
    return done ? Promise.resolve() : Promise.reject(new Error("not copied"));
  }

  document.querySelectorAll(".bd-article table").forEach(function (table) {
    var heads = Array.from(table.querySelectorAll("thead th")).map(function (cell) { return cell.textContent.trim(); });
    if (heads.length < 3) return;
    table.classList.add("stacked");
    table.querySelectorAll("tbody tr").forEach(function (row) {
      Array.from(row.children).forEach(function (cell, i) { cell.dataset.head = heads[i] || ""; });
    });
  });

  document.querySelectorAll("div[class*=highlight-]").forEach(function (block) {
    var pre = block.querySelector("pre");
    if (!pre || /highlight-text|highlight-none/.test(block.className) || block.closest(".sphx-glr-script-out")) return;
    var button = document.createElement("button");
    button.type = "button";
    button.className = "copy-button";
    button.textContent = "Copy";
    button.addEventListener("click", function () {
      copy(code(pre.textContent)).then(function () { button.textContent = "Copied"; }, function () { button.textContent = "Not copied"; })
        .then(function () { setTimeout(function () { button.textContent = "Copy"; }, 1500); });
    });
    block.classList.add("has-copy-button");
    block.appendChild(button);
  });
})();
