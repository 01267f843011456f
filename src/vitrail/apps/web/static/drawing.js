// Maps on a canvas, from raw scores: smoothing, threshold, opacity and colours need no server.
import {colours, place} from "./colours.js";
import {scale} from "./numbers.js";

const FAINT = 0.35;
const SIDE = 440;
const pictures = new Map();

/** The picture behind an address; the same element each time. */
export function picture(address) {
  if (!address) return null;
  if (!pictures.has(address)) {
    if (pictures.size > 40) pictures.delete(pictures.keys().next().value);
    const image = new Image();
    image.src = address;
    pictures.set(address, {image, ready: image.decode().catch(() => {})});
  }
  return pictures.get(address);
}

/** Pixels of the canvas for a picture of this height and width. */
export function canvasSize(size) {
  const factor = Math.max(1, Math.round(SIDE / Math.max(...size)));
  return [size[0] * factor, size[1] * factor];
}

/** The value of a grid at a place in 0..1, bilinear between the centres of its cells, or of the nearest cell. */
export function sampler(values, rows, columns, smooth) {
  if (!smooth) {
    return (y, x) => values[Math.min(rows - 1, Math.floor(y * rows)) * columns + Math.min(columns - 1, Math.floor(x * columns))];
  }
  return (y, x) => {
    const down = Math.max(0, Math.min(rows - 1, y * rows - 0.5));
    const along = Math.max(0, Math.min(columns - 1, x * columns - 0.5));
    const top = Math.min(Math.floor(down), Math.max(rows - 2, 0)), left = Math.min(Math.floor(along), Math.max(columns - 2, 0));
    const below = Math.min(top + 1, rows - 1), right = Math.min(left + 1, columns - 1);
    const fy = down - top, fx = along - left;
    return (1 - fy) * ((1 - fx) * values[top * columns + left] + fx * values[top * columns + right])
      + fy * ((1 - fx) * values[below * columns + left] + fx * values[below * columns + right]);
  };
}

/** The grid that is drawn: the method's own pixels where it has them, else its patches. */
export function gridOf(map, grid) {
  if (map.fine) return {values: map.fine.values, rows: map.fine.shape[0], columns: map.fine.shape[1]};
  const [rows, columns] = map.grid || grid;
  return {values: map.values, rows, columns};
}

/**
 * Draw the picture with a map over it.
 * @param {{values, rows, columns}} cells the scores
 * @param {{palette, opacity, threshold, smooth}} look
 */
export function drawMap(canvas, shown, size, cells, signed, look) {
  const [height, width] = canvasSize(size);
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, {width, height});
  const context = canvas.getContext("2d", {willReadFrequently: true});
  context.clearRect(0, 0, width, height);
  if (shown) context.drawImage(shown, 0, 0, width, height);
  else {
    context.fillStyle = "#808080";
    context.fillRect(0, 0, width, height);
  }
  if (!cells) return;
  const data = context.getImageData(0, 0, width, height);
  const table = colours(look.palette, signed);
  const bring = scale(cells.values, signed);
  const at = sampler(cells.values, cells.rows, cells.columns, look.smooth);
  const pixels = data.data;
  for (let y = 0; y < height; y++) {
    for (let x = 0; x < width; x++) {
      const value = bring(at((y + 0.5) / height, (x + 0.5) / width));
      if (Math.abs(value) < look.threshold) continue;
      const share = look.opacity * (signed ? FAINT + (1 - FAINT) * Math.abs(value) : 1);
      const from = place(value, signed), to = (y * width + x) * 4;
      for (let c = 0; c < 3; c++) pixels[to + c] += (table[from + c] - pixels[to + c]) * share;
    }
  }
  context.putImageData(data, 0, 0);
}

/** Outline cells of a grid, such as the one that is pointed at. */
export function outline(canvas, cells, rows, columns, colour) {
  const context = canvas.getContext("2d");
  const height = canvas.height / rows, width = canvas.width / columns;
  for (const cell of cells) {
    const y = Math.floor(cell / columns) * height, x = (cell % columns) * width;
    context.lineWidth = 5;
    context.strokeStyle = "#000";
    context.strokeRect(x + 1, y + 1, width - 2, height - 2);
    context.lineWidth = 2.5;
    context.strokeStyle = colour;
    context.strokeRect(x + 1, y + 1, width - 2, height - 2);
  }
}

/** Draw the picture with some cells replaced by what removed parts look like. */
export function drawRemoved(canvas, shown, background, size, isGone, rows, columns) {
  drawMap(canvas, shown, size, null, false, {});
  const context = canvas.getContext("2d");
  const height = canvas.height / rows, width = canvas.width / columns;
  for (let cell = 0; cell < rows * columns; cell++) {
    if (!isGone(cell)) continue;
    const y = Math.floor(cell / columns) * height, x = (cell % columns) * width;
    if (!background) {
      context.fillStyle = "#000";
      context.fillRect(x, y, width, height);
      continue;
    }
    const across = background.naturalWidth / canvas.width, down = background.naturalHeight / canvas.height;
    context.drawImage(background, x * across, y * down, width * across, height * down, x, y, width, height);
  }
}

/** Where the strongest cell lies, in words. */
export function strongest(values, rows, columns) {
  let best = 0;
  for (let i = 1; i < values.length; i++) if (values[i] > values[best]) best = i;
  const row = Math.floor(best / columns), column = best % columns;
  const down = ["top", "middle", "bottom"][Math.floor((3 * row) / rows)];
  const along = ["left", "centre", "right"][Math.floor((3 * column) / columns)];
  return `${down} ${along}`;
}
