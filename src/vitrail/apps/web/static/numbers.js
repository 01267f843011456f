// Numbers: from the server's packed form, to words, and ranges for colours.

const SPACE = "\u00a0";

/** The numbers of a packed array, and its shape. */
export function unpack(data) {
  if (!data) return null;
  const bytes = Uint8Array.from(atob(data.int16), (letter) => letter.charCodeAt(0));
  const whole = new Int16Array(bytes.buffer);
  return {shape: data.shape, values: Float32Array.from(whole, (value) => value * data.scale)};
}

/** A probability as one reads it; small and large ones exactly. */
export function percent(share) {
  if (share === null || share === undefined) return "";
  const value = share * 100;
  if (share > 0 && value < 0.01) return `${value.toExponential(1)}${SPACE}%`;
  if (share < 1 && value > 99.9) return `${(Math.floor(value * 1000) / 1000).toFixed(3)}${SPACE}%`;
  return `${value.toFixed(value < 1 ? 2 : 1)}${SPACE}%`;
}

/** A score with three digits; a sign where signs mean something. */
export function score(value, signed) {
  if (value === undefined || Number.isNaN(value)) return "";
  const text = Math.abs(value) >= 0.001 && Math.abs(value) < 1000 ? value.toPrecision(3) : value.toExponential(1);
  const plain = value === 0 ? "0" : text;
  return (signed && value > 0 ? "+" : "") + plain.replace("-", "\u2212");
}

/** Points of a percentage with a sign. */
export function points(share) {
  return `${share > 0 ? "+" : share < 0 ? "\u2212" : ""}${Math.abs(share * 100).toFixed(1)}`;
}

/** The smallest, largest and largest absolute value. */
export function range(values) {
  let low = Infinity, high = -Infinity;
  for (const value of values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  if (low > high) low = high = 0;
  return {low, high, most: Math.max(Math.abs(low), Math.abs(high))};
}

/** A function that brings scores to -1..1 (signed, zero stays zero) or 0..1. */
export function scale(values, signed) {
  const {low, high, most} = range(values);
  if (signed) return most ? (value) => value / most : () => 0;
  return high > low ? (value) => (value - low) / (high - low) : () => 0;
}

/** The scores of words: the sum of signed pieces, the largest of unsigned ones. */
export function wordScores(values, words, signed) {
  return words.map((pieces) => {
    const own = pieces.map((piece) => values[piece]);
    return signed ? own.reduce((a, b) => a + b, 0) : Math.max(...own);
  });
}
