"""How the page looks: system fonts only, one column on a phone, nothing from outside."""

FONTS = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif")
MONO = ("ui-monospace", "Consolas", "monospace")
CSS = """
.gradio-container { overflow-x: clip; min-width: 0 !important; max-width: min(1180px, 100vw) !important;
  margin: 0 auto !important; padding: 12px clamp(2px, 2vw - 4px, 16px) !important; }
.gradio-container > .main { padding: clamp(6px, 3vw - 4px, 24px) !important; }
.top h1 { font-size: 1.7rem; line-height: 1.2; margin: .2em 0 0; }
.top p { margin: .1em 0 .4em; color: var(--body-text-color-subdued); }
.gallery { display: grid; grid-template-columns: repeat(auto-fit, minmax(140px, 1fr)); gap: 14px; }
.gallery.small { grid-template-columns: repeat(auto-fit, minmax(96px, 1fr)); }
.gallery figure { margin: 0; min-width: 0; }
.gallery img, .removal img { width: 100%; display: block; border-radius: 8px; }
figcaption { font-size: .85rem; line-height: 1.3; margin-top: 6px; }
figcaption strong { display: block; overflow-wrap: anywhere; }
figcaption span, .quiet { color: var(--body-text-color-subdued); }
.sentences figure { margin: 0 0 14px; display: flex; flex-direction: column-reverse; }
.sentence { font-size: 1.1rem; line-height: 2.1; margin: 2px 0; overflow-wrap: anywhere; }
.token { padding: .12em .22em; border-radius: .25em; }
del.token { opacity: .3; }
.blank { aspect-ratio: 1; border-radius: 8px; background: repeating-linear-gradient(45deg, #8881, #8881 8px, #8883 8px,
  #8883 16px); }
.sentences .blank { aspect-ratio: auto; height: 34px; }
.working { max-height: 0; overflow: hidden; visibility: hidden; align-items: center; flex-wrap: nowrap; }
.working:has([data-testid=status-tracker]:not(.hide)) { animation: unfold 0s .35s forwards; }
@keyframes unfold { to { max-height: 90px; visibility: visible; } }
.working .slot { min-height: 64px; flex: 1 1 auto; }
.answer p { margin: 0; font-size: 1.25rem; }
.answer p.quiet { font-size: .95rem; margin-top: 2px; }
.trouble { background: #fef2f2; color: #991b1b; border: 1px solid #fecaca; border-radius: 8px; padding: 10px 14px; }
.legend { display: flex; align-items: center; gap: 8px; font-size: .8rem; margin-top: 8px;
  color: var(--body-text-color-subdued); }
.legend span { flex: 0 0 auto; max-width: 42%; }
.legend .bar { flex: 0 1 160px; min-width: 48px; height: 9px; border-radius: 5px;
  border: 1px solid var(--border-color-primary); }
.legend .bar.signed { background: linear-gradient(90deg, #b8112a, #fff, #00703c); }
.legend .bar.unsigned { background: linear-gradient(90deg, #fff, #00703c); }
.removal { display: grid; grid-template-columns: minmax(0, 300px) minmax(0, 460px); gap: 20px; align-items: start; }
.removal.text { grid-template-columns: minmax(0, 1fr) minmax(0, 1fr); }
.reading { font-size: 1rem; margin: 8px 0 0; } .reading strong { font-size: 1.5rem; }
.curve { width: 100%; height: auto; } .curve text { font-size: 12px; fill: var(--body-text-color-subdued); }
.key { display: flex; flex-wrap: wrap; gap: 14px; font-size: .85rem; margin: 0; }
.scroll { overflow-x: auto; max-width: 100%; }
table.heat, table.matrix { border-collapse: separate; border-spacing: 2px; font-size: .8rem; width: auto; }
table.heat, table.heat *, table.matrix, table.matrix * { border: none !important; }
table.heat td { min-width: 24px; height: 22px; border-radius: 3px; padding: 0; }
table.heat td.none { background: repeating-linear-gradient(45deg, #eee, #eee 4px, #ddd 4px, #ddd 8px); }
table.heat thead th { vertical-align: bottom; font-weight: 400; padding: 0; }
table.heat thead th span { writing-mode: vertical-rl; transform: rotate(180deg); }
table.heat tbody th, table.matrix th { text-align: right; font-weight: 500; padding: 0 8px 0 0; white-space: nowrap; }
table.heat tr.marked td { outline: 2px solid var(--color-accent); }
table.heat tbody th, table.matrix tbody th { position: sticky; left: 0; background: var(--body-background-fill); }
table.heat tbody tr:last-child > * { font-weight: 600; }
table.matrix td { min-width: 64px; padding: 7px 9px; text-align: center; border-radius: 4px; }
table.matrix thead th { text-align: center; padding: 4px; white-space: normal; }
.trouble-box:not(:has(.trouble)) { display: none; }
.examples { gap: 8px !important; }
.examples button { white-space: normal; width: 100%; min-width: 0 !important;
  justify-content: flex-start; text-align: left; font-weight: 400; }
#image-examples button::before { content: ""; width: 44px; height: 44px; border-radius: 6px; margin-right: 8px;
  background-size: cover; flex: none; }
.hidden-holder { display: none !important; }
@media (max-width: 700px) {
  .top h1 { font-size: 1.3rem; }
  .tab-container button { padding: 0 7px; font-size: .8rem; }
  .scroll { max-width: calc(100vw - 36px); }
  .gallery { grid-template-columns: repeat(2, minmax(0, 1fr)); }
  .gallery.small { grid-template-columns: repeat(3, minmax(0, 1fr)); }
  table.matrix td { min-width: 50px; padding: 7px 4px; }
  .removal, .removal.text { grid-template-columns: minmax(0, 1fr); }
  .results { order: -1; }
  .answer p { font-size: 1.1rem; }
}
"""
SAVE = """(file) => {
  if (!file || !file.url) return [];
  const link = document.createElement('a');
  link.href = file.url;
  link.download = file.name;
  document.body.appendChild(link);
  link.click();
  link.remove();
  return [];
}"""
"""Hand a file to the browser, from an address that holds all of it."""
