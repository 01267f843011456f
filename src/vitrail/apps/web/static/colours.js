// Colours: one meaning everywhere. Maps without a sign take the sequential scale, maps with a sign the diverging one,
// in which warm colours mean "for the answer" and cool colours "against it". All scales are safe for colour-blind eyes.

const STOPS = {
  BrBG_r: "003c3000493e01564d01645b0e726a1f827a2f918944a2995bb3a873c3b88ad1c6a0dad1b6e3ddcbebe6d9eeebe7f2f0f5f5f4f5f1e4f6edd5f6e9c5f0deb0e8d29ae1c684d8b46ccea053c48b3ab77928a76a1d975b12874e0a754308633906543005",
  PuOr_r: "2d004b390c5e4518715225845f3a916d529c7b6aa88a7eb39990bfa9a1cbb7b1d5c3c0ddcfcfe5dadcece4e5f0eeeef3f7f7f6f9efe1fce8cdfee1b9fed59ffdc885fdbc6bf7ac52ee9b39e58a20d97b12cb6e0dbd6109ae55069e4c078d43077f3b08",
  RdBu_r: "0530610e41791752901f63a82a71b23480b93f8ec0529dc86bacd184bcd99bc9e0aed3e6c2ddecd4e6f1e0ecf3ecf2f5f7f6f6f9eee7fbe5d8fddcc9fbccb4f8bb9ef5aa89ee9677e48066db6b55d05548c53e3dba2832ab162a930e267c072267001f",
  cividis: "00224e00285b002e6a0533711a386f273e6e32436d3b496c434e6c4b546c535a6d5a5f6e61656f686a716f70737676767d7c788482798c8878938e789b9476a39a74aba072b4a76fbcae6cc4b468cdbb63d5c25edec958e7d150f0d846f9e03afee838",
  gray: "000000080808101010181818202020282828303030383838404040484848505050585858606060686868707070787878808080888888909090989898a0a0a0a8a8a8b0b0b0b8b8b8c0c0c0c8c8c8d0d0d0d8d8d8e0e0e0e8e8e8f0f0f0f8f8f8ffffff",
  inferno: "0000040403120b0724150b37210c4a2f0a5b3d09654a0c6b57106e64156e71196e7d1e6d8a226a972766a32c61b0315bbc3754c73e4cd24644db503be45a31eb6628f1731df68013f98e09fb9d07fcac11fbbc21f9cb35f5db4cf2ea69f3f68afcffa4",
  viridis: "440154470d6048186a482374472d7b4537814240863e49893b528b375b8d33638d2f6b8e2c728e297a8e26828e23898e21918c1f988b1fa08822a78528ae8032b67a3fbc734ec36b5ec96270cf5784d44b98d83eaddc30c2df23d8e219ece51bfde725",
};

export const PALETTES = {
  Inferno: {sequential: "inferno", diverging: "RdBu_r"},
  Viridis: {sequential: "viridis", diverging: "PuOr_r"},
  Cividis: {sequential: "cividis", diverging: "BrBG_r"},
  Grey: {sequential: "gray", diverging: "RdBu_r"},
};
const SIZE = 256;
const tables = new Map();

function table(name) {
  if (!tables.has(name)) {
    const text = STOPS[name];
    const count = text.length / 6;
    const made = new Uint8ClampedArray(SIZE * 3);
    for (let i = 0; i < SIZE; i++) {
      const place = (i / (SIZE - 1)) * (count - 1);
      const low = Math.min(Math.floor(place), count - 2);
      for (let c = 0; c < 3; c++) {
        const at = (stop) => parseInt(text.substr(stop * 6 + c * 2, 2), 16);
        made[i * 3 + c] = at(low) + (at(low + 1) - at(low)) * (place - low);
      }
    }
    tables.set(name, made);
  }
  return tables.get(name);
}

/** The table of 256 colours for maps with or without a sign. */
export function colours(palette, signed) {
  const pair = PALETTES[palette] || PALETTES.Inferno;
  return table(signed ? pair.diverging : pair.sequential);
}

/** The place of a value in the table: -1..1 where signed, 0..1 where not. */
export function place(value, signed) {
  const share = signed ? (value + 1) / 2 : value;
  return Math.max(0, Math.min(SIZE - 1, Math.round(share * (SIZE - 1)))) * 3;
}

/** The colour of a value as CSS, as an opaque colour. */
export function css(palette, value, signed) {
  const found = colours(palette, signed);
  const at = place(value, signed);
  return `rgb(${found[at]} ${found[at + 1]} ${found[at + 2]})`;
}

/** The colour behind a word: the end of the scale, more of it for more; and an ink that can be read on it. */
export function wordColour(palette, value, signed, dark) {
  const end = signed ? Math.sign(value) * 0.86 : 0.72;
  const found = colours(palette, signed);
  const at = place(end, signed);
  const page = dark ? 24 : 255;
  const share = Math.min(1, Math.abs(value)) * 0.92;
  const mixed = [0, 1, 2].map((c) => Math.round(page + (found[at + c] - page) * share));
  return {background: `rgb(${mixed.join(" ")})`, color: ink(mixed)};
}

/** Black or white, whichever has more contrast. */
function ink(rgb) {
  const linear = rgb.map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] > 0.179 ? "#000" : "#fff";
}
