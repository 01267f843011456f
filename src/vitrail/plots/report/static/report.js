(() => {
const all = (where, what) => [...where.querySelectorAll(what)];
const part = row => document.getElementById(row.dataset.for);
const value = cell => cell.classList.contains('n') ? Number(cell.dataset.v ?? -Infinity) : cell.textContent;
const key = (row, at) => value(row.cells[at]);
const order = (a, b) => a === b ? 0 : typeof a === 'number' ? a - b : a.localeCompare(b, undefined, {numeric: true});
for (const table of all(document, 'table.sortable')) {
  all(table, 'thead th').forEach((head, at) => {
    const button = document.createElement('button');
    button.type = 'button';
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener('click', () => {
      const down = head.getAttribute('aria-sort') === 'ascending';
      all(table, 'thead th').forEach(other => other.removeAttribute('aria-sort'));
      head.setAttribute('aria-sort', down ? 'descending' : 'ascending');
      const rows = all(table, 'tbody tr').sort((a, b) => order(key(a, at), key(b, at)) * (down ? -1 : 1));
      for (const row of rows) {
        row.parentNode.append(row);
        const shown = part(row);
        if (shown) shown.parentNode.append(shown);
      }
    });
  });
}
const controls = document.getElementById('controls');
if (controls) {
  controls.hidden = false;
  const field = controls.querySelector('input'), told = controls.querySelector('output');
  const rows = all(document, 'tr[data-for]');
  const filter = () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    const kept = new Set();
    for (const row of rows) {
      const text = (row.textContent + ' ' + (part(row)?.querySelector('h3').textContent ?? '')).toLowerCase();
      row.hidden = !words.every(word => text.includes(word));
      if (!row.hidden) kept.add(row.dataset.for);
    }
    for (const shown of all(document, 'article')) shown.hidden = !kept.has(shown.id);
    told.textContent = words.length ? kept.size + ' of ' + new Set(rows.map(row => row.dataset.for)).size : '';
  };
  field.addEventListener('input', filter);
  filter();
}

// A click on a picture enlarges it; the arrow keys go to the next one of the same input.
const dialog = document.createElement('dialog');
dialog.setAttribute('aria-label', 'Enlarged picture');
const large = document.createElement('img'), line = document.createElement('div'), words = document.createElement('p');
const close = document.createElement('button');
close.textContent = 'Close';
close.type = 'button';
close.addEventListener('click', () => dialog.close());
line.append(words, close);
dialog.append(line);
document.body.append(dialog);
let opened = null;
const enlarge = (button) => {
  opened = button;
  const small = button.querySelector('img');
  large.src = small.src;
  large.alt = small.alt;
  words.textContent = small.alt;
  if (!large.isConnected) dialog.prepend(large);
  if (!dialog.open) dialog.showModal();
};
document.addEventListener('click', (event) => {
  const button = event.target.closest('.zoom');
  if (button) enlarge(button);
  else if (event.target === dialog) dialog.close();
});
dialog.addEventListener('keydown', (event) => {
  const step = {ArrowLeft: -1, ArrowRight: 1}[event.key];
  if (!step || !opened) return;
  const list = all(opened.closest('article'), '.zoom');
  enlarge(list[(list.indexOf(opened) + step + list.length) % list.length]);
});

// Thumbnails: the same pictures as a grid, one for each input.
const inputs = document.getElementById('inputs');
if (controls && inputs?.querySelector('.maps')) {
  const grid = document.createElement('button');
  Object.assign(grid, {type: 'button', id: 'thumbs', textContent: 'Thumbnails'});
  grid.setAttribute('aria-pressed', 'false');
  controls.append(grid);
  grid.addEventListener('click', () => grid.setAttribute('aria-pressed', String(inputs.classList.toggle('thumbs'))));
}

// Curves: the numbers at the place that is pointed at, or by the arrow keys.
const read = (svg, at) => {
  const lines = all(svg, 'polyline[data-name]').map((line) => ({
    name: line.dataset.name, points: line.getAttribute('points').split(' ').map((point) => point.split(',').map(Number)),
  }));
  const count = lines[0].points.length;
  const index = Math.max(0, Math.min(count - 1, at(lines[0].points)));
  svg.dataset.at = index;
  const [low, high] = svg.dataset.y.split(' ').map(Number), [first, last] = svg.dataset.x.split(' ').map(Number);
  const frame = svg.viewBox.baseVal, top = 10, bottom = frame.height - 42, left = 46, right = frame.width - 12;
  const value = ([, y]) => low + ((bottom - y) / (bottom - top)) * (high - low);
  const x = lines[0].points[index][0];
  let mark = svg.querySelector('.mark');
  if (!mark) {
    mark = svg.querySelector('path').cloneNode();
    mark.setAttribute('class', 'mark');
    svg.append(mark);
  }
  mark.setAttribute('d', `M${x} ${top}V${bottom}`);
  const place = first + ((x - left) / (right - left)) * (last - first);
  svg.parentNode.querySelector('output').textContent =
    `${+place.toFixed(2)}: ${lines.map((line) => `${line.name} ${value(line.points[index]).toFixed(2)}`).join(' \u00b7 ')}`;
};
for (const kind of ['pointermove', 'keydown']) {
  document.addEventListener(kind, (event) => {
    const svg = event.target.closest?.('.chart > svg');
    if (!svg || !svg.dataset.y) return;
    if (kind === 'keydown') {
      const step = {ArrowLeft: -1, ArrowRight: 1}[event.key];
      if (!step) return;
      event.preventDefault();
      read(svg, () => Number(svg.dataset.at ?? -1) + step);
      return;
    }
    const box = svg.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
    read(svg, (points) => points.reduce((best, [at], i) => (Math.abs(at - x) < Math.abs(points[best][0] - x) ? i : best), 0));
  });
}
})();
