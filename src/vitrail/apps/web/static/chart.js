// A chart of curves with hover, drawn by uPlot in the colours of the page.
import {html, useEffect, useRef} from "./html.js";
import uPlot from "./vendor/uplot.js";
import {useDark} from "./maps.js";
import {percent} from "./numbers.js";

const COLOURS = {
  light: ["#b2182b", "#555", "#2166ac", "#8a5a00", "#6a3d9a"], dark: ["#f4a582", "#d0d0d0", "#4da3ff", "#e6c35c", "#cab2d6"],
};

/**
 * Probabilities over a share of removed parts.
 * @param {{x: number[], series: {name: string, values: number[], dashed?: boolean, faint?: boolean}[]}} props
 */
export function Chart({x, series, label, marked}) {
  const place = useRef(null);
  const dark = useDark();
  useEffect(() => {
    const ink = dark ? "#e8e6e3" : "#333", grid = dark ? "#444" : "#ddd";
    const axis = {stroke: ink, grid: {stroke: grid, width: 1}, ticks: {stroke: grid}};
    const width = () => Math.max(240, Math.min(620, place.current.clientWidth));
    const made = new uPlot({
      width: width(), height: 240, legend: {live: true}, cursor: {drag: {x: false, y: false}},
      scales: {x: {time: false, range: [0, 1]}, y: {range: [0, 1]}},
      axes: [{...axis, values: (_, ticks) => ticks.map((tick) => `${Math.round(tick * 100)} %`)},
        {...axis, size: 56, values: (_, ticks) => ticks.map((tick) => `${Math.round(tick * 100)} %`)}],
      series: [{label: "removed", value: (_, value) => (value === null ? "" : `${Math.round(value * 100)} %`)},
        ...series.map((one, i) => ({
          label: one.name, width: one.faint ? 1 : 2.5, dash: one.dashed ? [6, 4] : undefined,
          stroke: COLOURS[dark ? "dark" : "light"][i % 5], value: (_, value) => (value === null ? "" : percent(value)),
        }))],
      hooks: {draw: [(plot) => {
        if (marked === undefined) return;
        const at = plot.valToPos(marked, "x", true);
        plot.ctx.save();
        plot.ctx.strokeStyle = ink;
        plot.ctx.beginPath();
        plot.ctx.moveTo(at, plot.bbox.top);
        plot.ctx.lineTo(at, plot.bbox.top + plot.bbox.height);
        plot.ctx.stroke();
        plot.ctx.restore();
      }]},
    }, [x, ...series.map((one) => one.values)], place.current);
    const fit = new ResizeObserver(() => place.current && made.setSize({width: width(), height: 240}));
    fit.observe(place.current);
    return () => { fit.disconnect(); made.destroy(); };
  }, [JSON.stringify(series), dark, marked]);
  return html`<div class="chart" role="img" aria-label=${label} ref=${place}></div>`;
}
