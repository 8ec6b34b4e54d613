// Shows bokeh's figures in place of the static ones, and makes axes and lines choosable. Without this script the page is complete.
(function () {
  "use strict";
  var plots = JSON.parse(document.getElementById("plots").textContent);
  var narrow = window.innerWidth < 600;
  Bokeh.set_log_level("error");

  function numbers(values) {
    return values.map(function (v) { return v === null ? NaN : v; });
  }

  function shorten(name) {
    return narrow && name.length > 18 ? name.slice(0, 9) + "…" + name.slice(-8) : name;
  }

  function start(plot) {
    var figure = document.querySelector('[data-plot="' + plot.key + '"]');
    var live = figure.querySelector(".live");
    var state = { scale: plot.first, x: 0, hidden: {}, model: null, views: null };
    plot.series.forEach(function (series) {
      Object.keys(series.columns).forEach(function (name) {
        series.columns[name] = numbers(series.columns[name]);
      });
    });

    function columns(number) {
      var found = plot.series[number].columns;
      return Object.assign({}, found, { x: found[plot.x[state.x].column] || found.x });
    }

    // The figures of bokeh come without numbers: these are written into a source before it is made, and again when x changes.
    function furnish(part) {
      if (part === null || typeof part !== "object") return;
      if (part.name === "ColumnDataSource" && part.attributes && part.attributes.tags) {
        part.attributes.data = { type: "map", entries: Object.entries(columns(part.attributes.tags[0])) };
        return;
      }
      Object.values(part).forEach(furnish);
    }

    function fill() {
      var x = plot.x[state.x];
      state.model.renderers.forEach(function (renderer) {
        var number = renderer.tags[0];
        renderer.data_source.data = columns(number);
        renderer.visible = !state.hidden[plot.series[number].line];
      });
      state.model.below[0].axis_label = x.label;
      if ("min_interval" in state.model.below[0].ticker) state.model.below[0].ticker.min_interval = x.column === "round" ? 1 : 0;
      if (plot.rows.length) {
        state.model.left[0].major_label_overrides = new Map(plot.rows.map(function (name, i) { return [i, shorten(name)]; }));
      }
    }

    function show() {
      if (state.views) state.views.clear();
      live.textContent = "";
      live.hidden = false;
      var item = Object.assign({}, plot.items[state.scale], { target_id: live.id });
      furnish(item);
      return Bokeh.embed.embed_item(item).then(function (views) {
        state.views = views;
        state.model = views.roots[0].model;
        fill();
        figure.classList.add("on");
        figure.querySelectorAll("[hidden]").forEach(function (part) { part.hidden = false; });
      });
    }

    function press(button, on) {
      button.setAttribute("aria-pressed", on ? "true" : "false");
    }

    figure.querySelectorAll("[data-x]").forEach(function (button, i, all) {
      button.addEventListener("click", function () {
        state.x = i;
        all.forEach(function (other) { press(other, other === button); });
        fill();
      });
    });
    figure.querySelectorAll("[data-log]").forEach(function (box) {
      box.addEventListener("change", function () {
        state.scale = box.checked ? "log" : "linear";
        show();
      });
    });
    var lines = figure.querySelectorAll("[data-line]");
    lines.forEach(function (button, i) {
      button.addEventListener("click", function () {
        state.hidden[i] = !state.hidden[i];
        press(button, !state.hidden[i]);
        fill();
      });
    });
    figure.querySelectorAll("[data-every]").forEach(function (button) {
      button.addEventListener("click", function () {
        var hide = button.textContent === "hide all";
        lines.forEach(function (line, i) { state.hidden[i] = hide; press(line, !hide); });
        button.textContent = hide ? "show all" : "hide all";
        fill();
      });
    });
    return show().catch(function (problem) {
      live.hidden = true;
      console.error(problem);
    });
  }

  Promise.all(plots.map(start)).then(function () { document.body.dataset.ready = "yes"; });
})();
