"use strict";
// Draws every figure of the page in the colours of the reader's theme, and again when the theme changes.
(function () {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");

  const options = {
    displaylogo: false,
    responsive: true,
    modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
  };

  function colour(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  }

  function themed(figure) {
    const ink = colour("--ink");
    const line = colour("--line");
    const layout = structuredClone(figure.layout);
    for (const key of Object.keys(layout)) {
      if (/^[xy]axis\d*$/.test(key)) {
        Object.assign(layout[key].title, { standoff: 8 });
        Object.assign(layout[key], { gridcolor: line, zerolinecolor: line, linecolor: line, automargin: true });
      }
    }
    Object.assign(layout, {
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: ink, family: "system-ui, sans-serif", size: 13 },
      legend: { orientation: "h", y: -0.3 },
      margin: { l: 60, r: 20, t: 50, b: 50 },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("--soft"), activecolor: ink },
      hovermode: "closest",
      hoverlabel: { bgcolor: colour("--panel"), bordercolor: line, font: { color: ink }, align: "left" },
    });
    const data = figure.data.map(function (trace) {
      if (!trace.themed) { return trace; }
      const copy = structuredClone(trace);
      delete copy.themed;
      copy.line.color = ink;
      return copy;
    });
    return { data: data, layout: layout };
  }

  function draw() {
    for (const id of Object.keys(figures)) {
      const figure = themed(figures[id]);
      Plotly.react(id, figure.data, figure.layout, options);
    }
  }

  draw();
  dark.addEventListener("change", draw);
})();
